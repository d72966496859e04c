"""The choice against what was measured: each problem of results/nvidia-h200/tiles.json, whose record holds every candidate's time.

No device is needed. A benchmark of new tiles (benchmarks/tiles.py) replaces the record, and the tables in blas/choose.py follow.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toprung import hopper_fp32
from toprung.blas import choose as choosing
from toprung.blas.choose import Choice, choose, problem_class
from toprung.blas.competitor import call_of
from toprung.device import Device
from toprung.report.tune_table import replayed
from toprung.results import read
from toprung.routines.gemm import Gemm

RECORD = Path(__file__).parents[1] / "results" / "nvidia-h200" / "tiles.json"
SWITCHES = ("ORDER", "RESIDENT", "AHEAD", "GROUP_M", "SMALL")
CHECKED = RECORD.with_name("tune-check.json")
LEAST, LEAST_MEAN = 0.93, 0.97

Trial = dict[str, Any]

# What the record's candidates are chosen from: it is older than Hopper's plain fp32 kernel and has no time of it, so that
# replays are of a device like an H200 that has not what that kernel needs.
H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 140 << 30, 140 << 30, 1024, (1024, 1024, 64),
    256, (1, 2, 4), 32, "sm_89",
)  # fmt: skip


HOPPER = replace(H200, arch="sm_90")


@functools.cache
def problems() -> dict[str, tuple[Gemm, list[Trial], float]]:
    """Name → problem, what was timed, fastest first, and the vendor library's time."""
    found = {}
    for entry in read(RECORD)["problems"]:
        values = {k: v for k, v in entry["problem"].items() if k != "routine"}
        problem = Gemm(**values)
        vendor = next(statistics.median(row["seconds"]) for row in entry["final"] if row["who"] == "vendor")
        found[str(problem)] = problem, entry["quick"], vendor
    return found


def seconds(choice: Choice, timed: list[Trial]) -> float | None:
    """What the record says of a choice: its own time, or, where its switches were not tried, the slowest of its tile's."""
    assert choice.tile is not None
    same = [t for t in timed if t["kernel"] == choice.kernel and t["tile"] == choice.tile.given()]
    wanted = dict(choice.options)
    own = [t for t in same if all(t["options"].get(s) == wanted.get(s) for s in SWITCHES)]
    return max((t["seconds"] for t in own or same), default=None)


def share(problem: Gemm, timed: list[Trial]) -> float:
    """The fastest candidate's time as a share of the chosen one's; 0 for a choice that nobody timed."""
    found = seconds(choose(H200, call_of(problem)), timed)
    return timed[0]["seconds"] / found if found else 0.0


def test_the_choice_is_near_the_best_that_was_measured():
    shares = {name: share(*one[:2]) for name, one in problems().items()}
    assert len(shares) >= 20
    bad = {name: f"{s:.3f} {choose(H200, call_of(problems()[name][0]))}" for name, s in shares.items() if not s >= LEAST}
    assert not bad
    assert statistics.geometric_mean(shares.values()) >= LEAST_MEAN


def test_a_worse_table_is_noticed(monkeypatch: pytest.MonkeyPatch):
    only = tuple(c for c in choosing.GPU if c.tile.BM * c.tile.BN <= 32 * 64)
    monkeypatch.setattr(choosing, "GPU", only)
    assert min(share(*one[:2]) for one in problems().values()) < LEAST


def test_ours_is_preferred_where_the_check_found_it_the_safer_choice():
    # where the store compares nothing, Hopper's kernel apart: more shapes within 5 % of the best, or as many and a better worst
    marks: dict[str, dict[str, tuple[int, float]]] = {"cublas": {}, "ours": {}}
    for one in read(CHECKED)["shapes"]:
        if (found := replayed(one)) and found.open and found.own != choosing.FFMA:
            for who, of in marks.items():
                kept, worst = of.get(kind := one["class"].split()[0], (0, 0.0))
                of[kind] = kept + (found.shares[who] <= 1.05), min(worst, -found.shares[who])
    assert {kind for kind, mark in marks["ours"].items() if mark > marks["cublas"][kind]} == choosing.PREFER_OWN


def test_the_rule_for_what_is_not_compared_would_have_kept_the_promise_more_often():
    found = [r.shares for one in read(CHECKED)["shapes"] if (r := replayed(one))]
    kept = {who: sum(shares[who] <= 1.05 for shares in found) for who in ("ran", "cublas", "ours", "rule")}
    assert kept["rule"] > max(kept["ran"], kept["cublas"], kept["ours"])
    worst = {who: max(shares[who] for shares in found) for who in kept}
    assert worst["rule"] <= min(worst.values())


def test_hopper_s_kernel_is_preferred_where_c_is_written_wide_or_k_is_long() -> None:
    for n, taken in ((1536, True), (1561, False), (4095, True)):
        assert bool(choosing.preferred(call_of(Gemm(n, n, n)), choosing.FFMA)) == taken, n
    assert not choosing.preferred(call_of(Gemm(1024, 1024, 1024)), "gemm")
    assert choosing.preferred(call_of(Gemm(128, 128, 65536)), "gemm")


def test_the_choice_does_not_fall_off_between_the_sizes_measured():
    # one more row must not cost half as much again: by the model's own count, over what the record does not cover
    before = 0.0
    for n in range(192, 2304, 32):
        call = call_of(Gemm(n, n, n))
        cost = min(
            choosing.clocks(H200, call, one, slices)
            for one in choosing.candidates(H200, call)
            for slices in choosing.slicings(call, one.tile, H200.compute_units)
        )
        assert math.isfinite(cost) and cost > 0.85 * before, n
        before = cost


def on_h200(M: int, N: int, K: int, trans: str = "NN", batch: int = 1) -> Choice:
    return choose(H200, call_of(Gemm(M, N, K, trans=trans, batch=batch)))


def test_the_choice_fits_the_shape() -> None:
    assert on_h200(8192, 8192, 8192).tile == choosing.GPU[1].tile
    assert on_h200(128, 128, 65536).slices >= 64
    assert on_h200(1, 8192, 8192).kernel == "columns" and on_h200(1, 8192, 8192, "NT").kernel == "rows"
    assert on_h200(1, 1, 100_000).kernel == "rows" and on_h200(65536, 4, 8).kernel == "gemm"
    assert on_h200(16, 4096, 4096).kernel == "columns" and on_h200(4096, 16, 4096).kernel == "rows"
    for n in (256, 512, 1024):  # enough work-groups for the device, by smaller tiles or by cutting sums
        small = on_h200(n, n, n)
        assert small.tile and -(-n // small.tile.BM) * -(-n // small.tile.BN) * small.slices >= 64
    many = on_h200(64, 64, 64, batch=10_000)
    assert many.kernel == "gemm" and many.slices == 1 and many.tile and many.tile.BM <= 64
    assert (odd := on_h200(4095, 4097, 4099).tile) and (odd.VA, odd.VB) == (1, 1)
    assert dict(on_h200(60000, 60000, 32).options)["INDEX32"] == 0


def test_the_choice_says_why() -> None:
    choice = on_h200(1024, 1024, 1024)
    assert "work-groups for 132" in choice.why and ("cublas", "only kernels of ours were asked for") in choice.passed_over
    assert any(name.startswith("blas/gemm") for name, _ in choice.passed_over)


def test_classes() -> None:
    named = {
        (1, 9, 9, 1): "vector", (16, 4096, 4096, 1): "skinny", (64, 64, 64, 9): "batched", (128, 128, 65536, 1): "deep",
        (512, 512, 512, 1): "tiny", (1024, 1024, 1024, 1): "small", (4096, 4096, 64, 1): "shallow", (4096, 4096, 4096, 1): "large",
    }  # fmt: skip
    for (M, N, K, batch), expected in named.items():
        assert problem_class(call_of(Gemm(M, N, K, batch=batch))) == expected


def test_hopper_takes_large_products_with_its_own_kernel() -> None:
    for trans in ("NN", "NT", "TN", "TT"):
        choice = choose(HOPPER, call_of(Gemm(8192, 8192, 8192, trans=trans)))
        assert choice.kernel == choosing.FFMA and choice.tile and choice.passed_over[0][0].startswith("blas/gemm")
        assert ("lays out" in choice.why) == (trans != "TN")
    wide = choose(HOPPER, call_of(Gemm(64, 65536, 4096))).tile
    high = choose(HOPPER, call_of(Gemm(65536, 64, 4096, trans="TN"))).tile
    assert wide and high and (wide.BM, wide.BN, high.BM, high.BN) == (64, 512, 512, 64)
    for n in (64, 512):
        assert choose(HOPPER, call_of(Gemm(n, n, n))).kernel == "gemm"
    assert choose(HOPPER, call_of(Gemm(1024, 1024, 64, batch=16))).kernel == "gemm"  # it has no batches


def test_hopper_s_kernel_is_not_chosen_where_it_is_reckoned_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_fp32, "RATE", hopper_fp32.RATE / 2)
    choice = choose(HOPPER, call_of(Gemm(8192, 8192, 8192)))
    assert choice.kernel == "gemm" and choice.passed_over[0][0] == "hopper_fp32/ffma"
