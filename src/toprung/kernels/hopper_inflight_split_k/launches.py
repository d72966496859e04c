"""Launches of a product whose K is cut into parts: one of all parts, one that adds their results up."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import ALPHA, BETA, MULTIPLIES, WORKSPACE, A, Address, B, C, KernelLaunch, Plan
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil
from toprung.kernels.hopper_fp32x.sizes import padded
from toprung.kernels.hopper_fp32x.sources import reduce_source
from toprung.kernels.hopper_inflight.config import tiles
from toprung.kernels.hopper_inflight_split_k.config import PartsConfig, parts_source


def workspace_bytes(desc: GemmDesc, config: PartsConfig) -> int:
    """Return the bytes of the parts' results."""
    return 4 * config.PARTS * desc.M * padded(desc.N)


def launches(session: Session, desc: GemmDesc, config: PartsConfig, epilogue: Epilogue | None = None) -> Launches:
    """Return both launches; where α is 0 the first reads neither A nor B."""
    count, i, long = Counter(session), np.int32, np.int64
    parts, depth, ldp = config.PARTS, config.depth(desc.K), padded(desc.N)
    blocks = min(tiles(desc, config) * parts, config.resident * session.device.compute_units)
    on_a, on_b = depth * (desc.lda if desc.trans_a else 1), depth * (1 if desc.trans_b else desc.ldb)
    multiply = KernelLaunch(
        "multiply", kernel_of(session, parts_source(config, desc)), (blocks,), (config.threads,),
        (
            Address(A), Address(B), Address(WORKSPACE), MULTIPLIES, np.float32(0.0), count.buffer, i(desc.M), i(desc.N), i(desc.K),
            i(parts), long(desc.lda), long(on_a), long(desc.ldb), long(on_b), i(ldp), long(desc.M * ldp),
        ),
    )  # fmt: skip
    reduce = KernelLaunch(
        "reduce", kernel_of(session, reduce_source(**epilogues.defines(epilogue))), (ceil(desc.M, 16) * ceil(desc.N, 32),), (128,),
        (
            Address(C), ALPHA, BETA, *epilogues.arguments(epilogue), Address(WORKSPACE), i(desc.M), i(desc.N), i(1), i(parts),
            i(ldp), i(desc.ldc), long(0),
        ),
    )  # fmt: skip
    return Launches(session, Plan([multiply, reduce], workspace_bytes=workspace_bytes(desc, config), kept=(count,)), count.read)
