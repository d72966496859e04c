"""fp32 accuracy on Hopper's Tensor Cores in one launch: operands are split into two fp16 terms on their way to them.

No splitting pass, no workspace, and nothing known beforehand: a power of two for each row of A, each column of B and each 32 of K
scales what is split, and is taken back as partial sums are promoted to fp32 (``inflight.cu``; ``grouped.cu`` for groups). For
products whose operands are read once or twice: batches, small and memory-bound ones. Large ones are faster split beforehand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from toprung.backends.base import Session, Source
from toprung.backends.plan import ALPHA, BETA, A, Address, B, C, KernelLaunch, Plan
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import (
    TEST_EDGE,
    TEST_SLICES,
    GroupLaunches,
    KernelFamily,
    Launches,
    Member,
    Point,
)
from toprung.kernels.build import kernel_of
from toprung.kernels.group import MOST_MATRICES
from toprung.kernels.hopper import Counter, ceil, is_hopper
from toprung.kernels.hopper_inflight.config import (
    CHUNK,
    CLUSTERS,
    InflightConfig,
    aligned,
    blocks,
    on_words,
    product_source,
    tiles,
    types,
)
from toprung.kernels.hopper_inflight.cost import RINGS, configs, seconds, share
from toprung.kernels.hopper_inflight.group import group_launches

SHALLOWEST, DEEPEST = 64, 1 << 20
"""The promise holds from this K on; K up to which chunks are counted with 31 bits whatever the tiles."""


def source_of(desc: GemmDesc, config: InflightConfig, epilogue: Epilogue | None = None) -> Source:
    """Return the source of a product's launch."""
    macros = {**epilogues.defines(epilogue), **types(desc)}
    return product_source(config, desc.trans_a, desc.trans_b, *aligned(desc), **macros)


def launches(session: Session, desc: GemmDesc, config: InflightConfig, epilogue: Epilogue | None = None) -> Launches:
    """Return the one launch of a product."""
    count, i, long = Counter(session), np.int32, np.int64
    multiply = KernelLaunch(
        "multiply", kernel_of(session, source_of(desc, config, epilogue)), (blocks(desc, config, session.device.compute_units),),
        (config.threads,),
        (
            Address(A), Address(B), Address(C), ALPHA, BETA, *epilogues.arguments(epilogue), count.buffer, i(desc.M), i(desc.N),
            i(desc.K), i(desc.batch), long(desc.lda), long(desc.stride_a), long(desc.ldb), long(desc.stride_b), i(desc.ldc),
            long(desc.stride_c),
        ),
    )  # fmt: skip
    sizes = ELEMENT_BYTES[desc.type_a], ELEMENT_BYTES[desc.type_b]
    return Launches(session, Plan([multiply], sizes=sizes, kept=(count,)), count.read)


class HopperInflight(KernelFamily[InflightConfig]):
    """fp32-accurate products on Hopper's Tensor Cores, split in flight."""

    name = "hopper_inflight"
    config = InflightConfig
    searched = predicts = True
    precision = "fp32x"
    operand_dtypes = frozenset(ELEMENT_BYTES)
    margin = 1.05  # one launch as plain fp32's, predicted as well as that
    epilogues = epilogues.EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "fp32x is for products of matrices: with a vector memory is the limit"
        if reason := self._uncomputed(device, desc):
            return reason
        if desc.is_mixed:
            return "" if on_words(desc) else "rows of halves begin between words of 4 bytes"
        if min(desc.M, desc.N) <= FEW:
            return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"
        return ""

    def _uncomputed(self, device: Device, desc: GemmDesc) -> str:
        if not is_hopper(device):
            return f"fp32x needs Hopper's Tensor Cores; {device} has none"
        if desc.is_empty:
            return "there is nothing to multiply"
        if not SHALLOWEST <= desc.K <= DEEPEST:
            return f"fp32x in flight is promised for K from {SHALLOWEST} to {DEEPEST:,}, not for {desc.K}"
        if max(desc.M, desc.N) * desc.batch >= 1 << 31:
            return "fp32x counts rows with 31 bits"
        if tiles(desc, InflightConfig(1, 32)) >= 1 << 30:
            return "fp32x in flight counts tiles, and as many blocks behind the last, with 31 bits"
        return ""

    # selection

    def candidates(self, device: Device, desc: GemmDesc) -> Iterable[InflightConfig]:
        return configs(desc, device.compute_units)

    def cost(self, device: Device, desc: GemmDesc, config: InflightConfig) -> float:
        # the seconds of the launch, or the host's where that is the limit; the device's break ties
        on_device = seconds(desc, config, device.compute_units)
        return max(on_device, cost_model.HOST.launch) + cost_model.TIE * on_device

    # running

    def fused(self, session: Session, desc: GemmDesc, config: InflightConfig, epilogue: Epilogue | None) -> Launches:
        return launches(session, desc, config, epilogue)

    def group_share(self, device: Device, desc: GemmDesc) -> float:
        # the seconds that a product adds to a group: with a short side, too, because a launch of its own costs more
        if self._uncomputed(device, desc):
            return float("inf")
        if desc.batch > MOST_MATRICES or desc.is_mixed:
            return float("inf")
        return share(desc, device.compute_units)

    def grouped(self, session: Session, members: Sequence[Member]) -> GroupLaunches:
        return group_launches(session, members)

    # the store

    def texts(self, backend: str) -> Iterable[str]:
        # both sources; CUDA C++ has no prelude
        return [product_source(InflightConfig()).text, product_source(InflightConfig(), GROUPED=1).text]

    # verification and the tuner

    def test_problem(self, desc: Desc, config: InflightConfig) -> tuple[tuple[int, int, int], InflightConfig]:
        depth = max(TEST_SLICES, config.SLICES) * CHUNK + TEST_EDGE
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth), config

    def source(self, device: Device, config: InflightConfig) -> Source | None:
        return product_source(config)

    def sources(self, device: Device, desc: GemmDesc, config: InflightConfig) -> list[Source]:
        return [source_of(desc, config)]

    def at(self, device: Device, desc: GemmDesc, point: Point) -> InflightConfig | None:
        return super().at(device, desc, point) if point["SLICES"] <= ceil(desc.K, CHUNK) else None

    def starts(self, device: Device, desc: GemmDesc) -> Iterator[Point]:
        for (consumers, cols, stages), slices in itertools.product(RINGS, CLUSTERS):
            yield {"CONSUMERS": consumers, "BN": cols, "STAGES": stages, "GROUP": 8, "SLICES": slices}


FAMILY = HopperInflight()
