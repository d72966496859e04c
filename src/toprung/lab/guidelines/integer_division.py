"""Integer division."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials


def _experiment(lab: Lab) -> Trials:
    n, count = lab.pick(gpu=1 << 19, cpu=1 << 13), 64
    x = np.random.default_rng(0).integers(0, 1 << 32, n, np.uint32)
    v = x.copy()
    for k in range(count):
        v = (v >> np.uint32(5)) * np.uint32(2654435761) + (v & np.uint32(31)) + np.uint32(k)
    expected = (v >> np.uint32(8)).astype(np.float32)
    placed, output = lab.place(x), lab.session.allocate(4 * n)
    for case in lab.guideline.cases:
        launch = lab.launch(case, n // 256, 256, np.uint32(count), np.uint32(32), placed, output)
        yield lab.trial(case, launch, output, expected, n * count)


GUIDELINE = Guideline(
    title="no integer division",
    paper="Integer division and remainder are expensive: where the divisor is a power of two, shift and mask.",
    cases=(Case("by a variable", {"KIND": 0}), Case("by a constant", {"KIND": 1}), Case("shift and mask", {"KIND": 2})),
    advised=2, against=0, unit="G divisions/s", experiment=_experiment,
)  # fmt: skip
