"""Candidates for a product: the selected one, and others that might be faster; autotuning and the check measure them."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice

from toprung.device import Device
from toprung.dispatch import mixed
from toprung.dispatch.ranking import BY_SECONDS, Predicted, members, promising, ranked, select_own
from toprung.dispatch.select import FASTER, faster_families, select
from toprung.dispatch.selection import Candidate, Selection
from toprung.dispatch.tuned import HERE, Measured, is_ours
from toprung.errors import StoreError, Unsupported
from toprung.gemm.classes import class_of
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels.base import NoConfig, candidates
from toprung.kernels.registry import families
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import Problem
from toprung.store import Machine, Store
from toprung.tune.compiler import COMPILING
from toprung.tune.space import CallSpace

CANDIDATES = 2
"""Number of top-ranked candidates measured beside the selected one, and number of the store's neighbours."""

NEXT = 4
"""Number of top-ranked candidates of the heuristic that autotuning on first use times."""

CHECKED = 8
"""Least number of candidates of which a check calls the fastest the best, as far as the cost models know as many."""

FASTER_CANDIDATES = 1
"""Number of candidates of each other accuracy class: a check of both classes takes at most a third longer, because most of the time
goes into verifying each candidate."""


def selected(device: Device, problem: Problem, precision: str = "fp32") -> Selection:
    """Return the selection that a program gets for a problem with arrays in the device's memory; on a CPU, with NumPy arrays."""
    desc = problem.desc
    if not desc.is_vector and desc.is_mixed:
        halves = mixed.select(device, desc, precision)
        if isinstance(halves, str):
            raise Unsupported(f"{problem}: its halves are converted first, {halves}")
        return halves
    if device.kind == "cpu" and isinstance(problem, Gemm):
        beside = HERE.at(device, desc).beside_host()
        if beside is None or beside[1] < beside[0]:
            measured = (
                "it was faster when both were measured" if beside else "the arrays are on the host, and nothing says ours is faster"
            )
            return Selection(host_candidates()[0], f"the host's BLAS: {measured}")
    return select(device, desc, False, precision)


def host_candidates() -> list[Candidate]:
    """Return the candidates that multiply arrays in the host's memory: the host's BLAS."""
    return [Candidate(f, NoConfig()) for f in families() if f.memory == "host"]


def installed(device: Device, desc: Desc) -> list[Candidate]:
    """Return the plain fp32 candidates of installed libraries, for operands in the device's memory."""
    return [Candidate(f, NoConfig()) for f in members("fp32", own=False) if not f.supports(device, desc)]


def check_candidates(
    device: Device, problem: Problem, precision: str, mine: Selection, store: Store, machine: Machine,
    order: Future[list[Candidate]] | None,
) -> tuple[Selection, list[Candidate]]:  # fmt: skip
    """Return the selection, and other candidates that might be faster: baselines, the store's neighbours, the top-ranked ones.

    ``order`` is the ranking of plain fp32 that another process computes; if it fails, the reason is added to ``why`` of ``mine``.
    """
    if not problem.desc.is_vector and problem.desc.is_mixed:
        return mine, mixed_candidates(device, problem.desc, precision, mine.candidate)
    others, desc = baselines(device, problem, store, machine, precision), problem.desc
    for family in faster_families(precision):
        if not family.supports(device, desc) and (precision != "auto" or promising(device, desc, family)):
            space = CallSpace(device, desc, precision=family.precision)
            known = {mine.candidate, *others}
            if not any(c.family is family for c in known):  # what is said of one family says nothing of another
                others += [p.candidate for p in ranked(device, desc, family.precision) if p.family is family][:1]
            others += islice((c for c in space.ranked() if c not in {*known, *others}), FASTER_CANDIDATES)
    if order is not None:
        try:
            others += order.result(timeout=COMPILING)[:CANDIDATES]
        except Exception as error:
            mine = replace(mine, why=f"{mine.why} (the model could not be asked: {error})")
    return mine, [c for c in dict.fromkeys(others) if c != mine.candidate]


def mixed_candidates(device: Device, desc: GemmDesc, precision: str, mine: Candidate) -> list[Candidate]:
    """Return the top-ranked other candidates that read halves as they lie, and the first of each family that has no cost yet."""
    order = [p for p in mixed.ranked(device, desc, precision)[0] if p.candidate != mine]
    known = [p.candidate for p in order if p.seconds < math.inf][:NEXT]
    uncosted = {p.candidate.family: p.candidate for p in reversed(order) if p.seconds == math.inf}
    return [*known, *uncosted.values()]


def filled(device: Device, problem: Problem, precision: str, mine: Candidate, others: list[Candidate]) -> list[Candidate]:
    """Return other candidates than the selected one, with the next of the cost models' order until there are ``CHECKED`` in all."""
    desc = problem.desc
    able = dict.fromkeys(p.family for p in mixed.ranked(device, desc, precision)[0])  # families, each for its best candidates alone
    costs = (Predicted(f.cost(device, desc, c), f, c) for f in able for c in candidates(f, device, desc))
    more = (p.candidate for p in sorted(costs, key=BY_SECONDS) if p.seconds < math.inf)
    found = dict.fromkeys((mine, *others))
    while len(found) < CHECKED and (one := next(more, None)):
        found[one] = None
    return [c for c in found if c != mine]


def first_use_candidates(
    device: Device, problem: Problem, precision: str, store: Store, machine: Machine, order: Future[list[Candidate]] | None
) -> list[Candidate]:
    """Return the candidates that autotuning on first use measures, the selected one first.

    They are the ``check_candidates`` of each accuracy class and the heuristic's next ones; on a CPU also the host's BLAS.
    """
    desc = problem.desc
    suited = any(not f.supports(device, desc) for f in faster_families("auto"))
    found: list[Candidate] = []
    for path in dict.fromkeys((precision, *(("fp32",) if precision not in FASTER else ()))) if suited else ("fp32",):
        plain = order if path == "fp32" else None
        mine, others = check_candidates(device, problem, path, selected(device, problem, path), store, machine, plain)
        found += [mine.candidate, *others]
    if not suited or precision not in FASTER:
        next_ones = ranked(device, desc)[:NEXT] if device.kind == "gpu" and not desc.is_empty else []  # on a CPU few are weighed
        found += [p.candidate for p in next_ones if p.seconds < math.inf]
    if device.kind == "cpu":  # the arrays may be the host's
        found += host_candidates()
    return list(dict.fromkeys(found))


def baselines(device: Device, problem: Problem, store: Store, machine: Machine, precision: str = "fp32") -> list[Candidate]:
    """Return other candidates that might be faster: the heuristic's, the store's nearest, and the installed library.

    For fp32x they are the heuristic's and the store's nearest; for ``auto`` also the selection of each accuracy class.
    """
    desc = problem.desc
    if precision != "fp32":
        made = [selected(device, problem, path).candidate for path in ("fp32", *FASTER)] if precision == "auto" else []
        for family in faster_families(precision):
            if not family.supports(device, desc) and (precision != "auto" or promising(device, desc, family)):
                made.append(select_own(device, desc, family.precision).candidate)
                made += _near(device, desc, store, machine, family.precision)
        return list(dict.fromkeys(made))
    found = [select_own(device, desc).candidate, *_near(device, desc, store, machine, "fp32")]
    found += islice(CallSpace(device, desc).ranked(), CANDIDATES) if device.kind == "cpu" else []
    found += installed(device, desc) if device.kind == "gpu" else []
    found += host_candidates() if device.kind == "cpu" and isinstance(problem, Gemm) else []
    return list(dict.fromkeys(found))


def _near(device: Device, desc: Desc, store: Store, machine: Machine, precision: str) -> list[Candidate]:
    """Return the fastest candidates of the store's nearest shapes in an accuracy class, adapted to a product."""
    try:
        near = store.neighbours(machine, class_of(desc), desc.sizes, kept=lambda e: is_ours(e.kernel, precision))
    except StoreError:
        return []
    most = CANDIDATES if precision == "fp32" else FASTER_CANDIDATES
    made = (Measured(entry, machine).fitted(device, desc, False) for entry in near[:most])
    return [c for c in made if isinstance(c, Candidate)]
