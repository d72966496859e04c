"""Launches of a product whose A is split in flight: one, in which B is split first if its K runs along memory or it is prepacked.

Where K runs across memory, a splitting pass on B goes before it.
"""

from __future__ import annotations

import functools

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import ALPHA, BETA, FLAGS, PACKED, WORKSPACE, A, Address, B, C, KernelLaunch, Map, Plan
from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter
from toprung.kernels.hopper_fp32x.launches import beside, splitting
from toprung.kernels.hopper_fp32x.sizes import matrices, terms_bytes, width
from toprung.kernels.hopper_fp32x.sources import spread
from toprung.kernels.hopper_inflight.config import blocks
from toprung.kernels.hopper_presplit.config import PresplitConfig, product_source

CLAIM_BYTES = 16
"""Bytes of the words in which the blocks of a launch claim pieces of B, see ``claimed.cuh``."""


class PresplitLaunches(Launches):
    """A product that is ready to run, as often as wanted.

    Parameters
    ----------
    is_one : False if B is to be split by a launch of its own wherever it is not prepacked
    """

    def __init__(
        self, session: Session, desc: GemmDesc, config: PresplitConfig, epilogue: Epilogue | None = None, is_one: bool = True
    ) -> None:  # fmt: skip
        self.call, self.config, self.epilogue = desc, config, epilogue
        self._count = Counter(session)
        self._product = kernel_of(session, product_source(config, desc, **epilogues.defines(epilogue)))
        super().__init__(session, self._plan(session, False, is_one and desc.trans_b), self._count.read)
        self.packed = functools.partial(self._plan, session, True, False)

    def _plan(self, session: Session, prepared: bool, claims: bool) -> Plan:
        """Return the plan with the terms of B in the slot PACKED, claimed by blocks, or split by a launch before."""
        desc, config, i, long = self.call, self.config, np.int32, np.int64
        count, wide = matrices(desc.stride_b, desc.batch), width(desc.K)
        rows = desc.N * count
        terms, info = beside(Address(PACKED if prepared else WORKSPACE), rows, desc.K)
        launches = []
        if not prepared and not claims:
            places, how = (np.uint64(0), np.uint64(0), terms, info), spread(desc.K, not desc.trans_b)
            split = splitting(session, desc, places, (0, 1, desc.N, count), how, (np.uint64(0), Address(B)))
            launches += [split] if split is not None else []
        launches.append(
            KernelLaunch(
                "multiply", self._product, (blocks(desc, config, session.device.compute_units),), (config.threads,),
                (
                    Address(A), Address(B), Address(C), ALPHA, BETA, *epilogues.arguments(self.epilogue), self._count.buffer,
                    i(desc.M), i(desc.N), i(desc.K), i(desc.batch), long(desc.lda), long(desc.stride_a), long(desc.ldb),
                    long(desc.stride_b), i(desc.ldc), long(desc.stride_c), info, i(desc.N if desc.stride_b else 0), terms,
                    Address(FLAGS) if claims else np.uint64(0),
                    Map(terms.slot, 0, rows, wide, 2 * wide, (config.BN, 64), "fp16"),
                ),
            )
        )  # fmt: skip
        return Plan(
            launches, workspace_bytes=0 if prepared else workspace_bytes(desc), flags_bytes=CLAIM_BYTES if claims else 0,
            sizes=(ELEMENT_BYTES[desc.type_a], 4), kept=(self._count,),
        )  # fmt: skip


def workspace_bytes(desc: GemmDesc) -> int:
    """Return the bytes of B's terms, four an element, and of what stands beside them."""
    return terms_bytes(desc.N * matrices(desc.stride_b, desc.batch), desc.K)
