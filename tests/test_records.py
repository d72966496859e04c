"""The repository's result files: each is sound, and shown somewhere; and no test leans on one that may be measured again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import trial
from tables import BLOCK
from toprung.lab.harness import results
from toprung.report.bound_table import read_bounds

STORED = trial.ROOT / "results"

OF_PAGES = {
    "test_headlines.py",
    "test_docs.py",
    "test_history.py",
    "test_records.py",
    "test_report_browser.py",
    "test_report_page.py",
}
"""Test modules that may name result files: their subject is the pages made of them, or the files themselves."""


# --- the files themselves ---------------------------------------------------------------------------------------------------------


def test_every_stored_record_still_reads() -> None:
    read = list(results.read_all([STORED]))
    assert read and not [r for _, r in read if isinstance(r, results.BadRecord)]


@pytest.mark.parametrize("path", sorted(STORED.glob("*/bounds-*.json")), ids=lambda path: path.stem)
def test_no_stored_share_is_above_its_bound(path: Path) -> None:
    for b in read_bounds(path)["bounds"]:
        assert b["share"] is None or b["share"] <= 1, b["rung"]


# --- a file that nothing shows goes -----------------------------------------------------------------------------------------------


def readers(root: Path) -> Iterator[str]:
    """Yield the texts that may name a result file: pages, tools and benchmarks.

    Of a generated table only the marker counts: its last line quotes a command, and the file that this wrote may have another name
    now. The page in docs/report does not count either, for it shows whatever lies in its folder.
    """
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        yield BLOCK.sub(lambda match: match[1], page.read_text())
    for folder in ("tools", "benchmarks"):
        for script in (root / folder).rglob("*.py"):
            yield script.read_text()


def unnamed(root: Path) -> list[str]:
    """Return the result files that no page, tool or benchmark names.

    A text names a file by its path, or by its name alone if the folder's path is in the text, too.
    """
    texts = list(readers(root))
    found = []
    for file in sorted((root / "results").rglob("*.json")):
        path, folder = (p.relative_to(root).as_posix() for p in (file, file.parent))
        alone = re.compile(rf"(?<![\w/-]){re.escape(file.name)}")
        if not any(path in text or (folder in text and alone.search(text)) for text in texts):
            found.append(path)
    return found


def test_every_result_file_is_named_by_a_page_a_tool_or_a_benchmark() -> None:
    assert unnamed(trial.ROOT) == []


def test_a_result_file_that_nothing_names_is_noticed(tmp_path: Path) -> None:
    texts = {
        "README.md": "`results/one/a.json`",
        "docs/notes.md": "in results/two: `b.json`",
        "docs/page.md": "<!-- toprung:bench results/one/c.json -->\n`--json results/one/old.json`\n<!-- toprung:end -->\n",
        "docs/report/index.html": "results/one/old.json",
        "benchmarks/x.py": 'out = "results/one" / "d.json"',
    }
    files = ("one/a", "one/b", "one/c", "one/d", "one/old", "two/a", "two/b", "two/a-b")
    for name, text in {**texts, **{f"results/{file}.json": "" for file in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert unnamed(tmp_path) == [f"results/{name}.json" for name in ("one/b", "one/old", "two/a-b", "two/a")]


# --- tests read excerpts of them --------------------------------------------------------------------------------------------------


def mentions(source: str) -> list[str]:
    """Return the expressions of a test module that name the repository's results: a folder's path, or ``ROOT / "results"``."""
    folders = "|".join(re.escape(folder.name) for folder in STORED.iterdir())
    path = re.compile(rf"(?<![\w-])results/({folders})\b")
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.search(node.value):
            found.append(node.value)
        joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)
        if joined and re.match(r"results\b", str(node.right.value)) and re.search("ROOT|parent", ast.unparse(node.left)):
            found.append(ast.unparse(node))
    return found


def test_only_tests_of_pages_name_result_files() -> None:
    """Anything else reads an excerpt (``trial.fixture``), so that a file that is measured again breaks no test."""
    modules = [path for path in Path(__file__).parent.rglob("*.py") if path.name not in OF_PAGES]
    assert len(modules) > 50
    assert {path.name: found for path in modules if (found := mentions(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('read(trial.ROOT / "results/nvidia-h200/tiles.json")', 2), ('Path(__file__).parents[1] / "results" / "nvidia-h200"', 1),
        ('STORED = "results/nvidia-h200/fp32-leads.json"', 1), ('"""Taken from results/amd-epyc/tune.json."""', 1),
        ('(tmp_path / "results").mkdir()', 0), ('typed("results", "list")', 0),
        ('trial.fixture("h200-results/nvidia-h200/probe-cuda.json")', 0),
    ],
)  # fmt: skip
def test_a_mention_is_noticed(source: str, count: int) -> None:
    assert len(mentions(source)) == count
