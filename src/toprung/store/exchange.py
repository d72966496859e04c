"""Entries as JSON: the format that carries them to another machine, and in which some come with the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.errors import NotWritten, StoreError
from toprung.paths import deliver
from toprung.store import plain
from toprung.store.entry import Entry, Machine, version
from toprung.store.plain import shown

FORMAT = "toprung store 2"
"""Format of exchange files."""

SHIPPED = Path(__file__).parent / "shipped"
"""Folder of the entries that come with the package, in files ``<device>-<backend>.json``."""

LARGEST_FILE = 256 << 20
"""Bytes of the largest exchange file that is read."""

Vet = Callable[[Entry], str]
"""Function that returns why an entry is of no use here, empty if it is of use."""


@dataclass(frozen=True)
class Imported:
    """Result of an import or a merge.

    Attributes
    ----------
    taken : number of entries added, because they are new or newer
    known : number of entries that were there already, as new or newer
    refused : place and reason for each entry that was refused
    """

    taken: int
    known: int
    refused: tuple[tuple[str, str], ...] = ()


def write_exchange(target: Path | Any, entries: Iterable[Entry]) -> int:
    """Write entries to a path, whole or not at all, or to an open text file; return their number. ``-`` is standard output."""
    chosen = list(entries)
    head = {"format": FORMAT, "version": version(), "date": plain.now()}
    lines = ",\n".join(plain.canonical(e.describe()) for e in chosen)
    text = f'{plain.canonical(head)[:-1]},"entries":[\n{lines}\n]}}\n'
    if hasattr(target, "write"):
        target.write(text)
    else:
        try:
            deliver(Path(target), text.encode())
        except NotWritten as error:
            raise StoreError(str(error)) from error.__cause__
    return len(chosen)


def read_exchange(path: Path, refused: list[tuple[str, str]]) -> list[Entry]:
    """Return the entries of an exchange file; place and reason of each damaged one are appended to ``refused``.

    Raises
    ------
    StoreError
        there is no such file, or it is not of this format
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise StoreError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, which no store's export is")
        content = plain.parsed(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    except StoreError as error:
        raise StoreError(f"{path} is not taken: {error}") from None
    known = isinstance(content, dict) and content.get("format") == FORMAT
    if not known or not isinstance(content.get("entries"), list):
        given = content.get("format") if isinstance(content, dict) else content
        raise StoreError(f"{path} is no export of a store, which has the format {FORMAT!r}, not {shown(given)}: nothing was taken")
    found = []
    for i, one in enumerate(content["entries"], start=1):
        try:
            found.append(Entry.read(one))
        except StoreError as error:
            refused.append((f"entry {i} of {path}", str(error)))
    return found


def shipped(
    machine: Machine, complaints: list[str] | None = None, elsewhere: Callable[[Entry], bool] = lambda entry: True
) -> list[Entry]:  # fmt: skip
    """Return the entries that come with the package for a device, whatever their driver.

    An x86-64 processor under PoCL without entries gets those of the other such processors, which are verified before their first
    use like any of another driver. ``elsewhere`` returns True for entries that may count on another processor: those of libraries
    installed there may not.
    """
    path = SHIPPED / f"{machine.device}-{machine.backend}.json"
    if path.exists():
        found = _shipped_in(path, complaints)
        return [e for e in found if (e.machine.device, e.machine.backend) == (machine.device, machine.backend)]
    if not _is_pocl(machine):
        return []
    others = every_shipped(f"*-{machine.backend}.json", complaints)
    return [e for e in others if _is_pocl(e.machine) and elsewhere(e)]


def every_shipped(files: str = "*.json", complaints: list[str] | None = None) -> list[Entry]:
    """Return the entries that come with the package in all files whose names match the pattern ``files``."""
    return [e for one in sorted(SHIPPED.glob(files)) for e in _shipped_in(one, complaints)]


def _shipped_in(path: Path, complaints: list[str] | None) -> list[Entry]:
    refused: list[tuple[str, str]] = []
    try:
        found = read_exchange(path, refused)
    except StoreError as error:
        refused.append((str(path), str(error)))
        found = []
    if complaints is not None:
        complaints += [f"{where}: {reason}" for where, reason in refused]
    return found


def _is_pocl(machine: Machine) -> bool:
    """Return True if a machine is an x86-64 processor under PoCL."""
    return machine.backend == "opencl" and "PoCL" in machine.compiler and "x86_64" in machine.compiler
