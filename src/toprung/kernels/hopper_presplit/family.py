"""fp32 accuracy on Hopper's Tensor Cores where B is split beforehand, and A on its way to them.

For products whose A is read few times, or only once, while B is small or prepacked: a splitting pass reads and writes B alone. A
may be of halves. **Not measured yet**: selection by estimate never takes it, as its cost is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import TEST_EDGE, TEST_SLICES, KernelConfig, KernelFamily, Launches
from toprung.kernels.epilogue import EVERY
from toprung.kernels.hopper import is_hopper
from toprung.kernels.hopper_fp32x.launches import SplitOperand
from toprung.kernels.hopper_fp32x.sizes import LIMIT
from toprung.kernels.hopper_fp32x.sources import split_source
from toprung.kernels.hopper_inflight.config import CHUNK, on_words, tiles
from toprung.kernels.hopper_inflight.family import DEEPEST, SHALLOWEST
from toprung.kernels.hopper_presplit.config import BLOCKS, PresplitConfig, product_source
from toprung.kernels.hopper_presplit.launches import PresplitLaunches, workspace_bytes


class HopperPresplit(KernelFamily):
    """fp32-accurate products on Hopper's Tensor Cores, B split beforehand and A in flight."""

    name = "hopper_presplit"
    precision = "fp32x"
    operand_dtypes = frozenset(ELEMENT_BYTES)
    epilogues = EVERY
    measured = False

    def supports(self, device: Device, desc: Desc) -> str:
        """Return why the device has no such Tensor Cores, or the product is not one that the promise covers."""
        if not isinstance(desc, GemmDesc):
            return "fp32x is for products of matrices: with a vector memory is the limit"
        if not is_hopper(device):
            return f"fp32x needs Hopper's Tensor Cores; {device} has none"
        if desc.type_b != "float32" or not on_words(desc):
            return "B is split from float32, and rows of halves of A begin on words of 4 bytes"
        if desc.is_empty or not SHALLOWEST <= desc.K <= DEEPEST:
            return f"fp32x is promised for K from {SHALLOWEST} to {DEEPEST:,}, not for {desc.K}"
        if min(desc.M, desc.N) <= FEW:
            return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"
        if max(desc.M, desc.N) * desc.batch >= 1 << 31 or tiles(desc, PresplitConfig(2, 64)) >= 1 << 31:
            return "rows and tiles are counted with 31 bits"
        if (least := workspace_bytes(desc)) > LIMIT:
            return f"B's terms would need {least:,} bytes, more than {LIMIT:,}"
        return ""

    def candidates(self, device: Device, desc: Desc) -> Iterable[PresplitConfig]:
        """Return the blocks there are, each with all of K."""
        return [PresplitConfig(consumers, cols, stages) for (consumers, cols), stages in BLOCKS.items()]

    def cost(self, device: Device, desc: Desc, config: KernelConfig) -> float:
        """Return infinity: nothing was measured."""
        return float("inf")

    def compile(self, session: Session, desc: Desc, config: KernelConfig) -> Launches:
        """Return the launches."""
        assert isinstance(desc, GemmDesc) and isinstance(config, PresplitConfig)
        return PresplitLaunches(session, desc, config)

    def fused(self, session: Session, desc: Desc, config: KernelConfig, epilogue: Epilogue) -> Launches:
        """Return the launches with an epilogue."""
        assert isinstance(desc, GemmDesc) and isinstance(config, PresplitConfig)
        return PresplitLaunches(session, desc, config, epilogue)

    def prepack(self, session: Session, desc: Desc, b: int, queue: Any = None) -> SplitOperand:
        """Return B's terms, which ``hopper_fp32x`` takes, too."""
        assert isinstance(desc, GemmDesc)
        return SplitOperand(session, desc, b, queue=queue, copied=True)

    def workspace_bytes(self, device: Device, desc: Desc, config: KernelConfig) -> int:
        """Return the bytes of B's terms, four an element."""
        assert isinstance(desc, GemmDesc)
        return workspace_bytes(desc)

    def launch_count(self, device: Device, desc: Desc, config: KernelConfig) -> int:
        """Return two."""
        return 2

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> KernelConfig:
        """Return a configuration."""
        return PresplitConfig.decode(tile, options)

    def texts(self, backend: str) -> Iterable[str]:
        """Return both sources; CUDA C++ has no prelude."""
        return [source.text for source in (product_source(PresplitConfig(), GemmDesc(1, 1, 1)), split_source())]

    def test_problem(self, desc: Desc, config: KernelConfig) -> tuple[tuple[int, int, int], KernelConfig]:
        """Return a block and an edge each way, deep enough for each slice to have chunks."""
        assert isinstance(config, PresplitConfig)
        depth = max(TEST_SLICES, config.SLICES) * CHUNK + TEST_EDGE
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth), config

    def source(self, device: Device, config: KernelConfig) -> Source | None:
        """Return the product's source, of operands that lie as they come."""
        assert isinstance(config, PresplitConfig)
        return product_source(config, GemmDesc(1, 1, 1))


FAMILY = HopperPresplit()
