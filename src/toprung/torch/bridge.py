"""The bridge: overrides in C++, by which products of a kind that was decided in Python before never enter it again.

``bridge.cpp`` says how. A wheel for Linux has a binary for each minor version of PyTorch. Elsewhere it is compiled on request only,
by ``python -m toprung.torch --build``, against the headers of the PyTorch that is installed. ``enable()`` uses a binary if there is
one. Without it the kernels of ``overloads.py`` do all, in Python, and ``missing()`` says so.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from toprung.backends import cxx, native_plan
from toprung.backends.cuda import CUDASession
from toprung.backends.forms import Fitted
from toprung.blas.product import OnDevice
from toprung.errors import LaunchError
from toprung.torch.settings import ALL, Settings

SOURCE = Path(__file__).with_suffix(".cpp")
SOURCES = SOURCE, native_plan.SOURCE

RELEASE = re.compile(r"(\d+\.\d+)\.\d+\+(?:cpu|cu\d+)")
"""Version of a release of PyTorch, and its minor version: those that wheels have a bridge for; a nightly's C++ API may differ."""

UNKNOWN, LEFT, REFUSABLE, TAKEN = range(4)
ALWAYS = (1 << 63) - 1
"""Verdicts: Python must decide; the product is PyTorch's; it is where the program asks for another precision, or for its
deterministic mode; there is a ``Taking`` that starts it elsewhere."""

refused: set[str] = set()
"""Overloads whose signature in this PyTorch is not the bridge's: their products pass Python's override."""

_numbers = itertools.count(1)


class State(ctypes.Structure):
    """Settings of a set of products, and its counters, laid out as ``State`` in ``bridge.cpp``; it must live for ever."""

    number: int

    _fields_ = [
        ("number", ctypes.c_int64), ("least", ctypes.c_double), ("ops", ctypes.c_int64), ("reproducible", ctypes.c_int64),
        ("always", ctypes.c_int64), ("eager", ctypes.c_int64),
        ("small", ctypes.c_int64), ("precision", ctypes.c_int64), ("deterministic", ctypes.c_int64), ("once", ctypes.c_int64),
    ]  # fmt: skip

    @classmethod
    def of(cls, settings: Settings) -> State:
        """Return the state of settings, with nothing counted."""
        ops = sum(1 << ALL.index(op) for op in settings.ops)
        return cls(next(_numbers), settings.min_flops / 2, ops, bool(settings.reproducible), settings.modules, settings.eager)

    def drained(self, counter: str) -> int:
        """Return one of the counters and set it to 0."""
        return drained(ctypes.c_int64.from_buffer(self, getattr(State, counter).offset))

    def forget(self) -> None:
        """Make all verdicts unknown again; the counters that they were settled with may be freed then."""
        bridge = library()
        assert bridge is not None
        number, self.number = self.number, next(_numbers)  # first: from now on no product finds or settles an old verdict
        bridge.toprung_forget(ctypes.c_int64(number), ctypes.c_int64(self.number))


class Key(ctypes.Structure):
    """Key (as in ``bridge.cpp``) of products that differ in one size; its first word is ``State.number``."""

    _fields_ = [("words", ctypes.c_int64 * 26), ("count", ctypes.c_int), ("hash", ctypes.c_uint64)]


class Taking(ctypes.Structure):
    """A plan with all that the bridge needs to start products by it, and its counters; see ``Taking`` in ``bridge.cpp``."""

    taken: int
    native: native_plan.NativePlan

    _fields_ = [
        ("plan", ctypes.c_void_p), ("taken", ctypes.c_int64), ("users", ctypes.c_int64), ("lent", ctypes.c_int64),
        ("fused", ctypes.c_int64), ("reach", ctypes.c_int64 * 6), ("name", ctypes.c_char * 32),
        ("range", ctypes.c_void_p), ("size", ctypes.c_int64),
    ]  # fmt: skip

    @classmethod
    def of(cls, call: OnDevice, op: str, fused: bool) -> Taking | None:
        """Return what starts a call's products without Python; None where only Python can."""
        bridge, plan, session = library(), call.executable.plan, call.executable.session
        if bridge is None or plan is None or not isinstance(session, CUDASession):
            return None
        made = cls(lent=plan.lent_bytes, fused=fused, reach=call.reach, name=f"toprung::{op}".encode())
        try:
            made.native = native_plan.NativePlan(bridge, session, plan)
        except LaunchError:
            return None
        made.plan = made.native.handle
        return made

    def drained(self) -> int:
        """Return the number of products since the last time."""
        return drained(ctypes.c_int64.from_buffer(self, Taking.taken.offset))  # type: ignore[attr-defined]


class Range(ctypes.Structure):
    """Sizes with one plan but for some words; see ``Range`` in ``bridge.cpp``."""

    _fields_ = [
        ("first", ctypes.c_int64), ("last", ctypes.c_int64), ("verdict", ctypes.c_int64), ("words", ctypes.c_void_p),
        ("count", ctypes.c_int64), ("forms", ctypes.c_void_p), ("form_count", ctypes.c_int64), ("fused", ctypes.c_int64),
        ("name", ctypes.c_char * 32), ("users", ctypes.c_int64),
    ]  # fmt: skip

    @classmethod
    def of(cls, made: Fitted, verdict: int, fused: bool, op: str) -> Range:
        """Return the range of a plan, whose first words are ``Taking``'s ``lent`` and ``reach``."""
        forms = np.column_stack(made.forms)
        found = cls(
            made.first, made.last, verdict, made.words.ctypes.data, len(made.words), forms.ctypes.data, len(forms), fused,
            f"toprung::{op}".encode(),
        )  # fmt: skip
        found.kept = made.words, forms
        return found


def is_idle(one: Taking | Range) -> bool:
    """Return True if no thread starts a product by it; after ``State.forget`` none ever will."""
    bridge = library()
    return bridge is None or bool(bridge.toprung_idle(ctypes.byref(one, type(one).users.offset)))


def counted() -> Iterator[tuple[int, int, int]]:
    """Yield the address of each range, a size, and the number of its products since the last time."""
    bridge, room = library(), 256
    assert bridge is not None
    found = [(ctypes.c_int64 * room)() for _ in range(3)]
    while count := bridge.toprung_counted(*found, ctypes.c_int64(room)):
        yield from zip(*(some[:count] for some in found), strict=True)


def drained(counter: ctypes.c_int64) -> int:
    """Return a counter that the bridge adds to and set it to 0."""
    bridge = library()
    assert bridge is not None
    return int(bridge.toprung_drained(ctypes.byref(counter)))


def shipped() -> Path | None:
    """Return the wheel's bridge for the minor version of this PyTorch; None where the wheel has none."""
    release = RELEASE.fullmatch(torch.__version__)
    path = cxx.FOLDER / f"torch-{release[1]}.so" if release else None
    return path if path and path.is_file() else None


def kept() -> Path:
    """Return the file of the bridge for this PyTorch in the cache, whether it has been built or not."""
    read = *SOURCES, native_plan.SOURCE.with_suffix(".h")
    return cxx.kept(f"bridge/torch-{torch.__version__}", read, torch.__version__, torch.version.git_version)


def binary() -> Path:
    """Return the file of the bridge for this PyTorch: the wheel's, else that in the cache."""
    return shipped() or kept()


def build(path: Path | None = None) -> Path:
    """Compile the bridge, which takes ten to thirty seconds, and return its file; nothing is compiled where the wheel has one.

    Raises as ``cxx.compile_library`` does.
    """
    if path is None:
        if (path := shipped()) and loaded(path):
            return path
        path = kept()
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={torch.compiled_with_cxx11_abi():d}"
    cxx.compile_library(path, SOURCES, abi, *cxx.pytorch(Path(torch.__file__).parent))
    return path


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the bridge; None where the wheel has none for this PyTorch and none has been built."""
    paths = shipped(), kept() if SOURCE.is_file() else None  # an installation of byte code alone has no source
    return next((bridge for path in paths if path and path.is_file() and (bridge := loaded(path))), None)


def missing() -> str:
    """Return why products pass Python's override alone, with the command that helps; empty if all pass the bridge."""
    if library() is not None:
        return f"those of {', '.join(sorted(refused))}, whose signature is not that of the C++ binary" if refused else ""
    if not SOURCE.is_file():
        return f"this installation has no {SOURCE.name}"
    why = "the C++ binary did not load" if binary().is_file() else "no C++ binary built"
    return f"{why}: python -m toprung.torch --build"


def loaded(path: Path) -> ctypes.CDLL | None:
    """Return the bridge in a file; None, with a warning, if it does not load."""
    try:
        bridge = ctypes.CDLL(str(path))
    except OSError as error:
        text = f"products that PyTorch runs enter Python, for {error}: python -m toprung.torch --build makes the file anew"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    native_plan.declare(bridge)
    bridge.toprung_override.restype = bridge.toprung_idle.restype = ctypes.c_bool
    bridge.toprung_counted.restype = ctypes.c_int64
    # called inside products, or thousands of times: a thread that gave the GIL away might wait milliseconds for it
    quick = ctypes.PyDLL(str(path))
    for name in ("toprung_settle", "toprung_drained", "toprung_axis", "toprung_cover"):
        setattr(bridge, name, getattr(quick, name))
    state, number = ctypes.POINTER(State), ctypes.c_int64
    bridge.toprung_settle.argtypes = [state, ctypes.POINTER(number), ctypes.c_int, ctypes.POINTER(Taking), number]
    bridge.toprung_cover.argtypes = [state, ctypes.POINTER(Key), ctypes.POINTER(ctypes.POINTER(Range)), number, number]
    bridge.toprung_axis.argtypes = [ctypes.POINTER(Key)]
    bridge.toprung_drained.restype = ctypes.c_int64
    bridge.toprung_activate.argtypes = [ctypes.c_void_p]
    atexit.register(bridge.toprung_activate, None)  # threads may multiply for longer than the interpreter's memory lives
    return bridge
