"""The report without a browser: what it holds, what it leaves out and names, and that nothing in a record gets past its quotes."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from command import Typed
from conftest import require
from records import around, climbed, of_rung, peer, stored
from toprung.backends import nvrtc
from toprung.lab.harness import results
from toprung.oracle.gemm import Gemm
from toprung.report.html import compare, page
from toprung.report.html.gather import gather, read_sound
from toprung.report.html.limits import Limits
from toprung.report.html.page import embed

HOSTILE = """</script><script>alert(1)</script>"><img src=x onerror=alert(2)>'{{7*7}}&lt;\u2028=HYPERLINK("x")"""


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    monkeypatch.chdir(tmp_path)  # by default, results/ of the folder it runs in is read
    return Typed(capsys, monkeypatch)


class Parsed(HTMLParser):
    """Page as a browser would read it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def ids(self) -> set[str]:
        return {i for _, attrs in self.tags if (i := attrs.get("id"))}

    @property
    def charts(self) -> dict[str, Any]:
        return {c["id"]: c for c in json.loads(self.scripts[0])["charts"]}


def made(*paths: Path, code: bool = False, device: str | None = None) -> Parsed:
    found = gather(list(paths), device)
    return Parsed(page.render(found, Limits(found, code)))


def speeds(chart: dict[str, Any], view: str) -> dict[str, float]:
    return {r["name"]: r["speed"] for r in chart["rows"] if r["view"] == view and not r.get("guide")}


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    climbed(tmp_path / "kepler.json")
    shown = made(tmp_path)
    stairs = shown.charts["stairs-kepler"]
    at = speeds(stairs, "2048 through cuda")
    record = results.read(tmp_path / "kepler.json")
    assert at == {
        (m.competitor["idea"] if m.competitor["kind"] == "peer" else results.competitor_name(m.competitor)): m.gflops
        for m in record["measurements"]
        if m.problem["M"] == 2048
    }
    kinds = [
        (r["name"], r["kind"], r.get("open"))
        for r in stairs["rows"]
        if r["view"] == "1024 through cuda" and r["name"] != "fp32 peak"
    ]
    assert ("kepler/r08 INDEX32=1", "variant", "rung-kepler-r08") in kinds and ("cuBLAS", "vendor", None) in kinds
    assert {"stairs-kepler", "sizes", "beside", "errors"} <= shown.charts.keys()
    assert {"rung-kepler-r01", "rung-kepler-r07", "rung-kepler-r08", "records"} <= shown.ids
    for said in ("CUDA 13.0", "driver 580", "commit abc123", "2026-01-02", "at 1980 MHz", "medians of 9 samples", "kepler.json"):
        assert said in shown.text
    numbers = {r["name"]: r["number"] for r in stairs["rows"] if not r.get("guide")}
    assert numbers == {"cuBLAS": 0, "kepler/r01": 1, "kepler/r07": 7, "kepler/r08": 8, "kepler/r08 INDEX32=1": 8}
    before = next(r for r in stairs["rows"] if r["name"] == "kepler/r07" and r["view"] == "2048 through cuda")
    assert before["previous"] == pytest.approx(at["kepler/r07"] / at["kepler/r01"])
    assert before["vendor"] == pytest.approx(100 * at["kepler/r07"] / at["cuBLAS"])
    assert "What changed since kepler/r06" in shown.text and "gemm(const int M" in shown.text
    assert "toprung tune" in shown.text  # nothing was tuned, and the page says how


def test_each_chart_has_a_table_data_and_a_caption(tmp_path: Path) -> None:
    climbed(tmp_path / "kepler.json")
    shown = made(tmp_path)
    for chart in shown.charts:
        assert {f"plot-{chart}", f"csv-{chart}", f"json-{chart}", f"source-{chart}"} <= shown.ids
    tables = sum(tag == "table" for tag, _ in shown.tags)
    rungs = sum(attrs.get("class") == "rung" for _, attrs in shown.tags)
    assert tables >= len(shown.charts) + rungs


def test_the_page_is_the_same_for_the_same_records_and_asks_no_network(tmp_path: Path) -> None:
    climbed(tmp_path / "kepler.json")
    texts = []
    for _ in range(2):
        found = gather([tmp_path])
        texts.append(page.render(found, Limits(found, False)))
    assert texts[0] == texts[1]
    for tag, attrs in Parsed(texts[0]).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed"), tag
        assert not str(attrs.get("src") or attrs.get("href") or "#").startswith(("http", "//", "data")), attrs
    policy = next(str(a["content"]) for t, a in Parsed(texts[0]).tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe-eval" not in policy
    assert len(texts[0]) < 6e6


def test_texts_of_records_stay_texts(tmp_path: Path) -> None:
    device = dict.fromkeys(("name", "short_name", "runtime", "driver"), HOSTILE)
    stored(
        tmp_path / "in" / "a.json", peer(HOSTILE, around(1e-3)), of_rung("kepler/r01", around(1e-3), idea=HOSTILE),
        of_rung("kepler/r08", around(1e-3), None, "INDEX32=1", name=HOSTILE, idea=HOSTILE),
        commit=HOSTILE, what=HOSTILE, device=device, failures=[HOSTILE], notes=[HOSTILE],
    )  # fmt: skip
    (tmp_path / "in" / "<img src=x onerror=alert(3)>.json").write_text(f'{{"format": {json.dumps(HOSTILE)}}}')
    clean, shown = made(climbed(tmp_path / "clean" / "a.json")), made(tmp_path / "in")
    assert shown.scripts[1:] == clean.scripts[1:], "the scripts are ours whatever the records say"
    assert not [t for t, _ in shown.tags if t == "img"] and not [a for _, a in shown.tags if any(k.startswith("on") for k in a)]
    assert "49&" not in shown.text and "{{7*7}}" in shown.text and "alert(1)" in shown.text
    names = {r["name"] for r in shown.charts["stairs-kepler"]["rows"]}
    assert HOSTILE in names, "what is shown is the text itself"
    assert json.loads(embed({"a": HOSTILE})) == {"a": HOSTILE} and "<" not in embed(HOSTILE) and "\u2028" not in embed(HOSTILE)


def _damaged(folder: Path) -> None:
    good = climbed(folder / "good.json")
    content = json.loads(good.read_text())

    def put(name: str, **changes: Any) -> None:
        (folder / f"{name}.json").write_text(json.dumps({**content, **changes}))

    def with_first(**changes: Any) -> list[Any]:
        first, *rest = content["measurements"]
        return [{**first, **changes}, *rest]

    first = content["measurements"][0]
    put("version", format="toprung record 99")
    (folder / "cut.json").write_text(good.read_text()[:700])
    (folder / "list.json").write_text("[1, 2]")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00")
    put("nan", measurements=with_first(seconds=[float("nan")] * 9))
    put("none", measurements=with_first(seconds=[]))
    put("negative", measurements=with_first(seconds=[-1.0] * 9))
    put("zero-work", measurements=with_first(flops=0))
    put("who", measurements=with_first(competitor={**first["competitor"], "number": "0"}))
    put("path", measurements=with_first(competitor={**first["competitor"], "precision": "fp7"}))
    put("judged", measurements=with_first(verdict={"right": True}))
    put("problem", measurements=with_first(problem=[]))
    put("device", environment={**content["environment"], "device": "H200"})
    put("clock", environment={**content["environment"], "device": {**content["environment"]["device"], "clock_mhz": "fast"}})
    put("bounds", kind="bounds", bounds=[{"rung": 1}])
    put("probe", kind="probe", probe=[{}])
    put("tune", kind="tune", shapes=[{"problem": {}, "best": None, "trace": [["x", 1.0]]}])
    put("failures", failures=3)
    put("notes", notes="none")
    put("trans", measurements=with_first(problem={**first["problem"], "trans": 3}))
    put("bandwidth", bandwidth={"copy": 1})


def test_what_cannot_be_shown_is_named_and_the_rest_is_made(tmp_path: Path, typed: Typed) -> None:
    _damaged(tmp_path / "in")
    stored(tmp_path / "in" / "elsewhere.json", peer("numpy", [1.0]), device={"slug": "other", "short_name": "Other"})
    bad = sorted(p.name for p in (tmp_path / "in").iterdir() if p.name != "good.json")
    code, text = typed("report", tmp_path / "in", "--out", tmp_path / "out", "--no-code")
    shown = Parsed((tmp_path / "out" / "index.html").read_text())
    assert code == 0 and f"{len(bad)} files left out" in shown.text and len(bad) >= 22
    for name in bad:
        assert f"{name}: " in shown.text, name
    assert "99" in shown.text and "is of another device, Other: --device other" in shown.text
    result, *after = re.split("left out: ", text)
    assert "open it in a browser" in result and len(after) == 4 and f"{len(bad) - 3} files more, which the page lists" in after[3]
    assert shown.text.index("files left out") > shown.text.index("how it was measured"), "at the end"
    assert set(shown.charts["stairs-kepler"]["sources"]["1024 through cuda"]) == {
        "in/good.json: Machine, CUDA 13.0, driver 580, medians of 9 samples at 1980 MHz, 2026-01-02, commit abc123"
    }
    assert str(tmp_path) not in (tmp_path / "out" / "index.html").read_text(), "no page tells where a user's files lie"


def test_what_a_runtime_does_not_tell_is_no_damage(tmp_path: Path) -> None:
    climbed(tmp_path / "a.json", device={"clock_mhz": 0.0, "compute_units": 0, "peak_gflops": None, "arch": "", "kind": "cpu"})
    shown = made(tmp_path, code=True)
    assert (
        "left out" not in shown.text
        and speeds(shown.charts["stairs-kepler"], "1024 through cuda")
        and "clock at most" not in shown.text
    )


def test_the_device_can_be_chosen(tmp_path: Path, typed: Typed) -> None:
    climbed(tmp_path / "in/a.json")
    stored(tmp_path / "in/b.json", peer("numpy", [1.0]), device={"slug": "other", "name": "The Other One", "backend": "opencl"})
    for name in ("other", "other one"):
        shown = made(tmp_path / "in", device=name)
        assert "on the The Other One" in shown.text and "a.json: is of another device, Machine" in shown.text
    code, text = typed("report", tmp_path / "in", "--device", "nobody", "--out", tmp_path / "out")
    assert code == 2 and "there is: machine, other" in text and not (tmp_path / "out").exists()


def test_without_measurements_the_page_says_how_to_make_them(tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    code, text = typed("report")
    shown = Parsed((tmp_path / "report" / "index.html").read_text())
    assert code == 0 and "no measurements" in text
    for command in ("toprung ladder", "toprung bench", "toprung probe", "toprung tune"):
        assert command in shown.text
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.json").write_text("{")
    assert typed("report")[0] == 0
    assert "1 file left out" in Parsed((tmp_path / "report" / "index.html").read_text()).text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "there is neither a file nor a folder nowhere"), (("--tolerance", "100"), "between 0 and 100"),
        (("--picture", "x.png"), "written as .svg"), (("--fail-on-regression",), "--compare"),
        (("--compare", "aaa", "bbb"), "aaa is no record, folder, device or commit"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(
    words: tuple[str, ...], said: str, tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    code, text = typed("report", *words)
    assert code == 2 and said in text and not (tmp_path / "report").exists()


def test_a_missing_library_is_said(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, text = typed("report", climbed(tmp_path / "a.json"), "--out", tmp_path / "out")
    assert code == 2 and 'pip install "toprung[report]"' in text and "vl_convert" in text and not (tmp_path / "out").exists()


def test_a_planted_regression_is_flagged_and_noise_is_not(tmp_path: Path, typed: Typed) -> None:
    climbed(tmp_path / "in/a.json", commit="aaaa1111")
    climbed(tmp_path / "in/b.json", 1.2, commit="bbbb1111", date="2026-02-02T00:00:00")
    out = ("--out", tmp_path / "out", "--no-code")
    code, text = typed("report", tmp_path / "in", "--compare", "aaaa", "bbbb", *out)
    shown = Parsed((tmp_path / "out" / "index.html").read_text())
    assert code == 0 and "2 slower, 0 faster, 8 same" in text and "2 slower beyond noise" in shown.text
    rows = {(r["name"], r["problem"]): r for r in shown.charts["compare"]["rows"] if r["view"] == "all"}
    assert {name for (name, _), r in rows.items() if r["verdict"] == "slower beyond noise"} == {"kepler/r07"}
    slow = rows["kepler/r07", "1024"]
    assert slow["low"] <= slow["ratio"] <= slow["high"] < 0.97 and slow["ratio"] == pytest.approx(1 / 1.2, rel=0.02)
    assert "commit bbbb1111" in shown.text and speeds(shown.charts["stairs-kepler"], "1024 through cuda")["kepler/r07"] < 20000
    assert typed("report", tmp_path / "in", "--compare", "aaaa", "bbbb", "--fail-on-regression", *out)[0] == 1
    assert typed("report", tmp_path / "in", "--compare", "bbbb", "aaaa", "--fail-on-regression", *out)[0] == 0
    assert (
        typed(
            "report", "--compare", tmp_path / "in/a.json", tmp_path / "in/b.json", "--tolerance", "30", "--fail-on-regression", *out
        )[0]
        == 0
    )


def test_one_device_of_two_commits_is_compared(tmp_path: Path, typed: Typed) -> None:
    for slug, times in (("machine", 1.0), ("other", 1.3)):
        for commit in ("aaaa", "bbbb"):
            factor = times if commit == "bbbb" else 1.0
            climbed(tmp_path / "in" / slug / f"{commit}.json", factor, commit=commit, device={"slug": slug, "name": f"The {slug}"})
    words = ("report", tmp_path / "in", "--compare", "aaaa", "bbbb", "--no-code", "--out", tmp_path / "out")
    assert "2 slower, 0 faster, 18 same" in typed(*words)[1]
    assert "0 slower, 0 faster, 10 same" in typed(*words, "--device", "machine")[1]
    assert "2 slower, 0 faster, 8 same" in typed(*words, "--device", "The other")[1]
    assert "on the The other" in Parsed((tmp_path / "out" / "index.html").read_text()).text


def test_devices_and_backends_are_compared_in_what_both_measured(tmp_path: Path) -> None:
    climbed(tmp_path / "a.json")
    climbed(tmp_path / "b.json", 0.5, device={"slug": "other"})
    climbed(tmp_path / "c.json", 0.5, device={"backend": "opencl"})
    among, _ = read_sound([tmp_path])
    sides = {n: compare.side(n, among)[0] for n in ("machine", "other")}
    only = [r for r in sides["machine"] if r.backend == "cuda"], [r for r in sides["machine"] if r.backend == "opencl"]
    for a, b in ((only[0], sides["other"]), only):
        changes, alone = compare.compare(a, b, 0.03)
        assert alone == 0 and {c.competitor for c in changes if c.verdict == "faster"} == {"kepler/r07"} and len(changes) == 10
    changes, alone = compare.compare(sides["machine"], sides["other"], 0.03)
    assert len(changes) == 10 and alone == 10, "through OpenCL only one of the two was measured"


def test_a_damaged_side_is_named(tmp_path: Path, typed: Typed) -> None:
    climbed(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{}")
    code, text = typed("report", "--compare", tmp_path / "a.json", tmp_path / "b.json", "--out", tmp_path / "out")
    assert code == 2 and "b.json" in text and "damaged" in text and not (tmp_path / "out").exists()


def test_the_tuners_progress_is_drawn(tmp_path: Path) -> None:
    problem = Gemm(1024, 1024, 1024).describe()
    best = {"kernel": "gemm", "tile": {"BM": 64, "BN": 64, "BK": 8}, "options": {}}
    shapes = [{"problem": problem, "best": best, "trace": [[0.1, 1e-3], [0.2, None], [0.3, 5e-4]]}]
    stored(tmp_path / "t.json", kind="tune", what="toprung tune gemm", shapes=shapes)
    rows = made(tmp_path).charts["tuning"]["rows"]
    assert [(r["elapsed"], round(r["best"]), r["what"]) for r in rows] == [(0.1, 2147, ""), (0.3, 4295, "gemm 64×64×8")]


def test_a_rung_has_its_instructions_and_its_limiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(not nvrtc.missing(), "NVRTC is not installed")
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path / "cache"))
    device = {"slug": "nvidia-h200", "name": "NVIDIA H200"}  # its probe comes with the package
    stored(
        tmp_path / "in/a.json", of_rung("kepler/r07", around(1e-4)), of_rung("turing/r01", around(1e-3)), device=device, kind="x"
    )
    stored(tmp_path / "in/b.json", of_rung("kepler/r07", around(1e-4)), device=device)
    shown = made(tmp_path / "in", code=True)
    (row,) = [r for r in shown.charts["stairs-kepler"]["rows"] if r["name"] == "kepler/r07"]
    assert 20000 < row["ceiling"] < 66908 and row["limiter"] and row["share"] == pytest.approx(100 * row["speed"] / row["ceiling"])
    assert "Instructions of its main loop, sm_90" in shown.text and "FFMA" in shown.text and "What limits it" in shown.text
    assert any(r["name"] == "kepler/r07" for r in shown.charts["roofline"]["rows"])
    kept = list((tmp_path / "cache").rglob("machine-code/*.json"))
    assert len(kept) == 1
    monkeypatch.setattr("toprung.lab.sass.machine_code.inspect_source", lambda *_: pytest.fail("it was in the cache"))
    assert made(tmp_path / "in", code=True).charts == shown.charts
    kept[0].write_text("{")
    with pytest.raises(pytest.fail.Exception):
        made(tmp_path / "in", code=True)


def test_stored_bounds_are_the_ceilings_where_nothing_is_compiled(tmp_path: Path) -> None:
    m = of_rung("kepler/r07", around(1e-4))
    stored(tmp_path / "in/a.json", m)
    bound = {
        "rung": "kepler/r07", "number": 7, "idea": "", "variant": "", "tile": m.competitor["tile"], "limiter": "issue slots",
        "problem": dict(m.problem), "bound_gflops": 50000.0, "measured_gflops": None, "share": None, "no_cache_gflops": None,
        "registers": None, "ffma_share": None, "figures": {"source": "probe"},
    }  # fmt: skip
    stored(tmp_path / "in/b.json", kind="bounds", bounds=[bound])
    (row,) = [r for r in made(tmp_path / "in").charts["stairs-kepler"]["rows"] if r["name"] == "kepler/r07"]
    assert (row["ceiling"], row["limiter"]) == (50000.0, "issue slots")
    stored(tmp_path / "in/b.json", kind="bounds", bounds=[{**bound, "tile": {"BM": 1, "BN": 1}}])
    (row,) = [r for r in made(tmp_path / "in").charts["stairs-kepler"]["rows"] if r["name"] == "kepler/r07"]
    assert row["ceiling"] is None, "the bound of another tile is no ceiling of this one"
    stored(tmp_path / "in/b.json", kind="bounds", bounds=[{**bound, "bound_gflops": 20000.0}])
    (row,) = [r for r in made(tmp_path / "in").charts["stairs-kepler"]["rows"] if r["name"] == "kepler/r07"]
    assert row["share"] is None and row["limiter"] == "faster than issue slots should allow: the model is wrong"


def test_the_picture_is_the_same_twice(tmp_path: Path) -> None:
    climbed(tmp_path / "kepler.json")
    found = gather([tmp_path])
    drawn = [page.picture(found, Limits(found, False)) for _ in range(2)]
    assert drawn[0] and drawn[0] == drawn[1] and "<svg" in drawn[0] and "cuBLAS" in drawn[0]
    assert page.picture(gather([]), Limits(gather([]), False)) is None
