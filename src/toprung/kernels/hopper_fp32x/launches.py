"""Launches of fp32x: a ``Step`` for each panel on each stream. B may be a ``SplitOperand``, split once for many products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from toprung.backends.base import Session, Source
from toprung.backends.overlap import Overlapping
from toprung.errors import LaunchError, Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches, Run
from toprung.kernels.build import guard, kernel_of
from toprung.kernels.hopper import Counter, ceil, narrow, whole
from toprung.kernels.hopper import address as address_of
from toprung.kernels.hopper_fp32x.config import Variant
from toprung.kernels.hopper_fp32x.cost import select_config
from toprung.kernels.hopper_fp32x.sizes import (
    LIMIT,
    Panel,
    depth_of,
    matrices,
    padded,
    panels,
    parts_bytes,
    supported,
    terms_bytes,
    trimmed,
    width,
    workspace_bytes,
)
from toprung.kernels.hopper_fp32x.sources import (
    SPLIT_THREADS,
    Splitting,
    product_source,
    reduce_source,
    split_source,
    spread,
)

KEPT_STEPS = 64
"""Workspaces whose launches are kept: a caller that lends memory from a pool comes back with a few addresses."""


class SplitOperand:
    """The terms of a B, and B itself, as they were: what happens to the source afterwards changes nothing here.

    It owns two pieces of memory, each as large as B: the terms, and a copy from which elements are computed again that two terms
    cannot carry. Every call takes it whose B has the same shape, transpose and leading dimension, whatever its A.
    ``copied``: B is a copy already, which nobody writes and the caller keeps.
    """

    def __init__(
        self, session: Session, call: GemmDesc, b: Any, offset_b: int = 0, queue: Any = None, copied: bool = False
    ) -> None:  # fmt: skip
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        if call.batch > 1 and call.stride_b:
            raise Unsupported(f"{call}: the operands of a batch cannot be prepacked")
        self.session, self.like = session, _of_b(call)
        self.terms = session.allocate(terms_bytes(call.N, call.K))
        self.copy: Any = address_of(b) + 4 * offset_b
        if not copied:
            rows, cols = (call.N, call.K) if call.trans_b else (call.K, call.N)
            source, nbytes = self.copy, 4 * ((rows - 1) * call.ldb + cols)
            self.copy = session.allocate(nbytes)
            _copied(session, address_of(self.copy), source, nbytes, queue)
        self._split = Step.of_b(self, session, call)
        self._split.split_only(0, address_of(self.copy), queue)

    def refused(self, session: Session, call: GemmDesc) -> str:
        """Return why a product on a session's device cannot take it; empty where it can."""
        if session is not self.session:
            return f"B was prepacked on {self.session.device}, not for {session.device}"
        if _of_b(call) != self.like or (call.batch > 1 and call.stride_b):
            return f"B was prepacked as N, K, transposed, leading dimension = {self.like}, not for {call}"
        return ""


def _of_b(call: GemmDesc) -> tuple[int, int, bool, int]:
    """Return what the terms of B depend on, and the place of its elements."""
    return call.N, call.K, call.trans_b, call.ldb


def _copied(session: Session, to: int, source: int, nbytes: int, queue: Any) -> None:
    """Copy device to device, in a queue."""
    from cuda.bindings import driver

    on_cuda: Any = session
    with on_cuda.current():
        (status,) = driver.cuMemcpyDtoDAsync(to, source, nbytes, session.queue if queue is None else queue)
    if status:
        raise LaunchError(f"the operand cannot be copied: {status.name}")


def sources_of(
    call: GemmDesc, variant: Variant, slices: int, splitting: tuple[int, int] | None = None, epilogue: Epilogue | None = None,
    **more: int,
) -> list[Source]:  # fmt: skip
    """Return the sources of the product, of the splitting pass and, with several slices of K, of what adds them."""
    last = epilogues.defines(epilogue)  # of the launch that writes C
    writes = {**last, **({"ODD_C": 1} if call.widths[2] == 1 else {})}
    product = product_source(variant, **more, **(writes if slices == 1 else {}))
    return [product, split_source(*(splitting or pass_of(call, slices))), *([reduce_source(**last)] if slices > 1 else [])]


def pass_of(call: GemmDesc, slices: int) -> tuple[int, int]:
    """Return the blocks of a cluster and the elements that a thread holds in the splitting pass of both operands."""
    return spread(depth_of(call.K, slices), call.trans_a or not call.trans_b)


class Fp32xLaunches(Launches):
    """A product that is ready to run, as often as wanted, from any thread, on any stream of its session's context.

    Attributes
    ----------
    variant, slices : the tile, and the slices of K
    why : why they were chosen
    workspace_bytes : scratch memory it takes of the stream it runs on
    """

    def __init__(
        self,
        session: Session,
        call: GemmDesc,
        variant: Variant | None = None,
        limit: int = LIMIT,
        overlap: bool = True,
        splitting: tuple[int, int] | None = None,
        slices: int = 0,
        epilogue: Epilogue | None = None,
        **more: int,
    ) -> None:
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        self.session, self.call, self._overlap, self.epilogue = session, call, overlap, epilogue
        self._units = session.device.compute_units
        best = select_config(call, self._units)
        self.variant = variant or best.variant
        self.slices = trimmed(call.K, slices or (1 if variant else best.slices))
        self.why = f"the fullest of {self._units} SMs is done first with tiles of {self.variant.BM}×{self.variant.BN}"
        self.why += f" and {self.slices} slices of K" * (self.slices > 1)
        self.panels = panels(call, limit) if call.M and call.N else []
        self.workspace_bytes = workspace_bytes(call, limit, self.slices)
        self.cluster, self.held = splitting or pass_of(call, self.slices)
        self._count = Counter(session)
        self._steps: dict[int, list[Step]] = {}
        self._with: WeakKeyDictionary[SplitOperand, dict[int, list[Step]]] = WeakKeyDictionary()
        if self.panels:
            sources = sources_of(call, self.variant, self.slices, (self.cluster, self.held), epilogue, **more)
            self.product, _, *adding = (kernel_of(session, source) for source in sources)
            if adding:
                self.reduce = adding[0]

    def starter(self) -> Run:
        # `run`, which serves all threads: it holds the stream's workspace while it launches
        return self.run

    def accepts(self, packed: Any) -> bool:
        return isinstance(packed, SplitOperand) and not self._refused(packed)

    def reserve(self, queue: Any = None) -> None:
        """Allocate what a stream needs, so that nothing is when ``run`` is captured into a graph.

        A graph keeps the addresses: keep the launches as long as the graph.
        """
        if self.panels:
            work = self.session.workspace(queue, self.workspace_bytes)
            with work.lock:
                self._at(address_of(work.buffer), None)

    def run(
        self,
        a: Any,
        offset_a: int,
        b: Any,
        offset_b: int,
        c: Any,
        offset_c: int,
        alpha: float,
        beta: float,
        queue: Any = None,
        workspace: Any = None,
        addend: int = 0,
    ) -> None:
        """Put one call into a queue (a CUDA stream's handle; None: the session's own); never waits.

        Offsets are in elements. B may be ``SplitOperand`` (its offset is not looked at). With β = 0 C is not read, with α = 0
        neither are A and B. ``workspace``: address of scratch memory of the caller's; by default the stream's. ``addend``: D's
        address, where there is an epilogue.
        """
        if not self.panels:
            return
        prepared = b if isinstance(b, SplitOperand) else None
        if prepared is not None and (reason := self._refused(prepared)):
            raise Unsupported(reason)
        at_a = address_of(a) + 4 * offset_a
        at_b = address_of(prepared.copy) if prepared else address_of(b) + 4 * offset_b
        at_c = address_of(c) + 4 * offset_c
        alpha, beta = narrow(alpha), narrow(beta)
        if workspace is not None:
            for step in self._at(address_of(workspace), prepared):
                step.run(at_a, at_b, at_c, alpha, beta, queue, addend)
            return
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:  # another call's launches must not come between the two
            for step in self._at(address_of(work.buffer), prepared):
                step.run(at_a, at_b, at_c, alpha, beta, queue, addend)

    def prepare(self, b: Any, offset_b: int = 0, queue: Any = None) -> SplitOperand:
        """Return B split once, for any number of products with such a B."""
        return SplitOperand(self.session, self.call, b, offset_b, queue)

    def escalated(self) -> int:
        # how many pieces of C were computed in plain fp32 since the launches were made; waits for the device
        return self._count.read()

    def steps(self, queue: Any = None) -> Sequence[Step]:
        """Return the launches on a stream, a panel each."""
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:
            return self._at(address_of(work.buffer), None)

    def _refused(self, packed: SplitOperand) -> str:
        if reason := packed.refused(self.session, self.call):
            return reason
        return "the call is cut into panels of columns" if any(p.cols < self.call.N for p in self.panels) else ""

    def _at(self, workspace: int, prepared: SplitOperand | None) -> Sequence[Step]:
        """Return the launches on a workspace, kept by its address; whoever asks has the workspace to itself."""
        if prepared is None:
            kept = self._steps
        else:
            with guard:
                kept = self._with.setdefault(prepared, {})
        found = kept.get(workspace)
        if found is None:
            if len(kept) >= KEPT_STEPS:
                kept.clear()
            found = kept[workspace] = [Step(self, p, workspace, prepared) for p in self.panels]
        return found


class Step:
    """The launches of a panel in a workspace: two, or three where K is cut into slices.

    Attributes
    ----------
    addresses : of A's terms, what stands beside them, B's terms, what stands beside them
    """

    _split: Overlapping | None = None
    _multiply: Overlapping | None = None
    _reduce: Overlapping | None = None
    _parts = 0

    def __init__(self, plan: Fp32xLaunches, p: Panel, workspace: int, prepared: SplitOperand | None) -> None:
        from toprung.backends.cuda import CUDABuffer  # not above: every program loads the families, few have a GPU

        call, session, v, units, slices = plan.call, plan.session, plan.variant, plan._units, plan.slices
        i, long, address = np.int32, np.int64, np.uint64
        matrices_a, matrices_b = matrices(call.stride_a, p.batch), matrices(call.stride_b, p.batch)
        bytes_a, bytes_b, _ = parts_bytes(call, plan.panels[0], slices)  # the largest: terms that stay must not move
        terms_a = workspace
        terms_b = address_of(prepared.terms) if prepared else terms_a + bytes_a
        slices_b = 1 if prepared else slices  # a prepared operand has its rows in one piece
        depth, depth_b = depth_of(call.K, slices), depth_of(call.K, slices_b)
        rows_a, rows_b = p.rows * matrices_a * slices, p.cols * matrices_b * slices_b
        self.addresses = _, info_a, _, info_b = _places(terms_a, rows_a, depth, terms_b, rows_b, depth_b)
        across_a, across_b = call.trans_a, not call.trans_b
        self._from_a = 4 * (p.z * call.stride_a + p.m * (1 if across_a else call.lda))
        self._from_b = 4 * (p.z * call.stride_b + p.n * (1 if across_b else call.ldb))
        self._from_c = 4 * (p.z * call.stride_c + p.m * call.ldc + p.n)
        self._epilogue = added = plan.epilogue
        self._from_d = 4 * (p.z * added.stride + p.m * added.down + p.n * added.on) if added else 0
        kinds, strides = epilogues.kinds(added), epilogues.strides(added)
        sides = p.rows if p.split_a else 0, matrices_a, p.cols if p.split_b and prepared is None else 0, matrices_b
        self._split = splitting(session, call, self.addresses, sides, (plan.cluster, plan.held), plan._overlap, slices)
        tiles = ceil(p.rows, v.BM) * ceil(p.cols, v.BN) * p.batch * slices
        maps: Any = session
        ldc, stride_c = call.ldc, call.stride_c
        lie = long(call.lda), long(call.stride_a), i(across_a), long(call.ldb), long(call.stride_b), i(across_b)
        sizes = i(p.rows), i(p.cols), i(call.K), i(p.batch), i(slices)
        count = address(address_of(plan._count.buffer))
        if slices > 1:
            self._parts, ldc = workspace + bytes_a + bytes_b, padded(p.cols)
            stride_c = p.rows * ldc
            pieces = ceil(p.rows, 16) * ceil(p.cols, 32) * p.batch
            self._reduce = Overlapping(
                session, plan.reduce, pieces, 128, f"Pff{kinds}",
                (
                    *strides, address(self._parts), i(p.rows), i(p.cols), i(p.batch), i(slices), i(ldc), i(call.ldc),
                    long(call.stride_c),
                ), plan._overlap,
            )  # fmt: skip
        self._multiply = Overlapping(
            session, plan.product, min(tiles, units), 128 * (v.CONSUMERS + 1), f"PPPff{kinds if slices == 1 else ''}",
            (
                *(strides if slices == 1 else ()), address(info_a), address(info_b), count,
                maps.tensor_map(CUDABuffer(terms_a, 0), rows_a, width(depth), (v.BM, 64)),
                maps.tensor_map(CUDABuffer(terms_b, 0), rows_b, width(depth_b), (v.BN, 64)),
                *sizes, i(depth), i(p.rows * slices if call.stride_a else 0), i(p.cols * slices_b if call.stride_b else 0),
                i(p.rows), i(p.cols if slices_b == slices else 0), *lie, i(ldc), long(stride_c),
            ), plan._overlap,
        )  # fmt: skip

    @classmethod
    def of_b(cls, prepared: SplitOperand, session: Session, call: GemmDesc) -> Step:
        """Return the launch that fills a packed operand."""
        step = cls.__new__(cls)
        step._from_a = step._from_b = step._from_c = step._from_d = 0
        step.addresses = _places(0, 0, call.K, address_of(prepared.terms), call.N, call.K)
        step._split = splitting(session, call, step.addresses, (0, 1, call.N, 1), spread(call.K, not call.trans_b), True)
        return step

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any, addend: int = 0) -> None:
        """Split what is not split yet, multiply, and add up."""
        self.split_only(a, b, queue, alpha)
        self.multiply_only(a, b, c, alpha, beta, queue, addend)
        self.reduce_only(c, alpha, beta, queue, addend)

    def split_only(self, a: int, b: int, queue: Any, alpha: float = 1.0) -> None:
        """The first launch."""
        if self._split is not None:
            self._split(queue, a + self._from_a, b + self._from_b, alpha)

    def multiply_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any, addend: int = 0) -> None:
        """The second: into C, or into the results of slices."""
        assert self._multiply is not None
        if self._reduce is None:
            added = epilogues.addresses(self._epilogue, addend + self._from_d)
            self._multiply(queue, a + self._from_a, b + self._from_b, c + self._from_c, alpha, beta, *added)
        else:
            self._multiply(queue, a + self._from_a, b + self._from_b, self._parts, float(alpha != 0.0), 0.0)

    def reduce_only(self, c: int, alpha: float, beta: float, queue: Any, addend: int = 0) -> None:
        """The third, if there is one."""
        if self._reduce is not None:
            added = epilogues.addresses(self._epilogue, addend + self._from_d)
            self._reduce(queue, c + self._from_c, alpha, beta, *added)


def _places(terms_a: int, rows_a: int, depth_a: int, terms_b: int, rows_b: int, depth_b: int) -> tuple[int, int, int, int]:
    """Return the addresses of the terms and of what stands beside them."""
    beside_a, beside_b = whole(2 * width(depth_a) * rows_a), whole(2 * width(depth_b) * rows_b)
    return terms_a, terms_a + beside_a, terms_b, terms_b + beside_b


def splitting(
    session: Session, call: GemmDesc, addresses: tuple[int, ...], sides: tuple[int, int, int, int], how: tuple[int, int],
    overlap: bool, slices: int = 1,
) -> Overlapping | None:  # fmt: skip
    """The splitting pass on rows of A's matrices and columns of B's; a side of 0 is left out, None where both are.

    Slices of K are matrices of their own.
    """
    i, long, units, depth = np.int32, np.int64, session.device.compute_units, depth_of(call.K, slices)
    rows, matrices_a, cols, matrices_b = sides[0], sides[1] * slices, sides[2], sides[3] * slices
    a = Splitting.of(rows, matrices_a, depth, call.trans_a, units)
    b = Splitting.of(cols, matrices_b, depth, not call.trans_b, units)
    blocks_a, blocks_b = a.blocks(how[0]) if rows else 0, b.blocks(how[0]) if cols else 0
    if not blocks_a + blocks_b:
        return None
    return Overlapping(
        session, kernel_of(session, split_source(*how)), blocks_a + blocks_b, SPLIT_THREADS, "PPf",
        (
            *map(np.uint64, addresses), i(call.K), i(depth), i(slices), i(blocks_a),
            long(call.lda), long(call.stride_a), i(max(rows, 1)), i(matrices_a), i(a.lanes),
            long(call.ldb), long(call.stride_b), i(max(cols, 1)), i(matrices_b), i(b.lanes),
        ), overlap,
    )  # fmt: skip
