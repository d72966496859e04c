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
from tables import tuning as tune_table
from test_hopper_on_cpu import Operands, close, folder, on_cpu  # noqa: F401  # fixtures
from test_tune import H200
from test_tuned import SMALL, entry, large_tile, multiplied, stored  # noqa: F401  # fixtures
from toprung.device import Device
from toprung.dispatch import tuned
from toprung.dispatch.ranking import select_own
from toprung.dispatch.select import of_precision, select
from toprung.dispatch.selection import Candidate, decoded
from toprung.dispatch.tuned import Measured
from toprung.errors import Unsupported
from toprung.execute import verify
from toprung.gemm.desc import Desc, GemmDesc
from toprung.kernels.hopper import SHARED_BYTES
from toprung.kernels.hopper_fp32x.config import PLAIN_BYTES, Fp32xConfig
from toprung.kernels.hopper_fp32x.cost import alone, most_slices
from toprung.kernels.hopper_fp32x.family import FP32X
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.hopper_fp32x.sizes import trimmed, unsupported
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.problem import Problem
from toprung.report import tune as report
from toprung.store import Machine, Proof, Store
from toprung.tile import Tile
from toprung.tune import check as checking
from toprung.tune.candidates import baselines
from toprung.tune.check import asked, check
from toprung.tune.model import UNKNOWN
from toprung.tune.session import Budget, Tuner
from toprung.tune.space import CallSpace
from toprung.tune.trial import Outcome, Sampled, Trial

pytestmark = pytest.mark.usefixtures("beforehand_only")

LARGE, DEEP, TINY = Gemm(4096, 4096, 4096), Gemm(128, 128, 65536), Gemm(64, 64, 64, batch=40)


def of(config: Fp32xConfig, slices: int = 1) -> Candidate:
    """Return a candidate of fp32x."""
    return Candidate(FP32X, replace(config, k_parts=slices))


OTHER = of(Fp32xConfig(CONSUMERS=1, BN=128, STAGES=8, GROUP=4))
"""A candidate that the cost model takes for none of them."""


def by_cost(desc: Desc) -> Candidate:
    """Return what fp32x takes of its own by the cost model."""
    return select_own(H200, desc, "fp32x").candidate


def named(problem: Problem, candidate: Candidate = OTHER, seconds: float = 1e-3, **more: Any) -> Any:
    content = candidate.encode()
    return entry(H200, problem, content["kernel"], Tile(**content["tile"]), seconds, options=content["options"], **more)


# the space


@pytest.mark.parametrize("problem", [LARGE, DEEP, TINY, Gemm(300, 200, 1000, trans="TT")], ids=str)
def test_every_point_is_a_kernel_that_fits_and_keeps_the_promise(problem: Problem) -> None:
    desc = problem.desc
    assert isinstance(desc, GemmDesc)
    axes = FP32X.space(H200, desc)
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    made = {c for p in points if (c := FP32X.at(H200, desc, p))}
    assert by_cost(desc).config in made and len(made) > 50
    for config in made:
        assert Fp32xConfig().decode(**config.encode()) == config
        assert not config.refused() and config.STAGES >= 2
        assert config.shared_bytes + config.CONSUMERS * PLAIN_BYTES <= SHARED_BYTES
        assert config.slices == (config.tile.SPLIT_K or 1) == trimmed(desc.K, config.slices) <= most_slices(desc)
        assert FP32X.at(H200, desc, FP32X.point(config)) == config
        assert 0 < alone(desc, config, 132)[0] < math.inf
    starts = [FP32X.at(H200, desc, p) for p in FP32X.starts(H200, desc)]
    assert set(starts) - {None} <= made


def test_no_space_has_kernels_of_another_path(device: Device) -> None:
    own = {"tiled", "tiled_cluster", "hopper_sgemm", "stream_k"}
    assert {f.name for f, _ in CallSpace(H200, LARGE.desc, UNKNOWN)._parts} == own
    assert {f.name for f, _ in CallSpace(H200, LARGE.desc, precision="fp32x")._parts} == {"hopper_fp32x"}
    for place, problem in ((device, LARGE), (H200, Gemv(500, 600)), (H200, Gemm(500, 600, 63))):
        assert not CallSpace(place, problem.desc, precision="fp32x")._parts, "what has no fp32x is not searched for it"


@pytest.mark.slow
@pytest.mark.parametrize("candidate", [OTHER, of(Fp32xConfig(BN=32, STAGES=4, GROUP=1), 3)], ids=str)
def test_a_stored_configuration_is_what_runs_and_is_right(folder: Any, stored: Store, candidate: Candidate) -> None:  # noqa: F811
    one = Operands.of(150, 140, 800, turned="TN")
    problem = Gemm(150, 140, 800, trans="TN", lda=153, ldb=143, ldc=143)
    content = candidate.encode()
    stored.add(entry(folder.device, problem, "hopper_fp32x", Tile(**content["tile"]), options=content["options"]))
    selected = select(folder.device, problem.desc, True, "fp32x")
    made = selected.family.compile(folder, problem.desc, selected.config)
    assert isinstance(made, Fp32xLaunches) and selected.precision == "fp32x"
    assert Candidate(FP32X, made.config) == candidate
    assert close(one.run(made, 0.5, 2.0), one.reference(0.5, 2.0))


# entries


def test_the_very_sizes_then_a_neighbour_then_the_cost_model(stored: Store) -> None:  # noqa: F811
    desc, near, far = (Gemm(n, 4096, 4096).desc for n in (4096, 4000, 400))
    own = select(H200, desc, True, "fp32x")
    assert "in tiles of 128×128" in own.why and own.candidate == by_cost(desc)
    stored.add(named(LARGE), named(LARGE, by_cost(desc), 2e-3))
    exact = select(H200, desc, True, "fp32x")
    assert exact.precision == "fp32x" and exact.candidate == OTHER and "tuned on these very sizes: 1 ms on 2025-01-31" in exact.why
    assert exact.passed_over[0][0].startswith("hopper_fp32x 128×128") and "2.00 times" in exact.passed_over[0][1]
    found = select(H200, near, True, "fp32x")
    assert found.candidate == OTHER and "tuned on 4096×4096×4096, the nearest" in found.why
    assert "in tiles of" in select(H200, far, True, "fp32x").why


def test_slices_of_a_neighbour_keep_the_device_as_full(stored: Store) -> None:  # noqa: F811
    stored.add(named(DEEP, of(Fp32xConfig(), 96)))
    exact, near, shallow = (
        select(H200, Gemm(m, 128, k).desc, True, "fp32x").config.slices for m, k in ((128, 65536), (192, 65536), (128, 50_000))
    )
    assert exact == trimmed(65536, 96) and near == trimmed(65536, 48) and shallow == trimmed(50_000, 96)
    stored.add(named(DEEP, of(Fp32xConfig(), 1 << 20), 1e-4))  # more than there is memory or K for
    assert select(H200, DEEP.desc, True, "fp32x").config.slices <= most_slices(DEEP.desc)  # type: ignore[arg-type]


def test_neither_precision_takes_the_other_s_entries(stored: Store) -> None:  # noqa: F811
    desc = LARGE.desc
    before = select(H200, desc), by_cost(desc)
    stored.add(named(LARGE, seconds=1e-9))
    assert select(H200, desc) == before[0], "an entry of fp32x changes nothing for fp32"
    assert select(H200, desc, True, "fp32").family is before[0].family
    stored.clear()
    stored.add(entry(H200, LARGE, tile=Tile(**large_tile()), seconds=1e-9))
    assert select(H200, desc, True, "fp32x").candidate == before[1]


def test_auto_goes_by_both_and_runs_the_tuned_tile(stored: Store) -> None:  # noqa: F811
    small = Gemm(256, 256, 256)  # where fp32x is not expected to be faster
    assert select(H200, small.desc, True, "auto").precision == "fp32"
    stored.add(named(small, seconds=1e-6), entry(H200, small, tile=SMALL, seconds=2e-6))
    found = select(H200, small.desc, True, "auto")
    assert found.precision == "fp32x" and found.candidate == OTHER and "the store" in dict(found.passed_over)["fp32"]
    stored.add(named(small, seconds=3e-6))
    found = select(H200, small.desc, True, "auto")
    assert found.precision == "fp32" and "1.50 times as long" in dict(found.passed_over)["fp32x"]


@pytest.mark.parametrize(
    ("tile", "options", "says"),
    [
        (large_tile(), {"GROUP": 8}, "nearest"),
        (None, {"GROUP": 8}, "nearest"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 6}, {}, "nearest"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 6}, {"GROUP": 8, "INTERVAL": 1, "EVIL": 1}, "nearest"),
        ({"BM": 96, "BN": 128, "BK": 32, "STAGES": 6}, {"GROUP": 8}, "nearest"),
        ({"BM": 128, "BN": 128, "BK": 16, "STAGES": 6}, {"GROUP": 8}, "'BK': 32"),
        ({"BM": 192, "BN": 128, "BK": 32, "STAGES": 3}, {"GROUP": 8}, "not of 192×128"),
        ({"BM": 128, "BN": 256, "BK": 32, "STAGES": 3}, {"GROUP": 8}, "not of 128×256"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 7}, {"GROUP": 8}, "bytes of shared memory"),
        ({"BM": 128, "BN": 128, "BK": 32, "STAGES": 1}, {"GROUP": 8}, "one stage"),
        ({"BM": 128, "BN": 64, "BK": 32, "STAGES": 6}, {"GROUP": 0}, "rows of tiles"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_refused_and_said(tile: Any, options: Any, says: str, stored: Store) -> None:  # noqa: F811
    bad = entry(H200, LARGE, "hopper_fp32x", Tile(**tile) if tile else None, options=options)
    assert says in tuned.refusal(bad) and says in str(Measured(bad, bad.machine).fitted(H200, LARGE.desc, True))
    stored.add(bad)
    found = select(H200, LARGE.desc, True, "fp32x")
    assert found.precision == "fp32x" and "in tiles of 128×128" in found.why
    assert any(says in why for _, why in found.passed_over)


def test_entries_that_name_an_interval_are_read_without_it() -> None:
    tile = {"BM": 128, "BN": 64, "BK": 32, "STAGES": 4}
    assert Fp32xConfig().decode(tile, {"GROUP": 8, "INTERVAL": 2}) == Fp32xConfig().decode(tile, {"GROUP": 8})


def test_what_was_measured_with_another_text_is_verified_first(stored: Store) -> None:  # noqa: F811
    stale, desc = named(LARGE, source="an older text"), LARGE.desc
    stored.add(stale)
    found = select(H200, desc, True, "fp32x")
    assert found.unproven == stale and found.candidate == OTHER
    stored.prove(Proof(stale.id, Machine.of(H200), tuned.version("hopper_fp32x", "cuda"), "C[3, 4] is wrong"))
    passed = select(H200, desc, True, "fp32x")
    assert passed.candidate != OTHER and any("wrong with this driver and kernel: C[3, 4]" in w for _, w in passed.passed_over)
    stored.prove(Proof(stale.id, Machine.of(H200), tuned.version("hopper_fp32x", "cuda")))
    good = select(H200, desc, True, "fp32x")
    assert good.candidate == OTHER and good.unproven is None


def test_the_verification_has_edges_slices_and_sums_that_the_promise_covers() -> None:
    for slices in (1, 2, 5):
        candidate = of(Fp32xConfig(BN=64, STAGES=8), slices)
        problem, small = verify.small_problem(Gemm(512, 512, 16384, trans="NT").desc, candidate, 1.3, 0.7)
        desc, config = problem.desc, small.config
        assert isinstance(desc, GemmDesc) and isinstance(config, Fp32xConfig) and small.family is FP32X
        assert not unsupported(H200, desc, config)
        assert (config.slices > 1) == (slices > 1) and config.slices == trimmed(desc.K, min(slices, 3))
        assert desc.M % config.BM and desc.N % config.BN and desc.K % 32 and desc.trans == "NT"


def test_a_device_without_it_passes_them_over(device: Device, stored: Store) -> None:  # noqa: F811
    require(device.arch != "sm_90" or device.backend != "cuda", "this device has it")
    problem, content = Gemm(64, 64, 64), OTHER.encode()
    stored.add(entry(device, problem, "hopper_fp32x", Tile(**content["tile"]), 1e-9, options=content["options"]))
    for precision in ("auto", "fp32x"):
        assert select(device, problem.desc, True, precision).precision == "fp32"
    assert multiplied(device, 64, 64, 64).kernel == "tiled"


# the search and the check, on times that are given


class Given:
    """A lane whose times are a function: what is searched and compared, and what becomes of it, without a GPU."""

    def __init__(self, seconds: Callable[[Candidate], float], crash: Candidate | None = None) -> None:
        self.name, self.device, self.machine = "given", H200, Machine.of(H200)
        self._seconds, self._crash = seconds, crash
        self.asked: list[Candidate] = []

    def start(self) -> str:
        return ""

    def run(self, trial: Trial) -> Outcome:
        self.asked += trial.candidates
        if self._crash in trial.candidates:
            gone = trial.candidates.index(self._crash)
            return Outcome(tuple(Sampled("crashed", "planted") if i == gone else Sampled() for i in range(len(trial.candidates))))
        count, cold = 7, (1.0,) * trial.cold
        return Outcome(tuple(
            Sampled("right", "", (self._seconds(c),) * count, cold, (None,) * count, (False,) * count, tuple(range(count)), 1.0)
            for c in trial.candidates
        ))  # fmt: skip

    def close(self) -> None:
        """Nothing to end."""

    def lanes(self) -> Sequence[Given]:
        """Itself."""
        return [self]


def best_is_other(candidate: Candidate) -> float:
    """Return less the more a candidate has of ``OTHER``; plain fp32 is in between."""
    if candidate.kernel != "hopper_fp32x":
        return 1.35e-3
    mine, best = ({**c.encode()["tile"], **c.encode()["options"]} for c in (candidate, OTHER))
    return 1e-3 + 1e-4 * sum(mine.get(k) != best.get(k) for k in mine | best)


def tuned_through(store: Store, lane: Given, problem: Problem, budget: Budget, **more: Any) -> Tuner:
    tuner = Tuner([problem], lane, store, budget, precision="fp32x", **more)  # type: ignore[arg-type]
    for _ in tuner.run():
        pass
    return tuner


def test_a_search_of_fp32x_finds_its_best_and_the_library_takes_it(stored: Store) -> None:  # noqa: F811
    lane = Given(best_is_other)
    (shape,) = tuned_through(stored, lane, TINY, Budget(trials=60)).shapes
    assert shape.precision == "fp32x" and shape.candidate == OTHER and shape.gain is not None and shape.gain.value > 1.1
    assert {c.kernel for c in lane.asked} == {"hopper_fp32x", select(H200, TINY.desc, own=False).family.name}
    assert shape.finals["fp32"].status == "right"
    assert all(e.candidate["tile"] for e in stored.entries(kernel="hopper_fp32x"))
    assert select(H200, TINY.desc, True, "fp32x").candidate == OTHER
    assert shape.finals["best"].cold_seconds, "operands in no cache, too"
    assert report.shape_name(shape) == "64 batch=40 fp32x" and shape.describe()["precision"] == "fp32x"
    (again,) = tuned_through(stored, Given(best_is_other), TINY, Budget(trials=5)).shapes
    assert again.recalled and again.candidate == OTHER and again.tried <= 5


def test_an_exhaustive_search_says_what_the_usual_one_missed(stored: Store, tmp_path: Path) -> None:  # noqa: F811
    (shape,) = tuned_through(stored, Given(best_is_other), TINY, Budget(), exhaustive=True).shapes
    space = set(CallSpace(H200, TINY.desc, precision="fp32x").all())
    found = shape.describe()["exhaustive"]
    assert shape.state == "exhausted" and shape.beyond and found["legal"] == len(space) == len(found["measured"]) == shape.tried
    assert shape.candidate == OTHER and shape.ordinary is not None and found["after"] == 20
    behind = best_is_other(shape.ordinary) / 1e-3
    assert shape.behind is not None and shape.behind.value == pytest.approx(behind)
    text = report.exhausted_line(shape)
    assert f"{len(space)} of about {len(space)} configurations (100 %)" in text
    assert "what 20 by the usual strategy had found" in text
    records.stored(tmp_path / "all.json", kind="tune", shapes=[json.loads(json.dumps(shape.describe()))])
    table = tune_table.block(["exhaustive", "all.json"], tmp_path)
    assert f"| 64 batch=40 fp32x | {len(space)} | {len(space)} | 0 | 0 | `hopper_fp32x 64×128×32 STAGES8` |" in table
    assert f"after 20 | {behind:.3f} (" in table
    (later,) = tuned_through(stored, Given(best_is_other), TINY, Budget(trials=3), exhaustive=True).shapes
    assert later.ordinary == OTHER and later.after == 0, "what was stored before counts as the usual candidate"


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
    (found,) = check([lane], [problem], store, precision=precision)  # type: ignore[arg-type]
    return found


def test_the_check_holds_the_selection_of_a_path_against_the_other(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def slow_fp32x(candidate: Candidate) -> float:
        return 2e-3 if candidate.kernel == "hopper_fp32x" else 1e-3

    found = checked(stored, Given(slow_fp32x), LARGE, "auto", monkeypatch)
    assert found.selected.kernel == "hopper_fp32x" and found.broken
    assert found.ratio is not None and found.ratio.value == pytest.approx(2)
    assert found.best is not None and found.best.kernel != "hopper_fp32x" and found.precision == "auto"
    stored.add(named(LARGE, by_cost(LARGE.desc), 2e-3), entry(H200, LARGE, tile=Tile(**large_tile())))
    kept = checked(stored, Given(slow_fp32x), LARGE, "auto", monkeypatch)
    assert kept.selected.kernel != "hopper_fp32x" and not kept.broken and not kept.trouble
    assert {c.kernel for c, _ in kept.sampled} >= {kept.selected.kernel, "hopper_fp32x"}


def test_the_check_holds_a_tile_of_fp32x_against_others(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    stored.add(named(Gemm(4000, 4096, 4096)))
    own = by_cost(LARGE.desc)
    slow = checked(stored, Given(lambda c: 1e-3 if c == own else 2e-3), LARGE, "fp32x", monkeypatch)
    assert slow.selected == OTHER and slow.broken and slow.best == own
    assert len(slow.sampled) >= 3 and {c.kernel for c, _ in slow.sampled} == {"hopper_fp32x"}


def test_what_crashes_beside_a_selection_leaves_it_measured(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    crash = by_cost(LARGE.desc)
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
    few = baselines(H200, Gemm(17, 4096, 4096), Store(Path("nowhere")), Machine.of(H200), "auto")
    assert len(few) == 2, "where fp32x is far from being the faster only what each path takes is measured"


# tables


def test_a_check_of_both_paths_is_shown_by_path(tmp_path: Path) -> None:
    content = json.loads(trial.fixture("h200-check.json").read_text())
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
    content = json.loads(trial.fixture("h200-library-list.json").read_text())
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


def test_describing_a_configuration_and_back() -> None:
    for candidate in (OTHER, of(Fp32xConfig(BN=64, STAGES=8), 7)):
        encoded = json.loads(json.dumps(candidate.encode()))
        assert decoded(encoded) == candidate == decoded({**encoded, "kernel": "fp32x"})
    with pytest.raises(ValueError, match="nearest"):
        FP32X.config.decode(SMALL.given(), {"GROUP": 1})
    first, second = (of_precision(H200, LARGE.desc, "fp32x") for _ in range(2))
    assert replace(first, why="x") != first == second and replace(first, why="x").candidate == first.candidate
