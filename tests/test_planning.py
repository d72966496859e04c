"""Autotuning on first use: what a first call measures, who finds it, who does not measure, and what happens where nobody can."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poisoned
import toprung
from command import Typed
from conftest import require
from tables import tuning as tune_table
from test_tune import H200
from test_tuned import afresh, entry, install_cublas, multiplied
from toprung import store as stores
from toprung.backends.base import Session
from toprung.device import Device
from toprung.dispatch import autotune, tuned
from toprung.dispatch.ranking import select_own
from toprung.dispatch.select import paths, select
from toprung.dispatch.selection import Candidate, decoded
from toprung.dispatch.tuned import TunedStore
from toprung.errors import BadArgument
from toprung.execute.executor import executor_of
from toprung.gemm.classes import class_of
from toprung.gemm.desc import Desc, GemmDesc, GemvDesc
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import Problem
from toprung.oracle.problems import problem_like
from toprung.store import Book, Machine, Store, exchange
from toprung.store import entry as store_entry
from toprung.tune import check as checking
from toprung.tune import planner, shapes
from toprung.tune.candidates import check_candidates, first_use_candidates, selected
from toprung.tune.check import asked as asked_of
from toprung.tune.check import check
from toprung.tune.plan import measure
from toprung.tune.trial import Outcome, Sampled, Trial, entry_of

EXACT = "tuned on these very sizes"


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A user's store of one's own, nothing shipped, nothing remembered, and planning as it is by default."""
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.delenv(autotune.VARIABLE, raising=False)
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(exchange, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(store_entry, "NOISY", math.inf)  # what is measured counts, on a busy machine too
    afresh()
    yield Store.default()
    autotune.HERE.set_level(None)
    afresh()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Desc]:
    """Note what is measured from here on."""
    descs: list[Desc] = []
    real = autotune.HERE.planner.measure

    def measure(device: Device, desc: Desc, precision: str) -> str:
        descs.append(desc)
        return real(device, desc, precision)

    monkeypatch.setattr(autotune.HERE.planner, "measure", measure)
    return descs


# what a first call does

LATER = """
import numpy as np, toprung, sys
from toprung.dispatch import autotune
from toprung.store import entry
entry.NOISY = float("inf")  # as in the program that measured
a, b = np.ones((60, 64), np.float32), np.ones((64, 64), np.float32)
assert (toprung.matmul(a, b, own=True, device=sys.argv[1]) == 64).all()
print(toprung.last_receipt().why)
print(autotune.HERE.level(), autotune.HERE.planner._worker)
"""


def test_the_first_call_measures_and_a_later_program_finds_it(device: Device, stored: Store, tmp_path: Path) -> None:
    with toprung.planning("measure"):
        first = multiplied(device, 60, 64, 64)
    before = [e.describe() for e in stored.entries()]
    environment = {**poisoned.environment(Path(toprung.__file__).parents[1], tmp_path), autotune.VARIABLE: "measure"}
    run = subprocess.run([sys.executable, "-c", LATER, device.id], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [first.why, "measure None"], "it starts no process"
    assert [e.describe() for e in stored.entries()] == before
    right = [e for e in stored.entries() if e.status == "right"]
    ours = [e for e in right if e.kernel != "numpy"]
    assert len(ours) >= 2 and "numpy" in {e.kernel for e in right} and {e.sizes for e in right} == {(60, 64, 64, 1)}
    fastest = min(ours, key=lambda e: e.median)
    assert len(fastest.seconds) > 3 and first.why.startswith(f"{EXACT}: {1e3 * fastest.median:.4g} ms")


def test_what_is_installed_is_measured_for_arrays_on_the_host(
    device: Device, stored: Store, asked: list[Desc], monkeypatch: pytest.MonkeyPatch
) -> None:
    require(device.kind == "cpu", "beside a GPU the way to it decides")
    monkeypatch.setattr("toprung.blas.product.best", lambda: device)
    rng = np.random.default_rng(1)
    a, b = rng.random((64, 60), np.float32), rng.random((60, 64), np.float32)
    with toprung.planning("measure"):
        product = toprung.plan(a, b)
        assert len(asked) == 1 and tuned.HERE.at(device, asked[0]).beside_host() is not None, "a plan measures when it is made"
        np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-5)
    medians = {e.kernel: e.median for e in reversed(stored.fastest())}
    left = product.receipt
    assert left is not None and len(asked) == 1
    if medians["numpy"] < medians["tiled"]:
        assert left.kernel == "numpy" and "faster when both were measured" in left.why
    elif left.kernel == "numpy":  # other programs were busy meanwhile, and no longer
        assert "faster when it was, again, in this process, measured" in left.why
    else:
        assert left.kernel == "tiled" and left.why.startswith(EXACT)


@pytest.mark.slow
def test_batches_vectors_and_both_kinds_of_result_are_measured(session: Session, stored: Store, asked: list[Desc]) -> None:
    toprung.planning("measure")
    calls = (
        GemmDesc(64, 64, 64, batch=3, stride_a=0, stride_b=4096, stride_c=4096, align_a=4, align_b=4, align_c=4, beta_zero=False),
        GemvDesc(300, 200, trans=True, lda=210, incx=2),
    )  # fmt: skip
    for call in calls:
        for precision in ("fp32", "auto", "fp32x"):  # one has the others' entries
            made = executor_of(session).product(call, precision=precision)
            assert EXACT in made.why and "not measured" not in made.why
    assert asked == list(calls)
    assert {e.problem_class for e in stored.entries()} == {class_of(call) for call in calls}


def test_a_shape_that_was_tuned_is_not_measured(device: Device, stored: Store, asked: list[Desc]) -> None:
    problem = Gemm(64, 64, 64)
    stored.add(entry(device, problem), entry(device, problem, "numpy", None))
    with toprung.planning("measure"):
        assert multiplied(device, 64, 64, 64).why.startswith(EXACT)
        rng = np.ones((0, 3), np.float32)
        assert toprung.matmul(rng, np.ones((3, 4), np.float32), own=True, device=device).shape == (0, 4)
    assert not asked


def test_threads_that_want_the_same_wait_for_one_measurement(device: Device, asked: list[Desc]) -> None:
    toprung.planning("measure")
    whys: list[str] = []
    begin = threading.Barrier(4)

    def run() -> None:
        begin.wait()
        whys.append(multiplied(device, 60, 60, 64).why)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1 and len(whys) == 4 and all(why.startswith(EXACT) for why in whys)


def test_what_measures_does_not_have_itself_measured(
    device: Device, asked: list[Desc], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    require(Path("/proc").is_dir(), "needs /proc")
    monkeypatch.setenv(autotune.VARIABLE, "measure")
    one = autotune.HERE.planner
    assert isinstance(one, planner.Planner)
    one._end()
    assert multiplied(device, 64, 60, 60).why.startswith(EXACT) and len(asked) == 1
    assert one._worker is not None
    variables = Path(f"/proc/{one._worker.pid}/environ").read_bytes().split(b"\0")
    assert f"{autotune.VARIABLE}=estimate".encode() in variables


def test_a_kernel_that_is_wrong_or_crashes_is_never_selected(device: Device, stored: Store, tmp_path: Path) -> None:
    copy = poisoned.package(tmp_path)
    source = copy / "toprung" / "kernels" / "skinny" / "columns.cl"
    text, right = source.read_text(), "TAKE(s * BM + i, sum);"
    assert text.count(right) == 1
    crash = "\n#if KU == 1\n*(volatile __global float *)8 = 1.0f;\n#endif\n"
    source.write_text(text.replace(right, f"{crash}TAKE(s * BM + i, 1.01f * sum);"))
    problem = Gemm(4, 64, 64)
    own = select_own(device, problem.desc).candidate
    assert str(own).startswith("skinny columns"), "the heuristic's own candidate is the one that is wrong"
    program = f"""
import numpy as np, toprung
a, b = np.ones((4, 64), np.float32), np.ones((64, 64), np.float32)
assert (toprung.matmul(a, b, own=True, device={device.id!r}) == 64).all()
print(toprung.last_receipt().kernels[0], toprung.last_receipt().why)
"""
    environment = {**poisoned.environment(copy, tmp_path), autotune.VARIABLE: "measure"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and EXACT in run.stdout and "skinny" not in run.stdout, run.stdout + run.stderr
    entries = {decoded(e.candidate): e.status for e in stored.entries() if e.kernel != "numpy"}
    assert entries[own] == "wrong" and sorted(entries.values()) == ["crashed", "right", "wrong"]


# the setting


def test_the_setting_is_one_of_two_and_is_put_back(
    device: Device, stored: Store, asked: list[Desc], monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("patient", "", "MEASURE"):
        with pytest.raises(BadArgument, match="planning is one of estimate, measure, not"):
            toprung.planning(word)
    assert autotune.HERE.level() == "estimate"
    monkeypatch.setattr(autotune.HERE.planner, "measure", lambda *call: asked.append(call[1]) or "")
    assert "by the cost model" in multiplied(device, 64, 56, 64).why and not asked, "nothing is measured by default"
    with toprung.planning("measure"):
        with toprung.planning("estimate"):
            assert "by the cost model" in multiplied(device, 64, 56, 64).why
        assert autotune.HERE.level() == "measure" and not asked
        multiplied(device, 64, 56, 64)
        assert len(asked) == 1, "what the heuristic had selected is selected anew"
    assert autotune.HERE.level() == "estimate"
    monkeypatch.setenv(autotune.VARIABLE, "measure")
    assert autotune.HERE.level() == "measure"
    with toprung.planning("estimate"):
        assert autotune.HERE.level() == "estimate"
    monkeypatch.setenv(autotune.VARIABLE, "exhaustive")
    with pytest.raises(BadArgument, match="TOPRUNG_PLANNING is one of estimate, measure, not 'exhaustive'"):
        multiplied(device, 64, 52, 64)


# where nothing can be measured


@pytest.mark.parametrize("how", ["off", "no folder", "no process"])
def test_where_nothing_can_be_measured_or_kept_it_is_said_once_and_the_heuristic_decides(
    how: str, device: Device, asked: list[Desc], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    says = {"off": "TOPRUNG_STORE=off leaves nothing", "no folder": "cannot be written", "no process": "could be started"}[how]
    if how == "off":
        monkeypatch.setenv(stores.VARIABLE, "off")
    elif how == "no folder":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "file" / "folder"))
    else:
        one = autotune.HERE.planner
        assert isinstance(one, planner.Planner)
        one._end()
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    toprung.planning("measure")
    with pytest.warns(RuntimeWarning, match="selects by its cost model, and not by measuring") as heard:
        for n in (60, 64):
            why = multiplied(device, 56, n, 64).why
            assert "by the cost model" in why and "; not measured: " in why and says in why
    said = [str(one.message) for one in heard]
    assert len(said) == 1 and says in said[0] and len(asked) == (how == "no process"), said


def test_while_a_stream_is_captured_the_heuristic_decides(
    session: Session, asked: list[Desc], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(type(session), "capturing", lambda self, queue: queue == "captured")
    with toprung.planning("measure"), warnings.catch_warnings():
        warnings.simplefilter("error")
        made = executor_of(session).product(GemmDesc(64, 52, 64), queue="captured")
    assert "by the cost model" in made.why and "not measured: its stream is being captured" in made.why and not asked


def test_what_takes_too_long_or_is_no_problem_of_the_tuner_is_left_to_the_heuristic(
    session: Session, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(planner.LARGEST, session.device.kind, 1e4)
    toprung.planning("measure")
    assert "toprung tune measures it" in executor_of(session).product(GemmDesc(64, 64, 64)).why
    assert "negative increment" in executor_of(session).product(GemvDesc(30, 40, incx=-1)).why
    assert not list(stored.entries())


def test_an_interrupt_ends_what_measures(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from toprung.tune.worker import Worker

    def interrupted(self: Worker, request: Any, limit: float) -> Any:
        self.start()
        pids.append(self.pid)
        raise KeyboardInterrupt

    pids: list[int | None] = []
    monkeypatch.setattr(Worker, "ask", interrupted)
    with toprung.planning("measure"), pytest.raises(KeyboardInterrupt):
        multiplied(device, 60, 64, 60)
    (pid,) = pids
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# what is measured, and what follows


@pytest.mark.parametrize("align", [1, 2, 4])
def test_a_problem_has_the_class_and_the_sizes_of_its_call(align: int) -> None:
    where = {"align_a": align, "align_b": 4, "align_c": align}
    calls: list[Desc] = [
        GemmDesc(64, 128, 256, **where), GemmDesc(64, 128, 256, trans_a=True, ldb=132, beta_zero=False, **where),  # type: ignore[arg-type]
        GemmDesc(1, 128, 256, lda=3, **where), GemmDesc(6, 500, 64, batch=4, stride_a=386, stride_b=0, stride_c=3001, **where),  # type: ignore[arg-type]
        GemvDesc(64, 128, align_a=align), GemvDesc(128, 64, trans=True, lda=66, incx=3, incy=2, beta_zero=False),
    ]  # fmt: skip
    for call in calls:
        problem = problem_like(call)
        assert problem is not None
        found = problem.desc
        assert (class_of(found), found.sizes, found.beta_zero) == (class_of(call), call.sizes, call.beta_zero)
        if isinstance(found, GemmDesc) and isinstance(call, GemmDesc):
            assert all(0 <= getattr(found, n) - max(getattr(call, n), 1) < 256 for n in ("lda", "ldb", "ldc"))


@pytest.mark.parametrize(
    ("precision", "count"),
    [("fp32", 30), ("auto", 8), ("fp32x", 8), *(pytest.param(p, 30, marks=pytest.mark.slow) for p in ("auto", "fp32x"))],
)
def test_whatever_was_fastest_in_a_plan_is_what_runs_on_a_gpu(
    precision: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    install_cublas(monkeypatch)
    machine, store = Machine.of(H200), Store(tmp_path / "tuned.sqlite")
    seen, directions = set(), set()
    for problem in shapes.drawn(H200, count, 11):
        desc = problem.desc
        if precision not in asked_of(H200, problem, precision):
            continue
        candidates = first_use_candidates(H200, problem, precision, store, machine, None)
        mine, others = check_candidates(H200, problem, precision, selected(H200, problem, precision), store, machine, None)
        assert {mine.candidate, *others} <= set(candidates), "a check compares with nothing that a plan did not measure"
        for fastest in candidates:
            samples = {c: (1e-5 if c == fastest else 2e-5,) for c in candidates}
            book = Book(entry_of(machine, problem, c, Sampled("right", seconds=s)) for c, s in samples.items())
            monkeypatch.setattr(TunedStore, "known", lambda store, device, book=book: tuned.Known(machine, None, book))
            assert tuned.HERE.at(H200, desc).settled(paths(H200, desc, precision))
            found = select(H200, desc, False, precision)
            assert found.candidate == fastest and ("very sizes" in found.why), found.why
            seen.add(fastest.kernel)
            directions.add(str(fastest.config).split()[0] if fastest.kernel == "skinny" else "")
        monkeypatch.undo()
        install_cublas(monkeypatch)
    known = {"fp32": {"cublas", "tiled", "skinny"}, "auto": {"hopper_fp32x", "cublas"}, "fp32x": {"hopper_fp32x"}}
    assert seen >= known[precision]
    if precision == "fp32":
        assert directions >= {"rows", "columns"}


class Uncompiled:
    """No compilers: nothing is run."""

    def __init__(self, device: Device) -> None:
        """Nothing to start."""

    def ahead(self, candidate: Candidate, desc: Any, fingerprint: str) -> None:
        """Nothing is compiled."""

    def rank(self, problem: Problem) -> None:
        """Nothing is ranked."""

    def close(self) -> None:
        """Nothing to end."""


class Drawn:
    """A GPU whose times are drawn, the same for the same problem and candidate but for noise; now and then a result is wrong."""

    name, device, machine = "drawn", H200, Machine.of(H200)

    def __init__(self, disturbed: float = 1.0) -> None:
        """``disturbed``: how many times as long as undisturbed candidates take at most at the first look at a problem."""
        self._noise, self.disturbed = random.Random(5), disturbed
        self._before: Problem | None = None

    def start(self) -> str:
        return ""

    def run(self, trial: Trial) -> Outcome:
        again, self._before = self._before == trial.problem, trial.problem
        slow = [1.0 if again else self._noise.uniform(1, self.disturbed) for _ in trial.candidates]
        found = tuple(self._sampled(trial, c) for c in trial.candidates)
        return Outcome(tuple(replace(s, seconds=tuple(x * n for x in s.seconds)) for s, n in zip(found, slow, strict=True)))

    def _sampled(self, trial: Trial, candidate: Candidate) -> Sampled:
        drawn = random.Random(str((trial.problem, candidate)))
        if drawn.random() < 0.05:
            return Sampled("wrong", "planted")
        seconds = 1e-5 * (1 + drawn.random())
        samples = tuple(seconds * self._noise.gauss(1, 0.01) for _ in range(9))
        return Sampled("right", seconds=samples, marked=(False,) * 9, turns=tuple(range(9)))

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("status", ["crashed", "wrong"])
def test_what_goes_wrong_at_the_second_look_is_not_selected(status: str, stored: Store) -> None:
    class Falters(Drawn):
        def run(self, trial: Trial) -> Outcome:
            again = self._before == trial.problem
            found = super().run(trial)
            if not again or trial.candidates[0] != candidates[0]:
                return found
            return Outcome((Sampled(status, "planted"), *found.sampled[1:]))

        def _sampled(self, trial: Trial, candidate: Candidate) -> Sampled:
            seconds = 1e-5 if candidate == candidates[0] else 1.1e-5
            return Sampled("right", seconds=(seconds,) * 9, marked=(False,) * 9, turns=tuple(range(9)))

    problem = Gemm(512, 512, 512)
    candidates = first_use_candidates(H200, problem, "fp32", stored, Machine.of(H200), None)[:3]
    assert len(candidates) == 3 and measure(Falters(), problem, candidates, stored) == ""
    assert {decoded(e.candidate): e.status for e in stored.entries()} == {
        candidates[0]: status,
        **dict.fromkeys(candidates[1:], "right"),
    }


def test_a_family_that_went_wrong_is_not_selected_by_estimate(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it was right on these very sizes; where another of its configurations was, or the sizes are others, it may be."""
    install_cublas(monkeypatch)
    problem, other = Gemm(256, 256, 65536, trans="TN"), Gemm(256, 256, 65600, trans="TN")
    first = select(H200, problem.desc, False, "auto").candidate
    failed = entry_of(Machine.of(H200), problem, first, Sampled("wrong", "planted"))
    stored.add(failed)
    afresh()
    found = select(H200, problem.desc, False, "auto")
    assert first.kernel == "hopper_inflight_split_k" and found.candidate.kernel != first.kernel and found.precision == "fp32x"
    assert select(H200, other.desc, False, "auto").candidate.kernel == first.kernel
    right = first._replace(config=replace(first.config, k_parts=16))  # type: ignore[call-arg, type-var]
    stored.add(
        entry_of(Machine.of(H200), problem, right, Sampled("right", seconds=(5e-5,) * 5, marked=(False,) * 5, turns=(0,) * 5))
    )
    afresh()
    assert select(H200, problem.desc, False, "auto").candidate.kernel == first.kernel


@pytest.mark.parametrize("precision", ["fp32", pytest.param("auto", marks=pytest.mark.slow)])
def test_whatever_the_times_are_a_check_that_plans_first_keeps_the_promise(
    precision: str, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_cublas(monkeypatch)
    monkeypatch.setattr(checking, "Compiler", Uncompiled)
    problems = shapes.drawn(H200, 25, 4)
    estimated = list(check([Drawn()], problems, stored, precision=precision))
    measured = list(check([Drawn(1.2)], problems, stored, precision=precision, measuring=True))
    side = [(c.problem, c.selected) for c in check([Drawn(), Drawn()], problems[:5], stored, precision=precision)]
    assert side == [(c.problem, c.selected) for c in estimated[: len(side)]] and len(side) >= 5
    assert len(estimated) == len(measured) >= 25
    assert sum(c.broken for c in estimated) > 5 and not any(c.broken for c in measured)
    assert all("very sizes" in c.why for c in measured if not c.trouble)
    assert not list(stored.entries()), "each shape is planned as if it were the first"


@pytest.mark.slow
def test_a_check_that_plans_first_leaves_the_user_s_store_alone(
    device: Device, stored: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where samples that scatter count: on a busy machine the model would select in their place."""
    words = ("--check", "--planning", "measure", "--shapes", 6, "--device", device.id, "--json", tmp_path / "check.json")
    code, text = Typed(capsys, monkeypatch)("tune", *words)
    record = json.loads((tmp_path / "check.json").read_text())
    shapes = [shape for shape in record["shapes"] if not shape["trouble"]]  # a machine that is too busy may leave one without
    kept = sum(not shape["broken"] for shape in shapes)
    assert len(record["shapes"]) == 6 and code == int(kept < 6) and f"{kept} of {len(shapes)} shapes within 5 %" in text, text
    assert record["planning"] == "measure" and not stored.path.exists()
    for shape in shapes:
        assert any(words in shape["why"] for words in (EXACT, "when both were measured")), shape["why"]
        assert shape["measured"] and {status for _, status, *_ in shape["measured"]} <= {"right", "timeout"}
    assert "planned by measuring first" in tune_table.block(["check", "check.json"], tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--planning", "measure"), "--planning is of --check"), (("--check", "--planning", "patient"), "planning is one of"),
        (("--check", "--planning", "measure"), "nothing to plan with"),
    ],
)  # fmt: skip
def test_a_check_s_planning_is_refused_before_anything_runs(
    words: tuple[str, ...], says: str, device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(words) == 3 and words[-1] == "measure":
        monkeypatch.setenv(stores.VARIABLE, "off")
    code, text = Typed(capsys, monkeypatch)("tune", *words, "--device", device.id)
    assert code == 2 and says in text
