"""The library's product by pieces: every layout, edges, gaps; parts over a poisoned workspace; when it is offered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trial
from conftest import require
from test_choice import HOPPER as H200
from toprung.backends import nvrtc
from toprung.backends.base import Buffer, Session, Workspace
from toprung.blas import kernel as kernels
from toprung.blas import pieces, tuned
from toprung.blas.call import GemmCall, widths
from toprung.blas.choice import Choice
from toprung.blas.competitor import Toprung, call_of
from toprung.blas.kernel import kernel
from toprung.blas.tunables.pieces import TUNABLE
from toprung.build import rung_source
from toprung.check import Oracle, hostile
from toprung.competitor import OnDevice
from toprung.machine_code import inspect_source
from toprung.problem import F32
from toprung.routines.gemm import TRANSPOSES, Gemm
from toprung.tile import Tile

SMALL = Tile(BM=16, BN=16, BK=8, WM=16, WN=16, TM=4, TN=4, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4)
POINT = {"BK": 16, "ORDER": 1, "INDEX32": 1, "GROUP_M": 8}


def chosen(session: Session, problem: Gemm, **options: int) -> Choice:
    """Small blocks on a device that seems to run five work-groups on each compute unit."""
    call = call_of(problem)
    assert isinstance(call, GemmCall)
    a, b, c = widths(call)
    given = {"RESIDENT": 5, "VC": min(c, 4), "TRANS_A": call.trans_a, "TRANS_B": call.trans_b, "GROUP_M": 2, **options}
    made = kernel("pieces").options(session.device, {k: int(v) for k, v in given.items()})
    return Choice("pieces", replace(SMALL, VA=a, VB=b), tuple(sorted(made.items())))


def run(session: Session, problem: Gemm, choice: Choice) -> tuple[bool, F32]:
    """Once on hostile operands between guards: whether it was right, and the output's backing array."""
    operands = hostile(problem)
    placed = OnDevice(operands, session)
    prepared = Toprung(choice=choice).prepare(placed)
    prepared.time(1)
    flat = prepared.fetch()
    return Oracle(operands).verify(flat).right, flat


@pytest.fixture
def poisoned(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose new memory is full of NaN, workspaces too, and where little is worth a cut."""
    allocate = session.allocate

    def poison(nbytes: int) -> Buffer:
        buffer = allocate(nbytes)
        session.upload(buffer, np.full(nbytes // 4, np.nan, np.float32))
        return buffer

    monkeypatch.setattr(session, "allocate", poison)
    monkeypatch.setattr(session, "workspace", lambda queue, nbytes: Workspace(poison(nbytes)))
    monkeypatch.setattr(pieces, "SAVED", 16)
    return session


WHOLE = ((32, 64, 320), 0, (1.0, 0.0)), ((52, 52, 420), 4, (0.7, 1.3)), ((16, 48, 64), 0, (-1.0, 0.0))
ODD = (((35, 79, 419), 3, (0.7, 1.3)), ((34, 66, 130), 2, (1.3, 0.0)))
CASES = [
    pytest.param(trans, cases, id=f"{trans}-{name}", marks=() if name == "whole" and trans in ("NN", "TT") else pytest.mark.slow)
    for trans in TRANSPOSES
    for name, cases in (("whole", WHOLE), ("odd", ODD))
]


@pytest.mark.parametrize(("trans", "cases"), CASES)
def test_parts_meet(trans: str, cases: tuple[Any, ...], poisoned: Session) -> None:
    """Whole tiles and edges, rows with gaps, less than a wave of blocks and more; twice the same bits."""
    for size, gap, scalars in cases:
        tight = Gemm(*size, trans=trans)
        lds = {f"ld{n}": getattr(tight, f"ld{n}") + gap for n in "abc"}
        problem = Gemm(*size, *scalars, trans=trans, **lds)
        choice = chosen(poisoned, problem)
        assert pieces.launches(call_of(problem), choice, poisoned.device.compute_units) == 2, "nothing is cut: nothing was tested"
        (right, flat), (again, same) = (run(poisoned, problem, choice) for _ in range(2))
        assert right and again, (problem, choice)
        assert flat.tobytes() == same.tobytes()


@pytest.mark.slow
def test_switches_and_what_is_not_cut(poisoned: Session) -> None:
    for size, options in (((33, 35, 37), {}), ((48, 80, 390), {"ORDER": 0, "INDEX32": 0}), ((16, 16, 1), {}), ((1, 1, 700), {})):
        problem = Gemm(*size, 1.3, -1.0)
        right, _ = run(poisoned, problem, chosen(poisoned, problem, **options))
        assert right, (size, options)


BUGS = [
    ("a part is scaled by what lies there", "part < 0 ? beta : 0.0f", "beta"),
    ("all parts in one place", "(index_t)part * (BM * BN)", "(index_t)0"),
    ("a piece begins at k = 0", "A_AT(0, k0)", "A_AT(0, 0)"),
    ("no guard in M", "if (m0 + m < M)", "if (1)"),
]


@pytest.mark.parametrize(
    ("fragment", "replacement"),
    [pytest.param(*b[1:], id=b[0], marks=pytest.mark.slow if i > 1 else ()) for i, b in enumerate(BUGS)],
)
def test_planted_bugs_are_caught(
    fragment: str, replacement: str, poisoned: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gemm.cl").write_text(kernel("gemm").source.read_text())
    planted = trial.altered(kernel("pieces"), tmp_path, (fragment, replacement))
    monkeypatch.setattr(kernels, "kernel", lambda name: planted if name == "pieces" else kernel(name))
    monkeypatch.setattr(kernels, "_loaded", type(kernels._loaded)())
    problem = Gemm(52, 52, 420, 0.7, 1.3)
    right, _ = run(poisoned, problem, chosen(poisoned, problem))
    assert not right


def test_what_is_offered_on_an_h200() -> None:
    """For one large product alone; the inverse gives the point back; a store's entry becomes the same choice."""
    large = GemmCall(4096, 4096, 4096, align_a=4, align_b=4, align_c=4)
    assert TUNABLE.axes(H200, large) and not TUNABLE.axes(H200, GemmCall(512, 512, 512))
    assert not TUNABLE.axes(H200, replace(large, batch=2, stride_a=4096**2, stride_b=4096**2, stride_c=4096**2))
    found = TUNABLE.make(H200, large, POINT)
    assert found is not None and TUNABLE.point(found) == POINT
    assert pieces.launches(large, found, 132) == 2 and pieces.workspace_bytes(large, found, 132) == 256 * 128 * 128 * 4
    assert tuned._pieces(large, found.tile or SMALL, dict(found.options)) == found.tile
    narrow = replace(large, lda=4097, align_a=1)
    assert "wider" in str(tuned._pieces(narrow, found.tile or SMALL, dict(found.options)))


@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_two_fit_a_multiprocessor(trans: tuple[bool, bool]) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    call = GemmCall(4096, 4096, 4096, 1, *trans, align_a=4, align_b=4, align_c=4)
    found = TUNABLE.make(H200, call, POINT)
    assert found is not None and found.tile is not None
    code = inspect_source(rung_source(kernel("pieces"), found.tile, dict(found.options)), "sm_90")
    assert code.registers <= 128 and code.spills == 0
