"""benchmarks/fresh_shapes.py: its cases at tiny sizes, what is compared with what, and its record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fresh_shapes
from toprung.lab.harness import results


@pytest.mark.parametrize("case", fresh_shapes.CASES)
def test_no_step_of_a_case_has_an_earlier_ones_shape(case: str) -> None:
    _, inputs, sizes = fresh_shapes.CASES[case](True)
    shapes = [tuple(x.shape for x in fresh_shapes.drawn(inputs, next(sizes))) for _ in range(48)]
    assert len(set(shapes)) == 48


@pytest.mark.parametrize("case", fresh_shapes.CASES)
def test_a_run_of_a_case_is_right(case: str) -> None:
    found = fresh_shapes.steps(case, "PyTorch", torch.device("cpu"), True, 0.02)
    starts = [start for start, _, _ in found["steps"]]
    assert found["error"] < 1e-5 and starts == sorted(starts) and found["taken"] == 0


def one_round(steps: list[list[Any]], error: float = 0.0) -> dict[str, Any]:
    alone = {"steps": [[float(i), 2.0, False] for i in range(5)], "taken": 0, "overrides": "", "error": 0.0}
    ours = {**alone, "steps": steps, "taken": 3, "error": error}
    return {"PyTorch": alone, "again": alone, "cold": ours, "warm": ours}


def test_steps_are_compared_with_pytorchs_of_the_same_shapes() -> None:
    steps = [[0.0, 8.0, True], [1.0, 3.0, True], [2.5, 2.0, False], [3.0, 1.0, False]]
    failures: list[str] = []
    again, cold, warm = fresh_shapes.compared("batch", [one_round(steps)] * 2, failures)
    assert failures == [] and cold == {**warm, "kernels": "cold"}
    expected = {"first": 4.0, "median": 1.0, "preparing": 1.5, "late": 0.75, "worst": 1.5, "long": 1 / 3, "ready": 8.0}
    assert {name: cold[name] for name in expected} == expected
    assert again["worst"] == 1.0 and again["long"] == 0.0


def test_a_run_that_prepares_at_its_end_is_not_ready() -> None:
    rows = fresh_shapes.compared("batch", [one_round([[0.0, 8.0, True]])], [])
    assert ["ready" in row for row in rows] == [True, False, False]


def test_a_wrong_run_is_a_failure_and_in_no_ratio() -> None:
    failures: list[str] = []
    rows = fresh_shapes.compared("batch", [one_round([[0.0, 8.0, True]], 1.0), one_round([[0.0, 4.0, True]])], failures)
    assert failures == ["batch cold: wrong by 1.0e+00", "batch warm: wrong by 1.0e+00"]
    assert [row["first"] for row in rows] == [1.0, 2.0, 2.0]


def test_first_calls_inside_ranges_have_rows_of_their_own_where_there_are_any() -> None:
    first = {
        "arrays": "NumPy",
        "kind": "new M",
        "loading": 1,
        "error": 0.0,
        "seconds": [[9.0, 1.0], [3.0, 1.0], [4.0, 1.0], [6.0, 1.0]],
    }
    inside = {"arrays": "NumPy", "kind": "new M in a range", "loading": 0, "error": 0.0, "seconds": [[2.0, 1.5]]}
    rounds = [
        {"cold": [first, {**inside, "seconds": []}], "warm": [first, inside]},
        {"cold": [first, inside], "warm": [first, inside]},
    ]
    rows, failures = fresh_shapes.spread([rounds[0]], found := []), found
    assert failures == [] and [(row["kernels"], row["kind"]) for row in rows] == [
        ("cold", "new M"), ("warm", "new M"), ("warm", "new M in a range"),
    ]  # fmt: skip
    assert [(row["shapes"], row["more"], row["process_first"]) for row in rows[1:]] == [(3, 3e6, 9e6), (1, 0.5e6, 2e6)]
    assert [row["shapes"] for row in fresh_shapes.spread(rounds, [])] == [6, 1, 6, 2]


@pytest.mark.slow
def test_all_runs_make_a_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--device", "cpu", "--cases", "batch,matmul", "--rounds", "1", "--seconds", "0.2"]
    monkeypatch.setattr(sys, "argv", ["fresh_shapes.py", str(out), *words])
    assert fresh_shapes.main() == 0
    found = results.read(out)
    assert json.loads(out.read_text())["failures"] == []
    assert [row["kernels"] for row in found["fresh_shapes"]["steps"]] == ["again", "cold", "warm"]
    assert len(found["fresh_shapes"]["matmul"]) == 8
