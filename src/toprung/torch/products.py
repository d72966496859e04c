"""Products of tensors below aten: each is looked at once, and then started, or left to PyTorch, by a few cheap attributes.

``multiply`` is on the way of every matrix product of the program: what it asks of a tensor costs a tenth of a microsecond each.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import threading
import traceback
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from toprung import forks
from toprung.arrays.base import HOST, Home, Operand
from toprung.arrays.sessions import session_at
from toprung.arrays.torch import adapter
from toprung.backends import native_plan
from toprung.backends.base import Source
from toprung.blas import background, idle, remembered
from toprung.blas.counted import BySettings, CountedEntry, CountedProducts
from toprung.blas.installed import slower
from toprung.blas.operands import How, View
from toprung.blas.product import Call, OnDevice, decided, fused
from toprung.blas.ranges import AXES, Around, Operands
from toprung.dispatch import autotune
from toprung.errors import ToprungError, Unfinished
from toprung.forks import renewed
from toprung.gemm.layout import tight
from toprung.gemm.overlap import folded
from toprung.kernels.build import kernel_of
from toprung.kernels.cost_model import PLAIN_RATE
from toprung.torch import bridge, ranges
from toprung.torch.modules import Modules
from toprung.torch.settings import Settings

KEPT = 8192
"""Number of kinds of products, the last, that are remembered for a set of settings; of others only counts are kept."""

PAYS = PLAIN_RATE / 2
"""Multiply-adds per second of PyTorch's fp32 kernels.

A kernel is prepared once products of its kind have taken as long as preparing holds the GIL. So preparing costs a program at most
the time of those products."""

ASKED = 0.01
"""Most seconds of products of a kind until the bridge calls Python about the kind again."""

FLOAT32 = torch.float32

UNSETTLED = ("none", "ieee")
"""Values of PyTorch's setting of the precision of fp32 products that ask for fp32."""

OTHER_PRECISION = "the program asks for another precision than fp32"
ONCE = "the first product of its kind is PyTorch's: most never come again"
DETERMINISTIC = "PyTorch's deterministic mode is on: enable(reproducible=True) takes these products, too"

_precision_of: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing


Place = tuple[tuple[int, ...], tuple[int, ...], int]


class Like(NamedTuple):
    """Places of the tensors of a kind of product: shape, stride, and elements behind an address of 16 bytes, of each.

    ``result`` is the one that the caller gave, ``inplace`` true if it is added to.
    """

    a: Place
    b: Place
    bias: Place | None
    result: Place | None
    inplace: bool


class Entry(CountedEntry):
    """A kind of product: operator, shapes, strides, alignment, place.

    Attributes
    ----------
    op : operator of aten
    device : PyTorch's name of the device
    activation : name of the function that the result goes through; empty for none
    eligible : True if toprung could compute it and the settings allow it
    fused : True if the product's own launch adds the bias, and computes the activation
    shape : shape of the result
    job : preparation to come or under way; until it is over ``call`` is None
    like : place of its tensors; None if toprung cannot compute it, or if the bridge took it by a range of sizes
    modules : calls by module, and whether in the backward pass, while ``watching``
    counter : calls that the bridge left to PyTorch since the last ``collect``
    taking : what the bridge takes calls by; None before Python has taken one, or where only Python can
    operands : operands as selection sees them, if toprung could compute it
    kin : products that differ in one size alone, where Python looks for a range of sizes, or has found one
    """

    __slots__ = (
        "activation", "counter", "device", "eligible", "fused", "job", "kin", "like", "modules", "op", "operands", "shape", "taking"
    )  # fmt: skip

    def __init__(self, op: str, problem: str, layout: str, device: str, shape: tuple[int, ...], activation: str = "") -> None:
        super().__init__(problem, layout)
        self.op, self.device, self.shape = op, device, shape
        self.activation, self.fused, self.eligible = activation, False, False
        self.job: background.Job | None = None
        self.like: Like | None = None
        self.modules: dict[tuple[str, bool], int] = {}
        self.counter = ctypes.c_int64()
        self.taking: bridge.Taking | None = None
        self.operands: Operands | None = None
        self.kin: ranges.Kin | None = None

    @property
    def kind(self) -> tuple[str, ...]:
        return self.op, self.problem, self.layout, self.device, self.kernel

    def absorb(self, other: Entry) -> None:
        super().absorb(other)
        for module, count in other.modules.items():
            self.modules[module] = self.modules.get(module, 0) + count

    @property
    def path(self) -> str:
        """Accuracy class of the kernels that run it; empty if PyTorch's own does."""
        left = self.call.receipt() if self.call is not None else None
        return left.precision if left is not None else ""

    @property
    def escalated(self) -> int:
        """Pieces of C computed again in plain fp32, for all sizes of the range; waits for the device."""
        left = self.call.receipt() if self.call is not None and self.like is not None and not capturing(self.device) else None
        return left.escalated if left is not None else 0


class Products(CountedProducts[Entry]):
    """The products of a set of settings; ``small`` counts those of any type.

    Attributes
    ----------
    state : settings and counters as the bridge reads them
    kin : ranges of sizes, by what the products in them share
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, KEPT)
        self.settings = settings
        self.state = bridge.State.of(settings)
        self._settled: set[Entry] = set()
        self.kin: dict[Hashable, ranges.Kin] = {}

    def settle(self, entry: Entry, verdict: int, calls: int = bridge.ALWAYS) -> None:
        """Have the bridge decide this many products like the one that is being looked at, and count them."""
        native = bridge.library()
        if native is None:
            return
        self._settled.add(entry)
        native.toprung_settle(self.state, entry.counter, verdict, entry.taking if verdict == bridge.TAKEN else None, calls)
        if entry.kin is not None:
            self.cover(entry.kin)

    def take(self, entry: Entry, call: Call) -> None:
        """Have the bridge take products like the one that has just been started, from now on, if it can."""
        if not isinstance(call, OnDevice) or bridge.library() is None:
            return
        with _building:  # two threads may not both make one: the first would be freed while it is in use
            if entry.taking is None:
                entry.taking = bridge.Taking.of(call, entry.op, entry.fused)
        if entry.taking is not None:
            if not capturing(entry.device):  # a graph that is captured has flags of its own
                entry.taking.native.prepare(adapter.queue(None, call.home))
            self.settle(entry, bridge.TAKEN)

    def cover(self, kin: ranges.Kin, calls: int = 0) -> None:
        """Pass ranges of sizes to the bridge; it decides products by them, and leaves ``calls`` others alone."""
        native = bridge.library()
        assert native is not None
        with _building:
            if kin.forgotten:
                return
            natives = [one.native for one in kin.ranges]
            _covering.update((ctypes.addressof(one.native), (self, one)) for one in kin.ranges)
            every = (ctypes.POINTER(bridge.Range) * len(natives))(*map(ctypes.pointer, natives))
            for key in kin.keys.values():
                key.words[0] = self.state.number
                native.toprung_cover(self.state, key, every, len(natives), calls)

    def within(self, entry: Entry) -> bool:
        """Have an entry be decided by the range of sizes that it lies in; return False if there is none."""
        assert entry.operands is not None
        for axis in AXES if self.kin else ():
            kin, size = self.kin.get((entry.op, entry.operands.kin(axis))), entry.operands.size(axis)
            found = kin and kin.find(size)
            if not found:
                continue
            if found.native.verdict == bridge.UNKNOWN:
                return False
            try:
                call = found.taken.at(size) if found.taken is not None else None
            except ToprungError:
                return False
            entry.kin, entry.fused, entry.why, entry.call, entry.job = kin, bool(found.native.fused), found.why, call, None
            return True
        return False

    def range_of(self, entry: Entry) -> None:
        """Prepare an entry by the range of its size, or its size alone; others that are found on the way decide products, too."""
        operands, kin, settings = entry.operands, entry.kin, self.settings
        assert operands is not None and kin is not None
        with _building:
            if self.within(entry):
                return self.cover(kin)
            known = [(one.first, one.last) for one in kin.ranges if one.first < one.last]
        if kin.forgotten:
            return _prepare(entry, settings)
        # others are smaller sizes that are worth a kernel, and larger ones up to the next power of two
        own = operands.size(kin.axis)
        least = math.ceil(own * self.state.least / (math.prod(operands.a.shape) * operands.b.shape[-1]))
        if autotune.HERE.level() == "measure":  # the range follows what has been measured
            _prepare(entry, settings)
        try:
            session = session_at(operands.a.operand.home, operands.a.operand.queue)
            found = _around(session, operands, kin.axis, settings, (max(least, 2), 1 << (own - 1).bit_length(), known))
            made = [kin.around(entry, operands, session, *found[:1])]
        except Exception as error:
            _failed(entry, error)
            made, found = [kin.around(entry, operands)], ()
        for other in found[1:]:
            if other.made is not None and not (kin.find(other.made.first) and kin.find(other.made.last)):
                background.breathe()
                with contextlib.suppress(Exception):  # the first product of that size reports the error
                    made.append(kin.around(entry, operands.at(kin.axis, other.made.last), session, other))
        background.breathe()
        self._adopt(entry, kin, made)
        if not self.within(entry):
            _prepare(entry, settings)
        self.cover(kin)

    def _adopt(self, entry: Entry, kin: ranges.Kin, made: list[ranges.Range]) -> None:
        """Add ranges to their kin; what is decided already, or whose job has begun, stays as it is: its bits change once."""
        assert entry.operands is not None
        like = entry.operands.kin(kin.axis)
        with _building:
            if kin.forgotten:
                return
            for one in self.entries.every():  # there may be thousands, so the slowest test comes last
                decided = one.call is not None or (one.job is not None and one.job.begun)
                if one is entry or one.op != entry.op or one.operands is None or not decided:
                    continue
                size = one.operands.size(kin.axis)
                if any(r.first <= size <= r.last for r in made) and not kin.find(size) and one.operands.kin(kin.axis) == like:
                    kin.ranges.append(kin.around(one, one.operands))
            kin.ranges += made

    def counted_in(self, found: ranges.Range, size: int, count: int) -> None:
        """Count products of a size that the bridge took by a range."""
        first, taken = found.entry, found.taken
        assert taken is not None
        entry = Entry(first.op, taken.operands.at(taken.axis, size).text(), first.layout, first.device, (), first.activation)
        entry.call, entry.eligible, entry.taken = taken.call, True, count
        super().drop([entry])

    def collect(self, forget: bool = False) -> None:
        """Add what the bridge has counted; with ``forget`` it decides nothing more of what it was told."""
        native = bridge.library()
        if native is None:
            return
        with _building:  # a range that another thread passes to the bridge after ``State.forget`` is in use, however idle
            settled = self._settled
            if forget:
                self._settled = set()  # before the verdicts are unknown: what is settled from then on must be found here
                self.state.forget()
            idle = [at for at, (its, one) in _covering.items() if forget and its is self and bridge.is_idle(one.native)]
            for at, size, count in bridge.counted():
                its, one = _covering[at]
                its.counted_in(one, size, count)
            for at in idle:
                del _covering[at]
        for entry in list(settled):
            entry.left += bridge.drained(entry.counter)
            if entry.taking is not None:
                entry.taken += entry.taking.drained()
                if forget:
                    _leaving.append(entry.taking)
                    entry.taking = None
        if forget:
            _leaving[:] = [taking for taking in _leaving if not bridge.is_idle(taking)]
        self.small += self.state.drained("small")
        for counter, reason in (("precision", OTHER_PRECISION), ("deterministic", DETERMINISTIC), ("once", ONCE)):
            if count := self.state.drained(counter):
                self.refused[reason] = self.refused.get(reason, 0) + count

    def drop(self, entries: list[Entry]) -> None:
        self.collect(forget=True)  # kinds in use enter Python once more, which keeps them in the younger generation
        super().drop(entries)

    def retire(self) -> None:
        self._leave_ranges()
        super().retire()

    def forget(self) -> None:
        self.collect(forget=True)
        self._leave_ranges()
        super().forget()

    def _leave_ranges(self) -> None:
        with _building:
            for kin in self.kin.values():
                kin.forgotten = True
            self.kin.clear()


_leaving: list[bridge.Taking] = []
"""Plans whose verdicts were forgotten, kept until no thread is launching them any more."""

_covering: dict[int, tuple[Products, ranges.Range]] = {}
"""Ranges that the bridge may use, by address, with the products that they are of."""

now: Products | None = None
"""Products of the settings that are active; None while PyTorch's own run. Set by ``activate``."""


def activate(products: Products | None) -> None:
    """Take products of these settings from now on, in Python and in the bridge; None: all are PyTorch's."""
    global now
    now = products
    if (native := bridge.library()) is not None:
        native.toprung_activate(None if products is None else ctypes.addressof(products.state))


watching: Modules | None = None
"""Names of the modules that run; None unless the settings that are active ask for them."""


def multiply(
    op: str, a: Any, b: Any, bias: Any = None, beta: Any = 1, alpha: Any = 1, out: Any = None, inplace: bool = False,
    activation: str = "",
) -> Any:  # fmt: skip
    """Return f(α·A·B + β·bias) in ``out``, or a new tensor; None if PyTorch's own must run, in which case nothing was written.

    Parameters
    ----------
    op : operator of aten
    a, b : tensors of any kind; whether they fit together is looked at
    bias : tensor that is expanded to the result's shape and added; None for none
    inplace : True if ``bias`` is the result
    activation : ``"relu"``, ``"gelu"`` (by tanh) or, on the host, ``"gelu exactly"``; only with a bias that is not the result
    """
    products = now
    if products is None:
        return None
    shape_b = b.shape
    work = a.numel() * (shape_b[-1] if len(shape_b) > 1 else 1)
    if work < products.least or not work:  # first, for small products feel each look the most
        products.small += 1
        return None
    if a.dtype is not FLOAT32 or b.dtype is not FLOAT32 or op not in products.settings.ops:
        return None
    at_a, at_b, number = a.data_ptr(), b.data_ptr(), a.get_device()
    if not at_a or not at_b or any(t is not None and not t.data_ptr() for t in (bias, out)):
        return None  # memory was freed, as FSDP frees that of parameters: PyTorch reports it
    key: Hashable
    if out is None and bias is None:
        key = (op, a.shape, a.stride(), at_a & 15, shape_b, b.stride(), at_b & 15, number, b.get_device())
    else:
        if not isinstance(beta, int | float) or not isinstance(alpha, int | float):
            return None
        alpha, beta = ctypes.c_float(alpha).value, ctypes.c_float(beta).value  # as kernels have them: what is 0 there reads no bias
        if alpha == 0:
            return None
        if out is bias:  # as in place; another tensor of the same memory is left to PyTorch below
            out, inplace = None, True
        result = bias if inplace else out
        key = (
            op, a.shape, a.stride(), at_a & 15, shape_b, b.stride(), at_b & 15, number, b.get_device(),
            None if bias is None else (
                bias.dtype, bias.shape, bias.stride(), bias.get_device(), 2 if beta not in (0, 1) else beta, activation
            ),
            None if result is None else (
                result.dtype, result.shape, result.stride(), result.data_ptr() & 15, result.get_device(), inplace
            ),
        )  # fmt: skip
    entry = products.entries[key]
    if entry is None:
        entry = _new(products, key, op, a, b, bias, beta, bias if inplace else out, activation)
        if entry is None:
            return None
    if watching is not None:
        made_by = watching.of(a, b)
        entry.modules[made_by] = entry.modules.get(made_by, 0) + 1
    if entry.call is None and entry.job is None:
        entry.left += 1
        return products.settle(entry, bridge.LEFT)
    if _precision_of("cuda" if number >= 0 else "mkldnn", "matmul") not in UNSETTLED:
        products.settle(entry, bridge.REFUSABLE)
        return products.refuse(OTHER_PRECISION)
    if _deterministic() and not products.settings.reproducible:
        products.settle(entry, bridge.REFUSABLE)
        return products.refuse(DETERMINISTIC)
    call = entry.call
    if call is None:
        if (job := entry.job) is not None:
            if not job.begun:
                if entry.counter.value:
                    entry.left += bridge.drained(entry.counter)
                kin = entry.kin
                left = entry.left if kin is None else kin.left
                more = 0.0 if products.settings.eager else background.HERE.cost * PAYS / work - left - 1
                if more > 0:  # calls until it is prepared; infinite until the first kernel's time is known
                    entry.left += 1
                    calls = math.ceil(min(more, ASKED * PAYS / work))
                    if kin is None:
                        return products.settle(entry, bridge.LEFT, calls)
                    kin.left += 1 + calls
                    return products.cover(kin, calls)
                with _building:
                    if products.within(entry):
                        job.done.set()
                    else:
                        background.HERE.begin(job)
                        if kin is not None:  # the other products of the kind wait for this one's range
                            products.cover(kin, bridge.ALWAYS)
            # take over what has been prepared; wait for it where the result must not depend on time
            if job.done.is_set() or (products.settings.reproducible and not capturing(entry.device) and job.settle()):
                entry.job = None
        call = entry.call
        if call is None:
            entry.left += 1
            return None
    elif call.depends and not call.is_valid():
        products.entries.pop(key, None)
        return None
    if inplace or out is not None:
        made = bias if inplace else out
        if not call.is_clear(at_a, at_b, made.data_ptr()):
            return None
        if not inplace and bias is not None and bias.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
            return None  # the product would be written over what is to be added
    if profiling():
        with torch.profiler.record_function(f"toprung::{op}"):
            made = started(entry, call, a, b, bias, beta, alpha, out, inplace, at_a, at_b)
    else:
        made = started(entry, call, a, b, bias, beta, alpha, out, inplace, at_a, at_b)
    if made is None:
        entry.left += 1
        entry.why = entry.why or "there was no memory for what toprung needs beside the result"
    else:
        entry.taken += 1
        products.take(entry, call)
    return made


profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Return True while a profiler of PyTorch's records."""


def started(
    entry: Entry, call: Call, a: Any, b: Any, bias: Any, beta: Any, alpha: Any, out: Any, inplace: bool, at_a: int, at_b: int
) -> Any:
    """Return the result of a product that is put into the current stream; None if that cannot be."""
    try:
        if inplace:
            call.start(a, b, bias, at_a, at_b, bias.data_ptr(), float(alpha), float(beta))
            return bias
        made = a.new_empty(entry.shape) if out is None else out
        if entry.fused and isinstance(call, OnDevice):
            call.start(a, b, made, at_a, at_b, made.data_ptr(), float(alpha), float(beta), bias.data_ptr())
            return made
        call.start(a, b, made, at_a, at_b, made.data_ptr(), float(alpha), 0.0)
        if bias is not None and beta != 0:
            made.add_(bias, alpha=float(beta))  # a kernel that reads C while it writes it waits for each element
        if entry.activation == "relu":
            made.relu_()
        elif entry.activation:
            torch.ops.aten.gelu_(made, approximate="tanh" if entry.activation == "gelu" else "none")
    except (ToprungError, torch.OutOfMemoryError) as error:  # scratch memory that PyTorch's own does not need, say
        if inplace and isinstance(error, Unfinished):
            raise  # PyTorch's own would add to what is lost
        if not isinstance(error, torch.OutOfMemoryError):
            entry.call, entry.why = None, str(error)
        return None
    return made


def capturing(device: str) -> bool:
    """Return True if the current stream is being captured into a graph: nothing may be compiled, loaded or waited for."""
    return device.startswith("cuda") and _capturing()


def _new(
    products: Products, key: Hashable, op: str, a: Any, b: Any, bias: Any, beta: Any, result: Any, activation: str
) -> Entry | None:  # fmt: skip
    """Return the entry of a product that is seen for the first time, with its preparation begun; None if it must not be kept."""
    settings = products.settings
    device = a.device
    shape = (*a.shape[:-1], *b.shape[-1:]) if b.dim() > 1 else tuple(a.shape[:-1])
    entry = Entry(op, problem_of(a, b), lie(a) + lie(b), str(device), shape, activation)
    entry.why = _unfit(settings, op, a, b, bias, result, shape)
    if not entry.why:
        if capturing(entry.device):
            return None
        entry.eligible = True
        there = bias is not None, result is not None
        entry.like = Like(
            _lies(a), _lies(b), _lies(bias) if there[0] else None, _lies(result) if there[1] else None, there[1] and bias is result
        )
        views = _view(a, "cuda" if a.is_cuda else HOST), _view(b, "cuda" if a.is_cuda else HOST)
        if result is None:
            strides = tight(shape)
            c = _placed(shape, strides, views[0].operand.home, 0, views[0].operand.queue)
        else:
            c = _view(result, "cuda" if a.is_cuda else HOST)
        added = 0.0 if bias is not result or result is None or beta == 0 else 1.0 if beta == 1 else 2.0
        entry.why = "its kernel is prepared once such products have taken as long as that takes"
        # a bias of its own is read in the product's launch, where the kernel can do that
        apart = None
        if bias is not None and bias is not result:
            apart = bias.expand(shape).stride()
        entry.operands = Operands(*views, c, added, apart, activation, How(op, settings.precision, settings.own))
        native, kin = bridge.library(), bridge.Key()
        if native is not None and native_plan.entry() is not None and (axis := native.toprung_axis(kin)) >= 0:
            entry.kin = products.kin.setdefault((op, entry.operands.kin(axis)), ranges.Kin(axis))
            entry.kin.keys.setdefault(bytes(kin)[8 : 8 * kin.count], kin)  # all words but the state's number
        if not products.within(entry):
            work = functools.partial(products.range_of, entry) if entry.kin else functools.partial(_prepare, entry, settings)
            entry.job = background.Job(work, f"the kernel of {op} {entry.problem} on {entry.device}")
    with _building:  # another thread may have met it meanwhile: one of two entries would lose its counts
        found = products.entries[key]
        if found is None:
            products.entries.keep(key, entry)
    return found or entry


def _unfit(settings: Settings, op: str, a: Any, b: Any, bias: Any, result: Any, shape: tuple[int, ...]) -> str:
    """Return why PyTorch's own must run for operands like these, as a sentence; empty if toprung may.

    Whatever PyTorch would refuse is left to it, so that its own errors are raised.
    """
    kind = a.device.type
    if settings.reproducible and forks.generation:
        return "the process was forked, and reproducible=True waits for no kernel there"
    if kind not in settings.device_types:
        return f"tensors on {kind} are left alone"
    others = [t for t in (b, bias, result) if t is not None]
    if any(t.device != a.device for t in others):
        return "its operands lie on different devices"
    if any(t.layout != torch.strided or t.dtype != FLOAT32 for t in (a, *others)):
        return "an operand is not a plain fp32 tensor"
    batched = "bmm" in op
    if (a.dim(), b.dim()) != ((3, 3) if batched else (2, 1) if op == "addmv" else (2, 2)):
        return "its operands are no matrices"
    if a.shape[-1] != b.shape[0 if b.dim() == 1 else -2] or (batched and a.shape[0] != b.shape[0]):
        return "its operands do not fit together"
    if 0 in a.shape or 0 in b.shape:
        return "it is empty"
    if result is not None:
        if tuple(result.shape) != shape:
            return "the result is to be resized"
        if folded(tuple(result.shape), result.stride()):
            return "elements of the result share memory"
    if bias is not None and bias is not result:
        expanded = (1,) * (len(shape) - bias.dim()) + tuple(bias.shape)
        if bias.dim() > len(shape) or any(n not in (1, m) for n, m in zip(expanded, shape, strict=True)):
            return "what is added does not expand to the result"
    return ""


def _view(tensor: Any, kind: str) -> View:
    """Return a tensor as matrices in a batch, a vector as a column."""
    number = tensor.get_device()
    home = Home(kind, max(number, 0)) if kind != HOST else Home(HOST)
    queue = adapter.queue(tensor, home) if kind != HOST else None
    return _placed(tuple(tensor.shape), tuple(tensor.stride()), home, tensor.data_ptr(), queue)


def _placed(shape: tuple[int, ...], strides: tuple[int, ...], home: Home, address: int, queue: Any) -> View:
    operand = Operand(adapter, None, shape, strides, home, address, queue=queue)
    if len(shape) == 1:
        shape, strides = (*shape, 1), (*strides, 0)
    return View(operand, shape, strides)


def problem_of(a: Any, b: Any) -> str:
    """Return batch, M, N and K as readable text."""
    rows, depth, cols = (a.shape[-2] if a.dim() > 1 else 1), a.shape[-1], (b.shape[-1] if b.dim() > 1 else 1)
    batch = f"{a.shape[0]}×" if a.dim() == 3 else ""
    return f"{batch}{rows}×{cols}×{depth}"


def _lies(tensor: Any) -> Place:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr() % 16 // 4


def lie(tensor: Any) -> str:
    """Return N for rows one after the other, T for columns, and another letter for anything else."""
    if tensor.dim() < 2 or tensor.stride(-1) == 1:
        return "N"
    return "T" if tensor.stride(-2) == 1 else "S"


def _failed(entry: Entry, error: Exception) -> None:
    """Note why a product is PyTorch's."""
    entry.why = f"{type(error).__name__}: {error}"
    if not isinstance(error, ToprungError):  # a fault of ours, which PyTorch's users need not suffer from, but should see
        try:
            warnings.warn(f"toprung leaves {entry.op} {entry.problem} to PyTorch: {entry.why}", RuntimeWarning, stacklevel=3)
        except RuntimeWarning:  # made an error, which must not end the thread that prepares kernels
            traceback.print_exc()


def theirs(settings: Settings) -> str:
    """Return the name of PyTorch's kernels, to compare with them; empty if ``own`` rules them out."""
    return "" if settings.own else "PyTorch's own"


def _around(
    session: Any, operands: Operands, axis: int | None, settings: Settings, others: remembered.Others = (0, 0, [])
) -> tuple[Around, ...]:  # fmt: skip
    """Return what ``remembered.found`` does, and have the kernels loaded by threads that are free."""
    found = remembered.found(session.device, operands, axis, theirs(settings), others=others)
    background.breathe()
    for source in itertools.chain.from_iterable(one.sources for one in found):
        background.HERE.begin(background.Job(functools.partial(_load, session, source), source.name), background.PART)
    return found


def _load(session: Any, source: Source) -> None:
    with contextlib.suppress(Exception):  # the product that needs it reports the error
        kernel_of(session, source)


def _prepare(entry: Entry, settings: Settings) -> None:
    """Select, compile and load the kernel of a product, or note why PyTorch's own is better."""
    assert entry.operands is not None
    a, b, c, beta, bias, activation, how = entry.operands
    try:
        if a.operand.home.kind == "cuda" and autotune.HERE.level() != "measure":
            session = session_at(a.operand.home, a.operand.queue)
            for found in _around(session, entry.operands, None, settings):
                if found.selection.unproven is None:
                    made = None if found.why else entry.operands.call(session, found.fused, found.selection)
                    entry.fused, entry.why, entry.call = found.fused, found.why, made  # the call last: from then on it is used
                    return
        call = decided(1.0, a, b, beta, c, how)
        why = slower(call, theirs(settings)) if theirs(settings) else ""
        together = None
        if not why and bias is not None and len(bias) == len(c.shape):
            together = fused(call, bias, activation, a, b, c, how)
        entry.fused, call = together is not None, together or call
    except Exception as error:
        _failed(entry, error)
        return
    entry.why = why
    if not why:
        entry.call = call


def gpus() -> int:
    """Return the number of CUDA devices that PyTorch uses, which NVML tells it before CUDA is started."""
    return int(torch.cuda.device_count()) if torch.version.cuda else 0


_building = renewed(threading.RLock())


def tell(number: int, settings: Settings) -> None:
    """Warn if most products on a CUDA device stay PyTorch's, and why."""
    if not settings.own and settings.precision != "fp32":
        idle.tell("PyTorch", gpus, number)


def wait(seconds: float | None = None) -> bool:
    """Prepare the kernels of all products that have run so far, however few, and wait until they are ready.

    Parameters
    ----------
    seconds : longest time to wait; None for as long as it takes, at most 600 s for a kernel

    Returns
    -------
    True if all are ready. A program that is about to capture a CUDA graph, or to be timed, may want to know.

    Raises
    ------
    NotReady
        no time was named, and a kernel took longer than that
    """
    for products in every():
        waiting = [job for entry in products.entries.every() if (job := entry.job) is not None and not job.begun]
        for job in waiting:
            background.HERE.begin(job)
        if waiting:  # the bridge would go on leaving such products until preparing them pays
            products.collect(forget=True)
    return background.HERE.wait(seconds)


_by_settings: BySettings[Settings, Products] = BySettings(Products)

products_of, every, forget = _by_settings.of, _by_settings.every, _by_settings.forget
