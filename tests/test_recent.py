"""Caches of the library: what is in use survives when they are full, at the cost of a dictionary's look-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import toprung
from toprung.blas import calls
from toprung.device import Device
from toprung.dispatch.recent import Recent
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc


def test_the_last_that_were_used_are_there_and_at_most_twice_as_many() -> None:
    dropped: list[Any] = []
    cache = Recent[int](4, drop=dropped.extend)
    cache.keep("hot", -1)
    for n in range(40):
        cache.keep(n, n)
        assert cache["hot"] == -1 and cache[n] == n and cache["other"] is None
        assert len(cache.every()) <= 8 and {cache[i] for i in range(max(n - 1, 0), n + 1)} <= set(range(40))
    assert sorted([*dropped, *cache.every()]) == list(range(-1, 40))
    cache.clear()
    assert cache.every() == [] and cache["hot"] is None


def test_a_heavy_value_takes_more_room_and_one_that_is_too_heavy_none() -> None:
    cache = Recent[int](10, weigh=lambda weight: weight)
    for key in range(5):
        cache.keep(key, 4)
    assert len(cache.every()) <= 4
    cache.keep("heavy", 11)
    assert cache["heavy"] is None and cache[4] == 4


def test_calls_and_executables_in_use_survive_others(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toprung.blas.product.best", lambda: device)
    monkeypatch.setattr(calls, "_calls", Recent(4))
    executor = executor_of(toprung.backends.session_for(device))
    monkeypatch.setattr(executor, "_kept", Recent(4))
    a, b = np.ones((8, 8), np.float32), np.ones((8, 16), np.float32)
    toprung.matmul(a, b)
    toprung.matmul(a, b)
    (call,) = calls._calls.every()
    executable = executor.product(GemmDesc(8, 16, 8))
    for n in range(1, 13):
        toprung.matmul(a, b[:, :n])
        toprung.matmul(a, b)
        executor.product(GemmDesc(8, n, 8))
        assert executor.product(GemmDesc(8, 16, 8)) is executable
    assert call in calls._calls.every() and len(calls._calls.every()) <= 8
