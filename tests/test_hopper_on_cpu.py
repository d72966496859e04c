"""fp32x from operands to result on a CPU, by the kernels' own texts: slices of K, the guard, layouts, panels, prepared operands."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
from conftest import require
from hopper_on_cpu import Folder, aligned, bug, counted
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_fp32x import launches
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches, SplitOperand

SMALL = Fp32xConfig(CONSUMERS=1, BN=32, STAGES=3, GROUP=2)
WIDE = Fp32xConfig(BN=64, STAGES=2, GROUP=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("hopper"))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "kernel_of", lambda session, source: source)


@dataclass
class Operands:
    """A, B and C of a batch as they lie, rows padded with what must not be read."""

    a: Any
    b: Any
    c: Any
    turned: str = "NN"
    padding: int = 3

    @staticmethod
    def of(M: int, N: int, K: int, few_a: int = 1, few_b: int = 1, turned: str = "NN") -> Operands:
        rng = np.random.default_rng(0)
        shapes = (few_a, M, K), (few_b, K, N), (max(few_a, few_b), M, N)
        return Operands(*(rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes), turned)

    def call(self, beta_zero: bool = True) -> GemmDesc:
        (few_a, M, K), (few_b, _, N), (batch, _, _) = (x.shape for x in (self.a, self.b, self.c))
        a, b, p = self.turned[0] == "T", self.turned[1] == "T", self.padding
        lda, ldb, ldc = (M if a else K) + p, (K if b else N) + p, N + p
        strides = (K if a else M) * lda if few_a > 1 else 0, (N if b else K) * ldb if few_b > 1 else 0, M * ldc
        return aligned(M, N, K, batch, a, b, lda, ldb, ldc, *strides, beta_zero=beta_zero)

    def laid(self, x: Any, turn: bool) -> Any:
        x = np.ascontiguousarray(x.transpose(0, 2, 1)) if turn else x
        return np.pad(x, ((0, 0), (0, 0), (0, self.padding)), constant_values=np.float32(np.nan))

    def run(
        self, plan: Any, alpha: float = 1.0, beta: float = 0.0, prepare: bool = False
    ) -> Any:  # fmt: skip
        a, b, c = self.laid(self.a, self.turned[0] == "T"), self.laid(self.b, self.turned[1] == "T"), self.laid(self.c, False)
        if not beta:
            c[:] = np.nan
        terms = SplitOperand(plan.session, plan.call, b.ctypes.data) if prepare else None
        run = (plan.prepacked() if prepare else plan).starter()
        run(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, alpha, beta, packed=terms.address if terms else 0)
        assert np.isnan(c[:, :, -self.padding :]).all(), "written outside"
        return c[:, :, : -self.padding]

    def reference(self, alpha: float = 1.0, beta: float = 0.0) -> Any:
        with np.errstate(invalid="ignore"):
            product = np.matmul(self.a.astype(np.float64), self.b.astype(np.float64))
        return alpha * product + beta * self.c.astype(np.float64)


def close(found: Any, reference: Any, limit: float = 3e-7) -> bool:
    finite = np.isfinite(reference)
    same = np.array_equal(found[~finite], reference[~finite].astype(np.float32), equal_nan=True)
    return bool(same and np.linalg.norm(found[finite] - reference[finite]) <= limit * np.linalg.norm(reference[finite]))


@pytest.mark.parametrize(
    "slices, turned", [pytest.param(1, "NN", marks=pytest.mark.slow), (3, "NN"), pytest.param(3, "TT", marks=pytest.mark.slow)]
)
def test_sums_are_those_of_float64(folder: Any, slices: int, turned: str) -> None:
    one = Operands.of(70, 50, 200, turned=turned)
    plan = Fp32xLaunches(folder, one.call(beta_zero=False), replace(SMALL, k_parts=slices))
    found = one.run(plan, 0.5, 2.0)
    assert close(found, one.reference(0.5, 2.0)) and not counted(plan)
    assert np.array_equal(found, one.run(plan, 0.5, 2.0)), "other bits the second time"
    assert np.array_equal(found, one.run(plan, 0.5, 2.0, prepare=True)), "other bits with a prepared B"
    nothing = one.run(plan, 0.0, -1.0)
    assert np.array_equal(nothing, -one.c)


@pytest.mark.parametrize("slices, turned", [(1, "NT"), pytest.param(3, "TN", marks=pytest.mark.slow)])
def test_sums_of_one_sign_are_not_biased(folder: Any, slices: int, turned: str) -> None:
    one = Operands.of(35, 50, 128, 2, 2, turned=turned)
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=slices))
    assert hopper_on_cpu.biased(one, lambda: one.run(plan)) == {}


def test_every_fence_is_needed(folder: Any) -> None:
    one = Operands.of(70, 50, 200)
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=3))
    across = Operands.of(70, 50, 1100)  # B's columns, by the blocks of a cluster
    across.a[0, 9, 1:] *= np.float32(1e-9)  # some of a row's sums are computed again, one by one
    across.a[0, :, 500:] = across.b[0, :98] = 0
    clustered = Fp32xLaunches(folder, across.call(), replace(SMALL, k_parts=1))

    def check() -> None:
        found, wanted = across.run(clustered), across.reference()
        assert all(close(found[:, rows], wanted[:, rows]) for rows in ([9], np.arange(70) != 9))
        assert close(one.run(plan), one.reference())

    left = hopper_on_cpu.unneeded(check)
    assert left == ["__syncwarp in store_chunk"], "lanes go on from meeting to meeting, and meet right before this one"


@pytest.mark.slow
@pytest.mark.parametrize("turned", ["NN", "TT"])
def test_long_operands_are_split_by_several_warps_and_in_clusters(folder: Any, turned: str) -> None:
    """Warps share a row that lies along memory, and blocks of a cluster one across: its largest element, and what is lost."""
    one = Operands.of(70, 50, 1100, turned=turned)
    one.a[0, 9, 1070] *= np.float32(2.0**30)
    one.b[0, 40, 11] *= np.float32(2.0**30)
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=1))
    assert close(one.run(plan), one.reference())
    for of_a in (True, False):
        lost = Operands.of(70, 50, 1100, turned=turned)
        own, other = (lost.a[0].T, lost.b[0]) if of_a else (lost.b[0], lost.a[0].T)
        own[32:64, 9] *= np.float32(2.0**-40)  # of one warp and one block: the others' meet zeros
        other[:32] = other[64:] = 0
        before = counted(plan)
        assert grade(lost, lost.run(plan)) < 8 and counted(plan) > before


@pytest.mark.slow
@pytest.mark.parametrize("variant", [SMALL, WIDE], ids=str)
@pytest.mark.parametrize("padding", [2, 3, 4])
def test_rows_of_c_begin_anywhere(folder: Any, variant: Fp32xConfig, padding: int) -> None:
    """C on 4, 8 and 16 bytes, read and not, ends inside a tile and inside the 16 columns that are turned at a time."""
    for M, N in ((70, 50), (130, 77), (64, 96)):
        one = dataclasses.replace(Operands.of(M, N, 100, 2, 1), padding=padding)
        for beta_zero in (True, False):  # each kernel reads β itself
            plan = Fp32xLaunches(folder, one.call(beta_zero), variant)
            for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
                assert close(one.run(plan, alpha, beta), one.reference(alpha, beta)) and not counted(plan)


@pytest.mark.slow
def test_batches_share_operands_in_slices(folder: Any) -> None:
    for few_a, few_b in ((3, 1), (1, 3)):
        one = Operands.of(66, 40, 100, few_a, few_b)
        assert close(one.run(Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=3))), one.reference())


def special(one: Operands) -> None:
    one.a[0, 5, 150], one.a[0, 66, 10], one.b[0, 3, 7] = np.inf, -np.inf, np.nan


def spread_wide(one: Operands) -> None:
    """So that every slice but the first refuses: the largest of its rows' elements meet zeros."""
    one.a[:, :, 100:] *= np.float32(2.0**-40)
    largest = np.arange(100, one.a.shape[2], 95)
    one.a[:, :, largest], one.b[:, largest] = 1, 0


@pytest.mark.slow
def test_the_guard_in_slices(folder: Any) -> None:
    for change, prepare in ((special, True), (special, False), (spread_wide, False)):
        one = Operands.of(70, 50, 200)
        change(one)
        plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=3))
        before = counted(plan)
        assert close(one.run(plan, prepare=prepare), one.reference(), 1e-6) and counted(plan) > before
    plain = Operands.of(70, 50, 200)
    before = counted(plan)
    assert close(plain.run(plan), plain.reference()) and counted(plan) == before, "a flag of the call before"


def factors(one: Operands) -> None:
    """Half of both operands is 0, and a few elements are far below the largest of their row, as where a Cholesky factor is
    differentiated."""
    one.a[:], one.b[:] = np.triu(one.a), np.tril(one.b)
    one.a[0, 40, 43] = one.a[0, 99, 190] = one.b[0, 150, 20] = 1e-9


def grade(one: Operands, found: Any) -> float:
    """Return the largest error as a multiple of 2⁻²⁴ of |A|·|B|; an element of nothing must be 0."""
    sums = np.abs(one.a.astype(np.float64)) @ np.abs(one.b.astype(np.float64))
    error = np.abs(found - one.reference())
    assert not error[sums == 0].any()
    return float((error[sums > 0] / sums[sums > 0]).max() * 2**24)


@pytest.mark.slow
@pytest.mark.parametrize("slices, turned, prepare", [(1, "NN", False), (1, "TT", False), (3, "NT", True)])
def test_what_nobody_can_see_is_not_computed_again(folder: Any, slices: int, turned: str, prepare: bool) -> None:
    one = Operands.of(200, 200, 200, turned=turned)
    factors(one)
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=slices))
    before = counted(plan)
    assert grade(one, one.run(plan, prepare=prepare)) < 8
    # in slices, where sums of nothing are not told from lost ones, as few as have such a row or column
    assert counted(plan) == before if slices == 1 else counted(plan) - before < 40


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [1e-6, 1e-9, 1e-12, 1e-25])
def test_lost_elements_that_meet_large_ones_alone_are_computed_again(folder: Any, tiny: float) -> None:
    """One row's large elements meet zeros only, so that its results are made of what two terms hardly carry, or not at all."""
    one = Operands.of(70, 50, 200)
    one.a[0, 9, 1:] *= np.float32(tiny)
    one.a[0, :, 100:] = 0
    one.b[0, :98] = 0
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=1))
    before = counted(plan)
    assert grade(one, one.run(plan)) < 8
    assert (counted(plan) > before) == (tiny < 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("turned", ["NN", "TT"])
def test_few_lost_elements_are_computed_again_as_many_are(folder: Any, turned: str) -> None:
    """One row's sums go one after the other, those of three rows, 96 of 64×32, all together: the same bits."""
    found = []
    for rows in ((9,), (9, 10, 40)):
        one = Operands.of(70, 50, 600, turned=turned)
        one.a[0, rows, 1:] *= np.float32(1e-9)
        one.a[0, :, 500:] = 0
        one.b[0, :98] = 0
        plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=1))
        before = counted(plan)
        found.append(one.run(plan, 0.5, 2.0))
        assert close(found[-1], one.reference(0.5, 2.0)) and counted(plan) == before + 2
    assert np.array_equal(*(result[0, 9] for result in found))


@pytest.mark.parametrize("rows", [(9,), (9, 10, 40)])
def test_what_is_computed_again_is_added_as_in_plain_fp32(folder: Any, rows: tuple[int, ...]) -> None:
    """A lane has a chain of one element, or a thread chains of several."""
    one = Operands.of(70, 50, 200)
    one.a, one.b = hopper_on_cpu.coarse(one.a), hopper_on_cpu.coarse(one.b)
    one.a[0, rows, 1:] *= np.float32(2.0**-30)
    one.b[0, 0] = 0
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=1))
    before = counted(plan)
    found = one.run(plan)[0, rows]
    assert counted(plan) > before and np.array_equal(found, hopper_on_cpu.chained(one.a[0, rows], one.b[0]))


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 3])
def test_what_may_overflow_is_computed_again(folder: Any, slices: int) -> None:
    """Half of the elements pass float32's range on the way, or not, by the order of their terms; the others are right."""
    one = Operands.of(70, 50, 200, turned="TN")
    one.a *= np.float32(2.0**62)
    one.b *= np.float32(2.0**63)
    plan = Fp32xLaunches(folder, one.call(), replace(SMALL, k_parts=slices))
    before = counted(plan)
    found, exact = one.run(plan), one.reference()
    finite = np.isfinite(found)
    assert counted(plan) > before and finite.any() and np.isinf(found).any()
    assert np.abs(found[finite] / 2.0**125 - exact[finite] / 2.0**125).max() < 1e-5 * 200
    assert (np.abs(exact[~finite]) > 2.0**122).all()


@pytest.mark.slow
def test_two_consumers_and_wide_tiles(folder: Any) -> None:
    for change in (lambda one: None, special, spread_wide):
        one = Operands.of(130, 70, 300, turned="NT")
        change(one)
        assert close(one.run(Fp32xLaunches(folder, one.call(), replace(WIDE, k_parts=4))), one.reference(), 1e-6)


lost_alone = test_lost_elements_that_meet_large_ones_alone_are_computed_again


def few_lost(folder: Any) -> None:
    test_few_lost_elements_are_computed_again_as_many_are(folder, "TT")


def right(folder: Any) -> None:
    test_sums_are_those_of_float64(folder, 3, "NN")


def long(folder: Any) -> None:
    test_long_operands_are_split_by_several_warps_and_in_clusters(folder, "NN")


def odd(folder: Any) -> None:
    test_rows_of_c_begin_anywhere(folder, SMALL, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, text, test",
    [
        ("slice-of-a", "0 * ", right), ("slice-of-b", "0 * ", right),
        ("slice-of-k", "0 * ", right),
        ("largest-is-left", "if (false) ", long),
        ("warps-have-left", "if (false) ", long),
        ("all-have-begun", "if (false) ", long),
        ("maxima-are-here", "if (false) ", long),
        ("losses-are-here", "if (false) ", long),
        ("losses-of-blocks", "0 * ", long),
        ("lost-sums", "if (false) ", test_the_guard_in_slices),
        ("lost-size", "~0.0f", lambda folder: lost_alone(folder, 1e-12)),
        ("row-one-by-one", " * 0", lambda folder: lost_alone(folder, 1e-12)),
        ("column-one-by-one", " * 0", lambda folder: lost_alone(folder, 1e-12)),
        ("alpha-one-by-one", "~* 0 +", few_lost),
        ("k-one-by-one", "0 * ", few_lost), ("chain-length", "16 + 0 * ", few_lost),
        ("results-added", " - 1", right),
        ("rows-of-warp", "0 * ", odd),
        ("odd-column", "0 * ", odd),
        ("odd-rows-there", " - 1", odd),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(folder: Any, place: str, text: str, test: Any) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        test(folder)
