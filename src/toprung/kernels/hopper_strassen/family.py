"""A level of Strassen over fp32x on Hopper: seven products of half the size in place of eight, for large products alone.

Each operand of a product is a sum of quarters, formed in fp32 where it is split into fp16 terms. The promise is a normwise one: an
error is small beside the norms of A and B, not beside |A|·|B| of its own element. Elements of C that come out as Inf or
NaN are computed again in plain fp32, so that those of A and B reach no others.
"""

from __future__ import annotations

from collections.abc import Iterable

from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels.base import TEST_EDGE, KernelFamily, Launches, NoConfig
from toprung.kernels.hopper_fp32x.config import CHUNK, Fp32xConfig
from toprung.kernels.hopper_strassen.cost import seconds
from toprung.kernels.hopper_strassen.form import STRASSEN
from toprung.kernels.hopper_strassen.launches import launches
from toprung.kernels.hopper_strassen.sizes import supported
from toprung.kernels.hopper_strassen.sources import combine_source, product_source, sums_source


class HopperStrassen(KernelFamily[NoConfig]):
    """Large products on Hopper's Tensor Cores with an eighth fewer operations, as accurate as fp32 in the norm."""

    name = "hopper_strassen"
    precision = "fp32x-strassen"

    def supports(self, device: Device, desc: Desc) -> str:
        if desc.is_vector:
            return "Strassen's form is for products of matrices"
        return supported(device, desc)

    def cost(self, device: Device, desc: GemmDesc, config: NoConfig) -> float:
        return seconds(desc, device.compute_units)

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "asked for: seven products of sums of quarters, errors are small beside the norms of A and B alone"

    def compile(self, session: Session, desc: GemmDesc, config: NoConfig) -> Launches:
        return launches(session, desc)

    def texts(self, backend: str) -> Iterable[str]:
        signs = " ".join(str(STRASSEN.signs(which)) for which in "abc")
        return [*(source.text for source in (product_source(Fp32xConfig()), sums_source(0, False), combine_source())), signs]

    def test_problem(self, desc: Desc, config: NoConfig) -> tuple[tuple[int, int, int], NoConfig]:
        tile = Fp32xConfig()
        return (2 * tile.BM + TEST_EDGE, 2 * tile.BN + TEST_EDGE, 6 * CHUNK + TEST_EDGE), config

    def source(self, device: Device, config: NoConfig) -> Source | None:
        return product_source(Fp32xConfig())


FAMILY = HopperStrassen()
