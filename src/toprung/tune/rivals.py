"""What competes for a call: what a program gets, and what else might be faster. Planning measures it, and the check compares it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import islice

from toprung.blas.call import Call
from toprung.blas.choice import Choice
from toprung.blas.choose import by_model, lacking, next_by_model
from toprung.blas.fp32x import FP32X
from toprung.blas.problems import call_of, class_of, sizes_of
from toprung.blas.route import promising, reckoned_choice, route, unsuited
from toprung.blas.tuned import fitted, host_is_faster, is_ours
from toprung.device import Device
from toprung.errors import StoreError
from toprung.problem import Problem
from toprung.routines.gemm import Gemm
from toprung.store import Machine, Store
from toprung.tune.space import CallSpace
from toprung.tune.trial import plain

CANDIDATES = 2
"""Choices of the model that are measured beside the routed one, and so many of the store's neighbours."""

NEXT = 4
"""Of the model's order, so many are measured where a call is planned by measuring."""

FP32X_CANDIDATES = 1
"""The same of fp32x, so that a check of both takes at most a third longer: most of the time is the verification of each choice."""


def routed(device: Device, problem: Problem, precision: str = "fp32") -> Choice:
    """What a program gets for a problem: for arrays in the device's memory; on a CPU for NumPy's arrays."""
    call = call_of(problem)
    if device.kind == "cpu" and isinstance(problem, Gemm):
        faster = host_is_faster(device, call)
        if faster is not False:
            measured = (
                "it was faster when both were measured" if faster else "the arrays are on the host, and nothing says ours is faster"
            )
            return Choice("numpy", None, (), f"NumPy's BLAS: {measured}")
    return route(device, call, False, precision)[0]


def contenders(
    device: Device, problem: Problem, precision: str, mine: Choice, store: Store, machine: Machine,
    order: Future[list[Choice]] | None,
) -> tuple[Choice, list[Choice]]:  # fmt: skip
    """What runs, and what else might be faster: ``rivals``, and the next of the order of what may be tried.

    ``order`` is that of plain fp32, which somebody else has begun to compute; where it fails, the reason joins that of ``mine``.
    """
    others = rivals(device, problem, store, machine, precision)
    if precision == FP32X or (precision == "auto" and promising(device, call_of(problem))):
        space = CallSpace(device, call_of(problem), precision=FP32X)
        known = {plain(mine), *others}
        others += islice((c for c in map(plain, space.ranked()) if c not in known), FP32X_CANDIDATES)
    if order is not None:
        try:
            others += [plain(c) for c in order.result()[:CANDIDATES]]
        except Exception as error:
            mine = replace(mine, why=f"{mine.why} (the model could not be asked: {error})")
    return mine, [c for c in dict.fromkeys(others) if c != plain(mine)]


def planned(
    device: Device, problem: Problem, precision: str, store: Store, machine: Machine, order: Future[list[Choice]] | None
) -> list[Choice]:
    """What is measured where a call is planned by measuring, what runs first: ``contenders`` of each path, and the model's next."""
    call = call_of(problem)
    suited = not unsuited(device, call)
    found: list[Choice] = []
    for path in dict.fromkeys((precision, *(("fp32",) if precision != FP32X else ()))) if suited else ("fp32",):
        ranked = order if path == "fp32" else None
        mine, others = contenders(device, problem, path, routed(device, problem, path), store, machine, ranked)
        found += [plain(mine), *others]
    if not suited or precision != FP32X:
        found += [plain(c) for c in next_by_model(device, call, NEXT)]
    if device.kind == "cpu":  # the arrays may be the host's
        found.append(Choice("numpy", None))
    return list(dict.fromkeys(found))


def rivals(device: Device, problem: Problem, store: Store, machine: Machine, precision: str = "fp32") -> list[Choice]:
    """What else might be faster: the model's choices, the store's nearest, the library that is installed.

    Of fp32x what is reckoned for the call and the store's nearest; for ``auto`` also what each path takes.
    """
    call = call_of(problem)
    if precision != "fp32":
        made = [routed(device, problem, path) for path in ("fp32", FP32X)] if precision == "auto" else []
        if precision != "auto" or promising(device, call):
            made += [reckoned_choice(device, call), *_near(device, call, store, machine, FP32X)]
        return list(dict.fromkeys(map(plain, made)))
    found = [plain(by_model(device, call)), *_near(device, call, store, machine, "fp32")]
    found += [plain(c) for c in islice(CallSpace(device, call).ranked(), CANDIDATES)] if device.kind == "cpu" else []
    if device.kind == "gpu" and not lacking(device, call):
        found.append(Choice("cublas", None))
    if device.kind == "cpu" and isinstance(problem, Gemm):
        found.append(Choice("numpy", None))
    return list(dict.fromkeys(found))


def _near(device: Device, call: Call, store: Store, machine: Machine, precision: str) -> list[Choice]:
    """The fastest of the store's nearest shapes on a path, made to fit a call."""
    try:
        near = store.neighbours(machine, class_of(call), sizes_of(call), kept=lambda e: is_ours(e.kernel, precision))
    except StoreError:
        return []
    made = (fitted(device, call, entry, False) for entry in near[: CANDIDATES if precision == "fp32" else FP32X_CANDIDATES])
    return [plain(c) for c in made if isinstance(c, Choice)]
