"""Switch of the store: ``TOPRUNG_STORE=off``."""

from __future__ import annotations

import os

VARIABLE = "TOPRUNG_STORE"
"""Environment variable that, set to ``off``, makes toprung ignore the user's store and the shipped entries."""


def off() -> bool:
    """Return True if the environment says to ignore the user's store and the shipped entries."""
    return os.environ.get(VARIABLE, "").lower() == "off"
