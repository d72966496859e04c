"""Records of devices that are not there, for tests of what is made from records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toprung.lab.harness import results
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import rung
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import Problem

DEVICE = {
    "name": "Machine", "short_name": "Machine", "slug": "machine", "kind": "gpu", "arch": "sm_90", "backend": "cuda",
    "runtime": "CUDA 13.0", "driver": "580", "compute_units": 132, "clock_mhz": 1980.0, "peak_gflops": 60000.0,
}  # fmt: skip
VERDICT = {"right": True, "grade": 1.5, "frobenius": 1e-7, "max_relative": 1e-6, "median_relative": 1e-8, "problems": []}


def around(seconds: float, seed: int = 0, spread: float = 0.005, samples: int = 9) -> list[float]:
    """Samples of a call's time."""
    return [float(x) for x in np.random.default_rng(seed).normal(seconds, spread * seconds, samples)]


def peer(name: str, seconds: Sequence[float], problem: Problem | None = None, precision: str = "fp32", **more: Any) -> Measurement:
    """Somebody's routine."""
    who = {"kind": "peer", "name": name, "number": 0, "idea": name, "variant": "", "precision": precision, "deterministic": True}
    return _measurement({**who, **more}, seconds, problem)


def of_rung(
    rung_name: str, seconds: Sequence[float], problem: Problem | None = None, variant: str = "", **more: Any
) -> Measurement:
    """A rung with its tile for GPUs."""
    found = rung(rung_name)
    chosen = dict([variant.split("=")] if variant else [])
    options = {s.name: int(chosen.get(s.name, s.default)) for s in found.switches}
    who = {
        "kind": "rung", "name": rung_name, "ladder": found.ladder, "rung": found.stem, "number": found.number, "idea": found.idea,
        "variant": variant, "tile": found.tiles["gpu"][0].given(), "options": options,
        "precision": found.precision, "resources": {"registers": 32},
    }  # fmt: skip
    return _measurement({**who, **more}, seconds, problem)


def _measurement(who: dict[str, Any], seconds: Sequence[float], problem: Problem | None) -> Measurement:
    p = problem or Gemm(1024, 1024, 1024)
    count = len(seconds)
    return Measurement(who, p.describe(), p.flops, p.min_bytes, VERDICT, tuple(seconds), (0.0,) * count, 10, (1980.0,) * count)


def stored(
    path: Path,
    *measurements: Measurement,
    commit: str = "abc123",
    src: str = "def456",
    date: str = "2026-01-02T03:04:05",
    what: str = "toprung ladder",
    device: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A record in a file."""
    environment = {"date": date, "commit": commit, "src": src, "packages": {"numpy": "2"}, "device": {**DEVICE, **(device or {})}}
    results.write(path, results.record(what, environment, measurements, **more))
    return path


def climbed(path: Path, times: float = 1.0, **more: Any) -> Path:
    """A ladder of two rungs and a vendor at two sizes."""
    found = []
    for n in (1024, 2048):
        p, work = Gemm(n, n, n), (n / 1024) ** 3
        found += [
            peer("cublas", around(5e-5 * work, 1), p, idea="cuBLAS"), of_rung("kepler/r01", around(3e-4 * work, 2), p),
            of_rung("kepler/r07", around(1e-4 * work * times, 3), p), of_rung("kepler/r08", around(1e-4 * work, 4), p),
            of_rung("kepler/r08", around(1.1e-4 * work, 5), p, "INDEX32=1"),
        ]  # fmt: skip
    return stored(path, *found, **more)
