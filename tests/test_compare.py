"""The one measuring loop: turns, settling, states, and who iterates may drop a competitor; baselines that move are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import require
from planted import Failing, Planted, fp16
from records import around, peer
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import OutOfDeviceMemory
from toprung.lab.baselines.numpy import NumPyPeer, openblas
from toprung.lab.harness import compare as loop
from toprung.lab.harness.baseline import LEAST, BaselineLog, doubts, watched
from toprung.lab.harness.bench import competitors
from toprung.lab.harness.compare import SETTLE_SECONDS, ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.library import Matmul, _product, arrays_on
from toprung.lab.harness.measure import Measurement, SamplingPlan
from toprung.oracle.gemm import Gemm
from toprung.report.table import ladder_table
from toprung.report.text import scatter_text

SHORT = SamplingPlan(sample_seconds=0.001)
PLAN = ComparisonPlan(samples={"warm": 3}, sampling={"warm": SHORT})


def states(rows: list[Row], session: Session, plan: ComparisonPlan = PLAN, problem: Gemm = Gemm(8, 8, 8)) -> list[tuple[str, str]]:  # noqa: B008
    return [(row.who.name, row.state) for row in compare(PlacedProblem(problem, session), rows, plan)]


def test_every_step_is_said_before_it_begins(session: Session) -> None:
    (row,) = rows = PLAN.rows([Planted("a")])
    found = [state for _, state in states(rows, session)]
    assert found == [
        "building",
        "running",
        "checking",
        "timing",
        "warming",
        "timing",
        *["sampling", "timing"] * 2,
        "sampling",
        "done",
    ]
    assert row.measurement is not None and len(row.measurement.seconds) == 3


def test_who_iterates_may_drop_a_competitor(session: Session) -> None:
    first, second = rows = PLAN.rows([Planted("a"), Planted("b")])
    for row in compare(PlacedProblem(Gemm(8, 8, 8), session), rows, PLAN):
        if row is second and row.state == "timing" and row.measurement:
            row.state = "dropped"
    assert first.measurement and second.measurement
    assert (len(first.measurement.seconds), len(second.measurement.seconds)) == (3, 1)


def test_each_sample_is_preceded_by_a_run_of_the_same_competitor(session: Session) -> None:
    """Between the last call of a neighbour and the first timed call lie at least the settling seconds of its own calls."""
    heard: list[str] = []
    competing = [Planted(name, called=lambda call, name=name: heard.append(name)) for name in "AB"]  # type: ignore[misc]
    settled, none = (SamplingPlan(sample_seconds=0.002, longest_loop=3, settle_seconds=s) for s in (0.002, 0.0))
    counts = []
    for sampling in (none, settled):
        heard.clear()
        rows = ComparisonPlan(samples={"warm": 2}, sampling={"warm": sampling}).rows(competing)
        for row in compare(
            PlacedProblem(Gemm(8, 8, 8), session), rows, ComparisonPlan(samples={"warm": 2}, sampling={"warm": sampling})
        ):
            if row.state == "warming" and row is rows[1]:
                heard.clear()
        assert row.measurement is not None and row.measurement.settle_seconds == sampling.settle_seconds
        counts.append(len(heard))
        turns = [name for i, name in enumerate(heard) if i == 0 or heard[i - 1] != name]
        assert turns == ["B", "A", "B", "A", "B"], "warmed up, then two turns"
    assert counts[1] > counts[0] + 4, "four samples, each with calls before it"
    assert row.measurement is not None and Measurement.read(row.measurement.describe()).settle_seconds == 0.002


def test_what_is_usual_on_a_device_settles() -> None:
    assert all(ComparisonPlan().sampling_on(kind, "warm").settle_seconds == s > 0 for kind, s in SETTLE_SECONDS.items())
    assert ComparisonPlan().sampling_on("gpu", "sustained").settle_seconds == 2.0


def test_a_peer_settles_as_peers_do(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PEER_SETTLE_SECONDS", dict.fromkeys(SETTLE_SECONDS, 0.011))
    rows = ComparisonPlan(samples={"warm": 1}).rows(competitors(["numpy", "kepler/r01"]))
    for _ in compare(PlacedProblem(Gemm(8, 8, 8), session), rows, ComparisonPlan(samples={"warm": 1})):
        pass
    usual = SETTLE_SECONDS[session.device.kind]
    assert [row.measurement and row.measurement.settle_seconds for row in rows] == [0.011, usual]


def test_what_is_not_tolerated_ends_the_comparison(session: Session) -> None:
    rows = PLAN.rows([Failing("broken"), Planted("good")])
    states(rows, session)
    assert [r.state for r in rows] == ["failed", "done"]
    with pytest.raises(RuntimeError, match="no kernel image"):
        states(PLAN.rows([Failing("broken")]), session, ComparisonPlan(tolerates=()))


def test_without_samples_all_are_verified_and_none_timed(session: Session) -> None:
    plan = ComparisonPlan(samples={"warm": 0})
    rows = plan.rows([Planted("good"), Planted("bad", narrow=fp16)])
    states(rows, session, plan, Gemm(64, 64, 256))
    assert [(r.state, r.measurement) for r in rows] == [("done", None), ("wrong", None)] and "grade ratio" in rows[1].note


def test_operands_that_do_not_fit_are_refused_before_they_are_made(session: Session) -> None:
    with pytest.raises(OutOfDeviceMemory):
        PlacedProblem(Gemm(300_000, 300_000, 8), session)


@pytest.mark.parametrize("problem", [Gemm(33, 17, 29), Gemm(40, 24, 32, trans="TN"), Gemm(9, 7, 5, trans="NT", batch=3)], ids=str)
def test_matmul_takes_part_as_a_user_gets_it(session: Session, problem: Gemm) -> None:
    (row,) = rows = PLAN.rows(competitors(["matmul"]))
    states(rows, session, PLAN, problem)
    assert row.state == "done" and row.measurement is not None, row.note
    who = row.measurement.competitor
    assert who["name"] == "matmul" and who["arrays"] == "numpy" and who["why"]


def test_matmul_takes_no_scalars(session: Session) -> None:
    (row,) = rows = PLAN.rows([Matmul()])
    states(rows, session, PLAN, Gemm(8, 8, 8, beta=1.3))
    assert row.state == "unsupported" and "α = 1 and β = 0" in row.note


@pytest.mark.parametrize("problem", [Gemm(33, 17, 29), Gemm(40, 24, 32, trans="TN"), Gemm(9, 7, 5, trans="NT", batch=3)], ids=str)
def test_matmul_of_arrays_on_a_device_is_verified_in_place(session: Session, problem: Gemm) -> None:
    placed = PlacedProblem(problem, session)
    kind, stacks = arrays_on(placed.memory, problem)
    placed.memory.reset()
    _product(problem, stacks)()
    assert kind == "pyopencl" and placed.oracle.verify(placed.memory.fetch()).right
    placed.memory.reset()
    assert not placed.oracle.verify(placed.memory.fetch()).right


def test_a_baseline_that_scatters_is_doubted() -> None:
    still, outlier = [1.0, 1.01, 0.99, 1.0, 1.02], [1.0, 1.0, 9.0, 1.0, 1.0]
    moving = [1.0, 1.0, 1.0, 1.2, 1.2, 1.2]
    assert [scatter_text(seconds) for seconds in (still, outlier, moving, still[:1], [])] == ["0.5", "0.0", "9.1", "", ""]
    assert doubts(peer("cublas", still), "cuBLAS", None) == doubts(peer("cublas", outlier), "cuBLAS", None) == []
    (said,) = doubts(peer("cublas", moving), "cuBLAS", None)
    assert said.startswith("cuBLAS at 1024 scatters by ± 9 %"), "the figure of the table"
    (row,) = ladder_table([Row(NumPyPeer(), state="done", measurement=peer("cublas", moving))], "").rows
    assert row[0]["± %"] == "9.1"
    (said,) = doubts(peer("cublas", still), "cuBLAS", 0.8)
    assert "in earlier runs on this machine: something else uses it now" in said
    (said,) = doubts(peer("cublas", still), "cuBLAS", 1.4)
    assert "in earlier runs on this machine: other programs used it then" in said, "it is the faster now"
    assert doubts(peer("cublas", still), "cuBLAS", 0.95) == []


def test_a_machine_knows_how_fast_its_baseline_is(device: Device, tmp_path: Path) -> None:
    log = BaselineLog(tmp_path / "below" / "b.jsonl")
    usual = peer("numpy", around(1e-3))
    for _ in range(LEAST):
        (said,) = watched(device, [("NumPy", peer("numpy", [1.0, 1.0, 1.0, 9.0, 9.0, 9.0]))], log)
        assert "scatters by" in said and not log.path.exists(), "a run beside other programs says nothing of what is usual"
    for _ in range(LEAST):
        assert watched(device, [("NumPy", usual)], log) == []
    with log.path.open("a") as file:
        file.write('{"key": "half a li')
    (said,) = watched(device, [("NumPy", peer("numpy", around(1.4e-3)))], log)
    assert "in earlier runs" in said
    assert watched(device, [("NumPy", peer("numpy", around(1.4e-3), Gemm(8, 8, 8)))], log) == [], "another problem"
    assert watched(device, [("NumPy", usual)], BaselineLog(Path("/dev/null/nowhere"))) == []


def test_numpy_takes_one_thread_where_several_wait_for_each_other(
    session: Session, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    blas = openblas()
    require(blas is not None and session.device.kind == "cpu", "needs OpenBLAS beside a CPU")
    assert blas is not None
    before, most = blas[0](), 2  # tests run in one
    blas[1](most)
    request.addfinalizer(lambda: blas[1](before))
    numpy, used = NumPyPeer(), []
    for fastest in (1, most):
        bound = numpy.prepare(PlacedProblem(Gemm(8, 8, 8), session).memory)
        monkeypatch.setattr(bound, "_seconds", lambda put, threads, fastest=fastest: abs(threads - fastest))
        bound.time(3, lambda: used.append(blas[0]()))
        assert used[-1] == fastest and blas[0]() == most, "others have all of them"
        assert numpy.describe(session.device).get("threads") == (1 if fastest == 1 else None)
    bound = numpy.prepare(PlacedProblem(Gemm(8, 8, 8), session).memory)
    assert bound.time(3) > 0 and numpy.threads in (1, most), "measured"


def test_no_ratio_to_a_baseline_that_scatters() -> None:
    rows = [
        Row(NumPyPeer(), state="done", measurement=peer("numpy", s)) for s in ([1.0, 1.0, 1.1, 1.2, 9.0], [0.1, 0.2, 1.0, 3.0, 9.0])
    ]
    shown = [ladder_table([row], "").rows[0][0] for row in rows]
    assert [cells["% of NumPy"] for cells in shown] == ["100.0", "–"]


def test_a_sample_of_tiles_tells_wrong_from_right(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/rank.py stores samples of the right, and the oracle's complaint of the wrong."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    import rank

    monkeypatch.setattr(rank, "Trialled", lambda planted: planted)
    at = PlacedProblem(Gemm(8, 8, 8), session)
    right = rank.timed(at, Planted("right"))
    assert len(right["seconds"]) == len(right["clocks_mhz"]) == 5 and not right["problem"] and right["calls"] >= 1
    wrong = rank.timed(at, Planted("wrong", narrow=fp16))
    assert not wrong["seconds"] and "C[" in wrong["problem"]
    with pytest.raises(RuntimeError, match="kernel image"):  # not an error of ours: it leaves the device in doubt, and ends the run
        rank.timed(at, Failing("failed"))
    monkeypatch.setattr(rank, "SLOW", 0.0)  # everything is slow
    assert len(rank.timed(at, Planted("slow"))["seconds"]) == rank.SLOW_SAMPLES
