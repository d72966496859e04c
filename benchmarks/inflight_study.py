"""Count the elements of products split in flight that err more than fp32 would, by input and K, in NumPy.

    python benchmarks/inflight_study.py [results/model/inflight-study.json]

Needs no device: two fp16 terms of each 32 of K, scaled by the largest, what is made up for and what is sent to plain fp32, as
``kernels/hopper_inflight`` has them where K runs along memory and is a multiple of 32; sums are exact, so that what shows is what
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
from toprung.kernels.hopper_inflight.config import CHUNK
from toprung.lab.harness import results
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import F32, F64

SIDE, SEED = 2048, 1
DEPTHS = (64, 128, 256, 512)
NAMES = ("normal", "relu", "phi2", "phi4", "T1", "T2", "picked")
NEIGHBOURS, SPREAD, FEW = 4, 17, 2
"""Small elements that are made up for: below 2^-SPREAD of the largest of their chunk, FEW of it or more, where so many neighbours
are 0 or small, and not all 0, as ``kernels/hopper_inflight/inflight.cu`` has it; ``tests/test_hopper_inflight_on_cpu.py`` holds
this model to that source."""


def most(depth: int) -> int:
    """Return how many of them a row may have in so many of K; with more it is sent to plain fp32."""
    return 8 + depth // 128


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


def terms(x: F32) -> tuple[F64, F64, NDArray[Any], NDArray[Any]]:
    """Return hi and the rest of each row's chunks, their exponents, and which rows are sent to plain fp32."""
    rows, depth = x.shape
    whole = np.zeros((rows, -(-depth // CHUNK) * CHUNK))
    whole[:, :depth] = x
    chunks = whole.reshape(rows, -1, CHUNK)
    largest = np.abs(chunks).max(-1)
    e = np.where(largest > 0, np.frexp(largest)[1] - 1, 0)
    scaled = np.ldexp(chunks, (split.TOP - e)[..., None])
    hi = scaled.astype(np.float16).astype(np.float64)
    limit = np.ldexp(largest, -SPREAD)[..., None]
    small = (np.abs(chunks) < limit) & (chunks != 0)
    together = np.abs(chunks).reshape(rows, -1, CHUNK // NEIGHBOURS, NEIGHBOURS).max(-1)
    seen = ((together < limit) & (together > 0)).any(-1) & (small.sum(-1) >= FEW)
    made_up = small & seen[..., None]
    rest = np.where(made_up, scaled - hi, (scaled - hi).astype(np.float16).astype(np.float64))
    return hi, rest, e - split.TOP, made_up.sum((1, 2)) > most(depth)


def in_flight(a: F32, b: F32) -> tuple[F32, float]:
    """Return a @ b, and the share of it that is computed in plain fp32, taken as exact here."""
    (ah, al, ea, sent_a), (bh, bl, eb, sent_b) = terms(a), terms(np.ascontiguousarray(b.T))
    total = np.zeros((len(a), b.shape[1]))
    for c in range(ah.shape[1]):
        part = ah[:, c] @ bh[:, c].T + ah[:, c] @ bl[:, c].T + al[:, c] @ bh[:, c].T
        total += np.ldexp(part, ea[:, c, None] + eb[None, :, c])
    again = sent_a[:, None] | sent_b[None]
    return np.where(again, a.astype(np.float64) @ b.astype(np.float64), total).astype(np.float32), float(again.mean())


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
                    "again": again,
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
