"""audit: in which precision PyTorch computes a program's products, which modules make them, and with what errors."""

from __future__ import annotations

import functools
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import toprung.torch
from toprung import errors
from toprung.blas import routines
from toprung.torch.audit import _computed_in, _rounded
from torch_device import DEVICE, ELSEWHERE, EVERY, said

audit = functools.partial(toprung.torch.audit, device_types=(DEVICE,))


class Block(torch.nn.Module):
    """Attention with one head, and a convolution."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.near = torch.nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        q, k, v = self.into(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.mT, -1) @ v) + self.near(x)


@pytest.fixture
def step() -> Any:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Block(), Block()).to(DEVICE), torch.randn(8, 4, 32, device=DEVICE)

    def run() -> None:
        model(x).square().mean().backward()

    return run


@pytest.fixture
def lowered() -> Iterator[None]:
    """aten::mm of somebody's who rounds operands to TF32's significand."""
    key = torch.DispatchKeySet(getattr(torch.DispatchKey, DEVICE.upper()))
    original, library = torch.library.get_kernel("aten::mm", DEVICE.upper()), torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda a, b: original.call_boxed(key, _rounded(a, 10), _rounded(b, 10)), DEVICE.upper())
    yield
    library._destroy()


def test_each_module_has_its_products_forward_and_backward(step: Any) -> None:
    found = audit(step)
    made = {(row.module, row.backward): set() for row in found.rows}
    for row in found.rows:
        made[row.module, row.backward].add(row.op)
    assert made["Sequential.0.into", False] == made["Sequential.1.out", False] == {"addmm"}
    assert made["Sequential.1", False] == made["Sequential.1", True] == made["Sequential.0", True] == {"bmm"}
    assert made["Sequential.0.into", True] == made["Sequential.1.out", True] == {"mm"}
    assert sum(row.count for row in found.rows) == 2 * (4 + 8) - 1  # nobody asks for the gradient of the input
    assert all(row.precision == "fp32" and 0 < row.error < 1e-6 and 0 < row.ours < 1e-6 for row in found.rows)
    assert not found.lowered and found.hidden["convolution"] == 2
    assert {p.grad is not None for p in step.__closure__[0].cell_contents.parameters()} == {True}


@pytest.mark.usefixtures("lowered")
def test_products_in_tf32_are_found(step: Any) -> None:
    found = audit(step)
    low = {row.op for row in found.lowered}
    assert low == {"mm"} and {row.precision for row in found.lowered} == {"TF32"}
    assert all(1e-5 < row.error < 1e-3 and row.ours < 1e-6 for row in found.lowered)
    assert str(found).splitlines()[0].endswith("computed in less than fp32") and "! mm" in str(found)


@pytest.mark.skipif(DEVICE != "cpu", reason="tensors on the host are those that nobody takes")
def test_no_error_is_shown_of_products_that_are_never_taken(step: Any) -> None:
    text = str(toprung.torch.audit(step))
    assert "largest error" not in text and "toprung's error is missing where tensors on cpu are left alone" in text
    assert not re.search(r"fp32 +\S+ +\S", text)


@pytest.mark.skipif(DEVICE != "cuda", reason="TF32 is CUDA's")
def test_tf32_that_somebody_switched_on_is_found(step: Any) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = audit(step)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    # where cuBLAS has no better kernel for a small product it stays in fp32
    assert {row.precision for row in found.rows} <= {"TF32", "fp32"} and len(found.lowered) > len(found.rows) / 2
    assert not audit(step).lowered


def test_what_is_enabled_does_not_run_and_is_enabled_again(step: Any) -> None:
    with toprung.torch.use(**EVERY):
        before = toprung.torch.report().taken
        audit(step)
        assert toprung.torch.report().taken == before and toprung.torch.is_enabled()


def test_a_compiled_function_runs_uncompiled() -> None:
    compiled, x = [], torch.randn(32, 32, device=DEVICE)

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph

    twice = torch.compile(lambda x: 2 * (x @ x), backend=backend)
    (row,) = audit(twice, x).rows
    assert (row.op, row.problem, row.layout) == ("mm", "32×32×32", "NN") and not compiled
    twice(x)
    assert compiled, "it stays uncompiled"


def test_other_types_have_their_own_precision() -> None:
    a, b = torch.randn(16, 24, device=DEVICE), torch.randn(24, 8, device=DEVICE)
    found = audit(lambda: (a.bfloat16() @ b.bfloat16(), a.double() @ b.double(), a @ b[:, 0]))
    assert [row.precision for row in found.rows] == ["bfloat16", "float64", "fp32"]
    assert [math.isnan(row.ours) for row in found.rows] == [True, True, False] and not found.lowered
    if DEVICE == "cpu":
        (row,) = audit(lambda: torch.ones(3, 3, dtype=torch.int64) @ torch.ones(3, 3, dtype=torch.int64)).rows
        assert row.precision == "int64" and math.isnan(row.error)


@pytest.mark.parametrize("fill", [0.0, 3.0, math.nan, 1e-30, 1e30])
def test_hard_values(fill: float) -> None:
    a, b = torch.full((9, 5), fill, device=DEVICE), torch.randn(5, 7, device=DEVICE)
    (row,) = audit(torch.mm, a, b).rows
    assert row.precision == "fp32" and (math.isnan(row.error) if math.isnan(fill) else row.error < 1e-6)


def test_a_result_that_is_no_number_is_an_infinite_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither PyTorch's nor toprung's NaN passes for a small error."""

    def computed(a: Any, b: Any, *_: Any) -> Any:
        made = a @ b
        made[0, 0] = math.nan
        return made

    monkeypatch.setattr(routines, "computed", computed)
    a, b = torch.randn(9, 5, device=DEVICE), torch.randn(5, 7, device=DEVICE)
    (row,) = audit(torch.mm, a, b).rows
    assert row.error < 1e-6 and math.isinf(row.ours)
    assert _computed_in(math.inf, {"TF32": 3e-4, "bf16": 2.4e-3}, "cpu") == "?"


def test_no_rows_in_empty_products_and_the_result_comes_back() -> None:
    found = audit(torch.mm, torch.ones(0, 3, device=DEVICE), torch.ones(3, 2, device=DEVICE))
    assert found.result.shape == (0, 2) and found.rows[0].count == 1 and math.isnan(found.rows[0].error)


def test_json_has_no_nan(step: Any) -> None:
    found = audit(step).to_json()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["rows"][0]["module"] == "Sequential.0.into" and found["lowered"] == 0


def test_rounding_is_to_nearest_even() -> None:
    x = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-10), math.inf, 3e38, 0.0])
    assert _rounded(x, 10).tolist() == [1.0, 1 + 2.0**-9, -(1 + 2.0**-10), math.inf, 1806 * 2.0**117, 0.0]


@pytest.mark.parametrize("error, name", [(1e-7, "fp32"), (3e-5, "fp32"), (2e-4, "TF32"), (5e-4, "TF32"), (3e-3, "bf16")])
def test_the_precision_goes_by_the_error(error: float, name: str) -> None:
    assert _computed_in(error, {"TF32": 3e-4, "bf16": 2.4e-3}, "cpu") == name


def test_solvers_and_decompositions_are_counted() -> None:
    x = torch.randn(6, 6, device=DEVICE)

    def solved() -> None:
        lower = torch.linalg.cholesky(x @ x.T + 6 * torch.eye(6, device=DEVICE))
        torch.linalg.solve_triangular(lower, x, upper=False)
        torch.linalg.qr(x)

    found = audit(solved)
    assert found.hidden == {"linalg_cholesky_ex": 1, "linalg_solve_triangular": 1, "linalg_qr": 1} and len(found.rows) == 1
    assert "linalg_qr: 1 call\n" in str(found)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(errors.BadArgument, match="fn is a function to run, not Tensor: pass lambda"):
        audit(torch.ones(3, device=DEVICE))


@pytest.mark.parametrize("how", [{"rows": 0}, {"rows": True}, {"precision": "fp8"}, {"device_types": ("tpu",)}])
def test_bad_options_are_refused_before_anything_runs(how: dict[str, Any]) -> None:
    with pytest.raises(errors.ToprungError):
        audit(pytest.fail, "it ran", **how)


def test_an_error_of_the_program_is_its_own_and_leaves_nothing_behind() -> None:
    def broken() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError):
        audit(broken)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_program_is_audited_without_an_edit(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nnet = torch.nn.Linear(8, 4)\nnet(torch.randn(3, 8)).sum().backward()\nprint('trained')\n", encoding="utf-8"
    )

    def run(*words: str) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "toprung.torch", *words, str(program)], capture_output=True, text=True, check=False,
            cwd=tmp_path, env=ELSEWHERE,
        )  # fmt: skip

    done = run("--audit", "-")
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert "Linear" in done.stderr and "addmm" in done.stderr and "fp32" in done.stderr
    assert max(map(len, said(done.stderr).splitlines())) <= 80
    short = run("--audit")
    assert (short.returncode, short.stdout) == (0, "trained\n") and short.stderr.splitlines()[0] == done.stderr.splitlines()[0]
    assert program.read_text(encoding="utf-8").startswith("import torch")
    assert run("--audit", "found.json").returncode == 0
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["rows"][0]["op"] == "addmm"
    both = run("--audit", "-", "--report", "-")
    assert both.returncode == 2 and "exclude each other" in both.stderr
    page = run("--audit", "found.html")
    assert page.returncode == 2 and "found.json" in page.stderr and not (tmp_path / "found.html").exists()


def test_the_largest_errors_come_first_and_columns_stay_in_line(step: Any) -> None:
    found = audit(step)
    head, largest, columns, *lines = str(found).splitlines()
    assert head == "23 products, none in less than the type of its operands"
    assert largest == f"largest error of fp32 products: PyTorch's {max(r.error for r in found.rows):.1e}, toprung's " + (
        f"{max(r.ours for r in found.rows):.1e}"
    )
    rows = [line for line in lines if line.startswith("  ") and "fp32" in line]
    assert len(rows) == len(found.rows) and {len(line) for line in [columns, *rows]} == {len(columns)} and len(columns) <= 80
    assert "convolution: 2 calls" in str(found) and max(map(len, str(found).splitlines())) <= 80
    assert str(audit(lambda: None)) == "0 products, none in less than the type of its operands"
