"""Launches of a product whose K is cut into parts: one of all parts, one that adds their results up."""

from __future__ import annotations

from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.backends.overlap import Overlapping
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.kernels import epilogue as epilogues
from toprung.kernels.base import Launches, Run
from toprung.kernels.build import kernel_of
from toprung.kernels.hopper import Counter, ceil, narrow
from toprung.kernels.hopper import address as address_of
from toprung.kernels.hopper_fp32x.launches import KEPT_STEPS
from toprung.kernels.hopper_fp32x.sizes import padded
from toprung.kernels.hopper_fp32x.sources import reduce_source
from toprung.kernels.hopper_inflight.config import tiles
from toprung.kernels.hopper_inflight_split_k.config import PartsConfig, parts_source


def workspace_bytes(desc: GemmDesc, config: PartsConfig) -> int:
    """Return the bytes of the parts' results."""
    return 4 * config.PARTS * desc.M * padded(desc.N)


class PartsLaunches(Launches):
    """A product that is ready to run, as often as wanted, from any thread, on any stream of its session's context."""

    def __init__(self, session: Session, desc: GemmDesc, config: PartsConfig, epilogue: Epilogue | None = None) -> None:
        self.session, self.desc, self.config, self.epilogue = session, desc, config, epilogue
        self.workspace_bytes = workspace_bytes(desc, config)
        self.count = Counter(session)
        self._product = kernel_of(session, parts_source(config, desc))
        self._reduce = kernel_of(session, reduce_source(**epilogues.defines(epilogue)))
        self._steps: dict[int, tuple[Overlapping, Overlapping]] = {}

    def starter(self) -> Run:
        # `run`, which serves all threads: it holds the stream's workspace while it launches
        return self.run

    def reserve(self, queue: Any = None) -> None:
        # allocate what a stream needs, so that nothing is when `run` is captured into a graph
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:
            self._at(address_of(work.buffer))

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None, addend: int = 0,
    ) -> None:  # fmt: skip
        """Put one call into a queue (None: the session's own); never waits. Offsets are in elements.

        ``workspace``: address of scratch memory of the caller's; by default the stream's. ``addend``: D's address.
        """
        at = [address_of(x) + 4 * offset for x, offset in ((a, offset_a), (b, offset_b), (c, offset_c))]
        if workspace is not None:
            self._launch(address_of(workspace), at, alpha, beta, queue, addend)
            return
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:  # another call's launches must not come between the two
            self._launch(address_of(work.buffer), at, alpha, beta, queue, addend)

    def escalated(self) -> int:
        # how many pieces of results were computed in plain fp32 since the launches were made; waits for the device
        return self.count.read()

    def _launch(self, workspace: int, at: list[int], alpha: float, beta: float, queue: Any, addend: int) -> None:
        multiply, reduce = self._at(workspace)
        multiply(queue, at[0], at[1], workspace, float(alpha != 0.0), 0.0)  # with 0 neither A nor B is read
        reduce(queue, at[2], narrow(alpha), narrow(beta), *epilogues.addresses(self.epilogue, addend))

    def _at(self, workspace: int) -> tuple[Overlapping, Overlapping]:
        """Return the launches in a workspace, kept by its address; whoever asks has the workspace to itself."""
        if workspace not in self._steps:
            if len(self._steps) >= KEPT_STEPS:
                self._steps.clear()
            self._steps[workspace] = self._made(workspace)
        return self._steps[workspace]

    def _made(self, workspace: int) -> tuple[Overlapping, Overlapping]:
        desc, config, session = self.desc, self.config, self.session
        i, long, parts, depth, ldp = np.int32, np.int64, config.PARTS, config.depth(desc.K), padded(desc.N)
        blocks = min(tiles(desc, config) * parts, config.resident * session.device.compute_units)
        on_a, on_b = depth * (desc.lda if desc.trans_a else 1), depth * (1 if desc.trans_b else desc.ldb)
        multiply = Overlapping(
            session, self._product, blocks, config.threads, "PPPff",
            (
                np.uint64(address_of(self.count.buffer)), i(desc.M), i(desc.N), i(desc.K), i(parts), long(desc.lda), long(on_a),
                long(desc.ldb), long(on_b), i(ldp), long(desc.M * ldp),
            ), True,
        )  # fmt: skip
        reduce = Overlapping(
            session, self._reduce, ceil(desc.M, 16) * ceil(desc.N, 32), 128, f"Pff{epilogues.kinds(self.epilogue)}",
            (
                *epilogues.strides(self.epilogue), np.uint64(workspace), i(desc.M), i(desc.N), i(1), i(parts), i(ldp), i(desc.ldc),
                long(0),
            ), True,
        )  # fmt: skip
        return multiply, reduce
