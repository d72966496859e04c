"""fp32x on Hopper: each operand split into two fp16 terms, three products on Tensor Cores, as accurate as fp32.

A splitting pass writes the terms into a workspace (4 bytes an element, 8 a row), then they are multiplied; what two terms cannot
carry is computed again in plain fp32 by the same launch. Where tiles of C are too few for the device, K is cut into slices whose
results a third launch adds. The workspace is the session's for a stream and serves all products there in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import TEST_EDGE, TEST_SLICES, Axes, KernelConfig, KernelFamily, Launches, NoConfig, Point
from toprung.kernels.epilogue import EVERY
from toprung.kernels.hopper_fp32x.config import CHUNK, Fp32xConfig, Variant
from toprung.kernels.hopper_fp32x.cost import COSTS, configs, most_slices, seconds, select_config, waves
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches, SplitOperand, sources_of
from toprung.kernels.hopper_fp32x.sizes import LIMIT, panels, supported, trimmed, workspace_bytes
from toprung.kernels.hopper_fp32x.sources import product_source, reduce_source, split_source
from toprung.kernels.split_k import whole_slices

SPACE = {"CONSUMERS": (2, 1), "BN": (128, 64, 32), "STAGES": (6, 8, 4, 12), "GROUP": (8, 16, 4, 1)}
"""See ``Variant``. How operands are split into terms follows from the product."""

FEW_SLICES = (1, 2, 3, 4)
"""Slices of K that a search tries beside those that fill the device."""


class HopperFp32x(KernelFamily):
    """fp32-accurate products on Hopper's Tensor Cores."""

    name = "hopper_fp32x"
    precision = "fp32x"
    epilogues = EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        if not isinstance(desc, GemmDesc):
            return "fp32x is for products of matrices: with a vector memory is the limit"
        if (reason := supported(device, desc)) or not 0 < min(desc.M, desc.N) <= FEW:
            return reason
        return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"

    # selection

    def candidates(self, device: Device, desc: GemmDesc) -> Iterable[Fp32xConfig]:
        return [select_config(desc, device.compute_units)]

    def cost(self, device: Device, desc: GemmDesc, config: KernelConfig) -> float:
        return seconds(desc, _as_taken(device, desc, config), device.compute_units)

    def relative_cost(self, device: Device, desc: GemmDesc, config: KernelConfig) -> float | None:
        return self.cost(device, desc, config)

    def reason(self, device: Device, desc: GemmDesc, config: KernelConfig) -> str:
        taken = _as_taken(device, desc, config)
        tile = taken.variant
        return f"in tiles of {tile.BM}×{tile.BN}" + f" and {taken.slices} slices of K" * (taken.slices > 1)

    # running

    def compile(self, session: Session, desc: GemmDesc, config: Fp32xConfig) -> Launches:
        # the launches: for each panel the splitting pass, the product, and what adds slices
        return Fp32xLaunches(session, desc, config.variant, slices=config.slices)

    def fused(self, session: Session, desc: GemmDesc, config: Fp32xConfig, epilogue: Epilogue) -> Launches:
        return Fp32xLaunches(session, desc, config.variant, slices=config.slices, epilogue=epilogue)

    def prepack(self, session: Session, desc: GemmDesc, b: int, queue: Any = None) -> SplitOperand:
        return SplitOperand(session, desc, b, queue=queue, copied=True)

    def workspace_bytes(self, device: Device, desc: GemmDesc, config: KernelConfig) -> int:
        return workspace_bytes(desc, slices=config.slices)

    def launch_count(self, device: Device, desc: GemmDesc, config: KernelConfig) -> int:
        return (3 if config.slices > 1 else 2) * len(panels(desc, LIMIT)) if desc.M and desc.N else 0

    # the store

    def decode(self, tile: Mapping[str, int], options: Mapping[str, int]) -> KernelConfig:
        # a variant and slices; without a tile `NoConfig`: an entry of what the cost model took then
        if not tile and options.keys() <= {"SLICES"}:
            return NoConfig()
        return Fp32xConfig.decode(tile, options)

    def adapt(self, device: Device, desc: Desc, config: KernelConfig, measured: Desc, exact: bool) -> KernelConfig | str:
        """Return the variant with as many slices as give the product's tiles as many blocks; the model's where none is named."""
        if not isinstance(desc, GemmDesc) or not isinstance(measured, GemmDesc):
            return "it multiplies matrices"
        if reason := supported(device, desc):
            return reason
        taken = _as_taken(device, desc, config)
        variant, slices = taken.variant, taken.slices
        if isinstance(config, Fp32xConfig) and not exact:
            blocks, were = (waves(one, variant, 1) for one in (desc, measured))
            slices = round(slices * were / max(blocks, 1))
        return Fp32xConfig(variant, trimmed(desc.K, min(slices, most_slices(desc))))

    def texts(self, backend: str) -> Iterable[str]:
        # the sources of all three launches; CUDA C++ has no prelude
        return [source.text for source in (product_source(Variant()), split_source(), reduce_source())]

    # verification and the tuner

    def test_problem(self, desc: Desc, config: Fp32xConfig) -> tuple[tuple[int, int, int], KernelConfig]:
        variant, depth = config.variant, TEST_SLICES * CHUNK + TEST_EDGE
        slices = whole_slices(depth, CHUNK, min(config.slices, TEST_SLICES))
        return (variant.BM + TEST_EDGE, variant.BN + TEST_EDGE, depth), Fp32xConfig(variant, slices)

    def source(self, device: Device, config: KernelConfig) -> Source | None:
        return product_source(config.variant) if isinstance(config, Fp32xConfig) else None

    def sources(self, device: Device, desc: GemmDesc, config: KernelConfig) -> list[Source]:
        taken = _as_taken(device, desc, config)
        return sources_of(desc, taken.variant, trimmed(desc.K, taken.slices))

    def space(self, device: Device, desc: Desc) -> Axes:
        if not isinstance(desc, GemmDesc) or not (desc.M and desc.N) or supported(device, desc):
            return {}
        filling = {config.slices for config in configs(desc, device.compute_units)}
        few = {trimmed(desc.K, min(n, most_slices(desc))) for n in FEW_SLICES}
        return {**SPACE, "SLICES": tuple(sorted(filling | few))}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> Fp32xConfig | None:
        variant = Variant(**{name: point[name] for name in SPACE})
        slices = trimmed(desc.K, point["SLICES"])
        if variant.refused() or slices > most_slices(desc):
            return None
        return Fp32xConfig(variant, slices)

    def point(self, config: Fp32xConfig) -> Point:
        return {**{name: getattr(config.variant, name) for name in SPACE}, "SLICES": config.slices}

    def starts(self, device: Device, desc: Desc) -> Iterator[Point]:
        # every block that is weighed, its ring and raster as they are, in all slices
        for variant, slices in itertools.product(COSTS, self.space(device, desc)["SLICES"]):
            yield {**{name: getattr(variant, name) for name in SPACE}, "SLICES": slices}


def _as_taken(device: Device, desc: GemmDesc, config: KernelConfig) -> Fp32xConfig:
    """Return a configuration, or what the cost model takes where none is named."""
    return config if isinstance(config, Fp32xConfig) else select_config(desc, device.compute_units)


FAMILY = HopperFp32x()
