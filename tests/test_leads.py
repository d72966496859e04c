"""The tables of leads: each run beside its own cuBLAS, and energy only where the window was long enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trial
from tables.leads import block
from toprung.errors import BadRecord

STORED = trial.fixture("h200-fp32-leads.json")


def stored(tmp_path: Path, leads: list[dict[str, object]], energy: bool = True) -> str:
    record = json.loads(STORED.read_text())
    record["runs"] = [
        {"run": n, "what": "a try", "windows_measure_energy": energy} for n in sorted({int(str(x["run"])) for x in leads})
    ]
    (tmp_path / "r.json").write_text(json.dumps({**record, "leads": leads}))
    return "r.json"


def lead(run: int, name: str, seconds: float) -> dict[str, object]:
    samples = [{"seconds": s * seconds, "watts": 500.0, "mhz": 1980} for s in (1.0, 3.0, 0.5)]
    return {"run": run, "name": name, "what": "it", "size": 1000, "layout": "TN", "samples": samples}


def test_each_run_is_held_against_its_own_vendor(tmp_path: Path) -> None:
    leads = [lead(1, "cublas", 1e-4), lead(1, "a", 5e-5), lead(2, "cublas", 2e-4), lead(2, "a", 5e-5)]
    text = block([stored(tmp_path, leads)], tmp_path)
    assert "| TN | a | it | 40.0 | 2.000 | 1980 | 500 | 12.5 |" in text
    assert "| TN | a | it | 40.0 | 4.000 | 1980 | 500 | 12.5 |" in text
    assert "Run 1" not in block(["run=2", stored(tmp_path, leads)], tmp_path)
    assert "pJ" not in block([stored(tmp_path, leads, energy=False)], tmp_path)
    with pytest.raises(BadRecord, match="no cuBLAS"):
        block([stored(tmp_path, [lead(1, "a", 5e-5)])], tmp_path)
    with pytest.raises(BadRecord, match="no run"):
        block(["run=9", STORED.name], STORED.parent)
