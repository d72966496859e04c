"""The documentation is checked like code: links, pages, quoted kernels, the worked example, and that no figure is typed."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tables.ladder
import trial
from tables import BLOCK, refresh
from toprung.device import Device
from toprung.dispatch import ranking
from toprung.lab.rung import Rung, ladder, ladder_names

ROOT = trial.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REPORT = ROOT / "docs" / "report" / "index.html"
"""The one page that is linked to and not in the repository: ``make site`` makes it."""
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\d[\d.,  ]*\s*[GT]FLOP(?:/s|S)", re.IGNORECASE)
SOURCES = ("K40m", "GTX 280", "GTX 580", "GTX 680", "RTX 2080")
"""Devices of published work: a figure may be typed on a line that names one, because it is not ours to measure again."""

ladder_record = functools.cache(tables.ladder.ladder_record)
"""Record of a ladder, read once for all of its pages."""

RUNGS = [r for name in ladder_names() for r in ladder(name).rungs]


def name(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def page_of(rung: Rung) -> Path:
    return ROOT / "docs" / rung.ladder / f"{rung.stem}.md"


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def typed_figures(text: str) -> list[str]:
    """Lines with a speed that stands outside generated blocks and names no published source."""
    lines = BLOCK.sub("", text).splitlines()
    return [line for line in lines if FIGURE.search(line) and not any(s in line for s in SOURCES)]


def flat(text: str) -> str:
    return " ".join(text.split())


def misquoted(page: str, own: str, before: str) -> list[str]:
    """Lines of a page's diffs that stand in no kernel: ``+`` must be in the rung's own, ``-`` in the one before it."""
    wrong = []
    for language, body in FENCE.findall(page):
        for line in body.splitlines() if language == "diff" else ():
            texts = {"+": (own,), "-": (before,)}.get(line[0], (own, before))
            wrong += [line for text in texts if flat(line[1:]) not in flat(text)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_images_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists() or other == REPORT, f"{name(page)} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(other), f"{name(page)} links to {target}: no such heading"


@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.slow] * (p.stem == "lab-notes")) for p in PAGES], ids=name)
def test_generated_tables_are_up_to_date(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = functools.cache(ranking.ranked)  # tables ask for it twice for every product
    monkeypatch.setattr(ranking, "ranked", lambda device, desc, precision="fp32", own=True: order(device, desc, precision, own))
    monkeypatch.setattr(tables.ladder, "ladder_record", ladder_record)
    text = page.read_text()
    assert refresh(text, ROOT) == text, f"{name(page)} is out of date: make tables"
    begun = re.findall(r"^<!-- toprung:(?!end).*", text, re.MULTILINE)
    assert all(BLOCK.match(f"{line}\n<!-- toprung:end -->") for line in begun), f"{name(page)} has a marker that makes no table"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_figure_is_typed(page: Path) -> None:
    assert typed_figures(page.read_text()) == []


def test_a_typed_figure_is_noticed() -> None:
    typed = ["It reaches 51.6 GFLOP/s here.", "and 60 TFLOP/s"]
    allowed = ["K40m: 1338 GFLOP/s", "GFLOP/s, medians", "<!-- toprung:rung r01 x -->", "9 GFLOP/s", "<!-- toprung:end -->"]
    assert typed_figures("\n".join(typed + allowed)) == typed


@pytest.mark.parametrize("rung", RUNGS, ids=name)
def test_every_rung_has_a_page_that_quotes_it_right(rung: Rung) -> None:
    page = page_of(rung)
    assert page.exists(), f"{rung} has no page {name(page)}"
    text = page.read_text()
    blocks = {(m["what"], *m["words"].split()[:1]) for m in BLOCK.finditer(text)}
    assert ("rung", rung.stem[:3]) in blocks, f"{name(page)} has no generated block of {rung}'s measurements"
    before = next((r.source.read_text() for r in reversed(ladder(rung.ladder).rungs) if r.number < rung.number), "")
    assert misquoted(text, rung.source.read_text(), before) == []


def test_words_of_the_prelude_that_rungs_use_are_in_the_glossary() -> None:
    prelude = (ROOT / "src/toprung/backends/prelude.cl").read_text()
    words = set(re.findall(r"^#define ([A-Z][A-Z_]+)\b", prelude, re.MULTILINE))
    texts = " ".join(r.source.read_text() for r in RUNGS if r.source.suffix == ".cl")
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert [w for w in sorted(words) if re.search(rf"\b{w}\b", texts) and not re.search(rf"`{w}[`(]", glossary)] == []


def test_a_wrong_quotation_is_noticed() -> None:
    page = "```diff\n+    a = b;\n-    c =  d;\n+ e\n- a = b;\n```\n"
    assert misquoted(page, "{ a = b; }", "{ c = d; }") == ["+ e", "- a = b;"]


def test_the_example_of_a_rung_of_ones_own_runs_as_printed(device: Device, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding-a-rung.md").read_text()
    files = re.findall(r"^`mine/([^`]+)`:\n\n```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [Path(path).suffix for path, _ in files] == [".py", ".cl"]
    for path, text in files:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    words = re.search(r"TOPRUNG_LADDERS=mine toprung (.+)", page)
    assert words
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from toprung.cli import main; main()",
            *words[1].split(),
            "--sizes",
            "33x35x37",
            "--device",
            device.id,
        ],
        env={**os.environ, "TOPRUNG_LADDERS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "independent sums" in done.stdout
