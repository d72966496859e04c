"""Ranking of candidates by the families' cost models, and the heuristic: the least predicted time."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

from toprung.device import Device
from toprung.dispatch.selection import Candidate, Others, Selection
from toprung.gemm.desc import Desc
from toprung.kernels import cost_model
from toprung.kernels.base import KernelConfig, KernelFamily
from toprung.kernels.registry import families

NEAR = 1.25
"""Most that a family of another precision may take by its prediction, in times of plain fp32, to be worth measuring."""


class Predicted(NamedTuple):
    """A kernel family and configuration with its predicted seconds."""

    seconds: float
    family: KernelFamily
    config: KernelConfig

    @property
    def candidate(self) -> Candidate:
        """Family and configuration as a ``Candidate``."""
        return Candidate(self.family, self.config)

    def __str__(self) -> str:
        return str(self.candidate)


BY_SECONDS = operator.itemgetter(0)


def members(precision: str, own: bool | None = None, memory: str = "device") -> tuple[KernelFamily, ...]:
    """Return the families of an accuracy class for float32 in a memory; ``own``: only toprung's, or only what is installed."""
    return _members(families(), precision, own, memory)


@functools.cache
def _members(every: tuple[KernelFamily, ...], precision: str, own: bool | None, memory: str) -> tuple[KernelFamily, ...]:
    found = [f for f in every if (f.precision, f.memory) == (precision, memory) and "float32" in f.operand_dtypes]
    return tuple([f for f in found if own in (None, f.own)])


def able(device: Device, desc: Desc, precision: str, own: bool | None) -> tuple[KernelFamily, ...]:
    """Return those of ``members`` that support a product."""
    ours = () if own is False else [one for one, reason in reasons(device, desc, members(precision, True)).items() if not reason]
    return tuple(ours) if own else (*ours, *[one for one in members(precision, False) if not one.supports(device, desc)])


@functools.lru_cache(16)
def reasons(device: Device, desc: Desc, of: tuple[KernelFamily, ...]) -> dict[KernelFamily, str]:
    """Return ``supports`` of toprung's own families; cached, since selection calls it often."""
    return {one: one.supports(device, desc) for one in of}


@functools.lru_cache(64)
def of_family(device: Device, desc: Desc, family: KernelFamily) -> tuple[Predicted, ...]:
    """Return a family's best candidates for a product that it supports, least predicted time first; kept: selection asks often."""
    found = []
    for seconds, config in family.weighed(device, desc):
        found.append(Predicted(seconds, family, config))  # no frame of its own, as a list's would be
    return tuple(sorted(found, key=BY_SECONDS))


def least(device: Device, desc: Desc, *of: KernelFamily) -> float:
    """Return the least predicted seconds of families; infinity where they have no candidates."""
    found = math.inf
    for one in of:
        if order := of_family(device, desc, one):
            found = min(found, order[0].seconds)
    return found


def ranked(device: Device, desc: Desc, precision: str = "fp32", own: bool | None = True) -> list[Predicted]:
    """Return the candidates of an accuracy class that the heuristic weighs, least predicted time first."""
    found = [of_family(device, desc, one) for one in able(device, desc, precision, own)]
    return sorted(itertools.chain.from_iterable(found), key=BY_SECONDS)


def ratio(device: Device, desc: Desc, theirs: KernelFamily) -> float:
    """Return another family's predicted time over that of our best: infinite where nothing is computed, 0 where we have nothing."""
    if desc.is_empty:
        return math.inf
    ours = ranked(device, desc)
    return least(device, desc, theirs) / ours[0].seconds if ours and ours[0].seconds < math.inf else 0.0


@functools.lru_cache(16)
def seconds(device: Device, desc: Desc, candidate: Candidate) -> float:
    """Return a candidate's predicted seconds; cached, as a selection needs a stored neighbour's twice."""
    return candidate.family.cost(device, desc, candidate.config)


def losses(device: Device, desc: Desc, candidate: Candidate) -> tuple[float | None, float | None]:
    """Return how many times as long a candidate takes as the best prediction of its accuracy class, and of its family.

    None where its family's model cannot tell.
    """
    family = candidate.family
    if desc.is_vector or device.kind != "gpu" or not family.predicts:
        return None, None
    mine, found = seconds(device, desc, candidate), []
    for order in (ranked(device, desc, family.precision), of_family(device, desc, family)):
        best = order[0].seconds if order else 0.0
        found.append(mine / best if mine < math.inf and 0 < best < math.inf else None)
    return found[0], found[1]


def against_fp32(
    device: Device, desc: Desc, family: KernelFamily, weighed: Callable[[], float] | None = None
) -> tuple[float, float]:
    """Return the predicted seconds of a family's best candidate, and of plain fp32.

    Operations and bytes alone say how long plain fp32 takes where they say enough; else ``weighed`` returns the predicted
    seconds of its best candidate, by default of toprung's.
    """
    ours = least(device, desc, family)
    plain = cost_model.plain_fp32_seconds(desc)
    if plain - cost_model.PLAIN_START < ours * NEAR < math.inf:
        plain = weighed() if weighed else ranked(device, desc)[0].seconds
    return ours, plain


def against_installed(device: Device, desc: Desc, candidate: Candidate) -> float:
    """Return the predicted time of what is usually installed over a candidate's, whether or not this process can load it."""
    ours = seconds(device, desc, candidate)
    return least(device, desc, *members("fp32", own=False)) / ours if ours else math.inf


def promising(device: Device, desc: Desc, family: KernelFamily) -> bool:
    """Return True if a family of another precision is, or may be, faster than plain fp32."""
    ours, plain = against_fp32(device, desc, family)
    return ours <= NEAR * plain


# the heuristic: among the families that support a product, the candidate of least predicted time

SHOWN = 4
"""Number of rejected candidates that a selection names; the best of each other family always is."""


def select_own(device: Device, desc: Desc, precision: str = "fp32", order: list[Predicted] | None = None) -> Selection:
    """Return the heuristic's selection among toprung's own kernels, without the store.

    ``order``: what ``ranked`` returns, if the caller has it.
    """
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


def slower_than_fp32(device: Device, desc: Desc, family: KernelFamily, weighed: Callable[[], float] | None = None) -> str:
    """Return why a family of another precision is not expected to beat plain fp32; empty if it is.

    ``weighed``: see ``against_fp32``.
    """
    if not desc.result.elements:
        return "the result is empty"
    ours, plain = against_fp32(device, desc, family, weighed)
    if ours * family.margin <= plain:
        return ""
    return f"{family.precision} would take about {ours * 1e6:.0f} us with all its launches, plain fp32 {plain * 1e6:.0f}"
