"""Calls of toprung.matmul inside a known range need no selection; a program of test_taken.py."""

from __future__ import annotations

import ctypes
import gc
import random
import re
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import toprung
from h200 import SESSION, decided
from stand_in import log
from test_bridge import frames
from toprung.arrays.torch import adapter
from toprung.backends import native_plan
from toprung.blas import background, calls, fresh, remembered, routines
from toprung.blas.operands import View
from toprung.blas.product import OnDevice
from toprung.errors import LaunchError, Overlap
from toprung.execute.executor import executor_of

A, B, C, W = (torch.rand(size, size) for size in (16, 1024, 1024, 1100))
ENTRY = native_plan.loaded(Path(sys.argv[1]))
native_plan.entry = lambda: ENTRY  # type: ignore[assignment]
toprung.matmul(A, A, own=True)  # find a device before the stand-in is installed
calls.enter(adapter)
type(adapter).queue = lambda self, thing, home: None  # type: ignore[method-assign]
OnDevice.run = lambda *arguments: None  # type: ignore[method-assign,assignment]  # Python's own launches are of no interest
KEPT = tempfile.TemporaryDirectory()
remembered.cache_dir = lambda: Path(KEPT.name)
DECIDED: list[OnDevice] = []


def counted(*product: Any) -> OnDevice:
    DECIDED.append(decided(*product))
    return DECIDED[-1]


routines.decided = counted  # type: ignore[assignment]


def rows(size: int) -> Any:
    return toprung.matmul(W[:size, :1024], B, own=True)


def ranges_of(make: Callable[[int], Any], *sizes: int) -> list[fresh.Range]:
    """Make calls of these sizes, wait for the planning, and return the ranges that are known then."""
    calls.forget()
    for size in sizes:
        make(size)
        background.HERE.wait()
    log()
    return list({id(found): found for one in calls.kin.every() for found in one.ranges}.values())


def lines() -> list[str]:
    """Return the launches, without addresses."""
    return [" | ".join("" if re.fullmatch("[0-9a-f]{8,}", word) else word for word in line.split(" | ")) for line in log()]


def planned(found: fresh.Range, size: int) -> OnDevice:
    """Return the call of a size, with a plan made for that size alone."""
    return found.operands.at(found.axis, size).call(SESSION, False, *found.call.executable.selections.values())


def plan_of(found: fresh.Range, size: int) -> list[str]:
    """Return the driver calls of a plan that is made for one size alone, as ``lines``."""
    made = native_plan.NativePlan(ENTRY.library, SESSION, planned(found, size).executable.plan)
    at = (ctypes.c_uint64 * 7)(*[1 << 40] * 7)
    assert ENTRY.library.toprung_launch(made.handle, at, 1.0, 0.0, None) == 0
    return lines()


def sizes_inside_a_range_are_not_selected() -> None:
    (found,) = ranges_of(rows, 600, 610, 620)
    DECIDED.clear()
    for size in (found.made.first, found.made.last, 601, 622):
        for _ in range(2):
            assert rows(size).shape == (size, 1024) and lines() == plan_of(found, size)
        left = toprung.last_receipt()
        assert left.problem == f"{size}×1024 · 1024×1024" and left.kernels == found.call.executable.kernels
        assert left == planned(found, size).receipt() and left.counters == found.call.executable.counters != ()
        call = fresh.Inside(found, size, A)
        assert calls.START.unpack(call.native[0])[3:] == call.reach == planned(found, size).reach  # type: ignore[index]
        native_plan.launcher(SESSION, call.executable.plan)(1 << 40, 0, 1 << 40, 0, 1 << 40, 0, 1.0, 0.0, 0, 1 << 40)
        assert lines() == plan_of(found, size)
    assert DECIDED == []
    entered = {one.rpartition("/")[2] for one in frames(lambda: rows(623))}
    assert {"routines.py:matmul", "fresh.py:inside"} < entered and "operands.py:arranged" not in entered
    for size in (found.made.first - 1, found.made.last + 1):
        assert rows(size).shape == (size, 1024)
    assert len(DECIDED) == 2
    for key in [key for key in calls.kin if key[0] is adapter]:  # type: ignore[index]
        del calls.kin[key]
    rows(found.made.first - 2)
    rows(found.made.first + 2)
    assert len(DECIDED) == 3
    calls.forget()
    rows(601)
    assert len(DECIDED) == 4


def each_size_has_the_configuration_that_is_selected_for_it() -> None:
    # from 257 to 288 another configuration is best, by less than 5 %
    (found,) = ranges_of(lambda n: toprung.matmul(W[:n, :1024], B, precision="fp32", own=True), 290, 310, 300)
    (selected,) = found.call.executable.selections.values()
    sizes = {found.made.first, found.made.last, *random.Random(1).choices(range(found.made.first, found.made.last + 1), k=30)}
    for size in sizes:
        (desc,) = found.operands.at(found.axis, size).program(False).descs
        assert executor_of(SESSION).select(desc, True, "fp32").candidate == selected.candidate


def depth_batches_and_given_results_have_ranges_too() -> None:
    cases: dict[str, Callable[[int], Any]] = {
        "out": lambda n: toprung.matmul(W[:n, :1024], B, C[:n], own=True),
        "depth": lambda n: toprung.matmul(W[:300, :n], B[:n], own=True),
        "batch": lambda n: toprung.matmul(torch.rand(n, 64, 64), torch.rand(n, 64, 64), own=True),
        "batch with one B": lambda n: toprung.matmul(torch.rand(n, 8, 64).transpose(1, 2), torch.rand(8, 64), own=True),
        "rows of a batch": lambda n: toprung.matmul(torch.rand(4, n, 64), torch.rand(4, 64, 64), own=True),
    }
    for name, make in cases.items():
        (found,) = ranges_of(make, 600, 610, 620)
        DECIDED.clear()
        for size in (found.made.first, found.made.last, 619):
            make(size)
            # real kernels have other arguments than the stand-in's
            assert [a.split(" | ")[0] for a in lines()] == [a.split(" | ")[0] for a in plan_of(found, size)], name
        assert DECIDED == []


def a_result_that_overlaps_an_operand_is_refused_at_a_new_size() -> None:
    memory = torch.rand(2100, 1024)
    (found,) = ranges_of(lambda n: toprung.matmul(memory[:n], B, memory[n : 2 * n], own=True), 600, 610, 620)
    for size in (found.made.last, 603):
        one, other = memory[:size], memory[size - 1 : 2 * size - 1]  # they have a row in common
        for a, out in ((one, other), (other, one)):
            with pytest.raises(Overlap):
                toprung.matmul(a, B, out, own=True)
        assert log() == []
    toprung.matmul(memory[:603], B, memory[603:1206], own=True)
    assert log()


def plans_of_sizes_are_freed_when_they_are_forgotten() -> None:
    ranges_of(rows, 600, 610, 620)
    rows(603)
    gone = weakref.ref(next(call for call in calls._calls.every() if call.shape == (603, 1024)))
    rows(604)  # the last receipt is of another call
    calls.forget()
    gc.collect()
    assert gone() is None


def a_batch_of_one_is_in_no_range_of_whole_batches() -> None:
    batch = torch.rand(640, 64, 64)
    (found,) = ranges_of(lambda n: toprung.matmul(batch[:n], batch[:n], own=True), 600, 610, 620)
    assert found.made.first <= 630 <= found.made.last
    DECIDED.clear()
    toprung.matmul(batch[:630], batch[:1], own=True)
    assert [call.executable.program.descs[0].stride_b for call in DECIDED] == [0]


def host_tensors_are_never_started_by_the_range_of_their_copies() -> None:
    """C++ has a key of theirs, too, once it knows PyTorch; a kernel would be given the host's addresses."""

    def copied(alpha: float, a: View, b: View, *more: Any) -> OnDevice:
        return counted(alpha, *(one._replace(operand=one.operand._replace(thing=None)) for one in (a, b)), *more)

    routines.decided = copied  # type: ignore[assignment]
    (found,) = ranges_of(rows, 600, 610, 620)
    DECIDED.clear()
    rows(630)
    assert found.made.first <= 630 <= found.made.last and len(DECIDED) == 1
    assert DECIDED[0].executable.plan.words is not None, "the range has the copies' plan, at least"
    routines.decided = counted  # type: ignore[assignment]


def a_size_inside_a_range_is_not_launched_by_the_plan_of_another() -> None:
    (found,) = ranges_of(rows, 600, 610, 620)
    native_plan.entry = lambda: None  # type: ignore[assignment]
    with pytest.raises(LaunchError, match="C\\+\\+"):
        native_plan.launcher(SESSION, found.at(601).executable.plan)
    native_plan.entry = lambda: ENTRY  # type: ignore[assignment]


def without_a_process_of_its_own_nothing_is_planned() -> None:
    before, sys.executable, background.HERE = sys.executable, "a program with Python inside", background.Background()
    assert ranges_of(rows, 600, 610, 620), "ranges that another process found serve"
    remembered.cache_dir = lambda: Path(KEPT.name, "nothing")
    assert ranges_of(rows, 600, 610, 620) == []
    sys.executable = before


if __name__ == "__main__":
    for name, one in list(globals().items()):
        if callable(one) and getattr(one, "__module__", "") == "__main__" and "_" in name and name[-3:] != "_of":
            one()
            print(name)
