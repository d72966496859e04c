"""The tuner: its spaces, its strategies, and that nothing that goes wrong on the way ends the search or loses what was learnt.

Faults are real: a copy of the package whose product crashes, hangs, does not build or computes something wrong with some tiles
(``poisoned.py``), killed processes, Ctrl-C, a cluster that loses a worker.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import poisoned
from command import Typed
from conftest import require
from toprung.backends.base import Session
from toprung.blas.choice import Choice
from toprung.blas.choose import by_model
from toprung.blas.kernel import kernel
from toprung.blas.problems import call_of, class_of
from toprung.blas.tunable import tunables
from toprung.cli.tune import parse_budget
from toprung.device import Device
from toprung.errors import BadArgument, BadSize, UnknownName
from toprung.problem import Problem
from toprung.report import tune_table
from toprung.report.tune import best_over_time
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.store import Machine, Store
from toprung.tile import Tile
from toprung.tune import shapes
from toprung.tune.check import check
from toprung.tune.executors.base import LaneLost
from toprung.tune.executors.dask import DaskLane
from toprung.tune.executors.local import Local
from toprung.tune.measure import Measurer
from toprung.tune.model import UNKNOWN
from toprung.tune.recorded import Table, course
from toprung.tune.search import STRATEGIES
from toprung.tune.session import Budget, Shape, Tuner
from toprung.tune.space import CallSpace
from toprung.tune.trial import Outcome, Sampled, Trial, choice_of, describe, mark, plain

H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 140 << 30, 140 << 30, 1024, (1024, 1024, 64),
    256, (1, 2, 4), 32, "sm_90",
)  # fmt: skip
PROBLEMS = (
    Gemm(200, 200, 200), Gemm(128, 128, 8192, trans="TN"), Gemm(16, 300, 256), Gemm(300, 3, 64, trans="TT"),
    Gemm(64, 64, 64, batch=40), Gemm(33, 35, 37), Gemv(300, 500), Gemv(300, 500, trans="T"),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_point_of_a_space_can_be_launched(problem: Problem, kind: str, device: Device) -> None:
    place = H200 if kind == "gpu" else device
    call = call_of(problem)
    space = CallSpace(place, call, UNKNOWN)
    rng = random.Random(1)
    start = plain(by_model(place, call))
    drawn = [c for _ in range(20) if (c := space.draw(rng))]
    # on a GPU the order takes seconds for each product of tiles: once is enough here
    first = islice(space.ranked(), 30) if kind == "cpu" or problem == PROBLEMS[3] else ()
    tried = [*first, *drawn, *space.neighbours(start)]
    assert len(drawn) == 20 and len(set(tried)) > 10
    for choice in tried:
        record = kernel(choice.kernel)
        assert choice.tile is not None
        options = record.options(place, dict(choice.options))
        record.check(choice.tile, options, place)
        assert dict(choice.options) == options
        assert choice_of(json.loads(json.dumps(describe(choice)))) == choice
    # a point and its choice are two forms of one thing
    for choice in drawn:
        tunable = next(t for t in tunables() if t.kernel == choice.kernel)
        assert tunable.make(place, call, tunable.point(choice)) == choice


def test_the_model_orders_tiles_and_bounds_them(device: Device) -> None:
    space = CallSpace(H200, call_of(Gemm(1024, 1024, 1024)))
    order = list(islice(space.ranked(), 200))
    kernels = [c.kernel for c in order[:3]]
    assert set(kernels) == {"gemm", "ffma", "pieces"}, "the best of each kernel before the second of one"
    predicted = [space.model.predict(c) for c in order]
    assert predicted[:3] == sorted(predicted[:3]) and predicted[0] == min(predicted)
    assert predicted[3:] == sorted(predicted[3:]) and predicted[0] < predicted[-1]
    by_kernel = {k: [p for c, p in zip(order, predicted, strict=True) if c.kernel == k] for k in kernels}
    assert all(own[0] == min(own) for own in by_kernel.values())
    assert all(0 < space.model.bound(c) <= space.model.predict(c) for c in order)
    assert CallSpace(device, call_of(Gemm(64, 64, 64))).model.bound(order[0]) == 0, "what is unknown discards nothing"


def hills() -> Table:
    """Every combination of two parameters, fastest at one of them, the worse the more steps away."""
    seconds = {}
    for bm in (8, 16, 32, 64, 128, 256):
        for bk in (4, 8, 16, 32, 64):
            steps = abs(math.log2(bm / 64)) + abs(math.log2(bk / 8))
            seconds[choice_of({"kernel": "gemm", "tile": {"BM": bm, "BN": 64, "BK": bk}})] = 1.0 + steps
    return Table(seconds)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_tries_everything_once(name: str) -> None:
    if name == "optuna":
        optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install toprung[tune]")
        assert optuna
    table = hills()
    seen = next(table.ranked())
    search = STRATEGIES[name](table, 3, lambda c: c == seen)
    asked = []
    while len(asked) <= len(table.seconds) and (choice := search.ask()) is not None:
        asked.append(choice)
        search.tell(choice, table.seconds[choice])
    assert len(asked) == len(set(asked)) and seen not in asked
    if name in ("ranked", "climb"):
        assert len(asked) == len(table.seconds) - 1, "a small space is exhausted"


def test_a_climb_finds_the_top_sooner_than_chance() -> None:
    def needed(name: str, seed: int) -> int:
        table = hills()
        order = list(table.seconds)
        random.Random(seed).shuffle(order)
        table = Table({c: table.seconds[c] for c in order})
        best = course(table, STRATEGIES[name](table, seed), len(order))
        return best.index(1.0)

    climb, chance = (sum(needed(name, seed) for seed in range(20)) for name in ("climb", "random"))
    assert climb < chance


def test_samples_are_marked_where_the_clock_dropped() -> None:
    steady = Sampled("right", seconds=(1.0, 1.0, 1.0), clocks_mhz=(1980.0, 1975.0, None), turns=(0, 1, 2))
    dropped = Sampled("right", seconds=(1.0, 9.0, 1.0), clocks_mhz=(1980.0, 1400.0, 1970.0), turns=(0, 1, 2))
    first, second = mark([steady, dropped])
    assert first.marked == (False, False, False) and second.marked == (False, True, False)
    assert second.median == 1.0


def test_the_best_so_far_is_drawn_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    shape = {"problem": Gemm(64, 64, 64).describe(), "trace": [[1.0, 2e-3], [2.5, 1e-3]]}
    records = {"climb": {"shapes": [shape]}, "random": {"shapes": [{**shape, "trace": [[1.5, 3e-3]]}, {**shape, "trace": []}]}}
    for name in ("a.svg", "b.svg"):
        best_over_time(records, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "random" in (tmp_path / "a.svg").read_text()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("trace", [[[1.0, 1e-3]], [[1.0, 1.05e-3], [150.0, 1e-3]], []], ids=["flat", "near", "nothing"])
def test_a_course_close_to_its_best_or_none_is_drawn(tmp_path: Path, trace: list[list[float]]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    best_over_time({"climb": {"shapes": [{"problem": Gemm(64, 64, 64).describe(), "trace": trace}]}}, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size


class InProcess:
    """A lane without a process: for what cannot crash."""

    def __init__(self, session: Session) -> None:
        self.name, self.device, self.machine = "here", session.device, Machine.of(session)
        self._measurer = Measurer(session)

    def start(self) -> str:
        return ""

    def run(self, trial: Trial) -> Outcome:
        return self._measurer.run(trial)

    def close(self) -> None:
        """Nothing to end."""


def test_a_trial_verifies_and_compares_in_turns(session: Session) -> None:
    problem = Gemm(90, 70, 110)
    own = plain(by_model(session.device, call_of(problem)))
    slow = Choice("plain", kernel("plain").tile_for(session.device))
    illegal = Choice("gemm", Tile(BM=7, BN=5, BK=3, TM=2, TN=2), own.options)
    rivals = own, slow, illegal, Choice("numpy", None)
    outcome = InProcess(session).run(Trial(problem, rivals, turns=6, least=3, hopeless=1e9, cold=2))
    mine, theirs, refused, numpy = outcome.sampled
    assert [s.status for s in outcome.sampled] == ["right", "right", "build", "right"]
    assert 3 <= len(mine.seconds) <= 6 and mine.turns == theirs.turns == numpy.turns
    assert len(mine.cold_seconds) == 2 and 0 < mine.grade < 16 and "BM % TM" in refused.message


def test_cold_samples_are_of_other_operands(session: Session) -> None:
    problem = Gemm(90, 70, 110, beta=0.5)
    measurer = Measurer(session)
    own = plain(by_model(session.device, call_of(problem)))
    (mine,) = measurer.run(Trial(problem, (own,), turns=2, least=2, cold=2)).sampled
    assert len(mine.cold_seconds) == 2 and measurer._copies
    assert len(measurer._copies) * sum(m.nbytes for m in problem.matrices) > 8 << 20, "more than a core's cache holds"
    first, second = measurer._copies[:2]
    for one in (first, second):
        one.reset()
        measurer._ready[own].prepared.elsewhere(one).time(1)  # type: ignore[attr-defined]
        assert measurer._oracle.verify(one.fetch()).right
    second.reset()
    assert not measurer._oracle.verify(second.fetch()).right, "each has an output of its own"


def test_a_short_run_has_cold_samples(session: Session, tmp_path: Path) -> None:
    lanes = SimpleNamespace(lanes=lambda: [InProcess(session)])
    tuner = Tuner([Gemm(64, 64, 64)], lanes, Store(tmp_path / "tuned.sqlite"), Budget(seconds=2.4))  # type: ignore[arg-type]
    for _ in tuner.run():
        pass
    (shape,) = tuner.shapes
    assert shape.finals and all(len(s.cold_seconds) == 3 for s in shape.finals.values())
    assert [e.kernel for e in Store(tmp_path / "tuned.sqlite").entries() if e.cold_seconds]


def test_the_check_finds_a_choice_that_is_too_slow(session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toprung.tune import check as checking

    problem, slow = Gemm(192, 192, 192), Choice("plain", kernel("plain").tile_for(session.device), (), "planted")
    monkeypatch.setattr(checking, "routed", lambda device, problem, precision="fp32": slow)
    (found,) = check(InProcess(session), [problem], Store(tmp_path / "tuned.sqlite"))
    assert found.broken and found.ratio is not None and found.ratio.low > 1.05 and found.best != slow
    assert found.describe()["why"] == "planted"
    assert next(c.kernel for c, _ in found.again) == "plain" and len(found.describe()["again"]) >= 2


def test_a_host_that_is_disturbed_once_breaks_no_promise(session: Session, tmp_path: Path) -> None:
    class Disturbed(InProcess):
        trials = 0

        def run(self, trial: Trial) -> Outcome:
            self.trials += 1
            outcome, slow = super().run(replace(trial, hopeless=1e9)), 1e4 if self.trials == 1 else 1e-4
            first = outcome.sampled[0]
            return replace(outcome, sampled=(replace(first, seconds=tuple(slow * s for s in first.seconds)), *outcome.sampled[1:]))

    lane = Disturbed(session)
    (found,) = check(lane, [Gemm(96, 96, 96)], Store(tmp_path / "tuned.sqlite"))
    assert lane.trials == 2 and found.again and not found.broken and not found.trouble
    assert found.ratio is not None and found.ratio.value == 1 and found.best == found.routed


def test_a_process_that_is_killed_while_it_makes_operands_is_given_a_second_chance(session: Session, tmp_path: Path) -> None:
    class Killed(InProcess):
        trials = 0

        def run(self, trial: Trial) -> Outcome:
            self.trials += 1
            killed = Outcome((), 0.0, "the operands could not be made: the process was killed by SIGKILL")
            return killed if self.trials == 1 else super().run(trial)

    lanes = SimpleNamespace(lanes=lambda: [Killed(session)])
    tuner = Tuner([Gemm(64, 64, 64)], lanes, Store(tmp_path / "tuned.sqlite"), Budget(trials=2))  # type: ignore[arg-type]
    for _ in tuner.run():
        pass
    assert tuner.shapes[0].state == "done" and tuner.tried == 2


def test_shapes_are_drawn_of_every_class_and_the_same_again(device: Device) -> None:
    for place, most in ((H200, 1e11), (device, 2e8)):
        drawn = shapes.drawn(place, 300, 5)
        assert drawn == shapes.drawn(place, 300, 5) != shapes.drawn(place, 300, 6) and len(set(drawn)) == 300
        classes = Counter(class_of(call_of(p)).split()[0] for p in drawn)
        assert set(classes) >= {"vector", "skinny", "batched", "deep", "shallow", "tiny"}
        assert max(p.flops for p in drawn) <= 4 * most
    usual = {class_of(call_of(p)).split()[0] for p in shapes.default(H200)}
    assert usual >= {"large", "small", "tiny", "batched", "deep", "vector"}


def test_budgets_and_sizes_are_read_or_refused() -> None:
    assert parse_budget("90s") == parse_budget("1.5m") == Budget(seconds=90) and parse_budget("7") == Budget(trials=7)
    for text in ("", "0", "0s", "-3", "1.5", "60 parsecs", "s", "1e3", "nan"):
        with pytest.raises(BadArgument, match="a budget is"):
            parse_budget(text)
    with pytest.raises(BadSize):
        shapes.given("gemm", [(3, 4)])
    with pytest.raises(BadSize):
        shapes.given("gemv", [(3, 4, 5)])
    with pytest.raises(UnknownName):
        shapes.known(["trsm"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trsm",), "there is no routine to be tuned 'trsm'"), (("gemm", "--sizes", "12x"), "sizes are positive"),
        (("gemm", "--sizes", "12x13"), "a size of gemm is"), (("--budget", "soon"), "a budget is"),
        (("--strategy", "luck"), "there is no strategy 'luck'"), (("--trans", "NX", "--sizes", "9"), "there is no transpose"),
        (("--device", "abacus"), "there is no device 'abacus'"), (("--device", "a", "--devices", "all"), "exclude"),
        (("--scheduler", "x", "--devices", "all"), "--devices is for this machine"), (("--limit", "0"), "above 0"),
        (("--check", "--budget", "7"), "--check takes a time"), (("--precision", "tf32"), "no precision to be tuned 'tf32'"),
        (("gemv", "--suite", "odd"), "of products"), (("--trans", "NN"), "--trans needs"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPRUNG_STORE", "on")
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path))
    code, text = Typed(capsys, monkeypatch)("tune", *words)
    assert code == 2 and says in text
    assert not any(tmp_path.iterdir())


# faults


def test_the_last_comparison_decides_what_is_best(device: Device) -> None:
    problem = Gemm(64, 64, 64)
    start, other, lucky = islice(CallSpace(device, call_of(problem)).ranked(), 3)

    def after(**seconds: float) -> Shape:
        finals = {n: Sampled("right", seconds=(s, 1.01 * s, 0.99 * s), turns=(0, 1, 2)) for n, s in seconds.items()}
        shape = Shape(problem, Machine.of(device), start=start, choice=lucky, ordinary=other, finals=finals)
        shape.step_back()
        return shape

    for found, choice, gain, behind in (
        (after(best=1.0, untuned=2.0, ordinary=1.5), lucky, 2.0, 1.5),
        (after(best=1.0, untuned=2.0, ordinary=0.8), other, 2.5, 1.0),
        (after(best=1.0, untuned=0.5, ordinary=0.8), start, 1.0, 1.6),
        (after(best=1.0, untuned=0.5), start, 1.0, None),
    ):
        assert found.choice == choice and found.gain is not None and found.gain.value == pytest.approx(gain)
        assert (found.behind.value if found.behind else None) == (behind and pytest.approx(behind))


def seed_with_every_fault(device: Device, problem: Problem, count: int) -> int:
    """A seed whose first draws meet every fault and a choice that is right."""
    for seed in range(5000):
        search = STRATEGIES["random"](CallSpace(device, call_of(problem)), seed)
        met = Counter(poisoned.fate(c) for _ in range(count) if (c := search.ask()))
        if set(met) == {*poisoned.FAULTS, "right"} and met["timeout"] == 1:
            return seed
    raise AssertionError("no such seed")


def tune(copy: Path | None, folder: Path, *words: object, **more: Any) -> subprocess.Popen[str]:
    """``toprung tune`` in a process of its own, with the poisoned package or this one."""
    where = copy or Path(__file__).parents[1] / "src"
    return subprocess.Popen(
        [sys.executable, "-c", "from toprung.cli import main; main()", "tune", *map(str, words)],
        env=poisoned.environment(where, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
    )  # fmt: skip


def stored(folder: Path) -> list[Any]:
    return list(Store(folder / "data" / "tuned.sqlite").entries())


def test_a_crash_a_hang_a_wrong_result_and_a_failed_build_do_not_end_the_search(device: Device, tmp_path: Path) -> None:
    problem, count = Gemm(64, 64, 64), 5
    seed = seed_with_every_fault(device, problem, count)
    run = tune(
        poisoned.package(tmp_path), tmp_path, "gemm", "--sizes", 64, "--strategy", "random", "--seed", seed, "--budget", count + 1,
        "--limit", 2, "--device", device.id, "--json", tmp_path / "run.json",
    )  # fmt: skip
    text, _ = run.communicate(timeout=200)
    assert run.returncode == 0, text
    entries = stored(tmp_path)
    found = {choice_of(e.candidate): e for e in entries if e.kernel == "gemm"}
    own = plain(by_model(device, call_of(problem)))
    assert found[own].status == "right" and len(found) == count + 1
    search = STRATEGIES["random"](CallSpace(device, call_of(problem)), seed)
    for choice in (search.ask() for _ in range(count)):
        assert choice is not None and found[choice].status == poisoned.fate(choice), (choice, found[choice].message)
    said = {e.status: e.message for e in entries}
    assert "SIGSEGV" in said["crashed"] and "2 s in phase run" in said["timeout"] and "planted" in said["build"]
    assert "grade ratio" in said["wrong"]
    assert any(e.kernel == "numpy" and e.status == "right" for e in entries), "the host's library is timed beside it"
    record = json.loads((tmp_path / "run.json").read_text())
    (shape,) = record["shapes"]
    assert record["kind"] == "tune" and record["configurations"] == count + 1 and sum(shape["counts"].values()) == count + 1
    assert "(4 not right)" in text
    assert f"{count + 1} configurations in" in tune_table.block(["run", "run.json"], tmp_path)
    assert shape["gain"]["value"] >= 1 and shape["finals"]["best"]["cold_seconds"] and shape["trace"]


@pytest.mark.slow
def test_the_check_stores_what_ran_and_why(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    run = tune(None, tmp_path, "--check", "--shapes", 4, "--device", device.id, "--json", file)
    text, _ = run.communicate(timeout=250)
    record = json.loads(file.read_text())
    broken = sum(shape["broken"] or bool(shape["trouble"]) for shape in record["shapes"])
    assert run.returncode == int(broken > 0) and f"{4 - broken} of 4 shapes within 5 %" in text
    assert ("calls can be planned by measuring" in text) == any(shape["broken"] for shape in record["shapes"])
    for shape in record["shapes"]:
        assert shape["why"] and shape["ratio"]["value"] >= 1 and shape["measured"][0]["kernel"] == shape["routed"]["kernel"]
        assert shape["broken"] == (shape["ratio"]["value"] > 1.05)
    assert "promised is 1.05" in tune_table.block(["check", "check.json"], tmp_path)


@pytest.mark.slow
def test_an_interrupted_check_keeps_its_record(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    run = tune(None, tmp_path, "--check", "--shapes", 200, "--device", device.id, "--json", file)
    assert run.stdout is not None
    line = next(line for line in run.stdout if "of 200, " in line or " on " in line)  # one shape at least
    run.send_signal(signal.SIGINT)
    text = line + run.communicate(timeout=60)[0]
    record = json.loads(file.read_text())
    assert run.returncode == 130 and record["interrupted"] and 0 < len(record["shapes"]) < record["wanted"] == 200, text
    assert f"{len(record['shapes'])} of 200 in" in text


@pytest.mark.slow
def test_a_check_ends_when_its_time_is_over(device: Device, tmp_path: Path) -> None:
    run = tune(
        None, tmp_path, "--check", "--shapes", 200, "--budget", "4s", "--device", device.id, "--json", tmp_path / "check.json"
    )
    text, _ = run.communicate(timeout=100)
    record = json.loads((tmp_path / "check.json").read_text())
    assert run.returncode == 1 and not record["interrupted"] and 0 < len(record["shapes"]) < 200, text
    assert "the time was over" in text and "the time was over" in record["notes"][0]


@pytest.mark.slow
def test_two_processes_share_the_shapes(device: Device, tmp_path: Path) -> None:
    store = Store(tmp_path / "tuned.sqlite")
    executor = Local([device, device])
    problems = [Gemm(n, n, n) for n in (32, 48, 64, 80)]
    tuner = Tuner(problems, executor, store, Budget(trials=8))
    alive = 0
    for _ in tuner.run():
        alive = max(alive, len(children(os.getpid())))
    assert alive >= 2 and all(s.choice and s.state == "done" for s in tuner.shapes) and not tuner.notes
    keys = [(str(e.shape), e.key) for e in store.entries() if e.kernel == "gemm"]
    assert len(keys) == len(set(keys)) == tuner.tried


def first_words(run: subprocess.Popen[str], folder: Path, least: int) -> None:
    """Wait until so many configurations are stored."""
    end = time.monotonic() + 120
    while len(stored(folder)) < least:
        assert run.poll() is None and time.monotonic() < end, run.communicate()[0]
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    """Processes that a process has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + 20
    while any(Path(f"/proc/{p}").exists() and " Z " not in Path(f"/proc/{p}/stat").read_text() for p in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_was_learnt_survives_the_end_of_the_process_and_a_second_run_goes_on(
    how: signal.Signals, device: Device, tmp_path: Path
) -> None:
    require(Path("/proc").is_dir(), "needs /proc")
    words = ("gemm", "--sizes", "64", "--strategy", "ranked", "--device", device.id)
    run = tune(None, tmp_path, *words, "--budget", "10m")
    first_words(run, tmp_path, 4)
    workers = children(run.pid)
    assert workers
    run.send_signal(how)
    text, _ = run.communicate(timeout=60)
    assert run.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), text
    assert gone(workers), "nobody is left measuring"
    before = {e.id: e for e in stored(tmp_path)}
    assert len(before) >= 4 and all(e.status == "right" for e in before.values())
    again = tune(None, tmp_path, *words, "--budget", 3, "--json", tmp_path / "run.json")
    text, _ = again.communicate(timeout=200)
    assert again.returncode == 0, text
    after = {e.id: e for e in stored(tmp_path)}
    assert len([i for i in after if i not in before and after[i].kernel == "gemm"]) == 3, "three new ones, none of the old"
    assert all(after[i].seconds[: len(e.seconds)] == e.seconds for i, e in before.items()), "no sample is lost"
    assert json.loads((tmp_path / "run.json").read_text())["configurations"] == 3


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_that_was_learnt(device: Device, tmp_path: Path) -> None:
    require(Path("/proc").is_dir(), "needs /proc")
    run = tune(None, tmp_path, "gemm", "--sizes", "64", "--strategy", "ranked", "--device", device.id, "--budget", 8)
    first_words(run, tmp_path, 3)
    for pid in children(run.pid):
        os.kill(pid, signal.SIGKILL)
    text, _ = run.communicate(timeout=200)
    assert run.returncode == 0, text
    entries = [e for e in stored(tmp_path) if e.kernel == "gemm"]
    assert len(entries) == 8 and all(e.status == "right" for e in entries), "nothing is blamed for what was done to its process"


class Cluster(NamedTuple):
    """Of Dask: where it is and its processes."""

    address: str
    scheduler: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Dask scheduler and two workers, processes all."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install toprung[tune]")
    where = {**poisoned.environment(Path(__file__).parents[1] / "src", tmp_path)}
    file = tmp_path / "scheduler.json"

    def start(*words: object) -> subprocess.Popen[str]:
        with (tmp_path / "cluster.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *map(str, words)], env=where, stdout=log, stderr=log, text=True, cwd=tmp_path
            )

    quiet = ("--scheduler-file", file, "--no-dashboard")
    scheduler = start("distributed.cli.dask_scheduler", *quiet, "--port", 0, "--host", "127.0.0.1")
    alone = ("--nthreads", 1, "--no-nanny")
    workers = [start("distributed.cli.dask_worker", *quiet, *alone, "--local-directory", tmp_path / n) for n in ("one", "two")]
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, (tmp_path / "cluster.log").read_text()
        time.sleep(0.1)
    yield Cluster(json.loads(file.read_text())["address"], scheduler, workers)
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


def client_of(cluster: Cluster) -> Any:
    """Its client, when both workers are there."""
    import distributed

    make: Any = distributed.Client
    client = make(cluster.address, set_as_default=False)
    client.wait_for_workers(2, timeout=60)
    return client


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_outcome_that_is_lost_with_its_worker_is_not_waited_for(
    cluster: Cluster, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(cluster)
    send = client.submit
    address, pid = next(iter(client.run(os.getpid).items()))

    def submit(*words: Any, **named: Any) -> Any:
        future = send(*words, **named)
        while not future.done():  # measured, and the outcome still there
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return future

    problem = Gemm(32, 32, 32)
    choice = plain(by_model(device, call_of(problem)))
    monkeypatch.setattr(client, "submit", submit)
    with pytest.raises(LaneLost, match="lost its worker"):
        DaskLane(client, address, device).run(Trial(problem, (choice,)))
    client.close()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_finishes_with_the_other(cluster: Cluster, device: Device, tmp_path: Path) -> None:
    client_of(cluster).close()
    run = tune(
        None, tmp_path, "gemm", "--sizes", "48,64,80", "--scheduler", cluster.address, "--device", device.id, "--budget", 12,
        "--json", tmp_path / "run.json",
    )  # fmt: skip
    first_words(run, tmp_path, 3)
    measuring = children(cluster.workers[0].pid)
    cluster.workers[0].kill()
    text, _ = run.communicate(timeout=250)
    assert run.returncode == 0, text
    assert "lost its worker" in text
    assert gone(measuring), "the lost worker's process does not outlive it"
    record = json.loads((tmp_path / "run.json").read_text())
    assert all(shape["best"] for shape in record["shapes"]), "every shape was tuned, that of the lost worker too"
    assert not [e for e in stored(tmp_path) if e.status != "right"], "a lost worker is nobody's crash"


@pytest.mark.slow
def test_a_cluster_that_loses_its_scheduler_ends_the_run_and_keeps_what_was_learnt(
    cluster: Cluster, device: Device, tmp_path: Path
) -> None:
    client_of(cluster).close()
    file = tmp_path / "run.json"
    run = tune(
        None, tmp_path, "gemm", "--sizes", "48,64", "--scheduler", cluster.address, "--device", device.id, "--budget", "10m",
        "--json", file,
    )  # fmt: skip
    first_words(run, tmp_path, 3)
    cluster.scheduler.kill()
    text, _ = run.communicate(timeout=60)
    assert run.returncode == 0 and "scheduler" in text and "Traceback" not in text, text
    assert json.loads(file.read_text())["configurations"] >= 3
    assert not [e for e in stored(tmp_path) if e.status != "right"], "a lost scheduler is nobody's crash"
