"""Epilogues in the launches of Hopper's families, by the kernels' own texts on a CPU: bias by row, by column, whole, and f."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
import test_hopper_fp32_on_cpu
import test_hopper_inflight_on_cpu
import test_inflight_split_k_on_cpu
import test_presplit_on_cpu
from conftest import require
from hopper_on_cpu import aligned, bug
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import ADDEND, Epilogue
from toprung.gemm.layout import Layout
from toprung.gemm.lowering import epilogue_of, lower
from toprung.kernels import epilogue as epilogues
from toprung.kernels import registry
from toprung.kernels.hopper_fp32x import launches as of_fp32x
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, in_flight, presplit
from toprung.kernels.hopper_fp32x.family import FP32X, INFLIGHT, INFLIGHT_SPLIT_K, PRESPLIT
from toprung.kernels.hopper_sgemm import family as sgemm
from toprung.kernels.hopper_sgemm import launches as of_sgemm
from toprung.kernels.hopper_sgemm.config import SgemmConfig
from toprung.oracle.bias import bias
from toprung.oracle.precision import precision as promise

SMALL = Fp32xConfig(CONSUMERS=1, BN=32, STAGES=3, GROUP=2)
WAYS = {
    "fp32x": (FP32X, SMALL, hopper_on_cpu.Folder),
    "fp32x sliced": (FP32X, dataclasses.replace(SMALL, k_parts=3), hopper_on_cpu.Folder),
    "fp32x, wide tiles": (FP32X, Fp32xConfig(STAGES=2, GROUP=2), hopper_on_cpu.Folder),
    "in flight": (INFLIGHT, in_flight(1, 32, 5, 2), test_hopper_inflight_on_cpu.Folder),
    "in flight, columns in fours": (INFLIGHT, in_flight(1, 64, 4, 2), test_hopper_inflight_on_cpu.Folder),
    "in flight, clusters": (INFLIGHT, in_flight(1, 32, 5, 2, 2), test_hopper_inflight_on_cpu.Folder),
    "in flight, parts": (INFLIGHT_SPLIT_K, in_flight(1, 64, 4, 2, k_parts=3), test_inflight_split_k_on_cpu.Folder),
    "presplit": (PRESPLIT, presplit(2, 64, 3, 2), test_presplit_on_cpu.Folder),
    "plain": (sgemm.FAMILY, SgemmConfig(STAGES=2, GROUP=2), test_hopper_fp32_on_cpu.Folder),
}
"""Families with a configuration, and what builds their kernels for the CPU."""

QUICK = ("in flight, columns in fours", "plain")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return tmp_path_factory.mktemp("fused")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (of_fp32x, of_sgemm):
        monkeypatch.setattr(module, "kernel_of", lambda session, source: source)


def finished(x: Any, activation: str) -> Any:
    if activation == "relu":
        return np.where(x < 0, 0, x)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) if activation else x


def run(
    place: Any, way: str, shape: tuple[int, int, int], how: str, activation: str, beta: float, wild: bool = False, low: float = -1
) -> None:
    """A product with D as a row, a column, a transposed matrix, C itself or nothing, checked to C's edges.

    ``low``: least element of A and B; if it makes all terms of one sign, sums must not be biased.
    """
    family, config, folder_of = WAYS[way]
    folder: Any = folder_of(place, units=2)
    rng = np.random.default_rng(sum(shape))
    (M, N, K), pad = shape, 4 if shape[1] % 4 == 0 else 3
    a, b = rng.uniform(low, 1, (M, K)).astype(np.float32), rng.uniform(low, 1, (K, N)).astype(np.float32)
    if wild:  # some of it is computed again
        a[1, 3], a[M - 1, 5] = np.inf, np.nan
    held = {
        "row": rng.uniform(-9, 9, (1, N)), "column": rng.uniform(-9, 9, (M, 1)), "matrix": rng.uniform(-9, 9, (N, M)).T,
        "itself": rng.uniform(-9, 9, (M, N)), "nothing": np.zeros((1, 1)), "one": rng.uniform(-9, 9, (1, 1)),
    }[how].astype(np.float32, order="K")  # fmt: skip
    steps = tuple(0 if n == 1 else s // 4 for n, s in zip(held.shape, held.strides, strict=True))
    if how == "itself":  # D is C
        steps = N + pad, 1
    epilogue = Epilogue(activation=activation) if how == "nothing" else Epilogue(True, *steps, 0, activation)
    base = np.full((M + 1) * (N + pad) + 4, np.nan, np.float32)
    first = -base.ctypes.data % 16 // 4
    c = base[first : first + M * (N + pad)].reshape(M, N + pad)
    c[:, :N] = held if how == "itself" else np.nan
    around = [np.zeros(x.size + 4, np.float32) for x in (a, b)]  # on 16 bytes
    x, y = (m[-m.ctypes.data % 16 // 4 :][: z.size].reshape(z.shape) for m, z in zip(around, (a, b), strict=True))
    x[...], y[...] = a, b
    desc = aligned(M, N, K, 1, False, False, K, N, N + pad, align_a=4 if K % 4 == 0 else 1, align_b=4 if N % 4 == 0 else 1)
    start = family.compile(folder, desc, config, epilogue).starter()
    begin = ctypes.c_void_p((c if how == "itself" else held).ctypes.data).value if how != "nothing" else 0
    with np.errstate(all="ignore"):
        start(x.ctypes.data, 0, y.ctypes.data, 0, c.ctypes.data, 0, 0.5, beta, addend=begin)
        exact = finished(0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + beta * held.astype(np.float64), activation)
        size, added = np.abs(a).astype(np.float64) @ np.abs(b), abs(beta) * np.abs(held)
        bound, off = (K + 20) * 2.0**-24 * (size + added + 1), bias(c[:, :N], exact, size / 2 + added)
    sound = np.isfinite(exact)
    assert np.array_equal(c[:, :N][~sound], exact[~sound].astype(np.float32), equal_nan=True)
    assert (np.abs(c[:, :N][sound] - exact[sound]) <= bound[sound]).all()
    assert np.isnan(c[:, N:]).all() and np.isnan(base[:first]).all(), "written outside"
    assert not off or not off.beyond(promise(family.precision).bias_limit(K)), off


@pytest.mark.parametrize("way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_what_is_added_and_what_sums_go_through(place: Any, way: str) -> None:
    run(place, way, (70, 68, 100), "row", "gelu", 1.0)
    run(place, way, (66, 71, 96), "matrix", "gelu", -2.0)
    run(place, way, (128, 128, 64), "column", "gelu", 1.0)
    run(place, way, (70, 71, 96), "itself", "", 1.0)
    run(place, way, (70, 68, 128), "row", "gelu", 1.0, low=0)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_epilogue(place: Any, way: str) -> None:
    for how in ("row", "column", "matrix", "one", "nothing"):
        for activation in ("", "relu"):
            if how == "nothing" and not activation:
                continue
            run(place, way, (130, 72, 100), how, activation, 0.0 if how == "nothing" else 3.0)
    run(place, way, (70, 40, 100), "row", "relu", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_what_is_computed_again_has_its_epilogue(place: Any, way: str) -> None:
    run(place, way, (130, 72, 100), "row", "relu", 1.0, wild=True)
    run(place, way, (130, 72, 100), "matrix", "", 1.0, wild=True)
    run(place, way, (130, 72, 100), "itself", "", 1.0, wild=True)


@pytest.mark.slow
@pytest.mark.parametrize("way, where, text", [
    ("fp32x", "d-of-both-rows", "true || "),
    ("in flight", "d-of-second-row", "0 * "),
    ("fp32x, wide tiles", "d-of-granule", "0 * "),
    ("in flight", "d-of-tile", "0 * "),
    ("fp32x sliced", "d-of-sum", "col + 0 * "),
    ("plain", "d-of-element", "~on"), ("plain", "gelu", "~0.04f"),
    ("in flight, columns in fours", "d-of-fours", " - 2"),
])  # fmt: skip
def test_a_planted_bug_is_found(place: Any, way: str, where: str, text: str) -> None:
    with bug(where, text), pytest.raises(AssertionError):
        test_what_is_added_and_what_sums_go_through(place, way)
        test_what_is_computed_again_has_its_epilogue(place, way)


def test_families_say_what_they_can(place: Any) -> None:
    able = {f.name for f in registry.families() if f.epilogues}
    assert able == {*(way[0].name for way in WAYS.values()), "tiled_group"}  # whose tests are those of groups
    assert all(f.epilogues <= epilogues.EVERY for f in registry.families())
    assert Epilogue(True, activation="relu").needs == {ADDEND, "relu"} and not Epilogue().needs


def test_an_epilogue_counts_rows_as_the_product_does() -> None:
    """A batch that becomes one tall matrix has one stride for D, or no epilogue."""
    a, b = Layout((3, 5, 8), (40, 8, 1), 4), Layout((3, 8, 4), (0, 4, 1), 4)
    shape, c = (3, 5, 4), (20, 4, 1)
    ((desc,),) = (lower(a, b, Layout(shape, c, 4), 0.0).descs,)
    assert isinstance(desc, GemmDesc) and desc.M == 15
    assert epilogue_of(desc, shape, c, (0, 0, 1), "") == Epilogue(True, 0, 1, 0)
    assert epilogue_of(desc, shape, c, (20, 4, 1), "relu") == Epilogue(True, 4, 1, 0, "relu")
    assert epilogue_of(desc, shape, c, (5, 1, 0), "") == Epilogue(True, 1, 0, 0)
    assert epilogue_of(desc, shape, c, (0, 4, 1), "") is None, "the same matrix for each of the batch"
    apart = Layout((3, 8, 4), (32, 4, 1), 4)
    ((desc,),) = (lower(a, apart, Layout(shape, c, 4), 0.0).descs,)
    assert isinstance(desc, GemmDesc) and desc.batch == 3
    assert epilogue_of(desc, shape, c, (0, 4, 1), "") == Epilogue(True, 4, 1, 0)
    assert epilogue_of(desc, shape, c, (7, 0, -1), "") == Epilogue(True, 0, -1, 7)
