"""Competitors that do something wrong, or say what they did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._host import BoundOnHost, Stacks
from toprung.lab.competitor import BoundCompetitor, Promise
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32


def fp16(values: F32) -> F32:
    return values.astype(np.float16).astype(np.float32)


def bf16(values: F32) -> F32:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


class Planted(Peer):
    """NumPy's product of operands that went through ``narrow``; ``called`` hears of every call."""

    def __init__(
        self,
        name: str = "planted",
        precision: str = "fp32",
        narrow: Callable[[F32], F32] = lambda values: values,
        called: Callable[[object], None] = lambda call: None,
    ) -> None:
        self.name = self.title = name
        self.promise, self._narrow, self._called = Promise(precision), narrow, called

    def absent(self, device: Device) -> str:
        return ""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = self.product(placed)

        def bind(stacks: Stacks) -> Callable[[], object]:
            a, b, c = stacks

            def call() -> None:
                self._called(call)
                np.matmul(self._narrow(np.ascontiguousarray(a)), self._narrow(np.ascontiguousarray(b)), out=c)

            return call

        return BoundOnHost(placed.operands, problem, bind)


class Failing(Planted):
    """Raises what only somebody else's package knows."""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        raise RuntimeError("no kernel image is available")
