"""The examples run as a person types them, on PoCL at small sizes; and the notebook, cell by cell."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trial
from conftest import require
from toprung.device import Device
from toprung.kernels.registry import families

EXAMPLES = trial.ROOT / "examples"
PROGRAMS = sorted(p.name for p in EXAMPLES.glob("*.py"))


def ran(name: str, *words: object, status: int = 0) -> str:
    """Return what an example prints, if it ends with this status."""
    command = [sys.executable, EXAMPLES / name, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def ran_ours(said: str) -> bool:
    """True if receipts name kernels, each of a family of toprung's own."""
    names = re.findall(r"^ +ran: (\w+) ", said, re.MULTILINE)
    return bool(names) and set(names) <= {f.name for f in families() if f.own}


def test_every_example_is_on_its_page() -> None:
    page = (trial.ROOT / "docs" / "examples.md").read_text()
    there = {p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".ipynb")}
    assert set(re.findall(r"\.\./examples/([\w.]+)\)", page)) == there


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_says_what_it_does_or_what_it_needs(name: str) -> None:
    if name.startswith("torch_") and not importlib.util.find_spec("torch"):
        assert "pip install torch" in ran(name, "--help", status=1)
        return
    said = ran(name, "--help")
    assert "usage:" in said and "--device" in said


def test_power_iteration(device: Device) -> None:
    said = ran("power_iteration.py", "--size", 150, "--device", device.id, "--own")
    assert "as float64 has it" in said and f"on {device}" in said and ran_ours(said)
    assert len(re.findall(r"^ +(\d+\.\d{6} ?){1}", said, re.MULTILINE)) == 4


def test_power_iteration_with_scipys_blas() -> None:
    said = ran("power_iteration.py", "--size", 150, "--blas", "scipy")
    assert "as float64 has it" in said and "ran:" not in said


@pytest.mark.slow
def test_a_product_in_less_memory_than_its_operands(device: Device, tmp_path: Path) -> None:
    for _ in range(2):  # the second finds its kernels compiled: what it needs is the product's alone
        said = ran("out_of_memory.py", "--size", 2048, "--memory-limit", "3M", "--device", device.id, "--folder", tmp_path)
    assert "right" in said and "48 MiB in " in said and "panels of" in said
    peak = re.search(r"Peak memory: (\d+) MiB", said)
    assert peak and 0 < int(peak[1]) < 16, said
    assert list(tmp_path.iterdir()) == []


def test_a_limit_too_small_is_said_and_not_a_traceback(device: Device) -> None:
    said = ran("out_of_memory.py", "--size", 64, "--memory-limit", "10", "--device", device.id, status=2)
    assert "OutOfDeviceMemory: " in said and "Traceback" not in said


def test_torch_layer(device: Device) -> None:
    if not importlib.util.find_spec("torch"):
        pytest.skip("PyTorch is not installed: too large to ask of everybody who runs the tests")
    said = ran("torch_layer.py", "--on", "cpu", "--device", device.id, "--own", "--batch", 40, "--width", 48, "--steps", 4)
    assert "gradients agree" in said and f"on {device}" in said and ran_ours(said)


def test_torch_training(device: Device) -> None:
    if not importlib.util.find_spec("torch"):
        pytest.skip("PyTorch is not installed: too large to ask of everybody who runs the tests")
    said = ran("torch_training.py", "--device", "cpu", "--own", "--width", 32, "--steps", 2)
    assert "products on toprung's kernels, " in said and "loss after 2 steps" in said


def test_the_notebook_is_stored_without_results() -> None:
    content = json.loads((EXAMPLES / "climb.ipynb").read_text())
    assert all(not c["outputs"] and c["execution_count"] is None for c in content["cells"] if c["cell_type"] == "code")


@pytest.mark.slow
def test_the_notebook_runs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
        require(importlib.util.find_spec(package), f"{package} is not installed")
    import nbclient
    import nbformat

    notebook = nbformat.read(EXAMPLES / "climb.ipynb", as_version=4)
    nbformat.validate(notebook)
    for name, value in (("CLIMB_SIZE", "96"), ("CLIMB_DEVICE", device.id), ("MPLBACKEND", "agg")):
        monkeypatch.setenv(name, value)
    nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3").execute(env=dict(os.environ))
    printed = ["".join(o.get("text", "") for o in c.outputs) for c in notebook.cells if c.cell_type == "code"]
    assert "all verified" in printed[-1] and str(device) in printed[0]
