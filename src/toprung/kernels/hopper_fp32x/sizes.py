"""Sizes of fp32x: products that are computed, slices of K, bytes of terms and workspace, panels of larger products."""

from __future__ import annotations

from dataclasses import dataclass

from toprung.backends.plan import whole
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels.hopper import ceil, is_hopper
from toprung.kernels.hopper_fp32x.config import BLOCKS, BOTH, CHUNK, IN_FLIGHT, Fp32xConfig
from toprung.kernels.split_k import slice_depth, whole_slices

ROW_BYTES = 8
"""Bytes that the splitting pass leaves beside the terms of each row."""
SHALLOWEST, SHORTEST = 64, 256
"""The promise begins at this K; least K of a part: below, a tile's beginning and end are most of its time."""
DEEPEST, DEEPEST_IN_FLIGHT = 1 << 24, 1 << 20
"""Largest K: counts of elements and TMA's coordinates have room to spare; in flight a tile's k-blocks are counted with 31
bits."""
LIMIT = 4 << 30
"""Bytes of terms beyond which a product is cut into panels of M and N, or of the batch."""


def width(K: int) -> int:
    """Return the fp16 elements of a split row."""
    return 2 * CHUNK * ceil(K, CHUNK)


def depth_of(K: int, slices: int) -> int:
    """Return the length of a slice of K; the last one may be shorter."""
    return K if slices == 1 else slice_depth(K, CHUNK, slices)


def trimmed(K: int, slices: int) -> int:
    """Return as many slices of whole k-blocks as are not empty, at most ``slices``."""
    return whole_slices(K, CHUNK, max(1, slices)) if K else 1


def terms_bytes(rows: int, K: int, slices: int = 1) -> int:
    """Return the bytes of the terms of some rows and of what stands beside them, each beginning on 256 bytes."""
    rows *= slices
    return whole(2 * width(depth_of(K, slices)) * rows) + whole(ROW_BYTES * rows)


def matrices(stride: int, batch: int) -> int:
    """Return how many matrices there are to be split: one where all products share it."""
    return batch if stride else 1


def padded(cols: int) -> int:
    """Return the elements from a row of a slice's result to the next."""
    return ceil(cols, 4) * 4


def unsupported(device: Device, desc: Desc, like: Fp32xConfig) -> str:
    """Return why a product cannot be computed with a configuration such as this, as a sentence; empty where it can.

    Empty products can where both operands are split: the launches are none.
    """
    if desc.is_vector:
        return "fp32x is for products of matrices: with a vector memory is the limit"
    if not is_hopper(device):
        return f"fp32x needs Hopper's Tensor Cores; {device} has none"
    if desc.is_empty and like.split != BOTH:
        return "there is nothing to multiply"
    in_parts = like.split == IN_FLIGHT and like.k_parts > 1
    if in_parts and desc.batch > 1:
        return "products of a batch have all of K"
    shallowest = 2 * SHORTEST if in_parts else SHALLOWEST
    deepest = DEEPEST if like.split == BOTH or in_parts else DEEPEST_IN_FLIGHT
    if desc.M and desc.N and not shallowest <= desc.K <= deepest:
        return f"fp32x is promised for K from {shallowest} to {deepest:,} here, not for {desc.K}"
    if max(desc.M, desc.N, 1) * max(desc.batch, 1) >= 1 << 31:
        return "fp32x counts rows with 31 bits"
    if like.split != BOTH:
        consumers, cols = BLOCKS[like.split][-1]
        if -(-desc.M // (64 * consumers)) * -(-desc.N // cols) * desc.batch >= 1 << (24 if in_parts else 30):
            return "fp32x counts tiles, of all parts and with as many blocks behind the last, with 31 bits"
    if like.split == IN_FLIGHT or not (desc.M and desc.N):
        return ""
    rows = (min(desc.M, 128), min(desc.N, 128)) if like.split == BOTH else (desc.N * matrices(desc.stride_b, desc.batch),)
    if sum(rows) * (desc.K + CHUNK) > LIMIT // 8 and (least := sum([terms_bytes(n, desc.K) for n in rows])) > LIMIT:
        return f"fp32x would need {least:,} bytes for terms, more than {LIMIT:,}"
    return ""


@dataclass(frozen=True)
class Panel:
    """A piece of a product that is split and multiplied at a time: rows from m, columns from n, products from z.

    Attributes
    ----------
    split_a, split_b : True if the operand's terms are not in the workspace yet
    """

    m: int
    rows: int
    n: int
    cols: int
    z: int
    batch: int
    split_a: bool
    split_b: bool


def panels(desc: GemmDesc, limit: int) -> list[Panel]:
    """Return pieces of a product whose terms need at most ``limit`` bytes: all, some products of the batch, or parts of one.

    Raises
    ------
    Unsupported
        not even 128 rows and 128 columns fit
    """

    def cost(rows: int, cols: int, batch: int) -> int:
        return terms_bytes(rows * matrices(desc.stride_a, batch), desc.K) + terms_bytes(
            cols * matrices(desc.stride_b, batch), desc.K
        )

    M, N = desc.M, desc.N
    at_once = desc.batch
    while at_once > 1 and cost(M, N, at_once) > limit:
        at_once = ceil(at_once, 2)
    if cost(M, N, at_once) <= limit:
        return [
            Panel(0, M, 0, N, z, min(at_once, desc.batch - z), not z or desc.stride_a > 0, not z or desc.stride_b > 0)
            for z in range(0, desc.batch, at_once)
        ]
    rows, cols = M, N
    while cost(rows, cols, 1) > limit:
        if max(rows, cols) <= 128:
            raise Unsupported(f"128 rows and columns of K = {desc.K:,} need {cost(128, 128, 1):,} bytes, more than {limit:,}")
        if rows >= cols:
            rows = max(128, ceil(ceil(rows, 2), 128) * 128)
        else:
            cols = max(128, ceil(ceil(cols, 2), 128) * 128)
    found = []
    for z in range(desc.batch):
        for n in range(0, N, cols):
            for m in range(0, M, rows):
                again = rows < M or n == 0  # a single panel of rows stays where it is
                found.append(Panel(m, min(rows, M - m), n, min(cols, N - n), z, 1, again, m == 0))
    return found


def workspace_bytes(desc: GemmDesc, limit: int = LIMIT, slices: int = 1) -> int:
    """Return the scratch memory of a product, on the device: terms, and results of slices."""
    if not (desc.M and desc.N):
        return 0
    return max(sum(parts_bytes(desc, p, slices)) for p in panels(desc, limit))


def parts_bytes(desc: GemmDesc, p: Panel, slices: int) -> tuple[int, int, int]:
    """Return the bytes of the workspace for A's terms, B's, and the results of slices."""
    a = terms_bytes(p.rows * matrices(desc.stride_a, p.batch), desc.K, slices)
    b = terms_bytes(p.cols * matrices(desc.stride_b, p.batch), desc.K, slices)
    results = slices * p.batch if slices > 1 else 0
    return a, b, whole(4 * results * p.rows * padded(p.cols))
