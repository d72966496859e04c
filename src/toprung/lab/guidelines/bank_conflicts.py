"""Strides in local memory."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials

SIZE = 4096
STRIDES = (1, 2, 8, 32, 33)


def _experiment(lab: Lab) -> Trials:
    groups, count = lab.device.compute_units * lab.pick(gpu=8, cpu=4), lab.pick(gpu=256, cpu=64)
    x = np.random.default_rng(0).integers(-8, 9, SIZE + 512).astype(np.float32)  # whole numbers: sums are exact
    placed, output = lab.place(x), lab.session.allocate(4 * 256 * groups)
    for case, stride in zip(lab.guideline.cases, STRIDES, strict=True):
        at = (np.arange(256)[:, None] * stride + np.arange(count)) % SIZE
        one = sum(x[at + 64 * j].sum(axis=1) for j in range(8))
        launch = lab.launch(case, groups, 256, np.uint32(count), placed, output)
        yield lab.trial(case, launch, output, np.tile(one, groups), groups * 256 * count * 8)


GUIDELINE = Guideline(
    title="bank conflicts in local memory",
    paper="Lanes that read different words of one bank wait for each other: use odd strides, or pad rows by one word.",
    cases=tuple(Case(f"stride {s}", {"STRIDE": s, "SIZE": SIZE}) for s in STRIDES),
    advised=-1, against=-2, unit="G reads/s", experiment=_experiment,
)  # fmt: skip
