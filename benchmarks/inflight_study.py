"""Count the elements of products split in flight that err more than fp32 would, by input and K, in NumPy.

    python benchmarks/inflight_study.py [results/model/inflight-study.json]

Needs no device: two fp16 terms of each k-block of 32, scaled by its largest element, and what is computed again in plain fp32,
as ``kernels/hopper_fp32x/split.cuh`` has them where K runs along memory and is a multiple of 32; sums are exact,
so that what shows is what
the terms lose. ``picked``: normal numbers times a matrix that picks one of each row, which fp32 gives exactly. ``relu``: of normal
numbers in A, what is negative is 0. Two minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import split_model as split
from fp32x_study import numpy_environment
from toprung.kernels.hopper_fp32x.config import K_BLOCK
from toprung.lab.harness import results
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import F32, F64

SIDE, SEED = 2048, 1
DEPTHS = (64, 72)
NAMES = ("normal", "relu", "phi2", "phi4", "T1", "T2", "picked")
NEIGHBOURS, SPREAD, THIN_SPREAD, LEAST, UNITS, SINGLE = 4, 17, 19, -102, 8, -39
"""Small elements, below 2^-SPREAD of the largest of their chunk, are noticed where so many neighbours are 0 or small, not all 0;
the largest counts as 2^LEAST at least. A single one loses 2^SINGLE of the largest. It is seen in thin columns: in which an element
is 0 or below 2^-THIN_SPREAD of the largest, or neighbours were noticed. A sum that what is lost may change by more than UNITS in
its last place is computed again; a sum of 0 only where neighbours were noticed.
As ``kernels/hopper_fp32x/split.cuh`` has it; ``tests/test_hopper_inflight_on_cpu.py`` holds this model to that source."""
ROW = 8
"""Elements of a chunk of A's row that a thread has: two fours, 16 of K apart."""


def operands(name: str, depth: int) -> tuple[F32, F32]:
    """Return A and B of SIDE rows and columns."""
    if name == "picked":
        chosen = np.arange(SIDE) % depth
        return operands("normal", depth)[0], np.asarray(np.arange(depth)[:, None] == chosen, np.float32)
    if name == "relu":
        a, b = operands("normal", depth)
        return np.maximum(a, np.float32(0)), b
    found = DISTRIBUTIONS[name].operands(Gemm(SIDE, SIDE, depth), SEED)
    return found["A"], found["B"]


def chunks_of(x: F32, column: bool = False) -> tuple[F64, NDArray[Any]]:
    """Return the chunks of each row, and the exponent of the largest of each. Behind K a row of A has zeros, a column of B its last
    chunk's first element."""
    rows, depth = x.shape
    whole = np.zeros((rows, -(-depth // K_BLOCK) * K_BLOCK))
    whole[:, :depth] = x
    chunks = whole.reshape(rows, -1, K_BLOCK)
    if column and depth % K_BLOCK:
        chunks[:, -1, depth % K_BLOCK :] = chunks[:, -1, :1]
    return chunks, np.maximum(np.frexp(np.abs(chunks).max(-1))[1] - 1, LEAST)


def terms(x: F32) -> tuple[F64, F64, NDArray[Any]]:
    """Return hi and lo of each row's chunks, and their exponents."""
    chunks, e = chunks_of(x)
    scaled = np.ldexp(chunks, (split.TOP - e)[..., None])
    hi = scaled.astype(np.float16).astype(np.float64)
    return hi, (scaled - hi).astype(np.float16).astype(np.float64), e - split.TOP


def lost(x: F32, each: int, column: bool) -> tuple[F64, F64, NDArray[np.bool_]]:
    """Return of each row the power of two above its largest element, what its small neighbours lose at most, and if it is thin.

    A thread has ``each`` elements of a chunk: of a ``column`` of B side by side, of a row of A fours that are half a chunk apart.
    """
    chunks, e = chunks_of(x, column)
    fours = np.abs(chunks).reshape(*e.shape, -1, NEIGHBOURS).max(-1)
    largest = np.maximum(np.abs(chunks).max(-1), 2.0**LEAST)[..., None]
    small = (fours < np.ldexp(largest, -SPREAD)) & (fours > 0)
    threads = small.reshape(*e.shape, K_BLOCK // each, -1).any(-1) if column else small.reshape(*e.shape, 2, -1).any(2)
    weight = np.ldexp(threads.sum(-1).astype(np.float64), e - split.TOP).sum(-1)
    thin = (np.abs(chunks) < np.ldexp(largest, -THIN_SPREAD)).any((1, 2)) | (weight > 0)
    return np.where(chunks.any((1, 2)), np.ldexp(1.0, e.max(-1) + 1), 0.0), weight * each * 2.0**-25, thin


def rounded(x: F64) -> F64:
    """Return the power of two above each number, or 0: as the kernel keeps what it knows of columns."""
    return np.where(x > 0, np.ldexp(1.0, np.frexp(x)[1]), 0.0)


def in_flight(a: F32, b: F32, each: int = K_BLOCK) -> tuple[F32, NDArray[np.bool_]]:
    """Return a @ b, and what of it is computed again, taken as exact here. ``each``: of a column's chunk that a thread has."""
    columns = np.ascontiguousarray(b.T)
    (ah, al, ea), (bh, bl, eb) = terms(a), terms(columns)
    total = np.zeros((len(a), len(columns)))
    for c in range(ah.shape[1]):
        part = ah[:, c] @ bh[:, c].T + ah[:, c] @ bl[:, c].T + al[:, c] @ bh[:, c].T
        total += np.ldexp(part, ea[:, c, None] + eb[None, :, c])
    (most_a, lost_a, _), (_, lost_b, thin) = lost(a, ROW, False), lost(columns, each, True)
    most_b = rounded(np.abs(columns).max(1).astype(np.float64))
    again = np.abs(total) < 2.0**24 / UNITS * (lost_a[:, None] * most_b + most_a[:, None] * rounded(lost_b))
    again |= (np.abs(total) < 2.0**24 / UNITS * 2.0**SINGLE * most_a[:, None] * most_b * thin) & (total != 0)
    return np.where(again, a.astype(np.float64) @ b.astype(np.float64), total).astype(np.float32), again


def grades(a: F32, b: F32, c: F32) -> F64:
    """Return |error| of each element in units of 2^-24 of |a| @ |b|."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(np.abs(c - x @ y) / np.maximum(2.0**-24 * (np.abs(x) @ np.abs(y)), 2.0**-150))


def study() -> list[dict[str, object]]:
    """Return every input at every K: the largest grade ratios, in flight and of a chain in fp32, and elements beyond them."""
    found: list[dict[str, object]] = []
    for depth in DEPTHS:
        for name in NAMES:
            a, b = operands(name, depth)
            with np.errstate(all="ignore"):
                c, again = in_flight(a, b)
                ours, plain = grades(a, b, c), float(grades(a, b, split.chain(a, b)).max())
            found.append(
                {
                    "K": depth, "distribution": name, "elements": ours.size, "grade": float(ours.max()), "plain_grade": plain,
                    "over_twice": int((ours > 2 * max(plain, 1.0)).sum()), "over_limit": int((ours > depth + 2).sum()),
                    "again": float(again.mean()),
                }
            )  # fmt: skip
            print(*found[-1].values(), flush=True)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("path", type=Path, nargs="?", default=Path("results/model/inflight-study.json"))
    path = arguments.parse_args().path
    what = "python benchmarks/inflight_study.py"
    results.write(path, results.record(what, numpy_environment(), [], kind="inflight-study", study=study()))


if __name__ == "__main__":
    main()
