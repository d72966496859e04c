"""Store of tuning results on disk: a database that several processes and threads read and write at once.

Every entry is plain data, checked when it is made, read or imported; one that does not pass is refused with the reason and stays
where it is. Nothing in a store is ever executed or becomes part of a kernel's source: the user of an entry looks its kernel, tile
and switches up among those that exist (``toprung.dispatch.tuned``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toprung.store.switch import FILE, VARIABLE, off

if TYPE_CHECKING:
    from toprung.store.database import Store
    from toprung.store.entry import STATUSES, Book, Entry, Machine, Proof, candidate_key, shape_text
    from toprung.store.exchange import FORMAT, Imported, read_exchange, shipped

MODULES = {
    "database": ("Store",),
    "entry": ("STATUSES", "Book", "Entry", "Machine", "Proof", "candidate_key", "shape_text"),
    "exchange": ("FORMAT", "Imported", "read_exchange", "shipped"),
}
"""Names of the package by the module that they are in."""

__all__ = [
    "FILE", "FORMAT", "STATUSES", "VARIABLE", "Book", "Entry", "Imported", "Machine", "Proof", "Store", "candidate_key", "off",
    "read_exchange", "shape_text", "shipped",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the module of a name when somebody asks for it first: a program that only imports toprung reads no store."""
    for module, names in MODULES.items():
        if name in names:
            return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.{module}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
