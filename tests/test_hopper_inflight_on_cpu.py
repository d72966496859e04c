"""fp32x in flight from operands to result on a CPU, by the kernel's own text: layouts, edges, clusters, hostile values."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
import inflight_study
import split_model
from conftest import require
from hopper_on_cpu import Folder, Plants, aligned, bug, each_plant
from toprung.kernels.hopper_fp32x import launches
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, in_flight
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches

SMALL = in_flight(1, 32, 5, GROUP=2)
BLOCKS = (
    in_flight(2, 128, 4, 2),
    in_flight(2, 64, 3, 2),
    in_flight(2, 32, 5, 2),
    in_flight(1, 64, 4, 2),
    SMALL,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("hopper_inflight"), units=2)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "kernel_of", lambda session, source: source)


@dataclasses.dataclass
class Product:
    """A, B and C of a batch as they lie: rows ``padding`` longer, padded with NaN, ``skip`` elements in."""

    a: Any
    b: Any
    c: Any
    trans: str = "NN"
    padding: int = 4
    skip: int = 0
    counted: int = 0

    @staticmethod
    def of(M: int, N: int, K: int, few_a: int = 1, few_b: int = 1, **how: Any) -> Product:
        rng = np.random.default_rng(M + N + K)
        shapes = (few_a, M, K), (few_b, K, N), (max(few_a, few_b), M, N)
        return Product(*(rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes), **how)

    def laid(self, x: Any, turn: bool) -> Any:
        x = np.ascontiguousarray(x.transpose(0, 2, 1)) if turn else x
        x = np.pad(x, ((0, 0), (0, 0), (0, self.padding)), constant_values=np.float32(np.nan))
        whole = np.full(x.size + self.skip + 16, np.nan, np.float32)
        first = -whole.ctypes.data % 64 // 4 + self.skip
        placed = whole[first : first + x.size].reshape(x.shape)
        placed[...] = x
        return placed

    def run(self, folder: Folder, config: Fp32xConfig, alpha: float = 1.0, beta: float = 0.0) -> Any:
        turned = self.trans[0] == "T", self.trans[1] == "T"
        a, b, c = self.laid(self.a, turned[0]), self.laid(self.b, turned[1]), self.laid(self.c, False)
        (few_a, M, K), (few_b, _, N), batch = self.a.shape, self.b.shape, len(self.c)
        if not beta:
            c[...] = np.nan
        align = next(w for w in (4, 2, 1) if self.skip % w == 0)
        how = {"align_a": align, "align_b": align, "align_c": align}
        lds = a.shape[2], b.shape[2], c.shape[2]
        strides = a[0].size if few_a > 1 else 0, b[0].size if few_b > 1 else 0, c[0].size if batch > 1 else 0
        desc = aligned(M, N, K, batch, *turned, *lds, *strides, **how, beta_zero=beta == 0)
        session: Any = folder
        made = Fp32xLaunches(session, desc, config)
        made.starter()(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, alpha, beta)
        self.counted = hopper_on_cpu.counted(made)
        assert np.isnan(c[:, :, N:]).all(), "written outside"
        return c[:, :, :N]

    def reference(self, alpha: float = 1.0, beta: float = 0.0) -> Any:
        with np.errstate(invalid="ignore"):
            return alpha * np.matmul(self.a.astype(np.float64), self.b.astype(np.float64)) + beta * self.c.astype(np.float64)

    def magnitude(self) -> Any:
        with np.errstate(invalid="ignore"):
            return np.matmul(np.abs(self.a.astype(np.float64)), np.abs(self.b.astype(np.float64)))


def close(found: Any, one: Product, alpha: float = 1.0, beta: float = 0.0) -> bool:
    """Return True if each element is as near to float64 as chains of 32 in fp32 would be, or has the same class."""
    reference = one.reference(alpha, beta)
    bound = 12 * 2.0**-24 * (abs(alpha) * one.magnitude() + abs(beta) * np.abs(one.c)) + 8 * 2.0**-149
    finite = np.isfinite(reference)
    same = np.array_equal(found[~finite], reference[~finite].astype(np.float32), equal_nan=True)
    return bool(same and (np.abs(found[finite] - reference[finite]) <= bound[finite]).all())


LAYOUTS = (("NN", 1), ("NT", 2), ("TN", 1), ("TT", 0), ("NN", 0), ("NT", 0), ("TN", 0), ("TT", 1), ("NN", 2))
EVERY = [(config, *how) for i, config in enumerate(BLOCKS) for how in LAYOUTS[4 * (i % 2) : 4 * (i % 2) + 5]]
QUICK = ((SMALL, "NN", 1),)


@pytest.mark.parametrize(
    "config, trans, skip", [p if p in QUICK else pytest.param(*p, marks=pytest.mark.slow) for p in EVERY], ids=str
)
def test_layouts_alignments_and_edges(folder: Folder, config: Fp32xConfig, trans: str, skip: int) -> None:
    """Rows, columns and K end inside a block, a piece of four floats and a stage; products of the batch follow each other."""
    one = Product.of(
        (2 * config.BM if config == SMALL else config.BM) + 9, config.BN + 6, 75, 2, 2, trans=trans, padding=4 - skip, skip=skip
    )
    assert close(one.run(folder, config, 0.5, 2.0), one, 0.5, 2.0) and not one.counted
    assert close(one.run(folder, config), one) and not one.counted, "C not read goes through shared memory"


@pytest.mark.parametrize("trans", ["NN", pytest.param("NT", marks=pytest.mark.slow)])
def test_sums_of_one_sign_are_not_biased(folder: Folder, trans: str) -> None:
    one = Product.of(35, 50, 128, 2, 1, trans=trans)
    assert hopper_on_cpu.biased(one, lambda: one.run(folder, SMALL)) == {}


@pytest.mark.parametrize("trans", ["NN", pytest.param("TT", marks=pytest.mark.slow)])
@pytest.mark.parametrize("padding", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)])
def test_a_rows_last_piece_is_not_whole(folder: Folder, trans: str, padding: int) -> None:
    """Rows begin on four words, or two, and end inside a piece of so many; what follows in memory is NaN."""
    more = 14 if padding == 2 else 13  # rows are a multiple of four apart, with a padding of one a multiple of two alone
    one = Product.of(2 * SMALL.BM + more, SMALL.BN + more, 64 + more, 2, 2, trans=trans, padding=padding)
    assert close(one.run(folder, SMALL), one) and not one.counted


@pytest.mark.slow
@pytest.mark.parametrize("slices", [2, 4, 8, 16])
def test_clusters_add_their_slices(folder: Folder, slices: int) -> None:
    config = dataclasses.replace(SMALL, SLICES=slices)
    one = Product.of(70, 40, 32 * slices + 3, 2, 1, trans="NT")
    found = one.run(folder, config, 1.0, -1.0)
    assert close(found, one, 1.0, -1.0)
    assert np.array_equal(found, one.run(folder, config, 1.0, -1.0)), "other bits the second time"
    few = Product.of(5, 7, 100)  # some slices have nothing
    assert close(few.run(folder, config), few)
    tall = dataclasses.replace(BLOCKS[2], SLICES=slices)
    deep = Product.of(130, 40, slices * 32 * (tall.STAGES + 1))  # they end in the stage where they put their sums
    assert close(deep.run(folder, tall), deep)


@pytest.mark.slow
def test_rows_of_c_go_through_shared_memory(folder: Folder) -> None:
    """On 16 bytes the copy engine writes them, else 32 lanes do; some tiles are whole and some are not."""
    config = BLOCKS[3]
    for more, padding in ((12, 4), (10, 4), (11, 5)):
        one = Product.of(3 * config.BM + 9, 2 * config.BN + more, 40, padding=padding)
        assert close(one.run(folder, config), one) and not one.counted


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("config", (BLOCKS[0], BLOCKS[3]), ids=str)
def test_large_blocks_in_clusters(folder: Folder, config: Fp32xConfig, slices: int) -> None:
    one = Product.of(config.BM + 9, config.BN + 6, 200, trans="TN")
    assert close(one.run(folder, dataclasses.replace(config, SLICES=slices)), one)


@pytest.mark.slow
def test_bits_depend_on_the_row_and_the_column_alone(folder: Folder) -> None:
    """Neither on M, N, the batch and where in C an element lies, nor on what stands in other rows and columns."""
    whole = Product.of(80, 50, 100, 2, 2)
    found = whole.run(folder, SMALL)
    part = dataclasses.replace(whole, a=whole.a[1:, 11:40], b=whole.b[1:, :, 3:20], c=whole.c[1:, 11:40, 3:20])
    assert np.array_equal(part.run(folder, SMALL), found[1:, 11:40, 3:20])
    whole.a[1, 70:75], whole.b[1, :, 45] = np.inf, 1e-40
    again = whole.run(folder, SMALL)
    assert np.array_equal(again[1:, 11:40, 3:20], found[1:, 11:40, 3:20])


def hostile(name: str) -> Product:
    one, rng = Product.of(70, 40, 100, trans="NT"), np.random.default_rng(1)
    if name == "special":
        one.a[0, 5, 50], one.a[0, 66, 10], one.b[0, 3, 7] = np.inf, -np.inf, np.nan
        one.b[0, 50, 2], one.a[0, 9] = 0.0, 0.0
    elif name == "scales":  # of rows, of columns, and along K against each other
        one.a *= np.exp2(rng.integers(-40, 41, (1, 70, 1))).astype(np.float32)
        one.b *= np.exp2(rng.integers(-40, 41, (1, 1, 40))).astype(np.float32)
        along = np.exp2(np.linspace(-20, 20, 100)[:, None]).astype(np.float32)
        one.a, one.b = one.a * along.T, one.b / along
    elif name == "wide":
        one.a *= np.exp(4 * rng.standard_normal(one.a.shape)).astype(np.float32)
        one.b *= np.exp(4 * rng.standard_normal(one.b.shape)).astype(np.float32)
    elif name == "tiny":
        one.a, one.b = one.a * np.float32(2.0**-100), one.b * np.float32(2.0**-35)
    elif name == "subnormal":
        one.a, one.b = one.a * np.float32(2.0**-130), one.b * np.float32(2.0**60)
    elif name == "huge":
        one.a, one.b = one.a * np.float32(2.0**-60), one.b * np.float32(2.0**127)
    elif name == "both":  # one operand's scale alone would overflow or vanish
        one.a, one.b = one.a * np.float32(2.0**120), one.b * np.float32(2.0**-110)
    elif name == "zeros":
        one.a[:, 3:60], one.b[:, :, 7], one.a[:, :, 32:64] = 0, 0, 0
    return one


NAMES = ("special", "wide", "scales", "tiny", "subnormal", "huge", "both", "zeros")


@pytest.mark.parametrize("config", [SMALL, pytest.param(dataclasses.replace(SMALL, SLICES=2), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_hostile_values(folder: Folder, name: str, config: Fp32xConfig) -> None:
    one = hostile(name)
    assert close(one.run(folder, config), one)
    assert (one.counted > 0) == (name in ("special", "scales", "wide", "subnormal", "huge"))


SMALL_ONE = np.float32(2.0**-20 * (1.25 + 3 * 2.0**-14 + 15 * 2.0**-23))
"""Element of which the terms of 32, whose largest is 1, lose 2**-19."""
SMALLER_HALF = np.float32(2.0**-34 * (1 + 7 * 2.0**-7))
"""A bfloat16 that loses as much, for its one term has fewer bits the smaller it is."""


def picked(one: Product, operand: str, few: int, places: Any = (16, 21), first: int = 64, small: Any = SMALL_ONE) -> Any:
    """Return the lines that have so many small elements among zeros; the other operand picks one element for each result.

    A line is a row of A or a column of B; those of 32 of K from ``first`` on are picked, at ``places`` are small ones. Two
    lines beside the first are 0 there, and so must their results be.
    """
    mine, other = (one.a, one.b) if operand == "a" else (one.b.transpose(0, 2, 1), one.a.transpose(0, 2, 1))
    lines = np.array([5, mine.shape[1] // 2, mine.shape[1] - 1])
    mine[-1, lines, first + 8 : first + 32] = mine[-1, [7, 9], first : first + 32] = 0
    mine[-1, lines, first] = 1
    mine[-1, lines[:, None], np.array(places)[:few] + first] = small
    columns = np.arange(other.shape[2])
    other[...] = 0
    other[:, first + (3 * columns + columns // 32) % 32, columns] = 1
    return np.append(lines, (7, 9))


def are_computed_again(one: Product, operand: str, few: int, folder: Any, config: Any, **how: Any) -> None:
    """Assert that sums of small elements among zeros have all of fp32's bits, and that no other sums change."""
    plain = dataclasses.replace(one, a=one.a.copy(), b=one.b.copy())
    lines = picked(one, operand, few, **how)
    other = "b" if operand == "a" else "a"
    setattr(plain, other, getattr(one, other))
    before, found = plain.run(folder, config), one.run(folder, config)
    assert close(found, one) and one.counted > plain.counted
    axis = 1 if operand == "a" else 2
    assert np.array_equal(np.delete(found[-1], lines, axis - 1), np.delete(before[-1], lines, axis - 1))


@pytest.mark.parametrize(
    ("trans", "operand", "few"),
    [
        ("NN", "a", 1), ("NN", "a", 2), ("TN", "a", 2), ("NT", "b", 2),
        *(pytest.param(trans, operand, few, marks=pytest.mark.slow) for trans, operand in
          (("NN", "b"), ("NT", "b"), ("TN", "a"), ("TT", "b")) for few in (1, 2)
          if (trans, operand, few) not in (("TN", "a", 2), ("NT", "b", 2))),
    ],
)  # fmt: skip
def test_small_elements_among_zeros_are_computed_again(folder: Folder, trans: str, operand: str, few: int) -> None:
    are_computed_again(Product.of(70, 40, 96, trans=trans), operand, few, folder, SMALL)
    if few == 2:  # of the second slice of K
        are_computed_again(Product.of(70, 40, 96, trans=trans), operand, few, folder, dataclasses.replace(SMALL, SLICES=2))


@pytest.mark.slow
@pytest.mark.parametrize("config", BLOCKS, ids=str)
@pytest.mark.parametrize("operand", "ab")
def test_small_elements_are_computed_again_in_every_block(folder: Folder, config: Fp32xConfig, operand: str) -> None:
    """The last product of two has them, whose tiles follow others', in two fours of a row's 32 and more."""
    for places in ((12, 31), (17, 18, 19, 20, 22)):
        for trans in ("NN", "TT"):
            one = Product.of(config.BM + 40, config.BN + 36, 100, 2, 2, trans=trans)
            are_computed_again(one, operand, len(places), folder, config, places=places)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 32, 130 * 32])
@pytest.mark.parametrize("operand", "ab")
def test_small_elements_are_found_wherever_they_are_in_a_deep_k(folder: Folder, first: int, operand: str) -> None:
    are_computed_again(Product.of(70, 40, 131 * 32 + 5), operand, 2, folder, SMALL, first=first)


def in_doubt(one: Product, config: Fp32xConfig, product: int = 0) -> Any:
    """Return which elements of a product's C are computed again, by the model."""
    return inflight_study.in_flight(one.a[product], one.b[product], min(config.BN // 4, 32))[1]


def pieces(doubt: Any) -> int:
    """Return how many 16×32 of C have such elements."""
    whole = np.pad(doubt, [(0, -size % step) for size, step in zip(doubt.shape, (16, 32), strict=True)])
    return int(whole.reshape(len(whole) // 16, 16, -1, 32).any((1, 3)).sum())


SPREADS = (("a", (2.5, 2.0)), ("b", (1.0, 2.0)), ("both", (2.0, 2.0)))


@pytest.mark.parametrize("config", [SMALL, *(pytest.param(block, marks=pytest.mark.slow) for block in BLOCKS[:4])], ids=str)
@pytest.mark.parametrize("name, spreads", [SPREADS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in SPREADS[1:])])
def test_sums_in_doubt_are_those_of_the_model(folder: Folder, name: str, spreads: tuple[float, float], config: Fp32xConfig) -> None:
    """Rows and columns span many powers of two, each in another way; few of their sums can show what is lost."""
    one = Product.of(150, 140, 192, 2, 2, trans="NN" if config == SMALL else "NT")
    rng = np.random.default_rng(6)
    for x, spread in zip((one.a, one.b), spreads, strict=True):
        x *= np.exp(spread * rng.standard_normal(x.shape)).astype(np.float32)
        x[rng.random(x.shape) < 0.6 * (spread > 0)] = 0
    one.a *= np.exp2(rng.integers(-30, 31, (2, 150, 1))).astype(np.float32)
    one.b *= np.exp2(rng.integers(-30, 31, (2, 1, 140))).astype(np.float32)
    count = sum(pieces(in_doubt(one, config, product)) for product in range(2))
    assert close(one.run(folder, config), one) and one.counted == count and 0 < count < 100


@pytest.mark.slow
@pytest.mark.parametrize("operand", "ab")
def test_what_no_sum_can_show_is_not_computed_again(folder: Folder, operand: str) -> None:
    """Each line has small elements, four neighbours of them, and large ones that its sums are made of."""
    one = Product.of(70, 40, 96)
    (one.a if operand == "a" else one.b.transpose(0, 2, 1))[:, :, 40:44] *= np.float32(2.0**-21)
    one.a, one.b = np.abs(one.a), np.abs(one.b)
    assert close(one.run(folder, SMALL), one) and one.counted == 0 and not in_doubt(one, SMALL).any()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [32, 64])
def test_each_of_many_short_tiles_has_its_own_small_elements(folder: Folder, depth: int) -> None:
    """The warps that split B may be as many tiles ahead as the ring has stages."""
    one = Product.of(70, 40 * SMALL.BN, depth)
    columns = np.arange(40) * SMALL.BN + np.arange(40) * 7 % SMALL.BN
    one.b[0, 8:32, columns] = 0
    one.b[0, 0, columns] = 1
    one.b[0, 16, columns] = one.b[0, 21, columns] = SMALL_ONE
    one.a[...] = np.arange(depth) == (16 + 5 * (np.arange(70)[:, None] % 2))
    assert close(one.run(folder, SMALL), one) and one.counted == 5 * 40 == pieces(in_doubt(one, SMALL))


@pytest.mark.parametrize("config", [SMALL, pytest.param(dataclasses.replace(SMALL, SLICES=2), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("trans", ["NT", pytest.param("TN", marks=pytest.mark.slow)])
def test_few_elements_are_computed_again_as_many_are(folder: Folder, trans: str, config: Fp32xConfig) -> None:
    """Elements have the same bits one after the other, a lane for each chain, as 16 rows and 32 columns together."""
    one = Product.of(70, 40, 1100, trans=trans)
    one.a[0, [3, 5, 60]] *= np.float32(1e-37)
    found = one.run(folder, config, 0.5)
    assert close(found, one, 0.5) and one.counted >= 4  # each slice counts what it stores
    for columns in (slice(0, 1), slice(37, 40)):
        part = dataclasses.replace(one, b=one.b[:, :, columns], c=one.c[:, :, columns])
        assert np.array_equal(part.run(folder, config, 0.5), found[:, :, columns]) and part.counted >= 2


@pytest.mark.parametrize("columns", [1, 40])
def test_what_is_computed_again_is_added_as_in_plain_fp32(folder: Folder, columns: int) -> None:
    """A lane has a chain of one element, or a thread chains of several."""
    one = Product.of(70, columns, 300)
    one.a, one.b = hopper_on_cpu.coarse(one.a), hopper_on_cpu.coarse(one.b)
    one.a[0, 3:40] *= np.float32(2.0**-120)
    found = one.run(folder, SMALL)[0, 3:40]
    assert one.counted and np.array_equal(found, hopper_on_cpu.chained(one.a[0, 3:40], one.b[0]))


@pytest.mark.slow
def test_a_column_whose_largest_has_no_power_of_two_above_it(folder: Folder) -> None:
    """It counts as infinite, and a row that loses nothing loses nothing of it. Of its small elements nothing is left."""
    one = Product.of(70, 40, 96)
    one.a[0, :, 64], one.b[0, :, 9] = 0, 0
    one.b[0, 64, 9], one.b[0, 72:76, 9] = 2.0**127, 2.0**67
    assert close(one.run(folder, SMALL), one) and one.counted > 0


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NN", "TT"])
def test_both_operands_have_small_elements(folder: Folder, trans: str) -> None:
    """Large ones of one meet small ones of the other, and small ones small ones."""
    one, rng = Product.of(131, 70, 100, trans=trans), np.random.default_rng(3)
    for x in (one.a, one.b):
        x[rng.random(x.shape) < 0.7] = 0
        x[rng.random(x.shape) < 0.05] *= np.float32(2.0**-21)
    assert close(one.run(folder, SMALL), one)


@pytest.mark.parametrize("operand", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_one_element_too_small_for_terms_among_zeros_is_computed_again(folder: Folder, operand: str) -> None:
    one = Product.of(70, 40, 96)
    row = (one.a if operand == "a" else one.b.transpose(0, 2, 1))[0, 33]
    row[...] = 0
    row[50] = 1e-37
    assert close(one.run(folder, SMALL), one) and one.counted > 0


@pytest.mark.parametrize("trans", ["NN", "TN", pytest.param("NT", marks=pytest.mark.slow)])
def test_one_small_element_behind_the_last_four_of_k_is_no_reason_to_compute_again(folder: Folder, trans: str) -> None:
    """K ends as if there were zeros."""
    one = Product.of(70, 40, 69, trans=trans)
    (one.b if trans == "NT" else one.a.transpose(0, 2, 1))[:, 68:] *= np.float32(2.0**-20)
    assert close(one.run(folder, SMALL), one) and one.counted == 0


def test_sums_of_small_elements_among_large_ones_are_computed_again(folder: Folder) -> None:
    """Two terms carry a small element to 39 bits of its large neighbours: every fourth column picks it, and is computed again."""
    one = Product.of(70, 40, 96)
    one.a[:, :, :9] = one.a[:, :, 12:] = 0
    one.a[:, :, 9] *= np.float32(2.0**-22)
    one.b[...] = 1
    one.b[0, [[10], [11]], 3::4] = 0
    found, doubt = one.run(folder, SMALL), in_doubt(one, SMALL)
    assert close(found, one) and one.counted == pieces(doubt)
    assert (found[0, :, 3::4] == one.a[0, :, 9:10]).all()
    assert np.array_equal(doubt, np.broadcast_to(np.arange(40) % 4 == 3, (70, 40)))
    one.a[0, 1, 9] = 2.0**-60  # nothing is left of it, beside sums that are computed again or alone
    alone = dataclasses.replace(one, a=one.a[:, 1:2], c=one.c[:, 1:2])
    assert np.array_equal(one.run(folder, SMALL)[:, 1:2], alone.run(folder, SMALL))


def test_what_a_sparse_product_has_of_0_is_not_computed_again(folder: Folder) -> None:
    """Sums of 0 are those of elements that meet none: of integers here, whose other sums are exact."""
    one, rng = Product.of(70, 40, 96), np.random.default_rng(3)
    for x in (one.a, one.b):
        x[...] = rng.integers(1, 9, x.shape) * (rng.random(x.shape) < 0.05)
    assert np.array_equal(one.run(folder, SMALL), one.reference()) and one.counted == 0 and (one.reference() == 0).mean() > 0.5
    assert not in_doubt(one, SMALL).any()


@pytest.mark.parametrize("trans", ["NN", "NT"])
def test_nothing_behind_k_makes_a_column_thin(folder: Folder, trans: str) -> None:
    """Sums that nearly cancel, of columns without a small element, where K ends within 32 and within a thread's part of them."""
    one = Product.of(70, 40, 69, trans=trans)
    one.a[:, :, 1::2], one.b[:, 1::2] = one.a[:, :, :-1:2], -one.b[:, :-1:2]
    one.a[:, :, 68], one.b[:, 68] = np.float32(2.0**-10), np.float32(2.0**-10)
    assert (np.abs(one.reference()) < 2.0**-18).all()
    assert close(one.run(folder, SMALL), one) and one.counted == 0 and not in_doubt(one, SMALL).any()


def hard_to_carry(name: str, depth: int) -> tuple[Product, float]:
    """Return the rows and columns whose sums err most where only four small neighbours are noticed, and what is promised of them.

    The model must keep the promise in all other sums, too.
    """
    a, b = inflight_study.operands(name, depth)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as before:
        plain = float(inflight_study.grades(a, b, split_model.chain(a, b)).max())
        limit = min(2 * max(plain, 1.0), depth + 2)
        assert inflight_study.grades(a, b, inflight_study.in_flight(a, b)[0]).max() <= limit
        before.setattr(inflight_study, "SINGLE", -300)
        noticed = inflight_study.grades(a, b, inflight_study.in_flight(a, b)[0])
    rows, cols = (np.unique(one)[:40] for one in np.unravel_index(np.argsort(noticed, axis=None)[-40:], noticed.shape))
    one = Product.of(len(rows), len(cols), depth)
    one.a[0], one.b[0] = a[rows], b[:, cols]
    assert noticed[np.ix_(rows, cols)].max() > limit
    return one, limit


HARD = [
    ("picked", 64),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in (("phi4", 64), ("T2", 64), ("phi4", 128), ("picked", 256))),
]


@pytest.mark.parametrize("name, depth", HARD)
def test_wide_ranges_keep_the_promise(folder: Folder, name: str, depth: int) -> None:
    one, limit = hard_to_carry(name, depth)
    assert inflight_study.grades(one.a[0], one.b[0], one.run(folder, SMALL)[0]).max() <= limit


@pytest.mark.slow
def test_integers_are_exact(folder: Folder) -> None:
    one, rng = Product.of(70, 40, 100, trans="TN"), np.random.default_rng(1)
    one.a, one.b = (rng.integers(-300, 301, x.shape).astype(np.float32) for x in (one.a, one.b))
    assert np.array_equal(one.run(folder, SMALL), one.reference())


def test_every_fence_and_wait_is_needed(folder: Folder) -> None:
    """All fences but those of clusters (slow) and of a launch that splits B (test_presplit_on_cpu.py)."""
    wide, deep = BLOCKS[3], Product.of(70, 40, 260)
    deep.b[0, 3, 7] = np.nan
    both = [Product.of(wide.BM + 9, wide.BN + more, 40, 3, 1, padding=padding) for more, padding in ((12, 4), (11, 5))]

    def small() -> None:
        are_computed_again(Product.of(70, 40, 96), "a", 2, folder, SMALL)
        assert close(deep.run(folder, SMALL), deep)

    def large() -> None:
        assert all(close(one.run(folder, wide), one) for one in both)

    assert {one for one in hopper_on_cpu.unneeded(small, large) if not one.endswith("never ran")} == set()


@pytest.mark.slow
def test_consumers_of_a_cluster_meet_before_they_leave_their_sums(folder: Folder) -> None:
    one, config = Product.of(70, 40, 200), dataclasses.replace(SMALL, SLICES=2)

    def check() -> None:
        assert close(one.run(folder, config), one)

    assert hopper_on_cpu.unneeded(check, names="consumers_meet") == []


AT_THE_END = """
import sys
from pathlib import Path
import numpy as np
sys.path[:] = {path!r}
import test_hopper_inflight_on_cpu as here

here.launches.kernel_of = lambda session, source: source
if {place!r}:
    entered = here.hopper_on_cpu.bug({place!r}, {bug!r})
    entered.__enter__()


def laid(self, x, turn):
    x = np.ascontiguousarray(x.transpose(0, 2, 1)) if turn else x
    placed = here.hopper_on_cpu.ends_with_memory(x.size).reshape(x.shape)
    placed[...] = x
    return placed


here.Product.laid = laid
folder = here.Folder(Path({folder!r}), units=2)
for trans in ("NN", "TT"):
    for M, N, K in ((68, 36, 96), (67, 37, 101)):
        one = here.Product.of(M, N, K, trans=trans, padding=0)
        for line, large in ((one.a[0, -1], -5), (one.b[0, :, -1], -6)):  # of their product small ones are left alone
            line[:] = 0
            line[[large, -4, -1]] = 1, here.SMALL_ONE, here.SMALL_ONE
        assert here.close(one.run(folder, here.SMALL), one) and one.counted
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, bug",
    [
        ("", ""), ("chain-end", " + (1 << 20)"),
    ],
)  # fmt: skip
def test_nothing_is_read_beyond_an_operand(tmp_path: Path, place: str, bug: str) -> None:
    """Each operand ends where memory ends: what is read behind it ends the process."""
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    program = AT_THE_END.format(path=sys.path, folder=str(tmp_path), place=place, bug=bug)
    assert hopper_on_cpu.reads_behind_memory(program) == bool(place)


PLANTS: Plants = (
    (test_layouts_alignments_and_edges, (SMALL, "NN", 1), (
        ("lo-of-b", " lo[p] = 0;"), ("turn-of-k", "0 & "),
        ("inverse", " - 1"),
        ("last-band", "true || "), ("rest-of-k", " + 1"),
        ("further-k", " - 2"), ("pieces-of-k", "~<="),
        ("largest-of-lanes", "0 * "),
    )),
    (test_layouts_alignments_and_edges, (BLOCKS[3], "NT", 0), (
        ("four-columns", " * 0"), ("columns-there", " - 1"),
        ("rows-there", " - 1"), ("out-columns", " * 0"),
        ("out-by-lanes", "if (false) "),
    )),
    (test_a_rows_last_piece_is_not_whole, ("NN", 3), (("last-piece", "4 * WORDS + 0 * "),)),
    (test_clusters_add_their_slices, (4,), (("slices-added", " - 1"),)),
    # what may be lost, and where it may be seen
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[0], SMALL), (
        ("small", "false && "), ("weight-of-a", "~="),
        ("small-row", " * 0"), ("weight-of-pairs", "if (false) "),
        ("weight-of-fours", "if (false) "), ("lost-of-a", "~1"),
        ("scale-of-row", "!"), ("largest-of-row", "~0x1p13f"),
        ("sum-of-zeros", "true | "), ("column-statistics", " ^ 2"), ("lost-of-column", " * 0 & 0xff"),
        ("lost-of-b", "~1"), ("weight-of-lanes", "if (false) "),
        ("most-of-tile", "0 * "), ("weight-of-b", "~="),
        ("units", "~0x1p21f"), ("units", "~0x1p27f"),
    )),
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[2], SMALL), (
        ("largest-scales", "0 * "),
    )),
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[1], BLOCKS[3]), (
        ("stored-statistics", "~"),
        ("out-by-tma", "if (false) "),
    )),
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[2], BLOCKS[0]), (
        ("granule", "0 * "),
    )),
    (test_sums_of_small_elements_among_large_ones_are_computed_again, (), (
        ("single-zeros", "true || "), ("least-of-column", "0xffffffffu | "), ("thin-stages", "~="),
        ("thin-of-lanes", "0 * "), ("single", "~0x1p-45f"), ("thin-of-thread", "0 * "), ("least-of-single", "0 * "),
    )),
    (test_nothing_behind_k_makes_a_column_thin, ("NN",), (("behind-k", "32 + "),)),
    (test_one_element_too_small_for_terms_among_zeros_is_computed_again, ("b",), (("noticed", "false && "),)),
    (test_each_of_many_short_tiles_has_its_own_small_elements, (32,), (
        ("slot-by-phase", "0 * "),
    )),
    (test_a_column_whose_largest_has_no_power_of_two_above_it, (), (
        ("nothing-lost", "true || "),
    )),
    # sums that are computed again, many together or few one after the other
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[0], SMALL), (
        ("row-again", " * 0"), ("column-again", " * 0"),
        ("owner", "true || "), ("row-of-matrix", " * 0"),
        ("chain-end", " - 1"),
    )),
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[1], BLOCKS[3]), (
        ("down", "true || "),
    )),
    (test_few_elements_are_computed_again_as_many_are, ("NT", SMALL), (
        ("least-scale", "0 * "), ("left-of-two", "true || "),
        ("lines-of-k", " - 1"),
        ("sums-again", "if (false) "),
        ("chains-in-order", " ^ 1"), ("chain-length", "16 + 0 * "),
        ("step-is-copied", "if (false) "),
    )),
    (test_few_elements_are_computed_again_as_many_are, ("TN", dataclasses.replace(SMALL, SLICES=2)), (
        ("few-of-slices", "~1"),
    )),
    (test_small_elements_among_zeros_are_computed_again, ("NN", "a", 2), (("column-left", " * 0"),)),
    (test_small_elements_among_zeros_are_computed_again, ("NN", "b", 2), (("row-left", " * 0"),)),
    # threads that do not wait for each other
    (test_small_elements_among_zeros_are_computed_again, ("NN", "a", 2), (("ring-is-read", "if (false) "),)),
    (test_few_elements_are_computed_again_as_many_are, ("NT", SMALL), (("step-is-read", "if (false) "),)),
    (test_sums_in_doubt_are_those_of_the_model, (*SPREADS[0], SMALL), (
        ("stage-is-read", "if (false) "),
        ("filled", "if (false) "),
        ("free", "if (false) "), ("split", "if (false) "),
        ("is-split", "if (false) "), ("chain-is-copied", "if (false) "),
    )),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("check, given, place, text", each_plant(PLANTS))
def test_a_planted_bug_is_found(folder: Folder, check: Callable[..., None], given: tuple[Any, ...], place: str, text: str) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        check(folder, *given)
