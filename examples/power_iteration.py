"""Eigenvalues of a large symmetric matrix: SciPy's solver and a block power iteration on BLAS calls that are toprung's or SciPy's.

    python examples/power_iteration.py                        # sgemv and sgemm of toprung, checked against SciPy's eigsh
    python examples/power_iteration.py --blas scipy           # the same program with SciPy's BLAS
    python examples/power_iteration.py --device pocl --own    # toprung's own kernels

``toprung.sgemv`` and ``toprung.sgemm`` take the parameters of ``scipy.linalg.blas``'s, so the import is all that differs. Products
of host arrays with a single vector are best left on the host: the matrix would travel for two operations an element. Without
``--device`` toprung leaves them there, and the receipt says so.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable

import numpy as np

try:
    import scipy.linalg.blas
    from scipy.sparse.linalg import LinearOperator, eigsh
except ImportError:
    sys.exit("this example needs SciPy: pip install scipy")

import toprung


def matrix(n: int, seed: int) -> np.ndarray:
    """A graph's affinity: Gaussians of the distances of n points in four clusters, n × n, float32, column-major, symmetric."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(4, 3))[rng.integers(0, 4, n)] + 0.3 * rng.normal(size=(n, 3))
    squares = (points**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)
    return np.asfortranarray(np.exp(-distances), dtype=np.float32)


def operator(a: np.ndarray, sgemv: Callable, sgemm: Callable) -> LinearOperator:
    """The matrix as SciPy's iterative solvers want it: by what it does to a vector and to a block of vectors."""
    return LinearOperator(
        a.shape, dtype=a.dtype, matvec=lambda x: sgemv(1.0, a, np.ravel(x)), matmat=lambda x: sgemm(1.0, a, np.asfortranarray(x))
    )


def power_iteration(a: np.ndarray, sgemm: Callable, k: int, tolerance: float, most: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The k largest eigenvalues by magnitude, eigenvectors as columns, and the turns it took.

    Each turn multiplies a block of 2k vectors (n × 2k) with the matrix and orthogonalises it; the eigenvalues are those of the
    2k × 2k matrix that is left (Rayleigh and Ritz). Ends when A·v − λ·v is below ``tolerance``·λ for the k wanted.
    """
    block = np.linalg.qr(np.random.default_rng(1).normal(size=(len(a), min(2 * k, len(a)))).astype(np.float32))[0]
    turns = 0
    while turns < most:
        turns += 1
        image = sgemm(1.0, a, np.asfortranarray(block))
        values, turned = np.linalg.eigh(np.asarray(sgemm(1.0, block, image, trans_a=1), dtype=np.float64))
        order = np.argsort(-abs(values))[:k]
        vectors, images = block @ turned[:, order], image @ turned[:, order]
        if (np.linalg.norm(images - vectors * values[order], axis=0) <= tolerance * abs(values[order])).all():
            break
        block = np.linalg.qr(image)[0]
    return values[order], vectors.astype(np.float32), turns


def main() -> int:
    """Solve three times and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2000, help="rows of the matrix (default %(default)s)")
    parser.add_argument("--count", type=int, default=4, help="eigenvalues wanted (default %(default)s)")
    parser.add_argument("--blas", choices=("toprung", "scipy"), default="toprung")
    parser.add_argument("--device", help="toprung's device, as toprung devices lists it")
    parser.add_argument("--own", action="store_true", help="only kernels of toprung's own")
    words = parser.parse_args()
    if not 0 < words.count < words.size // 2:
        parser.error("--count must be above 0 and below half of --size")
    sgemm, sgemv = scipy.linalg.blas.sgemm, scipy.linalg.blas.sgemv
    if words.blas == "toprung":
        sgemm, sgemv = (functools.partial(f, device=words.device, own=words.own) for f in (toprung.sgemm, toprung.sgemv))

    a = matrix(words.size, seed=0)
    start = time.perf_counter()
    values, _, turns = power_iteration(a, sgemm, words.count, tolerance=1e-4, most=500)
    print(f"block power iteration, sgemm of {words.blas}: {turns} turns, {1e3 * (time.perf_counter() - start):.1f} ms")
    receipts = [toprung.last_receipt()]
    start = time.perf_counter()
    ritz = eigsh(operator(a, sgemv, sgemm), words.count, return_eigenvectors=False)[::-1]
    print(f"scipy's eigsh, sgemv of {words.blas}: {1e3 * (time.perf_counter() - start):.1f} ms")
    receipts.append(toprung.last_receipt())
    exact = eigsh(a.astype(np.float64), words.count, return_eigenvectors=False)[::-1]

    print(f"{'float64':>14} {'power':>14} {'eigsh':>14}")
    for row in zip(exact, values, ritz, strict=True):
        print(" ".join(f"{value:14.6f}" for value in row))
    for receipt in filter(None, receipts):
        print(receipt)
    worst = max(abs(found - exact).max() / abs(exact).max() for found in (values, ritz))
    right = worst <= 1e-5  # the square of 1e-4, and what sums in fp32 lose
    print(f"largest error {worst:.1e} of the largest eigenvalue: {'as float64 has it' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
