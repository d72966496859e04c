"""A ladder as stairs: a step a rung, with its bound above it."""

from __future__ import annotations

from collections.abc import Sequence

from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.harness.bandwidth import Bandwidth
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import ladder, ladder_names
from toprung.report import names
from toprung.report.html.chart import Chart, Column, Row, Spec, sources, tooltip
from toprung.report.html.limits import Limits
from toprung.report.html.views import HEIGHT, POINT, Taken, Views, name_of, shown, view_of, words
from toprung.store.entry import scatter


def stair_columns(unit: str) -> list[Column]:
    """Return the columns of a step."""
    return [
        Column("view", "problem"), Column("name", "rung"), Column("idea", "idea"), Column("speed", unit, ",.0f"),
        Column("ms", names.MS, ".4g"), Column("spread", names.SPREAD, ".2f"),
        Column("previous", names.PREVIOUS, ".2f"),
        Column("vendor", names.VENDOR, ".1f"), Column("ceiling", f"bound, {unit}", ",.0f"),
        Column("share", names.BOUND, ".1f"), Column("limiter", "limited by"), Column("error", names.FROBENIUS, ".2e"),
        Column("grade", names.GRADE, ".2f", hover=False), Column("layout", f"{names.HELPERS}, %", ".1f"),
        Column("clock", names.CLOCK, ".0f", hover=False),
        Column("tile", names.TILE), Column("record", "record", hover=False),
    ]  # fmt: skip


def stair_rows(key: tuple[str, str, str, str], taken: Sequence[Taken], limits: Limits) -> list[Row]:
    """A row a rung, a variant and a vendor, and lines to go by."""
    view, backend = view_of(key), key[1]
    both = [m for _, m in taken]
    rows: list[Row] = []
    base: Measurement | None = None
    for stored, m in sorted(taken, key=lambda t: (t[1].competitor["number"], t[1].competitor["variant"])):
        who = m.competitor
        rung, variant = who["kind"] == "rung", bool(who["variant"])
        ceiling = limits.ceiling(m, backend) if rung else None
        beaten = ceiling is not None and shown(m) > ceiling[0]
        limiter = f"faster than {ceiling[1]} should allow: the model is wrong" if ceiling and beaten else ceiling and ceiling[1]
        baseline = m.baseline(both) if rung else None
        row = {
            "view": view, "kind": "variant" if variant else "rung" if rung else "vendor", "number": who["number"],
            "name": name_of(m), "idea": who["variant"] or who["idea"], "speed": shown(m), "ms": 1e3 * m.median,
            "spread": 100 * scatter(m.seconds) if len(m.seconds) > 1 else None,
            "previous": shown(m) / shown(base) if base and rung else None,
            "vendor": 100 * m.share_of(baseline) if baseline else None, "ceiling": ceiling[0] if ceiling else None,
            "share": 100 * shown(m) / ceiling[0] if ceiling and not beaten else None, "precision": who["precision"],
            "baseline": name_of(baseline) if baseline else None, "limiter": limiter,
            "error": m.verdict["frobenius"], "grade": m.verdict["grade"], "layout": 100 * m.helpers, "clock": m.clock,
            "tile": " ".join(f"{k}={v}" for k, v in who["tile"].items()) if rung else None, "record": stored.name,
            "open": page_of(who["name"]) if rung else None,
        }  # fmt: skip
        rows.append(row)
        if rung and not variant:
            base = m
    tall = 0.14 * max([float(r["ceiling"] or r["speed"]) for r in rows], default=0.0)
    rows = [{**r, "over": None if r["speed"] > tall else max(r["speed"], r["ceiling"] or 0.0)} for r in rows]
    rows += [
        {"view": view, "kind": "line", "guide": True, "speed": speed, "name": name} for name, speed in _lines(taken, limits.figures)
    ]
    return rows


def _lines(taken: Sequence[Taken], figures: Figures | None) -> list[tuple[str, float]]:
    """Return what the whole device gives: fp32 multiply-adds, or reading memory."""
    _, m = taken[0]
    if m.measured_in == "GB/s":
        memory = next((known for s, _ in taken if (known := Bandwidth.of(s.content))), None)
        return [("memory, read", memory.read.gbytes_per_s)] if memory else []
    peak = figures.peak_gflops if figures else Unknown(())
    return [] if isinstance(peak, Unknown) else [("fp32 peak", peak)]


def page_of(rung: str) -> str:
    """The name of a rung's part of the page."""
    return "rung-" + "".join(c if c.isalnum() else "-" for c in rung)


def _stair_layers(columns: Sequence[Column], unit: str, width: float | None = None) -> list[Spec]:
    """Return the layers of a ladder's stairs; ``width`` in pixels where the page does not give one."""
    tip = tooltip(columns)
    x: Spec = {"field": "number", "type": "ordinal", "title": "rung", "axis": {"labelAngle": 0, "grid": False}}
    x["scale"] = {"paddingInner": 0.06, "paddingOuter": 0.1}

    def y(field: str) -> Spec:
        return {"field": field, "type": "quantitative", "title": unit, "stack": None, "axis": {"format": ",.0f"}}

    def only(kind: str) -> list[Spec]:
        return [{"filter": f"datum.kind == '{kind}'"}]

    right = {"value": {"expr": "width"} if width is None else width}
    wide = {"expr": "bandwidth('x') > 34 ? 1 : 0"} if width is None else 1
    bounded = [{"filter": "datum.kind == 'rung' && isValid(datum.ceiling)"}]
    aside = {"expr": "bandwidth('x') * 0.32"} if width is None else 12
    diamond = {**POINT, "shape": "diamond", "size": 46, "color": "@page", "stroke": "@ours", "strokeWidth": 1.6, "xOffset": aside}
    return [
        {"transform": bounded, "mark": {"type": "bar", "color": "@room"}, "encoding": {"x": x, "y": y("ceiling"), "tooltip": tip}},
        {"transform": only("rung"), "mark": {"type": "bar", "color": "@ours", "cursor": "pointer"},
         "encoding": {"x": x, "y": y("speed"), "tooltip": tip}},
        {"transform": bounded, "mark": {"type": "tick", "color": "@ceiling", "thickness": 3, "width": {"band": 1}},
         "encoding": {"x": x, "y": y("ceiling"), "tooltip": tip}},
        {"transform": only("variant"), "mark": diamond, "encoding": {"x": x, "y": y("speed"), "tooltip": tip}},
        {"transform": only("line"), "mark": {"type": "rule", "color": "@peak", "strokeDash": [2, 3], "strokeWidth": 1.4},
         "encoding": {"y": y("speed")}},
        {"transform": only("vendor"), "mark": {"type": "rule", "color": "@vendor", "strokeDash": [7, 3], "strokeWidth": 1.8},
         "encoding": {"y": y("speed"), "tooltip": tip}},
        {"transform": [{"filter": "datum.kind == 'rung' && !isValid(datum.over)"}],
         "mark": {"type": "text", "dy": 11, "fontSize": 10, "color": "@page", "opacity": wide},
         "encoding": {"x": x, "y": y("speed"), "text": {"field": "speed", "format": ",.0f"}}},
        {"transform": [{"filter": "datum.kind == 'rung' && isValid(datum.over)"}],
         "mark": {"type": "text", "dy": -8, "fontSize": 10, "color": "@fg", "opacity": wide},
         "encoding": {"x": x, "y": y("over"), "text": {"field": "speed", "format": ",.0f"}}},
        *words({"align": "right", "dy": -8, "color": "@muted", "fontSize": 11},
                {"x": right, "y": y("speed"), "text": {"field": "name"}}, only("line")),
        *words({"align": "left", "dx": 3, "dy": -8, "color": "@vendor", "fontSize": 12, "fontWeight": "bold"},
                {"x": {"value": 0}, "y": y("speed"), "text": {"field": "name"}}, only("vendor")),
    ]  # fmt: skip


STAIRS = (
    "A step a rung; the lighter part above it is the room that the model of the device leaves its compiled kernel, up to its bound "
    "(orange). Diamonds are a rung's switches, the dashed line is the vendor's, the dotted one what the device gives at most. "
    "A step opens its rung (on a touch screen the first tap shows its values)."
)


def stairs(views: Views, limits: Limits, name: str) -> Chart:
    """One ladder at every problem it was measured on."""
    keys = [k for k in views.of if k[0] == name]
    rows = [row for k in keys for row in stair_rows(k, views.of[k], limits)]
    unit = views.of[keys[0]][0][1].measured_in if keys else "GFLOP/s"
    columns = stair_columns(unit)
    first = views.first(name)
    said = STAIRS
    if any(m.narrow for k in keys for _, m in views.of[k]):
        said += " Rungs with narrow operands are shown without what narrows them."
    spec = {"height": HEIGHT, "layer": _stair_layers(columns, unit)}
    found = sources({view_of(k): views.of[k] for k in keys})
    return Chart(
        f"stairs-{page_of(name)[5:]}", _head(name).removesuffix(": "), said, spec, rows, columns, "problem", found,
        view_of(first) if first else "", short=name,
    )  # fmt: skip


def _head(name: str) -> str:
    return f"{name}: {ladder(name).title if name in ladder_names() else ''}"  # this toprung may have it no more


def hero(views: Views, limits: Limits) -> Chart | None:
    """The ladders of products below each other at the usual problem: the picture that ``report --picture`` draws."""
    keys = [k for name in views.ladders if (k := views.first(name)) and k[2] == views.usual]
    keys = [k for k in keys if views.of[k][0][1].measured_in == "GFLOP/s" and not any(m.narrow for _, m in views.of[k])]
    if not keys:
        return None
    rows = [{**row, "ladder": k[0]} for k in keys for row in stair_rows(k, views.of[k], limits)]
    columns = stair_columns("GFLOP/s")
    spec: Spec = {"vconcat": []}
    for i, k in enumerate(keys):
        width = 39 * len({m.competitor["number"] for _, m in views.of[k]})
        rows = [{**row, "panel": i} if row["ladder"] == k[0] else row for row in rows]
        spec["vconcat"].append({
            "title": {"text": _head(k[0]), "anchor": "start", "fontSize": 13, "offset": 12}, "width": width, "height": 320,
            "transform": [{"filter": f"datum.panel == {i}"}], "layer": _stair_layers(columns, "GFLOP/s", width),
        })  # fmt: skip
    spec["resolve"] = {"scale": {"y": "shared"}}
    return Chart("hero", f"The ladders at {views.usual}", "", spec, rows, columns)
