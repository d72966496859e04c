"""fp32 accuracy on Hopper's Tensor Cores where B is split beforehand, and A on its way to them.

For products whose A is read few times, or only once, while B is small or prepacked: only B is read and written to be split, by the
product's own launch where K runs along B's memory. A may be of halves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels.base import TEST_EDGE, TEST_SLICES, KernelFamily, Launches
from toprung.kernels.epilogue import EVERY
from toprung.kernels.hopper import is_hopper
from toprung.kernels.hopper_fp32x.launches import SplitOperand
from toprung.kernels.hopper_fp32x.sizes import LIMIT
from toprung.kernels.hopper_fp32x.sources import split_source, spread
from toprung.kernels.hopper_inflight.config import CHUNK, on_words, tiles
from toprung.kernels.hopper_inflight.family import DEEPEST, SHALLOWEST
from toprung.kernels.hopper_presplit.config import PresplitConfig, product_source
from toprung.kernels.hopper_presplit.cost import configs, seconds, split_seconds
from toprung.kernels.hopper_presplit.launches import PresplitLaunches, workspace_bytes


class HopperPresplit(KernelFamily[PresplitConfig]):
    """fp32-accurate products on Hopper's Tensor Cores, B split beforehand and A in flight."""

    name = "hopper_presplit"
    config = PresplitConfig
    precision = "fp32x"
    operand_dtypes = frozenset(ELEMENT_BYTES)
    epilogues = EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "fp32x is for products of matrices: with a vector memory is the limit"
        if not is_hopper(device):
            return f"fp32x needs Hopper's Tensor Cores; {device} has none"
        if desc.type_b != "float32" or not on_words(desc):
            return "B is split from float32, and rows of halves of A begin on words of 4 bytes"
        if desc.is_empty or not SHALLOWEST <= desc.K <= DEEPEST:
            return f"fp32x is promised for K from {SHALLOWEST} to {DEEPEST:,}, not for {desc.K}"
        if min(desc.M, desc.N) <= FEW:
            return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"
        if max(desc.M, desc.N) * desc.batch >= 1 << 31 or tiles(desc, PresplitConfig(2, 64)) >= 1 << 30:
            return "rows, and tiles with as many blocks behind the last, are counted with 31 bits"
        if (least := workspace_bytes(desc)) > LIMIT:
            return f"B's terms would need {least:,} bytes, more than {LIMIT:,}"
        return ""

    def candidates(self, device: Device, desc: GemmDesc) -> Iterable[PresplitConfig]:
        # none where each product of a batch has a B of its own: in flight that takes as long by both models, and was measured there
        if desc.batch > 1 and desc.stride_b:
            return []
        return configs(desc, device.compute_units)

    def cost(self, device: Device, desc: GemmDesc, config: PresplitConfig) -> float:
        # the seconds of all launches, or the host's where that is the limit; the device's break ties
        on_device, units = seconds(desc, config, device.compute_units), device.compute_units
        host = cost_model.HOST.launch * launches_of(desc, config, units)
        return max(on_device, host) + cost_model.TIE * on_device

    def fused(self, session: Session, desc: GemmDesc, config: PresplitConfig, epilogue: Epilogue | None) -> Launches:
        is_one = launches_of(desc, config, session.device.compute_units) == 1
        return PresplitLaunches(session, desc, config, epilogue, is_one)

    def prepack(self, session: Session, desc: GemmDesc, b: int, queue: Any = None) -> SplitOperand:
        return SplitOperand(session, desc, b, queue)

    def texts(self, backend: str) -> Iterable[str]:
        # both sources; CUDA C++ has no prelude
        return [source.text for source in (product_source(PresplitConfig(), GemmDesc(1, 1, 1)), split_source())]

    def test_problem(self, desc: Desc, config: PresplitConfig) -> tuple[tuple[int, int, int], PresplitConfig]:
        depth = max(TEST_SLICES, config.SLICES) * CHUNK + TEST_EDGE
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth), config

    def source(self, device: Device, config: PresplitConfig) -> Source | None:
        return product_source(config, GemmDesc(1, 1, 1))

    def sources(self, device: Device, desc: GemmDesc, config: PresplitConfig) -> list[Source]:
        return [product_source(config, desc), split_source(*spread(desc.K, not desc.trans_b))]


def launches_of(desc: GemmDesc, config: PresplitConfig, units: int) -> int:
    """Return the launches of a product whose B is not prepacked: one where that is predicted to split B sooner than a pass."""
    inside, before = split_seconds(desc, config, units)
    return 1 if inside <= before else 2


FAMILY = HopperPresplit()
