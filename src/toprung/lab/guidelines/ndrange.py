"""An NDRange that fills the device."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials, steps

GROUPS = (8, 2, 1)
"""Work-groups a compute unit."""


def _experiment(lab: Lab) -> Trials:
    units = lab.device.compute_units
    n, count = lab.pick(gpu=64, cpu=32) * 256 * units, lab.pick(gpu=256, cpu=128)
    x = np.random.default_rng(0).integers(0, 1024, n).astype(np.uint32)
    placed, output, expected = lab.place(x), lab.session.allocate(4 * n), steps(x, count)
    counts = [g * units for g in GROUPS] + [max(1, units // 2)]
    for case, groups in zip(lab.guideline.cases, counts, strict=True):
        launch = lab.launch(case, groups, 256, np.uint32(count), np.uint32(n), placed, output)
        yield lab.trial(case, launch, output, expected, n * count)


GUIDELINE = Guideline(
    title="an NDRange that fills the device",
    paper="Launch several work-groups for each compute unit, whatever the problem's size: other warps then work while some wait.",
    cases=(*(Case(f"{g} × 256 a unit") for g in GROUPS), Case("256 on every second unit")),
    advised=0, against=2, unit="G steps/s", experiment=_experiment, text="work",
)  # fmt: skip
