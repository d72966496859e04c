"""Commands at 80, 100 and 120 columns and piped: no line passes the edge, no number is cut, and errors are a line or two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command import Typed
from tables import refresh
from toprung.cli import app, common
from toprung.cli.bound import conditions, inputs
from toprung.lab.bounds.arch import ARCHITECTURES, architecture
from toprung.lab.bounds.paper import Blocking, analyse
from toprung.lab.guidelines.base import FAILS, HOLDS, Finding, Way
from toprung.lab.guidelines.base import WRONG as BROKEN
from toprung.lab.harness.results import read
from toprung.lab.harness.stats import Interval
from toprung.report import findings
from toprung.report.bound_table import overview
from toprung.report.grid import Grid
from toprung.report.probe_table import probe_table
from trial import fixture

WIDTHS = (80, 100, 120)
KEPLER = "h200-results/nvidia-h200/kepler-cuda.json"


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a grid's lines as a command prints them at a width; no width is a pipe."""

    def lines(grid: Grid, width: int | None) -> list[str]:
        if width is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(common.console, "width", width or 132)
        common.show(grid, False)
        return capsys.readouterr().out.splitlines()

    return lines


def fits(lines: list[str], grid: Grid, width: int | None) -> None:
    """Assert that no line passes the edge, none ends with blanks, and every number of a shown column is whole."""
    assert not any(line != line.rstrip() for line in lines)
    body = [line for line in lines if not line.startswith("left out at")]
    assert "…" not in "".join(body) and (not width or max(map(len, body)) <= width)
    hidden = grid.fitted(width)[1]
    assert not hidden or lines[-1].startswith(f"left out at {width} columns: {', '.join(hidden)};")
    text = "\n".join(lines)
    for cells, _ in grid.rows:
        for column in grid.columns:
            if column.right and column.name not in hidden:
                assert re.search(rf"(^|\s){re.escape(str(cells.get(column.name, '')))}(\s|$)", text), column.name


def advice() -> list[Finding]:
    """Findings with long words and unlike numbers, one of them without any measurement."""
    ways = tuple(
        Way(f"a prime number, rounded up to groups of {n}", 1.0, (1e-4 * n, 1.1e-4 * n, 1.2e-4 * n), 1, False, 2.5e-7, ())
        for n in (256, 64, 1)
    )
    paper = "Where lanes of a warp take different branches, the warp goes through all of them: branch by whole warps."
    speed = Interval(1.234, 1.1, 1.4)
    return [
        Finding(
            "a", "transfers of pinned memory beside kernels", paper, "GB/s copied and worked on", HOLDS, "", ways, 0, 1, speed=speed
        ),
        Finding("b", "no divergence", paper, "G steps/s", FAILS, "", ways[:2], 1, 0, speed=speed),
        Finding("c", "native functions", paper, "G pairs/s", BROKEN, "the kernel computes something else"),
    ]


@pytest.mark.parametrize("width", [*WIDTHS, None])
def test_guidelines_have_whole_numbers_and_words(printed, width: int | None) -> None:
    grid = findings.table(advice(), "guidelines on a device", width)
    lines = printed(grid, width)
    fits(lines, grid, width)
    text = " ".join(" ".join(lines).split())
    for one in advice():
        assert f"{one.verdict}: " in text and all(word in text for word in one.paper.split())
    assert "against a prime number, rounded up to groups of 64: 1.23 × (1.10 to 1.40)" in text and "9.1" in text


@pytest.mark.parametrize("width", [*WIDTHS, None])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_bounds_have_whole_formulas(printed, arch: str, width: int | None) -> None:
    found = analyse(architecture(arch), Blocking.square(6, 256, 16))
    known, sources = inputs(found.of)
    fits(printed(known, width), known, width)
    assert len(sources) == len(set(sources)) >= 1
    stacked = conditions(found, stacked=True)
    lines = printed(stacked, width)
    fits(lines, stacked, width)
    for c in found.conditions:
        assert any(f" {c.number}  {c.rule}" in line for line in lines) and c.numbers in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [*WIDTHS, None])
@pytest.mark.parametrize("name", ["h200-probe.json", "h200-probe-webgpu.json"])
def test_probes_have_whole_numbers(printed, name: str, width: int | None) -> None:
    grid = probe_table(read(fixture(name))["probe"], "a device")
    fits(printed(grid, width), grid, width)


def test_a_probes_scatter_leaves_out_a_single_outlier_as_that_of_other_tables() -> None:
    one = next(e for e in read(fixture("h200-probe.json"))["probe"] if e["values"])
    *_, (cells, _) = probe_table([{**one, "values": [1.0, 1.0, 1.0, 1.0, 9.0], "value": 1.0}], "a device").rows
    assert cells["± %"] == "0.0"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h200-probe.json", "L1 read"),
        ("h200-turing.json", "± %"),
        ("h200-bounds-kepler.json", "a record of bounds with"),
        ("h200-guidelines.json", "against"),
        ("h200-overhead.json", "a record of"),
    ],
)
def test_every_kind_of_record_can_be_shown(typed: Typed, name: str, expected: str) -> None:
    code, text = typed("results", "show", fixture(name))
    assert code == 0 and "NVIDIA H200 (cuda)" in text and expected in text


def test_a_rungs_table_ends_with_what_limits_it(tmp_path: Path) -> None:
    for name, stored in (("turing-cuda", "h200-turing"), ("bounds-turing", "h200-bounds"), ("bounds-turing_2", "h200-bounds")):
        (tmp_path / f"{name}.json").write_bytes(fixture(f"{stored}.json").read_bytes())
    text = refresh("<!-- toprung:rung r01 turing-cuda.json -->\n<!-- toprung:end -->", tmp_path)
    assert text.count("What limits it") == 1 and "What limits it at 4096 on NVIDIA H200: L1 (" in text
    assert "The bound is 8,258 GFLOP/s, of which 7" in text


def test_an_overview_of_bounds_has_its_unit_and_the_spread() -> None:
    grid = overview([], "turing at 4096")
    assert grid.title.endswith(", GFLOP/s") and "± %" in [c.name for c in grid.columns]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bound", "--BR", "0"), "--BR is at least 1, not 0"),
        (("bound", "--arch", "nope"), "there is no architecture in the model 'nope'"),
        (("inspect", "webgpu"), "no rung of webgpu can be compiled as CUDA"),
        (("inspect", "kepler/r07", "--cubin", "{folder}"), "it is a folder"),
        (("explain", "kepler/r07", "--size", "64,65"), "takes one size, not 2"),
        (("results", "show", "{folder}/none.json"), "cannot be read"),
        (("results", "show", "{folder}/broken.json"), "is damaged"),
        (("results", "list", "--dir", "{folder}/none"), "--dir names another folder"),
        (("report", "{good}", "--no-code", "--out", "{folder}/broken.json"), "is no folder"),
        (("guidelines", "--only", "nope"), "there is no guideline 'nope'"),
        (("probe", "--only", "nope"), "there is no microbenchmark 'nope'"),
        (("tune", "--strategy", "nope"), "there is no strategy 'nope'"),
        (("web", "kepler"), "toprung web webgpu"),
        (("run", "kepler/r99"), "there is no rung of kepler '99'"),
    ],
)
def test_bad_input_is_said_in_a_line_or_two(typed: Typed, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "broken.json").write_text('{"a":')
    good = fixture(KEPLER)
    code, text = typed(*(word.format(folder=tmp_path, good=good) for word in words))
    assert code == 2 and said in text and "Traceback" not in text and len(text) < 700


def test_paragraphs_of_help_are_not_broken_where_the_source_is() -> None:
    for command in app.registered_commands:
        assert command.hidden or (command.help and not re.search(r"\S\n\S", command.help)), command.name
