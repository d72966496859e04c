"""PoCL's cache of kernels is filled by one process at a time."""

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from toprung.backends import opened, pocl_cache
from toprung.backends.base import Session
from toprung.device import Device
from toprung.kernels.build import build
from toprung.kernels.record import kernel_source
from toprung.lab.rung import rung
from toprung.tile import Tile

TILE = Tile(BM=4, BN=8)
BUILDER = """
import sys
from toprung.backends import find, opened
from toprung.kernels.build import build
from toprung.lab.rung import rung
from toprung.tile import Tile
with opened(find(sys.argv[1])) as session:
    print("ready", flush=True)
    print(build(rung("kepler/r01"), Tile(BM=4, BN=8), {}, session).cached, flush=True)
"""


def builder(device: Device) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", BUILDER, device.id], text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("cached", (pytest.param(False, marks=pytest.mark.slow), True), ids=("compiled", "loaded"))
def test_who_builds_waits_for_who_builds_the_same(
    cached: bool, device: Device, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    if cached:
        first = builder(device)
        assert first.communicate()[0] == "False\n"
        shutil.rmtree(tmp_path / "pocl")
    source = kernel_source(rung("kepler/r01"), TILE, {})
    with session._alone(replace(source, text=f"// PoCL's name for a program knows no remarks\n{source.text}")):
        second = builder(device)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(2)  # such a build takes half a second
        assert not list((tmp_path / "pocl").rglob("*.bc"))
    out, err = second.communicate()
    assert (second.returncode, out) == (0, f"{cached}\n"), err


def test_another_program_is_not_waited_for(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    others = (f"program {i}" for i in range(1000))
    other = next(o for o in others if pocl_cache.lock_of(o) != pocl_cache.lock_of("program"))
    with pocl_cache.alone("program"), pocl_cache.alone(other):
        pass
    locks = {pocl_cache.lock_of(f"program {i}") for i in range(5000)}
    assert len(locks) == pocl_cache.LOCKS and {lock.parent for lock in locks} == {tmp_path / "pocl"}


def test_a_lock_is_given_back_after_an_error_and_by_who_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    with pytest.raises(KeyError), pocl_cache.alone("program"):
        raise KeyError
    holder = subprocess.Popen(
        [sys.executable, "-c", "from toprung.backends import pocl_cache; import time\n"
         "with pocl_cache.alone('program'): print(flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == b"\n"
    taken = threading.Event()

    def take() -> None:
        with pocl_cache.alone("program"):
            taken.set()

    waiting = threading.Thread(target=take, daemon=True)
    waiting.start()
    assert not taken.wait(0.5)
    holder.kill()
    holder.wait()
    assert taken.wait(600)
    waiting.join()


def test_binaries_are_named_by_what_the_environment_adds_to_a_build(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary that was compiled without PoCL's optimiser is never loaded by who has it on."""
    monkeypatch.delenv("POCL_EXTRA_BUILD_FLAGS", raising=False)
    names = set()
    for name in ("POCL_DEBUG", "POCL_CACHE_DIR", "POCL_EXTRA_BUILD_FLAGS", "POCL_WORK_GROUP_METHOD", "PYOPENCL_BUILD_OPTIONS"):
        monkeypatch.setenv(name, "-cl-opt-disable")
        names.add(session.fingerprint())
    assert len(names) == 4


def test_where_nothing_can_be_locked_builds_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "file" / "pocl"))
    with pocl_cache.alone("program"):
        pass


def test_threads_that_compile_at_once_keep_the_screen(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each catches what the compiler prints, and puts back what it found: of two at once, the other's file."""
    monkeypatch.setenv("TOPRUNG_CACHE", str(tmp_path))
    before = os.fstat(2)

    def compile_some(rows: int) -> None:
        with opened(device) as own:
            for columns in (8, 16, 24):
                build(rung("kepler/r01"), Tile(BM=rows, BN=columns), {}, own)

    threads = [threading.Thread(target=compile_some, args=(rows,)) for rows in (4, 8, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.path.samestat(before, os.fstat(2))
    assert len(list((tmp_path / "binaries").iterdir())) == 9
