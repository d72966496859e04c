"""Which kernel runs a call, and with which tile: the one place where that is decided.

The order is: what a tuned store knows (``STORES``, asked first), then the model below. The model is a rough count of clocks,
documented at ``clocks``; its numbers come from tables here and are what ``benchmarks/tiles.py`` measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from toprung.blas import vendor
from toprung.blas.call import Call, GemmCall, GemvCall
from toprung.blas.kernel import kernel
from toprung.blas.kernels.rows import SMALL
from toprung.device import Device
from toprung.tile import Tile, broken


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    kernel : its stem in ``blas/kernels``, or ``"cublas"``
    tile : with ``SPLIT_K`` where the sums are cut; None for somebody else's
    options : its switches
    why : a sentence
    passed_over : what else there was, and why not
    """

    kernel: str
    tile: Tile | None
    options: tuple[tuple[str, int], ...] = ()
    why: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()

    @property
    def slices(self) -> int:
        """Slices of K whose results a second pass adds."""
        return (self.tile.SPLIT_K or 1) if self.tile else 1


@dataclass(frozen=True)
class Candidate:
    """A tile of the tunable product for a GPU.

    Attributes
    ----------
    tile : with the widest accesses; narrower ones replace them where the operands need it
    resident : work-groups a multiprocessor holds (registers decide); also what the compiler is told to leave room for
    efficiency : share of the multiply-adds it starts, of those there are, where nothing else limits
    narrow : the same where A or B are read one float at a time, which takes registers; None: as many
    ahead, order : see the kernel
    """

    tile: Tile
    resident: int
    efficiency: float
    narrow: int | None = None
    ahead: int = 1
    order: int = 0


def _tile(bm: int, bn: int, bk: int, warp: tuple[int, int], piece: tuple[int, int], stages: int = 1) -> Tile:
    return Tile(
        BM=bm, BN=bn, BK=bk, WM=warp[0], WN=warp[1], TM=piece[0], TN=piece[1], VEC=4, VA=4, VB=4, STAGES=stages, PADA=4, PADB=4
    )  # fmt: skip


GPU: tuple[Candidate, ...] = (
    Candidate(_tile(128, 128, 8, (32, 64), (8, 8)), 2, 0.74),
    Candidate(_tile(128, 64, 8, (32, 64), (8, 8)), 4, 0.70, narrow=3),
    Candidate(_tile(64, 128, 8, (32, 64), (8, 8)), 4, 0.70, narrow=3),
    Candidate(_tile(64, 64, 16, (32, 32), (8, 4), 2), 4, 0.62),
    Candidate(_tile(64, 32, 16, (16, 32), (4, 4), 2), 6, 0.50),
    Candidate(_tile(32, 64, 16, (16, 32), (4, 4), 2), 6, 0.50),
    Candidate(_tile(32, 32, 16, (16, 32), (4, 4), 2), 8, 0.45),
)
"""Tiles that the choice weighs on a GPU. Efficiencies are of the device's multiply-adds; an H200's best rung has 0.74."""

SLICES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 33, 48, 64, 66, 96, 128, 132, 192, 256, 264)
"""Numbers of slices that are weighed."""

LATENCY = 700.0
"""Clocks of a turn of the loop that only waits for global memory."""
START = 2500.0
"""Clocks of a work-group before its loop and after it."""
SECOND_PASS = 6000.0
"""Clocks of a second launch that adds nothing."""
BYTES_A_CLOCK = 2100.0
"""Bytes that a whole GPU's memory moves a clock."""
CACHE_BYTES_A_CLOCK = 3500.0
"""The same for its last cache, through which slices pass."""
CACHED = 32 << 20
"""Bytes of slices that the cache holds until they are added."""
ENOUGH = 4
"""Waves of work-groups from which on sums are not cut: the last, incomplete one is a small part."""
NARROW = 0.88
"""What is left of the efficiency where A and B are read one float at a time."""
FULL = 512
"""Work-items of a multiprocessor, of 8×8 results each, from which on more do not help."""

PREFER_OWN: frozenset[str] = frozenset()
"""Problem classes in which our kernels were at least as fast as cuBLAS in every stored measurement; see ``problem_class``."""

STORES: list[Callable[[Device, Call], Choice | None]] = []
"""Asked in turn before the model: a tuned store, a better model. What they return is taken."""

FEW = 16
"""A side no longer than this makes a product skinny."""
SHORTEST = 32
"""Elements along K from which on a team shares a row: its lanes."""


def choose(device: Device, call: Call, own: bool = True) -> Choice:
    """The kernel, tile and switches for a call on a device. ``own``: only ours; else what is installed may be chosen, too."""
    chosen = next((found for ask in STORES if (found := ask(device, call))), None) or _by_model(device, call)
    if own:
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", "only kernels of ours were asked for")))
    reason = vendor.lacking(device) or _unsuited(call)
    what = problem_class(call)
    if not reason and what in PREFER_OWN:
        reason = f"ours is at least as fast on every {what} product that was measured"
    if reason:
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", reason)))
    passed = (f"blas/{chosen.kernel}", f"no measurement says that it is faster on a {what} product")
    return Choice("cublas", None, (), "it is installed, and the safe choice where ours is not known to be faster", (passed,))


def problem_class(call: Call) -> str:
    """``vector``, ``skinny``, ``batched``, ``deep``, ``small`` or ``large``."""
    if isinstance(call, GemvCall) or min(call.M, call.N) == 1:
        return "vector"
    if min(call.M, call.N) <= FEW:
        return "skinny"
    if call.batch > 1:
        return "batched"
    if call.K >= 16 * max(call.M, call.N):
        return "deep"
    return "small" if call.flops < 2 * 1536**3 else "large"


def _unsuited(call: Call) -> str:
    """Why cuBLAS does not take the call."""
    if isinstance(call, GemvCall) and (call.incx < 0 or call.incy < 0):
        return "negative increments"
    return ""


def _by_model(device: Device, call: Call) -> Choice:
    empty = not (call.M and call.N and (isinstance(call, GemvCall) or call.K))
    if not empty:
        if isinstance(call, GemvCall) or is_skinny(call):
            if choice := _skinny(device, call):
                return choice
        elif choice := _tiled(device, call):
            return choice
    return Choice("plain", kernel("plain").tile_for(device), (), "no tile of the faster kernels is legal here" if not empty else "")


# products with a short side, and vectors


def is_skinny(call: GemmCall) -> bool:
    """Whether one side is short and the other is not, and a team's lanes find enough to add along K."""
    few, many = sorted((call.M, call.N))
    if few == 1:
        return True
    return few <= FEW and many >= 4 * few and (call.K >= SHORTEST or not Skinny.of(call).by_rows)


@dataclass(frozen=True)
class Skinny:
    """A product with a short side, from the large operand's point of view: C[s][l] = Σ Y[s][k]·X, X as L×K or K×L.

    Attributes
    ----------
    turned : the large operand is B
    by_rows : X's rows run along K; else along L
    length, few, depth : L, the short side, K
    ld, stride_large, align_large : of X
    down, on, stride_small, align_small : Y's elements from one s, one k, one product to the next
    """

    turned: bool
    by_rows: bool
    length: int
    few: int
    depth: int
    ld: int
    stride_large: int
    align_large: int
    down: int
    on: int
    stride_small: int
    align_small: int

    @staticmethod
    def of(call: Call) -> Skinny:
        """A call as one; the short side is few rows or few columns."""
        if isinstance(call, GemvCall):
            return Skinny(
                False, not call.trans, call.length, 1, call.depth, call.lda, 0, call.align_a, 0, call.incx, 0, call.align_x
            )  # fmt: skip
        a, b = (call.lda, call.stride_a, call.align_a), (call.ldb, call.stride_b, call.align_b)
        if call.M < call.N:
            down, on = (1, call.lda) if call.trans_a else (call.lda, 1)
            return Skinny(True, call.trans_b, call.N, call.M, call.K, *b, down, on, *a[1:])
        down, on = (call.ldb, 1) if call.trans_b else (1, call.ldb)
        return Skinny(False, not call.trans_a, call.M, call.N, call.K, *a, down, on, *b[1:])


RESIDENT = {"gpu": 2048, "cpu": 64}
"""Work-items that a compute unit of each kind can keep under way."""

MOST_SLICES = 256


def turn(tile: Tile) -> int:
    """Elements along K that a work-group takes at a time; slices are whole turns, so that they begin aligned."""
    return tile.DN * (tile.KU or tile.VA or 1)


def _skinny(device: Device, call: Call) -> Choice | None:
    s, batch = Skinny.of(call), call.batch if isinstance(call, GemmCall) else 1
    small = next(n for n in SMALL if n >= s.few)
    options = {"SMALL": small}
    if s.by_rows:
        found = kernel("rows")
        wide = widest(s.ld, s.stride_large, s.align_large)
        tile = found.tile_for(device, options)
        together = s.on == 1 and all(n % wide == 0 for n in (s.down if s.few > 1 else 0, s.stride_small, s.align_small))
        tile = replace(tile, VA=wide, VB=wide if together else 1, BN=tile.DN * wide, TN=wide)
    else:
        found = kernel("columns")
        wide = widest(s.length, s.ld, s.stride_large, s.align_large)
        tile = found.tile_for(device, options)
        tile = replace(tile, VA=wide, TM=wide, BM=tile.DM * wide)
    options = found.options(device, options)
    if broken(found.all_rules(options), tile, device):
        return None
    blocks = -(-s.length // tile.BM) * batch
    at_once = max(1, RESIDENT.get(device.kind, 64) // tile.work_items) * device.compute_units
    wanted = min(2 * at_once // blocks, s.depth // (4 * turn(tile)), MOST_SLICES)
    slices = whole_slices(s.depth, turn(tile), max(1, wanted))
    why = f"one side is {s.few}: memory is the limit, and the large operand is read once"
    if slices > 1:
        why += f"; {blocks} work-groups are too few for {device.compute_units} compute units, so sums are cut into {slices}"
    return Choice(found.stem, replace(tile, SPLIT_K=slices if slices > 1 else None), tuple(sorted(options.items())), why)


# products of tiles


def widest(*numbers: int) -> int:
    """The widest access, in floats, that divides all numbers."""
    return next(w for w in (4, 2, 1) if all(n % w == 0 for n in numbers))


def widths(call: GemmCall) -> tuple[int, int, int]:
    """Floats of an access to A, B and C: so many that each access lies wholly inside a row or outside."""
    along = [cols for _, cols in call.stored]
    lds, strides = (call.lda, call.ldb, call.ldc), (call.stride_a, call.stride_b, call.stride_c)
    aligned = (call.align_a, call.align_b, call.align_c)
    a, b, c = (widest(*four) for four in zip(along, lds, strides, aligned, strict=True))
    return a, b, c


def tile_grid(call: GemmCall, tile: Tile) -> tuple[int, int]:
    """Blocks down and across."""
    return -(-call.M // tile.BM), -(-call.N // tile.BN)


def sliced(depth: int, piece: int, slices: int) -> int:
    """The length of a slice of K: whole pieces."""
    pieces = math.ceil(depth / piece)
    return math.ceil(pieces / slices) * piece


def whole_slices(depth: int, piece: int, slices: int) -> int:
    """How many slices there are really, none of them empty."""
    return -(-depth // sliced(depth, piece, slices))


def tiled_options(call: GemmCall, candidate: Candidate, device: Device, slices: int) -> dict[str, int]:
    """The switches of the tunable product for a call."""
    vc = widths(call)[2] if slices == 1 else widest(call.N)
    index32 = int(max(*call.extents, call.M * call.N) < 2**31)
    ahead = (
        0 if device.backend == "opencl" and device.kind == "gpu" else candidate.ahead
    )  # NVIDIA's OpenCL takes too many registers
    options = {
        "TRANS_A": int(call.trans_a), "TRANS_B": int(call.trans_b), "VC": vc, "INDEX32": index32, "AHEAD": ahead,
        "ORDER": candidate.order, "RESIDENT": candidate.resident if device.kind == "gpu" else 0,
    }  # fmt: skip
    return kernel("gemm").options(device, options)


def candidates(device: Device, call: GemmCall) -> Iterator[Candidate]:
    """Tiles that are legal on the device, with accesses as wide as the call's operands allow."""
    a, b, _ = widths(call)
    gemm = kernel("gemm")
    known = GPU if device.kind == "gpu" else tuple(Candidate(t, 1, 1.0, ahead=0) for t in gemm.tiles["cpu"])
    for one in known:
        tile = replace(one.tile, VA=a, VB=b)
        resident = one.narrow if one.narrow is not None and min(a, b) == 1 else one.resident
        if not broken(gemm.all_rules({}), tile, device):
            yield replace(one, tile=tile, resident=resident)


def clocks(device: Device, call: GemmCall, candidate: Candidate, slices: int) -> float:
    """About how many clocks a call takes on a GPU with a tile and a number of slices.

    Blocks are dealt out in waves of ``resident`` a multiprocessor, the last wave with what is left. A wave takes as long as its
    multiply-adds at the tile's efficiency, scaled down where few work-items are resident, and at least the latency of each
    turn of its loop. Slices add a second pass. Nothing takes less than memory needs for the operands.
    """
    tile, units = candidate.tile, device.compute_units
    lanes = device.lanes or 128
    tiles_m, tiles_n = tile_grid(call, tile)
    depth = sliced(call.K, tile.BK or 1, slices)
    groups = tiles_m * tiles_n * call.batch * slices
    each = groups / units if groups > units * candidate.resident else math.ceil(groups / units)
    turns = math.ceil(depth / (tile.BK or 1))
    efficiency = candidate.efficiency * (NARROW if max(tile.VA or 1, tile.VB or 1) == 1 else 1.0)
    whole, rest = divmod(math.ceil(each), candidate.resident)

    def wave(resident: int) -> float:
        items = resident * tile.work_items * (tile.TM or 1) * (tile.TN or 1) / 64
        busy = efficiency * min(1.0, math.pow(items / FULL, 0.4))
        return START + max(resident * tile.BM * tile.BN * depth / (lanes * busy), turns * LATENCY)

    total = whole * wave(candidate.resident) + (wave(rest) if rest else 0.0)
    moved = 4 * call.batch * (call.M * call.K + call.K * call.N + call.M * call.N)
    total = max(total, moved / BYTES_A_CLOCK)
    if slices > 1:
        parts = 4 * slices * call.M * call.N * call.batch
        through = CACHE_BYTES_A_CLOCK if parts <= CACHED else BYTES_A_CLOCK
        total += SECOND_PASS + (2 * parts + 4 * call.M * call.N * call.batch) / through
    return total


def _tiled(device: Device, call: GemmCall) -> Choice | None:
    weighed: list[tuple[float, int, Candidate]] = []
    for one in candidates(device, call):
        if device.kind == "gpu":
            deep = max(1, call.K // (4 * (one.tile.BK or 1)))
            if math.prod(tile_grid(call, one.tile)) * call.batch >= ENOUGH * device.compute_units * one.resident:
                deep = 1
            for wanted in (s for s in SLICES if s <= deep):
                slices = whole_slices(call.K, one.tile.BK or 1, wanted)
                weighed.append((clocks(device, call, one, slices), slices, one))
        else:
            weighed.append((*_on_cpu(device, call, one.tile), one))
    if not weighed:
        return None
    cost, slices, best = min(weighed, key=lambda w: w[0])
    blocks = math.prod(tile_grid(call, best.tile)) * call.batch
    why = f"least by the model: {blocks * slices} work-groups for {device.compute_units} compute units"
    if slices > 1:
        why += f", the sums cut into {slices} to have that many"
    others: dict[str, float] = {}
    for other, _, one in sorted(weighed, key=lambda w: w[0]):
        if one is not best:
            others.setdefault(f"blas/gemm {one.tile}", other)
    passed = tuple((name, f"{other / cost:.2f} times as long by the model") for name, other in list(others.items())[:4])
    options = tiled_options(call, best, device, slices)
    tile = replace(best.tile, SPLIT_K=slices if slices > 1 else None)
    return Choice("gemm", tile, tuple(sorted(options.items())), why, passed)


def _on_cpu(device: Device, call: GemmCall, tile: Tile) -> tuple[float, int]:
    """On a CPU, what is computed, edges included, a work-group's worth at least for each core; slices where blocks are too few."""
    blocks = math.prod(tile_grid(call, tile)) * call.batch
    slices = 1
    if blocks < device.compute_units and call.K >= 1024:
        slices = whole_slices(call.K, tile.BK or 1, min(-(-device.compute_units // blocks), call.K // 256))
    waves = -(-blocks * slices // device.compute_units)
    small = 1.0 if tile.TN and tile.TN >= 16 else 3.0  # narrow vectors leave most of a core idle
    return small * waves * tile.BM * tile.BN * sliced(call.K, tile.BK or 1, slices), slices
