"""The one rule that says which record a figure comes from where several have it, and the headlines that follow from it.

Where several records of one device and backend have a competitor on a problem in a mode, its figure comes from the record

1. in which each sample was preceded by a run of the same competitor, so that the clock had settled, before one without;
2. in which all compute in fp32, before one with Tensor Cores beside it: their power takes the clock of who comes next;
3. with the most rungs, so that a ladder's figures are of one run as far as can be;
4. that is the newest.

Tables, pictures, the report and README all take figures by it. A baseline is therefore the same figure wherever it stands, whatever
ladder it stands beside.

Headlines are taken by it among the records whose code is in the history (``results.known``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import problem_name

Record = Mapping[str, Any]
Where = TypeVar("Where")
Key = tuple[str, str, str, str, str]
"""Device, backend, competitor, problem, mode."""

LIBRARY = ("matmul", "toprung")
"""Names of the library's whole calls in records, the preferred first."""
VENDORS = ("torch", "cublas", "cupy")
"""Names of what a whole call is held against, the preferred first."""


def standing(record: Record, m: Measurement) -> tuple[bool, bool, int, str]:
    """Return how far up a record stands by the rule, for one of its measurements: the greatest is taken."""
    measured: Sequence[Measurement] = record["measurements"]
    rungs = {one.competitor["name"] for one in measured if one.competitor["kind"] == "rung"}
    settled = m.settle_seconds > 0 or m.mode == "sustained"
    return settled, not any(one.units for one in measured), len(rungs), str(record["environment"]["date"])


def key_of(record: Record, m: Measurement) -> Key:
    """Return what a figure is of."""
    device, who = record["environment"]["device"], m.competitor
    return device["slug"], device["backend"], f"{who['name']} {who['variant']}".rstrip(), problem_name(m.problem), m.mode


def by_rule(
    taken: Iterable[tuple[Where, Measurement]], record_of: Callable[[Where], Record]
) -> dict[Key, tuple[Where, Measurement]]:
    """Return for each figure the measurement that the rule takes, with where it comes from; in the order of first appearance."""
    found: dict[Key, tuple[Where, Measurement]] = {}
    for where, m in taken:
        key, record = key_of(record_of(where), m), record_of(where)
        if key not in found or standing(record, m) > standing(record_of(found[key][0]), found[key][1]):
            found[key] = where, m
    return found


def ladder_of(record: Record) -> str:
    """Return the ladder that a record is of; empty for every other record."""
    names = {m.competitor["ladder"] for m in record["measurements"] if m.competitor["kind"] == "rung"}
    return names.pop() if len(names) == 1 and not record.get("kind") else ""


@dataclass(frozen=True)
class Headline:
    """The best of a kind in one figure.

    Attributes
    ----------
    what : a ladder and a precision, or the library's whole calls
    times : its speed over the vendor's; None without one
    records : where both figures come from
    """

    what: str
    problem: str
    who: str
    speed: float
    unit: str
    vendor: str
    times: float | None
    records: tuple[str, ...]

    @property
    def figure(self) -> str:
        """The speed with its unit."""
        return f"{self.speed:,.0f} {self.unit}"

    @property
    def share(self) -> str:
        """The speed over the vendor's, in words; empty without one."""
        return f"{self.times:.2f} × {self.vendor}" if self.times else ""


def library_headline(
    taken: Sequence[tuple[Where, Measurement]], record_of: Callable[[Where], Record], size: int
) -> Headline | None:
    """Return the headline of whole calls, sustained, at one size of square products; None where they were not measured so.

    Both figures are of one record, in which calls of the library and of the vendor took turns.
    """
    best: tuple[Any, Headline] | None = None
    for where in {id(w): w for w, _ in taken}.values():
        record = record_of(where)
        own = {
            m.competitor["name"]: m for m in record["measurements"]
            if m.mode == "sustained" and m.problem.get("trans") == "NN" and {m.problem.get(k) for k in "MNK"} == {size}
            and m.problem.get("batch", 1) == 1
        }  # fmt: skip
        ours, theirs = (next((own[name] for name in names if name in own), None) for names in (LIBRARY, VENDORS))
        if ours is None or theirs is None:
            continue
        name = str(theirs.competitor["name"])
        made = Headline(
            f"whole calls, sustained, {ours.competitor['precision']}", str(size), "toprung.matmul", ours.figure, ours.measured_in,
            {"torch": "PyTorch in fp32", "cublas": "cuBLAS", "cupy": "CuPy"}[name], theirs.median / ours.median, (str(where),),
        )  # fmt: skip
        if best is None or standing(record, ours) > best[0]:
            best = standing(record, ours), made
    return best[1] if best else None
