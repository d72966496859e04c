"""Skinny kernels: teams and K slices worth weighing where one side is short or a vector, and predicted seconds."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device
from toprung.gemm.desc import ELEMENT_BYTES, Desc, Skinny
from toprung.kernels import cost_model
from toprung.kernels.base import Switches
from toprung.kernels.split_k import Rows
from toprung.tile import Tile

SMALL = (1, 2, 4, 8, 16)
"""Rows of the small operand that there is a kernel for; between them the next larger is taken."""

_NAMES = {"rows": ("ITEMS", "TEAM", "TM", "AT_ONCE"), "columns": ("ACROSS", "DN", "TN", "KU")}
TEAMS, VENDOR_TEAMS = (
    {kernel: tuple(dict(zip(names, at, strict=True)) for at in of["teams"][kernel]) for kernel, names in _NAMES.items()}
    for of in (cost_model.fitted("skinny"), cost_model.fitted("skinny")["vendor"])
)
"""Work-groups weighed on a GPU, and substitutes for cuBLAS's; explained in ``models/skinny.json``."""

MOST_UNROLLED = 64
"""Accesses to the large operand in an iteration, times the sums that each of their floats goes to, at most: the loop's text grows
with it, and takes longer to fetch than to run, and a minute to compile."""

SECTOR = 32
"""Bytes that the L2 takes at a time."""
WAVES = (0.5, 1.0, 2.0, 4.0)
"""Split-K factors to try, as work-items per SM, in units of what an SM holds."""

MOST_SLICES = 256
"""Slices of K at most."""
PER_UNIT = 16
"""Most work-groups per SM, all slices together, of a cluster: an SM holds so many of 128 work-items."""


def reader(s: Skinny) -> str:
    """Return which kernel reads the large operand as it lies: ``rows`` along K, or ``columns`` across."""
    return "rows" if s.by_rows else "columns"


def small_of(s: Skinny) -> int:
    """Return how many rows of the small operand the kernel is compiled for."""
    return SMALL[bisect.bisect_left(SMALL, s.few)]


def iteration_depth(tile: Tile) -> int:
    """Return the elements along K that a work-group takes at a time: slices are multiples of it, so that they begin aligned."""
    return tile.DN * (tile.KU or tile.VEC or 1)


def team_tile(s: Skinny, at: Mapping[str, int], wide: int, together: int) -> Tile:
    """Return the tile of a team, with accesses of ``wide`` floats to the large operand and ``together`` to the small one."""
    if s.by_rows:
        rows = at["ITEMS"] // at["TEAM"] * at["TM"]
        floats = at["AT_ONCE"] * wide
        return Tile(BM=rows, BN=at["TEAM"] * floats, TM=at["TM"], TN=floats, VEC=wide, VB=together)
    return Tile(BM=at["ACROSS"] * wide, BN=at["DN"] * at["TN"], TM=wide, TN=at["TN"], VA=wide, KU=at["KU"])


def teams(s: Skinny) -> Iterator[Tile]:
    """Yield the tiles that are weighed on a GPU."""
    for at in TEAMS[reader(s)]:
        if not refused(s, at):
            yield team_tile(s, at, *s.widths)


def refused(s: Skinny, at: Mapping[str, int]) -> str:
    """Return why there is no such team; empty where there is."""
    if s.by_rows and at["ITEMS"] % at["TEAM"]:
        return "a work-group has whole teams"
    if not s.by_rows and at["TN"] % at["KU"]:
        return "a work-item takes whole pieces"
    unrolled = small_of(s) * at.get("TM", 1) * at.get("AT_ONCE", at.get("KU", 1))
    return f"its loop's text would be {unrolled} long" if unrolled > MOST_UNROLLED else ""


def block_count(s: Skinny, tile: Tile) -> int:
    """Return the work-groups of a slice of K."""
    return -(-s.length // tile.BM) * s.batch


@dataclass(frozen=True, eq=False)
class Table(Rows):
    """Teams (work-groups) that are weighed at once, with their numbers in columns.

    ``room``: teams that run at once on the device. ``options``: the switches of all.
    """

    team: cost_model.Team
    room: NDArray[Any]
    options: Switches


Teams: TypeAlias = tuple[Iterable[tuple[Tile, Iterable[int]]], Switches]
"""Tiles, each with the cluster sizes to weigh, and the switches of all."""
tables: dict[Hashable, Table] = {}
"""Tables by their inputs."""


def table(s: Skinny, units: int, models: Mapping[str, Any], what: Hashable, make: Callable[[], Teams]) -> Table:
    """Return the table of a product; ``make`` is called once for each ``what`` and layout of operands.

    ``what``: key of the teams that ``make`` returns. Each tile has a row for all of K, for each of ``WAVES``, and for each of its
    cluster sizes.
    """
    banks = math.gcd(s.on, cost_model.BANKS) if s.by_rows and s.widths[1] == 1 else 0
    key = what, units, s.by_rows, s.widths, small_of(s), banks, s.type_large
    found = tables.get(key)
    if found is None:
        tiles, options = make()
        rows = [
            (tile, *one) for tile, sizes in tiles for one in (*zip((0, *WAVES), itertools.repeat(1)), *((0.0, n) for n in sizes))
        ]
        model, size = models[reader(s)], ELEMENT_BYTES[s.type_large]
        numbers = [
            (*cost_model.team_of(reader(s), tile, small_of(s), s.on, size, model), iteration_depth(tile), cluster,
             share * max(1, cost_model.THREADS // tile.work_items) * units)
            for tile, share, cluster in rows
        ]  # fmt: skip
        *team, piece, cluster, share = np.array(numbers, float).reshape(-1, len(cost_model.Team._fields) + 3).T
        of, t = tuple([tile for tile, *_ in rows]), cost_model.Team(*team)
        found = tables[key] = Table(of, piece, share, cluster, t, cost_model.room_of(t, cluster, units), options)
    return found


@functools.lru_cache(1)
def all_weighed(device: Device, s: Skinny, of: Table, vendor: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the K slices of a table's rows, 0 for rows not weighed, and ``skinny_seconds``.

    Rows of 0 slices take infinitely long. One result is cached: ``skinny`` reads the rows without clusters, then
    ``skinny_cluster`` those with clusters.
    """
    models, units = cost_model.VENDOR_SKINNY if vendor else cost_model.SKINNY, device.compute_units
    slices = of.slices(s.depth, np.ceil(s.length / of.team.BM) * s.batch, PER_UNIT * units, MOST_SLICES)
    cycles = cost_model.team_cycles(models[reader(s)], of.team, s, np.maximum(slices, 1.0), of.cluster, of.room, units)
    written = 0.0 if vendor else written_cycles(s)
    found: NDArray[Any] = cost_model.seconds(cycles + written, slices > of.cluster, cost_model.hz(device))
    found[slices == 0] = math.inf
    return slices, found


def skinny_seconds(device: Device, s: Skinny, tile: Tile, slices: int, clustered: bool = False) -> float:
    """Return the predicted seconds on a GPU; ``clustered``: slices meet in clusters, in one launch."""
    cycles = skinny_cycles(s, tile, slices, device.compute_units, cost_model.SKINNY, clustered) + written_cycles(s)
    return float(cost_model.seconds(cycles, slices > 1 and not clustered, cost_model.hz(device)))


def skinny_cycles(s: Skinny, tile: Tile, slices: int, units: int, models: Mapping[str, Any], clustered: bool = False) -> float:
    """Return the cycles of the skinny kernel ``rows`` or ``columns``: a few sums per row or column."""
    model, size = models[reader(s)], ELEMENT_BYTES[s.type_large]
    team = cost_model.team_of(reader(s), tile, small_of(s), s.on, size, model)
    cluster = slices if clustered else 1
    return float(cost_model.team_cycles(model, team, s, slices, cluster, cost_model.room_of(team, cluster, units), units))


def written_cycles(s: Skinny) -> float:
    """Return the cycles in which ``columns`` writes its results, which a short K does not hide.

    Where the short side runs along memory, neighbouring work-items write to rows of their own, a sector for each result: 2,876
    products of 256×14×8 took 128 µs, where 27 were predicted without this and 105 are with it (``tune-check-seed307.json``, an
    H100). ``rows`` has few results for what it reads.
    """
    if s.by_rows:
        return 0.0
    each = SECTOR if s.few > 1 and not s.swapped else 4
    return float(each * s.length * s.few * s.batch / cost_model.SKINNY["columns"].memory)


def aligned_teams(device: Device, desc: Desc) -> list[tuple[int, float]]:
    """Return K slices and predicted seconds of a vendor's kernels, as if operands were aligned."""
    s = desc.skinny

    def make() -> Teams:
        return [(team_tile(s, at, 4, 4 if s.by_rows else 1), ()) for at in VENDOR_TEAMS[reader(s)]], ()

    slices, seconds = all_weighed(device, s, table(s, device.compute_units, cost_model.VENDOR_SKINNY, "vendor", make), vendor=True)
    return [(int(n), time) for n, time in zip(slices.tolist(), seconds.tolist(), strict=True) if n]
