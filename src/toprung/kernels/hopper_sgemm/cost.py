"""Cost model of plain fp32 on Hopper: which products it computes, how tiles are dealt out, predicted seconds.

All variants are weighed at once: functions take one, or columns of them.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from toprung.device import Device
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper import DEEPEST, LIMIT, ceil, is_hopper
from toprung.kernels.hopper_sgemm.config import CHAIN, FIRST, SHORT_CHAIN, VARIANTS, SgemmConfig

MODEL = SimpleNamespace(**cost_model.fitted("sgemm")["numbers"])
"""Numbers of the model; ``means`` in ``models/sgemm.json`` explains each."""
COLUMNS = SimpleNamespace(**{name: np.array([getattr(v, name) for v in VARIANTS]) for name in ("BM", "BN", "BK", "TURN_A", "COPY")})
"""``VARIANTS`` in columns."""


def supported(device: Device, desc: GemmDesc) -> str:
    """Return why a product cannot be computed this way, as a sentence; empty where it can."""
    if not is_hopper(device):
        return f"its TMA and its exchange of registers are Hopper's, and this is {device}"
    if desc.batch != 1:
        return "it computes one product at a time"
    if not (desc.M and desc.N and desc.K):
        return "the product is empty"
    if desc.K > DEEPEST:
        return f"K is {desc.K:,}, more than {DEEPEST:,}"
    return ""


class Schedule(NamedTuple):
    """The dealing out of tiles, or columns of it.

    Attributes
    ----------
    grid : blocks
    shared : tiles that are cut along K over all of them; the rest are dealt out whole
    """

    grid: Any
    shared: Any


class Layout(NamedTuple):
    """Slowdown by the operands' layouts, and 1 for each operand that is padded or transposed; or columns."""

    slower: Any
    lay_a: Any
    lay_b: Any


def schedules(desc: GemmDesc, variant: Any, units: int) -> Schedule:
    """Return what is weighed, in columns: whole tiles alone, then what does not fill waves cut over ever more blocks."""
    tiles, chunks = np.asarray([block_count(desc, variant), -(-desc.K // variant.BK)])[..., None]
    n = np.arange(1, max(2, ceil(units, int(tiles.min()))) + 1)
    grid, left = np.minimum(n * tiles, units), tiles % units
    cut = (n > 1) & (left > 0) & (grid <= tiles * chunks)
    return Schedule(np.where(cut, grid, np.minimum(tiles, units)), cut * (left + units * (tiles > units)))


def chain_of(desc: GemmDesc, variant: SgemmConfig, units: int) -> int:
    """Return how many products of a sum are added up by themselves, so that errors are no larger than cuBLAS's.

    Where tiles leave SMs without one cuBLAS cuts sums into more parts, by what ``fuzz.json`` of results/nvidia-h200 shows.
    """
    tiles = block_count(desc, variant)
    return CHAIN if tiles >= MODEL.filled * ceil(tiles, units) * units else SHORT_CHAIN


def schedule_times(desc: GemmDesc, variant: Any, units: int) -> tuple[Schedule, Any]:
    """Return ``schedules``, and the seconds that the fullest block takes with each."""
    found = grid, shared = schedules(desc, variant, units)
    stage = variant.BM * variant.BN * variant.BK
    tiles, chunks, stage = np.asarray([block_count(desc, variant), -(-desc.K // variant.BK), stage])[..., None]
    whole = -((shared - tiles) // grid)
    mine = -(-shared * chunks // grid) + whole * chunks
    parts = np.where(shared, -(-grid // np.maximum(shared, 1)), 0)  # of a tile: one is written and the others are added
    return found, mine * (2.0 * stage / MODEL.rate) + (whole - (-shared // grid)) * MODEL.tile + parts * MODEL.part


def schedule(desc: GemmDesc, variant: SgemmConfig, units: int) -> Schedule:
    """Return the schedule that is done first."""
    (grid, shared), times = schedule_times(desc, variant, units)
    i = times.argmin()
    return Schedule(int(grid[i]), int(shared[i]))


def least(desc: GemmDesc, units: int) -> tuple[float, SgemmConfig]:
    """Return the least predicted seconds and its block shape; bands of large products are twice as high."""
    sizes = (desc.M, desc.N, desc.K) if 4 * desc.K * (desc.M + desc.N) > LIMIT else ()  # padded operands have a limit
    key = desc.trans_a, desc.trans_b, _direct(desc), direct_b(desc), desc.lda % 4, desc.ldb % 4, sizes
    known = _layouts.get(key)
    if known is None:
        known = _layouts[key] = np.where(misfits(desc, COLUMNS), np.inf, 1.0), layout_of(desc, COLUMNS)
    times = known[0] * predicted(desc, units, COLUMNS, known[1])
    i = int(times.argmin())
    found = VARIANTS[i]
    if found == FIRST and block_count(desc, found) > MODEL.broad * units:
        found = replace(found, GROUP=2 * found.GROUP)
    return float(times[i]), found


_layouts: dict[tuple[Any, ...], tuple[Any, Layout]] = {}
"""``layout_of`` of ``COLUMNS`` by the operands' layout, with infinity for ``unfit`` variants."""


def layout_of(desc: GemmDesc, variant: Any) -> Layout:
    """Return the layout numbers of a variant for a product's operands."""
    slower = np.where(variant.TURN_A, MODEL.turning, np.where(variant.BK < FIRST.BK, MODEL.shorter, 1.0))
    return Layout(slower * copying(desc, variant), *laid_out(desc, variant))


def predicted(desc: GemmDesc, units: int, variant: Any, layout: Layout | None = None) -> Any:
    """Return the predicted seconds of a product with its layout pass; ``layout``: ``layout_of``, if known."""
    p, (slower, lay_a, lay_b) = MODEL, layout or layout_of(desc, variant)
    laid = 8.0 * desc.K * (lay_a * desc.M + lay_b * desc.N)
    moved = 4 * (desc.M * desc.K + desc.K * desc.N + desc.M * desc.N)
    multiplying = schedule_times(desc, variant, units)[1].min(-1)
    time = (p.start + np.maximum(multiplying, moved / cost_model.MEMORY_RATE)) * slower
    reading = 0.0 if desc.beta_zero else 4 * desc.M * desc.N / p.read_rates[desc.widths[2] == 4]
    return time + reading + np.where(laid > 0, p.lay_start + laid / p.lay_rate, 0.0)


def direct_a(desc: GemmDesc, variant: Any = FIRST) -> Any:
    """Return True if A is read where it lies: every row on 16 bytes, and K×M, or M×K where the product turns it."""
    return _direct(desc) & (variant.TURN_A == (not desc.trans_a))


def _direct(desc: GemmDesc) -> bool:
    """Return True if every row of A is aligned to 16 bytes."""
    return desc.lda >= (desc.M if desc.trans_a else desc.K) and desc.lda % 4 == 0 and desc.align_a == 4


def narrow_c(desc: GemmDesc, variant: SgemmConfig = FIRST) -> bool:
    """Return True if rows of C do not begin on 16 bytes and go through shared memory."""
    return bool(variant.held) and (desc.ldc % 4 != 0 or desc.align_c < 4)


def unfit(desc: GemmDesc, variant: SgemmConfig) -> str:
    """Return why a variant cannot compute a product; empty where it can."""
    if not misfits(desc, variant):
        return ""
    if variant.COPY:
        return "TMA fetches both operands as they lie"
    return "it turns A, which must be M×K on 16 bytes" if variant.TURN_A else f"operands laid out are more than {LIMIT:,} bytes"


def misfits(desc: GemmDesc, variant: Any) -> Any:
    """Return True if a variant has nothing to copy, cannot transpose A, or would pad beyond ``LIMIT``."""
    found = (variant.COPY & (sum(copied(desc, variant)) == 0)) | (variant.TURN_A & (direct_a(desc, variant) == 0))
    if 4 * desc.K * (desc.M + desc.N) > LIMIT:
        lay_a, lay_b = laid_out(desc, variant)
        found |= 4 * desc.K * (lay_a * desc.M + lay_b * desc.N) > LIMIT
    return found


def direct_b(desc: GemmDesc) -> bool:
    """Return True if B is read where it lies: K×N, every row on 16 bytes."""
    return not desc.trans_b and desc.ldb % 4 == 0 and desc.ldb >= desc.N and desc.align_b == 4


def laid_out(desc: GemmDesc, variant: Any = FIRST) -> tuple[Any, Any]:
    """Return 1 if A is laid out by a pass beforehand, else 0, and the same of B."""
    return (1 - variant.COPY) * (1 - direct_a(desc, variant)), (1 - variant.COPY) * (1 - direct_b(desc))


def copied(desc: GemmDesc, variant: Any) -> tuple[Any, Any]:
    """Return how A is copied into the ring, and how B: 0 if TMA fetches it, 1 if K runs along memory, 2 if across."""
    a, b = (1 - direct_a(desc, variant)) * variant.COPY, (1 - direct_b(desc)) * variant.COPY
    return a * (2 if desc.trans_a else 1), b * (1 if desc.trans_b else 2)


def copying(desc: GemmDesc, variant: Any) -> Any:
    """Return how many times as long a product takes for what its threads copy."""
    a, b = copied(desc, variant)
    slow_a = (a == 1) & ((variant.BM > MODEL.copied_rows) | (desc.lda % 4 == 0))
    slow_b = (b == 1) & ((variant.BN > MODEL.copied_rows) | (desc.ldb % 4 == 0))
    rows = variant.BM * (a > 0) + variant.BN * (b > 0)
    return np.where(slow_a | slow_b, MODEL.slow_copying, 1 + MODEL.copying * rows / (FIRST.BM + FIRST.BN))
