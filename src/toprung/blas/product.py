"""Products C = α·A·B + β·C on arrays of any kind and strides: placement, transfers and the receipt."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung import backends
from toprung.arrays.base import HOST, Operand
from toprung.arrays.sessions import chosen, session_at
from toprung.backends.base import Buffer, Session
from toprung.blas import receipt
from toprung.blas.receipt import Receipt
from toprung.device import Device
from toprung.dispatch import autotune, tuned
from toprung.errors import MixedPlaces
from toprung.execute import staging as host
from toprung.execute.programs import CompiledProgram, duplicate, known, prepared
from toprung.gemm.desc import Desc
from toprung.gemm.lowering import Layout, Place, Product, Program, aligned, copies_between, lower
from toprung.gemm.overlap import span


@dataclass(frozen=True)
class How:
    """Options of a call beside its operands.

    Attributes
    ----------
    operation, names : name of the routine, and its names for A, B and C; for messages and the receipt
    """

    operation: str
    precision: str = "auto"
    own: bool = False
    device: Device | str | None = None
    names: tuple[str, str, str] = ("a", "b", "out")


@dataclass(slots=True)
class View:
    """Elements of an operand under another shape and strides: a transpose, a broadcast, every second element.

    Attributes
    ----------
    shape, strides : batch dimensions, rows, columns; strides in elements
    offset : number of elements from the operand's first element to the view's
    """

    operand: Operand
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def address(self) -> int:
        """Address of the first element, in bytes."""
        return self.operand.address + 4 * self.offset

    @property
    def layout(self) -> Layout:
        """Shape, strides and alignment, as kernel selection sees them."""
        return Layout(self.shape, self.strides, aligned(self.address))

    @property
    def first(self) -> tuple[Any, int]:
        """Handle of the memory in its runtime, and index of the first element in it."""
        if self.operand.memory is None:
            return self.address, 0
        return self.operand.memory, self.address // 4

    @property
    def on_host(self) -> NDArray[np.float32]:
        """The elements as a NumPy array, not copied."""
        operand = self.operand
        assert operand.host is not None
        if 0 in self.shape:
            return np.empty(self.shape, np.float32)
        return host.array_at(self.address, self.shape, self.strides, operand.host, operand.writable)


def together(views: Sequence[Operand], how: How) -> None:
    """Raise MixedPlaces for operands on different devices, or on another one than ``device=`` says."""
    first = views[0]
    for other, name in zip(views[1:], how.names[1:], strict=False):
        if other.home != first.home:
            raise MixedPlaces(f"{how.names[0]} is on {first.home} and {name} on {other.home}: move one to where the other is")
    if how.device is not None and first.home.kind != HOST:
        wanted = chosen(how.device)
        here = session_at(first.home, first.queue).device
        if wanted.id != here.id:
            raise MixedPlaces(
                f"the arrays are on {here}, and device={wanted.id!r} was asked for: move them there, or leave device out"
            )


def multiply(
    alpha: float, a: View, b: View, beta: float, c: View, how: How, packed: Any = None
) -> Receipt:  # fmt: skip
    """Compute the product into ``c``; keep and return the receipt. ``packed``: the prepacked B, if there is one.

    The three views have the same batch dimensions. ``c`` overlaps neither input. With arrays on a device, the call returns before
    the device finishes.
    """
    # rounded to float32: a tiny α becomes 0, a huge one infinite
    with np.errstate(over="ignore"):
        alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    left = _on_host(alpha, a, b, beta, c, how) if a.operand.home.kind == HOST else _on_device(alpha, a, b, beta, c, how, packed)
    receipt.leave(left)
    return left


def problem(a: View, b: View) -> str:
    """Return the shapes of a product as readable text."""
    batch = math.prod(a.shape[:-2])
    text = f"{a.shape[-2]}×{a.shape[-1]} · {b.shape[-2]}×{b.shape[-1]}"
    return text if batch == 1 else f"{batch} × ({text})"


def written(done: CompiledProgram, how: How, a: View, b: View, *more: str) -> Receipt:
    """Return the receipt of a program; ``more``: further copies it lists."""
    chosen_ones = list(done.executables.values())
    launches = sum(done.executables[s.call].launches if isinstance(s, Product) else 1 for s in done.program.steps)
    return Receipt(
        how.operation, problem(a, b), done.kernels, all(e.own for e in chosen_ones),
        " and ".join(dict.fromkeys(e.precision for e in chosen_ones)) or "fp32", str(done.session.device),
        " ".join(dict.fromkeys(e.why for e in chosen_ones if e.why)),
        tuple(dict.fromkeys(p for e in chosen_ones for p in e.passed_over)), (*done.program.copies, *more), launches,
        done.workspace_bytes, tuple(e.escalated for e in chosen_ones if e.own and e.precision != "fp32"),
    )  # fmt: skip


def _on_device(alpha: float, a: View, b: View, beta: float, c: View, how: How, packed: Any = None) -> Receipt:
    operand = a.operand
    session = session_at(operand.home, operand.queue)
    ready = prepared(session, a.layout, b.layout, c.layout, alpha, beta, how.own, known(how.precision), operand.queue)
    views = (a, b, c)
    for view in views[1:]:
        follow(session, operand.queue, view.operand.queue)
    handles = [v.first[0] for v in views]
    taken = ready.takes(packed)
    if taken:
        handles[1] = packed
    kept: list[Any] = []
    try:
        ready.run(
            handles, [v.first[1] for v in views], alpha, beta, operand.queue,
            lambda elements: scratch(session, operand, elements, kept),
        )  # fmt: skip
    finally:
        for view in views[1:]:  # later work of the operand's own library waits for the product
            follow(session, view.operand.queue, operand.queue)
        if any(v.operand.unordered for v in views):
            session.settle_queue(operand.queue)
    left = written(ready, how, a, b)
    return with_terms(left) if taken else left


def with_terms(left: Receipt) -> Receipt:
    """Return a receipt that also says that B was split beforehand."""
    return replace(left, why=f"{left.why}; B was split beforehand")


def follow(session: Session, queue: Any, other: Any) -> None:
    """Make work that enters ``queue`` from now on wait for the work that is in ``other`` now."""
    if other is not None and queue is not None and other != queue and other is not queue:
        session.wait(queue, session.record(other))


def scratch(session: Session, like: Operand, elements: int, kept: list[Any]) -> tuple[Any, int]:
    """Return new memory on the device of ``like``, as handle and first element, from its library's stream-aware allocator."""
    made = like.adapter.operand(like.adapter.empty(like, (elements,)), "scratch memory")
    kept.append(made)
    return (made.address, 0) if made.memory is None else (made.memory, made.address // 4)


def copy(src: View, dst: View) -> None:
    """Copy ``src`` to ``dst``, on the device or on the host."""
    if src.operand.home.kind == HOST:
        np.copyto(dst.on_host, src.on_host)
        return
    steps = tuple(copies_between(src.shape, Place(0, 0), src.strides, Place(2, 0), dst.strides)) if 0 not in src.shape else ()
    session = session_at(src.operand.home, src.operand.queue)
    (from_, first), (to, second) = src.first, dst.first
    moved = duplicate(session, Program(steps))  # type: ignore[arg-type]
    moved.run((from_, None, to), (first, 0, second), 1.0, 0.0, src.operand.queue, _never)


def _never(elements: int) -> tuple[Any, int]:
    raise AssertionError("a copy needs no temporaries")


@functools.cache
def _best() -> Device:
    return backends.find()


def _on_host(alpha: float, a: View, b: View, beta: float, c: View, how: How) -> Receipt:
    """Compute on host arrays: by the host's BLAS, by a CPU device in place, or through a device's own memory."""
    precision = known(how.precision)
    device = _best() if how.device is None else chosen(how.device)
    here = how.device is None and not how.own and precision != "tf32"  # the host's BLAS has no TF32
    blas, why = host.preferred(device, a.shape, b.shape) if here else (None, "")
    faster, unmeasured = _measured(device, a, b, c, precision) if blas and device.kind == "cpu" else (None, "")
    if faster:
        why = "NumPy's BLAS was faster when both were measured"
    why += f"; not measured: {unmeasured}" if unmeasured else ""
    if blas is not None and faster is not False:
        host.numpy_product(alpha, a.on_host, b.on_host, beta, c.on_host)
        return Receipt(
            how.operation, problem(a, b), (blas.name,), blas.own, blas.precision, "the host",
            why + (", and that has no fp32x: fp32 ran in its place" if precision == "fp32x" else ""),
            (("toprung", f"on {device}; own=True, or device={device.id!r}, runs it"),), launches=0,
        )  # fmt: skip
    session = backends.session_for(device)
    if host.limit() is None and device.kind == "cpu" and hasattr(session, "over_host"):
        spans = [span(v.address, v.shape, v.strides) for v in (a, b, c)]
        if max(high - low for low, high in spans) <= device.max_buffer_bytes:
            left = _in_place(session, alpha, a, b, beta, c, spans, how, precision)
            slower = ((blas.name, "slower when both were measured"),) if blas and faster is False else ()
            return replace(left, passed_over=(*left.passed_over, *slower))
    done, moved = host.staged(session, alpha, a.on_host, b.on_host, beta, c.on_host, how.own, precision)
    return written(done, how, a, b, *([moved] if moved else []))


def planned(a: View, b: View, c: View, how: How) -> None:
    """Autotune a product of host arrays if the autotune level says so and it runs on a CPU device."""
    device = _best() if how.device is None else chosen(how.device)
    if device.kind == "cpu":
        _measured(device, a, b, c, how.precision)


def _measured(device: Device, a: View, b: View, c: View, precision: str) -> tuple[bool | None, str]:
    """Return True if NumPy measured faster than ours on a CPU, None if unknown; and why autotuning failed, empty if it did not."""
    if 0 in c.shape or not (autotune.level() == "measure" or tuned.knows_host(device)):
        return None, ""
    call = _one_call(a.layout, b.layout, c.layout)
    if call is None:
        return None, ""
    unmeasured = autotune.measured(device, call, precision)
    return (tuned.host_is_faster(device, call) if tuned.knows_host(device) else None), unmeasured


@functools.lru_cache(maxsize=1024)
def _one_call(a: Layout, b: Layout, c: Layout) -> Desc | None:
    """Return the single call that computes a product, None if it takes several."""
    calls = set(lower(a, b, c, 0.0, True).calls)
    return calls.pop() if len(calls) == 1 else None


def _in_place(
    session: Any, alpha: float, a: View, b: View, beta: float, c: View, spans: list[tuple[int, int]], how: How,
    precision: str,
) -> Receipt:  # fmt: skip
    """Compute on the host's own memory with a CPU device, without copies."""
    ready = prepared(session, a.layout, b.layout, c.layout, alpha, beta, how.own, precision)
    views = (a, b, c)
    if 0 in c.shape:
        return written(ready, how, a, b)
    # inputs that overlap become one buffer: OpenCL leaves open what two over the same memory would do
    low, high = spans[0]
    if spans[0][1] > spans[1][0] and spans[1][1] > spans[0][0]:
        low, high = min(low, spans[1][0]), max(high, spans[1][1])
        spans = [(low, high), (low, high), spans[2]]
    buffers: dict[tuple[int, int], Buffer] = {}
    for begin, end in spans:
        if end > begin and (begin, end) not in buffers:
            buffers[begin, end] = session.over_host(begin, end - begin)
    at = [buffers.get(s) for s in spans]
    kept: list[Buffer] = []

    def temporary(elements: int) -> tuple[Any, int]:
        kept.append(session.allocate(4 * elements))
        return kept[-1].handle, 0

    handles = [buffer.handle if buffer else None for buffer in at]
    first = [(v.address - begin) // 4 for v, (begin, _) in zip(views, spans, strict=True)]
    try:
        ready.run(handles, first, alpha, beta, None, temporary)
    finally:
        session.in_sight(at[2])
    return written(ready, how, a, b)
