"""The OpenCL backend keeps its promises, on a real device; what may take the process down runs in one of its own."""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trial
from toprung import paths
from toprung.backends import devices, find, open_device
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.errors import BuildError, LaunchError, OutOfDeviceMemory, UnknownName
from toprung.kernels.build import build
from toprung.lab.rung import Rung, rung
from toprung.oracle.gemm import Gemm
from toprung.tile import Tile

TINY = Tile(BM=4, BN=8)
FILL = Source(
    "fill",
    "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void fill(__global int *p) { p[get_global_id(0)] = VALUE; }",
    "fill",
    {"VALUE": 7},
)


def started(script: str, *args: object, **env: str) -> subprocess.Popen[str]:
    """A Python process of its own."""
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})


def output(process: subprocess.Popen[str], status: int = 0) -> str:
    """Return what a process prints, if it ends within a minute and with this status."""
    try:
        out, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == status, f"{process.returncode}: {err[-2000:]}"
    return out


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cold cache."""
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path))
    return tmp_path / "binaries"


def test_the_best_device_comes_first_and_is_found_by_any_name(device: Device) -> None:
    present = devices()
    assert find() == present[0] and device in present
    for name in (device.id, device.id.upper(), device.slug, device.name, "portable computing", device.kind):
        assert find(name) == device
    assert find("opencl").backend == "opencl"
    if not any(d.kind == "gpu" for d in present):
        with pytest.raises(UnknownName, match="no device 'gpu'"):
            find("gpu")  # and not that of wgpu, of which it is a part
    with pytest.raises(UnknownName) as caught:
        find("GeForce 256")
    assert str(caught.value) == f"there is no device 'GeForce 256'; there is: {', '.join(map(str, present))}"


def test_a_device_has_facts(device: Device) -> None:
    assert device.kind == "cpu" and device.compute_units >= 1 and device.driver and device.vendor
    assert 0 < device.local_bytes <= 1 << 26
    assert 0 < device.max_buffer_bytes <= device.memory_bytes
    assert device.max_work_group >= 256 and len(device.max_items) == 3


def test_without_a_runtime_the_error_says_how_to_get_one() -> None:
    script = "from toprung.backends import devices, find\nassert devices() == []\nfind()"
    process = started(script, OCL_ICD_VENDORS="/nonexistent.icd", VK_DRIVER_FILES="/nonexistent.json")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "NoDevice: no device found." in err and "OCL_ICD_VENDORS=/nonexistent.icd has no .icd file: unset it" in err


def test_buffers_copy_what_they_hold(session: Session) -> None:
    data = np.random.default_rng(1).integers(0, 1 << 30, 4096, dtype=np.int32)
    whole = session.allocate(data.nbytes)
    assert whole.nbytes == data.nbytes
    session.upload(whole, data)
    part, back = whole.part(4096, 512), np.empty(128, np.int32)
    session.download(part, back)
    assert np.array_equal(back, data[1024:1152])
    session.upload(part, np.zeros(128, np.int32))
    after = np.empty_like(data)
    session.download(whole, after)
    data[1024:1152] = 0
    assert np.array_equal(after, data)


def test_empty_buffers_are_buffers(session: Session) -> None:
    empty = session.allocate(0)
    session.upload(empty, np.empty(0, np.float32))
    session.download(empty, np.empty(0, np.float32))
    assert empty.nbytes == 0 and session.allocate(4096).part(128, 0).nbytes == 0


def test_a_launch_runs_every_work_item_once(session: Session) -> None:
    buffer, found = session.allocate(4 * 256), np.empty(256, np.int32)
    session.upload(buffer, np.zeros(256, np.int32))
    launch = session.bind(session.load(session.compile(FILL), FILL), (3,), (64,), (buffer,))
    launch()
    session.synchronize()
    session.download(buffer, found)
    assert found.tolist() == [7] * 192 + [0] * 64


def test_marks_measure(session: Session) -> None:
    kernel = session.load(session.compile(FILL), FILL)
    launch = session.bind(kernel, (64,), (64,), (session.allocate(4 * 64 * 64),))
    start = session.mark()
    for _ in range(20):
        launch()
    middle = session.mark()
    for _ in range(20):
        launch()
    end = session.mark()
    first, second, both = session.seconds(start, middle), session.seconds(middle, end), session.seconds(start, end)
    assert 0 < first <= both and 0 < second <= both <= 10
    assert abs(first + second - both) <= 1e-6


def test_a_launch_the_device_refuses(session: Session) -> None:
    kernel = session.load(session.compile(FILL), FILL)
    launch = session.bind(kernel, (1,), (63,), (session.allocate(256),))
    with pytest.raises(LaunchError) as caught:
        launch()
    assert "fill with VALUE=7" in str(caught.value) and str(session.device) in str(caught.value)


def test_one_buffer_too_large(session: Session) -> None:
    limit = session.device.max_buffer_bytes
    with pytest.raises(OutOfDeviceMemory) as caught:
        session.allocate(limit + 1)
    assert (caught.value.asked, caught.value.available) == (limit + 1, limit)
    assert f"{limit + 1:,} bytes" in str(caught.value) and f"{limit:,} bytes" in str(caught.value)


def test_buffers_too_large_together(device: Device) -> None:
    """A device that says it is small is believed; what is freed can be had again."""
    session = open_device(replace(device, memory_bytes=10_000, max_buffer_bytes=6_000))
    kept = session.allocate(6_000)
    with pytest.raises(OutOfDeviceMemory) as caught:
        session.allocate(4_001)
    assert (caught.value.asked, caught.value.available) == (4_001, 4_000)
    session.allocate(4_000)
    gc.collect()
    del kept
    gc.collect()
    assert session.allocate(6_000).nbytes == 6_000
    session.close()


@pytest.fixture
def bad(tmp_path: Path) -> Rung:
    """A rung with a slip of the pen."""
    return trial.altered(rung("kepler/r01"), tmp_path, ("float acc = 0.0f;", "float acc = nonsense;"))


def test_a_kernel_that_does_not_build(bad: Rung, session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BuildError) as caught:
        build(bad, TINY, {}, session)
    error = caught.value
    assert "nonsense" in error.log and error.log.strip() in str(error)
    line = bad.source.read_text().partition("nonsense")[0].count("\n") + 1
    assert str(error).splitlines()[0] == f"{bad.source}:{line}:17: use of undeclared identifier 'nonsense'"
    assert error.kernel == "kepler/r01" and "BM=4 BN=8 DM=4 DN=8" in error.defines
    assert str(session.device) in str(error) and error.defines in str(error)
    seen = capfd.readouterr()
    assert seen.out == "" and "nonsense" not in seen.err, "the log is the error's"


def test_cuda_text_is_refused(session: Session) -> None:
    with pytest.raises(BuildError, match="OpenCL cannot compile CUDA"):
        session.compile(replace(FILL, language="cuda"))


TOO_MUCH_LOCAL = """
import sys
from toprung.backends import find, opened
from toprung.backends.base import Source
from toprung.errors import ToprungError
text = '''__kernel void f(__global float *o) {
    __local float big[1 << 20];
    big[get_local_id(0)] = 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    o[get_global_id(0)] = big[get_local_size(0) - 1 - get_local_id(0)];
}'''
with opened(find(sys.argv[1])) as session:
    source = Source("greedy", text, "f", {"W": 1})
    try:
        kernel = session.load(session.compile(source), source)
        session.bind(kernel, (1,), (64,), (session.allocate(256),))()
        session.synchronize()
    except ToprungError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_too_much_local_memory_is_an_error_and_no_crash(device: Device) -> None:
    assert device.local_bytes < 4 << 20
    said = output(started(TOO_MUCH_LOCAL, device.id))
    assert said.startswith("LaunchError: greedy with W=1 needs 4,194,304 bytes of local memory")
    assert f"{device.local_bytes:,}" in said and "smaller tile" in said


AFTER_FORK = """
import multiprocessing, sys, time
from toprung.backends import devices, find, open_device
from toprung.errors import ForkedDevice

def use(name, ask):
    if name:
        ask.send(find(name).id)

def ask_all(session, buffer, device, answers):
    import numpy as np
    tries = (lambda: session.allocate(4), lambda: session.upload(buffer, np.zeros(1, np.int32)), session.synchronize, session.mark,
             lambda: open_device(device), devices, session.close)
    said = []
    for action in tries:
        try:
            action()
            said.append("nothing")
        except ForkedDevice as error:
            said.append(str(error))
    answers.send(said)

if __name__ == "__main__":
    device = find(sys.argv[1])
    session = open_device(device)
    buffer = session.allocate(4)
    session.synchronize()
    for method, target, args in (("fork", ask_all, (session, buffer, device)), ("spawn", use, (sys.argv[1],))):
        context = multiprocessing.get_context(method)
        mine, theirs = context.Pipe()
        child = context.Process(target=target, args=(*args, theirs))
        child.start()
        print(mine.recv() if mine.poll(600) else "hangs")
        child.join(600)
        print(child.exitcode)
        child.kill()
    session.synchronize()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_an_error_and_a_spawned_one_works(device: Device, tmp_path: Path) -> None:
    script = tmp_path / "after_fork.py"
    script.write_text(AFTER_FORK)
    process = subprocess.Popen([sys.executable, str(script), device.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, status, spawned, spawned_status = output(process).splitlines()
    answers = ast.literal_eval(said)
    assert status == "0"
    assert len(answers) == 7 and answers[-1] == "nothing", "closing is harmless"
    assert all("get_context('spawn')" in answer for answer in answers[:-1])
    assert (spawned, spawned_status) == (device.id, "0")


def test_a_second_build_comes_from_the_cache(cache: Path, session: Session) -> None:
    first, second = (build(rung("kepler/r01"), TINY, {}, session) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert len(list(cache.iterdir())) == 1
    assert trial.attempt(second, Gemm(9, 11, 10), session).verdict.right


def test_whatever_changes_a_binary_misses_the_cache(cache: Path, session: Session, tmp_path: Path) -> None:
    naive = rung("kepler/r01")
    changed = trial.altered(naive, tmp_path, ("float acc = 0.0f;", "float acc = -0.0f;"))
    other = open_device(replace(session.device, driver="another"))
    builds = [(naive, TINY, session), (changed, TINY, session), (naive, Tile(BM=2, BN=8), session), (naive, TINY, other)]
    assert [build(r, t, {}, s).cached for r, t, s in builds] == [False] * 4
    assert [build(r, t, {}, s).cached for r, t, s in builds] == [True] * 4
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", ["truncated", "flipped", "flipped digest", "empty", "longer"])
def test_a_damaged_binary_is_built_again(damage: str, cache: Path, session: Session) -> None:
    build(rung("kepler/r01"), TINY, {}, session)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    middle, start = len(whole) // 2, 5
    path.write_bytes(
        {
            "truncated": whole[:middle],
            "flipped": whole[:middle] + bytes(b ^ 0xFF for b in whole[middle : middle + 64]) + whole[middle + 64 :],
            "flipped digest": whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :],
            "empty": b"",
            "longer": whole + b"\0",
        }[damage]
    )
    again = build(rung("kepler/r01"), TINY, {}, session)
    assert not again.cached and build(rung("kepler/r01"), TINY, {}, session).cached
    assert trial.attempt(again, Gemm(9, 11, 10), session).verdict.right


def test_a_binary_of_something_else_is_built_again(cache: Path, session: Session, device: Device) -> None:
    """Whole, with the right digest, and no binary of this runtime's."""
    build(rung("kepler/r01"), TINY, {}, session)
    (path,) = cache.iterdir()
    path.write_bytes(hashlib.sha256(b"no binary").digest() + b"no binary")
    assert not build(rung("kepler/r01"), TINY, {}, session).cached


def test_a_cache_that_cannot_be_written_is_replaced_and_named(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(paths, "_told", [])
    paths._temporary.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"file cannot be written .*: compiled kernels are kept in .*Set TOPRUNG_CACHE"):
        build(rung("kepler/r01"), TINY, {}, session)
    assert list(tmp_path.glob("toprung-*/toprung/binaries/*"))
    paths._temporary.cache_clear()


RACE = """
import sys
from toprung.backends import find, opened
from toprung.kernels.build import build
from toprung.lab.competitor import BoundRung
from toprung.lab.rung import rung
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice
from toprung.tile import Tile
print("ready", flush=True)
sys.stdin.readline()
with opened(find(sys.argv[1])) as session:
    operands = hostile(Gemm(9, 11, 10))
    compiled = build(rung("kepler/r01"), Tile(BM=4, BN=8), {}, session)
    prepared = BoundRung(compiled, OnDevice(operands, session))
    prepared.time(1)
    print(Oracle(operands).verify(prepared.fetch()).right)
"""


def test_processes_may_race_for_a_cold_cache(device: Device, tmp_path: Path) -> None:
    env = {**os.environ, "TOPRUNG_CACHE": str(tmp_path / "ours"), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    (tmp_path / "pocl").mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    racers = [subprocess.Popen([sys.executable, "-c", RACE, device.id], text=True, env=env, **pipes) for _ in range(2)]
    try:
        assert [r.stdout.readline() for r in racers] == ["ready\n"] * 2
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        ends = [racer.communicate() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
    assert [(racer.returncode, out) for racer, (out, _) in zip(racers, ends, strict=True)] == [(0, "True\n")] * 2, ends
    binaries = list((tmp_path / "ours" / "binaries").iterdir())
    assert len(binaries) == 1, "one name, published whole, and nothing left beside it"
