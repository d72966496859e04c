"""Competitors by name or by default, and their speeds over that of the first."""

from __future__ import annotations

from collections.abc import Sequence

from toprung.device import Device
from toprung.errors import UnknownName
from toprung.lab import baselines
from toprung.lab.competitor import Competitor, RungCompetitor
from toprung.lab.harness.library import WAYS, Matmul
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.stats import Interval, paired_ratio
from toprung.lab.rung import ladder, ladder_names, rung


def competitors(names: Sequence[str]) -> list[Competitor]:
    """Competitors by name: a peer (``cublas``), a rung (``kepler/r07``), a ladder (``kepler``), one of the library's ``WAYS``.

    Raises
    ------
    UnknownName
        with everything that exists
    """
    found: list[Competitor] = []
    for name in names:
        if name in ladder_names():
            found += [RungCompetitor(r) for r in ladder(name).rungs]
        elif name in WAYS:
            found.append(WAYS[name]())
        elif "/" in name:
            found.append(RungCompetitor(rung(name)))
        elif name in (known := [p.name for p in baselines.peers()]):
            found.append(baselines.peer(name))
        else:
            raise UnknownName("competitor", name, [*WAYS, *known, *(f"{n}/rNN" for n in ladder_names())])
    return list({c.name: c for c in found}.values())


def default_competitors(device: Device) -> list[Competitor]:
    """Return ``matmul`` as a user gets it, the device's vendor, then every other peer that is a fair baseline beside the device."""
    first, _ = baselines.vendor(device, "gemm")
    others = [p for p in baselines.peers() if device.kind in p.kinds and p is not first]
    others.sort(key=lambda p: p.promise.precision != "fp32")
    return [Matmul(), *([first] if first else []), *others]


def ratios(measurements: Sequence[Measurement]) -> list[Interval | None]:
    """Return how many times as fast as the first of its problem and mode each is, samples paired by turn.

    None for the first itself.
    """
    first: dict[tuple[str, str], Measurement] = {}
    found: list[Interval | None] = []
    for m in measurements:
        base = first.setdefault((str(sorted(m.problem.items())), m.mode), m)
        found.append(None if base is m else paired_ratio(base.seconds, m.seconds))
    return found
