"""The library's engine on hostile operands: every kernel, layout, shape and width of access; nothing outside is touched."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trial
from conftest import require
from test_choice import HOPPER as H200
from toprung.backends import adopt, nvrtc, open_device, session_for
from toprung.backends.base import Buffer, Session
from toprung.device import Device
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, Selection
from toprung.dispatch.tuned import Lookup
from toprung.errors import BadSize, Unsupported
from toprung.execute.executable import Executable
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc, GemvDesc
from toprung.kernels import blocks, helpers, launch
from toprung.kernels.base import TileConfig, candidates
from toprung.kernels.blocks import BLOCKS, Block, block_like
from toprung.kernels.helpers import ADD
from toprung.kernels.plain import family as plain
from toprung.kernels.record import LibraryKernel, kernel_source
from toprung.kernels.registry import family
from toprung.kernels.skinny.family import SkinnyConfig
from toprung.kernels.skinny.record import COLUMNS, ROWS
from toprung.kernels.skinny_cluster.family import RECORDS as IN_CLUSTERS
from toprung.kernels.skinny_model import TEAMS
from toprung.kernels.stream_k import family as stream_k
from toprung.kernels.tiled import family as tiled
from toprung.kernels.tiled_cluster.family import RECORDS as CLUSTERS
from toprung.lab.harness.library import BoundProduct, Toprung
from toprung.lab.sass.machine_code import inspect_source
from toprung.oracle.check import GUARD, Oracle, hostile, view
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32, Problem
from toprung.tile import Tile

SMALL = Tile(BM=16, BN=16, BK=8, WM=16, WN=16, TM=4, TN=4, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4)


SOME = ["NN", *(pytest.param(t, marks=pytest.mark.slow) for t in ("NT", "TN")), "TT"]
"""Transposes of which two are enough for a quick run."""


def forced(session: Session, problem: Problem, tile: Tile = SMALL, slices: int = 1, **options: int) -> Candidate:
    """The tunable block kernel with a tile of the test's choosing, its accesses as wide as the problem allows."""
    desc = problem.desc
    assert isinstance(desc, GemmDesc)
    switches = {"AHEAD": 0} | options  # the kernels of a CPU's own choice: fewer to compile
    return Candidate(tiled.FAMILY, tiled.configuration(session.device, desc, replace(tile, SPLIT_K=slices), switches))


def run(session: Session, problem: Problem, candidate: Candidate | None = None, distribution: str = "uniform") -> F32:
    """Run once, assert that the result is right and that inputs and surroundings are untouched; returns the output's backing."""
    operands = hostile(problem, distribution)
    placed = OnDevice(operands, session)
    prepared = Toprung(candidate=candidate).prepare(placed)
    prepared.time(1)
    flat = prepared.fetch()
    verdict = Oracle(operands).verify(flat)
    assert verdict.right, (str(problem), str(candidate), verdict.problems)
    for m in problem.matrices:
        if not m.output:
            assert np.array_equal(placed.fetch(m.name).view(np.uint32), operands.flat[m.name].view(np.uint32))
    return flat


def gemm(M: int, N: int, K: int, trans: str = "NN", more: tuple[int, int, int] = (0, 0, 0), **rest: Any) -> Gemm:
    """A product whose rows have gaps of ``more`` elements."""
    tight = Gemm(M, N, K, trans=trans)
    lds = {f"ld{n}": getattr(tight, f"ld{n}") + gap for n, gap in zip("abc", more, strict=True)}
    return Gemm(M, N, K, trans=trans, **lds, **rest)


@pytest.mark.parametrize("trans", TRANSPOSES)
def test_shapes_and_gaps(session: Session, trans: str) -> None:
    """Whole tiles, edges of every kind, rows with gaps, each width of access; α and β as they come."""
    for size, more, alpha, beta in (((32, 64, 32), (0, 0, 0), 1.0, 0.0), ((36, 68, 20), (4, 4, 4), 0.7, 1.3)):
        problem = gemm(*size, trans, more, alpha=alpha, beta=beta)
        run(session, problem, forced(session, problem))


@pytest.mark.parametrize("trans", SOME)
def test_odd_shapes_and_gaps(session: Session, trans: str) -> None:
    problem = gemm(35, 79, 19, trans, (3, 1, 2), alpha=-1.0, beta=1.0)
    run(session, problem, forced(session, problem))


@pytest.mark.slow
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_shapes_and_gaps_with_the_devices_own_tile(session: Session, trans: str) -> None:
    cases = itertools.cycle(((1.0, 0.0), (0.7, 1.3), (-1.0, 1.0)))
    for size, more in (
        ((32, 64, 32), (0, 0, 0)), ((33, 65, 17), (0, 0, 0)), ((35, 79, 19), (3, 1, 2)), ((36, 68, 20), (4, 4, 4)),
        ((34, 66, 18), (2, 2, 2)), ((48, 100, 4), (0, 0, 4)), ((17, 130, 1), (0, 0, 0)),
    ):  # fmt: skip
        alpha, beta = next(cases)
        run(session, gemm(*size, trans, more, alpha=alpha, beta=beta))


@pytest.mark.slow
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_odd_slices(session: Session, trans: str) -> None:
    for K, slices, batch in ((77, 5, 1), (130, 99, 1), (50, 3, 3)):
        problem = Gemm(20, 23, K, 0.7, 1.3, trans=trans, batch=batch)
        run(session, problem, forced(session, problem, slices=slices))


@pytest.mark.parametrize("trans", SOME)
def test_slices(session: Session, trans: str) -> None:
    """Sums cut in two, in five and in as many as there are tiles; the last slice short; in a batch as well."""
    for K, slices, batch in ((64, 2, 1), (76, 5, 1), (132, 99, 1), (52, 3, 3)):
        problem = Gemm(20, 24, K, 0.7, 1.3, trans=trans, batch=batch)
        candidate = forced(session, problem, slices=slices)
        assert candidate.config.slices > 1
        run(session, problem, candidate)


@pytest.mark.parametrize(
    "variant",
    [
        {"STAGES": 2, "AHEAD": 1, "ORDER": 1, "INDEX32": 0, "GROUP_M": 2},
        *(pytest.param({k: v}, marks=pytest.mark.slow) for k, v in (("AHEAD", 1), ("ORDER", 1), ("INDEX32", 0), ("GROUP_M", 1))),
    ],
)
def test_switches(session: Session, variant: dict[str, int]) -> None:
    for trans in ("NN", "TT") if len(variant) == 1 else ("NT",):
        problem = gemm(52, 36, 28, trans, alpha=1.3, beta=-1.0)
        tile = replace(SMALL, STAGES=variant.get("STAGES", 1))
        options = {k: v for k, v in variant.items() if k != "STAGES"}
        run(session, problem, forced(session, problem, tile, **options))


def run_short(session: Session, problem: Problem) -> Candidate:
    """Run a problem by the first candidate of the family for short sides."""
    found = family("skinny")
    assert not found.supports(session.device, problem.desc)
    candidate = Candidate(found, next(iter(candidates(found, session.device, problem.desc))))
    run(session, problem, candidate)
    return candidate


@pytest.mark.parametrize("trans", SOME)
def test_skinny(session: Session, trans: str) -> None:
    """Few rows or few columns, with every number of sums a work-item may have; cut, and in a batch."""
    for M, N, K, batch in ((70, 1, 64, 1), (3, 68, 2100, 1)) if trans == "NN" else ((1, 70, 33, 1), (64, 9, 260, 3)):
        run_short(session, gemm(M, N, K, trans, alpha=0.7, beta=1.3, batch=batch))


@pytest.mark.slow
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_skinny_of_every_width(session: Session, trans: str) -> None:
    for M, N, K, batch in ((1, 70, 33, 1), (70, 1, 64, 1), (3, 68, 2100, 1), (130, 5, 36, 2), (64, 9, 260, 3), (2, 64, 64, 1)):
        run_short(session, gemm(M, N, K, trans, alpha=0.7, beta=1.3, batch=batch))


TEAM_NUMBERS = [(k, n) for k, ones in TEAMS.items() for n in range(len(ones))]
QUICK_TEAMS = (("rows", 2), ("rows", 4), ("columns", 1))


@pytest.mark.parametrize(
    ("kernel", "number"), [pytest.param(*one, marks=[] if one in QUICK_TEAMS else pytest.mark.slow) for one in TEAM_NUMBERS]
)
def test_teams_that_are_weighed(session: Session, kernel: str, number: int) -> None:
    """Two blocks and an edge of each; iterations that are whole, and one of which some loads are outside; chains, and slices."""
    at, skinny = TEAMS[kernel][number], family("skinny")
    if kernel == "rows":
        lanes, step, block = at["TEAM"], 4 * at["TEAM"] * at["AT_ONCE"], at["ITEMS"] // at["TEAM"] * at["TM"]
    else:
        lanes, step, block = at["DN"], at["DN"] * at["TN"], 4 * at["ACROSS"]
    for few, more, slices in ((1, 7, 1), (3, 8, 2), (2, 64 * lanes, 1)):  # the last has more than one chain
        rows, K = 2 * block + 3, 2 * step + lanes + more
        problem = gemm(few, rows, K, "NT" if kernel == "rows" else "NN", (0, 0, 1), alpha=0.7, beta=1.3)
        config = skinny.at(session.device, problem.desc, {**at, "SPLIT_K": slices})
        assert isinstance(config, SkinnyConfig) and config.kernel == kernel and config.slices == slices
        run(session, problem, Candidate(skinny, config))


@pytest.mark.parametrize("trans", ["N", "T"])
def test_vectors(session: Session, trans: str) -> None:
    for M, N in ((1, 1), (64, 64), (35, 79), (3, 2500), (2500, 3), (129, 36)):
        for more, incx, incy, alpha, beta in ((0, 1, 1, 1.0, 0.0), (3, 2, 3, 0.7, 1.3), (4, 1, 2, -1.0, 0.0)):
            run_short(session, Gemv(M, N, alpha, beta, lda=N + more, incx=incx, incy=incy, trans=trans))


def test_cut_vectors(session: Session) -> None:
    """Slices of both kinds, which only long sums get by themselves."""
    for trans, M, N in (("N", 5, 30000), ("T", 30000, 5)):
        problem = Gemv(M, N, 0.7, 1.3, trans=trans, incy=2)
        assert run_short(session, problem).config.slices > 1


def memory(buffers: list[Buffer], *first: int) -> tuple[Any, ...]:
    """Return handles and first elements of A, B and C, as ``run`` takes them."""
    return tuple(x for buffer, at in zip(buffers, first, strict=True) for x in (buffer.handle, at))


def test_negative_increments(session: Session) -> None:
    rng = np.random.default_rng(5)
    a, x, y = (rng.random(n, dtype=np.float32) for n in (12 * 10, 3 * 10, 2 * 12))
    buffers = [session.allocate(v.nbytes) for v in (a, x, y)]
    for buffer, values in zip(buffers, (a, x, y), strict=True):
        session.upload(buffer, values)
    made = executor_of(session).product(GemvDesc(12, 10, incx=-3, incy=-2))
    made.run(*memory(buffers, 0, 27, 22), 1.0, 1.0)
    found = np.empty_like(y)
    session.download(buffers[2], found)
    expected = y.copy()
    expected[::2] += (a.reshape(12, 10) @ x[::3][::-1])[::-1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_batch_with_one_shared_operand(session: Session) -> None:
    """stride_a = 0: the same A for every product."""
    rng = np.random.default_rng(6)
    for M, N in ((20, 24), (2, 40)):
        a, b, c = (rng.random(s, dtype=np.float32) for s in ((M, 12), (5, 12, N), (5, M, N)))
        buffers = [session.allocate(v.nbytes) for v in (a, b, c)]
        for buffer, values in zip(buffers, (a, b, c), strict=True):
            session.upload(buffer, values)
        made = executor_of(session).product(GemmDesc(M, N, 12, 5, stride_b=12 * N, stride_c=M * N))
        made.run(*memory(buffers, 0, 0, 0), 1.0, 0.0)
        found = np.empty_like(c)
        session.download(buffers[2], found)
        np.testing.assert_allclose(found, a @ b, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gemm", "skinny", "gemv"])
def test_scalars_that_read_nothing(session: Session, kind: str) -> None:
    """α = 0 and K = 0 leave β·C with A and B full of NaN, β = 0 a C that was never read; and an empty result no launch."""
    for alpha, beta, depth in ((0.0, 0.7, 9), (0.0, 0.0, 9), (1.0, 1.3, 0), (1.0, 0.0, 0), (1e-60, 1.0, 9)):
        problem: Problem
        if kind == "gemv":
            problem = Gemv(9, depth, alpha, beta, incy=2)
        else:
            problem = gemm(20 if kind == "gemm" else 2, 24, depth, more=(0, 0, 3), alpha=alpha, beta=beta)
        if alpha != 1e-60:  # the operands are made for the α that is written
            run(session, problem)
    for size in ((0, 5, 5), (5, 0, 5)):
        made = executor_of(session).product(GemmDesc(*size))
        nothing = session.allocate(4)
        made.run(*memory([nothing] * 3, 0, 0, 0), 1.0, 1.0)


def test_tiny_and_huge_scalars(session: Session) -> None:
    """α below float32's range is 0 and reads nothing; one beyond is infinite."""
    a = np.full(16, np.nan, np.float32)
    c = np.ones(16, np.float32)
    buffers = [session.allocate(64) for _ in range(3)]
    for buffer, values in zip(buffers, (a, a, c), strict=True):
        session.upload(buffer, values)
    made, found = executor_of(session).product(GemmDesc(4, 4, 4, align_a=4, align_b=4, align_c=4)), np.empty(16, np.float32)
    made.run(*memory(buffers, 0, 0, 0), 1e-60, 2.0)
    session.download(buffers[2], found)
    assert found.tolist() == [2.0] * 16
    session.upload(buffers[0], c)
    session.upload(buffers[1], c)
    made.run(*memory(buffers, 0, 0, 0), 1e60, 0.0)
    session.download(buffers[2], found)
    assert found.tolist() == [np.inf] * 16


@pytest.mark.parametrize("distribution", ["planted_inf", "planted_nan", "integers"])
def test_infinities_nans_and_exact_sums(session: Session, distribution: str) -> None:
    from toprung.oracle.data import DISTRIBUTIONS

    name = next((d for d in DISTRIBUTIONS if distribution.removeprefix("planted_") in d), None)
    assert name, sorted(DISTRIBUTIONS)
    run(session, Gemm(3, 68, 50), distribution=name)
    cut = Gemm(20, 24, 200)
    run(session, cut, forced(session, cut, slices=3), distribution=name)


def test_the_same_bits_each_time(session: Session) -> None:
    for problem, slices in ((Gemm(68, 64, 300), 5), (Gemm(68, 64, 300), 1)):
        candidate = forced(session, problem, slices=slices)
        first, second = (run(session, problem, candidate) for _ in range(2))
        assert np.array_equal(first.view(np.uint32), second.view(np.uint32))


def test_threads_share_an_executable(session: Session) -> None:
    """Each thread its own operands, all of them one executable that takes scratch memory."""
    problem = Gemm(20, 24, 200)
    made = Executable.of(session, problem.desc, forced(session, problem, slices=3))
    rng, wrong = np.random.default_rng(7), []
    sets = [[rng.random(s, dtype=np.float32) for s in ((20, 200), (200, 24), (20, 24))] for _ in range(4)]

    def work(a: F32, b: F32, c: F32) -> None:
        buffers = [session.allocate(v.nbytes) for v in (a, b, c)]
        for buffer, values in zip(buffers, (a, b, c), strict=True):
            session.upload(buffer, values)
        for _ in range(20):
            made.run(*memory(buffers, 0, 0, 0), 1.0, 0.0)
        found = np.empty_like(c)
        session.download(buffers[2], found)
        if not np.allclose(found, a @ b, rtol=1e-5):
            wrong.append(np.abs(found - a @ b).max())

    threads = [threading.Thread(target=work, args=one) for one in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_somebody_elses_queue(device: Device) -> None:
    """A context, a queue and memory that are not ours: one session for the context, results in the queue's order."""
    cl = pytest.importorskip("pyopencl")
    if device.backend != "opencl":
        pytest.skip("an OpenCL device is needed")
    context = cl.Context([device.handle])
    for properties in (0, cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE):
        queue = cl.CommandQueue(context, properties=properties)
        session = adopt(queue)
        assert session is adopt(cl.CommandQueue(context)) and session is not session_for(device)
        rng = np.random.default_rng(8)
        a, b = rng.random((20, 200), dtype=np.float32), rng.random((200, 24), dtype=np.float32)
        flags = cl.mem_flags
        raw = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=v) for v in (a, b)]
        raw.append(cl.Buffer(context, flags.READ_WRITE, 4 * 20 * 24))
        buffers = [session.foreign(r, r.size) for r in raw]
        problem = Gemm(20, 24, 200)
        made = Executable.of(session, problem.desc, forced(session, problem, slices=3))
        made.run(*memory(buffers, 0, 0, 0), 1.0, 0.0, queue)
        found = np.empty((20, 24), np.float32)
        queue.finish()
        cl.enqueue_copy(queue, found, raw[2])
        np.testing.assert_allclose(found, a @ b, rtol=1e-5)


def test_somebody_elses_stream(device: Device) -> None:
    """Another stream and another library's address; the first call from a thread that has no context yet."""
    if device.backend != "cuda":
        pytest.skip("a CUDA device is needed")
    session: Any = session_for(device)
    assert session is session_for(device)
    stream = session._driver.cuStreamCreate(0)[1]
    rng = np.random.default_rng(8)
    a, b = rng.random((20, 200), dtype=np.float32), rng.random((200, 24), dtype=np.float32)
    owned = [session.allocate(n) for n in (a.nbytes, b.nbytes, 4 * 20 * 24)]
    for buffer, values in zip(owned, (a, b), strict=False):
        session.upload(buffer, values)
    buffers = [session.foreign(o.handle, o.nbytes) for o in owned]
    problem = Gemm(20, 24, 200)
    desc = problem.desc
    for made in (Executable.of(session, desc, forced(session, problem, slices=3)), executor_of(session).product(desc, own=False)):
        for queue in (int(stream), 0, None):
            made.reserve(queue)
            thread = threading.Thread(target=made.run, args=(*memory(buffers, 0, 0, 0), 1.0, 0.0, queue))
            thread.start()
            thread.join()
            session._driver.cuCtxSynchronize()
            found = np.empty((20, 24), np.float32)
            session.download(owned[2], found)
            np.testing.assert_allclose(found, a @ b, rtol=1e-5)


def test_what_is_installed_is_weighed(device: Device) -> None:
    """own=False admits cuBLAS; where it cannot take part, the receipt says why."""
    found = select(device, GemmDesc(64, 64, 64), own=False)
    if device.backend == "cuda" and found.family.name == "cublas":
        assert found.passed_over[0][0].startswith("tiled")
    else:
        assert found.family.name == "tiled" and dict(found.passed_over)["cublas"]


def test_a_call_that_makes_no_sense_is_refused() -> None:
    for wrong, says in (
        ({"lda": 3}, "lda = 3 is shorter than a row of 6"),
        ({"batch": 2, "stride_c": 5}, "must not overlap"),
        ({"align_a": 3}, "1, 2 or 4 floats"),
        ({"ldb": 2**31}, "from 0 to"),
        ({"batch": 0}, "from 1 to"),
    ):
        with pytest.raises(BadSize, match=says):
            GemmDesc(4, 5, 6, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadSize, match="must be an integer"):
        GemmDesc(4.0, 5, 6)  # type: ignore[arg-type]
    with pytest.raises(BadSize, match="incx"):
        GemvDesc(4, 5, incx=0)


def test_an_unknown_precision_is_refused(session: Session) -> None:
    with pytest.raises(Unsupported, match="fp32"):
        executor_of(session).product(GemmDesc(2, 2, 2), precision="fp99")


def plain_one(device: Device) -> Candidate:
    """The quickest to compile."""
    return Candidate(plain.FAMILY, TileConfig(plain.RECORD.tile_for(device)))


def test_executables_are_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Selection(plain_one(session.device))
    monkeypatch.setattr(Lookup, "fp32", lambda stored, own: (found, ()))
    assert executor_of(session).product(GemmDesc(4, 5, 6)) is executor_of(session).product(GemmDesc(4, 5, 6, lda=6))
    assert executor_of(session).product(GemmDesc(4, 5, 6)) is not executor_of(session).product(GemmDesc(4, 5, 6, trans_a=True))
    assert executor_of(session).product(GemmDesc(4, 5, 6)).selections[GemmDesc(4, 5, 6)].candidate == found.candidate


# selection


def test_a_store_is_asked_first(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = (("that", "this"),)
    mine = Selection(plain_one(device), "the store says so")
    monkeypatch.setattr(Lookup, "fp32", lambda stored, own: (mine, passed))
    found = select(device, GemmDesc(64, 64, 64))
    assert found.why == "the store says so" and ("that", "this") in found.passed_over
    monkeypatch.setattr(Lookup, "fp32", lambda stored, own: (None, passed))
    found = select(device, GemmDesc(64, 64, 64))
    assert found.family.name == "tiled" and ("that", "this") in found.passed_over


# machine code


MAIN = next(b for b in BLOCKS if (b.tile.BM, b.tile.BN) == (128, 128))


@pytest.mark.parametrize("trans", SOME)
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_main_tile_on_hopper(trans: str, stages: int) -> None:
    """Two work-groups an SM: at most 128 registers, nothing spilled, only wide reads in the loop."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    desc = Gemm(8192, 8192, 8192, trans=trans).desc
    assert isinstance(desc, GemmDesc)
    switches = {"AHEAD": MAIN.ahead, "ORDER": MAIN.order, "RESIDENT": MAIN.asked}
    config = tiled.configuration(H200, desc, replace(MAIN.tile, STAGES=stages), switches)
    assert config.tile == replace(MAIN.tile, STAGES=stages)
    code = inspect_source(tiled.FAMILY.source(H200, config), "sm_90")
    assert config.tile.work_items == 256 and code.registers <= 128
    if stages == 1:  # what the table has; in two buffers, a point of the search, four registers are short where B lies along K
        assert code.local_bytes == 0 and not any(k.startswith(("LDL", "STL")) for k in code.counts)
    assert code.local_bytes <= 16
    assert code.loop.counts["FFMA"] == 8 * 64 and code.loop.counts["LDS.128"] == 8 * 4
    reads = {k: n for k, n in code.loop.counts.items() if k.startswith(("LDG", "LDS"))}
    assert set(reads) <= {"LDG.128", "LDG.128.CONSTANT", "LDS.128"} and sum(reads.values()) == 2 + 8 * 4
    assert code.loop.counts.get("BAR") == (2 if stages == 1 else 1) and code.loop.ffma_share > 0.84


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: str(b.tile))
def test_no_candidate_spills(block: Block) -> None:
    """In all transposes, with wide and narrow accesses; wide ones leave room for as many work-groups as the model counts on."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    tried = 0
    for trans, (M, N, K) in itertools.product(("NN", "TT"), ((1024, 1024, 1024), (1023, 1025, 1027))):
        for config in candidates(tiled.FAMILY, H200, Gemm(M, N, K, trans=trans, batch=1 if block.chained else 2).desc):
            tile = config.tile
            if config.slices > 1 or block_like(tile) != block:
                continue
            code = inspect_source(tiled.FAMILY.source(H200, config), "sm_90")
            # a few registers are missing where the compiler is held to few: faster, measured, than fewer work-groups;
            # narrow accesses take more, and what the model says of them was fitted so
            wide = tile.VA == tile.VB == 4
            assert code.local_bytes <= (32 if block.asked else 0 if wide else 8), (trans, code)
            if wide:
                assert code.registers * tile.work_items * block.resident <= 65536, (trans, code.registers)
            assert code.shared_bytes * block.resident <= 227 * 1024
            tried += 1
    assert tried >= 2


SHORT = (ROWS, COLUMNS, IN_CLUSTERS["rows", 2], IN_CLUSTERS["columns", 2])
OTHERS = (ADD, helpers.SCALE, helpers.MOVE, *SHORT, plain.RECORD, stream_k.RECORD, stream_k.COLLECT)


def test_no_kernel_is_left_out_below() -> None:
    folder = trial.ROOT / "src" / "toprung" / "kernels"
    files = {file for file in folder.rglob("*.cl") if file.parent.name != "include"}
    assert files == {record.source for record in (tiled.RECORD, CLUSTERS[2], *OTHERS)}  # the second has the first's text


@pytest.mark.slow
@pytest.mark.parametrize("found", OTHERS, ids=str)
def test_the_other_kernels_compile_for_cuda(found: LibraryKernel) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    for small in (1, 16) if any(s.name == "SMALL" for s in found.switches) else (None,):
        options = found.options(H200, {} if small is None else {"SMALL": small})
        tile = found.tile_for(H200, options)
        code = inspect_source(kernel_source(found, tile, options), "sm_90")
        # stream-K has one work-group an SM, which holds two sets of sums; of the others at least two fit
        assert code.local_bytes == 0 and code.registers * tile.work_items * (1 if found is stream_k.RECORD else 2) <= 65536
        if found in SHORT:
            assert any(k.startswith("LDG.128") for k in code.counts)


# planted bugs


USED: dict[str, tuple[Any, str]] = {"tiled": (tiled.FAMILY, "records"), "add": (launch, "ADD")}
"""Holders of the records of a product's kernels, alone or the first of several, and the names there."""


def plant(stem: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Have a kernel run whose text has been damaged."""
    module, name = USED[stem]
    held = getattr(module, name)
    right = held[0] if isinstance(held, tuple) else held
    whole = folder / right.source.name
    whole.write_text(right.text())  # with what it includes
    wrong = trial.altered(replace(right, source=whole), folder, *changes)
    monkeypatch.setattr(module, name, (wrong, *held[1:]) if isinstance(held, tuple) else wrong)


PLANTS: tuple[tuple[str, tuple[str, str], Problem, int], ...] = (
    # the last k dropped
    ("tiled", ("const uint depth = K - k0 < slice ? K - k0 : slice;", "const uint depth = (K - k0 < slice ? K - k0 : slice) - 1;"),
     Gemm(20, 24, 50), 1),
    # C read with β = 0
    ("tiled", ("if (beta != 0.0f) // beta = 0 never reads C", ""), Gemm(20, 24, 50), 1),
    # a row beyond the edge stored; elements beyond a row's end read
    ("tiled", ("WRITES(i) && m < M) {", "WRITES(i) && m < M + 1) {"), Gemm(20, 24, 50), 1),
    ("tiled", ("if (A_K(i) >= BK - first) coming_a", "coming_a"), gemm(20, 24, 5, more=(2, 0, 0)), 1),
    ("tiled", ("get_group_id(1) * stride_slice", "0"), Gemm(20, 24, 92), 3),
    ("add", ("s < slices", "s + 1 < slices"), Gemm(20, 24, 92), 3),
    ("add", ("if (beta != 0.0f) acc =", "acc ="), Gemm(20, 24, 92), 3),
)  # fmt: skip


QUICK = ("if (A_K(i) >= BK - first) coming_a", "s < slices")


@pytest.mark.parametrize(
    "bug", [p if p[1][0] in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PLANTS], ids=lambda p: p[1][1][:24]
)
def test_a_planted_bug_is_caught(
    bug: tuple[str, tuple[str, str], Problem, int], session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem, change, problem, slices = bug
    run(session, problem, forced(session, problem, slices=slices))
    plant(stem, tmp_path, monkeypatch, change)
    with pytest.raises(AssertionError):
        run(session, problem, forced(session, problem, slices=slices))


def test_another_order_of_slices_gives_other_bits(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixed order is needed: backwards is as accurate and not the same."""
    problem = Gemm(40, 44, 2000)
    candidate = forced(session, problem, slices=7)
    expected = run(session, problem, candidate)
    backwards = "READ_V(VC, &parts[s * total])", "READ_V(VC, &parts[(slices - 1 - s) * total])"
    plant("add", tmp_path, monkeypatch, backwards)
    assert not np.array_equal(run(session, problem, candidate).view(np.uint32), expected.view(np.uint32))


def away(session: Session, problem: Gemm, candidate: Candidate) -> float:
    """The Frobenius error of a candidate, which is right."""
    return Oracle(hostile(problem, "normal")).verify(run(session, problem, candidate, "normal")).frobenius


@pytest.mark.parametrize("K", [pytest.param(20, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.slow), 1003])
def test_the_order_of_a_sum_is_the_same_whatever_the_tile(session: Session, K: int) -> None:
    """Chains end where a multiple of their length is left, within a tile of K or behind several."""
    problem = Gemm(70, 75, K)
    wide = replace(SMALL, BM=32, BN=64, WM=32, WN=64)
    tiles = [replace(SMALL, BK=8), replace(SMALL, BK=8, STAGES=2), replace(SMALL, BM=32, WM=32, BK=8)]
    tiles += [replace(wide, BK=bk) for bk in (16, 32)]
    found = [run(session, problem, forced(session, problem, tile), "normal") for tile in tiles]
    assert all(np.array_equal(one.view(np.uint32), found[0].view(np.uint32)) for one in found)


@pytest.mark.parametrize("trans", SOME)
def test_where_sums_are_one_chain_a_launch_has_a_short_k(session: Session, trans: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch but the first adds to what is there; α counts once a launch, β once."""
    monkeypatch.setattr(blocks, "ONE_CHAIN", 64)
    tile = replace(SMALL, BM=32, BN=64, WM=32, WN=64, TM=8, TN=16)
    problem = Gemm(30, 44, 150, trans=trans, batch=2, alpha=0.7, beta=1.3)
    candidate = forced(session, problem, tile)
    assert dict(candidate.config.options)["CHAIN"] == 0  # type: ignore[attr-defined]
    assert Executable.of(session, problem.desc, candidate).launches == 3
    run(session, problem, candidate)
    alone = forced(session, Gemm(30, 44, 150, trans=trans), tile)
    assert dict(alone.config.options)["CHAIN"] > 0, "cuBLAS cuts sums of one small product"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kernel", ["tiled", "plain", "skinny"])
def test_errors_of_long_sums_grow_with_the_chain_and_not_with_k(session: Session, kernel: str) -> None:
    """Sums of positive numbers: one chain of multiply-adds errs several times as much."""
    problem = Gemm(200, 3, 6000) if kernel == "skinny" else Gemm(40, 44, 6000)
    found = family(kernel)
    candidate = Candidate(found, next(iter(candidates(found, session.device, problem.desc))))
    operands = hostile(problem, "positive")
    a, b = (operands.matrices[name] for name in "AB")
    chain = np.zeros((problem.M, problem.N), np.float32)
    for k in range(problem.K):  # a product and a sum, each rounded
        chain += a[:, k : k + 1] * b[k]
    exact = a.astype(np.float64) @ b
    longest = np.linalg.norm(chain - exact)
    result = view(problem.output, run(session, problem, candidate, "positive"))
    assert np.linalg.norm(result - exact) < 0.5 * longest


@pytest.mark.parametrize("batch", [1, 3])
def test_places_in_c_are_found_alike_with_short_and_long_divisions(
    session: Session, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Gemm(21, 24, 300, batch=batch, beta=0.5)
    candidate = forced(session, problem, slices=3)
    texts: list[dict[str, int]] = []
    right = launch.loaded

    def result(**wanted: int) -> F32:
        def loaded(session: Session, record: LibraryKernel, tile: Tile, options: Any = ()) -> Any:
            if record is not ADD:
                return right(session, record, tile, options)
            texts.append(options | wanted)
            return right(session, record, tile, options | wanted)

        monkeypatch.setattr(launch, "loaded", loaded)
        return run(session, problem, candidate).view(np.uint32)

    first = result()
    assert texts[0]["TIGHT"] == texts[0]["INDEX32"] == 1
    assert np.array_equal(result(TIGHT=0), first) and np.array_equal(result(TIGHT=0, INDEX32=0), first)


@pytest.mark.parametrize(("cores", "slices"), [(2, (1, 1, 2)), (64, (2, 6, 63))])
def test_a_cpu_cuts_sums_only_for_cores_that_would_idle(cores: int, slices: tuple[int, ...], session: Session) -> None:
    device = replace(session.device, compute_units=cores)
    for problem, wanted in zip((Gemv(512, 4096), Gemv(4096, 640, trans="T"), Gemv(16, 100_000)), slices, strict=True):
        assert select(device, problem.desc).config.slices == wanted


# long


@pytest.mark.slow
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_every_small_shape(session: Session, trans: str) -> None:
    """A sample of all mixed triples, by the model's own choice and by the tunable product cut in two."""
    lengths = trial.LENGTHS
    rng = np.random.default_rng(TRANSPOSES.index(trans))
    for _ in range(12):
        M, N, K = (int(rng.choice(lengths)) for _ in range(3))
        more = tuple(int(g) for g in rng.integers(0, 5, 3))
        alpha, beta = (float(rng.choice(trial.SCALARS)) for _ in range(2))
        problem = gemm(M, N, K, trans, more, alpha=alpha, beta=beta)
        run(session, problem)
        run(session, problem, forced(session, problem, slices=2))


@pytest.mark.slow
def test_seventy_thousand_products(session: Session) -> None:
    """Past the limit of a grid's other dimensions. The oracle would take them one by one; NumPy takes them at once."""
    rng = np.random.default_rng(9)
    for M, N, K in ((3, 4, 5), (5, 1, 3), (17, 18, 2)):
        a, b, c = (rng.random((70_000, *s), dtype=np.float32) for s in ((M, K), (K, N), (M, N)))
        buffers = [session.allocate(v.nbytes) for v in (a, b, c)]
        for buffer, values in zip(buffers, (a, b, c), strict=True):
            session.upload(buffer, values)
        made = executor_of(session).product(GemmDesc(M, N, K, 70_000, stride_a=M * K, stride_b=K * N, stride_c=M * N))
        made.run(*memory(buffers, 0, 0, 0), 0.7, 1.3)
        found = np.empty_like(c)
        session.download(buffers[2], found)
        np.testing.assert_allclose(found, 0.7 * (a.astype(float) @ b) + 1.3 * c, rtol=1e-5)


@pytest.mark.slow
def test_launches_are_cut_where_a_grid_ends(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "MOST_GROUPS", 13)
    for slices in (1, 2):
        problem = Gemm(20, 24, 50, 0.7, 1.3, batch=11)
        run(session, problem, forced(session, problem, slices=slices))


def test_bound_operands_can_lie_anywhere(session: Session) -> None:
    """Offsets are the executable's affair, not the buffer's."""
    problem = Gemm(9, 10, 11)
    placed = OnDevice(hostile(problem), session)
    bound = BoundProduct(placed, executor_of(session).product(replace(problem.desc, align_a=1, align_b=1, align_c=1)), GUARD)
    bound.time(1)
    assert Oracle(placed.operands).verify(bound.fetch()).right


def test_a_session_that_nobody_has_any_more_goes_with_all_it_kept(device: Device) -> None:
    session = open_device(device)
    executor_of(session).product(GemmDesc(4, 4, 4))
    gone = weakref.ref(session)
    session.close()
    del session
    gc.collect()
    assert gone() is None


def test_a_branch_has_executables_of_its_own(session: Session) -> None:
    executor_of(session).product(GemmDesc(4, 4, 4))
    other = session.branch()
    assert executor_of(other).session is other and executor_of(session).session is session
    other.close()
