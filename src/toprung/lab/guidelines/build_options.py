"""Build options that let the compiler fuse and shorten."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials

LIMIT = 64.0
"""Relative error in roundoffs: with x < 0.9 each step keeps nine tenths of the error before it, and adds two roundings."""


def _experiment(lab: Lab) -> Trials:
    n, count = lab.pick(gpu=1 << 20, cpu=1 << 14), lab.pick(gpu=512, cpu=256)
    x = np.random.default_rng(0).uniform(0, 0.9, n).astype(np.float32)
    wide = x.astype(np.float64)
    v = wide.copy()
    for _ in range(count):
        v = v * wide + np.float32(0.7)
    placed, output = lab.place(x), lab.session.allocate(4 * n)
    for case in lab.guideline.cases:
        launch = lab.launch(case, n // 4 // 256, 256, np.uint32(count), placed, output)
        yield lab.trial(case, launch, output, v, 2 * n * count, LIMIT)


GUIDELINE = Guideline(
    title="-cl-mad-enable and fast build options",
    paper="Build with -cl-mad-enable, so that a * b + c becomes one instruction, at the price of precision.",
    cases=(
        Case("multiply and add apart", {}, ("separate",)),
        Case("-cl-mad-enable", {}, ("mad",)),
        Case("-cl-fast-relaxed-math", {}, ("fast",)),
    ),
    advised=1, against=0, unit="GFLOP/s", experiment=_experiment,
)  # fmt: skip
