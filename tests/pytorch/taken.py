"""Products of CPU tensors that the bridge starts by a plan on the stand-in for NVIDIA's driver; a program of test_taken.py.

The plan has one launch, of a kernel that computes nothing: A, B, C, D and scratch memory, α and β. The log shows each launch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

import golden
import toprung.torch
from stand_in import LENT, kernel, launched, log, plan, resident
from test_bridge import frames
from toprung.backends.base import Source
from toprung.backends.cuda import CUDASession
from toprung.blas.product import OnDevice
from toprung.execute.executor import executor_of
from toprung.gemm.layout import Layout
from toprung.torch import bridge, products

ON: dict[str, Any] = {"own": True, "min_flops": 0, "device_types": ("cpu",), "reproducible": True}
NATIVE = bridge.loaded(Path(sys.argv[1]))
assert NATIVE is not None
bridge.library = lambda: NATIVE
A, B, X = torch.rand(16, 16), torch.rand(16, 16), torch.rand(16)

toprung.torch.enable(**ON)
torch.mm(A, B)  # a device is found before there is the stand-in


def taking(fused: bool = False, threads: tuple[int, ...] = (32,)) -> Callable[..., None]:
    """Return ``Products.take`` with the plan on the stand-in; ``threads``: of a block of each launch, 1024 at most."""
    made = plan(NATIVE, threads)

    def take(self: products.Products, entry: products.Entry, call: Any) -> None:
        name = f"toprung::{entry.op}".encode()
        with products._building:
            entry.taking = entry.taking or bridge.Taking(plan=made, lent=LENT, fused=fused, reach=call.reach, name=name)
        self.settle(entry, bridge.TAKEN)

    return take


def decide(call: Callable[[], Any], **more: Any) -> None:
    """Have Python take a product once, and the bridge from then on."""
    products.Products.take = taking(**more)
    toprung.torch.enable(**ON)
    assert frames(call)
    log()


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


class Session(golden.Recorder, CUDASession):
    """A session of an H200 whose kernels are the stand-in's, and write their first six arguments down."""

    _can_overlap = False

    def load(self, binary: bytes, source: Source) -> Any:
        function = kernel(source.kernel, *[8] * 6)
        return SimpleNamespace(source=source, function=function, dynamic=0, largest=1024)


def operands_of_any_strides_are_copied_by_launches_of_the_plan() -> None:
    def take(self: products.Products, entry: products.Entry, call: Any) -> None:
        a, b, c = (Layout(*view, 4) for view in call.views)
        made = executor_of(session).strided(a, b, c, 1.0, 0.0, True, "fp32")
        entry.taking = bridge.Taking.of(cast(OnDevice, SimpleNamespace(executable=made, reach=call.reach)), entry.op, False)
        assert entry.taking is not None
        self.settle(entry, bridge.TAKEN)

    session = Session(golden.devices()["h200-cuda"])
    products.Products.take = take
    a, b = torch.rand(64, 200)[:, ::3], torch.rand(40, 67).T
    for out in (torch.zeros(64, 100)[:, 1:80:2], torch.zeros(40, 64).T):  # copied, and the product of the transposes
        call = lambda out=out: torch.mm(a, b, out=out)  # noqa: E731
        toprung.torch.enable(**ON)
        assert frames(call)
        log()
        assert frames(call) == [] and toprung.torch.report().taken == 2
        launches = [line.split(" | ") for line in log()]
        copied = out.stride(0) > 1
        assert [head.split()[1] for head, *_ in launches] == (["move", "gemm", "move"] if copied else ["move", "gemm"])
        (_, source, _, laid, *_), (_, first, _, second, _, result, *_) = launches[:2]
        assert source == f"{a.data_ptr():x}" and {first, second} == {f"{b.data_ptr():x}", laid}
        assert (launches[-1][3] if copied else result) == f"{out.data_ptr():x}" and (not copied or launches[-1][1] == result)


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
    for threads in ((2048,), (32, 2048)):
        decide(lambda: torch.mm(A, B), threads=threads)
        assert frames(lambda: torch.mm(A, B)) and "REFUSED" in log()[-1]
        assert torch.allclose(torch.mm(A, B).double(), A.double() @ B.double(), atol=1e-5)
        out = torch.ones(16, 16)
        decide(lambda out=out: out.addmm_(A, B), threads=threads)
        try:
            out.addmm_(A, B)
        except RuntimeError as error:
            assert "what the result held is lost" in str(error) and len(threads) > 1
        else:
            assert len(threads) == 1


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
