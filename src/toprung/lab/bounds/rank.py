"""Seconds that a tile of the tunable product takes, predicted: what orders tiles before any of them is run.

Nothing here is fitted to the speed of a product. What the device does comes from its figures (``toprung probe``); what a kernel
asks for comes from its machine code or, before it is compiled, from its tile (``expected``).

The model is two closed networks of queues, one in the other (Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain
Queuing Networks", JACM 27, 1980), which have no constants of their own. In the inner one the reads of shared memory that the
resident warps have under way (those of one k) go round between the scheduler a warp belongs to and shared memory, which all
schedulers have in common: that gives the pace of a turn of the loop. What is fetched for the next
turn meanwhile holds nobody up as long as the shared cache and memory keep pace. In the outer one the resident blocks are the
customers; they share that pace, and between two turns wait for what nothing hurries: loads, stores, barriers. Where a block has
fewer warps than there are schedulers, its neighbours are those of its own schedulers alone. What a block does before and after its
loop is in there as well, hidden behind its neighbours as far as there are any. Blocks come in waves of as many as are resident;
edges are computed like everything else; slices of K need a second pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import mul
from types import MappingProxyType
from typing import Any

import numpy as np

from toprung.gemm.desc import GemmDesc
from toprung.lab.bounds.banks import BANKS, wavefronts
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.occupancy import REGISTER_UNIT, ROOMS, Room, occupancy, room
from toprung.tile import Tile

WARP = 32
WORD = 4
SECTOR = 32
"""Bytes that the shared cache hands out together."""
LINE = 128
"""Bytes of a line of the L1 cache; an access to global memory takes a turn for each line it shared_accesses."""
MOST_REGISTERS = 255
REMEMBERED = 1 << 15
"""Tiles whose accesses are kept."""
HALVINGS = 24
"""Steps towards the rate of a network: further ones change less than anything is measured to."""

Options = Mapping[str, int]


@dataclass(frozen=True)
class Code:
    """Code that a compiler made of a tile, or is predicted to make.

    Attributes
    ----------
    registers, local_bytes : of a thread; what did not fit the registers lies in ``local_bytes`` of memory
    shared_bytes : of a block
    instructions, multiply_adds, local_accesses : of a turn of the main loop; the last go to ``local_bytes``
    extra_cycles : of a turn of the main loop, that its multiply-adds take to read registers (``Reads.stalls``)
    outside : instructions before and after the loop that are executed
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    instructions: float
    multiply_adds: float
    local_accesses: float
    extra_cycles: float
    outside: float

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Code:
        """Return what ``MachineCode.describe()`` wrote."""
        loop: Mapping[str, int] = described["loop"]
        return cls(
            registers=described["registers"], local_bytes=described["stack_bytes"], shared_bytes=described["shared_bytes"],
            instructions=sum(loop.values()), multiply_adds=loop.get("FFMA", 0),
            local_accesses=sum(n for kind, n in loop.items() if kind.startswith(("LDL", "STL"))),
            extra_cycles=described["register_reads"]["stalls"], outside=described["straight"],
        )  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A device as the model takes it, everything per multiprocessor and clock, or in clocks.

    Attributes
    ----------
    clock : per second
    issue, multiply_adds : instructions of warps
    shared : turns of shared memory
    near, far, near_copy, far_copy : bytes that a multiprocessor's share of the shared cache and of memory reads, and copies
    shared_cache : bytes of that cache
    waits : clocks of a load from ``"shared"``, ``"L1"``, ``"L2"``, ``"memory"``
    latency : clocks of a multiply-add
    barriers : clocks of a barrier, by threads
    starts : clocks from one block to the next where they do nothing, by threads
    launch : seconds
    """

    room: Room
    sms: int
    clock: float
    issue: float
    multiply_adds: float
    shared: float
    near: float
    far: float
    near_copy: float
    far_copy: float
    shared_cache: int
    waits: Mapping[str, float]
    latency: float
    barriers: Mapping[int, float]
    starts: Mapping[int, float]
    launch: float


NEEDED = (
    "sms", "clock_mhz", "issue_per_clock", "ffma_per_clock", "shared_bytes_per_clock", "l2_bytes", "l2_read_bytes_per_s",
    "l2_copy_bytes_per_s", "dram_read_bytes_per_s", "dram_copy_bytes_per_s", "launch_seconds", "latency_clocks",
    "ffma_latency_clocks", "barrier_clocks", "groups_per_clock",
)  # fmt: skip


def machine(figures: Figures) -> Machine | Unknown:
    """A device from its figures; or which of them are missing."""
    if missing := figures.lacking(*NEEDED).missing:
        return Unknown(missing)
    if figures.arch.rstrip("af") not in ROOMS:
        return Unknown((f"the multiprocessor of {figures.arch or figures.name}",))
    f: Any = figures
    share = f.sms * f.clock_mhz * 1e6
    return Machine(
        room=room(f.arch), sms=f.sms, clock=f.clock_mhz * 1e6, issue=f.issue_per_clock, multiply_adds=f.ffma_per_clock / WARP,
        shared=f.shared_bytes_per_clock / (BANKS * WORD),
        near=f.l2_read_bytes_per_s / share, far=f.dram_read_bytes_per_s / share, near_copy=f.l2_copy_bytes_per_s / share,
        far_copy=f.dram_copy_bytes_per_s / share, shared_cache=f.l2_bytes, waits=f.latency_clocks,
        latency=f.ffma_latency_clocks, barriers={int(n): c for n, c in f.barrier_clocks.items()},
        starts={int(n): 1 / c for n, c in f.groups_per_clock.items()}, launch=f.launch_seconds,
    )  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """Prediction of the model for a tile on a product.

    Attributes
    ----------
    seconds : of the whole call
    resident : blocks of a multiprocessor
    blocks : of the fullest multiprocessor
    asks : clocks of a turn of a block by the part of the multiprocessor that it asks for them
    waiting : clocks of a turn in which a block asks for nothing
    """

    seconds: float
    resident: int
    blocks: int
    asks: Mapping[str, float]
    waiting: float

    @property
    def limiter(self) -> str:
        """Resource that an iteration asks most of."""
        return max(self.asks, key=lambda name: self.asks[name])


# what a warp asks for in a turn of the loop: from the tile alone


@dataclass(frozen=True)
class Asked:
    """Accesses of a thread in a turn, and what those of a warp cost.

    Attributes
    ----------
    reads, writes, loads : of shared memory, and of global memory
    read_turns, write_turns : of shared memory, a warp's
    lines, sectors : of global memory that a warp shared_accesses
    """

    reads: int
    writes: int
    loads: int
    read_turns: int
    write_turns: int
    lines: int
    sectors: int


def turns(address: Callable[[int], int], width: int) -> int:
    """Turns of a warp's access to shared memory, ``width`` floats a lane."""
    return wavefronts([address(lane) for lane in range(WARP)], width)


def piece(size: int) -> int:
    """Floats of a thread's pieces along M (VM of the kernel)."""
    return next(w for w in (4, 2, 1) if size % w == 0)


@lru_cache(REMEMBERED)
def _reading(own: int, width: int, lanes: int, other_lanes: int, padded: int, along_n: bool) -> tuple[int, int]:
    """Reads of one operand for one k, and their turns: a thread has ``own`` floats of it."""
    if lanes == 1 and padded % 4 == 0 and own % 4 == 0:
        width = 4  # pieces lie side by side, and the compiler joins them

    def address(lane: int) -> int:
        return (lane % lanes if along_n else lane // other_lanes) * width

    return own // width, own // width * turns(address, width)


@lru_cache(REMEMBERED)
def _fetching(loads: int, width: int, deep: int, across: int, padded: int, threads: int, along: bool) -> tuple[int, int, int, int]:
    """Writes of a thread to shared memory and their turns, lines and sectors of its loads: one operand's share of a tile.

    ``along``: memory runs along the tile's rows, so that vectors are written as they come; otherwise each float by itself.
    """
    side = 1 if along or deep % 4 or loads * width % 4 else 4 // width  # loads of a thread that lie side by side

    def place(lane: int, load: int) -> tuple[int, int]:
        at = (lane + load // side * threads) * side * width + load % side * width
        return (at // across, at % across) if along else (at % deep, at // deep)

    written = lines = sectors = 0
    for load in range(loads):
        places = [place(lane, load) for lane in range(WARP)]

        def address(lane: int, places: list[tuple[int, int]] = places) -> int:
            return places[lane][0] * padded + places[lane][1]

        # the floats of a vector that is taken apart go to rows below each other, which changes no conflict
        written += turns(address, width) if along else width * turns(address, 1)
        runs = [(k, m) if along else (m, k) for k, m in places]
        lines += len({(row, WORD * on // LINE) for row, on in runs})
        sectors += len({(row, WORD * o // SECTOR) for row, on in runs for o in range(on, on + width)})
    return (loads if along else loads * width), written, lines, sectors


@lru_cache(REMEMBERED)
def asked(tile: Tile, trans_a: bool, trans_b: bool) -> Asked:
    """Return what a tile makes a warp ask for."""
    t: Any = tile
    down, across = t.WM // t.TM, t.WN // t.TN
    rows_a, rows_b = t.BM + (t.PADA or 0), t.BN + (t.PADB or 0)
    a = _reading(t.TM, piece(t.TM), down, across, rows_a, False)
    b = _reading(t.TN, t.VEC, across, across, rows_b, True)
    fa = _fetching(t.LA, t.VA, t.BK, t.BM, rows_a, t.work_items, trans_a)
    fb = _fetching(t.LB, t.VB, t.BK, t.BN, rows_b, t.work_items, not trans_b)
    return Asked(
        t.BK * (a[0] + b[0]), fa[0] + fb[0], t.LA + t.LB, t.BK * (a[1] + b[1]), fa[1] + fb[1], fa[2] + fb[2], fa[3] + fb[3]
    )  # fmt: skip


# what a compiler makes of a tile, before it is asked

HELD, HELD_EACH, HELD_COMING, HELD_LOADS = 41.5, 1.23, 0.72, 2.89
"""Registers of a thread that may have as many as it likes: by themselves, for a result, a float and a load on their way."""
TIGHT, TIGHT_EACH, TIGHT_READ = 8, 1.2, 0.25
"""Those it cannot do without in a multiply-add: by themselves, for a result, and for a float read from shared memory."""
BESIDE = 20
"""Those beside its floats, if nothing is to be brought back more than once a turn."""
CONFLICTS, CONFLICTS_SHORT, CONFLICTS_TIGHT, TIGHTEST = 0.055, 0.12, 0.05, 10
"""Extra cycles of a multiply-add: more with short rows that all begin at the left, and more where registers are scarce, in full
where so many are missing."""
OVERHEAD, OVERHEAD_LOAD = 20, 2.4
"""Instructions of a turn beside what the text says: by themselves, for a load."""
OUTSIDE, OUTSIDE_EACH, OUTSIDE_LOAD = 131, 7.6, 27.3
"""Instructions executed outside the loop: by themselves, for a result, for a load."""


def granted(of: Room, threads: int, resident: int) -> int:
    """Registers a thread may have where ``resident`` blocks are asked for (0: as it comes). An impossible wish is not heard."""
    warps = -(-threads // WARP)
    if not resident or resident * threads > of.threads:
        resident = 1
    each = of.registers // of.schedulers // -(-resident * warps // of.schedulers)
    return min(MOST_REGISTERS, each // REGISTER_UNIT * (REGISTER_UNIT // WARP))


def expected(tile: Tile, options: Options, of: Room, trans_a: bool = False, trans_b: bool = False) -> Code:
    """Predict roughly what the compiler will make of a tile.

    The counts of loads, reads and writes are exact. The numbers above were fitted, by least squares, to what NVRTC 13.0 made of 300
    tiles for SM 9.0 (``benchmarks/rank.py code.json --compile-only sm_90 --count 300 --seed 7``); no measurement is in them.
    """
    t: Any = tile
    ask = asked(tile, trans_a, trans_b)
    results, read, coming = t.TM * t.TN, t.TM + t.TN, t.LA * t.VA + t.LB * t.VB
    cap = granted(of, t.work_items, options.get("RESIDENT", 0))
    # what does not fit comes back with every k if it is results, once a turn if it is floats on their way
    hot = max(0.0, TIGHT_EACH * results + TIGHT_READ * read + TIGHT - cap)
    cold = min(coming, max(0.0, results + read + coming + BESIDE - cap - hot))
    local = 2 * min(hot, results) * t.BK + 3 * cold
    free = HELD + HELD_EACH * results + HELD_COMING * coming + HELD_LOADS * ask.loads
    multiply_adds = results * t.BK
    beside = ask.reads + ask.writes + ask.loads + OVERHEAD + OVERHEAD_LOAD * ask.loads
    short = 0 if options.get("ORDER") else CONFLICTS_SHORT / t.TN
    tight = min(1.0, max(0.0, (results + read + coming + BESIDE - cap) / TIGHTEST))
    conflicts = CONFLICTS + short + CONFLICTS_TIGHT * tight
    staged = WORD * (t.STAGES or 1) * t.BK * (t.BM + (t.PADA or 0) + t.BN + (t.PADB or 0))
    return Code(
        registers=cap if hot or cold else min(cap, round(free)), local_bytes=round(WORD * (hot * 2 + cold)), shared_bytes=staged,
        instructions=multiply_adds + local + beside, multiply_adds=multiply_adds, local_accesses=local,
        extra_cycles=conflicts * multiply_adds, outside=OUTSIDE + OUTSIDE_EACH * results + OUTSIDE_LOAD * ask.loads,
    )  # fmt: skip


# seconds


def predict(on: Machine, work: GemmDesc, tile: Tile, options: Options, code: Code | None = None) -> Prediction:
    """Predict how long a tile takes; without ``code``, as it is predicted to be compiled."""
    t: Any = tile
    made = code or expected(tile, options, on.room, work.trans_a, work.trans_b)
    ask, warps, slices = asked(tile, work.trans_a, work.trans_b), -(-tile.work_items // WARP), tile.SPLIT_K or 1
    rounds, fullest = _turns(work, tile), math.ceil(_blocks(work, tile) / on.sms)
    fits = max(1, occupancy(on.room, tile.work_items, made.registers, made.shared_bytes).blocks)
    resident = min(fits, fullest)
    far = _far(on, work, tile, options, fits)
    barriers = (1 if (t.STAGES or 1) > 1 else 2) * interpolated(on.barriers, tile.work_items)

    @cache
    def pace(together: int) -> float:
        """Clocks from one block's turn to the next one's where so many are resident."""
        return _pace(on, made, ask, warps, t.BK or 1, _asks(on, made, ask, warps, together, far), together)

    # the loads of the next turn come while this one computes; then they are written, and everybody must have done so
    writing = warps * ask.write_turns / on.shared
    reading = _asks(on, made, replace(ask, write_turns=0), warps, 1, far)
    chain = max(_pace(on, made, ask, warps, t.BK or 1, reading, 1) + on.waits["shared"], on.waits["L2"])
    chain += writing + barriers + on.waits["shared"]
    outside = interpolated(on.starts, tile.work_items) + made.outside * warps / on.issue + t.BM * t.BN * WORD / on.near_copy

    def neighbours(together: int) -> int:
        """Blocks that have warps on the fullest scheduler."""
        return math.ceil(together * min(warps, on.room.schedulers) / on.room.schedulers)

    def wave(together: int) -> float:
        near = neighbours(together)
        each, before_and_after = pace(together) * together / near, outside * together / near
        waiting = rounds * max(0.0, chain - each) + on.waits["memory"] + on.waits["L2"]
        return near * departures([(rounds * each + before_and_after, 1)], near, waiting)

    whole, rest = divmod(fullest, resident)
    # with so few warps that each of them is needed to fill the pipeline, all resident blocks end together, and those that are left
    # go to whichever multiprocessors are the first to end, in full numbers; with more of them some lag behind and places fall
    # free one by one, all over the device
    in_step = resident * warps <= on.latency * on.room.schedulers
    clocks = whole * wave(resident) + (wave(resident if whole and in_step else rest) if rest else 0.0)
    seconds = on.launch + max(clocks / on.clock, _compulsory(on, work))
    if slices > 1:
        # a second launch reads the results of all slices and writes their sum
        parts = WORD * slices * work.M * work.N * work.batch
        rate = on.near_copy if parts <= on.shared_cache else on.far_copy
        seconds += on.launch + (parts + parts / slices) / (rate * on.sms * on.clock)
    asks = _asks(on, made, ask, warps, resident, far)
    waiting = max(0.0, chain - pace(resident) * resident / neighbours(resident))
    return Prediction(seconds, resident, fullest, MappingProxyType(dict(asks)), waiting)


def bound(on: Machine, work: GemmDesc, tile: Tile, options: Options, code: Code | None = None) -> float:
    """Seconds below which a tile cannot be: what a search discards by.

    Counted is what the tile asks for whatever its compiler does (multiply-adds on the fullest multiprocessor, edges included;
    instructions; turns of shared memory), each at the best rate measured, and what crosses the memory interface once. Nothing
    waits.
    """
    ask, warps = asked(tile, work.trans_a, work.trans_b), -(-tile.work_items // WARP)
    multiply_adds = (tile.TM or 1) * (tile.TN or 1) * (tile.BK or 1)
    local = code.local_accesses if code else 0
    turn = warps * max(
        multiply_adds / on.multiply_adds,
        (multiply_adds + ask.reads + ask.writes + ask.loads + local) / on.issue,
        (ask.read_turns + ask.write_turns + local) / on.shared,
    )  # fmt: skip
    fullest = math.ceil(_blocks(work, tile) / on.sms)
    # a slice may be shorter than the others by a turn or more: what all have together is what counts
    share = math.ceil(work.K / (tile.BK or 1)) / (_turns(work, tile) * (tile.SPLIT_K or 1))
    return max(fullest * _turns(work, tile) * min(1.0, share) * turn / on.clock, _compulsory(on, work))


def departures(stations: Sequence[tuple[float, int]], customers: int, waiting: float = 0.0) -> float:
    """Return the clocks between customers' leaving in a closed network of ``stations``, by exact mean value analysis.

    A station is given by the clocks that a customer asks of it, and how many there are of it; ``waiting``: clocks in which a
    customer asks for nothing.
    """
    demands, counts = zip(*stations, strict=True)
    queues, round_ = [0.0] * len(demands), 0.0
    for n in range(1, customers + 1):
        served = [clocks + clocks * queue for clocks, queue in zip(demands, queues)]  # noqa: B905 (twice as fast)
        round_ = waiting + sum(map(mul, served, counts))
        rate = n / round_
        queues = [rate * one for one in served]
    return round_ / customers


def interleaved(own: float, common: float, classes: int, customers: int, waiting: float = 0.0) -> float:
    """Clocks from one customer's leaving to the next one's, where each class has a station of its own and all have one in common.

    A closed network of classes that are all alike, by the approximation that an arriving customer finds the queues as they are on
    average, less its own share (Schweitzer; Bard, "Some Extensions to Multiclass Queueing Network Analysis", 1979).

    Parameters
    ----------
    own, common : clocks that a customer asks of its class's station, and of the one in common
    classes, customers : classes; customers of each
    waiting : clocks in which a customer asks for nothing
    """
    others, all_others = (customers - 1) / customers, (classes * customers - 1) / customers
    low, high = 0.0, 1 / max(own, classes * common)  # customers a clock: more than there are would have to be about, or fewer
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        of_own, of_common = rate * own, rate * common
        about = of_own / (1 - of_own * others) + of_common / (1 - of_common * all_others) + rate * waiting
        low, high = (low, rate) if about > customers else (rate, high)
    return 2 / (low + high)


def interpolated(points: Mapping[int, float], at: int) -> float:
    """A figure between two that were measured; beyond them the nearest."""
    known = sorted(points)
    return float(np.interp(at, known, [points[n] for n in known]))


def _pace(on: Machine, code: Code, ask: Asked, warps: int, deep: int, asks: Mapping[str, float], resident: int) -> float:
    """Clocks from one block's turn to the next one's: what is computed, or fetched from afar if that takes longer."""
    here = math.ceil(resident * warps / on.room.schedulers)  # a warp belongs to one scheduler: those of the fullest
    used = min(on.room.schedulers, resident * warps)
    own = on.room.schedulers * asks["schedulers"] / warps
    reads = max(1, ask.reads // deep)
    # compilers read shared memory well ahead; for what had to leave the registers there is no room ahead: the whole warp waits
    waiting = reads * code.local_accesses / 2 * on.waits["L1"]
    computed = interleaved(own, asks["shared memory"] / warps, used, here * reads, waiting) * here / resident
    return max(computed, asks["shared cache"], asks["memory"])


def _asks(on: Machine, code: Code, ask: Asked, warps: int, resident: int, far: float) -> Mapping[str, float]:
    """Clocks that a turn of a block asks of each part of a multiprocessor."""
    # while a multiply-add waits for its registers, what is no multiply-add can be issued
    issued = max(code.instructions / on.issue, code.multiply_adds / on.multiply_adds + code.extra_cycles / on.room.schedulers)
    # what does not fit the registers is kept beside shared memory, as far as there is room
    spilled = resident * warps * WARP * code.local_bytes
    room_left = max(0, on.room.shared_bytes - resident * (code.shared_bytes + on.room.reserved_bytes))
    gone = WORD * WARP * warps * code.local_accesses * (1 - min(1.0, room_left / spilled) if spilled else 0.0)
    lost = gone * (1 - min(1.0, on.shared_cache / (spilled * on.sms)) if spilled else 0.0)
    return {
        "schedulers": warps * issued,
        "shared memory": warps * (ask.read_turns + ask.write_turns + ask.lines + code.local_accesses) / on.shared,
        "shared cache": warps * ask.sectors * SECTOR / on.near + gone / on.near_copy,
        "memory": far + lost / on.far_copy,
    }


def _far(on: Machine, work: GemmDesc, tile: Tile, options: Options, fits: int) -> float:
    """Clocks that memory takes for a turn of a block: what a wave of blocks reads is read once and shared by all of them."""
    down, across = -(-work.M // tile.BM), -(-work.N // tile.BN)
    at_once = min(down * across, on.sms * fits)
    high = min(down, options.get("GROUP_M", 1))
    wide = min(across, math.ceil(at_once / high))
    high = min(down, max(high, math.ceil(at_once / wide)))
    return (high * tile.BM + wide * tile.BN) * (tile.BK or 1) * WORD / at_once / on.far


def _blocks(work: GemmDesc, tile: Tile) -> int:
    return -(-work.M // tile.BM) * -(-work.N // tile.BN) * work.batch * (tile.SPLIT_K or 1)


def _turns(work: GemmDesc, tile: Tile) -> int:
    """Turns of the loop of a slice."""
    return math.ceil(math.ceil(work.K / (tile.BK or 1)) / (tile.SPLIT_K or 1))


def _compulsory(on: Machine, work: GemmDesc) -> float:
    """Seconds of memory for operands that no cache holds from one call to the next."""
    needed = WORD * work.batch * (work.M * work.K + work.K * work.N + work.M * work.N)
    return max(0, needed - on.shared_cache) / (on.far * on.sms * on.clock)
