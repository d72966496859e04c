"""Comparisons: in turns, on the same data, each verified by its own promise; bad input says what exists."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from command import Typed
from planted import Failing, Planted, bf16, fp16
from toprung.backends.base import Session
from toprung.cli import bench
from toprung.errors import BadSize, UnknownName
from toprung.lab.competitor import Competitor, RungCompetitor
from toprung.lab.harness import compare as comparing
from toprung.lab.harness import results
from toprung.lab.harness.accuracy import Graded
from toprung.lab.harness.bench import competitors, default_competitors, ratios
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.measure import SamplingPlan, Timing
from toprung.lab.harness.stats import paired_ratio, ratio
from toprung.lab.harness.suites import CPU_FLOPS, SUITES, fitting, suite
from toprung.lab.rung import rung
from toprung.oracle.check import hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice
from toprung.oracle.precision import PRECISIONS

FEW = {"warm": 3, "cold": 3, "sustained": 2}


def compared(problem: Gemm, competing: list[Competitor], session: Session, *modes: str) -> list[Row]:
    plan = ComparisonPlan(modes or ("warm",), FEW)
    rows = plan.rows(competing)
    for row in compare(PlacedProblem(problem, session), rows, plan):
        assert any(row is one for one in rows)
    return rows


def test_who_takes_part_is_said_by_name(session: Session) -> None:
    found = competitors(["numpy", "kepler/r07", "kepler", "numpy"])
    assert [c.name for c in found][:3] == ["numpy", "kepler/r07", "kepler/r01"] and len(found) == 11
    for unknown in ("nobody", "kepler/r77", "nothing/r01"):
        with pytest.raises(UnknownName):
            competitors([unknown])
    names = [c.name for c in default_competitors(session.device)]
    assert names[:2] == ["matmul", "numpy"] and "cublas" not in names and not any("/" in name for name in names)


def test_all_are_measured_on_the_same_problem_and_data(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "COLD_BYTES", {"cpu": 1 << 18})
    rows = compared(Gemm(64, 48, 32), competitors(["numpy", "kepler/r07"]), session, "warm", "cold")
    assert [(r.who.name, r.mode, r.state) for r in rows] == [
        (name, mode, "done") for mode in ("warm", "cold") for name in ("numpy", "kepler/r07")
    ]
    for row in rows:
        assert row.measurement is not None and row.verdict is not None and row.verdict.right
        assert len(row.measurement.seconds) == FEW[row.mode] and min(row.measurement.seconds) > 0
        assert row.measurement.mode == row.mode and row.measurement.problem["M"] == 64
    first, second, cold_first, cold_second = ratios([r.measurement for r in rows if r.measurement])
    assert first is None and cold_first is None
    assert second is not None and second.low <= second.value <= second.high
    assert cold_second is not None


def test_competitors_take_turns(session: Session) -> None:
    heard: list[str] = []
    competing = [Planted(name, called=lambda call, name=name: heard.append(name)) for name in "AB"]  # type: ignore[misc]
    compared(Gemm(8, 8, 8), list(competing), session)
    turns = [name for i, name in enumerate(heard) if i == 0 or heard[i - 1] != name]
    # checked A B, warmed up A B, then three samples each in turns
    assert "".join(turns) == "AB" * (2 + FEW["warm"])


def test_cold_calls_rotate_over_operands_larger_than_the_caches(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "COLD_BYTES", {"cpu": 7 * 3 * 4 * 16 * 16})
    calls: list[object] = []
    compared(Gemm(16, 16, 16), [Planted(called=calls.append)], session, "cold")
    timed = calls[1:]  # after the check
    assert len({id(c) for c in timed[:7]}) == 7 and timed[0] is timed[7]
    monkeypatch.setattr(comparing, "COLD_BYTES", {"cpu": 100})
    calls.clear()
    compared(Gemm(16, 16, 16), [Planted(called=calls.append)], session, "cold")
    assert len({id(c) for c in calls}) == 1


def test_sustained_samples_come_after_load_and_count_energy(session: Session) -> None:
    calls: list[object] = []
    rows = compared(Gemm(64, 64, 64), [Planted(called=calls.append)], session)
    assert rows[0].measurement is not None and rows[0].measurement.energy is None
    prepared = Planted(called=calls.append).prepare(OnDevice(hostile(Gemm(64, 64, 64)), session))
    timing = Timing(prepared, plan=SamplingPlan(0.01, 10**6, 0.05))
    timing.warm_up()
    calls.clear()
    energy = iter((10.0, 13.0))
    timing.sample(lambda: 1234.0, lambda: next(energy))
    assert len(calls) >= 2 * timing.calls and timing.joules == [3.0 / timing.calls] and timing.clocks == [1234.0]


@pytest.mark.parametrize(
    ("narrow", "promise", "right"),
    [(fp16, "fp32", False), (fp16, "fp32x", False), (fp16, "tf32x3", False), (fp16, "fp16", True), (fp16, "tf32", True),
     (bf16, "fp32", False), (bf16, "fp16", False), (bf16, "tf32", False), (bf16, "bf16", True), (lambda x: x, "fp32", True)],
)  # fmt: skip
def test_everyone_is_held_to_what_he_promises(narrow: object, promise: str, right: bool, session: Session) -> None:
    rows = compared(Gemm(64, 64, 256), [Planted(precision=promise, narrow=narrow)], session)  # type: ignore[arg-type]
    assert rows[0].state == ("done" if right else "wrong"), rows[0].note
    assert (rows[0].measurement is not None) is right
    assert right or "grade ratio" in rows[0].note


def test_limits_follow_the_precision() -> None:
    for depth in (16, 256, 4096, 65536):
        limits = {p.name: p.limit(depth, 16.0) for p in PRECISIONS.values()}
        assert limits["fp32"] == min(16, depth + 2) == limits["fp32x"]
        assert limits["fp32"] < limits["bf16x6"] < limits["tf32x3"] < limits["fp16"] < limits["tf32"] < limits["bf16"]
    # what was seen at K = 4096 passes as what it is, and as nothing better
    assert 16 < 385 <= PRECISIONS["fp16"].limit(4096, 16.0) < 3281 <= PRECISIONS["bf16"].limit(4096, 16.0)


def test_one_failure_leaves_the_others(session: Session) -> None:
    rows = compared(Gemm(32, 32, 32, trans="TN"), [Failing("broken"), RungCompetitor(rung("kepler/r07")), Planted("good")], session)
    assert [r.state for r in rows] == ["failed", "unsupported", "done"]
    assert rows[0].note == "RuntimeError: no kernel image is available" and "no transposes" in rows[1].note
    assert rows[0].failed and not rows[1].failed


def test_bench_stores_all_it_shows(typed: Typed, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "svg")}
    code, text = typed(
        "bench", "--sizes", "64,40x32x48", "--trans", "NN,TN", "--peers", "numpy,kepler/r07,cublas", "--device", "opencl",
        "--json", files["json"], "--csv", files["csv"], "--plot", files["svg"],
    )  # fmt: skip
    assert code == 0, text
    assert "cublas: needs an NVIDIA GPU" in text and "no transposes" in text and "× numpy" in text
    record = results.read(files["json"])
    assert [(m.competitor["name"], results.problem_name(m.problem)) for m in record["measurements"]] == [
        ("numpy", "64"), ("kepler/r07", "64"), ("numpy", "64 TN"), ("numpy", "40×32×48"), ("kepler/r07", "40×32×48"),
        ("numpy", "40×32×48 TN"),
    ]  # fmt: skip
    assert all(m.verdict["right"] and m.competitor["precision"] == "fp32" for m in record["measurements"])
    assert record["kind"] == "bench" and record["environment"]["device"]["backend"] == "opencl"
    assert json.loads(files["json"].read_text())["measurements"][1]["ratio"].keys() == {"value", "low", "high"}
    lines = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert [line["who"] for line in lines] == [m.competitor["name"] for m in record["measurements"]]
    assert np.isclose(float(lines[0]["gflops"]), record["measurements"][0].gflops)
    assert "<svg" in files["svg"].read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--peers nobody", "there is no competitor 'nobody'; there is:"),
        ("--peers kepler/r99", "there is no rung of kepler '99'"),
        ("--suite nothing", "there is no suite 'nothing'; there is: squares, transformer"),
        ("--suite missing.json", "the suite missing.json cannot be read"),
        ("--trans NX", "there is no transpose 'NX'; there is: NN, NT, TN, TT"),
        ("--sizes 0", "positive whole numbers"),
        ("--sizes 64 --suite odd", "exclude each other"),
        ("--sizes 64 --peers cublas", "nobody can take part. cublas: needs an NVIDIA GPU"),
        ("--sizes 64 --plot out.txt", "there is no kind of picture '.txt'"),
        ("--device nowhere", "there is no device 'nowhere'"),
    ],
)
def test_bad_input_to_bench(words: str, says: str, typed: Typed) -> None:
    code, text = typed("bench", *words.split())
    assert code == 2 and says in text


def test_a_size_that_does_not_fit_is_skipped_and_said(typed: Typed) -> None:
    code, text = typed("bench", "--sizes", "300000,16", "--peers", "numpy", "--device", "opencl")
    assert code == 0 and "300000: skipped:" in text and "cannot allocate 360,000,000,000 bytes" in text and "16 on opencl:" in text
    code, text = typed("bench", "--sizes", "300000", "--peers", "numpy", "--device", "opencl")
    assert code == 1 and "skipped" in text


@pytest.mark.parametrize("reads", [2, 1])
def test_a_budget_that_is_over_within_the_last_product_leaves_an_interrupted_record(
    typed: Typed, tmp_path: Path, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The clock jumps behind so many looks: while the only product is measured, or before it."""
    looks = itertools.chain([0.0] * (reads - 1), itertools.repeat(1e6))
    monkeypatch.setattr(bench.Progress, "elapsed", property(lambda _: next(looks)))
    out, kept = tmp_path / "cut.json", []
    publish = bench._store
    monkeypatch.setattr(bench, "_store", lambda path, content: (kept.append(content["interrupted"]), publish(path, content)))
    typed("bench", "--sizes", "64", "--peers", "numpy", "--sustained", "--cold", "--budget", "60s", "--json", out)
    assert kept and all(kept) and results.read(out)["interrupted"]
    assert any("not begun" in note for note in results.read(out)["notes"]) == (reads == 1)


def test_a_suite_says_how_long_it_takes_and_can_be_cut_short(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    # the budget ends with the first sample, on any machine
    monkeypatch.setattr(bench.Progress, "elapsed", property(lambda shown: 1e6 * (shown._done["sample"] > 0)))
    out = tmp_path / "o.json"
    code, text = typed("bench", "--suite", "odd", "--peers", "numpy", "--sustained", "--budget", "0.1s", "--json", out)
    assert (
        code == 0 and "products, 1 competitors: about " in text and "--budget ends it earlier and keeps what was measured" in text
    )
    record = results.read(out)
    assert record["interrupted"] and len({results.problem_name(m.problem) for m in record["measurements"]}) == 1
    assert any("is over: " in note and "products not begun" in note for note in record["notes"])
    code, text = typed("bench", "--budget", "soon")
    assert code == 2 and "a budget is a time such as 60s" in text


def test_what_was_measured_is_in_the_file_before_the_end(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each product: a process that is killed loses the product at hand."""
    seen: list[int] = []
    right = results.write

    def heard(path: Path, content: dict[str, object]) -> None:
        right(path, content)
        seen.append(len(results.read(path)["measurements"]) if content["interrupted"] else -1)

    monkeypatch.setattr(results, "write", heard)
    assert typed("bench", "--sizes", "8,9,10", "--peers", "numpy", "--json", tmp_path / "o.json")[0] == 0
    assert seen == [1, 2, -1, -1]


def test_bench_begins_with_the_library_as_a_user_gets_it(typed: Typed, tmp_path: Path) -> None:
    code, text = typed("bench", "--sizes", "48", "--json", tmp_path / "o.json")
    assert code == 0 and "× matmul" in text
    who = [m.competitor["name"] for m in results.read(tmp_path / "o.json")["measurements"]]
    assert who[:2] == ["matmul", "numpy"] and not any("/" in name for name in who)


def test_suites_hold_what_they_say() -> None:
    assert list(SUITES) == [
        "squares", "transformer", "skinny", "deep-k", "batched", "odd", "blas-paper", "transposes", "library",
    ]  # fmt: skip
    assert [g.M for g in suite("squares")][:2] == [256, 512] and len(suite("squares", ["NN", "TT"])) == 16
    assert {g.trans for g in suite("blas-paper")} == {"NN", "NT", "TN", "TT"} and all(g.M % 96 == 0 for g in suite("blas-paper"))
    assert len(suite("transposes")) == 28 and {g.trans for g in suite("transposes") if g.M == 8192} == {"NN", "NT", "TN", "TT"}
    assert all(g.batch > 1 for g in suite("batched")) and all(g.K >= 16 * g.M for g in suite("deep-k"))
    for name in SUITES:
        fits, left_out = fitting(suite(name), "cpu")
        assert fits and max(g.flops for g in fits) <= CPU_FLOPS and fitting(suite(name), "gpu")[1] == []
        assert {*fits, *left_out} == {*suite(name)}


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('[{"M": 8, "N": 4, "K": 2, "trans": "NT", "batch": 3}, {"M": 5, "N": 5, "K": 5, "beta": 1}]')
    assert suite(str(path)) == [Gemm(8, 4, 2, trans="NT", batch=3), Gemm(5, 5, 5, beta=1)]
    assert [g.trans for g in suite(str(path), ["TN", "TT"])] == ["TN", "TT", "TN", "TT"]
    for text, says in {
        "[": "is not JSON", "{}": "should be a list", "[]": "should be a list", '[{"M": 1}]': "is no product",
        '[{"M": 1, "N": 1, "K": 0}]': "empty product", '[{"M": -1, "N": 1, "K": 1}]': "M must be at least",
        '[{"M": 1, "N": 1, "K": 1, "trans": "XX"}]': "trans is one of", "[7]": "is no product",
    }.items():  # fmt: skip
        path.write_text(text)
        with pytest.raises(BadSize, match=says):
            suite(str(path))


def test_intervals() -> None:
    rng = np.random.default_rng(3)
    drift = 1 + 0.3 * rng.random(9)  # what disturbs both
    a, b = drift * rng.normal(2.0, 0.01, 9), drift * rng.normal(1.0, 0.005, 9)
    paired, loose = paired_ratio(a, b), ratio(a, b)
    assert paired.low <= 2.0 <= paired.high and paired == paired_ratio(a, b)
    assert paired.high - paired.low <= 0.5 * (loose.high - loose.low)  # pairing takes the drift out
    assert paired_ratio([1.0], [2.0]).value == 0.5


def test_accuracy_grades_and_stores(typed: Typed, tmp_path: Path) -> None:
    path, picture = tmp_path / "acc.json", tmp_path / "acc.svg"
    code, text = typed(
        "accuracy", "--peers", "numpy,kepler/r01", "--sizes", "32,64", "--inputs", "uniform,T4,integers,nan,relu",
        "--device", "opencl", "--json", path, "--plot", picture,
    )  # fmt: skip
    assert code == 0, text
    assert "grade ratio at K = 64" in text and "bias" in text
    graded = [Graded.read(g) for g in results.read(path)["graded"]]
    assert {g.distribution for g in graded if g.verdict and g.verdict.bias_chance} - {"T4"} == {"relu"}  # one term outweighs all
    assert len(graded) == 2 * 2 * 5 and all(g.verdict is not None and g.verdict.grade <= g.limit for g in graded)
    assert picture.read_text().count("<svg") == 1
    assert typed("results", "plot", path, "--out", tmp_path / "again.png")[0] == 0
    for words, says in (("--sizes 3x3x3", "values of K"), ("--inputs odd", "there is no distribution 'odd'; there is: uniform")):
        code, text = typed("accuracy", "--peers", "numpy", *words.split())
        assert code == 2 and says in text


def test_transposes_and_batches_have_a_reference_of_their_own() -> None:
    for problem in (Gemm(5, 6, 7, 0.7, 1.3, trans="TT", batch=3), Gemm(5, 6, 7, trans="NT", ldb=9), Gemm(5, 6, 7, -1, trans="TN")):
        rng = np.random.default_rng(1)
        operands = {m.name: rng.uniform(-1, 1, (m.rows, m.cols)).astype(np.float32) for m in problem.matrices}
        result, magnitude = problem.reference(operands)
        for i in range(problem.batch):
            a, b, c = (operands[m.name].reshape(problem.batch, -1, m.cols)[i].astype(float) for m in problem.matrices)
            a, b = (x.T if t == "T" else x for x, t in zip((a, b), problem.trans, strict=True))
            alpha, beta = float(np.float32(problem.alpha)), float(np.float32(problem.beta))
            rows = slice(i * problem.M, (i + 1) * problem.M)
            assert np.allclose(result[rows], alpha * a @ b + beta * c, rtol=1e-13)
        some, _ = problem.reference(operands, np.array([0, problem.M * problem.batch - 1]), slice(2, 5))
        assert np.array_equal(some, result[[0, -1]][:, 2:5])
        signs = np.where(rng.random((problem.N, 1)) < 0.5, -1.0, 1.0)
        expected, bound = problem.project(operands, signs)
        assert np.allclose(expected, result @ signs) and np.allclose(bound, magnitude.sum(axis=1, keepdims=True))


def test_the_library_beside_another(typed: Typed, tmp_path: Path) -> None:
    """A line a product, geometric mean and least below; from several records, too."""
    from tables import library

    parts = []
    for i, sizes in enumerate(("16,24x40x48", "1x64x64")):
        parts.append(f"{i}.json")
        code, _ = typed("bench", "--sizes", sizes, "--peers", "numpy,toprung", "--json", tmp_path / parts[-1])
        assert code == 0
    lines = library.block(parts, tmp_path).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["16", "24×40×48", "1×64×64"]
    assert "| numpy TFLOP/s | toprung TFLOP/s |" in lines[0]
    assert "`tiled` " in lines[2] and "`tiled` " in lines[3] and "`skinny` " in lines[4]
    ratios = [float(line.split("|")[4].split()[0]) for line in lines[2:5]]
    mean = float(lines[6].removeprefix("Geometric mean of 3 ratios ").split(",")[0])
    assert mean == pytest.approx(math.prod(ratios) ** (1 / 3), abs=2e-3)
    assert f"the least {min(ratios):.3f}" in lines[6]
    assert library.block([], tmp_path) == "Not measured yet."


def test_the_library_in_both_ways(typed: Typed, tmp_path: Path) -> None:
    """Side by side; a record says which path ``toprung_auto`` took: plain fp32 where there are no matrix units of Hopper's."""
    code, _ = typed("bench", "--sizes", "96", "--peers", "numpy,toprung,toprung_auto", "--json", tmp_path / "both.json")
    assert code == 0
    found = [m.competitor for m in results.read(tmp_path / "both.json")["measurements"]]
    assert [c["name"] for c in found] == ["numpy", "toprung", "toprung_auto"]
    assert found[2] == {**found[1], "name": "toprung_auto"} and found[2]["precision"] == "fp32"


def test_transposes_share_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []
    monkeypatch.setattr(comparing, "_last", [])
    monkeypatch.setattr(comparing, "hostile", lambda *a: drawn.append(a) or hostile(*a))
    first, second = (comparing._operands(Gemm(24, 24, 24, trans=t), "uniform", 0) for t in ("NN", "TT"))
    assert len(drawn) == 1
    assert second.problem.trans == "TT"  # type: ignore[attr-defined]
    assert second.flat is first.flat
    for other in (Gemm(24, 24, 25), Gemm(24, 24, 24, alpha=0.0)):
        comparing._operands(other, "uniform", 0)
    comparing._operands(other, "positive", 0)
    assert len(drawn) == 4
