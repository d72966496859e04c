"""Factors of cuBLAS's predicted time, by what an H100 and an H200 measured of it and of ours on drawn shapes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import trial
from tables.tuning import device_of, drawn, now
from test_choice import CUBLAS, HOPPER
from toprung.dispatch.ranking import ratio
from toprung.kernels.cublas import family as cublas
from toprung.lab.harness.results import read
from toprung.oracle.gemm import Gemm
from toprung.oracle.problems import problem_of

RESULTS = Path(__file__).resolve().parent.parent / "results"
H100 = replace(HOPPER, name="NVIDIA H100 80GB HBM3")


def lost_to_cublas(seeds: set[int]) -> float:
    """Return the sum of logarithms of what an H100's short, deep and batched products lose by the choice of ours or cuBLAS."""
    lost = 0.0
    for one in json.loads(trial.fixture("h100-vs-cublas.json").read_text())["shapes"]:
        if one["seed"] in seeds:
            taken = one["ours" if ratio(H100, problem_of(one["problem"]).desc, CUBLAS.family) >= 1 else "cublas"]
            lost += math.log(taken / min(one["ours"], one["cublas"]))
    return lost


def test_factors_of_cublas_lose_less_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {19, 23, 263, 271}  # of two records of routes.py and two checks
    best = lost_to_cublas(drawn)
    assert best < 1.4
    for name, one in {"batched_times": {"else": 1.0}, "short_times": {"else": 1.0}, "deep_times": 1.0}.items():
        with monkeypatch.context() as without:
            without.setattr(cublas.MODEL, name, one)
            assert lost_to_cublas(drawn) > 1.08 * best, name


def test_an_h200_has_factors_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an H100's factors held-out products lose more time on an H200, where cuBLAS is the faster more often."""
    records = [read(RESULTS / "nvidia-h200" / f"{name}.json") for name in ("routes-2026-11-26", "tune-check-seed401")]
    held = [(device_of(record), one) for record in records for one in drawn(record) if one.held and isinstance(one.problem, Gemm)]
    few = [(device, one) for device, one in held if one.problem.batch > 1 or one.problem.K <= cublas.MODEL.short]

    def shares() -> list[float | None]:
        return [one.shares(now(device, one.problem)) for device, one in few]

    own = shares()
    for name in ("batched_times", "short_times"):
        monkeypatch.setattr(cublas.MODEL, name, {"else": getattr(cublas.MODEL, name)["else"]})
    both = [pair for pair in zip(own, shares(), strict=True) if None not in pair]
    lost, more = (sum(math.log(share or 1) for share in one) for one in zip(*both, strict=True))
    assert len(both) >= 60 and more > 1.15 * lost, (len(both), lost, more)
