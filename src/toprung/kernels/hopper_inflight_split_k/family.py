"""fp32 accuracy on Hopper's Tensor Cores, operands split in flight and K cut into parts whose results a second launch adds up.

For a small C and a deep K: gradients of a layer's weights, sums over all edges of a graph. In flight a cluster of 16 blocks at most
shares a tile, which leaves SMs idle there; splitting operands beforehand takes longer than multiplying them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels.base import TEST_EDGE, TEST_SLICES, KernelFamily, Launches
from toprung.kernels.epilogue import EVERY
from toprung.kernels.hopper import is_hopper
from toprung.kernels.hopper_fp32x.sizes import DEEPEST
from toprung.kernels.hopper_fp32x.sources import reduce_source
from toprung.kernels.hopper_inflight.config import CHUNK, InflightConfig, tiles
from toprung.kernels.hopper_inflight_split_k.config import PartsConfig, parts_source
from toprung.kernels.hopper_inflight_split_k.cost import SHORTEST, configs, seconds
from toprung.kernels.hopper_inflight_split_k.launches import launches
from toprung.kernels.split_k import whole_slices


class HopperInflightSplitK(KernelFamily[PartsConfig]):
    """fp32-accurate products on Hopper's Tensor Cores, split in flight, a launch for all parts of K and one that adds them."""

    name = "hopper_inflight_split_k"
    config = PartsConfig
    predicts = True
    precision = "fp32x"
    margin = 1.05  # predicted nearly as well as in flight without parts
    epilogues = EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "fp32x is for products of matrices: with a vector memory is the limit"
        if not is_hopper(device):
            return f"fp32x needs Hopper's Tensor Cores; {device} has none"
        if desc.batch > 1:
            return "products of a batch have all of K"
        if desc.is_empty or not 2 * SHORTEST <= desc.K <= DEEPEST:
            return f"K is cut into parts from {2 * SHORTEST} to {DEEPEST:,} on, not at {desc.K}"
        if min(desc.M, desc.N) <= FEW:
            return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"
        if max(desc.M, desc.N) >= 1 << 31 or tiles(desc, InflightConfig(1, 32)) >= 1 << 24:
            return "rows and tiles of all parts are counted with 31 bits"
        return ""

    def candidates(self, device: Device, desc: GemmDesc) -> Iterable[PartsConfig]:
        return configs(desc, device.compute_units)

    def cost(self, device: Device, desc: GemmDesc, config: PartsConfig) -> float:
        # the seconds of both launches, or the host's where that is the limit; the device's break ties
        on_device = seconds(desc, config, device.compute_units)
        return max(on_device, 2 * cost_model.HOST.launch) + cost_model.TIE * on_device

    def fused(self, session: Session, desc: GemmDesc, config: PartsConfig, epilogue: Epilogue | None) -> Launches:
        return launches(session, desc, config, epilogue)

    def adapt(self, device: Device, desc: GemmDesc, config: PartsConfig, measured: GemmDesc, exact: bool) -> PartsConfig | str:
        if reason := self.supports(device, desc):
            return reason
        wanted = config.PARTS if exact else round(config.PARTS * tiles(measured, config) / tiles(desc, config))
        parts = whole_slices(desc.K, CHUNK, max(1, min(wanted, desc.K // SHORTEST)))
        return replace(config, PARTS=parts) if parts > 1 else "its tiles are as many as there are SMs: K is not cut"

    def texts(self, backend: str) -> Iterable[str]:
        # both sources; CUDA C++ has no prelude
        return [source.text for source in (parts_source(PartsConfig(), GemmDesc(1, 1, 1)), reduce_source())]

    def test_problem(self, desc: Desc, config: PartsConfig) -> tuple[tuple[int, int, int], PartsConfig]:
        depth = 2 * SHORTEST + TEST_EDGE
        parts = whole_slices(depth, CHUNK, min(config.PARTS, TEST_SLICES))
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth), replace(config, PARTS=parts)

    def source(self, device: Device, config: PartsConfig) -> Source | None:
        return parts_source(config, GemmDesc(1, 1, 1))

    def sources(self, device: Device, desc: GemmDesc, config: PartsConfig) -> list[Source]:
        return [parts_source(config, desc), reduce_source()]


FAMILY = HopperInflightSplitK()
