"""Schedules of a product on a mesh of devices, and their cost model: bytes over link speed, products over local speed.

A schedule gives each mesh dimension a letter, the dimension of C = A·B that it splits: m, n or k, or "-" for none. Split m, and B
must be whole along that mesh dimension; split n, and A must be; split k, and C is a sum over it. So a letter moves one operand, and
two letters at most two, which share an axis that no letter splits: the panels' axis. Placements are "S0", "S1", "R" and "P", as
``Shard(0)``, ``Shard(1)``, ``Replicate()`` and ``Partial()``.

Panels of A or B that is sharded along the panels' axis have owners. Each rank takes them in its own order, from those it owns on:
it multiplies these while others arrive, and each owner sends to one rank at a time. On a square mesh that is Cannon's order.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from toprung.errors import BadArgument
from toprung.kernels.cost_model import MEMORY_RATE

AXES = {"A": "mk", "B": "kn", "C": "mn"}
"""Dimensions of the product that each operand's axes are."""

ITEM = 4
"""Bytes of an element."""

SHARE = 3
"""Panels take at most a third of the bytes of a rank's operands and result by default: on two ranks the other's whole shard."""

GRAIN = 256
"""Panels that are wider are a multiple of it: the width of the tiles that large products run with, and aligned."""

SPLIT = 12
"""Bytes that a further panel of m or n moves for each element of the stationary A or B: it is read, and its two halves are written
and read. Plain fp32 moves 4."""

kept = functools.lru_cache(maxsize=4096)
"""Decorator of what is derived from a schedule: ``best`` keeps as many schedules, and each is asked in every product."""

Placements = tuple[str, ...]


class Rates(NamedTuple):
    """Measured speeds of a device and its links.

    Attributes
    ----------
    link : bytes per second that a device receives in an all-gather
    products : operations per second of a local product, two for each multiply-add
    memory : bytes per second of the device's memory
    host : seconds of the host's work per panel, or for a product without communication
    """

    link: float
    products: float
    memory: float
    host: float


MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text("utf-8"))
"""Runs of ``benchmarks/several.py``, each with its environment and the bench's results."""


PANELS = 8
"""Number of panels of the small product by which the bench measures the host's time."""


def rates_of(one: dict[str, Any]) -> Rates:
    """Return the speeds of a result of the bench; the oldest results lack the host's time."""
    host = one.get("host", 0.0) / (PANELS if one["ranks"] > 1 else 1)
    return Rates(max(one["link"], 1.0), 2 * one["size"] ** 3 / one["ranks"] / one["local"], MEMORY_RATE, host)


def _measured() -> dict[tuple[str, str], Rates]:
    """Return the median rates of each device and precision in the record."""
    found: dict[tuple[str, str], list[Rates]] = {}
    for environment, one in ((run["environment"], one) for run in MEASURED for one in run["results"] if one["ranks"] > 1):
        found.setdefault((environment["device"]["name"], one["precision"]), []).append(rates_of(one))
    return {which: Rates(*map(statistics.median, zip(*rates, strict=True))) for which, rates in found.items()}


RATES = _measured()
"""Rates by the device's name and the precision. Other devices are scheduled as an H200, other precisions as "auto"."""

H200 = RATES["NVIDIA H200", "auto"]


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Return start and end of a shard, as ``torch.chunk`` cuts: all but the last shards are as large as the first."""
    each = -(-size // parts)
    return min(size, index * each), min(size, (index + 1) * each)


def extent(size: int, axis: int, placements: Sequence[str], mesh: Sequence[int], at: Sequence[int]) -> tuple[int, int]:
    """Return start and end of a rank's shard of an axis; ``at`` are the rank's coordinates in the mesh."""
    start, end = 0, size
    for place, parts, index in zip(placements, mesh, at, strict=False):
        if place == f"S{axis}":
            low, high = chunk(end - start, parts, index)
            start, end = start + low, start + high
    return start, end


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule of one product, the same on all ranks.

    Attributes
    ----------
    sizes : M, N and K by their letters
    mesh : sizes of the mesh dimensions
    letters : dimension of the product that each mesh dimension splits; "-" for none
    panel : letter of the panels' axis; empty where nothing moves
    width : width of a panel
    sources : placements of A and B as given, and of C as wanted, by the operand's name
    parked : placements from which panels of A and B are sent, and of C in which they arrive
    seconds : predicted time
    bytes : bytes that a rank receives
    memory : largest memory of a rank beyond operands and result, bytes
    """

    sizes: dict[str, int]
    mesh: tuple[int, ...]
    letters: str
    panel: str
    width: int
    sources: dict[str, Placements]
    parked: dict[str, Placements]
    seconds: float = 0.0
    bytes: int = 0
    memory: int = 0

    def needed(self, name: str) -> Placements:
        """Return the placements of an operand in the local products."""
        whole = {"k": "P"} if name == "C" else {}
        return tuple(f"S{AXES[name].index(x)}" if x in AXES[name] else whole.get(x, "R") for x in self.letters)

    @kept
    def moving(self, name: str) -> list[int]:
        """Return the mesh dimensions along which panels of an operand are sent."""
        return [d for d, (p, q) in enumerate(zip(self.parked[name], self.needed(name), strict=True)) if p != q and self.mesh[d] > 1]

    def steps(self, name: str) -> list[int]:
        """Return the mesh dimensions along which an operand is sent, from its panel to the shards.

        C is reduced in this order; A and B are gathered in the opposite one.
        """
        other = f"S{1 - self.axis(name)}"
        return sorted(self.moving(name), key=lambda d: (self.parked[name][d] != other, d))

    def axis(self, name: str) -> int:
        """Return an operand's axis along which panels cut it."""
        return AXES[name].index(self.panel)

    def owners(self, name: str) -> list[int]:
        """Return the mesh dimension along which panels of an operand have owners, if there is one."""
        return [d for d in self.moving(name) if self.parked[name][d] == f"S{self.axis(name)}"]

    def owned(self, name: str, at: Sequence[int]) -> tuple[int, int]:
        """Return start and end of what a rank's shard has of the panels' axis."""
        return extent(self.sizes[self.panel], self.axis(name), self.parked[name], self.mesh, at)

    @kept
    def order(self, at: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return start and width of all panels in a rank's order.

        It depends on coordinates along mesh dimensions with owners alone. A and B differ along these, so ranks with the same part
        of C have the same order, and its bits.
        """
        edges = self.cuts
        panels = list(itertools.pairwise(edges))
        low = sum(self.owned(name, at)[0] for name in self.movers if name != "C" for _ in self.owners(name))
        first = bisect.bisect_left(edges, low % max(1, edges[-1])) % max(1, len(panels)) if low else 0
        return [(start, end - start) for start, end in panels[first:] + panels[:first]]

    @kept
    def rows(self, name: str, at: tuple[int, ...] | None = None) -> dict[int, tuple[int, int]]:
        """Return by mesh dimensions that cut a panel's rows, in the order of ``steps``: rows before, and rows of the largest part.

        A panel's rows are along the operand's other axis. Dimension -1 has the rows that are left after the last step.
        """
        axis = 1 - self.axis(name)
        at, left = at or (0,) * len(self.mesh), self.shard(name, self.needed(name), at)[axis]
        found = {}
        for d in self.steps(name):
            if self.parked[name][d] == f"S{axis}":
                found[d] = left, -(-left // self.mesh[d])
                low, high = chunk(left, self.mesh[d], at[d])
                left = high - low
        return {**found, -1: (left, left)}

    def heights(self, name: str) -> list[int]:
        """Return the rows of the buffers of an operand's panel: all that ranks send, padded to shards of one size."""
        return [self.mesh[d] * each if d >= 0 else each for d, (_, each) in self.rows(name).items()]

    @property
    @kept
    def movers(self) -> str:
        """Names of the operands that are sent in panels."""
        return "".join(name for name in "ABC" if self.moving(name))

    def shard(self, name: str, placements: Sequence[str], at: Sequence[int] | None = None) -> tuple[int, int]:
        """Return the shape of a rank's shard; of the first rank, which has the largest, by default."""
        at = at or [0] * len(self.mesh)
        low, high = zip(*(extent(self.sizes[x], i, placements, self.mesh, at) for i, x in enumerate(AXES[name])), strict=True)
        return high[0] - low[0], high[1] - low[1]

    @property
    @kept
    def cuts(self) -> list[int]:
        """Return where panels begin, and the end of the last: no panel has two owners."""
        size = self.sizes[self.panel] if self.panel else 1
        ends = {0, size}
        for name in self.movers:
            ends |= {self.owned(name, at)[1] for at in itertools.product(*map(range, self.mesh))}
        edges = sorted(ends)
        starts = [s for low, high in itertools.pairwise(edges) for s in range(low, high, max(1, self.width))]
        return [*starts, size]

    def in_place(self, name: str) -> bool:
        """Return True if ranks multiply the panels of A or B that they own where they are, and receive the others."""
        return name != "C" and self.moving(name) == self.owners(name) != []

    @property
    @kept
    def held(self) -> int:
        """Number of panels that a rank holds at a time: two, or one where none receives more."""
        last = [size - 1 for size in self.mesh]  # the rank that owns least
        found = []
        for name in self.movers:
            low, high = self.owned(name, last) if self.in_place(name) else (0, 0)
            found.append(sum(not low <= start < high for start in self.cuts[:-1]))
        return min(2, max(found, default=0))

    def __str__(self) -> str:
        stay = " and ".join(name for name in "ABC" if name not in self.movers)
        split = ", ".join(f"{x} over mesh dimension {d}" for d, x in enumerate(self.letters) if x != "-")
        moves = f", panels of {self.panel} x {self.width} of {' and '.join(self.movers)} move" if self.panel else ""
        return f"stationary {stay}; {split or 'nothing'} split{moves}"


def _park(source: str, need: str, needs: Sequence[str], d: int, axis: int) -> str:
    """Return the placement along a mesh dimension from which an operand's panels are sent, or in which they arrive.

    Shards of one axis are nested in the order of mesh dimensions, so a shard is sent only if no later dimension cuts the same axis.
    """
    if need in ("S0", "S1") or source == need:
        return need
    place = f"S{1 - axis}" if source == "P" else source
    if place in needs[d + 1 :]:
        place = "S0" if place == "S1" else "S1"
    return place


def _copied(shape: tuple[int, int], given: Sequence[str], wanted: Sequence[str], mesh: Sequence[int]) -> float:
    """Return about how many bytes a rank receives where DTensor redistributes an operand whose wanted shard has a shape."""
    total = 0.0
    for place, other, parts in zip(given, wanted, mesh, strict=True):
        if place != other and place != "R" and parts > 1:
            total += (parts - 1) / (parts if other == "R" or place != "P" else 1) * ITEM * math.prod(shape)
    return total


def _priced(schedule: Schedule, panel_bytes: int | None, rates: Rates) -> Schedule:
    """Return a schedule with the panels' width that takes the least time, and its time, bytes and memory."""
    carried = received = row = 0.0
    memory = 0
    for name in schedule.movers:
        needed, parked = list(schedule.needed(name)), schedule.parked[name]
        for d in schedule.steps(name):
            before = math.prod(schedule.shard(name, needed)) * ITEM
            needed[d] = parked[d]
            part = before * (schedule.mesh[d] - 1) / schedule.mesh[d] * (2 if parked[d] == "R" else 1)
            received += part
            # all ranks add to a panel of C at once, so the links of its owner are all that carry it
            carried += before if name == "C" and d in schedule.owners(name) else part
        row += ITEM * sum(schedule.heights(name))
    copies = 0.0
    for name in "ABC":
        given, wanted = schedule.sources[name], schedule.parked[name]
        if name == "C":
            given, wanted = wanted, given
        shape = schedule.shard(name, wanted)
        copies += _copied(shape, given, wanted, schedule.mesh)
        memory += ITEM * math.prod(shape if name != "C" else schedule.shard(name, given)) if given != wanted else 0
    (m, n), k = schedule.shard("C", schedule.needed("C")), schedule.shard("A", schedule.needed("A"))[1]
    work, stream = 2.0 * m * n * k / rates.products, carried / rates.link
    again = {"k": 2 * ITEM * m * n, "n": SPLIT * m * k, "m": SPLIT * n * k}.get(schedule.panel, 0) / rates.memory
    allowed = sum(ITEM * math.prod(schedule.shard(name, schedule.sources[name])) for name in "ABC") / SHARE

    def timed(width: int) -> tuple[float, float, Schedule]:
        one = replace(schedule, width=width)
        panels = max(1, len(one.cuts) - 1)
        products = work + (panels - 1) * again
        if len(one.movers) == 1 and one.in_place(one.movers):
            seconds = max(products, stream + products / panels)  # a rank begins with panels of its own
        else:
            seconds = max(stream, products) + min(stream, products) / panels
        scratch = memory + int(one.held * row * width)
        fits = one.held * row * width <= allowed if panel_bytes is None else row * width <= panel_bytes
        total = copies / rates.link + seconds
        # hosts agree before anything is sent; if nothing is sent, the device multiplies meanwhile
        total = rates.host + max(total, (panels - 1) * rates.host) if one.movers else max(total, rates.host)
        return (not fits) * width, total, replace(one, seconds=total, bytes=int(copies + received), memory=scratch)

    if not schedule.panel:
        return timed(0)[2]
    size = schedule.sizes[schedule.panel]
    share = max(1, -(-size // max([schedule.mesh[d] for name in schedule.movers for d in schedule.owners(name)], default=1)))
    most = max(1, min(share, int((panel_bytes or allowed) // max(row, 1))))
    most -= most % GRAIN if most < share and most > GRAIN else 0
    widths = [-(-share >> halved) for halved in range(share.bit_length())]
    widths = [min(most, width if width <= GRAIN else -(-width // GRAIN) * GRAIN) for width in widths]
    return min(map(timed, dict.fromkeys(widths)), key=lambda t: t[:2])[2]


def schedules(
    sizes: dict[str, int],
    mesh: tuple[int, ...],
    a: Placements,
    b: Placements,
    c: Placements | None,
    panel_bytes: int | None,
    rates: Rates,
) -> Iterator[Schedule]:
    """Yield every schedule of a product, with its price; ``c`` None leaves the result's placements to the schedule."""
    for letters in itertools.product("mnk-", repeat=len(mesh)):
        # an operand that is whole already can be multiplied by all; otherwise "-" would move more than one
        if any(x == "-" and (a[d], b[d]) != ("R", "R") for d, x in enumerate(letters)):
            continue
        if c is not None and any(place == "P" and x != "k" for place, x in zip(c, letters, strict=True)):
            continue
        bare = Schedule(sizes, mesh, "".join(letters), "", 0, {}, {})
        needs = {name: bare.needed(name) for name in "ABC"}
        wanted = c or tuple("S0" if place == "P" else place for place in needs["C"])
        if c is None:
            wanted = tuple(_park(w, need, needs["C"], d, 1) for d, (w, need) in enumerate(zip(wanted, needs["C"], strict=True)))
        sources = {"A": a, "B": b, "C": wanted}
        for panel in "mnk":
            parked = {
                name: tuple(
                    need if name == "C" and need == "R" else _park(source, need, needs[name], d, AXES[name].find(panel) % 2)
                    for d, (source, need) in enumerate(zip(sources[name], needs[name], strict=True))
                )
                for name in "ABC"
            }
            one = Schedule(sizes, mesh, bare.letters, panel, 0, sources, parked)
            owners = [[parked[x][d] for d in one.moving(x)].count(f"S{AXES[x].find(panel)}") for x in one.movers]
            if panel in letters or any(panel not in AXES[x] for x in one.movers) or max(owners, default=0) > 1:
                continue
            if not one.movers:
                one = Schedule(sizes, mesh, bare.letters, "", 0, sources, parked)
            yield _priced(one, panel_bytes, rates)


@functools.lru_cache(maxsize=1024)
def best(
    m: int, n: int, k: int, mesh: tuple[int, ...], a: Placements, b: Placements, c: Placements | None = None,
    panel_bytes: int | None = None, rates: Rates = H200,
) -> Schedule:  # fmt: skip
    """Return the schedule whose predicted time is least.

    Raises
    ------
    BadArgument
        placements of the result that no schedule has
    """
    sizes = {"m": m, "n": n, "k": k}
    found = min(schedules(sizes, mesh, a, b, c, panel_bytes, rates), key=lambda s: (s.seconds, s.bytes, s.memory), default=None)
    if found is None:
        raise BadArgument(
            f"no schedule leaves C as {c} of A {a} and B {b}: ask for Shard or Replicate, and redistribute the result"
        )
    return found
