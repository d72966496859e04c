"""Switch of the store, ``TOPRUNG_STORE=off``, and the name of its file."""

from __future__ import annotations

import os

from toprung.errors import BadArgument

FILE = "tuned.sqlite"
"""File of the user's store in the folder of data."""

VARIABLE = "TOPRUNG_STORE"
"""Environment variable that, set to ``off``, makes toprung ignore the user's store and the shipped entries."""


def off() -> bool:
    """Return True if the environment says to ignore the user's store and the shipped entries.

    Raises
    ------
    BadArgument
        it says something else than ``on`` and ``off``
    """
    word = os.environ.get(VARIABLE, "").lower()
    if word not in ("", "on", "off"):
        raise BadArgument(f"{VARIABLE} is on or off, not {word!r}")
    return word == "off"
