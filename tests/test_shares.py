"""Shares of the limit, marks around each launch, and pictures of a sweep: from records, without a device where none is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import trial
from command import Typed
from tables import refresh
from test_results import DEVICE, VERDICT
from toprung.backends.base import Session
from toprung.lab.competitor import BoundCompetitor, Clock, RungCompetitor
from toprung.lab.harness import results
from toprung.lab.harness.bandwidth import Bandwidth, Rate
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import rung
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.problem import F32, Problem
from toprung.report import plot
from toprung.report.table import ladder_table
from toprung.report.text import Limits

GPU = {**DEVICE, "peak_gflops": 2000.0, "clock_mhz": 1000.0}
MEMORY = Bandwidth((Rate("a", 10**9, (0.5,), 1),), (Rate("a", 10**9, (0.25,), 1),))  # copies 2 GB/s, reads 4


def measured(
    number: int, problem: Problem, seconds: float, clocks: tuple[float | None, ...] = (500.0,), each: tuple[float, ...] = ()
) -> Measurement:
    kind = "rung" if number else "peer"
    who = {"kind": kind, "name": f"x/r{number:02d}", "ladder": "x", "number": number, "idea": f"idea {number}", "variant": "",
           "precision": "fp32", "tile": {}}  # fmt: skip
    return Measurement(
        who, problem.describe(), problem.flops, problem.min_bytes, VERDICT, (seconds,) * 3, (0.0,) * 3, 1, clocks, each_seconds=each
    )


def stored(folder: Path, *measurements: Measurement, device: Mapping[str, Any] = GPU, **more: Any) -> Path:
    environment = {"date": "2026-01-02T03:04:05", "commit": "abc", "packages": {}, "device": device}
    results.write(folder / "a.json", results.record("toprung ladder x", environment, measurements, **more))
    return folder / "a.json"


def table(folder: Path, words: str) -> list[list[str]]:
    text = refresh(f"<!-- toprung:{words} -->\n<!-- toprung:end -->\n", folder)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_peak_is_that_of_the_clock_that_was_read() -> None:
    m = measured(1, Gemm(100, 100, 100), 2e6 / 250e9, (400.0, None, 500.0, 600.0))  # 250 GFLOP/s
    assert m.share_of_peak(2.0) == pytest.approx(0.25)
    assert m.share_of_peak(None) is None
    assert measured(1, Gemm(100, 100, 100), 1e-3, (None, None)).share_of_peak(2.0) is None
    assert Limits.of({"environment": {"device": GPU}}) == Limits(2.0)
    assert Limits.of({"environment": {"device": DEVICE}}) == Limits()


def test_every_figure_of_a_product_has_its_share_of_the_peak(tmp_path: Path) -> None:
    small, large = Gemm(100, 100, 100), Gemm(200, 200, 200)
    stored(
        tmp_path, measured(0, small, 8e-6), measured(1, small, 1e-5), measured(0, large, 1e-4, (None,)), measured(1, large, 1e-4)
    )
    head, _, vendor, first = table(tmp_path, "ladder a.json")
    assert head == ["rung", "idea", "100", "200"]
    assert vendor == ["0", "idea 0", "250 (25.0 %)", "160"]
    assert first == ["1", "idea 1", "**200** (20.0 %)", "**160** (16.0 %)"]
    head, _, one, two = table(tmp_path, "rung r01 a.json")
    place = head.index("% of peak")
    assert (one[head.index("GFLOP/s")], one[place], two[place]) == ("200", "20.0", "16.0")
    stored(tmp_path, measured(0, small, 8e-6), measured(1, small, 1e-5), device=DEVICE)  # lanes unknown
    assert table(tmp_path, "ladder a.json")[2] == ["0", "idea 0", "250"]
    assert "% of peak" not in table(tmp_path, "rung r01 a.json")[0]


def test_every_figure_of_memory_has_its_share_of_what_memory_gives(tmp_path: Path) -> None:
    problems = Gemv(1000, 1000), Gemv(2000, 2000)
    rows = [measured(1, p, p.min_bytes / 3e9) for p in problems]  # 3 GB/s
    path = stored(tmp_path, *rows, bandwidth=MEMORY.describe())
    head, _, first = table(tmp_path, "ladder a.json")
    assert head == ["rung", "idea", "1000", "2000", "% of copy, 2000"]
    assert first == ["1", "idea 1", "**3** (75.0 %)", "**3** (75.0 %)", "150.0"]
    head, _, *rest = table(tmp_path, "rung r01 a.json")
    assert [[r[head.index(n)] for n in ("% of read", "% of copy")] for r in rest] == [["75.0", "150.0"]] * 2
    assert "read 4 GB/s, copy 2 GB/s" in refresh("<!-- toprung:ladder a.json -->\n<!-- toprung:end -->", tmp_path)
    stored(tmp_path, *rows)
    assert table(tmp_path, "ladder a.json")[2] == ["1", "idea 1", "**3**", "**3**"]
    damaged = json.loads(path.read_text()) | {"bandwidth": {"read": {}}}
    path.write_text(json.dumps(damaged))
    with pytest.raises(results.BadRecord):
        results.read(path)


def test_the_terminal_shows_the_shares_and_what_each_adds() -> None:
    problem, verdict = Gemm(100, 100, 100), None
    entry = Row(
        RungCompetitor(rung("kepler/r01")), verdict=verdict, state="done", measurement=measured(1, problem, 1e-5, each=(1.5e-5,))
    )
    cells = ladder_table([entry], "t", Limits(2.0), each=True).rows[0][0]
    assert cells["% of peak"] == "20.0" and cells["marks add"] == "+50.0 %"
    assert "% of peak" not in {c.name for c in ladder_table([entry], "t").columns}
    vector = Gemv(1000, 1000)
    entry.measurement = measured(1, vector, vector.min_bytes / 3e9)
    shown = ladder_table([entry], "t", Limits(2.0, MEMORY), "GB/s")
    cells = shown.rows[0][0]
    assert (cells["% of read"], cells["% of copy"]) == ("75.0", "150.0") and "% of peak" not in {c.name for c in shown.columns}


class Ticking(BoundCompetitor):
    """A clock that a call moves by 10 and a mark by 1."""

    def __init__(self) -> None:
        self.now, self.clock = 0, self._clock()

    def _clock(self) -> Clock:
        ticking = self

        class Own:
            def mark(self) -> int:
                ticking.now += 1
                return ticking.now

            def seconds(self, start: int, end: int) -> float:
                return end - start

        return Own()

    def reset(self) -> None: ...

    def run(self) -> None:
        self.now += 10

    def fetch(self) -> F32:
        raise AssertionError


def test_marks_around_each_call_are_part_of_each_call() -> None:
    assert Ticking().time(4) == 41 / 4
    assert Ticking().time_each(4) == 11


def test_both_ways_are_sampled_and_tabulated(session: Session, tmp_path: Path) -> None:
    for each in (False, True):
        plan = ComparisonPlan(samples={"warm": 3}, each=each)
        rows = plan.rows([RungCompetitor(rung("kepler/r01"))])
        assert list(compare(PlacedProblem(Gemm(33, 17, 9), session), rows, plan))[-1].state == "done"
        m = rows[0].measurement
        assert m is not None and len(m.each_seconds) == 3 * each and all(s > 0 for s in m.each_seconds)
        assert len(m.seconds) == len(m.clocks_mhz) == 3, "a clock for each sample"
    assert Measurement.read(json.loads(json.dumps(m.describe()))).each_seconds == m.each_seconds
    small, large = Gemm(8, 8, 8), Gemm(16, 16, 16)
    stored(tmp_path, measured(1, small, 2e-6, each=(3e-6,)), measured(1, large, 1e-3, each=(0.99e-3,)), measured(2, small, 1.0))
    assert table(tmp_path, "each a.json") == [
        ["rung", "idea", "8", "16"], ["---", "---", "---:", "---:"], ["1", "idea 1", "2 (+50.0 %)", "1,000 (-1.0 %)"],
    ]  # fmt: skip
    stored(tmp_path, measured(1, small, 1.0))
    with pytest.raises(results.BadRecord, match="--each-launch"):
        table(tmp_path, "each a.json")
    assert "Not measured yet." in refresh("<!-- toprung:each -->\n<!-- toprung:end -->", tmp_path)


def test_a_sweep_has_a_picture_for_each_rung_and_one_with_all(tmp_path: Path) -> None:
    sizes = [Gemm(n, n, n) for n in (64, 128, 192)]
    path = stored(tmp_path, *(measured(n, p, 1e-3 * (1 + n)) for p in sizes for n in (0, 1, 12)))
    record = results.read(path)
    drawn = plot.pictures(record, tmp_path / "s.svg")
    assert [p.name for p in drawn] == ["s.svg", "s-r01.svg", "s-r12.svg"]
    every, first, last = (p.read_text() for p in drawn)
    for text, shows, hides in ((every, ("idea 0", "idea 1", "idea 12"), ()), (first, ("idea 0", "idea 1"), ("idea 12",)),
                               (last, ("idea 0", "idea 12"), ())):  # fmt: skip
        assert all(s in text for s in (*shows, "peak at the clock read")) and not any(h in text for h in hides)
    assert "1  idea 1 " not in last and len({every, first, last}) == 3
    one = {**record, "measurements": record["measurements"][:3]}
    assert plot.pictures(one, tmp_path / "one.svg") == [tmp_path / "one.svg"] and not list(tmp_path.glob("one-*"))


def test_a_sweep_of_several_records_names_what_none_has(tmp_path: Path) -> None:
    environment = results.read(stored(tmp_path))["environment"]
    for name, sizes in (("a.json", (128, 256)), ("b.json", (64, 320))):
        own = [measured(n, Gemm(size, size, size), 1e-3) for size in sizes for n in (0, 1, 2)]
        results.write(tmp_path / name, results.record(f"toprung ladder x --json {name}", environment, own))
    text = refresh("<!-- toprung:sweep s.svg a.json+b.json -->\n<!-- toprung:end -->\n", tmp_path)
    said = "2 rungs over 4 sizes, 64 to 320 in steps of 64; not measured: 192"
    assert f"![{said}](s.svg)" in text and all(f"--json {name}`, stored in `{name}`" in text for name in ("a.json", "b.json"))


def test_a_curve_goes_from_left_to_right_whatever_was_measured_first(tmp_path: Path) -> None:
    sizes = (192, 64, 128)
    jumbled, sorted_ = (
        results.read(stored(tmp_path, *(measured(1, Gemm(n, n, n), 1e-3 / n) for n in order))) for order in (sizes, sorted(sizes))
    )
    plot.ladder(jumbled, tmp_path / "j.svg")
    plot.ladder(sorted_, tmp_path / "s.svg")
    assert (tmp_path / "j.svg").read_text() == (tmp_path / "s.svg").read_text()


def test_a_matvec_ladder_measures_the_memory_in_the_same_run(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toprung.lab.harness.bandwidth.BYTES", {"cpu": 1 << 20})
    out = tmp_path / "o.json"
    found = trial.tested()
    assert found is not None
    words = ("ladder", "matvec", "--device", found.id, "--sizes", "64x48", "--rungs", "7", "--each-launch", "--json", out)
    code, text = typed(*words)
    assert code == 0 and "memory: read" in text and all(name in text for name in ("read", "copy", "marks"))
    record = results.read(out)
    memory = Bandwidth.of(record)
    assert memory is not None and len(memory.read.seconds) == 5 and record["bandwidth"]["copy"]["seconds"]
    assert all(len(m.each_seconds) == 5 for m in record["measurements"])
