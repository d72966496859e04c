"""Sources of the kernels: products, the splitting pass, and what adds up parts of K; and how that pass is spread over threads."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.hopper import HOPPER, ceil
from toprung.kernels.hopper_fp32x.config import BOTH, K_BLOCK, ONE, PRESPLIT, TYPES, Fp32xConfig, aligned
from toprung.kernels.record import joined

FOLDER = Path(__file__).parent
HEADERS = (*(f"../include/{name}.cuh" for name in ("hopper", "halves", "epilogue", "truncation")), "terms.cuh")
PARTS = ("slices.cuh", "three_products.cuh", "guard.cuh", "plain.cuh")
"""Headers of ``fp32x.cu``, after ``HEADERS``; a rung of the ladder has its own source in place of one."""
CUT_SHARES: dict[str, float] = json.loads((FOLDER.parent / "include/truncation.json").read_text("utf-8"))
"""Share of a sum that an architecture's Tensor Cores cut, as ``toprung probe`` read it; truncation.cuh has the default."""
UNIT: dict[str, float] = {"ARCH_SPECIFIC": 1, **({"CUT_SHARE": CUT_SHARES[HOPPER]} if HOPPER in CUT_SHARES else {})}
"""Macros for the architecture that these kernels are compiled for."""
SPLIT_THREADS = 512
SPLIT_HELD = 32
"""Elements a thread of the splitting pass holds in registers. Twice as many leave room for half the threads: slower at any K."""
LARGEST_CLUSTER = 8
"""Blocks of a cluster that every GPU of the architecture can run."""
PATCH_BYTES = SPLIT_THREADS * 144
"""Shared memory in which the warps of the splitting pass turn their tiles."""


def source(kernel: str, defines: Mapping[str, int], *files: str, family: str = "fp32x", title: str = "") -> Source:
    """Return the source in files of this folder, behind the common headers: by default the kernel's own."""
    text = joined(FOLDER, *HEADERS, *(files or (f"{kernel}.cu",)))
    return Source(f"hopper_{family}/{kernel}", text, kernel, {**UNIT, **defines}, "cuda", title=f"{family}_{title or kernel}")


@functools.cache  # most products have a kernel that another has had
def product_source(
    config: Fp32xConfig, trans_a: bool = False, trans_b: bool = False, align_a: int = 4, align_b: int = 4, **more: int
) -> Source:
    """Return the product's kernel, where an operand is split in flight for a layout of the operands; ``more``: macros."""
    size, defines = f"{config.BM}x{config.BN}x{K_BLOCK}", {**config.defines(trans_a, trans_b, align_a, align_b), **more}
    if config.split == BOTH:
        return source("fp32x", defines, *PARTS, "fp32x.cu", title=size)
    family = file = "inflight"
    if config.split == ONE:
        family = "presplit"
        defines = {"A_TYPE": 0, "B_TYPE": PRESPLIT, **defines}
    elif "GROUPED" in more:
        file, size = "grouped", f"group_{size}"
    elif config.k_parts > 1:
        family, defines = "inflight_split_k", {**defines, "IN_PARTS": 1}
    return Source(
        f"hopper_{family}/inflight", joined(FOLDER, f"{file}.cu"), "inflight", {**UNIT, **defines}, "cuda", title=f"{family}_{size}"
    )


def source_of(desc: GemmDesc, config: Fp32xConfig, epilogue: Epilogue | None = None) -> Source:
    """Return the kernel of a product's launch; its epilogue is another launch's where that writes C."""
    macros = epilogues.defines(epilogue) if config.k_parts == 1 else {}
    if config.split == BOTH:
        odd = {"ODD_C": 1} if config.k_parts == 1 and desc.widths[2] == 1 else {}
        return product_source(config, False, False, 4, 4, **odd, **macros)
    types, (align_a, align_b) = {"A_TYPE": TYPES[desc.type_a], "B_TYPE": TYPES[desc.type_b]}, aligned(desc)
    if config.split == ONE:
        types["B_TYPE"], align_b = PRESPLIT, 1
    elif not desc.is_mixed:
        types = {}
    return product_source(config, desc.trans_a, desc.trans_b, align_a, align_b, **types, **macros)


def split_source(cluster: int = 1) -> Source:
    """Return the splitting pass; ``cluster`` blocks together have the rows whose K runs across memory."""
    return source("split", {"CLUSTER": cluster, "HELD": SPLIT_HELD, DYNAMIC_SHARED: PATCH_BYTES}, "rows.cuh", "split.cu")


def reduce_source(**more: int) -> Source:
    """Return the kernel that adds the results of parts; ``more``: macros."""
    return source("reduce", more)


def walk(rows: int, matrices: int, K: int, across: bool, units: int, cluster: int) -> tuple[int, int]:
    """Return the threads that the splitting pass has for a row, and its blocks on an operand, whole clusters.

    Enough threads to hold a row, and for the device to have work everywhere; 0 where K runs across memory, in patches of 32 rows.
    """
    if across:
        return 0, ceil(rows, 32) * matrices * cluster
    lanes = 32
    while lanes < SPLIT_THREADS and (lanes * SPLIT_HELD < K or (rows * matrices * lanes < units * SPLIT_THREADS and lanes * 4 < K)):
        lanes *= 2
    return lanes, ceil(ceil(rows * matrices * lanes, SPLIT_THREADS), cluster) * cluster


def spread(K: int, across: bool) -> int:
    """Return the cluster size of the splitting pass: a K of up to 4,096 across memory is read once."""
    return max(1, min(ceil(K, SPLIT_THREADS), LARGEST_CLUSTER)) if across else 1
