"""enable, disable, use and exclude: what is taken when, for the whole process; and what they refuse."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import toprung
import toprung.torch
from toprung import errors
from toprung.backends.base import Source
from toprung.blas import background
from toprung.kernels import build
from toprung.torch import products
from torch_device import DEVICE, ELSEWHERE, EVERY, as_fast, decided_here, said


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    toprung.torch.disable()
    products.forget()
    assert not toprung.torch.is_enabled()


def ran(call: Any = lambda: operands() and torch.mm(*operands())) -> int:
    """Count the products that a call runs on toprung's kernels."""
    before = toprung.torch.report().taken
    call()
    return toprung.torch.report().taken - before


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(9, 33, device=DEVICE), torch.randn(33, 17, device=DEVICE)


def test_enable_and_disable() -> None:
    assert not toprung.torch.is_enabled() and ran() == 0
    toprung.torch.enable(**EVERY)
    assert toprung.torch.is_enabled() and ran() == 1
    toprung.torch.enable(**EVERY)  # again, and its counts begin anew
    assert toprung.torch.report().taken == 0 and ran() == 1
    toprung.torch.disable()
    toprung.torch.disable()
    assert not toprung.torch.is_enabled() and ran() == 0


def test_pytorchs_own_kernels_are_back_after_disable() -> None:
    a, b = operands()
    theirs = torch.mm(a, b)
    toprung.torch.enable(**EVERY)
    toprung.torch.disable()
    kernel = str(torch.library.get_kernel("aten::mm", DEVICE.upper()))
    assert "Register" in kernel and torch.equal(torch.mm(a, b), theirs)


def test_blocks_nest() -> None:
    with toprung.torch.use(**EVERY):
        assert ran() == 1
        with toprung.torch.exclude():
            assert not toprung.torch.is_enabled() and ran() == 0
            with toprung.torch.use(**EVERY):
                assert ran() == 1
            assert ran() == 0
        assert ran() == 1
    assert ran() == 0
    toprung.torch.enable(**EVERY)
    with toprung.torch.exclude():
        assert ran() == 0
    with pytest.raises(RuntimeError, match="stop"), toprung.torch.exclude():
        raise RuntimeError("stop")
    assert ran() == 1


def test_blocks_decorate_functions_that_call_themselves() -> None:
    @toprung.torch.use(**EVERY)
    def taken(depth: int) -> int:
        return ran() + (taken(depth - 1) if depth else 0)

    @toprung.torch.exclude()
    def excluded() -> int:
        return ran()

    assert taken(2) == 3 and ran() == 0
    toprung.torch.enable(**EVERY)
    assert excluded() == 0 and ran() == 1


def test_a_block_holds_for_other_threads_and_ends_in_any_order() -> None:
    counts: list[int] = []
    first, second = toprung.torch.use(**EVERY), toprung.torch.exclude()
    with first:
        thread = threading.Thread(target=lambda: counts.append(ran()))
        thread.start()
        thread.join()
    assert counts == [1]
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the outer one first, as two threads may
    assert not toprung.torch.is_enabled()
    second.__exit__(None, None, None)
    assert not toprung.torch.is_enabled() and ran() == 0


def test_backward_in_the_block_is_taken_and_after_it_is_not() -> None:
    a, b = (x.requires_grad_() for x in operands())
    with toprung.torch.use(**EVERY):
        made = torch.mm(a, b).sum()
        assert ran(lambda: made.backward(retain_graph=True)) == 2
    assert ran(made.backward) == 0


def test_only_what_ops_and_device_types_name_is_taken() -> None:
    a, b = operands()
    with toprung.torch.use(**{**EVERY, "ops": ("bmm",)}):
        assert ran() == 0 and ran(lambda: torch.bmm(a[None], b[None])) == 1
    with toprung.torch.use(**{**EVERY, "ops": "mm"}):
        assert ran() == 1 and ran(lambda: torch.addmm(a.new_zeros(17), a, b)) == 0
    other = "cpu" if DEVICE == "cuda" else "cuda"
    with toprung.torch.use(**{**EVERY, "device_types": (other,)}):
        assert ran() == 0
    with toprung.torch.use(**{**EVERY, "min_flops": 2 * 9 * 33 * 17 + 1}):
        assert ran() == 0 and toprung.torch.report().small
    with toprung.torch.use(**{**EVERY, "min_flops": 2 * 9 * 33 * 17}):
        assert ran() == 1


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "fp8"}, {"precision": "tf32"}, {"precision": "fp32x-strassen"}, {"ops": ()}, {"ops": ("mm", "conv2d")},
        {"device_types": ("tpu",)}, {"own": "yes"},
        {"min_flops": -1}, {"min_flops": float("nan")}, {"min_flops": "many"}, {"reproducible": 3},
        {"ops": None}, {"ops": 3}, {"ops": [["mm"]]}, {"ops": (torch.mm,)}, {"device_types": None}, {"device_types": "cuda:0"},
        {"device_types": (torch.device("cpu"),)}, {"precision": None}, {"precision": ["fp32"]}, {"modules": "net"},
    ],
)  # fmt: skip
def test_options_that_there_are_not(given: dict[str, Any]) -> None:
    for call in (toprung.torch.enable, toprung.torch.use):
        with pytest.raises(errors.BadArgument) as caught:
            call(**given)
        assert next(iter(given)) in str(caught.value) or "precision" in str(caught.value)
        assert given != {"precision": "fp8"} or str(caught.value) == "precision is one of auto, fp32, fp32x, not 'fp8'"
    assert not toprung.torch.is_enabled()


def test_a_block_that_decorates_without_being_called_says_so() -> None:
    with pytest.raises(errors.BadArgument, match=r"@toprung\.torch\.use\(\)"):
        toprung.torch.use(pytest.fail)


def test_pytorch_warns_of_nothing() -> None:
    code = f"import toprung.torch; toprung.torch.enable(device_types=({DEVICE!r},))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, said(done.stderr)) == (0, "") or "CUDA_HOME" in done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        toprung.torch.enable(**EVERY)


def test_what_preparing_needs_is_imported_when_products_are_enabled() -> None:
    """Imports later would hold the GIL while the program computes."""
    code = """
import contextlib, sys
import toprung.torch
from toprung import errors
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends import native_plan
from toprung.blas import background, idle
idle.tell = lambda *more: ""  # as where PyTorch sees a GPU
toprung.torch.enable()
before = set(sys.modules)
with contextlib.suppress(errors.NoDevice):
    session_at(Home("cuda", 0))
native_plan.entry()
print([name for name in sys.modules if name not in before and name.startswith("toprung")], len(background.HERE._workers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ELSEWHERE, check=False)
    assert done.stdout == f"[] {background.WORKERS}\n", done.stderr


def test_what_the_program_asks_for_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = torch.backends.cuda.matmul if DEVICE == "cuda" else torch.backends.mkldnn.matmul
    with toprung.torch.use(**EVERY):
        before = setting.fp32_precision
        setting.fp32_precision = "tf32"
        try:
            assert ran() == 0
        finally:
            setting.fp32_precision = before
        assert ran() == 1
        torch.set_float32_matmul_precision("high")
        try:
            assert ran() == 0
        finally:
            torch.set_float32_matmul_precision("highest")
        assert ran() == 1
        a, b = operands()
        with torch.autocast(DEVICE, torch.bfloat16):
            assert torch.mm(a, b).dtype == torch.bfloat16 and ran() == 0
    for reproducible, count in ((None, 0), (False, 0), (True, 1)):
        with toprung.torch.use(**{**EVERY, "reproducible": reproducible}):
            ran()
            toprung.torch.wait()
            torch.use_deterministic_algorithms(True)
            try:
                assert ran() == count
            finally:
                torch.use_deterministic_algorithms(False)
    assert toprung.torch.report().refused


def test_the_report_says_what_ran() -> None:
    toprung.torch.enable(**EVERY)
    a, b = operands()
    for _ in range(3):
        torch.mm(a, b.T.contiguous().T)
    torch.mm(a.double(), b.double())
    torch.mm(a[:0], b)
    found = toprung.torch.report()
    (row,) = found.rows
    assert (row.op, row.problem, row.layout, row.taken, row.left, row.why) == ("mm", "9×17×33", "NT", 3, 0, "") and row.kernel
    assert found.eligible == found.taken == 3 and found.to_json()["rows"][0]["kernel"] == row.kernel
    assert row.kernel in str(found) and "convolutions" in str(found)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that kernels are not prepared before."""
    decided_here(monkeypatch)
    gate, decided = threading.Event(), products.decided

    def slow(*given: Any) -> Any:
        assert gate.wait(600)
        return decided(*given)

    monkeypatch.setattr(products, "decided", slow)
    yield gate
    gate.set()


def test_no_product_waits_for_its_kernel(gate: threading.Event) -> None:
    """PyTorch's own runs until the kernel is there."""
    a, b = operands()
    with toprung.torch.use(**{**EVERY, "reproducible": None}):
        assert ran(lambda: torch.mm(a, b)) == 0
        assert not toprung.torch.wait(0.01)
        assert "prepared" in toprung.torch.report().rows[0].why
        gate.set()
        assert toprung.torch.wait(60)
        assert ran(lambda: torch.mm(a, b)) == 1


def test_a_kernel_is_prepared_once_it_pays(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that ran often enough is prepared, one that ran less is not, and ``wait`` prepares both."""
    begun: list[str] = []
    monkeypatch.setattr(background.HERE, "begin", lambda job, order=0: (begun.append(job.what), setattr(job, "begun", True)))
    monkeypatch.setattr(background.Background, "cost", 2.0)
    monkeypatch.setattr(products, "PAYS", 1.5 * 9 * 17 * 33)
    a, b = operands()
    with toprung.torch.use(**{**EVERY, "own": False, "reproducible": None}):
        for expected in (0, 0, 1, 1):
            torch.mm(a, b)
            torch.mm(b.T, a.T[:, :2])
            assert len(begun) == expected
        assert "taken as long" in toprung.torch.report().rows[-1].why
        toprung.torch.wait(0)
        assert len(begun) == 2 and begun[0] != begun[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_kinds_wait_until_it_is_known_what_preparing_takes(
    workers: int, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a job has been counted, one kind per worker is prepared."""
    monkeypatch.setattr(background, "WORKERS", workers)
    here = background.Background()
    monkeypatch.setattr(background, "HERE", here)
    a, b = operands()
    with toprung.torch.use(**{**EVERY, "own": False, "reproducible": None}):
        for n in (7, 8, 8):
            torch.mm(a[:n], b)
        first, second = (entry.job for entry in products.now.entries.every())
        assert first.begun and second.begun == (workers > 1) and here.cost == math.inf
        gate.set()
        assert first.settle()
        with here._lock:  # nothing is open now
            assert workers > 1 or here.cost == 0.0  # the first job does not count
        torch.mm(a[:8], b)
        assert second.begun and second.settle()
        for _ in range(2):
            torch.mm(a[:6], b)
            assert toprung.torch.wait(60)
        assert 0 < here.cost < math.inf


def test_what_began_before_the_first_job_was_done_is_not_counted() -> None:
    """Either may have opened the device."""
    here, both = background.Background(), threading.Barrier(2)
    jobs = [background.Job(lambda: both.wait(60), "") for _ in range(2)]
    for job in jobs:
        here.begin(job)
    assert all(job.done.wait(60) for job in jobs) and here._counted == 0 and here._used == 0.0
    here.begin(job := background.Job(lambda: sum(range(1000)), ""))
    assert job.done.wait(60) and here.cost > 0
    here.end()


def test_all_workers_are_started_at_once_and_run_the_jobs() -> None:
    here = background.Background()
    here.start()
    started = {one.pid for one in here._workers}
    here.start()
    assert len(started) == here._idle.qsize() == background.WORKERS
    assert here.apart(os.getpid) in started and {one.pid for one in here._workers} == started
    here.end()


def test_nothing_waits_for_a_worker_to_start_one_and_one_that_ended_is_replaced() -> None:
    here = background.Background()
    ended = here.apart(os.getpid)
    assert ended
    os.kill(ended, signal.SIGKILL)
    here._workers[0].wait(60)
    replaced = here.apart(os.getpid)
    assert replaced not in (None, ended) and [one.pid for one in here._workers] == [replaced]
    busy = [here._idle.get_nowait() for _ in range(background.WORKERS)]
    here.start()
    for one in busy:
        here._idle.put(one)
    here.end()
    assert here.ask(os.getpid) == os.getpid() and all(one.stdin.closed and one.stdout.closed for one in here._workers)
    with pytest.raises(errors.NotReady):
        here.apart(os.getpid)


def test_a_pause_follows_each_job_by_the_time_for_which_it_held_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compilers and the first job, which opens the device, do not count; time without the GIL is a pause."""
    clock, wall, pauses = [0.0], [0.0], list[float]()
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path))  # nothing is compiled yet
    for module in (background, build):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(**{**vars(time), "thread_time": lambda: clock[0], "perf_counter": lambda: wall[0]})
        )

    class Hurry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return self.is_set()

    class Session:
        device = SimpleNamespace(backend="opencl")
        fingerprint = staticmethod(lambda: "none")
        load = staticmethod(lambda binary, source: None)

        def compile(self, source: Source) -> bytes:
            clock[0] += 256.0
            return b"binary"

    def work(seconds: float, name: str) -> None:
        clock[0] += seconds
        wall[0] += 16 * seconds
        build.source_kernel(Source(name, name, name, {}), Session())

    here = background.Background()
    here._hurry = Hurry()
    jobs = [background.Job(functools.partial(work, 2.0**-n, str(n)), "") for n in (1, 6, 8)]
    for job in jobs:
        here.begin(job)
        assert job.done.wait(60)
    here.end()
    assert not here._threads[0].is_alive()
    first, second = (used / background.SHARE - 16 * used for used in (2.0**-6, 2.0**-8))
    assert pauses == [0.0, 0.0, first, 0.0, second] and here.cost == (2.0**-6 + 2.0**-8) / 2  # 0: a turn that is free
    there = background.Background()
    there._hurry = Hurry()
    del pauses[:]
    for _ in range(3):
        there.take_turn()
    assert pauses == pytest.approx([0.0, background.SLOT, 2 * background.SLOT])  # parts of several threads, one after the other
    with there.hurried():
        there.take_turn()
    there.take_turn()
    assert pauses[3:] == pytest.approx([3 * background.SLOT])


def test_entries_in_use_survive_a_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "KEPT", 4)
    monkeypatch.setattr(products._by_settings, "_all", {})
    a, b = operands()
    as_fast(monkeypatch)
    with toprung.torch.use(**{**EVERY, "own": False}):
        torch.mm(a, b)
        (first,) = products.now.entries.values()
        for n in range(1, 9):
            torch.mm(a[:n], b)
            products.now.collect(forget=True)  # so that it enters Python with the bridge, too
            torch.mm(a, b)
        assert first in products.now.entries.every()
        assert len(products.now.entries.every()) <= 8 and toprung.torch.report().left == 17


def test_a_wait_without_a_time_ends_with_the_name_of_the_kernel(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    with toprung.torch.use(**EVERY):
        with monkeypatch.context() as patch:
            patch.setattr(background, "LONGEST", 0.05)
            for wait in (ran, toprung.torch.wait):
                with pytest.raises(errors.NotReady, match=f"the kernel of mm .* on {DEVICE}.* is not ready after 0.05 s"):
                    wait()
        gate.set()
        assert toprung.torch.wait() and ran() == 1


def test_a_warning_made_an_error_ends_no_thread(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    decided_here(monkeypatch)
    monkeypatch.setattr(background, "HERE", background.Background())
    with toprung.torch.use(**EVERY):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            patch.setattr(products, "decided", lambda *_: 1 // 0)
            assert ran() == 0 and "RuntimeWarning: toprung leaves mm 9×17×33 to PyTorch" in capfd.readouterr().err
        a, b = operands()
        assert ran(lambda: torch.mm(b.T, a.T)) == 1


def test_a_product_at_the_interpreters_end_waits_for_no_thread() -> None:
    code = f"""
import atexit, torch
atexit.register(lambda: print(toprung.torch.wait(), (a @ a).sum().item(), toprung.torch.report().taken))
import toprung.torch  # whose own function for the end runs before that one
a = torch.ones(8, 8, device={DEVICE!r})
toprung.torch.enable(**{EVERY!r})
print(torch.mv(a, a[0])[0].item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, said(done.stderr)) == ("8.0\nTrue 512.0 2\n", "") or "CUDA_HOME" in done.stderr


def test_a_program_that_is_not_edited(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, torch, helper\nfrom pathlib import Path\n"
        f"a = torch.ones(64, 64, device={DEVICE!r})\n"
        "print(sys.argv[1:], __name__, helper.found, (a @ a)[0, 0].item())\nsys.exit(3)\n"
    )
    (tmp_path / "helper.py").write_text("found = 'beside it'\n")
    options = ["--own", *(["--cpu"] if DEVICE == "cpu" else []), "--report", "-"]
    for command in ([str(program)], ["-m", "train"]):
        done = subprocess.run(
            [sys.executable, "-m", "toprung.torch", *options, *command, "--lr", "1e-3"], capture_output=True, text=True,
            cwd=tmp_path, env=ELSEWHERE, check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert done.stdout == "['--lr', '1e-3'] __main__ beside it 64.0\n"
        assert "mm " in done.stderr and "64×64×64" in done.stderr
    record = tmp_path / "ran.json"
    done = subprocess.run(
        [sys.executable, "-m", "toprung.torch", "--report", str(record), str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3 and "rows" in record.read_text() and f"the report is in {record}\n" in done.stderr


def test_an_error_of_a_program_shows_the_programs_own_lines_alone_and_the_report_is_kept(tmp_path: Path) -> None:
    program, folder = tmp_path / "train.py", tmp_path / "gone"
    folder.mkdir()
    program.write_text(
        f"import toprung\ntoprung.torch.enable()\n__import__('os').rmdir({str(folder)!r})\nopen({str(folder)!r}, 'w').close()\n"
        "raise KeyError('theirs')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "toprung.torch", "--report", str(folder / "ran.json"), str(program)], capture_output=True, text=True,
        env=ELSEWHERE, check=False,
    )  # fmt: skip
    told = [] if DEVICE == "cuda" else ["toprung: all products stay PyTorch's: PyTorch sees no CUDA device"]
    *first, lost, a, b, c, d = said(done.stderr).splitlines()
    assert done.returncode == 1 and first == told, "once for a process"
    assert lost.startswith(f"toprung: {folder / 'ran.json'} cannot be written") and Path(lost.rpartition(" ")[2]).exists()
    assert [a, b, c, d] == [
        "Traceback (most recent call last):", f'  File "{program}", line 5, in <module>', "    raise KeyError('theirs')",
        "KeyError: 'theirs'",
    ]  # fmt: skip


def test_a_page_of_a_program_without_products_says_why(tmp_path: Path) -> None:
    if importlib.util.find_spec("jinja2") is None:
        pytest.skip("jinja2 is not installed")
    program, page = tmp_path / "train.py", tmp_path / "ran.html"
    program.touch()
    done = subprocess.run(
        [sys.executable, "-m", "toprung.torch", "--report", str(page), str(program)], capture_output=True, text=True,
        env=ELSEWHERE, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr.endswith(f"the report is in {page}\n")
    assert "toprung took no product: no fp32 matrix product of tensors on cuda has run" in page.read_text()
    assert DEVICE == "cuda" or "PyTorch sees no CUDA device" in page.read_text()
    given = ["--report", str(page), str(program)]
    without = f"import sys; sys.modules['jinja2'] = None; from toprung.torch.__main__ import main; main({given})"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, env=ELSEWHERE, check=False)
    assert done.returncode == 2 and "toprung[report]" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        [], ["missing.py"], ["."], ["--report", "missing.py"], ["--precision", "fp9", "x.py"], ["--report", "/", "x.py"],
        ["--measure", "x.py"],
    ],
)  # fmt: skip
def test_programs_that_cannot_run(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toprung.torch", *command], capture_output=True, text=True, cwd=tmp_path, env=ELSEWHERE, check=False
    )
    assert done.returncode == 2 and "usage:" in done.stderr and "Traceback" not in done.stderr
