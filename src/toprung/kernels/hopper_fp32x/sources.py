"""The three kernels: their sources, and how the splitting pass is spread over threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_fp32x.config import CHUNK, Fp32xConfig
from toprung.kernels.record import with_includes

FOLDER = Path(__file__).parent
INCLUDE = FOLDER.parent / "include"
HEADERS = (*(INCLUDE / f"{name}.cuh" for name in ("hopper", "halves", "epilogue", "truncation")), FOLDER / "terms.cuh")
ROWS = FOLDER / "rows.cuh"
"""The header of kernels that split rows, behind those."""
SPLIT_THREADS = 512
SPLIT_HELD = 32
"""Elements a thread of the splitting pass holds in registers. Twice as many leave room for half the threads: slower at any K."""
LARGEST_CLUSTER = 8
"""Blocks of a cluster that every GPU of the architecture can run."""
PATCH_BYTES = SPLIT_THREADS * 144
"""Shared memory in which the warps of the splitting pass turn their tiles."""


def source(file: str, kernel: str, defines: Mapping[str, int], title: str = "", headers: tuple[Path, ...] = ()) -> Source:
    """Return the source in a file of this folder behind the common headers, and some more."""
    files = (*HEADERS, *headers, FOLDER / file)
    text = "\n".join(f'#line 1 "{one.name}"\n{with_includes(one.read_text("utf-8"), one.parent)}' for one in files)
    return Source(f"hopper_fp32x/{kernel}", text, kernel, defines, "cuda", title=title or f"fp32x_{kernel}")


def product_source(config: Fp32xConfig, **more: int) -> Source:
    """Return the product's kernel."""
    title = f"fp32x_{config.BM}x{config.BN}x{CHUNK}"
    return source("fp32x.cu", "fp32x", {**config.defines(**more), DYNAMIC_SHARED: config.shared_bytes}, title)


def split_source(cluster: int = 1, held: int = SPLIT_HELD) -> Source:
    """Return the splitting pass; ``cluster`` blocks together have the rows whose K runs across memory."""
    defines = {"ARCH_SPECIFIC": 1, "CLUSTER": cluster, "HELD": held, DYNAMIC_SHARED: PATCH_BYTES}
    return source("split.cu", "split", defines, headers=(ROWS,))


def reduce_source(**more: int) -> Source:
    """Return the kernel that adds the results of slices; ``more``: macros."""
    return source("reduce.cu", "reduce", {"ARCH_SPECIFIC": 1, **more})


@dataclass(frozen=True)
class Splitting:
    """The splitting pass's walk over an operand.

    Attributes
    ----------
    lanes : threads of a row where K runs along memory; 0: it runs across
    """

    rows: int
    matrices: int
    lanes: int

    @staticmethod
    def of(rows: int, matrices: int, K: int, across: bool, units: int) -> Splitting:
        """Return enough threads for a row to hold it, and for the device to have work everywhere."""
        if across:
            return Splitting(rows, matrices, 0)
        lanes = 32
        while lanes < SPLIT_THREADS and (
            lanes * SPLIT_HELD < K or (rows * matrices * lanes < units * SPLIT_THREADS and lanes * 4 < K)
        ):
            lanes *= 2
        return Splitting(rows, matrices, lanes)

    def blocks(self, cluster: int) -> int:
        """Return the work-groups, whole clusters."""
        if self.lanes:
            return ceil(ceil(self.rows * self.matrices * self.lanes, SPLIT_THREADS), cluster) * cluster
        return ceil(self.rows, 32) * self.matrices * cluster


def spread(K: int, across: bool) -> tuple[int, int]:
    """Return the blocks of a cluster and the elements that a thread holds: K across memory is read once up to 4096."""
    return max(1, min(ceil(K, SPLIT_THREADS), LARGEST_CLUSTER)) if across else 1, SPLIT_HELD
