"""report(measure=True): how long products take on toprung's kernels and on PyTorch's, measured after the fact."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import toprung.torch
from toprung.blas.receipt import Receipt
from toprung.errors import BadArgument, MissingExtra, Unsupported
from toprung.torch import bridge, products, timing
from toprung.torch.report import Report, Row
from torch_device import DEVICE, EVERY, as_fast, overriding


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    toprung.torch.disable()
    products.forget()


def some_products() -> None:
    """Products of each operator, in new results and given ones, of operands with gaps, expanded, and off an aligned address."""

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device=DEVICE)

    out, long = made(9, 7), made(40)
    torch.mm(made(9, 5), made(7, 5).T, out=out)
    out.addmm_(made(9, 3), made(3, 7))
    torch.addmm(made(7), made(9, 3), made(3, 7))
    torch.mm(made(1, 5).expand(9, 5), made(5, 14)[:, ::2])
    torch.mm(long[1:36].view(5, 7), made(7, 4))
    torch.bmm(made(2, 3, 4), made(2, 4, 5))
    torch.baddbmm(made(2, 3, 5), made(2, 3, 4), made(2, 4, 5))
    torch.mv(made(6, 30), made(30))


def test_each_kind_is_measured_and_counts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE", 1e-4)
    toprung.torch.enable(**EVERY)
    some_products()
    before = [(row.op, row.problem, row.taken, row.left) for row in toprung.torch.report().rows]
    found = toprung.torch.report(measure=True)
    assert [(row.op, row.problem, row.taken, row.left) for row in found.rows] == before and len(before) == 7
    assert all(0 < row.seconds < 1 and 0 < row.their_seconds < 1 and row.path == "fp32" for row in found.rows)
    assert all(bool(row.their_kernel) == (DEVICE == "cuda") for row in found.rows)
    assert "µs; PyTorch's" in " ".join(str(found).split()) and max(map(len, str(found).splitlines())) <= 80
    assert toprung.torch.is_enabled()


def test_nothing_is_measured_unless_it_is_asked_for() -> None:
    toprung.torch.enable(**EVERY)
    some_products()
    found = toprung.torch.report()
    assert all(math.isnan(row.seconds) and math.isnan(row.their_seconds) for row in found.rows) and "µs" not in str(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["rows"][0]["seconds"] is None


@pytest.mark.parametrize("measure", ["yes", 1, None, len])
def test_measure_is_true_or_false(measure: Any) -> None:
    with pytest.raises(BadArgument, match="measure is True or False"):
        toprung.torch.report(measure)


def test_where_nothing_ran_it_is_said() -> None:
    toprung.torch.enable(device_types=(DEVICE,))
    text = str(toprung.torch.report())
    assert text.startswith("0 products on toprung's kernels, 0 on PyTorch's, 0 too small\n")
    # devices of earlier settings are named, too
    assert re.search(rf"no fp32 matrix product of tensors on (\w+ or )*{DEVICE}( or \w+)* has run", text) and "operator" not in text
    torch.mm(torch.ones(3, 3, device=DEVICE), torch.ones(3, 3, device=DEVICE))
    assert "has run" not in str(toprung.torch.report())


def test_why_some_calls_of_a_kind_were_pytorchs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("mm", "9×9×9", "NN", "cuda:0", 3, 2, "hopper_fp32x", "", True, "fp32x")
    assert row.line() == "hopper_fp32x (fp32x); PyTorch's own ran 2 times: the kernel was not ready"
    toprung.torch.enable(**EVERY)
    a, b = torch.randn(9, 5, device=DEVICE), torch.randn(5, 7, device=DEVICE)
    torch.mm(a, b)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    (entry,) = next(p for p in products.every() if p.entries).entries.values()
    with monkeypatch.context() as there:
        there.setattr(type(entry.call), "start", full)
        torch.testing.assert_close(torch.mm(a, b), a @ b)
    (row,) = toprung.torch.report().rows
    assert (row.taken, row.left) == (1, 2) and "ran 2 times: there was no memory for what toprung needs" in row.line()


def test_what_pytorch_ran_has_pytorchs_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE", 1e-4)
    as_fast(monkeypatch)
    toprung.torch.enable(**{**EVERY, "own": False})
    torch.mm(torch.randn(9, 5, device=DEVICE), torch.randn(5, 7, device=DEVICE))
    (row,) = toprung.torch.report(measure=True).rows
    assert row.left == 1 and math.isnan(row.seconds) and row.their_seconds > 0 and row.path == row.kernel == ""


def test_products_that_memory_is_too_small_for_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    toprung.torch.enable(**EVERY)
    torch.mm(torch.randn(9, 5, device=DEVICE), torch.randn(5, 7, device=DEVICE))
    monkeypatch.setattr(timing, "_laid", full)
    (row,) = toprung.torch.report(measure=True).rows
    assert math.isnan(row.seconds) and math.isnan(row.their_seconds) and row.taken == 1


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = torch.nn.Linear(6, 8), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x))


def test_modules_are_named_forward_and_backward() -> None:
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    net, x = Net().to(DEVICE), torch.randn(5, 6, device=DEVICE)
    with toprung.torch.use(**EVERY, modules=True):
        for _ in range(2):
            net(x).sum().backward()
        x @ torch.randn(6, 4, device=DEVICE)
        with toprung.torch.exclude():
            assert not hooks, "nobody is watched where nothing is taken"
            net(x)
        net(x)
    assert not hooks
    found = toprung.torch.report()
    made: dict[str, int] = {}
    for row in found.rows:
        assert sum(row.modules.values()) == row.taken + row.left
        for name, count in row.modules.items():
            made[name] = made.get(name, 0) + count
    assert made == {"Net.first": 3, "Net.rest.1": 3, "Net.first ←": 2, "Net.rest.1 ←": 4, "": 1}
    assert "in Net.rest.1 ←" in str(found) and "in no module" in str(found)


def test_the_page_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE", 1e-4)
    toprung.torch.enable(**EVERY, modules=True)
    some_products()
    net = torch.nn.Sequential()
    net.add_module("a<b", torch.nn.Linear(6, 8).to(DEVICE))
    net(torch.randn(5, 6, device=DEVICE))
    text = toprung.torch.report().to_html()
    assert "Where the time goes" not in text and "Sequential.a&lt;b" in text and "a<b" not in text
    found = toprung.torch.report(measure=True)
    text = found.to_html()
    assert "Where the time goes" in text and text.count("<tr>") == 2 * (len(found.rows) + 1)
    assert all(f"<td>{row.problem}</td>" in text for row in found.rows) and "cuDNN" in text
    assert "https:" not in text and "http:" not in text and "<script" not in text, "nothing from outside"


def test_a_page_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"toprung\[report\]"):
        toprung.torch.report().to_html()


def test_the_language_of_the_overrides_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def line() -> str:
        (found,) = [line for line in str(toprung.torch.report()).splitlines() if line.startswith("overrides: ")]
        assert len(found) <= 80
        return found

    overriding("C++", monkeypatch)
    assert line() == "overrides: C++; products left to PyTorch enter no Python"
    overriding("Python", monkeypatch)
    path = tmp_path / "bridge.so"
    monkeypatch.setattr(bridge, "binary", lambda: path)
    assert line() == "overrides: Python, no C++ binary built: python -m toprung.torch --build"
    path.touch()
    assert line() == "overrides: Python, the C++ binary did not load: python -m toprung.torch --build"
    monkeypatch.setattr(bridge, "SOURCE", tmp_path / "bridge.cpp")
    assert line() == "overrides: Python, this installation has no bridge.cpp"


def test_a_step_of_which_the_device_sees_a_part() -> None:
    """By PyTorch's real profiler: what sleeps is no operator, and operators inside of others count once."""
    a = torch.randn(64, 64)

    def step() -> None:
        time.sleep(0.01)
        torch.nn.functional.linear(a, a).relu()

    rows = timing.profiled(step, "cpu")
    assert {"aten::addmm", "aten::relu", "aten::clamp_min"} & {name for name, *_ in rows} and rows[0][1] == 0
    assert "aten::linear" not in {name for name, *_ in rows}
    found = timing.timed(step, "cpu")
    assert found is not None and found.seconds > 0.01 and 0 < found.busy <= found.seconds
    assert timing.timed(lambda: None, "cpu") is None


def test_time_in_which_streams_overlap_counts_once() -> None:
    assert timing.busy_seconds([("a", 0.0, 5.0), ("b", 3.0, 5.0), ("c", 4.0, 1.0), ("d", 10.0, 1.0)]) == pytest.approx(9e-6)
    assert timing.busy_seconds([]) == 0


def test_a_report_says_how_long_the_device_is_idle_and_what_a_graph_would_bring() -> None:
    found = Report((), 0, {}, step=timing.Step(42.2e-3, 30.1e-3))
    text = " ".join(str(found).split())
    assert "a step takes 42.20 ms, and the device is idle for 12.10 ms of it (29 %): as a CUDA graph it would take" in text
    assert "take 30.10 ms at best, 1.40 times as fast" in text and max(map(len, str(found).splitlines())) <= 80
    assert found.to_json()["step"] == {"seconds": 42.2e-3, "busy": 30.1e-3} and "1.40 times as fast" in found.to_html()


@pytest.mark.parametrize("step", [3, "step"])
def test_a_step_is_a_function(step: Any) -> None:
    with pytest.raises(BadArgument, match="step is a function"):
        toprung.torch.report(step=step)


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
def test_without_a_gpu_a_step_is_not_run() -> None:
    steps: list[int] = []
    found = toprung.torch.report(step=lambda: steps.append(1))
    assert not steps and found.step is None and "idle for" not in str(found) and found.to_json()["step"] is None


@pytest.mark.skipif(DEVICE != "cuda", reason="there is no GPU")
def test_a_step_on_a_gpu_is_idle_while_the_host_sleeps_and_busy_in_a_graph() -> None:
    a, out = torch.randn(4096, 4096, device=DEVICE), torch.empty(4096, 4096, device=DEVICE)

    def slow() -> None:
        time.sleep(0.05)
        torch.mm(a, a, out=out)

    found = toprung.torch.report(step=slow).step
    assert found is not None and found.seconds > 0.05 and 0 < found.busy < found.seconds / 2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            torch.mm(a, a, out=out)
    found = toprung.torch.report(step=graph.replay).step
    assert found is not None and found.busy > found.seconds / 2
    assert toprung.torch.report(step=lambda: torch.ones(9) @ torch.ones(9)).step is None, "it runs nothing on the GPU"


def test_pieces_that_were_computed_again_are_named() -> None:
    row = Row("mm", "9×9×9", "NN", "cuda:0", 3, 0, "hopper_fp32x", "", True, "fp32x", 1234)
    assert "1,234 pieces were computed again in plain fp32" in row.line()


def test_pieces_are_not_counted_while_the_current_stream_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    receipt = Receipt("matmul", "", (), True, "fp32x", "cuda:0", counters=(lambda: asked.append(1) or 7,))
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    with pytest.raises(Unsupported, match="read it after the capture"):
        receipt.escalated  # noqa: B018
    monkeypatch.undo()
    assert receipt.escalated == 7 and len(asked) == 1
