"""Timing with the queue held: PoCL's queue, behind a user event, is a real one that waits; a GPU's holds itself."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Typed
from conftest import require
from tables import library
from toprung.backends import nvrtc, open_device
from toprung.backends.base import HOLD_SECONDS, Launch, Session, Source
from toprung.backends.cuda import HOLD
from toprung.backends.opencl import OpenCLSession
from toprung.device import Device
from toprung.dispatch.ranking import select_own
from toprung.lab import competitor
from toprung.lab.competitor import AT_ONCE, BoundCompetitor, HostClock
from toprung.lab.harness.bench import competitors
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import SamplingPlan, Timing
from toprung.lab.harness.results import read, record, write
from toprung.lab.sass.machine_code import disassemble, inspect_source
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import F32
from toprung.report.bench_table import to_csv
from toprung.tune.measure import TIE, Measurer, lasting
from toprung.tune.trial import Trial

THREE = {"warm": 3, "held": 3}


class Held(OpenCLSession):
    """A queue that can be held; ``let_go`` counts."""

    holds = let_go = 0

    def hold(self) -> Launch:  # type: ignore[override]
        cl: Any = self._cl
        gate = cl.UserEvent(self._context)
        cl.enqueue_barrier(self.queue, wait_for=[gate])
        self.holds += 1

        def release() -> None:
            self.let_go += 1
            gate.set_status(cl.command_execution_status.COMPLETE)

        return release


@pytest.fixture
def held(device: Device) -> Iterator[Held]:
    session = Held(device)
    yield session
    session.close()


class Steps(BoundCompetitor):
    """Writes down what happens, on the host's clock or on a session's; a call may take time or fail."""

    def __init__(self, clock: Any, call: Callable[[], object] = lambda: None) -> None:
        self.clock, self.calls, self._call = clock, 0, call

    def reset(self) -> None: ...

    def run(self) -> None:
        self.calls += 1
        self._call()

    def fetch(self) -> F32:
        raise AssertionError


def test_a_held_queue_waits(held: Held) -> None:
    before = held.mark()
    release = held.hold()
    behind = held.mark()
    time.sleep(0.02)
    release()
    assert held.seconds(before, behind) > 0.015


def test_the_hosts_time_is_apart(held: Held) -> None:
    """Time that the host takes for calls is none of the device's."""
    lazy = Steps(held, lambda: time.sleep(0.02))
    device, host = lazy.time_held(10)
    assert host >= 0.02 and device < 0.018 and lazy.time(10) >= 0.018


def test_calls_come_in_parts_that_a_queue_has_room_for(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competitor, "HOLD_SECONDS", math.inf)  # a busy machine may take longer for the calls of a part
    most: list[int] = []
    steps = Steps(held, lambda: most.append(steps.calls - held.let_go * AT_ONCE))
    reads: list[int] = []
    steps.time_held(2 * AT_ONCE + 7, lambda: reads.append(held.let_go))
    assert steps.calls == 2 * AT_ONCE + 7 and held.holds == held.let_go == 3 and max(most) == AT_ONCE
    assert reads == [3], "the clock is read once, behind the last call, while the device runs"


def test_what_takes_the_host_longer_than_a_queue_is_held_comes_in_smaller_parts(held: Held) -> None:
    """The queue has gone on by itself by then, and the host would be in the device's time."""
    reads: list[int] = []
    slow = Steps(held, lambda: time.sleep(1.2 * HOLD_SECONDS / 5))
    device, host = slow.time_held(5, lambda: reads.append(slow.calls))
    assert slow.calls == 10 and held.holds == held.let_go == 6, "five at once, and again one by one"
    assert reads == [10] and host >= HOLD_SECONDS / 5 > device


def test_a_call_that_fails_lets_go(held: Held) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Steps(held, fail).time_held(3)
    held.synchronize()  # would wait for ever
    assert held.holds == held.let_go == 1


def test_where_queues_cannot_be_held_it_is_a_loop(session: Session) -> None:
    reads: list[int] = []
    for clock in (session, HostClock()):
        steps = Steps(clock)
        seconds, host = steps.time_held(5, lambda: reads.append(1))
        assert steps.calls == 5 and seconds > 0 and host == 0
    assert len(reads) == 2


def test_samples_keep_both(held: Held) -> None:
    timing = Timing(Steps(held, lambda: time.sleep(0.005)), plan=SamplingPlan(sample_seconds=0.015, held=True))
    timing.warm_up()
    timing.sample(lambda: 1000.0)
    timing.sample()
    assert len(timing.seconds) == len(timing.host_seconds) == 2 and timing.clocks == [1000.0]
    assert min(timing.host_seconds) >= 0.005 > min(timing.seconds)  # whatever else the machine did meanwhile, once


def compared(problem: Gemm, held: Held) -> list[Row]:
    """Return NumPy's rows and ours, warm and held."""
    plan = ComparisonPlan(("warm", "held"), THREE)
    rows = plan.rows(competitors(["numpy", "toprung"]))
    for _ in compare(PlacedProblem(problem, held), rows, plan):
        pass
    return rows


def test_bench_shows_both(held: Held) -> None:
    rows = compared(Gemm(64, 64, 64), held)
    assert [(r.who.name, r.mode, r.state) for r in rows] == [
        (name, mode, "done") for mode in ("warm", "held") for name in ("numpy", "toprung")
    ]
    measured = [r.measurement for r in rows if r.measurement]
    assert [m.host for m in measured[:3]] == [None] * 3, "in loops, and by NumPy on the host, nothing is known apart"
    ours = measured[3]
    assert len(ours.host_seconds) == 3 and 0 < (ours.host or 0) == min(ours.host_seconds)
    assert type(ours).read(ours.describe()) == ours
    assert to_csv(measured).splitlines()[4].split(",").count(str(ours.host)) == 1


def test_bench_says_where_a_queue_cannot_be_held(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, text = Typed(capsys, monkeypatch)(
        "bench", "--sizes", "64", "--peers", "numpy,toprung", "--held", "--json", tmp_path / "a.json"
    )
    assert code == 0 and "cannot be held" in text
    found = read(tmp_path / "a.json")
    assert [(m.mode, m.host) for m in found["measurements"]] == [("warm", None)] * 2 + [("held", None)] * 2
    assert "cannot be held" in found["notes"][0]


def test_the_library_beside_another_has_a_column_for_it(held: Held, tmp_path: Path) -> None:
    entries = []
    for problem in (Gemm(64, 64, 64), Gemm(24, 40, 48)):
        rows = compared(problem, held)
        entries += [r.measurement.describe() for r in rows if r.measurement]
    write(tmp_path / "a.json", record("a test", environment(held), entries, [], False, kind="bench"))
    lines = library.block(["a.json"], tmp_path).splitlines()
    assert "| queue held | kernel |" in lines[0] and lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    found = [float(line.split("|")[5]) for line in lines[2:4]]
    assert lines[5].startswith("Geometric mean of 2 ratios")
    assert lines[6].startswith("With the queue held") and f"the least {min(found):.3f}" in lines[6]


def test_a_call_is_no_shorter_than_the_host() -> None:
    assert lasting((3.0, 5.0), 4.0) == (4.0 + 3 * TIE, 5.0)
    assert lasting((3.0,), 0.0) == (3.0,), "of the host nothing is known"
    quick, slow = lasting((2.0,), 4.0), lasting((3.0,), 4.0)
    assert quick < slow < (4.01,), "what the host limits alike goes by the device"


def test_trials_know_the_hosts_least(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is disturbed for a whole trial makes nothing of ours seem slower, and shows in no other problem."""
    measurer, problem = Measurer(held), Gemm(90, 70, 110)
    own = select_own(held.device, problem.desc).candidate
    trial = Trial(problem, (own,), turns=3, least=3)
    (quiet,) = measurer.run(trial).sampled
    assert 0 < quiet.host_seconds and len(quiet.device_seconds) == 3
    assert quiet.seconds == lasting(quiet.device_seconds, quiet.host_seconds)

    prepared = measurer._ready[own].bound
    assert prepared is not None
    run = prepared.run
    monkeypatch.setattr(prepared, "run", lambda: (time.sleep(0.005), run()))
    (disturbed,) = measurer.run(trial).sampled
    assert disturbed.host_seconds <= quiet.host_seconds and min(disturbed.seconds) < 0.005

    other = Gemm(90, 70, 112)
    (third,) = measurer.run(Trial(other, (own,), turns=2, least=2)).sampled
    assert third.status == "right" and 0 < third.host_seconds <= quiet.host_seconds


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_the_kernel_that_waits_asks_the_hosts_memory_in_its_loop(arch: str) -> None:
    """One load that no cache answers, between where the loop begins and where it goes back."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    source = Source(HOLD.stem, HOLD.read_text(), HOLD.stem, {}, "cuda")
    assert not inspect_source(source, arch).local_bytes
    listing = disassemble(nvrtc.compile_cubin(source, arch).code)
    back = re.search(r"BRA.*`\((\.L_x_\d+)\)", listing)
    assert back
    loop = listing[listing.index(f"{back[1]}:") : back.start()]
    assert "GLOBALTIMER" in loop and loop.count("LDG") == 1 and re.search(r"LDG\.E\.64(\.STRONG)?\.SYS", loop)


def test_a_gpus_queue_holds_itself_and_opens_by_itself() -> None:
    from toprung.backends import devices

    gpus = [d for d in devices() if d.backend == "cuda"]
    if not gpus:
        pytest.skip("no GPU for CUDA")
    session = open_device(gpus[0])
    for wait in (0.004, 0.0):
        before, release = session.mark(), session.hold()
        behind = session.mark()
        time.sleep(wait)
        if wait and release:
            release()
        assert session.seconds(before, behind) > 0.003, "nobody opens it the second time, and it ends all the same"
    session.close()
