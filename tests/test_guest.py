"""A good guest in any process: what a program that toprung is loaded into finds as it was."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import re
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trial
from toprung import backends, errors
from toprung.arrays import sessions
from toprung.device import Device

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


# a disturbance is no absence


class Timeout(Exception):
    """What a program's own alarm raises."""


def alarmed() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(5)


def warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("made an error", RuntimeWarning, stacklevel=1)


def too_deep() -> None:
    too_deep()


def too_large() -> None:
    bytearray(1 << 62)


DISTURBED = {Timeout: alarmed, RuntimeWarning: warned, RecursionError: too_deep, MemoryError: too_large}


class Disturbed:
    """A backend whose first look for devices is disturbed."""

    name = "disturbed"

    def __init__(self, disturb: Callable[[], None], device: Device) -> None:
        self.disturb, self.device, self.looks = disturb, device, 0

    def devices(self) -> list[Device]:
        self.looks += 1
        if self.looks == 1:
            self.disturb()
        return [self.device]

    def advice(self) -> list[str]:
        return []


@pytest.mark.parametrize("expected", DISTURBED, ids=lambda kind: kind.__name__)
def test_a_disturbed_look_for_devices_raises_the_disturbance_and_is_not_kept(
    expected: type[Exception], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ring(*_: object) -> None:
        raise Timeout

    before = signal.signal(signal.SIGALRM, ring)
    sessions.best.cache_clear()
    there: Any = (Disturbed(DISTURBED[expected], device),)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(backends, "backends", lambda: there)
            with pytest.raises(expected):
                sessions.best()
            assert sessions.best() is device
    finally:
        signal.signal(signal.SIGALRM, before)
        sessions.best.cache_clear()


TAKES_ANY = {"Exception", "BaseException"}
TAKES_RUNTIMES = TAKES_ANY | {"RuntimeError", "OSError"}
ELSEWHERE = ("torch/products.py", "backends/waiting.py")
"""Files whose handler is in a thread of toprung's own: one has no caller, and the other raises it in the caller's."""
LIBRARY = ["arrays", "backends", "blas", "cupy", "dispatch", "execute", "gemm", "kernels", "torch", "__init__.py"]


def swallowing(path: Path) -> list[str]:
    """Return the handlers of a file that keep a disturbance from the caller: of any error, or of a runtime's in what is cached."""
    found, text = [], path.read_text("utf-8")
    for function in (n for n in ast.walk(ast.parse(text if "except" in text else "")) if isinstance(n, ast.FunctionDef)):
        kept = any("cache" in ast.unparse(d) for d in function.decorator_list)
        for handler in (n for n in ast.walk(function) if isinstance(n, ast.ExceptHandler)):
            named = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else TAKES_ANY
            on = [ast.unparse(statement) for statement in handler.body]
            if named & (TAKES_RUNTIMES if kept else TAKES_ANY) and "raise" not in on and f"let_through({handler.name})" not in on:
                found.append(f"{path}:{handler.lineno}: {on[0]}")
    return found


def test_nothing_in_the_library_swallows_a_disturbance() -> None:
    root = SOURCES[0].parent
    some = [p for p in SOURCES if p.relative_to(root).parts[0] in LIBRARY and str(p.relative_to(root)) not in ELSEWHERE]
    assert [line for path in some for line in swallowing(path)] == []
