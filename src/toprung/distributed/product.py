"""``matmul`` of DTensors: panels of the operands that move are sent while local products run, in the order of a schedule."""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from toprung.blas import routines
from toprung.dispatch import known_precision
from toprung.distributed.agreement import Agreement
from toprung.distributed.peers import Peers
from toprung.distributed.schedule import AXES, H200, ITEM, RATES, Placements, Schedule, best
from toprung.errors import BadArgument, BadArray, BadShape, OutOfDeviceMemory, Unsupported

NAMES: dict[str, Placement] = {"S0": Shard(0), "S1": Shard(1), "R": Replicate(), "P": Partial()}


@dataclass(frozen=True)
class Receipt:
    """Receipt of one product on this rank.

    Attributes
    ----------
    schedule : operands that stay and those that move, with the panels
    predicted : time by the cost model, seconds; None on a device whose speeds are not measured
    bytes : bytes that this rank received, by the cost model
    memory : largest memory of a rank beyond operands and result, bytes
    panels : number of panels
    times : functions that return the seconds of each part: "all", "sent" and "products"
    """

    schedule: Schedule
    predicted: float | None
    bytes: int
    memory: int
    panels: int
    times: dict[str, list[Callable[[], float]]] = field(repr=False, compare=False)

    def _seconds(self, what: str) -> float:
        return sum(seconds() for seconds in self.times[what])

    @property
    def measured(self) -> float:
        """Time from the start to the result, seconds; reading it waits for the device."""
        return self._seconds("all")

    @property
    def overlap(self) -> float:
        """Share of the communication's time during which products ran; 1 if nothing was sent. Reading it waits for the device."""
        sent, hidden = self._seconds("sent"), self._seconds("sent") + self._seconds("products") - self.measured
        return max(0.0, min(1.0, hidden / sent)) if sent else 1.0

    def __str__(self) -> str:
        predicted = "not predicted" if self.predicted is None else f"{self.predicted:.3g} s predicted"
        return (
            f"{self.schedule}\n  {self.panels} panels, {self.bytes:,} bytes received, {self.memory:,} bytes of scratch memory\n"
            f"  {predicted}, {self.measured:.3g} s measured, {self.overlap:.0%} of the communication overlapped"
        )


_last = threading.local()


def last_receipt() -> Receipt | None:
    """Return the receipt of this thread's last product of DTensors; None before the first."""
    return getattr(_last, "receipt", None)


@functools.lru_cache(maxsize=64)
def ranks_of(mesh: Any) -> dict[tuple[int, ...], int]:
    """Return a mesh's ranks by their coordinates; PyTorch takes 0.1 ms to list them."""
    return dict(zip(itertools.product(*map(range, mesh.shape)), mesh.mesh.flatten().tolist(), strict=True))


@functools.cache
def _stream(device: torch.device) -> Any:
    """Return the stream of a device's communication. Its priority lets it in while a product's blocks wait for an SM."""
    return torch.cuda.Stream(device, priority=-1)


class Lane:
    """Communication that overlaps with products, in the order in which it was started: on a stream, or on a thread of the host."""

    def __init__(self, device: torch.device, times: dict[str, list[Callable[[], float]]], agreement: Agreement) -> None:
        self.stream = _stream(device) if device.type == "cuda" else None
        self.times, self.agreement = times, agreement
        self._before: Future[None] | None = None

    def timed(self, what: str, work: Callable[[], object]) -> Any:
        """Run work, and note the time that it takes on the current stream, or on the host; return the event of its end."""
        if self.stream is not None:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            self.times[what].append(lambda: end.synchronize() or start.elapsed_time(end) / 1e3)
            return end
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        self.times[what].append(lambda: took)
        return None

    def start(self, work: Callable[[], None], after: Sequence[Any] = ()) -> Callable[[], object]:
        """Start work after events of the products; return a function that makes later products wait for it."""
        if self.stream is not None:
            for event in after:
                self.stream.wait_event(event)
            with torch.cuda.stream(self.stream):
                end = self.timed("sent", work)
            return lambda: torch.cuda.current_stream().wait_event(end)
        before, done = self._before, Future[None]()

        def run() -> None:
            try:
                if before is not None:
                    before.result(self.agreement.left())
                self.timed("sent", work)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._before = done
        threading.Thread(target=run, daemon=True).start()  # no pool: its threads would be waited for at the interpreter's end
        return lambda: done.result(self.agreement.left())


class Product:
    """Local part of one product: memory that is allocated before anything is sent, and the functions that use it."""

    def __init__(self, schedule: Schedule, a: Any, b: Any, agreement: Agreement, how: dict[str, Any]) -> None:
        self.schedule, self.given, self.mesh, self.agreement, self.how = schedule, {"A": a, "B": b}, a.device_mesh, agreement, how
        self.at = tuple(self.mesh.get_coordinate())
        self.panels = schedule.order(self.at)
        self.fetched = [name for name in schedule.movers if name != "C"]
        self.parts: dict[str, Any] = {}
        self.times: dict[str, list[Callable[[], float]]] = {"all": [], "sent": [], "products": []}
        self.device = a.to_local().device
        self.peers = Peers(self.device, {name: self.given[name].to_local() for name in self.fetched})
        self.c = self._empty(*schedule.shard("C", schedule.parked["C"], self.at))
        self.buffers = {
            name: [[self._empty(rows * schedule.width) for rows in schedule.heights(name)] for _ in range(schedule.held)]
            for name in schedule.movers
        }
        self.memory = schedule.memory
        self.staged: dict[str, Any] = {}  # for a panel to be sent, where it is not contiguous in the shard
        for name in self.fetched:
            axis, local = schedule.axis(name), self.given[name].to_local()
            if schedule.parked[name] == schedule.sources[name]:
                ready = local.narrow(axis, 0, min(schedule.width, local.shape[axis])).is_contiguous()
            else:  # PyTorch's result will be row-major
                low, high = schedule.owned(name, self.at)
                ready = axis == 0 or high - low <= schedule.width
            if schedule.owners(name) and not (schedule.in_place(name) and ready):
                self.staged[name] = self._empty(schedule.rows(name, self.at)[-1][0] * schedule.width)
                self.memory += ITEM * self.staged[name].numel()

    def _empty(self, *shape: int) -> Any:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def _panel(self, buffer: Any, width: int) -> Any:
        """Return a buffer as the rows of a panel, which may be narrower than the widest."""
        return buffer[: buffer.numel() // self.schedule.width * width].view(-1, width)

    def _communicate(self, collective: Callable[..., Any], d: int, *tensors: Any, **options: Any) -> None:
        """Run a collective along a mesh dimension; on the host it ends with the time that is left."""
        work = collective(*tensors, group=self.mesh.get_group(d), async_op=not tensors[0].is_cuda, **options)
        if work is not None:
            work.wait(self.agreement.limit())

    def _along(self, d: int, index: int) -> tuple[int, ...]:
        """Return the coordinates of a rank in the group of a mesh dimension."""
        return (*self.at[:d], index, *self.at[d + 1 :])

    def _owner(self, name: str, d: int, start: int) -> int:
        """Return the coordinate along a mesh dimension of the rank that owns the panel of an operand that begins at an index."""
        each = ((index, self.schedule.owned(name, self._along(d, index))) for index in range(self.schedule.mesh[d]))
        return next(index for index, (low, high) in each if low <= start < high)

    def _slice(self, name: str, tensor: Any, start: int, width: int) -> Any:
        """Return a panel of a shard, None if it has none of it: as it is where ranks multiply theirs in place, else rows first."""
        axis, (low, high) = self.schedule.axis(name), self.schedule.owned(name, self.at)
        if not low <= start < high:
            return None
        piece = tensor.narrow(axis, start - low, width)
        return piece if axis == 1 or self.schedule.in_place(name) else piece.mT

    def _received(self, name: str, j: int) -> list[int]:
        """Return which panels up to one are received into buffers, rather than multiplied where they are."""
        low, high = self.schedule.owned(name, self.at) if self.schedule.in_place(name) else (0, 0)
        return [i for i, (start, _) in enumerate(self.panels[: j + 1]) if not low <= start < high]

    def _buffers(self, name: str, j: int) -> list[Any]:
        """Return the buffers of a panel."""
        found = self.buffers[name]
        return found[len(self._received(name, j)) % len(found)]

    def exchange(self, name: str, d: int, j: int, panel: Any) -> None:
        """Receive a panel from its owner along a mesh dimension, and send own panels to the ranks whose turn they are.

        ``panel`` is flat, and empty if this rank owns it. Where ranks want panels of one owner, it sends to one after the other.
        """
        me, ranks = self.at[d], range(self.schedule.mesh[d])
        wants = [self.schedule.order(self._along(d, index))[j] for index in ranks]
        owners = [self._owner(name, d, start) for start, _ in wants]
        asking = [[index for index in ranks if owners[index] == owner != index] for owner in ranks]
        for turn in range(max(map(len, asking))):
            into, piece = panel[:0], panel[:0]
            if asking[owners[me]][turn : turn + 1] == [me]:
                into = panel
            for index in asking[me][turn : turn + 1]:
                piece = self._slice(name, self.parts[name], *wants[index])
                if name in self.staged:
                    piece = self.staged[name][: piece.numel()].view(piece.shape).copy_(piece)
                piece = piece.contiguous().view(-1)  # PyTorch may redistribute into a part of a padded shard
            got = [into.numel() if index == owners[me] else 0 for index in ranks]
            sent = [piece.numel() if asking[me][turn : turn + 1] == [index] else 0 for index in ranks]
            self._communicate(dist.all_to_all_single, d, into, piece, got, sent)

    def fetch(self, j: int) -> None:
        """Gather panels of A and B into the first of their buffers, and send this rank's part of others'."""
        for name in self.fetched:
            start, width = self.panels[j]
            rows = self.schedule.rows(name, self.at)
            left, _ = rows[-1]
            views = (self._panel(buffer, width) for buffer in reversed(self._buffers(name, j)))
            mine, panel = self._slice(name, self.parts[name], start, width), next(views)
            if mine is not None and not self.schedule.in_place(name):
                panel[:left].copy_(mine)
            for d in reversed(self.schedule.steps(name)):
                if d in rows:
                    part, panel, (_, each) = panel, next(views), rows[d]
                    if each:
                        self._communicate(dist.all_gather_into_tensor, d, panel[: self.schedule.mesh[d] * each], part[:each])
                elif not self.peers.offers:
                    self.exchange(name, d, j, panel[: left if mine is None else 0].view(-1))
                elif mine is None:
                    at = self._along(d, self._owner(name, d, start))
                    before = start - self.schedule.owned(name, at)[0]
                    self.peers.copy(ranks_of(self.mesh)[at], name, before * left, panel[:left].view(-1))

    def deliver(self, j: int) -> None:
        """Reduce a panel of C, of which each rank has summed a part of k, and put this rank's rows of it into the result."""
        start, width = self.panels[j]
        rows = self.schedule.rows("C", self.at)
        views = (self._panel(buffer, width) for buffer in self._buffers("C", j))
        panel = next(views)
        for d in self.schedule.steps("C"):
            if d in rows:
                whole, panel, (_, each) = panel, next(views), rows[d]
                if each:
                    self._communicate(dist.reduce_scatter_tensor, d, panel[:each], whole[: self.schedule.mesh[d] * each])
            elif panel.numel() and self.schedule.parked["C"][d] == "R":
                self._communicate(dist.all_reduce, d, panel)
            elif panel.numel():
                owner = self._owner("C", d, start)
                self._communicate(dist.reduce, d, panel, group_dst=owner)
                if owner != self.at[d]:
                    return
        mine = self._slice("C", self.c, start, width)
        if mine is not None:
            mine.copy_(panel[: rows[-1][0]])

    def operand(self, name: str, j: int) -> Any:
        """Return an operand of the local product, a panel or a shard, as a view in its orientation."""
        schedule, (start, width) = self.schedule, self.panels[j]
        part = self.c if name == "C" else self.parts[name]
        if name in schedule.movers:
            axis = schedule.axis(name)
            rows = schedule.shard(name, schedule.needed(name), self.at)[1 - axis]
            if not schedule.in_place(name):
                panel = self._panel(self._buffers(name, j)[0], width)[:rows]
                return panel if axis == 1 else panel.mT
            mine = self._slice(name, part, start, width)
            shape = (rows, width) if axis == 1 else (width, rows)
            return self._buffers(name, j)[0][: rows * width].view(shape) if mine is None else mine
        if schedule.panel and schedule.panel in AXES[name]:
            return part.narrow(schedule.axis(name), start, width)
        return part

    def multiply(self, j: int) -> None:
        """Compute the local product of a panel; panels of k add to C."""
        a, b, c = (self.operand(name, j) for name in "ABC")
        if not c.numel():
            return
        if not a.shape[1]:
            c.zero_()
        else:
            routines.matmul(a, b, c, bias=c if self.schedule.panel == "k" and j else None, **self.how)

    def run(self, text: str) -> Any:
        """Agree with the other ranks, redistribute what is not sent in panels, send and multiply panels; return C, a DTensor."""
        schedule, last = self.schedule, len(self.panels) - 1
        lane = Lane(self.device, self.times, self.agreement)
        arrived: list[Callable[[], object]] = []
        delivered: list[Callable[[], object]] = []
        ends: list[Any] = []

        def park() -> None:
            with torch.no_grad():
                for name, operand in self.given.items():
                    placements = [NAMES[place] for place in schedule.parked[name]]
                    self.parts[name] = operand.redistribute(placements=placements).to_local().detach()

        def place() -> None:
            shape, stride = torch.Size((schedule.sizes["m"], schedule.sizes["n"])), (schedule.sizes["n"], 1)
            before, after = ([NAMES[place] for place in places["C"]] for places in (schedule.parked, schedule.sources))
            with torch.no_grad():
                c = DTensor.from_local(self.c, self.mesh, before, run_check=False, shape=shape, stride=stride)
                self.parts["C"] = c.redistribute(placements=after)

        def as_given(names: str) -> bool:
            return all(schedule.parked[name] == schedule.sources[name] for name in names)

        def redistribute(work: Callable[[], None], names: str) -> None:
            if as_given(names):
                work()
            elif lane.stream is not None:
                lane.timed("sent", work)
            else:
                lane.start(work)()  # PyTorch itself would wait for the whole timeout, and leave no time to find out who hangs

        def multiply(j: int) -> None:
            ends.append(lane.timed("products", functools.partial(self.multiply, j)))

        def everything() -> None:
            ready = torch.cuda.current_stream().record_event() if lane.stream is not None else None
            # the device multiplies what needs no other rank while the host agrees with them
            at_once = ready is not None and as_given("AB")
            early = at_once and last >= 0 and not any(self._received(x, 0) for x in self.fetched)
            reads = at_once and bool(self.fetched) and not self.staged and all(map(schedule.in_place, self.fetched))
            if reads:
                self.peers.record("ready", torch.cuda.current_stream())
            if early:
                park()
                multiply(0)
            if self.peers.accept(self.agreement.reach(text, self.peers.offer(reads))):
                with torch.cuda.stream(lane.stream):
                    self.peers.wait("ready")
            if not early:
                redistribute(park, "AB")
                ready = torch.cuda.current_stream().record_event() if lane.stream is not None else None
            if last < 0:
                self.c.zero_()
            for j in range(last + 1):
                # before this panel's product is started, so that the two overlap
                while self.fetched and len(arrived) <= min(j + 1, last):
                    i = len(arrived)
                    users = (self._received(name, i)[-1 - schedule.held :] for name in self.fetched)
                    after = [ends[one[0]] for one in users if len(one) > schedule.held]  # the product of what the buffers had
                    arrived.append(lane.start(functools.partial(self.fetch, i), [ready, *after]))
                if j or not early:
                    for wait in arrived[j : j + 1] + delivered[: j - 1][-1:]:
                        wait()
                    multiply(j)
                if "C" in schedule.movers:
                    delivered.append(lane.start(functools.partial(self.deliver, j), ends[j:]))
            if self.peers.offers:
                self.peers.record("done", lane.stream)
                self.agreement.meet()
                self.peers.wait("done")  # later work on this stream may write into the shards
            for wait in delivered[-2:]:
                wait()
            redistribute(place, "C")

        with torch.cuda.device(self.device) if lane.stream is not None else nullcontext():
            try:
                lane.timed("all", everything)
            finally:
                if lane.stream is not None:  # after an error, too: the buffers' memory is used again
                    torch.cuda.current_stream().wait_stream(lane.stream)
        return self.parts["C"]


def _named(placements: Sequence[Placement], name: str) -> Placements:
    """Return placements by their names, and negative axes as positive.

    Raises
    ------
    BadArgument
        a placement that no schedule has
    """
    found = []
    for place in placements:
        if type(place) is Shard and -2 <= place.dim < 2:
            found.append(f"S{place.dim % 2}")
        elif type(place) is Replicate or (type(place) is Partial and place.reduce_op == "sum"):
            found.append("R" if type(place) is Replicate else "P")
        else:
            raise BadArgument(f"{name} has the placement {place}: redistribute it to Shard(0), Shard(1), Replicate() or Partial()")
    return tuple(found)


def checked(a: Any, b: Any, out_placements: Any, panel_bytes: Any, precision: str) -> tuple[dict[str, int], Placements | None]:
    """Return M, N and K by their letters, and the result's placements.

    Raises
    ------
    BadArgument, BadArray, BadShape, Unsupported
        what cannot be multiplied
    """
    known_precision(precision)
    for name, thing in (("a", a), ("b", b)):
        if not isinstance(thing, DTensor):
            raise BadArray(
                f"{name} is {type(thing).__name__}, not a DTensor: distribute_tensor(tensor, mesh, placements) makes one"
            )
        if thing.dtype != torch.float32:
            raise BadArray(f"{name} is {thing.dtype}, not torch.float32: convert it with .float()")
        if thing.ndim != 2:
            raise BadShape(f"{name} has {thing.ndim} dimensions, not 2: reshape it")
    if a.device_mesh != b.device_mesh:
        raise BadArgument(f"a is on {a.device_mesh} and b on {b.device_mesh}: put both on one mesh")
    if a.device_mesh.ndim > 2:
        raise BadArgument(f"the mesh has {a.device_mesh.ndim} dimensions, not one or two: flatten some")
    if a.device_mesh.get_coordinate() is None:
        raise BadArgument(f"rank {dist.get_rank()} is not in the mesh {a.device_mesh}: only its ranks multiply")
    if a.shape[1] != b.shape[0]:
        raise BadShape(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}: the columns of the first must be as many as the rows of the second"
        )
    if panel_bytes is not None and not (type(panel_bytes) is int and panel_bytes > 0):
        raise BadArgument(f"panel_bytes is a number of bytes above 0, not {panel_bytes!r}")
    out = None
    if out_placements is not None:
        if not isinstance(out_placements, Sequence) or len(out_placements) != a.device_mesh.ndim:
            raise BadArgument(
                f"out_placements has a placement for each of {a.device_mesh.ndim} mesh dimensions, not {out_placements!r}"
            )
        out = _named(out_placements, "out_placements")
    if a.to_local().is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported("a CUDA graph cannot hold a product of DTensors, whose ranks agree on the host: capture the rest")
    return {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1]}, out


class _Matmul(torch.autograd.Function):  # type: ignore[misc]
    """A product whose gradients are two more, placed as their operands are."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, *options: Any) -> Any:
        ctx.save_for_backward(a, b)
        ctx.options = options
        out_placements, panel_bytes, precision, own = options
        mesh: Any = next((thing.device_mesh for thing in (a, b) if isinstance(thing, DTensor)), None)
        if mesh is None and not dist.is_initialized():
            checked(a, b, out_placements, panel_bytes, precision)
        # without a mesh all ranks are told; in most programs they are the mesh's
        with Agreement(range(dist.get_world_size()) if mesh is None else ranks_of(mesh).values()) as agreement:
            sizes, out = checked(a, b, out_placements, panel_bytes, precision)
            given = {"A": _named(a.placements, "a"), "B": _named(b.placements, "b")}
            device = a.to_local().device
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
            known = RATES.get((name, precision)) or RATES.get((name, "auto"))
            schedule = best(*sizes.values(), tuple(mesh.shape), given["A"], given["B"], out, panel_bytes, known or H200)
            try:
                product = Product(schedule, a, b, agreement, {"own": own, "precision": precision})
            except RuntimeError as error:  # PyTorch has no error type for lack of host memory
                asked = schedule.memory + ITEM * math.prod(schedule.shard("C", schedule.parked["C"]))
                if device.type == "cuda":
                    free = torch.cuda.mem_get_info(device)[0]
                else:
                    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
                raise OutOfDeviceMemory(f"rank {dist.get_rank()}, {device},", asked, free, f"panels and result: {error}") from error
            c = product.run(f"{sizes} on {mesh}: A {given['A']}, B {given['B']}, C {out}, {precision}, own={own}, {schedule}")
            if device.type == "cuda":
                agreement.watch(torch.cuda.current_stream(device).record_event(), mesh.get_all_groups())
        predicted = schedule.seconds if known else None
        _last.receipt = Receipt(schedule, predicted, schedule.bytes, product.memory, len(product.panels), product.times)
        return c

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        _, panel_bytes, precision, own = ctx.options

        def placed(operand: Any) -> list[Placement]:
            return [Replicate() if isinstance(place, Partial) else place for place in operand.placements]

        how = {"panel_bytes": panel_bytes, "precision": precision, "own": own}
        grad_a = matmul(grad, b.t(), out_placements=placed(a), **how) if ctx.needs_input_grad[0] else None
        grad_b = matmul(a.t(), grad, out_placements=placed(b), **how) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b, None, None, None, None


@torch._disable_dynamo  # type: ignore[untyped-decorator]  # as DTensor's own dispatch; torch.compiler.disable would load the compiler with this module
def matmul(
    a: Any, b: Any, *, out_placements: Sequence[Placement] | None = None, panel_bytes: int | None = None, precision: str = "auto",
    own: bool = False,
) -> Any:  # fmt: skip
    """Return the float32 product of two DTensors on one mesh of one or two dimensions; gradients are recorded.

    All ranks of the mesh call it alike. Panels of the operands that move are sent while the local products of others run; which
    operands stay is chosen by a cost model, the same way on every rank and in every run, so results have the same bits.

    Parameters
    ----------
    a : DTensor (M, K), float32; Shard, uneven too, Replicate or Partial along each mesh dimension
    b : DTensor (K, N), float32, on the mesh of ``a``
    out_placements : placements of the result, one for each mesh dimension; by default those that are reached soonest
    panel_bytes : bytes of a panel of all that moves, of which two are held; by default 256 MiB
    precision, own : as for ``toprung.matmul``, which computes the local products

    Returns
    -------
    A DTensor (M, N). ``last_receipt`` has its schedule, times, bytes and memory.

    Raises
    ------
    BadArray, BadShape, BadArgument
        operands, placements or options that cannot be multiplied
    OutOfDeviceMemory
        this rank has too little memory
    Unsupported
        the current stream is being captured
    RankFailed
        another rank failed, hangs, was called otherwise or is gone; within the timeout of ``init_process_group``

    Examples
    --------
    >>> c = toprung.distributed.matmul(a, b, out_placements=[Shard(0)])  # doctest: +SKIP
    """
    return _Matmul.apply(a, b, out_placements, panel_bytes, precision, own)
