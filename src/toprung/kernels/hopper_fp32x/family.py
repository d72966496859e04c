"""fp32 accuracy on Hopper's Tensor Cores: operands are split into two fp16 terms, three products of which are added up in fp32.

One family in five forms, each with a name in receipts and in the store. They differ in where operands are split and how K is
shared out:

* ``hopper_fp32x``: a pass splits both beforehand, into a workspace of 4 bytes an element. For large products. Where tiles of C are
  too few for the device, K is cut into parts whose results another launch adds up.
* ``hopper_inflight``: both are split on their way to the Tensor Cores, in one launch without a workspace. For products whose
  operands are read once or twice: batches, small and memory-bound ones. A cluster may share a tile along K.
* ``hopper_inflight_split_k``: the same with K cut into parts. For a small C and a deep K, where a cluster is too few blocks.
* ``hopper_presplit``: B beforehand, by the product's own launch where K runs along its memory, and A in flight. For an A that is
  read few times while B is small or prepacked.
* ``hopper_strassen``: a level of Strassen over the first, accurate in the norm alone, where it is asked for.

In the first four what two terms cannot carry is computed again in plain fp32 by the same launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import ClassVar

from toprung.backends.base import Session
from toprung.device import Device
from toprung.gemm.classes import FEW
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels.base import MOST, TEST_EDGE, TEST_SLICES, Axes, Groups, KernelFamily, Launches, NoConfig, Point, SearchedFamily
from toprung.kernels.cost_model import block_count
from toprung.kernels.epilogue import EVERY
from toprung.kernels.group import MOST_MATRICES
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x import cost, strassen
from toprung.kernels.hopper_fp32x.config import BOTH, IN_FLIGHT, K_BLOCK, ONE, Fp32xConfig, in_flight, presplit, with_parts
from toprung.kernels.hopper_fp32x.group import group_launches
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches, SplitOperand
from toprung.kernels.hopper_fp32x.sizes import SHORTEST, trimmed, unsupported
from toprung.kernels.hopper_fp32x.sources import product_source, reduce_source, split_source


class Fp32xFamily(KernelFamily[Fp32xConfig]):
    """fp32-accurate products on Hopper's Tensor Cores, in the form that ``config`` shows."""

    precision = "fp32x"
    epilogues = EVERY

    def supports(self, device: Device, desc: Desc) -> str:
        reason = unsupported(device, desc, self.config)
        if desc.is_vector or reason:
            return reason
        if 0 < min(desc.M, desc.N) <= FEW and not (desc.is_mixed and self.config.split == IN_FLIGHT):
            return f"a side is {FEW} or shorter: memory is the limit, and plain fp32 reads the large operand once"
        return ""

    def cost(self, device: Device, desc: GemmDesc, config: Fp32xConfig) -> float:
        return cost.total(desc, device.compute_units, [(config, config.k_parts)])[0]

    def weighed(self, device: Device, desc: GemmDesc, most: int = MOST) -> Iterable[tuple[float, Fp32xConfig]]:
        rows = cost.weighed(desc, device.compute_units, self.config)
        found = sorted(zip(cost.total(desc, device.compute_units, rows), range(len(rows)), strict=True))[:most]
        return [(seconds, with_parts(*rows[i])) for seconds, i in found]

    def compile(self, session: Session, desc: GemmDesc, config: Fp32xConfig, epilogue: Epilogue | None = None) -> Launches:
        is_one = config.split == ONE and cost.alone(desc, config, session.device.compute_units)[1] == 1
        return Fp32xLaunches(session, desc, config, epilogue, is_one)

    def texts(self, backend: str) -> Iterable[str]:
        # CUDA C++ has no prelude
        sources = [product_source(self.config), *([] if self.config.split == IN_FLIGHT else [split_source()])]
        if self.config.adds:
            sources.append(reduce_source())
        elif self.config.split == IN_FLIGHT:
            sources.append(product_source(self.config, GROUPED=1))
        return [source.text for source in sources]

    def adapt(self, device: Device, desc: GemmDesc, config: Fp32xConfig, measured: GemmDesc, exact: bool) -> Fp32xConfig | str:
        if not config.adds:
            return config
        both, blocks = config.split == BOTH, config.k_parts * block_count(measured, config)
        wanted = config.k_parts if exact else round(blocks / max(block_count(desc, config), 1))  # as many blocks as were measured
        parts = trimmed(desc.K, min(wanted, cost.most_slices(desc) if both else desc.K // SHORTEST))
        return with_parts(config, parts) if both or parts > 1 else "its tiles are as many as there are SMs: K is not cut"

    def test_problem(self, desc: Desc, config: Fp32xConfig) -> tuple[tuple[int, int, int], Fp32xConfig]:
        in_parts = config.split == IN_FLIGHT and config.k_parts > 1
        depth = 2 * SHORTEST if in_parts else max(TEST_SLICES, config.SLICES) * K_BLOCK
        parts = trimmed(depth + TEST_EDGE, min(config.k_parts, TEST_SLICES))
        return (config.BM + TEST_EDGE, config.BN + TEST_EDGE, depth + TEST_EDGE), with_parts(config, parts)


class Searched(Fp32xFamily, SearchedFamily[Fp32xConfig]):
    """A form that the tuner searches."""

    def starts(self, device: Device, desc: GemmDesc) -> Iterator[Point]:
        # every block that is weighed, its ring and raster as they are, in all parts or slices of K
        axis = "k_parts" if self.config.adds else "SLICES"
        for config, n in itertools.product(cost.WEIGHED[self.config.split], self.space(device, desc)[axis]):
            yield {**self.point(config), axis: n}


class HopperFp32x(Searched):
    """Both operands split beforehand."""

    name = "hopper_fp32x"
    config = Fp32xConfig()
    predicts = True
    packs = SplitOperand

    def weighed(self, device: Device, desc: GemmDesc, most: int = MOST) -> Iterable[tuple[float, Fp32xConfig]]:
        units, rows = device.compute_units, cost.weighed(desc, device.compute_units, self.config)
        times = cost.beforehand_times(desc, units, rows, short=False)
        best = rows[times.index(min(times))]  # of equal predictions the larger tile and the fewer parts
        return [(cost.total(desc, units, [best])[0], with_parts(*best))]

    def reason(self, device: Device, desc: GemmDesc, config: Fp32xConfig) -> str:
        return f"in tiles of {config.BM}×{config.BN}" + f" and {config.k_parts} slices of K" * (config.k_parts > 1)

    def space(self, device: Device, desc: GemmDesc) -> Axes:
        # a few slices of K, and those that fill the device
        axes, filling = super().space(device, desc), {parts for _, parts in cost.weighed(desc, device.compute_units, self.config)}
        few = {trimmed(desc.K, min(n, cost.most_slices(desc))) for n in axes["k_parts"]}
        return {**axes, "k_parts": tuple(sorted(filling | few))}


def group_share(device: Device, desc: GemmDesc) -> float:
    """Return the predicted seconds that a product adds to a group: with a short side, too, as a launch of its own costs more."""
    if unsupported(device, desc, in_flight()) or desc.batch > MOST_MATRICES or desc.is_mixed:
        return float("inf")
    return cost.share(desc, device.compute_units)


class HopperInflight(Searched):
    """Both operands split in flight."""

    name = "hopper_inflight"
    config = in_flight()
    predicts = True
    operand_dtypes = frozenset(ELEMENT_BYTES)
    margin = 1.0  # one launch as plain fp32's, predicted as well: with 1.05 fewer selections of stored checks are within 5 %
    groups = Groups(group_share, group_launches)

    def at(self, device: Device, desc: GemmDesc, point: Point) -> Fp32xConfig | None:
        return super().at(device, desc, point) if point["SLICES"] <= ceil(desc.K, K_BLOCK) else None


class HopperInflightSplitK(Fp32xFamily):
    """Both operands split in flight, in a launch for all parts of K and one that adds them up."""

    name = "hopper_inflight_split_k"
    config = in_flight(k_parts=2)
    predicts = True
    margin = 1.05  # predicted nearly as well as in flight without parts


class HopperPresplit(Fp32xFamily):
    """B split beforehand and A in flight."""

    name = "hopper_presplit"
    config = presplit(STAGES=5)
    operand_dtypes = frozenset(ELEMENT_BYTES)
    packs = SplitOperand


class HopperStrassen(KernelFamily[NoConfig]):
    """Large products on Hopper's Tensor Cores with an eighth fewer operations, as accurate as fp32 in the norm.

    Elements of C that come out as Inf or NaN are computed again in plain fp32, so that those of A and B reach no others.
    """

    name = "hopper_strassen"
    precision = "fp32x-strassen"
    tile: ClassVar = Fp32xConfig()

    def supports(self, device: Device, desc: Desc) -> str:
        if reason := unsupported(device, desc, self.tile):
            return reason
        if desc.is_vector or desc.batch > 1:
            return "Strassen's form takes one product at a time, not a batch"
        if min(sides := (desc.M, desc.N, desc.K)) < strassen.SMALLEST or max(sides) > strassen.LONGEST:
            sizes, few, most = "×".join(map(str, sides)), strassen.SMALLEST, strassen.LONGEST
            return f"Strassen's form gains from {few} rows, columns and elements of K on, up to {most}, not at {sizes}"
        return ""

    def cost(self, device: Device, desc: GemmDesc, config: NoConfig) -> float:
        # nothing is weighed against it. An eighth fewer operations; sums of quarters take half of that: strassen.json, within 6 %
        return 15 / 16 * cost.total(desc, device.compute_units, [(self.tile, 1)])[0]

    def reason(self, device: Device, desc: Desc, config: NoConfig) -> str:
        return "asked for: seven products of sums of quarters, errors are small beside the norms of A and B alone"

    def compile(self, session: Session, desc: GemmDesc, config: NoConfig, epilogue: Epilogue | None = None) -> Launches:
        return strassen.launches(session, desc)

    def texts(self, backend: str) -> Iterable[str]:
        sources = strassen.product_source(self.tile), strassen.sums_source(0, False), strassen.combine_source()
        return [*(source.text for source in sources), " ".join(str(strassen.STRASSEN.signs(which)) for which in "abc")]

    def test_problem(self, desc: Desc, config: NoConfig) -> tuple[tuple[int, int, int], NoConfig]:
        return (2 * self.tile.BM + TEST_EDGE, 2 * self.tile.BN + TEST_EDGE, 6 * K_BLOCK + TEST_EDGE), config


FAMILIES = HopperFp32x(), HopperInflight(), HopperInflightSplitK(), HopperPresplit(), HopperStrassen()
FP32X, INFLIGHT, INFLIGHT_SPLIT_K, PRESPLIT, STRASSEN = FAMILIES
