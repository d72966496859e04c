"""Times of a kind of product after the fact: of toprung's kernels and of PyTorch's, on random operands that lie as its own did."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from toprung.torch import products

SAMPLE, SAMPLES, MOST = 0.01, 5, 1000
"""Seconds of a sample, how many are taken, and calls of one at most."""


def measured(entry: products.Entry) -> tuple[float, float, str]:
    """Return the seconds of a product on toprung's kernels and on PyTorch's, NaN for what does not run, and PyTorch's kernel.

    The name of the kernel is empty on a CPU. Counts of the report do not grow.
    """
    like, call = entry.like, entry.call
    if like is None:
        return math.nan, math.nan, ""
    try:
        a, b = _laid(*like.a, entry.device), _laid(*like.b, entry.device)
        bias, result = (None if one is None else _laid(*one, entry.device) for one in (like.bias, like.result))
        theirs = _theirs(entry.op, a, b, bias)
        ours = math.nan
        if call is not None and (not call.depends or call.is_valid()):
            added, out = (result, None) if like.inplace else (bias, result)

            def start() -> Any:
                return products.started(entry, call, a, b, added, 1, 1, out, like.inplace, a.data_ptr(), b.data_ptr())

            if start() is not None:
                ours = _seconds(start, entry.device)
        return ours, _seconds(theirs, entry.device), _kernel(theirs, entry.device)
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


def _seconds(run: Callable[[], Any], device: str) -> float:
    """Return the seconds of a call: on CUDA the device's, else the host's."""
    elapsed = _on_device if device.startswith("cuda") else _on_host
    with torch.no_grad(), torch.cuda.device(device) if device.startswith("cuda") else contextlib.nullcontext():
        run()
        calls = max(1, min(MOST, int(SAMPLE / max(elapsed(run, 1), 1e-6))))
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


def _kernel(run: Callable[[], Any], device: str) -> str:
    """Return the name of the kernel that takes most of a call on a GPU."""
    if not device.startswith("cuda"):
        return ""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize(device)
    kernels = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return str(max(kernels, key=lambda e: e.device_time_total).name) if kernels else ""
