"""Stream-K: the block kernel for one large product, the blocks of its last wave cut along K.

Taken where it was tuned, and for shallow products.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from toprung.backends.base import Session
from toprung.backends.plan import ALPHA, BETA, WORKSPACE, A, B, C, Handle, KernelLaunch, Plan
from toprung.device import Device
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import blocks, cost_model
from toprung.kernels.base import MOST, Axes, Launches, Point, TileConfig
from toprung.kernels.blocks import GROUP_M, LAYOUT_SWITCHES, RESIDENT, RULES, Block, fitted, longest_launch, square, tiles_bytes
from toprung.kernels.build import loaded
from toprung.kernels.launch import block_record, in_chains, memory, uints
from toprung.kernels.record import LibraryKernel, RecordFamily, Switch
from toprung.kernels.stream_k.work import Work, uploaded, work
from toprung.tile import Rule, Tile

HERE = Path(__file__).parent

RECORD = LibraryKernel(
    idea="blocks of the last wave, cut along K",
    expects="1.02 times the tunable product where C has a few waves of blocks, and the gain of pairs in deeper tiles",
    tiles={
        "gpu": (square(128, 16, 8, (32, 64)),),
        "cpu": (
            Tile(BM=32, BN=64, BK=8, WM=16, WN=64, TM=8, TN=32, VEC=16, VA=4, VB=4, STAGES=1, PADA=0, PADB=0),
            square(16, 8, 4, (16, 16)),
        ),
    },
    local_bytes=tiles_bytes,
    rules=(*RULES, Rule("TN % 2 = 0", "columns go in pairs", lambda t, d: (t.TN or 1) % 2 == 0)),
    space={"BK": (16, 8)},
    switches=(
        *LAYOUT_SWITCHES,
        RESIDENT,
        GROUP_M,
        Switch("ORDER", "1: multiplications down pairs of columns; 0: row by row", values=(1, 0), searched=True),
    ),
    source=HERE / "stream_k.cl",
    routine="stream_k",
)

COLLECT = LibraryKernel(
    idea="parts of blocks, added in their order",
    expects="the speed of the L2, and a launch",
    tiles={"gpu": (square(128, 16, 8, (32, 64)),)},
    switches=(Switch("VC", "floats of an access to C", values=(1, 2, 4)),),
    source=HERE / "collect.cl",
    routine="collect",
)

SAVED = 128
"""Elements along K that a slot must save, and a share have, for a cut: what a second launch and adding take."""

LEAST = 1 << 20
"""Results of C from which on blocks of 128×128 are worth trying."""

_FITTED = cost_model.fitted("blocks")["stream_k"]
LEAST_SHALLOW, EFFICIENCY, PEAK_SHARE = (_FITTED[name] for name in ("least_shallow", "efficiency", "peak_share"))
"""Least K of what is taken unmeasured, and shares of the lanes and of the peak, as ``models/blocks.json`` explains them."""

PER_UNIT = 2
"""Work-groups on an SM."""

SPACE: Axes = {"BK": (16, 8), "ORDER": (1, 0), "INDEX32": (1, 0), "GROUP_M": (8, 4, 16)}
FIRST = {name: values[0] for name, values in SPACE.items()}


class StreamK(RecordFamily[TileConfig]):
    """One large product in pieces of blocks."""

    name = "stream_k"
    records = (RECORD, COLLECT)

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector or desc.batch > 1:
            return "it multiplies two matrices"
        return "there is nothing to multiply" if desc.is_empty else ""

    def weighed(self, device: Device, desc: GemmDesc, most: int = MOST) -> Iterator[tuple[float, TileConfig]]:
        # the deeper tile for shallow products; for others only what was measured is followed
        if self._is_shallow(device, desc) and (found := self.at(device, desc, FIRST)) is not None:
            yield self.cost(device, desc, found), found

    def _is_shallow(self, device: Device, desc: Desc) -> bool:
        """Return True for a product whose time the block model tells: one chain of K, results that are written as they lie."""
        if device.kind != "gpu" or desc.is_vector or self.supports(device, desc):
            return False
        return LEAST_SHALLOW <= desc.K <= blocks.SHALLOW and desc.widths[2] == 4 and desc.M * desc.N >= blocks.UNCUT_SHALLOW

    def cost(self, device: Device, desc: Desc, config: TileConfig) -> float:
        if not desc.is_vector and self._is_shallow(device, desc):
            return blocks.block_seconds(device, desc, Block(config.tile, EFFICIENCY, PER_UNIT), config.tile, 1)
        peak = device.peak_gflops
        return desc.flops / (1e9 * peak * PEAK_SHARE) if peak else math.inf

    def compile(self, session: Session, desc: GemmDesc, config: TileConfig, epilogue: Epilogue | None = None) -> Launches:
        return in_chains(session, desc, longest_launch(config.options), lambda piece: _plan(session, piece, config))

    def adapt(self, device: Device, desc: GemmDesc, config: TileConfig, measured: Desc, exact: bool) -> TileConfig | str:
        if reason := blocks.too_wide(desc, config.tile):
            return reason
        options = blocks.layout_options(desc, config.tile, dict(config.options), desc.widths[2])
        return self.complete(device, TileConfig(replace(config.tile, SPLIT_K=None), options))

    def space(self, device: Device, desc: GemmDesc) -> Axes:
        return SPACE if device.kind == "gpu" and desc.M * desc.N >= LEAST else {}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> TileConfig | None:
        tile = fitted(desc, replace(RECORD.tiles["gpu"][0], BK=point["BK"]))
        if point["INDEX32"] > int(desc.index32) or not RECORD.allows(tile, (), device):
            return None
        searched = {"RESIDENT": PER_UNIT, **{name: value for name, value in point.items() if name != "BK"}}
        return TileConfig(tile, tuple(sorted((blocks.product_options(desc, tile) | searched).items())))

    def point(self, config: TileConfig) -> Point:
        options = dict(config.options)
        return {"BK": config.tile.BK or 1, **{name: options[name] for name in ("ORDER", "INDEX32", "GROUP_M")}}


@functools.lru_cache(256)
def listed(desc: GemmDesc, config: TileConfig, units: int) -> Work:
    """Return the list of work for a product on a device of ``units`` compute units."""
    options = dict(config.options)
    slots, least = max(1, options["RESIDENT"]) * units, max(1, SAVED // (config.tile.BK or 1))
    return work(desc.M, desc.N, desc.K, config.tile, slots, least, options["GROUP_M"])


def _plan(session: Session, desc: GemmDesc, config: TileConfig) -> Plan:
    """Return both launches of a K that may be one chain, or the one where nothing is cut."""
    tile, options = config.tile, dict(config.options)
    todo = listed(desc, config, session.device.compute_units)
    groups = uploaded(todo.groups, session)
    kernel = loaded(session, block_record(session, desc, RECORD), tile, config.options)
    main = KernelLaunch(
        "multiply", kernel, (len(todo.groups),), (tile.work_items,),
        (
            *memory(A), *memory(B), *memory(C), ALPHA, BETA, groups, Handle(WORKSPACE) if todo.parts else groups,
            *uints(desc.M, desc.N, desc.lda, desc.ldb, desc.ldc),
        ),
    )  # fmt: skip
    if not todo.parts:
        return Plan([main], kept=(groups,))
    added = uploaded(todo.added, session)
    groups_each = -(-tile.BM * tile.BN // (tile.work_items * options["VC"]))
    add = KernelLaunch(
        "collect", loaded(session, COLLECT, tile, {"VC": options["VC"]}), (groups_each, len(todo.added)), (tile.work_items, 1),
        (*memory(C), added, Handle(WORKSPACE), *uints(desc.M, desc.N, desc.ldc)),
    )  # fmt: skip
    return Plan([main, add], workspace_bytes=4 * tile.BM * tile.BN * todo.parts, kept=(groups, added))


FAMILY = StreamK()
