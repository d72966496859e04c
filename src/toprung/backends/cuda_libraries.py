"""CUDA's libraries where two versions are installed: those of the version that PyTorch or CuPy have, else of cuda-bindings'."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import re
import sys
from pathlib import Path

CUPY = {"cupy-cuda12x": 12, "cupy-cuda13x": 13}
"""CUDA's major version by CuPy's package."""

OLDER = {"nvrtc": "cuda_nvrtc", "cublas": "cublas", "cudart": "cuda_runtime"}
"""Folder in the package ``nvidia`` where wheels of CUDA 12 put a library. Those of CUDA 13 share one, where cuda-pathfinder looks
first, whatever else is installed."""


@functools.cache
def major() -> int | None:
    """Return the major version of CUDA that a process here should have; None where nothing says.

    It is the one that PyTorch, else CuPy, was built for; else that of cuda-bindings. None of them is imported.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # a module of that name which no file is behind
        spec = None
    if spec is not None and spec.origin is not None:
        with contextlib.suppress(OSError):
            told = re.search(r"^cuda\b.*=\s*['\"](\d+)", Path(spec.origin).with_name("version.py").read_text("utf-8"), re.MULTILINE)
            if told:
                return int(told[1])
    from importlib import metadata  # takes longer than a small product

    for package, version in CUPY.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(package)
            return version
    with contextlib.suppress(metadata.PackageNotFoundError):
        return int(metadata.version("cuda-bindings").split(".")[0])
    return None


def prefer(library: str) -> None:
    """Load a library of CUDA 12 (``"nvrtc"`` or ``"cublas"``) if that is wanted and installed: later look-ups find it."""
    windows = sys.platform == "win32"
    for folder in _older(library, "bin" if windows else "lib"):
        for file in sorted(folder.glob(f"{library}64_12*.dll" if windows else f"lib{library}.so.12")):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
                return


def headers() -> Path | None:
    """Return the folder of CUDA 12's headers if that version is wanted and installed."""
    return next((folder for folder in _older("cudart", "include") if (folder / "cuda_runtime.h").exists()), None)


def _older(library: str, inside: str) -> list[Path]:
    wheels = importlib.util.find_spec("nvidia")
    if wheels is None or major() != 12:
        return []
    return [Path(place) / OLDER[library] / inside for place in wheels.submodule_search_locations or ()]
