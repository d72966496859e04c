"""Cost model of the search: predicted seconds and lower bounds of configurations before they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toprung.device import Device
from toprung.dispatch.selection import Candidate
from toprung.errors import Unsupported
from toprung.gemm.desc import Desc
from toprung.kernels.base import SearchedFamily
from toprung.tune.ranking import Ranking


@dataclass(frozen=True)
class Model:
    """Predicted seconds of candidates for one product.

    Attributes
    ----------
    predict : predicted seconds of a candidate; infinite where nothing is known, which leaves an order unchanged
    bound : lower bound of a candidate's seconds; 0 where nothing is known, which discards nothing
    """

    predict: Callable[[Candidate], float]
    bound: Callable[[Candidate], float]


UNKNOWN = Model(lambda candidate: float("inf"), lambda candidate: 0.0)


def model(device: Device, desc: Desc, precision: str = "fp32") -> Model:
    """Return the model for a call: the ranking model for the block kernel on a GPU whose figures are known, else each family's own.

    On the checks of an H200 neither ranks the block kernel's candidates clearly better; the ranking model predicts all tiles, the
    family's own those of its table. Plain fp32 is bounded by the device's peak where figures are known.
    """
    if desc.is_vector:
        return UNKNOWN

    def cost(candidate: Candidate) -> float:
        family = candidate.family
        predicted = family.search_cost if isinstance(family, SearchedFamily) else family.cost
        return predicted(device, desc, candidate.config)

    ranking = None
    if precision == "fp32" and device.kind == "gpu":
        with contextlib.suppress(Unsupported):
            ranking = Ranking.of(device, desc)
    if ranking is None:
        return Model(cost, lambda candidate: 0.0)
    peak = device.peak_gflops
    least = desc.flops / (1e9 * peak) if peak else 0.0

    def predict(candidate: Candidate) -> float:
        block: Any = candidate.config
        return ranking.seconds(block) if candidate.family.ranked else cost(candidate)

    def bound(candidate: Candidate) -> float:
        block: Any = candidate.config
        return ranking.least(block) if candidate.family.ranked else least

    return Model(predict, bound)
