"""Which kernel runs a call, and with which tile: the one place where that is decided.

The order is: what a tuned store knows (``STORES``, asked first), then the model below. The model is a rough count of clocks,
documented at ``clocks``; its numbers come from tables here and are what ``benchmarks/tiles.py`` measures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from toprung import hopper_fp32
from toprung.blas import expected, vendor
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
        return (self.tile.SPLIT_K or 1) if self.tile else 1


@dataclass(frozen=True)
class Candidate:
    """A tile of the tunable product for a GPU.

    Attributes
    ----------
    tile : with the widest accesses; narrower ones replace them where the operands need it
    efficiency : share of the multiply-adds it starts, of those there are, where nothing else limits and operands lie well
    resident : work-groups a multiprocessor holds; registers decide
    asked : how many the compiler is told to leave registers for; 0: as it comes
    ahead, order : see the kernel
    """

    tile: Tile
    efficiency: float
    resident: int = 1
    asked: int = 0
    ahead: int = 1
    order: int = 0


def _tile(bm: int, bn: int, bk: int, warp: tuple[int, int], piece: tuple[int, int], stages: int = 1) -> Tile:
    return Tile(
        BM=bm, BN=bn, BK=bk, WM=warp[0], WN=warp[1], TM=piece[0], TN=piece[1], VEC=min(4, piece[1]), VA=4, VB=4, STAGES=stages,
        PADA=4, PADB=4,
    )  # fmt: skip


GPU: tuple[Candidate, ...] = (
    Candidate(_tile(128, 256, 8, (64, 64), (8, 16)), 0.852, 1),
    Candidate(_tile(128, 128, 8, (32, 64), (8, 8)), 0.844, 2, asked=2, order=1),
    Candidate(_tile(64, 128, 16, (32, 64), (8, 8)), 0.767, 3),
    Candidate(_tile(64, 128, 8, (32, 64), (8, 8)), 0.756, 4, asked=4),
    Candidate(_tile(128, 64, 16, (32, 64), (8, 8), 2), 0.717, 3, order=1),
    Candidate(_tile(64, 64, 16, (32, 32), (8, 4), 2), 0.724, 4),
    Candidate(_tile(32, 64, 32, (16, 32), (4, 4), 2), 0.524, 4, asked=4),
    Candidate(_tile(64, 32, 16, (16, 32), (4, 4), 2), 0.559, 6, asked=6),
    Candidate(_tile(32, 32, 32, (16, 32), (4, 4), 2), 0.534, 8, asked=8, order=1),
    Candidate(_tile(16, 16, 16, (8, 16), (2, 2), 2), 0.237, 16),
    Candidate(_tile(16, 16, 32, (8, 16), (2, 2), 2), 0.236, 12),
    Candidate(_tile(16, 32, 16, (8, 16), (2, 2), 2), 0.272, 11),
    Candidate(_tile(16, 32, 32, (8, 16), (2, 2), 2), 0.273, 8),
    Candidate(_tile(32, 16, 16, (16, 8), (2, 2), 2), 0.260, 11),
    Candidate(_tile(32, 16, 32, (16, 8), (2, 2), 2), 0.254, 8),
    Candidate(_tile(32, 64, 16, (16, 32), (4, 4), 2), 0.563, 6),
    Candidate(_tile(64, 32, 16, (64, 16), (4, 8)), 0.661, 8),
    Candidate(_tile(64, 32, 8, (16, 32), (4, 4), 2), 0.567, 8),
    Candidate(_tile(64, 64, 32, (32, 32), (8, 4)), 0.627, 4),
    Candidate(_tile(64, 64, 8, (32, 64), (8, 8)), 0.758, 6),
    Candidate(_tile(128, 32, 16, (32, 32), (8, 4), 2), 0.679, 4),
    Candidate(_tile(32, 128, 16, (32, 32), (4, 8), 2), 0.601, 4),
    Candidate(_tile(128, 16, 16, (32, 16), (4, 4), 2), 0.541, 5),
    Candidate(_tile(16, 128, 16, (16, 32), (4, 4), 2), 0.531, 5),
)
"""Tiles that the choice weighs on a GPU, with efficiencies as ``benchmarks/fit_routes.py`` prints them."""

WAVES = (1, 2, 4)
"""Sums are cut into so many slices that each multiprocessor has so many work-groups."""
LEAST_TURNS = 4
"""Turns of the loop that a slice has at least."""

FFMA = "ffma"
"""The choice's kernel for plain fp32 on Hopper, see ``toprung.hopper_fp32``."""
FFMA_LEAST = 1 << 20
"""Results of C from which on it is weighed: below, adding parts of its large tiles takes longer than computing them."""

FFMA_RESULT = (1.7, 0.13)
"""Clocks of a multiprocessor for each result of C beyond what is reckoned: written one float at a time or two, and four."""

CUBLAS_SIDE, CUBLAS, CUBLAS_MORE, CUBLAS_SLICED = 64, 1.02, 2e-6, 3e-6
"""cuBLAS takes about so many times as long as our best tile with sides from ``CUBLAS_SIDE`` on, with operands that lie well, and so
many seconds more, a few more still where sums are cut. Fitted as ``GPU`` is."""

SIZES = {"tiny": 768, "small": 1536}
"""Classes of products by the side of a square one with as much to do."""


class Adviser(Protocol):
    """What knows more than the model."""

    def choice(self, device: Device, call: Call, own: bool) -> tuple[Choice | None, PassedOver]:
        """What to run, or None where it does not know; and what it knows of and passed over."""

    def fp32x(self, device: Device, call: Call, own: bool) -> str | None:
        """Why fp32x is slower than plain fp32, empty where it is faster; None where it does not know."""

    def fp32x_choice(self, device: Device, call: Call) -> tuple[Choice | None, PassedOver]:
        """The tile of fp32x to run, or None where it does not know one; and what it knows of and passed over."""


STORES: list[Adviser] = []
"""Asked in turn before the model: the store of tuned entries puts itself here (``toprung.blas.tuned``)."""

SHOWN = 4
"""Ways passed over that a choice names."""

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
    if reason := lacking(device, call) or preferred(device, call):
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", reason)))
    passed = (f"blas/{chosen.kernel}", f"no measurement says that it is faster on a {problem_class(call)} product, nor the model")
    return Choice("cublas", None, (), "it is installed, and by the model the faster", (passed,))


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


def preferred(device: Device, call: Call) -> str:
    """Why a kernel of ours is taken where the store does not compare it with cuBLAS; empty where cuBLAS is."""
    ratio = cublas_ratio(device, call)
    return f"{ratio:.2f} times as long by the model" if ratio >= 1 else ""


def cublas_ratio(device: Device, call: Call) -> float:
    """cuBLAS's time over that of our best choice, by the model: infinite where nothing is computed.

    cuBLAS takes narrow operands as it takes wide ones, in large tiles, and a program takes longer to call it. That both come from
    one model is the point: where it errs it errs on both.
    """
    if _empty(call):
        return math.inf
    ours, theirs = ways(device, call), ways(device, call, well=True)
    if not ours or not theirs:
        return 0.0
    least = min(CUBLAS * way.seconds + (CUBLAS_SLICED if way.slices > 1 else 0.0) for way in theirs) + CUBLAS_MORE
    return max(least, expected.HOST.cublas) / ours[0].seconds


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
    found: Choice | None = None
    if not _empty(call):
        if device.kind == "gpu":
            found = _on_gpu(device, call)
        else:
            found = _skinny(device, call) if isinstance(call, GemvCall) or is_skinny(call) else _on_cpu(device, call)
    return found or Choice(
        "plain", kernel("plain").tile_for(device), (), "" if _empty(call) else "no tile of the faster kernels is legal here"
    )


def _empty(call: Call) -> bool:
    return not (call.M and call.N and (isinstance(call, GemvCall) or call.K))


class Way(NamedTuple):
    """A way to compute a call on a GPU.

    Attributes
    ----------
    seconds : by the model
    kernel : as a choice names it
    tile : as it is compiled; of Hopper's kernel the one that is taken there
    slices : of K
    candidate : where the tile comes from, for the tunable product
    """

    seconds: float
    kernel: str
    tile: Tile
    slices: int = 1
    candidate: Candidate | None = None

    @property
    def name(self) -> str:
        """As receipts name it."""
        return "hopper_fp32/ffma" if self.kernel == FFMA else f"blas/{self.kernel} {self.tile}"


def ways(device: Device, call: Call, well: bool = False) -> list[Way]:
    """What is weighed on a GPU, the fastest by the model first; ``well``: only what cuBLAS may
    have, as if operands lay well."""
    found: list[Way] = []
    if isinstance(call, GemvCall) or is_skinny(call):
        found += _short_sides(device, call, well)
    if isinstance(call, GemmCall) and min(call.M, call.N) > 1:
        found += _products(device, call, well)
        if not well and call.M * call.N >= FFMA_LEAST and not hopper_fp32.supported(device, call):
            found.append(Way(ffma_seconds(device, call), FFMA, hopper_fp32.choose(call, device.compute_units).tile))
    return sorted(found, key=lambda way: way.seconds)


def hz(device: Device) -> float:
    """Clocks of a device in a second."""
    return 1e6 * device.clock_mhz if device.clock_mhz else expected.HZ


def _on_gpu(device: Device, call: Call) -> Choice | None:
    found = ways(device, call)
    if not found:
        return None
    best, named = found[0], dict[tuple[str, Tile], Way]()
    for other in found[1:]:
        if (other.kernel, other.tile) != (best.kernel, best.tile) and (len(named) < SHOWN or other.kernel == FFMA):
            named.setdefault((other.kernel, other.tile), other)
    first = sorted(named.values(), key=lambda way: way.kernel != FFMA)
    passed = tuple((way.name, f"{way.seconds / best.seconds:.2f} times as long by the model") for way in first)
    if best.kernel == FFMA:
        assert isinstance(call, GemmCall)
        return _ffma(device, call, passed)
    if best.candidate is None:
        return _short_choice(device, call, best.tile, best.slices, passed)
    assert isinstance(call, GemmCall)
    slices = best.slices
    blocks = math.prod(tile_grid(call, best.tile)) * call.batch
    why = f"least by the model: {blocks * slices} work-groups for {device.compute_units} compute units"
    if slices > 1:
        why += f", the sums cut into {slices} to have that many"
    options = tiled_options(call, best.candidate, device, slices)
    return Choice("gemm", _cut(best.tile, slices), tuple(sorted(options.items())), why, passed)


def _cut(tile: Tile, slices: int) -> Tile:
    """A tile as choices have it."""
    return replace(tile, SPLIT_K=slices if slices > 1 else None)


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


RESIDENT_ON_CPU = 128
"""Work-items that a core is given."""

TEAMS: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "rows": ({"ITEMS": 256, "TEAM": 32, "TM": 4}, {"ITEMS": 128, "TEAM": 32, "TM": 1}),
    "columns": ({"ACROSS": 32, "DN": 4, "TN": 16, "KU": 4}, {"ACROSS": 32, "DN": 8, "TN": 32, "KU": 8}),
}
"""Work-groups that are weighed on a GPU: ``ITEMS`` in teams that share TM rows; ``ACROSS`` work-items side by side."""
SHORT_WAVES = (0.5, 1.0, 2.0, 4.0)
"""Slices give each multiprocessor so many times as many work-items as it holds."""

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


def _short_sides(device: Device, call: Call, well: bool) -> list[Way]:
    """Teams and slices of the kernels for short sides."""
    s, batch = Skinny.of(call), call.batch if isinstance(call, GemmCall) else 1
    small = next(n for n in SMALL if n >= s.few)
    wide, together = (4, 4 if s.by_rows else 1) if well else skinny_widths(s)
    stem = "rows" if s.by_rows else "columns"
    record, found = kernel(stem), []
    options = record.options(device, {"SMALL": small})
    for at in TEAMS[stem]:
        if s.by_rows:
            tile = Tile(BM=at["ITEMS"] // at["TEAM"] * at["TM"], BN=at["TEAM"] * wide, TM=at["TM"], TN=wide, VA=wide, VB=together)
        else:
            tile = Tile(BM=at["ACROSS"] * wide, BN=at["DN"] * at["TN"], TM=wide, TN=at["TN"], VA=wide, KU=at["KU"])
        if not _legal(stem, tile, tuple(sorted(options.items())), device):
            continue
        blocks = -(-s.length // tile.BM) * batch
        at_once = max(1, expected.THREADS // tile.work_items) * device.compute_units
        wanted = {1, *(round(waves * at_once / blocks) for waves in SHORT_WAVES)}
        most = min(s.depth // (LEAST_TURNS * turn(tile)), MOST_SLICES)
        for slices in sorted({whole_slices(s.depth, turn(tile), max(1, min(n, most))) for n in wanted}):
            cost = expected.short_side(stem, tile, s.length, s.few, small, s.depth, batch, slices, device.compute_units)
            seconds = expected.seconds(cost, min(slices, 2), hz(device))
            found.append(Way(seconds, stem, tile, slices))
    return found


def _short_choice(device: Device, call: Call, tile: Tile, slices: int, passed_over: PassedOver = ()) -> Choice:
    """A tile of the kernels for short sides as a choice."""
    s = Skinny.of(call)
    found = kernel("rows" if s.by_rows else "columns")
    options = found.options(device, {"SMALL": next(n for n in SMALL if n >= s.few)})
    blocks = -(-s.length // tile.BM) * (call.batch if isinstance(call, GemmCall) else 1)
    why = f"one side is {s.few}: memory is the limit, and the large operand is read once"
    if slices > 1:
        why += f"; {blocks} work-groups are too few for {device.compute_units} compute units, so sums are cut into {slices}"
    return Choice(found.stem, _cut(tile, slices), tuple(sorted(options.items())), why, passed_over)


def _skinny(device: Device, call: Call) -> Choice | None:
    """On a CPU: the kernel's own tile, and as many slices as give every core something to do."""
    s, batch = Skinny.of(call), call.batch if isinstance(call, GemmCall) else 1
    options = {"SMALL": next(n for n in SMALL if n >= s.few)}
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
    if broken(found.all_rules(found.options(device, options)), tile, device):
        return None
    blocks = -(-s.length // tile.BM) * batch
    at_once = max(1, RESIDENT_ON_CPU // tile.work_items) * device.compute_units
    wanted = min(round(at_once / blocks), s.depth // (LEAST_TURNS * turn(tile)), MOST_SLICES)
    slices = whole_slices(s.depth, turn(tile), max(1, wanted))
    return _short_choice(device, call, tile, slices)


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
    index32 = int(max(*call.extents, call.M * call.N) < 2**31)
    ahead = (
        0 if device.backend == "opencl" and device.kind == "gpu" else candidate.ahead
    )  # NVIDIA's OpenCL takes too many registers
    options = {
        "TRANS_A": int(call.trans_a), "TRANS_B": int(call.trans_b), "VC": _width_of_c(call, candidate.tile, slices),
        "INDEX32": index32, "AHEAD": ahead, "ORDER": candidate.order,
        "RESIDENT": candidate.asked if device.kind == "gpu" else 0,
    }  # fmt: skip
    return kernel("gemm").options(device, options)


def _width_of_c(call: GemmCall, tile: Tile, slices: int) -> int:
    """Floats of an access to C, or to the slices of it; no more than a work-item's pieces on a GPU."""
    return min(widths(call)[2] if slices == 1 else widest(call.N), tile.VEC or 1)


@functools.lru_cache(1 << 14)
def _legal(stem: str, tile: Tile, options: tuple[tuple[str, int], ...], device: Device) -> bool:
    return not broken(kernel(stem).all_rules(dict(options)), tile, device)


def candidates(device: Device, call: GemmCall, well: bool = False) -> Iterator[Candidate]:
    """Tiles that are legal on the device, with accesses as wide as the call's operands allow (``well``: as can be) and the tile."""
    a, b, _ = (4, 4, 4) if well else widths(call)
    if device.kind != "gpu":
        fit = (replace(tile, VA=a, VB=b) for tile in kernel("gemm").tiles["cpu"])
        yield from (Candidate(tile, 1.0, ahead=0) for tile in fit if _legal("gemm", tile, (), device))
        return
    least = CUBLAS_SIDE if well else 1
    yield from (one for one in _narrowed(device, GPU, a, b) if min(one.tile.BM, one.tile.BN) >= least)


@functools.lru_cache(64)
def _narrowed(device: Device, known: tuple[Candidate, ...], a: int, b: int) -> tuple[Candidate, ...]:
    """Tiles with the widest accesses that are legal, none wider than these."""
    narrower, found = [(va, vb) for va in (4, 2, 1) if va <= a for vb in (4, 2, 1) if vb <= b], []
    for one in known:
        fit = (replace(one.tile, VA=va, VB=vb) for va, vb in narrower)
        found += [replace(one, tile=tile) for tile in fit if _legal("gemm", tile, (), device)][:1]
    return tuple(found)


def slicings(call: GemmCall, tile: Tile, compute_units: int) -> list[int]:
    """Numbers of slices that are worth weighing: one, and what gives each multiprocessor ``WAVES`` work-groups, or the most."""
    piece, blocks = tile.BK or 1, math.prod(tile_grid(call, tile)) * call.batch
    most = max(1, call.K // (LEAST_TURNS * piece))
    wanted = {1, *(round(compute_units * waves / blocks) for waves in WAVES)}
    return sorted({whole_slices(call.K, piece, min(n, most)) for n in wanted if n >= 1})


def clocks(device: Device, call: GemmCall, candidate: Candidate, slices: int, well: bool = False) -> float:
    """About how many clocks a call takes on a GPU with a tile and a number of slices; ``well``: if C lay well, too."""
    vc = 4 if well else _width_of_c(call, candidate.tile, slices)
    return expected.product(
        call, candidate.tile, candidate.efficiency, candidate.resident, slices, vc, device.compute_units, device.lanes or 128
    )  # fmt: skip


def tile_loss(device: Device, call: GemmCall, tile: Tile) -> float | None:
    """How many times as long as the best by the model a tile takes, with its slices; None where no candidate is like it."""
    bare = replace(tile, SPLIT_K=None)
    like = next((one for one in GPU if listed(one.tile) == listed(tile)), None)
    found = ways(device, call) if like and device.kind == "gpu" else []
    if like is None or not found:
        return None
    slices = tile.SPLIT_K or 1
    cost = clocks(device, call, replace(like, tile=bare), slices)
    return expected.seconds(cost, min(slices, 2), hz(device)) / found[0].seconds


def listed(tile: Tile) -> Tile:
    """A tile as it would stand in ``GPU``: without what operands and sums change of it."""
    return replace(tile, VA=4, VB=4, PADA=4, PADB=4, SPLIT_K=None)


def _products(device: Device, call: GemmCall, well: bool) -> list[Way]:
    """The tunable product with every tile and number of slices that is weighed."""
    found = []
    for one in candidates(device, call, well):
        for slices in slicings(call, one.tile, device.compute_units):
            seconds = expected.seconds(clocks(device, call, one, slices, well), min(slices, 2), hz(device))
            found.append(Way(seconds, "gemm", one.tile, slices, one))
    return found


def ffma_choice(variant: hopper_fp32.Variant, why: str, passed_over: PassedOver = ()) -> Choice:
    """Hopper's kernel with these parameters."""
    options = ("GROUP", variant.GROUP), ("TURN_A", variant.TURN_A), ("WAIT_AT", variant.WAIT_AT)
    return Choice(FFMA, variant.tile, options, why, passed_over)


def ffma_seconds(device: Device, call: GemmCall) -> float:
    """About how long Hopper's kernel takes, with what writing C adds to what it reckons itself."""
    each = FFMA_RESULT[widths(call)[2] == 4]
    return hopper_fp32.reckoned(call, device.compute_units) + each * call.M * call.N / (device.compute_units * hz(device))


def _ffma(device: Device, call: GemmCall, passed_over: PassedOver) -> Choice:
    """Hopper's kernel with the variant that suits a call."""
    variant = hopper_fp32.choose(call, device.compute_units)
    direct = {"A": hopper_fp32.direct_a(call, variant), "B": hopper_fp32.direct_b(call)}
    laid = [name for name, lies_well in direct.items() if not lies_well]
    why = f"least by the model: the copy engine feeds {device.compute_units} blocks that stay"
    why += f", after a pass that lays out {' and '.join(laid)}" * bool(laid)
    return ffma_choice(variant, why, passed_over)


# a CPU


def _on_cpu(device: Device, call: GemmCall) -> Choice | None:
    """The tunable product with the tile that takes least."""
    weighed = sorted(((*_work(device, call, one.tile), one) for one in candidates(device, call)), key=lambda w: w[0])
    if not weighed:
        return None
    cost, slices, best = weighed[0]
    blocks = math.prod(tile_grid(call, best.tile)) * call.batch
    why = f"least by the model: {blocks * slices} work-groups for {device.compute_units} compute units"
    if slices > 1:
        why += f", the sums cut into {slices} to have that many"
    passed = tuple((f"blas/gemm {one.tile}", f"{other / cost:.2f} times as long by the model") for other, _, one in weighed[1:])
    options = tiled_options(call, best, device, slices)
    return Choice("gemm", _cut(best.tile, slices), tuple(sorted(options.items())), why, passed[:SHOWN])


def _work(device: Device, call: GemmCall, tile: Tile) -> tuple[float, int]:
    """What is computed, edges included, a work-group's worth at least for each core; slices where blocks are too few."""
    blocks = math.prod(tile_grid(call, tile)) * call.batch
    slices = 1
    if blocks < device.compute_units and call.K >= 1024:
        slices = whole_slices(call.K, tile.BK or 1, min(-(-device.compute_units // blocks), call.K // 256))
    waves = -(-blocks * slices // device.compute_units)
    small = 1.0 if tile.TN and tile.TN >= 16 else 3.0  # narrow vectors leave most of a core idle
    return small * waves * tile.BM * tile.BN * sliced(call.K, tile.BK or 1, slices), slices
