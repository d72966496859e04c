"""The store: a database of entries that several processes and threads read and write at once."""

from __future__ import annotations

import datetime
import functools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from toprung.errors import StoreError
from toprung.paths import STORE_FILE, data_dir
from toprung.store import plain, tables
from toprung.store.entry import Book, Entry, Machine, Proof, shape_text
from toprung.store.exchange import Imported, Vet, read_exchange, write_exchange

EACH = 4
"""Default number of entries of a shape and kernel that ``Store.fastest`` returns."""


class Store:
    """The database of tuned entries. Every call opens it anew, so that a Store may be shared by threads and survives a fork.

    Writing raises StoreError where the folder is read-only, the disk full, or the file not a store of this toprung; what was
    there stays as it was. An entry is added whole or not at all, whatever happens to the process.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    _instead: ClassVar[Store | None] = None

    @classmethod
    def default(cls) -> Store:
        """Return the user's own store (``TOPRUNG_DATA`` moves it)."""
        return cls._instead or _of_user(data_dir())

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Use this store in place of the user's own, in this process and within the ``with`` block."""
        before, Store._instead = Store._instead, self
        try:
            yield
        finally:
            Store._instead = before

    def add(self, entry: Entry, *more: Entry) -> None:
        """Add entries in one transaction; an entry of the same machine, shape, candidate and source is replaced."""
        with self._writing() as db:
            for one in (entry, *more):
                tables.insert(db, one)

    def ready(self) -> None:
        """Raise StoreError if entries could not be added, before they are measured."""
        with self._writing():
            pass

    def entries(
        self, machine: Machine | None = None, *, complaints: list[str] | None = None, **filters: str | None
    ) -> Iterator[Entry]:  # fmt: skip
        """Yield every entry, oldest first.

        Parameters
        ----------
        machine : only entries of its device and backend, whatever the driver
        complaints : list to which the reason is appended for each damaged row that is passed over
        filters : required values by a name of ``toprung.store.tables.FILTERS``; None: any
        """
        for _, entry in self._rows(machine, filters, complaints):
            if entry is not None:
                yield entry

    def fastest(
        self, machine: Machine | None = None, each: int = EACH, complaints: list[str] | None = None, **filters: str | None
    ) -> list[Entry]:
        """Return the ``each`` fastest right entries of each shape, kernel, source and machine, by the unmarked samples' median.

        ``machine``: only entries of its device and backend, whatever the driver; None: all.
        """
        where, values = tables.where_clause(machine, {**filters, "status": "right"})
        place = "row_number() OVER (PARTITION BY shape, kernel, source, machine ORDER BY median)"
        ranked = f"SELECT rowid, content, median, {place} AS place FROM entries{where}"
        query = f"SELECT rowid, {tables.CONTENT} FROM ({ranked}) WHERE place <= ? ORDER BY median"
        return [entry for _, entry in self._entries(query, [*values, each], complaints) if entry is not None]

    def best(self, machine: Machine, shape: Mapping[str, Any]) -> Entry | None:
        """Return the fastest right entry of a shape, by the median of its unmarked samples; None if there is none."""
        return min(self.fastest(machine, 1, shape=shape_text(shape)), key=lambda e: e.median, default=None)

    def neighbours(
        self, machine: Machine, problem_class: str, sizes: tuple[int, int, int, int], factor: float = 2.0,
        kept: Callable[[Entry], bool] = lambda entry: True,
    ) -> list[Entry]:  # fmt: skip
        """Return the fastest right entry of each shape of a class whose sizes are at most ``factor`` apart, nearest shape first.

        Only entries count for which ``kept`` returns True.
        """
        book = Book(filter(kept, self.fastest(machine, 1, problem_class=problem_class)))
        return [found[0] for _, found in book.near(problem_class, sizes, factor)]

    def tried(self, machine: Machine, shape: Mapping[str, Any]) -> set[str]:
        """Return the keys (``candidate_key``) of candidates tried on a shape with this very driver and compiler, right or not."""
        with self._reading() as db:
            if db is None:
                return set()
            values = tables.place(machine), shape_text(shape)
            return {str(key) for (key,) in db.execute("SELECT key FROM entries WHERE machine = ? AND shape = ?", values)}

    def clear(self, machine: Machine | None = None, **filters: str | None) -> int:
        """Remove entries (filters as for ``entries``), or all; return their number."""
        with self._writing() as db:
            where, values = tables.where_clause(machine, filters)
            gone = db.execute(f"DELETE FROM entries{where}", values).rowcount
            db.execute("DELETE FROM proofs WHERE entry NOT IN (SELECT id FROM entries)" if where else "DELETE FROM proofs")
        return gone

    def clear_damaged(self) -> str:
        """Remove damaged rows, or move a file aside that is no store at all; return a sentence that says what was done."""
        try:
            bad = [number for number, entry in self._rows(None, {}, []) if entry is None]
        except StoreError:
            if not self.path.exists() or tables.healthy(self.path):
                raise
            aside = self._move_aside()
            return f"{self.path} was moved to {aside}: delete it, or save from it what you can"
        with self._writing() as db:
            db.executemany("DELETE FROM entries WHERE rowid = ?", [(n,) for n in bad])
        return f"{len(bad)} damaged entries were removed from {self.path}"

    def prove(self, proof: Proof) -> None:
        """Store the result of an entry's second verification."""
        row = proof.entry, tables.place(proof.machine), proof.source, proof.message[: plain.MESSAGE], plain.now()
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO proofs VALUES (?, ?, ?, ?, ?)", row)

    def unprove(self, proof: Proof) -> None:
        """Remove the result of an entry's second verification on a machine."""
        with self._writing() as db:
            row = proof.entry, tables.place(proof.machine), proof.source
            db.execute("DELETE FROM proofs WHERE entry = ? AND machine = ? AND source = ?", row)

    def proofs(self, machine: Machine) -> list[Proof]:
        """Return the results of second verifications on this machine with this driver and compiler."""
        with self._reading() as db:
            if db is None:
                return []
            found = db.execute("SELECT entry, source, message FROM proofs WHERE machine = ?", (tables.place(machine),)).fetchall()
        return [Proof(str(e), machine, str(s), str(m)) for e, s, m in found]

    def export(self, target: Path | Any, entries: Iterable[Entry] | None = None) -> int:
        """Write entries (by default all) as JSON to a path, whole or not at all, or to an open text file; return their number."""
        return write_exchange(target, self.entries() if entries is None else entries)

    def import_(self, source: Path | str, vet: Vet = lambda entry: "") -> Imported:
        """Add the entries of an exchange file; of two that differ only in their samples the newer one is kept.

        Parameters
        ----------
        vet : function that returns why an entry is of no use here (``toprung.dispatch.tuned.refusal``), empty if it is of use

        Raises
        ------
        StoreError
            the file is no exchange file at all; single damaged entries are listed as refused in the result
        """
        refused: list[tuple[str, str]] = []
        good = read_exchange(Path(source), refused)
        return self._take(good, refused, vet)

    def merge(self, other: Path | str, vet: Vet = lambda entry: "") -> Imported:
        """Add the entries of another database, which stays as it is; the newer of two is kept. ``vet`` as for ``import_``."""
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
                    tables.insert(db, entry)
                    taken += 1
        return Imported(taken, len(good) - taken, (*refused, *more))

    def _rows(
        self, machine: Machine | None, filters: Mapping[str, str | None], complaints: list[str] | None
    ) -> list[tuple[int, Entry | None]]:
        """Return row numbers with their entries, None for a damaged one."""
        where, values = tables.where_clause(machine, filters)
        return self._entries(f"SELECT rowid, {tables.CONTENT} FROM entries{where} ORDER BY rowid", values, complaints)

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
        """Yield a connection that changes nothing; None where there is no store yet."""
        with self._explained("read"):
            if not self.path.exists():
                yield None
                return
            db = tables.open_to_read(self.path)
            with closing(db):
                tables.refuse(db, self.path)
                # a process that was killed while it made the file leaves it empty
                yield db if db.execute("PRAGMA user_version").fetchone()[0] else None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection within a transaction that holds the write lock; commit at the end, roll back on an error."""
        with self._explained("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=tables.BUSY, isolation_level=None)) as db:
                tables.refuse(db, self.path)
                tables.log_beside(db)
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute("BEGIN IMMEDIATE")
                try:
                    tables.create(db, self.path)
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise SQLite's and the system's errors as StoreError, with advice."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.path} cannot be {what}: {error.strerror}; {tables.MOVE}") from None
        except (sqlite3.Error, UnicodeError) as error:
            raise StoreError(f"{self.path} cannot be {what}: {error}; {tables.advice(error, self.path)}") from None

    def _move_aside(self) -> Path:
        """Rename the file and its write-ahead log; return the new path."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        with self._explained("moved"):
            for end in ("-wal", "-shm", ""):
                beside = self.path.with_name(self.path.name + end)
                if beside.exists():
                    beside.rename(aside.with_name(aside.name + end))
        return aside


def _when(date: object) -> datetime.datetime:
    """Return a date for comparison: without a time zone it is UTC, and an invalid date is older than all."""
    try:
        found = datetime.datetime.fromisoformat(str(date))
    except ValueError:
        found = datetime.datetime.min
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


@functools.cache
def _of_user(folder: Path) -> Store:
    return Store(folder / STORE_FILE)
