"""Which kernel runs a call, and with which tile: the one place where that is decided.

The order is: what a tuned store knows (``STORES``, asked first), then the model below. The model is a rough count of clocks,
documented at ``clocks``; its numbers come from tables here and are what ``benchmarks/tiles.py`` measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from toprung import hopper_fp32
from toprung.blas import vendor
from toprung.blas.call import Call, GemmCall, GemvCall
from toprung.blas.kernel import kernel
from toprung.blas.kernels.rows import SMALL
from toprung.device import Device
from toprung.store import Entry
from toprung.tile import Tile, broken

PassedOver = tuple[tuple[str, str], ...]
"""What else there was, and why not, in pairs."""


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    kernel : its stem in ``blas/kernels``, or ``"cublas"``, ``"ffma"`` or ``"fp32x"``
    tile : with ``SPLIT_K`` where the sums are cut; None for somebody else's
    options : its switches
    why : a sentence
    passed_over : what else there was, and why not
    weighed : whether what is installed was measured beside it, so that nothing more is to be decided
    unproven : the store's entry that it follows, where driver, compiler or kernel are others than those it was measured with;
        the choice may be used when ``toprung.blas.proof`` has found it right here
    """

    kernel: str
    tile: Tile | None
    options: tuple[tuple[str, int], ...] = ()
    why: str = ""
    passed_over: PassedOver = ()
    weighed: bool = False
    unproven: Entry | None = field(default=None, repr=False)

    @property
    def slices(self) -> int:
        """Slices of K whose results another pass adds."""
        return (self.tile.SPLIT_K or 1) if self.tile else dict(self.options).get("SLICES", 1)


@dataclass(frozen=True)
class Candidate:
    """A tile of the tunable product for a GPU.

    Attributes
    ----------
    tile : with the widest accesses; narrower ones replace them where the operands need it
    efficiency : share of the multiply-adds it starts, of those there are, where nothing else limits; for each of the layouts
        ``NN``, ``NT``, ``TN``, ``TT``, and ``narrow`` where A or B is read one float at a time. What is missing is not weighed
    resident : work-groups a multiprocessor holds; registers decide
    asked : how many the compiler is told to leave registers for; 0: as it comes
    ahead, order : see the kernel
    """

    tile: Tile
    efficiency: Mapping[str, float]
    resident: int = 1
    asked: int = 0
    ahead: int = 1
    order: int = 0


def _tile(bm: int, bn: int, bk: int, warp: tuple[int, int], piece: tuple[int, int], stages: int = 1) -> Tile:
    return Tile(
        BM=bm, BN=bn, BK=bk, WM=warp[0], WN=warp[1], TM=piece[0], TN=piece[1], VEC=4, VA=4, VB=4, STAGES=stages, PADA=4, PADB=4
    )  # fmt: skip


def _layouts(nn: float, nt: float, tn: float, tt: float, narrow: float | None = None) -> Mapping[str, float]:
    found = {"NN": nn, "NT": nt, "TN": tn, "TT": tt}
    return found if narrow is None else found | {"narrow": narrow}


GPU: tuple[Candidate, ...] = (
    Candidate(_tile(128, 256, 8, (64, 64), (8, 16)), _layouts(0.753, 0.721, 0.783, 0.727, 0.669), 1),
    Candidate(_tile(128, 128, 8, (32, 64), (8, 8)), _layouts(0.758, 0.672, 0.763, 0.765, 0.640), 2, asked=2, order=1),
    Candidate(_tile(64, 128, 16, (32, 64), (8, 8)), _layouts(0.696, 0.631, 0.763, 0.711), 3),
    Candidate(_tile(64, 128, 16, (32, 64), (8, 8)), {"narrow": 0.706}, 3, order=1),
    Candidate(_tile(64, 128, 8, (32, 64), (8, 8)), _layouts(0.719, 0.578, 0.727, 0.627), 4, asked=4),
    Candidate(_tile(128, 64, 16, (32, 64), (8, 8), 2), _layouts(0.671, 0.598, 0.696, 0.725), 3, order=1),
    Candidate(_tile(64, 64, 16, (32, 32), (8, 4), 2), _layouts(0.618, 0.596, 0.644, 0.633, 0.583), 4),
    Candidate(_tile(32, 64, 32, (16, 32), (4, 4), 2), _layouts(0.484, 0.440, 0.500, 0.484, 0.440), 4, asked=4),
    Candidate(_tile(64, 32, 16, (16, 32), (4, 4), 2), _layouts(0.483, 0.436, 0.505, 0.483, 0.394), 6, asked=6),
    Candidate(_tile(32, 32, 32, (16, 32), (4, 4), 2), _layouts(0.391, 0.360, 0.400, 0.391, 0.375), 8, asked=8, order=1),
)
"""Tiles that the choice weighs on a GPU. These numbers and those below were fitted to what results/nvidia-h200/tiles.json holds."""

WAVES = (1, 2, 4)
"""Sums are cut into so many slices that each multiprocessor has so many work-groups."""
LEAST_TURNS = 4
"""Turns of the loop that a slice has at least."""

LATENCY = 567.0
"""Clocks of a turn of the loop that only waits for global memory."""
OVERLAP = 2.3
"""How well waiting and multiplying hide behind each other: 1 not at all, infinity wholly."""
LAUNCH = 3500.0
"""Clocks of a launch."""
START = 970.0
"""Clocks of a wave before its loop and after it."""
EACH_RESULT = 0.16
"""Clocks for each result of a multiprocessor's blocks, in which it only writes."""
SECOND_PASS = 5400.0
"""Clocks of a second launch that adds nothing."""
BYTES_A_CLOCK = 2100.0
"""Bytes that a whole GPU's memory moves a clock."""
CACHE_BYTES_A_CLOCK = 4100.0
"""The same for its last cache, through which slices pass."""
CACHED = 32 << 20
"""Bytes of slices that the cache holds until they are added."""
FULL = 128 * 256
"""Results that a multiprocessor works on at a time, from which on more do not help."""
FEWER = 0.095
"""With fewer, the efficiency goes by this power of their share."""
STEPS = 0.875
"""Where there is more than a wave: how much of the time goes by whole waves; the rest by the number of blocks alone."""

FFMA = "ffma"
"""The choice's kernel for plain fp32 on Hopper, see ``toprung.hopper_fp32``."""
FFMA_LEAST = 1 << 20
"""Results of C from which on it is weighed: below, adding parts of its large tiles takes longer than computing them."""
MODEL_HZ = 1.98e9
"""Clocks of the model in a second: an H200's highest clock, from which ``GPU`` was fitted; it does not keep it under load."""

FFMA_DEEP = 2048
"""Elements along K from which on Hopper's kernel was faster than cuBLAS also where it writes C one float at a time."""

PREFER_OWN: frozenset[str] = frozenset({"batched", "deep", "shallow", "skinny", "tiny", "vector"})
"""Problem classes in which our kernels, Hopper's apart, kept within 5 % of the best more often than cuBLAS, or as often and with a
smaller worst. Fitted to the shapes of results/nvidia-h200/tune-check.json, as ``FFMA_DEEP`` is, and not yet shown on others."""

SIZES = {"tiny": 768, "small": 1536}
"""Classes of products by the side of a square one with as much to do."""


class Adviser(Protocol):
    """What knows more than the model."""

    def choice(self, device: Device, call: Call, own: bool) -> tuple[Choice | None, PassedOver]:
        """What to run, or None where it does not know; and what it knows of and passed over."""

    def fp32x(self, device: Device, call: Call, own: bool) -> str | None:
        """Why fp32x is slower than plain fp32, empty where it is faster; None where it does not know."""


STORES: list[Adviser] = []
"""Asked in turn before the model: the store of tuned entries puts itself here (``toprung.blas.tuned``)."""

FEW = 16
"""A side no longer than this makes a product skinny."""
SHORTEST = 32
"""Elements along K from which on a team shares a row: its lanes."""


def choose(device: Device, call: Call, own: bool = True) -> Choice:
    """The kernel, tile and switches for a call on a device. ``own``: only ours; else what is installed may be chosen, too."""
    chosen, passed_over = _advised(device, call, own)
    chosen = chosen or by_model(device, call)
    chosen = replace(chosen, passed_over=(*chosen.passed_over, *passed_over))
    if own:
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", "only kernels of ours were asked for")))
    if chosen.weighed:
        return chosen
    if reason := lacking(device, call) or preferred(call, chosen.kernel):
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", reason)))
    passed = (f"blas/{chosen.kernel}", f"no measurement says that it is faster on a {problem_class(call)} product")
    return Choice("cublas", None, (), "it is installed, and the safe choice where ours is not known to be faster", (passed,))


def _advised(device: Device, call: Call, own: bool) -> tuple[Choice | None, PassedOver]:
    """What the first that knows says; and what all that were asked passed over."""
    passed: PassedOver = ()
    for one in STORES:
        found, more = one.choice(device, call, own)
        passed += more
        if found is not None:
            return found, passed
    return None, passed


def lacking(device: Device, call: Call) -> str:
    """Why cuBLAS cannot take a call; empty if it can."""
    return vendor.lacking(device) or _unsuited(call)


def preferred(call: Call, own: str) -> str:
    """Why a kernel of ours is taken where the store does not compare it with cuBLAS; empty where cuBLAS is."""
    what = problem_class(call)
    if own == FFMA:
        assert isinstance(call, GemmCall)
        wide = widths(call)[2] == 4
        if not wide and call.K < FFMA_DEEP:
            return ""
        return f"Hopper's kernel was faster where {'C lies on 16 bytes' if wide else f'K is {FFMA_DEEP} or more'}"
    return f"ours was the safer choice on the {what} products that were measured" if what in PREFER_OWN else ""


def problem_class(call: Call) -> str:
    """``vector``, ``skinny``, ``batched``, ``deep``, ``shallow``, ``tiny``, ``small`` or ``large``."""
    if isinstance(call, GemvCall) or min(call.M, call.N) == 1:
        return "vector"
    if min(call.M, call.N) <= FEW:
        return "skinny"
    if call.batch > 1:
        return "batched"
    if call.K >= 16 * max(call.M, call.N):
        return "deep"
    if 16 * call.K <= min(call.M, call.N):
        return "shallow"
    return next((name for name, side in SIZES.items() if call.flops < 2 * side**3), "large")


def _unsuited(call: Call) -> str:
    """Why cuBLAS does not take the call."""
    if isinstance(call, GemvCall) and (call.incx < 0 or call.incy < 0):
        return "negative increments"
    return ""


def by_model(device: Device, call: Call) -> Choice:
    """Our kernel for a call, whatever is stored: what nobody has tuned gets."""
    empty = not (call.M and call.N and (isinstance(call, GemvCall) or call.K))
    if not empty:
        if isinstance(call, GemvCall) or is_skinny(call):
            if choice := _skinny(device, call):
                return choice
        elif choice := _product(device, call):
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


RESIDENT = {"rows": 2048, "columns": 1024, "columns of many": 512}
"""Work-items that a GPU's multiprocessor is given by each kernel; many are more than ``MANY`` sums for each column."""
RESIDENT_ON_CPU = 128
MANY = 4

MOST_SLICES = 256


def turn(tile: Tile) -> int:
    """Elements along K that a work-group takes at a time; slices are whole turns, so that they begin aligned."""
    return tile.DN * (tile.KU or tile.VA or 1)


def skinny_widths(s: Skinny) -> tuple[int, int]:
    """Floats of an access to the large operand; and to the small one, where rows are read: as many or one."""
    if not s.by_rows:
        return widest(s.length, s.ld, s.stride_large, s.align_large), 1
    wide = widest(s.ld, s.stride_large, s.align_large)
    together = s.on == 1 and all(n % wide == 0 for n in (s.down if s.few > 1 else 0, s.stride_small, s.align_small))
    return wide, wide if together else 1


def _skinny(device: Device, call: Call) -> Choice | None:
    s, batch = Skinny.of(call), call.batch if isinstance(call, GemmCall) else 1
    small = next(n for n in SMALL if n >= s.few)
    options = {"SMALL": small}
    if s.by_rows:
        found = kernel("rows")
        wide, together = skinny_widths(s)
        tile = found.tile_for(device, options)
        tile = replace(tile, VA=wide, VB=together, BN=tile.DN * wide, TN=wide)
    else:
        found = kernel("columns")
        wide, _ = skinny_widths(s)
        tile = found.tile_for(device, options)
        tile = replace(tile, VA=wide, TM=wide, BM=tile.DM * wide)
    options = found.options(device, options)
    if broken(found.all_rules(options), tile, device):
        return None
    blocks = -(-s.length // tile.BM) * batch
    items = RESIDENT[found.stem if s.by_rows or small <= MANY else "columns of many"] if device.kind == "gpu" else RESIDENT_ON_CPU
    at_once = max(1, items // tile.work_items) * device.compute_units
    wanted = min(round(at_once / blocks), s.depth // (LEAST_TURNS * turn(tile)), MOST_SLICES)
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
        "ORDER": candidate.order, "RESIDENT": candidate.asked if device.kind == "gpu" else 0,
    }  # fmt: skip
    return kernel("gemm").options(device, options)


def candidates(device: Device, call: GemmCall) -> Iterator[Candidate]:
    """Tiles that are legal on the device, with accesses as wide as the call's operands allow."""
    a, b, _ = widths(call)
    gemm = kernel("gemm")
    known = GPU if device.kind == "gpu" else tuple(Candidate(t, {layout(call): 1.0}, ahead=0) for t in gemm.tiles["cpu"])
    for one in known:
        tile = replace(one.tile, VA=a, VB=b)
        if layout(call) in one.efficiency and not broken(gemm.all_rules({}), tile, device):
            yield replace(one, tile=tile)


def layout(call: GemmCall) -> str:
    """By what efficiencies differ: how A and B lie, or that they are read one float at a time."""
    return "narrow" if min(widths(call)[:2]) == 1 else call.trans


def slicings(call: GemmCall, tile: Tile, compute_units: int) -> list[int]:
    """Numbers of slices that are worth weighing: one, and those that give each multiprocessor ``WAVES`` work-groups."""
    piece, blocks = tile.BK or 1, math.prod(tile_grid(call, tile)) * call.batch
    most = max(1, call.K // (LEAST_TURNS * piece))
    wanted = {1, *(round(compute_units * waves / blocks) for waves in WAVES)}
    return sorted({whole_slices(call.K, piece, n) for n in wanted if 1 <= n <= most})


def clocks(device: Device, call: GemmCall, candidate: Candidate, slices: int) -> float:
    """About how many clocks a call takes on a GPU with a tile and a number of slices.

    Blocks are dealt out in waves of ``resident`` a multiprocessor, the last wave with what is left. A wave takes as long as its
    multiply-adds at the tile's efficiency, a little less of it where few are resident, and the latency of each turn of its
    loop, which partly hide behind each other. Slices add a second pass. Nothing takes less than memory needs for the operands.
    """
    tile, units = candidate.tile, device.compute_units
    lanes = device.lanes or 128
    depth = sliced(call.K, tile.BK or 1, slices)
    groups = math.prod(tile_grid(call, tile)) * call.batch * slices
    waiting = LATENCY * math.ceil(depth / (tile.BK or 1))
    most = candidate.resident * tile.BM * tile.BN

    def wave(resident: int) -> float:
        results = resident * tile.BM * tile.BN
        busy = candidate.efficiency[layout(call)] * math.pow(min(1.0, results / min(most, FULL)), FEWER)
        multiplying = results * depth / (lanes * busy)
        return START + EACH_RESULT * results + math.pow(math.pow(multiplying, OVERLAP) + math.pow(waiting, OVERLAP), 1 / OVERLAP)

    full = wave(candidate.resident)
    whole, rest = divmod(math.ceil(groups / units), candidate.resident)
    total = whole * full + (wave(rest) if rest else 0.0)
    if groups > units * candidate.resident:
        total = STEPS * total + (1 - STEPS) * groups / (units * candidate.resident) * full
    moved = 4 * call.batch * (call.M * call.K + call.K * call.N + call.M * call.N)
    total = max(total, moved / BYTES_A_CLOCK)
    if slices > 1:
        parts = 4 * slices * call.M * call.N * call.batch
        through = CACHE_BYTES_A_CLOCK if parts <= CACHED else BYTES_A_CLOCK
        total += SECOND_PASS + (2 * parts + 4 * call.M * call.N * call.batch) / through
    return LAUNCH + total


def ffma_choice(variant: hopper_fp32.Variant, why: str, passed_over: PassedOver = ()) -> Choice:
    """Hopper's kernel with these parameters."""
    options = ("GROUP", variant.GROUP), ("TURN_A", variant.TURN_A), ("WAIT_AT", variant.WAIT_AT)
    return Choice(FFMA, variant.tile, options, why, passed_over)


def ffma_clocks(device: Device, call: GemmCall) -> float:
    """About how many clocks Hopper's kernel takes, in the unit of ``clocks``: its seconds in the model's clocks."""
    return hopper_fp32.reckoned(call, device.compute_units) * MODEL_HZ


def _product(device: Device, call: GemmCall) -> Choice | None:
    """The best tile of the tunable product, or Hopper's kernel where that takes less by the model of each."""
    tiled = _tiled(device, call)
    if call.M * call.N < FFMA_LEAST or hopper_fp32.supported(device, call):
        return tiled and tiled[1]
    cost = ffma_clocks(device, call)
    if tiled is None or cost < tiled[0]:
        variant = hopper_fp32.choose(call, device.compute_units)
        direct = {"A": hopper_fp32.direct_a(call, variant), "B": hopper_fp32.direct_b(call)}
        laid = [name for name, lies_well in direct.items() if not lies_well]
        why = f"least by the model: the copy engine feeds {device.compute_units} blocks that stay"
        why += f", after a pass that lays out {' and '.join(laid)}" * bool(laid)
        passed = ((f"blas/gemm {tiled[1].tile}", f"{tiled[0] / cost:.2f} times as long by the model"),) if tiled else ()
        return ffma_choice(variant, why, passed)
    passed = (("hopper_fp32/ffma", f"{cost / tiled[0]:.2f} times as long by the model"),)
    return replace(tiled[1], passed_over=passed + tiled[1].passed_over)


def _tiled(device: Device, call: GemmCall) -> tuple[float, Choice] | None:
    """The tunable product with the tile that takes least by the model, and how long."""
    weighed: list[tuple[float, int, Candidate]] = []
    for one in candidates(device, call):
        if device.kind == "gpu":
            weighed += [(clocks(device, call, one, n), n, one) for n in slicings(call, one.tile, device.compute_units)]
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
    return cost, Choice("gemm", tile, tuple(sorted(options.items())), why, passed)


def _on_cpu(device: Device, call: GemmCall, tile: Tile) -> tuple[float, int]:
    """On a CPU, what is computed, edges included, a work-group's worth at least for each core; slices where blocks are too few."""
    blocks = math.prod(tile_grid(call, tile)) * call.batch
    slices = 1
    if blocks < device.compute_units and call.K >= 1024:
        slices = whole_slices(call.K, tile.BK or 1, min(-(-device.compute_units // blocks), call.K // 256))
    waves = -(-blocks * slices // device.compute_units)
    small = 1.0 if tile.TN and tile.TN >= 16 else 3.0  # narrow vectors leave most of a core idle
    return small * waves * tile.BM * tile.BN * sliced(call.K, tile.BK or 1, slices), slices
