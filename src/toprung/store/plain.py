"""Plain data: what an entry may hold, how that is checked, and the one text that equal contents have.

What checks takes anything, for anybody may have written it: it gives back what is good, and raises StoreError with the reason for
what is not.
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

from toprung.errors import StoreError
from toprung.tile import Tile

VENDORS = ("cublas", "numpy")
"""Candidates that are somebody else's: without a tile and switches of ours."""

MOST_SAMPLES = 100_000
LONGEST = 500
MESSAGE = 2000
"""Characters that are kept of a message."""

WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
UNIT = re.compile(r"[A-Za-z][A-Za-z0-9_/]{0,63}")
SWITCH = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


def parsed(text: str | bytes) -> Any:
    """JSON, strictly: no NaN, no Infinity."""

    def refuse(word: str) -> Any:
        raise StoreError(f"it holds {word}, which is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"it is no JSON ({type(error).__name__}: {str(error)[:200]})") from None


def canonical(content: object) -> str:
    """As JSON, one text for one content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str) -> str:
    """A name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def shown(value: object) -> str:
    """A value as a message may hold it: short and printable."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def now() -> str:
    """The date and time, as an entry has it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def number(name: str, value: object) -> float:
    """A positive number, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise StoreError(f"{name} holds positive numbers, not {shown(value)}")
    return float(value)


def sequence(name: str, values: object) -> tuple[Any, ...]:
    """A list that is not too long, checked; what is in it is not."""
    if not isinstance(values, list | tuple) or len(values) > MOST_SAMPLES:
        raise StoreError(f"{name} is a list of at most {MOST_SAMPLES} values, not {shown(values)}")
    return tuple(values)


def samples(name: str, values: object) -> tuple[float, ...]:
    """A list of positive numbers, checked."""
    return tuple(number(name, v) for v in sequence(name, values))


def grade(value: object, status: str) -> float:
    """An error grade, checked: infinite only where the result was not right."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StoreError(f"a grade is a number, not {shown(value)}")
    if status != "right" and not math.isfinite(value):
        return math.inf
    if not 0 <= value < math.inf:
        raise StoreError(f"a grade is 0 or more, not {shown(value)}")
    return float(value)


def shape(given: object) -> dict[str, Any]:
    """A problem's description, checked: names and whole numbers, scalars, words."""
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
    """A candidate, checked: the kernel's name a word, the tile a Tile's numbers, switches names with small numbers."""
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
    if kernel in VENDORS and (tile or options):
        raise StoreError(f"{kernel} has neither tile nor switches of ours")
    return {"kernel": kernel, "tile": dict(sorted(tile.items())), "options": dict(sorted(options.items()))}
