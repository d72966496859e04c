"""The matrix-vector ladder: every rung, both products, every size, increment, scalar and kind of data; and the paper's example."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import trial
from test_oclgrind import assert_clean, simulate
from toprung.backends.base import Session
from toprung.errors import BadSize, IllegalTile
from toprung.lab.baselines.numpy_gemv import PEER
from toprung.lab.routines.gemv import from_size, slices_for
from toprung.lab.rung import Rung, ladder, rung
from toprung.oracle.check import Oracle, hostile, view
from toprung.oracle.data import DISTRIBUTIONS, Distribution
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.tile import Tile, broken

RUNGS = [r for r in ladder("matvec").rungs if (device := trial.tested()) is None or not r.needs(device)]
LENGTHS = (1, 2, 3, 7, 31, 32, 33, 64, 129, 431, 1027)
NOTED = [(35, 79), (3, 431), (1, 1), (1, 1027), (1027, 1), (64, 64), (2, 4096), (4097, 3)]
SIXTEEN = (10, 1, 8, -1, 0, -2, 3, 5, -2, -3, 2, 7, 0, 11, 0, 2)
"""The values whose reduction the paper draws step by step; their sum is 41."""


def each_rung(function):
    return pytest.mark.parametrize("one", RUNGS, ids=str)(function)


def layout(size: tuple[int, int], trans: str, rng: random.Random) -> Gemv:
    """A problem of this size with any gap, increments and scalars; half the time every row begins aligned, as vectors need it."""
    M, N = size
    lda = N + rng.choice((0, 0, 1, 3, 8)) if rng.random() < 0.5 else -(-N // 16) * 16
    return Gemv(
        M, N, rng.choice(trial.SCALARS), rng.choice(trial.SCALARS), lda,
        rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 5)), trans,
    )  # fmt: skip


def wrong(one: Rung, problems: list[tuple[Gemv, str]], session: Session, tile: Tile | None = None) -> list[object]:
    compiled = trial.make(one, session, tile=tile)
    found: list[object] = []
    for seed, (problem, distribution) in enumerate(problems):
        outcome = trial.attempt(compiled, problem, session, distribution, seed)
        if not (outcome.verdict.right and not outcome.changed):
            found.append((problem, distribution, outcome.verdict.problems, outcome.changed))
    return found


@each_rung
def test_shapes_layouts_and_scalars(one: Rung, session: Session) -> None:
    rng = random.Random(one.number)
    sizes = NOTED + rng.sample(list(itertools.product(LENGTHS, repeat=2)), 8)
    assert wrong(one, [(layout(s, t, rng), "uniform") for s in sizes for t in "NT"], session) == []
    scalars = itertools.product(trial.SCALARS, repeat=2)
    assert wrong(one, [(Gemv(33, 70, a, b, 72, 2, 3, "NT"[i % 2]), "normal") for i, (a, b) in enumerate(scalars)], session) == []


@each_rung
def test_distributions_and_empty_dimensions(one: Rung, session: Session) -> None:
    scalars = {name: (-1.0, 1.0) if d.exact else (0.7, 1.3) for name, d in DISTRIBUTIONS.items()}
    assert wrong(one, [(Gemv(35, 67, *s, trans="NT"[i % 2]), n) for i, (n, s) in enumerate(scalars.items())], session) == []
    empty = [Gemv(0, 5), Gemv(5, 0, beta=1.3, incy=2), Gemv(0, 5, beta=0.7, trans="T"), Gemv(5, 0, trans="T"), Gemv(0, 0)]
    assert wrong(one, [(p, "uniform") for p in empty], session) == []


@each_rung
def test_another_legal_tile(one: Rung, session: Session) -> None:
    rng = random.Random(one.number)
    tiles = [t for t in one.legal(session.device) if t != one.tile_for(session.device) and t.work_items <= 256]
    problems = [(layout(s, t, rng), "uniform") for s in ((35, 79), (1, 1027), (130, 64)) for t in "NT"]
    assert tiles and wrong(one, problems, session, rng.choice(tiles)) == []


@each_rung
def test_the_same_call_twice_gives_the_same_bits(one: Rung, session: Session) -> None:
    problem = Gemv(5, 2051, 0.7, 1.3)  # a shape that rungs 10 and 11 split
    compiled = trial.make(one, session)
    first, second = (trial.attempt(compiled, problem, session) for _ in range(2))
    assert first.verdict.right and first.flat.tobytes() == second.flat.tobytes()
    assert ("reduce" in first.steps) == (one.number >= 10 and not one.meets)


@pytest.mark.parametrize("number", [3, 4, 5, 6])
def test_the_sixteen_values_of_the_paper(number: int, session: Session) -> None:
    one = rung(f"matvec/r{number:02}")
    sixteen = Distribution("sixteen", (lambda rng, shape: np.resize(np.array(SIXTEEN, np.float32), shape), ones, ones), exact=True)
    operands = hostile(Gemv(2, 16), sixteen)
    tile = Tile(BM=1, BN=16) if not session.device.subgroup else one.tile_for(session.device)
    outcome = trial.attempt(trial.make(one, session, tile=tile), operands.problem, session, sixteen)
    assert view(operands.problem.output, outcome.flat)[:, 0].tolist() == [41, 41]


def ones(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_the_steps_that_the_pages_draw() -> None:
    """Both trees of the paper, level by level."""
    neighbours, halves = list(SIXTEEN), list(SIXTEEN)
    drawn = []
    for stride in (1, 2, 4, 8):
        for i in range(0, 16, 2 * stride):
            neighbours[i] += neighbours[i + stride]
        drawn.append(neighbours[:: 2 * stride])
    assert drawn == [[11, 7, -2, 8, -5, 9, 11, 2], [18, 6, 4, 13], [24, 17], [41]]
    drawn = []
    for stride in (8, 4, 2, 1):
        halves = [halves[i] + halves[i + stride] for i in range(stride)]
        drawn.append(halves)
    assert drawn == [[8, -2, 10, 6, 0, 9, 3, 7], [8, 7, 13, 13], [21, 20], [41]]


BUGS = [
    ("matvec/r01", "(index_t)m * lda", "(index_t)m * N", Gemv(9, 11, lda=13)),
    ("matvec/r01", "(index_t)n * incx", "n", Gemv(9, 11, incx=2)),
    ("matvec/r01", "if (m >= M) return;", "", Gemv(9, 11)),
    ("matvec/r01", "if (beta != 0.0f) result", "result", Gemv(9, 11)),
    ("matvec/r03", "barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete", "", Gemv(9, 300)),
    ("matvec/r04", "barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete", "", Gemv(9, 300)),
    ("matvec/r05", "stride = DN / 2", "stride = DN / 4", Gemv(9, 300)),
    ("matvec/r07", "for (; n < N; ++n)", "for (; n + 1 < N; ++n)", Gemv(4, 68, lda=80)),
    ("matvec/r09", "lane == 0 && m < M", "lane == 0", Gemv(9, 64)),
    ("matvec/r10", "first + length < N ? first + length : N", "first + length", Gemv(3, 2431, lda=2432)),
    ("matvec/r11", "if (m >= M) continue;", "", Gemv(10, 35, trans="T")),
]


@pytest.mark.parametrize(("name", "fragment", "replacement", "problem"), BUGS, ids=[f"{b[0]}-{i}" for i, b in enumerate(BUGS)])
def test_planted_bugs_are_caught(name, fragment, replacement, problem, session, tmp_path):
    planted = trial.altered(rung(name), tmp_path, (fragment, replacement))
    assert trial.attempt(trial.make(rung(name), session), problem, session).verdict.right
    outcome = trial.attempt(trial.make(planted, session), problem, session)
    assert not outcome.verdict.right or outcome.changed


@pytest.mark.parametrize("trans", ["N", "T"])
def test_numpy_is_rung_0_and_right(trans: str, session: Session) -> None:
    for problem in (Gemv(35, 79, trans=trans), Gemv(35, 79, 0.7, 1.3, 80, 2, 3, trans), Gemv(3, 5, 0.0, 1.3, trans=trans)):
        operands = hostile(problem)
        prepared = PEER.prepare(OnDevice(operands, session))
        prepared.run()
        assert Oracle(operands).verify(prepared.fetch()).right


SIMULATED = {
    1: Tile(BM=16, BN=1), 2: Tile(BM=4, BN=1), 7: Tile(BM=1, BN=64, TN=4, VEC=4), 8: Tile(BM=1, BN=64, TN=8, VEC=4, KU=2),
    9: Tile(BM=8, BN=32, TM=2, TN=4, VEC=4), 10: Tile(BM=8, BN=32, TM=2, TN=4, VEC=4, SPLIT_K=4),
    11: Tile(BM=16, BN=8, TM=4, TN=2, VA=4, KU=2, SPLIT_K=4),
}  # fmt: skip


@pytest.mark.slow
def test_every_rung_is_clean_in_the_simulator(tmp_path) -> None:
    """Nothing out of bounds, no race: rows that begin aligned and rows that do not, both products."""
    shapes = [((35, 203), {"lda": 204, "incy": 2}), ((203, 35), {"trans": "T", "incx": 2}), ((203, 35), {"trans": "T", "lda": 36})]
    jobs = [
        {"rung": one.name, "size": size, "layout": layout, "tile": SIMULATED.get(one.number, Tile(BM=1, BN=16)).given()}
        for one in RUNGS
        for size, layout in shapes
    ]
    assert_clean(simulate(tmp_path, jobs), jobs)


def test_a_tree_needs_a_power_of_two(session: Session) -> None:
    for number in range(4, 12):
        one = rung(f"matvec/r{number:02}")
        usual = one.tile_for(session.device)
        odd = Tile(**{**usual.given(), "BN": 3 * (usual.TN or 1)})
        assert any(reason.startswith("DN is a power of two") for reason in broken(one.all_rules({}), odd, session.device))
        with pytest.raises(IllegalTile):
            trial.make(one, session, tile=odd)


def test_sizes_and_what_is_refused() -> None:
    assert (from_size((7,)), from_size((100_000, 1100))) == (Gemv(7, 7), Gemv(100_000, 1100))
    problem = Gemv(5, 7, beta=1.0, trans="T")
    assert (problem.length, problem.depth, problem.flops, problem.min_bytes) == (7, 5, 70, 4 * (35 + 5 + 14))
    assert (str(problem), problem.measured_in) == ("5×7 T", "GB/s")
    for bad in ((1, 2, 3), ()):
        with pytest.raises(BadSize):
            from_size(bad)
    for given in ({"M": -1}, {"lda": 6}, {"incx": 0}, {"trans": "C"}, {"N": 2**31}, {"M": 1.5}):
        with pytest.raises(BadSize):
            Gemv(**{"M": 5, "N": 7, **given})


def test_slices_only_where_there_are_too_few_groups(device) -> None:
    tile = rung("matvec/r10").tile_for(device)
    assert slices_for(tile, 10**6, 10**6, device) == 1
    assert slices_for(tile, 1, 10**6, device) == tile.SPLIT_K
    assert slices_for(tile, 1, 4 * tile.BN - 1, device) == 1
