"""Launches of plain fp32 on Hopper: panels and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.backends.base import Kernel, Session
from toprung.backends.plan import (
    ALPHA,
    BETA,
    FLAGS,
    WORKSPACE,
    A,
    Address,
    Argument,
    B,
    C,
    KernelLaunch,
    Map,
    Plan,
    When,
    whole,
)  # fmt: skip
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_sgemm.config import ADDED_ROWS, FIRST, SgemmConfig, lay_source, product_source
from toprung.kernels.hopper_sgemm.cost import (
    Piece,
    Schedule,
    chain_of,
    copied,
    direct_a,
    direct_b,
    laid_out,
    narrow_c,
    schedule,
    select_variant,
    supported,
    tiles_of,
    unfit,
)

LIMIT = 4 << 30
"""Bytes of operands laid out at a time beyond which a call is cut into panels of M and N."""
LAY_THREADS = 256
LAY_SIDE = 64
"""Elements of a side of what a block of the layout pass takes."""


def pitch(rows: int) -> int:
    """Return the elements from one k to the next of an operand laid out."""
    return ceil(rows, 4) * 4


def laid_bytes(rows: int, K: int) -> int:
    """Return the bytes of an operand laid out, rounded up to 256."""
    return whole(4 * K * pitch(rows))


@dataclass(frozen=True)
class Panel:
    """A piece of a product: rows from m, columns from n.

    Attributes
    ----------
    lay_a, lay_b : True if the operand is laid out for it; else it is read where it lies, or is in the workspace already
    """

    m: int
    rows: int
    n: int
    cols: int
    lay_a: bool
    lay_b: bool


def panels(call: GemmDesc, limit: int = LIMIT, variant: SgemmConfig = FIRST) -> list[Panel]:
    """Return the pieces of a product whose operands, laid out, need no more than ``limit`` bytes, or 32 rows and columns each.

    Pieces are multiples of 32 high and wide: operands that are read where they lie stay on 16 bytes.
    """
    turn_a, turn_b = laid_out(call, variant)
    rows, cols = call.M, call.N

    def needed() -> int:
        return int(turn_a * laid_bytes(rows, call.K) + turn_b * laid_bytes(cols, call.K))

    def half(n: int) -> int:
        return ceil(ceil(n, 2), 32) * 32

    while needed() > limit:
        if turn_a and rows > 32 and (rows >= cols or not turn_b or cols <= 32):
            rows = half(rows)
        elif turn_b and cols > 32:
            cols = half(cols)
        else:
            break
    return [
        Panel(
            m, min(rows, call.M - m), n, min(cols, call.N - n),
            turn_a and (n == 0 or rows < call.M), turn_b and m == 0,
        )  # a single panel of rows stays where it is
        for n in range(0, call.N, cols)
        for m in range(0, call.M, rows)
    ]  # fmt: skip


def workspace_bytes(call: GemmDesc, variant: SgemmConfig, units: int, limit: int = LIMIT, cut: bool = True) -> int:
    """Return the scratch memory of a product, on the device: operands laid out, and parts of tiles."""
    return sum(_parts(call, panels(call, limit, variant)[0], variant, units, cut)) if call.M and call.N else 0


def _parts(call: GemmDesc, p: Panel, variant: SgemmConfig, units: int, cut: bool) -> tuple[int, int, int]:
    """Return the bytes of the workspace for A, for B, and for parts of tiles, where the largest panel is ``p``."""
    a, b = (laid_bytes(n, call.K) * lay for n, lay in zip((p.rows, p.cols), laid_out(call, variant), strict=True))
    return a, b, 4 * units * variant.BM * variant.BN if cut else 0


def product_defines(call: GemmDesc, variant: SgemmConfig, units: int) -> dict[str, int]:
    """Return the macros of a product's kernel beyond those of the variant."""
    found = {"LINK": variant.stages(chain_of(call, variant, units))}
    if variant.COPY:
        found["COPY_A"], found["COPY_B"] = copied(call, variant)
    return {**found, "NARROW_C": 1} if narrow_c(call, variant) else found


class SgemmLaunches(Launches):
    """A product that is ready to run, as often as wanted, from any thread, on any stream of its session's context.

    Attributes
    ----------
    variant : the block's shape
    schedules : how the tiles of each panel are dealt out

    Parameters
    ----------
    kernel : a rung's, in place of the library's
    cut : True if tiles may be cut along K
    overlap : True if a launch may begin before the one before it has ended
    more : macros

    Raises
    ------
    Unsupported
        a device or product that this cannot compute, or a variant that there is not
    """

    def __init__(
        self, session: Session, call: GemmDesc, variant: SgemmConfig | None = None, limit: int = LIMIT, *,
        kernel: Kernel | None = None, cut: bool = True, overlap: bool = True, epilogue: Epilogue | None = None, **more: int,
    ) -> None:  # fmt: skip
        if reason := supported(session.device, call):
            raise Unsupported(f"{call}: plain fp32 on Hopper cannot compute this: {reason}")
        self.session, self.call, self.units = session, call, session.device.compute_units
        self.variant = variant or select_variant(call, self.units)
        if reason := self.variant.refused() or unfit(call, self.variant):
            raise Unsupported(f"{self.variant.text}: {reason}")
        self.cut, self.overlap, self.epilogue = cut, overlap, epilogue
        self.panels = panels(call, limit, self.variant)
        self._more = {**product_defines(call, self.variant, self.units), **epilogues.defines(epilogue), **more}
        self._products: dict[When, Kernel] = {"": kernel} if kernel is not None else {"": self._kernel(session, False)}
        if kernel is None and not call.beta_zero:
            self._products = {"no beta": self._products[""], "beta": self._kernel(session, True)}
        self.lay = kernel_of(session, lay_source()) if any(laid_out(call, self.variant)) else None
        self.schedules = [self._schedule(p) for p in self.panels]
        each = zip(self.panels, self.schedules, strict=True)
        launches = [launch for p, deal in each for launch in self._of_panel(session, p, deal)]
        flags = 4 * self.units if cut and self.panels else 0
        nbytes = workspace_bytes(call, self.variant, self.units, limit, cut)
        super().__init__(session, Plan(launches, workspace_bytes=nbytes, flags_bytes=flags))

    def _kernel(self, session: Session, adding: bool) -> Kernel:
        """Return the product's kernel, for β = 0 or for another β."""
        # D may repeat or lie apart: rows of it are not fetched together, there are no registers for its addresses
        # and through shared memory C comes as it goes, in rows
        together = adding and self.epilogue is None and not self._more.get("NARROW_C")
        rows = {"ROWS": ADDED_ROWS} if together else {}
        return kernel_of(session, product_source(self.variant, **{**rows, **self._more}))

    def _schedule(self, p: Panel) -> Schedule:
        piece: Any = Piece(p.rows, p.cols, self.call.K)
        return (
            schedule(piece, self.variant, self.units) if self.cut else Schedule(min(self.units, tiles_of(piece, self.variant)), 0)
        )

    def _of_panel(self, session: Session, p: Panel, deal: Schedule) -> Iterator[KernelLaunch]:
        """Yield the launches of a panel: the layout pass, where there is something to lay out, and the product's."""
        call, v, added = self.call, self.variant, self.epilogue
        i, long = np.int32, np.int64
        bytes_a, bytes_b, _ = _parts(call, self.panels[0], v, self.units, self.cut)  # the largest: what stays must not move
        a = Address(A, 4 * p.m * (1 if call.trans_a else call.lda))
        b = Address(B, 4 * p.n * (call.ldb if call.trans_b else 1))
        if p.lay_a or p.lay_b:
            deep = ceil(call.K, LAY_SIDE)
            blocks_a, blocks_b = (deep * ceil(n, LAY_SIDE) * lay for n, lay in ((p.rows, p.lay_a), (p.cols, p.lay_b)))
            yield KernelLaunch(
                "lay", self.lay, (blocks_a + blocks_b,), (LAY_THREADS,),
                (
                    a, b, Address(WORKSPACE), Address(WORKSPACE, bytes_a), i(call.K), i(blocks_a), i(p.rows), i(p.cols),
                    i(call.trans_a), i(not call.trans_b), long(call.lda), long(call.ldb), long(pitch(p.rows)), long(pitch(p.cols)),
                ), when="alpha", overlaps=self.overlap,
            )  # fmt: skip

        def mapped(place: Address, laid: bool, direct: bool, ld: int, rows: int, side: int, turned: bool) -> Argument:
            """Return the tensor map of an operand, laid out or as it was given; nothing where the kernel copies it itself."""
            if not laid and not direct:
                return np.void(bytes(128))
            ld, box = ld if direct else pitch(rows), (v.BK, min(side, 256))
            if turned:
                return Map(place.slot, place.plus, rows, call.K, 4 * ld, (box[1], v.BK), "fp32")
            return Map(place.slot, place.plus, call.K, rows, 4 * ld, box, "fp32")

        laid = laid_out(call, v)
        each, extra = divmod(deal.shared * ceil(call.K, v.BK), deal.grid)
        of_a, of_b = Address(WORKSPACE) if laid[0] else a, Address(WORKSPACE, bytes_a) if laid[1] else b
        last = epilogues.arguments(added, 4 * (p.m * added.down + p.n * added.on) if added else 0)
        arguments = (
            Address(C, 4 * (p.m * call.ldc + p.n)), ALPHA, BETA, *last,
            mapped(of_a, laid[0], direct_a(call, v), call.lda, p.rows, v.BM, bool(v.TURN_A)),
            mapped(of_b, laid[1], direct_b(call), call.ldb, p.cols, v.BN, False),
            *((a, b, long(call.lda), long(call.ldb)) if any(copied(call, v)) else ()),
            i(call.ldc), i(p.rows), i(p.cols), i(call.K), Address(WORKSPACE, bytes_a + bytes_b),
            Address(FLAGS) if self.cut else np.uint64(0), i(deal.shared), i(each), i(extra),
        )  # fmt: skip
        for when, kernel in self._products.items():
            yield KernelLaunch("multiply", kernel, (deal.grid,), (v.threads,), arguments, when=when, overlaps=self.overlap)
