"""The tuner: its spaces, its strategies, how it measures, and the check of its promise."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command import Typed
from recorded import Table, course
from toprung.backends.base import Session
from toprung.cli.tune import parse_budget
from toprung.device import Device
from toprung.dispatch.ranking import select_own
from toprung.dispatch.selection import Candidate, Selection, decoded
from toprung.errors import BadArgument, BadSize, UnknownName
from toprung.gemm.classes import class_of
from toprung.kernels.base import NoConfig, TileConfig
from toprung.kernels.plain.family import RECORD as PLAIN
from toprung.kernels.record import LibraryKernel
from toprung.kernels.registry import family
from toprung.kernels.skinny.family import SkinnyConfig
from toprung.kernels.skinny.record import RECORDS
from toprung.kernels.tiled.record import RECORD as TILED
from toprung.kernels.tiled_cluster.family import RECORDS as CLUSTERS
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.problem import Problem
from toprung.report.tune import best_over_time, noisy_line, progress_table
from toprung.store import Machine, Store
from toprung.tile import Tile
from toprung.tune import shapes
from toprung.tune.candidates import CHECKED, filled, selected
from toprung.tune.check import asked, check
from toprung.tune.measure import Measurer
from toprung.tune.model import UNKNOWN
from toprung.tune.rows import Choices, read, right
from toprung.tune.search import STRATEGIES
from toprung.tune.session import Budget, Shape, Tuner
from toprung.tune.space import CallSpace
from toprung.tune.trial import Outcome, Sampled, Trial, mark

H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 140 << 30, 140 << 30, 1024, (1024, 1024, 64),
    256, (1, 2, 4), 32, "sm_90", 232448,
)  # fmt: skip
PROBLEMS = (
    Gemm(200, 200, 200), Gemm(128, 128, 8192, trans="TN"), Gemm(16, 300, 256), Gemm(300, 3, 64, trans="TT"),
    Gemm(64, 64, 64, batch=40), Gemm(33, 35, 37), Gemv(300, 500), Gemv(300, 500, trans="T"),
)  # fmt: skip


def record_of(candidate: Candidate) -> LibraryKernel:
    """Return the record of the kernel that a candidate is of."""
    config = candidate.config
    if candidate.kernel == "tiled_cluster":
        assert isinstance(config, TileConfig)
        return CLUSTERS[config.slices]
    return RECORDS[config.kernel] if isinstance(config, SkinnyConfig) else TILED


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_point_of_a_space_can_be_launched(problem: Problem, kind: str, device: Device) -> None:
    place = H200 if kind == "gpu" else device
    desc = problem.desc
    space = CallSpace(place, desc, UNKNOWN)
    rng = random.Random(1)
    start = select_own(place, desc).candidate
    drawn = [c for _ in range(20) if (c := space.draw(rng))]
    # on a GPU the order takes seconds for each product of tiles: once is enough here
    first = islice(space.ranked(), 30) if kind == "cpu" or problem == PROBLEMS[3] else ()
    tried = [*first, *drawn, *space.neighbours(start)]
    assert len(drawn) == 20 and len(set(tried)) > 10
    for candidate in tried:
        assert candidate.kernel in ("tiled", "tiled_cluster", "skinny", "skinny_cluster") and isinstance(
            candidate.config, TileConfig
        )
        record, config = record_of(candidate), candidate.config
        options = record.options(place, dict(config.options))
        record.check(config.tile, options, place)
        assert dict(config.options) == options
        assert decoded(json.loads(json.dumps(candidate.encode()))) == candidate
    # a point and its configuration are two forms of one thing
    for candidate in drawn:
        assert candidate.family.at(place, desc, candidate.family.point(candidate.config)) == candidate.config


def test_the_model_orders_tiles_and_bounds_them(device: Device) -> None:
    space = CallSpace(H200, Gemm(1024, 1024, 1024).desc)
    order = list(islice(space.ranked(), 200))
    kernels = [c.kernel for c in order[:4]]
    each = {"tiled", "tiled_cluster", "hopper_sgemm", "stream_k"}
    assert set(kernels) == each, "the best of each kernel before the second of one"
    predicted = [space.model.predict(c) for c in order]
    assert predicted[:4] == sorted(predicted[:4]) and predicted[0] == min(predicted)
    assert predicted[4:] == sorted(predicted[4:]) and predicted[0] < predicted[-1]
    by_kernel = {k: [p for c, p in zip(order, predicted, strict=True) if c.kernel == k] for k in kernels}
    assert all(own[0] == min(own) for own in by_kernel.values())
    assert all(0 < space.model.bound(c) <= space.model.predict(c) for c in order)
    assert CallSpace(device, Gemm(64, 64, 64).desc).model.bound(order[0]) == 0, "what is unknown discards nothing"


def test_without_figures_of_a_gpu_the_families_costs_order_tiles() -> None:
    unknown = replace(H200, name="Another")
    space = CallSpace(unknown, Gemm(1024, 1024, 1024).desc)
    order = list(islice(space.ranked(), 40))
    predicted = [space.model.predict(c) for c in order]
    assert predicted[4:] == sorted(predicted[4:]) and predicted[0] == min(predicted) < math.inf
    assert {space.model.bound(c) for c in order} == {0.0}, "what is unknown discards nothing"


def hills() -> Table:
    """Every combination of two parameters, fastest at one of them, the worse the more steps away."""
    seconds = {}
    for bm in (8, 16, 32, 64, 128, 256):
        for bk in (4, 8, 16, 32, 64):
            steps = abs(math.log2(bm / 64)) + abs(math.log2(bk / 8))
            seconds[decoded({"kernel": "gemm", "tile": {"BM": bm, "BN": 64, "BK": bk}})] = 1.0 + steps
    return Table(seconds)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_tries_everything_once(name: str) -> None:
    table = hills()
    seen = next(table.ranked())
    search = STRATEGIES[name](table, 3, lambda c: c == seen)
    asked = []
    while len(asked) <= len(table.seconds) and (candidate := search.ask()) is not None:
        asked.append(candidate)
        search.tell(candidate, table.seconds[candidate])
    assert len(asked) == len(set(asked)) and seen not in asked
    assert len(asked) == len(table.seconds) - 1, "a small space is exhausted"


def test_a_climb_finds_the_top_sooner_than_chance() -> None:
    def needed(name: str, seed: int) -> int:
        table = hills()
        order = list(table.seconds)
        random.Random(seed).shuffle(order)
        table = Table({c: table.seconds[c] for c in order})
        best = course(table, STRATEGIES[name](table, seed), len(order))
        return best.index(1.0)

    # the model's order is shuffled: to follow it is to draw
    climb, chance = (sum(needed(name, seed) for seed in range(20)) for name in ("climb", "ranked"))
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
    own = select_own(session.device, problem.desc).candidate
    slow = Candidate(family("plain"), TileConfig(PLAIN.tile_for(session.device)))
    assert isinstance(own.config, TileConfig)
    illegal = Candidate(family("tiled"), TileConfig(Tile(BM=7, BN=5, BK=3, TM=2, TN=2), own.config.options))
    candidates = own, slow, illegal, Candidate(family("numpy"), NoConfig())
    outcome = InProcess(session).run(Trial(problem, candidates, turns=6, least=3, hopeless=1e9, cold=2))
    mine, theirs, refused, numpy = outcome.sampled
    assert [s.status for s in outcome.sampled] == ["right", "right", "build", "right"]
    assert 3 <= len(mine.seconds) <= 6 and mine.turns == theirs.turns == numpy.turns
    assert len(mine.cold_seconds) == 2 and 0 < mine.grade < 16 and "BM % TM" in refused.message


def test_cold_samples_are_of_other_operands(session: Session) -> None:
    problem = Gemm(90, 70, 110, beta=0.5)
    measurer = Measurer(session)
    own = select_own(session.device, problem.desc).candidate
    (mine,) = measurer.run(Trial(problem, (own,), turns=2, least=2, cold=2)).sampled
    assert len(mine.cold_seconds) == 2 and measurer.placed is not None
    copies, oracle = measurer.placed.copies(shared=session.device.kind != "cpu"), measurer.placed.oracle
    assert len(copies) * sum(m.nbytes for m in problem.matrices) > 8 << 20, "more than a core's cache holds"
    first, second = copies[:2]
    for one in (first, second):
        one.reset()
        measurer._ready[own].bound.elsewhere(one).time(1)  # type: ignore[union-attr]
        assert oracle.verify(one.fetch()).right
    second.reset()
    assert not oracle.verify(second.fetch()).right, "each has an output of its own"


@pytest.mark.parametrize("least, samples", [(0.0, 3), (math.inf, 0)])
def test_cold_samples_are_taken_where_the_budget_suffices(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, least: float, samples: int
) -> None:
    monkeypatch.setattr("toprung.tune.session.COLD_SHARE", least)  # what is left of the budget depends on the machine
    lanes = SimpleNamespace(lanes=lambda: [InProcess(session)])
    tuner = Tuner([Gemm(64, 64, 64)], lanes, Store(tmp_path / "tuned.sqlite"), Budget(seconds=1.0))  # type: ignore[arg-type]
    for _ in tuner.run():
        pass
    (shape,) = tuner.shapes
    timed = {name: s for name, s in shape.finals.items() if s.status == "right" and s.turns != (-1,)}  # no candidate given up
    assert "best" in timed and {len(s.cold_seconds) for s in timed.values()} == {samples}
    assert bool([e.kernel for e in Store(tmp_path / "tuned.sqlite").entries() if e.cold_seconds]) == bool(samples)


def test_rows_keep_median_spread_and_the_device_s_time(device: Device) -> None:
    one, other = Candidate(family("plain"), TileConfig(PLAIN.tile_for(device))), select_own(device, Gemm(64, 64, 64).desc).candidate
    held = Sampled("right", seconds=(5.0, 1.0, 4.0, 2.0, 3.0), device_seconds=(0.5, 0.1, 0.4, 0.2, 0.3), host_seconds=1.0)
    timed = [
        (one, held), (other, replace(held, host_seconds=0.0)), (one, replace(held, seconds=(7.0,), device_seconds=(7.0,))),
        (other, Sampled("wrong", "a message")), (one, Sampled()), (other, replace(held, status="wrong", message="late")),
    ]  # fmt: skip
    measured = (choices := Choices()).rows(timed)
    record = {"choices": choices.describe(), "shapes": [{"measured": measured[:4], "again": measured[4:]}, {"measured": []}]}
    (found, nothing), (first, _) = read(json.loads(json.dumps(record))), read(record, again=False)
    expected = [
        (one, "right", 5, 3.0, 2.0, 4.0, 0.3), (other, "right", 5, 3.0, 2.0, 4.0, None), (one, "right", 1, 7.0),
        (other, "wrong", 0, None, None, None, None, "a message"), (one, "", 0), (other, "wrong", 5, 3.0, 2.0, 4.0, 0.3, "late"),
    ]  # fmt: skip
    assert [tuple(row)[: len(want)] for row, want in zip(found, expected, strict=True)] == expected and not nothing
    assert len(first) == 4 and right(found) == [(one, 3.0), (other, 3.0), (one, 7.0)]


def test_the_check_finds_a_choice_that_is_too_slow(session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toprung.tune import check as checking

    problem, slow = Gemm(192, 192, 192), Candidate(family("plain"), TileConfig(PLAIN.tile_for(session.device)))
    monkeypatch.setattr(checking, "selected", lambda device, problem, precision="fp32": Selection(slow, "planted"))
    (found,) = check([InProcess(session)], [problem], Store(tmp_path / "tuned.sqlite"))
    assert found.broken and found.ratio is not None and found.ratio.low > 1.05 and found.best != slow
    described = found.describe(choices := Choices())
    assert described["why"] == "planted" and choices[slow] == described["routed"] == 0 != described["best"]
    assert [row[0] for row in described["again"]] == [choices[c] for c, _ in found.again] and len(found.again) >= 2


def test_a_host_that_is_disturbed_once_breaks_no_promise(session: Session, tmp_path: Path) -> None:
    class Disturbed(InProcess):
        trials = 0

        def run(self, trial: Trial) -> Outcome:
            self.trials += 1
            outcome, slow = super().run(replace(trial, hopeless=1e9)), 1e4 if self.trials == 1 else 1e-4
            first = outcome.sampled[0]
            return replace(outcome, sampled=(replace(first, seconds=tuple(slow * s for s in first.seconds)), *outcome.sampled[1:]))

    lane = Disturbed(session)
    (found,) = check([lane], [Gemm(96, 96, 96)], Store(tmp_path / "tuned.sqlite"))
    assert lane.trials == 2 and found.again and not found.broken and not found.trouble
    assert found.ratio is not None and found.ratio.value == 1 and found.best == found.selected


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


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_check_has_eight_candidates(precision: str) -> None:
    for problem in shapes.with_mixed(H200, shapes.drawn(H200, 30, 3), 3):
        if precision in asked(H200, problem, "auto"):
            mine = selected(H200, problem, precision).candidate
            others = filled(H200, problem, precision, mine, [mine])
            of_halves = isinstance(problem, Gemm) and problem.is_mixed  # of a short K five blocks read them
            assert len({mine, *others}) == 1 + len(others) >= (5 if of_halves else CHECKED), problem


def test_shapes_are_drawn_of_every_class_and_the_same_again(device: Device) -> None:
    for place, most in ((H200, 1e11), (device, 2e8)):
        drawn = shapes.drawn(place, 300, 5)
        assert drawn == shapes.drawn(place, 300, 5) != shapes.drawn(place, 300, 6) and len(set(drawn)) == 300
        classes = Counter(class_of(p.desc).split()[0] for p in drawn)
        assert set(classes) >= {"vector", "skinny", "batched", "deep", "shallow", "tiny"}
        assert max(p.flops for p in drawn) <= 4 * most
        products = [p for p in drawn if isinstance(p, Gemm)]
        wider = [p for p in products if p != Gemm(p.M, p.N, p.K, trans=p.trans, batch=p.batch)]
        assert len(products) / 4 < len(wider) < len(products) / 2
        assert any((p.lda or 0) % 2 for p in wider if p.K % 4 == 0 and p.trans == "NN"), "some gaps break the alignment"
        scaled: list[Any] = shapes.with_scalars(drawn, 5)
        assert [p.desc.sizes for p in scaled] == [p.desc.sizes for p in drawn] and scaled == shapes.with_scalars(drawn, 5)
        assert {(p.alpha, p.beta == 0) for p in scaled} == {(a, zero) for a in (1.0, 0.5, -1.3) for zero in (True, False)}
        assert {p.incx for p in scaled if isinstance(p, Gemv)} == {1, 2, 5}
    usual = {class_of(p.desc).split()[0] for p in shapes.default(H200)}
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
        (("--check", "--budget", "7"), "--check takes a time"), (("--check", "--resume"), "name its file"),
        (("--precision", "tf32"), "no precision to be tuned 'tf32'"),
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
    start, other, lucky = islice(CallSpace(device, problem.desc).ranked(), 3)

    def after(**seconds: float) -> Shape:
        finals = {n: Sampled("right", seconds=(s, 1.01 * s, 0.99 * s), turns=(0, 1, 2)) for n, s in seconds.items()}
        shape = Shape(problem, Machine.of(device), start=start, candidate=lucky, ordinary=other, finals=finals)
        shape.step_back()
        return shape

    for found, choice, gain, behind in (
        (after(best=1.0, untuned=2.0, ordinary=1.5), lucky, 2.0, 1.5),
        (after(best=1.0, untuned=2.0, ordinary=0.8), other, 2.5, 1.0),
        (after(best=1.0, untuned=0.5, ordinary=0.8), start, 1.0, 1.6),
        (after(best=1.0, untuned=0.5), start, 1.0, None),
    ):
        assert found.candidate == choice and found.gain is not None and found.gain.value == pytest.approx(gain)
        assert (found.behind.value if found.behind else None) == (behind and pytest.approx(behind))


def test_samples_of_a_busy_machine_are_warned_of_and_give_way_to_quiet_ones(session: Session, tmp_path: Path) -> None:
    lanes, store = SimpleNamespace(lanes=lambda: [InProcess(session)]), Store(tmp_path / "tuned.sqlite")
    tuner = Tuner([Gemm(64, 64, 64)], lanes, store, Budget(trials=1))  # type: ignore[arg-type]
    (shape,), quiet, busy = tuner.shapes, (1.0, 1.01, 1.02, 1.03, 9.0), (1.0, 1.5, 2.0, 60.0, 90.0)
    candidate = select_own(session.device, shape.problem.desc).candidate
    tuner.load = 0.0
    assert len(progress_table(tuner).rows) == 1 and not progress_table(tuner, over=True).rows, "it was not reached"
    for seconds, kept in ((busy, busy), (quiet, quiet), (quiet, quiet * 2)):
        sampled = Sampled("right", seconds=seconds, clocks_mhz=(None,) * 5, marked=(False,) * 5)
        tuner._learn(shape, candidate, sampled)
        shape.finals = {"best": replace(sampled, seconds=quiet), "numpy": sampled}
        (entry,) = store.entries()
        assert entry.seconds == kept and entry.noisy == (kept == busy)
        assert ("samples of 1 of 1 shapes scatter, most by ± 1462 % (those of numpy at 64; " in noisy_line(tuner)) == entry.noisy
    assert noisy_line(tuner) == ""
    tuner.load = 1000.0
    assert "its load was 1000.0 on " in noisy_line(tuner)
