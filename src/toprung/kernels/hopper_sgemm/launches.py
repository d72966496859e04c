"""Launches of plain fp32 on Hopper: panels and memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from toprung.backends.base import Buffer, Kernel, Session
from toprung.backends.overlap import Overlapping
from toprung.errors import BadArgument, Unsupported
from toprung.forks import renewed
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches, Run
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import address as address_of
from toprung.kernels.hopper import ceil, narrow, whole, zero
from toprung.kernels.hopper_sgemm.config import ADDED_ROWS, FIRST, SgemmConfig, lay_source, product_source
from toprung.kernels.hopper_sgemm.cost import (
    Piece,
    chain_of,
    copied,
    direct_a,
    direct_b,
    laid_out,
    narrow_c,
    schedule,
    schedules,
    select_variant,
    supported,
    unfit,
)

LIMIT = 4 << 30
"""Bytes of operands laid out at a time beyond which a call is cut into panels of M and N."""
LAY_THREADS = 256
KEPT_STEPS = 64
"""Workspaces whose launches are kept: a caller that lends memory from a pool comes back with a few addresses."""
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
        return turn_a * laid_bytes(rows, call.K) + turn_b * laid_bytes(cols, call.K)

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
    """Return the scratch memory of a product, on the device: operands laid out, parts of tiles, and a flag for each SM."""
    if not (call.M and call.N):
        return 0
    parts = sum(_parts(call, panels(call, limit, variant)[0], variant, units, cut))
    return whole(parts) + whole(4 * units) if cut else parts


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
    why : why it was chosen
    workspace_bytes : scratch memory it takes of the stream it runs on

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
        self.why = f"the fullest of {self.units} SMs is done first with tiles of {self.variant.BM}×{self.variant.BN}"
        self.panels = panels(call, limit, self.variant)
        self.workspace_bytes = workspace_bytes(call, self.variant, self.units, limit, cut)
        self._more = {**product_defines(call, self.variant, self.units), **epilogues.defines(epilogue), **more}
        self._kernels: list[Kernel | None] = [kernel, kernel]
        self._making = renewed(threading.Lock())
        self.kernel(False)
        if not call.beta_zero:
            self.kernel(True)
        self.lay = kernel_of(session, lay_source()) if any(laid_out(call, self.variant)) else None
        self._steps: dict[tuple[int, int], list[Step]] = {}
        self._flags: dict[int, Buffer] = {}

    def kernel(self, adding: bool) -> Kernel:
        """Return the product's kernel, for β = 0 or for another β."""
        with self._making:
            found = self._kernels[adding]
            if found is None:
                # D may repeat or lie apart: rows of it are not fetched together, there are no registers for its addresses
                # and through shared memory C comes as it goes, in rows
                together = adding and self.epilogue is None and not self._more.get("NARROW_C")
                rows = {"ROWS": ADDED_ROWS} if together else {}
                found = self._kernels[adding] = kernel_of(self.session, product_source(self.variant, **{**rows, **self._more}))
            return found

    @property
    def launches(self) -> int:
        """Launches of a run."""
        return launches(self.panels)

    def starter(self) -> Run:
        # `run`, which serves all threads: it holds the stream's workspace while it launches
        return self.run

    def reserve(self, queue: Any = None) -> None:
        """Allocate and load what a stream needs, so that nothing is when ``run`` is captured into a graph.

        A graph keeps the addresses: keep the launches as long as the graph.
        """
        work = self._workspace(queue)
        with work.lock:  # a launch that another thread makes meanwhile would take the place of one whose maps are known
            for step in self._at(address_of(work.buffer), self._own_flags(queue)):
                step.launch(False)
                step.launch(True)

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None, addend: int = 0,
    ) -> None:  # fmt: skip
        """Put one call into a queue (a CUDA stream's handle; None: the session's own); never waits.

        Offsets are in elements. With β = 0 C is not read, with α = 0 neither are A and B. ``workspace``: address of scratch memory
        of the caller's; by default the stream's. ``addend``: D's address, where there is an epilogue.

        Raises
        ------
        BadArgument
            an operand that is not on 16 bytes, where the call says that it is
        """
        at_a, at_b, at_c = (address_of(x) + 4 * offset for x, offset in ((a, offset_a), (b, offset_b), (c, offset_c)))
        alpha, beta = narrow(alpha), narrow(beta)
        if workspace is not None:
            lent = address_of(workspace)
            flags = lent + self.workspace_bytes - whole(4 * self.units)
            if self.cut:
                zero(self.session, flags, self.units, queue)  # whose memory it was before left anything there
            for step in self._at(lent, flags):
                step.run(at_a, at_b, at_c, alpha, beta, queue, addend)
            return
        work = self._workspace(queue)
        with work.lock:  # another call's launches must not come between the two
            for step in self._at(address_of(work.buffer), self._own_flags(queue)):
                step.run(at_a, at_b, at_c, alpha, beta, queue, addend)

    def steps(self, queue: Any = None) -> list[Step]:
        """Return the launches on a stream, a panel each."""
        work = self._workspace(queue)
        with work.lock:
            return self._at(address_of(work.buffer), self._own_flags(queue))

    def _workspace(self, queue: Any) -> Any:
        return self.session.workspace(queue, max(self.workspace_bytes, 1))

    def _at(self, workspace: int, flags: int) -> list[Step]:
        """Return the launches on a workspace, kept by its address; whoever asks has the workspace to itself."""
        found = self._steps.get((workspace, flags))
        if found is None:
            if len(self._steps) >= KEPT_STEPS:
                self._steps.clear()
            found = self._steps[workspace, flags] = [Step(self, p, workspace, flags) for p in self.panels]
        return found

    def _own_flags(self, queue: Any) -> int:
        return address_of(self.flags(int(self.session.queue if queue is None else queue)))

    def flags(self, number: int) -> Buffer:
        """A stream's flags, which each launch finds and leaves 0; no other plan may write there."""
        with self._making:
            if number not in self._flags:
                made = self.session.allocate(4 * self.units)
                self.session.upload(made, np.zeros(self.units, np.uint32))
                self._flags[number] = made
            return self._flags[number]


def launches(pieces: list[Panel]) -> int:
    """Return the launches of all panels."""
    return sum(1 + (p.lay_a or p.lay_b) for p in pieces)


KEPT_MAPS = 64
"""Tensor maps of addresses that a launch remembers."""


class Step:
    """The launches of a panel in a workspace: the layout pass, where there is something to lay out, and the product's.

    Attributes
    ----------
    schedule : how the product's tiles are dealt out
    """

    def __init__(self, plan: SgemmLaunches, p: Panel, workspace: int, flags: int) -> None:
        call, session = plan.call, plan.session
        i, long, address = np.int32, np.int64, np.uint64
        # of the largest panel: what stays must not move
        bytes_a, bytes_b, _ = _parts(call, plan.panels[0], plan.variant, plan.units, plan.cut)
        laid_a = workspace
        laid_b = laid_a + bytes_a
        self._from_a = 4 * p.m * (1 if call.trans_a else call.lda)
        self._from_b = 4 * p.n * (call.ldb if call.trans_b else 1)
        self._from_c = 4 * (p.m * call.ldc + p.n)
        self._from_d = 4 * (p.m * plan.epilogue.down + p.n * plan.epilogue.on) if plan.epilogue else 0
        self._strides = epilogues.strides(plan.epilogue)
        self._lay: Overlapping | None = None
        if p.lay_a or p.lay_b:
            assert plan.lay is not None
            deep = ceil(call.K, LAY_SIDE)
            blocks_a, blocks_b = (deep * ceil(n, LAY_SIDE) * lay for n, lay in ((p.rows, p.lay_a), (p.cols, p.lay_b)))
            self._lay = Overlapping(
                session, plan.lay, blocks_a + blocks_b, LAY_THREADS, "PP",
                (
                    address(laid_a), address(laid_b), i(call.K), i(blocks_a), i(p.rows), i(p.cols),
                    i(call.trans_a), i(not call.trans_b), long(call.lda), long(call.ldb), long(pitch(p.rows)), long(pitch(p.cols)),
                ), plan.overlap,
            )  # fmt: skip
        v = plan.variant
        self._plan = plan
        self._turned = bool(v.TURN_A)
        piece: Any = Piece(p.rows, p.cols, call.K)
        self.schedule = schedule(piece, v, plan.units) if plan.cut else schedules(piece, v, plan.units)[0]
        each, extra = divmod(self.schedule.shared * ceil(call.K, v.BK), self.schedule.grid)
        self._direct = direct_a(call, v), direct_b(call)
        self._copied = any(copied(call, v))
        self._depth, self._stage, self._sides = call.K, v.BK, ((p.rows, v.BM), (p.cols, v.BN))
        self._lds = call.lda if self._direct[0] else pitch(p.rows), call.ldb if self._direct[1] else pitch(p.cols)
        nothing = np.void(bytes(128))
        self._maps: tuple[dict[int, np.void], dict[int, np.void]] = {}, {}
        self._fixed = [
            *self._strides,
            *(self._map(which, (laid_a, laid_b)[which]) if lay else nothing for which, lay in enumerate(laid_out(call, v))),
            *((address(0), address(0), long(call.lda), long(call.ldb)) if self._copied else ()),
            i(call.ldc), i(p.rows), i(p.cols), i(call.K), address(laid_b + bytes_b), address(flags),
            i(self.schedule.shared), i(each), i(extra),
        ]  # fmt: skip
        self._launches: list[Overlapping | None] = [None, None]
        self._at = [0, 0], [0, 0]  # the operands of each launch's maps

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any, addend: int = 0) -> None:
        """Lay out, and multiply."""
        self.lay_only(a, b, alpha, queue)
        self.multiply_only(a, b, c, alpha, beta, queue, addend)

    def lay_only(self, a: int, b: int, alpha: float, queue: Any) -> None:
        """The first launch, where there is one; α = 0 has no use for operands."""
        if self._lay is not None and alpha != 0.0:
            self._lay(queue, a + self._from_a, b + self._from_b)

    def multiply_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any, addend: int = 0) -> None:
        """The other one; the addresses of operands that the layout pass left are known beforehand."""
        launch, at = self.launch(beta != 0.0), self._at[beta != 0.0]
        for which, address in enumerate((a + self._from_a, b + self._from_b)) if alpha != 0.0 else ():
            if at[which] == address:
                continue
            if self._direct[which]:
                launch.replace(len(self._strides) + which, self._look_at(which, address))
            elif self._copied:
                launch.replace(len(self._strides) + 2 + which, np.uint64(address))
            at[which] = address
        launch(queue, c + self._from_c, alpha, beta, *epilogues.addresses(self._plan.epilogue, addend + self._from_d))

    def launch(self, adding: bool) -> Overlapping:
        """Return the launch for β = 0, or for another β."""
        found = self._launches[adding]
        if found is None:
            plan = self._plan
            found = self._launches[adding] = Overlapping(
                plan.session, plan.kernel(adding), self.schedule.grid, plan.variant.threads,
                f"Pff{epilogues.kinds(plan.epilogue)}", self._fixed, plan.overlap,
            )  # fmt: skip
        return found

    def _map(self, which: int, address: int) -> np.void:
        """Return the tensor map of A or B, where the panel's begins at an address."""
        (rows, side), ld = self._sides[which], self._lds[which]
        session: Any = self._plan.session
        if which == 0 and self._turned:
            turned: np.void = session.tensor_map_fp32(address, rows, self._depth, ld, (min(side, 256), self._stage))
            return turned
        found: np.void = session.tensor_map_fp32(address, self._depth, rows, ld, (self._stage, min(side, 256)))
        return found

    def _look_at(self, which: int, address: int) -> np.void:
        """A tensor map holds an address and a shape: one is made where the address is new."""
        if address % 16:
            raise BadArgument(
                f"{'AB'[which]} lies at {address:#x}: not on 16 bytes, as the call says; make an executable for align = 1"
            )
        kept = self._maps[which]
        if address not in kept:
            if len(kept) >= KEPT_MAPS:
                kept.clear()
            kept[address] = self._map(which, address)
        return kept[address]
