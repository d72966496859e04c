"""The charts of a report that set ladders and others side by side, as Vega-Lite specifications with their data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from toprung.lab.bounds.figures import Unknown
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import competitor_name
from toprung.oracle.precision import precision
from toprung.report import names as named
from toprung.report.headline import by_rule
from toprung.report.html.chart import CATEGORIES, SHAPES, Chart, Column, Row, Spec, source, sources, tooltip
from toprung.report.html.gather import Gathered, Stored
from toprung.report.html.limits import Limits
from toprung.report.html.stairs import page_of
from toprung.report.html.tuning import read_tuning
from toprung.report.html.views import HEIGHT, POINT, Taken, Views, name_of, shown, words

TICKS = [n * 10.0**e for e in range(-1, 7) for n in (1, 3)]
"""Ticks of a speed on a logarithmic axis."""


# --- speed over sizes -------------------------------------------------------------------------------------------------------------


def sizes(views: Views) -> Chart:
    """Every rung of every ladder over the side of square problems."""
    rows: list[Row] = []
    used: dict[str, list[Taken]] = defaultdict(list)
    for key, taken in views.of.items():
        ladder, backend, _, mode = key
        trans = taken[0][1].problem.get("trans", "")
        view = f"{ladder} through {backend}" + (f", {trans}" if "T" in trans else "") + (f", {mode}" if mode != "warm" else "")
        own = [(s, m) for s, m in taken if _is_square(m) and not m.competitor["variant"]]
        for stored, m in own:
            rows.append({
                "view": view, "number": m.competitor["number"], "name": name_of(m), "idea": m.competitor["idea"],
                "kind": "rung" if m.competitor["kind"] == "rung" else "vendor", "size": m.problem["M"], "speed": shown(m),
                "unit": m.measured_in, "ms": 1e3 * m.median, "error": m.verdict["frobenius"], "record": stored.name,
            })  # fmt: skip
        used[view] += own
    rows = _swept(rows)
    last = {r["view"]: max(o["size"] for o in rows if o["view"] == r["view"]) for r in rows}
    ends = [r for r in rows if r["size"] == last[r["view"]]]
    best = {r["view"]: r["name"] for r in sorted(ends, key=lambda r: float(r["speed"])) if r["kind"] == "rung"}
    rows = [{**r, "end": r["name"] if r in ends and (r["kind"] == "vendor" or best[r["view"]] == r["name"]) else ""} for r in rows]
    columns = [
        Column("view", "ladder"), Column("name", "rung"), Column("idea", "idea"), Column("size", "M = N = K", "d"),
        Column("speed", "speed", ",.0f"), Column("unit", "unit"), Column("ms", named.MS, ".4g"),
        Column("error", named.FROBENIUS, ".2e"), Column("record", "record"),
    ]  # fmt: skip
    x: Spec = {"field": "size", "type": "quantitative", "title": "M = N = K", "scale": {"type": "log", "base": 2, "nice": False}}
    x["axis"] = {"format": "d", "labelOverlap": True}
    y: Spec = {"field": "speed", "type": "quantitative", "title": "GFLOP/s (matrix-vector products: GB/s)"}
    y["axis"] = {"format": "~s"}
    tone: Spec = {"field": "number", "type": "quantitative", "title": "rung", "scale": {"range": ["@seq0", "@seq1"]}}
    tone["legend"] = {"orient": "bottom", "tickMinStep": 1, "format": "d"}
    pick: Spec = {"name": "near", "select": {"type": "point", "on": "pointerover", "fields": ["name"], "clear": "pointerout"}}
    lit = {"condition": {"param": "near", "value": 1}, "value": 0.18}
    spec = {
        "height": HEIGHT + 20,
        "layer": [
            {"transform": [{"filter": "datum.kind == 'rung'"}], "mark": {"type": "line", "strokeWidth": 2},
             "encoding": {"x": x, "y": y, "color": tone, "detail": {"field": "name"}, "opacity": lit}},
            {"transform": [{"filter": "datum.kind == 'vendor'"}],
             "mark": {"type": "line", "color": "@vendor", "strokeDash": [7, 3], "strokeWidth": 2},
             "encoding": {"x": x, "y": y, "detail": {"field": "name"}}},
            {"transform": [{"filter": "datum.kind == 'rung'"}], "params": [pick],
             "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
             "encoding": {"x": x, "y": y, "color": tone, "tooltip": tooltip(columns), "opacity": lit}},
            {"transform": [{"filter": "datum.kind == 'vendor'"}],
             "mark": {"type": "point", "shape": "square", "filled": True, "size": 50, "color": "@vendor", "opacity": 1},
             "encoding": {"x": x, "y": y, "tooltip": tooltip(columns)}},
            *[layer for kind, dy, colour in (("vendor", -11, "@vendor"), ("rung", 15, "@ours")) for layer in words(
                {"align": "right", "dx": -4, "dy": dy, "color": colour, "fontSize": 11, "fontWeight": "bold"},
                {"x": x, "y": y, "text": {"field": "end"}}, [{"filter": f"datum.end != '' && datum.kind == '{kind}'"}])],
        ],
    }  # fmt: skip
    said = (
        "A line a rung, darker (in dark mode lighter) the later it stands on the ladder; dashed the vendor. Pointing at one fades "
        "the rest."
    )
    longest = max(
        (k for name in views.ladders if (k := views.first(name))),
        key=lambda k: (views.of[k][0][1].measured_in == "GFLOP/s", len(views.of[k])),
        default=None,
    )
    first = f"{longest[0]} through {longest[1]}" if longest else ""
    return Chart("sizes", "Each rung over sizes", said, spec, rows, columns, "ladder", sources(used), first,
                 "toprung ladder turing --sizes 256,1024,4096", "sizes")  # fmt: skip


def _swept(rows: Sequence[Row]) -> list[Row]:
    """Rows of the views that have more than one size."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for r in rows:
        sizes[r["view"]].add(r["size"])
    return [r for r in rows if len(sizes[r["view"]]) > 1]


def _is_square(m: Measurement) -> bool:
    sides = {m.problem[k] for k in "MNK" if k in m.problem}
    return len(sides) == 1 and m.problem.get("batch", 1) == 1 and m.problem.get("beta", 0.0) == 0.0


def everyone(gathered: Gathered) -> dict[tuple[str, str, int], dict[str, Taken]]:
    """Return all figures of square products, by mode, transposes and size; of several records by the rule of ``headline``."""
    found: dict[tuple[str, str, int], dict[str, Taken]] = defaultdict(dict)
    measured = [(stored, m) for stored in gathered.records if stored.content.get("kind") != "run" for m in stored.measurements]
    squares = [(stored, m) for stored, m in measured if m.problem["routine"] == "gemm" and _is_square(m)]
    for stored, m in by_rule(squares, lambda stored: stored.content).values():
        found[m.mode, str(m.problem.get("trans", "NN")), int(m.problem["M"])][_caption(m, stored)] = (stored, m)
    return found


def _caption(m: Measurement, stored: Stored) -> str:
    if m.competitor["kind"] == "rung":
        return competitor_name(m.competitor) + (f" through {stored.backend}" if stored.backend != "cuda" else "")
    name = str(m.competitor["name"])
    return name if stored.backend == "cuda" or name != "toprung" else f"{name} through {stored.backend}"


def _best_of_ladders(by: Mapping[str, Taken]) -> dict[str, Taken]:
    """Peers and the library as they are; of each ladder and precision the fastest rung."""
    out: dict[str, Taken] = {}
    for who, (stored, m) in by.items():
        if m.competitor["kind"] == "rung":
            if stored.backend != "cuda" and any(s.backend == "cuda" for s, _ in by.values()):
                continue
            who = f"best of {m.competitor['ladder']}" + (f", {m.competitor['precision']}" if m.units else "")
            if who in out and shown(out[who][1]) >= shown(m):
                continue
        out[who] = (stored, m)
    return out


def beside(gathered: Gathered) -> Chart:
    """Ours beside others over the sizes of square products."""
    rows: list[Row] = []
    used: dict[str, list[Taken]] = defaultdict(list)
    for (mode, trans, size), by in sorted(everyone(gathered).items(), key=lambda i: (i[0][0] != "warm", *i[0])):
        for who, (stored, m) in _best_of_ladders(by).items():
            accurate = precision(m.competitor["precision"]).accurate
            view = f"{'as accurate as fp32' if accurate else 'narrow operands'}, {trans}, {mode}"
            rows.append({
                "view": view, "name": who, "rung": competitor_name(m.competitor), "precision": m.competitor["precision"],
                "size": size, "speed": shown(m), "ms": 1e3 * m.median, "error": m.verdict["frobenius"], "clock": m.clock,
                "energy": 1e9 * m.energy / m.flops if m.energy else None, "record": stored.name,
            })  # fmt: skip
            used[view].append((stored, m))
    rows = _swept(rows)
    names = sorted({r["name"] for r in rows}, key=lambda n: (not n.startswith(("toprung", "fp32x", "best")), n))
    columns = [
        Column("view", "what"), Column("name", "who"), Column("rung", "which"), Column("precision", "precision"),
        Column("size", "M = N = K", "d"), Column("speed", "GFLOP/s", ",.0f"), Column("ms", named.MS, ".4g"),
        Column("error", named.FROBENIUS, ".2e"), Column("clock", named.CLOCK, ".0f"), Column("energy", "nJ an operation", ".3g"),
        Column("record", "record"),
    ]  # fmt: skip
    spec = {
        "height": HEIGHT + 40,
        "params": [{"name": "picked", "select": {"type": "point", "fields": ["name"]}, "bind": "legend"}],
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 60, "filled": True}},
        "encoding": {
            "x": {"field": "size", "type": "quantitative", "title": "M = N = K",
                  "scale": {"type": "log", "base": 2, "nice": False}, "axis": {"format": "d", "labelOverlap": True}},
            "y": {"field": "speed", "type": "quantitative", "title": "GFLOP/s", "axis": {"format": "~s"}},
            "color": _category(names, CATEGORIES, "color"), "shape": _category(names, SHAPES, "shape"),
            "opacity": {"condition": {"param": "picked", "value": 1}, "value": 0.12}, "tooltip": tooltip(columns),
        },
    }  # fmt: skip
    said = "The library, the fastest rung of each ladder, and other people's routines. A name in the legend singles one out."
    return Chart("beside", "Beside others", said, spec, rows, columns, "what", sources(used), "as accurate as fp32, NN, warm",
                 "toprung bench --sizes 1024,2048,4096 --json results/bench.json", "others")  # fmt: skip


def _category(names: Sequence[str], values: Sequence[str], kind: str) -> Spec:
    """Names as colours or shapes: after eight names the colours begin again with the shapes moved by one."""
    turn = [values[(i + (i // len(values)) * (kind == "shape")) % len(values)] for i in range(len(names))]
    return {"field": "name", "type": "nominal", "title": None, "scale": {"domain": list(names), "range": turn},
            "legend": {"orient": "bottom", "symbolSize": 80}}  # fmt: skip


# --- speed against error ----------------------------------------------------------------------------------------------------------


def errors(gathered: Gathered, views: Views) -> Chart:
    """Speed against the error of the same call's result."""
    rows: list[Row] = []
    found: dict[str, list[Taken]] = {}
    usual = ""
    for (mode, trans, size), by in sorted(everyone(gathered).items(), key=lambda i: (i[0][0] != "warm", *i[0])):
        if len(by) < 2:
            continue
        view = f"{size}" + (f" {trans}" if trans != "NN" else "") + (f", {mode}" if mode != "warm" else "")
        front = _front([(shown(m), float(m.verdict["frobenius"])) for _, m in by.values()])
        for i, (who, (stored, m)) in enumerate(by.items()):
            if not m.verdict["frobenius"]:
                continue
            ours = m.competitor["kind"] != "peer" and m.competitor["name"] not in ("torch", "cupy")
            rows.append({
                "view": view, "name": who, "idea": m.competitor["idea"], "precision": m.competitor["precision"],
                "whose": "toprung" if ours else "others", "speed": shown(m), "error": m.verdict["frobenius"],
                "grade": m.verdict["grade"], "ms": 1e3 * m.median, "label": who if i in front or who == "cublas" else "",
                "record": stored.name, "open": page_of(m.competitor["name"]) if m.competitor["kind"] == "rung" else None,
            })  # fmt: skip
        found[view] = list(by.values())
        if str(size) == views.usual and mode == "warm" and trans == "NN":
            usual = view
    columns = [
        Column("view", "problem"), Column("name", "who"), Column("idea", "idea"), Column("precision", "precision"),
        Column("speed", "GFLOP/s", ",.0f"), Column("error", named.FROBENIUS, ".2e"), Column("grade", named.GRADE, ".3g"),
        Column("ms", named.MS, ".4g"), Column("record", "record"),
    ]  # fmt: skip
    kinds = sorted({r["precision"] for r in rows}, key=lambda p: (not precision(p).accurate, p != "fp32", p))
    x = {"field": "error", "type": "quantitative", "title": "Frobenius error (left is better)",
         "scale": {"type": "log", "padding": 14, "nice": False},
         "axis": {"format": ".0e", "labelOverlap": True, "values": [10.0**e for e in range(-9, 2)]}}  # fmt: skip
    y = {"field": "speed", "type": "quantitative", "title": "GFLOP/s",
         "scale": {"type": "log", "nice": False, "padding": 14}, "axis": {"format": ",.0f", "values": TICKS}}  # fmt: skip
    spec = {
        "height": HEIGHT + 40,
        "layer": [
            {"mark": {**POINT, "size": 95, "opacity": 0.85, "stroke": "@page", "strokeWidth": 0.7},
             "encoding": {
                "x": x, "y": y, "tooltip": tooltip(columns),
                "color": {"field": "precision", "type": "nominal", "title": None,
                          "scale": {"domain": kinds, "range": [CATEGORIES[i % 8] for i in range(len(kinds))]},
                          "legend": {"orient": "bottom", "columns": 3}},
                "shape": {"field": "whose", "type": "nominal", "title": None,
                          "scale": {"domain": ["toprung", "others"], "range": ["circle", "square"]},
                          "legend": {"orient": "top", "symbolFillColor": "@muted", "symbolStrokeColor": "@muted"}},
             }},
            {"transform": [{"filter": "datum.label != ''"}],
             "mark": {"type": "text", "align": "left", "dx": 8, "dy": -8, "color": "@fg", "fontSize": 11, "limit": 150},
             "encoding": {"x": x, "y": y, "text": {"field": "label"}}},
        ],
    }  # fmt: skip
    said = (
        "Up is faster, left is more accurate: the error is that of the very kernel that was timed, against a product in float64. "
        "Named are those that nobody beats in both, and cuBLAS."
    )
    return Chart("errors", "Speed against error", said, spec, rows, columns, "problem", sources(found), usual,
                 "toprung bench --sizes 4096 --json results/bench.json", "error")  # fmt: skip


def _front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Places of the points with no other that is as fast and as accurate."""
    return {
        i for i, (speed, error) in enumerate(points)
        if not any((s >= speed and e <= error) and (s, e) != (speed, error) for s, e in points)
    }  # fmt: skip


# --- roofline ---------------------------------------------------------------------------------------------------------------------

TILES, ONCE = "L2: what the tiles read", "memory: every operand once"


def roofline(views: Views, limits: Limits) -> Chart:
    """Every rung at the usual problem under what the device gives."""
    figures = limits.figures
    peak = figures.peak_gflops if figures else Unknown(())
    rows: list[Row] = []
    used: list[str] = []
    if figures and not isinstance(peak, Unknown):
        speeds = {TILES: figures.l2_read_bytes_per_s, ONCE: figures.dram_read_bytes_per_s}
        for i, name in enumerate(views.ladders):
            if not (key := views.first(name)):
                continue
            taken = views.of[key]
            used += sources({"": taken})[""]
            best = max((m for _, m in taken if m.competitor["kind"] == "rung"), key=shown)
            for stored, m in taken:
                rung = m.competitor["kind"] == "rung"
                intensity = {ONCE: m.flops / m.min_bytes}
                bound = limits.bound(m, key[1]) if rung else None
                through = next((v.seconds for v in bound.levels if v.name == "L2"), None) if bound else None
                if isinstance(through, float) and through > 0 and figures.l2_read_bytes_per_s:
                    intensity[TILES] = m.flops / (through * figures.l2_read_bytes_per_s)
                for view, ratio in intensity.items():
                    share = 100 * _gflops(m) / min(peak, ratio * (speeds[view] or math.inf) / 1e9)
                    rows.append({
                        "view": view, "kind": "rung", "name": name_of(m), "idea": m.competitor["variant"] or m.competitor["idea"],
                        "ladder": name if rung else "vendor", "x": ratio, "speed": _gflops(m),
                        "precision": m.competitor["precision"],
                        "share": share if share <= 100 else None, "problem": key[2],  # above it: caches kept what is counted
                        "label": name_of(m) if m is best else "", "side": ("left", "right")[i % 2], "record": stored.name,
                        "open": page_of(m.competitor["name"]) if rung else None,
                    })  # fmt: skip
        for view, speed in speeds.items():
            if speed and any(r["view"] == view for r in rows):
                rows += _roof(view, speed / 1e9, peak, [r["x"] for r in rows if r["view"] == view])
    rows.sort(key=lambda r: r["view"])
    columns = [
        Column("view", "bytes of"), Column("name", "rung"), Column("idea", "idea"), Column("problem", "problem"),
        Column("precision", "precision"), Column("x", "operations a byte", ".3g"), Column("speed", "GFLOP/s", ",.0f"),
        Column("share", "% of the roof", ".1f"), Column("record", "record"),
    ]  # fmt: skip
    names = [*views.ladders, "vendor"]
    tones = [*(CATEGORIES[i % 8] for i in range(len(names) - 1)), "@vendor"]
    x: Spec = {"field": "x", "type": "quantitative", "title": "operations a byte", "scale": {"type": "log", "nice": False},
         "axis": {"format": "~g", "values": [n * 10.0**e for e in range(-3, 6) for n in (1, 3)], "labelOverlap": True}}  # fmt: skip
    y: Spec = {"field": "speed", "type": "quantitative", "title": "GFLOP/s", "scale": {"type": "log", "nice": False, "padding": 10},
         "axis": {"format": ",.0f", "values": TICKS, "labelOverlap": True}}  # fmt: skip
    spec: Spec = {
        "height": HEIGHT + 60,
        "layer": [
            {"transform": [{"filter": "datum.kind == 'roof'"}], "mark": {"type": "line", "color": "@ceiling", "strokeWidth": 2.5},
             "encoding": {"x": x, "y": y}},
            {"transform": [{"filter": "datum.kind == 'rung'"}],
             "mark": {**POINT, "size": 75, "opacity": 0.85, "stroke": "@page", "strokeWidth": 0.6},
             "encoding": {"x": x, "y": y, "tooltip": tooltip(columns),
                          "color": {"field": "ladder", "type": "nominal", "title": None, "legend": {"orient": "bottom"},
                                    "scale": {"domain": names, "range": tones}},
                          "shape": {"field": "ladder", "type": "nominal", "title": None, "legend": {"orient": "bottom"},
                                    "scale": {"domain": names, "range": [SHAPES[i % 8] for i in range(len(names))]}}}},
            *[{"transform": [{"filter": f"datum.kind == 'rung' && datum.label != '' && datum.side == '{side}'"}],
               "mark": {"type": "text", "align": side, "dx": dx, "dy": -4, "color": "@fg", "fontSize": 11},
               "encoding": {"x": x, "y": y, "text": {"field": "label"}}} for side, dx in (("left", 8), ("right", -8))],
            {"transform": [{"filter": "datum.kind == 'slope'"}],
             "mark": {"type": "text", "align": "left", "dx": 14, "dy": 2, "color": "@ceiling", "fontSize": 11},
             "encoding": {"x": x, "y": y, "text": {"field": "name"}}},
            {"transform": [{"filter": "datum.kind == 'peak'"}],
             "mark": {"type": "text", "align": "right", "dy": -8, "color": "@ceiling", "fontSize": 11},
             "encoding": {"x": x, "y": y, "text": {"field": "name"}}},
        ],
    }  # fmt: skip
    said = (
        "The roof is what this device was seen to give. Counted are the bytes that a rung's tiles ask of the L2 cache (the model "
        "does not count them for matrix units), or those that must cross the memory interface once; what reads a matrix once "
        "lies far left. Only matrix units compute above the fp32 peak."
    )
    return Chart("roofline", "Roofline", said, spec, rows, columns, "bytes", dict.fromkeys((TILES, ONCE), used), TILES,
                 "toprung probe --json results/probe.json; toprung ladder turing",
                 "roofline")  # fmt: skip


def _roof(view: str, speed: float, peak: float, across: Sequence[float]) -> list[Row]:
    """Return what memory of a speed in GB/s and a peak in GFLOP/s allow, over all that is drawn."""
    ridge = peak / speed
    low, high = min(*across, ridge) / 3, max(*across, ridge) * 4
    name = f"{view.partition(':')[0]}, {speed:,.0f} GB/s"
    points = [("roof", low, ""), ("roof", ridge, ""), ("roof", high, ""), ("slope", low * 1.15, name), ("peak", high, "fp32 peak")]
    return [{"view": view, "kind": k, "guide": True, "x": x, "speed": min(peak, x * speed), "name": n} for k, x, n in points]


def _gflops(m: Measurement) -> float:
    return m.flops / m.median / 1e9 * (shown(m) / m.figure)


# --- tuning -----------------------------------------------------------------------------------------------------------------------


def tuning(gathered: Gathered) -> Chart:
    """The best so far over the time of a search."""
    rows: list[Row] = []
    found: dict[str, list[str]] = {}
    gained: dict[str, list[float]] = {}
    for stored in gathered.of("tune"):
        for gain in read_tuning(stored.content):
            view = f"{gain.problem} through {stored.backend}, {stored.date[:10]}"
            gained.setdefault(view, []).append(gain.gflops)
            rows.append({"view": view, "elapsed": gain.elapsed, "what": gain.what, "best": gain.gflops, "record": stored.name})
            found[view] = [source(stored)]
    columns = [
        Column("view", "problem"), Column("elapsed", "seconds since the start", ".3g"), Column("best", "best so far", ",.0f"),
        Column("what", "stayed the best"), Column("record", "record"),
    ]  # fmt: skip
    x = {"field": "elapsed", "type": "quantitative", "title": "seconds since the run began"}
    y = {"field": "best", "type": "quantitative", "title": "GFLOP/s", "axis": {"format": "~s"}}
    spec = {
        "height": HEIGHT,
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "color": "@ours", "strokeWidth": 2.5},
             "encoding": {"x": x, "y": y}},
            {"mark": {"type": "point", "filled": True, "size": 50, "color": "@ours"},
             "encoding": {"x": x, "y": y, "tooltip": tooltip(columns)}},
        ],
    }  # fmt: skip
    said = "A point each time that something faster was found; a run goes through its shapes in turn, so that time passes between."
    # first the search that found most in most steps: one that began at its best is a flat line
    first = max(gained, key=lambda v: (len(gained[v]) > 3, max(gained[v]) / gained[v][0], len(gained[v])), default="")
    return Chart("tuning", "The tuner's progress", said, spec, rows, columns, "problem", found, first,
                 "toprung tune gemm --sizes 1024,4096 --json results/tune.json", "tuner")  # fmt: skip
