"""Configurations: a block of ``hopper_inflight``, and the parts into which K is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from toprung.backends.base import Source
from toprung.gemm.desc import GemmDesc
from toprung.kernels.hopper_inflight.config import CHUNK, InflightConfig, aligned, inflight_source
from toprung.kernels.split_k import slice_depth
from toprung.tile import Tile


@dataclass(frozen=True)
class PartsConfig(InflightConfig):
    """A block that owns 64·CONSUMERS × BN of the result of one part of K at a time; see ``InflightConfig``.

    Attributes
    ----------
    PARTS : of K, each with a result of its own
    """

    PARTS: int = 2

    @property
    def tile(self) -> Tile:
        return replace(super().tile, SPLIT_K=self.PARTS)

    def depth(self, K: int) -> int:
        """Return the length of a part of K; the last one may be shorter."""
        return slice_depth(K, CHUNK, self.PARTS)

    def refused(self) -> str:
        if self.SLICES > 1 or self.PARTS < 2:
            return f"K is cut into two parts or more, each of which one block has for itself, not into {self.PARTS}"
        return super().refused()

    def encode(self) -> dict[str, dict[str, int]]:
        return {"tile": self.tile.given(), "options": {"GROUP": self.GROUP}}

    @classmethod
    def decode(cls, tile: Mapping[str, int], options: Mapping[str, int]) -> PartsConfig:
        if tile.keys() != {"BM", "BN", "BK", "STAGES", "SPLIT_K"} or options.keys() != {"GROUP"}:
            raise ValueError("hopper_inflight_split_k needs a tile with BM, BN, BK, STAGES and SPLIT_K, and the option GROUP")
        if tile["BM"] % 64 or tile["BK"] != CHUNK:
            raise ValueError(f"a block of hopper_inflight_split_k has a multiple of 64 rows, and stages of {CHUNK} of K")
        found = cls(tile["BM"] // 64, tile["BN"], tile["STAGES"], options["GROUP"], PARTS=tile["SPLIT_K"])
        if reason := found.refused():
            raise ValueError(reason)
        return found

    def __str__(self) -> str:
        return f"{super().__str__()} in {self.PARTS} parts of K"


def parts_source(config: PartsConfig, desc: GemmDesc) -> Source:
    """Return the product's kernel, which writes a result for each part."""
    found = inflight_source(config, desc.trans_a, desc.trans_b, *aligned(desc), (), IN_PARTS=1)
    return replace(found, name="hopper_inflight_split_k/inflight", title=f"inflight_split_k_{config.BM}x{config.BN}x{CHUNK}")
