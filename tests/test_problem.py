"""A problem validates its sizes before anything is allocated, and knows what it costs and what is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprung.errors import BadSize, UnknownName
from toprung.lab.routines.base import routine
from toprung.lab.routines.gemm import from_size
from toprung.oracle.check import hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import Matrix, checked_size


@pytest.mark.parametrize("value", [-1, 1.0, 512.5, True, "8", None, np.float64(8), np.nan])
@pytest.mark.parametrize("name", ["M", "N", "K"])
def test_a_size_is_a_whole_number(name: str, value: object) -> None:
    with pytest.raises(BadSize, match=rf"^{name} must be "):
        Gemm(**({"M": 4, "N": 4, "K": 4} | {name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "least"), [("lda", 7), ("ldb", 6), ("ldc", 6)])
def test_a_leading_dimension_spans_a_row(name: str, least: int) -> None:
    assert getattr(Gemm(5, 6, 7, **{name: least}), name) == least
    assert getattr(Gemm(5, 6, 7), name) == least
    for bad in (least - 1, 0, -8, float(least), True):
        with pytest.raises(BadSize, match=f"^{name} must be "):
            Gemm(5, 6, 7, **{name: bad})


@pytest.mark.parametrize("problem", [{"M": 2**31, "N": 1, "K": 1}, {"M": 1, "N": 1, "K": 1, "ldb": 2**31}], ids=str)
def test_sizes_that_kernels_cannot_count_are_refused(problem: dict[str, int]) -> None:
    with pytest.raises(BadSize, match=r"must be below 2\*\*31"):
        Gemm(**problem)


def test_numpys_integers_are_integers() -> None:
    problem = Gemm(np.int64(3), np.int32(4), np.uint8(5))
    assert (problem.M, problem.N, problem.K) == (3, 4, 5) and type(problem.M) is int


def test_zero_is_a_size() -> None:
    problem = Gemm(0, 0, 0)
    assert problem.flops == problem.min_bytes == 0 and (problem.lda, problem.ldb, problem.ldc) == (1, 1, 1)
    assert [m.extent for m in problem.matrices] == [0, 0, 0]


@pytest.mark.parametrize(
    ("size", "problem"), [((512,), Gemm(512, 512, 512)), ((35, 79, 19), Gemm(35, 79, 19)), ((1, 1, 1), Gemm(1, 1, 1))], ids=str
)
def test_from_size(size: tuple[int, ...], problem: Gemm) -> None:
    assert from_size(size) == problem


@pytest.mark.parametrize("size", [(), (1, 2), (1, 2, 3, 4), (0,), (3, 0, 3), (-5,), (2.0,), ("8",), (True,)], ids=str)
def test_from_size_refuses(size: tuple[int, ...]) -> None:
    with pytest.raises(BadSize):
        from_size(size)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 60))
def test_an_extent_ends_at_the_last_element(rows: int, cols: int, ld: int) -> None:
    matrix = Matrix("A", rows, cols, max(ld, cols))
    offsets = [r * matrix.ld + c for r in range(rows) for c in range(cols)]
    assert matrix.extent == max(offsets, default=-1) + 1
    assert matrix.nbytes == 4 * matrix.extent


def test_what_a_product_costs() -> None:
    assert Gemm(2, 3, 4).flops == 2 * 2 * 3 * 4
    assert Gemm(2, 3, 4).min_bytes == 4 * (8 + 12 + 6)
    assert Gemm(2, 3, 4, beta=1).min_bytes == 4 * (8 + 12 + 2 * 6)
    assert Gemm(2, 3, 4).depth == 4 and Gemm(2, 3, 4).output.name == "C"
    assert str(Gemm(2, 3, 4)) == "2×3×4"


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.sampled_from([0, 1, -1, 0.7]), st.sampled_from([0, 1, 1.3]))
def test_the_reference_is_the_definition(M: int, N: int, K: int, alpha: float, beta: float) -> None:
    """Against three loops, α and β rounded to fp32 as kernels get them."""
    problem = Gemm(M, N, K, alpha, beta, lda=9, ldc=8)
    operands = hostile(problem, "integers").matrices
    reference, magnitude = problem.reference(operands)
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    for m in range(M):
        for n in range(N):
            terms = [alpha * float(operands["A"][m, k]) * float(operands["B"][k, n]) if alpha else 0 for k in range(K)]
            terms.append(beta * float(operands["C"][m, n]) if beta else 0)
            assert abs(reference[m, n] - sum(terms)) <= 1e-12
            assert abs(magnitude[m, n] - sum(map(abs, terms))) <= 1e-12
    assert reference.shape == (M, N)


def test_a_part_of_the_reference_is_part_of_the_whole() -> None:
    problem = Gemm(9, 8, 7, 0.7, 1.3)
    operands = hostile(problem).matrices
    rows, cols = np.array([0, 5, 8]), slice(2, 6)
    whole, part = problem.reference(operands), problem.reference(operands, rows, cols)
    assert all(np.allclose(p, w[rows][:, cols], rtol=1e-14, atol=0) for p, w in zip(part, whole, strict=True))


def test_describe_makes_the_problem_again() -> None:
    problem = Gemm(9, 8, 7, 0.7, 1.3, 10, 11, 12)
    facts = problem.describe()
    assert facts.pop("routine") == "gemm" and Gemm(**facts) == problem


def test_checked_size_names_what_was_given() -> None:
    with pytest.raises(BadSize, match="BM must be at least 2, not 1"):
        checked_size("BM", 1, least=2)
    with pytest.raises(BadSize, match=r"BM must be an integer, not 1\.5"):
        checked_size("BM", 1.5)


def test_routines_by_name() -> None:
    assert routine("gemm").from_size((3,)) == Gemm(3, 3, 3)
    with pytest.raises(UnknownName, match=r"no routine 'gemmm'; there is: .*gemm"):
        routine("gemmm")
    with pytest.raises(UnknownName):
        routine("base")
