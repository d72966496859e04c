"""Launches that families share: one kernel on A, B and C as they come, the second pass of split-K, and β·C alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.gemm.desc import Desc, GemmDesc, widest
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import KernelConfig, KernelFamily, Launches, Run, TileConfig
from toprung.kernels.build import loaded
from toprung.kernels.helpers import ADD, SCALE
from toprung.kernels.record import LibraryKernel
from toprung.kernels.split_k import FEW_PARTS

SMALLEST = 2.0**-150
"""An α no larger than this is 0 in float32."""

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
    return _Any(session, desc, family, config) if epilogue is None else _Fused(session, desc, family, config, epilogue)


class _Any(Launches):
    """A family's launches with β·C alone beside them, for calls that multiply nothing."""

    def __init__(self, session: Session, desc: Desc, family: KernelFamily, config: KernelConfig) -> None:
        self._session, self._desc = session, desc
        self._workspace = family.workspace_bytes(session.device, desc, config)
        self.product = None if desc.is_empty else family.compile(session, desc, config)

    def starter(self) -> Run:
        # A function that starts the product; for one thread
        if not self._desc.result.elements:
            return _nothing
        scale = _scale(self._session, self._desc)
        if self.product is None:
            return scale
        multiply, takes_workspace = self.product.starter(), self._workspace > 0

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None,
        ) -> None:  # fmt: skip
            if -SMALLEST <= alpha <= SMALLEST:
                scale(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)
            elif takes_workspace:
                multiply(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace)
            else:
                multiply(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue)

        return run

    def reserve(self, queue: Any = None) -> None:
        if self._workspace:
            self._session.workspace(queue, self._workspace)
        if self.product is not None:
            self.product.reserve(queue)

    def accepts(self, packed: Any) -> bool:
        return self.product is not None and self.product.accepts(packed)

    def escalated(self) -> int:
        return self.product.escalated() if self.product is not None else 0


class _Fused(Launches):
    """A family's launches with an epilogue, lent scratch memory only where they take any."""

    def __init__(self, session: Session, desc: Desc, family: KernelFamily, config: KernelConfig, epilogue: Epilogue) -> None:
        self._takes_workspace = family.workspace_bytes(session.device, desc, config) > 0
        self.product = family.fused(session, desc, config, epilogue)

    def reserve(self, queue: Any = None) -> None:
        self.product.reserve(queue)

    def accepts(self, packed: Any) -> bool:
        return self.product.accepts(packed)

    def escalated(self) -> int:
        return self.product.escalated()

    def starter(self) -> Run:
        # A function that starts the product; for one thread
        multiply, takes_workspace = self.product.starter(), self._takes_workspace

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None, addend: int = 0,
        ) -> None:  # fmt: skip
            lent = (workspace,) if takes_workspace else ()
            multiply(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, *lent, addend=addend)

        return run


def _nothing(*_: Any) -> None:
    """An empty result needs no launch."""


def _scale(session: Session, desc: Desc) -> Run:
    tile, c = SCALE.tile_for(session.device), desc.result
    fixed = [*uints(c.rows, c.cols), *longs(c.batch, c.down, c.on, c.stride)]
    groups, size = walkers(c.elements, tile.work_items), (tile.work_items,)
    launch = session.relaunch(loaded(session, SCALE, tile), groups, size, "Plf", fixed)

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None,
    ) -> None:  # fmt: skip
        launch(queue, c, offset_c, beta)

    return run


def uints(*values: int) -> list[np.generic]:
    """Return kernel arguments of 32 bits."""
    return [np.uint32(v) for v in values]


def longs(*values: int) -> list[np.generic]:
    """Return kernel arguments of 64 bits."""
    return [np.int64(v) for v in values]


def walkers(elements: int, work_items: int) -> tuple[int]:
    """Return the grid of a kernel whose work-items walk over elements."""
    return (min(-(-elements // work_items), WALKERS),)


def direct(
    session: Session, record: LibraryKernel, config: TileConfig, groups: tuple[int, ...], size: tuple[int, ...],
    fixed: Sequence[np.generic],
) -> Run:  # fmt: skip
    """Return one launch with A, B and C as they come."""
    launch = session.relaunch(loaded(session, record, config.tile, config.options), groups, size, "PlPlPlff", fixed)

    def run(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None,
    ) -> None:  # fmt: skip
        launch(queue, a, offset_a, b, offset_b, c, offset_c, alpha, beta)

    return run


def with_workspace(session: Session, nbytes: int, run: Run) -> Run:
    """Return launches that take the session's scratch memory for the queue where the caller lends none."""

    def taken(
        a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None,
    ) -> None:  # fmt: skip
        if workspace is not None:
            run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace)
            return
        own = session.workspace(queue, nbytes)
        with own.lock:  # another product's launches must not come between these
            run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, own.buffer.handle)

    return taken


def chain_lengths(K: int, longest: int) -> list[int]:
    """Return how much of K each launch of ``in_chains`` takes."""
    return [min(longest, K - k) for k in range(0, K, longest)]


def in_chains(desc: GemmDesc, longest: int, make: Callable[[GemmDesc], Launches]) -> Launches:
    """Return launches that take at most ``longest`` of K each, a multiple of 4, and add to what C has by then.

    The error of a sum grows with the root of the longest chain of multiply-adds in it.
    """
    depths = chain_lengths(desc.K, longest)
    if len(depths) == 1:
        return make(desc)
    return _InChains(desc, depths, {depth: make(replace(desc, K=depth)) for depth in set(depths)})


class _InChains(Launches):
    """Launches of a product on pieces of K, one after the other."""

    def __init__(self, desc: GemmDesc, depths: list[int], pieces: dict[int, Launches]) -> None:
        self._depths, self._pieces = depths, pieces
        self._step_a, self._step_b = desc.lda if desc.trans_a else 1, 1 if desc.trans_b else desc.ldb

    def starter(self) -> Run:
        # A function that starts all launches; for one thread
        runs = {depth: piece.starter() for depth, piece in self._pieces.items()}

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            *workspace: Any,
        ) -> None:  # fmt: skip
            for depth in self._depths:
                runs[depth](a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, *workspace)
                offset_a, offset_b, beta = offset_a + depth * self._step_a, offset_b + depth * self._step_b, 1.0

        return run

    def reserve(self, queue: Any = None) -> None:
        for piece in self._pieces.values():
            piece.reserve(queue)


def split_k_bytes(desc: Desc, slices: int) -> int:
    """Return the scratch memory of split-K: a result for each slice."""
    return 4 * slices * desc.result.elements if slices > 1 else 0


def summed(session: Session, desc: Desc, slices: int, main: Callable[[], Run]) -> Launches:
    """Return the launches of ``main``, and with several slices of K of a second pass.

    With split-K ``main`` writes a result for each slice into scratch memory, unscaled; the second pass adds them in order. Both go
    into the same queue one after the other, so that scratch memory serves one product at a time.
    """
    if slices == 1:
        return Launches(main)
    c, nbytes = desc.result, split_k_bytes(desc, slices)
    tile = ADD.tile_for(session.device)
    if slices <= FEW_PARTS:
        tile = replace(tile, BM=1, BN=tile.work_items)
    width = widest(desc.N, desc.ldc, desc.stride_c, desc.align_c) if isinstance(desc, GemmDesc) else 1
    fixed = [*uints(c.cols, slices), *longs(c.rows * c.cols, c.elements, c.down, c.on, c.stride)]
    groups = (-(-c.elements // (tile.DN * width)),)
    switches = {"VC": width, "TIGHT": int(c.tight), "INDEX32": int(c.elements < 2**32)}

    def make() -> Run:
        multiply = main()
        add = session.relaunch(loaded(session, ADD, tile, switches), groups, (tile.work_items,), "PlPlff", fixed)

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None,
        ) -> None:  # fmt: skip
            multiply(a, offset_a, b, offset_b, workspace, 0, 1.0, 0.0, queue)
            add(queue, workspace, 0, c, offset_c, alpha, beta)

        return with_workspace(session, nbytes, run)

    return Launches(make)
