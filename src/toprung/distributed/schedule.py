"""Schedules of a product on a mesh of devices, and their cost model: bytes over link speed, products over local speed.

A schedule gives each mesh dimension a letter, the dimension of C = A·B that it splits: m, n or k, or "-" for none. Split m, and B
must be whole along that mesh dimension; split n, and A must be; split k, and C is a sum over it. So a letter moves one operand, and
two letters at most two, which share an axis that no letter splits: the panels' axis. Placements are "S0", "S1", "R" and "P", as
``Shard(0)``, ``Shard(1)``, ``Replicate()`` and ``Partial()``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toprung.errors import BadArgument
from toprung.kernels.cost_model import MEMORY_RATE, PLAIN_RATE

AXES = {"A": "mk", "B": "kn", "C": "mn"}
"""Dimensions of the product that each operand's axes are."""

ITEM = 4
"""Bytes of an element."""

PANEL_BYTES = 1 << 28
"""Largest panel by default, bytes: a panel of a product of 65536 is 512 wide, so that its kernels fill the device."""

PANELS = 8
"""Panels that a schedule has at least, if they are as wide as GRAIN: communication of the first overlaps with nothing."""

GRAIN = 256
"""Width of the tiles that large products run with. Wider panels are a power of two wide: then the last wave of a product whose
other sizes are, too, is nearly full on a device of about 128 SMs."""

Placements = tuple[str, ...]


@dataclass(frozen=True)
class Rates:
    """Measured speeds of a device and its links.

    Attributes
    ----------
    link : bytes per second that a device receives in an all-gather
    products : operations per second of a local product, two for each multiply-add
    memory : bytes per second of the device's memory
    """

    link: float
    products: float
    memory: float


H200 = Rates(279e9, 209e12, MEMORY_RATE)
"""Two H200 of one host, tried once: all-gather by NCCL over NVLink, and fp32x of 8192 x 16384 x 16384 on one while both compute.
No record of it is kept."""

RATES = {"NVIDIA H200": {"fp32": Rates(H200.link, PLAIN_RATE, H200.memory), "": H200}}
"""Rates by the device's name and the precision; "" is any other. Devices that are missing are scheduled as an H200."""


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


@dataclass(frozen=True)
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

    def moving(self, name: str) -> list[int]:
        """Return the mesh dimensions along which panels of an operand are sent."""
        return [d for d, (p, q) in enumerate(zip(self.parked[name], self.needed(name), strict=True)) if p != q and self.mesh[d] > 1]

    def steps(self, name: str) -> list[int]:
        """Return the mesh dimensions along which an operand is sent, from its panel to the shards.

        C is reduced in this order; A and B are gathered in the opposite one.
        """
        other = f"S{1 - AXES[name].index(self.panel)}"
        return sorted(self.moving(name), key=lambda d: (self.parked[name][d] != other, d))

    def rows(self, name: str, at: Sequence[int] | None = None) -> list[tuple[int, int, int]]:
        """Return the steps that cut a panel's rows: mesh dimension, rows before, and rows of the largest shard after.

        A panel's rows are along the operand's other axis. After the last step come the rows that are left, as (-1, rows, rows).
        """
        axis = 1 - AXES[name].index(self.panel)
        at, left = at or [0] * len(self.mesh), self.shard(name, self.needed(name), at)[axis]
        found = []
        for d in self.steps(name):
            if self.parked[name][d] == f"S{axis}":
                found.append((d, left, -(-left // self.mesh[d])))
                low, high = chunk(left, self.mesh[d], at[d])
                left = high - low
        return [*found, (-1, left, left)]

    def heights(self, name: str) -> list[int]:
        """Return the rows of the buffers of an operand's panel: all that ranks send, padded to shards of one size."""
        return [self.mesh[d] * each if d >= 0 else each for d, _, each in self.rows(name)]

    @property
    def movers(self) -> str:
        """Names of the operands that are sent in panels."""
        return "".join(name for name in "ABC" if self.moving(name))

    def shard(self, name: str, placements: Sequence[str], at: Sequence[int] | None = None) -> tuple[int, int]:
        """Return the shape of a rank's shard; of the first rank, which has the largest, by default."""
        at = at or [0] * len(self.mesh)
        low, high = zip(*(extent(self.sizes[x], i, placements, self.mesh, at) for i, x in enumerate(AXES[name])), strict=True)
        return high[0] - low[0], high[1] - low[1]

    def cuts(self) -> list[int]:
        """Return where panels begin, and the end of the last: no panel has two owners."""
        size = self.sizes[self.panel] if self.panel else 1
        ends = {0, size}
        for name in self.movers:
            axis = AXES[name].index(self.panel)
            ends |= {extent(size, axis, self.parked[name], self.mesh, at)[1] for at in itertools.product(*map(range, self.mesh))}
        edges = sorted(ends)
        starts = [s for low, high in itertools.pairwise(edges) for s in range(low, high, max(1, self.width))]
        return [*starts, size]

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


def _priced(schedule: Schedule, panel_bytes: int, rates: Rates) -> Schedule:
    """Return a schedule with its panels' width, time, bytes and memory."""
    sizes, mesh = schedule.sizes, schedule.mesh
    carried = received = row = 0.0
    memory = 0
    for name in schedule.movers:
        axis = AXES[name].index(schedule.panel)
        needed, parked = list(schedule.needed(name)), schedule.parked[name]
        for d in schedule.steps(name):
            before = math.prod(schedule.shard(name, needed)) * ITEM
            needed[d] = parked[d]
            part = before * (mesh[d] - 1) / mesh[d] * (2 if parked[d] == "R" else 1)
            received += part
            # the owner alone sends a panel, so its links are all that carry it
            carried += before if parked[d] == f"S{axis}" else part
        row += ITEM * sum(schedule.heights(name))
    copies = 0.0
    for name in "ABC":
        given, wanted = schedule.sources[name], schedule.parked[name]
        if name == "C":
            given, wanted = wanted, given
        shape = schedule.shard(name, wanted)
        copies += _copied(shape, given, wanted, mesh)
        memory += ITEM * math.prod(shape if name != "C" else schedule.shard(name, given)) if given != wanted else 0
    m, n, k = (_local(schedule, x) for x in "mnk")
    work = 2.0 * m * n * k / rates.products
    width, panels = 0, 1
    if schedule.panel:
        size = sizes[schedule.panel]
        width = max(1, min(size, int(panel_bytes // max(row, 1)), max(GRAIN, -(-size // PANELS))))
        width = 1 << width.bit_length() - 1 if width > GRAIN else width
        panels = max(1, -(-size // width))
        memory += int(2 * row * width)
        if schedule.panel == "k":
            work += 2.0 * ITEM * m * n * (panels - 1) / rates.memory
    stream = carried / rates.link
    seconds = copies / rates.link + max(stream, work) + min(stream, work) / panels
    rest = (schedule.sources, schedule.parked, seconds, int(copies + received), memory)
    return Schedule(sizes, mesh, schedule.letters, schedule.panel, width, *rest)


def _local(schedule: Schedule, letter: str) -> int:
    size = schedule.sizes[letter]
    for x, parts in zip(schedule.letters, schedule.mesh, strict=True):
        size = -(-size // parts) if x == letter else size
    return size


def schedules(
    sizes: dict[str, int], mesh: tuple[int, ...], a: Placements, b: Placements, c: Placements | None, panel_bytes: int, rates: Rates
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
    panel_bytes: int = PANEL_BYTES, rates: Rates = H200,
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


HOST, NETWORK = 8, 50e9
"""Devices of a host, and bytes per second of each one's network adapter: 400 Gb/s."""


def grids(devices: int) -> dict[str, list[tuple[int, int, int]]]:
    """Return the grids of a number of devices, a power of two, by kind, as parts of m, n and k: 2.5-D ones cut k, too."""
    powers = [1 << i for i in range(devices.bit_length())]
    found: dict[str, list[tuple[int, int, int]]] = {"1-D": [(devices, 1, 1)], "2-D": [], "2.5-D": []}
    for m, k in itertools.product(powers, powers):
        n = devices // (m * k)
        if m > 1 and n > 1:
            found["2-D" if k == 1 else "2.5-D"].append((m, n, k))
    return found


def on_paper(size: int, grid: tuple[int, int, int], panels: int = 16, rates: Rates = H200) -> float:
    """Return the predicted seconds of a square product on a grid of devices, HOST of them in each host.

    A device receives A's panels along n, B's along m, and adds up C's along k. A group of devices that spans hosts uses as many
    adapters of each host as it has devices there, and no more than the link's speed. Of all ways to fill hosts the best is taken.
    """
    devices = math.prod(grid)
    m, n, k = (size / parts for parts in grid)
    received = [ITEM * (k * n) * (1 - 1 / grid[0]), ITEM * (m * k) * (1 - 1 / grid[1]), ITEM * (m * n) * (1 - 1 / grid[2])]
    powers = [1 << i for i in range(HOST.bit_length())]
    sent = math.inf
    for inside in itertools.product(powers, repeat=3):
        if math.prod(inside) != min(HOST, devices) or any(i > g for i, g in zip(inside, grid, strict=True)):
            continue
        links = [rates.link if i == g else min(rates.link, i * NETWORK) for i, g in zip(inside, grid, strict=True)]
        sent = min(sent, sum(bytes_ / link for bytes_, link in zip(received, links, strict=True)))
    work = 2 * m * n * k / rates.products
    return max(sent, work) + min(sent, work) / panels
