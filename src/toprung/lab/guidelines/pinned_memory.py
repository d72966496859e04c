"""Pinned host memory, and transfers while kernels run."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Launch, Session
from toprung.errors import Unsupported
from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials, steps

CHUNKS = 4
CHUNK = 1 << 22
"""Work-items, and words copied, of one kernel."""
COUNT = 1024
"""Steps of a work-item: about as long as its word takes to arrive."""

Piece = tuple[Session, Buffer, NDArray[Any], Launch]


def _through(pieces: Sequence[Piece]) -> None:
    """Copy a piece in and work on it, then the next one."""
    for queue, buffer, array, launch in pieces:
        queue.start_upload(buffer, array)
        launch()
        queue.submit()


def _experiment(lab: Lab) -> Trials:
    if lab.device.kind == "cpu":
        raise Unsupported("the device works in the host's own memory: there is nothing to transfer")
    session, n = lab.session, CHUNKS * CHUNK
    pageable = np.random.default_rng(0).integers(0, 1024, n).astype(np.uint32)
    pinned = session.pinned(4 * n).view(np.uint32)
    pinned[...] = pageable
    output, expected = session.allocate(4 * n), steps(pageable, COUNT)
    queues = [lab.queue() for _ in range(2)]
    for case, (host, number) in zip(lab.guideline.cases, ((pageable, 1), (pinned, 1), (pinned, 2)), strict=True):
        used, kernel = queues[:number], lab.kernel(case)
        places = [lab.place(np.zeros(CHUNK, np.uint32)) for _ in used]
        pieces: list[Piece] = []
        for i in range(CHUNKS):
            queue, place = used[i % number], places[i % number]
            args = (np.uint32(COUNT), np.uint32(CHUNK), place, output.part(4 * CHUNK * i, 4 * CHUNK))
            pieces.append((queue, place, host[CHUNK * i : CHUNK * (i + 1)], queue.bind(kernel, (CHUNK // 256,), (256,), args)))
        yield lab.trial(case, functools.partial(_through, pieces), output, expected, 4 * n, queues=used)


GUIDELINE = Guideline(
    title="pinned memory, transfers beside kernels",
    paper="Host memory allocated pinned (CL_MEM_ALLOC_HOST_PTR) transfers faster, and while a kernel works on the piece before.",
    cases=(Case("pageable, one queue"), Case("pinned, one queue"), Case("pinned, two queues")),
    advised=2, against=0, unit="GB/s copied and worked on", experiment=_experiment, text="work",
)  # fmt: skip
