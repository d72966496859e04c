"""The search: shapes shared out to lanes, each trial's outcome stored before the next begins."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from toprung.blas.choice import Choice
from toprung.blas.choose import by_model, choose, lacking
from toprung.blas.fp32x import FP32X
from toprung.blas.problems import call_of, class_of, source_hash
from toprung.blas.route import fp32x_choice, paths, reckoned_choice, unsuited
from toprung.blas.tuned import is_ours, refusal
from toprung.device import Device
from toprung.errors import NoDevice, UnknownName, Unsupported
from toprung.problem import Problem
from toprung.stats import Interval, paired_ratio
from toprung.store import Entry, Machine, Store, candidate_key, shape_text
from toprung.tune.compiler import Compiler
from toprung.tune.executors.base import Executor, Lane, LaneLost
from toprung.tune.search import Exhaustive, Strategy, strategy
from toprung.tune.space import CallSpace, Space
from toprung.tune.trial import Outcome, Sampled, Trial, choice_of, describe, entry_of, pairs, plain

FINALS = 0.8
"""Share of a shape's time that is searched; the rest is for the comparison of what was found with what there was."""

FINAL_TURNS, COLD = 15, 3

COLD_SHARE = 1.0
"""Seconds of a shape from which on it is measured cold, too: in less it would take more time than the search."""

ORDINARY = 20
"""Configurations after which an exhaustive search notes what the usual one would have found: about as many as a run of a minute has
for each of the default shapes on an H200. A fifth of a budget at most."""

PRECISIONS = ("auto", "fp32", "fp32x")
"""What can be tuned: plain fp32, fp32x, or both where fp32x is or may be the faster of them."""

FP32X_WEIGHT = 0.5
"""Share of time of a search of fp32x in that of plain fp32: its space is small, and what is reckoned is near."""

LOOK_AHEAD = 3
"""Shapes whose choices are put into order while another is measured."""

COMPILING = 300.0
"""Seconds that a binary made beside may take before the worker is left to make it."""


@dataclass(frozen=True)
class Budget:
    """What a run may take: seconds, or configurations; of both None, all there is."""

    seconds: float | None = None
    trials: int | None = None


@dataclass
class Shape:
    """One problem on one kind of machine, as far as it has got.

    Attributes
    ----------
    precision : the path that is searched, ``fp32`` or ``fp32x``
    state : ``waiting``, ``running``, ``done`` (its time is over), ``exhausted`` (there is no more to try) or ``failed``
    note : why it failed
    untuned, best : seconds of what ran before and of the best so far; infinite where unknown
    start, choice : the same as choices
    counts : configurations by what became of them
    discarded : configurations that by their bound cannot beat the best, and were not run
    trace : (seconds since the run began, best so far)
    finals : by name (``untuned``, ``best``, a vendor's): samples of the last comparison
    gain : untuned / best with its interval, from that comparison
    ordinary : of an exhaustive search, what there was after ``after`` configurations by the usual strategy, or from an earlier run
        where that is 0
    behind : ordinary / best with its interval, from the last comparison
    legal : about how many configurations there are
    recalled : whether an earlier run had found something
    """

    problem: Problem
    machine: Machine
    precision: str = "fp32"
    state: str = "waiting"
    note: str = ""
    untuned: float = math.inf
    best: float = math.inf
    start: Choice | None = None
    choice: Choice | None = None
    counts: Counter[str] = field(default_factory=Counter)
    discarded: int = 0
    trace: list[tuple[float, float]] = field(default_factory=list)
    finals: dict[str, Sampled] = field(default_factory=dict)
    gain: Interval | None = None
    ordinary: Choice | None = None
    after: int = 0
    behind: Interval | None = None
    legal: int = 0
    recalled: bool = False
    _order: Future[list[Choice]] | None = field(default=None, repr=False)
    _final: Choice | None = field(default=None, repr=False)
    _search: Any = field(default=None, repr=False)
    _left: list[Choice] = field(default_factory=list, repr=False)
    _kept: dict[Choice, Entry] = field(default_factory=dict, repr=False)
    _seen: set[str] = field(default_factory=set, repr=False)

    @property
    def tried(self) -> int:
        """Configurations of this run, whatever became of them."""
        return sum(self.counts.values())

    @property
    def weight(self) -> float:
        """Its share of time, in that of a search of plain fp32."""
        return FP32X_WEIGHT if self.precision == FP32X else 1.0

    def compared(self, name: str, other: str) -> Interval | None:
        """Time of one by that of another of the last comparison; None where one has no sample there."""
        if not {name, other} <= self.finals.keys():
            return None
        mine, theirs = pairs(self.finals[name], self.finals[other])
        return paired_ratio(mine, theirs) if mine else None

    def step_back(self) -> None:
        """By the last comparison: what had only looked faster than something else of ours is the best no longer."""
        if (ratio := self.compared("ordinary", "best")) is not None and ratio.high < 1:
            self.choice, self.finals["best"] = self.ordinary, self.finals["ordinary"]
        if (ratio := self.compared("untuned", "best")) is not None:
            if ratio.value < 1:
                self.choice, self.finals["best"] = self.start, self.finals["untuned"]
            self.gain = self.compared("untuned", "best")
        self.behind = self.compared("ordinary", "best")

    @property
    def beyond(self) -> bool:
        """Whether an exhaustive search has gone through the model's order."""
        return isinstance(self._search, Exhaustive) and self._search.beyond

    def describe(self) -> dict[str, Any]:
        """As JSON; of an exhaustive search with every configuration that was measured."""
        choices = {"start": self.start, "best": self.choice}
        exhaustive: dict[str, Any] = {}
        if self.legal:
            measured = [
                {**describe(c), "status": e.status, "seconds": _finite(e.median)}
                for c, e in self._kept.items() if is_ours(e.kernel, self.precision)
            ]  # fmt: skip
            exhaustive = {"exhaustive": {
                "legal": self.legal, "beyond_model": self.beyond, "ordinary": describe(self.ordinary) if self.ordinary else None,
                "after": self.after, "behind": vars(self.behind) if self.behind else None, "measured": measured,
            }}  # fmt: skip
        return {
            "problem": self.problem.describe(), "precision": self.precision, "class": class_of(call_of(self.problem)),
            "state": self.state, "note": self.note,
            "untuned_seconds": _finite(self.untuned), "best_seconds": _finite(self.best),
            **{name: describe(c) if c else None for name, c in choices.items()},
            "counts": dict(self.counts), "discarded": self.discarded, "trace": [list(t) for t in self.trace],
            "gain": vars(self.gain) if self.gain else None,
            "finals": {
                name: {"seconds": list(s.seconds), "cold_seconds": list(s.cold_seconds), "status": s.status, "message": s.message}
                for name, s in self.finals.items()
            },
            **exhaustive,
        }  # fmt: skip


class Ordered:
    """A space whose order somebody else has begun to compute."""

    def __init__(self, space: CallSpace, first: Sequence[Choice]) -> None:
        self._space, self._first = space, first
        self.axes, self.neighbours, self.draw, self.at = space.axes, space.neighbours, space.draw, space.at
        self.size, self.all = space.size, space.all

    def ranked(self) -> Iterator[Choice]:
        """The given ones, then the rest."""
        yield from self._first
        yield from self._space.ranked()


class Tuner:
    """A run of the tuner.

    Attributes
    ----------
    shapes : what is tuned, for the display
    notes : what a user should know at the end
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        executor: Executor,
        store: Store,
        budget: Budget,
        search: str = "climb",
        seed: int = 0,
        limit: float = 20.0,
        exhaustive: bool = False,
        precision: str = "auto",
    ) -> None:
        if precision not in PRECISIONS:
            raise UnknownName("precision to be tuned", precision, PRECISIONS)
        self._executor, self._store, self._budget, self._seed, self._limit = executor, store, budget, seed, limit
        self._strategy: Callable[..., Strategy] = strategy(search)
        self._exhaustive = exhaustive
        self._lanes = list(executor.lanes())
        machines = list(dict.fromkeys(lane.machine for lane in self._lanes))
        self._first_device: dict[Machine, Device] = {}
        for lane in self._lanes:
            self._first_device.setdefault(lane.machine, lane.device)
        self._precision = precision
        self.shapes = [
            Shape(p, m, path) for m in machines for p in problems for path in paths(self._first_device[m], call_of(p), precision)
        ]  # fmt: skip
        if not self.shapes and problems and machines:
            device = self._first_device[machines[0]]
            raise Unsupported(f"nothing to be tuned in fp32x: {unsuited(device, call_of(problems[0]))}")
        self.notes: list[str] = []
        # a run that was too short for all shapes goes on with those it did not reach
        order = sorted(self.shapes, key=self._was_tried)
        self._waiting = {m: deque(s for s in order if s.machine == m) for m in machines}
        self._running: Counter[Machine] = Counter()
        self._changes: queue.SimpleQueue[Shape] = queue.SimpleQueue()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._error: Exception | None = None
        self._begin, self.elapsed = 0.0, 0.0
        self._round = 0

    @property
    def tried(self) -> int:
        """Configurations of all shapes."""
        return sum(s.tried for s in self.shapes)

    def run(self) -> Iterator[Shape | None]:
        """Tune; yields a shape whenever something of it has changed, and None now and then.

        Leave the loop, or raise in it, to end the run: what was learnt is stored.

        Raises
        ------
        StoreError
            the store can no longer be written
        """
        self._begin = time.monotonic()
        compilers = {m: Compiler(d) for m, d in self._first_device.items()}
        threads = [
            threading.Thread(target=self._serve, args=(lane, compilers[lane.machine]), daemon=True) for lane in self._lanes
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            while any(t.is_alive() for t in threads):
                try:
                    changed: Shape | None = self._changes.get(timeout=0.2)
                except queue.Empty:
                    changed = None
                self.elapsed = time.monotonic() - self._begin
                yield changed
        finally:
            self._stop.set()
            for lane in self._lanes:
                lane.close()
            for thread in threads:
                thread.join(timeout=10)
            for compiler in compilers.values():
                compiler.close()
            self.elapsed = time.monotonic() - self._begin
        if self._error is not None:
            raise self._error
        for machine, left in self._waiting.items():
            if left and not self._over():
                self.notes.append(f"{len(left)} shapes were left: no device of {machine} was")

    # one lane

    def _serve(self, lane: Lane, compiler: Compiler) -> None:
        shape: Shape | None = None
        try:
            fingerprint = lane.start()
            while (taken := self._next(lane)) is not None:
                shape, share = taken
                self._look_ahead(lane, shape, compiler)
                try:
                    self._study(lane, shape, share, compiler, fingerprint)
                finally:
                    with self._lock:
                        self._running[lane.machine] -= 1
                self._changes.put(shape)
                shape = None
        except (LaneLost, NoDevice) as error:
            if not self._stop.is_set():
                self.notes.append(str(error))
                if shape is not None:
                    with self._lock:
                        shape.state = "waiting"
                        self._waiting[lane.machine].appendleft(shape)
        except Exception as error:  # of ours, or the store's: nothing more may be tried, and nothing stored is lost
            self._error = error
            self._stop.set()

    def _next(self, lane: Lane) -> tuple[Shape, Budget] | None:
        """The next shape of a lane's machine with its share; waits while another lane may still give one back."""
        while not self._over():
            with self._lock:
                waiting = self._waiting[lane.machine]
                if not waiting and not self._running[lane.machine]:
                    again = [s for s in self.shapes if s.machine == lane.machine and s.state == "done"]
                    if self._budget.seconds is not None or self._budget.trials is None:
                        waiting.extend(again)  # time is left: another round for all that have more to try
                if waiting:
                    shape = waiting.popleft()
                    lanes = sum(other.machine == lane.machine for other in self._lanes)
                    share = self._share(shape, waiting, lanes)
                    self._running[lane.machine] += 1
                    shape.state = "running"
                    return shape, share
                if not self._running[lane.machine]:
                    return None
            self._stop.wait(0.1)
        return None

    def _look_ahead(self, lane: Lane, shape: Shape, compiler: Compiler) -> None:
        """Have this shape's choices and the next shapes' put into order, by cores that would idle."""
        with self._lock:
            for one in [shape, *list(self._waiting[lane.machine])[:LOOK_AHEAD]]:
                if one._order is None and one._search is None and one.precision == "fp32":  # the others are few
                    one._order = compiler.rank(one.problem)

    def _share(self, shape: Shape, waiting: Sequence[Shape], lanes: int) -> Budget:
        part = shape.weight / (shape.weight + sum(s.weight for s in waiting))
        if self._budget.seconds is not None:
            rest = self._begin + self._budget.seconds - time.monotonic()
            return Budget(seconds=max(0.0, rest) * part * min(lanes, len(waiting) + 1))
        if self._budget.trials is not None:
            return Budget(trials=max(1, math.ceil((self._budget.trials - self.tried) * part)))
        return Budget()

    def _was_tried(self, shape: Shape) -> bool:
        found = self._store.entries(shape.machine, shape=shape_text(shape.problem.describe()))
        return any(e.machine == shape.machine and is_ours(e.kernel, shape.precision) for e in found)

    def _over(self) -> bool:
        if self._stop.is_set():
            return True
        if self._budget.seconds is not None:
            return time.monotonic() >= self._begin + self._budget.seconds
        return self._budget.trials is not None and self.tried >= self._budget.trials

    # one shape

    def _study(self, lane: Lane, shape: Shape, share: Budget, compiler: Compiler, fingerprint: str) -> None:
        begin, before = time.monotonic(), shape.tried
        call = call_of(shape.problem)
        if shape.start is None:
            self._recall(shape, lane.device)
            assert shape.start is not None
            # what the user or the package knows of these sizes, or of near ones, comes before all else
            advised = [plain(choose(lane.device, call, own=True))] if shape.precision == "fp32" else []
            if not self._known(shape, shape.start) and not self._try(lane, shape, shape.start, None):
                return
            shape._left += [c for c in advised if c != shape.start and not self._known(shape, c)]
        space = CallSpace(lane.device, call, precision=shape.precision)
        known = _ranked(shape._order)
        view: Space = Ordered(space, known) if known else space
        if shape._search is None:
            if self._exhaustive:
                shape.legal = space.legal
            shape._search = self._strategy(view, self._seed, lambda c: self._known(shape, c))
        first = 0 if share.trials is None else share.trials // 5
        first = min(ORDINARY, first or ORDINARY)
        pending: list[tuple[Choice, Future[str] | None]] = []

        def over() -> bool:
            if share.seconds is not None and time.monotonic() > begin + FINALS * share.seconds:
                return True
            return self._over() or (share.trials is not None and shape.tried - before >= share.trials)

        state = "exhausted"
        while not over():
            if self._exhaustive and shape.ordinary is None and (shape.recalled or shape.tried >= first):
                self._exhaust(shape, view, [c for c, _ in pending])
            while len(pending) < compiler.width:
                choice = shape._left.pop() if shape._left else shape._search.ask()
                if choice is None and self._exhaustive and shape.ordinary is None and not pending:
                    self._exhaust(shape, view, ())
                    choice = shape._search.ask()
                if choice is None:
                    break
                if space.model.bound(choice) > shape.best:
                    shape.discarded += 1
                    shape._search.tell(choice, math.inf)
                    if over():
                        break
                    continue
                pending.append((choice, compiler.ahead(choice, fingerprint)))
            if not pending:
                break
            choice, message = _first_ready(pending)
            if message:
                self._learn(shape, choice, Sampled("build", message))
                shape._search.tell(choice, math.inf)
            elif not self._try(lane, shape, choice, shape.choice):
                return
        else:
            state = "done"
        shape._left += [c for c, _ in pending]
        for _, future in pending:
            if future is not None:
                future.cancel()
        if not self._stop.is_set():
            self._finals(lane, shape, COLD if share.seconds is None or share.seconds >= COLD_SHARE else 0)
        shape.state = state

    def _exhaust(self, shape: Shape, view: Space, pending: Sequence[Choice]) -> None:
        """Note what the usual search has found, and go on with everything that is not under way."""
        shape.ordinary, shape.after = shape.choice, 0 if shape.recalled else shape.tried
        asked = {*pending, *shape._left}
        shape._search = Exhaustive(view, self._seed, lambda c: c in asked or self._known(shape, c))

    def _recall(self, shape: Shape, device: Device) -> None:
        """What the store knows of a shape already."""
        problem, call = shape.problem, call_of(shape.problem)
        shape.start = plain(reckoned_choice(device, call) if shape.precision == FP32X else by_model(device, call))
        shape._seen = self._store.tried(shape.machine, problem.describe())
        for entry in self._store.entries(shape.machine, shape=shape_text(problem.describe())):
            ours = is_ours(entry.kernel, shape.precision) and bool(entry.candidate["tile"])
            if entry.machine != shape.machine or refusal(entry) or entry.source != source_hash(entry.kernel, shape.machine.backend):
                continue
            choice = plain(choice_of(entry.candidate))
            shape._kept[choice] = entry
            if entry.status == "right" and ours and entry.median < shape.best:
                shape.best, shape.choice = entry.median, choice
        shape.recalled = shape.choice is not None
        self._say(shape, mark=shape.choice is not None)

    def _known(self, shape: Shape, choice: Choice) -> bool:
        return candidate_key(describe(choice), source_hash(choice.kernel, shape.machine.backend)) in shape._seen

    def _try(self, lane: Lane, shape: Shape, choice: Choice, incumbent: Choice | None) -> bool:
        """One configuration beside the best so far; False where the shape cannot be measured at all."""
        choices = (choice,) if incumbent is None else (incumbent, choice)
        trial = Trial(shape.problem, choices, limit=self._limit, seed=self._seed)
        outcome = lane.run(trial)
        if _doubtful(outcome, incumbent is not None):
            outcome = lane.run(trial)
        if outcome.trouble:
            shape.state, shape.note = "failed", outcome.trouble
            return False
        sampled = outcome.sampled[-1]
        if incumbent is not None and outcome.sampled[0].status != "right":
            self._fallen(shape, incumbent, outcome.sampled[0])
            if not sampled.status:
                shape._left.append(choice)
                return True
        elif incumbent is not None:
            self._learn(shape, incumbent, outcome.sampled[0], again=True)
        if not sampled.status or (sampled.status == "right" and not sampled.seconds):
            shape._left.append(choice)
            return True
        self._learn(shape, choice, sampled)
        if shape._search is not None:
            shape._search.tell(choice, sampled.median)
        better = sampled.status == "right" and (shape.choice is None or _faster(outcome))
        if better:
            shape.choice = choice
        self._say(shape, mark=better)
        return True

    def _fallen(self, shape: Shape, incumbent: Choice, sampled: Sampled) -> None:
        """The best so far is right no longer: the next best takes its place."""
        if not sampled.status:
            return
        self._learn(shape, incumbent, sampled, again=True)
        left = [
            (e.median, str(c), c) for c, e in shape._kept.items()
            if e.status == "right" and is_ours(c.kernel, shape.precision) and c.tile and c != incumbent
        ]  # fmt: skip
        shape.best, _, shape.choice = min(left, key=lambda one: one[:2], default=(math.inf, "", None))

    def _finals(self, lane: Lane, shape: Shape, cold: int) -> None:
        """What was found beside what ran before and what others offer, in turns, warm and ``cold`` samples cold."""
        if shape.choice is None or shape.start is None:
            return
        rivals = {"best": shape.choice, "untuned": shape.start, **self._others(lane.device, shape)}
        compared = shape.tried == 0 and all(self._known(shape, c) for c in rivals.values())  # in an earlier run
        if shape._final == shape.choice or compared:
            return
        choices = tuple(dict.fromkeys(rivals.values()))
        trial = Trial(
            shape.problem, choices, FINAL_TURNS, 7, hopeless=100.0, limit=self._limit, cold=cold, seed=self._seed
        )  # fmt: skip
        outcome = lane.run(trial)
        if not outcome.sampled:
            return
        shape._final = shape.choice
        found = dict(zip(choices, outcome.sampled, strict=True))
        for choice, sampled in found.items():
            if sampled.status and (sampled.status != "right" or sampled.seconds):
                self._learn(shape, choice, sampled, again=True)
        shape.finals = {name: found[c] for name, c in rivals.items()}
        shape.step_back()
        self._say(shape, mark=True)

    def _others(self, device: Device, shape: Shape) -> dict[str, Choice]:
        """What the best is compared with beside what ran before: the vendor's, the other path, what a usual search had found."""
        call, found = call_of(shape.problem), {}
        if shape.ordinary is not None:
            found["ordinary"] = shape.ordinary
        if shape.precision == FP32X:  # else the search of plain fp32 has it beside
            return found | ({"fp32": plain(choose(device, call, own=False))} if self._precision == FP32X else {})
        if device.kind == "gpu" and not lacking(device, call):
            found["cublas"] = Choice("cublas", None)
        if device.kind == "cpu":
            found["numpy"] = Choice("numpy", None)
        if not unsuited(device, call):
            same = (s.choice for s in self.shapes if (s.problem, s.machine, s.precision) == (shape.problem, shape.machine, FP32X))
            found[FP32X] = next(same, None) or plain(fp32x_choice(device, call))
        return found

    def _say(self, shape: Shape, mark: bool = False) -> None:
        """Bring the figures up to date with all samples there are, and tell the display."""
        known = {"best": shape.choice, "untuned": shape.start}
        medians = {n: e.median for n, c in known.items() if c and (e := shape._kept.get(c)) and e.status == "right"}
        shape.best, shape.untuned = medians.get("best", math.inf), medians.get("untuned", math.inf)
        if mark:
            shape.trace.append((time.monotonic() - self._begin, shape.best))
        self._changes.put(shape)

    def _learn(self, shape: Shape, choice: Choice, sampled: Sampled, again: bool = False) -> None:
        """Store an outcome; samples of one configuration of this run and earlier ones are kept together."""
        old = shape._kept.get(choice)
        if old is not None and old.status == "right" == sampled.status:
            sampled = replace(
                sampled, seconds=old.seconds + sampled.seconds, cold_seconds=old.cold_seconds + sampled.cold_seconds,
                clocks_mhz=old.clocks_mhz + sampled.clocks_mhz, marked=old.marked + sampled.marked,
            )  # fmt: skip
        entry = entry_of(shape.machine, shape.problem, choice, sampled)
        self._store.add(entry)
        shape._kept[choice] = entry
        shape._seen.add(entry.key)
        if not again:
            with self._lock:
                shape.counts[sampled.status] += 1


def _doubtful(outcome: Outcome, with_incumbent: bool) -> bool:
    """Whether somebody else may be to blame: a process that was killed from outside, or a choice that was right before.

    Such a trial is repeated once, so that nothing good is condemned for it.
    """
    said = [outcome.trouble, *(s.message for s in outcome.sampled if s.status == "crashed")]
    if any(signal in one for one in said for signal in ("SIGKILL", "SIGTERM")):
        return True
    return with_incumbent and bool(outcome.sampled) and outcome.sampled[0].status not in ("right", "")


def _faster(outcome: Outcome) -> bool:
    """Whether the last choice is faster than the first beyond doubt."""
    mine, theirs = pairs(outcome.sampled[0], outcome.sampled[-1])
    return bool(mine) and paired_ratio(mine, theirs).low > 1


def _first_ready(pending: list[tuple[Choice, Future[str] | None]]) -> tuple[Choice, str]:
    """Take the first whose binary is made; with what is wrong with it."""
    futures = [f for _, f in pending if f is not None]
    if len(futures) == len(pending):
        wait(futures, timeout=COMPILING, return_when=FIRST_COMPLETED)
    place = next((i for i, (_, f) in enumerate(pending) if f is None or f.done()), 0)
    choice, future = pending.pop(place)
    if future is None or not future.done():
        return choice, ""
    try:
        return choice, future.result()
    except BrokenProcessPool:
        return choice, ""  # the worker compiles it, where a crash is recorded
    except Exception as error:
        return choice, f"{type(error).__name__}: {error}"


def _ranked(order: Future[list[Choice]] | None) -> list[Choice]:
    if order is None:
        return []
    try:
        return order.result(timeout=COMPILING)
    except Exception:  # a pool that broke: it is ranked here
        return []


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
