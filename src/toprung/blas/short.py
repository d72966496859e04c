"""Products with a short side, and vectors: which teams and slices of K ``rows`` and ``columns`` may take for a call, and how long
each takes about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from toprung.blas import expected
from toprung.blas.call import Call, GemmCall, GemvCall, widest
from toprung.blas.choice import Choice, PassedOver, Way
from toprung.blas.kernel import kernel, legal
from toprung.blas.kernels.rows import SMALL
from toprung.blas.slices import LEAST_TURNS, cut, whole_slices
from toprung.device import Device
from toprung.tile import Tile, broken

FEW = 16
"""A side no longer than this makes a product skinny."""
SHORTEST = 32
"""Elements along K from which on a team shares a row: its lanes."""

TEAMS: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "rows": ({"ITEMS": 256, "TEAM": 32, "TM": 4}, {"ITEMS": 128, "TEAM": 32, "TM": 1}),
    "columns": ({"ACROSS": 32, "DN": 4, "TN": 16, "KU": 4}, {"ACROSS": 32, "DN": 8, "TN": 32, "KU": 8}),
}
"""Work-groups that are weighed on a GPU: ``ITEMS`` in teams that share TM rows; ``ACROSS`` work-items side by side."""
SHORT_WAVES = (0.5, 1.0, 2.0, 4.0)
"""Slices give each multiprocessor so many times as many work-items as it holds."""

MOST_SLICES = 256


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


def short_sides(device: Device, call: Call, well: bool) -> list[Way]:
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
        if not legal(stem, tile, tuple(sorted(options.items())), device):
            continue
        blocks = -(-s.length // tile.BM) * batch
        at_once = max(1, expected.THREADS // tile.work_items) * device.compute_units
        wanted = {1, *(round(waves * at_once / blocks) for waves in SHORT_WAVES)}
        most = min(s.depth // (LEAST_TURNS * turn(tile)), MOST_SLICES)
        for slices in sorted({whole_slices(s.depth, turn(tile), max(1, min(n, most))) for n in wanted}):
            cost = expected.short_side(stem, tile, s.length, s.few, small, s.depth, s.on, batch, slices, device.compute_units)
            seconds = expected.seconds(cost, min(slices, 2), expected.hz(device))
            found.append(Way(seconds, stem, tile, slices))
    return found


def short_choice(device: Device, call: Call, tile: Tile, slices: int, passed_over: PassedOver = ()) -> Choice:
    """A tile of the kernels for short sides as a choice."""
    s = Skinny.of(call)
    found = kernel("rows" if s.by_rows else "columns")
    options = found.options(device, {"SMALL": next(n for n in SMALL if n >= s.few)})
    blocks = -(-s.length // tile.BM) * (call.batch if isinstance(call, GemmCall) else 1)
    why = f"one side is {s.few}: memory is the limit, and the large operand is read once"
    if slices > 1:
        why += f"; {blocks} work-groups are too few for {device.compute_units} compute units, so sums are cut into {slices}"
    return Choice(found.stem, cut(tile, slices), tuple(sorted(options.items())), why, passed_over)


def short_on_cpu(device: Device, call: Call) -> Choice | None:
    """On a CPU: the kernel's own tile, and as many slices as give every core something to do: more cost more than they even out."""
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
    wanted = min(round(device.compute_units / blocks), s.depth // (LEAST_TURNS * turn(tile)), MOST_SLICES)
    slices = whole_slices(s.depth, turn(tile), max(1, wanted))
    return short_choice(device, call, tile, slices)
