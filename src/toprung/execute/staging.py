"""Host staging: panels of host arrays go to a device's memory through page-locked buffers while others are computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer
from toprung.dispatch.select import ORDINARY, faster_families
from toprung.errors import OutOfDeviceMemory
from toprung.execute.executable import Executable
from toprung.execute.executor import Executor
from toprung.execute.host import limit
from toprung.gemm.layout import Layout, tight

Array = NDArray[np.float32]

SHARE = 0.8
"""Share of the device's memory that a product may take where no limit is set."""

PIECE = 32 << 20
"""Bytes of an operand's panel above which it is cut, so that transfers overlap computation."""


def cut(batch: int, rows: int, cols: int, depth: int, budget: int, piece: int = PIECE) -> tuple[int, int, int, int]:
    """Return matrices, rows, columns and depth of a panel such that two panels of each operand fit into ``budget`` bytes.

    Whole matrices are preferred; then B stays whole and A and C are cut into rows; then all three are cut. Panels are made smaller
    than they must be where that lets transfers overlap computation.

    Raises
    ------
    OutOfDeviceMemory
        not even single rows and columns fit
    """

    def fits(n: int, m: int, w: int, k: int) -> bool:
        return 8 * n * (m * k + k * w + m * w) <= budget

    if fits(1, rows, cols, depth):
        each = 4 * (rows * depth + depth * cols + rows * cols)
        if batch > 1:
            n = max(1, min(batch, budget // (2 * each), max(1, piece // each)))
            if n > 1 or each <= piece:
                return n, rows, cols, depth
        share = max(1, math.ceil(4 * rows * max(depth, cols) / piece))
        m = math.ceil(rows / share)
        return 1, min(rows, -(-m // 64) * 64), cols, depth
    m, w, k = rows, cols, depth
    while not fits(1, m, w, k):
        # the longest side of the operand that takes most; depth last, because cutting it reads C again
        if max(m, w) >= min(k, 256) and max(m, w) > 1:
            if m >= w:
                m = -(-m // 2)
            else:
                w = -(-w // 2)
        elif k > 1:
            k = -(-k // 2)
        else:
            raise OutOfDeviceMemory("the device", 8 * (m * k + k * w + m * w), budget, "two panels of one row and column each")
    return 1, m, w, k


def staged(
    executor: Executor, alpha: float, a: Array, b: Array, beta: float, c: Array, precision: str, select: Callable[..., Executable]
) -> tuple[Executable, str]:
    """Compute a product through the device's memory, cut into panels.

    Return, when ``c`` is filled, the executable of the last panel and a sentence on what was moved. ``select``: function of three
    layouts, α and β that returns the executable of a panel.
    """
    if 0 in c.shape:
        x, y, z = (Layout(x.shape, tuple(s // 4 for s in x.strides), 4) for x in (a, b, c))
        return select(x, y, z, alpha, beta), ""
    with executor.lane.lock:
        return _Staged(executor, alpha, a, b, beta, c, precision, select).run()


class _Slot:
    """Device memory for one panel of an operand, with the events after which it holds its panel and may be reused."""

    def __init__(self, buffer: Buffer, number: int) -> None:
        self.buffer, self.number = buffer, number
        self.free: Any = None
        self.ready: Any = None
        self.holds: tuple[int, ...] | None = None


class _Staged:
    """One staged product while it is computed."""

    def __init__(
        self, executor: Executor, alpha: float, a: Array, b: Array, beta: float, c: Array, precision: str, select: Any
    ) -> None:  # fmt: skip
        self.executor, self.lane, self.session = executor, executor.lane, executor.session
        self.alpha, self.beta, self.precision, self.select = alpha, beta, precision, select
        self.batch = c.shape[:-2]
        self.arrays = [a, b, c]
        (self.rows, self.depth), self.cols = a.shape[-2:], b.shape[-1]

    def run(self) -> tuple[Executable, str]:
        session, lane = self.session, self.lane
        a, b, c = self.arrays
        total = math.prod(self.batch)
        reads = self.alpha != 0 and self.depth > 0
        budget = limit() or int(SHARE * session.device.memory_bytes)
        if any(not f.supports(session.device, ORDINARY) for f in faster_families(self.precision)):
            budget = budget * 2 // 3  # for the split operands of a panel: half of what their two places take
        n, m, w, k = cut(total, self.rows, self.cols, self.depth if reads else 0, budget)
        k = k if reads else 0
        sizes = (n * m * k, n * k * w, n * m * w)
        slots = [[_Slot(lane.memory(f"{name}{i}", size), i) for i in range(2)] for name, size in zip("ABC", sizes, strict=True)]
        flat, target = [_Stack(a), _Stack(b)], _Stack(c)
        ready: Any = None
        turn, pieces = 0, 0
        pending: list[Any] = []
        transfers: dict[str, int] = {}
        try:
            for i in range(0, total, n):
                for p in range(0, self.rows, m):
                    for q in range(0, self.cols, w):
                        box = (i, min(n, total - i), p, min(m, self.rows - p), q, min(w, self.cols - q))
                        turn ^= 1
                        out = slots[2][turn]
                        pending = self._collect(pending, target, keep=1)
                        ready = self._panel(box, k, flat, target, slots, out, transfers)
                        pending.append((box, out, self._fetch(box, out, turn)))
                        pieces += 1
            self._collect(pending, target, keep=0)
        except BaseException:
            for queue in (lane.inward, lane.work, lane.outward):
                session.settle_queue(queue)
            raise
        gone = 4 * sum(transfers.values())
        moved = f"a, b and c: host arrays, {gone:,} bytes to {session.device} and {4 * target.size:,} back"
        moved += f", in {pieces} panels of {n}×({m}×{k} · {k}×{w})" if pieces > 1 else ""
        return ready, moved

    def _panel(
        self, box: tuple[int, ...], k: int, flat: list[_Stack], target: _Stack, slots: list[list[_Slot]], out: _Slot,
        transfers: dict[str, int],
    ) -> Any:  # fmt: skip
        """Send the panels that are missing and compute one panel of C, over its whole depth."""
        session, lane = self.session, self.lane
        i, n, p, m, q, w = box
        if self.beta != 0:
            self._send("C", out, target, (i, n, p, m, q, w), transfers)
        elif out.free is not None:
            session.wait(lane.work, out.free)
        ready = None
        for r in range(0, self.depth, k) if k else [0]:
            d = min(k, self.depth - r) if k else 0
            x, y, z = (Layout(s, tight(s), 4) for s in ((n, m, d), (n, d, w), (n, m, w)))
            beta = self.beta if r == 0 else 1.0
            ready = self.select(x, y, z, self.alpha, beta)
            first = self._slot("A", slots[0], flat[0], (i, n, p, m, r, d), transfers) if d else None
            second = self._slot("B", slots[1], flat[1], (i, n, r, d, q, w), transfers) if d else None
            at_a, at_b = (s.buffer.handle if s else 0 for s in (first, second))
            ready.run(at_a, 0, at_b, 0, out.buffer.handle, 0, self.alpha, beta, lane.work)
            done = session.record(lane.work)
            for slot in (first, second):
                if slot:
                    slot.free = done
        out.free = session.record(lane.work)
        out.holds = None
        return ready

    def _slot(self, name: str, pair: list[_Slot], source: Any, box: tuple[int, ...], transfers: dict[str, int]) -> _Slot:
        """Return the slot that holds a panel; fill one if none does."""
        for slot in pair:
            if slot.holds == box:
                pair.sort(key=lambda s: s is slot)  # the other one is the next to be filled
                self.session.wait(self.lane.work, slot.ready)
                return slot
        slot = pair[0]
        pair.reverse()
        self._send(name, slot, source, box, transfers)
        return slot

    def _send(self, name: str, slot: _Slot, source: Any, box: tuple[int, ...], transfers: dict[str, int]) -> None:
        """Fill a slot with a panel by way of page-locked memory; the work queue waits for the transfer, the host does not."""
        session, lane = self.session, self.lane
        i, n, p, m, q, w = box
        staging = lane.pinned(f"{name}{slot.number}", n * m * w)
        if slot.ready is not None:
            session.settle(slot.ready)  # the page-locked memory is still being read
        if slot.free is not None:
            session.wait(lane.inward, slot.free)
        source.read(staging.reshape(n, m, w), i, p, q)
        session.copy_in(lane.inward, slot.buffer, 0, staging)
        slot.ready = session.record(lane.inward)
        slot.holds = box
        session.wait(lane.work, slot.ready)
        transfers[name] = transfers.get(name, 0) + n * m * w

    def _fetch(self, box: tuple[int, ...], out: _Slot, turn: int) -> tuple[NDArray[np.float32], Any]:
        """Start to copy a panel of C to page-locked memory; return that and the event after which it is filled."""
        session, lane = self.session, self.lane
        _, n, _, m, _, w = box
        staging = lane.pinned(f"out{turn}", n * m * w)
        session.wait(lane.outward, out.free)
        session.copy_out(lane.outward, staging, out.buffer, 0)
        out.free = session.record(lane.outward)
        return staging.reshape(n, m, w), out.free

    def _collect(self, pending: list[Any], target: Any, keep: int) -> list[Any]:
        """Write returned panels into the result until at most ``keep`` are pending; return those."""
        while len(pending) > keep:
            (i, _, p, _, q, _), _, (staging, event) = pending.pop(0)
            self.session.settle(event)
            target.write(staging, i, p, q)
        return pending


class _Stack:
    """A batch of matrices, read and written in panels by the number of the first matrix and the panel's corner."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self.array, self.batch = array, array.shape[:-2]
        self.size = array.size
        self.flat = len(self.batch) <= 1

    def read(self, into: NDArray[np.float32], i: int, p: int, q: int) -> None:
        """Fill ``into`` with the panel at matrix i, row p, column q."""
        n, m, w = into.shape
        for j in range(n) if not self.flat else ():
            into[j] = self.array[np.unravel_index(i + j, self.batch)][p : p + m, q : q + w]
        if self.flat:
            into[...] = self.array[i : i + n, p : p + m, q : q + w] if self.batch else self.array[None, p : p + m, q : q + w]

    def write(self, source: NDArray[np.float32], i: int, p: int, q: int) -> None:
        """Write the panel ``source`` at matrix i, row p, column q."""
        n, m, w = source.shape
        for j in range(n) if not self.flat else ():
            self.array[np.unravel_index(i + j, self.batch)][p : p + m, q : q + w] = source[j]
        if self.flat and self.batch:
            self.array[i : i + n, p : p + m, q : q + w] = source
        elif self.flat:
            self.array[p : p + m, q : q + w] = source[0]
