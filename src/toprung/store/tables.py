"""SQLite file of a store: made, opened, told from other databases, and with advice on its errors."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from toprung.errors import StoreError
from toprung.store import plain
from toprung.store.entry import Entry, Machine, shape_text

APPLICATION = 0x746F7072
"""Value of the database's ``application_id``: the letters "topr" in ASCII."""

SCHEMA = 2
"""Schema of the tables, stored as the database's ``user_version``."""

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

CONTENT = "CAST(content AS BLOB)"
"""SQL expression for an entry's content as bytes: content that is no valid text must not keep other rows from being read."""

BUSY, BUSY_READING = 30.0, 3.0
"""Seconds to wait for another writer: to write, and to read where there is no write-ahead log and a writer locks readers out."""

MOVE = "set TOPRUNG_DATA to a folder that can be written, or TOPRUNG_STORE=off"

DAMAGED = re.compile("not a database|malformed|no such (table|column)")
"""Pattern of SQLite's messages about a damaged file."""

FILTERS = ("device", "backend", "problem_class", "shape", "kernel", "status")
"""Names that entries can be filtered by; ``shape`` as ``shape_text`` writes it."""


def insert(db: sqlite3.Connection, e: Entry) -> None:
    """Write an entry's row, within the caller's transaction."""
    m = e.machine
    row = {
        "id": e.id, "device": m.device, "backend": m.backend, "machine": place(m), "problem_class": e.problem_class,
        "shape": shape_text(e.shape), "kernel": e.kernel, "source": e.source, "key": e.key, "status": e.status,
        "median": e.median if e.seconds else None, "date": e.date, "content": plain.canonical(e.describe()),
    }  # fmt: skip
    db.execute(f"INSERT OR REPLACE INTO entries ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))


def where_clause(machine: Machine | None, filters: Mapping[str, str | None]) -> tuple[str, list[str]]:
    """Return a WHERE clause and its values. Names come from ``FILTERS``, and values never enter the text."""
    wanted = {} if machine is None else {"device": machine.device, "backend": machine.backend}
    for name, value in filters.items():
        if name not in FILTERS:
            raise StoreError(f"entries are filtered by {', '.join(FILTERS)}, not by {name!r}")
        if value is not None:
            wanted[name] = value
    clause = " AND ".join(f"{name} = ?" for name in wanted)
    return (f" WHERE {clause}" if clause else ""), list(wanted.values())


def place(m: Machine) -> str:
    """Return a machine as canonical text: equal machines have equal texts."""
    return plain.canonical([m.device, m.name, m.backend, m.driver, m.compiler])


def open_to_read(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write; in a read-only folder, one that reads the file as immutable, without its log."""
    address = path.absolute().as_uri()
    for mode in ("mode=ro", "immutable=1"):
        db = sqlite3.connect(f"{address}?{mode}", uri=True, timeout=BUSY_READING, isolation_level=None)
        try:
            db.execute("PRAGMA schema_version").fetchone()
            return db
        except sqlite3.OperationalError as error:
            db.close()
            # reading with a write-ahead log needs a file beside the database, which cannot be made in a read-only folder
            if mode != "mode=ro" or not re.search("unable to open|readonly", str(error)):
                raise
    raise AssertionError


def log_beside(db: sqlite3.Connection) -> None:
    """Switch on the write-ahead log, so that readers go on while somebody writes; network file systems may refuse."""
    if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        with suppress(sqlite3.OperationalError):  # the database is in use: a later writer switches it on
            db.execute("PRAGMA journal_mode = WAL")


def refuse(db: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a database that is not a store, or one with another schema."""
    tables, application, schema = db.execute(
        "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != APPLICATION and (application or tables):
        raise StoreError(f"{path} is a database of another program and was left alone: move it, or {MOVE}")
    if schema not in (0, SCHEMA):
        age, update = ("a newer", "update toprung, or ") if schema > SCHEMA else ("an older, unreleased", "")
        raise StoreError(
            f"{path} was written by {age} toprung (schema {schema}, this one knows {SCHEMA}) and was left alone: "
            f"{update}set TOPRUNG_DATA to another folder for this version"
        )


def healthy(path: Path) -> bool:
    """Return True if a file is an undamaged database as far as can be seen: a store of any version, or another program's."""
    try:
        with closing(open_to_read(path)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            sound = db.execute("PRAGMA quick_check").fetchone()[0] == "ok"
            tables = {str(r[0]) for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            schema = db.execute("PRAGMA user_version").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.Error as error:
        return not DAMAGED.search(str(error))
    return sound and (application != APPLICATION or schema > SCHEMA or tables >= {"entries", "proofs"})


def create(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new database, within the caller's transaction; leave those of a store as they are."""
    refuse(db, path)  # another process may have been quicker
    if not db.execute("PRAGMA user_version").fetchone()[0]:
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def advice(error: Exception, path: Path) -> str:
    """Return advice on an error of SQLite's, as the end of a sentence."""
    text = str(error)
    if DAMAGED.search(text):
        return "it is damaged and was left alone: toprung store clear --damaged moves it aside"
    if "full" in text or "disk I/O" in text:
        return f"nothing of it was lost: make room on the disk, or {MOVE}"
    if "locked" in text:
        return "another process holds it: try again when that has ended"
    return MOVE
