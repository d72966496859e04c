"""What tuning learnt, on disk: a database that several processes and threads read and write at once.

Every entry is plain data, checked when it is made, read or imported; what does not pass is refused with the reason and stays
where it is. Nothing in a store is ever executed or becomes part of a kernel's text: whoever takes an entry finds its kernel, tile
and switches among those that exist (``toprung.blas.tuned``).
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import math
import os
import re
import sqlite3
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import StoreError
from toprung.paths import data_dir, publish
from toprung.tile import Tile

FORMAT = "toprung store 1"
"""Of the exchange files."""

SCHEMA = 1
"""Of the database, in its ``user_version``."""

APPLICATION = 0x746F7072
"""In the database's ``application_id``: "topr"."""

VARIABLE = "TOPRUNG_STORE"
"""Environment variable: ``off`` leaves the user's store and the shipped entries alone."""

STATUSES = ("right", "wrong", "crashed", "timeout", "build")

VENDORS = ("cublas", "numpy")
"""Candidates that are somebody else's: without a tile and switches of ours."""

SHIPPED = Path(__file__).parent / "tuned"
"""Entries that come with the package, ``<device>-<backend>.json``."""

BUSY, BUSY_READING = 30.0, 3.0
"""Seconds to wait for another writer, and for one that keeps readers out, as they do where there is no write-ahead log."""

LARGEST_FILE = 256 << 20
"""Bytes of an exchange file that is read at all."""

EACH = 4
"""Entries of a shape and kernel that ``Store.fastest`` gives."""

MOST_SAMPLES = 100_000
LONGEST = 500
MESSAGE = 2000
"""Characters that are kept of a message."""

WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
UNIT = re.compile(r"[A-Za-z][A-Za-z0-9_/]{0,63}")
SWITCH = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


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
                raise StoreError(f"a machine's {f.name} is a line of text, not {_shown(value)}")
        if not self.device or not WORD.fullmatch(self.backend):
            raise StoreError(f"a machine has a device and a backend, not {_shown(self.device)} and {_shown(self.backend)}")

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
            raise StoreError(f"an entry's machine is a Machine, not {_shown(self.machine)}")
        if self.status not in STATUSES:
            raise StoreError(f"a status is one of {', '.join(STATUSES)}, not {_shown(self.status)}")
        put("shape", MappingProxyType(_shape(self.shape)))
        put("candidate", MappingProxyType(_candidate(self.candidate)))
        put("seconds", _samples("seconds", self.seconds))
        put("cold_seconds", _samples("cold_seconds", self.cold_seconds))
        if self.status == "right" and not self.seconds:
            raise StoreError("a right entry has at least one sample")
        count = len(self.seconds)
        clocks = _sequence("clocks_mhz", self.clocks_mhz) or (None,) * count
        marked = _sequence("marked", self.marked) or (False,) * count
        put("clocks_mhz", tuple(None if c is None else _number("clocks_mhz", c) for c in clocks))
        put("marked", tuple(marked))
        if not all(isinstance(m, bool) for m in marked):
            raise StoreError("marked holds true and false only")
        if not len(clocks) == len(marked) == count:
            raise StoreError(f"{count} samples have {len(clocks)} clocks and {len(marked)} marks: give one of each a sample")
        put("grade", _grade(self.grade, self.status))
        if not isinstance(self.message, str):
            raise StoreError(f"a message is text, not {_shown(self.message)}")
        put(
            "message", "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in self.message[:MESSAGE])
        )
        put("date", self.date or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
        put("version", self.version or version())
        for name in ("problem_class", "source", "date", "version"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > LONGEST or not value.isprintable():
                raise StoreError(f"{name} is a line of text, not {_shown(value)}")
        try:
            datetime.datetime.fromisoformat(self.date)
        except ValueError:
            raise StoreError(f"a date is written like 2025-01-31T12:00:00+00:00, not {_shown(self.date)}") from None

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
        return _digest(_json(self._identity()))

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
            raise StoreError(f"an entry is an object, not {_shown(content)}")
        known = {f.name for f in fields(cls)}
        if missing := sorted(known - content.keys()):
            raise StoreError(f"an entry has no {', '.join(missing)}")
        if unknown := sorted(map(str, content.keys() - known)):
            raise StoreError(f"an entry has nothing called {_shown(', '.join(unknown))}")
        machine = content["machine"]
        if not isinstance(machine, Mapping) or machine.keys() != {f.name for f in fields(Machine)}:
            raise StoreError(f"a machine has {', '.join(f.name for f in fields(Machine))}, not {_shown(machine)}")
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


@dataclass(frozen=True)
class Imported:
    """What an import or a merge did.

    Attributes
    ----------
    taken : entries that are new or newer
    known : entries that were there already, as new or newer
    refused : where, and why, for each of the others
    """

    taken: int
    known: int
    refused: tuple[tuple[str, str], ...] = ()


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


Vet = Callable[[Entry], str]


class Store:
    """The database. Every call opens it anew, so that a Store may be shared by threads and survives a fork.

    Writing raises StoreError where the folder is read-only, the disk full, or the file not a store of this toprung; what was
    there stays as it was. An entry is added whole or not at all, whatever happens to the process.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def default(cls) -> Store:
        """The user's own (``TOPRUNG_DATA`` moves it)."""
        return cls(data_dir() / "tuned.sqlite")

    def add(self, entry: Entry, *more: Entry) -> None:
        """Keep entries, in one transaction; one of the same machine, shape, candidate and source is replaced."""
        with self._writing() as db:
            for one in (entry, *more):
                _insert(db, one)

    def entries(
        self, machine: Machine | None = None, *, complaints: list[str] | None = None, **filters: str | None
    ) -> Iterator[Entry]:  # fmt: skip
        """Every entry, oldest first.

        Parameters
        ----------
        machine : only those of its device and backend
        complaints : gets the reason for each row that is damaged and passed over
        filters : a name out of ``FILTERS`` and what it must be
        """
        for _, entry in self._rows(machine, filters, complaints):
            if entry is not None:
                yield entry

    def fastest(
        self, machine: Machine | None = None, each: int = EACH, complaints: list[str] | None = None, **filters: str | None
    ) -> list[Entry]:
        """Of each shape, kernel, source and machine the ``each`` fastest right entries, by the unmarked samples' median.

        ``machine``: those of its device and backend, whatever the driver; None: all.
        """
        where, values = _where(machine, {**filters, "status": "right"})
        place = "row_number() OVER (PARTITION BY shape, kernel, source, machine ORDER BY median)"
        ranked = f"SELECT rowid, content, median, {place} AS place FROM entries{where}"
        query = f"SELECT rowid, {CONTENT} FROM ({ranked}) WHERE place <= ? ORDER BY median"
        return [entry for _, entry in self._entries(query, [*values, each], complaints) if entry is not None]

    def best(self, machine: Machine, shape: Mapping[str, Any]) -> Entry | None:
        """The fastest right entry of a shape, by the median of its unmarked samples."""
        return min(self.fastest(machine, 1, shape=shape_text(shape)), key=lambda e: e.median, default=None)

    def best_of_class(self, machine: Machine, problem_class: str) -> list[Entry]:
        """The fastest right entry of each shape of a class, fastest first."""
        best: dict[str, Entry] = {}
        for entry in self.fastest(machine, 1, problem_class=problem_class):
            best.setdefault(shape_text(entry.shape), entry)
        return list(best.values())

    def neighbours(
        self, machine: Machine, problem_class: str, sizes: tuple[int, int, int, int], factor: float = 2.0,
        kept: Callable[[Entry], bool] = lambda entry: True,
    ) -> list[Entry]:  # fmt: skip
        """The fastest right entry, of those ``kept``, of each shape of a class, sizes at most ``factor`` apart; nearest first."""
        book = Book(filter(kept, self.fastest(machine, 1, problem_class=problem_class)))
        return [found[0] for _, found in book.near(problem_class, sizes, factor)]

    def tried(self, machine: Machine, shape: Mapping[str, Any]) -> set[str]:
        """Keys (``candidate_key``) of what was tried on a shape with this very driver and compiler, whatever came of it."""
        with self._reading() as db:
            if db is None:
                return set()
            values = _place(machine), shape_text(shape)
            return {str(key) for (key,) in db.execute("SELECT key FROM entries WHERE machine = ? AND shape = ?", values)}

    def clear(self, machine: Machine | None = None, **filters: str | None) -> int:
        """Remove entries (filters as for ``entries``), or all; returns how many."""
        with self._writing() as db:
            where, values = _where(machine, filters)
            gone = db.execute(f"DELETE FROM entries{where}", values).rowcount
            db.execute("DELETE FROM proofs WHERE entry NOT IN (SELECT id FROM entries)" if where else "DELETE FROM proofs")
        return gone

    def clear_damaged(self) -> str:
        """Remove rows that are damaged; a file that is no store at all is moved aside. Returns what was done, a sentence."""
        try:
            bad = [number for number, entry in self._rows(None, {}, []) if entry is None]
        except StoreError:
            if not self.path.exists() or _healthy(self.path):
                raise
            aside = self._move_aside()
            return f"{self.path} was moved to {aside}: delete it, or save from it what you can"
        with self._writing() as db:
            db.executemany("DELETE FROM entries WHERE rowid = ?", [(n,) for n in bad])
        return f"{len(bad)} damaged entries were removed from {self.path}"

    def prove(self, proof: Proof) -> None:
        """Keep what a second verification found."""
        row = proof.entry, _place(proof.machine), proof.source, proof.message[:MESSAGE], _now()
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO proofs VALUES (?, ?, ?, ?, ?)", row)

    def unprove(self, proof: Proof) -> None:
        """Forget what ``prove`` kept of an entry on a machine."""
        with self._writing() as db:
            row = proof.entry, _place(proof.machine), proof.source
            db.execute("DELETE FROM proofs WHERE entry = ? AND machine = ? AND source = ?", row)

    def proofs(self, machine: Machine) -> list[Proof]:
        """What second verifications found on this machine with this driver and compiler."""
        with self._reading() as db:
            if db is None:
                return []
            found = db.execute("SELECT entry, source, message FROM proofs WHERE machine = ?", (_place(machine),)).fetchall()
        return [Proof(str(e), machine, str(s), str(m)) for e, s, m in found]

    def export(self, target: Path | Any, entries: Iterable[Entry] | None = None) -> int:
        """Write entries (all, if none are given) as JSON to a path, whole or not at all, or to an open text file.

        Returns
        -------
        how many
        """
        chosen = list(self.entries() if entries is None else entries)
        head = {"format": FORMAT, "version": version(), "date": _now()}
        lines = ",\n".join(_json(e.describe()) for e in chosen)
        text = f'{_json(head)[:-1]},"entries":[\n{lines}\n]}}\n'
        if hasattr(target, "write"):
            target.write(text)
        else:
            try:
                publish(Path(target), text.encode())
            except OSError as error:
                raise StoreError(f"{target} cannot be written: {error.strerror}; choose another place") from None
        return len(chosen)

    def import_(self, source: Path | str, vet: Vet = lambda entry: "") -> Imported:
        """Take the entries of an exchange file; of two that are the same but for the samples the newer one is kept.

        Parameters
        ----------
        vet : says why an entry is of no use here (``toprung.blas.tuned.refusal``), empty where it is

        Raises
        ------
        StoreError
            a file that is none at all; single entries that are damaged are refused in what is returned
        """
        refused: list[tuple[str, str]] = []
        good = read_exchange(Path(source), refused)
        return self._take(good, refused, vet)

    def merge(self, other: Path | str, vet: Vet = lambda entry: "") -> Imported:
        """Take the entries of another database, which stays as it is; the newer of two is kept. ``vet`` as for ``import_``."""
        if not Path(other).is_file():
            raise StoreError(f"{other} is not there: name the database to be merged")
        complaints: list[str] = []
        good = list(Store(other).entries(complaints=complaints))
        return self._take(good, [(str(other), c) for c in complaints], vet)

    def _take(self, found: Sequence[Entry], refused: Sequence[tuple[str, str]], vet: Vet) -> Imported:
        more = [(f"{e.machine}, {e.problem_class}", reason) for e in found if (reason := vet(e))]
        good = [e for e in found if not vet(e)]
        taken = 0
        with self._writing() as db:
            for entry in good:
                there = db.execute("SELECT date FROM entries WHERE id = ?", (entry.id,)).fetchone()
                if there is None or _when(entry.date) > _when(there[0]):
                    _insert(db, entry)
                    taken += 1
        return Imported(taken, len(good) - taken, (*refused, *more))

    def _rows(
        self, machine: Machine | None, filters: Mapping[str, str | None], complaints: list[str] | None
    ) -> list[tuple[int, Entry | None]]:
        """Row numbers, and entries where they are not damaged."""
        where, values = _where(machine, filters)
        return self._entries(f"SELECT rowid, {CONTENT} FROM entries{where} ORDER BY rowid", values, complaints)

    def _entries(self, query: str, values: Sequence[Any], complaints: list[str] | None) -> list[tuple[int, Entry | None]]:
        with self._reading() as db:
            rows = [] if db is None else db.execute(query, values).fetchall()
        found: list[tuple[int, Entry | None]] = []
        for number, text in rows:
            try:
                found.append((number, Entry.read(_parsed(text))))
            except StoreError as error:
                found.append((number, None))
                if complaints is not None:
                    complaints.append(f"row {number} of {self.path} is damaged and was passed over: {error}")
        return found

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection that changes nothing; None where there is no store yet."""
        with self._explained("read"):
            if not self.path.exists():
                yield None
                return
            db = _open_to_read(self.path)
            with closing(db):
                _refuse(db, self.path)
                # a process that was killed while it made the file leaves it empty
                yield db if db.execute("PRAGMA user_version").fetchone()[0] else None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection within a transaction that holds the write lock; committed at the end, rolled back on an error."""
        with self._explained("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)) as db:
                _refuse(db, self.path)
                _log_beside(db)
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute("BEGIN IMMEDIATE")
                try:
                    _migrate(db, self.path)
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """SQLite's and the system's errors as StoreError, with what to do."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.path} cannot be {what}: {error.strerror}; {MOVE}") from None
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be {what}: {error}; {_advice(error, self.path)}") from None

    def _move_aside(self) -> Path:
        """Rename the file and what lies beside it."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        with self._explained("moved"):
            for end in ("-wal", "-shm", ""):
                beside = self.path.with_name(self.path.name + end)
                if beside.exists():
                    beside.rename(aside.with_name(aside.name + end))
        return aside


MOVE = "set TOPRUNG_DATA to a folder that can be written, or TOPRUNG_STORE=off"


def off() -> bool:
    """Whether the environment says to leave the user's store and the shipped entries alone."""
    return os.environ.get(VARIABLE, "").lower() == "off"


def shipped(machine: Machine, complaints: list[str] | None = None) -> list[Entry]:
    """Entries that come with the package for a device; those of another driver too, of another device not.

    An x86-64 processor under PoCL that has none gets those of the others, which are verified before their first use like any of
    another driver. What they say of NumPy is left out: how fast that is, is a matter of the processor.
    """
    path = SHIPPED / f"{machine.device}-{machine.backend}.json"
    if path.exists():
        found = _shipped_in(path, complaints)
        return [e for e in found if (e.machine.device, e.machine.backend) == (machine.device, machine.backend)]
    if not _is_pocl(machine):
        return []
    others = (e for one in sorted(SHIPPED.glob(f"*-{machine.backend}.json")) for e in _shipped_in(one, complaints))
    return [e for e in others if _is_pocl(e.machine) and e.kernel not in VENDORS]


def _shipped_in(path: Path, complaints: list[str] | None) -> list[Entry]:
    refused: list[tuple[str, str]] = []
    try:
        found = read_exchange(path, refused)
    except StoreError as error:
        refused.append((str(path), str(error)))
        found = []
    if complaints is not None:
        complaints += [f"{where}: {reason}" for where, reason in refused]
    return found


def _is_pocl(machine: Machine) -> bool:
    """Whether a machine is an x86-64 processor under PoCL."""
    return machine.backend == "opencl" and "PoCL" in machine.compiler and "x86_64" in machine.compiler


def read_exchange(path: Path, refused: list[tuple[str, str]]) -> list[Entry]:
    """The entries of an exchange file; ``refused`` gets where and why for each that is damaged.

    Raises
    ------
    StoreError
        no such file, or none of this format
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise StoreError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, which no store's export is")
        content = _parsed(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    except StoreError as error:
        raise StoreError(f"{path} is not taken: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("entries"), list):
        given = content.get("format") if isinstance(content, dict) else content
        raise StoreError(f"{path} is no export of a store, which has the format {FORMAT!r}, not {_shown(given)}: nothing was taken")
    found = []
    for i, one in enumerate(content["entries"], start=1):
        try:
            found.append(Entry.read(one))
        except StoreError as error:
            refused.append((f"entry {i} of {path}", str(error)))
    return found


def shape_text(shape: Mapping[str, Any]) -> str:
    """A problem's description as one text, the same for equal ones."""
    return _json(_shape(shape))


def candidate_key(candidate: Mapping[str, Any], source: str) -> str:
    """A name for a candidate with its kernel's source: what ``Store.tried`` returns."""
    return _digest(_json([_candidate(candidate), source]))


@functools.cache
def version() -> str:
    """toprung's."""
    import importlib.metadata

    try:
        return importlib.metadata.version("toprung")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


TABLES = """
CREATE TABLE entries (
  id TEXT PRIMARY KEY, device TEXT NOT NULL, backend TEXT NOT NULL, machine TEXT NOT NULL, problem_class TEXT NOT NULL,
  shape TEXT NOT NULL, kernel TEXT NOT NULL, source TEXT NOT NULL, key TEXT NOT NULL, status TEXT NOT NULL, median REAL,
  date TEXT NOT NULL, content TEXT NOT NULL);
CREATE INDEX entries_of ON entries (device, backend, status);
CREATE INDEX entries_tried ON entries (machine, shape);
CREATE TABLE proofs (
  entry TEXT NOT NULL, machine TEXT NOT NULL, source TEXT NOT NULL, message TEXT NOT NULL, date TEXT NOT NULL,
  PRIMARY KEY (entry, machine, source))
"""

MIGRATIONS: dict[int, str] = {0: TABLES}
"""What makes each schema the next one."""

CONTENT = "CAST(content AS BLOB)"
"""Bytes that are no text must not keep the other rows from being read."""

DAMAGED = re.compile("not a database|malformed|no such (table|column)")
"""What SQLite says of a damaged file."""

FILTERS = ("device", "backend", "problem_class", "shape", "kernel", "status")
"""What entries can be chosen by; ``shape`` as ``shape_text`` writes it."""


def _insert(db: sqlite3.Connection, e: Entry) -> None:
    m = e.machine
    row = {
        "id": e.id, "device": m.device, "backend": m.backend, "machine": _place(m), "problem_class": e.problem_class,
        "shape": shape_text(e.shape), "kernel": e.kernel, "source": e.source, "key": e.key, "status": e.status,
        "median": e.median if e.seconds else None, "date": e.date, "content": _json(e.describe()),
    }  # fmt: skip
    db.execute(f"INSERT OR REPLACE INTO entries ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))


def _where(machine: Machine | None, filters: Mapping[str, str | None]) -> tuple[str, list[str]]:
    """A WHERE clause and its values. Names come from ``FILTERS``, values never enter the text."""
    wanted = {} if machine is None else {"device": machine.device, "backend": machine.backend}
    for name, value in filters.items():
        if name not in FILTERS:
            raise StoreError(f"entries are filtered by {', '.join(FILTERS)}, not by {name!r}")
        if value is not None:
            wanted[name] = value
    clause = " AND ".join(f"{name} = ?" for name in wanted)
    return (f" WHERE {clause}" if clause else ""), list(wanted.values())


def _place(m: Machine) -> str:
    return _json([m.device, m.name, m.backend, m.driver, m.compiler])


def _open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; where the folder is read-only too, one that takes the file as it lies."""
    address = path.absolute().as_uri()
    for mode in ("mode=ro", "immutable=1"):
        db = sqlite3.connect(f"{address}?{mode}", uri=True, timeout=BUSY_READING, isolation_level=None)
        try:
            db.execute("PRAGMA schema_version").fetchone()
            return db
        except sqlite3.OperationalError as error:
            db.close()
            # a log beside the file needs a file beside it, which a read-only folder does not let us make
            if mode != "mode=ro" or not re.search("unable to open|readonly", str(error)):
                raise
    raise AssertionError


def _log_beside(db: sqlite3.Connection) -> None:
    """Let readers go on while somebody writes, where the file system can: those shared over a network cannot."""
    if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        with suppress(sqlite3.OperationalError):  # others are at it: the next one may
            db.execute("PRAGMA journal_mode = WAL")


def _refuse(db: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a database that is not a store, or one of a newer toprung."""
    tables, application, schema = db.execute(
        "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != APPLICATION and (application or tables):
        raise StoreError(f"{path} is a database of another program and was left alone: move it, or {MOVE}")
    if schema > SCHEMA:
        raise StoreError(
            f"{path} was written by a newer toprung (schema {schema}, this one knows {SCHEMA}) and was left alone: "
            "update toprung, or set TOPRUNG_DATA to another folder for this version"
        )


def _healthy(path: Path) -> bool:
    """Whether a file is a database as far as can be seen: of ours, of whatever version, or another program's."""
    try:
        with closing(_open_to_read(path)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            healthy = db.execute("PRAGMA quick_check").fetchone()[0] == "ok"
            tables = {str(r[0]) for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            schema = db.execute("PRAGMA user_version").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.Error as error:
        return not DAMAGED.search(str(error))
    return healthy and (application != APPLICATION or schema > SCHEMA or tables >= {"entries", "proofs"})


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Bring an older database to this schema, within the caller's transaction."""
    schema = db.execute("PRAGMA user_version").fetchone()[0]
    if schema > SCHEMA:  # another process was quicker
        _refuse(db, path)
    for step in range(schema, SCHEMA):
        for statement in MIGRATIONS[step].split(";"):
            db.execute(statement)
    if schema < SCHEMA:
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def _advice(error: sqlite3.Error, path: Path) -> str:
    text = str(error)
    if DAMAGED.search(text):
        return "it is damaged and was left alone: toprung store clear --damaged moves it aside"
    if "full" in text or "disk I/O" in text:
        return f"nothing of it was lost: make room on the disk, or {MOVE}"
    if "locked" in text:
        return "another process holds it: try again when that has ended"
    return MOVE


def _parsed(text: str | bytes) -> Any:
    """JSON, strictly: no NaN, no Infinity."""

    def refuse(word: str) -> Any:
        raise StoreError(f"it holds {word}, which is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"it is no JSON ({type(error).__name__}: {str(error)[:200]})") from None


def _json(content: object) -> str:
    """Canonical: one text for one content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _shown(value: object) -> str:
    """A value as a message may hold it: short and printable."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _when(date: object) -> datetime.datetime:
    """A date that can be compared; without a zone it is taken as UTC, and one that is none is older than all."""
    try:
        found = datetime.datetime.fromisoformat(str(date))
    except ValueError:
        found = datetime.datetime.min
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise StoreError(f"{name} holds positive numbers, not {_shown(value)}")
    return float(value)


def _sequence(name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple) or len(values) > MOST_SAMPLES:
        raise StoreError(f"{name} is a list of at most {MOST_SAMPLES} values, not {_shown(values)}")
    return tuple(values)


def _samples(name: str, values: object) -> tuple[float, ...]:
    return tuple(_number(name, v) for v in _sequence(name, values))


def _grade(value: object, status: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StoreError(f"a grade is a number, not {_shown(value)}")
    if status != "right" and not math.isfinite(value):
        return math.inf
    if not 0 <= value < math.inf:
        raise StoreError(f"a grade is 0 or more, not {_shown(value)}")
    return float(value)


def _shape(given: object) -> dict[str, Any]:
    """A problem's description, checked: names and whole numbers, scalars, words."""
    if not isinstance(given, Mapping) or not 0 < len(given) <= 32:
        raise StoreError(f"a shape says what a problem is, not {_shown(given)}")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not WORD.fullmatch(name):
            raise StoreError(f"a shape has nothing called {_shown(name)}")
        word = isinstance(value, str) and UNIT.fullmatch(value)
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
        if not word and not number and value is not None:
            raise StoreError(f"{name} of a shape is {_shown(value)}")
        # α = 1 and α = 1.0 are the same shape
        checked[name] = float(value) if name in ("alpha", "beta") and number else value
    if not isinstance(checked.get("routine"), str):
        raise StoreError("a shape says its routine")
    for name in ("M", "N", "K", "batch"):
        if name in checked and not (isinstance(checked[name], int) and 0 <= checked[name] < 2**31):
            raise StoreError(f"{name} is a size below 2**31, not {_shown(checked[name])}")
    return checked


def _candidate(given: object) -> dict[str, Any]:
    """A candidate, checked: the kernel's name a word, the tile a Tile's numbers, switches names with small numbers."""
    if not isinstance(given, Mapping) or not {"kernel"} <= given.keys() <= {"kernel", "tile", "options"}:
        raise StoreError(f"a candidate has a kernel, a tile and options, not {_shown(given)}")
    kernel, tile, options = given["kernel"], given.get("tile") or {}, given.get("options") or {}
    if not isinstance(kernel, str) or not WORD.fullmatch(kernel):
        raise StoreError(f"a kernel is named by a word such as gemm, not {_shown(kernel)}")
    if not isinstance(tile, Mapping) or not isinstance(options, Mapping):
        raise StoreError(f"tile and options are objects, not {_shown(tile)} and {_shown(options)}")
    names = {f.name for f in fields(Tile)}
    for name, value in tile.items():
        if name not in names or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 20:
            raise StoreError(f"a tile has no {_shown(name)} of {_shown(value)}")
    if tile:
        try:
            Tile(**tile)
        except (TypeError, ValueError) as error:
            raise StoreError(f"no tile is {_shown(dict(tile))}: {error}") from None
    for name, value in options.items():
        word = isinstance(name, str) and SWITCH.fullmatch(name)
        if not word or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise StoreError(f"a switch has a name in capitals and a whole number, not {_shown(name)} and {_shown(value)}")
    if kernel in VENDORS and (tile or options):
        raise StoreError(f"{kernel} has neither tile nor switches of ours")
    return {"kernel": kernel, "tile": dict(sorted(tile.items())), "options": dict(sorted(options.items()))}
