"""Products that C++ starts by a plan, without Python: on the stand-in for NVIDIA's driver, and on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import driver
from arrays import entry
from torch_device import DEVICE, ELSEWHERE, native


def run(program: str, library: str, log: Path, *arguments: object) -> None:
    """Run a program of this folder with a library of C++, the stand-in, and a file or device for what that writes down."""
    with driver.installed() as folder:
        tests = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
        env = {**ELSEWHERE, "PYTHONPATH": os.pathsep.join((tests, ELSEWHERE["PYTHONPATH"])), "TOPRUNG_DRIVER_LOG": str(log)}
        words = [sys.executable, Path(__file__).with_name(program), library, Path(folder, "libcuda.so.1"), *map(str, arguments)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(DEVICE == "cuda", reason="the machine has NVIDIA's driver")
@pytest.mark.parametrize("program", ["taken.py", "ranged.py", "entered.py", "fresh.py"])
def test_products_are_started_as_the_plan_says(program: str, tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    library = native()._name if program in ("taken.py", "ranged.py") else entry().__file__
    run(program, library, tmp_path / "log", *(20_000,) if program == "entered.py" else (entry().__file__,))


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="the machine has NVIDIA's driver")
def test_a_million_calls_hold_nothing() -> None:
    run("entered.py", entry().__file__, Path(os.devnull), 1_000_000, "many_calls_hold_nothing")
