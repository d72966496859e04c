"""fp32x tuned: its space, entries of the store, the search, and the check of the promise, without a GPU; kernels run on the CPU."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import records
import trial
from conftest import require
from test_choice import HOPPER as H200
from test_hopper_on_cpu import Operands, close, folder, on_cpu  # noqa: F401  # fixtures
from test_tuned import SMALL, entry, large_tile, multiplied, stored  # noqa: F401  # fixtures
from toprung import hopper
from toprung.backends import nvrtc
from toprung.blas import fp32x, proof, tuned
from toprung.blas.call import GemmCall
from toprung.blas.choice import Choice
from toprung.blas.choose import choose
from toprung.blas.problems import call_of, source_hash
from toprung.blas.route import reckoned_choice, route
from toprung.blas.tunable import tunables
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.hopper import Variant, Way
from toprung.machine_code import inspect_source
from toprung.problem import Problem
from toprung.report import tune as report
from toprung.report import tune_table
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.store import Machine, Proof, Store
from toprung.tile import Tile
from toprung.tune import check as checking
from toprung.tune.check import asked, check
from toprung.tune.compiler import source_of
from toprung.tune.model import UNKNOWN
from toprung.tune.rivals import rivals
from toprung.tune.session import Budget, Tuner
from toprung.tune.space import CallSpace
from toprung.tune.trial import Outcome, Sampled, Trial, describe, plain

LARGE, DEEP, TINY = Gemm(4096, 4096, 4096), Gemm(128, 128, 65536), Gemm(64, 64, 64, batch=40)
OTHER = fp32x.choice_of(Way(Variant(CONSUMERS=1, BN=128, STAGES=8, GROUP=4)))
"""A way that is not what is reckoned for any of them."""
TUNABLE = next(t for t in tunables() if t.kernel == fp32x.FP32X)


def named(problem: Problem, choice: Choice = OTHER, seconds: float = 1e-3, **more: Any) -> Any:
    assert choice.tile
    return entry(H200, problem, choice.kernel, choice.tile, seconds, options=dict(choice.options), **more)


# the space


@pytest.mark.parametrize("problem", [LARGE, DEEP, TINY, Gemm(300, 200, 1000, trans="TT")], ids=str)
def test_every_point_is_a_kernel_that_fits_and_keeps_the_promise(problem: Problem) -> None:
    call = call_of(problem)
    assert isinstance(call, GemmCall)
    axes = TUNABLE.axes(H200, call)
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    made = {c for p in points if (c := TUNABLE.make(H200, call, p))}
    assert plain(reckoned_choice(H200, call)) in made and len(made) > 50
    for choice in made:
        variant, slices = fp32x.way_of(choice.tile, dict(choice.options))
        assert not variant.refused() and variant.STAGES >= 2
        assert variant.shared_bytes + variant.CONSUMERS * hopper.PLAIN_BYTES <= hopper.SHARED_BYTES
        assert variant.INTERVAL == 1 or call.K >= hopper.TWICE
        assert slices == choice.slices == hopper.trimmed(call.K, slices) <= hopper.most_slices(call)
        assert TUNABLE.make(H200, call, TUNABLE.point(choice)) == choice
        assert 0 < hopper.product_time(call, Way(variant, slices), 132) < math.inf
    starts = [TUNABLE.make(H200, call, p) for p in TUNABLE.coarse(H200, call)]  # type: ignore[misc]
    assert set(starts) - {None} <= made


def test_no_space_has_kernels_of_another_path(device: Device) -> None:
    assert {t.kernel for t, _ in CallSpace(H200, call_of(LARGE), UNKNOWN)._parts} == {"gemm", "ffma", "pieces"}
    assert {t.kernel for t, _ in CallSpace(H200, call_of(LARGE), precision="fp32x")._parts} == {"fp32x"}
    for place, problem in ((device, LARGE), (H200, Gemv(500, 600)), (H200, Gemm(500, 600, 63))):
        assert not CallSpace(place, call_of(problem), precision="fp32x")._parts, "what has no fp32x is not searched for it"


@pytest.mark.parametrize(
    "variant",
    [Variant(CONSUMERS=1, STAGES=8), *(pytest.param(v, marks=pytest.mark.slow) for v in (
        Variant(BN=32, STAGES=8, INTERVAL=2), Variant(CONSUMERS=1, BN=64, STAGES=12, INTERVAL=2, GROUP=1),
        Variant(CONSUMERS=1, BN=32, STAGES=4, INTERVAL=2),
    ))],
    ids=str,
)  # fmt: skip
def test_what_only_a_tuner_tries_compiles_without_spills(variant: Variant) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    source = source_of(H200, fp32x.choice_of(Way(variant)))
    assert source is not None and source.defines == hopper.product_source(variant).defines, "what is compiled ahead is what runs"
    code = inspect_source(source, "sm_90")
    assert code.spills == 0 and code.counts["HGMMA"] == 6 and code.shared_bytes <= hopper.SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("variant", [OTHER, fp32x.choice_of(Way(Variant(BN=32, STAGES=4, GROUP=1), 3))], ids=lambda c: str(c.tile))
def test_a_stored_way_is_what_runs_and_is_right(folder: Any, stored: Store, variant: Choice) -> None:  # noqa: F811
    one = Operands.of(150, 140, 800, turned="TN")
    problem = Gemm(150, 140, 800, trans="TN", lda=153, ldb=143, ldc=143)
    assert variant.tile
    stored.add(entry(folder.device, problem, "fp32x", variant.tile, options=dict(variant.options)))
    choice, path = route(folder.device, call_of(problem), True, "fp32x")
    plan = fp32x.plan_of(folder, call_of(problem), choice)
    assert path == "fp32x" and fp32x.choice_of(Way(plan.variant, plan.slices)) == variant
    assert close(one.run(plan, 0.5, 2.0), one.reference(0.5, 2.0))


# entries


def test_the_very_sizes_then_a_neighbour_then_what_is_reckoned(stored: Store) -> None:  # noqa: F811
    call, near, far = (call_of(Gemm(n, 4096, 4096)) for n in (4096, 4000, 400))
    own = route(H200, call, True, "fp32x")[0]
    assert "in tiles of 128×128" in own.why and plain(own) == plain(reckoned_choice(H200, call))
    stored.add(named(LARGE), named(LARGE, reckoned_choice(H200, call), 2e-3))
    exact, path = route(H200, call, True, "fp32x")
    assert path == "fp32x" and plain(exact) == plain(OTHER) and "tuned on these very sizes: 1 ms on 2025-01-31" in exact.why
    assert exact.passed_over[0][0].startswith("hopper/fp32x 128×128") and "2.00 times" in exact.passed_over[0][1]
    found = route(H200, near, True, "fp32x")[0]
    assert plain(found) == plain(OTHER) and "tuned on 4096×4096×4096, the nearest" in found.why
    assert "in tiles of" in route(H200, far, True, "fp32x")[0].why


def test_slices_of_a_neighbour_keep_the_device_as_full(stored: Store) -> None:  # noqa: F811
    stored.add(named(DEEP, fp32x.choice_of(Way(Variant(), 96))))
    exact, near, shallow = (
        route(H200, call_of(Gemm(m, 128, k)), True, "fp32x")[0].slices for m, k in ((128, 65536), (192, 65536), (128, 50_000))
    )
    assert exact == hopper.trimmed(65536, 96) and near == hopper.trimmed(65536, 48) and shallow == hopper.trimmed(50_000, 96)
    stored.add(named(DEEP, fp32x.choice_of(Way(Variant(), 1 << 20)), 1e-4))  # more than there is memory or K for
    assert route(H200, call_of(DEEP), True, "fp32x")[0].slices <= hopper.most_slices(call_of(DEEP))  # type: ignore[arg-type]


def test_neither_path_takes_the_other_s_entries(stored: Store) -> None:  # noqa: F811
    call = call_of(LARGE)
    before = choose(H200, call), plain(reckoned_choice(H200, call))
    stored.add(named(LARGE, seconds=1e-9))
    assert choose(H200, call) == before[0], "an entry of fp32x changes nothing for fp32"
    assert route(H200, call, True, "fp32")[0].kernel == before[0].kernel
    stored.clear()
    stored.add(entry(H200, LARGE, tile=Tile(**large_tile()), seconds=1e-9))
    assert plain(route(H200, call, True, "fp32x")[0]) == before[1]


def test_auto_goes_by_both_and_runs_the_tuned_tile(stored: Store) -> None:  # noqa: F811
    small = Gemm(256, 256, 256)  # where fp32x is not expected to be faster
    assert route(H200, call_of(small), True, "auto")[1] == "fp32"
    stored.add(named(small, seconds=1e-6), entry(H200, small, tile=SMALL, seconds=2e-6))
    choice, path = route(H200, call_of(small), True, "auto")
    assert path == "fp32x" and plain(choice) == plain(OTHER) and "the store" in dict(choice.passed_over)["fp32"]
    stored.add(named(small, seconds=3e-6))
    choice, path = route(H200, call_of(small), True, "auto")
    assert path == "fp32" and "1.50 times as long" in dict(choice.passed_over)["fp32x"]


def test_what_names_no_tile_says_how_long_and_not_what(stored: Store) -> None:  # noqa: F811
    """As entries were before fp32x was tuned: what ran was what is reckoned."""
    old = entry(H200, LARGE, "fp32x", None, 1e-3, options={"SLICES": 1}, source="an older text")
    stored.add(old, named(LARGE, seconds=2e-3, source="an older text"))
    choice = route(H200, call_of(LARGE), True, "fp32x")[0]
    assert tuned.refusal(old) == "" and plain(choice) == plain(reckoned_choice(H200, call_of(LARGE))) and choice.unproven is None


@pytest.mark.parametrize(
    ("tile", "options", "says"),
    [
        (large_tile(), {"GROUP": 8, "INTERVAL": 1}, "needs a tile with BM, BN, BK and STAGES"),
        (None, {"GROUP": 8, "INTERVAL": 1}, "needs a tile"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 6}, {"GROUP": 8}, "options GROUP and INTERVAL"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 6}, {"GROUP": 8, "INTERVAL": 1, "EVIL": 1}, "options GROUP and INTERVAL"),
        ({"BM": 96, "BN": 128, "BK": 32, "STAGES": 6}, {"GROUP": 8, "INTERVAL": 1}, "multiple of 64 rows"),
        ({"BM": 128, "BN": 128, "BK": 16, "STAGES": 6}, {"GROUP": 8, "INTERVAL": 1}, "stages of 32"),
        ({"BM": 192, "BN": 128, "BK": 32, "STAGES": 3}, {"GROUP": 8, "INTERVAL": 1}, "not of 192×128"),
        ({"BM": 128, "BN": 256, "BK": 32, "STAGES": 3}, {"GROUP": 8, "INTERVAL": 1}, "not of 128×256"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 7}, {"GROUP": 8, "INTERVAL": 1}, "bytes of shared memory"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 1}, {"GROUP": 8, "INTERVAL": 1}, "one stage"),
        ({"BM": 128, "BN": 64, "BK": 32, "STAGES": 6}, {"GROUP": 8, "INTERVAL": 4}, "1 or 2 chunks"),
        ({"BM": 128, "BN": 64, "BK": 32, "STAGES": 6}, {"GROUP": 0, "INTERVAL": 1}, "rows of tiles"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 6}, {"GROUP": 8, "INTERVAL": 2}, "no registers left"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_refused_and_said(tile: Any, options: Any, says: str, stored: Store) -> None:  # noqa: F811
    bad = entry(H200, LARGE, "fp32x", Tile(**tile) if tile else None, options=options)
    assert says in tuned.refusal(bad) and says in str(tuned.fitted(H200, call_of(LARGE), bad, True))
    stored.add(bad)
    choice, path = route(H200, call_of(LARGE), True, "fp32x")
    assert path == "fp32x" and "in tiles of 128×128" in choice.why and any(says in why for _, why in choice.passed_over)


def test_two_chunks_in_the_unit_are_not_taken_where_sums_are_short(stored: Store) -> None:  # noqa: F811
    way = fp32x.choice_of(Way(Variant(BN=64, STAGES=8, INTERVAL=2)))
    stored.add(named(Gemm(1024, 1024, 1024), way))
    assert plain(route(H200, call_of(Gemm(1000, 1024, 1024)), True, "fp32x")[0]) == plain(way)
    short = route(H200, call_of(Gemm(1000, 1024, 1000)), True, "fp32x")[0]
    assert dict(short.options)["INTERVAL"] == 1 and any("from K = 1024" in why for _, why in short.passed_over)


def test_what_was_measured_with_another_text_is_proved_first(stored: Store) -> None:  # noqa: F811
    stale, call = named(LARGE, source="an older text"), call_of(LARGE)
    stored.add(stale)
    choice = route(H200, call, True, "fp32x")[0]
    assert choice.unproven == stale and plain(choice) == plain(OTHER)
    stored.prove(Proof(stale.id, Machine.of(H200), source_hash("fp32x", "cuda"), "C[3, 4] is wrong"))
    passed = route(H200, call, True, "fp32x")[0]
    assert plain(passed) != plain(OTHER) and any("wrong with this driver and kernel: C[3, 4]" in w for _, w in passed.passed_over)
    stored.prove(Proof(stale.id, Machine.of(H200), source_hash("fp32x", "cuda")))
    good = route(H200, call, True, "fp32x")[0]
    assert plain(good) == plain(OTHER) and good.unproven is None


def test_the_proof_has_edges_slices_and_sums_that_the_promise_covers() -> None:
    for interval, slices in ((1, 1), (1, 5), (2, 2)):
        choice = fp32x.choice_of(Way(Variant(BN=64, STAGES=8, INTERVAL=interval), slices))
        problem, small = proof.likeness(call_of(Gemm(512, 512, 16384, trans="NT")), choice, 1.3, 0.7)
        call = call_of(problem)
        variant, cut = fp32x.way_of(small.tile, dict(small.options))
        assert isinstance(call, GemmCall) and not hopper.supported(H200, call) and not variant.unfit(call)
        assert (cut > 1) == (slices > 1) and cut == hopper.trimmed(call.K, min(slices, 3))
        assert call.M % variant.BM and call.N % variant.BN and call.K % 32 and call.trans == "NT"


def test_a_device_without_it_passes_them_over(device: Device, stored: Store) -> None:  # noqa: F811
    require(device.arch != "sm_90" or device.backend != "cuda", "this device has it")
    problem = Gemm(64, 64, 64)
    assert OTHER.tile
    stored.add(entry(device, problem, "fp32x", OTHER.tile, 1e-9, options=dict(OTHER.options)))
    for precision in ("auto", "fp32x"):
        assert route(device, call_of(problem), True, precision)[1] == "fp32"
    assert multiplied(device, 64, 64, 64).kernel == "blas/gemm"


# the search and the check, on times that are given


class Given:
    """A lane whose times are a function: what is searched and compared, and what becomes of it, without a GPU."""

    def __init__(self, seconds: Callable[[Choice], float], crash: Choice | None = None) -> None:
        self.name, self.device, self.machine = "given", H200, Machine.of(H200)
        self._seconds, self._crash = seconds, crash
        self.asked: list[Choice] = []

    def start(self) -> str:
        return ""

    def run(self, trial: Trial) -> Outcome:
        self.asked += trial.choices
        if self._crash in trial.choices:
            gone = trial.choices.index(self._crash)
            return Outcome(tuple(Sampled("crashed", "planted") if i == gone else Sampled() for i in range(len(trial.choices))))
        count, cold = 7, (1.0,) * trial.cold
        return Outcome(tuple(
            Sampled("right", "", (self._seconds(c),) * count, cold, (None,) * count, (False,) * count, tuple(range(count)), 1.0)
            for c in trial.choices
        ))  # fmt: skip

    def close(self) -> None:
        """Nothing to end."""

    def lanes(self) -> Sequence[Given]:
        """Itself."""
        return [self]


def best_is_other(choice: Choice) -> float:
    """The more of ``OTHER`` the faster; plain fp32 is in between."""
    if choice.kernel != "fp32x":
        return 1.35e-3
    mine, best = (({**(c.tile.given() if c.tile else {}), **dict(c.options)}) for c in (choice, OTHER))
    return 1e-3 + 1e-4 * sum(mine.get(k) != best.get(k) for k in mine | best)


def tuned_through(store: Store, lane: Given, problem: Problem, budget: Budget, **more: Any) -> Tuner:
    tuner = Tuner([problem], lane, store, budget, precision="fp32x", **more)  # type: ignore[arg-type]
    for _ in tuner.run():
        pass
    return tuner


def test_a_search_of_fp32x_finds_its_best_and_the_library_takes_it(stored: Store) -> None:  # noqa: F811
    lane = Given(best_is_other)
    (shape,) = tuned_through(stored, lane, TINY, Budget(trials=60)).shapes
    assert shape.precision == "fp32x" and shape.choice == plain(OTHER) and shape.gain is not None and shape.gain.value > 1.1
    assert {c.kernel for c in lane.asked} == {"fp32x", choose(H200, call_of(TINY), own=False).kernel}
    assert shape.finals["fp32"].status == "right"
    assert all(e.candidate["tile"] for e in stored.entries(kernel="fp32x"))
    assert plain(route(H200, call_of(TINY), True, "fp32x")[0]) == plain(OTHER)
    assert shape.finals["best"].cold_seconds, "operands in no cache, too"
    assert report.shape_name(shape) == "64 batch=40 fp32x" and shape.describe()["precision"] == "fp32x"
    (again,) = tuned_through(stored, Given(best_is_other), TINY, Budget(trials=5)).shapes
    assert again.recalled and again.choice == plain(OTHER) and again.tried <= 5


def test_an_exhaustive_search_says_what_the_usual_one_missed(stored: Store, tmp_path: Path) -> None:  # noqa: F811
    (shape,) = tuned_through(stored, Given(best_is_other), TINY, Budget(), exhaustive=True).shapes
    space = set(CallSpace(H200, call_of(TINY), precision="fp32x").all())
    found = shape.describe()["exhaustive"]
    assert shape.state == "exhausted" and shape.beyond and found["legal"] == len(space) == len(found["measured"]) == shape.tried
    assert shape.choice == plain(OTHER) and shape.ordinary is not None and found["after"] == 20
    behind = best_is_other(shape.ordinary) / 1e-3
    assert shape.behind is not None and shape.behind.value == pytest.approx(behind)
    text = report.exhausted_line(shape)
    assert f"{len(space)} of about {len(space)} configurations (100 %)" in text
    assert "what 20 by the usual strategy had found" in text
    records.stored(tmp_path / "all.json", kind="tune", shapes=[json.loads(json.dumps(shape.describe()))])
    table = tune_table.block(["exhaustive", "all.json"], tmp_path)
    assert f"| 64 batch=40 fp32x | {len(space)} | {len(space)} | 0 | 0 | `fp32x 64×128×32 STAGES8` |" in table
    assert f"after 20 | {behind:.3f} (" in table
    (later,) = tuned_through(stored, Given(best_is_other), TINY, Budget(trials=3), exhaustive=True).shapes
    assert later.ordinary == plain(OTHER) and later.after == 0, "what was stored before counts as the usual choice"


def test_both_paths_are_searched_where_both_may_be_faster(device: Device, stored: Store) -> None:  # noqa: F811
    def paths(place: Device, precision: str, *problems: Problem) -> list[tuple[int, str]]:
        lane = Given(best_is_other)
        lane.device = place
        tuner = Tuner(problems, lane, stored, Budget(), precision=precision)  # type: ignore[arg-type]
        return [(s.problem.describe()["M"], s.precision) for s in tuner.shapes]

    assert paths(H200, "auto", LARGE, Gemm(16, 4096, 4096)) == [(4096, "fp32x"), (4096, "fp32"), (16, "fp32")]
    assert paths(H200, "fp32", LARGE) == paths(device, "auto", LARGE) == [(4096, "fp32")]
    with pytest.raises(Unsupported, match="Hopper"):
        paths(device, "fp32x", LARGE)


def checked(store: Store, lane: Given, problem: Problem, precision: str, monkeypatch: pytest.MonkeyPatch) -> checking.Checked:
    monkeypatch.setattr(checking, "asked", lambda device, problem, wanted: [wanted])
    (found,) = check(lane, [problem], store, precision=precision)  # type: ignore[arg-type]
    return found


def test_the_check_holds_the_choice_of_a_path_against_the_other(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def slow_fp32x(choice: Choice) -> float:
        return 2e-3 if choice.kernel == "fp32x" else 1e-3

    found = checked(stored, Given(slow_fp32x), LARGE, "auto", monkeypatch)
    assert found.routed.kernel == "fp32x" and found.broken and found.ratio is not None and found.ratio.value == pytest.approx(2)
    assert found.best is not None and found.best.kernel != "fp32x" and found.describe()["precision"] == "auto"
    stored.add(named(LARGE, reckoned_choice(H200, call_of(LARGE)), 2e-3), entry(H200, LARGE, tile=Tile(**large_tile())))
    kept = checked(stored, Given(slow_fp32x), LARGE, "auto", monkeypatch)
    assert kept.routed.kernel != "fp32x" and not kept.broken and not kept.trouble
    assert {c.kernel for c, _ in kept.sampled} == {kept.routed.kernel, "fp32x"}


def test_the_check_holds_a_tile_of_fp32x_against_others(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    stored.add(named(Gemm(4000, 4096, 4096)))
    own = plain(reckoned_choice(H200, call_of(LARGE)))
    slow = checked(stored, Given(lambda c: 1e-3 if c == own else 2e-3), LARGE, "fp32x", monkeypatch)
    assert plain(slow.routed) == plain(OTHER) and slow.broken and slow.best == own
    assert len(slow.sampled) >= 3 and {c.kernel for c, _ in slow.sampled} == {"fp32x"}


def test_what_crashes_beside_a_choice_leaves_it_measured(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    crash = plain(reckoned_choice(H200, call_of(LARGE)))
    stored.add(named(Gemm(4000, 4096, 4096)))
    found = checked(stored, Given(lambda c: 1e-3, crash), LARGE, "fp32x", monkeypatch)
    assert not found.trouble and not found.broken and ("crashed", crash) in [(s.status, c) for c, s in found.sampled]
    stored.clear()
    lost = checked(stored, Given(lambda c: 1e-3, crash), LARGE, "fp32x", monkeypatch)
    assert "crashed: planted" in lost.trouble and not lost.broken
    assert "not measured" in report.check_line(lost, "cuda:0") and "0 of 0 shapes" in report.checked_line([lost], "fp32x")
    assert "1 not measured" in report.checked_line([lost], "fp32x")


def test_what_is_checked_of_a_shape(device: Device) -> None:
    assert asked(H200, LARGE, "auto") == ["fp32", "auto"] and asked(H200, LARGE, "fp32x") == ["fp32x"]
    assert asked(H200, Gemv(64, 64), "auto") == asked(device, LARGE, "auto") == asked(H200, LARGE, "fp32") == ["fp32"]
    assert asked(device, LARGE, "fp32x") == []
    few = rivals(H200, Gemm(16, 4096, 4096), Store(Path("nowhere")), Machine.of(H200), "auto")
    assert len(few) == 2, "where fp32x is far from being the faster only what each path takes is measured"


# tables


def test_a_check_of_both_paths_is_shown_by_path(tmp_path: Path) -> None:
    content = json.loads((trial.ROOT / "results/nvidia-h200/tune-check.json").read_text())
    content["shapes"] = [one for one in content["shapes"] if one.get("precision", "fp32") == "fp32" and not one["trouble"]]
    count = len(content["shapes"])
    large = [one for one in content["shapes"] if one["class"].startswith("large")]
    auto = [{**copy.deepcopy(one), "precision": "auto", "broken": False} for one in large]
    auto.append({**auto[0], "trouble": "no room", "ratio": None})
    content["shapes"] += auto
    (tmp_path / "check.json").write_text(json.dumps(content))
    table = tune_table.block(["check", "check.json"], tmp_path)
    assert f"| auto | large | {len(large)} | {len(large)} |" in table and f"| fp32 | all | {count} |" in table
    assert "1 more could not be measured" in table


def test_means_before_and_after_tuning_are_of_the_same_products(tmp_path: Path) -> None:
    content = json.loads((trial.ROOT / "results/nvidia-h200/fp32-list.json").read_text())
    gone = content["measurements"][0]["problem"]
    tuned = {json.dumps(m["problem"]): m["seconds"] for m in content["measurements"] if m["competitor"]["name"] == "toprung"}
    for one in content["measurements"]:
        if one["competitor"]["name"] == "toprung_untuned":
            one["seconds"] = [2 * s for s in tuned[json.dumps(one["problem"])]]
            if one["problem"] == gone:
                one["competitor"]["name"] = "toprung_auto"  # neither one nor the other
    (tmp_path / "list.json").write_text(json.dumps(content))
    assert tune_table.block(["library"], tmp_path) == "Not measured yet."
    lines = tune_table.block(["library", "list.json"], tmp_path).splitlines()
    count, before, after = (float(x) for x in next(line for line in lines if line.startswith("| all")).split("|")[2:5])
    assert count == len(tuned) - 1 and after == pytest.approx(2 * before, rel=2e-3) and np.isfinite(after)


def test_describing_a_way_and_back() -> None:
    for choice in (OTHER, fp32x.choice_of(Way(Variant(BN=64, STAGES=8, INTERVAL=2), 7))):
        named_way = json.loads(json.dumps(describe(choice)))
        assert fp32x.choice_of(fp32x.way_of(Tile(**named_way["tile"]), named_way["options"])) == choice
    with pytest.raises(ValueError, match="needs a tile"):
        fp32x.way_of(SMALL, {"GROUP": 1, "INTERVAL": 1})
    assert replace(OTHER, why="x") != OTHER == plain(replace(OTHER, why="x"))
