"""Launches that families share: one kernel on A, B and C as they come, the second pass of split-K, and β·C alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import (
    ALPHA,
    BETA,
    WORKSPACE,
    A,
    Address,
    Argument,
    B,
    C,
    First,
    Handle,
    KernelLaunch,
    Library,
    Plan,
    Run,
    moved,
    pieces,
)
from toprung.gemm.desc import Desc, GemmDesc, widest
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import KernelConfig, KernelFamily, Launches, TileConfig
from toprung.kernels.build import loaded
from toprung.kernels.helpers import ADD, SCALE
from toprung.kernels.record import LibraryKernel
from toprung.kernels.split_k import FEW_PARTS

WALKERS = 1 << 20
"""Most work-groups of the kernels whose work-items walk."""

MOST_GROUPS = 2**31 - 1
"""Work-groups along the first dimension of a grid, on every NVIDIA GPU."""


def launches_of(
    session: Session, desc: Desc, family: KernelFamily, config: KernelConfig, epilogue: Epilogue | None = None
) -> Launches:  # fmt: skip
    """Return the launches of any product: the family's, or what α = 0, K = 0 and an empty result leave of it.

    With an epilogue, which the family can compute, the product is not empty, and ``Run`` takes D's address as ``addend``.

    Raises
    ------
    BuildError, IllegalTile, LaunchError
        the device cannot run the configuration; nothing was launched
    """
    if epilogue is not None:
        return family.compile(session, desc, config, epilogue)
    scales = [_scale(session, desc)] if desc.result.elements else []
    if desc.is_empty:
        return Launches(session, Plan(scales))
    made = family.compile(session, desc, config)
    made.plan = made.plan._replace(scales=scales)  # where α is 0
    return made


_tile = functools.lru_cache(64)(LibraryKernel.tile_for)  # new shapes need the same few


def _scale(session: Session, desc: Desc) -> KernelLaunch:
    tile, c = _tile(SCALE, session.device), desc.result
    fixed = [*uints(c.rows, c.cols), *longs(c.batch, c.down, c.on, c.stride)]
    kernel, groups = loaded(session, SCALE, tile), walkers(c.elements, tile.work_items)
    return KernelLaunch("scale", kernel, groups, (tile.work_items,), (Handle(C), First(C), BETA, *fixed))


def uints(*values: int) -> list[np.generic]:
    """Return kernel arguments of 32 bits."""
    return [np.uint32(v) for v in values]


def longs(*values: int) -> list[np.generic]:
    """Return kernel arguments of 64 bits."""
    return [np.int64(v) for v in values]


def walkers(elements: int, work_items: int) -> tuple[int]:
    """Return the grid of a kernel whose work-items walk over elements."""
    return (min(-(-elements // work_items), WALKERS),)


def memory(slot: int) -> tuple[Argument, Argument]:
    """Return the two arguments by which kernels of every backend are given memory."""
    return Handle(slot), First(slot)


@functools.cache
def reading(record: LibraryKernel) -> LibraryKernel:
    """Return the record of a block kernel that reads C ahead of its stores, see ``include/block.cl``."""
    return replace(record, defines={**record.defines, "READS_C": 1})


def block_record(session: Session, desc: GemmDesc, record: LibraryKernel) -> LibraryKernel:
    """Return the record of a block kernel for a product, ``reading`` where a GPU reads C; a CPU gains nothing."""
    return record if desc.beta_zero or session.device.kind == "cpu" else reading(record)


def direct(
    session: Session, record: LibraryKernel, config: TileConfig, groups: tuple[int, ...], size: tuple[int, ...],
    fixed: Sequence[np.generic], operands: tuple[int, int] = (A, B),
) -> KernelLaunch:  # fmt: skip
    """Return one launch with A, B and C as they come, or with the operands in another order."""
    kernel = loaded(session, record, config.tile, config.options)
    places = (argument for slot in (*operands, C) for argument in memory(slot))
    return KernelLaunch("multiply", kernel, groups, size, (*places, ALPHA, BETA, *fixed))


def chain_lengths(K: int, longest: int) -> list[int]:
    """Return how much of K each launch of ``in_chains`` takes."""
    return [min(longest, K - k) for k in range(0, K, longest)]


def in_chains(session: Session, desc: GemmDesc, longest: int, make: Callable[[GemmDesc], Plan]) -> Launches:
    """Return launches that take at most ``longest`` of K each, a multiple of 4, and add to what C has by then.

    The error of a sum grows with the root of the longest chain of multiply-adds in it.
    """
    depths = chain_lengths(desc.K, longest)
    if len(depths) == 1:
        return Launches(session, make(desc))
    made = {depth: make(replace(desc, K=depth)) for depth in set(depths)}
    on_a, on_b = desc.lda if desc.trans_a else 1, 1 if desc.trans_b else desc.ldb
    return Launches(session, pieces((made[depth], longest * i * on_a, longest * i * on_b) for i, depth in enumerate(depths)))


def summed(session: Session, desc: Desc, slices: int, *main: KernelLaunch) -> Plan:
    """Return the plan of ``main``, and with several slices of K of a second pass.

    With split-K ``main`` writes a result for each slice into scratch memory, unscaled; the second pass adds them in order. Both go
    into the same queue one after the other, so that scratch memory serves one product at a time.
    """
    if slices == 1:
        return Plan(main, sizes=desc.element_bytes)
    c, tile = desc.result, _tile(ADD, session.device)
    if slices <= FEW_PARTS:
        tile = replace(tile, BM=1, BN=tile.work_items)
    width = widest(desc.N, desc.ldc, desc.stride_c, desc.align_c) if not desc.is_vector else 1
    fixed = [*uints(c.cols, slices), *longs(c.rows * c.cols, c.elements, c.down, c.on, c.stride)]
    switches = {"VC": width, "TIGHT": int(c.tight), "INDEX32": int(c.elements < 2**32)}
    kernel, groups = loaded(session, ADD, tile, switches), (-(-c.elements // (tile.DN * width)),)
    add = KernelLaunch("add", kernel, groups, (tile.work_items,), (*memory(WORKSPACE), *memory(C), ALPHA, BETA, *fixed))
    unscaled = [moved(one, {C: (WORKSPACE, 0)}, numbers={ALPHA: 1.0, BETA: 0.0}) for one in main]
    return Plan([*unscaled, add], workspace_bytes=4 * slices * c.elements, sizes=desc.element_bytes)


def foreign(session: Session, desc: Desc, make: Callable[[], Run]) -> Launches:
    """Return the launch of another library: ``make`` returns, for one thread, the function that makes it."""
    places = (Address(A), Address(B), Address(C))
    return Launches(session, Plan([KernelLaunch("multiply", Library(make), (), (), places)], sizes=desc.element_bytes))
