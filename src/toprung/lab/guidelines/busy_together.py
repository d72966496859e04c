"""Host and device at work on one task at the same time."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Launch, Session
from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials, steps

GROUP = 256
"""Work-items of a work-group, and least items that the host takes."""

ALONE, AFTER, TOGETHER = "device alone", "host's share, then the device's", "both at once"


class _Host:
    """The host's cores, which compute what the text ``work`` computes, a piece each."""

    def __init__(self, values: NDArray[np.uint32], count: int) -> None:
        self._values, self._count = values, count
        self._threads = max(1, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads)
        self.result = np.empty(values.size, np.float32)

    def _piece(self, place: slice) -> None:
        x = self._values[place]
        v = x.copy()
        for _ in range(self._count):  # in place: NumPy lets the other threads run meanwhile
            np.multiply(v, np.uint32(1664525), out=v)
            np.add(v, x, out=v)
        self.result[place] = (v >> np.uint32(8)).astype(np.float32)

    def work(self, items: int) -> None:
        """Compute the first ``items``."""
        each = -(-items // self._threads)
        list(self._pool.map(self._piece, [slice(i, min(i + each, items)) for i in range(0, items, each)]))


def _seconds(session: Session, launch: Launch) -> float:
    """Return the seconds of a launch, by the host's clock, once it has been warmed up."""
    for _ in range(2):
        session.synchronize()
        start = time.perf_counter()
        launch()
        session.submit()
        session.synchronize()
    return time.perf_counter() - start


def _share(groups: int, device: float, host: _Host) -> int:
    """Return how many groups the host can do while the device does all, timed at about that share: overhead counts as it will."""
    share = max(1, groups // 64)
    for _ in range(4):
        start = time.perf_counter()
        host.work(GROUP * share)
        took = time.perf_counter() - start
        share = int(np.clip(share * device / took, 1, groups // 2))
    return share


def _experiment(lab: Lab) -> Trials:
    # the host's share is a thousandth of a large GPU's: items enough that each of its threads has more than calls' overhead
    groups, count = lab.pick(gpu=1 << 20, cpu=1 << 7), lab.pick(gpu=1024, cpu=2048)
    n = GROUP * groups
    x = np.random.default_rng(0).integers(0, 1024, n).astype(np.uint32)
    placed, output, expected, queue = lab.place(x), lab.session.allocate(4 * n), steps(x, count), lab.queue()
    kernel, host = lab.kernel(lab.guideline.cases[0]), _Host(x, count)

    def bound(first: int) -> Launch:
        """Return the launch that leaves out the first groups."""
        rest = n - GROUP * first
        parts = (b.part(4 * GROUP * first, 4 * rest) for b in (placed, output))
        return queue.bind(kernel, (groups - first,), (GROUP,), (np.uint32(count), np.uint32(rest), *parts))

    whole = bound(0)
    share = _share(groups, _seconds(queue, whole), host)
    others, mine = bound(share), output.part(0, 4 * GROUP * share)

    def alone() -> None:
        whole()
        queue.submit()

    def after() -> None:
        host.work(GROUP * share)
        queue.start_upload(mine, host.result[: GROUP * share])
        others()
        queue.submit()

    def together() -> None:
        others()
        queue.submit()
        host.work(GROUP * share)
        queue.start_upload(mine, host.result[: GROUP * share])
        queue.submit()

    for case, call in zip(lab.guideline.cases, (alone, after, together), strict=True):
        yield lab.trial(case, call, output, expected, n * count, queues=[queue])


GUIDELINE = Guideline(
    title="host and device busy together",
    paper="Kernels run while the host goes on: share the work between CPU and GPU by their speeds, so that neither waits.",
    cases=tuple(Case(label) for label in (ALONE, AFTER, TOGETHER)),
    advised=2, against=0, unit="G steps/s", experiment=_experiment, text="work",
)  # fmt: skip
