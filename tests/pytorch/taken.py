"""Products of CPU tensors that the bridge starts by a plan on the stand-in for NVIDIA's driver; a program of test_taken.py.

The plan has one launch, of a kernel that computes nothing: A, B, C, D and scratch memory, α and β. The log shows each launch.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import toprung.torch
from test_bridge import frames
from toprung.torch import bridge, products

ON: dict[str, Any] = {"own": True, "min_flops": 0, "device_types": ("cpu",), "reproducible": True}
LOG = Path(os.environ["TOPRUNG_DRIVER_LOG"])
LENT, SEEN = 1024, [0]
NATIVE = bridge.loaded(Path(sys.argv[1]))
assert NATIVE is not None
bridge.library = lambda: NATIVE
A, B, X = torch.rand(16, 16), torch.rand(16, 16), torch.rand(16)

toprung.torch.enable(**ON)
torch.mm(A, B)  # a device is found before there is the stand-in
DRIVER = ctypes.CDLL(sys.argv[2])
DRIVER.driver_function.restype = ctypes.c_uint64


def log() -> list[str]:
    """Return the lines that the stand-in has written since the last time."""
    text = LOG.read_text()
    new, SEEN[:] = text[SEEN[0] :], [len(text)]
    return new.splitlines()


def taking(fused: bool = False, threads: int = 32) -> Callable[..., None]:
    """Return ``Products.take`` with the plan on the stand-in; ``threads``: of a block, 1024 at most."""
    kernel = DRIVER.driver_function(b"product", (ctypes.c_int * 7)(8, 8, 8, 8, 8, 4, 4), 7)
    addresses = [word for slot in range(5) for word in (0, slot, 0)]
    words = [7, LENT, 0, 0, 1, 0, kernel, 1, 1, 1, threads, 1, 1, 0, 0, 0, 7, *addresses, 1, 0, 1, 1]
    plan = NATIVE.toprung_plan_new((ctypes.c_uint64 * len(words))(*words), len(words))

    def take(self: products.Products, entry: products.Entry, call: Any) -> None:
        name = f"toprung::{entry.op}".encode()
        with products._building:
            entry.taking = entry.taking or bridge.Taking(plan=plan, lent=LENT, fused=fused, reach=call.reach, name=name)
        self.settle(entry, bridge.TAKEN)

    return take


def decide(call: Callable[[], Any], **more: Any) -> None:
    """Have Python take a product once, and the bridge from then on."""
    products.Products.take = taking(**more)
    toprung.torch.enable(**ON)
    assert frames(call)
    log()


def launched(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor | None, alpha: float, beta: float) -> bool:
    """Return True if the log has one launch, with these arguments."""
    (line,) = log()
    *addresses, lent, first, second = line.split(" | ")[1:]
    scalars = [struct.unpack("<f", int(one, 16).to_bytes(4, "little"))[0] for one in (first, second)]
    wanted = [f"{0 if one is None else one.data_ptr():x}" for one in (a, b, c, d)]
    return addresses == wanted and scalars == [alpha, beta] and int(lent, 16) > 0


def results_are_new_or_those_that_were_given() -> None:
    decide(lambda: torch.mm(A, B))
    made: list[torch.Tensor] = []
    assert frames(lambda: made.append(torch.mm(A, B))) == [] and launched(A, B, made[0], None, 1, 0)
    assert made[0].shape == (16, 16) and made[0].stride() == (16, 1) and made[0].dtype == torch.float32
    a, b = torch.rand(3, 4, 16), torch.rand(3, 16, 5)
    decide(lambda: torch.bmm(a, b))
    c = torch.bmm(a, b)
    assert c.shape == (3, 4, 5) and launched(a, b, c, None, 1, 0)
    decide(lambda: torch.mv(A, X))
    assert torch.mv(A, X).shape == (16,)
    out = torch.zeros(16, 16)
    decide(lambda: torch.mm(A, B, out=out))
    assert torch.mm(A, B, out=out) is out and launched(A, B, out, None, 1, 0)
    assert toprung.torch.report().taken == 2
    decide(lambda: out.addmm_(A, B, beta=0.5, alpha=3))
    assert out.addmm_(A, B, beta=0.5, alpha=3) is out and launched(A, B, out, None, 3, 0.5)


def what_is_added_comes_after_the_launch_or_in_it() -> None:
    out = torch.ones(16, 16)
    call = lambda: torch.addmm(X, A, B, beta=0.5, alpha=2, out=out)  # noqa: E731
    decide(call)
    out.fill_(1)
    assert frames(call) == [] and launched(A, B, out, None, 2, 0) and torch.equal(out, (1 + 0.5 * X).expand(16, 16))
    decide(call, fused=True)
    out.fill_(1)
    assert frames(call) == [] and launched(A, B, out, X, 2, 0.5) and torch.equal(out, torch.ones(16, 16))
    for gelu in (False, True):
        call = lambda gelu=gelu: torch.ops.aten._addmm_activation.out(X - 3, A, B, use_gelu=gelu, out=out)  # noqa: E731
        decide(call)
        out.fill_(1)
        call()
        wanted = (X - 2).expand(16, 16)
        assert torch.allclose(out, torch.nn.functional.gelu(wanted, approximate="tanh") if gelu else wanted.relu())


def products_that_pytorch_must_run_are_not_launched() -> None:
    memory = torch.rand(48, 16)
    a, b, c = memory[:16], memory[16:32], memory[32:]
    call = lambda out: torch.mm(a, b, out=out)  # noqa: E731
    decide(lambda: call(c))
    assert call(c) is c and launched(a, b, c, None, 1, 0)
    for at in (0, 128, 256, 500):
        out = memory.view(-1)[at : at + 256].view(16, 16)
        wanted = torch.empty(16, 16)
        with toprung.torch.exclude():
            memory.copy_(torch.rand(48, 16))
            before = memory.clone()
            call(out)
            wanted = memory.clone()
        memory.copy_(before)
        call(out)
        assert torch.equal(memory, wanted) and log() == []
    matmul = torch.backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    call(c)
    matmul.fp32_precision = before
    assert log() == [] and toprung.torch.report().refused
    bias = torch.rand(32, 16)
    decide(lambda: torch.addmm(bias[:16], A, B, out=torch.empty(16, 16)))
    torch.addmm(bias[:16], A, B, out=bias[16:])
    assert log() == []


def a_launch_that_fails_is_pythons() -> None:
    decide(lambda: torch.mm(A, B), threads=2048)
    assert frames(lambda: torch.mm(A, B)) and "REFUSED" in log()[0]
    assert torch.allclose(torch.mm(A, B).double(), A.double() @ B.double(), atol=1e-5)


def a_profiler_sees_its_name() -> None:
    decide(lambda: torch.mm(A, B))
    with torch.profiler.profile() as profile:
        torch.mm(A, B)
    assert "toprung::mm" in {event.key for event in profile.key_averages()} and log()


def threads_lose_no_count_while_others_enable_and_disable() -> None:
    decide(lambda: torch.mm(A, B))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.mm(A, B)

    several = [threading.Thread(target=lambda: [torch.mm(A, B) for _ in range(500)]) for _ in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert toprung.torch.report().taken == 2001 and len(log()) == 2000
    several = [threading.Thread(target=work) for _ in range(4)]
    for one in several:
        one.start()
    for _ in range(100):
        toprung.torch.enable(**ON)
        torch.mm(A, B)
        toprung.torch.disable()
    stop.set()
    for one in several:
        one.join()
    products.forget()
    assert products._leaving == []


def many_products_hold_nothing() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    decide(lambda: torch.mm(A, B))
    for _ in range(5_000):
        torch.mm(A, B)
    before = resident()
    for _ in range(50_000):
        torch.mm(A, B)
    assert resident() - before < 4e6 and toprung.torch.report().taken == 55_001


if __name__ == "__main__":
    for name, one in list(globals().items()):
        if callable(one) and getattr(one, "__module__", "") == "__main__" and "_" in name:
            one()
            print(name)
