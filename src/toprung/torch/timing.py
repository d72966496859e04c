"""Times measured on request: of a kind of product on toprung's kernels and on PyTorch's, and of a program's step."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from toprung.blas import background
from toprung.errors import NotReady
from toprung.torch import products

SAMPLE, SAMPLES, MOST = 0.01, 5, 1000
"""Seconds of a sample, how many are taken, and calls of one at most."""

STEPS = 4
"""Steps of a sample at least: one begins while the device still works on the one before."""


def measured(entry: products.Entry) -> tuple[float, float, str]:
    """Return the seconds of a product on toprung's kernels and on PyTorch's, NaN for what does not run, and PyTorch's kernel.

    The name of the kernel is empty on a CPU. Counts of the report do not grow.
    """
    like, call = entry.like, entry.call
    if like is None:
        return math.nan, math.nan, ""
    kind = entry.device.partition(":")[0]
    try:
        with torch.no_grad(), torch.cuda.device(entry.device) if kind == "cuda" else contextlib.nullcontext():
            a, b = _laid(*like.a, entry.device), _laid(*like.b, entry.device)
            bias, result = (None if one is None else _laid(*one, entry.device) for one in (like.bias, like.result))
            theirs = _theirs(entry.op, a, b, bias)
            ours = math.nan
            if call is not None and (not call.depends or call.is_valid()):
                added, out = (result, None) if like.inplace else (bias, result)

                def start() -> Any:
                    return products.started(entry, call, a, b, added, 1, 1, out, like.inplace, a.data_ptr(), b.data_ptr())

                if start() is not None:
                    ours = _seconds(start, kind)
            seconds = _seconds(theirs, kind)
            kernels = profiled(theirs, kind) if kind == "cuda" else []
            return ours, seconds, max(kernels, key=lambda one: one[2], default=("",))[0]
    except torch.OutOfMemoryError:
        return math.nan, math.nan, ""


def _laid(shape: tuple[int, ...], stride: tuple[int, ...], skip: int, device: str) -> Any:
    """Return random numbers that lie so, ``skip`` elements behind an aligned address."""
    size = skip + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return (torch.rand(size, device=device) - 0.5).as_strided(shape, stride, skip)


def _theirs(op: str, a: Any, b: Any, bias: Any) -> Callable[[], Any]:
    """Return PyTorch's own product; what it overrides is looked up below aten."""
    name = "addmm" if op == "_addmm_activation" else op
    if bias is None and name not in ("mm", "bmm"):
        bias = a.new_zeros((1,) * (2 if name == "addmm" else 3 if name == "baddbmm" else 1))
    function = getattr(torch, name)
    operands = (a, b) if bias is None else (bias, a, b)

    def run() -> Any:
        before = products.now
        products.activate(None)
        try:
            return function(*operands)
        finally:
            products.activate(before)

    return run


def _seconds(run: Callable[[], Any], kind: str, least: int = 1) -> float:
    """Return the seconds of a call on a kind of device: on CUDA from event to event in the current stream, else the host's."""
    elapsed = _on_device if kind == "cuda" else _on_host
    run()
    calls = max(least, min(MOST, int(SAMPLE / max(elapsed(run, 1), 1e-6))))
    return statistics.median(elapsed(run, calls) for _ in range(SAMPLES)) / calls


def _on_device(run: Callable[[], Any], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def _on_host(run: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - begin


def profiled(run: Callable[[], Any], kind: str) -> list[tuple[str, float, float]]:
    """Return name, start and length in µs of all that a call runs on the device, by PyTorch's profiler.

    ``kind``: ``"cuda"`` for kernels and copies, ``"cpu"`` for the innermost operators.
    """
    on_gpu = kind == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        run()
        if on_gpu:
            torch.cuda.synchronize()
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [e for e in found.events() if e.device_type == wanted and not e.is_user_annotation and (on_gpu or not e.cpu_children)]
    rows = sorted((e.time_range.start, e.time_range.elapsed_us(), e.name) for e in events)
    return [(name, start - rows[0][0], length) for start, length, name in rows]


def busy_seconds(rows: list[tuple[str, float, float]]) -> float:
    """Return the seconds in which at least one of ``profiled``'s rows runs: streams may overlap."""
    busy = end = 0.0
    for _, start, length in rows:
        busy += max(start + length - max(start, end), 0.0)
        end = max(end, start + length)
    return 1e-6 * busy


@dataclass(frozen=True)
class Step:
    """Times of a step of a program.

    Attributes
    ----------
    seconds : time from one step to the next
    busy : seconds of them in which the device works; for the rest it waits for the host
    """

    seconds: float
    busy: float

    def __str__(self) -> str:
        idle = self.seconds - self.busy
        return (
            f"a step takes {1e3 * self.seconds:.2f} ms, and the device is idle for {1e3 * idle:.2f} ms of it "
            f"({100 * idle / self.seconds:.0f} %): as a CUDA graph it would take {1e3 * self.busy:.2f} ms at best, "
            f"{self.seconds / self.busy:.2f} times as fast"
        )


def timed(step: Callable[[], Any], kind: str = "cuda") -> Step | None:
    """Return the times of a step, run two dozen times at least; None if it runs nothing on such a device.

    It is timed first and profiled then: a profiler that was there once may slow each launch.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        return None
    step()
    if not products.wait(background.LONGEST):  # compilers at work would take the host's time
        raise NotReady(f"a step's kernels are not ready after {background.LONGEST:g} s: measure it later")
    seconds = _seconds(step, kind, STEPS)
    busy = busy_seconds(profiled(step, kind))
    return Step(seconds, min(busy, seconds)) if busy else None
