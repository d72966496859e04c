"""Scalars or vector types."""

import numpy as np

from toprung.lab.guidelines.base import NO_SLOWER, Case, Guideline, Lab, Trials

WIDTHS = (1, 2, 4)


def _experiment(lab: Lab) -> Trials:
    n = lab.pick(gpu=1 << 25, cpu=1 << 22)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-512, 513, n).astype(np.float32) for _ in range(2))
    a, b, output = lab.place(x), lab.place(y), lab.session.allocate(4 * n)
    for case, width in zip(lab.guideline.cases, WIDTHS, strict=True):
        launch = lab.launch(case, n // width // 256, 256, a, b, output)
        yield lab.trial(case, launch, output, 2 * x + y, 12 * n)


GUIDELINE = Guideline(
    title="scalars, not vector types",
    paper="The hardware computes on scalars: vector types gain nothing by themselves, more work-items serve better.",
    cases=tuple(Case("float" if w == 1 else f"float{w}", {"VEC": w}) for w in WIDTHS),
    advised=0, against=-1, unit="GB/s", experiment=_experiment, claim=NO_SLOWER,
)  # fmt: skip
