"""Share of a sum of one sign that Tensor Cores cut off: fp32x adds as much to lo of B (kernels/include/truncation.json)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Session
from toprung.device import Device
from toprung.kernels.hopper import HOPPER, is_hopper
from toprung.kernels.hopper_fp32x.config import K_BLOCK
from toprung.kernels.hopper_fp32x.sources import CUT_SHARES, FOLDER
from toprung.kernels.record import joined
from toprung.lab.probe.base import SEED, Benchmark, Case, Placed, Unit, source
from toprung.oracle.bias import bias
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.placed import copied, fetched

TILES, SIDE = 16, 64
"""Pairs of tiles that are multiplied, and their side: 131,072 sums, whose median is known to 1e-9."""
SHARE = Unit("1e-8 of a sum")
KINDS = ("positive", "lognormal", "relu")
"""Distributions of the operands; numbers near one have equal sums of their leading terms."""


def shipped() -> float:
    """Return the share that fp32x's kernels are built with."""
    return CUT_SHARES[HOPPER]


def _case(device: Device, name: str) -> Case:
    rng, fill = np.random.default_rng(SEED), DISTRIBUTIONS[name].fills[0]
    a, b = (fill(rng, (TILES * SIDE, SIDE)).astype(np.float16).reshape(TILES, SIDE, 2, K_BLOCK) for _ in "ab")
    exact = np.einsum("tihk,tjhk->thij", a.astype(np.float64), b.astype(np.float64))

    def place(session: Session) -> Placed:
        left, right, out = copied(a, session), copied(b, session), session.allocate(4 * exact.size)

        def found() -> np.ndarray:
            return fetched(out, session, exact.shape, np.float32)

        def check() -> str:
            beyond = float(np.max(np.abs(found() - exact) - 1e-6 * exact))  # a ReLU's sums may be 0
            return "" if beyond <= 0 else f"a sum of {K_BLOCK} products is off by more than 1e-6 of itself, by {beyond:.2g}"

        def read() -> float:
            measured = bias(found(), exact, exact)
            assert measured is not None
            return -1e8 * measured.median

        return Placed((left, right, out), check, read)

    alone = source("truncation", name, {"ARCH_SPECIFIC": 1, DYNAMIC_SHARED: 2 * 128 * SIDE + 1024}, device)
    header = joined(FOLDER, "../include/hopper.cuh")
    whole = replace(alone, text=f'{header}#line 1 "truncation.cu"\n{alone.text}')
    return Case(f"{name}, {K_BLOCK} of K", {"K": K_BLOCK}, whole, TILES, 128, 2.0 * exact.size * K_BLOCK, place, 1e8 * shipped())


BENCHMARK = Benchmark(
    "what Tensor Cores cut of a sum; beside it what fp32x adds", SHARE, lambda device: [_case(device, name) for name in KINDS],
    lambda device: "" if is_hopper(device) else "it reads how Hopper's Tensor Cores add",
)  # fmt: skip
