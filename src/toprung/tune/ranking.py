"""Cost model of the library's block kernel, by ``bounds.rank``: predicted seconds of a configuration, and a lower bound of them.

order = Ranking.of(device, desc)
order.seconds(config)                     before it is compiled
order.seconds(config, Code.read(code))    when it is known what the compiler made of it
order.least(config)                       what a search discards by
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device
from toprung.errors import BadRecord, Unsupported
from toprung.gemm.desc import GemmDesc, described
from toprung.kernels.base import TileConfig
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.rank import Code, Machine, Prediction, bound, machine, predict
from toprung.lab.explain import figures_of
from toprung.tile import Tile

Numbers = NDArray[np.float64]

TOP = 10
"""Number of tiles that a tuner tries first."""


@dataclass(frozen=True)
class Ranking:
    """Cost model of the block kernel's configurations for one product on one device."""

    machine: Machine
    desc: GemmDesc

    @staticmethod
    def of(device: Device, desc: GemmDesc, figures: Figures | None = None) -> Ranking:
        """Return the ranking for a call; ``figures``: those of the device, looked up if not given.

        Raises
        ------
        Unsupported
            figures of the device that the model needs are unknown
        """
        found = machine(figures or figures_of(device))
        if isinstance(found, Unknown):
            raise Unsupported(f"the model cannot rank tiles on {device}, it lacks {', '.join(found.missing)}: run toprung probe")
        return Ranking(found, desc)

    def prediction(self, config: TileConfig, code: Code | None = None) -> Prediction:
        """Return the model's prediction for a configuration; without ``code``, what the compiler makes of it is predicted, too."""
        return predict(self.machine, self.desc, config.tile, dict(config.options), code)

    def seconds(self, config: TileConfig, code: Code | None = None) -> float:
        """Return the predicted seconds of a product."""
        return self.prediction(config, code).seconds

    def least(self, config: TileConfig, code: Code | None = None) -> float:
        """Return a lower bound of a configuration's seconds."""
        return bound(self.machine, self.desc, config.tile, dict(config.options), code)

    def order(self, configs: Iterable[TileConfig]) -> list[TileConfig]:
        """Return configurations, the fastest predicted first."""
        return sorted(configs, key=self.seconds)


@dataclass(frozen=True)
class Agreement:
    """Agreement of a model's predictions with measured times.

    Attributes
    ----------
    spearman, quartile : rank correlation of all tiles, and of the quartile with the fastest measured times
    top : best measured time among the model's ``TOP`` first tiles / best measured time of all
    spread : standard deviation of the natural logarithm of measured / predicted
    """

    spearman: float
    quartile: float
    top: float
    spread: float


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Return the agreement of predicted with measured seconds of the same tiles."""
    p, m = np.array(predicted), np.array(measured)
    fast = np.argsort(m, kind="stable")[: len(m) // 4]
    first = np.argsort(p, kind="stable")[:TOP]
    return Agreement(spearman(p, m), spearman(p[fast], m[fast]), float(m[first].min() / m.min()), float(np.std(np.log(m / p))))


def spearman(a: Numbers, b: Numbers) -> float:
    """Return the rank correlation of two sequences; equal values share the mean of their ranks."""
    x, y = (np.array([np.sum(v < one) + (np.sum(v == one) - 1) / 2 for one in v]) for v in (a, b))
    return float(np.corrcoef(x, y)[0, 1])


@dataclass(frozen=True)
class Timed:
    """One timed tile of a result file of ``benchmarks/rank.py``."""

    tile: Tile
    options: Mapping[str, int]
    code: Code
    seconds: float


def timed(record: Mapping[str, Any]) -> Iterator[tuple[GemmDesc, list[Timed]]]:
    """Yield each problem of a result file of ``benchmarks/rank.py`` with the tiles that were timed.

    Raises
    ------
    BadRecord
        the file is of another kind, or damaged
    """
    try:
        for entry in record["problems"]:
            p = entry["problem"]
            rows = [
                Timed(Tile(**t["tile"]), t["options"], Code.read(t["code"]), statistics.median(t["seconds"]))
                for t in entry["tiles"]
                if t["seconds"]
            ]
            yield cast(GemmDesc, described({"routine": "gemm", **p})), rows
    except (KeyError, TypeError) as error:
        raise BadRecord(f"this is no record of ranked tiles ({type(error).__name__}: {error}): run benchmarks/rank.py") from None


def predictions(on: Machine, desc: GemmDesc, rows: Sequence[Timed], compiled: bool = True) -> list[float]:
    """Return the predicted seconds of timed tiles, from the compiled code or, without ``compiled``, from the configuration."""
    return [predict(on, desc, t.tile, t.options, t.code if compiled else None).seconds for t in rows]


WITHOUT: Mapping[str, Callable[[Machine, Code], tuple[Machine, Code]]] = MappingProxyType({
    "turns of shared memory": lambda on, code: (replace(on, shared=math.inf), code),
    "registers of one bank": lambda on, code: (on, replace(code, extra_cycles=0)),
    "spills": lambda on, code: (on, replace(code, local_accesses=0, instructions=code.instructions - code.local_accesses)),
    "latencies and barriers": lambda on, code: (
        replace(on, waits=dict.fromkeys(on.waits, 0.0), barriers=dict.fromkeys(on.barriers, 0.0)), code
    ),
    "the shared cache and memory": lambda on, code: (
        replace(on, near=math.inf, far=math.inf, near_copy=math.inf, far_copy=math.inf), code
    ),
})  # fmt: skip
"""Ablations of the model: by the name of a part, a function that removes the device's limit there, or the code's need of it."""


def without(part: str, on: Machine, desc: GemmDesc, rows: Sequence[Timed]) -> list[float]:
    """Return the predicted seconds of timed tiles by the model without one of its parts (see ``WITHOUT``)."""
    changed = [(t, *WITHOUT[part](on, t.code)) for t in rows]
    return [predict(other, desc, t.tile, t.options, code).seconds for t, other, code in changed]
