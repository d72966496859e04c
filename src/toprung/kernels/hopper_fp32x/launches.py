"""Launches of fp32x, for each panel of the product. B may be a ``SplitOperand``, split once for many products."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from toprung.backends.base import Kernel, Session, Source
from toprung.backends.plan import (
    ALPHA,
    BETA,
    MULTIPLIES,
    PACKED,
    WORKSPACE,
    A,
    Address,
    Argument,
    B,
    C,
    KernelLaunch,
    Map,
    Plan,
    whole,
)  # fmt: skip
from toprung.errors import Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches
from toprung.kernels.base import address as address_of
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
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


class SplitOperand:
    """The terms of a B that is not written from then on, and that its owner keeps.

    Every call takes it whose B has the same shape, transpose and leading dimension, whatever its A.

    Attributes
    ----------
    address : of the terms
    """

    def __init__(self, session: Session, call: GemmDesc, b: int, queue: Any = None) -> None:
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        if call.batch > 1 and call.stride_b:
            raise Unsupported(f"{call}: the operands of a batch cannot be prepacked")
        self.session, self.like = session, _of_b(call)
        self.terms = session.allocate(terms_bytes(call.N, call.K))
        self.address = address_of(self.terms)
        places = (np.uint64(0), np.uint64(0), *beside(Address(PACKED), call.N, call.K))
        how = spread(call.K, not call.trans_b)
        split = splitting(session, call, places, (0, 1, call.N, 1), how, (Address(A), Address(B)))
        assert split is not None
        session.launcher(Plan([split]))(0, 0, b, 0, 0, 0, 1.0, 0.0, queue, packed=self.address)

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


def sources_of(
    call: GemmDesc, config: Fp32xConfig, splitting: tuple[int, int] | None = None, epilogue: Epilogue | None = None,
    **more: int,
) -> list[Source]:  # fmt: skip
    """Return the sources of the product, of the splitting pass and, with several slices of K, of what adds them."""
    last = epilogues.defines(epilogue)  # of the launch that writes C
    writes = {**last, **({"ODD_C": 1} if call.widths[2] == 1 else {})}
    product = product_source(config, **more, **(writes if config.slices == 1 else {}))
    return [
        product,
        split_source(*(splitting or pass_of(call, config.slices))),
        *([reduce_source(**last)] if config.slices > 1 else []),
    ]


def pass_of(call: GemmDesc, slices: int) -> tuple[int, int]:
    """Return the blocks of a cluster and the elements that a thread holds in the splitting pass of both operands."""
    return spread(depth_of(call.K, slices), call.trans_a or not call.trans_b)


class Fp32xLaunches(Launches):
    """A product that is ready to run: for each panel a splitting pass, the product, and with slices of K what adds them up.

    Attributes
    ----------
    config : the tile, and the slices of K
    """

    def __init__(
        self, session: Session, call: GemmDesc, config: Fp32xConfig | None = None, limit: int = LIMIT, overlap: bool = True,
        splitting: tuple[int, int] | None = None, epilogue: Epilogue | None = None, **more: int,
    ) -> None:  # fmt: skip
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        self.session, self.call, self._overlap, self.epilogue = session, call, overlap, epilogue
        units = session.device.compute_units
        best = config or select_config(call, units)
        self.config = config = replace(best, slices=trimmed(call.K, best.slices))
        self.panels = panels(call, limit) if call.M and call.N else []
        self.how = splitting or pass_of(call, config.slices)
        sources = sources_of(call, config, self.how, epilogue, **more) if self.panels else []
        self._kernels = [kernel_of(session, source) for source in sources]
        self._count = Counter(session)
        super().__init__(session, self._plan(workspace_bytes(call, limit, config.slices), False), self._count.read)
        if all(p.cols == call.N for p in self.panels) and not (call.batch > 1 and call.stride_b):
            self.packed = functools.partial(self._plan, self.plan.workspace_bytes, True)

    def _plan(self, nbytes: int, prepared: bool) -> Plan:
        launches = [launch for p in self.panels for launch in self._of_panel(p, prepared)]
        return Plan(launches, workspace_bytes=nbytes, kept=(self._count,))

    def _of_panel(self, p: Panel, prepared: bool) -> Iterator[KernelLaunch]:
        """Yield the launches of a panel; with ``prepared`` the terms of B are in the slot PACKED."""
        call, session, v, slices, added = self.call, self.session, self.config, self.config.slices, self.epilogue
        i, long = np.int32, np.int64
        matrices_a, matrices_b = matrices(call.stride_a, p.batch), matrices(call.stride_b, p.batch)
        bytes_a, bytes_b, _ = parts_bytes(call, self.panels[0], slices)  # the largest: terms that stay must not move
        terms_a, terms_b = Address(WORKSPACE), Address(PACKED) if prepared else Address(WORKSPACE, bytes_a)
        slices_b = 1 if prepared else slices  # a prepared operand has its rows in one piece
        depth, depth_b = depth_of(call.K, slices), depth_of(call.K, slices_b)
        rows_a, rows_b = p.rows * matrices_a * slices, p.cols * matrices_b * slices_b
        addresses = beside(terms_a, rows_a, depth) + beside(terms_b, rows_b, depth_b)
        across_a, across_b = call.trans_a, not call.trans_b
        a = Address(A, 4 * (p.z * call.stride_a + p.m * (1 if across_a else call.lda)))
        b = Address(B, 4 * (p.z * call.stride_b + p.n * (1 if across_b else call.ldb)))
        c = Address(C, 4 * (p.z * call.stride_c + p.m * call.ldc + p.n))
        last = epilogues.arguments(added, 4 * (p.z * added.stride + p.m * added.down + p.n * added.on) if added else 0)

        sides = p.rows if p.split_a else 0, matrices_a, p.cols if p.split_b and not prepared else 0, matrices_b
        product, kernel, *adding = self._kernels
        split = splitting(session, call, addresses, sides, self.how, (a, b), slices, self._overlap, kernel)
        if split is not None:
            yield split

        tiles = ceil(p.rows, v.BM) * ceil(p.cols, v.BN) * p.batch * slices
        ldc, stride_c, to = call.ldc, call.stride_c, (c, ALPHA, BETA, *last)
        if adding:
            parts, ldc = Address(WORKSPACE, bytes_a + bytes_b), padded(p.cols)
            stride_c, to = p.rows * ldc, (parts, MULTIPLIES, np.float32(0.0))
        yield KernelLaunch(
            "multiply", product, (min(tiles, session.device.compute_units),), (128 * (v.CONSUMERS + 1),),
            (
                a, b, *to, addresses[1], addresses[3], self._count.buffer,
                Map(terms_a.slot, terms_a.plus, rows_a, width(depth), 2 * width(depth), (v.BM, 64), "fp16"),
                Map(terms_b.slot, terms_b.plus, rows_b, width(depth_b), 2 * width(depth_b), (v.BN, 64), "fp16"),
                i(p.rows), i(p.cols), i(call.K), i(p.batch), i(slices), i(depth),
                i(p.rows * slices if call.stride_a else 0), i(p.cols * slices_b if call.stride_b else 0),
                i(p.rows), i(p.cols if slices_b == slices else 0),
                long(call.lda), long(call.stride_a), i(across_a), long(call.ldb), long(call.stride_b), i(across_b),
                i(ldc), long(stride_c),
            ), overlaps=self._overlap,
        )  # fmt: skip
        for reduce in adding:
            yield KernelLaunch(
                "reduce", reduce, (ceil(p.rows, 16) * ceil(p.cols, 32) * p.batch,), (128,),
                (
                    c, ALPHA, BETA, *last, parts, i(p.rows), i(p.cols), i(p.batch), i(slices), i(ldc), i(call.ldc),
                    long(call.stride_c),
                ), overlaps=self._overlap,
            )  # fmt: skip


def beside(terms: Address, rows: int, depth: int) -> tuple[Address, Address]:
    """Return the places of an operand's terms and of what stands beside them."""
    return terms, replace(terms, plus=terms.plus + whole(2 * width(depth) * rows))


def splitting(
    session: Session, call: GemmDesc, addresses: tuple[Argument, ...], sides: tuple[int, int, int, int], how: tuple[int, int],
    operands: tuple[Argument, Argument], slices: int = 1, overlap: bool = True, kernel: Kernel | None = None,
) -> KernelLaunch | None:  # fmt: skip
    """Return the splitting pass on rows of A's matrices and columns of B's; a side of 0 is left out, None if both are.

    Slices of K are matrices of their own.
    """
    i, long, units, depth = np.int32, np.int64, session.device.compute_units, depth_of(call.K, slices)
    rows, matrices_a, cols, matrices_b = sides[0], sides[1] * slices, sides[2], sides[3] * slices
    a = Splitting.of(rows, matrices_a, depth, call.trans_a, units)
    b = Splitting.of(cols, matrices_b, depth, not call.trans_b, units)
    blocks_a, blocks_b = a.blocks(how[0]) if rows else 0, b.blocks(how[0]) if cols else 0
    if not blocks_a + blocks_b:
        return None
    return KernelLaunch(
        "split", kernel or kernel_of(session, split_source(*how)), (blocks_a + blocks_b,), (SPLIT_THREADS,),
        (
            *operands, ALPHA, *addresses, i(call.K), i(depth), i(slices), i(blocks_a),
            long(call.lda), long(call.stride_a), i(max(rows, 1)), i(matrices_a), i(a.lanes),
            long(call.ldb), long(call.stride_b), i(max(cols, 1)), i(matrices_b), i(b.lanes),
        ), overlaps=overlap,
    )  # fmt: skip
