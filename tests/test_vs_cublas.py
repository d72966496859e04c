"""Factors of cuBLAS's predicted time, by what an H100 and an H200 measured of it and of ours on drawn shapes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import trial
from test_choice import CUBLAS, HOPPER
from toprung.device import Device
from toprung.dispatch.ranking import ratio
from toprung.kernels.cublas import family as cublas
from toprung.oracle.problems import problem_of

H100 = replace(HOPPER, name="NVIDIA H100 80GB HBM3")


def lost_to_cublas(fixture: str, device: Device, seeds: set[int]) -> float:
    """Return the sum of logarithms of what short, deep and batched products lose by the choice of ours or cuBLAS."""
    lost = 0.0
    for one in json.loads(trial.fixture(fixture).read_text())["shapes"]:
        if one["seed"] in seeds:
            taken = one["ours" if ratio(device, problem_of(one["problem"]).desc, CUBLAS.family) >= 1 else "cublas"]
            lost += math.log(taken / min(one["ours"], one["cublas"]))
    return lost


def test_factors_of_cublas_lose_less_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {19, 23, 263, 271}  # of two records of routes.py and two checks
    best = lost_to_cublas("h100-vs-cublas.json", H100, drawn)
    assert best < 1.4
    for name, one in {"batched_times": {"else": 1.0}, "short_times": {"else": 1.0}, "deep_times": 1.0}.items():
        with monkeypatch.context() as without:
            without.setattr(cublas.MODEL, name, one)
            assert lost_to_cublas("h100-vs-cublas.json", H100, drawn) > 1.08 * best, name


def test_an_h200_has_factors_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an H100's factors held-out products lose more time on an H200, where cuBLAS is the faster more often."""
    found = "h200-vs-cublas.json", HOPPER, {17, 401}
    own = lost_to_cublas(*found)
    for name in ("batched_times", "short_times"):
        monkeypatch.setattr(cublas.MODEL, name, {"else": getattr(cublas.MODEL, name)["else"]})
    assert lost_to_cublas(*found) > 1.15 * own
