"""Helpers of several commands: consoles, tables, and how sizes, rungs and switches are written."""

from __future__ import annotations

import hashlib
import os
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, RenderableType

from toprung.errors import BadArgument, BadSize, UnknownName
from toprung.oracle.problem import Problem
from toprung.paths import cache_dir, is_standard_output, is_stream, locked, refusal
from toprung.report.grid import Grid, left_out


def _console(stderr: bool = False) -> Console:
    made = Console(stderr=stderr)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = 132  # a file or a pipe has no width of its own
    return made


console, errors_console = _console(), Console(stderr=True)

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C, and after SIGTERM, which ends a command the same way."""

LADDERS = "hopper, hopper_fp32, kepler, matvec, turing, webgpu, or one of the folders in TOPRUNG_LADDERS"
"""Help of an argument that names a ladder."""

WIDE = typer.Option("--wide", help="show every column, however wide the terminal is")
"""Option of commands that show tables."""

_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d+)?)([smh])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


MOST_SIZES, DIGITS = 10_000, 18
"""Sizes of a range, and digits of a whole number, that are not taken for a slip of the hand."""

MOST_TEXT = 100
"""Cells of a text in a table that goes to a file or a pipe; ``--wide`` shows all of it."""


def table_width(wide: bool) -> int | None:
    """Return the cells that a table may take; None, no limit, for ``--wide`` and for a file or a pipe."""
    return None if wide or (not console.is_terminal and "COLUMNS" not in os.environ) else console.width


def put(what: RenderableType) -> None:
    """Print a table or a text; lines that go to a file or a pipe end where their text does, without the blanks that fill them."""
    if console.is_terminal:
        console.print(what, crop=False)
        return
    with console.capture() as printed:
        console.print(what, crop=False)
    console.out("\n".join(line.rstrip() for line in printed.get().splitlines()), highlight=False)


def show(grid: Grid, wide: bool) -> tuple[str, ...]:
    """Print a table whose numbers are whole, and one line on what is left out of it; return the columns that are left out."""
    width = table_width(wide)
    table, hidden, taken = grid.fitted(width, None if wide else MOST_TEXT)
    before = console.width
    console.width = max(before, taken)  # what is too wide all the same goes past the edge, uncut
    put(table)
    console.width = before
    if hidden:
        say(left_out(hidden, width), "dim")
    return hidden


def say(text: str, style: str = "", indent: int = 0, to: Console | None = None) -> None:
    """Print a line of text to ``to`` (by default standard output): on a terminal broken between words, elsewhere whole.

    ``indent``: cells that its second line and those behind it begin with.
    """
    to = to or console
    if to.is_terminal:
        broken = textwrap.TextWrapper(to.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(broken.fill(line) for line in text.split("\n"))
    to.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def end(failures: Sequence[str], interrupted: bool = False, failed: bool | None = None) -> None:
    """Print the failures of a command whose results are shown and stored; exit if it failed.

    If ``interrupted``, the exit status is that of Ctrl-C or SIGTERM, else 1. ``failed``: by default, if there are failures.
    """
    for line in failures:
        say(line, "bold red")
    if interrupted:
        console.print("interrupted: what is above is what had been measured", style="yellow")
        raise typer.Exit(INTERRUPTED)
    if bool(failures) if failed is None else failed:
        raise typer.Exit(1)


def parse_seconds(text: str) -> float:
    """Return the seconds of a text: ``60s``, ``5m``, ``1h``.

    Raises
    ------
    BadArgument
        the text is anything else, or its amount is 0
    """
    found = _AMOUNT.fullmatch(text.strip())
    if not found or float(found.group(1)) <= 0:
        unit = ": a number alone is of configurations, which only toprung tune counts" if is_whole(text) else ""
        raise BadArgument(f"a budget is a time such as 60s, 5m or 1h, not {text!r}{unit}")
    return float(found.group(1)) * _UNITS[found.group(2)]


def checked_file(path: Path) -> Path:
    """Return the path of a file to be written: refused now, not when everything has been measured.

    Raises
    ------
    BadArgument
        it cannot be written, with the reason
    """
    if reason := refusal(path):
        raise BadArgument(f"{path} cannot be written ({reason}): name another file")
    return path


def result_file(context: typer.Context, path: Path | None) -> Path | None:
    """Return the path of a file to be written, as a callback of options; ``-`` sends tables and texts to standard error.

    Raises
    ------
    BadArgument
        it cannot be written, or another option names it, too
    """
    if path is None:
        return None
    place = "-" if is_standard_output(checked_file(path)) else os.path.realpath(path)
    if place in context.meta and (place == "-" or not is_stream(path)):
        raise BadArgument(f"{path} is named twice: of two files in one place one would be lost")
    context.meta[place] = path
    if place == "-":
        vars(console).update(vars(_console(stderr=True)))  # until the command ends: the name is imported everywhere
    return path


def page_file(context: typer.Context, folder: Path) -> Path:
    """Return the path of a page: ``index.html`` in a folder, or ``-``, a device or a pipe itself; raise as ``result_file``."""
    path = folder if is_stream(folder) else folder / "index.html"
    result_file(context, path)
    return path


def record_file(context: typer.Context, path: Path | None) -> Path | None:
    """Return the path of a record to be written, which is this command's until it ends: of two, one would lose its record.

    Raises
    ------
    BadArgument
        another command writes it, or as for ``result_file``
    """
    if result_file(context, path) is not None and path is not None and not is_stream(path):
        mark = cache_dir() / "writing" / hashlib.sha256(os.path.realpath(path).encode(errors="replace")).hexdigest()
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
        try:
            context.with_resource(locked(mark, wait=False))
        except BlockingIOError:
            raise BadArgument(f"{path} is what another command writes that runs now: name another file") from None
        except OSError:
            pass  # no locks here
        if not path.parent.exists():
            say(f"{path.parent} is not there, and will be made", "dim", to=errors_console)
    return path


def json_option(text: str) -> Any:
    """Return the option ``--json`` of a command; ``text`` is its help."""
    return typer.Option("--json", help=text, callback=record_file)


def parse_sizes(text: str) -> list[tuple[int, ...]]:
    """Parse ``512``, ``35x79x19``, ``256:1024:256`` (both ends included), or several of these with commas.

    Raises
    ------
    BadSize
        not numbers, or not positive; before anything is allocated
    """
    sizes: list[tuple[int, ...]] = []
    for word in text.split(","):
        if ":" in word:
            bounds = [_number(part, word) for part in word.split(":")]
            if len(bounds) != 3:
                raise BadSize(f"a range of sizes is first:last:step, not {word!r}")
            first, last, step = bounds
            if not 0 < (last - first) // step + 1 <= MOST_SIZES:
                raise BadSize(f"the range {word!r} is empty" if first > last else f"{word!r} is more than {MOST_SIZES} sizes")
            sizes += [(n,) for n in range(first, last + 1, step)]
        else:
            sizes.append(tuple(_number(part, word) for part in word.lower().split("x")))
    return sizes


def _number(text: str, word: str) -> int:
    if not is_whole(text.strip()) or int(text) == 0:
        raise BadSize(f"sizes are positive whole numbers such as 512, 35x79x19 or 256:1024:256, not {word!r}")
    return int(text)


def is_whole(text: str) -> bool:
    """Return True for the digits of a whole number, of which there are not too many for one of anything."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS


def size_name(size: tuple[int, ...]) -> str:
    """Return a size as a person writes it."""
    return "×".join(map(str, size))


def parse_numbers(text: str, known: Sequence[int], what: str) -> list[int]:
    """Parse ``3``, ``1-5``, or several of these with commas; every number must be known.

    Raises
    ------
    UnknownName
        a number that does not exist, or no number at all
    """
    chosen: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if not is_whole(first) or (dash and not is_whole(last)):
            raise UnknownName(what, word, map(str, known))
        if last and int(last) < int(first):
            raise UnknownName(what, word, [f"{last}-{first}"])
        wanted = range(int(first), int(last or first) + 1)
        if not wanted or any(n not in known for n in wanted):
            raise UnknownName(what, word, map(str, known))
        chosen += wanted
    return chosen


def parse_switches(words: Sequence[str]) -> dict[str, int]:
    """Parse ``NAME`` or ``NAME=VALUE``, each once.

    Raises
    ------
    UnknownName
        a value that is no number
    """
    chosen = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and not is_whole(value):
            raise UnknownName(f"value of {name}", value, ["whole numbers"])
        chosen[name] = int(value or 1)
    return chosen


def parse_tile(words: Sequence[str]) -> dict[str, int]:
    """Parse ``NAME=VALUE`` for parameters of a tile, which have no value of their own.

    Raises
    ------
    UnknownName
        a value that is missing or no number
    """
    if bare := [word for word in words if "=" not in word]:
        raise UnknownName(f"value of {bare[0]}", "", [f"{bare[0]}=64, say"])
    return parse_switches(words)


def with_settings(problem: Problem, words: Sequence[str]) -> Problem:
    """Return a problem with some of its attributes, other than its sizes, set by ``NAME=VALUE``.

    Raises
    ------
    UnknownName
        an attribute it does not have
    BadSize
        a value that is none for the attribute
    """
    assert is_dataclass(problem)
    known = [f.name for f in fields(problem) if f.name not in ("M", "N", "K")]
    values: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise UnknownName(f"setting of {problem.routine}", name, known)
        kind = type(getattr(problem, name))
        try:
            values[name] = kind(value)
        except ValueError:
            raise BadSize(f"{name} must be {'a number' if kind is float else 'an integer'}, not {value!r}") from None
    return replace(problem, **values)
