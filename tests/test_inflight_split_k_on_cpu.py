"""Products in flight whose K is cut into parts, on a CPU by the kernels' own texts: layouts, uneven parts, hostile values."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import golden
import hopper_on_cpu
from conftest import require
from hopper_on_cpu import Folder, aligned, bug
from test_hopper_inflight_on_cpu import NAMES, Product, are_computed_again, close, hostile
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_fp32x import launches
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, in_flight, with_parts
from toprung.kernels.hopper_fp32x.cost import SHORTEST, in_parts
from toprung.kernels.hopper_fp32x.family import INFLIGHT_SPLIT_K as FAMILY
from toprung.kernels.hopper_fp32x.sizes import depth_of

H200 = golden.devices()["h200-cuda"]
SMALL = in_flight(1, 32, 5, GROUP=2, k_parts=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("inflight_split_k"), units=2)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "kernel_of", lambda session, source: source)


@dataclasses.dataclass
class InParts(Product):
    """A product of two matrices, computed in parts of K."""

    def run(self, folder: Any, config: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        turned = self.trans[0] == "T", self.trans[1] == "T"
        a, b, c = self.laid(self.a, turned[0]), self.laid(self.b, turned[1]), self.laid(self.c, False)
        (_, M, K), N = self.a.shape, self.b.shape[2]
        if not beta:
            c[...] = np.nan
        align = next(w for w in (4, 2, 1) if (self.skip % w, self.padding % w) == (0, 0))
        lds, how = (x.shape[2] for x in (a, b, c)), {"align_a": align, "align_b": align, "align_c": align}
        made = launches.Fp32xLaunches(folder, aligned(M, N, K, 1, *turned, *lds, **how), config)
        made.starter()(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, alpha, beta)
        self.counted = hopper_on_cpu.counted(made)
        assert np.isnan(c[:, :, N:]).all(), "written outside"
        return c[:, :, :N]

    @staticmethod
    def like(one: Product) -> InParts:
        return InParts(one.a, one.b, one.c, one.trans, one.padding, one.skip)


QUICK = (SMALL, "TN", 1)
EVERY = [QUICK, (SMALL, "NT", 0), (SMALL, "NN", 2), (SMALL, "TT", 1), (in_flight(2, 128, 4, 2, k_parts=2), "TN", 0)]
EVERY += [(in_flight(2, 64, 3, 2, k_parts=4), "NN", 1), (in_flight(1, 64, 4, 2, k_parts=2), "NT", 1)]


@pytest.mark.parametrize(
    "config, trans, skip", [p if p == QUICK else pytest.param(*p, marks=pytest.mark.slow) for p in EVERY], ids=str
)
def test_layouts_alignments_and_edges(folder: Folder, config: Fp32xConfig, trans: str, skip: int) -> None:
    """The last part is shorter, by whole chunks and by some of K; rows and columns end inside a block."""
    one = InParts.like(Product.of(config.BM + 9, config.BN + 6, 200 + 5, trans=trans, padding=4 - skip, skip=skip))
    found = one.run(folder, config, 0.5, 2.0)
    assert close(found, one, 0.5, 2.0) and not one.counted
    assert np.array_equal(found, one.run(folder, config, 0.5, 2.0)), "other bits the second time"
    assert close(one.run(folder, config), one)
    assert np.array_equal(one.run(folder, config, 0.0, 2.0), 2 * one.c)


@pytest.mark.slow
def test_sums_of_one_sign_are_not_biased(folder: Folder) -> None:
    one = InParts.like(Product.of(70, 50, 192))
    assert hopper_on_cpu.biased(one, lambda: one.run(folder, SMALL)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("K", [64, 65, 96, 320, 333])
def test_parts_of_every_length(folder: Folder, K: int) -> None:
    for parts in (2, 3, 5):
        if parts * 32 < K + 32:
            one = InParts.like(Product.of(40, 40, K))
            assert close(one.run(folder, dataclasses.replace(SMALL, k_parts=parts)), one), parts


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hostile_values(folder: Folder, name: str) -> None:
    one = InParts.like(hostile(name))
    if name == "special":
        one.b[0, 90, 20] = np.inf  # in the second part
    assert close(one.run(folder, dataclasses.replace(SMALL, k_parts=2)), one)
    assert (one.counted > 0) == (name in ("special", "scales", "wide", "subnormal", "huge"))


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NN", "TN"])
@pytest.mark.parametrize("operand", "ab")
def test_small_elements_among_zeros_are_computed_again(folder: Folder, trans: str, operand: str) -> None:
    """They lie in the second part, or the third."""
    for parts in (2, 3):
        are_computed_again(
            InParts.like(Product.of(70, 40, 96, trans=trans)), operand, 2, folder, dataclasses.replace(SMALL, k_parts=parts)
        )


PLANTS = (
    ("row-of-matrix", " * 0"), ("column-of-matrix", " * 0"),
    ("last-part", "0 * "), ("parts-of-k", " + 1 - batch"),
    ("a-of-matrix", " * 0"), ("results-added", " - 1"),
    ("b-of-matrix", " * 0"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place, text", PLANTS)
def test_a_planted_bug_is_found(folder: Folder, place: str, text: str) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        test_layouts_alignments_and_edges(folder, SMALL, "TN", 1)
        test_hostile_values(folder, "special")
        for operand in "ab":
            test_small_elements_among_zeros_are_computed_again(folder, "NN", operand)


def test_no_part_that_is_weighed_is_empty_or_short() -> None:
    for K in (512, 600, 4096, 61981, 262144, 1 << 24):
        for M, N in ((256, 256), (40, 1000), (1405, 399)):
            desc = GemmDesc(M, N, K)
            for config in itertools.starmap(with_parts, in_parts(desc, 132)):
                assert config.k_parts > 1 and (config.k_parts - 1) * depth_of(K, config.k_parts) < K, (desc, config)
                assert depth_of(K, config.k_parts) >= SHORTEST, (desc, config)
                assert config == in_flight(k_parts=2).decode(**{name: dict(what) for name, what in config.encode().items()})
    assert in_parts(GemmDesc(256, 256, 511), 132) == []


def test_parts_follow_the_sizes_they_are_adapted_to() -> None:
    config, measured = in_flight(k_parts=33), GemmDesc(256, 256, 262144)
    for desc, parts in (
        (measured, 33),
        (GemmDesc(256, 512, 262144), 16),
        (GemmDesc(128, 256, 262144), 66),
        (GemmDesc(256, 256, 600), 2),
    ):
        found = FAMILY.adapt(H200, desc, config, measured, desc == measured)
        assert isinstance(found, Fp32xConfig) and found.k_parts == parts and (parts - 1) * depth_of(desc.K, parts) < desc.K
    assert isinstance(FAMILY.adapt(H200, GemmDesc(4096, 4096, 4096), config, measured, False), str)
    assert isinstance(FAMILY.adapt(H200, GemmDesc(256, 256, 500), config, measured, False), str)


def test_what_cannot_be_cut_is_refused() -> None:
    for change in ({"k_parts": 0}, {"SLICES": 2}, {"STAGES": 2}):
        assert dataclasses.replace(SMALL, **change).refused()
    with pytest.raises(ValueError, match="SPLIT_K"):
        in_flight(k_parts=2).decode({"BM": 64, "BN": 32, "BK": 32, "STAGES": 5}, {"GROUP": 8})
    with pytest.raises(ValueError, match="nearest"):
        in_flight(k_parts=2).decode({"BM": 65, "BN": 32, "BK": 32, "STAGES": 5, "SPLIT_K": 2}, {"GROUP": 8})
    assert "SPLIT_K" in FAMILY.config.decode(*SMALL.encode().values()).tile.given()
