"""One rule says which record a figure comes from, and no two pages state different figures for one thing."""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from make_tables import DRAWN
from records import around, of_rung, peer, stored
from tables import BLOCK, common, headlines, refresh
from tables.common import ladder_record
from toprung.errors import BadRecord
from toprung.kernels.tokens import source_digest
from toprung.lab.harness import results
from toprung.lab.harness.environment import PACKAGE, blob
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import ladder
from toprung.oracle.gemm import Gemm
from toprung.report.headline import by_rule, standing
from toprung.report.html.charts import tuning
from toprung.report.html.gather import gather
from toprung.report.html.limits import Limits
from toprung.report.html.page import render
from toprung.report.html.views import Views
from toprung.report.html.views import headlines as of_views

ROOT = Path(__file__).resolve().parents[1]
H200 = ROOT / "results" / "nvidia-h200"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
P = Gemm(4096, 4096, 4096)
R01 = "lab/ladders/kepler/r01_naive.cl"


def settled(m: Measurement, seconds: float = 0.1) -> Measurement:
    return Measurement.read({**m.describe(), "settle_seconds": seconds})


def blocks(what: str) -> list[tuple[Path, list[str], str]]:
    """Return every generated block of a kind: its page, the words of its marker, its text."""
    return [(p, m["words"].split(), m["body"]) for p in PAGES for m in BLOCK.finditer(p.read_text()) if m["what"] == what]


def rows_of(body: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]


def test_headlines_on_all_pages_are_those_of_the_report() -> None:
    """The cards of the report, and every generated table of headlines, are what the records give by the one function."""
    gathered = gather([H200])
    expected = [(one.what, one.problem, one.who, one.figure, one.share) for one in of_views(gathered)]
    assert len(expected) >= 7 and expected[0][2] == "toprung.matmul"
    tables = blocks("headlines")
    assert {page.name for page, _, _ in tables} >= {"measuring.md"}
    for page, _, body in tables:
        found = [(w, s, b.strip("`"), f, "" if v == "–" else v) for w, s, b, f, v in rows_of(body)[2:]]
        assert found == expected, page
    text = html.unescape(render(gathered, Limits(gathered, False)))
    cards = re.findall(r'<div class="card"><small>(.*?)</small><b>(.*?)</b><small>(.*?) <a href="#.*?">(.*?)</a>', text)
    assert [(what, figure, who) for what, figure, _, who in cards] == [(f"{w}, {s}", f, b) for w, s, b, f, _ in expected]
    for (_, _, note, _), (*_, share) in zip(cards, expected, strict=True):
        assert share in note


def test_whole_calls_have_one_figure_on_every_page() -> None:
    """The library's page and that of fp32x have tables of whole calls, the report and the headlines a figure of them."""
    gathered = gather([H200])
    one = of_views(gathered)[0]
    found: dict[str, set[str]] = defaultdict(set)
    for page in PAGES:
        text = page.read_text()
        found[page.name] |= set(re.findall(rf"\| {one.what} \| {one.problem} \|.* ([\d.]+) × PyTorch in fp32", text))
        for head, *rows in (rows_of(table) for table in re.findall(r"(?:^\|.*\n)+", text, re.M)):
            if {"toprung", "torch fp32", "times as fast"} <= set(head):
                found[page.name] |= {row[head.index("times as fast")] for row in rows if row[0] == one.problem}
    stated = {name: figures for name, figures in found.items() if figures}
    assert stated.keys() >= {"fp32x.md", "library.md", "measuring.md"}
    assert all(figures == {f"{one.times:.2f}"} for figures in stated.values()), stated


def test_the_readme_promises_what_the_records_hold() -> None:
    """Its words, its table of gains and its picture say what products, steps and the ladder have on the other pages."""
    readme, gathered = (ROOT / "README.md").read_text(), gather([H200])
    gains = {row[0].strip("*"): row[1:] for row in rows_of(next(b for p, _, b in blocks("gains") if p.name == "README.md"))[2:]}
    shapes = next(rows_of(b) for p, words, b in blocks("shapes") if p.name == "fp32x.md" and "nvidia-h200" in words[0])
    ours, theirs = (shapes[0].index(head) for head in ("`matmul`, µs", "PyTorch fp32"))
    times = [float(row[theirs]) / float(row[ours].strip("*")) for row in shapes[2:]]
    large = {name: re.findall(r"large ([\d.]+) to ([\d.]+) ×", cells[0]) for name, cells in gains.items()}
    ((low, high),) = large["NVIDIA H200"]
    assert float(high) == pytest.approx(max(times), rel=0.01) and any(float(low) == pytest.approx(t, rel=0.01) for t in times)
    assert "for large products two to four times as fast" in " ".join(readme.split())
    assert all(2 <= float(x) <= 4 for found in large.values() for pair in found for x in pair)
    shown = next(rows_of(b) for p, _, b in blocks("programs") if p.name == "README.md")
    worst = min(float(row[shown[0].index("toprung (error)")].split()[0]) for row in shown[2:])
    text = r"bound by the host ([\d.]+)(?: to [\d.]+)? ×; the same as a CUDA graph ([\d.]+)(?: to [\d.]+)? ×"
    ((eager, graphed),) = re.findall(text, gains["NVIDIA H200"][1])
    assert 0.95 <= worst <= float(eager) and float(graphed) >= 1, "what loses most is shown, and a CUDA graph loses nothing"
    for unmeasured, kind in (("A100, RTX 4090", "predicted"), ("B200, other NVIDIA cards", "not measured"), ("a CPU", "no gain")):
        assert gains[unmeasured][0].startswith(kind) and gains[unmeasured][1] in ("no gain yet", "not measured")
    best = next(one for one in of_views(gathered) if one.what == "turing, fp32")
    picture = next(body for p, _, body in blocks("climb") if p.name == "README.md")
    assert f"to {float(best.figure.split(' ')[0].replace(',', '')) / 1e3:.1f} with" in picture


@pytest.mark.parametrize("what", DRAWN)
def test_pictures_that_a_marker_names_are_up_to_date(what: str) -> None:
    found = {page.parent / name: words for page, (name, *words), _ in blocks(what)}
    assert found
    for picture, words in found.items():
        text = picture.read_text()
        assert text == DRAWN[what](*words, ROOT), f"{picture} is out of date: make tables"
        width = re.search(r'width="(\d+)"', text)
        assert width and int(width[1]) <= 900 and "prefers-color-scheme:dark" in text


def test_a_vendor_is_the_same_figure_beside_every_ladder() -> None:
    """In the tables of ladders on all pages: one figure for each vendor, device, backend and size."""
    seen: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for _, words, body in blocks("ladder"):
        paths = [w.rstrip("?") for w in words if not w.startswith("sizes=") and (w[-1] != "?" or (ROOT / w[:-1]).exists())]
        devices = [results.read(ROOT / w.split("+")[0])["environment"]["device"] for w in paths]
        head, _, *rows = rows_of(body)
        for cells in rows:
            if cells[0] == "0":
                for name, cell in zip(head[2:], cells[2:], strict=True):
                    if name.startswith("% of copy") or cell == "–":
                        continue
                    backend, _, size = name.rpartition(" ") if len(paths) > 1 else (devices[0]["backend"], "", name)
                    who = f"{cells[1]} {'GB/s' if 'matvec' in paths[0] else 'GFLOP/s'}"
                    seen[devices[0]["slug"], backend, who, size].add(cell.split(" ")[0])
    assert len(seen) > 20
    assert {key: figures for key, figures in seen.items() if len(figures) > 1} == {}


def test_the_report_has_every_rung_there_is() -> None:
    views = Views(gather([H200]))
    shown = {m.competitor["name"] for taken in views.of.values() for _, m in taken if m.competitor["kind"] == "rung"}
    expected = {r.name for name in ("kepler", "turing", "hopper", "hopper_fp32", "matvec") for r in ladder(name).rungs}
    assert expected - shown == set()
    at = {k[0]: {m.competitor["number"] for _, m in taken} for k, taken in views.of.items() if k[1:3] == ("cuda", "4096")}
    assert 17 in at["turing"] and {9, 10} <= at["hopper"], "at the size that is shown first, too"


def test_the_tuners_chart_begins_with_a_search_that_found_something() -> None:
    chart = tuning(gather([H200]))
    course = [float(r["best"]) for r in chart.rows if r["view"] == chart.shown]
    assert len(course) > 3 and max(course) > 1.02 * course[0]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        # settled before not, although older and with fewer rungs
        ({"settle": 0.1, "date": "2026-01-01"}, {"rungs": 3, "date": "2026-09-01"}),
        # fp32 alone before Tensor Cores beside it
        ({"rungs": 1}, {"rungs": 3, "narrow": True, "date": "2026-09-01"}),
        # the most rungs
        ({"rungs": 3}, {"rungs": 2, "date": "2026-09-01"}),
        # the newest
        ({"date": "2026-02-03"}, {"date": "2026-02-02"}),
    ],
)
def test_the_rule(better: dict[str, Any], worse: dict[str, Any], tmp_path: Path) -> None:
    def record(
        name: str, seconds: float, settle: float = 0.0, rungs: int = 2, narrow: bool = False, date: str = "2026-03-03"
    ) -> Any:
        own = [peer("cublas", around(seconds), P, idea="cuBLAS")]
        own += [of_rung(f"kepler/r0{n + 1}", around(1e-3), P) for n in range(rungs)]
        own += [peer("cublas_fp16", around(1e-4), P, "fp16")] if narrow else []
        return results.read(stored(tmp_path / name, *(settled(m, settle) for m in own), date=date))

    records = [record("a.json", 1e-3, **better), record("b.json", 2e-3, **worse)]
    for order in (records, records[::-1]):
        found = by_rule(((r, m) for r in order for m in r["measurements"]), lambda r: r)
        chosen, m = found["machine", "cuda", "cublas", "4096", "warm"]
        assert chosen is records[0] and standing(records[0], m) > standing(records[1], records[1]["measurements"][0])
    # tables and the report's page take it, too: the vendor of the worse record is that of the better
    merged, said = ladder_record("b.json", tmp_path)
    assert merged["measurements"][0].median == pytest.approx(1e-3, rel=0.02) and "a.json" in said
    views = Views(gather([tmp_path]))
    ((_, vendor), *_) = views.of["kepler", "cuda", "4096", "warm"]
    assert vendor.median == pytest.approx(1e-3, rel=0.02)


def test_a_record_whose_code_is_unknown_feeds_no_headline(tmp_path: Path) -> None:
    for name, seconds, src in (("a", 1e-3, "abc"), ("b", 1e-4, "unknown")):
        own = [peer("cublas", around(1e-3), P, idea="cuBLAS"), of_rung(f"kepler/r0{len(name)}", around(seconds), P)]
        stored(tmp_path / f"{name}.json", *own, src=src, date=f"2026-0{1 + (src == 'unknown')}-01")
    (one,) = of_views(gather([tmp_path]))
    assert one.times == pytest.approx(1, rel=0.05) and [Path(name).name for name in one.records] == ["a.json"]


def test_rungs_of_several_records_are_in_one_table_once(tmp_path: Path) -> None:
    first = [of_rung(f"kepler/r0{n}", around(1e-3 / n), P) for n in (1, 2, 3)]
    stored(tmp_path / "a.json", peer("cublas", around(1e-4), P), *first)
    stored(
        tmp_path / "b.json", of_rung("kepler/r03", around(5e-3), P), of_rung("kepler/r04", around(1e-3 / 4), P), date="2026-09-09"
    )
    text = refresh("<!-- toprung:ladder a.json+b.json -->\n<!-- toprung:end -->\n", tmp_path)
    assert [row[0] for row in rows_of(text)[2:]] == ["0", "1", "2", "3", "4"]
    third = float(rows_of(text)[5][2].split(" ")[0].replace(",", "").strip("*"))
    assert third == pytest.approx(P.flops / (1e-3 / 3) / 1e9, rel=0.03), "of the record with more rungs"


@pytest.mark.parametrize(
    ("kernels", "src", "said"),
    [
        ({R01: "now"}, "abc", ""),
        (
            {R01: "older", "kernels/tiled/tiled.cl": "older", "gone.cl": "now"},
            "abc",
            "changed since: r01, `tiled.cl`, `gone.cl`.\n",
        ),
        ({f"{i}.cl": "now" for i in range(8)}, "abc", "`4.cl`, `5.cl` and 2 more.\n"),
        ({R01: "now"}, "unknown", "Files whose measured code is in no commit: `a.json`.\n"),
    ],
)
def test_a_table_says_by_itself_that_its_kernels_have_changed(kernels: dict[str, str], src: str, said: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "a.json", of_rung("kepler/r01", around(1e-3), P), src=src)
    now = {
        name: blob((PACKAGE / name).read_bytes()) for name, state in kernels.items() if state == "now" and (PACKAGE / name).exists()
    }
    content = json.loads(path.read_text())
    content["environment"]["kernels"] = {**dict.fromkeys(kernels, "0" * 12), **now}
    path.write_text(json.dumps(content))
    text = refresh("<!-- toprung:ladder a.json -->\n<!-- toprung:end -->\n", tmp_path)
    assert text.count("changed since") == ("changed" in said or "more" in said) and text.count("in no commit") == (
        "no commit" in said
    )
    assert text.endswith(f"{said}<!-- toprung:end -->\n")


@pytest.mark.parametrize(("now", "said"), [("", ""), ("0.0f", "changed since: r01.")], ids=["line break", "constant"])
def test_a_line_break_is_no_change_and_a_constant_is(now: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (PACKAGE / R01).read_text()
    older = re.sub(r",\s+", ", ", text)
    (tmp_path / "layout.json").write_text(json.dumps({blob(older.encode()): source_digest([older])}))
    monkeypatch.setattr(common, "LAYOUT", tmp_path / "layout.json")
    monkeypatch.setattr(common, "PACKAGE", tmp_path)
    (tmp_path / R01).parent.mkdir(parents=True)
    (tmp_path / R01).write_text(text.replace(now, "1.0f") if now else text)
    record = {"environment": {"src": "abc", "kernels": {R01: blob(older.encode())}}}
    assert older != text and common.about_code({"a.json": record}).removeprefix("Measured with kernels that have ") == said


def test_the_newest_step_of_several_records_is_shown(tmp_path: Path) -> None:
    for name, ms, date in (("a", 60, "2026-01-02"), ("b", 70, "2026-01-03"), ("c", 50, "2026-01-01")):
        row = {"model": "gpt", "mode": "eager", "title": "GPT", "steps": 1, "date": date, "commit": name, "errors": {}}
        stored(tmp_path / f"{name}.json", torch_models=[{**row, "seconds": {"toprung": [ms / 1e3]}}])
        content = json.loads((tmp_path / f"{name}.json").read_text())
        content["environment"] |= {"python": "3", "packages": {"torch": "2"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    for words in ("a.json+b.json+c.json", "b.json+a.json"):
        text = refresh(f"<!-- toprung:torch_models {words} -->\n<!-- toprung:end -->\n", tmp_path)
        assert "| 70.0 |" in text and "60.0" not in text and "commit b" in text


def test_programs_that_lose_are_shown_and_counted(tmp_path: Path) -> None:
    def row(model: str, ms: float, mode: str = "eager") -> dict[str, Any]:
        seconds = {"fp32": [4e-3] * 2, "tf32": [2e-3] * 2, "toprung": [ms / 1e3] * 2}
        errors = {arm: {"gradient": 1e-6} for arm in seconds}
        return {"model": model, "mode": mode, "title": f"{model}, 3", "seconds": seconds, "errors": errors, "speedup": [4 / ms] * 3}

    skipped = row("a", 1, "compiled") | {"seconds": {}, "errors": {}, "skipped": "too slow"}
    untimed = {key: value for key, value in row("e", 1).items() if key != "speedup"} | {"seconds": {}}
    rows = [row("a", 8), row("a", 1, "graphed"), skipped, row("b", 1) | {"busy": 0.456}, row("c", 2), row("d", 4), untimed]
    stored(tmp_path / "a.json", torch_models=rows)
    content = json.loads((tmp_path / "a.json").read_text())
    content["environment"] |= {"python": "3", "packages": {"torch": "2"}}
    (tmp_path / "a.json").write_text(json.dumps(content))
    whole, brief = (
        refresh(f"<!-- toprung:programs {w} -->\n<!-- toprung:end -->\n", tmp_path) for w in ("a.json", "most=2 a.json")
    )
    assert [cells[0] for cells in rows_of(whole)[2:]] == ["b, 3, 46 %", "c, 3", "d, 3", "a, 3", "e, 3"]
    assert [cells[0] for cells in rows_of(brief)[2:]] == ["b, 46 %", "a"]
    assert rows_of(brief)[3][1:] == ["4.0 (1e-06)", "2.00 (1e-06)", "0.50 (1e-06)", "–", "4.00"]
    for text in (whole, brief):
        assert "4 programs: geometric mean 1.41, 1 slower" in text


def test_figures_of_two_cards_never_stand_in_one_column(tmp_path: Path) -> None:
    """A table with a row for a device is made once for each; any other is refused."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        stored(tmp_path / name / "a.json", of_rung("kepler/r01", around(1e-3), P), device={"slug": name, "short_name": name})
    blocks = "<!-- toprung:{} one/a.json two/a.json -->\n<!-- toprung:end -->\n"
    for table in refresh(blocks.format("rung r01"), tmp_path).split("\n\n| device")[:2]:
        assert ("| one, cuda" in table) != ("| two, cuda" in table)
    with pytest.raises(BadRecord, match="one and two in one column"):
        refresh(blocks.format("ladder"), tmp_path)


def test_every_result_file_lies_in_the_folder_of_its_card() -> None:
    folders = {path.parent.name: read["environment"]["device"]["slug"] for path, read in results.read_all([ROOT / "results"])}
    assert {folder: slug for folder, slug in folders.items() if folder != slug} == {}


def test_a_planted_disagreement_is_found(tmp_path: Path) -> None:
    """A card that took its figures from one record alone, as it once did, disagrees with the rule on these records."""
    own = [
        peer("cublas", around(2e-3), P, idea="cuBLAS"),
        of_rung("kepler/r01", around(1e-3), P),
        peer("x", around(1e-4), P, "fp16"),
    ]
    alone, beside = (
        stored(tmp_path / n, *ms) for n, ms in (("a.json", own), ("b.json", [settled(peer("cublas", around(1e-3), P))]))
    )
    assert alone.exists() and beside.exists()
    stored(
        tmp_path / "c.json",
        settled(peer("cublas", around(1e-3), P, idea="cuBLAS")),
        settled(of_rung("kepler/r02", around(2e-3), P)),
    )
    (one,) = of_views(gathered := gather([tmp_path]))
    assert one.times == pytest.approx(1.0, rel=0.05) and one.who == "kepler/r01", "and not twice as fast, as in its own record"
    assert headlines.headline_table(["."], tmp_path).count(one.share) == 1
    assert one.share in html.unescape(render(gathered, Limits(gathered, False)))
