"""Products of tiles: which tiles and slices of K the tunable product may take for a call, and how long each takes about.

``GPU`` is the table of tiles for a GPU; ``benchmarks/tiles.py`` measures them. On a CPU there are the kernel's own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from toprung.blas import expected
from toprung.blas.call import GemmCall, widest, widths
from toprung.blas.choice import SHOWN, Candidate, Choice, PassedOver, Way
from toprung.blas.kernel import kernel, legal
from toprung.blas.slices import LEAST_TURNS, cut, sliced, whole_slices
from toprung.device import Device
from toprung.tile import Tile


def _tile(bm: int, bn: int, bk: int, warp: tuple[int, int], piece: tuple[int, int], stages: int = 1) -> Tile:
    return Tile(
        BM=bm, BN=bn, BK=bk, WM=warp[0], WN=warp[1], TM=piece[0], TN=piece[1], VEC=min(4, piece[1]), VA=4, VB=4, STAGES=stages,
        PADA=4, PADB=4,
    )  # fmt: skip


GPU: tuple[Candidate, ...] = (
    Candidate(_tile(128, 256, 8, (64, 64), (8, 16)), 0.852, 1),
    Candidate(_tile(128, 128, 8, (32, 64), (8, 8)), 0.844, 2, asked=2, order=1),
    Candidate(_tile(64, 128, 16, (32, 64), (8, 8)), 0.767, 3),
    Candidate(_tile(64, 128, 8, (32, 64), (8, 8)), 0.756, 4, asked=4),
    Candidate(_tile(128, 64, 16, (32, 64), (8, 8), 2), 0.717, 3, order=1),
    Candidate(_tile(64, 64, 16, (32, 32), (8, 4), 2), 0.724, 4),
    Candidate(_tile(32, 64, 32, (16, 32), (4, 4), 2), 0.524, 4, asked=4),
    Candidate(_tile(64, 32, 16, (16, 32), (4, 4), 2), 0.559, 6, asked=6),
    Candidate(_tile(32, 32, 32, (16, 32), (4, 4), 2), 0.474, 8, asked=8, order=1),
    Candidate(_tile(16, 16, 16, (8, 16), (2, 2), 2), 0.231, 16),
    Candidate(_tile(16, 16, 32, (8, 16), (2, 2), 2), 0.236, 12),
    Candidate(_tile(16, 32, 16, (8, 16), (2, 2), 2), 0.278, 11),
    Candidate(_tile(16, 32, 32, (8, 16), (2, 2), 2), 0.271, 8),
    Candidate(_tile(32, 16, 16, (16, 8), (2, 2), 2), 0.275, 11),
    Candidate(_tile(32, 16, 32, (16, 8), (2, 2), 2), 0.259, 8),
    Candidate(_tile(32, 64, 16, (16, 32), (4, 4), 2), 0.563, 6),
    Candidate(_tile(64, 32, 16, (64, 16), (4, 8)), 0.607, 8),
    Candidate(_tile(64, 32, 8, (16, 32), (4, 4), 2), 0.567, 8),
    Candidate(_tile(64, 64, 32, (32, 32), (8, 4)), 0.627, 4),
    Candidate(_tile(64, 64, 8, (32, 64), (8, 8)), 0.728, 6),
    Candidate(_tile(128, 32, 16, (32, 32), (8, 4), 2), 0.679, 4),
    Candidate(_tile(32, 128, 16, (32, 32), (4, 8), 2), 0.601, 4),
    Candidate(_tile(128, 16, 16, (32, 16), (4, 4), 2), 0.541, 4, asked=4),
    Candidate(_tile(16, 128, 16, (16, 32), (4, 4), 2), 0.531, 4, asked=4),
)
"""Tiles that the choice weighs on a GPU, with efficiencies as ``benchmarks/fit_routes.py`` prints them."""

WAVES = (1, 2, 4)
"""Sums are cut into so many slices that each multiprocessor has so many work-groups."""

CUBLAS_SIDE, CUBLAS_SIDE_OF_BATCHES = 64, 32
"""cuBLAS is weighed by those of our tiles whose sides have at least so many elements: for batches it has narrower ones."""
CUBLAS_CUT = 128
"""Where it cuts sums, a side of its tiles has at least so many: that is why it takes long for deep products with a short side."""


def tile_grid(call: GemmCall, tile: Tile) -> tuple[int, int]:
    """Blocks down and across."""
    return -(-call.M // tile.BM), -(-call.N // tile.BN)


def tiled_options(call: GemmCall, candidate: Candidate, device: Device, slices: int) -> dict[str, int]:
    """The switches of the tunable product for a call."""
    index32 = int(max(*call.extents, call.M * call.N) < 2**31)
    ahead = (
        0 if device.backend == "opencl" and device.kind == "gpu" else candidate.ahead
    )  # NVIDIA's OpenCL takes too many registers
    options = {
        "TRANS_A": int(call.trans_a), "TRANS_B": int(call.trans_b), "VC": _width_of_c(call, candidate.tile, slices),
        "INDEX32": index32, "AHEAD": ahead, "ORDER": candidate.order,
        "RESIDENT": candidate.asked if device.kind == "gpu" else 0,
    }  # fmt: skip
    return kernel("gemm").options(device, options)


def _width_of_c(call: GemmCall, tile: Tile, slices: int) -> int:
    """Floats of an access to C, or to the slices of it; no more than a work-item's pieces on a GPU."""
    return min(widths(call)[2] if slices == 1 else widest(call.N), tile.VEC or 1)


def candidates(device: Device, call: GemmCall, well: bool = False) -> Iterator[Candidate]:
    """Tiles that are legal on the device, with accesses as wide as the call's operands allow (``well``: as can be) and the tile."""
    a, b, _ = (4, 4, 4) if well else widths(call)
    if device.kind != "gpu":
        fit = (replace(tile, VA=a, VB=b) for tile in kernel("gemm").tiles["cpu"])
        yield from (Candidate(tile, 1.0, ahead=0) for tile in fit if legal("gemm", tile, (), device))
        return
    least = 1 if not well else CUBLAS_SIDE if call.batch == 1 else CUBLAS_SIDE_OF_BATCHES
    yield from (one for one in _narrowed(device, GPU, a, b) if min(one.tile.BM, one.tile.BN) >= least)


@functools.lru_cache(64)
def _narrowed(device: Device, known: tuple[Candidate, ...], a: int, b: int) -> tuple[Candidate, ...]:
    """Tiles with the widest accesses that are legal, none wider than these."""
    narrower, found = [(va, vb) for va in (4, 2, 1) if va <= a for vb in (4, 2, 1) if vb <= b], []
    for one in known:
        fit = (replace(one.tile, VA=va, VB=vb) for va, vb in narrower)
        found += [replace(one, tile=tile) for tile in fit if legal("gemm", tile, (), device)][:1]
    return tuple(found)


def slicings(call: GemmCall, tile: Tile, compute_units: int) -> list[int]:
    """Numbers of slices that are worth weighing: one, and what gives each multiprocessor ``WAVES`` work-groups, or the most."""
    piece, blocks = tile.BK or 1, math.prod(tile_grid(call, tile)) * call.batch
    most = max(1, call.K // (LEAST_TURNS * piece))
    wanted = {1, *(round(compute_units * waves / blocks) for waves in WAVES)}
    return sorted({whole_slices(call.K, piece, min(n, most)) for n in wanted if n >= 1})


def clocks(device: Device, call: GemmCall, candidate: Candidate, slices: int, well: bool = False) -> float:
    """About how many clocks a call takes on a GPU with a tile and a number of slices; ``well``: if C lay well, too."""
    vc, wide = (4, 4) if well else (_width_of_c(call, candidate.tile, slices), widths(call)[2])
    return expected.product(
        call, candidate.tile, candidate.efficiency, candidate.resident, slices, vc, wide, device.compute_units,
        device.lanes or 128, expected.THEIRS if well else expected.PRODUCT,
    )  # fmt: skip


def listed(tile: Tile) -> Tile:
    """A tile as it would stand in ``GPU``: without what operands and sums change of it."""
    return replace(tile, VA=4, VB=4, PADA=4, PADB=4, SPLIT_K=None)


def candidate_like(tile: Tile) -> Candidate | None:
    """The one of ``GPU`` that a tile was made of; None where there is none."""
    return next((one for one in GPU if listed(one.tile) == listed(tile)), None)


def products(device: Device, call: GemmCall, well: bool) -> list[Way]:
    """The tunable product with every tile and number of slices that is weighed."""
    found = []
    for one in candidates(device, call, well):
        for slices in slicings(call, one.tile, device.compute_units):
            if well and slices > 1 and max(one.tile.BM, one.tile.BN) < CUBLAS_CUT:
                continue
            seconds = expected.seconds(clocks(device, call, one, slices, well), min(slices, 2), expected.hz(device))
            found.append(Way(seconds, "gemm", one.tile, slices, one))
    return found


def tiled_choice(device: Device, call: GemmCall, candidate: Candidate, slices: int, passed_over: PassedOver) -> Choice:
    """A tile of the tunable product as a choice."""
    blocks = math.prod(tile_grid(call, candidate.tile)) * call.batch
    why = f"least by the model: {blocks * slices} work-groups for {device.compute_units} compute units"
    if slices > 1:
        why += f", the sums cut into {slices} to have that many"
    options = tiled_options(call, candidate, device, slices)
    return Choice("gemm", cut(candidate.tile, slices), tuple(sorted(options.items())), why, passed_over)


def tiled_on_cpu(device: Device, call: GemmCall) -> Choice | None:
    """The tunable product with the tile that takes least."""
    weighed = sorted(((*_work(device, call, one.tile), one) for one in candidates(device, call)), key=lambda w: w[0])
    if not weighed:
        return None
    cost, slices, best = weighed[0]
    passed = tuple((f"blas/gemm {one.tile}", f"{other / cost:.2f} times as long by the model") for other, _, one in weighed[1:])
    return tiled_choice(device, call, best, slices, passed[:SHOWN])


def _work(device: Device, call: GemmCall, tile: Tile) -> tuple[float, int]:
    """What is computed, edges included, a work-group's worth at least for each core; slices where blocks are too few."""
    blocks = math.prod(tile_grid(call, tile)) * call.batch
    slices = 1
    if blocks < device.compute_units and call.K >= 1024:
        slices = whole_slices(call.K, tile.BK or 1, min(-(-device.compute_units // blocks), call.K // 256))
    waves = -(-blocks * slices // device.compute_units)
    small = 1.0 if tile.TN and tile.TN >= 16 else 3.0  # narrow vectors leave most of a core idle
    return small * waves * tile.BM * tile.BN * sliced(call.K, tile.BK or 1, slices), slices
