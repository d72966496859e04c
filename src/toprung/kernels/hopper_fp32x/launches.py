"""Launches of a product, whichever of its operands are split beforehand. B may be a ``SplitOperand``, split once for many."""

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
    FLAGS,
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
from toprung.kernels.hopper_fp32x.config import BOTH, IN_FLIGHT, ONE, Fp32xConfig, tiles
from toprung.kernels.hopper_fp32x.cost import least
from toprung.kernels.hopper_fp32x.sizes import (
    LIMIT,
    Panel,
    depth_of,
    matrices,
    padded,
    panels,
    parts_bytes,
    terms_bytes,
    trimmed,
    unsupported,
    width,
    workspace_bytes,
)
from toprung.kernels.hopper_fp32x.sources import (
    SPLIT_THREADS,
    reduce_source,
    source_of,
    split_source,
    spread,
    walk,
)

CLAIM_BYTES = 16
"""Bytes of the words in which the blocks of a launch claim pieces of B, see ``claimed.cuh``."""


class SplitOperand:
    """The terms of a B that is not written from then on, and that its owner keeps.

    Every call takes it whose B has the same shape, transpose and leading dimension, whatever its A.

    Attributes
    ----------
    address : of the terms
    """

    def __init__(self, session: Session, call: GemmDesc, b: int, queue: Any = None) -> None:
        if reason := unsupported(session.device, call, Fp32xConfig()):
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
    """Return the sources of the product, of the splitting pass, and of what adds up parts of K, as far as there are such."""
    passes = {BOTH: [splitting or pass_of(call, config.k_parts)], ONE: [spread(call.K, not call.trans_b)], IN_FLIGHT: []}
    adds = [reduce_source(**epilogues.defines(epilogue))] if config.k_parts > 1 else []
    return [source_of(call, config, epilogue, **more), *(split_source(*one) for one in passes[config.split]), *adds]


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
        if reason := unsupported(session.device, call, Fp32xConfig()):
            raise Unsupported(reason)
        self.session, self.call, self._overlap, self.epilogue = session, call, overlap, epilogue
        units = session.device.compute_units
        best = config or least(call, units)[1]
        self.config = config = replace(best, k_parts=trimmed(call.K, best.k_parts))
        self.panels = panels(call, limit) if call.M and call.N else []
        self.how = splitting or pass_of(call, config.k_parts)
        sources = sources_of(call, config, self.how, epilogue, **more) if self.panels else []
        self._kernels = [kernel_of(session, source) for source in sources]
        self._count = Counter(session)
        super().__init__(session, self._plan(workspace_bytes(call, limit, config.k_parts), False), self._count.read)
        if all(p.cols == call.N for p in self.panels) and not (call.batch > 1 and call.stride_b):
            self.packed = functools.partial(self._plan, self.plan.workspace_bytes, True)

    def _plan(self, nbytes: int, prepared: bool) -> Plan:
        launches = [launch for p in self.panels for launch in self._of_panel(p, prepared)]
        return Plan(launches, workspace_bytes=nbytes, kept=(self._count,))

    def _of_panel(self, p: Panel, prepared: bool) -> Iterator[KernelLaunch]:
        """Yield the launches of a panel; with ``prepared`` the terms of B are in the slot PACKED."""
        call, session, v, slices, added = self.call, self.session, self.config, self.config.k_parts, self.epilogue
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
            "multiply", product, (min(tiles, session.device.compute_units),), (v.threads,),
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
            yield _reduce(reduce, (c, ALPHA, BETA, *last, parts), (p.rows, p.cols, p.batch, slices, ldc), call, self._overlap)


def beside(terms: Address, rows: int, depth: int) -> tuple[Address, Address]:
    """Return the places of an operand's terms and of what stands beside them."""
    return terms, terms._replace(plus=terms.plus + whole(2 * width(depth) * rows))


def splitting(
    session: Session, call: GemmDesc, addresses: tuple[Argument, ...], sides: tuple[int, int, int, int], how: tuple[int, int],
    operands: tuple[Argument, Argument], slices: int = 1, overlap: bool = True, kernel: Kernel | None = None,
) -> KernelLaunch | None:  # fmt: skip
    """Return the splitting pass on rows of A's matrices and columns of B's; a side of 0 is left out, None if both are.

    Slices of K are matrices of their own.
    """
    i, long, units, depth = np.int32, np.int64, session.device.compute_units, depth_of(call.K, slices)
    rows, matrices_a, cols, matrices_b = sides[0], sides[1] * slices, sides[2], sides[3] * slices
    lanes_a, blocks_a = walk(rows, matrices_a, depth, call.trans_a, units, how[0])
    lanes_b, blocks_b = walk(cols, matrices_b, depth, not call.trans_b, units, how[0])
    if not blocks_a + blocks_b:
        return None
    return KernelLaunch(
        "split", kernel or kernel_of(session, split_source(*how)), (blocks_a + blocks_b,), (SPLIT_THREADS,),
        (
            *operands, ALPHA, *addresses, i(call.K), i(depth), i(slices), i(blocks_a),
            long(call.lda), long(call.stride_a), i(max(rows, 1)), i(matrices_a), i(lanes_a),
            long(call.ldb), long(call.stride_b), i(max(cols, 1)), i(matrices_b), i(lanes_b),
        ), overlaps=overlap,
    )  # fmt: skip


class InflightLaunches(Launches):
    """A product whose A is split in flight, and B unless it is split beforehand: one launch, and one more for parts of K.

    Parameters
    ----------
    is_one : where B is split beforehand, False if that takes a launch of its own wherever B is not prepacked: it does anyway where
        K runs across memory
    """

    def __init__(
        self, session: Session, desc: GemmDesc, config: Fp32xConfig, epilogue: Epilogue | None = None, is_one: bool = True
    ) -> None:  # fmt: skip
        self.call, self.config, self.epilogue = desc, config, epilogue
        self._count = Counter(session)
        self._product = kernel_of(session, source_of(desc, config, epilogue))
        super().__init__(session, self._plan(session, False, is_one and desc.trans_b), self._count.read)
        if config.split == ONE:
            self.packed = functools.partial(self._plan, session, True, False)

    def _plan(self, session: Session, prepared: bool, claims: bool) -> Plan:
        """Return the plan. Terms of a B split beforehand are in the slot PACKED, claimed by blocks, or split by a launch."""
        desc, config, last, i, long = self.call, self.config, epilogues.arguments(self.epilogue), np.int32, np.int64
        before: KernelLaunch | None = None
        after: KernelLaunch | None = None
        terms: tuple[Argument, ...] = ()
        flags = nbytes = 0
        batch, strides, ldc = desc.batch, (desc.stride_a, desc.stride_b, desc.stride_c), desc.ldc
        c, to = Address(C), (Address(C), ALPHA, BETA, *last)
        if config.split == ONE:
            count, wide = matrices(desc.stride_b, desc.batch), width(desc.K)
            rows = desc.N * count
            of_b, info = beside(Address(PACKED if prepared else WORKSPACE), rows, desc.K)
            nbytes, flags = (0 if prepared else terms_bytes(rows, desc.K)), CLAIM_BYTES if claims else 0
            if not prepared and not claims:
                places, how = (np.uint64(0), np.uint64(0), of_b, info), spread(desc.K, not desc.trans_b)
                before = splitting(session, desc, places, (0, 1, desc.N, count), how, (np.uint64(0), Address(B)))
            terms = (
                info, i(desc.N if desc.stride_b else 0), of_b, Address(FLAGS) if claims else np.uint64(0),
                Map(of_b.slot, 0, rows, wide, 2 * wide, (config.BN, 64), "fp16"),
            )  # fmt: skip
        elif config.k_parts > 1:  # parts are the products of a batch, each with a result of its own
            depth, batch, ldc = depth_of(desc.K, config.k_parts), config.k_parts, padded(desc.N)
            on_a, on_b = depth * (desc.lda if desc.trans_a else 1), depth * (1 if desc.trans_b else desc.ldb)
            strides, to = (on_a, on_b, desc.M * ldc), (Address(WORKSPACE), MULTIPLIES, np.float32(0.0))
            nbytes, kernel = 4 * batch * desc.M * ldc, kernel_of(session, reduce_source(**epilogues.defines(self.epilogue)))
            after = _reduce(kernel, (c, ALPHA, BETA, *last, Address(WORKSPACE)), (desc.M, desc.N, 1, batch, ldc), desc)
        multiply = KernelLaunch(
            "multiply", self._product, (blocks(desc, config, session.device.compute_units),), (config.threads,),
            (
                Address(A), Address(B), *to, self._count.buffer, i(desc.M), i(desc.N), i(desc.K), i(batch), long(desc.lda),
                long(strides[0]), long(desc.ldb), long(strides[1]), i(ldc), long(strides[2]), *terms,
            ),
        )  # fmt: skip
        launches = [one for one in (before, multiply, after) if one]
        return Plan(launches, workspace_bytes=nbytes, flags_bytes=flags, sizes=desc.element_bytes, kept=(self._count,))


def blocks(desc: GemmDesc, config: Fp32xConfig, units: int) -> int:
    """Return the blocks of a launch: as many as run at once, each with tiles in turn; a cluster for each tile where K is sliced."""
    count = tiles(desc, config) * config.k_parts
    return count * config.SLICES if config.SLICES > 1 else min(count, config.resident * units)


def _reduce(
    kernel: Kernel, to: tuple[Argument, ...], sizes: tuple[int, int, int, int, int], desc: GemmDesc, overlap: bool = True
) -> KernelLaunch:  # fmt: skip
    """Return the launch that adds up parts' results; ``sizes``: rows, columns, products, parts, elements of a result's row."""
    groups = ceil(sizes[0], 16) * ceil(sizes[1], 32) * sizes[2]
    fixed = (*map(np.int32, (*sizes, desc.ldc)), np.int64(desc.stride_c))
    return KernelLaunch("reduce", kernel, (groups,), (128,), (*to, *fixed), overlaps=overlap)
