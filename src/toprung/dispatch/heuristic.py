"""The heuristic: among the families that support a product, the candidate of least predicted time."""

from __future__ import annotations

import math
from collections.abc import Callable

from toprung.device import Device
from toprung.dispatch.ranking import Predicted, against_fp32, ranked
from toprung.dispatch.selection import Candidate, Others, Selection
from toprung.gemm.desc import Desc
from toprung.kernels.base import KernelFamily

SHOWN = 4
"""Candidates passed over that a selection names, beside the best of each other family."""


def select_own(device: Device, desc: Desc, precision: str = "fp32", order: list[Predicted] | None = None) -> Selection:
    """Return toprung's own kernel for a product that nobody has tuned, whatever is stored; ``order``: ``ranked``, if at hand."""
    best, *others = order or ranked(device, desc, precision)
    first: dict[KernelFamily, Predicted] = {}
    for one in others:
        if one.family is not best.family and one.seconds < math.inf:
            first.setdefault(one.family, one)
    named = list(first.values())
    named += [p for p in others if p not in named and p.seconds < math.inf][: max(0, SHOWN - len(named))]
    return selection(device, desc, best, tuple([(p, p.seconds / best.seconds) for p in named]))


def selection(device: Device, desc: Desc, of: Predicted, others: Others = ()) -> Selection:
    """Return a candidate with its family's reason."""
    return Selection(of.candidate, of.family.reason(device, desc, of.config), others)


def first_candidates(device: Device, desc: Desc, most: int) -> list[Candidate]:
    """Return the first plain fp32 candidates of a GPU by the cost model; on a CPU it weighs few."""
    if device.kind != "gpu" or desc.is_empty:
        return []
    return [p.candidate for p in ranked(device, desc)[:most] if p.seconds < math.inf]


def installed(device: Device, desc: Desc) -> Predicted | None:
    """Return the best plain fp32 candidate of what is installed, on operands in the device's memory; None where there is none."""
    return next(iter(ranked(device, desc, own=False)), None)


def slower_than_fp32(device: Device, desc: Desc, family: KernelFamily, weighed: Callable[[], float] | None = None) -> str:
    """Return why a family of another precision should not be expected to be faster than plain fp32; empty where it should.

    ``weighed``: see ``against_fp32``.
    """
    if not desc.result.elements:
        return "the result is empty"
    ours, plain = against_fp32(device, desc, family, weighed)
    if ours * family.margin <= plain:
        return ""
    return f"{family.precision} would take about {ours * 1e6:.0f} us with all its launches, plain fp32 {plain * 1e6:.0f}"
