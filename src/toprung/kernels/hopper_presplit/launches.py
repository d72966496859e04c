"""Launches of a product whose A is split in flight: one, in which B is split first if its K runs along memory or it is prepacked.

Where K runs across memory, a splitting pass on B goes before it.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from toprung.backends.base import Buffer, Session
from toprung.backends.overlap import Overlapping
from toprung.gemm.desc import ELEMENT_BYTES, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches, Run
from toprung.kernels.build import guard, kernel_of
from toprung.kernels.hopper import Counter, narrow, whole
from toprung.kernels.hopper import address as address_of
from toprung.kernels.hopper_fp32x.launches import KEPT_STEPS, SplitOperand, splitting
from toprung.kernels.hopper_fp32x.sizes import matrices, terms_bytes, width
from toprung.kernels.hopper_fp32x.sources import split_source, spread
from toprung.kernels.hopper_inflight.config import blocks
from toprung.kernels.hopper_presplit.config import PresplitConfig, product_source

CLAIM_WORDS = 4
"""32-bit words in which the blocks of a launch claim pieces of B; one is spare, so that 16 bytes are never shared."""
CHUNK_WORDS = 1 << 14
"""Words that are allocated at a time."""


class Claims:
    """Words of a session, all 0, each given out once and never freed: a graph that was captured may use them long afterwards."""

    _of: ClassVar[WeakKeyDictionary[Session, Claims]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._chunks: list[Buffer] = []
        self._next = self._end = 0

    @classmethod
    def of(cls, session: Session) -> Claims:
        """Return a session's."""
        return cls._of.setdefault(session, Claims())

    def prepare(self, session: Session) -> None:
        """Allocate words for a step for each workspace that is kept. Call it where memory may be allocated and written."""
        if self._end - self._next < 4 * CLAIM_WORDS * KEPT_STEPS:
            self._chunks.append(session.allocate(4 * CHUNK_WORDS))
            session.upload(self._chunks[-1], np.zeros(CHUNK_WORDS, np.uint32))
            self._next = address_of(self._chunks[-1])
            self._end = self._next + 4 * CHUNK_WORDS

    def take(self) -> int:
        """Return the address of a step's words; 0 where none are left, since a capture allows no allocation."""
        if self._next == self._end:
            return 0
        self._next += 4 * CLAIM_WORDS
        return self._next - 4 * CLAIM_WORDS


class Step:
    """The launches in a workspace, or with a prepacked B."""

    def __init__(self, plan: PresplitLaunches, workspace: int, prepared: SplitOperand | None) -> None:
        from toprung.backends.cuda import CUDABuffer  # not above: every program loads the families, few have a GPU

        desc, session, config = plan.call, plan.session, plan.config
        count = matrices(desc.stride_b, desc.batch)
        rows, wide = desc.N * count, width(desc.K)
        terms = address_of(prepared.terms) if prepared else workspace
        info = terms + whole(2 * wide * rows)
        i, long = np.int32, np.int64
        maps: Any = session
        self.split, claims = None, 0
        if prepared is None and plan.is_one and desc.trans_b:
            with guard:
                claims = Claims.of(session).take()
        if prepared is None and not claims:
            how = spread(desc.K, not desc.trans_b)
            self.split = splitting(session, desc, (0, 0, terms, info), (0, 1, desc.N, count), how, True)
        self.multiply = Overlapping(
            session, plan.product, blocks(desc, config, session.device.compute_units), config.threads,
            f"PPPff{epilogues.kinds(plan.epilogue)}",
            (
                *epilogues.strides(plan.epilogue), np.uint64(address_of(plan.count.buffer)), i(desc.M), i(desc.N), i(desc.K),
                i(desc.batch), long(desc.lda), long(desc.stride_a), long(desc.ldb), long(desc.stride_b), i(desc.ldc),
                long(desc.stride_c), np.uint64(info), i(desc.N if desc.stride_b else 0), np.uint64(terms), np.uint64(claims),
                maps.tensor_map(CUDABuffer(terms, 0), rows, wide, (config.BN, 64)),
            ), True,
        )  # fmt: skip

    def run(self, queue: Any, a: int, b: int, c: int, alpha: float, *more: Any) -> None:
        """Split B if it is not split yet, and multiply."""
        if self.split is not None:
            self.split(queue, 0, b, alpha)
        self.multiply(queue, a, b, c, alpha, *more)


class PresplitLaunches(Launches):
    """A product that is ready to run, as often as wanted, from any thread, on any stream of its session's context.

    Attributes
    ----------
    is_one : False if B is to be split by a launch of its own wherever it is not prepacked
    """

    def __init__(
        self, session: Session, desc: GemmDesc, config: PresplitConfig, epilogue: Epilogue | None = None, is_one: bool = True
    ) -> None:  # fmt: skip
        self.is_one = is_one
        self.session, self.call, self.config, self.epilogue = session, desc, config, epilogue
        self.workspace_bytes = workspace_bytes(desc)
        self.count = Counter(session)
        self.product = kernel_of(session, product_source(config, desc, **epilogues.defines(epilogue)))
        kernel_of(session, split_source(*spread(desc.K, not desc.trans_b)))
        with guard:
            Claims.of(session).prepare(session)
        self._size_a = ELEMENT_BYTES[desc.type_a]
        self._steps: dict[int, Step] = {}
        self._with: WeakKeyDictionary[SplitOperand, Step] = WeakKeyDictionary()

    def starter(self) -> Run:
        # `run`, which serves all threads: it holds the stream's workspace while it launches
        return self.run

    def accepts(self, packed: Any) -> bool:
        return isinstance(packed, SplitOperand) and not packed.refused(self.session, self.call)

    def reserve(self, queue: Any = None) -> None:
        # allocate what a stream needs, so that nothing is when `run` is captured into a graph
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:
            self._at(address_of(work.buffer))

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None, addend: int = 0,
    ) -> None:  # fmt: skip
        """Put one call into a queue (None: the session's own); never waits. Offsets are in elements; B may be a ``SplitOperand``.

        ``workspace``: address of scratch memory of the caller's; by default the stream's. ``addend``: D's address.
        """
        at_a, at_c = address_of(a) + self._size_a * offset_a, address_of(c) + 4 * offset_c
        last = narrow(alpha), narrow(beta), *epilogues.addresses(self.epilogue, addend)
        if isinstance(b, SplitOperand):
            with guard:
                step = self._with.get(b) or self._with.setdefault(b, Step(self, 0, b))
            step.run(queue, at_a, address_of(b.copy), at_c, *last)
            return
        at_b = address_of(b) + 4 * offset_b
        if workspace is not None:
            self._at(address_of(workspace)).run(queue, at_a, at_b, at_c, *last)
            return
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:  # another call's launches must not come between the two
            self._at(address_of(work.buffer)).run(queue, at_a, at_b, at_c, *last)

    def escalated(self) -> int:
        # how many pieces of C had elements computed in plain fp32 since the launches were made; waits for the device
        return self.count.read()

    def _at(self, workspace: int) -> Step:
        """Return the launches in a workspace, kept by its address; whoever asks has the workspace to itself."""
        if workspace not in self._steps:
            if len(self._steps) >= KEPT_STEPS:
                self._steps.clear()
            self._steps[workspace] = Step(self, workspace, None)
        return self._steps[workspace]


def workspace_bytes(desc: GemmDesc) -> int:
    """Return the bytes of B's terms, four an element, and of what stands beside them."""
    return terms_bytes(desc.N * matrices(desc.stride_b, desc.batch), desc.K)
