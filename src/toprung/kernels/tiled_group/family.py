"""Plain fp32 products of unequal shapes in one CUDA launch, in tiles; a product by itself is left to the other families.

One kernel for every layout, alignment and shape (``tiled_group.cu``), on any NVIDIA GPU from Volta on. OpenCL's buffers have no
addresses that could stand in a launch's parameters: there each product is a launch of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from toprung.backends import nvrtc
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.gemm.desc import LARGEST, Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import GroupLaunches, Groups, KernelFamily, Launches, Member, NoConfig
from toprung.kernels.cost_model import block_count
from toprung.kernels.group import MOST_MATRICES, GroupForm, Matrix, by_traits, packed
from toprung.kernels.tiled_group.config import BLOCKS, group_source
from toprung.kernels.tiled_group.cost import group_block, share

OLDEST = (7, 0)
"""Least compute capability with parameters that a kernel reads where they are (``__grid_constant__``)."""

LARGEST_SIDE, MOST_TILES = LARGEST - 256, 1 << 20
"""Largest side, to which the kernel adds a tile's with 31 bits; and tiles of a product, of which a group counts all with 32."""


def group_share(device: Device, desc: GemmDesc) -> float:
    """Return the predicted seconds that a product adds to a group; infinite where it cannot be in one."""
    if device.backend != "cuda" or nvrtc.capability(device.arch) < OLDEST:
        return float("inf")
    if desc.is_empty or desc.is_mixed or desc.batch > MOST_MATRICES:
        return float("inf")
    if max(desc.M, desc.N, desc.K) > LARGEST_SIDE or max(block_count(desc, block) for block in BLOCKS) > MOST_TILES:
        return float("inf")
    return share(device, desc)


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
