"""Branches within a warp."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials


def _experiment(lab: Lab) -> Trials:
    n, count = lab.pick(gpu=1 << 19, cpu=1 << 13), 256
    x = np.random.default_rng(0).integers(0, 1024, n).astype(np.uint32)
    tid = np.arange(n) % 256
    placed, output = lab.place(x), lab.session.allocate(4 * n)
    known = np.arange(1024, dtype=np.uint32)
    all_four = [known.copy() for _ in range(4)]
    factors = [np.uint32(f) for f in (1664525, 22695477, 69069, 134775813)]
    for k in range(count):
        adds = (known, known ^ np.uint32(k), np.uint32(0) - known, known | np.uint32(k))
        all_four = [v * f + a for v, f, a in zip(all_four, factors, adds, strict=True)]
    for case in lab.guideline.cases:
        which = (tid if case.defines["APART"] else tid // 64) % 4
        expected = (np.choose(which, [v[x] for v in all_four]) >> np.uint32(8)).astype(np.float32)
        launch = lab.launch(case, n // 256, 256, np.uint32(count), placed, output)
        yield lab.trial(case, launch, output, expected, n * count)


GUIDELINE = Guideline(
    title="no divergence within a warp",
    paper="Where lanes of a warp take different branches, the warp goes through all of them: branch by whole warps.",
    cases=(Case("64 neighbours go the same way", {"APART": 0}), Case("neighbours go four ways", {"APART": 1})),
    advised=0, against=1, unit="G steps/s", experiment=_experiment,
)  # fmt: skip
