"""Store of tuning results on disk: a database that several processes and threads read and write at once.

Every entry is plain data, checked when it is made, read or imported; one that does not pass is refused with the reason and stays
where it is. Nothing in a store is ever executed or becomes part of a kernel's source: the user of an entry looks its kernel, tile
and switches up among those that exist (``toprung.dispatch.tuned``).
"""

from __future__ import annotations

from toprung.paths import STORE as VARIABLE
from toprung.store.database import Store
from toprung.store.entry import STATUSES, Book, Entry, Machine, Proof, candidate_key, shape_text
from toprung.store.exchange import FORMAT, Imported, read_exchange, shipped

__all__ = [
    "FORMAT", "STATUSES", "VARIABLE", "Book", "Entry", "Imported", "Machine", "Proof", "Store", "candidate_key",
    "read_exchange", "shape_text", "shipped",
]  # fmt: skip
