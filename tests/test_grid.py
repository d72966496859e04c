"""Tables for terminals: no number is cut at any width, and what is left out is said."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from records import around, of_rung, peer
from toprung.cli import progress
from toprung.cli.common import say
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness.compare import ComparisonPlan, Row
from toprung.lab.harness.measure import Measurement, Timing
from toprung.lab.rung import ladder
from toprung.oracle.gemm import Gemm
from toprung.report import names
from toprung.report.bench_table import bench_table
from toprung.report.grid import Column, Grid, left_out
from toprung.report.table import ladder_table, sweep_tables
from toprung.report.text import Limits, ms_text


def printed(grid: Grid, width: int | None) -> tuple[str, tuple[str, ...]]:
    """Return a grid as it is printed at a width, and what was left out."""
    table, hidden, taken = grid.fitted(width)
    out = io.StringIO()
    Console(file=out, width=max(taken, width or 0)).print(table, crop=False)
    return out.getvalue(), hidden


def full() -> list[Row]:
    """The turing ladder as it might be measured, with long ideas and tiles."""
    rows = []
    for found in ladder("turing").rungs:
        who = RungCompetitor(found, tile=found.tiles["gpu"][0])
        rows.append(
            Row(who, state="done", measurement=of_rung(found.name, around(123.4567e-6 * (19 - found.number), found.number)))
        )
    return rows


@pytest.mark.parametrize("width", [60, 80, 100, 120, None])
def test_no_number_is_cut_at_any_width(width: int | None) -> None:
    grid = ladder_table(full(), "turing at 1024", Limits(30.0), bound=lambda row: 0.5)
    text, hidden = printed(grid, width)
    shown = [c for c in grid.columns if c.name not in hidden]
    for cells, _ in grid.rows:
        line = next(line for line in text.splitlines() if re.match(rf"{cells['rung']}\s", line))
        for column in shown:
            if not column.text:
                assert str(cells.get(column.name, "")) in line, column.name
    if width:
        assert max(map(len, text.splitlines())) <= width
    assert bool(hidden) is (width is not None and width <= 120)
    assert {"rung", "idea", names.MS, "GFLOP/s", names.SPREAD}.isdisjoint(hidden)


def test_lesser_columns_go_first_and_are_named() -> None:
    grid = Grid("t", [Column("a"), Column("b", 1), Column("c", 2)])
    grid.add({"a": "1" * 10, "b": "2" * 10, "c": "3" * 10})
    assert [grid.fitted(width)[1] for width in (34, 33, 22, 21, 3)] == [(), ("c",), ("c",), ("b", "c"), ("b", "c")]
    assert left_out(("b", "c"), 21) == "left out at 21 columns: b, c; --wide shows them" and left_out((), 80) == ""
    assert "1" * 10 in printed(grid, 3)[0], "what is always shown goes past the edge rather than being cut"


def test_a_text_is_cut_before_it_pushes_a_number_out() -> None:
    grid = Grid("t", [Column("idea", right=False, text=True), Column("n", 1)])
    grid.add({"idea": "words " * 20, "n": "12,345"})
    text, hidden = printed(grid, 40)
    assert not hidden and "12,345" in text and "…" in text and max(map(len, text.splitlines())) <= 40


def test_a_sweep_takes_as_many_tables_as_its_sizes_need() -> None:
    def at(n: int) -> list[Row]:
        measured: Measurement = peer("cublas", around(1e-3 * n))
        return [Row(RungCompetitor(ladder("kepler").rungs[0]), state="done", measurement=measured)]

    results = {str(256 * n): at(n) for n in range(1, 25)}
    grids = sweep_tables(results, 80)
    assert [c.name for g in grids for c in g.columns[2:]] == list(results)
    for grid in grids:
        text, hidden = printed(grid, 80)
        assert not hidden and max(map(len, text.splitlines())) <= 80
    assert len(grids) > 1 and len(sweep_tables(results, None)) == 1


def test_times_have_no_exponent() -> None:
    assert [ms_text(s) for s in (1.85e-6, 2.6e-8, 0.0123, 4.0)] == ["0.00185", "0.00003", "12.3", "4,000"]


def test_what_is_left_is_estimated_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two verdicts of 10 s each and then samples of 1 s: what is left of both kinds is counted at their own speeds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    one = progress.Progress({"verdict": 4.0, "sample": 40.0})
    assert one.line() == "0 s" and one.left() == 44, "as predicted"
    for kind, seconds in (("verdict", 10.0), ("verdict", 10.0), ("sample", 1.0), ("sample", 1.0)):
        now[0] += seconds
        one.step("a", 1.0, kind)
    assert one.left() == pytest.approx(2 * 10 + 38 * 1) and one.line() == "a: 22 s, about 58 s to go"
    one.leave_out({"verdict": 2.0, "sample": 30.0})
    assert one.left() == pytest.approx(8)
    assert [progress.duration(s) for s in (0.4, 59.4, 60, 200, 3900)] == ["0 s", "59 s", "1 min", "3 min 20 s", "1 h 5 min"]


def test_what_is_left_of_slow_samples_is_known_from_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rung whose sample takes 2 s, where planning had guessed hundredths: known before its first sample is over."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    plan, problem = ComparisonPlan(samples={"warm": 5}), Gemm(64, 64, 64)
    row = Row(RungCompetitor(ladder("kepler").rungs[0]), state="timing")
    one = progress.Progress(plan.expected(problem, 1, "cpu"))
    pace = progress.Pace(one, plan, problem, "cpu", 1)
    now[0] += 1.0
    assert pace.step(row, "is right")
    now[0] += 6.0  # the warm-up
    row.timing = Timing(None, calls=1, call_seconds=2.0, plan=plan.sampling_on("cpu", "warm"))  # type: ignore[arg-type]
    assert not pace.step(row, "warmed up")
    assert row.timing.sample_seconds == pytest.approx(4), "a call to settle, and a call"
    assert one.left() == pytest.approx(20)
    now[0] += 4.0
    row.timing.seconds.append(2.0)
    assert pace.step(row, "timed 1 ×") and one.left() == pytest.approx(16) and pace.left["sample"] == pytest.approx(16)


def test_a_table_is_drawn_while_samples_come_in() -> None:
    """A live table is drawn by another thread: each look at a row may give another measurement."""

    class Busy(Row):
        @property  # type: ignore[misc]
        def measurement(self) -> Measurement:
            return peer("numpy", around(1e-3))

        @measurement.setter
        def measurement(self, value: object) -> None:
            pass

    row = Busy(RungCompetitor(ladder("kepler").rungs[0]), state="timing")
    assert "kepler/r01" in printed(bench_table([row, row], "t", "cpu"), None)[0]


def test_texts_are_broken_between_words_on_a_terminal_alone() -> None:
    path = "/a/path/that/is/longer/than/the/terminal/is/wide"
    for terminal in (True, False):
        out = io.StringIO()
        say(
            f"main loop  one two three four five six seven {path}",
            indent=11,
            to=Console(file=out, width=30, force_terminal=terminal),
        )
        lines = out.getvalue().splitlines()
        assert path in " ".join(lines), "whole, so that it can be copied"
        if terminal:
            assert lines[0] == "main loop  one two three four" and lines[1].startswith(" " * 11 + "five")
        else:
            assert len(lines) == 1
