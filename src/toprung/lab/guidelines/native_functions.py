"""Native functions: speed against precision."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials

LIMIT = 4096.0
"""Relative error, in roundoffs, that even a native function must stay under: three digits are left."""


def _experiment(lab: Lab) -> Trials:
    n, count = lab.pick(gpu=1 << 19, cpu=1 << 10), 32
    x = np.random.default_rng(0).uniform(1, 2, n).astype(np.float32)
    expected, base = np.zeros(n), x.astype(np.float64)
    for k in range(count):
        expected += (base + k) ** 1.5 / (base + k + 1)
    placed, output = lab.place(x), lab.session.allocate(4 * n)
    for case in lab.guideline.cases:
        launch = lab.launch(case, n // 256, 256, np.uint32(count), placed, output)
        yield lab.trial(case, launch, output, expected, n * count, LIMIT)


GUIDELINE = Guideline(
    title="native functions",
    paper="Where precision allows, use native_* functions: they are many times as fast as the precise ones.",
    cases=(
        Case("powr and division", {"NATIVE": 0}),
        Case("native_powr and native_divide", {"NATIVE": 1}),
        Case("powr and division, built with -cl-fast-relaxed-math", {"NATIVE": 0}, ("fast",)),
    ),
    advised=1, against=0, unit="G pairs/s", experiment=_experiment,
)  # fmt: skip
