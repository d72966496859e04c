"""The launcher in C++ asks of the driver what Python's asks, byte for byte, and threads share a plan."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import shutil
import struct
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import driver
from arrays import entry
from conftest import require
from toprung.backends import cuda, cxx, native_plan, waiting
from toprung.backends.plan import Plan
from toprung.errors import MissingExtra, NotReady
from toprung.lab.harness import environment
from toprung.lab.sass import machine_code

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", f"-I{native_plan.SOURCE.parent}")


def test_calls_of_the_driver_are_those_of_pythons_launcher() -> None:
    not_there = "backends/launcher.py", "driver, kernel = session._driver, launch.kernel", "driver = kernel = None"  # Python's
    (found,), wanted = driver.recorded([([], [not_there])], entry().__file__), driver.golden()
    assert found.keys() == wanted.keys()
    for name, calls in found.items():
        assert "\n".join(difflib.unified_diff(wanted[name].splitlines(), calls.splitlines(), name, lineterm="", n=1)) == ""


def test_programs_that_do_not_end_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("g++", "nvdisasm", "git"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 3600\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(waiting, "LIMIT", 0.1)
    monkeypatch.setattr(environment, "GIT_SECONDS", 0.1)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    with pytest.raises(NotReady, match=r"g\+\+ did not end within 0.1 s and was stopped: .*another compiler by CXX"):
        cxx.compile_library(tmp_path / "made.so", [native_plan.SOURCE])
    assert not (tmp_path / "made.so").exists()
    with contextlib.suppress(MissingExtra):  # without an installed disassembler
        machine_code.disassembler()
        monkeypatch.setattr(machine_code, "disassembler", lambda: str(tmp_path / "nvdisasm"))
        with pytest.raises(NotReady, match="nvdisasm did not end"):
            machine_code.disassemble(b"no machine code")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("TOPRUNG_COMMIT", raising=False)
    assert environment.source.__wrapped__()["commit"] == "unknown"
    with pytest.raises(NotReady, match="git status"):
        environment.revision("HEAD")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "sanitizers", "runner"),
    [
        ("", ("-fsanitize=thread", "-fno-sanitize-recover=all"), ("setarch", "-R")),
        ("", ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"), ("setarch", "-R")),
        ("aarch64-linux-gnu-", (), ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")),
    ],
)
def test_threads_that_launch_one_plan_take_nothing_of_each_other(
    prefix: str, sanitizers: tuple[str, ...], runner: tuple[str, ...], tmp_path: Path
) -> None:
    compiler = f"{prefix}g++"
    require(shutil.which(runner[0]) and shutil.which(compiler), f"{runner[0]} or {compiler} is not installed")
    program, log = tmp_path / "threads", tmp_path / "log"
    files = (HERE / "native" / "threads.cpp", native_plan.SOURCE, "-o", program, "-ldl", "-lpthread")
    subprocess.run([compiler, *FLAGS, "-O1", "-g", *sanitizers, *files], check=True)
    with driver.installed(f"{prefix}gcc") as folder:
        env = {**os.environ, "LD_LIBRARY_PATH": folder, "TOPRUNG_DRIVER_LOG": str(log)}
        done = subprocess.run([*runner, program], env=env, capture_output=True, text=True, check=False)
    require("unexpected memory mapping" not in done.stderr, "the sanitizer does not run on this kernel")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    counts = Counter[int]()
    for line in log.read_text().splitlines():
        head, of_a, c, alpha, flags_at, fixed, group = line.split(" | ")
        thread = int(c, 16) >> 16
        stream = "legacy" if thread % 2 else f"{thread << 32:x}"  # the stand-in's name for 2, too
        assert head == f"launch kernel 00000000 grid 2,1,1 block 32,1,1 shared 0 {stream} attribute 6=1"
        assert of_a.split()[0] == c and of_a.split()[1:4] == ["20", "40", "80"]
        number = struct.unpack("<f", int(alpha, 16).to_bytes(4, "little"))
        assert (number, flags_at, fixed) == ((float(thread),), f"{thread << 8:x}", "7")
        assert group.split() == ["9", f"{int(c, 16) + 5:x}"]
        counts[thread] += 1
    assert counts == dict.fromkeys(range(1, 9), 250)


def test_the_default_stream_of_each_thread_has_a_number_of_its_own() -> None:
    with ThreadPoolExecutor() as pool:
        other = pool.submit(lambda: [cuda.number_of(stream) for stream in (0, 1, 2, 77)]).result()
    assert [cuda.number_of(stream) for stream in (0, 1, 77)] == other[:2] + other[3:] and cuda.number_of(2) != other[2]
    found = set[object]()
    for _ in range(50):  # of a thread that has ended the system gives the identity to the next one
        thread = threading.Thread(target=lambda: found.add(cuda.number_of(2)))
        thread.start()
        thread.join()
    assert len(found) == 50


def test_a_plan_that_is_being_freed_is_given_to_nobody() -> None:
    freed, begun, got = list[int](), threading.Event(), list[native_plan.NativePlan]()

    class Library:
        """A launcher whose plans take as long to free as another thread needs; the real one frees too fast to be met."""

        handles = itertools.count(1)

        def toprung_plan_new(self, *words: object) -> int:
            return next(self.handles)

        def toprung_plan_free(self, handle: int) -> None:
            freed.append(handle)
            begun.set()
            done.wait(60)

    library, plan, done = Library(), Plan([], words=b""), threading.Event()

    def other() -> None:
        assert begun.wait(60)
        got.append(native_plan.NativePlan.of(library, None, plan))  # type: ignore[arg-type]
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    native_plan.NativePlan.of(library, None, plan)  # type: ignore[arg-type]
    thread.join()
    assert freed == [1] and got[0].handle == 2
