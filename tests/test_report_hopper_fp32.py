"""Plain fp32 on Hopper beside cuBLAS: the tables and the picture made from records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trial
from tables.hopper_fp32 import block, transposes
from toprung.errors import BadRecord, UnknownName
from toprung.lab.harness import results

STORED = trial.fixture("h200-fp32-sustained.json")


def row(name: str, seconds: float, chosen: bool) -> dict[str, Any]:
    """Samples of which the median is ``seconds`` at 500 W."""
    samples = [{"seconds": f * seconds, "mhz": 1900.0 + i, "joules": 500 * f * seconds} for i, f in enumerate((1.0, 2.0, 0.5))]
    return {"name": name, "chosen": chosen, "samples": samples, "alone": {"lay": seconds / 4}, "reckoned": seconds / 2}


def shape(trans: str, n: int, theirs: float, ours: float) -> dict[str, Any]:
    rows = [row("cublas", theirs, False), row("another", ours / 9, False), row("chosen", ours, True)]
    return {"problem": {"M": n, "N": n, "K": n, "trans": trans}, "name": f"{n}:{trans}", "flops": 2 * n**3, "rows": rows}


def stored(tmp_path: Path, shapes: list[dict[str, Any]], **other: Any) -> str:
    record = json.loads(STORED.read_text())
    (tmp_path / "r.json").write_text(json.dumps({**record, "shapes": shapes, **other}))
    return "r.json"


def test_what_is_chosen_stands_beside_the_vendor(tmp_path: Path) -> None:
    shapes = [shape("TN", 2000, 8e-4, 4e-4), shape("TT", 1000, 1e-4, 5e-5), shape("NN", 1000, 1e-4, 8e-5)]
    text = block(["sustained", stored(tmp_path, shapes)], tmp_path)
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")][2:]
    assert [r[:2] for r in rows] == [["1000", "NN"], ["1000", "TT"], ["2000", "TN"]]
    assert rows[1][2:] == ["20.0", "40.0", "2.000 (2.000 to 2.000)", "500", "500", "1901", "1901", "25.0", "12.5"]
    burst = block(["shapes", stored(tmp_path, shapes, sustained=0.0)], tmp_path)
    assert "| 1000 | NN | 20.0 | 25.0 | 1.250 (1.250 to 1.250) | `chosen` | 25.0 | 50 |" in burst and "without load" in burst


def test_errors_are_shown_where_a_record_has_them(tmp_path: Path) -> None:
    one = shape("NN", 1000, 1.0, 1.0)
    for one_row, grade in zip(one["rows"], (4.0, 9.0, 2.0), strict=True):
        one_row |= {"frobenius": grade * 1e-7, "grade": grade}
    text = block(["sustained", stored(tmp_path, [one])], tmp_path)
    assert text.splitlines()[2].endswith("| 4.00e-07 | 2.00e-07 | 4.00 | 2.00 |")
    tried = block(["tried", stored(tmp_path, [one])], tmp_path).splitlines()
    assert [line.count("|") for line in tried[:5]] == [8] * 5 and tried[4].endswith("| 2.00e-07 |")
    del one["rows"][1]["frobenius"]
    assert all("Frobenius" not in block([table, stored(tmp_path, [one])], tmp_path) for table in ("sustained", "tried"))


def test_all_that_ran_has_a_row(tmp_path: Path) -> None:
    one = shape("NN", 1000, 1e-4, 8e-5)
    one["rows"][2]["alone"] = {"lay": 1e-6, "product": 7.9e-5}
    del one["rows"][0]["alone"]
    lines = block(["tried", stored(tmp_path, [one])], tmp_path).splitlines()
    assert lines[2] == "| 1000 | NN | `cublas` | 100 | – | – |"
    assert lines[3].startswith("| 1000 | NN | `another` | 9 | 11.250 (") and lines[3].endswith(" | – |")
    assert lines[4] == "| 1000 | NN | `chosen` | 80 | 1.250 (1.250 to 1.250) | 79 |" and lines[5] == ""


def test_counters_stand_side_by_side_and_what_warps_wait_for_most_comes_first(tmp_path: Path) -> None:
    def counted(name: str, cycles: float, **waits: float) -> dict[str, Any]:
        found = {
            "smsp__inst_executed.sum": 2e8, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 32 * 1.5e8,
            "smsp__issue_active.avg.per_cycle_active": cycles, "dram__bytes.sum": 3e9,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 4e6,
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 1e6,
        }  # fmt: skip
        found |= {f"smsp__average_warps_issue_stalled_{n}_per_issue_active.ratio": v for n, v in waits.items()}
        return {"name": name, "kernel": name, "counters": found}

    rows = [counted("cublas", 0.8, wait=0.5, barrier=0.25, sleeping=0.0), counted("ffma", 0.9, wait=0.125, short_scoreboard=1.0)]
    text = block(["counters", stored(tmp_path, [{**shape("NN", 8, 1.0, 1.0), "rows": rows}])], tmp_path)
    assert "| | cuBLAS, 8 NN | ours, 8 NN |" in text and "as Nsight Compute counts" in text
    assert "| of them multiply-adds, % | 75.0 | 75.0 |" in text and "issues, % | 80.0 | 90.0 |" in text
    assert "conflicts of banks, % | 25.0 | 25.0 |" in text and "memory, GB | 3.0 | 3.0 |" in text
    waits = [line for line in text.splitlines() if "wait at an issue" in line]
    assert [w.split(": ")[1] for w in waits[:2]] == ["short scoreboard | 0.00 | 1.00 |", "wait | 0.50 | 0.12 |"]


def test_what_is_no_such_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        block(["other", STORED.name], STORED.parent)
    for other in ({"right": False}, {"kind": "leads"}):
        with pytest.raises(BadRecord, match="no record"):
            block(["sustained", stored(tmp_path, [], **other)], tmp_path)
    with pytest.raises(BadRecord, match="damaged"):
        block(["sustained", stored(tmp_path, [{**shape("NN", 8, 1.0, 1.0), "rows": []}])], tmp_path)


def test_the_picture_has_every_line_and_is_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = results.read(STORED)
    for name in ("a.svg", "b.svg"):
        transposes(record, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {who} {t} -->" in drawn for who in ("cuBLAS", "toprung") for t in ("NN", "NT", "TN", "TT"))
