"""Products from two fp16 terms: the arithmetic beside plain fp32, how calls are cut, what the compiler makes of the kernels."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import golden
import split_model as split
from conftest import require
from hopper_on_cpu import aligned
from toprung.backends import nvrtc
from toprung.backends.nvrtc import compile_cubin
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import candidates
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper import SHARED_BYTES, ceil
from toprung.kernels.hopper_fp32x import cost
from toprung.kernels.hopper_fp32x.config import BOTH, IN_FLIGHT, K_BLOCK, Fp32xConfig, with_parts
from toprung.kernels.hopper_fp32x.cost import WEIGHED
from toprung.kernels.hopper_fp32x.family import FP32X
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.sizes import depth_of, trimmed, unsupported
from toprung.kernels.hopper_fp32x.sources import (
    SPLIT_HELD,
    SPLIT_THREADS,
    product_source,
    reduce_source,
    split_source,
    walk,
)
from toprung.lab.sass.machine_code import disassemble, inspect_source
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import Gemm


def scratch(call: GemmDesc, parts: int) -> int:
    """Return the bytes of scratch memory of a product."""
    with golden.recording():
        return Fp32xLaunches(golden.Recorder(golden.devices()["h200-cuda"]), call, Fp32xConfig(k_parts=parts)).plan.workspace_bytes


FINITE = [name for name in DISTRIBUTIONS if "inf" not in name and name != "nan"]
H200 = dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=132) if not nvrtc.missing() else None
DEVICE = golden.devices()["h200-cuda"]


@pytest.mark.parametrize("name", FINITE)
def test_scheme_is_as_accurate_as_a_chain_of_fp32(name: str) -> None:
    operands = DISTRIBUTIONS[name].operands(Gemm(32, 32, 256), 1)
    a, b = operands["A"], operands["B"]
    plain, ours = split.errors(a, b, split.chain(a, b)), split.errors(a, b, split.product(a, b, split.Scheme()))
    assert split.refused(a, b) or (ours[0] <= 2 * plain[0] and ours[1] <= 1.1 * plain[1])


def test_sums_that_stay_in_the_unit_drift() -> None:
    operands = DISTRIBUTIONS["positive"].operands(Gemm(16, 16, 1024), 1)
    a, b = operands["A"], operands["B"]
    kept, promoted = (split.errors(a, b, split.product(a, b, split.Scheme(interval=i)))[1] for i in (0, 2))
    assert kept > 10 * promoted


def refused(name: str) -> bool:
    operands = DISTRIBUTIONS[name].operands(Gemm(64, 64, 512), 1)
    return split.refused(operands["A"], operands["B"])


def test_guard_refuses_what_cannot_be_carried_and_nothing_common() -> None:
    assert [name for name in DISTRIBUTIONS if refused(name)] == ["phi4", "T2", "T4", "inf", "-inf", "nan"]


def test_a_guard_that_misses_losses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has one element so large that the others are lost beside it, and that meets only zeros."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((8, 64), (64, 8)))
    a[:, 0], b[0] = 2.0**60, 0
    assert split.refused(a, b)
    monkeypatch.setattr(split, "CARRIED", 200)  # planted
    assert not split.refused(a, b)
    plain, ours = split.errors(a, b, split.chain(a, b)), split.errors(a, b, split.product(a, b, split.Scheme()))
    assert ours[0] > 1000 * plain[0]


def test_a_residual_that_is_not_scaled_is_found() -> None:
    """Planted: fp16 has not the exponents for it."""
    operands = DISTRIBUTIONS["phi4"].operands(Gemm(32, 32, 256), 1)
    a, b = operands["A"], operands["B"]
    plain, ours = split.errors(a, b, split.chain(a, b)), split.errors(a, b, split.product(a, b, split.Scheme(residual=0)))
    assert ours[0] > 2 * plain[0]


def test_terms_hold_an_element() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (4, 64)).astype(np.float32)
    e = split.exponents(x)
    hi, lo = split.split(x, e)
    back = np.ldexp(hi.astype(np.float64) + lo.astype(np.float64) / 2048, (e - split.TOP)[:, None])
    assert np.max(np.abs(back - x) / np.abs(x)) <= 2.0**-22


def test_a_row_of_zeros_refuses_nothing() -> None:
    huge = np.full((1, 64), np.float32(3e38))
    assert not split.refused(np.zeros((4, 64), np.float32), huge.T * 1e-3)


def test_a_workspace_is_no_more_than_twice_the_operands() -> None:
    for call in (aligned(4096, 4096, 4096), aligned(64, 65536, 64), aligned(4095, 4097, 4099), aligned(300, 300, 65)):
        assert scratch(call, 1) <= 2 * 4 * call.K * (call.M + call.N) + 1024


@pytest.mark.parametrize("rows, K", [(512, 512), (1024, 1024), (8192, 8192), (40, 20001), (4, 32), (70000, 33)])
def test_splitting_has_threads_for_every_row(rows: int, K: int) -> None:
    lanes, blocks = walk(rows, 1, K, False, 132, 8)
    assert blocks * SPLIT_THREADS >= rows * lanes and blocks % 8 == 0 and lanes in (32, 64, 128, 256, 512)
    assert lanes * SPLIT_HELD >= min(K, SPLIT_THREADS * SPLIT_HELD)


@pytest.mark.skipif(H200 is None, reason="NVRTC is not installed")
def test_supported_says_why_not() -> None:
    assert H200 is not None
    assert unsupported(H200, aligned(64, 64, 64), Fp32xConfig()) == ""
    assert "K from 64" in unsupported(H200, aligned(64, 64, 63), Fp32xConfig())
    large, small = aligned(65536, 65536, 65536), dataclasses.replace(H200, memory_bytes=80 << 30)
    assert unsupported(dataclasses.replace(H200, memory_bytes=140 << 30), large, Fp32xConfig()) == ""
    assert "bytes" in unsupported(small, large, Fp32xConfig())
    assert unsupported(small, large, Fp32xConfig(split=IN_FLIGHT)) == ""
    assert "Hopper" in unsupported(dataclasses.replace(H200, arch="sm_80"), aligned(64, 64, 64), Fp32xConfig())


DEEP = (
    aligned(128, 128, 65536), aligned(256, 256, 131072), aligned(384, 384, 16384), aligned(512, 512, 16384),
    aligned(640, 640, 8192), aligned(1, 1, 1 << 20), aligned(128, 128, 1000003, trans_a=True),
    aligned(100, 90, 5000, 9, stride_a=500000, stride_c=9000),
)  # fmt: skip


@pytest.mark.parametrize("call", DEEP, ids=str)
def test_deep_products_are_cut_until_they_fill_the_device(call: GemmDesc) -> None:
    (chosen,) = candidates(FP32X, DEVICE, call)
    slices, depth = chosen.slices, depth_of(call.K, chosen.slices)
    assert slices > 1 and block_count(call, chosen) * slices > 0.85 * 132 * ceil(block_count(call, chosen) * slices, 132)
    assert depth % K_BLOCK == 0 and depth >= cost.SHORTEST, "a slice would end inside a row of terms"
    assert (slices - 1) * depth < call.K <= slices * depth, "slices do not cover K once"
    ours, whole = (cost.alone(call, with_parts(chosen, n), 132)[0] for n in (slices, 1))
    assert ours < whole / 2


@pytest.mark.parametrize("call", [*DEEP, aligned(1000, 1000, 1000), aligned(200, 3000, 3000)], ids=str)
def test_no_other_tile_and_slices_would_be_done_much_sooner(call: GemmDesc) -> None:
    (chosen,) = candidates(FP32X, DEVICE, call)
    room = max(1, call.K // cost.SHORTEST)
    others = [(v, trimmed(call.K, n)) for v in WEIGHED[BOTH] for n in range(1, min(room, 400))]
    (ours, _), *times = cost.beforehand_times(call, 132, [(chosen, chosen.k_parts), *others])
    assert ours <= 1.1 * min(times)[0]


@pytest.mark.parametrize("call", [*DEEP, aligned(512, 512, 512), aligned(300, 300, 2048)], ids=str)
def test_terms_and_slices_take_no_more_than_twice_the_operands(call: GemmDesc) -> None:
    """Chosen slices, and as many as there may be of each tile; a hundredth for what stands beside terms, padding and flags."""
    operands = 4 * call.K * (call.M * (call.batch if call.stride_a else 1) + call.N * (call.batch if call.stride_b else 1))
    for slices in {parts for _, parts in cost.in_parts(call, 132, BOTH)}:
        taken = scratch(call, slices)
        assert taken <= 2.02 * operands + 4096
        assert taken >= operands + 4 * (slices > 1) * slices * call.M * call.N * call.batch


def test_slices_of_whole_chunks_are_never_empty() -> None:
    for K in (64, 65, 1000, 4097, 65536):
        for asked in (1, 2, 3, 7, 33, 132, 5000):
            slices = trimmed(K, asked)
            assert 1 <= slices <= asked and (slices - 1) * depth_of(K, slices) < K <= slices * depth_of(K, slices)


@pytest.mark.parametrize("name", ["uniform", "positive", "phi1", "phi4", "T1", "huge-row"])
def test_slices_only_shorten_sums(name: str) -> None:
    """A sum of n/s, then one of s, where there was one of n; each slice's rows have exponents of their own."""
    operands = DISTRIBUTIONS[name].operands(Gemm(16, 16, 1024), 1)
    a, b = operands["A"], operands["B"]
    whole = split.errors(a, b, split.product(a, b, split.Scheme()))
    cut = split.errors(a, b, split.in_slices(a, b, split.Scheme(), 256))
    assert cut[1] <= 1.05 * whole[1] and cut[0] <= max(1.5 * whole[0], 2)


def test_adding_up_has_one_order() -> None:
    """Nothing is added in memory, and the loads of eight slices are in flight at once."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    code = inspect_source(reduce_source(), "sm_90")
    assert code.local_bytes == 0 and code.counts["LDG.128"] >= 8
    listing = disassemble(compile_cubin(reduce_source(), "sm_90").code)
    assert re.findall(r"\b(?:REDG?|ATOM[GS]?)\.E\S+", listing) == []


TRIED = (
    Fp32xConfig(CONSUMERS=1, STAGES=8), Fp32xConfig(BN=32, STAGES=8), Fp32xConfig(CONSUMERS=1, BN=32, STAGES=4),
    Fp32xConfig(CONSUMERS=1, BN=64, STAGES=12, GROUP=1),
)  # fmt: skip
"""Variants that only a tuner tries."""


def check_product(variant: Fp32xConfig) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    source = product_source(variant)
    code = inspect_source(source, "sm_90")
    assert code.local_bytes == 2 * variant.BN + 72, "beyond what one_by_one has of a thread's sums"
    assert not any(kind.startswith(("LDL", "STL")) for kind in code.loop.counts)
    assert code.counts["HGMMA"] == 6
    assert code.shared_bytes <= SHARED_BYTES
    assert "serialized" not in compile_cubin(source, "sm_90").log


def test_product_keeps_the_matrix_units_busy() -> None:
    check_product(Fp32xConfig())


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*WEIGHED[BOTH][1:], *TRIED], ids=str)
def test_other_tiles_do_so_too(variant: Fp32xConfig) -> None:
    check_product(variant)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_splitting_holds_its_elements_in_registers(cluster: int) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    code = inspect_source(split_source(cluster), "sm_90")
    assert code.local_bytes <= 48  # bytes, outside the loops: a few addresses
    assert 2 * code.shared_bytes <= SHARED_BYTES
