"""What the charts of a report are drawn of: for every ladder, problem and mode one record; and the words and marks they share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import competitor_name, problem_name
from toprung.report.html.chart import Spec
from toprung.report.html.gather import Gathered, Stored

Taken = tuple[Stored, Measurement]

HEIGHT = 320
POINT: Spec = {"type": "point", "filled": True, "opacity": 1, "cursor": "pointer"}


def shown(m: Measurement) -> float:
    """The speed a chart shows: without helpers where operands are narrowed, as their vendor gets them ready."""
    return m.alone if m.narrow else m.figure


class Views:
    """For every ladder, backend, problem and mode the one record that says most: the most rungs, then the newest."""

    def __init__(self, gathered: Gathered) -> None:
        found: dict[tuple[str, str, str, str], dict[str, list[Taken]]] = defaultdict(lambda: defaultdict(list))
        for stored in gathered.records:
            if stored.content.get("kind"):
                continue
            names = {m.competitor["ladder"] for m in stored.measurements if m.competitor["kind"] == "rung"}
            if len(names) != 1:
                continue
            (ladder,) = names
            for m in stored.measurements:
                found[ladder, stored.backend, problem_name(m.problem), m.mode][stored.name].append((stored, m))
        best = {
            key: max(by.values(), key=lambda t: (len({competitor_name(m.competitor) for _, m in t}), t[0][0].date, t[0][0].name))
            for key, by in found.items()
        }
        self.of = dict(sorted(best.items(), key=lambda item: (item[0][0], item[0][1], *_order(item[1][0][1]), item[0][3])))
        sizes = Counter(size for _, size in {(key[0], key[2]) for key in self.of})
        work = {key[2]: taken[0][1].flops for key, taken in self.of.items()}
        self.usual = max(sizes, key=lambda s: (sizes[s], work[s]), default="")
        """The problem that most ladders were measured on; of several the largest."""

    @property
    def ladders(self) -> list[str]:
        """Ladders that were measured, products of matrices first."""
        names = {key[0]: taken[0][1].problem["routine"] for key, taken in self.of.items()}
        order = {name: i for i, name in enumerate(("kepler", "turing", "hopper"))}
        return sorted(names, key=lambda n: (names[n] != "gemm", order.get(n, len(order)), n))

    def first(self, ladder: str) -> tuple[str, str, str, str] | None:
        """What is shown of a ladder first: through CUDA where it can be, the usual problem or else the largest."""
        keys = [k for k in self.of if k[0] == ladder]
        return max(keys, key=lambda k: (k[1] == "cuda", k[2] == self.usual, self.of[k][0][1].flops), default=None)


def _order(m: Measurement) -> tuple[Any, ...]:
    return (m.problem.get("trans", ""), m.flops, problem_name(m.problem))


def name_of(m: Measurement) -> str:
    """What a competitor is called in a chart."""
    return str(m.competitor["idea"] or m.competitor["name"]) if m.competitor["kind"] != "rung" else competitor_name(m.competitor)


def view_of(key: tuple[str, str, str, str]) -> str:
    """What one of ``Views.of`` is called where a reader chooses among them."""
    return f"{key[2]} through {key[1]}" + (f", {key[3]}" if key[3] != "warm" else "")


def words(text: Spec, encoding: Spec, transform: Sequence[Spec]) -> list[Spec]:
    """A text that can be read on anything: once as a halo, once as itself."""
    halo = {**text, "stroke": "@card", "strokeWidth": 3, "strokeJoin": "round"}
    return [{"transform": transform, "mark": {"type": "text", **mark}, "encoding": encoding} for mark in (halo, text)]
