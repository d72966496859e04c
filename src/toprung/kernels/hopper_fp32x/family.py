"""fp32x on Hopper: each operand split into two fp16 terms, three products on Tensor Cores, as accurate as fp32.

A splitting pass writes the terms into a workspace (4 bytes an element, 8 a row), then they are multiplied; what two terms cannot
carry is computed again in plain fp32 by the same launch. Where tiles of C are too few for the device, K is cut into slices whose
results a third launch adds. The workspace is the session's for a stream and serves all products there in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import TEST_EDGE, TEST_SLICES, Axes, KernelFamily, Launches, Point
from toprung.kernels.epilogue import EVERY
from toprung.kernels.hopper_fp32x.config import CHUNK, Fp32xConfig
from toprung.kernels.hopper_fp32x.cost import COSTS, configs, most_slices, seconds, select_config, waves
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches, SplitOperand, sources_of
from toprung.kernels.hopper_fp32x.sizes import supported, trimmed
from toprung.kernels.hopper_fp32x.sources import product_source, reduce_source, split_source
from toprung.kernels.split_k import whole_slices


class HopperFp32x(KernelFamily[Fp32xConfig]):
    """fp32-accurate products on Hopper's Tensor Cores."""

    name = "hopper_fp32x"
    config = Fp32xConfig
    searched = predicts = True
    precision = "fp32x"
    epilogues = EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "fp32x is for products of matrices: with a vector memory is the limit"
        if (reason := supported(device, desc)) or not 0 < min(desc.M, desc.N) <= FEW:
            return reason
        return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"

    # selection

    def candidates(self, device: Device, desc: GemmDesc) -> Iterable[Fp32xConfig]:
        return [select_config(desc, device.compute_units)]

    def cost(self, device: Device, desc: GemmDesc, config: Fp32xConfig) -> float:
        return seconds(desc, config, device.compute_units)

    def reason(self, device: Device, desc: GemmDesc, config: Fp32xConfig) -> str:
        return f"in tiles of {config.BM}×{config.BN}" + f" and {config.slices} slices of K" * (config.slices > 1)

    # running

    def fused(self, session: Session, desc: GemmDesc, config: Fp32xConfig, epilogue: Epilogue | None) -> Launches:
        # for each panel the splitting pass, the product, and what adds slices
        return Fp32xLaunches(session, desc, config, epilogue=epilogue)

    def prepack(self, session: Session, desc: GemmDesc, b: int, queue: Any = None) -> SplitOperand:
        return SplitOperand(session, desc, b, queue)

    # the store

    def adapt(self, device: Device, desc: Desc, config: Fp32xConfig, measured: Desc, exact: bool) -> Fp32xConfig | str:
        # as many slices as give the product's tiles as many blocks
        if desc.is_vector or measured.is_vector:
            return "it multiplies matrices"
        if reason := supported(device, desc):
            return reason
        slices = config.slices
        if not exact:
            blocks, were = (waves(one, replace(config, slices=1), 1) for one in (desc, measured))
            slices = round(slices * were / max(blocks, 1))
        return replace(config, slices=trimmed(desc.K, min(slices, most_slices(desc))))

    def texts(self, backend: str) -> Iterable[str]:
        # the sources of all three launches; CUDA C++ has no prelude
        return [source.text for source in (product_source(Fp32xConfig()), split_source(), reduce_source())]

    # verification and the tuner

    def test_problem(self, desc: Desc, config: Fp32xConfig) -> tuple[tuple[int, int, int], Fp32xConfig]:
        depth = TEST_SLICES * CHUNK + TEST_EDGE
        slices = whole_slices(depth, CHUNK, min(config.slices, TEST_SLICES))
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth), replace(config, slices=slices)

    def source(self, device: Device, config: Fp32xConfig) -> Source | None:
        return product_source(config)

    def sources(self, device: Device, desc: GemmDesc, config: Fp32xConfig) -> list[Source]:
        return sources_of(desc, replace(config, slices=trimmed(desc.K, config.slices)))

    def space(self, device: Device, desc: GemmDesc) -> Axes:
        # a few slices of K, and those that fill the device
        if not (axes := super().space(device, desc)):
            return {}
        filling = {config.slices for config in configs(desc, device.compute_units)}
        few = {trimmed(desc.K, min(n, most_slices(desc))) for n in axes["slices"]}
        return {**axes, "slices": tuple(sorted(filling | few))}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> Fp32xConfig | None:
        slices = trimmed(desc.K, point["slices"])
        return super().at(device, desc, {**point, "slices": slices}) if slices <= most_slices(desc) else None

    def starts(self, device: Device, desc: GemmDesc) -> Iterator[Point]:
        # every block that is weighed, its ring and raster as they are, in all slices
        for config, slices in itertools.product(COSTS, self.space(device, desc)["slices"]):
            yield {**self.point(config), "slices": slices}


FAMILY = HopperFp32x()
