"""Folders of the user's that toprung writes to, and how a file gets there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Where what can be made again lies (``TOPRUNG_CACHE`` moves it)."""
    return Path(os.environ.get("TOPRUNG_CACHE") or platformdirs.user_cache_dir("toprung", appauthor=False))


def data_dir() -> Path:
    """Where what was measured on this machine lies (``TOPRUNG_DATA`` moves it)."""
    return Path(os.environ.get("TOPRUNG_DATA") or platformdirs.user_data_dir("toprung", appauthor=False))


def publish(path: Path, content: bytes) -> None:
    """Write a file so that any reader sees all of it or none: written beside, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
