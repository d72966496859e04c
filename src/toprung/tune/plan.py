"""Planning by measuring: what competes for a call is timed in turns, once, and stored; the store's exact entries decide then.

    python -m toprung.tune.plan FD DEVICE

is the process that ``planner.py`` asks: it ranks and compiles on all cores, and has the device measured by ``worker.py``. The check
of the promise plans with ``measure``, too.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection

from toprung import backends
from toprung.blas.choice import Choice
from toprung.problem import Problem
from toprung.store import Store
from toprung.tune.compiler import Compiler
from toprung.tune.executors.base import Lane
from toprung.tune.executors.local import LocalLane
from toprung.tune.rivals import planned
from toprung.tune.trial import Outcome, Sampled, Trial, entry_of
from toprung.tune.worker import outlive_nobody

TURNS, LEAST = 11, 7
"""Samples of each. None is left out early: a median of one sample, taken while the host was disturbed or was not, is no rival to
one of eleven, and calls of another precision, or with ``own=True``, choose among those that are far behind the fastest."""

NEAR = 1.25
"""How many times as long as the fastest a choice may take to get a second look: what disturbs a host lengthens the times of small
calls by as much, and never shortens them."""

RUN, MOST = 5.0, 3.0
"""Seconds that a run may take, and seconds of all turns: a product that takes long needs few."""


def surviving(lane: Lane, trial: Trial, first: int) -> tuple[Outcome, list[tuple[Choice, Sampled]]]:
    """The outcome of those that do not take the worker down, and each choice with what became of it.

    Any from ``first`` on is left out where it does, and the others are measured all the same.
    """
    choices = list(trial.choices)
    lost: list[tuple[Choice, Sampled]] = []
    while True:
        outcome = lane.run(replace(trial, choices=tuple(choices)))
        culprit = next((i for i, s in enumerate(outcome.sampled) if i >= first and s.status in ("crashed", "timeout")), None)
        if culprit is None:
            return outcome, [*zip(choices, outcome.sampled, strict=False), *lost]
        lost.append((choices.pop(culprit), outcome.sampled[culprit]))


def measure(lane: Lane, problem: Problem, choices: Sequence[Choice], store: Store, seed: int = 0) -> str:
    """Verify and time choices in one trial, and store every one; why that could not be, empty where it could.

    Those near the fastest take turns in a second trial, and of both looks at one the quicker is kept: what goes wrong there counts.

    Raises
    ------
    StoreError
        the store cannot be written
    """
    trial = Trial(problem, tuple(choices), TURNS, LEAST, hopeless=math.inf, limit=RUN, most=MOST, seed=seed)
    outcome, looked = surviving(lane, trial, 0)
    found = dict(looked)
    fastest = min((s.median for s in found.values()), default=math.inf)
    near = tuple(c for c, s in looked if s.median <= NEAR * fastest < math.inf)
    if len(near) > 1:
        for choice, sampled in surviving(lane, replace(trial, choices=near), 0)[1]:
            if sampled.status not in ("", "right") or sampled.median < found[choice].median:
                found[choice] = sampled
    entries = [entry_of(lane.machine, problem, c, s) for c, s in found.items() if s.status and (s.status != "right" or s.seconds)]
    if entries:
        store.add(*entries)
    return outcome.trouble if any(e.status == "right" for e in entries) else outcome.trouble or "nothing that was tried was right"


def plan(lane: Lane, compiler: Compiler, problem: Problem, precision: str, store: Store) -> str:
    """Measure a problem for calls of a precision; as ``measure``."""
    fingerprint, order = lane.start(), compiler.rank(problem)
    made: dict[Choice, Future[str] | None] = {}
    for known in (None, order) if order else (None,):  # what needs no ranking is compiled meanwhile
        for choice in planned(lane.device, problem, precision, store, lane.machine, known):
            if choice not in made:
                made[choice] = compiler.ahead(choice, fingerprint)
    for future in made.values():
        if future is not None:
            future.exception()  # the worker finds out what is wrong with it
    return measure(lane, problem, list(made), store)


def main(words: list[str]) -> None:
    """The process: plan what it is asked to until the parent is gone."""
    talk = Connection(int(words[0]))
    threading.Thread(target=outlive_nobody, args=(os.getppid(),), daemon=True).start()
    try:
        lane = LocalLane(backends.find(words[1]))
        lane.start()
    except Exception as error:
        talk.send({"trouble": str(error)})
        return
    compiler = Compiler(lane.device)
    talk.send({"fingerprint": ""})
    try:
        while True:
            problem, precision, path = talk.recv()
            store = Store(path)
            try:
                with store.instead():
                    talk.send(plan(lane, compiler, problem, precision, store))
            except Exception as error:
                talk.send({"trouble": f"{type(error).__name__}: {error}"})
    except (EOFError, OSError):
        compiler.close()
        lane.close()


if __name__ == "__main__":
    main(sys.argv[1:])
