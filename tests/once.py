"""Files and results that a run of the tests makes once, for all of its workers."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "TOPRUNG_TESTS_ONCE"
"""Environment variable that names the folder; all workers of a run have the same."""


def folder() -> Path:
    """Return this run's folder."""
    return Path(os.environ[VARIABLE])


def file(path: Path, make: Callable[[Path], Any]) -> Path:
    """A file, made unless it is there: under another name at first, as others may look for it."""
    if not path.exists():
        make(new := path.with_name(f"{uuid.uuid4().hex}-{path.name}"))
        new.replace(path)
    return path


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its results kept for the whole run, by its arguments. Errors are raised again each time."""

    @functools.wraps(function)
    def kept(*given: Any, **named: Any) -> Any:
        name = hashlib.sha256(repr((function.__qualname__, given, named)).encode()).hexdigest()
        path = file(folder() / name, lambda path: path.write_bytes(pickle.dumps(function(*given, **named))))
        return pickle.loads(path.read_bytes())

    return kept
