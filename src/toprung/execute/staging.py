"""Host staging: panels of host arrays go to a device's memory through page-locked buffers while others are computed."""

from __future__ import annotations

import math
import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Session
from toprung.device import Device
from toprung.dispatch.select import ORDINARY, faster_families
from toprung.errors import BadArgument, OutOfDeviceMemory
from toprung.execute.programs import CompiledProgram, prepared
from toprung.gemm.lowering import Layout, tight
from toprung.kernels.base import KernelFamily
from toprung.kernels.registry import families

Array = NDArray[np.float32]

LIMIT = "TOPRUNG_DEVICE_MEMORY"
"""Environment variable with the bytes of device memory that a product of host arrays may take; if set, CPU devices copy, too."""

SHARE = 0.8
"""Share of the device's memory that a product may take where no limit is set."""

PIECE = 32 << 20
"""Bytes of an operand's panel above which it is cut, so that transfers overlap computation."""

KEPT = 64 << 20
"""Bytes of the largest piece of device memory that is kept from one product to the next."""

LINK = 2.0e10
"""Bytes per second between host and device that ``preferred`` assumes."""
STARTING = 6e-5
"""Least seconds of a product through a device's memory that ``preferred`` assumes."""


class _At:
    """An object with the array interface of memory that somebody else owns."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, writable: bool) -> None:
        self.owner = owner
        self.__array_interface__: dict[str, Any] = {
            "shape": shape, "strides": tuple(4 * s for s in strides), "typestr": "<f4", "data": (address, not writable),
            "version": 3,
        }  # fmt: skip


def array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, writable: bool) -> NDArray[np.float32]:
    """Return a NumPy array over memory that ``owner`` keeps; strides in elements."""
    return np.asarray(_At(address, shape, strides, owner, writable))


def limit() -> int | None:
    """Return the bytes of device memory that the environment allows, None if it sets no limit."""
    text = os.environ.get(LIMIT)
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise BadArgument(f"{LIMIT} is a number of bytes above 0, not {text!r}")
    return value


def preferred(device: Device, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[KernelFamily | None, str]:
    """Return the host's BLAS and the reason why it suits host arrays better; None and an empty text if it does not.

    Without a GPU it always does. With one, the predicted time of the transfers is compared with that of the host's BLAS.
    """
    blas = next((f for f in families() if f.memory == "host"), None)
    if blas is None:
        return None, ""
    if device.kind != "gpu":
        return blas, "the arrays are on the host and there is no GPU: NumPy's BLAS is what was there already"
    (rows, depth), cols, batch = a[-2:], b[-1], math.prod(a[:-2])
    there = STARTING + 4 * batch * (rows * depth + depth * cols + rows * cols) / LINK
    if blas.host_seconds(2 * batch * rows * cols * depth) <= there:
        return blas, f"moving the arrays to {device} would take longer than NumPy's BLAS does"
    return None, ""


def numpy_product(
    alpha: float, a: NDArray[np.float32], b: NDArray[np.float32], beta: float, c: NDArray[np.float32]
) -> None:  # fmt: skip
    """Compute C = α·A·B + β·C with NumPy; β = 0 does not read C, α = 0 reads neither A nor B."""
    with np.errstate(all="ignore"):
        if alpha == 0 or a.shape[-1] == 0:
            if beta == 0:
                c[...] = 0
            else:
                c *= np.float32(beta)
            return
        if alpha == 1 and beta == 0:
            np.matmul(a, b, out=c)
            return
        product = np.matmul(a, b)
        product *= np.float32(alpha)
        if beta != 0:
            product += np.float32(beta) * c
        c[...] = product


class _Lane:
    """Resources of a session for one staged product at a time: queues for both directions and the work, and kept memory."""

    def __init__(self, session: Session) -> None:
        self.lock = threading.Lock()
        self.session = session
        self.inward, self.work, self.outward = (session.new_queue() for _ in range(3))
        self._pinned: dict[str, NDArray[np.uint8]] = {}
        self._memory: dict[str, Buffer] = {}

    def pinned(self, name: str, elements: int) -> NDArray[np.float32]:
        """Return page-locked memory that is kept under a name, replaced by a larger piece when more is needed."""
        found = self._pinned.get(name)
        if found is None or found.nbytes < 4 * elements:
            self._pinned.pop(name, None)
            found = self._pinned[name] = self.session.pinned(1 << max(4 * elements - 1, 1).bit_length())
        return found[: 4 * elements].view(np.float32)

    def memory(self, name: str, elements: int) -> Buffer:
        """Return device memory; pieces up to ``KEPT`` bytes are kept under a name."""
        nbytes = 4 * max(elements, 1)
        if nbytes > KEPT:
            return self.session.allocate(nbytes)
        found = self._memory.get(name)
        if found is None or found.nbytes < nbytes:
            self._memory.pop(name, None)
            found = self._memory[name] = self.session.allocate(1 << (nbytes - 1).bit_length())
        return found


_lanes: WeakKeyDictionary[Session, _Lane] = WeakKeyDictionary()
_making = threading.Lock()


def _lane(session: Session) -> _Lane:
    with _making:
        if session not in _lanes:
            _lanes[session] = _Lane(session)
        return _lanes[session]


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


def budget_of(session: Session) -> int:
    """Return the bytes of device memory that a product of host arrays may take."""
    return limit() or int(SHARE * session.device.memory_bytes)


def staged(
    session: Session, alpha: float, a: Array, b: Array, beta: float, c: Array, own: bool, precision: str
) -> tuple[CompiledProgram, str]:
    """Compute a product through the device's memory, cut into panels.

    Returns
    -------
    The program of the last panel and a sentence on what was moved, when ``c`` is filled.
    """
    if 0 in c.shape:
        x, y, z = (Layout(x.shape, tuple(s // 4 for s in x.strides), 4) for x in (a, b, c))
        return prepared(session, x, y, z, alpha, beta, own, precision), ""
    lane = _lane(session)
    with lane.lock:
        return _Staged(lane, alpha, a, b, beta, c, own, precision).run()


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
        self, lane: _Lane, alpha: float, a: Array, b: Array, beta: float, c: Array, own: bool, precision: str
    ) -> None:  # fmt: skip
        self.lane, self.session = lane, lane.session
        self.alpha, self.beta, self.own, self.precision = alpha, beta, own, precision
        self.batch = c.shape[:-2]
        self.arrays = [a, b, c]
        (self.rows, self.depth), self.cols = a.shape[-2:], b.shape[-1]

    def run(self) -> tuple[CompiledProgram, str]:
        session, lane = self.session, self.lane
        a, b, c = self.arrays
        total = math.prod(self.batch)
        reads = self.alpha != 0 and self.depth > 0
        budget = budget_of(session)
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
            ready = prepared(session, x, y, z, self.alpha, beta, self.own, self.precision)
            first = self._slot("A", slots[0], flat[0], (i, n, p, m, r, d), transfers) if d else None
            second = self._slot("B", slots[1], flat[1], (i, n, r, d, q, w), transfers) if d else None
            handles = [s.buffer.handle if s else None for s in (first, second, out)]
            ready.run(handles, (0, 0, 0), self.alpha, beta, lane.work, self._scratch)
            done = session.record(lane.work)
            for slot in (first, second):
                if slot:
                    slot.free = done
        out.free = session.record(lane.work)
        out.holds = None
        return ready

    def _scratch(self, elements: int) -> tuple[Any, int]:
        raise AssertionError("panels lie as kernels want them")

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
