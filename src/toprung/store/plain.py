"""Checks of the plain data that an entry may hold, and its canonical text.

Each check takes any value, because anybody may have written it: it returns a good value, and raises StoreError with the reason for
any other.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from toprung.errors import DAMAGE, StoreError
from toprung.tile import Tile

MOST_SAMPLES = 100_000
"""Largest number of samples of an entry."""
LONGEST = 500
"""Largest number of characters of a line of text."""
MESSAGE = 2000
"""Number of characters that are kept of a message."""

WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
UNIT = re.compile(r"[A-Za-z][A-Za-z0-9_/]{0,63}")
SWITCH = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


def parsed(text: str | bytes) -> Any:
    """Return the content of strict JSON; raise StoreError for any other text, NaN and Infinity included."""

    def refuse(word: str) -> Any:
        raise StoreError(f"it holds {word}, which is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except DAMAGE as error:
        raise StoreError(f"it is no JSON ({type(error).__name__}: {str(error)[:200]})") from None


def canonical(content: object) -> str:
    """Return content as canonical JSON: equal contents have equal texts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str) -> str:
    """Return a text's hash, 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def shown(value: object) -> str:
    """Return a value as short, printable text for a message."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def now() -> str:
    """Return the date and time in UTC as an entry stores it, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def number(name: str, value: object) -> float:
    """Return a checked positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise StoreError(f"{name} holds positive numbers, not {shown(value)}")
    return float(value)


def sequence(name: str, values: object) -> tuple[Any, ...]:
    """Return a list checked for its length, as a tuple; its values are not checked."""
    if not isinstance(values, list | tuple) or len(values) > MOST_SAMPLES:
        raise StoreError(f"{name} is a list of at most {MOST_SAMPLES} values, not {shown(values)}")
    return tuple(values)


def samples(name: str, values: object) -> tuple[float, ...]:
    """Return a checked list of positive numbers."""
    return tuple(number(name, v) for v in sequence(name, values))


def grade(value: object, status: str) -> float:
    """Return a checked error grade: infinite only where the result was not right."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StoreError(f"a grade is a number, not {shown(value)}")
    if status != "right" and not math.isfinite(value):
        return math.inf
    if not 0 <= value < math.inf:
        raise StoreError(f"a grade is 0 or more, not {shown(value)}")
    return float(value)


def shape(given: object) -> dict[str, Any]:
    """Return a checked description of a problem: names with whole numbers, scalars or words."""
    if not isinstance(given, Mapping) or not 0 < len(given) <= 32:
        raise StoreError(f"a shape says what a problem is, not {shown(given)}")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not WORD.fullmatch(name):
            raise StoreError(f"a shape has nothing called {shown(name)}")
        word = isinstance(value, str) and UNIT.fullmatch(value)
        scalar = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
        if not word and not scalar and value is not None:
            raise StoreError(f"{name} of a shape is {shown(value)}")
        # α = 1 and α = 1.0 are the same shape
        checked[name] = float(value) if name in ("alpha", "beta") and scalar else value
    if not isinstance(checked.get("routine"), str):
        raise StoreError("a shape says its routine")
    for name in ("M", "N", "K", "batch"):
        if name in checked and not (isinstance(checked[name], int) and 0 <= checked[name] < 2**31):
            raise StoreError(f"{name} is a size below 2**31, not {shown(checked[name])}")
    return checked


def candidate(given: object) -> dict[str, Any]:
    """Return a checked candidate: its kernel is a word, its tile a Tile's numbers, its switches names with small numbers."""
    if not isinstance(given, Mapping) or not {"kernel"} <= given.keys() <= {"kernel", "tile", "options"}:
        raise StoreError(f"a candidate has a kernel, a tile and options, not {shown(given)}")
    kernel, tile, options = given["kernel"], given.get("tile") or {}, given.get("options") or {}
    if not isinstance(kernel, str) or not WORD.fullmatch(kernel):
        raise StoreError(f"a kernel is named by a word such as gemm, not {shown(kernel)}")
    if not isinstance(tile, Mapping) or not isinstance(options, Mapping):
        raise StoreError(f"tile and options are objects, not {shown(tile)} and {shown(options)}")
    names = {f.name for f in fields(Tile)}
    for name, value in tile.items():
        if name not in names or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 20:
            raise StoreError(f"a tile has no {shown(name)} of {shown(value)}")
    if tile:
        try:
            Tile(**tile)
        except (TypeError, ValueError) as error:
            raise StoreError(f"no tile is {shown(dict(tile))}: {error}") from None
    for name, value in options.items():
        word = isinstance(name, str) and SWITCH.fullmatch(name)
        if not word or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise StoreError(f"a switch has a name in capitals and a whole number, not {shown(name)} and {shown(value)}")
    return {"kernel": kernel, "tile": dict(sorted(tile.items())), "options": dict(sorted(options.items()))}
