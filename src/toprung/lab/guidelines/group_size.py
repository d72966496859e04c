"""Work-groups of whole sub-groups."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials, steps

SIZES = (256, 64, 40, 8)
COUNT = 1024


def _experiment(lab: Lab) -> Trials:
    n, count = lab.pick(gpu=1 << 20, cpu=1 << 14), lab.pick(gpu=COUNT, cpu=COUNT // 4)
    x = np.random.default_rng(0).integers(0, 1024, n).astype(np.uint32)
    placed, output, expected = lab.place(x), lab.session.allocate(4 * n), steps(x, count)
    for case, size in zip(lab.guideline.cases, SIZES, strict=True):
        launch = lab.launch(case, -(-n // size), size, np.uint32(count), np.uint32(n), placed, output)
        yield lab.trial(case, launch, output, expected, n * count)


GUIDELINE = Guideline(
    title="work-groups of whole warps",
    paper="A work-group's size should be a multiple of 32, the warp, and better of 64: the lanes of a warp that is not full idle.",
    cases=tuple(Case(f"groups of {s}") for s in SIZES),
    advised=0, against=2, unit="G steps/s", experiment=_experiment, text="work",
)  # fmt: skip
