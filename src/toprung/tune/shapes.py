"""Problems that are tuned by default, and random ones to check the promise."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toprung.device import Device
from toprung.dispatch import mixed
from toprung.errors import BadSize, UnknownName
from toprung.gemm.desc import ELEMENT_BYTES
from toprung.lab.harness.suites import TIGHT
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.problem import Problem

ROUTINES = ("gemm", "gemv")

GEMM: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "gpu": (
        (1024,) * 3, (2048,) * 3, (4096,) * 3, (512,) * 3, (256,) * 3, (4096, 4096, 512), (1000,) * 3, (16384, 64, 4096),
        (64, 16384, 4096), (128, 128, 65536), (512, 512, 32768), (8192, 8192, 64), (16, 4096, 4096), (64, 64, 64, 4096),
        (256, 256, 256, 256),
    ),
    "cpu": ((256,) * 3, (512,) * 3, (1024, 64, 512), (64, 64, 8192), (8, 1024, 1024), (32, 32, 32, 256), (100,) * 3),
}  # fmt: skip
"""M, N, K and the batch of the default GEMM problems, by kind of device.

Squares, rectangles, one side short, K long and short, batches, and sizes that no tile divides.
"""

TURNED: Mapping[str, tuple[int, ...]] = {"gpu": (1024, 4096), "cpu": (256,)}
"""Sides of squares that are tuned in the other three transposes, too, by kind of device."""

GEMV: Mapping[str, tuple[tuple[int, int], ...]] = {
    "gpu": ((8192, 8192), (1024, 1024), (100_000, 1000), (1000, 100_000)),
    "cpu": ((4096, 4096), (20_000, 500)),
}  # fmt: skip
"""M and N of the default GEMV problems, by kind of device."""

CHECK_FLOPS: Mapping[str, float] = {"gpu": 1e11, "cpu": 2e8}
"""Floating-point operations of the largest product that is drawn for the check, by kind of device."""


def default(device: Device, routines: Sequence[str] = ROUTINES) -> list[Problem]:
    """Return one problem of every class that matters on a kind of device, common ones first.

    Raises
    ------
    UnknownName
        a routine that cannot be tuned
    """
    kind = "gpu" if device.kind == "gpu" else "cpu"
    known(routines)
    made: list[Problem] = []
    if "gemm" in routines:
        made += [Gemm(m, n, k, batch=batch[0] if batch else 1) for m, n, k, *batch in GEMM[kind]]
        made += [Gemm(n, n, n, trans=t) for n in TURNED[kind] for t in TRANSPOSES[1:]]
    if "gemv" in routines:
        made += [Gemv(m, n, trans=t) for m, n in GEMV[kind] for t in "NT"]
    return made


def known(routines: Sequence[str]) -> None:
    """Raise UnknownName for a routine that cannot be tuned."""
    for routine in routines:
        if routine not in ROUTINES:
            raise UnknownName("routine to be tuned", routine, ROUTINES)


def given(routine: str, sizes: Sequence[tuple[int, ...]], transposes: Sequence[str] = ()) -> list[Problem]:
    """Return the problems of sizes as a user writes them: N, MxNxK or MxNxKxBATCH; for gemv N or MxN.

    Raises
    ------
    BadSize, UnknownName
        sizes or transposes that the routine does not have
    """
    made: list[Problem] = []
    for size in sizes:
        if routine == "gemv":
            if len(size) > 2:
                raise BadSize(f"a size of gemv is N or MxN, not {'x'.join(map(str, size))}")
            made += [Gemv(size[0], size[-1], trans=t) for t in transposes or "NT"]
            continue
        if len(size) not in (1, 3, 4):
            raise BadSize(f"a size of gemm is N, MxNxK or MxNxKxBATCH, not {'x'.join(map(str, size))}")
        m, n, k, *batch = size * 3 if len(size) == 1 else size
        one = Gemm(m, n, k, batch=batch[0] if batch else 1)
        made += [replace(one, trans=t, **TIGHT) for t in transposes or ("NN",)]
    return made


def drawn(device: Device, count: int, seed: int) -> list[Problem]:
    """Return random shapes of all classes, the same for the same seed: log-uniform sizes, multiples of 1, 4, 16 or 64.

    A third of the products lie in wider matrices: one to three leading dimensions have gaps, of which half break the alignment.
    """
    rng, gaps = random.Random(seed), random.Random(f"gaps of {seed}")  # apart: sizes stay those of older checks
    most = CHECK_FLOPS["gpu" if device.kind == "gpu" else "cpu"]
    made: dict[Problem, None] = {}
    while len(made) < count:
        kind = rng.choice(("square", "any", "any", "skinny", "deep", "shallow", "batched", "vector"))
        made[_in_wider(gaps, _draw(rng, kind, most))] = None
    return list(made)


TYPES = tuple(pair for pair in itertools.product(ELEMENT_BYTES, repeat=2) if pair != ("float32", "float32"))
"""Types of A and B that mixed operands may have."""


def with_mixed(device: Device, problems: Sequence[Problem], seed: int) -> list[Problem]:
    """Return problems with products of mixed operands among them, a quarter as many: drawn likewise, of all types in turn.

    Only those are taken for which a kernel is selected that reads halves as they lie, so that elsewhere there are none.
    """
    rng = random.Random(f"types of {seed}")
    turns = itertools.cycle(rng.sample(TYPES, len(TYPES)))
    products = (p for p in drawn(device, 4 * len(problems), seed + 1) if isinstance(p, Gemm))
    typed = (replace(p, type_a=a, type_b=b) for p, (a, b) in zip(products, turns, strict=False))
    read = (p for p in typed if not isinstance(mixed.select(device, p.desc, "auto"), str))
    made: list[Problem] = []
    for number, problem in enumerate(problems, 1):
        made += [problem, *itertools.islice(read, number % 4 == 0)]
    return made


def with_scalars(problems: Sequence[Problem], seed: int) -> list[Problem]:
    """Return problems with α and β drawn, each 1 and 0 as often as anything else, and increments of half of the vectors."""
    rng = random.Random(f"scalars of {seed}")
    made: list[Problem] = []
    for problem in problems:
        scalars = {"alpha": rng.choice((1.0, 1.0, 0.5, -1.3)), "beta": rng.choice((0.0, 0.0, 1.0, 0.7))}
        steps = {"incx": rng.choice((1, 1, 2, 5)), "incy": rng.choice((1, 1, 2, 5))} if isinstance(problem, Gemv) else {}
        made.append(replace(problem, **scalars, **steps))  # type: ignore[type-var]
    return made


def _in_wider(rng: random.Random, problem: Problem) -> Problem:
    """Return a product with gaps behind its rows, one of three times; any other problem as it is."""
    if not isinstance(problem, Gemm) or rng.random() > 1 / 3:
        return problem
    chosen = rng.sample(("lda", "ldb", "ldc"), rng.randint(1, 3))
    gap: dict[str, Any] = {name: rng.choice((1, 3, 4, 64)) for name in chosen}
    return replace(problem, **{name: (getattr(problem, name) or 1) + by for name, by in gap.items()})


def _draw(rng: random.Random, kind: str, most: float) -> Problem:
    def size(low: float, high: float) -> int:
        n = round(math.exp(rng.uniform(math.log(low), math.log(max(low, high)))))
        step = rng.choice((1, 4, 16, 64))
        return max(1, n // step * step if n >= 4 * step else n)

    trans, root = rng.choice(TRANSPOSES), (most / 2) ** (1 / 3)
    if kind == "vector":
        side = math.sqrt(most / 20)
        return Gemv(size(64, side), size(64, side), trans=rng.choice("NT"))
    if kind == "square":
        n = size(32, root)
        return Gemm(n, n, n, trans=trans)
    if kind == "skinny":
        few, many = rng.choice((1, 2, 3, 4, 8, 16)), size(256, root * 2)
        k = size(64, min(root * 2, most / (2 * few * many)))
        return Gemm(*((few, many) if rng.random() < 0.5 else (many, few)), k, trans=trans)
    if kind == "deep":
        m, n = size(16, root / 8), size(16, root / 8)
        low = 16 * max(m, n)
        return Gemm(m, n, size(low, max(low, min(131072, most / (2 * m * n)))), trans=trans)
    if kind == "shallow":
        k = size(4, root / 32)
        m = size(16 * k, max(16 * k, root))
        return Gemm(m, size(16 * k, max(16 * k, min(4 * root, most / (2 * m * k)))), k, trans=trans)
    if kind == "batched":
        m, n, k = (size(8, root / 8) for _ in range(3))
        return Gemm(m, n, k, trans=trans, batch=size(2, max(2.0, min(4096.0, most / (2 * m * n * k)))))
    m, n = size(32, root), size(32, root)
    return Gemm(m, n, size(32, max(32, min(2 * root, most / (2 * m * n)))), trans=trans)
