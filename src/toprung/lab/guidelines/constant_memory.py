"""Constant memory for what all lanes read together."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials
from toprung.oracle.problem import F32


def _expected(count: int, uniform: int) -> F32:
    """Return one work-group's results; 0.5 * v is exact, so that one rounding or two make no difference."""
    table, tid = (np.arange(1024) * 37 % 64).astype(np.float32), np.arange(256)
    v = (tid % 64).astype(np.float32)
    for k in range(count):
        v = np.float32(0.5) * v + table[(np.full(256, k) if uniform else k + tid) % 1024]
    return v


def _experiment(lab: Lab) -> Trials:
    groups, count = lab.device.compute_units * lab.pick(gpu=16, cpu=8), lab.pick(gpu=1024, cpu=256)
    placed = lab.place((np.arange(1024) * 37 % 64).astype(np.float32))
    output = lab.session.allocate(4 * 256 * groups)
    for case in lab.guideline.cases:
        expected = np.tile(_expected(count, case.defines["UNIFORM"]), groups)
        launch = lab.launch(case, groups, 256, np.uint32(count), placed, output)
        yield lab.trial(case, launch, output, expected, groups * 256 * count)


GUIDELINE = Guideline(
    title="constant memory for x",
    paper="Keep what all lanes of a warp read at once, such as x, in constant memory; not what each lane reads elsewhere.",
    cases=(
        Case("constant, one word for all lanes", {"CONSTANT": 1, "UNIFORM": 1}),
        Case("global, one word for all lanes", {"CONSTANT": 0, "UNIFORM": 1}),
        Case("constant, a word a lane", {"CONSTANT": 1, "UNIFORM": 0}),
        Case("global, a word a lane", {"CONSTANT": 0, "UNIFORM": 0}),
    ),
    advised=0, against=1, unit="G reads/s", experiment=_experiment,
)  # fmt: skip
