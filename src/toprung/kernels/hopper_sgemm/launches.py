"""Launches of plain fp32 on Hopper."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Kernel, Session
from toprung.backends.plan import ALPHA, BETA, FLAGS, WORKSPACE, A, Address, Argument, B, C, KernelLaunch, Map, Plan, When, whole
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper import ceil, padded
from toprung.kernels.hopper_sgemm.config import ADDED_ROWS, SgemmConfig, lay_source, product_source
from toprung.kernels.hopper_sgemm.cost import chain_of, copied, direct_a, direct_b, laid_out, narrow_c, schedule, supported, unfit

LAY_THREADS = 256
LAY_SIDE = 64
"""Elements of a side of what a block of the layout pass takes."""


class SgemmLaunches(Launches):
    """A plain fp32 product, ready to run from any thread on any stream of its session's context.

    Attributes
    ----------
    variant : the block's shape
    schedule : how tiles are dealt out

    Parameters
    ----------
    kernel : a rung's, in place of the library's
    cut : True if tiles may be cut along K
    more : further macros

    Raises
    ------
    Unsupported
        a device or product that this cannot compute, or a variant that there is not
    """

    def __init__(
        self, session: Session, call: GemmDesc, variant: SgemmConfig, *,
        kernel: Kernel | None = None, cut: bool = True, epilogue: Epilogue | None = None, **more: int,
    ) -> None:  # fmt: skip
        if reason := supported(session.device, call):
            raise Unsupported(f"{call}: plain fp32 on Hopper cannot compute this: {reason}")
        self.session, self.call, self.variant, self.units = session, call, variant, session.device.compute_units
        if reason := variant.refused() or unfit(call, variant):
            raise Unsupported(f"{variant.text}: {reason}")
        self.cut, self.epilogue = cut, epilogue
        copies = dict(zip(("COPY_A", "COPY_B"), copied(call, variant), strict=True)) if variant.COPY else {}
        narrow = {"NARROW_C": 1} if narrow_c(call, variant) else {}
        link = variant.stages(chain_of(call, variant, self.units))
        self._more = {"LINK": link, **copies, **narrow, **epilogues.defines(epilogue), **more}
        self._products: dict[When, Kernel] = {"": kernel} if kernel is not None else {"": self._kernel(session, False)}
        if kernel is None and not call.beta_zero:
            self._products = {"no beta": self._products[""], "beta": self._kernel(session, True)}
        self.lay = kernel_of(session, lay_source()) if any(laid_out(call, self.variant)) else None
        deal = schedule(call, self.variant, self.units)
        self.schedule = deal if cut else deal._replace(grid=min(self.units, block_count(call, variant)), shared=0)
        super().__init__(session, self._plan())

    def _kernel(self, session: Session, adding: bool) -> Kernel:
        """Return the product's kernel, for β = 0 or for another β."""
        # D may repeat or lie apart: rows of it are not fetched together, there are no registers for its addresses
        # and through shared memory C comes as it goes, in rows
        together = adding and self.epilogue is None and not self._more.get("NARROW_C")
        rows = {"ROWS": ADDED_ROWS} if together else {}
        return kernel_of(session, product_source(self.variant, **{**rows, **self._more}))

    def _plan(self) -> Plan:
        """Return the plan: the layout pass, if an operand needs one, and the product."""
        call, v, deal, i, long = self.call, self.variant, self.schedule, np.int32, np.int64
        a, b, (lay_a, lay_b), launches = Address(A), Address(B), laid_out(call, v), []
        bytes_a, bytes_b = (lay * whole(4 * call.K * padded(rows)) for rows, lay in ((call.M, lay_a), (call.N, lay_b)))
        if self.lay is not None:
            deep = ceil(call.K, LAY_SIDE)
            blocks_a, blocks_b = deep * ceil(call.M, LAY_SIDE) * lay_a, deep * ceil(call.N, LAY_SIDE) * lay_b
            launches.append(KernelLaunch(
                "lay", self.lay, (blocks_a + blocks_b,), (LAY_THREADS,),
                (
                    a, b, Address(WORKSPACE), Address(WORKSPACE, bytes_a), i(call.K), i(blocks_a), i(call.M), i(call.N),
                    i(call.trans_a), i(not call.trans_b), long(call.lda), long(call.ldb), *map(long, map(padded, (call.M, call.N))),
                ), when="alpha",
            ))  # fmt: skip

        def mapped(place: Address, laid: bool, direct: bool, ld: int, rows: int, side: int, turned: bool) -> Argument:
            """Return the tensor map of an operand, laid out or as it was given; nothing where the kernel copies it itself."""
            if not laid and not direct:
                return np.void(bytes(128))
            ld, box = ld if direct else padded(rows), (v.BK, min(side, 256))
            if turned:
                return Map(place.slot, place.plus, rows, call.K, 4 * ld, (box[1], v.BK), "fp32")
            return Map(place.slot, place.plus, call.K, rows, 4 * ld, box, "fp32")

        each, extra = divmod(deal.shared * ceil(call.K, v.BK), deal.grid)
        arguments = (
            Address(C), ALPHA, BETA, *epilogues.arguments(self.epilogue),
            mapped(Address(WORKSPACE) if lay_a else a, lay_a, direct_a(call, v), call.lda, call.M, v.BM, bool(v.TURN_A)),
            mapped(Address(WORKSPACE, bytes_a) if lay_b else b, lay_b, direct_b(call), call.ldb, call.N, v.BN, False),
            *((a, b, long(call.lda), long(call.ldb)) if any(copied(call, v)) else ()),
            i(call.ldc), i(call.M), i(call.N), i(call.K), Address(WORKSPACE, bytes_a + bytes_b),
            Address(FLAGS) if self.cut else np.uint64(0), i(deal.shared), i(each), i(extra),
        )  # fmt: skip
        for when, kernel in self._products.items():
            launches.append(KernelLaunch("multiply", kernel, (deal.grid,), (v.threads,), arguments, when=when))
        parts, flags = (4 * self.units * v.BM * v.BN, 4 * self.units) if self.cut else (0, 0)
        return Plan(launches, workspace_bytes=bytes_a + bytes_b + parts, flags_bytes=flags)
