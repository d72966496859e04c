"""The site's tools: what they refuse, what they make of a page; that the reference names everything. No MkDocs needed."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toprung
import trial
from check import check
from commands import reference
from contents import BadContents, contents, navigation
from docstrings import markdown
from text import DeadLink, for_site
from toprung.cli import app
from toprung.device import Device

DOCS = trial.ROOT / "docs"


def site_text(text: str, page: str = "kepler/index.md", root: Path = trial.ROOT) -> str:
    return for_site(text, page, root, lambda: "## every command")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of the pages, to spoil."""
    return shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("*.svg"))


def test_every_page_is_in_the_navigation() -> None:
    sections = contents(DOCS)
    listed = ["index.md", *(p for pages in sections.values() for page in pages for p in (page.path, *page.below))]
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))
    kepler = next(page for page in sections["Climb"] if page.path == "kepler/index.md")
    assert kepler.below[0] == "kepler/r01_naive.md" and kepler.below[-1] == "kepler/r10_edges.md"
    assert [next(iter(part)) for part in navigation(DOCS)] == ["toprung", *sections]


def test_a_page_that_is_in_no_table_is_refused_and_a_rungs_is_found(docs: Path) -> None:
    (docs / "kepler" / "r11_mine.md").write_text("# Rung 11\n")
    assert any("kepler/r11_mine.md" in page.below for page in contents(docs)["Climb"])
    (docs / "orphan.md").write_text("# Nobody's\n")
    with pytest.raises(BadContents, match=r"orphan\.md is in no table of docs/index\.md"):
        contents(docs)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| [X](gone.md) | what |", "gone.md is listed and does not exist"),
        ("| [X](start.md) | again |", "start.md is listed twice"),
    ],
)
def test_a_bad_row_is_refused(docs: Path, row: str, complaint: str) -> None:
    index = docs / "index.md"
    index.write_text(index.read_text() + row + "\n")
    with pytest.raises(BadContents, match=re.escape(complaint)):
        contents(docs)


def test_links_out_of_the_pages(tmp_path: Path) -> None:
    record = tmp_path / "results" / "machine" / "squares.json"
    record.parent.mkdir(parents=True)
    record.touch()
    linked = site_text("[a record](../../results/machine/squares.json)", root=tmp_path)
    assert linked == "[a record](../results/machine/squares.json)"
    assert site_text("[it](../../src/toprung/tile.py#L3)") == "it (`src/toprung/tile.py`)"
    assert site_text("[`tile.py`](../../src/toprung/tile.py)") == "`src/toprung/tile.py`"
    assert (
        site_text("[x](../../examples/climb.ipynb) and [y](../bound.md#level)")
        == "[x](../examples/climb.ipynb) and [y](../bound.md#level)"
    )
    stored = site_text("stored in `results/machine/squares.json`.", root=tmp_path)
    assert stored == "stored in [`results/machine/squares.json`](../results/machine/squares.json)."
    with pytest.raises(DeadLink, match=r"docs/kepler/index\.md links to \.\./\.\./src/toprung/gone\.py"):
        site_text("[it](../../src/toprung/gone.py)")


def test_markdown_as_git_hosts_read_it() -> None:
    assert site_text("They are:\n- one\n- two\n  more\n- three\n\nend") == "They are:\n\n- one\n- two\n  more\n- three\n\nend"
    fenced = "```c\na\n- b [x](../../gone.py)\n```\n"
    assert site_text(fenced) == fenced
    assert site_text("<!-- toprung:end -->\n| a |") == "\n| a |"
    made = site_text("### Device\n\n<!-- site:api toprung.Device slug -->\n")
    assert made == '<a id="device"></a>\n\n::: toprung.Device\n    options:\n      members:\n        - slug\n'


def test_docstrings_become_markdown() -> None:
    text = markdown(toprung.matmul.__doc__ or "")
    assert "----" not in text and "- `out`: (…, M, N), float32" in text and "```pycon\n>>> import numpy" in text
    assert "- `BadShape`, `Overlap`, `MixedPlaces`: operands that do not fit together (ValueErrors)" in text


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "python.md").read_text()
    names = {m[1] for m in re.finditer(r"<!-- site:api toprung\.(\w+)", page)}
    assert names == set(toprung.__all__)
    errors = re.search(r"site:api toprung\.errors ([\w ]+) -->", page)
    there = {n for n, e in vars(toprung.errors).items() if isinstance(e, type) and issubclass(e, toprung.errors.ToprungError)}
    assert errors and set(errors[1].split()) == there


@pytest.mark.parametrize("name", [n for n in toprung.__all__ if callable(getattr(toprung, n))])
def test_examples_in_docstrings_run_as_printed(name: str, device: Device) -> None:
    tests = doctest.DocTestFinder(recurse=False).find(getattr(toprung, name), name, globs={})
    runner = doctest.DocTestRunner()
    assert all(runner.run(test).failed == 0 for test in tests)


def test_the_reference_of_the_command_line_has_every_command_and_option() -> None:
    import typer

    text = reference()
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert f"\n## {name}\n" in f"\n{text}", name
        part = text[text.index(f"## {name}\n") :].partition("\n## ")[0]
        for option in (o for p in command.params for o in p.opts if o.startswith("--")):
            assert option in part, f"{name} {option}"
    assert "### results compare" in text and "NAME&#124;FILE.json" in text


def test_the_glance_at_the_commands_names_commands_and_options_that_exist() -> None:
    import typer

    root = typer.main.get_command(app)
    glance = (DOCS / "commands.md").read_text().partition("## Environment")[0]
    lines = [line.split() for line in glance.splitlines() if line.startswith("    toprung ")]
    assert {words[1] for words in lines} == {name for name, one in root.commands.items() if not one.hidden}  # type: ignore[attr-defined]
    for words in lines:
        known = {o for p in root.commands[words[1]].params for o in p.opts}  # type: ignore[attr-defined]
        assert {w for w in words if w.startswith("--")} <= known, words


def test_every_variable_of_the_environment_is_on_the_page() -> None:
    sources = "".join(path.read_text() for path in (trial.ROOT / "src").rglob("*.py"))
    read = set(re.findall(r'"(TOPRUNG_(?!SEPARATE|COMMIT)[A-Z_]+)"', sources))
    page = (DOCS / "commands.md").read_text()
    assert read and [name for name in sorted(read) if f"`{name}`" not in page] == []


def test_a_dead_link_an_anchor_and_the_network_are_noticed_in_a_built_site(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h2 id="here">b</h2>')
    page = tmp_path / "a.html"
    page.write_text('<a href="b.html#here">b</a><a href="https://example.org">out</a><a href="#x">x</a><i id="x"></i>')
    assert check(tmp_path) == []
    page.write_text('<a href="c.html">c</a><a href="b.html#gone">b</a><script src="https://example.org/x.js"></script>')
    wrong = check(tmp_path)
    assert ["does not exist" in wrong[0], "no such anchor" in wrong[1], "comes from the network" in wrong[2]] == [True] * 3
    assert check(tmp_path / "empty") != []


def test_the_example_of_a_peer_runs_as_printed(device: Device, tmp_path: Path) -> None:
    page = (DOCS / "adding-a-peer.md").read_text()
    found = re.search(r"^`src/toprung/lab/baselines/(\w+\.py)`:\n\n```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    words = re.search(r"^    toprung (bench .+)$", page, re.MULTILINE)
    assert found and words
    (tmp_path / found[1]).write_text(found[2])
    script = f"import toprung.lab.baselines as p; p.__path__.append({str(tmp_path)!r}); from toprung.cli import main; main()"
    command = [sys.executable, "-c", script, *words[1].split(), "--device", device.id]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^einsum ", done.stdout, re.MULTILINE)) == 2, done.stdout
