"""Every rung of every gemm ladder gives the right result for every size, layout, scalar and kind of data."""

from __future__ import annotations

import itertools
import random
import zlib

import pytest

import trial
from toprung.backends.base import Session
from toprung.kernels.build import Compiled
from toprung.kernels.hopper_fp32x.sizes import SHALLOWEST
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import Gemm
from toprung.oracle.precision import precision

ODD = (33, 35, 37)
NOTED = [
    (35, 79, 19), (3, 3, 431), (1, 1, 1), (1, 129, 65), (129, 1, 33), (65, 31, 1), (1, 1, 129), (64, 64, 64), (128, 32, 64),
]  # fmt: skip
"""Sizes that other people's kernels failed on, a dimension of 1, and whole tiles, which helpers leave alone."""

NARROW = ("uniform", "normal", "positive", "integers")
"""Distributions whose numbers fp16 reaches: what a rung with such operands is held to."""


def each(variants, slow=lambda v: False):
    """Parametrise by variant."""
    marked = [pytest.param(v, id=str(v), marks=[pytest.mark.slow] * slow(v)) for v in variants]
    return pytest.mark.parametrize("variant", marked)


VARIANTS = trial.variants(trial.tested())
each_variant = each(VARIANTS)
each_default = each(VARIANTS, slow=lambda v: bool(v.options))  # scalars and data meet switches in test_shapes_and_layouts too
# turing's tiles take seconds to compile
each_rung = each((v for v in VARIANTS if not v.options), slow=lambda v: v.rung.ladder == "turing")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that are the same in every run and others in every test."""
    return random.Random(zlib.crc32(request.node.name.encode()))


def hostile_layout(size: tuple[int, int, int], rng: random.Random) -> Gemm:
    """A problem of this size with gaps behind the rows (or none) and any α and β."""
    M, N, K = size
    gaps = (rng.choice((0, 0, 1, 3, 8)) for _ in "ABC")
    lda, ldb, ldc = (max(width, 1) + gap for width, gap in zip((K, N, N), gaps, strict=True))
    return Gemm(M, N, K, rng.choice(trial.SCALARS), rng.choice(trial.SCALARS), lda, ldb, ldc)


def assert_right(compiled: Compiled, problems: list[Gemm], session: Session) -> None:
    """All problems are solved; what is not is listed, not just the first."""
    failures = []
    shallowest = SHALLOWEST if compiled.record.precision == "fp32x" else 0  # below, it refuses: the promise begins there
    for seed, problem in enumerate(p for p in problems if p.K >= shallowest):
        outcome = trial.attempt(compiled, problem, session, seed=seed)
        limit = precision(compiled.record.precision).limit(problem.K, None)
        if not (outcome.verdict.right and outcome.verdict.grade <= limit and not outcome.changed):
            failures.append((problem, outcome.verdict.problems, f"changed inputs: {outcome.changed}"))
    assert not failures


@each_variant
def test_shapes_and_layouts(variant: trial.Variant, session: Session, rng: random.Random) -> None:
    sizes = NOTED + rng.sample(trial.triples(), 12)
    assert_right(trial.make(variant.rung, session, variant.options), [hostile_layout(s, rng) for s in sizes], session)


@pytest.mark.slow
@each_variant
def test_every_small_shape_and_many_large_ones(variant: trial.Variant, session: Session, rng: random.Random) -> None:
    small = [t for t in trial.triples() if max(t) <= 9]
    sizes = small + rng.sample([t for t in trial.triples() if max(t) > 9], 120)
    assert_right(trial.make(variant.rung, session, variant.options), [hostile_layout(s, rng) for s in sizes], session)


@each_default
def test_scalars(variant: trial.Variant, session: Session) -> None:
    """Every α with every β; β = 0 over a C full of NaN, α = 0 over A and B full of NaN."""
    scalars = itertools.product(trial.SCALARS, repeat=2)
    assert_right(
        trial.make(variant.rung, session, variant.options),
        [Gemm(33, 17, 65, alpha, beta, 66, 20, 19) for alpha, beta in scalars],
        session,
    )


@each_default
def test_distributions(variant: trial.Variant, session: Session) -> None:
    compiled = trial.make(variant.rung, session, variant.options)
    failures = []
    for name, distribution in DISTRIBUTIONS.items():
        if not precision(variant.rung.precision).accurate and name not in NARROW:
            continue
        alpha, beta = (-1.0, 1.0) if distribution.exact else (0.7, 1.3)  # exact needs scalars that do not round
        outcome = trial.attempt(compiled, Gemm(*ODD, alpha, beta), session, name)
        if not outcome.verdict.right:
            failures.append((name, outcome.verdict.problems))
    assert not failures


@each_variant
def test_empty_dimensions(variant: trial.Variant, session: Session) -> None:
    """An empty C needs no launch; K = 0 gives β·C."""
    compiled = trial.make(variant.rung, session, variant.options)
    for size in ((0, 5, 7), (5, 0, 7), (0, 0, 0), (0, 3, 0)):
        outcome = trial.attempt(compiled, Gemm(*size, beta=1.3), session)
        assert outcome.verdict.right and outcome.steps == ()
    for beta in trial.SCALARS:
        outcome = trial.attempt(compiled, Gemm(33, 5, 0, 0.7, beta, ldc=7), session)
        assert outcome.verdict.right and outcome.verdict.grade <= 1
        assert variant.rung.name not in outcome.steps


@each_variant
def test_the_same_call_twice_gives_the_same_bits(variant: trial.Variant, session: Session) -> None:
    compiled = trial.make(variant.rung, session, variant.options)
    problem = Gemm(*ODD, 0.7, 1.3)
    first, second = (trial.attempt(compiled, problem, session).flat.tobytes() for _ in range(2))
    assert first == second


def other_tiles(variant: trial.Variant, session: Session, rng: random.Random, count: int, sums: int) -> list[Compiled]:
    """Built for tiles that the device would not be given by default, of up to so many sums a work-item if there are any."""
    usual = variant.rung.tile_for(session.device, variant.options)
    tiles = [t for t in variant.rung.legal(session.device, variant.options) if t != usual]
    # a work-item with many sums takes seconds to compile, and so does a work-group so small that PoCL unrolls it
    tiles = [t for t in tiles if (t.TM or 1) * (t.TN or 1) <= sums and t.work_items >= 32] or tiles
    return [trial.make(variant.rung, session, variant.options, t) for t in rng.sample(tiles, min(count, len(tiles)))]


def check_other_tiles(variant: trial.Variant, session: Session, rng: random.Random, count: int, sums: int) -> None:
    for compiled in other_tiles(variant, session, rng, count, sums):
        sizes = [ODD, (128, 64, 64), (3, 3, 431), *rng.sample(trial.triples(), 4)]
        assert_right(compiled, [hostile_layout(s, rng) for s in sizes], session)


@each_rung
def test_another_legal_tile(variant: trial.Variant, session: Session, rng: random.Random) -> None:
    check_other_tiles(variant, session, rng, 1, sums=16)


@pytest.mark.slow
@each_variant
def test_many_legal_tiles(variant: trial.Variant, session: Session, rng: random.Random) -> None:
    check_other_tiles(variant, session, rng, 2, sums=64)
