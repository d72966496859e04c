"""Sizes: which calls are computed, slices of K, bytes of terms and of the workspace, and panels of calls that would need more."""

from __future__ import annotations

from dataclasses import dataclass

from toprung.device import Device
from toprung.errors import Unsupported
from toprung.hopper.call import Call

CHUNK = 32
"""Of K, in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes."""
ROW_BYTES = 8
"""What the splitting pass leaves beside the terms of each row."""
SHALLOWEST = 64
"""The promise begins at this K."""
DEEPEST = 1 << 24
"""Largest K: counts of elements and the copy engine's coordinates have room to spare."""
LIMIT = 4 << 30
"""Bytes of terms beyond which a call is cut into panels of M and N, or of the batch."""


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def width(K: int) -> int:
    """fp16 elements of a split row."""
    return 2 * CHUNK * ceil(K, CHUNK)


def depth_of(K: int, slices: int) -> int:
    """Of K in a slice; the last one may be shorter."""
    return K if slices == 1 else CHUNK * ceil(ceil(K, CHUNK), slices)


def trimmed(K: int, slices: int) -> int:
    """As many slices of whole chunks as are not empty, at most ``slices``."""
    slices = max(1, min(slices, ceil(K, CHUNK)))
    return ceil(K, depth_of(K, slices)) if K else 1


def terms_bytes(rows: int, K: int, slices: int = 1) -> int:
    """Of the terms of so many rows and of what stands beside them, each beginning on 256 bytes."""
    rows *= slices
    return _whole(2 * width(depth_of(K, slices)) * rows) + _whole(ROW_BYTES * rows)


def _whole(nbytes: int) -> int:
    return ceil(nbytes, 256) * 256


def _matrices(stride: int, batch: int) -> int:
    """How many there are to be split: one where all products share it."""
    return batch if stride else 1


def _rows(call: Call) -> int:
    """Of A and columns of B, of all matrices that differ."""
    return call.M * _matrices(call.stride_a, call.batch) + call.N * _matrices(call.stride_b, call.batch)


def _ldp(cols: int) -> int:
    """Elements from a row of a slice's result to the next."""
    return ceil(cols, 4) * 4


def supported(device: Device, call: Call) -> str:
    """Why a call cannot be computed this way, as a sentence; empty where it can."""
    if device.backend != "cuda" or device.arch != "sm_90":
        return f"fp32x needs Hopper's matrix units; {device} has none"
    if call.M and call.N and not SHALLOWEST <= call.K <= DEEPEST:
        return f"fp32x is promised for K from {SHALLOWEST} to {DEEPEST:,}, not for {call.K}"
    if max(call.M, call.N, 1) * max(call.batch, 1) >= 1 << 31:
        return "fp32x counts rows with 31 bits"
    if (least := terms_bytes(min(call.M, 128), call.K) + terms_bytes(min(call.N, 128), call.K)) > LIMIT and call.M and call.N:
        return f"fp32x would need {least:,} bytes for the terms of 128 rows and columns, more than {LIMIT:,}"
    return ""


@dataclass(frozen=True)
class Panel:
    """A piece of a call that is split and multiplied at a time: rows from m, columns from n, products from z.

    Attributes
    ----------
    split_a, split_b : whether the operand's terms are not in the workspace yet
    """

    m: int
    rows: int
    n: int
    cols: int
    z: int
    batch: int
    split_a: bool
    split_b: bool


def panels(call: Call, limit: int) -> list[Panel]:
    """The pieces of a call whose terms need no more than ``limit`` bytes: all, some products of the batch, or parts of one.

    Raises
    ------
    Unsupported
        not even 128 rows and 128 columns fit
    """

    def cost(rows: int, cols: int, batch: int) -> int:
        return terms_bytes(rows * _matrices(call.stride_a, batch), call.K) + terms_bytes(
            cols * _matrices(call.stride_b, batch), call.K
        )

    M, N = call.M, call.N
    if cost(M, N, call.batch) <= limit:
        return [Panel(0, M, 0, N, 0, call.batch, True, True)]
    at_once = next((n for n in _halves(call.batch) if cost(M, N, n) <= limit), 0)
    if at_once:
        return [
            Panel(0, M, 0, N, z, min(at_once, call.batch - z), not z or call.stride_a > 0, not z or call.stride_b > 0)
            for z in range(0, call.batch, at_once)
        ]
    rows, cols = M, N
    while cost(rows, cols, 1) > limit:
        if max(rows, cols) <= 128:
            raise Unsupported(f"128 rows and columns of K = {call.K:,} need {cost(128, 128, 1):,} bytes, more than {limit:,}")
        if rows >= cols:
            rows = max(128, ceil(ceil(rows, 2), 128) * 128)
        else:
            cols = max(128, ceil(ceil(cols, 2), 128) * 128)
    found = []
    for z in range(call.batch):
        for n in range(0, N, cols):
            for m in range(0, M, rows):
                again = rows < M or n == 0  # a single panel of rows stays where it is
                found.append(Panel(m, min(rows, M - m), n, min(cols, N - n), z, 1, again, m == 0))
    return found


def _halves(batch: int) -> list[int]:
    found = []
    while batch > 1:
        batch = ceil(batch, 2)
        found.append(batch)
    return found


def workspace_bytes(call: Call, limit: int = LIMIT, slices: int = 1) -> int:
    """Scratch memory of a call, on the device: terms, and results of slices with a flag for each 64 × 32 of them."""
    if not (call.M and call.N):
        return 0
    return max(sum(_parts(call, p, slices)) for p in panels(call, limit))


def _parts(call: Call, p: Panel, slices: int) -> tuple[int, int, int, int]:
    """Bytes of the workspace for A's terms, B's, the results of slices, and their flags."""
    a = terms_bytes(p.rows * _matrices(call.stride_a, p.batch), call.K, slices)
    b = terms_bytes(p.cols * _matrices(call.stride_b, p.batch), call.K, slices)
    results = slices * p.batch if slices > 1 else 0
    return a, b, _whole(4 * results * p.rows * _ldp(p.cols)), _whole(4 * results * ceil(p.rows, 64) * ceil(p.cols, 32))
