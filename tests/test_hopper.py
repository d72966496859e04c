"""Products from two fp16 terms: the arithmetic against plain fp32, and what the compiler makes of the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import require
from toprung import split
from toprung.backends import nvrtc
from toprung.backends.nvrtc import compile_cubin
from toprung.data import DISTRIBUTIONS
from toprung.hopper import SHARED_BYTES, Variant, guard_source, product_source, split_source
from toprung.machine_code import inspect_source
from toprung.routines.gemm import Gemm

FINITE = [name for name in DISTRIBUTIONS if "inf" not in name and name != "nan"]


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


def test_guard_refuses_what_cannot_be_carried_and_nothing_common() -> None:
    def refused(name: str) -> bool:
        operands = DISTRIBUTIONS[name].operands(Gemm(64, 64, 512), 1)
        return split.refused(operands["A"], operands["B"])

    assert [name for name in DISTRIBUTIONS if refused(name)] == ["phi4", "T2", "T4", "inf", "-inf", "nan"]


def test_terms_hold_an_element() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (4, 64)).astype(np.float32)
    e = split.exponents(x)
    hi, lo = split.split(x, e)
    back = np.ldexp(hi.astype(np.float64) + lo.astype(np.float64) / 2048, (e - split.TOP)[:, None])
    assert np.max(np.abs(back - x) / np.abs(x)) <= 2.0**-22


@pytest.mark.parametrize(
    "variant",
    [Variant(), Variant(CLUSTER=2, INTERVAL=2), Variant(BN=192, STAGES=5, INTERVAL=2, CLUSTER=2, TOGETHER=1)],
    ids=str,
)
def test_product_keeps_the_matrix_units_busy(variant: Variant) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    source = product_source(variant)
    code = inspect_source(source, "sm_90")
    assert code.spills == 0
    assert code.counts["HGMMA"] == (12 if variant.TOGETHER else 6)
    assert code.shared_bytes <= SHARED_BYTES
    assert "serialized" not in compile_cubin(source, "sm_90").log


def test_helpers_spill_nothing() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    for source in (split_source(), guard_source()):
        assert inspect_source(source, "sm_90").spills == 0
