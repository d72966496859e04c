"""Records → one HTML file with everything in it: style, script, data, the plotting library."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.metadata
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.errors import MissingExtra
from toprung.lab.rung import ladder_names
from toprung.paths import cache_dir, publish_cached
from toprung.report.html.chart import PALETTE, Chart, source
from toprung.report.html.charts import beside, errors, roofline, sizes, tuning
from toprung.report.html.gather import Gathered, Stored
from toprung.report.html.limits import Limits
from toprung.report.html.rungs import pages
from toprung.report.html.stairs import hero, stairs
from toprung.report.html.views import Views, headlines

HERE = Path(__file__).parent
VEGA_LITE = "6.1"
COMMANDS = (
    ("toprung ladder kepler", "a ladder: its rungs verified and timed beside the vendor"),
    ("toprung bench --suite squares --json results/bench.json", "ours beside other people's routines: speed, error, energy"),
    ("toprung probe --json results/probe.json", "what the device can do: the ceilings"),
    ("toprung tune gemm --json results/tune.json", "the tuner's search"),
)  # fmt: skip
"""Commands that make the measurements of which a report is made."""


def needed() -> None:
    """Raise MissingExtra unless the page can be made."""
    for name in ("jinja2", "pygments", "vl_convert"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise MissingExtra(f'{name} is not installed; pip install "toprung[report]"') from None


@dataclass(frozen=True)
class Comparison:
    """Two sides, compared.

    Attributes
    ----------
    counts : how many pairs have each verdict
    alone : measurements on one side only
    """

    chart: Chart
    counts: Mapping[str, int]
    alone: int


def _library() -> str:
    """Return Vega-Lite's JavaScript, kept in the cache: it takes seconds to put together."""
    import vl_convert

    release = importlib.metadata.version("vl-convert-python")
    path = cache_dir() / "javascript" / f"vega-lite {VEGA_LITE}, vl-convert {release}.js"
    try:
        return path.read_text("utf-8")
    except OSError:
        made = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]  # its stub asks for a snippet
        publish_cached(path, made.encode())
        return made


def render(gathered: Gathered, limits: Limits, comparison: Comparison | None = None) -> str:
    """Return the page's text, the same for the same records, toprung and libraries; ``limits`` may compile each rung once."""
    import jinja2

    views = Views(gathered)
    ladders = [(name, stairs(views, limits, name), list(pages(views, limits, name))) for name in views.ladders]
    charts = [sizes(views), beside(gathered), errors(gathered, views), roofline(views, limits), tuning(gathered)]
    drawn = [
        c for c in (comparison.chart if comparison else None, *(c for _, c, _ in ladders), *charts) if c is not None and c.rows
    ]
    library = _library()
    script = (HERE / "page.js").read_text("utf-8")
    style = (HERE / "page.css").read_text("utf-8")
    colours = {name: "; ".join(f"--{k}: {v}" for k, v in palette.items()) for name, palette in PALETTE.items()}
    data = {"palette": dict(PALETTE), "charts": [_embedded(c) for c in drawn]}
    loader, undefined = jinja2.FileSystemLoader(HERE), jinja2.StrictUndefined
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=undefined)
    return environment.get_template("page.html.jinja").render(
        gathered=gathered, ladders=ladders, charts=charts, comparison=comparison, commands=COMMANDS, notes=list(limits.notes),
        absent=sorted({*ladder_names()} - {*views.ladders}),
        records=[(r, source(r, r.measurements), _said(r)) for r in gathered.records],
        device=_device(gathered), style=style, colours=colours, script=script, library=library, data=embed(data),
        hashes=" ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in (library, script)),
        cards=list(_cards(gathered, views, {name: chart for name, chart, _ in ladders})),
    )  # fmt: skip


def picture(gathered: Gathered, limits: Limits) -> str | None:
    """The ladders of products at the usual size as an SVG; None where no ladder of products was measured."""
    import vl_convert

    chart = hero(Views(gathered), limits)
    if chart is None:
        return None
    palette = PALETTE["light"]
    names = sorted({str(r["record"]) for r in chart.rows if r.get("record")})
    subtitle = f"A step a rung, above it the room to its bound (orange), dashed the vendor. From {' and '.join(names)}"
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json", "background": palette["page"], "padding": 12,
        "data": {"values": list(chart.rows)}, **chart.spec,
        "title": {"text": chart.title, "subtitle": textwrap.wrap(subtitle, 110), "anchor": "start", "offset": 14},
    }  # fmt: skip
    return str(vl_convert.vegalite_to_svg(_tinted(spec, palette), vl_version=VEGA_LITE, config=config(palette)))


def config(palette: Mapping[str, str]) -> dict[str, Any]:
    """Return the look of every chart; ``page.js`` has the same for what changes with the scheme."""
    font = "Liberation Sans, Arial, sans-serif"
    return {
        "font": font, "view": {"stroke": None},
        "title": {"color": palette["fg"], "subtitleColor": palette["muted"], "fontSize": 15},
        "axis": {"labelColor": palette["muted"], "titleColor": palette["muted"], "gridColor": palette["grid"],
                 "domainColor": palette["line"], "tickColor": palette["line"],
                 "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    }  # fmt: skip


def embed(data: object) -> str:
    """JSON that can stand in a script element whatever its texts hold."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for c in "<>&\u2028\u2029":
        text = text.replace(c, f"\\u{ord(c):04x}")
    return text


def _embedded(chart: Chart) -> dict[str, Any]:
    return {
        "id": chart.ident, "title": chart.title, "spec": chart.spec, "rows": list(chart.rows), "view": chart.shown,
        "columns": [(c.key, c.title) for c in chart.columns],
        "sources": {view: list(lines) for view, lines in chart.sources.items()},
    }  # fmt: skip


def _tinted(value: Any, palette: Mapping[str, str]) -> Any:
    """A specification with its named colours replaced."""
    if isinstance(value, str) and value.startswith("@"):
        return palette.get(value[1:], value)
    if isinstance(value, Mapping):
        return {k: v if k == "values" else _tinted(v, palette) for k, v in value.items()}
    return [_tinted(v, palette) for v in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Card:
    """A ladder's best in one figure."""

    what: str
    figure: str
    note: str
    name: str
    open: str


def _cards(gathered: Gathered, views: Views, charts: Mapping[str, Chart]) -> Iterator[Card]:
    """Return the headlines: the library's whole calls, then each ladder's fastest rung of each precision."""
    for one in headlines(gathered):
        chart = charts.get(one.what.partition(",")[0])
        row = next((r for r in chart.rows if r["view"] == one.problem and r.get("name") == one.who), None) if chart else None
        bound = f"{row['share']:.0f} % of its bound" if row and row["share"] else ""
        note = ", ".join(filter(None, (one.share, bound)))
        yield Card(f"{one.what}, {one.problem}", one.figure, note + ":" * bool(row), one.who, row["open"] if row else "beside")


def _said(stored: Stored) -> Sequence[tuple[str, str]]:
    """Every circumstance that a record tells."""
    content, e = stored.content, stored.content["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in (e.get("packages") or {}).items())
    notes = content.get("notes") or []
    notes = [f"{k}: {v}" for k, v in notes.items()] if isinstance(notes, dict) else notes
    count = f"{len(stored.measurements)}" + ", interrupted before the end" * bool(content["interrupted"])
    said = [
        ("command", content["what"]), ("date", stored.date), ("python", e.get("python")), ("system", e.get("system")),
        ("cores", e.get("cores")), ("packages", packages), ("measurements", count),
        *(("failed", f) for f in content["failures"]), *(("note", n) for n in notes),
    ]  # fmt: skip
    return [(k, str(v)) for k, v in said if v]


def _device(gathered: Gathered) -> Sequence[tuple[str, str]]:
    """Return what the records say of the device."""
    if not gathered.records:
        return ()
    of = [r.device for r in gathered.records]
    peak = next((float(d["peak_gflops"]) for d in of if isinstance(d.get("peak_gflops"), int | float)), None)
    first, clock, days = of[0], float(of[0]["clock_mhz"]), sorted(r.date[:10] for r in gathered.records)
    said = [
        ("device", str(first["name"])), ("architecture", str(first["arch"])),
        ("compute units", str(first["compute_units"])), ("clock at most", f"{clock:g} MHz" if clock else ""),
        ("fp32 peak at that clock", f"{peak:,.0f} GFLOP/s" if peak else ""),
        ("reached through", "; ".join(sorted({f"{d['backend']}: {d['runtime']}" for d in of}))),
        ("drivers", ", ".join(sorted({str(d["driver"]) for d in of if d["driver"]}))),
        ("measured", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"),
        ("commits", ", ".join(sorted({r.commit or "unknown" for r in gathered.records}))),
    ]  # fmt: skip
    return [(k, v) for k, v in said if v]
