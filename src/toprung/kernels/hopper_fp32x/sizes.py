"""Sizes of fp32x: products that are computed, slices of K, and bytes of terms."""

from __future__ import annotations

from toprung.backends.plan import whole
from toprung.device import Device
from toprung.gemm.desc import Desc
from toprung.kernels.hopper import DEEPEST, ceil, is_hopper
from toprung.kernels.hopper_fp32x.config import BLOCKS, BOTH, IN_FLIGHT, K_BLOCK, ONE, Fp32xConfig, on_words
from toprung.kernels.split_k import slice_depth, whole_slices

ROW_BYTES = 8
"""Bytes that the splitting pass leaves beside the terms of each row."""
SHARE = 4
"""Operands are split in flight if their terms would take more than 1/SHARE of the device's memory, where that is known."""
SHALLOWEST, SHORTEST = 64, 256
"""The promise begins at this K; least K of a part: below, a tile's beginning and end are most of its time."""
DEEPEST_IN_FLIGHT = 1 << 20
"""Largest K of kernels that split in flight: they count a tile's k-blocks with 31 bits."""


def width(K: int) -> int:
    """Return the fp16 elements of a split row."""
    return 2 * K_BLOCK * ceil(K, K_BLOCK)


def depth_of(K: int, slices: int) -> int:
    """Return the length of a slice of K; the last one may be shorter."""
    return K if slices == 1 else slice_depth(K, K_BLOCK, slices)


def trimmed(K: int, slices: int) -> int:
    """Return as many slices of whole k-blocks as are not empty, at most ``slices``."""
    return whole_slices(K, K_BLOCK, max(1, slices)) if K else 1


def terms_bytes(rows: int, K: int, slices: int = 1) -> int:
    """Return the bytes of the terms of some rows and of what stands beside them, each beginning on 256 bytes."""
    rows *= slices
    return whole(2 * width(depth_of(K, slices)) * rows) + whole(ROW_BYTES * rows)


def matrices(stride: int, batch: int) -> int:
    """Return how many matrices there are to be split: one where all products share it."""
    return batch if stride else 1


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
    if desc.is_mixed and (not on_words(desc) or (like.split == ONE and desc.type_b != "float32")):
        return "rows of halves begin on words of 4 bytes, and what is split beforehand is float32"
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
    rows = desc.rows_read if like.split == BOTH else desc.N * (desc.batch if desc.stride_b else 1)
    limit = device.memory_bytes // SHARE
    return f"fp32x would need more than {limit:,} bytes for terms" if 0 < limit < 4 * rows * (desc.K + K_BLOCK) else ""
