"""Circumstances that a measurement depends on, and what identifies the code that is measured: recorded with it, never set."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toprung.backends.base import Session
from toprung.backends.waiting import finished
from toprung.device import Device
from toprung.kernels import build
from toprung.kernels.record import INCLUDE

PACKAGES = (
    "numpy", "scipy", "pyopencl", "pocl-binary-distribution", "intel-opencl-rt", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc",
    "nvidia-cublas", "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py",
)  # fmt: skip


PACKAGE = Path(__file__).parents[2]
SOURCES = (".cl", ".cu", ".cuh", ".wgsl")
"""Suffixes of kernel sources and of what they include."""

GIT_SECONDS = 60.0
"""Seconds that git may take: the clone may be on a network drive."""


@functools.cache
def source() -> dict[str, str]:
    """Return the identity of the code: ``commit``, and ``src``, git's hash of that folder.

    The commit has ``+`` behind it if files have changed since. ``TOPRUNG_COMMIT`` overrides it. It is "unknown" outside a clone, or
    if git takes longer than ``GIT_SECONDS``. ``src`` is the hash of the files as they are now, and survives a rebase. If they were
    committed so, the history has it (``git rev-parse COMMIT:src``).
    """
    commit = os.environ.get("TOPRUNG_COMMIT", "")
    with suppress(OSError, subprocess.CalledProcessError):
        commit = commit or _git("rev-parse", "--short=12", "HEAD") + (
            "+" if _git("status", "--porcelain", "--", str(PACKAGE)) else ""
        )
    src = _object("tree", b"40000 toprung\0" + _tree(PACKAGE))
    return {"commit": commit or "unknown", "src": src.hex()[:12]}


def revision(name: str) -> tuple[str, str]:
    """Return the digits of a commit, and ``src`` of it, by any name git has for it (HEAD~1, a tag); empty where git has none."""
    with suppress(FileNotFoundError, subprocess.CalledProcessError):
        return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"), _git("rev-parse", f"{name}:src")[:12]
    return "", ""


def _git(*words: str) -> str:
    done = finished(["git", "-C", str(PACKAGE), *words], f"see whether 'git status' in {PACKAGE} ends", GIT_SECONDS)
    done.check_returncode()
    return done.stdout.strip()


def _object(kind: str, content: bytes) -> bytes:
    """Return the digest that git names an object by."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).digest()


def _tree(folder: Path) -> bytes:
    """Return git's digest of a folder of plain files, without build products; empty if nothing is left."""
    found = []
    for path in folder.iterdir():
        digest = _tree(path) if path.is_dir() else _object("blob", path.read_bytes())
        if digest and path.name not in ("__pycache__", build.PACK.name):
            # git sorts a folder as if its name ended in a slash
            mode, order = ("40000", path.name + "/") if path.is_dir() else ("100644", path.name)
            found.append((order.encode(), f"{mode} {path.name}\0".encode() + digest))
    return _object("tree", b"".join(entry for _, entry in sorted(found))) if found else b""


def blob(content: bytes) -> str:
    """Return git's hash of a file with this content, 12 digits."""
    return _object("blob", content).hex()[:12]


def kernels(texts: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return git's blob hashes of kernel sources, includes too, by their paths within the package.

    ``texts`` has names by text, by default of all that this process has loaded (``build.LOADED``). A text that is made of no file
    of the package, such as a user's own rung, is hashed itself and has its name.
    """
    left = dict(build.LOADED if texts is None else texts)
    found, known = {}, set()
    for path in sorted(p for p in PACKAGE.rglob("*") if left and p.suffix in SOURCES):
        parts = [part for part in INCLUDE.split(path.read_text("utf-8"))[::2] if part.strip()]
        mine = {text for text in left if all(part in text for part in parts)} if parts else set()
        if mine:
            found[path.relative_to(PACKAGE).as_posix()] = blob(path.read_bytes())
            known |= mine
    return found | {name: blob(text.encode()) for text, name in left.items() if text not in known}


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
    """Return device, driver, versions, date and code, as JSON."""
    d = where if isinstance(where, Device) else where.device
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **source(),
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
