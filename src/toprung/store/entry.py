"""What was measured and where, as plain data: an entry, what a second verification said of it, and a book of entries in memory."""

from __future__ import annotations

import datetime
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import StoreError
from toprung.store import plain
from toprung.store.plain import LONGEST, MESSAGE, WORD, shown

STATUSES = ("right", "wrong", "crashed", "timeout", "build")


@dataclass(frozen=True)
class Machine:
    """Who measured.

    Attributes
    ----------
    device : its slug, as the folders of ``results/`` are called
    name : as its runtime reports it
    backend : ``"cuda"`` or ``"opencl"``
    driver, compiler : versions, as the runtime reports them
    """

    device: str
    name: str
    backend: str
    driver: str
    compiler: str

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, str) or len(value) > LONGEST or not (value.isprintable()):
                raise StoreError(f"a machine's {f.name} is a line of text, not {shown(value)}")
        if not self.device or not WORD.fullmatch(self.backend):
            raise StoreError(f"a machine has a device and a backend, not {shown(self.device)} and {shown(self.backend)}")

    @classmethod
    def of(cls, where: Session | Device) -> Machine:
        """That of a session or device."""
        d = where if isinstance(where, Device) else where.device
        return cls(d.slug, d.name, d.backend, d.driver, d.runtime)

    def __str__(self) -> str:
        return f"{self.device} ({self.backend})"


@dataclass(frozen=True)
class Entry:
    """One configuration on one problem on one machine.

    Attributes
    ----------
    problem_class : what neighbours have in common, see ``toprung.blas.tuned.class_of``
    shape : the problem as its ``describe()`` gives it
    candidate : ``kernel`` (a stem of ``blas/kernels``, ``"fp32x"`` or one of ``VENDORS``), ``tile`` (``Tile.given()``) and
        ``options`` (its switches)
    source : hash of the kernel's text, see ``toprung.blas.tuned.source_hash``; a vendor's version
    seconds, cold_seconds : every sample, with operands in the caches and without
    clocks_mhz : the device's clock at each sample; None where it was not read
    marked : samples taken while the clock had dropped
    grade : error grade as ``toprung.check`` measures it; 0 where it was not, infinite where the result was no number
    status : ``right``, ``wrong``, ``crashed``, ``timeout`` or ``build`` (does not compile)
    message : what went wrong
    date : ISO 8601; now by default
    version : toprung's

    Raises
    ------
    StoreError
        anything that is not as said here
    """

    machine: Machine
    problem_class: str
    shape: Mapping[str, Any]
    candidate: Mapping[str, Any]
    source: str = ""
    seconds: tuple[float, ...] = ()
    cold_seconds: tuple[float, ...] = ()
    clocks_mhz: tuple[float | None, ...] = ()
    marked: tuple[bool, ...] = ()
    grade: float = 0.0
    status: str = "right"
    message: str = ""
    date: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        if not isinstance(self.machine, Machine):
            raise StoreError(f"an entry's machine is a Machine, not {shown(self.machine)}")
        if self.status not in STATUSES:
            raise StoreError(f"a status is one of {', '.join(STATUSES)}, not {shown(self.status)}")
        put("shape", MappingProxyType(plain.shape(self.shape)))
        put("candidate", MappingProxyType(plain.candidate(self.candidate)))
        put("seconds", plain.samples("seconds", self.seconds))
        put("cold_seconds", plain.samples("cold_seconds", self.cold_seconds))
        if self.status == "right" and not self.seconds:
            raise StoreError("a right entry has at least one sample")
        count = len(self.seconds)
        clocks = plain.sequence("clocks_mhz", self.clocks_mhz) or (None,) * count
        marked = plain.sequence("marked", self.marked) or (False,) * count
        put("clocks_mhz", tuple(None if c is None else plain.number("clocks_mhz", c) for c in clocks))
        put("marked", tuple(marked))
        if not all(isinstance(m, bool) for m in marked):
            raise StoreError("marked holds true and false only")
        if not len(clocks) == len(marked) == count:
            raise StoreError(f"{count} samples have {len(clocks)} clocks and {len(marked)} marks: give one of each a sample")
        put("grade", plain.grade(self.grade, self.status))
        if not isinstance(self.message, str):
            raise StoreError(f"a message is text, not {shown(self.message)}")
        put(
            "message", "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in self.message[:MESSAGE])
        )
        put("date", self.date or plain.now())
        put("version", self.version or version())
        for name in ("problem_class", "source", "date", "version"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > LONGEST or not value.isprintable():
                raise StoreError(f"{name} is a line of text, not {shown(value)}")
        try:
            datetime.datetime.fromisoformat(self.date)
        except ValueError:
            raise StoreError(f"a date is written like 2025-01-31T12:00:00+00:00, not {shown(self.date)}") from None

    @property
    def kernel(self) -> str:
        """The candidate's kernel."""
        return str(self.candidate["kernel"])

    @property
    def key(self) -> str:
        """That of candidate and source, see ``candidate_key``."""
        return candidate_key(self.candidate, self.source)

    @property
    def id(self) -> str:
        """A name for machine, shape, candidate and source together."""
        return plain.digest(plain.canonical(self._identity()))

    @property
    def median(self) -> float:
        """Of the unmarked samples, of all where none is; infinite without samples."""
        kept = [s for s, m in zip(self.seconds, self.marked, strict=True) if not m]
        return statistics.median(kept or self.seconds) if self.seconds else math.inf

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and the batch; 1 for those the shape has not."""
        m, n, k, batch = (max(1, int(self.shape.get(name, 1))) for name in ("M", "N", "K", "batch"))
        return m, n, k, batch

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "machine": {f.name: getattr(self.machine, f.name) for f in fields(Machine)},
            "problem_class": self.problem_class, "shape": dict(self.shape), "candidate": dict(self.candidate),
            "source": self.source, "seconds": list(self.seconds), "cold_seconds": list(self.cold_seconds),
            "clocks_mhz": list(self.clocks_mhz), "marked": list(self.marked),
            "grade": self.grade if math.isfinite(self.grade) else None, "status": self.status, "message": self.message,
            "date": self.date, "version": self.version,
        }  # fmt: skip

    @classmethod
    def read(cls, content: object) -> Entry:
        """From JSON that anybody may have written.

        Raises
        ------
        StoreError
            what is wrong with it
        """
        if not isinstance(content, Mapping):
            raise StoreError(f"an entry is an object, not {shown(content)}")
        known = {f.name for f in fields(cls)}
        if missing := sorted(known - content.keys()):
            raise StoreError(f"an entry has no {', '.join(missing)}")
        if unknown := sorted(map(str, content.keys() - known)):
            raise StoreError(f"an entry has nothing called {shown(', '.join(unknown))}")
        machine = content["machine"]
        if not isinstance(machine, Mapping) or machine.keys() != {f.name for f in fields(Machine)}:
            raise StoreError(f"a machine has {', '.join(f.name for f in fields(Machine))}, not {shown(machine)}")
        if not content["date"] or not content["version"]:
            raise StoreError("an entry has a date and a version")
        values = {name: content[name] for name in known - {"machine"}}
        if values["grade"] is None:
            values["grade"] = math.inf
        return cls(Machine(**machine), **values)

    def __reduce__(self) -> tuple[Any, ...]:
        return Entry.read, (self.describe(),)  # read-only mappings cannot be pickled

    def _identity(self) -> list[Any]:
        m = self.machine
        return [m.device, m.backend, m.driver, m.compiler, dict(self.shape), dict(self.candidate), self.source]


@dataclass(frozen=True)
class Proof:
    """What became of an entry when it was verified again on another driver, compiler or kernel text than it was measured with.

    Attributes
    ----------
    entry : its ``id``
    machine : where
    source : the hash of the kernel's text now
    message : what was wrong; empty: nothing
    """

    entry: str
    machine: Machine
    source: str
    message: str = ""


class Book:
    """Entries in memory, found by shape and by class: right ones only."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._classes: dict[str, dict[tuple[int, int, int, int], list[Entry]]] = {}
        for entry in entries:
            if entry.status == "right":
                self._classes.setdefault(entry.problem_class, {}).setdefault(entry.sizes, []).append(entry)
        for spots in self._classes.values():
            for found in spots.values():
                found.sort(key=lambda e: e.median)

    def __bool__(self) -> bool:
        return bool(self._classes)

    def at(self, problem_class: str, sizes: tuple[int, int, int, int]) -> Sequence[Entry]:
        """Those of one class and size, fastest first."""
        return self._classes.get(problem_class, {}).get(sizes, ())

    def near(
        self, problem_class: str, sizes: tuple[int, int, int, int], factor: float
    ) -> list[tuple[float, Sequence[Entry]]]:  # fmt: skip
        """Those of one class whose sizes each differ by at most ``factor``, nearest first: (distance, fastest first).

        The distance is that of the logarithms of the sizes, to base 2.
        """
        found = []
        for spot, entries in self._classes.get(problem_class, {}).items():
            if all(a <= factor * b and b <= factor * a for a, b in zip(spot, sizes, strict=True)):
                found.append((math.hypot(*(math.log2(a / b) for a, b in zip(spot, sizes, strict=True))), entries))
        return sorted(found, key=lambda f: f[0])


def shape_text(shape: Mapping[str, Any]) -> str:
    """A problem's description as one text, the same for equal ones."""
    return plain.canonical(plain.shape(shape))


def candidate_key(candidate: Mapping[str, Any], source: str) -> str:
    """A name for a candidate with its kernel's source: what ``Store.tried`` returns."""
    return plain.digest(plain.canonical([plain.candidate(candidate), source]))


@functools.cache
def version() -> str:
    """toprung's."""
    import importlib.metadata

    try:
        return importlib.metadata.version("toprung")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
