"""Plain fp32 products of unequal shapes in one CUDA launch, in tiles; a product by itself is left to the other families.

One kernel for every layout, alignment and shape (``tiled_group.cu``), on any NVIDIA GPU from Volta on. OpenCL's buffers have no
addresses that could stand in a launch's parameters: there each product is a launch of its own. The numbers of the cost model are
those of block kernels (``cost_model.BLOCK``), fitted to launches of one product; groups were not measured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from toprung.backends import nvrtc
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.gemm.desc import LARGEST, Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import GroupLaunches, Groups, KernelFamily, Launches, Member, NoConfig
from toprung.kernels.cost_model import BLOCK, FUNNEL, block_count
from toprung.kernels.group import MOST_MATRICES, GroupForm, Matrix, by_traits, packed
from toprung.kernels.record import joined

OLDEST = (7, 0)
"""Least compute capability with parameters that a kernel reads where they are (``__grid_constant__``)."""

LARGEST_SIDE, MOST_TILES = LARGEST - 256, 1 << 20
"""Largest side, to which the kernel adds a tile's with 31 bits; and tiles of a product, of which a group counts all with 32."""
LANES = 128
"""Lanes of an SM where the device does not say."""
SHARERS = 16
"""Products among which a tile's own time is divided: a launch takes no less than its longest tile, which others of the group fill.
One with few tiles of deep K may then be faster by itself, in slices of K."""


@dataclass(frozen=True)
class GroupBlock:
    """A block that owns BM×BN of C at a time.

    Attributes
    ----------
    BK : of K that is in shared memory at a time
    TM, TN : rows and columns of C that a thread owns
    resident : blocks that an SM has registers for
    efficiency : share of the lanes' multiply-adds that it reaches where nothing else limits: that of ``blocks.BLOCKS`` for such
        a tile, or one between its neighbours there; not measured in this kernel
    """

    BM: int
    BN: int
    BK: int
    TM: int
    TN: int
    resident: int
    efficiency: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM * self.BN // (self.TM * self.TN)

    def __str__(self) -> str:
        return f"{self.BM}×{self.BN}×{self.BK}"


BLOCKS = (
    GroupBlock(128, 128, 8, 8, 8, 1, 0.756),
    GroupBlock(64, 64, 16, 8, 4, 3, 0.69),
    GroupBlock(32, 64, 16, 4, 4, 4, 0.552),
    GroupBlock(32, 32, 16, 4, 4, 8, 0.467),
    GroupBlock(16, 64, 16, 4, 4, 8, 0.45),
)
"""Blocks that are weighed for a group. A thread has two sets of sums, which limit how many an SM has."""


def group_source(tile: GroupBlock, trans_a: int, trans_b: int, **macros: int) -> Source:
    """Return the kernel of a block, for operands that are transposed or not."""
    defines = {
        "BM": tile.BM, "BN": tile.BN, "BK": tile.BK, "TM": tile.TM, "TN": tile.TN, "RESIDENT": tile.resident,
        "TRANS_A": int(trans_a), "TRANS_B": int(trans_b), **macros,
    }  # fmt: skip
    title, text = f"tiled_group_{tile.BM}x{tile.BN}x{tile.BK}", joined(Path(__file__).parent, "tiled_group.cu")
    return Source("tiled_group/tiled_group", text, "tiled_group", defines, "cuda", title=title)


def tile_cycles(device: Device, block: GroupBlock, count: int) -> tuple[float, float]:
    """Return the cycles of BK of K, and of a tile besides, of an SM that has so many blocks at once; all end together."""
    lanes = device.lanes or LANES
    results, filled = count * block.BM * block.BN, min(1.0, count * block.threads / lanes)
    multiplying = results * block.BK / lanes * math.pow(filled, BLOCK.alone - 1) / block.efficiency
    waiting = BLOCK.iteration + BLOCK.load * (block.BM + block.BN) * block.BK / 4 / block.threads
    each = block.TM * block.TN
    writing = BLOCK.store * each / 4 + BLOCK.result * math.pow(each / 32, BLOCK.piece) * results
    return multiplying + waiting, writing + BLOCK.iteration  # the first loads wait for memory once more


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


def group_share(device: Device, desc: GemmDesc) -> float:
    """Return the predicted seconds that a product adds to a group's launch; infinite where it cannot be in one.

    All SMs share its tiles, and its bytes.
    """
    if device.backend != "cuda" or nvrtc.capability(device.arch) < OLDEST:
        return float("inf")
    if desc.is_empty or desc.is_mixed or desc.batch > MOST_MATRICES:
        return float("inf")
    if max(desc.M, desc.N, desc.K) > LARGEST_SIDE or max(block_count(desc, block) for block in BLOCKS) > MOST_TILES:
        return float("inf")
    found = math.inf
    for block in BLOCKS:
        step, tile = tile_cycles(device, block, block.resident)
        one = -(-desc.K // block.BK) * step + tile
        found = min(found, max(block_count(desc, block) * one / (block.resident * device.compute_units), one / SHARERS))
    moved = 4 * (desc.rows_read * desc.K + BLOCK.written * desc.M * desc.N * desc.batch) / BLOCK.memory
    return float(max(found, moved) / cost_model.hz(device))


def group_launches(session: Session, members: Sequence[Member]) -> GroupLaunches:
    """Return the launches of a group, one for each pair of transposes."""

    def form(trans: tuple[bool, bool], some: Sequence[Matrix]) -> GroupForm:
        tile = group_block(session.device, [m.desc for m in some])
        return GroupForm(tile, trans, functools.partial(group_source, tile, *trans))

    classes = by_traits(members, lambda desc: (desc.trans_a, desc.trans_b)).items()
    return packed(session, "tiled_group", members, classes, form)


class TiledGroup(KernelFamily[NoConfig]):
    """Plain fp32 products in tiles, only ever together."""

    name = "tiled_group"
    epilogues = epilogues.EVERY
    groups = Groups(group_share, group_launches)

    def supports(self, device: Device, desc: Desc) -> str:
        return "it computes products that share a launch, none by itself"

    def weighed(self, device: Device, desc: Desc, most: int = 0) -> Iterable[tuple[float, NoConfig]]:
        return ()

    def cost(self, device: Device, desc: Desc, config: NoConfig) -> float:
        return float("inf")

    def compile(self, session: Session, desc: Desc, config: NoConfig, epilogue: Epilogue | None = None) -> Launches:
        raise Unsupported(f"{self.name}: {self.supports(session.device, desc)}")

    def texts(self, backend: str) -> Iterable[str]:
        # the source; CUDA C++ has no prelude
        return [group_source(BLOCKS[0], 0, 0).text]


FAMILY = TiledGroup()
