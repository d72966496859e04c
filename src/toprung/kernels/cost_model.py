"""Cost models of a product on a GPU, in cycles: of block kernels, of skinny kernels, and of plain fp32 by any kernel.

The models order candidates and say where a vendor's library is likely to be faster; they are not meant to forecast times.
Their numbers are in ``models/*.json``, each with the records that it was fitted to by ``benchmarks/fit_routes.py``. They count a
device's own cycles on its own number of SMs, so that another device gets an answer of its own, a rougher one.
"""

from __future__ import annotations

import functools
import json
import math
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc, Skinny
from toprung.kernels.split_k import FEW_PARTS
from toprung.tile import Tile

HZ = 1.98e9
"""Cycles a second of a device that does not say: an H200's."""
CACHED = 32 << 20
"""Bytes of K slices that the L2 holds until they are added."""
L2 = 40 << 20
"""Bytes of C up to which it is still in the L2 when the next product reads it: an H200 has 50 MiB."""
THREADS, REGISTERS, MOST_GROUPS = 2048, 1 << 16, 32
"""Threads, registers and work-groups of an SM, at most."""
UNEVEN = 0.5
"""Extra work-groups the busiest SM gets in the last, incomplete wave: the scheduler hands them out first come, first served."""
ADDERS = 8
"""Work-items of the second pass that share an access to C where the parts are more than few (``kernels/add.py``)."""
CLUSTERS: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {
        2: (66, 132, 198, 264), 3: (39, 79, 124, 163), 4: (30, 62, 92, 124), 5: (22, 47, 69, 94), 6: (17, 39, 62, 79),
        7: (15, 32, 47, 69), 8: (15, 30, 45, 62),
    }
)  # fmt: skip
"""Clusters of so many blocks that an H100 runs at once where an SM has room for one block, two, three and four: each lies in one of
its GPCs, which differ. Until there are as many, no SM has a block more (``benchmarks/clusters.py``)."""
OF_SMS = 132
"""SMs of that H100."""
BANKS = 32
"""Banks of the L1, each a float wide; what lies in the same one is read one after the other."""
FUNNEL = 4
"""Power by which the larger of two limits that hide behind each other counts: nearly the maximum."""
SHARPER = 8
"""Power by which the larger limit counts where one large operand is read: some waves make up for the waiting of others."""


def fitted(name: str) -> dict[str, Any]:
    """Return ``models/NAME.json``: a model's numbers, what they were fitted to, and the error on what was held out."""
    found: dict[str, Any] = json.loads(Path(__file__).parent.joinpath("models", f"{name}.json").read_text("utf-8"))
    return found


def model(numbers: Mapping[str, Any]) -> Any:
    """Return a model's numbers as a named tuple; ``means`` in the files explains each."""
    return _kind(*numbers)(**numbers)


@functools.cache
def _kind(*names: str) -> type:
    return namedtuple("Model", names)


BLOCK, VENDOR_BLOCK = (model(fitted(name)["cycles"]) for name in ("blocks", "cublas"))
"""Numbers of the block model: of toprung's kernels, and of cuBLAS's, fitted with substitute tiles."""
HOST = model(fitted("blocks")["host"])
"""Seconds in which a program enqueues a product: the least time per product in a loop."""


class Columns(NamedTuple):
    """Numbers of a tile that the block model reads; or columns of them, for many tiles."""

    BM: Any
    BN: Any
    BK: Any
    WN: Any
    results: Any
    items: Any
    VA: Any
    VB: Any
    VEC: Any

    @classmethod
    def of(cls, t: Tile) -> Columns:
        """Return the numbers of one tile."""
        return cls(t.BM, t.BN, t.BK or 1, t.WN or t.BN, (t.TM or 1) * (t.TN or 1), t.work_items, t.VA or 1, t.VB or 1, t.VEC or 1)


NUMBERS = SimpleNamespace(
    pow=math.pow, sqrt=math.sqrt, max=max, min=min, ceil=math.ceil, floor=math.floor, any=bool,
    where=lambda truth, one, other: one if truth else other,
)  # fmt: skip
COLUMNS = SimpleNamespace(
    pow=np.power, sqrt=np.sqrt, max=np.maximum, min=np.minimum, ceil=np.ceil, floor=np.floor, any=np.ndarray.any, where=np.where,
)  # fmt: skip
"""Functions of the model's arithmetic: NUMBERS for one tile, COLUMNS for arrays of many tiles."""


class Wave(NamedTuple):
    """Cycles of an SM that runs some blocks of a tile at once, for any sizes; or columns of them.

    Attributes
    ----------
    iteration : cycles of one iteration over K
    writing : cycles of writing C
    written : cost of a byte of C or of partial sums, in bytes read
    """

    iteration: Any
    writing: Any
    written: Any


def wave_of(
    trans: str, t: Columns, efficiency: Any, vc: Any, lanes: int, p: Any, regrouped: Any, parts: Any, cluster: Any,
    count: Any, fetch: float,
) -> Wave:  # fmt: skip
    """Return the cycles of ``count`` blocks that an SM runs at once.

    They write partial sums (``parts``) or C; if β is not 0 they read C first, in ``fetch`` cycles per access. The blocks of a
    cluster first exchange their sums; then each writes its share.

    An iteration takes the time of its multiply-adds on the lanes that the work-items fill, at the tile's efficiency, and waits.
    Fewer filled lanes are more efficient; narrow reads of operands take longer. C is written ``vc`` floats at a time, by
    neighbouring lanes side by side where results are ``regrouped``.
    """
    xp = COLUMNS if isinstance(t.BM, np.ndarray) else NUMBERS
    each = 1 / (efficiency * p.layouts.get(trans, 1.0))
    each = each + p.narrow["AT" if trans[0] == "T" else "A"] * (1 / t.VA - 0.25) / t.BN
    each = each + p.narrow["BT" if trans[1] == "T" else "B"] * (1 / t.VB - 0.25) / t.BM
    waiting = p.iteration + p.load * (t.BM * t.BK / t.VA + t.BK * t.BN / t.VB) / t.items
    results = count * (t.BM * t.BN)
    multiplying = results * t.BK / lanes * xp.pow(xp.min(1.0, count * t.items / lanes), p.alone - 1) * each

    pieces = t.VEC / xp.min(vc, t.VEC)
    gaps = xp.where(regrouped, xp.pow(pieces, p.exchanged), pieces)
    ends = 1 + p.short_row * 16 / t.WN
    each_result = p.result * xp.pow(t.results / 32, p.piece) * ends * xp.pow(gaps, p.scattered)
    reading = xp.where(parts, 0.0, fetch)
    writing = (p.store + reading) * (t.results / t.VEC * pieces) + each_result * results
    writing = writing / cluster + (cluster > 1) * (p.meeting + p.passing * results * (1 - 1 / cluster))
    written = p.written * ends * xp.where(parts, 1.0, xp.pow(gaps, p.scattered_memory))
    return Wave(multiplying + waiting, writing, written + (reading > 0))


def block_cycles(
    desc: GemmDesc, tile: Tile, efficiency: float, resident: int, slices: int, vc: int, wide: int, units: int, lanes: int,
    p: Any = BLOCK, regrouped: bool = False, clustered: bool = False,
) -> float:  # fmt: skip
    """Return the cycles of a block kernel, see ``launch_cycles`` and ``wave_of``."""
    t, cluster = Columns.of(tile), slices if clustered else 1
    parts, fetch = slices > cluster, 0.0 if desc.beta_zero else fetch_time(desc, p)

    def wave(count: int) -> Wave:
        return wave_of(desc.trans, t, efficiency, vc, lanes, p, regrouped, parts, cluster, count, fetch)

    def last(left: float) -> Wave:
        return wave(next((n for n in range(1, resident) if places(n, cluster, units) >= left), resident))

    room, groups = places(resident, cluster, units), block_count(desc, tile) * slices
    return float(launch_cycles(desc, desc.K, t, groups, slices, cluster, room, wave(resident), last, wide, units, p))


def fetch_time(desc: GemmDesc, p: Any) -> float:
    """Return a model's ``fetch``, in its unit: the time of one read of C, from the L2 or, if C is too large for it, from memory."""
    return float(p.fetch["L2" if 4 * desc.batch * desc.M * desc.N <= L2 else "memory"])


def launch_cycles(
    desc: GemmDesc, K: Any, t: Columns, groups: Any, slices: Any, cluster: Any, room: Any, full: Wave,
    last: Callable[[Any], Wave], wide: int, units: int, p: Any,
) -> Any:  # fmt: skip
    """Return the cycles of a launch over a depth ``K``; columns of them for columns of tiles.

    The ``groups`` blocks run in ``full`` waves of ``room`` blocks. The last wave has the remaining blocks, spread unevenly over SMs
    if waves came before; ``last`` returns the wave with the fewest blocks per SM that can run them at once. If there are more
    slices than a ``cluster`` adds up, a second pass follows. It takes the time to move the partial results, or to compute addresses
    in C, ``wide`` floats at a time.
    No launch takes less time than memory needs for the operands, or the L2 for the reads of all blocks.
    """
    xp = COLUMNS if isinstance(t.BM, np.ndarray) else NUMBERS
    made = desc.batch * desc.M * desc.N
    iterations = xp.ceil(xp.ceil(K / t.BK) / slices)
    whole = xp.floor(groups / room)
    left = groups - whole * room
    some = left > 0
    left = left + (UNEVEN * units) * (some & (whole > 0))
    rest = last(left)
    total = whole * (iterations * full.iteration + full.writing) + some * (iterations * rest.iteration + rest.writing)
    memory = (4 * desc.batch * (desc.M + desc.N) * K + (4 * made) * full.written) / p.memory
    total = p.launch + _funnel(xp, total, memory, groups * iterations * (t.BK * (t.BM + t.BN)) * (4 / p.cache))
    split = slices > cluster
    if not xp.any(split):
        return total
    parts = (4 * made) * slices
    moving = (2 * parts + (4 if desc.beta_zero else 8) * made) / xp.where(parts <= CACHED, p.slices, p.memory)
    rounds = (p.adding * made / wide / (units * THREADS)) * xp.where(slices > FEW_PARTS, ADDERS, 1)
    waiting = p.turn * xp.max(slices / ADDERS - p.at_once, 0.0)
    return total + split * (p.second + waiting + _funnel(xp, moving, rounds))


def block_count(desc: Desc, block: Any) -> int:
    """Return the number of blocks of C in all matrices; ``block`` has BM and BN, or columns of them."""
    found: int = -(-desc.M // block.BM) * -(-desc.N // block.BN) * desc.batch
    return found


def _funnel(xp: SimpleNamespace, *limits: Any) -> Any:
    """Return a smooth maximum of limits that overlap: the fourth root of the sum of their fourth powers."""
    total = 0.0
    for x in limits:
        square = x * x
        total = total + square * square
    return xp.sqrt(xp.sqrt(total))


def places(each: Any, slices: Any, units: int) -> Any:
    """Return how many blocks run at once in clusters of ``slices`` where an SM has ``each`` of them at most."""
    if isinstance(slices, np.ndarray):
        return places_of(units)[slices.astype(np.intp), each.astype(np.intp)]
    if slices == 1:
        return each * units
    known = CLUSTERS[slices]
    clusters = known[each - 1] if each <= len(known) else known[-1] * each / len(known)
    return clusters * slices * units / OF_SMS


@functools.cache
def places_of(units: int) -> NDArray[Any]:
    """Return ``places`` by slices and blocks of an SM."""
    return np.array(
        [[places(n, s, units) if n and s else 0 for n in range(MOST_GROUPS + 1)] for s in range(max(CLUSTERS) + 1)], float
    )


SKINNY, VENDOR_SKINNY = (
    {kernel: model(of[kernel]) for kernel in ("rows", "columns")} for of in (fitted("skinny"), fitted("skinny")["vendor"])
)
"""Models of the skinny kernels, and of cuBLAS's, for which an earlier kernel with single loads stands."""


class Team(NamedTuple):
    """Numbers of a skinny kernel's work-group that do not depend on the product's sizes; or columns.

    Attributes
    ----------
    BM, down, items, resident : rows or columns, elements of K in an iteration, work-items, work-groups per SM
    busy, ends : cycles that a work-group keeps an SM busy in an iteration, and at its end
    waiting, far : cycles that an iteration waits; further cycles where the large operand is not in the L2
    moved : bytes moved for the large operand, over its size
    flight : bytes in flight of a work-group, over the model's
    meeting : cycles in which the blocks of a cluster exchange their sums
    """

    BM: Any
    down: Any
    items: Any
    resident: Any
    busy: Any
    ends: Any
    waiting: Any
    far: Any
    moved: Any
    flight: Any
    meeting: Any


def team_of(kernel: str, tile: Tile, small: int, on: int, size: int, s: Any) -> Team:
    """Return the numbers of a work-group of the kernel ``rows`` or ``columns``.

    The small operand has ``small`` rows, and stride ``on`` along K; an element of the large operand has ``size`` bytes. The number
    of work-groups per SM follows from registers, about as the compiler allocates them.
    """
    wide, own, items = tile.VEC or tile.VA or 1, tile.TM or 1, tile.work_items
    if kernel == "rows":
        each = (tile.TN or 1) // wide
        at_once, down, reads = own * each, tile.BN, small * each * (1 if (tile.VB or 1) > 1 else wide)
        ends = small * own
        registers = own * each * wide + (38 + small * (own + each * wide) if s.eager else 26 + 3 * own * small // 2)
        lanes = min(tile.DN, BANKS)
        conflicts = max(1, lanes * math.gcd(wide * on, BANKS) // BANKS)
        passes = own * each * (wide + (wide < 4)) + reads * (wide if (tile.VB or 1) > 1 else conflicts)
        together = lanes * wide
    else:
        at_once = tile.KU or 1
        down, reads = tile.DN * at_once, small * at_once
        ends, registers = small * tile.DN, 30 + at_once * wide + 2 * small * wide if s.eager else 12 + small * (wide + 3)
        passes, together = 0, tile.BM
    warps, floats = max(items, 32) / 32, at_once * wide
    resident = int(max(1, min(MOST_GROUPS, THREADS // items, REGISTERS // (warps * 256 * -(-min(128, max(32, registers)) // 8)))))
    busy = (floats * (s.load + small * s.multiply) + (at_once + reads) * s.access) / 4 + passes * s.once
    more = s.narrow * (1 / wide - 0.25) + s.short * max(0.0, 4 * BANKS / together - 1)
    return Team(
        tile.BM, down, items, resident, warps * busy, warps * ends * s.reduce / 4, s.iteration + floats * s.each + reads * s.small,
        s.gone + floats * s.far, 1 + more, s.flight / (size * floats * items),
        s.meeting + s.passing * small * tile.BM / items,
    )  # fmt: skip


def team_cycles(p: Any, t: Team, s: Skinny, slices: Any, cluster: Any, room: Any, units: int) -> Any:
    """Return the cycles of a skinny kernel; a column of them for columns of teams and slices.

    A wave of work-groups is limited by its sub-groups' schedulers and the L1, or by waiting, which is longer for data outside the
    L2. Each wave takes at least the time to read its part of the large operand: a last wave of few work-groups waits as long as a
    full one, and leaves memory idle. The operands are assumed to be those of the call before, as in the measurements. Slices that
    are the blocks of a ``cluster`` exchange sums once, in place of a second launch. ``room`` work-groups run at once.
    """
    xp = COLUMNS if isinstance(t.BM, np.ndarray) else NUMBERS
    iterations = xp.ceil(xp.ceil(s.depth / t.down) / slices)
    groups = xp.ceil(s.length / t.BM) * s.batch * slices
    moved = ELEMENT_BYTES[s.type_large] * s.batch * s.length * s.depth
    missed = 1 / (1 + math.pow(min(p.operand / moved, 4.0), p.sharp))
    reading = moved * ((1 - missed) / p.cached + missed / p.memory) * t.moved / groups
    waiting = iterations * (t.waiting + missed * t.far)

    def wave(count: Any, dealt: Any) -> Any:
        working = count * (iterations * t.busy + t.ends)
        least = p.wave + xp.pow(xp.pow(working, p.hidden) + xp.pow(waiting, p.hidden), 1 / p.hidden)
        return xp.pow(xp.pow(least, SHARPER) + xp.pow(reading * (dealt + t.flight), SHARPER), 1 / SHARPER)

    whole = xp.floor(groups / room)
    left = groups - whole * room
    total = p.launch + whole * wave(xp.min(t.resident, xp.ceil(room / units)), room)
    total = total + (left > 0) * wave(xp.ceil(left / units), left)
    second = p.second + 8 * slices * (s.length * s.few * s.batch) / BLOCK.slices
    return total + (slices > 1) * xp.where(cluster > 1, t.meeting, second)


def room_of(t: Team, cluster: Any, units: int) -> Any:
    """Return how many work-groups run at once in clusters of ``cluster``; at least one cluster does."""
    return (COLUMNS if isinstance(t.BM, np.ndarray) else NUMBERS).max(cluster, places(t.resident, cluster, units))


PLAIN_RATE, PLAIN_START = 51e12, 1e-5
"""Operations a second of the best plain fp32 kernel on an H200, and the seconds it takes beyond them. Fitted to bursts of 512 to
4096 cubed (``benchmarks/hopper.py`` of 32569d8), which they meet within a tenth."""
MEMORY_RATE = 4e12
"""Bytes a second of memory."""


def plain_fp32_seconds(desc: Desc) -> float:
    """Return the seconds that the best plain fp32 kernel takes about, by operations and bytes alone."""
    bytes_ = 4 * (desc.rows_read * desc.depth + desc.result.elements)
    return PLAIN_START + max(desc.flops / PLAIN_RATE, bytes_ / MEMORY_RATE)


def hz(device: Device) -> float:
    """Return the cycles of a device in a second."""
    return 1e6 * device.clock_mhz if device.clock_mhz else HZ


def seconds(clocks: Any, second: Any, hz: float) -> Any:
    """Return the predicted seconds of one of our products, on the device or, if longer, on the host.

    Among products that the host limits, fewer cycles break ties. ``second``: True if there is a second launch.
    """
    device, xp = clocks / hz, COLUMNS if isinstance(clocks, np.ndarray) else NUMBERS
    return xp.max(device, xp.where(second, HOST.two, HOST.launch)) + TIE * device


def group_sizes(descs: Sequence[GemmDesc]) -> NDArray[Any]:
    """Return M, N and K of products, one matrix each, in columns, largest K first."""
    sizes = np.array([(d.M, d.N, d.K) for d in descs], np.int64)
    found: NDArray[Any] = sizes[np.argsort(-sizes[:, 2], kind="stable")].T
    return found


def first_block(sizes: NDArray[Any], block: Any, units: int) -> tuple[NDArray[Any], int]:
    """Return K of the tiles of a group's first block, one per round, and the tiles of the last round.

    Its tiles are the deepest of their rounds, because the products are sorted by K.
    """
    M, N, K = sizes
    ends = np.cumsum(-(-M // block.BM) * -(-N // block.BN))
    rounds = np.arange(0, ends[-1], block.resident * units)
    return K[np.searchsorted(ends, rounds, "right")], int(ends[-1] - rounds[-1])


TIE = 0.02
"""Share of a device's own time that counts where the host is the limit."""
