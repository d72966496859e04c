"""Whole runs of the tuner: nothing that goes wrong on the way ends the search or loses what was learnt.

Faults are real: a copy of the package whose product crashes, hangs, does not build or computes something wrong with some tiles
(``poisoned.py``), killed processes, Ctrl-C, a cluster that loses a worker.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import poisoned
from conftest import require
from others import children, running
from tables import tuning as tune_table
from toprung.device import Device
from toprung.dispatch.ranking import select_own
from toprung.dispatch.selection import Candidate, decoded
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import Problem
from toprung.store import Store
from toprung.store.entry import NOISY, scatter
from toprung.tune import rows
from toprung.tune.executors import dask
from toprung.tune.executors.base import LaneLost
from toprung.tune.executors.dask import DaskLane
from toprung.tune.executors.local import Local
from toprung.tune.session import Budget, Tuner
from toprung.tune.space import CallSpace
from toprung.tune.trial import Trial
from toprung.tune.worker import Worker


def with_every_fault(device: Device, problem: Problem) -> list[Candidate]:
    """Return the first candidates of the model's order, as far as they meet every fault and one that is right."""
    tried: list[Candidate] = []
    for candidate in CallSpace(device, problem.desc).ranked():
        tried.append(candidate)
        if {poisoned.fate(c) for c in tried} == {*poisoned.FAULTS, "right"}:
            assert len(tried) < 20, "the model's order has changed: plant the faults elsewhere"
            return tried
    raise AssertionError("not every fault is met")


def tune(copy: Path | None, folder: Path, *words: object, **more: Any) -> subprocess.Popen[str]:
    """``toprung tune`` in a process of its own, with the poisoned package or this one."""
    where = copy or Path(__file__).parents[1] / "src"
    return subprocess.Popen(
        [sys.executable, "-c", "from toprung.cli import main; main()", "tune", *map(str, words)],
        env=poisoned.environment(where, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
    )  # fmt: skip


def stored(folder: Path) -> list[Any]:
    return list(Store(folder / "data" / "tuned.sqlite").entries())


def test_a_crash_a_hang_a_wrong_result_and_a_failed_build_do_not_end_the_search(device: Device, tmp_path: Path) -> None:
    problem = Gemm(64, 64, 64)
    first = with_every_fault(device, problem)
    count = len(first)
    run = tune(
        poisoned.package(tmp_path), tmp_path, "gemm", "--sizes", 64, "--strategy", "ranked", "--budget", count + 1,
        "--limit", 2, "--device", device.id, "--json", tmp_path / "run.json",
    )  # fmt: skip
    text, _ = run.communicate()
    assert run.returncode == 0, text
    entries = stored(tmp_path)
    found = {decoded(e.candidate): e for e in entries if e.kernel == "tiled"}
    own = select_own(device, problem.desc).candidate
    assert found[own].status == "right" and len(found) == count + 1
    for candidate in first:
        assert found[candidate].status == poisoned.fate(candidate), (candidate, found[candidate].message)
    said = {e.status: e.message for e in entries}
    assert "SIGSEGV" in said["crashed"] and "2 s in phase run" in said["timeout"] and "planted" in said["build"]
    assert "grade ratio" in said["wrong"]
    assert any(e.kernel == "numpy" and e.status == "right" for e in entries), "the host's library is timed beside it"
    record = json.loads((tmp_path / "run.json").read_text())
    (shape,) = record["shapes"]
    assert record["kind"] == "tune" and record["configurations"] == count + 1 and sum(shape["counts"].values()) == count + 1
    assert f"({sum(poisoned.fate(c) != 'right' for c in first)} not right)" in text
    assert f"{count + 1} configurations in" in tune_table.block(["run", "run.json"], tmp_path)
    assert shape["gain"]["value"] >= 1 and shape["finals"]["best"]["cold_seconds"] and shape["trace"]


@pytest.mark.slow
def test_the_check_stores_what_ran_and_why(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    run = tune(None, tmp_path, "--check", "--shapes", 4, "--device", device.id, "--json", file)
    text, _ = run.communicate()
    record = json.loads(file.read_text())
    broken = sum(shape["broken"] or bool(shape["trouble"]) for shape in record["shapes"] if shape["precision"] == "fp32")
    assert run.returncode == int(any(s["broken"] or s["trouble"] for s in record["shapes"]))
    assert f"fp32: {4 - broken} of 4 shapes within 5 %" in text and all("auto" == s["precision"] for s in record["shapes"][4:])
    assert ("calls can be planned by measuring" in text) == any(shape["broken"] for shape in record["shapes"])
    for shape, timed in zip(record["shapes"], rows.read(record), strict=True):
        assert shape["why"] and shape["ratio"]["value"] >= 1 and shape["measured"][0][0] == shape["routed"]
        assert all(row.status == "right" and row.seconds for row in timed)
        assert shape["broken"] == (shape["ratio"]["value"] > 1.05)
    assert "promised is 1.05" in tune_table.block(["check", "check.json"], tmp_path)


@pytest.mark.slow
def test_an_interrupted_check_keeps_its_record(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    run = tune(None, tmp_path, "--check", "--shapes", 200, "--device", device.id, "--json", file)
    assert run.stdout is not None
    line = next(line for line in run.stdout if "shapes" in line and not line.startswith("0 of"))  # one at least
    run.send_signal(signal.SIGINT)
    text = line + run.communicate()[0]
    record = json.loads(file.read_text())
    assert run.returncode == 130 and record["interrupted"] and 0 < len(record["shapes"]) < record["wanted"], text
    assert record["wanted"] >= 200 and f"{len(record['shapes'])} of {record['wanted']} in" in text


@pytest.mark.slow
def test_a_check_in_parts_is_the_check_of_all_of_them(device: Device, tmp_path: Path) -> None:
    file, words = tmp_path / "check.json", ("--check", "--sizes", "33x34x35,8x40x64", "--device", device.id, "--resume")
    for parts in range(1, 3):
        run = tune(None, tmp_path, "gemm", *words, "--budget", "0.001s", "--json", file)  # it ends after one problem
        text, _ = run.communicate()
        record = json.loads(file.read_text())
        assert len(record["shapes"]) == parts and record["wanted"] == 2 and f"of {parts} shapes within" in text, text
    assert [shape["problem"]["M"] for shape in record["shapes"]] == [33, 8] and not record["notes"]
    for shape, timed in zip(record["shapes"], rows.read(record), strict=True):
        assert shape["measured"][0][0] == shape["routed"] and len(timed) == len(shape["measured"]) + len(shape["again"]) > 1
    run = tune(None, tmp_path, "--check", "--device", device.id, "--resume", "--json", file)
    text, _ = run.communicate()
    assert run.returncode == 2 and "is no check of these shapes" in text


@pytest.mark.slow
def test_a_check_ends_when_its_time_is_over(device: Device, tmp_path: Path) -> None:
    run = tune(
        None, tmp_path, "--check", "--shapes", 200, "--budget", "0.001s", "--device", device.id, "--json", tmp_path / "check.json"
    )
    text, _ = run.communicate()
    record = json.loads((tmp_path / "check.json").read_text())
    broken = any(shape["broken"] or shape["trouble"] for shape in record["shapes"])
    assert run.returncode == int(broken) and not record["interrupted"] and 0 < len(record["shapes"]) < 200, text
    assert "the time was over" in text and "the time was over" in record["notes"][0]


def test_each_shape_has_its_share_of_the_configurations_whichever_lane_is_the_quicker(device: Device, tmp_path: Path) -> None:
    problems = [Gemm(n, n, n) for n in (32, 48, 64, 80)]
    tuner = Tuner(problems, Local([device, device]), Store(tmp_path / "tuned.sqlite"), Budget(trials=9))
    taken = [tuner._next(tuner._lanes[0]) for _ in problems]
    assert [share.trials for _, share in filter(None, taken)] == [3, 2, 2, 2]


@pytest.mark.slow
def test_two_processes_share_the_shapes(device: Device, tmp_path: Path) -> None:
    store = Store(tmp_path / "tuned.sqlite")
    executor = Local([device, device])
    problems = [Gemm(n, n, n) for n in (32, 48, 64, 80)]
    tuner = Tuner(problems, executor, store, Budget(trials=8))
    alive = 0
    for _ in tuner.run():
        alive = max(alive, len(children(os.getpid())))
    assert alive >= 2 and all(s.candidate and s.state == "done" for s in tuner.shapes) and not tuner.notes
    keys = [(str(e.shape), e.key) for e in store.entries() if e.kernel == "tiled"]
    assert len(keys) == len(set(keys)) == tuner.tried


def test_processes_of_one_device_take_turns_on_it(device: Device) -> None:
    problem = Gemm(64, 64, 64)
    trial = Trial(problem, (select_own(device, problem.desc).candidate,), 3, 1)
    with tempfile.TemporaryFile() as shared, ThreadPoolExecutor(1) as pool:
        worker = Worker(device.id, shared=shared)
        worker.start()
        try:
            fcntl.lockf(shared, fcntl.LOCK_EX)  # as another worker does while it measures
            outcome = pool.submit(worker.run, trial)
            with pytest.raises(TimeoutError):
                outcome.result(0.5)
            fcntl.lockf(shared, fcntl.LOCK_UN)
            assert [s.status for s in outcome.result(120).sampled] == ["right"]
            fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was given back
        finally:
            worker.close()


def first_words(run: subprocess.Popen[str], folder: Path, least: int) -> None:
    """Wait until so many configurations are stored."""
    while (code := run.poll()) is None and len(stored(folder)) < least:
        time.sleep(0.1)
    assert code is None or len(stored(folder)) >= least, run.communicate()[0]


def wait_for_the_end(pids: list[int]) -> None:
    while running().keys() & set(pids):
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_was_learnt_survives_the_end_of_the_process_and_a_second_run_goes_on(
    how: signal.Signals, device: Device, tmp_path: Path
) -> None:
    require(Path("/proc").is_dir(), "needs /proc")
    words = ("gemm", "--sizes", "64", "--strategy", "ranked", "--device", device.id)
    run = tune(None, tmp_path, *words, "--budget", "10m")
    first_words(run, tmp_path, 4)
    workers = children(run.pid)
    assert workers
    run.send_signal(how)
    text, _ = run.communicate()
    assert run.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), text
    wait_for_the_end(workers)  # nobody is left measuring
    before = {e.id: e for e in stored(tmp_path)}
    assert len(before) >= 4 and all(e.status == "right" for e in before.values())
    again = tune(None, tmp_path, *words, "--budget", 3, "--json", tmp_path / "run.json")
    text, _ = again.communicate()
    assert again.returncode == 0, text
    after = {e.id: e for e in stored(tmp_path)}
    assert len([i for i in after if i not in before and after[i].kernel == "tiled"]) == 3, "three new ones, none of the old"
    kept = {i: e for i, e in before.items() if scatter(e.seconds) <= NOISY}  # calm samples take the place of others
    assert all(after[i].seconds[: len(e.seconds)] == e.seconds for i, e in kept.items()), "no sample is lost"
    assert json.loads((tmp_path / "run.json").read_text())["configurations"] == 3


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_that_was_learnt(device: Device, tmp_path: Path) -> None:
    require(Path("/proc").is_dir(), "needs /proc")
    run = tune(None, tmp_path, "gemm", "--sizes", "64", "--strategy", "ranked", "--device", device.id, "--budget", 8)
    first_words(run, tmp_path, 3)
    for pid in children(run.pid):
        os.kill(pid, signal.SIGKILL)
    text, _ = run.communicate()
    assert run.returncode == 0, text
    entries = [e for e in stored(tmp_path) if e.kernel == "tiled"]
    assert len(entries) == 8 and all(e.status == "right" for e in entries), "nothing is blamed for what was done to its process"


class Cluster(NamedTuple):
    """Dask's address and its processes."""

    address: str
    scheduler: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Dask scheduler and two workers, processes all."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install toprung[tune]")
    where = {**poisoned.environment(Path(__file__).parents[1] / "src", tmp_path)}
    file = tmp_path / "scheduler.json"

    def start(*words: object) -> subprocess.Popen[str]:
        with (tmp_path / "cluster.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *map(str, words)], env=where, stdout=log, stderr=log, text=True, cwd=tmp_path
            )

    quiet = ("--scheduler-file", file, "--no-dashboard")
    scheduler = start("distributed.cli.dask_scheduler", *quiet, "--port", 0, "--host", "127.0.0.1")
    alone = ("--nthreads", 1, "--no-nanny")
    workers = [start("distributed.cli.dask_worker", *quiet, *alone, "--local-directory", tmp_path / n) for n in ("one", "two")]
    while not file.exists():
        assert scheduler.poll() is None, (tmp_path / "cluster.log").read_text()
        time.sleep(0.1)
    yield Cluster(json.loads(file.read_text())["address"], scheduler, workers)
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


def client_of(cluster: Cluster) -> Any:
    """Its client, when both workers are there."""
    import distributed

    make: Any = distributed.Client
    client = make(cluster.address, set_as_default=False)
    client.wait_for_workers(2)
    return client


@pytest.mark.slow
def test_an_outcome_that_is_lost_with_its_worker_is_not_waited_for(
    cluster: Cluster, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(cluster)
    send = client.submit
    address, pid = next(iter(client.run(os.getpid).items()))

    def submit(*words: Any, **named: Any) -> Any:
        future = send(*words, **named)
        while not future.done():  # measured, and the outcome still there
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return future

    problem = Gemm(32, 32, 32)
    candidate = select_own(device, problem.desc).candidate
    monkeypatch.setattr(client, "submit", submit)
    with pytest.raises(LaneLost, match="lost its worker"):
        DaskLane(client, address, device).run(Trial(problem, (candidate,)))
    client.close()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_finishes_with_the_other(cluster: Cluster, device: Device, tmp_path: Path) -> None:
    client_of(cluster).close()
    run = tune(
        None, tmp_path, "gemm", "--sizes", "48,64,80", "--scheduler", cluster.address, "--device", device.id, "--budget", 12,
        "--json", tmp_path / "run.json",
    )  # fmt: skip
    while not (measuring := children(cluster.workers[0].pid)):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.01)
    cluster.workers[0].send_signal(signal.SIGSTOP)  # or it might finish its share before it is killed
    first_words(run, tmp_path, 3)
    cluster.workers[0].kill()
    text, _ = run.communicate()
    assert run.returncode == 0, text
    assert "lost its worker" in text
    wait_for_the_end(measuring)  # the lost worker's process does not outlive it
    record = json.loads((tmp_path / "run.json").read_text())
    assert all(shape["best"] for shape in record["shapes"]), "every shape was tuned, that of the lost worker too"
    assert not [e for e in stored(tmp_path) if e.status != "right"], "a lost worker is nobody's crash"


@pytest.mark.slow
def test_a_cluster_that_loses_its_scheduler_ends_the_run_and_keeps_what_was_learnt(
    cluster: Cluster, device: Device, tmp_path: Path
) -> None:
    client_of(cluster).close()
    file = tmp_path / "run.json"
    run = tune(
        None, tmp_path, "gemm", "--sizes", "48,64", "--scheduler", cluster.address, "--device", device.id, "--budget", "10m",
        "--json", file,
    )  # fmt: skip
    first_words(run, tmp_path, 3)
    cluster.scheduler.kill()
    text, _ = run.communicate()
    assert run.returncode == 0 and "scheduler" in text and "Traceback" not in text, text
    assert json.loads(file.read_text())["configurations"] >= 3
    assert not [e for e in stored(tmp_path) if e.status != "right"], "a lost scheduler is nobody's crash"


@pytest.mark.parametrize(
    ("error", "kept"), [(None, True), (ValueError("a bug"), True), (ConnectionResetError("by the scheduler"), False)]
)
def test_only_a_lost_connection_is_left_out_of_the_log(error: Exception | None, kept: bool) -> None:
    found = (type(error), error, None) if error else None
    record = logging.LogRecord("tornado.application", logging.ERROR, "", 0, "callback", (), found)
    assert dask._is_no_lost_connection(record) is kept
