"""A work-group size that is left to the implementation."""

import numpy as np

from toprung.lab.guidelines.base import Case, Guideline, Lab, Trials, steps

CHOSEN = 256


def _experiment(lab: Lab) -> Trials:
    round_size, prime = (1 << 20, 1048573) if lab.device.kind != "cpu" else (1 << 14, 16381)
    count = 64
    x = np.random.default_rng(0).integers(0, 1024, round_size).astype(np.uint32)
    placed, output, expected = lab.place(x), lab.session.allocate(4 * round_size), steps(x, count)
    for case, (n, left) in zip(lab.guideline.cases, ((round_size, 0), (round_size, 1), (prime, 0), (prime, 1)), strict=True):
        kernel, args = lab.kernel(case), (np.uint32(count), np.uint32(n), placed, output)
        launch = lab.session.bind_unsized(kernel, (n,), args) if left else lab.launch(case, -(-n // CHOSEN), CHOSEN, *args)
        yield lab.trial(case, launch, output, expected[:n], n * count)


GUIDELINE = Guideline(
    title="never leave the work-group size open",
    paper="With NULL for the work-group size the implementation chooses one that divides the NDRange, which may be a bad one.",
    cases=(
        Case(f"a power of two, groups of {CHOSEN}"),
        Case("a power of two, left open"),
        Case(f"a prime number, rounded up to groups of {CHOSEN}"),
        Case("a prime number, left open"),
    ),
    advised=2, against=3, unit="G steps/s", experiment=_experiment, text="work",
)  # fmt: skip
