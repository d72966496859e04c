"""The oracle and ``verify`` by themselves, on products that NumPy makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import split_model
from toprung.lab.probe.benchmarks.truncation import shipped
from toprung.oracle import check
from toprung.oracle.bias import bias
from toprung.oracle.check import GUARD, Operands, Oracle, Verdict, hostile, view
from toprung.oracle.data import DISTRIBUTIONS, ONE_SIGNED, Distribution
from toprung.oracle.gemm import Gemm
from toprung.oracle.precision import precision as promise
from toprung.oracle.problem import F32

GAPS = Gemm(5, 6, 7, 0.7, 1.3, lda=9, ldb=8, ldc=10)


def product(operands: Operands) -> F32:
    """A right result in fp32, in the output's backing array."""
    flat = operands.flat["C"].copy()
    c, scalars = view(operands.problem.output, flat), operands.problem.describe()
    alpha, beta = np.float32(scalars["alpha"]), np.float32(scalars["beta"])
    with np.errstate(invalid="ignore", over="ignore"):
        result = alpha * (operands.matrices["A"] @ operands.matrices["B"]) if alpha else np.zeros(c.shape, np.float32)
        c[...] = result + beta * c if beta else result
    return flat


def verdict(
    problem: Gemm, spoil: Callable[[F32, F32], Any] = lambda c, flat: None, fill: str | Distribution = "uniform"
) -> Verdict:
    """Return what is said of a right result after ``spoil(C, backing array)``."""
    operands = hostile(problem, fill)
    flat = product(operands)
    spoil(view(problem.output, flat), flat)
    return Oracle(operands).verify(flat)


def constant(*values: float) -> Distribution:
    """Operands that are each one number."""
    return Distribution("constant", tuple(lambda rng, shape, v=v: np.full(shape, v, np.float32) for v in values))


def test_a_right_result_is_right() -> None:
    found = verdict(GAPS)
    assert found.right and found.problems == ()
    assert 0 < found.grade <= 16
    assert 0 < found.median_relative <= found.max_relative <= 1e-4
    assert 0 < found.frobenius <= 1e-6
    assert found.describe()["right"] is True


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("size", [(33, 35, 37), (5, 1, 64), (1, 7, 1)], ids=str)
def test_a_right_result_is_right_on_every_distribution(name: str, size: tuple[int, int, int]) -> None:
    found = verdict(Gemm(*size), fill=name)
    assert found.right, found.problems


@pytest.mark.parametrize("scalars", [(0, 0), (0, 1.3), (1, 0), (-1, 0.7)], ids=str)
def test_what_is_not_read_is_nan(scalars: tuple[float, float]) -> None:
    operands = hostile(Gemm(3, 4, 5, *scalars))
    unread = {name: bool(np.isnan(m).all()) for name, m in operands.matrices.items()}
    assert unread == {"A": scalars[0] == 0, "B": scalars[0] == 0, "C": scalars[1] == 0}
    assert Oracle(operands).verify(product(operands)).right


def test_inputs_lie_in_nan_and_the_output_in_numbers() -> None:
    operands = hostile(GAPS)
    for matrix in GAPS.matrices:
        around = operands.flat[matrix.name].copy()
        assert around.size == matrix.extent + 2 * GUARD
        inside = np.zeros(around.shape, bool)
        for row in range(matrix.rows):
            inside[GUARD + row * matrix.ld : GUARD + row * matrix.ld + matrix.cols] = True
        outside = around[~inside]
        assert np.isfinite(outside).all() if matrix.output else np.isnan(outside).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 0.0])
def test_the_first_wrong_element_is_named(value: float) -> None:
    def spoil(c: F32, flat: F32) -> None:
        c[2, 3] = c[4, 5] = value

    found = verdict(GAPS, spoil)
    assert not found.right
    assert found.problems[0].startswith(f"C[2, 3] is {np.float32(value)!s}, not ")
    assert "2 of 30 elements are wrong" in found.problems[0]
    assert f"grade ratio {found.grade:.2g} at worst, where at most " in found.problems[0], "the one that tables show"
    assert np.isnan(found.grade) or found.grade > 16


def test_all_nan_is_wrong() -> None:
    found = verdict(GAPS, lambda c, flat: c.fill(np.nan))
    assert not found.right and np.isnan(found.grade)


def test_an_unwritten_element_is_reported() -> None:
    problem = Gemm(5, 6, 7)
    operands = hostile(problem)
    flat = product(operands)
    view(problem.output, flat)[3, 1] = view(problem.output, operands.flat["C"])[3, 1]
    found = Oracle(operands).verify(flat)
    assert not found.right
    assert "1 elements of C were never written, the first C[3, 1]; or C was read though β = 0" in found.problems


def test_reading_c_though_beta_is_zero_is_named() -> None:
    operands = hostile(Gemm(5, 6, 7))
    flat = product(operands)
    with np.errstate(invalid="ignore"):
        view(operands.problem.output, flat)[...] += 0.0 * view(operands.problem.output, operands.flat["C"])
    found = Oracle(operands).verify(flat)
    assert not found.right and any("or C was read though β = 0" in text for text in found.problems)


@pytest.mark.parametrize(
    ("offset", "where"),
    [
        (-1, "1 elements in front of it"), (-GUARD, f"{GUARD} elements in front of it"), (6, "in the gap behind row 0"),
        (39, "in the gap behind row 3"), (46, "1 elements behind it"), (45 + GUARD, f"{GUARD} elements behind it"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0.0, np.nan, "more"])
def test_a_write_outside_is_reported_with_its_place(offset: int, where: str, value: float | str) -> None:
    def spoil(c: F32, flat: F32) -> None:
        flat[GUARD + offset] = flat[GUARD + offset] + np.float32(1e-3) if value == "more" else value

    found = verdict(GAPS, spoil)
    assert not found.right
    assert found.problems == (f"1 elements outside C were written, the first {where}",)


def test_the_limit_grows_with_k_up_to_what_random_signs_allow() -> None:
    def limits(name: str) -> list[float]:
        return [Oracle(hostile(Gemm(1, 1, K), name)).limit() for K in (0, 1, 6, 14, 100, 4096)]

    assert limits("positive") == [2, 3, 8, 16, 102, 4098]
    assert limits("uniform") == limits("normal") == [2, 3, 8, 16, 16, 16]


@pytest.mark.parametrize("distance", [(0.9, True), (1.1, False)], ids=["inside", "outside"])
def test_the_limit_is_where_it_says(distance: tuple[float, bool]) -> None:
    """One element moved by almost, and by just more than, what K + 2 allows of |A||B| = K."""
    K, (share, right) = 126, distance
    moved = np.float32(K * (1 + share * (K + 2) * 2.0**-24))
    assert verdict(Gemm(3, 3, K), lambda c, flat: c.__setitem__((1, 1), moved), constant(1, 1)).right is right


def test_exact_data_demand_equal_bits() -> None:
    problem = Gemm(8, 8, 64)
    assert verdict(problem, fill="integers").right

    def nudge(c: F32, flat: F32) -> None:
        c[0, 7] = np.nextafter(c[0, 7], np.float32(1e9))

    assert not verdict(problem, nudge, "integers").right
    assert verdict(problem, nudge, "positive").right


def test_zeros_are_exact_wherever_all_terms_are() -> None:
    assert not verdict(Gemm(3, 3, 3), lambda c, flat: c.fill(1e-45), "zeros").right
    assert not verdict(Gemm(3, 3, 3), lambda c, flat: c.fill(1e-45), constant(0, 1)).right
    assert verdict(Gemm(3, 3, 3), lambda c, flat: c.fill(-0.0), "zeros").right


@pytest.mark.parametrize("name", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("value", [0.0, 1.0, np.inf, -np.inf, np.nan])
def test_special_values_keep_their_class(name: str, value: float) -> None:
    """Whatever replaces a special element passes only if it is the same."""
    problem = Gemm(6, 6, 6)
    reference, _ = problem.reference(hostile(problem, name).matrices)
    place = tuple(int(i) for i in np.argwhere(~np.isfinite(reference))[0])
    found = verdict(problem, lambda c, flat: c.__setitem__(place, value), name)
    assert found.right is bool(np.array_equal(reference[place], value, equal_nan=True))
    if not found.right:
        assert "Inf and NaN must come out" in found.problems[0] and f"C[{place[0]}, {place[1]}]" in found.problems[0]


def test_a_special_row_does_not_excuse_the_others() -> None:
    assert not verdict(Gemm(6, 6, 6), lambda c, flat: c.__setitem__((0, 0), np.nan), "inf").right
    assert not verdict(Gemm(6, 6, 6), lambda c, flat: c.__setitem__((0, 0), 9.0), "nan").right


def test_overflow_may_be_infinite_and_need_not_be() -> None:
    """Terms too large for fp32 whose sum is not: fp32 arithmetic may give either."""
    assert verdict(Gemm(2, 2, 2), fill=constant(1e30, 1e30)).right
    assert verdict(Gemm(2, 2, 2), lambda c, flat: c.fill(np.inf), constant(1e19, 1e20)).right
    assert not verdict(Gemm(2, 2, 2), lambda c, flat: c.fill(np.inf), constant(1e18, 1e19)).right


def test_results_below_the_normal_range_are_judged_by_its_step() -> None:
    tiny = constant(2.0**-74, 2.0**-75)
    assert verdict(Gemm(2, 2, 2), fill=tiny).right
    assert verdict(Gemm(2, 2, 2), lambda c, flat: c.fill(0), tiny).right  # flushed: one step of 2^-149 away
    assert not verdict(Gemm(2, 2, 2), lambda c, flat: c.fill(2.0**-140), tiny).right


def test_empty_outputs_are_right() -> None:
    for size in ((0, 5, 7), (5, 0, 7), (0, 0, 0)):
        found = verdict(Gemm(*size))
        assert found.right and found.grade == 0


class TestSampled:
    """Outputs too large to be compared whole."""

    problem = Gemm(150, 170, 9)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check, "WHOLE_UP_TO", 100)
        monkeypatch.setattr(check, "SAMPLED", 16)

    @pytest.mark.parametrize("name", DISTRIBUTIONS)
    def test_a_right_result_is_right(self, name: str) -> None:
        found = verdict(self.problem, fill=name)
        assert found.right, found.problems

    @pytest.mark.parametrize("shape", [(150, 9), (9, 150), (101, 100), (1, 170)], ids=str)
    def test_narrow_outputs(self, shape: tuple[int, int]) -> None:
        assert verdict(Gemm(*shape, 9)).right

    @pytest.mark.parametrize("place", [(0, 80), (149, 80), (1, 1), (70, 0), (70, 169), (148, 168)], ids=str)
    def test_edges_are_always_compared(self, place: tuple[int, int]) -> None:
        found = verdict(self.problem, lambda c, flat: c.__setitem__(place, 7.0))
        assert not found.right and found.problems[0].startswith(f"C[{place[0]}, {place[1]}] is 7.0")

    @pytest.mark.parametrize("error", [0.01, -1.0, np.nan, np.inf])
    @pytest.mark.parametrize("name", ["uniform", "positive", "integers", "inf", "nan"])
    def test_freivalds_finds_a_single_wrong_element(self, error: float, name: str) -> None:
        rows, cols = (set(range(n)) - set(check._sample(n).tolist()) for n in (150, 170))
        bad = {75, 170 // 3}  # rows and columns that special values are planted in
        place = min(rows - bad), max(cols - bad)

        def spoil(c: F32, flat: F32) -> None:
            c[place] += np.float32(error)

        found = verdict(self.problem, spoil, name)
        assert not found.right
        assert found.problems == (f"Freivalds' test fails in 1 rows, the first {place[0]}",)

    def test_a_stray_write_is_still_seen(self) -> None:
        assert not verdict(self.problem, lambda c, flat: flat.__setitem__(0, 1.0)).right

    def test_samples_are_within_and_have_the_edges(self) -> None:
        for count in (1, 2, 3, 5, 16, 17, 4097):
            drawn = check._sample(count)
            assert len(set(drawn.tolist())) == len(drawn) <= 16
            assert {0, count - 1} <= set(drawn.tolist()) <= set(range(count))

    def test_of_very_long_columns_the_edges_are_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert check._sample(150, check.MOST_SAMPLED).tolist() == [0, 1, 148, 149]
        monkeypatch.setattr(check, "MOST_SAMPLED", 1000)
        assert not verdict(self.problem, lambda c, flat: c.__setitem__((103, 85), 7.0)).right


def test_the_same_seed_gives_the_same_operands() -> None:
    one, same, other = (hostile(GAPS, seed=s).flat["A"].tobytes() for s in (3, 3, 4))
    assert one == same != other


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_fp32_and_what_they_say(name: str) -> None:
    values = DISTRIBUTIONS[name].operands(Gemm(40, 30, 50))
    assert all(v.dtype == np.float32 for v in values.values())
    a, b = values["A"].astype(np.float64), values["B"].astype(np.float64)
    cancels = name == "cancelling" and np.abs(a @ b).max() < 1e-5 * (np.abs(a) @ np.abs(b)).max()
    says = {
        "uniform": (np.abs(a).max() <= 1, a.min() < 0), "positive": (a.min() >= 0, a.max() <= 1), "lognormal": (a.min() > 0,),
        "relu": (a.min() == 0, (b > 0).any()), "near-one": (a.min() >= 1, b.max() <= 1.001 + 2.0**-23),
        "integers": (np.array_equal(a, np.rint(a)), np.abs(a).max() <= 4), "zeros": (not a.any(), not b.any()),
        "inf": (np.isposinf(a).sum() == 1,), "-inf": (np.isneginf(b).sum() == 1,), "nan": (np.isnan(a).sum() == 1,),
        "T1": (2.0**-15 <= np.abs(a).min(), np.abs(a).max() <= 2.0**14), "T2": (np.abs(b).max() <= 2.0**-35,),
        "T3": (np.abs(a).max() <= 2.0**-15, np.abs(b).min() >= 2.0**-35), "T4": (np.abs(a).min() >= 2.0**-101,),
        "huge-row": (np.abs(a[20]).max() > 2.0**19, np.abs(np.delete(a, 20, 0)).max() <= 1),
        "huge-column": (np.abs(b[:, 15]).max() > 2.0**19, np.abs(np.delete(b, 15, 1)).max() <= 1),
        "subnormal": (0 < np.abs(a).max() < 2.0**-126,),
        "cancelling": (cancels,),
    }.get(name, (np.isfinite(a).all(),))  # fmt: skip
    assert all(says)


def truncating(a: F32, b: F32) -> F32:
    """A product whose accumulators drop what does not fit, as a Tensor Core's do."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        total = split_model.truncated(total + np.outer(a[:, k].astype(np.float64), b[k]), np.ldexp(1.0, np.frexp(total)[1] - 24))
    return total.astype(np.float32)


def fp32x(times: float) -> Callable[[F32, F32], F32]:
    """Return fp32x's product where lo carries a multiple of its share."""
    return lambda a, b: split_model.product(a, b, split_model.Scheme(share=times * shipped()))


@pytest.mark.parametrize("name", ONE_SIGNED)
def test_a_bias_is_found(name: str) -> None:
    """A share that is left out, or doubled, and accumulators that truncate: no single element is beyond its limit."""
    operands = hostile(Gemm(64, 64, 128), name)
    oracle, flat = Oracle(operands), operands.flat["C"].copy()

    def found(multiply: Callable[[F32, F32], F32], precision: str) -> Verdict:
        view(operands.problem.output, flat)[...] = multiply(operands.matrices["A"], operands.matrices["B"])
        return oracle.verify(flat, precision)

    for right, precision in ((fp32x(1), "fp32x"), (split_model.chain, "fp32")):
        assert found(right, precision).problems == ()
    wrong = [
        (fp32x(2), "fp32x"),
        (truncating, "fp32"),
        *[(fp32x(0), "fp32x")] * (name != "near-one"),
    ]  # there rounding does as much
    for multiply, precision in wrong:
        (problem,) = found(multiply, precision).problems
        assert problem.startswith("sums of one sign are off by ")


@pytest.mark.parametrize("depth", [448, 20000])
def test_a_bias_near_one_is_as_large_as_its_limit_says(depth: int) -> None:
    """Sums of k-blocks are nearly equal there, so that fp32's additions round them to one side."""
    a, b = (hostile(Gemm(24, 24, depth), "near-one").matrices[name] for name in "AB")
    want = a.astype(np.float64) @ b
    off, most = bias(fp32x(1)(a, b), want, want), promise("fp32x").bias_limit(depth, near_one=2)
    assert off is not None and off.beyond(most / 2) and not off.beyond(most)


@pytest.mark.parametrize("count, known", [(24, False), (4096, True)])
def test_few_sums_or_equal_ones_have_no_bias(count: int, known: bool) -> None:
    """A bias of chance is none, whatever its size; sums of both signs do not count, nor zeros, NaN and what is next to 0."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(1, 2, count)
    low = bias((exact * (1 - 1e-6)).astype(np.float32), exact, exact)
    assert low is not None and low.beyond(5e-7) == known and not low.beyond(2e-6)
    right = bias(exact.astype(np.float32), exact, exact)
    assert right is not None and not right.beyond(0.0)
    uneven = bias(np.float32(0.7) * exact.astype(np.float32), *[np.float64(np.float32(0.7)) * exact.astype(np.float32)] * 2)
    assert uneven is not None and not uneven.beyond(promise("fp32").bias_limit(1))
    same = bias(np.full(count, np.float32(0.1)), np.full(count, 0.1), np.full(count, 0.1))
    assert same is not None and not same.beyond(0.0)
    assert bias(exact, exact, 2 * exact) is bias(exact, 0 * exact, 0 * exact) is bias(exact * np.nan, exact, exact) is None
    assert bias(exact * 0, exact * 2.0**-130, exact * 2.0**-130) is None
