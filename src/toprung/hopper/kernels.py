"""The three kernels: their texts, how the splitting pass is spread over threads, and what is compiled for a session."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from toprung.backends.base import DYNAMIC_SHARED, Kernel, Session, Source
from toprung.build import source_kernel
from toprung.hopper.call import Variant
from toprung.hopper.sizes import ceil

FOLDER = Path(__file__).parents[1] / "ladders" / "hopper"
SPLIT_THREADS = 512
SPLIT_HELD = 32
"""Elements a thread of the splitting pass holds in registers. Twice as many leave room for half the threads: slower at any K."""
PATCH_BYTES = SPLIT_THREADS * 144
"""Shared memory in which the warps of the splitting pass turn their tiles."""


def source(file: str, kernel: str, defines: Mapping[str, int]) -> Source:
    """A text of the ladder's folder behind the common headers."""
    texts = ((name, (FOLDER / name).read_text()) for name in ("hopper.cuh", "terms.cuh", file))
    return Source(f"hopper/{kernel}", "\n".join(f'#line 1 "{name}"\n{text}' for name, text in texts), kernel, defines, "cuda")


def product_source(variant: Variant, **more: int) -> Source:
    """The product's kernel."""
    return source("fp32x.cu", "fp32x", {**variant.defines(**more), DYNAMIC_SHARED: variant.shared_bytes})


def split_source(cluster: int = 1, held: int = SPLIT_HELD) -> Source:
    """The splitting pass; ``cluster`` blocks together have the rows whose K runs across memory."""
    defines = {"ARCH_SPECIFIC": 1, "CLUSTER": cluster, "HELD": held, DYNAMIC_SHARED: PATCH_BYTES}
    return source("split.cu", "split", defines)


def reduce_source() -> Source:
    """What adds the results of slices."""
    return source("reduce.cu", "reduce", {"ARCH_SPECIFIC": 1})


@dataclass(frozen=True)
class Splitting:
    """How the splitting pass walks an operand.

    Attributes
    ----------
    lanes : threads of a row where K runs along memory; 0: it runs across
    """

    rows: int
    matrices: int
    lanes: int

    @staticmethod
    def of(rows: int, matrices: int, K: int, across: bool, units: int) -> Splitting:
        """Enough threads for a row to hold it, and for the device to have work everywhere."""
        if across:
            return Splitting(rows, matrices, 0)
        lanes = 32
        while lanes < SPLIT_THREADS and (
            lanes * SPLIT_HELD < K or (rows * matrices * lanes < units * SPLIT_THREADS and lanes * 4 < K)
        ):
            lanes *= 2
        return Splitting(rows, matrices, lanes)

    def blocks(self, cluster: int) -> int:
        """Work-groups, whole clusters."""
        if self.lanes:
            return ceil(ceil(self.rows * self.matrices * self.lanes, SPLIT_THREADS), cluster) * cluster
        return ceil(self.rows, 32) * self.matrices * cluster


def spread(K: int, across: bool) -> tuple[int, int]:
    """Blocks of a cluster and elements a thread holds in the splitting pass, so that K across memory is read once up to 4096."""
    cluster = 1
    while across and cluster < 8 and cluster * SPLIT_THREADS < K:
        cluster *= 2
    return cluster, SPLIT_HELD


_kernels: WeakKeyDictionary[Session, dict[Source, Kernel]] = WeakKeyDictionary()
_guard = threading.RLock()


def _kernel(session: Session, of: Source) -> Kernel:
    key = (of.kernel, tuple(of.defines.items()))
    with _guard:
        kept: Any = _kernels.setdefault(session, {})
        if key not in kept:
            kept[key] = source_kernel(of, session)
        found: Kernel = kept[key]
    return found
