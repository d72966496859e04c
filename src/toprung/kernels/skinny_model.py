"""Skinny kernels: teams and K slices worth weighing where one side is short or a vector, and predicted seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toprung.device import Device
from toprung.gemm.desc import Desc, Skinny
from toprung.kernels import cost_model
from toprung.kernels.split_k import LEAST_ITERATIONS, whole_slices
from toprung.tile import COMMON, Tile, broken

SMALL = (1, 2, 4, 8, 16)
"""Rows of the small operand that there is a kernel for; between them the next larger is taken."""

TEAMS: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "rows": (
        {"ITEMS": 256, "TEAM": 32, "TM": 4},
        {"ITEMS": 128, "TEAM": 32, "TM": 4},
        {"ITEMS": 128, "TEAM": 32, "TM": 1},
    ),
    "columns": ({"ACROSS": 32, "DN": 4, "TN": 16, "KU": 4}, {"ACROSS": 32, "DN": 8, "TN": 32, "KU": 8}),
}
"""Work-groups that are weighed on a GPU: ``ITEMS`` in teams of ``TEAM`` that share TM rows; ``ACROSS`` work-items side by side."""

WAVES = (0.5, 1.0, 2.0, 4.0)
"""Split-K factors to try, as work-items per SM, in units of what an SM holds."""

MOST_SLICES = 256
"""Slices of K at most."""


def reader(s: Skinny) -> str:
    """Return which kernel reads the large operand as it lies: ``rows`` along K, or ``columns`` across."""
    return "rows" if s.by_rows else "columns"


def small_of(s: Skinny) -> int:
    """Return how many rows of the small operand the kernel is compiled for."""
    return next(n for n in SMALL if n >= s.few)


def iteration_depth(tile: Tile) -> int:
    """Return the elements along K that a work-group takes at a time: slices are multiples of it, so that they begin aligned."""
    return tile.DN * (tile.KU or tile.VA or 1)


def team_tile(s: Skinny, at: Mapping[str, int], wide: int, together: int) -> Tile:
    """Return the tile of a team, with accesses of ``wide`` floats to the large operand and ``together`` to the small one."""
    if s.by_rows:
        rows = at["ITEMS"] // at["TEAM"] * at["TM"]
        return Tile(BM=rows, BN=at["TEAM"] * wide, TM=at["TM"], TN=wide, VA=wide, VB=together)
    return Tile(BM=at["ACROSS"] * wide, BN=at["DN"] * at["TN"], TM=wide, TN=at["TN"], VA=wide, KU=at["KU"])


def teams(s: Skinny, aligned: bool = False) -> Iterator[Tile]:
    """Yield the tiles that are weighed on a GPU; ``aligned``: as if the operands were."""
    wide, together = (4, 4 if s.by_rows else 1) if aligned else s.widths
    for at in TEAMS[reader(s)]:
        yield team_tile(s, at, wide, together)


def block_count(s: Skinny, tile: Tile) -> int:
    """Return the work-groups of a slice of K."""
    return -(-s.length // tile.BM) * s.batch


def split_k_factors(s: Skinny, tile: Tile, compute_units: int) -> list[int]:
    """Return the numbers of K slices worth weighing on a GPU: one, and what fills each SM by ``WAVES``."""
    at_once = max(1, cost_model.THREADS // tile.work_items) * compute_units
    wanted = {1, *(round(waves * at_once / block_count(s, tile)) for waves in WAVES)}
    most = min(s.depth // (LEAST_ITERATIONS * iteration_depth(tile)), MOST_SLICES)
    return sorted({whole_slices(s.depth, iteration_depth(tile), max(1, min(n, most))) for n in wanted})


def skinny_seconds(device: Device, s: Skinny, tile: Tile, slices: int) -> float:
    """Return the predicted seconds on a GPU."""
    cycles = cost_model.skinny_cycles(
        reader(s), tile, s.length, s.few, small_of(s), s.depth, s.on, s.batch, slices, device.compute_units
    )  # fmt: skip
    return cost_model.seconds(cycles, min(slices, 2), cost_model.hz(device))


def aligned_teams(device: Device, desc: Desc) -> Iterator[tuple[int, float]]:
    """Yield K slices and predicted seconds of what a vendor's library may have, as if operands were aligned."""
    s = desc.skinny
    for tile in teams(s, aligned=True):
        if broken(COMMON, tile, device):
            continue
        for slices in split_k_factors(s, tile, device.compute_units):
            yield slices, skinny_seconds(device, s, tile, slices)
