"""C = A·B with matrices in files, larger than the memory that the device, or the process, may take.

    python examples/out_of_memory.py                                            # 3 × 64 MiB through 24 MiB
    python examples/out_of_memory.py --size 65536 --memory-limit 8G --folder /data    # 3 × 16 GiB through 8 GiB

The operands are ``numpy.memmap``s: files that look like arrays. ``toprung.matmul`` takes them as they are, cuts the product into
panels that fit into the limit, and sends the next ones while the device computes. What is resident of the files is the system's to
drop at any time; what the process needs beyond is measured while the product runs and printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import toprung
from toprung.errors import ToprungError

UNIT_ROUNDOFF = 2.0**-24
STATM = Path("/proc/self/statm")
SAMPLED = 32
"""Rows and columns of which every crossing is computed again in float64."""


def number_of_bytes(text: str) -> int:
    """``25165824``, ``24M``, ``8G``."""
    scale = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    digits = text[:-1] if scale else text
    if not digits.isdecimal() or not int(digits):
        raise argparse.ArgumentTypeError(f"a number of bytes such as 24M or 8G, not {text!r}")
    return int(digits) << (scale or 0)


def readable(nbytes: int) -> str:
    """Bytes as a person reads them."""
    return f"{nbytes / 2**20:,.0f} MiB"


def filled(path: Path, shape: tuple[int, int], seed: int) -> np.memmap:
    """A file of U(-1, 1), float32, written a few rows at a time."""
    rng = np.random.default_rng(seed)
    array = np.memmap(path, np.float32, "w+", shape=shape)
    rows = max(1, (4 << 20) // shape[1])
    for i in range(0, shape[0], rows):
        part = array[i : i + rows]
        part[...] = 2 * rng.random(part.shape, dtype=np.float32) - 1
    array.flush()
    return array


class PeakMemory:
    """The largest amount of memory that this process had of its own (not that of mapped files), looked at every millisecond."""

    def __enter__(self) -> PeakMemory:
        self.before = self.peak = self.now()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(1e-3):
            self.peak = max(self.peak, self.now())

    @staticmethod
    def now() -> int:
        """Resident bytes without those of files; 0 where the system is not Linux."""
        if not STATM.exists():
            return 0
        _, resident, shared, *_ = map(int, STATM.read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def __str__(self) -> str:
        if not self.peak:
            return "cannot be measured on this system"
        more = readable(self.peak - self.before)
        return f"{more} more than before the product (page-locked buffers; a CPU's panels; a compiler, where nothing was cached)"


def grade(a: np.ndarray, b: np.ndarray, c: np.ndarray, seed: int = 0) -> float:
    """Largest error of sampled elements of C, in roundings of their own terms; first and last rows and columns among them."""
    rng = np.random.default_rng(seed)
    rows, cols = (np.unique(np.r_[0, n - 1, rng.integers(0, n, SAMPLED)]) for n in c.shape)
    left, right = a[rows].astype(np.float64), b[:, cols].astype(np.float64)
    errors = abs(c[np.ix_(rows, cols)] - left @ right) / (UNIT_ROUNDOFF * (abs(left) @ abs(right)))
    return float("inf") if np.isnan(errors).any() else float(errors.max())


def main() -> int:
    """Fill two files, multiply them into a third, check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns (default %(default)s)")
    parser.add_argument("--memory-limit", type=number_of_bytes, default="24M", help="bytes of device memory: 24M, 8G (default 24M)")
    parser.add_argument("--folder", type=Path, help="where the three files go; by default a temporary one, removed at the end")
    parser.add_argument("--device", help="as toprung devices lists it; by default the best")
    words = parser.parse_args()
    if words.size < 1:
        parser.error("--size must be at least 1")
    devices = toprung.devices()
    device = words.device or (devices[0] if devices else None)  # named, so that host arrays go there and not to NumPy's BLAS
    os.environ["TOPRUNG_DEVICE_MEMORY"] = str(words.memory_limit)

    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        n = words.size
        a, b = (filled(Path(folder) / name, (n, n), seed) for seed, name in enumerate("AB"))
        c = np.memmap(Path(folder) / "C", np.float32, "w+", shape=(n, n))
        total = readable(a.nbytes + b.nbytes + c.nbytes)
        print(f"A, B and C: {total} in {folder}; {readable(words.memory_limit)} of device memory")
        try:
            toprung.matmul(a[:1, :1], b[:1, :1], device=device)  # opens the device: what that takes is not the product's
            start = time.perf_counter()
            with PeakMemory() as memory:
                toprung.matmul(a, b, out=c, device=device)
            seconds = time.perf_counter() - start
        except ToprungError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2
        print(toprung.last_receipt())
        print(f"{seconds:.2f} s, {2e-9 * n**3 / seconds:.1f} GFLOP/s, transfers and files included")
        print(f"Peak memory: {memory}")
        worst = grade(a, b, c)
        right = worst <= 16  # as fp32 on random signs, whatever the size: docs/accuracy.md
        verdict = "right" if right else "WRONG"
        print(f"largest error of {SAMPLED}² sampled elements: {worst:.2f} roundings of their terms: {verdict}")
        return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
