"""Launches of a product, whichever of its operands are split beforehand. B may be a ``SplitOperand``, split once for many."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import (
    ADDEND,
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
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper import Counter, ceil, padded
from toprung.kernels.hopper_fp32x.config import BOTH, ONE, Fp32xConfig, with_parts
from toprung.kernels.hopper_fp32x.sizes import depth_of, matrices, terms_bytes, trimmed, unsupported, width
from toprung.kernels.hopper_fp32x.sources import SPLIT_THREADS, reduce_source, source_of, split_source, spread, walk

CLAIM_BYTES = 16
"""Bytes of the words in which the blocks of a launch claim pieces of B, see ``claimed.cuh``."""
NONE = np.uint64(0), np.uint64(0)
"""Null addresses, of the terms and scales of an operand that is not split beforehand."""


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
        split = splitting(session, replace(call, batch=1), (*NONE, *beside(Address(PACKED), call.N, call.K)), "B")
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


class Fp32xLaunches(Launches):
    """An fp32x product that is ready to run; if needed with a splitting pass and a sum over parts of K.

    Parameters
    ----------
    is_one : if B alone is split beforehand: False to split it in a launch of its own unless it is prepacked. If K runs across
        memory a launch of its own always splits it
    """

    def __init__(
        self, session: Session, desc: GemmDesc, config: Fp32xConfig, epilogue: Epilogue | None = None, is_one: bool = True
    ) -> None:
        self.session, self.call = session, desc
        self.config = with_parts(config, trimmed(desc.K, config.k_parts))
        self.epilogue, self._addend = epilogue, ADDEND
        reads = not desc.beta_zero and self.config.k_parts == 1
        if epilogue is None and reads and (config.split == BOTH or desc.widths[2] == 4):
            # C is D: kernels with an epilogue read it before their first store, behind which each load would wait for memory.
            # In flight only where four results are stored at a time: a product whose C begins anywhere takes longer.
            self.epilogue, self._addend = Epilogue(True, desc.ldc, 1, desc.stride_c), C
        self._count = Counter(session)
        self._product = kernel_of(session, source_of(desc, self.config, self.epilogue))
        super().__init__(session, self._plan(False, is_one and config.split == ONE and desc.trans_b), self._count.read)
        if config.split == ONE or (config.split == BOTH and not (desc.batch > 1 and desc.stride_b)):
            self.packed = functools.partial(self._plan, True, False)

    def _plan(self, prepared: bool, claims: bool) -> Plan:
        """Return the plan; B's terms are in slot PACKED (``prepared``) or split by the product (``claims``)."""
        desc, config, session, parts, i, long = self.call, self.config, self.session, self.config.k_parts, np.int32, np.int64
        batch, ldc, stride_c = desc.batch, desc.ldc, desc.stride_c
        both, one, depth = config.split == BOTH, config.split == ONE, depth_of(desc.K, parts)
        matrices_a, matrices_b = matrices(desc.stride_a, batch), matrices(desc.stride_b, batch)

        # in the workspace: terms of A, terms of B, results of parts
        bytes_a = terms_bytes(desc.M * matrices_a, desc.K, parts) if both else 0
        bytes_b = terms_bytes(desc.N * matrices_b, desc.K, parts) if both or (one and not prepared) else 0
        parts_b = 1 if prepared else parts  # a prepared operand has its rows in one piece
        depth_b, rows_a, rows_b = depth_of(desc.K, parts_b), desc.M * matrices_a * parts, desc.N * matrices_b * parts_b
        terms_a = beside(Address(WORKSPACE), rows_a, depth) if both else NONE
        terms_b = beside(Address(PACKED) if prepared else Address(WORKSPACE, bytes_a), rows_b, depth_b)
        launches = []
        if both or (one and not prepared and not claims):
            launches.append(splitting(session, desc, (*terms_a, *terms_b), "A" * both + "B" * (not prepared), parts))

        last = epilogues.arguments(self.epilogue, slot=self._addend)
        to: tuple[Argument, ...] = (Address(C), ALPHA, BETA, *last)
        adding = []
        if parts > 1:
            results, ldc = Address(WORKSPACE, bytes_a + bytes_b), padded(desc.N)
            kernel = kernel_of(session, reduce_source(**epilogues.defines(self.epilogue)))
            sizes = (*map(i, (desc.M, desc.N, batch, parts, ldc, desc.ldc)), long(stride_c))
            groups = ceil(desc.M, 16) * ceil(desc.N, 32) * batch
            adding.append(KernelLaunch("reduce", kernel, (groups,), (128,), (*to, results, *sizes)))
            to, stride_c = (results, MULTIPLIES, np.float32(0.0)), desc.M * ldc

        arguments: tuple[Argument, ...]
        if both:
            arguments = (
                *to, terms_a[1], terms_b[1], self._count.buffer,
                terms_map(Address(WORKSPACE), rows_a, depth, config.BM), terms_map(terms_b[0], rows_b, depth_b, config.BN),
                i(desc.M), i(desc.N), i(desc.K), i(batch), i(parts), i(depth),
                i(desc.M * parts if desc.stride_a else 0), i(desc.N * parts_b if desc.stride_b else 0),
                i(desc.M), i(desc.N if parts_b == parts else 0),
                long(desc.lda), long(desc.stride_a), i(desc.trans_a), long(desc.ldb), long(desc.stride_b), i(not desc.trans_b),
                i(ldc), long(stride_c),
            )  # fmt: skip
        else:
            strides = desc.stride_a, desc.stride_b
            if parts > 1:  # parts are the products of a batch
                batch, strides = parts, (depth * (desc.lda if desc.trans_a else 1), depth * (1 if desc.trans_b else desc.ldb))
            arguments = (
                *to, self._count.buffer, i(desc.M), i(desc.N), i(desc.K), i(batch), long(desc.lda), long(strides[0]),
                long(desc.ldb), long(strides[1]), i(ldc), long(stride_c),
            )  # fmt: skip
            if one:
                words = Address(FLAGS) if claims else np.uint64(0)
                of_b = terms_map(terms_b[0], rows_b, depth_b, config.BN)
                arguments += (terms_b[1], i(desc.N if desc.stride_b else 0), terms_b[0], words, of_b)
        # a cluster for each tile if K is sliced; else the blocks that run at once, each of which takes several tiles
        count, units = block_count(desc, config) * parts * config.SLICES, session.device.compute_units
        grid = count if config.SLICES > 1 else min(count, units if both else config.resident * units)
        arguments = (Address(A), Address(B), *arguments)
        launches.append(KernelLaunch("multiply", self._product, (grid,), (config.threads,), arguments))
        nbytes = bytes_a + bytes_b + 4 * parts * desc.batch * desc.M * ldc * (parts > 1)
        flags = CLAIM_BYTES if claims else 0
        return Plan(
            launches + adding, workspace_bytes=nbytes, flags_bytes=flags, sizes=desc.element_bytes, kept=(self._count,)
        )  # fmt: skip


def beside(terms: Address, rows: int, depth: int) -> tuple[Address, Address]:
    """Return the places of an operand's terms and of what stands beside them."""
    return terms, terms._replace(plus=terms.plus + whole(2 * width(depth) * rows))


def terms_map(terms: Address, rows: int, depth: int, side: int) -> Map:
    """Return the tensor map of an operand's terms, in boxes of ``side`` rows and a k-block."""
    return Map(terms.slot, terms.plus, rows, width(depth), 2 * width(depth), (side, 64), "fp16")


def splitting(
    session: Session, call: GemmDesc, addresses: tuple[Argument, ...], which: str, slices: int = 1
) -> KernelLaunch:  # fmt: skip
    """Return the splitting pass on rows of A's matrices and columns of B's, if they are in ``which``.

    Slices of K are matrices of their own.
    """
    i, long, units, depth = np.int32, np.int64, session.device.compute_units, depth_of(call.K, slices)
    rows, matrices_a = call.M * ("A" in which), matrices(call.stride_a, call.batch) * slices
    cols, matrices_b = call.N * ("B" in which), matrices(call.stride_b, call.batch) * slices
    cluster = spread(depth, ("A" in which and call.trans_a) or not call.trans_b)
    lanes_a, blocks_a = walk(rows, matrices_a, depth, call.trans_a, units, cluster)
    lanes_b, blocks_b = walk(cols, matrices_b, depth, not call.trans_b, units, cluster)
    return KernelLaunch(
        "split", kernel_of(session, split_source(cluster)), (blocks_a + blocks_b,), (SPLIT_THREADS,),
        (
            Address(A) if rows else np.uint64(0), Address(B), ALPHA, *addresses, i(call.K), i(depth), i(slices), i(blocks_a),
            long(call.lda), long(call.stride_a), i(max(rows, 1)), i(matrices_a), i(lanes_a),
            long(call.ldb), long(call.stride_b), i(max(cols, 1)), i(matrices_b), i(lanes_b),
        ),
    )  # fmt: skip
