"""Skinny: products with a short side, and vectors. The large operand is read once, as it lies; sums may be split over K.

``rows`` reads it where its rows run along K, ``columns`` where they run across; which of them a product takes follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from toprung.backends.base import Session
from toprung.backends.plan import A, B
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.gemm.classes import FEW, is_skinny
from toprung.gemm.desc import ELEMENT_BYTES, Desc, Skinny
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels.base import MOST, TEST_EDGE, TEST_SLICES, Axes, Launches, Point, TileConfig
from toprung.kernels.blocks import CPU_RATE
from toprung.kernels.cluster import SIZES, no_clusters
from toprung.kernels.helpers import ADD
from toprung.kernels.launch import MOST_GROUPS, direct, longs, summed, uints
from toprung.kernels.record import LibraryKernel, RecordFamily
from toprung.kernels.skinny.record import COLUMNS, FOLD, RECORDS, ROOM, ROWS, SPACES, chain, cluster_bytes, typed
from toprung.kernels.skinny_model import (
    MOST_SLICES,
    Teams,
    all_weighed,
    block_count,
    iteration_depth,
    reader,
    refused,
    skinny_seconds,
    small_of,
    table,
    team_tile,
    teams,
)
from toprung.kernels.split_k import LEAST_ITERATIONS, adapted_slices, slice_depth, whole_slices, with_slices
from toprung.tile import Tile

ONE_CHAIN = 64
"""Products in a chain of multiply-adds on a GPU; further chains of a work-item take registers."""
HELD = 512
"""Work-items that an SM must have registers for, 128 each; half of them where 16 sums and their chains need more."""


@dataclass(frozen=True)
class SkinnyConfig(TileConfig):
    """A tile of one of the two kernels; the tile itself says which: only ``columns`` unrolls rows of X (KU)."""

    @property
    def kernel(self) -> str:
        """``rows`` or ``columns``."""
        return "columns" if self.tile.KU else "rows"

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> Self:
        if "KU" not in tile and "VEC" not in tile and "VA" in tile:  # older entries have the width of rows' accesses there
            tile = {**tile, "VEC": tile["VA"]}
            del tile["VA"]
        later = {FOLD.name: FOLD.default, ROOM.name: ROOM.default}  # older entries do not name them
        return super().decode(tile, {**later, **options})

    def __str__(self) -> str:
        return f"{self.kernel} {self.tile}"


class SkinnyFamily(RecordFamily[SkinnyConfig]):
    """The kernels for short sides.

    Attributes
    ----------
    meet : True if slices of K are blocks of a cluster, which adds them up; else a second launch does
    """

    meet: ClassVar[bool] = False
    name = "skinny"
    operand_dtypes = frozenset(ELEMENT_BYTES)
    config = SkinnyConfig()
    records: tuple[LibraryKernel, ...] = (ROWS, COLUMNS, ADD)

    def record(self, config: SkinnyConfig) -> LibraryKernel:
        return RECORDS[config.kernel]

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_empty:
            return "there is nothing to multiply"
        s = desc.skinny
        return "" if s.few <= FEW and s.length >= s.few else f"no side is {FEW} or shorter"

    def weighed(self, device: Device, desc: Desc, most: int = MOST) -> Iterable[tuple[float, SkinnyConfig]]:
        # teams in numbers of K slices that fill a GPU; on a CPU the kernel's own tile
        if not is_skinny(desc):
            return []
        s = desc.skinny
        if device.kind != "gpu":
            tile, options = _cpu_tile(device, desc), self._options(device, desc)
            if not RECORDS[reader(s)].allows(tile, options, device):
                return []
            # enough slices to keep every core busy; more would cost more than they balance
            piece = iteration_depth(tile)
            wanted = min(round(device.compute_units / block_count(s, tile)), s.depth // (LEAST_ITERATIONS * piece), MOST_SLICES)
            config = SkinnyConfig(with_slices(tile, whole_slices(s.depth, piece, max(1, wanted))), options)
            return [(self.cost(device, desc, config), config)]

        def make() -> Teams:
            record, options = RECORDS[reader(s)], self._options(device, desc)
            room = 0 if no_clusters(device) else device.local_bytes
            legal = [tile for tile in teams(s) if record.allows(tile, options, device)]
            return [(tile, [n for n in SIZES if cluster_bytes(record, tile, n) <= room]) for tile in legal], options

        of = table(s, device.compute_units, cost_model.SKINNY, device, make)
        best = of.least(*all_weighed(device, s, of), most, self.meet)
        return [(seconds, SkinnyConfig(with_slices(tile, n), of.options)) for seconds, tile, n in best]

    def cost(self, device: Device, desc: Desc, config: SkinnyConfig) -> float:
        # the skinny model's seconds; on a CPU those of one core at a rate that orders and promises nothing
        if device.kind != "gpu":
            return desc.flops / CPU_RATE
        return skinny_seconds(device, desc.skinny, config.tile, config.slices, self.meet)

    def reason(self, device: Device, desc: Desc, config: SkinnyConfig) -> str:
        blocks, slices = block_count(desc.skinny, config.tile), config.slices
        why = f"one side is {desc.skinny.few}: memory is the limit, and the large operand is read once"
        if slices > 1:
            how = f"each is a cluster of {slices} slices of K" if self.meet else f"sums are split over K into {slices}"
            why += f"; {blocks} work-groups are too few for {device.compute_units} compute units, so {how}"
        return why

    def compile(self, session: Session, desc: Desc, config: SkinnyConfig, epilogue: Epilogue | None = None) -> Launches:
        s, c, tile, slices = desc.skinny, desc.result, config.tile, config.slices
        config, blocks, piece = launched(session.device, desc, config), -(-s.length // tile.BM), iteration_depth(tile)
        if self.meet and (whole := whole_slices(s.depth, piece, slices)) != slices:
            raise LaunchError(f"{desc}: K divides into {whole} slices of whole iterations, but a cluster has {slices} blocks")
        if blocks * c.batch > MOST_GROUPS:
            raise LaunchError(f"{desc}: {blocks * c.batch:,} work-groups where a launch has {MOST_GROUPS:,} at most")
        if slices > 1 and not self.meet:
            down, on, stride, stride_slice = c.cols, 1, c.rows * c.cols, c.elements
        else:
            down, on, stride, stride_slice = c.down, c.on, c.stride, 0
        if not s.swapped:  # few columns: the small operand's rows are the result's columns
            down, on = on, down
        fixed = [
            *uints(s.length, s.few, s.depth, blocks, slice_depth(s.depth, piece, slices)),
            *longs(s.ld, s.stride_large, s.down, s.on, s.stride_small, down, on, stride, stride_slice),
        ]
        record, operands = typed(self.record(config), s), (B, A) if s.swapped else (A, B)
        main = direct(session, record, config, (blocks * c.batch, slices), (tile.work_items,), fixed, operands)
        return Launches(session, summed(session, desc, 1 if self.meet else slices, main))

    def adapt(self, device: Device, desc: Desc, config: SkinnyConfig, measured: Desc, exact: bool) -> SkinnyConfig | str:
        s, tile = desc.skinny, config.tile
        if reader(s) != config.kernel:
            return f"skinny/{config.kernel} does not compute such a product"
        wide, together = s.widths
        if (tile.VEC or tile.VA or 1) > wide or (s.by_rows and (tile.VB or 1) > together):
            return "its accesses are wider than the operands allow"
        measured_blocks = -(-measured.skinny.length // tile.BM) * measured.batch
        wanted = adapted_slices(s.depth, iteration_depth(tile), config.slices, block_count(s, tile), measured_blocks, exact)
        if not (slices := self._possible(s, tile, wanted)):
            return "it would have no slices of K"
        options = {**dict(config.options), "SMALL": small_of(s)}
        return self.complete(device, SkinnyConfig(with_slices(tile, slices), tuple(options.items())))

    def _possible(self, s: Skinny, tile: Tile, wanted: int) -> int:
        """Return the slices of K for a product and a tile, about as many as are wanted; 0 if there can be none."""
        return wanted

    def test_problem(self, desc: Desc, config: SkinnyConfig) -> tuple[tuple[int, int, int], SkinnyConfig]:
        s, tile = desc.skinny, config.tile
        length, piece = 2 * tile.BM + TEST_EDGE, iteration_depth(tile)
        depth = TEST_SLICES * piece + TEST_EDGE
        small = replace(config, tile=with_slices(tile, whole_slices(depth, piece, min(config.slices, TEST_SLICES))))
        return ((s.few, length, depth) if s.swapped else (length, s.few, depth)), small

    def space(self, device: Device, desc: Desc) -> Axes:
        return SPACES[reader(desc.skinny), "gpu" if device.kind == "gpu" else "cpu"]

    def at(self, device: Device, desc: Desc, point: Point) -> SkinnyConfig | None:
        s, options = desc.skinny, self._options(device, desc)
        if refused(s, point):
            return None
        tile, slices = team_tile(s, point, *s.widths), point["SPLIT_K"]
        piece = iteration_depth(tile)
        if slices > MOST_SLICES or slices * piece > max(s.depth, piece) or not RECORDS[reader(s)].allows(tile, options, device):
            return None
        return SkinnyConfig(with_slices(tile, whole_slices(s.depth, piece, slices)), options)

    def search_cost(self, device: Device, desc: Desc, config: SkinnyConfig) -> float:
        # `cost`; on a CPU 0: the space is small there, and all of it comes before that of the block kernels
        return self.cost(device, desc, config) if device.kind == "gpu" else 0.0

    def point(self, config: SkinnyConfig) -> Point:
        t = config.tile
        if config.kernel == "rows":
            at_once = (t.TN or 1) // (t.VEC or 1)
            return {"ITEMS": t.work_items, "TEAM": t.DN, "TM": t.TM or 1, "AT_ONCE": at_once, "SPLIT_K": t.SPLIT_K or 1}
        return {"ACROSS": t.DM, "DN": t.DN, "TN": t.TN or 1, "KU": t.KU or 1, "SPLIT_K": t.SPLIT_K or 1}

    def _options(self, device: Device, desc: Desc) -> tuple[tuple[str, int], ...]:
        return RECORDS[reader(desc.skinny)].complete(device, [("SMALL", small_of(desc.skinny))])


def launched(device: Device, desc: Desc, config: SkinnyConfig) -> SkinnyConfig:
    """Return the configuration with the switches that a product's launch needs.

    It has chains where one would be too long, and room for few work-items on a GPU: told so, CUDA's compiler asks for all the loads
    of an iteration before it waits for one. Left alone it saves registers, and waits for them one after the other.
    """
    mine = slice_depth(desc.skinny.depth, iteration_depth(config.tile), config.slices) // config.tile.DN
    more = {FOLD.name: chain(device)} if mine > (ONE_CHAIN if device.kind == "gpu" else chain(device)) else {}
    if device.kind == "gpu":
        crowded = dict(config.options)["SMALL"] == FEW and more
        held = HELD // 2 if crowded else HELD
        more[ROOM.name] = min(max(1, held // config.tile.work_items), ROOM.values[-1])
    return replace(config, options=tuple(sorted({**dict(config.options), **more}.items())))


def _cpu_tile(device: Device, desc: Desc) -> Tile:
    """Return the kernel's own tile with accesses as wide as operands allow."""
    s = desc.skinny
    wide, together = s.widths
    tile = RECORDS[reader(s)].tile_for(device, {"SMALL": small_of(s)})
    if s.by_rows:
        return replace(tile, VEC=wide, VB=together, BN=tile.DN * wide, TN=wide)
    return replace(tile, VA=wide, TM=wide, BM=tile.DM * wide)


FAMILY = SkinnyFamily()
