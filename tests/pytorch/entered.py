"""Calls of toprung.matmul that the entry in C++ starts by a plan on the stand-in for NVIDIA's driver; a program of test_taken.py.

Tensors lie on the CPU, so Python's way of each call computes it there. The log shows what was launched in its place.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import toprung
from stand_in import CONTEXT, LENT, launched, log, plan, resident
from test_bridge import frames
from toprung.arrays.torch import adapter
from toprung.backends import native_plan
from toprung.blas import calls

A, B, C = torch.rand(16, 16), torch.rand(16, 16), torch.zeros(16, 16)
TERMS = 0x9000
ENTRY = native_plan.loaded(Path(sys.argv[1]))
native_plan.entry = lambda: ENTRY  # type: ignore[assignment]
toprung.matmul(A, B, own=True)  # a device is found before there is the stand-in
calls.enter(adapter)


class Made:
    """A plan as ``NativePlan`` keeps it."""

    def __init__(self, **more: Any) -> None:
        self.handle, self.flags, self.asked = plan(ENTRY.library, **more), more.get("flags", 0), list[int]()
        weakref.finalize(self, ENTRY.library.toprung_plan_free, self.handle)

    def prepare(self, stream: int) -> None:
        self.asked.append(stream)
        ENTRY.library.toprung_flags(CONTEXT, stream, 0x7000, self.flags)


def decide(call: Callable[[], Any], **more: Any) -> Made:
    """Have Python compute a call once, and the entry start it from then on."""
    made = Made(**more)

    def by_native(call: Any, given: Any) -> Any:
        return (
            calls.START.pack(made.handle, LENT, TERMS if "packed" in more else 0, *call.reach),
            adapter.maker(given.result.thing, given.result.shape, given.result.strides),
            call._left,
            made.prepare,
        )

    calls._by_native = by_native
    calls.forget()
    call()
    log()
    return made


def results_are_new_or_those_that_were_given() -> None:
    for a, b in ((A, B), (torch.rand(3, 4, 16), torch.rand(3, 16, 5)), (A[0], B), (A, B[0]), (A[0], B[0]), (A.T, B[:, ::2])):
        decide(lambda a=a, b=b: toprung.matmul(a, b))
        made = toprung.matmul(a, b)
        assert launched(a, b, made) and made.dtype == torch.float32 and made.is_contiguous()
        assert made.shape == torch.matmul(a, b).shape and toprung.last_receipt().operation == "matmul"
        out = torch.zeros_like(made)
        decide(lambda a=a, b=b, out=out: toprung.matmul(a, b, out))
        assert toprung.matmul(a, b, out=out) is out and launched(a, b, out)
    decide(lambda: toprung.matmul(A, B))
    assert {one.rpartition("/")[2] for one in frames(lambda: toprung.matmul(A, B))} == {"routines.py:matmul"}
    receipt = toprung.last_receipt()
    calls.forget()
    assert toprung.matmul(A, B) is not None and toprung.last_receipt() == receipt


def a_plan_starts_its_own_call_alone() -> None:
    decide(lambda: toprung.matmul(A, B, own=True))
    plan, out = toprung.plan(A, B, own=True), torch.zeros(16, 16)
    assert torch.equal(plan(A, B, out), plan(A, B)) and log() == []  # Python looks at both first
    for _ in range(2):
        assert launched(A, B, plan(A, B)) and plan(A, B, out) is out and launched(A, B, out)
    assert {one.rpartition("/")[2] for one in frames(lambda: plan(A, B))} == {"plan.py:__call__"} and log()
    odd = torch.rand(257)[1:].view(16, 16)  # the plan's call needs 16 bytes
    assert torch.allclose(plan(odd, B), odd @ B, atol=1e-5) and log() == []
    calls.forget()
    toprung.matmul(A, B[:, :3], own=True)
    for b in (B[:, :3], B.T):
        try:
            plan(A, b)
        except toprung.errors.StalePlan:
            continue
        raise AssertionError
    assert launched(A, B, plan(A, B))
    columns = toprung.plan(A, B, out.T, own=True)
    assert columns(A, B).is_contiguous() and log() == []


def a_plan_of_a_prepacked_operand_is_given_its_terms() -> None:
    decide(lambda: toprung.matmul(A, B, own=True), packed=True)
    packed = toprung.prepack(B)
    plan = toprung.plan(A, packed, own=True)
    plan(A, packed), log()
    assert {one.rpartition("/")[2] for one in frames(lambda: plan(A, packed))} >= {"plan.py:__call__"}
    (line,) = log()
    assert line.split(" | ")[2] == f"{packed.array.data_ptr():x}" and line.split(" | ")[6] == f"{TERMS:x}"


def options_are_told_apart_by_their_values() -> None:
    decide(lambda: toprung.matmul(A, B, precision="fp32"))
    assert launched(A, B, toprung.matmul(A, B, precision="".join(["fp", "32"])))
    toprung.matmul(A, B), toprung.matmul(A, B, own=True, precision="fp32")
    assert log() == []
    try:
        toprung.matmul(A, B, precision=["fp32"])
    except toprung.errors.BadArgument:
        return
    raise AssertionError


def what_pytorch_must_see_is_not_launched() -> None:
    decide(lambda: toprung.matmul(A, B))
    a = torch.nn.Parameter(A.clone())
    toprung.matmul(a, B).sum().backward()
    assert torch.allclose(a.grad, B.sum(1).expand(16, 16)) and len(log()) == 1  # of the tensors that autograd was told of
    with torch.no_grad():
        assert launched(a, B, toprung.matmul(a, B))
    turned = torch.complex(A, A).conj().imag
    assert torch.allclose(toprung.matmul(turned, B), -(A @ B)) and log() == []
    assert torch.allclose(torch.vmap(lambda x: toprung.matmul(x, B))(A[None])[0], A @ B) and log() == []
    for watching in (torch.autograd.forward_ad.dual_level(), FlopCounterMode(display=False)):
        with watching:
            assert any(one.endswith("recorded.py:matmul") for one in frames(lambda: toprung.matmul(A, B)))
    log()


def memory_that_overlaps_is_refused() -> None:
    memory = torch.rand(48, 16)
    a, b, c = memory[:16], memory[16:32], memory[32:]
    decide(lambda: toprung.matmul(a, b, c))
    assert toprung.matmul(a, b, c) is c and launched(a, b, c)
    for at in (0, 256, 508):  # all on 16 bytes, as c is
        try:
            toprung.matmul(a, b, memory.view(-1)[at : at + 256].view(16, 16))
        except toprung.errors.Overlap:
            continue
        raise AssertionError
    assert log() == []


def a_launch_that_fails_is_pythons() -> None:
    decide(lambda: toprung.matmul(A, B), threads=(2048,))
    assert torch.allclose(toprung.matmul(A, B), A @ B, atol=1e-5) and "REFUSED" in log()[0]
    decide(lambda: toprung.matmul(A, B, C), threads=(2048,))
    assert toprung.matmul(A, B, C) is C and torch.allclose(C, A @ B, atol=1e-5) and "REFUSED" in log()[0]


def a_streams_flags_are_made_once() -> None:
    made = decide(lambda: toprung.matmul(A, B), flags=64)
    for _ in range(3):
        assert launched(A, B, toprung.matmul(A, B))
    assert made.asked == [0]


def a_call_holds_nothing_of_its_arrays() -> None:
    decide(lambda: toprung.matmul(A, B))
    a, b = A.clone(), B.clone()
    counts = [sys.getrefcount(one) for one in (a, b, "auto", None, adapter, ENTRY)]
    made = [toprung.matmul(a, b) for _ in range(100)]
    gone = [weakref.ref(one) for one in made]
    assert all(sys.getrefcount(one) == 3 for one in made)  # the list's, the loop's and the call's
    made.clear()
    now = [sys.getrefcount(one) for one in (a, b, "auto", None, adapter, ENTRY)]
    assert not any(one() for one in gone) and all(abs(x - y) < 50 for x, y in zip(now, counts, strict=True)), (now, counts)
    gone = [weakref.ref(a), weakref.ref(b)]
    del a, b
    assert not any(one() for one in gone)
    log()


def plans_are_freed_when_they_are_forgotten() -> None:
    gone = weakref.ref(decide(lambda: toprung.matmul(A, B)))
    toprung.matmul(A, B)
    calls._by_native = lambda call, given: None
    calls.forget()
    toprung.matmul(A[:2], B)  # the last receipt is of another call
    gc.collect()
    assert gone() is None
    log()


def threads_launch_while_another_forgets() -> None:
    decide(lambda: toprung.matmul(A, B))
    wrong = list[str]()

    def work() -> None:
        mine = A.clone()
        for _ in range(500):
            if toprung.matmul(mine, B).shape != (16, 16):
                wrong.append("shape")

    several = [threading.Thread(target=work) for _ in range(4)]
    for one in several:
        one.start()
    while any(one.is_alive() for one in several):
        calls.forget()
        gc.collect()
    assert wrong == [] and log()
    decide(lambda: toprung.matmul(A, B))
    several = [threading.Thread(target=work) for _ in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert wrong == [] and len(log()) == 2000


def a_forked_child_starts_afresh() -> None:
    decide(lambda: toprung.matmul(A, B))
    if not (child := os.fork()):
        right = torch.allclose(toprung.matmul(A, B), A @ B, atol=1e-5)
        os._exit(not (right and log() == []))
    assert os.waitpid(child, 0)[1] == 0
    assert launched(A, B, toprung.matmul(A, B))


def a_launcher_takes_what_pythons_takes() -> None:
    def launcher(made: Made, needs: bool = False) -> Any:
        bound = struct.pack("=4Q", made.handle, 5, 4, 2)
        return ENTRY.launcher((bound, made.prepare, (lambda *given: asked.append(given)) if needs else None, asked.append))

    asked, made = list[Any](), Made()
    log()
    places = 0x1000, 2, np.int64(0x2000), -3, 0x3000, np.int32(4)
    for named in ({}, {"queue": 6, "packed": 1, "flags": 2}):
        launcher(made)(*places, 2, 1e300, workspace=0x9000, addend=0x4000, **named)
        (line,) = log()
        assert line.endswith(" | 1008 | 1ffa | 3010 | 4000 | 9000 | 40000000 | 7f800000") and f" {named.get('queue', 5)} |" in line
    launcher(made, needs=True)(*places, 1.0, 0.0, packed=9)
    assert asked.pop() == (*places, 1.0, 0.0, None, None, 9, None) and log() == []
    for threads, status in (((2048,), 1), ((32, 2048), native_plan.UNFINISHED)):
        launcher(Made(threads=threads))(*places, 1.0, 0.0)
        assert asked.pop() == status and "REFUSED" in log()[-1]
    for given, named in (
        ((1,), {}),
        ((*places, 1, 0), {"b": 3}),
        ((*places, 1, 0), {"other": 3}),
        ((*places, "x", 0), {}),
        ((*range(15),), {}),
        ((*places, 1, 0), {"operands": 3}),
    ):
        try:
            launcher(made)(*given, **named)
        except TypeError:
            continue
        raise AssertionError
    try:
        launcher(Made(group=3))(*places, 1, 0, operands=np.array([5, 6]))
    except IndexError:
        assert asked == log() == []
    launcher(Made(group=3))(*places, 1, 0, operands=np.array([5, 6, 7]))
    assert log()[0].endswith(" | 7")


def many_calls_hold_nothing() -> None:
    """By default some; 10⁶ with a log that is thrown away."""
    decide(lambda: toprung.matmul(A, B))
    times = int(sys.argv[3])
    for _ in range(times // 10):
        toprung.matmul(A, B)
        toprung.matmul(A, B, C)
    before = resident()
    for _ in range(times):
        toprung.matmul(A, B)
    assert resident() - before < 4e6


if __name__ == "__main__":
    for name, one in list(globals().items()):
        if callable(one) and getattr(one, "__module__", "") == "__main__" and "_" in name and sys.argv[4:] in ([], [name]):
            one()
            print(name)
