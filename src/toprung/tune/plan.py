"""Autotuning on first use: the candidates of a call are timed in turns, once, and stored; the exact-size entries then decide.

    python -m toprung.tune.plan FD DEVICE

is the process that ``planner.py`` asks: it ranks and compiles on all cores, and has the device measured by ``worker.py``. The check
of the promise autotunes with ``measure``, too.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from multiprocessing.connection import Connection

from toprung import backends
from toprung.dispatch.selection import Candidate
from toprung.oracle.problem import Problem
from toprung.store import Store
from toprung.tune.candidates import first_use_candidates
from toprung.tune.compiler import COMPILING, Compiler
from toprung.tune.executors.base import Lane
from toprung.tune.executors.local import LocalLane
from toprung.tune.trial import Outcome, Sampled, Trial, entry_of
from toprung.tune.worker import outlive_nobody

TURNS, LEAST = 11, 7
"""Samples of each candidate, at most and at least. No candidate is dropped early: a median of one sample, taken on a host that may
have been disturbed, does not compare with one of eleven, and calls of another precision, or with ``own=True``, select among
candidates that are far behind the fastest."""

NEAR = 1.25
"""Largest time of a candidate, as a multiple of the fastest, that is measured a second time: disturbances of the host lengthen
small calls by as much, and never shorten them."""

RUN, MOST = 5.0, 3.0
"""Largest seconds of one run of a candidate, and of all turns together: a product that takes long needs few turns."""


def surviving(lane: Lane, trial: Trial, first: int) -> tuple[Outcome, list[tuple[Candidate, Sampled]]]:
    """Run a trial without the candidates that take the worker down; return its outcome, and every candidate with its result.

    A candidate from number ``first`` on that crashes or hangs is left out, and the others are measured again.
    """
    candidates = list(trial.candidates)
    lost: list[tuple[Candidate, Sampled]] = []
    while True:
        outcome = lane.run(replace(trial, candidates=tuple(candidates)))
        culprit = next((i for i, s in enumerate(outcome.sampled) if i >= first and s.status in ("crashed", "timeout")), None)
        if culprit is None:
            return outcome, [*zip(candidates, outcome.sampled, strict=False), *lost]
        lost.append((candidates.pop(culprit), outcome.sampled[culprit]))


def measure(lane: Lane, problem: Problem, candidates: Sequence[Candidate], store: Store, seed: int = 0) -> str:
    """Verify, time and store candidates; return the reason why that was not possible, empty if it was.

    Candidates near the fastest are timed again in a second trial, and the quicker result of each is kept, unless the second trial
    finds it wrong.

    Raises
    ------
    StoreError
        the store cannot be written
    """
    trial = Trial(problem, tuple(candidates), TURNS, LEAST, hopeless=math.inf, limit=RUN, most=MOST, seed=seed)
    outcome, looked = surviving(lane, trial, 0)
    found = dict(looked)
    fastest = min((s.median for s in found.values()), default=math.inf)
    near = tuple(c for c, s in looked if s.median <= NEAR * fastest < math.inf)
    if len(near) > 1:
        for candidate, sampled in surviving(lane, replace(trial, candidates=near), 0)[1]:
            if sampled.status not in ("", "right") or sampled.median < found[candidate].median:
                found[candidate] = sampled
    entries = [entry_of(lane.machine, problem, c, s) for c, s in found.items() if s.status and (s.status != "right" or s.seconds)]
    if entries:
        store.add(*entries)
    return outcome.trouble if any(e.status == "right" for e in entries) else outcome.trouble or "nothing that was tried was right"


def plan(lane: Lane, compiler: Compiler, problem: Problem, precision: str, store: Store) -> str:
    """Autotune a problem for calls of a precision; return the reason why that was not possible, empty if it was."""
    fingerprint, order = lane.start(), compiler.rank(problem)
    made: dict[Candidate, Future[str] | None] = {}
    for known in (None, order) if order else (None,):  # compile what needs no ranking meanwhile
        for candidate in first_use_candidates(lane.device, problem, precision, store, lane.machine, known):
            if candidate not in made:
                made[candidate] = compiler.ahead(candidate, problem.desc, fingerprint)
    wait(filter(None, made.values()), timeout=COMPILING)  # the worker compiles what is missing, and reports errors itself
    return measure(lane, problem, list(made), store)


def main(words: list[str]) -> None:
    """Autotune each problem that the parent sends until the parent is gone: the main function of the process."""
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
