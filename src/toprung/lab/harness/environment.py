"""Circumstances that a measurement depends on besides the code that is measured: recorded with it, never set."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from toprung.backends.base import Session
from toprung.device import Device

PACKAGES = (
    "numpy", "scipy", "pyopencl", "pocl-binary-distribution", "intel-opencl-rt", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc",
    "nvidia-cublas", "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py",
)  # fmt: skip


@functools.cache
def commit() -> str | None:
    """The commit this copy of toprung was taken from, ``+`` behind it if files have changed since; None if unknown.

    ``TOPRUNG_COMMIT`` says it where the sources lie outside a repository.
    """
    if given := os.environ.get("TOPRUNG_COMMIT"):
        return given
    folder = Path(__file__).parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", str(folder)) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def packages() -> dict[str, str]:
    """Versions of what takes part."""
    found = {}
    for name in ("toprung", *PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment(where: Session | Device) -> dict[str, Any]:
    """Device, driver, versions, date and commit, as JSON."""
    d = where if isinstance(where, Device) else where.device
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "packages": packages(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "device": {
            "name": d.name, "short_name": d.short_name, "slug": d.slug, "kind": d.kind, "arch": d.arch, "backend": d.backend,
            "runtime": d.runtime, "driver": d.driver, "compute_units": d.compute_units, "clock_mhz": d.clock_mhz,
            "peak_gflops": d.peak_gflops,
        },
    }  # fmt: skip
