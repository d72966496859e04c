"""Rung 17 of turing: how work is cut, what the compiler makes of it, and that its parts meet."""

from __future__ import annotations

import heapq
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trial
from conftest import require
from test_oclgrind import simulate
from toprung.backends import nvrtc
from toprung.backends.base import Buffer, Session
from toprung.kernels.record import kernel_source
from toprung.kernels.stream_k import work
from toprung.lab.routines import gemm_last_wave as last_wave
from toprung.lab.rung import rung
from toprung.lab.sass.machine_code import MachineCode, inspect_source
from toprung.oracle.gemm import Gemm

RUNG = rung("turing/r17")
H200 = 2 * 132
CUT = ((65, 33, 137), (32, 32, 431), (33, 35, 37), (128, 96, 64), (96, 96, 512))
"""Sizes that are cut where ten work-groups run at one time (on two compute units), of 32×32: less than a wave, and more."""


def makespan(todo: list[work.Piece], slots: int) -> int:
    """Iterations until all is done, where whoever is free takes what is next."""
    places = [0] * slots
    for piece in todo:
        heapq.heapreplace(places, places[0] + piece.iterations)
    return max(places)


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 40), st.integers(1, 20))
def test_pieces_cover_every_block_once(blocks: int, iterations: int, slots: int, least: int) -> None:
    whole, parted = work.pieces(blocks, iterations, slots, least)
    assert [p.block for p in whole] == list(range(len(whole)))
    assert all((p.start, p.end) == (0, iterations) for p in whole)
    along: dict[int, list[int]] = {}
    for piece in parted:  # in the order of blocks and K
        assert piece.iterations > 0 and along.setdefault(piece.block, [0])[-1] == piece.start
        along[piece.block].append(piece.end)
    assert list(along) == list(range(len(whole), blocks)) and all(ends[-1] == iterations for ends in along.values())
    assert sum(p.start > 0 for p in parted) < slots
    parted.sort(key=lambda p: -p.iterations)
    assert makespan([*whole, *parted], slots) <= -(-blocks // slots) * iterations  # never more than uncut


@pytest.mark.parametrize(
    ("blocks", "iterations", "whole", "parts", "longest"),
    [
        (1024, 256, 792, 256, 225),  # 4096: 3.88 waves
        (4096, 512, 3960, 256, 264),  # 8192: 15.5
        (256, 128, 256, 0, 0),  # 2048: 0.97, too little to save
        (64, 64, 0, 256, 16),  # 1024: a quarter of a wave
        (800, 256, 528, 256, 264),  # 8 more than three waves: the third is cut with them
        (264, 256, 264, 0, 0),  # a whole wave
        (1, 3, 1, 0, 0),  # less than a share may have
    ],
)
def test_what_is_cut_on_an_h200(blocks: int, iterations: int, whole: int, parts: int, longest: int) -> None:
    uncut, parted = work.pieces(blocks, iterations, H200, last_wave.LEAST["gpu"])
    assert (len(uncut), sum(p.start > 0 for p in parted)) == (whole, parts)
    assert makespan(sorted(parted, key=lambda p: -p.iterations), H200) == longest
    of_a_block = [len(list(found)) for _, found in itertools.groupby(parted, key=lambda p: p.block)]
    assert max(of_a_block, default=0) <= (3 if blocks > H200 else 5)


def test_bands_visit_every_block_once() -> None:
    for rows, columns in ((8, 3), (9, 5), (1, 7), (17, 1), (16, 16)):
        every = {(m, n) for m in range(rows) for n in range(columns)}
        assert {work.corner(block, rows, columns) for block in range(rows * columns)} == every


def test_the_loop_is_deeper_and_no_longer() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    codes: list[MachineCode] = []
    device = nvrtc.device_of("sm_90")
    for one in (rung("turing/r16"), RUNG):
        codes.append(inspect_source(kernel_source(one, one.tile_for(device), one.options(device)), "sm_90"))
    before, after = codes
    assert after.registers <= 128 and after.local_bytes == 0
    for kind in ("FFMA", "LDS.128", "STS.128", "STS.32"):
        assert after.loop.counts[kind] == 2 * before.loop.counts[kind], kind
    assert after.loop.counts["BAR"] == before.loop.counts["BAR"]
    assert after.loop.instructions < 2 * before.loop.instructions
    assert after.loop.reads.extra_cycles < 1.6 * before.loop.reads.extra_cycles
    assert f"room_for(DN, DM, 1, {last_wave.RESIDENT['gpu']})" in RUNG.source.read_text()


@pytest.fixture
def poisoned(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose new memory is full of NaN, on a device that seems to run five work-groups on each compute unit."""
    monkeypatch.setitem(last_wave.RESIDENT, "cpu", 5)
    allocate = session.allocate

    def poison(nbytes: int) -> Buffer:
        buffer = allocate(nbytes)
        session.upload(buffer, np.full(nbytes // 4, np.nan, np.float32))
        return buffer

    monkeypatch.setattr(session, "allocate", poison)
    return session


@pytest.mark.parametrize("beta", [0.0, 1.3])
def test_parts_meet_over_a_poisoned_workspace(beta: float, poisoned: Session) -> None:
    compiled = trial.make(RUNG, poisoned)
    for size in CUT:
        first, second = (trial.attempt(compiled, Gemm(*size, 0.7, beta, ldc=size[1] + 3), poisoned) for _ in range(2))
        assert first.verdict.right, (size, first.verdict.problems)
        assert "add_parts" in first.steps, f"{size} is not cut: nothing was tested"
        assert first.flat.tobytes() == second.flat.tobytes()


BUGS = [
    ("a part is scaled by what lies there", "part < 0 ? beta : 0.0f", "beta"),
    ("a piece begins at k = 0", "(index_t)m0 * lda + from", "(index_t)m0 * lda"),
    ("a piece goes on to K", "to = piece[3]", "to = K"),
    ("all parts in one place", "(index_t)part * (BM * BN)", "(index_t)0"),
]


@pytest.mark.parametrize(("fragment", "replacement"), [b[1:] for b in BUGS], ids=[b[0] for b in BUGS])
def test_planted_bugs_are_caught(fragment: str, replacement: str, poisoned: Session, tmp_path: Path) -> None:
    planted = trial.make(trial.altered(RUNG, tmp_path, (fragment, replacement)), poisoned)
    assert not trial.attempt(planted, Gemm(*CUT[-1], 0.7, 1.3), poisoned).verdict.right


def test_every_access_of_a_cut_block_is_inside(tmp_path: Path) -> None:
    """In the simulator, and a planted bug writes beyond the workspace."""
    tile = {"BM": 16, "BN": 32, "BK": 8, "WM": 8, "WN": 32, "TM": 4, "TN": 8, "VA": 4, "VB": 4, "PADA": 4}
    job = {"rung": RUNG.name, "size": (16, 32, 200), "tile": tile}
    beyond = ("(index_t)part * (BM * BN)", "(index_t)(part + 9) * (BM * BN)")
    clean, wrong = simulate(tmp_path, [job, {**job, "changes": [beyond]}], errors=1000)
    assert clean["right"] and not clean["log"].strip() and "add_parts" in clean["steps"]
    assert "Invalid write" in wrong["log"]
