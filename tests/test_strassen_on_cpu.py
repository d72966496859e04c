"""A level of Strassen from operands to result on a CPU, by the kernels' own sources: sums, edges, layouts, pieces, Inf and NaN."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
from conftest import require
from hopper_on_cpu import Folder, bug, counted
from test_hopper_on_cpu import Operands, close
from toprung.kernels.hopper_fp32x import strassen
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.strassen import STRASSEN, Form, half
from toprung.lab.routines.gemm_strassen import WINOGRAD

SMALL = Fp32xConfig(CONSUMERS=1, BN=32, STAGES=3, GROUP=2)
NORMWISE = 6e-7
"""Largest Frobenius error of these problems: some times that of fp32x."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("strassen"))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strassen, "kernel_of", lambda session, source: source)
    monkeypatch.setattr(strassen, "spread", lambda K, across: 1)  # a cluster's blocks would have to run at once


@pytest.mark.parametrize("form", [STRASSEN, WINOGRAD], ids=lambda form: form.name)
def test_a_form_is_a_product_of_2x2_blocks(form: Form) -> None:
    """Every product of two quarters comes out as often as it should: what Brent's equations say."""
    for q, i, j in itertools.product(range(4), repeat=3):
        found = sum(c * a[i] * b[j] for c, a, b in zip(form.c[q], form.a, form.b, strict=True))
        assert found == (i % 2 == j // 2 and (i // 2, j % 2) == (q // 2, q % 2))


def run(plan: Any, one: Operands, alpha: float = 1.0, beta: float = 0.0) -> Any:
    return one.run(plan, alpha, beta)


@pytest.mark.parametrize(
    "sizes, turned, form",
    [
        pytest.param((100, 70, 90), "NN", STRASSEN, marks=pytest.mark.slow),
        ((33, 97, 161), "TN", STRASSEN),
        pytest.param((64, 128, 64), "NT", WINOGRAD, marks=pytest.mark.slow),
        pytest.param((97, 65, 130), "TT", WINOGRAD, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_sums_are_those_of_float64(folder: Any, sizes: tuple[int, int, int], turned: str, form: Form) -> None:
    one = Operands.of(*sizes, turned=turned)
    plan = strassen.launches(folder, one.call(), SMALL, form)
    found = run(plan, one, 0.5, 2.0)
    assert close(found, one.reference(0.5, 2.0), NORMWISE) and not counted(plan)
    assert np.array_equal(found, run(plan, one, 0.5, 2.0)), "other bits the second time"
    assert close(run(plan, one), one.reference(), NORMWISE)


@pytest.mark.slow
def test_sums_of_one_sign_are_not_biased(folder: Any) -> None:
    one = Operands.of(70, 66, 128)
    plan = strassen.launches(folder, one.call(), SMALL)
    assert hopper_on_cpu.biased(one, lambda: run(plan, one)) == {}


def special(one: Operands) -> None:
    one.a[0, 5, 77], one.a[0, 60, 10], one.b[0, 3, 7] = np.inf, -np.inf, np.nan


def near_the_largest(one: Operands) -> None:
    """Sums of two quarters are too large for fp32, the products of one row and one column are not."""
    one.a[0, 5] *= np.float32(2.0**127 * 1.9)
    one.b *= np.float32(2.0**-20)


@pytest.mark.slow
@pytest.mark.parametrize("change", [special, near_the_largest])
@pytest.mark.parametrize("turned", ["NN", "TT"])
def test_what_is_not_finite_reaches_nothing_else(folder: Any, change: Any, turned: str) -> None:
    one = Operands.of(70, 50, 96, turned=turned)
    change(one)
    plan = strassen.launches(folder, one.call(), SMALL)
    before = counted(plan)
    for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
        found, exact = run(plan, one, alpha, beta), one.reference(alpha, beta)
        finite = np.isfinite(exact)
        large, beside = np.arange(70) == 5, np.arange(70) == 5 + half(70)  # rows that share sums: the promise is normwise
        assert np.array_equal(found[~finite], exact[~finite].astype(np.float32), equal_nan=True)
        assert np.isfinite(found[finite]).all()
        for rows in large, ~(large | beside):
            assert close(found[0][rows], exact[0][rows], NORMWISE)
    assert counted(plan) > before


def test_what_is_computed_again_is_added_as_in_plain_fp32(folder: Any) -> None:
    one = Operands.of(35, 33, 97)
    one.a, one.b = hopper_on_cpu.coarse(one.a), hopper_on_cpu.coarse(one.b) * np.float32(2.0**-20)
    one.a[0, 5] *= np.float32(1.5 * 2.0**127)  # sums of two quarters are infinite
    plan = strassen.launches(folder, one.call(), SMALL)
    found = run(plan, one)[0, 5:6]
    assert counted(plan) and np.array_equal(found, hopper_on_cpu.chained(one.a[0, 5:6], one.b[0]))


@pytest.mark.slow
def test_rows_and_columns_have_exponents_of_their_own(folder: Any) -> None:
    """Halves that are powers of two apart: each half's errors are small beside the larger one's."""
    one = Operands.of(64, 64, 64)
    one.a[:, :32] *= np.float32(2.0**-80)
    one.b[:, :, 7] = 0
    found = run(strassen.launches(folder, one.call(), SMALL), one)
    assert close(found, one.reference(), NORMWISE) and not found[0, :, 7].any()


def right(folder: Any) -> None:
    test_sums_are_those_of_float64(folder, (33, 97, 161), "TN", STRASSEN)


def alone(folder: Any) -> None:
    test_what_is_not_finite_reaches_nothing_else(folder, special, "NN")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, text, test",
    [
        ("sign", "true || ", right), ("quarter-of-k", "0 * ", right),
        ("quarter-of-rows", "0 * ", right), ("scale-of-sum", "0 * ", right),
        ("sign-in-c", "true || ", right), ("quarter-of-n", "0 * ", right),
        ("not-finite", "false && ", alone), ("quarter-of-m", "0 * ", alone),
        ("chain-length", "16 + 0 * ", test_what_is_computed_again_is_added_as_in_plain_fp32),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(folder: Any, place: str, text: str, test: Any) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        test(folder)
