"""Particulars of the turing ladder: its users' complaints, what each rung promises of its machine code, planted bugs.

That every rung is right for every shape, 35×79×19 and 3×3×431 among them, is tested with all other ladders.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

import trial
from conftest import require
from test_oclgrind import simulate
from toprung.backends import nvrtc
from toprung.backends.base import Session
from toprung.errors import IllegalTile
from toprung.kernels.record import kernel_source
from toprung.lab.harness.climb import refusals, variants
from toprung.lab.rung import ladder, rung
from toprung.lab.sass.machine_code import MachineCode, inspect_source
from toprung.oracle.gemm import Gemm
from toprung.tile import Tile

RUNGS = ladder("turing").rungs
ASYNC = rung("turing/r14")


@functools.cache
def compiled(name: str, arch: str = "sm_90") -> MachineCode:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    one, device = rung(name), nvrtc.device_of(arch)
    return inspect_source(kernel_source(one, one.tile_for(device), one.options(device)), arch)


def wide(code: MachineCode, kind: str) -> int:
    return code.loop.counts.get(kind, 0) + code.loop.counts.get(f"{kind}.CONSTANT", 0)


def test_no_kernel_needs_a_file_that_is_not_there() -> None:
    assert [r.name for r in RUNGS if "#include" in r.source.read_text()] == []


def test_the_ladder_is_the_published_one_and_more() -> None:
    assert [r.number for r in RUNGS[:11]] == list(range(1, 12))
    assert [(r.tiles["gpu"][0].work_items) for r in RUNGS] == [1024] * 4 + [256] * (len(RUNGS) - 4)
    assert all(r.published for r in RUNGS[:11]) and not any(r.published for r in RUNGS[11:])
    assert all(r.expects for r in RUNGS)


def test_neighbours_differ_by_their_idea_only() -> None:
    """A reader who diffs two rungs sees the lesson: few lines of the kernel change."""
    for a, b in itertools.pairwise(r for r in RUNGS if r.source.suffix == ".cl"):
        lines = [[s for s in r.source.read_text().splitlines() if s.strip() and not s.lstrip().startswith("//")] for r in (a, b)]
        new = [line for line in lines[1] if line not in lines[0]]
        assert len(new) <= (36 if b.number == 10 else 22), (a, b, len(new))


def test_rung_3_saves_no_register_today() -> None:
    """A reader of the original asked what fewer live registers are worth: on today's compiler not one register."""
    before, after = compiled("turing/r02"), compiled("turing/r03")
    assert after.registers == before.registers
    assert after.loop.counts["integer"] < before.loop.counts["integer"]  # that much it does save


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loads"), [("turing/r06", ("LDG.128", "LDS.128", "STS.128"))] + [
        (f"turing/r{n:02}", ("LDG.128", "LDS.128", "STS.128")) for n in (*range(7, 14), 15, 16, 17)
    ],
)  # fmt: skip
def test_vectors_stay_vectors(name: str, loads: tuple[str, ...]) -> None:
    code = compiled(name)
    for kind in loads:
        assert wide(code, kind) > 0, kind
    assert wide(code, "LDG.32") == wide(code, "LDG.64") == 0
    if name != "turing/r06":  # whose column of A is single floats
        assert wide(code, "LDS.32") == wide(code, "LDS.64") == 0


@pytest.mark.slow
def test_a_double_buffer_leaves_one_barrier_a_tile() -> None:
    assert [compiled(f"turing/r{n:02}").loop.counts["BAR"] for n in (9, 10, 11, 12, 13, 14, 15)] == [2, 2, 1, 1, 1, 1, 2]


@pytest.mark.slow
def test_local_reads_a_multiplication_are_those_the_pages_say() -> None:
    for name, reads, multiplications in (
        ("turing/r08", 4, 64),
        ("turing/r11", 4, 64),
        ("turing/r13", 6, 128),
        ("turing/r14", 6, 128),
    ):
        code, depth = compiled(name).loop.counts, rung(name).tiles["gpu"][0].BK or 0
        assert (code["LDS.128"], code["FFMA"]) == (reads * depth, multiplications * depth), name


@pytest.mark.slow
def test_there_is_room_for_two() -> None:
    """65536 registers a multiprocessor, 256 work-items: two work-groups need no more than 128 each."""
    for name in ("turing/r15", "turing/r16"):
        code = compiled(name)
        assert code.registers <= 128
        assert code.spill_stores == code.spill_loads == 0
        assert "room_for(DN, DM, 1, 2)" in rung(name).source.read_text()


def test_bands_visit_every_block_once() -> None:
    """Rung 16's computation from its work-group's number, for grids that are whole bands and that are not."""
    text = rung("turing/r16").source.read_text()
    assert "order % (BAND * blocks_n) % high" in text and "order % (BAND * blocks_n) / high" in text
    for rows, columns in ((8, 3), (9, 5), (1, 7), (17, 1), (16, 16)):
        blocks = set()
        for order in range(rows * columns):
            top = order // (8 * columns) * 8
            high = min(8, rows - top)
            blocks.add((top + order % (8 * columns) % high, order % (8 * columns) // high))
        assert blocks == {(m, n) for m in range(rows) for n in range(columns)}


def test_asynchronous_copies_pass_the_registers() -> None:
    for arch in ("sm_80", "sm_90"):
        code = compiled("turing/r14", arch)
        tile = ASYNC.tile_for(nvrtc.device_of(arch))
        assert code.loop.counts["LDGSTS"] == tile.LA + tile.LB
        assert wide(code, "LDG.128") == wide(code, "STS.128") == code.local_bytes == 0


def test_a_rung_that_needs_cuda_says_so(session: Session) -> None:
    device = session.device
    assert "CUDA C++" in ASYNC.needs(device)
    assert not ASYNC.needs(nvrtc.device_of("sm_90"))
    assert "SM 8.0" in ASYNC.needs(replace(nvrtc.device_of("sm_80"), arch="sm_75"))
    assert {r.number for r in RUNGS} - {e.number for e in variants(RUNGS, device)} == {14}
    assert any(line.startswith("turing/r14: asynchronous copies") for line in refusals(RUNGS, device))
    with pytest.raises(IllegalTile, match="CUDA C"):
        ASYNC.tile_for(device)
    with pytest.raises(IllegalTile, match="CUDA C"):
        ASYNC.check(ASYNC.tiles["gpu"][0], {}, device)


SMALL = Tile(BM=16, BN=32, BK=8, WM=8, WN=32, TM=4, TN=8, VA=4, VB=4, PADA=4)
BUGS = [
    ("turing/r04", "As[tn][tm] = *A;", "As[tm][tn] = *A;", Tile(BM=8, BN=8, BK=8, PADA=1)),
    ("turing/r07", "As[l % BK + e][l / BK]", "As[l % BK][l / BK]", Tile(BM=16, BN=16, BK=8, TM=4, TN=4, VA=4, VB=4, PADA=4)),
    ("turing/r09", "lane % LN * VB", "lane % LM * VB", SMALL),
    ("turing/r12", "TN - 1 - step", "TN - 2 - step", SMALL),
    ("turing/r16", "order % (BAND * blocks_n) / high", "order % (BAND * blocks_n) / (high + 1)", SMALL),
]


@pytest.mark.parametrize(("name", "fragment", "replacement", "tile"), BUGS, ids=[b[0] for b in BUGS])
def test_planted_bugs_are_caught(name: str, fragment: str, replacement: str, tile: Tile, session: Session, tmp_path: Path) -> None:
    problem = Gemm(33, 35, 37, 0.7, 1.3)
    planted = trial.altered(rung(name), tmp_path, (fragment, replacement))
    assert trial.attempt(trial.make(rung(name), session, tile=tile), problem, session).verdict.right
    assert not trial.attempt(trial.make(planted, session, tile=tile), problem, session).verdict.right


def test_planted_races_are_found(tmp_path: Path) -> None:
    """A fault that a CPU may not show, as it runs one work-item after the other: a buffer overwritten while others read it."""
    plants = [
        ("turing/r10", ["barrier(CLK_LOCAL_MEM_FENCE); // nobody reads the tiles any more", ""]),
        ("turing/r15", ["barrier(CLK_LOCAL_MEM_FENCE); // nobody reads the tiles any more", ""]),
        ("turing/r11", ["now = 1 - now;", ""]),
        ("turing/r11", ["barrier(CLK_LOCAL_MEM_FENCE); // the next tiles are complete, nobody reads these any more", ""]),
    ]
    jobs = [{"rung": name, "size": (16, 32, 24), "tile": SMALL.given(), "changes": [change]} for name, change in plants]
    for outcome in simulate(tmp_path, jobs, errors=1_000_000):
        assert "data race" in outcome["log"].lower()
