"""Factors of cuBLAS's predicted time, by what an H100 measured of it and of ours on drawn shapes."""

from __future__ import annotations

import json
import math

import pytest

import trial
from test_choice import CUBLAS, HOPPER
from toprung.dispatch.ranking import ratio
from toprung.kernels.cublas import family as cublas
from toprung.oracle.problems import problem_of


def lost_to_cublas(seeds: set[int]) -> float:
    """Return the sum of logarithms of what an H100's short, deep and batched products lose by the choice of ours or cuBLAS."""
    lost = 0.0
    for one in json.loads(trial.fixture("h100-vs-cublas.json").read_text())["shapes"]:
        if one["seed"] in seeds:
            taken = one["ours" if ratio(HOPPER, problem_of(one["problem"]).desc, CUBLAS.family) >= 1 else "cublas"]
            lost += math.log(taken / min(one["ours"], one["cublas"]))
    return lost


def test_factors_of_cublas_lose_less_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {19, 23, 263, 271}  # of two records of routes.py and two checks
    best = lost_to_cublas(drawn)
    assert best < 1.4
    for name in ("batched_times", "short_times", "deep_times"):
        with monkeypatch.context() as without:
            without.setattr(cublas.MODEL, name, 1.0)
            assert lost_to_cublas(drawn) > 1.08 * best, name
