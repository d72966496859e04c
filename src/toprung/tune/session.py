"""A tuning run: shapes are shared out to lanes, and each trial's outcome is stored before the next begins."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from toprung.device import Device
from toprung.dispatch.ranking import select_own
from toprung.dispatch.select import FASTER, faster_families, of_precision, paths, select, unsuited
from toprung.dispatch.selection import Candidate, decoded
from toprung.dispatch.tuned import is_ours, refusal, version
from toprung.errors import NoDevice, UnknownName, Unsupported
from toprung.forks import renewed
from toprung.gemm.classes import class_of
from toprung.lab.harness.stats import Interval, paired_ratio
from toprung.oracle.problem import Problem
from toprung.store import Entry, Machine, Store, candidate_key, shape_text
from toprung.store.entry import NOISY, scatter
from toprung.tune.candidates import host_candidates, installed
from toprung.tune.compiler import COMPILING, Compiler
from toprung.tune.executors.base import Executor, Lane, LaneLost
from toprung.tune.search import Exhaustive, Strategy, strategy
from toprung.tune.space import CallSpace, Space
from toprung.tune.trial import Outcome, Sampled, Trial, entry_of, pairs

FINALS = 0.8
"""Share of a shape's time for the search; the rest is for the final comparison of the best with the untuned candidate."""

FINAL_TURNS, COLD = 15, 3
"""Samples of each candidate in the final comparison: warm, and with operands in no cache."""

COLD_SHARE = 1.0
"""Least seconds of a shape's budget with which it is measured cold, too: with less that would take longer than the search."""

ORDINARY = 20
"""Number of configurations after which an exhaustive search notes what the usual one would have found: about as many as a run of a
minute tries for each default shape on an H200. A fifth of a budget at most."""

PRECISIONS = ("auto", "fp32", "fp32x")
"""Precisions that can be tuned: plain fp32, fp32x, or ``auto``: both where fp32x is or may be the faster of them."""

FASTER_WEIGHT = 0.5
"""Time of an fp32x search / time of a plain fp32 search: its space is small, and its cost model accurate."""

LOOK_AHEAD = 3
"""Number of shapes whose candidates are ranked while another is measured."""


@dataclass(frozen=True)
class Budget:
    """Limit of a run: seconds, or a number of configurations; both None: until everything is tried."""

    seconds: float | None = None
    trials: int | None = None


@dataclass
class Shape:
    """One problem on one kind of machine, with the state of its search.

    Attributes
    ----------
    precision : the path that is searched, ``fp32`` or ``fp32x``
    state : ``waiting``, ``running``, ``done`` (its time is over), ``exhausted`` (there is no more to try) or ``failed``
    note : reason of a failure
    untuned, best : seconds of the untuned candidate and of the best so far; infinite where unknown
    start, candidate : the untuned candidate, and the best so far
    counts : number of configurations by status
    discarded : number of configurations that were not run, because the lower bound of their time exceeds the best
    trace : (seconds since the run began, best seconds so far)
    finals : samples of the last comparison by name (``untuned``, ``best``, a vendor's)
    gain : untuned / best with its confidence interval, from the last comparison
    ordinary : in an exhaustive search, the best of the first ``after`` configurations, which the usual strategy tried; if ``after``
        is 0, the best of an earlier run
    behind : ordinary / best with its confidence interval, from the last comparison
    legal : approximate number of legal configurations, counted by an exhaustive search only
    recalled : True if an earlier run had found something
    """

    problem: Problem
    machine: Machine
    precision: str = "fp32"
    state: str = "waiting"
    note: str = ""
    untuned: float = math.inf
    best: float = math.inf
    start: Candidate | None = None
    candidate: Candidate | None = None
    counts: Counter[str] = field(default_factory=Counter)
    discarded: int = 0
    trace: list[tuple[float, float]] = field(default_factory=list)
    finals: dict[str, Sampled] = field(default_factory=dict)
    gain: Interval | None = None
    ordinary: Candidate | None = None
    after: int = 0
    behind: Interval | None = None
    legal: int = 0
    recalled: bool = False
    _until: int = field(default=0, repr=False)
    _order: Future[list[Candidate]] | None = field(default=None, repr=False)
    _final: Candidate | None = field(default=None, repr=False)
    _search: Any = field(default=None, repr=False)
    _left: list[Candidate] = field(default_factory=list, repr=False)
    _kept: dict[Candidate, Entry] = field(default_factory=dict, repr=False)
    _seen: set[str] = field(default_factory=set, repr=False)

    @property
    def tried(self) -> int:
        """Number of configurations that this run tried, right or not."""
        return sum(self.counts.values())

    @property
    def scatter(self) -> tuple[float, str]:
        """The largest scatter of samples in the last comparison, and the name of the candidate that has it."""
        return max(((scatter(s.seconds), name) for name, s in self.finals.items()), default=(0.0, ""))

    @property
    def weight(self) -> float:
        """Weight of the search in the sharing of time: 1 for plain fp32."""
        return FASTER_WEIGHT if self.precision in FASTER else 1.0

    def compared(self, name: str, other: str) -> Interval | None:
        """Return time of one / time of another in the last comparison; None where one has no sample there."""
        if not {name, other} <= self.finals.keys():
            return None
        mine, theirs = pairs(self.finals[name], self.finals[other])
        return paired_ratio(mine, theirs) if mine else None

    def step_back(self) -> None:
        """Replace the best by the ordinary or the untuned candidate if the last comparison shows that one to be faster."""
        if (ratio := self.compared("ordinary", "best")) is not None and ratio.high < 1:
            self.candidate, self.finals["best"] = self.ordinary, self.finals["ordinary"]
        if (ratio := self.compared("untuned", "best")) is not None:
            if ratio.value < 1:
                self.candidate, self.finals["best"] = self.start, self.finals["untuned"]
            self.gain = self.compared("untuned", "best")
        self.behind = self.compared("ordinary", "best")

    @property
    def beyond(self) -> bool:
        """True if an exhaustive search has gone through the model's order."""
        return isinstance(self._search, Exhaustive) and self._search.beyond

    def describe(self) -> dict[str, Any]:
        """Return the shape as JSON-ready data; for an exhaustive search with every configuration that was measured."""
        candidates = {"start": self.start, "best": self.candidate}
        exhaustive: dict[str, Any] = {}
        if self.legal:
            measured = [
                {**c.encode(), "status": e.status, "seconds": _finite(e.median)}
                for c, e in self._kept.items() if is_ours(e.kernel, self.precision)
            ]  # fmt: skip
            exhaustive = {"exhaustive": {
                "legal": self.legal, "beyond_model": self.beyond, "ordinary": self.ordinary.encode() if self.ordinary else None,
                "after": self.after, "behind": vars(self.behind) if self.behind else None, "measured": measured,
            }}  # fmt: skip
        return {
            "problem": self.problem.describe(), "precision": self.precision, "class": class_of(self.problem.desc),
            "state": self.state, "note": self.note,
            "untuned_seconds": _finite(self.untuned), "best_seconds": _finite(self.best),
            **{name: c.encode() if c else None for name, c in candidates.items()},
            "counts": dict(self.counts), "discarded": self.discarded, "trace": [list(t) for t in self.trace],
            "gain": vars(self.gain) if self.gain else None,
            "finals": {
                name: {"seconds": list(s.seconds), "cold_seconds": list(s.cold_seconds), "status": s.status, "message": s.message}
                for name, s in self.finals.items()
            },
            **exhaustive,
        }  # fmt: skip


class Ordered:
    """A space whose first candidates were ranked by another process."""

    def __init__(self, space: CallSpace, first: Sequence[Candidate]) -> None:
        self._space, self._first = space, first
        self.neighbours, self.draw, self.size, self.all = space.neighbours, space.draw, space.size, space.all

    def ranked(self) -> Iterator[Candidate]:
        yield from self._first
        yield from self._space.ranked()


class Tuner:
    """A run of the tuner.

    Attributes
    ----------
    shapes : shapes to tune with their state, for the display
    notes : messages for the user at the end
    load : programs that wanted a core, on average over the minute before
    """

    def __init__(
        self, problems: Sequence[Problem], executor: Executor, store: Store, budget: Budget, search: str = "climb", seed: int = 0,
        limit: float = 20.0, exhaustive: bool = False, precision: str = "auto",
    ) -> None:  # fmt: skip
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
            Shape(p, m, path) for m in machines for p in problems for path in paths(self._first_device[m], p.desc, precision)
        ]  # fmt: skip
        if not self.shapes and problems and machines:
            device = self._first_device[machines[0]]
            raise Unsupported(f"nothing to be tuned in {precision}: {unsuited(device, problems[0].desc, precision)}")
        self.notes: list[str] = []
        # a run that was too short for all shapes goes on with those it did not reach
        order = sorted(self.shapes, key=self._was_tried)
        self._waiting = {m: deque(s for s in order if s.machine == m) for m in machines}
        self._running: Counter[Machine] = Counter()
        self._changes: queue.SimpleQueue[Shape] = queue.SimpleQueue()
        self._stop, self._lock = threading.Event(), renewed(threading.Lock())
        self._error: Exception | None = None
        self._begin, self.elapsed = 0.0, 0.0
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    @property
    def tried(self) -> int:
        """Number of configurations tried over all shapes."""
        return sum(s.tried for s in self.shapes)

    def run(self) -> Iterator[Shape | None]:
        """Tune, and yield a shape whenever something of it has changed, and None now and then.

        Leave the loop, or raise in it, to end the run: everything measured is stored.

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
        except Exception as error:  # a bug, or the store failed: nothing more may be tried, and nothing stored is lost
            self._error = error
            self._stop.set()

    def _next(self, lane: Lane) -> tuple[Shape, Budget] | None:
        """Return the next shape of a lane's machine and its budget; wait while another lane may still give a shape back.

        None: the run is over, or nothing is left for this machine.
        """
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
        """Start ranking the candidates of this shape and the next ones, on cores that would idle."""
        with self._lock:
            for one in [shape, *list(self._waiting[lane.machine])[:LOOK_AHEAD]]:
                if one._order is None and one._search is None and one.precision == "fp32":  # spaces of other precisions are small
                    one._order = compiler.rank(one.problem)

    def _share(self, shape: Shape, waiting: Sequence[Shape], lanes: int) -> Budget:
        part = shape.weight / (shape.weight + sum(s.weight for s in waiting))
        if self._budget.seconds is not None:
            rest = self._begin + self._budget.seconds - time.monotonic()
            return Budget(seconds=max(0.0, rest) * part * min(lanes, len(waiting) + 1))
        if self._budget.trials is not None:
            # what running shapes have left is theirs: promised twice, it left none for the last shape when lanes raced
            promised = sum(max(0, s._until - s.tried) for s in self.shapes if s.state == "running")
            trials = max(1, math.ceil((self._budget.trials - self.tried - promised) * part))
            shape._until = shape.tried + trials
            return Budget(trials=trials)
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
        desc = shape.problem.desc
        if shape.start is None:
            self._recall(shape, lane.device)
            assert shape.start is not None
            # what the user or the package knows of these sizes, or of near ones, comes before all else
            advised = [select(lane.device, desc).candidate] if shape.precision == "fp32" else []
            if not self._known(shape, shape.start) and not self._try(lane, shape, shape.start, None):
                return
            shape._left += [c for c in advised if c != shape.start and not self._known(shape, c)]
        space = CallSpace(lane.device, desc, precision=shape.precision)
        known = _ranked(shape._order)
        view: Space = Ordered(space, known) if known else space
        if shape._search is None:
            if self._exhaustive:
                shape.legal = space.legal
            shape._search = self._strategy(view, self._seed, lambda c: self._known(shape, c))
        first = 0 if share.trials is None else share.trials // 5
        first = min(ORDINARY, first or ORDINARY)
        pending: list[tuple[Candidate, Future[str] | None]] = []

        def over() -> bool:
            if share.seconds is not None and time.monotonic() > begin + FINALS * share.seconds:
                return True
            return self._over() or (share.trials is not None and shape.tried - before >= share.trials)

        state = "exhausted"
        while not over():
            if self._exhaustive and shape.ordinary is None and (shape.recalled or shape.tried >= first):
                self._exhaust(shape, view, [c for c, _ in pending])
            while len(pending) < compiler.width:
                candidate = shape._left.pop() if shape._left else shape._search.ask()
                if candidate is None and self._exhaustive and shape.ordinary is None and not pending:
                    self._exhaust(shape, view, ())
                    candidate = shape._search.ask()
                if candidate is None:
                    break
                if space.model.bound(candidate) > shape.best:
                    shape.discarded += 1
                    shape._search.tell(candidate, math.inf)
                    if over():
                        break
                    continue
                pending.append((candidate, compiler.ahead(candidate, shape.problem.desc, fingerprint)))
            if not pending:
                break
            candidate, message = _first_ready(pending)
            if message:
                self._learn(shape, candidate, Sampled("build", message))
                shape._search.tell(candidate, math.inf)
            elif not self._try(lane, shape, candidate, shape.candidate):
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

    def _exhaust(self, shape: Shape, view: Space, pending: Sequence[Candidate]) -> None:
        """Note what the usual search has found, and switch to an exhaustive search of everything that is not under way."""
        shape.ordinary, shape.after = shape.candidate, 0 if shape.recalled else shape.tried
        asked = {*pending, *shape._left}
        shape._search = Exhaustive(view, self._seed, lambda c: c in asked or self._known(shape, c))

    def _recall(self, shape: Shape, device: Device) -> None:
        """Load the store's entries of a shape: its best so far, and the configurations that were tried."""
        problem, desc = shape.problem, shape.problem.desc
        shape.start = select_own(device, desc, shape.precision).candidate
        shape._seen = self._store.tried(shape.machine, problem.describe())
        for entry in self._store.entries(shape.machine, shape=shape_text(problem.describe())):
            ours = is_ours(entry.kernel, shape.precision) and bool(entry.candidate["tile"])
            if entry.machine != shape.machine or refusal(entry) or entry.source != version(entry.kernel, shape.machine.backend):
                continue
            candidate = decoded(entry.candidate)
            shape._kept[candidate] = entry
            if entry.status == "right" and ours and entry.median < shape.best:
                shape.best, shape.candidate = entry.median, candidate
        shape.recalled = shape.candidate is not None
        self._say(shape, mark=shape.candidate is not None)

    def _known(self, shape: Shape, candidate: Candidate) -> bool:
        return candidate_key(candidate.encode(), version(candidate.kernel, shape.machine.backend)) in shape._seen

    def _try(self, lane: Lane, shape: Shape, candidate: Candidate, incumbent: Candidate | None) -> bool:
        """Measure one configuration beside the best so far; return False if the shape cannot be measured at all."""
        candidates = (candidate,) if incumbent is None else (incumbent, candidate)
        trial = Trial(shape.problem, candidates, limit=self._limit, seed=self._seed)
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
                shape._left.append(candidate)
                return True
        elif incumbent is not None:
            self._learn(shape, incumbent, outcome.sampled[0], again=True)
        if not sampled.status or (sampled.status == "right" and not sampled.seconds):
            shape._left.append(candidate)
            return True
        self._learn(shape, candidate, sampled)
        if shape._search is not None:
            shape._search.tell(candidate, sampled.median)
        better = sampled.status == "right"
        if better and shape.candidate is not None:  # faster than the incumbent by the whole confidence interval
            mine, theirs = pairs(outcome.sampled[0], outcome.sampled[-1])
            better = bool(mine) and paired_ratio(mine, theirs).low > 1
        if better:
            shape.candidate = candidate
        self._say(shape, mark=better)
        return True

    def _fallen(self, shape: Shape, incumbent: Candidate, sampled: Sampled) -> None:
        """Demote the best so far, which is no longer right, and put the next best in its place."""
        if not sampled.status:
            return
        self._learn(shape, incumbent, sampled, again=True)
        left = [
            (e.median, str(c), c) for c, e in shape._kept.items()
            if e.status == "right" and is_ours(c.kernel, shape.precision) and e.candidate["tile"] and c != incumbent
        ]  # fmt: skip
        shape.best, _, shape.candidate = min(left, key=lambda one: one[:2], default=(math.inf, "", None))

    def _finals(self, lane: Lane, shape: Shape, cold: int) -> None:
        """Compare the best with the untuned candidate and the baselines in turns: warm, and with ``cold`` cold samples."""
        if shape.candidate is None or shape.start is None:
            return
        finalists = {"best": shape.candidate, "untuned": shape.start, **self._others(lane.device, shape)}
        kept = [shape._kept.get(c) for c in finalists.values()]
        compared = shape.tried == 0 and all(e is not None and not e.noisy for e in kept)  # in an earlier run
        if shape._final == shape.candidate or compared:
            return
        candidates = tuple(dict.fromkeys(finalists.values()))
        trial = Trial(
            shape.problem, candidates, FINAL_TURNS, 7, hopeless=100.0, limit=self._limit, cold=cold, seed=self._seed
        )  # fmt: skip
        outcome = lane.run(trial)
        if any(scatter(s.seconds) > NOISY for s in outcome.sampled):  # another program was busy, and may be no longer
            outcome = lane.run(trial)
        if not outcome.sampled:
            return
        shape._final = shape.candidate
        found = dict(zip(candidates, outcome.sampled, strict=True))
        for candidate, sampled in found.items():
            if sampled.status and (sampled.status != "right" or sampled.seconds):
                self._learn(shape, candidate, sampled, again=True)
        shape.finals = {name: found[c] for name, c in finalists.items()}
        shape.step_back()
        self._say(shape, mark=True)

    def _others(self, device: Device, shape: Shape) -> dict[str, Candidate]:
        """Return what the best is compared with beside the untuned candidate, by name.

        These are the vendor's library, the best of the other precision path, and what a usual search had found.
        """
        desc, found = shape.problem.desc, {}
        if shape.ordinary is not None:
            found["ordinary"] = shape.ordinary
        if shape.precision in FASTER:  # with auto, the final comparison of plain fp32 includes fp32x already
            return found | ({"fp32": select(device, desc, own=False).candidate} if self._precision in FASTER else {})
        theirs = installed(device, desc) if device.kind == "gpu" else host_candidates() if device.kind == "cpu" else []
        found |= {one.kernel: one for one in theirs}
        for family in faster_families("auto"):
            if not family.supports(device, desc):
                wanted = shape.problem, shape.machine, family.precision
                same = (s.candidate for s in self.shapes if (s.problem, s.machine, s.precision) == wanted)
                found[family.precision] = next(same, None) or of_precision(device, desc, family.precision).candidate
        return found

    def _say(self, shape: Shape, mark: bool = False) -> None:
        """Update the seconds from all samples there are, and tell the display."""
        known = {"best": shape.candidate, "untuned": shape.start}
        medians = {n: e.median for n, c in known.items() if c and (e := shape._kept.get(c)) and e.status == "right"}
        shape.best, shape.untuned = medians.get("best", math.inf), medians.get("untuned", math.inf)
        if mark:
            shape.trace.append((time.monotonic() - self._begin, shape.best))
        self._changes.put(shape)

    def _learn(self, shape: Shape, candidate: Candidate, sampled: Sampled, again: bool = False) -> None:
        """Store an outcome, joined with the samples that this and earlier runs took of the same configuration."""
        old, entry = shape._kept.get(candidate), entry_of(shape.machine, shape.problem, candidate, sampled)
        # what was measured while another program was busy is forgotten once it can be
        if old is not None and old.status == "right" == sampled.status and (entry.noisy or not old.noisy):
            entry = replace(
                entry, seconds=old.seconds + entry.seconds, cold_seconds=old.cold_seconds + entry.cold_seconds,
                clocks_mhz=old.clocks_mhz + entry.clocks_mhz, marked=old.marked + entry.marked,
            )  # fmt: skip
        self._store.add(entry)
        shape._kept[candidate] = entry
        shape._seen.add(entry.key)
        if not again:
            with self._lock:
                shape.counts[sampled.status] += 1


def _doubtful(outcome: Outcome, with_incumbent: bool) -> bool:
    """Return True if a candidate may have failed through no fault of its own.

    That is: its process was killed from outside, or a candidate failed that was right before. Such a trial is repeated once.
    """
    said = [outcome.trouble, *(s.message for s in outcome.sampled if s.status == "crashed")]
    if any(signal in one for one in said for signal in ("SIGKILL", "SIGTERM")):
        return True
    return with_incumbent and bool(outcome.sampled) and outcome.sampled[0].status not in ("right", "")


def _first_ready(pending: list[tuple[Candidate, Future[str] | None]]) -> tuple[Candidate, str]:
    """Remove and return the first candidate whose binary is compiled, with the error message, empty on success."""
    futures = [f for _, f in pending if f is not None]
    if len(futures) == len(pending):
        wait(futures, timeout=COMPILING, return_when=FIRST_COMPLETED)
    place = next((i for i, (_, f) in enumerate(pending) if f is None or f.done()), 0)
    candidate, future = pending.pop(place)
    if future is None or not future.done():
        return candidate, ""
    try:
        return candidate, future.result(timeout=0)
    except BrokenProcessPool:
        return candidate, ""  # the worker compiles it, where a crash is recorded
    except Exception as error:
        return candidate, f"{type(error).__name__}: {error}"


def _ranked(order: Future[list[Candidate]] | None) -> list[Candidate]:
    if order is None:
        return []
    try:
        return order.result(timeout=COMPILING)
    except Exception:  # the pool broke: this process ranks
        return []


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
