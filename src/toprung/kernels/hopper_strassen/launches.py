"""Launches of a level of Strassen: for each piece two splitting passes, seven products in one launch, and what makes C."""

from __future__ import annotations

from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.backends.overlap import Overlapping
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import Launches, Run
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil, narrow
from toprung.kernels.hopper import address as address_of
from toprung.kernels.hopper_fp32x.config import Variant
from toprung.kernels.hopper_fp32x.launches import KEPT_STEPS
from toprung.kernels.hopper_fp32x.sizes import ROW_BYTES, width
from toprung.kernels.hopper_fp32x.sources import SPLIT_THREADS, spread
from toprung.kernels.hopper_strassen.form import PRODUCTS, STRASSEN, Form
from toprung.kernels.hopper_strassen.sizes import LONGEST, Piece, half, parts_bytes, pieces, workspace_bytes
from toprung.kernels.hopper_strassen.sources import ALONG, combine_source, product_source, sums_source

PLACES = 16, 32
"""Rows and columns of a quarter of C that a work-group of the last launch makes."""


def cluster_of(half_k: int) -> int:
    """Return the work-groups that have the same rows where K runs across memory."""
    return spread(half_k, True)[0]


class StrassenLaunches(Launches):
    """A product that is ready to run, as often as wanted, from any thread, on any stream of its session's context.

    Attributes
    ----------
    workspace_bytes : scratch memory it takes of the stream it runs on
    """

    def __init__(
        self, session: Session, call: GemmDesc, variant: Variant | None = None, form: Form = STRASSEN, longest: int = LONGEST,
        overlap: bool = True,
    ) -> None:  # fmt: skip
        if call.batch > 1:
            raise Unsupported("Strassen's form takes one product at a time, not a batch")
        if longest > LONGEST:
            raise Unsupported(f"a piece of Strassen's form has sides up to {LONGEST}, not {longest}")
        self.session, self.call, self.variant, self.form, self.overlap = session, call, variant or Variant(), form, overlap
        self.pieces = pieces(call, longest) if call.M and call.N else []
        self.workspace_bytes = workspace_bytes(call, longest)
        self._count = Counter(session)
        self._steps: dict[int, list[Step]] = {}

    def starter(self) -> Run:
        # `run`, which serves all threads: it holds the stream's workspace while it launches
        return self.run

    def reserve(self, queue: Any = None) -> None:
        # allocate what a stream needs, so that nothing is when `run` is captured into a graph
        self.steps(queue)

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None,
    ) -> None:  # fmt: skip
        """Put one call into a queue (a CUDA stream's handle; None: the session's own); never waits.

        Offsets are in elements. With β = 0 C is not read. ``workspace``: address of scratch memory of the caller's; by default the
        stream's.
        """
        places = address_of(a) + 4 * offset_a, address_of(b) + 4 * offset_b, address_of(c) + 4 * offset_c
        alpha, beta = narrow(alpha), narrow(beta)
        if workspace is not None:
            for step in self._at(address_of(workspace)):
                step.run(*places, alpha, beta, queue)
            return
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:  # another call's launches must not come between these
            for step in self._at(address_of(work.buffer)):
                step.run(*places, alpha, beta, queue)

    def escalated(self) -> int:
        # how many pieces of C had elements that were computed in plain fp32; waits for the device
        return self._count.read()

    def steps(self, queue: Any = None) -> list[Step]:
        """Return the launches on a stream, a piece each."""
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:
            return self._at(address_of(work.buffer))

    def _at(self, workspace: int) -> list[Step]:
        """Return the launches on a workspace, kept by its address; whoever asks has the workspace to itself."""
        found = self._steps.get(workspace)
        if found is None:
            if len(self._steps) >= KEPT_STEPS:
                self._steps.clear()
            found = self._steps[workspace] = [Step(self, p, workspace) for p in self.pieces]
        return found


class Step:
    """The launches of a piece in a workspace."""

    def __init__(self, plan: StrassenLaunches, p: Piece, workspace: int) -> None:
        from toprung.backends.cuda import CUDABuffer  # not above: every program loads the families, few have a GPU

        call, session, v, units = plan.call, plan.session, plan.variant, plan.session.device.compute_units
        i, long, address = np.int32, np.int64, np.uint64
        m, n, k = half(p.rows), half(p.cols), half(p.depth)
        bytes_a, bytes_b, _ = parts_bytes(p)
        rows_a, rows_b = PRODUCTS * m, PRODUCTS * n
        terms_a, terms_b, self._products = workspace, workspace + bytes_a, workspace + bytes_a + bytes_b
        # the terms of all rows, then what stands beside them, see ``terms_bytes``
        info_a, info_b = terms_b - _beside(rows_a), self._products - _beside(rows_b)
        across_a, across_b = call.trans_a, not call.trans_b
        self._from_a = 4 * (p.m * (1 if across_a else call.lda) + p.k * (call.lda if across_a else 1))
        self._from_b = 4 * (p.n * (1 if across_b else call.ldb) + p.k * (call.ldb if across_b else 1))
        self._from_c, self._adds = 4 * (p.m * call.ldc + p.n), p.k > 0

        def splitting(which: str, across: bool, places: tuple[int, int], side: int, ld: int) -> Overlapping:
            cluster, lanes = cluster_of(k) if across else 1, 32
            while lanes < SPLIT_THREADS and lanes * ALONG < k:
                lanes *= 2
            groups = half(side) // 32 * cluster if across else ceil(half(side) * lanes, SPLIT_THREADS)
            kernel = kernel_of(session, sums_source(plan.form.signs(which), across, cluster, which == "b"))
            terms, info = places
            fixed = (address(terms), address(info), i(side), i(p.depth), i(half(side)), i(k), i(lanes), long(ld))
            return Overlapping(session, kernel, PRODUCTS * groups, SPLIT_THREADS, "P", fixed, plan.overlap)

        self._split_a = splitting("a", across_a, (terms_a, info_a), p.rows, call.lda)
        self._split_b = splitting("b", across_b, (terms_b, info_b), p.cols, call.ldb)
        maps: Any = session
        tiles = ceil(m, v.BM) * ceil(n, v.BN) * PRODUCTS
        count = address(address_of(plan._count.buffer))
        unread = long(0), long(0), i(0)  # where A and B lie as they were given
        self._multiply = Overlapping(
            session, kernel_of(session, product_source(v)), min(tiles, units), 128 * (v.CONSUMERS + 1), "PPPff",
            (
                address(info_a), address(info_b), count,
                maps.tensor_map(CUDABuffer(terms_a, 0), rows_a, width(k), (v.BM, 64)),
                maps.tensor_map(CUDABuffer(terms_b, 0), rows_b, width(k), (v.BN, 64)),
                i(m), i(n), i(k), i(PRODUCTS), i(1), i(k), i(m), i(n), i(0), i(0), *unread, *unread, i(n), long(m * n),
            ), plan.overlap,
        )  # fmt: skip
        self._combine = Overlapping(
            session, kernel_of(session, combine_source(plan.form)), ceil(m, PLACES[0]) * ceil(n, PLACES[1]), 128, "PPPff",
            (
                address(self._products), count, i(p.rows), i(p.cols), i(p.depth), i(m), i(n), long(call.lda), i(across_a),
                long(call.ldb), i(across_b), i(call.ldc),
            ), plan.overlap,
        )  # fmt: skip

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """Split, multiply, and make C."""
        self.split_only(a, b, queue)
        self.multiply_only(queue)
        self.combine_only(a, b, c, alpha, beta, queue)

    def split_only(self, a: int, b: int, queue: Any) -> None:
        """Form the sums of quarters of both operands and split them."""
        self._split_a(queue, a + self._from_a)
        self._split_b(queue, b + self._from_b)

    def multiply_only(self, queue: Any) -> None:
        """Multiply them, all seven."""
        self._multiply(queue, 0, 0, self._products, 1.0, 0.0)

    def combine_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """Make C of the products."""
        places = a + self._from_a, b + self._from_b, c + self._from_c
        self._combine(queue, *places, alpha, 1.0 if self._adds else beta)


def _beside(rows: int) -> int:
    """Return the bytes of what stands beside the terms."""
    return ceil(ROW_BYTES * rows, 256) * 256
