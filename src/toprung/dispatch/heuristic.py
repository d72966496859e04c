"""The heuristic: among the families that support a product, the candidate of least predicted time."""

from __future__ import annotations

import math
from typing import NamedTuple

from toprung.device import Device
from toprung.dispatch.selection import Candidate, PassedOver, Selection
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.base import KernelFamily
from toprung.kernels.registry import families

SHOWN = 4
"""Candidates passed over that a selection names, beside the best of each other family."""

MARGIN = 1.2
"""Factor by which a family of another precision must be faster than plain fp32 by its prediction to be taken."""

NEAR = 1.25
"""Most that such a family may take by its prediction, in times of plain fp32, to be worth measuring."""


class Predicted(NamedTuple):
    """A candidate and its predicted seconds."""

    seconds: float
    candidate: Candidate


def members(precision: str, own: bool | None = None, memory: str = "device") -> tuple[KernelFamily, ...]:
    """Return the families of an accuracy class for operands in a memory; ``own``: only toprung's, or only what is installed."""
    return tuple(f for f in families() if (f.precision, f.memory) == (precision, memory) and own in (None, f.own))


def ranked(device: Device, desc: Desc, precision: str = "fp32", own: bool | None = True) -> list[Predicted]:
    """Return the candidates of an accuracy class that the heuristic weighs, least predicted time first."""
    found = [
        Predicted(one.cost(device, desc, config), Candidate(one, config))
        for one in members(precision, own)
        if not one.supports(device, desc)
        for config in one.candidates(device, desc)
    ]
    return sorted(found, key=lambda p: p.seconds)


def select_own(device: Device, desc: Desc, precision: str = "fp32", order: list[Predicted] | None = None) -> Selection:
    """Return toprung's own kernel for a product that nobody has tuned, whatever is stored; ``order``: ``ranked``, if at hand."""
    best, *others = order or ranked(device, desc, precision)
    first: dict[KernelFamily, Predicted] = {}
    for one in others:
        if one.candidate.family is not best.candidate.family and one.seconds < math.inf:
            first.setdefault(one.candidate.family, one)
    named = list(first.values())
    named += [p for p in others if p not in named and p.seconds < math.inf][: max(0, SHOWN - len(named))]
    passed = tuple((str(p.candidate), f"{p.seconds / best.seconds:.2f} times as long by the cost model") for p in named)
    return selection(device, desc, best.candidate, passed)


def selection(device: Device, desc: Desc, candidate: Candidate, passed: PassedOver = ()) -> Selection:
    """Return a candidate with its family's reason."""
    return Selection(candidate, candidate.family.reason(device, desc, candidate.config), passed)


def first_candidates(device: Device, desc: Desc, most: int) -> list[Candidate]:
    """Return the first plain fp32 candidates of a GPU by the cost model; on a CPU it weighs few."""
    if device.kind != "gpu" or desc.is_empty:
        return []
    return [p.candidate for p in ranked(device, desc)[:most] if p.seconds < math.inf]


def installed(device: Device, desc: Desc) -> Predicted | None:
    """Return the best plain fp32 candidate of what is installed, on operands in the device's memory; None where there is none."""
    return next(iter(ranked(device, desc, own=False)), None)


def ratio(device: Device, desc: Desc, theirs: KernelFamily, order: list[Predicted] | None = None) -> float:
    """Return another family's predicted time over that of our best: infinite where nothing is computed, 0 where we have nothing.

    ``order``: our ``ranked``, if at hand.
    """
    if desc.is_empty:
        return math.inf
    ours = order or ranked(device, desc)
    costs = [theirs.cost(device, desc, config) for config in theirs.candidates(device, desc)]
    return min(costs, default=math.inf) / ours[0].seconds if ours and ours[0].seconds < math.inf else 0.0


def loss(device: Device, desc: Desc, candidate: Candidate) -> float | None:
    """Return how many times as long as the best prediction a candidate takes; None where its family's model cannot tell."""
    mine = candidate.family.relative_cost(device, desc, candidate.config)
    best = ranked(device, desc, candidate.family.precision)
    return mine / best[0].seconds if mine is not None and best and 0 < best[0].seconds < math.inf else None


def slower_than_fp32(device: Device, desc: Desc, family: KernelFamily) -> str:
    """Return why a family of another precision should not be expected to be faster than plain fp32; empty where it should."""
    if not desc.result.elements:
        return "the result is empty"
    ours, plain = against_fp32(device, desc, family)
    if ours * MARGIN <= plain:
        return ""
    return f"{family.precision} would take about {ours * 1e6:.0f} us with all its launches, plain fp32 {plain * 1e6:.0f}"


def against_fp32(device: Device, desc: Desc, family: KernelFamily) -> tuple[float, float]:
    """Return the predicted seconds of a family's best candidate, and of plain fp32 by operations and bytes alone."""
    assert isinstance(desc, GemmDesc)
    ours = min((family.cost(device, desc, config) for config in family.candidates(device, desc)), default=math.inf)
    return ours, cost_model.plain_fp32_seconds(desc)


def promising(device: Device, desc: Desc, family: KernelFamily) -> bool:
    """Return True if a family of another precision is, or may be, faster than plain fp32."""
    ours, plain = against_fp32(device, desc, family)
    return ours <= NEAR * plain
