"""Two devices, commits, files or folders side by side: what is faster and what slower beyond noise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord
from toprung.lab.harness import environment, results
from toprung.lab.harness.results import Change
from toprung.report.html.chart import Chart, Column, Row, source, tooltip
from toprung.report.html.gather import Complaint, Stored, chosen, read_sound, sound


def both(names: tuple[str, str], folders: Sequence[Path], device: str | None = None) -> tuple[list[list[Stored]], list[Complaint]]:
    """Return the records of two sides, each a file or a folder, or a device or commit of the folders' records; and what is none.

    Raises
    ------
    BadRecord
        nothing is called that
    UnknownName
        no record in the folders is of ``device``
    """
    for name in names:
        if not Path(name).exists() and (name.endswith(".json") or "/" in name):
            raise BadRecord(f"there is neither a file nor a folder {name}: toprung results list says what there is")
    among, complaints = read_sound([] if all(Path(name).exists() for name in names) else folders)
    if device is not None:
        slug = chosen(among, device)
        among = [r for r in among if r.slug == slug]
    found = [side(name, among) for name in names]
    return [records for records, _ in found], list(dict.fromkeys([*complaints, *found[0][1], *found[1][1]]))


def side(name: str, among: Sequence[Stored]) -> tuple[list[Stored], list[Complaint]]:
    """The records that a user means by a file, a folder, or by a device or commit found among some records.

    Raises
    ------
    BadRecord
        nothing is called that
    """
    path = Path(name)
    found = [Stored(name, sound(path))] if path.is_file() else []
    complaints: list[Complaint] = []
    if path.is_dir():
        found, complaints = read_sound([path])
    elif not found:
        found = [r for r in among if r.slug == name] or _at(name, among)
    if not any(r.measurements for r in found):
        timed = sorted((r for r in among if r.measurements), key=lambda r: r.date, reverse=True)
        words = [r.slug for r in timed], [r.commit[:SHORT] + "+" * r.commit.endswith("+") for r in timed]
        there = [", ".join(list(dict.fromkeys(some))[:MOST_NAMED]) for some in words]
        why = "; ".join(map(str, complaints)) or (
            f"Measured were the devices {there[0]}; and, newest first, the commits {there[1]}" if timed else "There are none"
        )
        raise BadRecord(f"{name} is no record, folder, device or commit with measurements. {why}")
    return found, complaints


MOST_NAMED, SHORT = 8, 12
"""Devices, and commits, that a refusal lists, and digits of a commit."""


def _at(name: str, among: Sequence[Stored]) -> list[Stored]:
    """Return the records of a commit: of its very code, and those that name it; if there are none, those of files changed since."""
    digits, src = environment.revision(name)
    if not digits and re.fullmatch("[0-9a-f]{4,40}", name):
        digits = name  # of a commit that is not in this clone
    same = [r for r in among if src and r.content["environment"].get("src") == src]
    of = [r for r in among if digits and (c := r.commit.rstrip("+")) and (digits.startswith(c) or c.startswith(digits))]
    return same + [r for r in of if r not in same and not r.commit.endswith("+")] or of


def compare(a: Sequence[Stored], b: Sequence[Stored], tolerance: float) -> tuple[list[Change], int]:
    """Return what changed from ``a`` to ``b``, and how many measurements are on one side only, as ``results.compare`` does.

    Of two devices or backends only what each has in common counts.
    """
    slugs = [{r.slug for r in side} for side in (a, b)]
    backends = [{r.backend for r in side if r.measurements} for side in (a, b)]
    apart = slugs[0] != slugs[1]
    other = len(backends[0]) == len(backends[1]) == 1 and backends[0] != backends[1]
    old, new = ([_under(r, "" if apart else r.slug, "" if other else r.backend) for r in side if r.measurements] for side in (a, b))
    return results.compare(old, new, tolerance)


def _under(stored: Stored, slug: str, backend: str) -> Mapping[str, Any]:
    """A record under another device's name, so that what was measured on two of them can be paired."""
    environment = stored.content["environment"]
    device = {**environment["device"], "slug": slug, "backend": backend}
    return {**stored.content, "environment": {**environment, "device": device}}


def chart(names: tuple[str, str], a: Sequence[Stored], b: Sequence[Stored], changes: Sequence[Change], tolerance: float) -> Chart:
    """The ratio of every pair with its interval, the slowest first."""
    verdicts = {
        "slower": "slower beyond noise", "faster": "faster beyond noise", "same": "within the band",
        "undecided": "undecided: too much noise",
    }  # fmt: skip
    rows: list[Row] = []
    several = len({c.device for c in changes}) > 1
    for c in sorted(changes, key=lambda c: (c.speed.value, c.device, c.competitor, c.problem, c.mode)):
        rows.append({
            "view": c.competitor.partition("/")[0] if "/" in c.competitor else "others",
            "name": c.competitor, "device": c.device.strip(),
            "problem": c.problem, "mode": c.mode, "ratio": c.speed.value, "low": c.speed.low, "high": c.speed.high,
            "verdict": verdicts[c.verdict],
            "what": " ".join(filter(None, (c.competitor, c.problem, c.mode * (c.mode != "warm"), c.device * several))),
        })  # fmt: skip
    rows = [{**r, "view": "all"} for r in rows] + rows if len({r["view"] for r in rows}) > 1 else rows
    columns = [
        Column("view", "ladder"), Column("name", "who"), Column("problem", "problem"), Column("mode", "mode"),
        Column("device", "device"), Column("ratio", "speed, B / A", ".3f"), Column("low", "from", ".3f"),
        Column("high", "to", ".3f"), Column("verdict", "verdict"),
    ]  # fmt: skip
    y: dict[str, Any] = {"field": "what", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 190}}
    x: dict[str, Any] = {"field": "ratio", "type": "quantitative", "title": "speed of B / speed of A"}
    x["scale"] = {"type": "log", "nice": False, "padding": 10}
    domain = list(verdicts.values())
    shape: dict[str, Any] = {"field": "verdict", "type": "nominal", "title": None}
    tone = {
        **shape, "legend": {"orient": "bottom", "columns": 1},
        "scale": {"domain": domain, "range": ["@slower", "@faster", "@c6", "@muted"]},
    }  # fmt: skip
    shape["scale"] = {"domain": domain, "range": ["triangle-left", "triangle-right", "circle", "cross"]}
    spec = {
        "height": {"step": 17},
        "layer": [
            {"data": {"values": [{"low": 1 - tolerance, "high": 1 + tolerance}]}, "mark": {"type": "rect", "color": "@grid"},
             "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": tone}},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"y": y, "x": x, "color": tone, "shape": shape, "tooltip": tooltip(columns)}},
        ],
    }  # fmt: skip
    said = (
        f"A is {names[0]}, B is {names[1]}. The line is the 95 % bootstrap interval of the ratio of the medians, from the stored "
        f"samples; the band is what two runs may differ by without any reason ({100 * tolerance:g} %). A change counts when the "
        "whole interval lies outside the band, by more than the samples of both sides scatter on that problem. Where noise hides "
        "it, the pair is undecided."
    )
    both = [f"{letter}: {source(r, r.measurements)}" for letter, side in (("A", a), ("B", b)) for r in side if r.measurements]
    return Chart("compare", f"{names[0]} beside {names[1]}", said, spec, rows, columns, "ladder",
                 dict.fromkeys(dict.fromkeys(str(r["view"]) for r in rows), both), short="comparison")  # fmt: skip
