"""Figures that the charts of a report are drawn of: for every ladder, problem and mode each rung's; and the words they share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import competitor_name, known, problem_name
from toprung.report.headline import Headline, by_rule, key_of, ladder_of, library_headline
from toprung.report.html.chart import Spec
from toprung.report.html.gather import Gathered, Stored

Taken = tuple[Stored, Measurement]

HEIGHT = 320
POINT: Spec = {"type": "point", "filled": True, "opacity": 1, "cursor": "pointer"}


def shown(m: Measurement) -> float:
    """The speed a chart shows: without helpers where operands are narrowed, as their vendor gets them ready."""
    return m.alone if m.narrow else m.figure


class Views:
    """For every ladder, backend, problem and mode each rung that was measured, and its vendors, by the rule of ``headline``."""

    def __init__(self, gathered: Gathered) -> None:
        records = [(stored, ladder_of(stored.content)) for stored in gathered.records]
        measured = [(stored, m) for stored, ladder in records if ladder for m in stored.measurements]
        best = by_rule(measured, lambda stored: stored.content)
        found: dict[tuple[str, str, str, str], dict[str, Taken]] = defaultdict(dict)
        for stored, ladder in records:
            for m in stored.measurements if ladder else ():
                of = key_of(stored.content, m)
                found[ladder, stored.backend, problem_name(m.problem), m.mode][of[2]] = best[of]
        found = {
            key: dict(sorted(by.items(), key=lambda item: (item[1][1].competitor["number"], item[1][1].competitor["variant"])))
            for key, by in found.items() if any(m.competitor["kind"] == "rung" for _, m in by.values())
        }  # fmt: skip
        best_of = {key: list(by.values()) for key, by in found.items()}
        self.of = dict(sorted(best_of.items(), key=lambda item: (item[0][0], item[0][1], *_order(item[1][0][1]), item[0][3])))
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
        """Return what is shown of a ladder first: through CUDA where it can be, the usual problem or else the largest."""
        keys = [k for k in self.of if k[0] == ladder]
        return max(keys, key=lambda k: (k[1] == "cuda", k[2] == self.usual, self.of[k][0][1].flops), default=None)


def _order(m: Measurement) -> tuple[Any, ...]:
    return (m.problem.get("trans", ""), m.flops, problem_name(m.problem))


def name_of(m: Measurement) -> str:
    """Return a competitor's name in a chart."""
    return str(m.competitor["idea"] or m.competitor["name"]) if m.competitor["kind"] != "rung" else competitor_name(m.competitor)


def view_of(key: tuple[str, str, str, str]) -> str:
    """Return the name of one of ``Views.of`` where a reader chooses among them."""
    return f"{key[2]} through {key[1]}" + (f", {key[3]}" if key[3] != "warm" else "")


def words(text: Spec, encoding: Spec, transform: Sequence[Spec]) -> list[Spec]:
    """A text that can be read on anything: once as a halo, once as itself."""
    halo = {**text, "stroke": "@card", "strokeWidth": 3, "strokeJoin": "round"}
    return [{"transform": transform, "mark": {"type": "text", **mark}, "encoding": encoding} for mark in (halo, text)]


def headlines(gathered: Gathered) -> list[Headline]:
    """Return the library's whole calls, and of each ladder and precision the fastest rung, at what is shown of them first.

    Records whose code is not in the history are left out.
    """
    gathered = replace(gathered, records=tuple(stored for stored in gathered.records if known(stored.content)))
    views = Views(gathered)
    found: list[Headline] = []
    size = int(views.usual) if views.usual.isdecimal() else 4096
    measured = [(stored, m) for stored in gathered.records for m in stored.measurements]
    if (library := library_headline(measured, lambda stored: stored.content, size)) is not None:
        found.append(library)
    for name in views.ladders:
        if not (key := views.first(name)):
            continue
        both = [m for _, m in views.of[key]]
        rungs = [(stored, m) for stored, m in views.of[key] if m.competitor["kind"] == "rung"]
        for precision in dict.fromkeys(m.competitor["precision"] for _, m in rungs):
            stored, m = max((t for t in rungs if t[1].competitor["precision"] == precision), key=lambda t: shown(t[1]))
            vendor = m.baseline(both)
            of = next((s for s, one in views.of[key] if one is vendor), stored)
            found.append(Headline(
                f"{name}, {precision}", view_of(key), name_of(m), shown(m), m.measured_in, name_of(vendor) if vendor else "",
                m.share_of(vendor) if vendor else None, tuple(dict.fromkeys((stored.name, of.name))),
            ))  # fmt: skip
    return found
