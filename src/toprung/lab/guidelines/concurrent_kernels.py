"""Small kernels in several queues."""

import numpy as np

from toprung.lab.competitor import in_turn
from toprung.lab.guidelines.base import NO_SLOWER, Case, Guideline, Lab, Trials, steps

LAUNCHES = 16
QUEUES = (1, 2, 4)


def _experiment(lab: Lab) -> Trials:
    groups, count = max(1, lab.device.compute_units // 8), lab.pick(gpu=16384, cpu=4096)
    n = 256 * groups
    x = np.random.default_rng(0).integers(0, 1024, LAUNCHES * n).astype(np.uint32)
    placed, output, expected = lab.place(x), lab.session.allocate(4 * LAUNCHES * n), steps(x, count)
    queues = [lab.queue() for _ in range(max(QUEUES))]
    for case, number in zip(lab.guideline.cases, QUEUES, strict=True):
        kernel, used = lab.kernel(case), queues[:number]
        launches = [
            used[i % number].bind(
                kernel, (groups,), (256,), (np.uint32(count), np.uint32(n), *(b.part(4 * n * i, 4 * n) for b in (placed, output)))
            )
            for i in range(LAUNCHES)
        ]
        yield lab.trial(case, in_turn(launches), output, expected, LAUNCHES * n * count, queues=used)


GUIDELINE = Guideline(
    title="one kernel at a time",
    paper="A device runs one kernel at a time: small kernels gain nothing from several queues, make each fill the device.",
    cases=tuple(Case(f"{q} queue{'s' * (q > 1)}") for q in QUEUES),
    advised=0, against=-1, unit="G steps/s", experiment=_experiment, claim=NO_SLOWER, text="work",
)  # fmt: skip
