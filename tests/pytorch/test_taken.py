"""Products that the bridge starts by a plan, without Python: on the stand-in for NVIDIA's driver, and on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import driver
from torch_device import DEVICE, ELSEWHERE, native


@pytest.mark.skipif(DEVICE == "cuda", reason="the machine has NVIDIA's driver")
def test_products_are_started_as_the_plan_says(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    loaded = native()
    assert loaded is not None
    with driver.installed() as folder:
        tests = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
        env = {**ELSEWHERE, "PYTHONPATH": os.pathsep.join((tests, ELSEWHERE["PYTHONPATH"]))}
        words = [sys.executable, Path(__file__).with_name("taken.py"), loaded._name, Path(folder, "libcuda.so.1")]
        done = subprocess.run(
            words, env={**env, "TOPRUNG_DRIVER_LOG": str(tmp_path / "log")}, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
