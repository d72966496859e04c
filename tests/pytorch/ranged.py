"""Products of sizes inside a known range, which the bridge starts without Python; a program of test_taken.py.

Python's decisions are those for an H200. Kernels are the stand-in's: they compute nothing and write their first arguments down.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import toprung.torch
from h200 import SESSION, decided
from stand_in import log, resident
from test_bridge import frames
from toprung.arrays.torch import adapter
from toprung.backends import native_plan
from toprung.blas import background, ranges, remembered
from toprung.errors import NotReady
from toprung.torch import bridge, products

ON: dict[str, Any] = {"own": True, "min_flops": 0, "device_types": ("cpu",)}
NATIVE = bridge.loaded(Path(sys.argv[1]))
assert NATIVE is not None
bridge.library = lambda: NATIVE
ENTRY = native_plan.loaded(Path(sys.argv[3]))
native_plan.entry = lambda: ENTRY  # type: ignore[assignment]

products.decided = decided  # type: ignore[assignment]
products.started = lambda entry, call, a, *more: a.new_empty(entry.shape)  # Python's own launches are of no interest
products.HOST = "cuda"  # tensors on the CPU are treated as on a GPU
type(adapter).queue = lambda self, thing, home: None  # type: ignore[method-assign]
products.session_at = lambda home, queue: SESSION  # type: ignore[assignment]

background.Background.cost = 0.0  # type: ignore[assignment,method-assign]  # measured, it decides when products are prepared

KEPT = Path(tempfile.mkdtemp())
remembered.cache_dir = lambda: KEPT

B = torch.rand(1024, 1024)
W = {size: torch.rand(size, 1024) for size in range(1, 1100)}


def mm(size: int) -> torch.Tensor:
    return torch.mm(W[size], B.T)


def prepared(make: Callable[[int], Any], *sizes: int, kept: bool = False, **more: Any) -> list[products.ranges.Range]:
    """Run products of these sizes, wait for the preparation, and return their ranges that are known then.

    ``kept``: True to begin with the ranges that are on disk.
    """
    if not kept:
        shutil.rmtree(KEPT / "ranges", ignore_errors=True)
    products.forget()
    toprung.torch.enable(**{**ON, **more})
    for size in sizes:
        make(size)
        assert toprung.torch.wait()
    make(sizes[-1])  # takes over what was prepared
    log()
    known = [one for kin in products.now.kin.values() for one in kin.ranges]  # type: ignore[union-attr]
    return [one for one in known if any(one.first <= size <= one.last for size in sizes)]


def lines() -> list[str]:
    """Return what was launched, without addresses."""
    return [" | ".join("" if re.fullmatch("[0-9a-f]{9,}", word) else word for word in line.split(" | ")) for line in log()]


def of_python(found: products.ranges.Range, size: int) -> list[str]:
    """Return the driver calls of a plan that is made for one size alone, as ``lines``."""
    (selection,) = found.taken.call.executable.selections.values()
    call = found.taken.operands.at(found.taken.axis, size).call(SESSION, bool(found.native.fused), selection)
    assert call.receipt() == found.taken.at(size).receipt()
    plan = native_plan.NativePlan(NATIVE, SESSION, call.executable.plan)
    at = (ctypes.c_uint64 * 7)(*[1 << 40] * 7)
    assert NATIVE.toprung_launch(plan.handle, at, 1.0, 0.0, None) == 0
    return lines()


def sizes_inside_a_range_enter_no_python() -> None:
    *_, found = prepared(mm, 600, 610, 620)
    assert found.first == 513 and found.last == 1024 and found.taken is not None
    for size in (513, 1024, 700, 777, 640, 641):
        made: list[torch.Tensor] = []
        assert frames(lambda size=size, made=made: made.append(mm(size))) == []  # type: ignore[misc]
        assert made[0].shape == (size, 1024) and lines() == of_python(found, size)
        assert frames(lambda size=size: mm(size)) == [] and lines()  # type: ignore[misc]
    rows = {row.problem: row for row in toprung.torch.report().rows}
    row, first = rows["777×1024×1024"], rows["620×1024×1024"]
    assert row.taken == 2 and (row.kernel, row.path, row.layout, row.op) == (first.kernel, first.path, "NT", "mm")


def sizes_outside_are_pythons() -> None:
    prepared(mm, 600, 610, 620)
    (kin,) = products.now.kin.values()  # type: ignore[union-attr]
    for size in (next(n for n in range(2, 1030) if kin.find(n) is None), max(one.last for one in kin.ranges) + 1):
        assert frames(lambda size=size: mm(size)) and log() == []  # type: ignore[misc]


@contextlib.contextmanager
def to_the_end() -> Iterator[list[tuple[Any, ...]]]:
    """Have ranges looked for in this process, as long as sizes drawn are in none that is known; yield the requests."""
    asked, before = list[tuple[Any, ...]](), remembered.AHEAD
    remembered.AHEAD, background.HERE.apart = 600.0, lambda work, *more: asked.append(more) or work(*more)  # type: ignore[method-assign,func-returns-value]
    try:
        yield asked
    finally:
        remembered.AHEAD = before
        del background.HERE.apart


def other_ranges_are_found_without_being_asked_for() -> None:
    make = lambda n: torch.mm(W[n], B[:, :500])  # noqa: E731
    with to_the_end():
        prepared(make, 600, 610, 620)
    (kin,) = products.now.kin.values()  # type: ignore[union-attr]
    assert len(kin.ranges) > 4 and sum(kin.find(n) is not None for n in range(2, 1025)) > 900
    for size in random.Random(2).sample([n for n in range(300, 1025) if kin.find(n)], 60):
        assert frames(lambda size=size: make(size)) == []  # type: ignore[misc]
        assert (made := lines()) == (wanted := of_python(kin.find(size), size)), (size, made, wanted)


def ranges_of_an_earlier_process_are_read_from_disk() -> None:
    make = lambda n: torch.mm(W[n], B[:, :500])  # noqa: E731
    with to_the_end() as asked:
        *_, first = prepared(make, 600, 610, 620)
        whole = {one[1:3] for kin in products.now.kin.values() for one in kin.ranges}  # type: ignore[union-attr]
        files = list((KEPT / "ranges").iterdir())
        asked.clear()
        *_, again = prepared(make, 600, 610, first.last - 3, kept=True)
        (kin,) = products.now.kin.values()  # type: ignore[union-attr]
        assert not asked and (again.first, again.last, again.why) == (first.first, first.last, first.why)
        assert {one[1:3] for one in kin.ranges if one.native.verdict != bridge.UNKNOWN} == {w for w in whole if w[0] < w[1]}
        for size in random.Random(3).sample([n for n in range(300, 1025) if kin.find(n)], 40):  # each as if it had been found here
            assert frames(lambda size=size: make(size)) == [] and lines() == of_python(kin.find(size), size)  # type: ignore[misc]

        def is_asked_again(kept: bool = True, **more: Any) -> bool:
            asked.clear()
            assert prepared(make, 600, 610, 620, kept=kept, **more)
            return bool(asked)

        for file in files:
            file.write_bytes(file.read_bytes()[:-9])
        assert is_asked_again() and not is_asked_again()
        assert is_asked_again(precision="fp32") and is_asked_again(own=False)
        program = remembered.program
        remembered._fixed.cache_clear()
        remembered.program = lambda: "another one"
        assert is_asked_again()
        remembered._fixed.cache_clear()
        remembered.program = program


def layers_of_one_shape_enter_no_python_while_a_range_is_looked_for() -> None:
    make, held = lambda n: torch.mm(W[n], B[:, :480]), list[background.Job]()
    products.forget()
    toprung.torch.enable(**{**ON, "own": False})
    weighed, ranges.not_faster = ranges.not_faster, lambda *more: ""
    background.HERE.apart = lambda work, *more: work(*more)  # type: ignore[method-assign]  # the worker has the unpatched functions
    before, background.HERE.begin = background.HERE.begin, lambda job, order=0: (held.append(job), setattr(job, "begun", True))  # type: ignore[assignment]
    for size in (600, 610, 620):
        for _ in range(2):
            make(size)
    for size in (630, 640):
        for _ in range(2):
            assert frames(lambda size=size: make(size)) == [], size  # type: ignore[misc]
    for job in list(held):
        job.work()
    for size in (635, 640):
        assert frames(lambda size=size: make(size)) == [] and lines(), size  # type: ignore[misc]
    background.HERE.begin, ranges.not_faster = before, weighed
    del background.HERE.apart


def a_range_that_is_never_found_holds_up_nothing() -> None:
    found, longest = threading.Event(), background.LONGEST
    weighed, ranges.not_faster = ranges.not_faster, lambda *more: ""
    background.HERE.apart = lambda work, *more: found.wait() and work(*more)  # as a compiler that does not end
    make = lambda n: torch.mm(W[n], B[:, :488])  # noqa: E731
    for again in range(2):  # after `forget` the first search, which never ends, must hold up nothing either
        products.forget()
        toprung.torch.enable(**{**ON, "own": False})
        assert frames(lambda: [make(n) for n in (600, 610, 620)]) and not toprung.torch.wait(0.05), again
        log()
        for size in (630, 640):
            assert frames(lambda size=size: make(size)) == [] and log() == []  # type: ignore[misc]
        assert toprung.torch.report().taken == 0
    found.set()
    assert toprung.torch.wait(60)
    for size in (635, 640):
        assert frames(lambda size=size: make(size)) == [] and lines(), size  # type: ignore[misc]
    found.clear()
    toprung.torch.enable(**ON, reproducible=True)
    background.LONGEST = 0.05
    with pytest.raises(NotReady, match=r"the kernel of mm 800×488×1024 on cpu is not ready after 0\.05 s"):
        make(800)
    found.set()
    background.LONGEST, ranges.not_faster = longest, weighed
    assert toprung.torch.wait(60)
    del background.HERE.apart


def sizes_for_which_pytorch_is_as_fast_enter_no_python_either() -> None:
    before = products.slower, ranges.not_faster
    products.slower = lambda call, theirs: "as fast"
    ranges.not_faster = lambda *more: "as fast"
    background.HERE.apart = lambda work, *more: work(*more)  # the worker has the unpatched functions
    make = lambda n: torch.mm(W[n], B[:, :100])  # noqa: E731
    *_, found = prepared(make, 600, 610, 620, 621, own=False)
    assert found.taken is None and (found.first, found.last, found.why) == (513, 1024, "as fast")
    for size in (513, 1024, 700):
        assert frames(lambda size=size: make(size)) == [] and log() == []  # type: ignore[misc]
    products.slower, ranges.not_faster = before
    del background.HERE.apart


def what_was_decided_before_stays_as_it_was() -> None:
    make = lambda n: torch.mm(W[n], B[:, :512])  # noqa: E731
    found = prepared(make, 600, 610, 620, 630)
    *decided, whole = [(one.first, one.last) for one in found]
    assert decided == [(600, 600), (610, 610)] and whole[0] <= 600 and 630 <= whole[1]
    (kin,) = products.now.kin.values()  # type: ignore[union-attr]
    for size, first in ((600, 625), (610, 627)):  # as if the bridge had no more room for what it knew
        products.now.collect(forget=True)  # type: ignore[union-attr]
        assert frames(lambda n=first: make(n)) and frames(lambda n=first + 1: make(n)) == []  # type: ignore[misc]
        assert frames(lambda size=size: make(size)) and kin.find(size).taken is None  # type: ignore[misc,union-attr]


def batches_sums_and_biases_have_ranges_too() -> None:
    x, bias = torch.rand(1024), torch.rand(1100, 256)
    cases: dict[str, Callable[[int], Any]] = {
        "rows, bias": lambda n: torch.addmm(x, W[n], B.T),
        "depth": lambda n: torch.mm(W[n].T, torch.rand(n, 256)),
        "batch": lambda n: torch.bmm(torch.rand(n, 64, 64), torch.rand(n, 64, 64)),
        "rows of a batch": lambda n: torch.bmm(torch.rand(4, n, 64), torch.rand(4, 64, 64)),
        "bias of rows": lambda n: torch.addmm(bias[:n], W[n], B[:, :256]),
    }
    for name, make in cases.items():
        found = prepared(make, 600, 610, 620)
        assert found and found[-1].taken is not None, name
        for size in (found[-1].first, found[-1].last, 619):
            assert frames(lambda size=size, make=make: make(size)) == [] and log(), name  # type: ignore[misc]


def products_that_a_plan_does_not_tell_apart_enter_no_python() -> None:
    row, c = torch.rand(256), torch.empty(1100, 1024)
    cases: dict[str, tuple[Callable[[int], Any], ...]] = {
        "bias": (lambda n: torch.addmm(row, W[n], B[:, :256]), lambda n: torch.addmm(row[None], W[n], B[:, :256])),
        "β": (lambda n: torch.addmm(row, W[n], B[:, :256], beta=0.5), lambda n: torch.addmm(row, W[n], B[:, :256], beta=0)),
        "out": (mm, lambda n: torch.mm(W[n], B.T, out=c[:n])),
    }
    for name, (make, other) in cases.items():
        prepared(make, 600, 610, 620)
        for size in (630, 640, 650):  # the first sizes say that there are several
            other(size)
        assert toprung.torch.wait()
        log()
        for size in (633, 655, 701):
            assert frames(lambda size=size, other=other: other(size)) == [] and log(), name  # type: ignore[misc]
            assert frames(lambda size=size, make=make: make(size)) == [] and log(), name  # type: ignore[misc]


def sizes_of_a_range_stay_taken_however_many_kinds_are_left() -> None:
    weighed, ranges.not_faster = ranges.not_faster, lambda *more: ""
    background.HERE.apart = lambda work, *more: work(*more)  # type: ignore[method-assign]  # the worker has the unpatched functions
    make, few = lambda n: torch.mm(W[n], B[:, :480]), torch.rand(200, 200)
    prepared(make, 600, 610, 620, 621, 622, own=False)
    make(700)
    assert lines()
    for i in range(1, 201):
        for j in range(1, 201):
            torch.mm(few[:i, :j], few[:j, :1])
    for size in (700, 701):
        make(size)
        assert lines(), size
    ranges.not_faster = weighed
    del background.HERE.apart


def what_is_found_after_all_is_forgotten_decides_nothing() -> None:
    make = lambda n: torch.mm(W[n], B[:, :496])  # noqa: E731
    asked, ends, held = threading.Event(), threading.Event(), background.HERE.apart

    def late(work: Any, *more: Any) -> Any:
        asked.set()
        ends.wait(60)
        return held(work, *more)

    products.forget()
    toprung.torch.enable(**ON)
    make(600)
    assert toprung.torch.wait()
    make(610)
    background.HERE.apart = late  # type: ignore[method-assign,assignment]
    frames(lambda: make(620))
    assert asked.wait(60)
    (old,) = products.now.kin.values()  # type: ignore[union-attr]
    products.forget()
    toprung.torch.enable(**ON)
    del background.HERE.apart
    ends.set()
    assert toprung.torch.wait() and old.ranges == [] and products.now.kin == {}  # type: ignore[union-attr]
    assert frames(lambda: make(630)) and log() == [], "decided anew"  # type: ignore[misc]
    prepared(make, 600, 610, 620)
    entry = next(one for one in products.now.entries.every() if one.kin is not None)  # type: ignore[union-attr]
    products.now._leave_ranges()  # type: ignore[union-attr]  # as another thread may while the entry is made
    entry.call = None
    products.now.range_of(entry)  # type: ignore[union-attr]
    assert entry.call is not None, "it would be PyTorch's for ever"


def a_bias_of_one_column_has_its_own_stride_at_each_size() -> None:
    make = lambda n: torch.baddbmm(torch.rand(4, n, 1), torch.rand(4, n, 512), torch.rand(4, 512, 512))  # noqa: E731
    prepared(make, 600, 610, 620)
    assert frames(lambda: make(700)) and log() == []  # type: ignore[misc]


def a_range_ends_where_another_kernel_begins() -> None:
    x, y = torch.rand(2048, 768), torch.rand(2048, 3072)
    found = prepared(lambda n: torch.mm(x[:n].T, y[:n]), 1056, 1057, 1108)[-1]
    assert found.taken is not None
    kernels, (selection,) = set(), found.taken.call.executable.selections.values()
    for size in (found.first, found.last, 1025, 1056, 1600, 2048):
        there = found.taken.operands.at(found.taken.axis, size)
        plan = there.call(SESSION, False, selection).executable.plan
        kernels.add(tuple(launch.kernel.function for launch in plan.launches))
        if found.first <= size <= found.last:
            assert (ranges.words_of(SESSION, plan, there) == found.taken.made.at(size)).all(), size
    assert len(kernels) > 1, "all sizes have the same kernels: take others"


def threads_lose_no_product_while_ranges_come_and_go() -> None:
    make = lambda n: torch.mm(W[n], B[:, :72])  # noqa: E731
    found = prepared(make, 600, 610, 620)[-1]
    before, inside = toprung.torch.report().taken, range(621, found.last + 1)
    sizes = [random.Random(seed % 2).choices(inside, k=300) for seed in range(4)]
    several = [threading.Thread(target=lambda some=some: [make(n) for n in some]) for some in sizes]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert toprung.torch.report().taken == before + 1200
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            make(random.choice(inside))

    several = [threading.Thread(target=work) for _ in range(4)]
    for one in several:
        one.start()
    for cols in range(76, 92, 4):
        other = lambda n, cols=cols: torch.mm(W[n], B[:, :cols])  # noqa: E731
        prepared(other, 600, 610, 620)
        for n in inside:
            other(n)
        toprung.torch.disable()
    stop.set()
    for one in several:
        one.join()
    products.forget()
    products.forget()
    assert products._covering == {}


def ranges_passed_on_while_others_are_forgotten_stay() -> None:
    make = lambda n: torch.mm(W[n], B[:, :72])  # noqa: E731
    prepared(make, 600, 610, 620)
    its = products.now
    assert its is not None
    (kin,) = (one for one in its.kin.values() if one.ranges)
    forget, other = its.state.forget, threading.Thread(target=its.cover, args=(kin,))

    def meanwhile() -> None:
        forget()
        other.start()
        other.join(0.2)

    its.state.forget = meanwhile  # type: ignore[method-assign]
    its.collect(forget=True)
    its.state.forget = forget  # type: ignore[method-assign]
    other.join()
    assert {ctypes.addressof(one.native) for one in kin.ranges} <= products._covering.keys()
    make(611)


def many_sizes_hold_nothing() -> None:
    before = 0
    for step in range(1, 7):
        make = lambda n, cols=8 * step: torch.mm(W[n], B[:, :cols])  # noqa: E731
        found = prepared(make, 600, 610, 620)[-1]
        for size in range(found.first, found.last + 1):
            make(size)
        products.forget()
        before = resident() if step == 3 else before
    assert resident() - before < 8e6


HELP = "of_python", "to_the_end"

if __name__ == "__main__":
    for name, one in list(globals().items()):
        if (
            callable(one)
            and getattr(one, "__module__", "") == "__main__"
            and "_" in name
            and name not in ("of_python", "to_the_end")
        ):
            one()
            print(name)
    shutil.rmtree(KEPT)
