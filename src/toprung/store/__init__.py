"""Store of tuning results on disk: a database that several processes and threads read and write at once.

Every entry is plain data, checked when it is made, read or imported; one that does not pass is refused with the reason and stays
where it is. Nothing in a store is ever executed or becomes part of a kernel's source: the user of an entry looks its kernel, tile
and switches up among those that exist (``toprung.dispatch.tuned``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toprung.store.entry import STATUSES, Book, Entry, Machine, Proof, candidate_key, shape_text
from toprung.store.exchange import FORMAT, Imported, read_exchange, shipped
from toprung.store.switch import VARIABLE, off

if TYPE_CHECKING:
    from toprung.store.database import Store

__all__ = [
    "FORMAT",
    "STATUSES",
    "VARIABLE",
    "Book",
    "Entry",
    "Imported",
    "Machine",
    "Proof",
    "Store",
    "candidate_key",
    "off",
    "read_exchange",
    "shape_text",
    "shipped",
]


def __getattr__(name: str) -> Any:
    """Load the database, and SQLite with it, when somebody asks for it first: most programs multiply and store nothing."""
    if name == "Store":
        from toprung.store.database import Store

        return Store
    raise AttributeError(f"module 'toprung.store' has no attribute {name!r}")
