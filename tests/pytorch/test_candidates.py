"""benchmarks/candidates.py: right candidates are timed and stored, wrong ones are found and have no samples."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import candidates
import golden
from toprung import backends
from toprung.gemm.desc import GemmDesc
from toprung.lab.harness.results import read


def stored(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the script on one product and return its exit code and the record's row."""
    shape = "TT:2*13x15x17+1+2+3@1"
    how = ["--device", backends.find().id, "--shapes", shape, "--precision", "fp32", "--own", "--peers", "fp32", *words]
    monkeypatch.setattr(sys, "argv", ["candidates.py", str(out), *how])
    code = candidates.main()
    (row,) = read(out)["candidates"]
    return code, row


def test_right_ones_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, row = stored(monkeypatch, tmp_path / "out.json", "--candidates", "default,tiled:2,tiled:1", "--rounds", "2")
    ours = [name for name in row["seconds"] if name.startswith("tiled")]
    assert code == 0 and len(ours) == 2 and {"toprung", "torch fp32", *ours} == row["seconds"].keys() and not row["wrong"]
    assert all(len(some) == 2 and min(some) > 0 for some in row["seconds"].values())
    assert row["predicted"].keys() == set(ours) and row["size"] == [2, 13, 15, 17] and row["kernel"]


@pytest.mark.parametrize(
    ("fault", "data", "reason"),
    [
        ("error", "uniform", "units"), ("beside", "uniform", "beside C"), ("bits", "uniform", "other bits"),
        ("beta", "uniform", "units"), ("nan", "uniform", "units"), ("finite", "special", "Inf and NaN"),
    ],
)  # fmt: skip
def test_wrong_ones_are_found(fault: str, data: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make, turn = candidates.executable, itertools.count()

    def planted(placed: Any, how: str, one: Any) -> Any:
        right, whole, view = make(placed, how, one), placed.whole[2], placed.z

        def arm(alpha: float, beta: float) -> None:
            right(alpha, 0.0 if fault == "beta" else beta)
            if not placed.on_gpu:
                placed.session.download(placed.buffers[2], whole.numpy())
            if fault == "error":
                view[..., 1] += 1e-4
            elif fault == "beside":
                whole[15] = 0
            elif fault == "bits":
                view.mul_(1 + 2.0**-23 * next(turn))
            elif fault == "nan":
                view[..., 2] = float("nan")
            elif fault == "finite":
                view.nan_to_num_()
            if not placed.on_gpu:
                placed.session.upload(placed.buffers[2], whole.numpy())

        return arm

    monkeypatch.setattr(candidates, "executable", planted)
    code, row = stored(monkeypatch, tmp_path / "out.json", "--candidates", "tiled:1", "--rounds", "1", "--data", data)
    assert code == 1 and reason in row["wrong"][0] and list(row["seconds"]) == ["torch fp32"], row["wrong"]


@pytest.mark.parametrize("name", ["hopper_fp32x", "hopper_inflight", "hopper_inflight_split_k", "hopper_presplit"])
def test_configurations_are_drawn_of_families_that_no_tuner_searches_too(name: str) -> None:
    arms = candidates.configured(golden.devices()["h200-cuda"], GemmDesc(70, 66, 75), f"any/{name}:3", "fp32x")
    drawn = [one.config for _, one in arms]
    assert len(set(drawn)) == len(drawn) == 3
