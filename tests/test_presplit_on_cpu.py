"""Products of an A split in flight and a B split beforehand, on a CPU by the kernels' own texts: layouts, edges, hostile values."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
import inflight_study
from conftest import require
from hopper_on_cpu import Folder, Plants, aligned, bug, each_plant
from test_hopper_inflight_on_cpu import LAYOUTS, SMALL_ONE, SMALLER_HALF, Product, are_computed_again, close, hard_to_carry, hostile
from toprung.kernels.hopper_fp32x import launches, sources
from toprung.kernels.hopper_fp32x.config import BLOCKS, ONE, Fp32xConfig, presplit
from toprung.kernels.hopper_fp32x.launches import CLAIM_BYTES, Fp32xLaunches, SplitOperand
from toprung.kernels.hopper_fp32x.sources import product_source

SMALL = presplit(2, 64, 3, GROUP=2)

SHORT_ROW = 256
"""K up to which a warp has a row of B for itself where a thread holds two float4, as these tests have it: 16 take long on a CPU."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("presplit"), units=2)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "kernel_of", lambda session, source: source)
    monkeypatch.setattr(launches, "spread", lambda K, across: 1)  # a cluster's blocks would have to run at once
    monkeypatch.setattr(sources, "product_source", lambda *what, **more: product_source(*what, **more, HELD_FOURS=2))


@dataclasses.dataclass
class Presplit(Product):
    """A product in which A may be of halves, and B prepacked."""

    type_a: str = "float32"
    prepare: bool = False
    is_one: bool = True

    def run(self, folder: Any, config: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        turned = self.trans[0] == "T", self.trans[1] == "T"
        a, b, c = self.laid(self.a, turned[0]), self.laid(self.b, turned[1]), self.laid(self.c, False)
        (few_a, M, K), (few_b, _, N), batch = self.a.shape, self.b.shape, len(self.c)
        if not beta:
            c[...] = np.nan
        if self.type_a == "bfloat16":  # what is laid was rounded to it
            a = (a.view(np.uint32) >> 16).astype(np.uint16)
        elif self.type_a == "float16":
            a = a.astype(np.float16)
        if self.type_a != "float32":
            whole = np.empty(a.size + 64, a.dtype)
            placed = whole[-whole.ctypes.data % 64 // 2 :][: a.size].reshape(a.shape)
            placed[...] = a
            a = placed
        align = next(w for w in (4, 2, 1) if (self.skip % w, self.padding % w) == (0, 0))
        lds = a.shape[2], b.shape[2], c.shape[2]
        strides = a[0].size if few_a > 1 else 0, b[0].size if few_b > 1 else 0, c[0].size if batch > 1 else 0
        desc = aligned(
            M, N, K, batch, *turned, *lds, *strides, align_a=align, align_b=align, align_c=align, beta_zero=beta == 0,
            type_a=self.type_a,
        )  # fmt: skip
        made = Fp32xLaunches(folder, desc, config, is_one=self.is_one)
        plain = dataclasses.replace(desc, type_a="float32")
        terms = SplitOperand(folder, plain, b.ctypes.data) if self.prepare else None
        run = (made.prepacked() if self.prepare else made).starter()
        run(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, alpha, beta, packed=terms.address if terms else 0)
        self.counted = hopper_on_cpu.counted(made)
        assert np.isnan(c[:, :, N:]).all(), "written outside"
        return c[:, :, :N]

    @staticmethod
    def like(one: Product, **more: Any) -> Presplit:
        return Presplit(one.a, one.b, one.c, one.trans, one.padding, one.skip, **more)


EVERY = [(presplit(*block, 3, 2), *how) for i, block in enumerate(BLOCKS[ONE]) for how in LAYOUTS[3 * (i % 2) : 3 * (i % 2) + 6]]
QUICK = ((SMALL, "NN", 0),)


@pytest.mark.parametrize(
    "config, trans, skip", [pytest.param(*p, marks=[] if p in QUICK else [pytest.mark.slow]) for p in EVERY], ids=str
)
def test_layouts_alignments_and_edges(folder: Folder, config: Fp32xConfig, trans: str, skip: int) -> None:
    """Rows, columns and K end inside a block, a piece of four floats and a stage; products of the batch follow each other."""
    drawn = Product.of(config.BM + 9, config.BN + 6, 75, 2, 2, trans=trans, padding=4 - skip, skip=skip)
    one = Presplit.like(drawn)
    assert close(one.run(folder, config, 0.5, 2.0), one, 0.5, 2.0) and not one.counted
    assert np.array_equal(one.run(folder, config, 0.0, 2.0), 2 * one.c)


@pytest.mark.parametrize("prepare", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sums_of_one_sign_are_not_biased(folder: Folder, prepare: bool) -> None:
    one = Presplit.like(Product.of(70, 50, 128, trans="NT"), prepare=prepare)
    assert hopper_on_cpu.biased(one, lambda: one.run(folder, SMALL)) == {}


def test_every_fence_of_a_launch_that_splits_b_itself_is_needed(folder: Folder) -> None:
    """All but those of the launch that splits both, which test_hopper_inflight_on_cpu.py has."""
    one = Presplit.like(Product.of(137, 70, 300, 1, 1, trans="NT"))

    def check() -> None:
        assert close(one.run(folder, SMALL), one)

    left = hopper_on_cpu.unneeded(check, names="fence|syncwarp")
    assert set(left) == {"__syncwarp that never ran", "proxy_fence that never ran"}


@pytest.mark.slow
def test_chunks_of_every_parity_batches_and_prepacked(folder: Folder) -> None:
    for K in (64, 96, 129):  # an odd number of chunks leaves the fragments of the tile that is next in the other place
        for few_a, few_b in ((1, 1), (3, 1), (1, 2)):
            one = Presplit.like(Product.of(150, 70, K, few_a, few_b, trans="NT"))
            one.b[-1] *= 32  # matrices of a batch have other exponents
            found = one.run(folder, SMALL)
            assert close(found, one) and not one.counted, (K, few_a, few_b)
            if few_b == 1:
                packed = dataclasses.replace(one, prepare=True)
                assert np.array_equal(packed.run(folder, SMALL), found)


def split_apart(one: Presplit, folder: Any, config: Any = SMALL) -> Any:
    """Return the result of the launch that splits B itself, which must be that of two launches, bit by bit."""
    found = one.run(folder, config)
    assert np.array_equal(dataclasses.replace(one, is_one=False).run(folder, config), found, equal_nan=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("K", [75, SHORT_ROW, SHORT_ROW + 5, 4 * SHORT_ROW + 64, 4 * SHORT_ROW + 70])
def test_a_launch_splits_b_as_the_splitting_pass_does(folder: Folder, K: int) -> None:
    """Rows for a warp and for four, held in registers and read again, of several matrices, whose number is no multiple of four."""
    for few_b, skip in ((1, 0), (3, 1)):
        one = Presplit.like(Product.of(35, 35, K, 1, few_b, trans="NT", padding=4 - skip, skip=skip))
        one.b[-1, 5:, 7] *= np.float32(2.0**40)
        one.a[-1, 20, 5:] = 0  # the result is made of what is lost beside column 7's large elements
        one.b[-1, -1, 11] = 2.0**20  # the largest is the last
        if few_b > 1:
            one.b[0, 9, 3] = np.inf  # of another matrix: whole pieces of C are computed anew for it
        assert close(split_apart(one, folder), one)


@pytest.mark.slow
def test_claims_are_ready_for_the_next_launch(folder: Folder) -> None:
    """Run the same launches on another B: what was claimed before is claimed anew, and alpha = 0 claims nothing."""
    made = Fp32xLaunches(folder, aligned(130, 70, 96, 1, False, True), SMALL)
    run, rng = made.starter(), np.random.default_rng(1)
    for alpha in (1.0, 0.0, 1.0):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((130, 96), (70, 96)))
        c = np.full((130, 70), np.nan, np.float32)
        run(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, alpha, 0.0)
        exact = alpha * (a.astype(float) @ b.T.astype(float))
        assert np.abs(c - exact).max() <= 1e-5 * np.sqrt(96)
        words = ctypes.string_at(folder.flags(None, CLAIM_BYTES), CLAIM_BYTES)
        assert not any(words)


@pytest.mark.slow
def test_clusters_add_their_slices(folder: Folder) -> None:
    for slices in (2, 4):
        config = dataclasses.replace(SMALL, SLICES=slices)
        for trans in ("TN", "NT"):
            one = Presplit.like(Product.of(70, 40, 32 * 3 * slices + 3, trans=trans))
            found = one.run(folder, config, 1.0, -1.0)
            assert close(found, one, 1.0, -1.0) and np.array_equal(found, one.run(folder, config, 1.0, -1.0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("trans", ["NN", "TT"])
def test_halves_of_a(folder: Folder, kind: str, trans: str) -> None:
    for small in (1.0, 1e-3):
        one = Presplit.like(Product.of(90, 70, 100, trans=trans), type_a=kind)
        one.a = (one.a * np.float32(small)).astype(np.float32)
        bits = one.a.view(np.uint32)
        one.a = (bits & 0xFFFF0000).view(np.float32) if kind == "bfloat16" else one.a.astype(np.float16).astype(np.float32)
        assert close(one.run(folder, SMALL), one) and not one.counted


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NN", "TT"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_small_elements_among_zeros_are_computed_again(folder: Folder, trans: str, kind: str) -> None:
    for few in (1, 2):
        for config in (SMALL, dataclasses.replace(SMALL, SLICES=2)):
            one = Presplit.like(Product.of(70, 40, 96, trans=trans), type_a=kind)
            one.a = (one.a.view(np.uint32) & 0xFFFF0000).view(np.float32)
            are_computed_again(one, "a", few, folder, config, small=SMALL_ONE if kind == "float32" else SMALLER_HALF)


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NN", "TT"])
def test_four_neighbours_are_those_of_a_thread(folder: Folder, trans: str) -> None:
    """A thread has two neighbours of K and the two that are eight further; here all others are large."""
    one = Presplit.like(Product.of(70, 40, 96, trans=trans))
    one.a[0, 33, 64:] = 1
    one.a[0, 33, [82, 83, 90, 91]] = SMALL_ONE, 0, 2.0**-45, 0  # of the last nothing is left
    one.b[...] = np.arange(96)[:, None] == 64 + np.arange(40) % 32
    assert close(one.run(folder, SMALL), one) and one.counted


@pytest.mark.parametrize("name, depth", [("picked", 64), pytest.param("phi4", 64, marks=pytest.mark.slow)])
def test_wide_ranges_keep_the_promise(folder: Folder, name: str, depth: int) -> None:
    one, limit = hard_to_carry(name, depth)
    found = Presplit.like(one).run(folder, SMALL)[0]
    assert inflight_study.grades(one.a[0], one.b[0], found).max() <= limit


HOSTILE = ("special", "scales", "wide", "tiny", "huge", "subnormal", "both", "zeros")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_operands(folder: Folder, name: str) -> None:
    one = Presplit.like(hostile(name))
    assert close(one.run(folder, SMALL), one)


@pytest.mark.slow
@pytest.mark.parametrize("tiny, row", [(1e-4, 30), (1e-6, 30), (1e-9, 30), (1e-25, 30), (1e-25, 38)])
def test_elements_of_b_that_terms_lose_are_found_where_they_are_seen(folder: Folder, tiny: float, row: int) -> None:
    """A column's large elements meet zeros of a row, so that its result is made of what two terms hardly carry, or not at all.

    The row is the first or the second of a thread's two.
    """
    one = Presplit.like(Product.of(70, 50, 200))
    one.b[0, 1:, 9] *= np.float32(tiny)
    one.a[0, row, 0] = 0
    found = one.run(folder, SMALL)
    assert close(found, one)
    assert (one.counted > 0) == (tiny < 1e-5)


PLANTS: Plants = (
    (test_layouts_alignments_and_edges, (SMALL, "NN", 1), (
        ("second-sixteen", " - 2"), ("turned", "~0"), ("odd-stages", "if (false) "),
        ("odd-exponent", "0 * "), ("terms-of-matrix", "0 * "),
        ("low-of-a", "0 * "),
    )),
    (test_layouts_alignments_and_edges, (SMALL, "TT", 0), (
        ("eights-of-k", "~1"), ("matrix-of-row", "0 * "),
    )),
    (test_clusters_add_their_slices, (), (("slice-of-terms", "0 * "),)),
    (test_small_elements_among_zeros_are_computed_again, ("TT", "float32"), (
        ("scale-back", " * 0"), ("small-zeros", "true || "),
    )),
    (test_four_neighbours_are_those_of_a_thread, ("NN",), (("lost-of-row", "0.0f * "),)),
    (test_wide_ranges_keep_the_promise, ("picked", 64), (
        ("column-small", "false && "), ("largest-column", "0 * "), ("small-of-row", "0 * "),
    )),
    (test_elements_of_b_that_terms_lose_are_found_where_they_are_seen, (1e-25, 38), (
        ("lost-column", "0.0f * "), ("known-lane", "0 * "),
        ("known-lost", "false && "),
    )),
    (test_a_launch_splits_b_as_the_splitting_pass_does, (75,), (
        ("info-of-matrix", " * 0"), ("largest-scales", "0 * "),
    )),
    (test_a_launch_splits_b_as_the_splitting_pass_does, (4 * SHORT_ROW + 64,), (
        ("rest-of-row", "0 * "), ("losses-of-warps", "0 * "),
    )),
    (test_claims_are_ready_for_the_next_launch, (), (
        ("columns-known", "0 * "), ("claims-left", "if (false) "),
        ("row-of-warp", "0 * "),
    )),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("check, given, place, text", each_plant(PLANTS))
def test_a_planted_bug_is_found(folder: Folder, check: Callable[..., None], given: tuple[Any, ...], place: str, text: str) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        check(folder, *given)
