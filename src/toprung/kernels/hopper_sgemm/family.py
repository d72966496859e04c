"""Plain fp32 on Hopper: fused multiply-adds alone, operands fed by TMA, for large products one at a time.

The product wants A as K×M and B as K×N, on 16 bytes. An operand that lies otherwise goes through a layout pass first, into a
workspace; one launch lays out both. Where that would take long beside the product, the producer's threads copy such an operand
into the ring instead. The product's blocks stay, each with its share of the tiles; where tiles do not fill whole
waves, some are cut along K and their parts added in a fixed order, so that results repeat to the bit. Long sums are added up in
links of a chain, in shared memory beside the ring, so that errors are no larger than cuBLAS's. The workspace is the session's for a
stream and serves all products there in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import cost_model
from toprung.kernels.base import MOST, TEST_EDGE, TEST_SLICES, Axes, Launches, Point, SearchedFamily
from toprung.kernels.epilogue import EVERY
from toprung.kernels.hopper_sgemm.config import FIRST, LARGEST_STEP, SgemmConfig, lay_source, product_source
from toprung.kernels.hopper_sgemm.cost import MODEL, copied, laid_out, least, narrow_c, predicted, supported, unfit
from toprung.kernels.hopper_sgemm.launches import SgemmLaunches

LEAST = 1 << 19
"""Results of C from which on the kernel is weighed: below, adding parts of its large tiles takes longer than computing them,
unless K is deep."""
DEEP = 1 << 32
"""Operations from which on it is weighed whatever C: parts of tiles are added in far less time than so many take."""

SPACE = {
    "BM": (128, 256, 512, 64), "BK": (14, 12, 10, 16, 8), "WAIT": (1, 2, 3), "GROUP": (8, 4, 16), "TURN_A": (0, 1), "COPY": (0, 1),
}  # fmt: skip
"""``WAIT``: in which quarter of a stage the next one is waited for. Eight warps own BM × BN of C, so that BN follows from BM."""

AREA = FIRST.BM * FIRST.BN


def is_large(desc: Desc) -> bool:
    """Return True if the kernel is weighed: C is large, or so much is computed for it that its parts do not count."""
    return not desc.is_vector and (desc.M * desc.N >= LEAST or desc.flops >= DEEP)


def _writing(device: Device, desc: GemmDesc, config: SgemmConfig) -> float:
    """Return the seconds of writing C beyond what the model of the product's launch counts."""
    each = MODEL.results[desc.widths[2] == 4 or narrow_c(desc, config)]
    return float(each * desc.M * desc.N / (device.compute_units * cost_model.hz(device)))


class HopperSgemm(SearchedFamily[SgemmConfig]):
    """Plain fp32 on Hopper."""

    name = "hopper_sgemm"
    config = SgemmConfig()
    epilogues = EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        return supported(device, desc) if not desc.is_vector else "it multiplies matrices"

    def cost(self, device: Device, desc: GemmDesc, config: SgemmConfig) -> float:
        return float(predicted(desc, device.compute_units, config)) + _writing(device, desc, config)

    def weighed(self, device: Device, desc: GemmDesc, most: int = MOST) -> Iterable[tuple[float, SgemmConfig]]:
        # all variants at once
        if not is_large(desc):
            return []
        seconds, config = least(desc, device.compute_units)
        return [(seconds + _writing(device, desc, config), config)]

    def reason(self, device: Device, desc: GemmDesc, config: SgemmConfig) -> str:
        which = copied(desc, config) if config.COPY else laid_out(desc, config)
        names = " and ".join(name for name, one in zip("AB", which, strict=True) if one)
        why = f"least by the cost model: TMA feeds {device.compute_units} blocks that stay"
        return why + (f"; {names} {'copied by threads' if config.COPY else 'laid out first'}" if names else "")

    def compile(self, session: Session, desc: GemmDesc, config: SgemmConfig, epilogue: Epilogue | None = None) -> Launches:
        # for each panel the layout pass, where there is something to lay out, and the product's
        return SgemmLaunches(session, desc, config, epilogue=epilogue)

    def adapt(self, device: Device, desc: GemmDesc, config: SgemmConfig, measured: Desc, exact: bool) -> SgemmConfig | str:
        return config.refused() or unfit(desc, config) or config

    def texts(self, backend: str) -> Iterable[str]:
        # the sources of the product, with operands copied, and of the layout pass; CUDA C++ has no prelude
        return [source.text for source in (product_source(FIRST, COPY_A=1, COPY_B=2), lay_source())]

    def test_problem(self, desc: Desc, config: SgemmConfig) -> tuple[tuple[int, int, int], SgemmConfig]:
        # rows of whole vectors, as the TMA reads them: others would be laid out again first, by another binary than the product's
        depth = -(-TEST_SLICES * config.BK // 4) * 4 + TEST_EDGE
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth), config

    def space(self, device: Device, desc: Desc) -> Axes:
        return SPACE if is_large(desc) else {}

    def at(self, device: Device, desc: GemmDesc, point: Point) -> SgemmConfig | None:
        # A point with as many stages as there is room for; None if it does not suit
        bm, bk = point["BM"], point["BK"]
        made = SgemmConfig(bm, AREA // bm, bk, 2, point["WAIT"] * bk // 4, point["GROUP"], point["TURN_A"], point["COPY"])
        fit = [variant for n in range(2, LARGEST_STEP) if not (variant := replace(made, STAGES=n)).refused()]
        return fit[-1] if fit and not unfit(desc, fit[-1]) else None

    def point(self, config: SgemmConfig) -> Point:
        wait = min(3, max(1, round(4 * config.WAIT_AT / config.BK)))
        return {name: wait if name == "WAIT" else getattr(config, name) for name in SPACE}

    def starts(self, device: Device, desc: GemmDesc) -> Iterator[Point]:
        units = device.compute_units
        shapes = sorted(SPACE["BM"], key=lambda bm: predicted(desc, units, SgemmConfig(bm, AREA // bm)))
        for bm, bk, (turn, copy) in itertools.product(shapes[:2], SPACE["BK"][:2], ((0, 0), (1, 0), (0, 1))):
            yield {"BM": bm, "BK": bk, "WAIT": 2, "GROUP": 8, "TURN_A": turn, "COPY": copy}


FAMILY = HopperSgemm()
