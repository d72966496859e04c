"""A copy of the package whose block kernel does wrong in four ways, each with tiles of its own: real faults for the tuner."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import trial
from toprung.dispatch.selection import Candidate
from toprung.kernels.base import TileConfig

FAULTS = {
    "build": ("AHEAD && !ORDER && GROUP_M > 1", "#error planted"),
    "crashed": ("!AHEAD && !ORDER && GROUP_M == 1", "*(volatile __global float *)8 = 1.0f;"),
    "timeout": ("AHEAD && ORDER", "volatile int forever = 1; while (forever) {}"),
    "wrong": ("!AHEAD && ORDER", "#define alpha (1.01f * alpha)"),
}
"""By what becomes of it: which tiles are poisoned, and with what."""


def fate(candidate: Candidate) -> str:
    """Return what the poisoned kernel does with a candidate."""
    config = candidate.config
    assert isinstance(config, TileConfig)
    switches = dict(config.options)
    if switches["ORDER"]:
        return "timeout" if switches["AHEAD"] else "wrong"
    if switches["AHEAD"]:
        return "build" if switches["GROUP_M"] > 1 else "right"
    return "crashed" if switches["GROUP_M"] == 1 else "right"


def package(folder: Path) -> Path:
    """The copy; returns what belongs on the path."""
    copy = folder / "poisoned"
    shutil.copytree(trial.ROOT / "src" / "toprung", copy / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    source = copy / "toprung" / "kernels" / "tiled" / "tiled.cl"
    text = source.read_text()
    before = "    A += offset_a + which * stride_a"
    assert before in text, "the kernel's text has changed: plant the faults elsewhere"
    poison = "".join(f"#if {condition}\n{what}\n#endif\n" for condition, what in FAULTS.values())
    source.write_text(text.replace(before, poison + before))
    return copy


def environment(copy: Path, folder: Path) -> dict[str, str]:
    """For a process that uses the copy, with a store of its own."""
    kept = {k: v for k, v in os.environ.items() if k != "TOPRUNG_STORE"}
    return {**kept, "PYTHONPATH": f"{copy}{os.pathsep}{Path(__file__).parent}", "TOPRUNG_DATA": str(folder / "data")}
