"""A good guest in any process: what a program that toprung is loaded into finds as it was."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trial
from toprung import errors

SOURCES = sorted((trial.ROOT / "src" / "toprung").rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    return ".".join(path.relative_to(trial.ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def error_classes(kind: type[errors.ToprungError] = errors.ToprungError) -> list[type[errors.ToprungError]]:
    """Every class of error below one, itself included."""
    return [kind, *(found for sub in kind.__subclasses__() for found in error_classes(sub))]


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_errors_keep_type_text_and_fields(copied: Callable[[Any], Any]) -> None:
    for path in SOURCES:
        if re.search(rf"^class \w+\(.*\b({'|'.join(k.__name__ for k in error_classes())})\b.*\):", path.read_text("utf-8"), re.M):
            importlib.import_module(module_of(path))
    several = ["one", "two"]
    values = {"str": "a text", "int": 3, "object": "a thing", "Any": 7, "Iterable[str]": several, "Sequence[str]": several}
    for kind in error_classes():
        own = [k for k in kind.__mro__ if "__init__" in vars(k) and issubclass(k, errors.ToprungError)]
        error = kind(*(values[str(p.annotation)] for p in inspect.signature(own[0]).parameters.values()) if own else ("a text",))
        error.add_note("a note")
        again = copied(error)
        assert (type(again), str(again), again.args, vars(again)) == (kind, str(error), error.args, vars(error)), kind
    full = copied(errors.NotWritten(28, "No space left on device", "/there"))
    assert (full.errno, full.filename) == (28, "/there")
