"""Rows of timed candidates in result files, which a check and ``benchmarks/routes.py`` write and the fits of cost models read."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from toprung.dispatch.selection import Candidate, decoded
from toprung.tune.trial import Sampled


class Row(NamedTuple):
    """A timed candidate, with its fields in the order of the file.

    Attributes
    ----------
    status, message : as in ``Sampled``
    samples : number of samples; of a single one, a library's is perhaps of its first call, which loads the kernel
    seconds : median, s
    low, high : the samples a quarter from either end, s; None for a single one
    device : median of the device's own time, s; None for a single sample, and where the host's time is part of it
    """

    candidate: Candidate
    status: str
    samples: int
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    device: float | None = None
    message: str = ""


class Choices(dict[Candidate, int]):
    """Candidates of a result file, each with the number that stands for it in rows."""

    def __missing__(self, candidate: Candidate) -> int:
        return self.setdefault(candidate, len(self))

    def rows(self, sampled: Iterable[tuple[Candidate, Sampled]]) -> list[list[Any]]:
        """Return rows as JSON-ready data."""
        found = []
        for candidate, one in sampled:
            ordered, count = sorted(one.seconds), len(one.seconds)
            row = [self[candidate], one.status, count, statistics.median(ordered) if ordered else None]
            if count > 1:
                own = statistics.median(one.device_seconds) if one.host_seconds and one.device_seconds else None
                row += [ordered[count // 4], ordered[-1 - count // 4], own]
            found.append([*row, *[None] * (7 - len(row)), one.message] if one.message else row)
        return found

    def describe(self) -> dict[str, list[list[Any]]]:
        """Return the candidates as JSON-ready data, in a table for each kernel and names of its tile and options."""
        tables: dict[str, list[list[Any]]] = {}
        for candidate, number in self.items():
            stored = candidate.encode()
            tile, options = stored["tile"], stored["options"]
            names = " ".join([stored["kernel"], *tile, "/", *options])
            tables.setdefault(names, []).append([number, *tile.values(), *options.values()])
        return tables


def candidates(record: Mapping[str, Any]) -> dict[int, Candidate]:
    """Return the candidates of a result file by their numbers."""
    known: dict[int, Candidate] = {}
    for table, lines in record["choices"].items():
        kernel, *names = table.split()
        at = names.index("/")
        for number, *values in lines:
            tile, options = zip(names[:at], values[:at], strict=True), zip(names[at + 1 :], values[at:], strict=True)
            known[number] = decoded({"kernel": kernel, "tile": dict(tile), "options": dict(options)})
    return known


def read(record: Mapping[str, Any], again: bool = True) -> list[list[Row]]:
    """Return the rows of each shape of a result file; ``again``: with those of a check's second samples behind the first."""
    known = candidates(record)
    stored = [[*shape["measured"], *(shape.get("again", ()) if again else ())] for shape in record["shapes"]]
    return [[Row(known[number], *rest) for number, *rest in one] for one in stored]


def right(timed: Iterable[Row]) -> list[tuple[Candidate, float]]:
    """Return the candidates whose results are right with their median seconds."""
    return [(row.candidate, row.seconds) for row in timed if row.status == "right" and row.seconds]
