"""The check of mixed operands: what is drawn, how it is laid out and verified, what is measured, and how it is reported."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
from test_fp32x_tuned import Given
from test_tuned import install_cublas
from toprung.backends.base import Session
from toprung.dispatch import mixed
from toprung.dispatch.selection import Candidate
from toprung.errors import BadSize, Unsupported
from toprung.gemm.classes import is_skinny
from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.lab.harness.results import problem_name
from toprung.oracle.check import GUARD, POISON, Oracle, decoded, encoded, hostile, view
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice
from toprung.oracle.problems import problem_of
from toprung.report import tune as report
from toprung.store import Store
from toprung.tune import check as checking
from toprung.tune import shapes
from toprung.tune.candidates import selected
from toprung.tune.check import Checked, asked, check
from toprung.tune.rows import Choices
from toprung.tune.trial import Sampled

H200, POCL = golden.devices()["h200-cuda"], golden.devices()["pocl"]
ROUTER = Gemm(4096, 256, 7168, trans="NT", type_a="bfloat16")


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
def test_numbers_that_a_type_holds_come_back_and_others_are_rounded_to_nearest(dtype: str) -> None:
    bits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    values = np.random.default_rng(1).uniform(-4, 4, 5000).astype(np.float32)
    stored = encoded(values, dtype)
    assert stored.itemsize == ELEMENT_BYTES[dtype]
    back = decoded(stored, dtype)
    assert back.dtype == np.float32 and (np.abs(back - values) <= np.abs(values) * 2.0**-bits + 2.0**-25).all()
    assert np.array_equal(decoded(encoded(back, dtype), dtype), back)
    special = np.array([np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0**-14], np.float32)
    assert np.array_equal(decoded(encoded(special, dtype), dtype).view(np.uint32), special.view(np.uint32))
    assert np.isnan(decoded(encoded(np.full(3, POISON).view(np.float32), dtype), dtype)).all()


def test_ties_go_to_even() -> None:
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8], np.float32)
    assert list(decoded(encoded(ties, "bfloat16"), "bfloat16")) == [1.0, 1 + 2.0**-6, -1.0]


def test_operands_are_what_the_oracle_has() -> None:
    """A product of what lies in the device's memory is right; one of unrounded operands is wrong."""
    problem = Gemm(33, 18, 65, lda=70, type_a="bfloat16", type_b="float16")
    operands = hostile(problem)
    oracle, flat = Oracle(operands), operands.flat["C"].copy()
    view(problem.output, flat)[...] = operands.matrices["A"].astype(np.float64) @ operands.matrices["B"]
    assert oracle.verify(flat).right
    rough = {name: problem_values + 2.0**-9 for name, problem_values in operands.matrices.items()}
    view(problem.output, flat)[...] = rough["A"] @ rough["B"]
    assert not oracle.verify(flat).right


def test_halves_lie_in_the_device_s_memory_between_guards_of_nan(session: Session) -> None:
    problem = Gemm(6, 5, 8, lda=11, type_a="bfloat16", type_b="float16")
    placed = OnDevice(hostile(problem), session)
    for name, dtype, bits in (("A", "bfloat16", np.uint16), ("B", "float16", np.float16)):
        matrix = next(m for m in problem.matrices if m.name == name)
        assert matrix.nbytes == 2 * matrix.extent
        stored = np.empty(matrix.extent + 2 * GUARD, bits)
        session.download(placed.buffers[name], stored)
        back = decoded(stored, dtype)
        assert np.array_equal(view(matrix, back), placed.operands.matrices[name])
        assert np.isnan(back[:GUARD]).all() and np.isnan(back[-GUARD:]).all()
    assert np.array_equal(placed.fetch().view(np.uint32), placed.operands.flat["C"].view(np.uint32))


def test_a_problem_of_halves_is_described_and_made_again() -> None:
    assert "type_a" not in Gemm(3, 4, 5).describe()
    assert problem_of(ROUTER.describe()) == ROUTER and isinstance(ROUTER.desc, GemmDesc)
    assert (ROUTER.desc.type_a, ROUTER.desc.type_b) == ("bfloat16", "float32")
    assert "bfloat16·float32" in problem_name(ROUTER.describe()) and "bfloat16·float32" in str(ROUTER)
    assert ROUTER.min_bytes == 2 * 4096 * 7168 + 4 * 256 * 7168 + 4 * 4096 * 256
    with pytest.raises(BadSize, match="float64"):
        Gemm(1, 1, 1, type_b="float64")


def test_mixed_operands_are_drawn_of_all_types_and_the_others_stay() -> None:
    plain = shapes.drawn(H200, 120, 8)
    found = shapes.with_mixed(H200, plain, 8)
    made: list[Any] = [p for p in found if isinstance(p, Gemm) and p.is_mixed]
    assert [p for p in found if p not in made] == plain and found == shapes.with_mixed(H200, plain, 8)
    assert len(made) == 30 and {(p.type_a, p.type_b) for p in made} == set(shapes.TYPES)
    assert len({p.trans for p in made}) == 4 and any(p.batch > 1 for p in made)
    assert any(p != replace(p, lda=None, ldb=None, ldc=None) for p in made), "some lie in wider matrices"
    assert all(asked(H200, p, "auto") == ["auto"] for p in made)
    plainly = [p for p in made if asked(H200, p, "fp32")]
    assert plainly and all(is_skinny(p.desc) for p in plainly), "others are read by Tensor Cores alone"
    short = {p for p in shapes.with_mixed(POCL, plain, 8) if p not in plain}
    assert short and all(selected(POCL, p, "auto").candidate.kernel == "skinny" for p in short)  # others are converted


def checked(times: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    install_cublas(monkeypatch)
    monkeypatch.setattr(checking, "Compiler", Uncompiled)
    (found,) = check([Given(times)], [ROUTER], Store(tmp_path / "tuned.sqlite"))  # type: ignore[arg-type]
    return found


class Uncompiled:
    """No compilers."""

    def __init__(self, device: Any) -> None:
        """Nothing to start."""

    def ahead(self, candidate: Candidate, desc: Any, fingerprint: str) -> None:
        """Nothing is compiled."""

    def close(self) -> None:
        """Nothing to end."""


def test_a_slower_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = selected(H200, ROUTER, "auto").candidate
    found = checked(lambda c: 2e-3 if c == own else 1e-3, tmp_path, monkeypatch)
    assert found.broken and found.selected == own and found.kind == found.describe(Choices())["kind"] == "mixed"
    assert len(found.sampled) >= 4 and {c.kernel for c, _ in found.sampled} == {"hopper_inflight", "hopper_presplit"}
    kept = checked(lambda c: 1e-3 if c == own else 2e-3, tmp_path, monkeypatch)
    assert not kept.broken and not kept.trouble


def test_the_vendor_on_two_halves_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cublas(monkeypatch)
    both = replace(ROUTER, type_b="bfloat16")
    order, _ = mixed.ranked(H200, both.desc, "auto")  # type: ignore[arg-type]
    assert order[0].candidate.kernel == "cublas_half" and order[1].candidate.kernel == "hopper_inflight"
    monkeypatch.setattr(checking, "Compiler", Uncompiled)
    (found,) = check([Given(lambda c: 1e-3)], [both], Store(tmp_path / "tuned.sqlite"))  # type: ignore[arg-type]
    assert "cublas_half" in {c.kernel for c, _ in found.sampled}


def test_what_is_converted_first_is_not_checked() -> None:
    odd = Gemm(64, 64, 65, trans="NT", type_b="float16")
    assert asked(H200, odd, "auto") == [] == asked(POCL, ROUTER, "auto")
    with pytest.raises(Unsupported, match="converted first"):
        selected(H200, odd, "auto")


def test_each_kind_is_reported_by_itself_the_worst_first() -> None:
    own = selected(H200, ROUTER, "auto").candidate
    one = checking.Interval(1, 1, 1)
    few, large = Gemm(16, 4096, 4096), Gemm(4096, 4096, 4096)
    found = [
        Checked(large, "auto", own, "", own, one), Checked(large, "auto", own, "", own, one, device_ratio=1.0),
        Checked(few, "auto", own, "", own, one, device_ratio=1.2),
        Checked(ROUTER, "auto", own, "", own, checking.Interval(2, 2, 2), True), Checked(ROUTER, "auto", own, "", own, one),
    ]  # fmt: skip
    lines = report.kind_lines(found)
    assert [line.split(":")[0].strip() for line in lines[:3]] == ["mixed", "large", "skinny"]
    assert "1 of 2 shapes" in lines[0] and "2 of 2 shapes" in lines[1]
    assert "device time alone" in lines[3] and "1 of 2 shapes" in lines[3] and "1.200" in lines[3]
    assert Counter(one.kind for one in found) == {"mixed": 2, "large": 2, "skinny": 1}


def test_small_products_are_looked_at_by_device_time_alone() -> None:
    def sampled(device: float, host: float) -> Sampled:
        return Sampled("right", seconds=(max(device, host),) * 3, device_seconds=(device,) * 3, turns=(0, 1, 2), host_seconds=host)

    assert checking._by_device(sampled(6e-6, 14e-6), [sampled(4e-6, 14e-6), sampled(8e-6, 5e-6)]) == pytest.approx(1.5)
    assert checking._by_device(sampled(6e-6, 14e-6), [sampled(9e-6, 1e-6)]) == 1.0
    assert checking._by_device(sampled(21e-6, 14e-6), [sampled(4e-6, 14e-6)]) is None
    assert checking._by_device(Sampled("right", seconds=(1e-6,)), []) is None
