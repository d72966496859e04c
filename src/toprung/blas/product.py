"""Calls that are decided: who computes a product of arrays, and how it gets there; everything but addresses, α and β.

``decided`` looks once; what it returns can run again and again on operands that differ in nothing but their addresses.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from toprung import backends
from toprung.arrays import adapters
from toprung.arrays.base import HOST, Operand
from toprung.arrays.numpy import adapter as numpy_adapter
from toprung.arrays.sessions import best, chosen, session_at
from toprung.backends.base import KEPT_BYTES, Session
from toprung.backends.waiting import gate
from toprung.blas import receipt
from toprung.blas.operands import How, View, arranged
from toprung.blas.receipt import Receipt
from toprung.device import Device
from toprung.dispatch import autotune, known_precision
from toprung.errors import NoDevice, Unsupported
from toprung.execute import host
from toprung.gemm.overlap import array_at, span

if TYPE_CHECKING:
    from toprung.execute.executable import Executable
    from toprung.execute.executor import Executor
    from toprung.kernels.base import KernelFamily, PackedOperand


class Call(ABC):
    """A call that is decided.

    Attributes
    ----------
    adapter, home : adapter of the first operand's library, and the place of its memory
    shape : shape of the result as the caller sees it; set by who keeps the call
    depends : True if ``is_valid`` must be asked before each start
    native : what ``native/entry.cpp`` starts it by, see ``calls.by_native``; None where only Python can
    """

    shape: tuple[int, ...] = ()
    depends = False
    native: tuple[Any, ...] | None = None

    def __init__(self, a: View, b: View, c: View, how: How) -> None:
        self.how, self.adapter, self.home = how, a.operand.adapter, a.operand.home
        self.views = tuple((v.shape, v.strides) for v in (a, b, c))
        # bytes from each operand's address to its lowest element and to the end of its highest
        self.reach = tuple(x for v in (a, b, c) for x in span(0, v.shape, v.strides, v.operand.size))
        self._left: Callable[[], Receipt | None] = self.receipt  # a warm call leaves it behind and makes nothing

    @abstractmethod
    def run(self, alpha: float, a: View, b: View, beta: float, c: View, packed: Any = None) -> None:
        """Compute C = α·A·B + β·C and leave the receipt; ``packed`` is the prepacked B, if there is one.

        The views have the shapes and strides of those it was decided for; ``c`` overlaps neither input. With arrays on a device,
        the call returns before the device finishes.
        """

    @abstractmethod
    def start(self, a: Any, b: Any, c: Any, at_a: int, at_b: Any, at_c: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute C = α·A·B + β·C on arrays at these addresses and leave the receipt.

        α and β are 0 or 1 where those are that the call was decided for.
        """

    def product(self, a: Any, b: Any, at_a: int, at_b: Any) -> Any:
        """Return C = A·B of arrays at these addresses as a new array of their kind; ``start`` for those who have no ``out``."""
        adapter = self.adapter
        made = adapter.fresh(a, self.shape)
        self.start(a, b, made, at_a, at_b, adapter.address(made))
        return made if self.shape else adapter.scalar(made)

    @abstractmethod
    def receipt(self) -> Receipt | None:
        """Return the receipt of every such call; None if that is not known before the first one."""

    def is_valid(self) -> bool:
        """Return True if the environment still says what it said when the call was decided."""
        return True

    def is_clear(self, a: int, b: int, c: int) -> bool:
        """Return True if the result's memory, from its lowest to its highest byte, overlaps that of neither input."""
        a_low, a_high, b_low, b_high, c_low, c_high = self.reach
        low, high = c + c_low, c + c_high
        return (high <= a + a_low or a + a_high <= low) and (high <= b + b_low or b + b_high <= low)

    def matrices(self, things: tuple[Any, Any, Any], at: tuple[int, int, int]) -> tuple[Any, Any, Any]:
        """Return arrays on the host as the call's matrices A, B and C; C can be written."""
        views = zip(at, self.views, map(self.adapter.on_host, things), (False, False, True), strict=True)
        a, b, c = (array_at(address, shape, strides, array, writable) for address, (shape, strides), array, writable in views)
        return a, b, c

    def problem(self) -> str:
        """Return the shapes of the product as readable text."""
        (a, _), (b, _), _ = self.views
        batch = math.prod(a[:-2])
        text = f"{a[-2]}×{a[-1]} · {b[-2]}×{b[-1]}"
        return text if batch == 1 else f"{batch} × ({text})"

    def written(self, done: Executable, *more: str) -> Receipt:
        """Return the receipt of an executable; ``more``: further copies it lists."""
        return Receipt(
            self.how.operation, self.problem(), done.kernels, done.own, done.precision, str(done.session.device), done.why,
            done.passed_over, (*done.program.copies, *more), done.launches, done.lent_bytes, done.counters,
        )  # fmt: skip


class OnDevice(Call):
    """A product of arrays in a device's memory, in their library's current stream.

    Attributes
    ----------
    started, packed : executable of ``start``, and the address of the terms of a prepacked B in each; 0 for none
    """

    def __init__(self, executable: Executable, a: View, b: View, c: View, how: How) -> None:
        super().__init__(a, b, c, how)
        self.executable = self.started = executable
        self.packed = 0
        self._mine = threading.local()

    def take_split_beforehand(self, packed: PackedOperand) -> None:
        """Have each ``start`` be one with this B."""
        self.started, self.packed, self._left = self.executable.prepacked, packed.address, self.split_beforehand

    def run(
        self, alpha: float, a: View, b: View, beta: float, c: View, packed: Any = None, addend: View | None = None
    ) -> None:  # fmt: skip
        # compute the product; queues of other operands wait for it and it for them. `addend`: D of a fused epilogue
        operand, session, others = a.operand, self.executable.session, (b, c) if addend is None else (b, c, addend)
        for view in others:
            follow(session, operand.queue, view.operand.queue)
        (at_a, first_a), (at_b, first_b), (at_c, first_c) = a.first, b.first, c.first
        taken = self.executable.accepts(packed)
        executable = self.executable.prepacked if taken else self.executable
        lent, nbytes = None, executable.lent_bytes
        if nbytes and (given := self.adapter.lend(operand.thing, nbytes)):
            lent = given[1]
        try:
            executable.run(
                at_a, first_a, at_b, first_b, at_c, first_c, alpha, beta, operand.queue, lent,
                0 if addend is None else addend.address, packed.address if taken else 0,
            )  # fmt: skip
        finally:
            for view in others:  # later work of the operand's own library waits for the product
                follow(session, view.operand.queue, operand.queue)
            if any(v.operand.unordered for v in (a, *others)):
                session.settle_queue(operand.queue)
        receipt.leave(self.split_beforehand if taken else self._left)

    def start(
        self, a: Any, b: Any, c: Any, at_a: int, at_b: Any, at_c: int, alpha: float = 1.0, beta: float = 0.0, addend: int = 0
    ) -> None:  # fmt: skip
        # launch in the library's current stream; `addend`: the address of D, with a fused epilogue
        adapter, executable = self.adapter, self.started
        lent = None
        if executable.lent_bytes and (given := adapter.lend(a, executable.lent_bytes)):
            lent = given[1]
        queue = adapter.queue(a, self.home)
        first_a = first_b = first_c = 0
        if adapter.has_memory_objects:
            first_a, first_b, first_c = at_a // 4, at_b // 4, at_c // 4
            at_a, at_b, at_c = adapter.memory(a), adapter.memory(b), adapter.memory(c)
        try:
            launch = self._mine.launch
        except AttributeError:
            launch = self._mine.launch = executable.starter()
        launch(at_a, first_a, at_b, first_b, at_c, first_c, alpha, beta, queue, lent, addend, self.packed)
        receipt.leave(self._left)

    def receipt(self) -> Receipt:
        return self.written(self.executable)

    def split_beforehand(self) -> Receipt:
        """Return the receipt of a call that takes a prepacked B."""
        left = self.written(self.executable.prepacked)
        return replace(left, why=f"{left.why}; B was split beforehand")


class OnHost(Call):
    """A product of host arrays by the host's BLAS; ``blas`` is None where no family can be looked for any more."""

    def __init__(self, blas: KernelFamily | None, device: Device | None, why: str, a: View, b: View, c: View, how: How) -> None:
        super().__init__(a, b, c, how)
        self.blas, self.device, self.why = blas, device, why

    def run(self, alpha: float, a: View, b: View, beta: float, c: View, packed: Any = None) -> None:
        host.numpy_product(alpha, a.on_host, b.on_host, beta, c.on_host)
        receipt.leave(self._left)

    def start(self, a: Any, b: Any, c: Any, at_a: int, at_b: Any, at_c: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        if (alpha, beta) == (1.0, 0.0):
            view = self.adapter.on_host
            with np.errstate(all="ignore"):
                np.matmul(view(a), view(b), out=view(c))
        else:
            x, y, z = self.matrices((a, b, c), (at_a, at_b, at_c))
            host.numpy_product(alpha, x, y, beta, z)
        receipt.leave(self._left)

    def product(self, a: Any, b: Any, at_a: int, at_b: Any) -> Any:
        # what NumPy makes of NumPy's own arrays; of others a new array of their kind
        if self.adapter is not numpy_adapter:
            return super().product(a, b, at_a, at_b)
        with np.errstate(all="ignore"):
            made = np.matmul(a, b)
        receipt.leave(self._left)
        return made

    def receipt(self) -> Receipt:
        blas, device, why = self.blas, self.device, self.why
        why += ", and that has no fp32x: fp32 ran in its place" if self.how.precision.startswith("fp32x") else ""
        ours = f"on {device}; own=True, or device={device.id!r}, runs it" if device else "own=True runs it on a device"
        problem, passed = self.problem(), (("toprung", ours),)
        name, own, precision = (blas.name, blas.own, blas.precision) if blas else (np.__name__, False, "fp32")
        return Receipt(self.how.operation, problem, (name,), own, precision, "the host", why, passed)


class InPlace(Call):
    """A product of host arrays by a CPU device on the host's own memory, without copies."""

    depends = True

    def __init__(
        self, executable: Executable, session: Any, slower: KernelFamily | None, a: View, b: View, c: View, how: How
    ) -> None:  # fmt: skip
        super().__init__(a, b, c, how)
        self.executable, self.session, self.slower = executable, session, slower
        self.nothing = 0 in c.shape

    def run(self, alpha: float, a: View, b: View, beta: float, c: View, packed: Any = None) -> None:
        self._compute(alpha, a.address, b.address, beta, c.address)

    def start(self, a: Any, b: Any, c: Any, at_a: int, at_b: Any, at_c: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        self._compute(alpha, at_a, at_b, beta, at_c)

    @gate
    def _compute(self, alpha: float, a: int, b: int, beta: float, c: int) -> None:
        if not self.nothing:
            a_low, a_high, b_low, b_high, c_low, c_high = self.reach
            low_a, high_a, low_b, high_b, low_c, high_c = a + a_low, a + a_high, b + b_low, b + b_high, c + c_low, c + c_high
            # inputs that overlap become one buffer: OpenCL leaves open what two over the same memory would do
            if high_a > low_b and high_b > low_a:
                low_a = low_b = min(low_a, low_b)
                high_a = high_b = max(high_a, high_b)
            session = self.session
            over_host = session.over_host
            at_a = over_host(low_a, high_a - low_a) if high_a > low_a else None
            at_b = at_a
            if (low_a, high_a) != (low_b, high_b):
                at_b = over_host(low_b, high_b - low_b) if high_b > low_b else None
            at_c = over_host(low_c, high_c - low_c)
            nbytes = self.executable.lent_bytes
            lent = session.allocate(nbytes) if nbytes > KEPT_BYTES else None  # the session would keep it for ever

            try:
                self.executable.run(
                    at_a and at_a.handle, (a - low_a) // 4, at_b and at_b.handle, (b - low_b) // 4, at_c.handle, (c - low_c) // 4,
                    alpha, beta, None, lent and lent.handle,
                )  # fmt: skip
            finally:
                session.in_sight(at_c)
        receipt.leave(self._left)

    def receipt(self) -> Receipt:
        left = self.written(self.executable)
        slower = ((self.slower.name, "slower when both were measured"),) if self.slower else ()
        return replace(left, passed_over=(*left.passed_over, *slower))

    def is_valid(self) -> bool:
        return host.limit() is None


class Staged(Call):
    """A product of host arrays through a device's own memory."""

    depends = True

    def __init__(self, session: Session, a: View, b: View, c: View, how: How, ranged: Callable[..., Any]) -> None:
        super().__init__(a, b, c, how)
        self.executor, self.limited = executor_of(session), host.limit()
        from toprung.execute.staging import staged  # here, where it can be imported, and not in a call while Python ends

        self._staged = staged
        self._ranged, self._like = ranged, a.operand._replace(thing=None, address=0, host=None)
        self._panels: dict[Any, Executable] = {}
        self._done: tuple[Executable, str] | None = None

    def run(self, alpha: float, a: View, b: View, beta: float, c: View, packed: Any = None) -> None:
        self._compute(alpha, a.on_host, b.on_host, beta, c.on_host)

    def start(self, a: Any, b: Any, c: Any, at_a: int, at_b: Any, at_c: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        x, y, z = self.matrices((a, b, c), (at_a, at_b, at_c))
        self._compute(alpha, x, y, beta, z)

    @gate
    def _compute(self, alpha: float, a: Any, b: Any, beta: float, c: Any) -> None:
        self._done = self._staged(self.executor, alpha, a, b, beta, c, self.how.precision, self._executable)
        done, moved = self._done
        receipt.leave(lambda: self.written(done, *([moved] if moved else [])))

    def _executable(self, *panel: Any) -> Any:
        """Return the executable of a panel: of copies of operands, whose layouts, α and β are as for ``Executor.strided``."""
        *layouts, alpha, beta = panel
        make = partial(self.executor.strided, *(*panel, self.how.own, self.how.precision))
        if (alpha, beta) != (1.0, 0.0):
            return make()
        if (found := self._panels.get(panel)) is None:
            a, b, c = (View(self._like, one.shape, one.strides) for one in layouts)
            found = self._panels[panel] = self._ranged(self.executor.session, a, b, c, self.how, make)
        return found

    def receipt(self) -> Receipt | None:
        # the last panel's, with all that was moved; None before the first run
        if self._done is None:
            return None
        done, moved = self._done
        return self.written(done, *([moved] if moved else []))

    def is_valid(self) -> bool:
        return host.limit() == self.limited


class Widened(Call):
    """A product with halves that are converted to float32 first, by their own library, and then multiplied as any others."""

    depends = True

    def __init__(self, a: View, b: View, c: View, how: How, why: str) -> None:
        super().__init__(a, b, c, how)
        self.types, self.why = (a.operand.dtype, b.operand.dtype), why
        self._inner: Call | None = None
        self._done: Call | None = None

    def run(self, alpha: float, a: View, b: View, beta: float, c: View, packed: Any = None) -> None:
        first, second = (self._operand(v.operand, name) for v, name in ((a, "a"), (b, "b")))
        self._compute(alpha, first, second, beta, c.operand, packed)

    def start(self, a: Any, b: Any, c: Any, at_a: int, at_b: Any, at_c: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        x, y = (self.adapter.widened(t) if kind != "float32" else t for t, kind in zip((a, b), self.types, strict=True))
        if self._inner is not None:
            address = self.adapter.address
            at_a, at_b = (address(new) if new is not old else at for new, old, at in ((x, a, at_a), (y, b, at_b)))
            self._inner.start(x, y, c, at_a, at_b, at_c, alpha, beta)
            receipt.leave(self._left)
            return
        first, second, third = (self.adapter.operand(t, name) for t, name in ((x, "a"), (y, "b"), (c, "out")))
        self._compute(alpha, first, second, beta, third)

    def _operand(self, operand: Operand, name: str) -> Operand:
        if operand.dtype == "float32":
            return operand
        return operand.adapter.operand(operand.adapter.widened(operand.thing), name)

    def _compute(self, alpha: float, first: Operand, second: Operand, beta: float, third: Operand, packed: Any = None) -> None:
        given = arranged(first, second, third, third.thing, self.how)
        call = decided(alpha, given.a, given.b, beta, given.c, self.how)
        call.run(alpha, given.a, given.b, beta, given.c, packed)
        # what libraries convert lies alike each time, except where the alignment of its memory differs
        if all(o.address % 16 == 0 for o in (first, second)) and packed is None:
            self._inner = call
        self._done = call
        receipt.leave(self._left)

    def receipt(self) -> Receipt | None:
        # the product's, with what was converted; None before the first run
        left = self._done.receipt() if self._done is not None else None
        if left is None:
            return None
        halves = [(name, kind) for name, kind in zip("AB", self.types, strict=True) if kind != "float32"]
        moved = tuple(f"{name} from {kind} to float32, {self.why}" for name, kind in halves)
        return replace(left, copies=(*moved, *left.copies), launches=left.launches + len(moved))

    def is_valid(self) -> bool:
        return self._inner is None or self._inner.is_valid()


@gate
def decided(
    alpha: float, a: View, b: View, beta: float, c: View, how: How, ranged: Callable[..., Any] = lambda *product: product[-1]()
) -> Call:  # fmt: skip
    """Decide who computes C = α·A·B + β·C for operands like these; nothing is computed yet.

    The three views have the same batch dimensions. Of α and β only whether they are 0 or 1 counts. ``ranged``, for α = 1 and β = 0:
    function of a session, views in its memory, ``how``, and a function that selects an executable; it returns that, or a known one.
    """
    precision = known_precision(how.precision)
    if (a.operand.dtype, b.operand.dtype) != ("float32", "float32"):
        return _decided_on_halves(alpha, a, b, beta, c, how, ranged)
    if a.operand.home.kind == HOST:
        return _decided_on_host(alpha, a, b, beta, c, how, ranged)
    operand = a.operand
    _refuse_at_the_end()
    session, layouts = session_at(operand.home, operand.queue), (a.layout, b.layout, c.layout)
    make = partial(executor_of(session).strided, *layouts, alpha, beta, how.own, precision, operand.queue)
    return OnDevice(ranged(session, a, b, c, how, make), a, b, c, how)


def _refuse_at_the_end() -> None:
    """Raise Unsupported while Python ends, when nothing can be imported: kernels of a product that was decided before run on."""
    if sys.is_finalizing():
        raise Unsupported("Python is ending, and no kernel is selected any more: call toprung.plan beforehand, and the plan now")


def executor_of(session: Session) -> Executor:
    """Return the executor of a session; what selects and launches kernels is loaded with the first product on a device."""
    _refuse_at_the_end()
    from toprung.execute.executor import executor_of

    return executor_of(session)


atexit.register(adapters)  # __del__ may multiply host arrays while Python ends, when nothing can be imported


def _decided_on_halves(alpha: float, a: View, b: View, beta: float, c: View, how: How, ranged: Callable[..., Any]) -> Call:
    """Decide on operands of which one or both are halves: a kernel that reads them as they lie, or a conversion."""
    operand, why = a.operand, "as the host's products are of float32"
    if operand.home.kind != HOST:
        session = session_at(operand.home, operand.queue)
        if any(v.address % 4 for v in (a, b)):
            why = "as it begins between words of 4 bytes"
        else:
            layouts = a.layout, b.layout, c.layout
            make = partial(executor_of(session).mixed, *layouts, alpha, beta, how.precision, how.own)
            found = ranged(session, a, b, c, how, make)
            if not isinstance(found, str):
                return OnDevice(found, a, b, c, how)
            why = found
    return Widened(a, b, c, how, why)


def fused(call: Call, d: tuple[int, ...] | None, activation: str, a: View, b: View, c: View, how: How) -> OnDevice | None:
    """Return C = f(α·A·B + β·D) in the launch of a call that was decided for C = A·B; None if its kernel cannot do that.

    ``d``: D's strides in C's shape; None if nothing is added.
    """
    if not isinstance(call, OnDevice) or not call.executable.program.is_direct:
        return None
    from toprung.gemm.lowering import Program, epilogue_of

    executable, operand = call.executable, a.operand
    ((desc, selection),) = executable.selections.items()
    epilogue = epilogue_of(desc, c.shape, c.strides, d, activation)
    if epilogue is None or not epilogue.needs <= selection.family.epilogues:
        return None
    program = Program.of(desc, epilogue)
    made = executor_of(executable.session).executable(program, how.own, known_precision(how.precision), operand.queue)
    return OnDevice(made, a, b, c, how)


def _decided_on_host(alpha: float, a: View, b: View, beta: float, c: View, how: How, ranged: Callable[..., Any]) -> Call:
    """Decide on host arrays: the host's BLAS, a CPU device in place, or through a device's own memory."""
    # the host's BLAS has no TF32
    may = how.device is None and not how.own and how.precision != "tf32"
    faster: bool | None = None
    if may and sys.is_finalizing():
        return OnHost(None, None, "Python is ending", a, b, c, how)
    _refuse_at_the_end()
    blas = host.host_blas() if may else None
    if blas is not None:
        from toprung.paths import has_store

        if host.is_small(blas, a.shape, b.shape) and autotune.HERE.level() != "measure" and not has_store():
            return OnHost(blas, None, "the product is so small that no device is looked for", a, b, c, how)
        try:
            device = best()
        except NoDevice as error:
            return OnHost(blas, None, f"there is no other: {error}", a, b, c, how)
        why = host.preferred(blas, device, a.shape, b.shape)
        unmeasured = ""
        if why:
            beside, unmeasured = _measured(device, a, b, c, how.precision)
            if beside:
                ours, theirs = beside
                faster = theirs < ours or host.product_seconds(a.on_host, b.on_host, ours) < ours
                again = "both were" if theirs < ours else "it was, again, in this process,"
                why = f"NumPy's BLAS was faster when {again} measured"
        if why and faster is not False:
            return OnHost(blas, device, why + (f"; not measured: {unmeasured}" if unmeasured else ""), a, b, c, how)
    else:
        device = chosen(how.device) if how.device is not None else best()
    session: Any = backends.session_for(device)
    if device.kind == "cpu" and host.limit() is None and hasattr(session, "over_host"):
        spans = (span(v.address, v.shape, v.strides) for v in (a, b, c))
        if max(high - low for low, high in spans) <= device.max_buffer_bytes:
            ready = executor_of(session).strided(a.layout, b.layout, c.layout, alpha, beta, how.own, how.precision)
            return InPlace(ready, session, blas if faster is False else None, a, b, c, how)
    return Staged(session, a, b, c, how, ranged)


def _measured(device: Device, a: View, b: View, c: View, precision: str) -> tuple[tuple[float, float] | None, str]:
    """Return the seconds of ours and NumPy's on a CPU, None if unknown; and why autotuning failed, empty if it did not."""
    from toprung.dispatch import tuned
    from toprung.gemm.lowering import lower

    tuner, store = autotune.HERE, tuned.HERE
    if device.kind != "cpu" or 0 in c.shape or not (tuner.level() == "measure" or store.known(device).host):
        return None, ""
    descs = lower(a.layout, b.layout, c.layout, 0.0).descs
    if len(descs) != 1:
        return None, ""
    unmeasured = tuner.measured(device, descs[0], precision)
    return store.at(device, descs[0]).beside_host(), unmeasured


def follow(session: Session, queue: Any, other: Any) -> None:
    """Make work that enters ``queue`` from now on wait for the work that is in ``other`` now."""
    if other is not None and queue is not None and other != queue and other is not queue:
        session.wait(queue, session.record(other))


def copy(src: View, dst: View) -> int:
    """Copy ``src`` to ``dst``, on the device or on the host; return the number of launches."""
    if src.operand.home.kind == HOST:
        np.copyto(dst.on_host, src.on_host)
        return 0
    session = session_at(src.operand.home, src.operand.queue)
    (from_, first), (to, second) = src.first, dst.first
    executable = executor_of(session).copies(src.shape, 0, src.strides, dst.strides)
    executable.run(from_, first, 0, 0, to, second, 1.0, 0.0, src.operand.queue)
    return executable.launches
