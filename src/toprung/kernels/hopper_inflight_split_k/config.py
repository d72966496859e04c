"""Configurations: a block of ``hopper_inflight``, and the parts into which K is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toprung.backends.base import Source
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import parameter
from toprung.kernels.hopper_inflight.config import CHUNK, InflightConfig, aligned, product_source
from toprung.kernels.split_k import slice_depth


@dataclass(frozen=True)
class PartsConfig(InflightConfig):
    """A block that owns 64·CONSUMERS × BN of the result of one part of K at a time; see ``InflightConfig``.

    Attributes
    ----------
    PARTS : of K, each with a result of its own
    """

    SLICES: int = 1
    PARTS: int = parameter(2, name="SPLIT_K")

    def depth(self, K: int) -> int:
        """Return the length of a part of K; the last one may be shorter."""
        return slice_depth(K, CHUNK, self.PARTS)

    def refused(self) -> str:
        if self.SLICES > 1 or self.PARTS < 2:
            return f"K is cut into two parts or more, each of which one block has for itself, not into {self.PARTS}"
        return super().refused()

    def __str__(self) -> str:
        return f"{super().__str__()} in {self.PARTS} parts of K"


def parts_source(config: PartsConfig, desc: GemmDesc) -> Source:
    """Return the product's kernel, which writes a result for each part."""
    found = product_source(config, desc.trans_a, desc.trans_b, *aligned(desc), IN_PARTS=1)
    return replace(found, name="hopper_inflight_split_k/inflight", title=f"inflight_split_k_{config.BM}x{config.BN}x{CHUNK}")
