"""Bounds on the command line; and no rung was ever measured to be faster than its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import tables.bounds
import trial
from command import Typed
from conftest import require
from tables import refresh
from toprung import backends
from toprung.backends import nvrtc
from toprung.cli import bound as sweep
from toprung.cli.common import console
from toprung.device import Device
from toprung.errors import BadRecord, UnknownName
from toprung.lab.bounds.arch import architecture, vendor_figures
from toprung.lab.bounds.figures import Unknown
from toprung.lab.bounds.levels import Bound, KernelWork, bound
from toprung.lab.bounds.paper import Blocking
from toprung.lab.competitor import RungCompetitor
from toprung.lab.explain import RungBounds, compiled, device_for, figures_of, measured, next_step, reached, work_of
from toprung.lab.harness import results
from toprung.lab.harness.compare import Row
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import Measurement
from toprung.lab.rung import Rung, rung
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.report.bound_table import read_bounds
from toprung.report.table import ladder_table
from toprung.tile import Tile

STORED = trial.fixture("h200-results")


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))  # nobody's own probe
    monkeypatch.chdir(tmp_path)  # by default, results/ of the folder it runs in is read
    return Typed(capsys, monkeypatch)


@pytest.fixture
def compiler() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")


# --- toprung bound ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 0, "36 + 12 + 6 + 1 + 7 = 62 ≤ 63"),
        ((), 0, "P_potential = 1,287 GFLOP/s, 81.4 % of 1,581; limited by the multiprocessor"),
        (("--BR", "7"), 0, "this plan cannot run: condition 7 refuses it"),
        (("--mix", "1"), 0, "P_potential = 1,355 GFLOP/s, 85.7 % of 1,581"),
        (("--arch", "kepler"), 0, "P_potential is unknown: issue_lanes of Kepler (GTX 680), ffma_lanes"),
        (("--arch", "kepler"), 0, "256?"),
        (("--arch", "sm_90a", "--latency", "4", "--width", "128"), 0, "1024 ≥ 32 · 4 / 0.25 = 512"),
        (("--arch", "sm_42"), 2, "there is no architecture in the model 'sm_42'; there is: gt200, fermi"),
        (("--BR", "0"), 2, "--BR is at least 1, not 0"),
        (("--TB", "200"), 2, "square number of threads, not 200"),
        (("--width", "16"), 2, "32, 64 or 128 bits, not 16"),
        (("--mix", "2"), 2, "above 0 and at most 1, not 2"),
        (("--mix", "nan"), 2, "above 0 and at most 1, not nan"),
        (("--tile", "BM=128", "--tile", "TM=8"), 2, "give --tile BN=… --tile BK=… --tile TN=…, too"),
        (("--tile", "KU=4"), 2, "there is no tile parameter of the model 'KU'"),
        (("--tile", "BM=64", "--BR", "6"), 2, "leave out --BR"),
        (("--sweep",), 0, "LDS.128"),
        (("--sweep", *(w for t in ("BM=64", "BN=64", "BK=8", "TM=4", "TN=4") for w in ("--tile", t))), 2, "leave out --tile"),
        (("--plot", "figure.txt"), 2, "there is no kind of picture '.txt'"),
    ],
)  # fmt: skip
def test_bound_says(words: tuple[str, ...], code: int, says: str, typed: Typed) -> None:
    ended, text = typed("bound", *words)
    assert ended == code and says in text


def test_the_sweep_is_drawn(typed: Typed, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for arch in ("fermi", "kepler"):  # of the second, half is unknown
        assert typed("bound", "--arch", arch, "--plot", tmp_path / f"{arch}.svg")[0] == 0
        assert (tmp_path / f"{arch}.svg").read_bytes().startswith(b"<?xml")


def test_no_figure_of_the_sweep_is_cut_at_80_columns() -> None:
    plans = [Blocking.square(b, 256, 16) for b in (1, 16)]
    grid = sweep.sweep_grid(architecture("fermi"), plans, None, None)
    _, hidden, taken = grid.fitted(80)
    assert hidden == ("FFMA %, LDS.128",) and taken <= 80
    assert grid.fitted(None)[1] == () and grid.rows[0][0]["FFMA %, LDS.128"] == "66.7"


# --- toprung explain --------------------------------------------------------------------------------------------------------------


def test_levels_are_counted_in_whole_words_at_80_columns(compiler: None, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 80)
    _, text = typed("explain", "turing/r09", "--arch", "sm_90", "--size", "4096", "--results", STORED)
    assert "one lane a multiply-add;" in text


def test_a_rung_is_explained_without_a_gpu(compiler: None, typed: Typed, tmp_path: Path) -> None:
    code, text = typed(
        "explain", "turing/r09", "--arch", "sm_90", "--size", "4096", "--results", STORED, "--json", tmp_path / "b.json"
    )
    assert code == 0
    for part in (
        "turing/r09: warp tiles",
        "on NVIDIA H200",
        "512 FFMA",
        "without caches",
        "limited by issue slots",
        "measured",
        "next",
    ):
        assert part in text, part
    (only,) = read_bounds(tmp_path / "b.json")["bounds"]
    assert only["limiter"] == "issue slots" and 0 < only["share"] <= 1
    assert only["measured"] == pytest.approx(only["share"] * only["bound"]) and only["unit"] == "GFLOP/s"


@pytest.mark.parametrize(
    ("words", "name", "unknown"),
    [
        (("--device", "nvidia-h200"), "NVIDIA H200", 0), (("--arch", "sm_90"), "NVIDIA H200", 0),
        (("--device", "a100"), "Ampere (A100 SXM, 40 GB)", 4), (("--arch", "sm_80"), "Ampere (A100 SXM, 40 GB)", 4),
    ],
)  # fmt: skip
def test_a_device_that_is_not_here_has_its_figures_wherever_one_stands(
    words: tuple[str, ...], name: str, unknown: int, compiler: None, typed: Typed
) -> None:
    """Those of the probe that comes with the package, or its vendor's: the folder is empty, as outside a clone."""
    code, text = typed("explain", "turing/r09", *words, "--size", "4096")
    assert code == 0 and f"on {name} at 4096" in text
    assert text.count("unknown:") == unknown and "last cache may have kept" in text, "DRAM is known of both"
    assert ("% of the bound" in text) == (name == "NVIDIA H200"), "measurements come along, too"
    code, text = typed("bound", *(words if "--device" in words else ("--device", name)), "--tile", "BM=128", "--tile", "BN=128",
                       "--tile", "BK=16", "--tile", "TM=8", "--tile", "TN=8")  # fmt: skip
    assert code == 0 and "P_potential = " in text


def test_without_cudas_packages_a_cpu_is_explained() -> None:
    if backends.find(None).kind == "gpu":
        pytest.skip("the best device is a GPU")
    program = (
        "import runpy, sys; sys.modules['cuda'] = None\n"
        "sys.argv[1:] = ['explain', 'kepler/r01']; runpy.run_module('toprung', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "is not read: levels that need it are unknown" in " ".join(done.stdout.split()), done.stderr


def test_what_was_not_measured_is_said(compiler: None, typed: Typed, tmp_path: Path) -> None:
    words = ("explain", "kepler/r01", "--arch", "sm_100", "--size", "4096", "--results", tmp_path / "nothing")
    code, text = typed(*words)
    assert (
        code == 0
        and "nothing stored" in text
        and "bound unknown: sms, clock_mhz" in text
        and "of Blackwell (B200), which no" in text
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("turing/r99",), "there is no rung of turing 99"), (("nobody/r01",), "there is no ladder 'nobody'"),
        (("turing/r09", "--arch", "sm_12"), "there is no architecture 'sm_12'"),
        (("turing/r09", "--device", "abacus"), "Turing (RTX 2080 Ti), Ampere (A100 SXM, 40 GB)"),
        (("turing/r09", "--arch", "sm_90", "--device", "pocl"), "not both"),
        (("turing/r09", "--arch", "sm_90", "--size", "1,2"), "one size"),
        (("turing", "--arch", "sm_90", "--tile", "BM=1"), "name the rung"),
        (("turing/r09", "--arch", "sm_90", "--tile", "BK=3"), "cannot run"),
    ],
)  # fmt: skip
def test_bad_questions(words: tuple[str, ...], says: str, compiler: None, typed: Typed) -> None:
    code, text = typed("explain", *words)
    assert code == 2 and says.replace("'", "") in text.replace("'", "")


# --- what a rung asks for ---------------------------------------------------------------------------------------------------------


def test_the_work_of_a_rung(device: Device) -> None:
    one, nine = rung("turing/r01"), rung("turing/r09")
    tile = nine.tiles["gpu"][0]
    padded = work_of(nine, tile, {}, Gemm(130, 100, 9), None, device)
    assert (padded.M, padded.N, padded.K, padded.whole, padded.staged) == (256, 128, 16, True, True)
    assert padded.flops == 2 * 130 * 100 * 9  # speeds count the problem, times the padding
    plain = work_of(one, Tile(BM=32, BN=32), {}, Gemm(130, 100, 9, batch=3, beta=1.0), None, device)
    assert (plain.M, plain.N, plain.K, plain.whole, plain.staged, plain.batch) == (130, 100, 9, False, False, 3)
    assert plain.min_bytes == Gemm(130, 100, 9, batch=3, beta=1.0).min_bytes
    vector = work_of(rung("matvec/r01"), Tile(BM=1, BN=1), {}, Gemv(1000, 200), None, device)
    assert (vector.M, vector.N, vector.K, vector.tile, vector.flops) == (1000, 1, 200, None, 2 * 1000 * 200)


def test_measurements_of_another_cpu_of_the_name_are_not_taken(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    problem, who = Gemm(77, 77, 77), rung("kepler/r01")
    competitor = {"kind": "rung", "name": who.name, "tile": {"BM": 16, "BN": 16}, "options": {}}
    m = Measurement(competitor, problem.describe(), problem.flops, problem.min_bytes, {"grade": 1.0}, (1e-3,), (0.0,), 1, (None,))
    facts = environment(device)
    for runtime, taken in ((device.runtime, True), (f"{device.runtime} of another CPU", False)):
        of = {**facts["device"], "runtime": runtime}
        results.write(tmp_path / "a.json", results.record("toprung ladder kepler", {**facts, "device": of}, [m]))
        found = measured(who, Tile(BM=16, BN=16), {}, problem, device, tmp_path)
        assert (found is not None) == (taken or device.kind != "cpu")


def test_the_column_of_a_ladder(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path))
    problem = Gemm(256, 256, 256)
    who: Rung = rung("kepler/r01")
    m = Measurement(
        {"kind": "rung"}, problem.describe(), problem.flops, problem.min_bytes, {"grade": 1.0}, (1e-3,), (0.0,), 1, (None,)
    )
    entry = Row(RungCompetitor(who, tile=Tile(BM=16, BN=16)), state="done", measurement=m)
    bounds = RungBounds(device)
    assert bounds.figures is None and bounds.share(entry, problem) is None  # never probed: no column
    bounds.figures = replace(vendor_figures(device), sms=1, clock_mhz=1000.0, ffma_per_clock=32.0)
    least = problem.flops / 2 / 32e9
    assert bounds.share(entry, problem) == pytest.approx(least / 1e-3)
    assert bounds.share(replace(entry, measurement=replace(m, seconds=(least / 2,))), problem) is None, "no part is above 100 %"
    (wrong,) = bounds.notes
    assert "kepler/r01 at 256" in wrong and "the model is wrong about FFMA lanes" in wrong
    table = ladder_table([entry], "x", bound=lambda e: bounds.share(e, problem))
    assert table.rows[0][0]["% of bound"] == f"{100 * least / 1e-3:.1f}"
    assert bounds.share(replace(entry, state="building"), problem) is None
    assert "% of bound" not in [c.name for c in ladder_table([entry], "x").columns]


# --- the tables of the documentation ----------------------------------------------------------------------------------------------


def test_every_maker_stands_in_the_documentation() -> None:
    text = (trial.ROOT / "docs" / "bound.md").read_text()
    assert [name for name in tables.bounds.TABLES if f"<!-- toprung:{name} " not in text] == []


@pytest.mark.parametrize(
    ("marker", "error"),
    [("bound sm_1", UnknownName), ("paper other", UnknownName), ("mix kepler", UnknownName), ("beside none.json", BadRecord)],
)
def test_bad_markers_are_refused(marker: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        refresh(f"<!-- toprung:{marker} -->\n<!-- toprung:end -->", tmp_path)


def test_a_damaged_record_of_bounds_is_refused(tmp_path: Path) -> None:
    good = json.loads(trial.fixture("h200-bounds.json").read_text())
    path = tmp_path / "b.json"
    for damage in ({"share": -1}, {"bound": "fast"}, {"share": float("nan")}, {"figures": None}):
        path.write_text(json.dumps({**good, "bounds": [{**good["bounds"][0], **damage}]}))
        with pytest.raises(BadRecord, match="toprung explain"):
            read_bounds(path)
    path.write_text(json.dumps({k: v for k, v in good.items() if k != "bounds"}))
    with pytest.raises(BadRecord):
        read_bounds(path)


# --- measured on an H200 ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kepler", "turing", "hopper_fp32", "hopper", "matvec"])
def test_no_measured_rung_beats_its_bound(name: str, compiler: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = STORED / "nvidia-h200" / f"{name}-cuda.json" if name in ("kepler", "turing") else trial.fixture(f"h200-{name}.json")
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path))
    device = device_for("sm_90")
    assert device.name == "NVIDIA H200"
    figures = (vendor_figures(device), figures_of(device, STORED))
    compared, codes = [], {}
    for m in results.read(path)["measurements"]:
        who = m.competitor
        if who["kind"] != "rung":
            continue
        one, tile, options = rung(who["name"]), Tile(**who["tile"]), who["options"]
        key = (one.name, tile, tuple(options.items()))
        if key not in codes:
            codes[key], note = compiled(one, tile, options, device)
            assert not note
        work = work_of(one, tile, options, problem_of(m), codes[key], device)
        # the compiled loop has as many loads as the subscripts say
        assert work.traffic or work.tensor or work.vector or not work.staged, one
        for known in figures:
            found = bound(work, known)
            part = reached(found, m)
            assert part and part * m.median <= m.best, (one.name, who["variant"], m.problem)
            assert next_step(found, m, known)
        compared.append(part)
    assert len(compared) > 10
    assert sorted(compared)[-3] > 0.75  # and the best come near it


def problem_of(m: Measurement) -> Any:
    """The problem that was measured."""
    of = Gemm if m.problem["routine"] == "gemm" else Gemv
    return of(**{f.name: m.problem[f.name] for f in fields(of) if f.name in m.problem})


# --- what to do next --------------------------------------------------------------------------------------------------------------

NINE = KernelWork(
    4096, 4096, 4096, 1, rung("turing/r09").tiles["gpu"][0], registers=117, shared_bytes=8320, loop={"FFMA": 1, "BAR": 2}
)


def measured_at(share: float, of: Bound, helpers: float = 0.0, clock: float = 1980.0, precision: str = "fp32") -> Measurement:
    """A measurement that reaches a share of a bound, of which helpers took a part."""
    assert not isinstance(of.seconds, Unknown)
    taken = of.seconds / share
    return Measurement(
        {"kind": "rung", "precision": precision}, Gemm(1, 1, 1).describe(), 1, 1, {}, (taken,), (helpers * taken,), 1, (clock,)
    )


def test_what_to_do_next_looks_at_the_measurement_first() -> None:
    figures = architecture("sm_90").figures()
    found = bound(NINE, figures)
    assert found.limiter and found.limiter.name == "issue slots"
    assert next_step(found, None, figures) == next_step(found, measured_at(0.8, found), figures) == found.advice
    far = next_step(found, measured_at(0.3, found), figures)
    assert "far below its bound, at 30 %" in far and "occupancy (16 warps an SM, 25 %" in far and "barriers (2" in far
    helped = next_step(found, measured_at(0.3, found, helpers=0.6), figures)
    assert "take 60 % of the time" in helped and "the kernel itself is at 75 %" in helped
    assert reached(found, measured_at(0.3, found, helpers=0.6, precision="fp16")) == pytest.approx(0.75)
    slow = next_step(found, measured_at(0.6, found, clock=1386.0), figures)
    assert "clock at 1,386 of 1,980 MHz" in slow and "the kernel itself is at 86 %" in slow and found.advice.rstrip(".") in slow
    memory = bound(replace(NINE, min_bytes=10**12), figures)
    assert memory.limiter and memory.limiter.name == "DRAM"
    assert "nothing in the kernel" not in next_step(memory, measured_at(0.17, memory), figures)
    assert next_step(memory, None, figures).startswith("once it comes near its bound: nothing")
    assert next_step(memory, measured_at(0.9, memory), figures).startswith("nothing in the kernel")
