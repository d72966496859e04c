"""Cost model: predicted seconds of a group, and the block that is selected for it.

The numbers are those of block kernels (``cost_model.BLOCK``), fitted to launches of one product; groups were not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from toprung.device import Device
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.cost_model import BLOCK, FUNNEL, block_count
from toprung.kernels.tiled_group.config import BLOCKS, GroupBlock

LANES = 128
"""Lanes of an SM where the device does not say."""
SHARERS = 16
"""Products among which a tile's own time is divided: a launch takes no less than its longest tile, which others of the group fill.
One with few tiles of deep K may then be faster by itself, in slices of K."""


def tile_cycles(device: Device, block: GroupBlock, count: int) -> tuple[float, float]:
    """Return the cycles of BK of K, and of a tile besides, of an SM that has so many blocks at once; all end together."""
    lanes = device.lanes or LANES
    results, filled = count * block.BM * block.BN, min(1.0, count * block.threads / lanes)
    multiplying = results * block.BK / lanes * math.pow(filled, BLOCK.alone - 1) / block.efficiency
    waiting = BLOCK.iteration + BLOCK.load * (block.BM + block.BN) * block.BK / 4 / block.threads
    each = block.TM * block.TN
    writing = BLOCK.store * each / 4 + BLOCK.result * math.pow(each / 32, BLOCK.piece) * results
    return multiplying + waiting, writing + BLOCK.iteration  # what is fetched first waits for memory once more


def share(device: Device, desc: GemmDesc) -> float:
    """Return the predicted seconds that a product adds to a group's launch: all SMs share its tiles, and its bytes."""
    found = math.inf
    for block in BLOCKS:
        step, tile = tile_cycles(device, block, block.resident)
        one = -(-desc.K // block.BK) * step + tile
        found = min(found, max(block_count(desc, block) * one / (block.resident * device.compute_units), one / SHARERS))
    moved = 4 * (desc.rows_read * desc.K + BLOCK.written * desc.M * desc.N * desc.batch) / BLOCK.memory
    return float(max(found, moved) / cost_model.hz(device))


def group_cycles(device: Device, sizes: NDArray[Any], block: GroupBlock) -> float:
    """Return the predicted cycles of a group's launch: those of its first block.

    ``sizes``: as ``cost_model.group_sizes`` returns them.
    """
    (M, N, K), (depths, last) = sizes, cost_model.first_block(sizes, block, device.compute_units)
    steps, left = -(-depths // block.BK), min(block.resident, math.ceil(last / device.compute_units))
    (step, tile), (last_step, last_tile) = (tile_cycles(device, block, n) for n in (block.resident, left))
    work = float((steps[:-1] * step + tile).sum() + steps[-1] * last_step + last_tile)
    moved = 4 * float(((M + N) * K + BLOCK.written * M * N).sum()) / BLOCK.memory
    return float(BLOCK.launch + math.pow(work**FUNNEL + moved**FUNNEL, 1 / FUNNEL))


def group_block(device: Device, descs: Sequence[GemmDesc]) -> GroupBlock:
    """Return the block that a group is predicted to take least time with."""
    sizes = cost_model.group_sizes(descs)
    return min(BLOCKS, key=lambda block: group_cycles(device, sizes, block))
