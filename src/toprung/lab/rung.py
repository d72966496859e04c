"""Rungs and ladders. A rung is two files with one stem, ``rNN_name.py`` and ``rNN_name.cl`` (or ``.cu``, ``.wgsl``, or
machine code, ``.cubin``); nothing lists them.

Ladders are folders in ``toprung/lab/ladders`` and in every folder that the environment variable ``TOPRUNG_LADDERS`` names
(separated like ``PATH``): a folder ``kepler`` there adds its rungs to the kepler ladder.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from toprung import backends
from toprung.device import Device
from toprung.errors import BadArgument, BadRung, UnknownName
from toprung.kernels.record import LANGUAGES, SHUFFLE, KernelRecord, Options, Switch
from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.bounds.levels import TensorWork
from toprung.tile import Tile

STEM = re.compile(r"r(\d\d)_[a-z0-9_]+")

__all__ = ["SHUFFLE", "Ladder", "Options", "Rung", "Switch", "ladder", "ladder_names", "roots", "rung", "select"]


@dataclass(frozen=True)
class Rung(KernelRecord):
    """One step of a ladder.

    Attributes
    ----------
    published : the tile of the published kernel
    whole : operands that must come as whole, aligned tiles (shared padding kernels make them so, and are timed)
    transposed : operands that must come transposed (a shared kernel does it, and is timed)
    meets : work-groups that share a sum meet in its kernel, which gets room for their sums and a count for each sum
    method : module of ``toprung.lab.routines`` that brings its kernel to bear, where that is not its routine's own
    more_items : work-items of a work-group that own nothing of the tile: they fetch for those that do
    maps : its operands come as tensor maps, for TMA
    shared_accesses : accesses of shared memory by a work-item, by its linear index, in one step over BK of a tile; None:
        unsaid, and its bank conflicts are not in its bound
    tensor : work of a block on Tensor Cores for one of K; None: it multiplies on fp32 lanes, or is not bounded
    waits : events that a work-group of a product with a vector waits for in turn, for each of its rows or blocks of rows
    even : its last wave of blocks is cut along K, so that all SMs have equal shares
    made_for : kind of device that its idea is for, ``"gpu"``; elsewhere it runs, and may be far behind. Empty: any kind
    ladder : the ladder it belongs to; like ``stem``, ``source`` and ``routine`` it is filled in by discovery
    """

    published: Tile | None = None
    whole: str | Callable[[Options], str] = ""
    transposed: str = ""
    meets: bool = False
    method: str = ""
    more_items: int = 0
    maps: bool = False
    shared_accesses: Callable[[Tile, Options, int], SharedAccesses] | None = None
    tensor: Callable[[Tile], TensorWork] | None = None
    waits: Callable[[Tile, Options], Mapping[str, float]] | None = None
    even: bool = False
    made_for: str = ""
    ladder: str = ""

    @property
    def number(self) -> int:
        """Place on the ladder."""
        return int(self.stem[1:3])

    @property
    def name(self) -> str:
        return f"{self.ladder}/{self.stem[:3]}"

    def whole_operands(self, options: Options) -> str:
        """Return the operands that must come as whole tiles under these options."""
        return self.whole(options) if callable(self.whole) else self.whole

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Ladder:
    """Rungs in order, and the routine they all compute.

    Attributes
    ----------
    vendors : peers that are its rung 0, by name; empty for what the device's vendor offers for the routine
    note : a restriction of what its rungs promise; empty where they promise what ``Rung.precision`` says
    """

    name: str
    title: str
    routine: str
    rungs: tuple[Rung, ...]
    vendors: tuple[str, ...] = ()
    note: str = ""

    def rung(self, number: int) -> Rung:
        """The rung with this number, or UnknownName."""
        for rung in self.rungs:
            if rung.number == number:
                return rung
        raise UnknownName(f"rung of {self.name}", number, (str(r.number) for r in self.rungs))


def roots() -> tuple[Path, ...]:
    """Folders that hold ladders: the package's own, then the user's."""
    extra = [Path(p) for p in os.environ.get("TOPRUNG_LADDERS", "").split(os.pathsep) if p]
    if extra and not any(p.is_dir() for p in extra):
        raise BadRung(f"TOPRUNG_LADDERS names {os.pathsep.join(map(str, extra))}, which is no folder: correct it, or unset it")
    return (Path(__file__).parent / "ladders", *extra)


def ladder_names() -> list[str]:
    """Names of all ladders."""
    return sorted({p.parent.name for root in roots() for p in root.glob("*/__init__.py")})


def ladder(name: str) -> Ladder:
    """Find a ladder and its rungs.

    Raises
    ------
    UnknownName, BadArgument
        no such ladder; none was named
    BadRung
        a rung without kernel source or RUNG record, or two with one number; a ladder without TITLE and ROUTINE; a file that does
        not load
    """
    if not name:
        raise BadArgument(f"name a ladder, or a rung such as kepler/r07; there is: {', '.join(ladder_names())}")
    if name not in ladder_names():
        raise UnknownName("ladder", name, ladder_names())
    folders = [root / name for root in roots() if (root / name).is_dir()]
    head = next(_load(f / "__init__.py") for f in folders if (f / "__init__.py").exists())
    if lacking := [word for word in ("TITLE", "ROUTINE") if not hasattr(head, word)]:
        raise BadRung(
            f"{head.__file__} defines no {' and no '.join(lacking)}: say what the ladder is, and which routine it computes"
        )
    files = [path for folder in folders for path in folder.glob("r[0-9][0-9]_*") if path.suffix in LANGUAGES]
    if alone := [path for path in files if not path.with_suffix(".py").exists()]:
        raise BadRung(f"{alone[0]} has no record beside it: add {alone[0].stem}.py, which defines RUNG = Rung(...)")
    rungs = sorted(
        (_rung(name, head.ROUTINE, path) for f in folders for path in f.glob("r[0-9][0-9]_*.py")), key=lambda r: r.number
    )
    for a, b in itertools.pairwise(rungs):
        if a.number == b.number:
            raise BadRung(f"{a.source} and {b.source} are both rung {a.number} of {name}: renumber one")
    return Ladder(name, head.TITLE, head.ROUTINE, tuple(rungs), tuple(getattr(head, "VENDORS", ())), getattr(head, "NOTE", ""))


def rung(name: str) -> Rung:
    """The rung a user calls ``ladder/rNN``, or UnknownName."""
    of, _, number = name.partition("/")
    found = ladder(of)
    if not number:
        raise UnknownName("rung", name, (f"{of}/{r.stem[:3]}" for r in found.rungs))
    if not re.fullmatch(r"r?\d+", number):
        raise UnknownName(f"rung of {of}", number, (r.stem[:3] for r in found.rungs))
    return found.rung(int(number.lstrip("r")))


def select(rungs: Sequence[Rung], numbers: Iterable[int]) -> list[Rung]:
    """The rungs with these numbers, in ladder order."""
    wanted = set(numbers)
    return [r for r in rungs if r.number in wanted]


def out_of_place(rungs: Iterable[Rung], kind: str) -> str:
    """Return a sentence on rungs whose idea is not for a kind of device; empty if there are none."""
    numbers = [r.number for r in rungs if r.made_for not in ("", kind)]
    if not numbers:
        return ""
    runs = f"{numbers[0]}–{numbers[-1]}" if numbers == list(range(numbers[0], numbers[-1] + 1)) else ", ".join(map(str, numbers))
    one = len(numbers) == 1
    return (
        f"rung{'' if one else 's'} {numbers[0] if one else runs} {'is' if one else 'are'} for GPUs: "
        f"on this {kind.upper()} {'it is' if one else 'they are'} verified and timed like the others, and no measure of the idea"
    )


def _rung(ladder_name: str, routine: str, path: Path) -> Rung:
    if not STEM.fullmatch(path.stem):
        raise BadRung(f"{path}: a rung's files are called rNN_name, in small letters")
    source = next((s for e in LANGUAGES if (s := path.with_suffix(e)).exists()), None)
    if source is None:
        raise BadRung(f"{path} has no kernel beside it: add {path.stem}.cl")
    record = getattr(_load(path), "RUNG", None)
    if not isinstance(record, Rung):
        raise BadRung(f"{path} defines no RUNG = Rung(...)")
    needs = _Needs(LANGUAGES[source.suffix], record.needs)
    return replace(record, ladder=ladder_name, stem=path.stem, source=source, routine=routine, needs=needs)


LANGUAGE_NAMES = {"opencl": "OpenCL C", "cuda": "CUDA C++", "wgsl": "WGSL", "cubin": "CUDA machine code"}


@dataclass(frozen=True)
class _Needs:
    """Reason why a device cannot run a rung: the record's own, else the language of its kernel. Equal for equal rungs."""

    language: str
    own: Callable[[Device], str]

    def __call__(self, device: Device) -> str:
        if (reason := self.own(device)) or self.language in backends.languages(device):
            return reason
        by = " and ".join(b.name for b in backends.backends() if self.language in b.languages)
        return f"it is written in {LANGUAGE_NAMES[self.language]}, for devices of {by} (see toprung devices)"


def _load(path: Path) -> ModuleType:
    """Run a rung's or ladder's Python file as a module of its own, wherever it lies."""
    name = f"toprung.lab.ladders.{path.parent.name}" + ("" if path.stem == "__init__" else f".{path.stem}")
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadRung(f"{path} does not load: {type(error).__name__}: {error}") from error
    sys.modules[name] = module
    return module
