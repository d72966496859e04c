"""benchmarks/torch_programs.py and torch_models.py: each program at a tiny size, right in each arm, and runs that go on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import toprung.torch
import torch_models
from toprung.lab.harness import results
from torch_device import DEVICE
from torch_programs import PROGRAMS, Computing, made


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_right_with_toprung_and_without(name: str) -> None:
    try:
        program = made(name, DEVICE, small=True)
    except ImportError as error:
        pytest.skip(f"{name} needs a package that is not installed: {error}")
    exact, step = program.exact(), torch_models.Eager(program)
    for name in ("fp32", "toprung"):
        with torch_models.arm(name, torch.device(DEVICE), small=True):
            found = torch_models.errors(step, exact)
        assert found["gradient"] < 1e-5 and found["loss"] < 1e-5, found


def stored(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> tuple[int, dict[tuple[str, str], Any]]:
    """Run the script on a CPU and return its exit code and the record's rows by program and mode."""
    how = ["--modes", "eager", "--device", "cpu", "--seconds", "0.01", *words]
    monkeypatch.setattr(sys, "argv", ["torch_models.py", str(out), *how])
    code = torch_models.main()
    return code, {(row["model"], row["mode"]): row for row in results.read(out)["torch_models"]}


def test_a_run_goes_on_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code, first = stored(monkeypatch, out, "--programs", "mlp,bmm", "--seeds", "3")
    assert code == 0 and list(first) == [("mlp", "eager"), ("bmm", "eager")]
    for row in first.values():
        assert {name: len(samples) for name, samples in row["seconds"].items()} == dict.fromkeys(row["errors"], torch_models.ROUNDS)
        errors = [[one[name]["gradient"] for one in (row["errors"], *row["drawn"])] for name in ("fp32", "toprung")]
        assert all(len(set(of_seeds)) == 3 and max(of_seeds) < 1e-6 for of_seeds in errors)
    code, second = stored(monkeypatch, out, "--programs", "bmm,knn")
    assert code == 0 and list(second) == [*first, ("knn", "eager")] and all(second[key] == row for key, row in first.items())
    again = stored(monkeypatch, out, "--programs", "bmm", "--again")[1]
    assert again["bmm", "eager"]["seconds"] != first["bmm", "eager"]["seconds"] and again["mlp", "eager"] == first["mlp", "eager"]


@pytest.mark.parametrize(("off", "timed"), [(1e-4, True), (1e-2, False)])
def test_what_is_off_with_toprung_is_found(off: float, timed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def longer(x: Any) -> Any:
        return (x @ x * (1 + off * toprung.torch.is_enabled()),)

    made_so = SimpleNamespace(make=lambda small: Computing("longer", longer, torch.randn(8, 8)), modes=("eager",))
    monkeypatch.setitem(PROGRAMS, "longer", made_so)
    code, rows = stored(monkeypatch, tmp_path / "out.json", "--programs", "longer")
    row = rows["longer", "eager"]
    assert code == 1 and "is over 3 ×" in row["failures"][-1] and ("toprung" in row["seconds"]) == timed
    assert len(row["drawn"]) == torch_models.DRAWS - 1, "one draw does not decide"
    assert row["errors"]["toprung"]["bias"] == pytest.approx(off, rel=0.01) == row["errors"]["toprung"]["gradient"]


def test_a_single_draw_that_is_off_is_chance() -> None:
    even, off = ({"fp32": {"gradient": 5e-7}, "toprung": {"gradient": error}} for error in (1e-7, 2e-6))
    assert torch_models.intolerable([off]) and torch_models.intolerable([off, even, off])
    assert not torch_models.intolerable([off, even, even])
