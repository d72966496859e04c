"""What tuning learnt, on disk: a database that several processes and threads read and write at once."""

from __future__ import annotations

import datetime
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.errors import StoreError
from toprung.paths import data_dir, publish
from toprung.store import plain
from toprung.store.entry import Book, Entry, Machine, Proof, shape_text, version
from toprung.store.plain import MESSAGE, VENDORS, shown

FORMAT = "toprung store 1"
"""Of the exchange files."""

SCHEMA = 1
"""Of the database, in its ``user_version``."""

APPLICATION = 0x746F7072
"""In the database's ``application_id``: "topr"."""

BUSY, BUSY_READING = 30.0, 3.0
"""Seconds to wait for another writer, and for one that keeps readers out, as they do where there is no write-ahead log."""

VARIABLE = "TOPRUNG_STORE"
"""Environment variable: ``off`` leaves the user's store and the shipped entries alone."""

SHIPPED = Path(__file__).parents[1] / "tuned"
"""Entries that come with the package, ``<device>-<backend>.json``."""

LARGEST_FILE = 256 << 20
"""Bytes of an exchange file that is read at all."""

EACH = 4
"""Entries of a shape and kernel that ``Store.fastest`` gives."""


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
        row = proof.entry, _place(proof.machine), proof.source, proof.message[:MESSAGE], plain.now()
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
        head = {"format": FORMAT, "version": version(), "date": plain.now()}
        lines = ",\n".join(plain.canonical(e.describe()) for e in chosen)
        text = f'{plain.canonical(head)[:-1]},"entries":[\n{lines}\n]}}\n'
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
                found.append((number, Entry.read(plain.parsed(text))))
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
        content = plain.parsed(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    except StoreError as error:
        raise StoreError(f"{path} is not taken: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("entries"), list):
        given = content.get("format") if isinstance(content, dict) else content
        raise StoreError(f"{path} is no export of a store, which has the format {FORMAT!r}, not {shown(given)}: nothing was taken")
    found = []
    for i, one in enumerate(content["entries"], start=1):
        try:
            found.append(Entry.read(one))
        except StoreError as error:
            refused.append((f"entry {i} of {path}", str(error)))
    return found


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
        "median": e.median if e.seconds else None, "date": e.date, "content": plain.canonical(e.describe()),
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
    return plain.canonical([m.device, m.name, m.backend, m.driver, m.compiler])


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


def _when(date: object) -> datetime.datetime:
    """A date that can be compared; without a zone it is taken as UTC, and one that is none is older than all."""
    try:
        found = datetime.datetime.fromisoformat(str(date))
    except ValueError:
        found = datetime.datetime.min
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
