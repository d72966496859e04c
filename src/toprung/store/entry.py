"""Plain data of the store: measured entries, results of their second verification, and an in-memory index of entries."""

from __future__ import annotations

import datetime
import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from toprung import forks
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import StoreError
from toprung.store import plain
from toprung.store.plain import LONGEST, MESSAGE, WORD, shown

NOISY = 0.5
"""Scatter of samples above which they decide nothing. In the comparisons of ``results/`` it is at most 0.16 on GPUs, and 0.4 in
99 of 100 on CPUs; it was 0.51 for NumPy where other programs used its cores."""

STATUSES = ("right", "wrong", "crashed", "timeout", "build")


@dataclass(frozen=True)
class Machine:
    """Device and software that an entry was measured with.

    Attributes
    ----------
    device : slug of the device, as the folders of ``results/`` are called
    name : name of the device, as its runtime reports it
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
        """Return the machine of a session or device."""
        d = where if isinstance(where, Device) else where.device
        return cls(d.slug, d.name, d.backend, d.driver, d.runtime)

    def __str__(self) -> str:
        return f"{self.device} ({self.backend})"


@dataclass(frozen=True)
class Entry:
    """Result of one configuration on one problem on one machine.

    Attributes
    ----------
    problem_class : class that neighbouring shapes have in common, see ``toprung.gemm.classes``
    shape : the problem as its ``describe()`` gives it
    candidate : ``kernel`` (a family's name, see ``toprung.kernels``), ``tile`` and ``options``, as its configuration encodes
        itself
    source : version of the family's code, see ``KernelFamily.version``
    seconds, cold_seconds : seconds per call of every sample, with operands in the caches and without
    clocks_mhz : the device's clock at each sample in MHz; None where it was not read
    marked : True for each sample taken while the clock had dropped
    grade : error grade as ``toprung.oracle.check`` measures it; 0 if it was not measured, infinite if the result was no number
    status : ``right``, ``wrong``, ``crashed``, ``timeout`` or ``build`` (does not compile)
    message : error message, empty for a right entry
    date : ISO 8601; now by default
    version : version of toprung that measured

    Raises
    ------
    StoreError
        a value that is not as described here
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
        """Name of the candidate's kernel family."""
        return str(self.candidate["kernel"])

    @property
    def key(self) -> str:
        """Hash of candidate and source, see ``candidate_key``."""
        return candidate_key(self.candidate, self.source)

    @forks.cached_property
    def id(self) -> str:
        """Hash of machine, shape, candidate and source together."""
        m = self.machine
        identity = [m.device, m.backend, m.driver, m.compiler, dict(self.shape), dict(self.candidate), self.source]
        return plain.digest(plain.canonical(identity))

    @property
    def median(self) -> float:
        """Median seconds of the unmarked samples, or of all if every one is marked; infinite without samples."""
        kept = [s for s, m in zip(self.seconds, self.marked, strict=True) if not m]
        return _median(sorted(kept or self.seconds)) if self.seconds else math.inf

    @property
    def noisy(self) -> bool:
        """True if the samples scatter too much to decide anything."""
        return scatter(self.seconds) > NOISY

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and the batch; 1 for each that the shape does not have."""
        m, n, k, batch = (max(1, int(self.shape.get(name, 1))) for name in ("M", "N", "K", "batch"))
        return m, n, k, batch

    def describe(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
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
        """Return the entry of parsed JSON that anybody may have written.

        Raises
        ------
        StoreError
            the content is no entry; the message says what is wrong
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


@dataclass(frozen=True)
class Proof:
    """Result of verifying an entry again, with another driver, compiler or kernel source than it was measured with.

    Attributes
    ----------
    entry : ``id`` of the entry
    machine : machine of this verification
    source : version of the family's code at this verification
    message : error that was found, empty if the entry is right
    """

    entry: str
    machine: Machine
    source: str
    message: str = ""


class Book:
    """In-memory index of right entries by class and sizes."""

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
        """Return the entries of one class and of these sizes, fastest first."""
        return self._classes.get(problem_class, {}).get(sizes, ())

    def near(
        self, problem_class: str, sizes: tuple[int, int, int, int], factor: float
    ) -> list[tuple[float, Sequence[Entry]]]:  # fmt: skip
        """Return (distance, entries) for each shape of a class whose sizes each differ by at most ``factor``, nearest first.

        Entries of a shape come fastest first. The distance is Euclidean, between the base-2 logarithms of the sizes.
        """
        found, (m, n, k, batch), f = [], sizes, factor  # written out: every selection of new sizes looks at all of a class
        for spot, entries in self._classes.get(problem_class, {}).items():
            M, N, K, Z = spot
            if (
                M <= f * m
                and m <= f * M
                and N <= f * n
                and n <= f * N
                and K <= f * k
                and k <= f * K
                and Z <= f * batch <= f * f * Z
            ):
                found.append((math.hypot(*map(math.log2, map(operator.truediv, spot, sizes))), entries))
        return sorted(found, key=operator.itemgetter(0))


def scatter(seconds: Sequence[float]) -> float:
    """Return half the distance between the quartiles of samples, as a share of their median: a single outlier of five is left out.

    A quartile between two samples is the outer one: of two to four samples it is half their range.
    """
    times = sorted(seconds)
    outside = (len(times) - 1) // 4
    return (times[-1 - outside] - times[outside]) / 2 / _median(times) if times else 0.0


def _median(times: Sequence[float]) -> float:
    return (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2


def shape_text(shape: Mapping[str, Any]) -> str:
    """Return a problem's description as canonical text: equal problems have equal texts."""
    return plain.canonical(plain.shape(shape))


def candidate_key(candidate: Mapping[str, Any], source: str) -> str:
    """Return the hash of a candidate with its kernel's source, as ``Store.tried`` returns it."""
    return plain.digest(plain.canonical([plain.candidate(candidate), source]))


@functools.cache
def version() -> str:
    """Return toprung's version."""
    import importlib.metadata

    try:
        return importlib.metadata.version("toprung")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
