"""Dispatch: which kernel family computes a product, with which configuration.

``select`` asks the store of tuned entries (``tuned``), then the families' cost models (``ranking``). An entry of another driver,
compiler or source is verified on first use (``verify``); where nothing is tuned, it may be (``autotune``).
"""

from toprung.errors import BadArgument

PRECISIONS = ("auto", "fp32", "fp32x", "fp32x-strassen", "tf32")
"""Precisions that can be asked for."""

INSTEAD = {"fp32x-strassen": "fp32x"}
"""Precisions that promise less than fp32's accuracy, with what runs where they do not apply."""

ON_REQUEST = (*INSTEAD, "tf32")
"""Precisions that promise less than fp32's accuracy; a product has one only where its own call asks for it."""


def known_precision(precision: str) -> str:
    """Return a precision that can be asked for, or raise BadArgument."""
    if precision not in PRECISIONS:
        raise BadArgument(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    return precision
