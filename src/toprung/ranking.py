"""The model of ``bounds.rank`` for the library's tunable product: how long a choice takes, and what it cannot be faster than.

order = Ranking.of(device, call)
order.seconds(choice)                     before it is compiled
order.seconds(choice, Code.read(code))    when it is known what the compiler made of it
order.least(choice)                       what a search discards by
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.blas.call import GemmCall
from toprung.blas.choice import Choice
from toprung.bounds.figures import Figures, Unknown
from toprung.bounds.rank import Code, Machine, Prediction, Product, bound, machine, predict
from toprung.device import Device
from toprung.errors import BadRecord, Unsupported
from toprung.explain import figures_of
from toprung.tile import Tile

Numbers = NDArray[np.float64]

TOP = 10
"""Tiles that a tuner tries first."""


@dataclass(frozen=True)
class Ranking:
    """Choices of the tunable product for one product on one device."""

    machine: Machine
    product: Product

    @staticmethod
    def of(device: Device, call: GemmCall, figures: Figures | None = None) -> Ranking:
        """For a call; ``figures`` of the device where they are at hand.

        Raises
        ------
        Unsupported
            figures that the model needs are not known of the device
        """
        found = machine(figures or figures_of(device))
        if isinstance(found, Unknown):
            raise Unsupported(f"the model cannot rank tiles on {device}, it lacks {', '.join(found.missing)}: run toprung probe")
        return Ranking(found, Product(call.M, call.N, call.K, call.batch, call.trans_a, call.trans_b))

    def prediction(self, choice: Choice, code: Code | None = None) -> Prediction:
        """What the model says of a choice; without ``code``, as it is expected to be compiled.

        Raises
        ------
        Unsupported
            a choice of another kernel
        """
        return predict(self.machine, self.product, self._tile(choice), dict(choice.options), code)

    def seconds(self, choice: Choice, code: Code | None = None) -> float:
        """Predicted seconds of a call."""
        return self.prediction(choice, code).seconds

    def least(self, choice: Choice, code: Code | None = None) -> float:
        """Seconds below which the choice cannot be."""
        return bound(self.machine, self.product, self._tile(choice), dict(choice.options), code)

    def order(self, choices: Iterable[Choice]) -> list[Choice]:
        """The fastest first."""
        return sorted(choices, key=self.seconds)

    def _tile(self, choice: Choice) -> Tile:
        if choice.kernel != "gemm" or choice.tile is None:
            raise Unsupported(f"the model ranks tiles of blas/gemm, not of {choice.kernel}")
        return choice.tile


@dataclass(frozen=True)
class Agreement:
    """A model against what was measured.

    Attributes
    ----------
    spearman, quartile : rank correlation of all tiles, and of the fastest quartile as measured
    top : the best measured time among the ``TOP`` tiles of the model, over the best of all
    spread : standard deviation of the logarithm of measured over predicted
    """

    spearman: float
    quartile: float
    top: float
    spread: float


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """How well the order of one goes with that of the other."""
    p, m = np.array(predicted), np.array(measured)
    fast = np.argsort(m, kind="stable")[: len(m) // 4]
    first = np.argsort(p, kind="stable")[:TOP]
    return Agreement(spearman(p, m), spearman(p[fast], m[fast]), float(m[first].min() / m.min()), float(np.std(np.log(m / p))))


def spearman(a: Numbers, b: Numbers) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    x, y = (np.array([np.sum(v < one) + (np.sum(v == one) - 1) / 2 for one in v]) for v in (a, b))
    return float(np.corrcoef(x, y)[0, 1])


@dataclass(frozen=True)
class Timed:
    """One tile of a record of ``benchmarks/rank.py``."""

    tile: Tile
    options: Mapping[str, int]
    code: Code
    seconds: float


def timed(record: Mapping[str, Any]) -> Iterator[tuple[Product, list[Timed]]]:
    """The problems of a record of ``benchmarks/rank.py`` and the tiles that were timed.

    Raises
    ------
    BadRecord
        of something else, or damaged
    """
    try:
        for entry in record["problems"]:
            p = entry["problem"]
            rows = [
                Timed(Tile(**t["tile"]), t["options"], Code.read(t["code"]), statistics.median(t["seconds"]))
                for t in entry["tiles"]
                if t["seconds"]
            ]
            yield Product(p["M"], p["N"], p["K"], p["batch"], p["trans"][0] == "T", p["trans"][1] == "T"), rows
    except (KeyError, TypeError) as error:
        raise BadRecord(f"this is no record of ranked tiles ({type(error).__name__}: {error}): run benchmarks/rank.py") from None


def predictions(on: Machine, product: Product, rows: Sequence[Timed], compiled: bool = True) -> list[float]:
    """Predicted seconds of timed tiles, with what the compiler made of them or without."""
    return [predict(on, product, t.tile, t.options, t.code if compiled else None).seconds for t in rows]


def _no_waits(on: Machine) -> Machine:
    return replace(on, waits=dict.fromkeys(on.waits, 0.0), barriers=dict.fromkeys(on.barriers, 0.0))


WITHOUT: Mapping[str, Callable[[Machine, Code], tuple[Machine, Code]]] = MappingProxyType({
    "turns of shared memory": lambda on, code: (replace(on, shared=math.inf), code),
    "registers of one bank": lambda on, code: (on, replace(code, extra_cycles=0)),
    "spills": lambda on, code: (on, replace(code, local_accesses=0, instructions=code.instructions - code.local_accesses)),
    "latencies and barriers": lambda on, code: (_no_waits(on), code),
    "the shared cache and memory": lambda on, code: (
        replace(on, near=math.inf, far=math.inf, near_copy=math.inf, far_copy=math.inf), code
    ),
})  # fmt: skip
"""Parts of the model, and how it does without: as if the device had no limit there, or the code no need."""


def without(part: str, on: Machine, product: Product, rows: Sequence[Timed]) -> list[float]:
    """Predicted seconds of timed tiles by the model less one of its parts."""
    changed = [(t, *WITHOUT[part](on, t.code)) for t in rows]
    return [predict(other, product, t.tile, t.options, code).seconds for t, other, code in changed]
