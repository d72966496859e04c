"""Migrations of the database: each upgrades one schema to the next, within the caller's transaction."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from toprung.errors import StoreError
from toprung.store import exchange, plain
from toprung.store.entry import Entry
from toprung.store.versions import RENAMED, TOKENS, token_hash, upgraded

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


def create(db: sqlite3.Connection) -> None:
    """Create the tables of schema 1."""
    for statement in TABLES.split(";"):
        db.execute(statement)


def hash_tokens(db: sqlite3.Connection) -> None:
    """Migrate schema 1 to 2: kernel hashes cover tokens, families have names. Proofs follow their entries, shipped ones too."""
    renamed = _rewrite(db, upgraded)
    for entry in exchange.every_shipped():
        for old, new in TOKENS.items():
            for name in (name for name, today in RENAMED.items() if today == entry.kernel):
                if new.get(entry.machine.backend) == entry.source:
                    before = dataclasses.replace(entry, source=old, candidate={**entry.candidate, "kernel": name})
                    renamed.setdefault(before.id, entry.id)
    for number, entry_id, machine, source in db.execute("SELECT rowid, entry, machine, source FROM proofs").fetchall():
        backend = plain.parsed(machine)[2]
        values = renamed.get(entry_id, entry_id), token_hash(source, backend), number
        db.execute("UPDATE OR REPLACE proofs SET entry = ?, source = ? WHERE rowid = ?", values)


def _rewrite(db: sqlite3.Connection, change: Callable[[Any], Any]) -> dict[str, str]:
    """Rewrite the content of every sound row and the columns derived from it; return new ids by old ones. Damaged rows stay."""
    renamed: dict[str, str] = {}
    for number, text in db.execute(f"SELECT rowid, {CONTENT} FROM entries ORDER BY rowid").fetchall():
        try:
            content = plain.parsed(text)
            before, after = Entry.read(content), Entry.read(change(content))
        except StoreError:
            continue
        renamed[before.id] = after.id
        row = {
            "id": after.id, "kernel": after.kernel, "source": after.source, "key": after.key,
            "content": plain.canonical(after.describe()),
        }  # fmt: skip
        assigned = ", ".join(f"{name} = ?" for name in row)
        db.execute(f"UPDATE OR REPLACE entries SET {assigned} WHERE rowid = ?", [*row.values(), number])
    return renamed


MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {0: create, 1: hash_tokens}
"""Migrations by the schema that each starts from."""

SCHEMA = len(MIGRATIONS)
"""Schema of today, stored as the database's ``user_version``."""
