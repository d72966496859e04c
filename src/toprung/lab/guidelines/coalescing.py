"""Coalesced reads."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials

ITEMS = 8
STRIDES = (1, 2, 8, 32)
LOG = {"gpu": 26, "cpu": 22}


def _experiment(lab: Lab) -> Trials:
    log = lab.pick(**LOG)
    n = 1 << log
    x = np.random.default_rng(0).integers(-8, 9, n).astype(np.float32)  # whole numbers: every order gives the same sum
    placed, output = lab.place(x), lab.session.allocate(4 * n // ITEMS)
    for case, stride in zip(lab.guideline.cases, STRIDES, strict=True):
        sized = Case(case.label, {**case.defines, "LOG": log})
        expected = x.reshape(n // stride, stride).T.reshape(ITEMS, n // ITEMS).sum(axis=0)
        launch = lab.launch(sized, n // ITEMS // 256, 256, placed, output)
        yield lab.trial(case, launch, output, expected, 4 * n)


GUIDELINE = Guideline(
    title="coalesced reads",
    paper="Neighbouring work-items should read neighbouring words: then one memory transaction serves many of them.",
    cases=tuple(Case(f"stride {s}", {"SHIFT": s.bit_length() - 1, "ITEMS": ITEMS, "LOG": LOG["gpu"]}) for s in STRIDES),
    advised=0, against=-1, unit="GB/s of floats used", experiment=_experiment,
)  # fmt: skip
