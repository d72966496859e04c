"""The device that tensors of these tests lie on, and how toprung is enabled there."""

from __future__ import annotations

import os
from typing import Any

import torch

import toprung.torch

_entries = filter(None, os.getenv("PYTHONPATH", "").split(os.pathsep))
ELSEWHERE = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, _entries))}
"""Environment of a program that runs in another folder, where relative entries of PYTHONPATH name nothing."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

EVERY: dict[str, Any] = {"own": True, "min_flops": 0, "device_types": (DEVICE,), "reproducible": True}
"""Settings with which every product runs on toprung's kernels, also the first of its kind, which waits for them."""


def left() -> str:
    """Return the rows of the report of products that PyTorch ran, as text."""
    return "\n".join(f"{r.op} {r.problem}: {r.why}" for r in toprung.torch.report().rows if r.left)
