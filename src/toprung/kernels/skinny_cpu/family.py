"""Skinny products and vectors on a CPU: each core reads its part of the large operand once, in the order in which it lies.

Where rows of the large operand run along K, ``rows`` has vectors along the short side, and ``dots`` along K if that side is one or
two; where they run across, ``columns`` has vectors along them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from toprung import backends
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import Desc, Skinny
from toprung.kernels.base import TEST_EDGE, TEST_SLICES, Axes, KernelConfig, KernelFamily, Launches, Point, TileConfig, tile_of
from toprung.kernels.blocks import CPU_RATE
from toprung.kernels.helpers import ADD
from toprung.kernels.launch import split_k_bytes
from toprung.kernels.skinny_cpu.record import MOST, RECORDS, SPACES
from toprung.kernels.skinny_launch import skinny_launches
from toprung.kernels.skinny_model import MOST_SLICES, block_count, small_of
from toprung.kernels.split_k import LEAST_ITERATIONS, adapted_slices, slice_depth, whole_slices, with_slices
from toprung.tile import Tile

PIECE = 64
"""Elements along K of which slices are multiples."""

LEAST_BLOCK = 64
"""Rows or columns of the large operand that a work-group has at least: fewer cost more in starting groups than they even out."""

GROUPS = {"rows": 4, "dots": 4, "columns": 1}
"""Work-groups for each core at least: more even out what the cores do, but pieces of rows should be long."""


@dataclass(frozen=True)
class CpuSkinnyConfig(TileConfig):
    """A tile of one of the three kernels; the tile itself says which."""

    @property
    def kernel(self) -> str:
        """``rows``, ``dots`` or ``columns``: only ``columns`` takes KU rows of X at a time, and only ``rows`` has no VA."""
        return "columns" if self.tile.KU else "dots" if self.tile.VA else "rows"

    def __str__(self) -> str:
        return f"{self.kernel} {self.tile}"


class CpuSkinnyFamily(KernelFamily):
    """The kernels for short sides on a CPU."""

    name = "skinny_cpu"

    def supports(self, device: Device, desc: Desc) -> str:
        """Return why it is not for the device, or that no side is short."""
        if device.kind != "cpu" or device.backend != "opencl":
            return "it is for CPUs, through OpenCL"
        if desc.is_empty:
            return "there is nothing to multiply"
        s = desc.skinny
        return "" if s.few <= FEW and s.length >= s.few else f"no side is {FEW} or shorter"

    # selection

    def candidates(self, device: Device, desc: Desc) -> Iterator[CpuSkinnyConfig]:
        """Yield one tile, with as many slices of K as give every core something to do."""
        s = desc.skinny
        kernel = _kernel_for(s)
        tile = _fitted(next(t for t in RECORDS[kernel].tiles["cpu"] if t.BN <= small_of(s)), s)
        while tile.BM > LEAST_BLOCK and block_count(s, tile) < GROUPS[kernel] * device.compute_units:
            tile = replace(tile, BM=tile.BM // 2, TM=tile.BM // 2)
        wanted = min(round(device.compute_units / block_count(s, tile)), s.depth // (LEAST_ITERATIONS * PIECE), MOST_SLICES)
        made = CpuSkinnyConfig(with_slices(tile, whole_slices(s.depth, PIECE, max(1, wanted))))
        if not RECORDS[kernel].refused(made, device):
            yield made

    def cost(self, device: Device, desc: Desc, config: KernelConfig) -> float:
        """Return the busiest core's multiply-adds over a rate that orders and promises nothing."""
        assert isinstance(config, CpuSkinnyConfig)
        s, tile = desc.skinny, config.tile
        waves = -(-block_count(s, tile) * config.slices // device.compute_units)
        return waves * min(tile.BM, s.length) * s.few * min(s.depth, slice_depth(s.depth, PIECE, config.slices)) / CPU_RATE

    def reason(self, device: Device, desc: Desc, config: KernelConfig) -> str:
        """Return which side is short."""
        why = f"one side is {desc.skinny.few}: each core reads its part of the large operand once"
        return why + (f"; sums are split over K into {config.slices} so that every core has a part" if config.slices > 1 else "")

    # running

    def compile(self, session: Session, desc: Desc, config: KernelConfig) -> Launches:
        """Return one launch; where the large operand is B, the operands change places."""
        assert isinstance(config, CpuSkinnyConfig)
        return skinny_launches(session, desc, RECORDS[config.kernel], config, PIECE)

    def workspace_bytes(self, device: Device, desc: Desc, config: KernelConfig) -> int:
        """Return what split-K needs."""
        return split_k_bytes(desc, config.slices)

    def launch_count(self, device: Device, desc: Desc, config: KernelConfig) -> int:
        """Return one, or two with split-K."""
        return 2 if config.slices > 1 else 1

    # the store

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> CpuSkinnyConfig:
        """Return a tile of one of the kernels, if it could ever be built."""
        if not tile or options:
            raise ValueError("skinny_cpu needs a tile, and has no switches")
        made = CpuSkinnyConfig(tile_of(tile))
        if any((getattr(made.tile, name) or 1) > most for name, most in MOST.items()):
            raise ValueError("its tile is larger than is ever built")
        needed = {"rows": ("BK", "WM"), "dots": ("BK", "WM"), "columns": ("VA",)}[made.kernel]
        if missing := [name for name in needed if getattr(made.tile, name) is None]:
            raise ValueError(f"skinny_cpu/{made.kernel} needs {' and '.join(missing)}")
        return made

    def adapt(self, device: Device, desc: Desc, config: KernelConfig, measured: Desc, exact: bool) -> KernelConfig | str:
        """Return the tile for as many rows of the small operand, with slices that give its blocks as many work-groups."""
        assert isinstance(config, CpuSkinnyConfig)
        s = desc.skinny
        if reason := self.supports(device, desc):
            return reason
        if _kernel_for(s) != config.kernel:
            return f"skinny_cpu/{config.kernel} does not compute such a product"
        tile = _fitted(config.tile, s)
        measured_blocks = -(-measured.skinny.length // tile.BM) * measured.batch
        slices = adapted_slices(s.depth, PIECE, config.slices, block_count(s, tile), measured_blocks, exact)
        made = CpuSkinnyConfig(with_slices(tile, slices))
        return RECORDS[config.kernel].refused(made, device) or made

    def texts(self, backend: str) -> Iterable[str]:
        """Return the sources of the kernels and of split-K's second pass."""
        return [backends.prelude(backend), *(record.text() for record in RECORDS.values()), ADD.text()]

    # verification and the tuner

    def test_problem(self, desc: Desc, config: KernelConfig) -> tuple[tuple[int, int, int], KernelConfig]:
        """Return two blocks and an edge along the large operand, more than a piece of K, and as many slices, up to three."""
        assert isinstance(config, CpuSkinnyConfig)
        s, tile = desc.skinny, config.tile
        length, depth = 2 * tile.BM + TEST_EDGE - 1, max(TEST_SLICES * PIECE, tile.BK or 0) + TEST_EDGE - 1
        small = replace(config, tile=with_slices(tile, whole_slices(depth, PIECE, min(config.slices, TEST_SLICES))))
        return ((s.few, length, depth) if s.swapped else (length, s.few, depth)), small

    def source(self, device: Device, config: KernelConfig) -> Source:
        """Return the kernel's source for a tile."""
        assert isinstance(config, CpuSkinnyConfig)
        return RECORDS[config.kernel].source_for(config.tile, config.options, device)

    def space(self, device: Device, desc: Desc) -> Axes:
        """Return the space of the kernel for such a product."""
        return {} if self.supports(device, desc) else SPACES[_kernel_for(desc.skinny)]

    def at(self, device: Device, desc: Desc, point: Point) -> CpuSkinnyConfig | None:
        """Return a point, if it is legal and no slice is empty."""
        s = desc.skinny
        record, slices = RECORDS[_kernel_for(s)], point["SPLIT_K"]
        sizes = {name: value for name, value in point.items() if name != "SPLIT_K"}
        tile = _fitted(replace(record.tiles["cpu"][0], **sizes, TM=point["BM"]), s)
        if slices * PIECE > max(s.depth, PIECE):
            return None
        made = CpuSkinnyConfig(with_slices(tile, whole_slices(s.depth, PIECE, slices)))
        return None if record.refused(made, device) else made

    def search_cost(self, device: Device, desc: Desc, config: KernelConfig) -> float:
        """Return 0: the space is small, and all of it comes before that of the block kernels."""
        return 0.0

    def point(self, config: KernelConfig) -> Point:
        """Return the tile's sizes by the axes of its kernel's space."""
        assert isinstance(config, CpuSkinnyConfig)
        return {name: getattr(config.tile, name) or 1 for name in SPACES[config.kernel]}


def _kernel_for(s: Skinny) -> str:
    """Return which kernel reads the large operand as it lies."""
    return "columns" if not s.by_rows else "dots" if s.few <= 2 else "rows"


def _fitted(tile: Tile, s: Skinny) -> Tile:
    """Return a tile for as many rows of the small operand, with vectors along the large one no longer than that."""
    small = small_of(s)
    if tile.KU:
        tile = replace(tile, VA=next(w for w in (16, 8, 4, 2, 1) if w <= min(tile.VA or 1, s.length)))
    return replace(tile, BN=small, TN=small)


FAMILY = CpuSkinnyFamily()
