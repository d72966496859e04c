"""Upper bounds on a kernel's speed, level by level: from its compiled code and its tile, and from what the device can do.

Every level counts what the kernel cannot do without and divides by the rate that the device cannot exceed. The slowest level is the
limiter; its time is the bound. What caches may save is taken as saved, and what several warps may share as shared, so that no
kernel can be faster than its bound if the figures are right. What is not known (a figure, the compiled code) leaves its level
unknown and the bound to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType

from toprung.errors import BadSize
from toprung.lab.bounds.banks import Traffic
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.occupancy import ROOMS, Occupancy, occupancy
from toprung.tile import Tile

WARP = 32
WORD = 4
LINE = 32
"""Floats of a line of memory."""
INSTRUCTION_ROWS, INSTRUCTION_DEPTH = 64, 16
"""Rows of C and elements of K of a warpgroup's matrix instruction; its columns are the tile's."""

CONFLICTS = 0.25
"""Part of the wavefronts from which bank conflicts are what to change."""

ADVICE: Mapping[str, str] = MappingProxyType({
    "Tensor Cores": "nothing in the kernel, whose products fill them: fewer products of terms, or the clock, which power limits.",
    "FFMA lanes": "nothing on these lanes, which multiply in every clock: faster means another algorithm or Tensor Cores.",
    "issue slots": "fewer instructions beside the multiplications: a larger thread tile, wider loads, simpler addresses.",
    "register operands": "another order of the multiplications or another thread tile, so that neighbours share an operand.",
    "dependent sums": "more warps on a multiprocessor, or several independent sums an element: each waits for its own last result.",
    "shared memory": "fewer bytes of shared memory for a multiplication: a larger or squarer thread, warp or block tile.",
    "L1": "fewer wavefronts of global loads: coalesced reads, tiles in shared memory, several elements a thread, wider loads.",
    "L2": "larger blocks, so that each reads less of A and B for what it computes, or blocks that share what they read.",
    "latency": "more loads under way: more work-items or slices, several loads before a use, fewer barriers and sums in turn.",
    "DRAM": "nothing in the kernel: the operands must cross the memory interface once; only a smaller data type or fusion helps.",
    "launch": "fewer launches: a batch, or a graph of them.",
})  # fmt: skip
"""Advice on what would have to change next, by limiter."""


@dataclass(frozen=True)
class TensorWork:
    """Work of a block on Tensor Cores for one of K.

    Attributes
    ----------
    multiply_adds : of fp16 numbers
    shared_bytes : that shared memory takes in and hands out
    fetched_bytes : that come from the L2 cache
    instructions : of single threads, beside those of the main loop; 0: not counted
    """

    multiply_adds: float
    shared_bytes: float
    fetched_bytes: float
    instructions: float = 0.0


def tensor_work(tile: Tile, products: float = 1, terms: int = 1) -> TensorWork:
    """Return the work of ``products`` of fp16 terms, ``terms`` of each operand, that instructions read from shared memory.

    An instruction has 64 rows; each reads its rows of A and all columns of B.
    """
    read = 2 * products * (tile.BM + tile.BM / INSTRUCTION_ROWS * tile.BN)
    fetched = 2 * terms * (tile.BM + tile.BN)
    return TensorWork(products * tile.BM * tile.BN, read + fetched, fetched)


@dataclass(frozen=True)
class VectorWork:
    """Work of y = A·x on the busiest SM, and of the work-group with the longest chain of waits.

    Attributes
    ----------
    wavefronts : of the L1 cache, for A and x
    loads : loads from memory of a work-item of which each waits for the one before
    waits : events that a work-group waits for one after the other: ``FADD``, ``shared``, ``barrier``
    work_items : of a work-group
    lines : of memory that a warp's load of A touches
    """

    wavefronts: float
    loads: float
    waits: Mapping[str, float]
    work_items: int
    lines: int


@dataclass(frozen=True)
class KernelWork:
    """Facts about a kernel on a product C = A·B of M×N×K.

    Attributes
    ----------
    M, N, K, batch : the problem
    min_bytes : bytes that must cross the memory interface once
    tile : None for a kernel without (then only its arithmetic and its compulsory bytes count)
    whole : the kernel computes whole tiles, padding included; otherwise nothing beyond the edges
    even : all SMs have equal shares; otherwise the busiest one has whole blocks
    staged : operands go through shared memory once a block; otherwise each warp loads its own
    loop : instructions of one turn of the main loop by class, as ``machine_code`` counts them; None: unknown
    registers, shared_bytes : of a thread and of a block; None: unknown
    traffic : wavefronts of shared memory in one step over BK, from the subscripts; None: unknown
    cluster : blocks that may get their tiles with one read
    launches : of a call
    tensor : work on Tensor Cores; None for a kernel that multiplies on fp32 lanes
    vector : work of a product with a vector, whose speed is in GB/s; None for others
    useful_flops : operations of the problem, without padding; None: 2·M·N·K
    """

    M: int
    N: int
    K: int
    min_bytes: int
    tile: Tile | None = None
    whole: bool = False
    even: bool = False
    staged: bool = True
    loop: Mapping[str, int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    traffic: Traffic | None = None
    batch: int = 1
    cluster: int = 1
    launches: int = 1
    tensor: TensorWork | None = None
    vector: VectorWork | None = None
    useful_flops: int | None = None

    def __post_init__(self) -> None:
        if min(self.M, self.N, self.K) < 0 or min(self.batch, self.cluster, self.launches) < 1:
            raise BadSize("a bound needs sizes of at least 0, and batch, cluster and launches of at least 1")
        if self.loop is not None:
            object.__setattr__(self, "loop", MappingProxyType(dict(self.loop)))

    @property
    def flops(self) -> int:
        """Operations of the problem: 2·M·N·K for each product of the batch, unless it is said otherwise."""
        return self.useful_flops if self.useful_flops is not None else 2 * self.batch * self.M * self.N * self.K

    @property
    def unit(self) -> str:
        """Unit of its speed."""
        return "GB/s" if self.vector else "GFLOP/s"

    @property
    def multiplications(self) -> int:
        """Multiply-adds of a thread in a turn of the main loop."""
        loop = self.loop or {}
        return loop.get("FFMA", 0) + 2 * loop.get("FFMA2", 0)

    def count(self, *names: str) -> float | None:
        """Instructions of some classes (``LDS``: of every width) for one multiply-add; None without a main loop."""
        own = self.multiplications
        found = sum(n for kind, n in (self.loop or {}).items() if kind.split(".")[0] in names)
        return found / own if own else None


@dataclass(frozen=True)
class Level:
    """One limit.

    Attributes
    ----------
    seconds : that a call takes at least on its account; Unknown where figures are missing
    counted : what was counted, and the rate it was divided by
    """

    name: str
    seconds: float | Unknown
    counted: str


@dataclass(frozen=True)
class Bound:
    """Every level of a kernel on a device, and what follows."""

    work: KernelWork
    levels: tuple[Level, ...] = field(default_factory=tuple)

    @property
    def known(self) -> tuple[Level, ...]:
        """Levels with a number."""
        return tuple(level for level in self.levels if not isinstance(level.seconds, Unknown))

    @property
    def limiter(self) -> Level | None:
        """The slowest; None where nothing is known that takes time."""
        return max((level for level in self.known if _seconds(level) > 0), key=_seconds, default=None)

    @property
    def seconds(self) -> float | Unknown:
        """Least seconds of a call."""
        found, gone = self.limiter, missing(self.levels)
        return found.seconds if found else gone if gone.missing else 0.0

    @property
    def figure(self) -> float | Unknown:
        """Highest speed of a call, in the work's unit."""
        return rate(self.work, self.seconds)

    def beaten(self, seconds: float) -> str:
        """Return which assumption is wrong, where a call took less than the bound allows; empty where it did not."""
        found = self.limiter
        if found is None or seconds >= _seconds(found):
            return ""
        least = f"{rate(self.work, found.seconds):,.0f} {self.work.unit}"
        return (
            f"faster than its bound of {least}: the model is wrong about {found.name} ({found.counted}). "
            "The device does more than the probe saw (toprung probe measures it again), or the kernel needs less"
        )

    @property
    def advice(self) -> str:
        """Advice on what would have to change next, by the limiter."""
        found, traffic = self.limiter, self.work.traffic
        if found and found.name == "shared memory" and traffic and traffic.conflicts > CONFLICTS:
            return (
                f"fewer bank conflicts, {100 * traffic.conflicts:.0f} % of the wavefronts: another layout of the tile, or padding."
            )
        return ADVICE.get(found.name, "") if found else ""


def bound(work: KernelWork, figures: Figures) -> Bound:
    """A kernel's bound on a device."""
    return Bound(work, levels(work, figures))


def rate(work: KernelWork, seconds: float | Unknown) -> float | Unknown:
    """Speed of a call that takes this long, in the work's unit."""
    amount = work.min_bytes if work.vector else work.flops
    return seconds if isinstance(seconds, Unknown) else amount / seconds / 1e9 if seconds else float("inf")


def missing(found: tuple[Level, ...]) -> Unknown:
    """Return what all unknown levels lack together."""
    return Unknown(tuple(dict.fromkeys(m for level in found if isinstance(level.seconds, Unknown) for m in level.seconds.missing)))


def levels(work: KernelWork, figures: Figures) -> tuple[Level, ...]:
    """All levels, from the arithmetic outwards."""
    if work.tensor and work.tile:
        return (
            _tensor(work, figures, work.tensor, work.tile), _issue(work, figures), _fed(work, figures, work.tensor, work.tile),
            _l2(work, figures), _dram(work, figures), _launch(work, figures),
        )  # fmt: skip
    if work.vector:
        return (
            _lanes(work, figures), _wavefronts(work, figures, work.vector), _latency(work, figures, work.vector),
            _dram(work, figures), _launch(work, figures),
        )  # fmt: skip
    return (
        _lanes(work, figures), _issue(work, figures), _operands(work, figures), _sums(work, figures), _shared(work, figures),
        _l1(work, figures), _l2(work, figures), _dram(work, figures), _launch(work, figures),
    )  # fmt: skip


# Shares of the busiest multiprocessor. All that a multiprocessor does is proportional to the elements of C it computes.


def blocks(work: KernelWork) -> int:
    """Work-groups of a call."""
    tile = work.tile
    if tile is None:
        return 0
    return work.batch * ceil(work.M / tile.BM) * ceil(work.N / tile.BN) * (tile.SPLIT_K or 1)


def depth(work: KernelWork) -> int:
    """Steps of K of a work-group."""
    tile = work.tile
    return work.K if tile is None else ceil(work.K / (tile.SPLIT_K or 1))


def busiest(work: KernelWork, sms: int) -> float:
    """Multiply-adds that the busiest multiprocessor does at least: whole blocks where there are any, an even share otherwise."""
    tile = work.tile
    even = work.batch * work.M * work.N * work.K / sms
    if tile is None or work.even or (tile.SPLIT_K or 1) > 1:  # the last slice may be shorter
        return even
    rows, cols, full = _full(work, tile)
    return max(even, ceil(full / sms) * rows * cols * depth(work))


def _full(work: KernelWork, tile: Tile) -> tuple[int, int, int]:
    """Rows and columns of a block, and how many blocks have all of them: what lies beyond the edges need not be computed."""
    if work.whole:
        return tile.BM, tile.BN, blocks(work)
    rows, cols = max(1, min(tile.BM, work.M)), max(1, min(tile.BN, work.N))
    return rows, cols, work.batch * (work.M // rows) * (work.N // cols) * (tile.SPLIT_K or 1)


def held(work: KernelWork, figures: Figures) -> Occupancy | None:
    """Return what a multiprocessor holds at once; None where its room or the kernel's needs are unknown."""
    of, sized = ROOMS.get(figures.arch.rstrip("af")), work.tile or work.vector
    if of is None or sized is None or work.registers is None:
        return None
    return occupancy(of, sized.work_items, work.registers, work.shared_bytes or 0)


def resident(work: KernelWork, figures: Figures) -> int | None:
    """Blocks that a multiprocessor holds at once; None where its room or the kernel's needs are unknown."""
    return None if (found := held(work, figures)) is None else max(1, found.blocks)


def _per_sm(work: KernelWork, figures: Figures, name: str, each: float, what: str, of: str | float, unit: str) -> Level:
    """Return the level of a resource that each SM has for itself.

    ``each``: units that one multiply-add of one thread takes. ``of``: units per clock and SM, or the name of that figure.
    """
    sms, clock = figures.sms, figures.clock_mhz
    per_clock = getattr(figures, of) if isinstance(of, str) else of
    if sms is None or clock is None or per_clock is None:
        return Level(name, figures.lacking("sms", "clock_mhz", *([of] if isinstance(of, str) else [])), what)
    seconds = busiest(work, sms) * each / (per_clock * clock * 1e6)
    return Level(name, seconds, f"{what}; {unit} a clock and SM: {per_clock:.4g}")


CODE = Unknown(("the compiled code's main loop",))


def _lanes(work: KernelWork, figures: Figures) -> Level:
    return _per_sm(work, figures, "FFMA lanes", 1.0, "one lane a multiply-add", "ffma_per_clock", "FFMA")


def _tensor(work: KernelWork, figures: Figures, asks: TensorWork, tile: Tile) -> Level:
    each = asks.multiply_adds / (tile.BM * tile.BN)
    what = f"{each:.3g} multiply-adds of fp16 numbers for each of the product"
    return _per_sm(work, figures, "Tensor Cores", each, what, "tensor_per_clock", "multiply-adds")


def _fed(work: KernelWork, figures: Figures, asks: TensorWork, tile: Tile) -> Level:
    """Shared memory of a block whose Tensor Cores read from it what TMA writes there."""
    each = asks.shared_bytes / (tile.BM * tile.BN)
    what = f"{each:.3g} bytes a multiply-add, written and read"
    return _per_sm(work, figures, "shared memory", each, what, "shared_bytes_per_clock", "bytes")


def _wavefronts(work: KernelWork, figures: Figures, asks: VectorWork) -> Level:
    """Wavefronts of loads from global memory on the busiest SM: lanes that are rows apart meet in a bank of the L1 cache."""
    sms, clock, known = figures.sms, figures.clock_mhz, figures.l1_bytes_per_clock or figures.shared_bytes_per_clock
    what = f"{asks.wavefronts:,.0f} wavefronts of loads on the busiest SM"
    if work.loop is None:  # no NVIDIA GPU, or a compiler whose code is not read
        return Level("L1", CODE, "wavefronts of loads")
    if sms is None or clock is None or known is None:
        return Level("L1", figures.lacking("sms", "clock_mhz", "l1_bytes_per_clock"), what)
    per_clock = max(known, figures.shared_bytes_per_clock or 0.0) / (WORD * WARP)
    return Level("L1", asks.wavefronts / (per_clock * clock * 1e6), f"{what}; wavefronts a clock: {per_clock:.4g}")


def _latency(work: KernelWork, figures: Figures, asks: VectorWork) -> Level:
    """Chain of loads and sums of a work-group, each of which waits for the one before."""
    if work.loop is None:
        return Level("latency", CODE, "loads in turn")
    clock, sum_clocks, cache = figures.clock_mhz, figures.ffma_latency_clocks, figures.l2_bytes
    if clock is None or sum_clocks is None or cache is None or {"shared", "L2", "memory"} - set(figures.latency_clocks):
        return Level("latency", figures.lacking("clock_mhz", "ffma_latency_clocks", "latency_clocks", "l2_bytes"), "loads in turn")
    near, far = figures.latency_clocks["L2"], figures.latency_clocks["memory"]
    load = near + (far - near) * max(0.0, 1 - cache / work.min_bytes)  # what the last cache may have kept comes sooner
    barriers = {int(n): clocks for n, clocks in figures.barrier_clocks.items() if int(n) <= asks.work_items}
    of = {"FADD": sum_clocks, "shared": figures.latency_clocks["shared"], "barrier": barriers[max(barriers)] if barriers else 0.0}
    clocks = asks.loads * load + sum(n * of[event] for event, n in asks.waits.items())
    said = "".join(f", {n:,.0f} × {event}" for event, n in asks.waits.items())
    return Level(
        "latency", clocks / (clock * 1e6), f"{asks.loads:,.0f} loads of {load:.0f} clocks{said}, each after the one before"
    )


def _issue(work: KernelWork, figures: Figures) -> Level:
    own: float = work.multiplications
    if (asks := work.tensor) and work.tile:  # four warps share a matrix instruction
        block = work.tile.BM * work.tile.BN
        whole = INSTRUCTION_ROWS * INSTRUCTION_DEPTH * work.tile.BN * block / asks.multiply_adds
        own = (work.loop or {}).get("HGMMA", 0) * whole / (4 * WARP)
    each = sum((work.loop or {}).values()) / own if own else None
    if each is not None and asks and work.tile:
        each = max(each, asks.instructions / block)
    if each is None:
        return Level("issue slots", CODE, "instructions of the main loop")
    what = f"{each:.3f} instructions a multiply-add"
    return _per_sm(work, figures, "issue slots", each / WARP, what, "issue_per_clock", "instructions of a warp")


def _operands(work: KernelWork, figures: Figures) -> Level:
    """The best rate that was measured for the thread tile, multiplying out of registers and nothing else."""
    tile = work.tile
    if tile is None:
        return Level("register operands", Unknown(("a thread tile",)), "outer products out of registers")
    shape = f"{tile.TM or 1}x{tile.TN or 1}"
    known = {order: r for order, r in figures.ffma_outer_per_clock.items() if order.split()[0] == shape}
    what = f"outer products of {shape.replace('x', '×')} out of registers"
    if not known:
        return Level("register operands", Unknown((f"ffma_outer_per_clock of {shape}",)), what)
    best = max(known, key=lambda order: known[order])
    return _per_sm(work, figures, "register operands", 1.0, f"{what}, {best.split(maxsplit=1)[-1]}", known[best], "FFMA")


def _sums(work: KernelWork, figures: Figures) -> Level:
    """Each element's multiply-adds wait for one another, and blocks that find no room for the blocks before them."""
    latency, clock, at_once, sms = figures.ffma_latency_clocks, figures.clock_mhz, resident(work, figures), figures.sms
    what = "the chain of multiply-adds of an element"
    if work.tile is None or latency is None or clock is None or at_once is None or sms is None:
        gone = figures.lacking("ffma_latency_clocks", "clock_mhz", "sms").missing
        return Level("dependent sums", Unknown(gone + ("registers of the kernel",) * (at_once is None)), what)
    waves = blocks(work) / (sms * at_once)
    turns = waves if work.even else ceil(waves)
    seconds = turns * depth(work) * latency / (clock * 1e6)
    return Level("dependent sums", seconds, f"{what}, {latency:.3g} clocks each; {at_once} blocks an SM at once, {turns:.4g} waves")


def warp_tile(tile: Tile) -> tuple[int, int]:
    """Rows and columns of C of a warp; where the tile does not say, its lanes lie along N as far as the block goes."""
    if tile.WM and tile.WN:
        return tile.WM, tile.WN
    along = min(WARP, tile.DN)
    return (tile.TM or 1) * max(1, min(tile.DM, WARP // along)), (tile.TN or 1) * along


def _shared(work: KernelWork, figures: Figures) -> Level:
    """Wavefronts of shared memory: a load or a store takes one at least, and none hands out more than its bytes."""
    name = "shared memory"
    if work.tile is None or not work.staged:
        return Level(name, 0.0, "nothing goes through it")
    turns = work.count("LDS", "STS")
    loads = work.count("LDS")
    if turns is None or loads is None:
        return Level(name, CODE, "loads and stores of the main loop")
    rate_of, per_clock = figures.lds_per_clock.get("32"), figures.shared_bytes_per_clock
    if per_clock is None:
        return Level(name, figures.lacking("shared_bytes_per_clock"), "loads and stores of the main loop")
    full = max(rate_of or 0.0, per_clock / (WORD * WARP))  # wavefronts a clock
    if (found := work.traffic) is not None:  # wavefronts of a warp for one multiply-add of each of its threads
        each = (found.load_wavefronts + found.store_wavefronts) / step(work.tile)
        meet = f"{100 * found.conflicts:.0f} % of them" if found.conflicts else "none"
        what = f"{each:.3f} wavefronts a multiply-add, {meet} bank conflicts"
        return _per_sm(work, figures, name, each / WARP, what, full, "wavefronts")
    rows, cols = warp_tile(work.tile)
    # different floats that a warp needs of A and B for its rows·cols multiply-adds of one k: a wavefront brings 32 at most
    least = (rows + cols) / (rows * cols) if loads else 0.0
    what = f"{turns:.3f} loads and stores a multiply-add" if turns >= least else f"{least:.3f} floats a multiply-add"
    return _per_sm(work, figures, name, max(turns, least) / WARP, f"{what}, bank conflicts not counted", full, "wavefronts")


def step(tile: Tile) -> int:
    """Multiply-adds of a work-item in one step over BK."""
    return (tile.TM or 1) * (tile.TN or 1) * (tile.BK or 1)


def _l1(work: KernelWork, figures: Figures) -> Level:
    """Loads from global memory: a wavefront at least each, and as many as the floats that must come need at 32 a wavefront."""
    loads = work.count("LDG", "LD", "LDGSTS")
    what = "loads from global memory in the main loop"
    if work.tile is None:
        return Level("L1", Unknown(("a tile",)), what)
    if loads is None:
        return Level("L1", CODE, what)
    known = [r for r in (figures.l1_bytes_per_clock, figures.shared_bytes_per_clock) if r is not None]  # one array of memory
    if not known:
        return Level("L1", figures.lacking("l1_bytes_per_clock", "shared_bytes_per_clock"), what)
    rows, cols = (work.tile.BM, work.tile.BN) if work.staged else warp_tile(work.tile)
    least = (rows + cols) / (rows * cols) if loads else 0.0  # floats that a block, or without shared memory a warp, must get
    counted = f"{loads:.4f} loads a multiply-add" if loads >= least else f"{least:.4f} floats a multiply-add"
    return _per_sm(work, figures, "L1", max(loads, least) / WARP, counted, max(known) / (WORD * WARP), "wavefronts")


def _l2(work: KernelWork, figures: Figures) -> Level:
    """Each block's rows of A and columns of B once; blocks that run together on a multiprocessor or in a cluster may share them."""
    tile, speed = work.tile, figures.l2_read_bytes_per_s
    what = "tiles that blocks read"
    at_once = resident(work, figures)
    if tile is None or speed is None or at_once is None:
        gone = figures.lacking("l2_read_bytes_per_s").missing + ("registers of the kernel",) * (at_once is None)
        return Level("L2", Unknown(gone), what)
    together = at_once * work.cluster
    # r × c blocks side by side read r·BM rows and c·BN columns: the least over all ways to lay them
    ways = [(r, -(-together // r)) for r in range(1, together + 1)]
    rows, cols, full = _full(work, tile)
    least = min((r * rows + c * cols) / (r * c) for r, c in ways)
    each = work.tensor.fetched_bytes / (tile.BM + tile.BN) if work.tensor else WORD
    bytes_read = full * least * (work.K // (tile.SPLIT_K or 1)) * each
    return Level("L2", bytes_read / speed, f"{bytes_read / 1e9:.4g} GB of {what}, {speed / 1e9:,.0f} GB/s")


def _dram(work: KernelWork, figures: Figures) -> Level:
    """Return the bytes that must cross the memory interface: all but what L2 may have kept since the last call."""
    rates = (figures.dram_bytes_per_s, figures.dram_read_bytes_per_s, figures.dram_copy_bytes_per_s)
    known = [r for r in rates if r is not None]
    what = "each operand once"
    if not known or figures.l2_bytes is None:
        gone = () if known else ("dram_read_bytes_per_s",)
        return Level("DRAM", Unknown(gone + figures.lacking("l2_bytes").missing), what)
    needed = max(0, work.min_bytes - figures.l2_bytes)
    counted = f"{needed / 1e9:.4g} GB: {what}, less the {figures.l2_bytes / 2**20:.0f} MiB that the last cache may have kept"
    return Level("DRAM", needed / max(known), f"{counted}, {max(known) / 1e9:,.0f} GB/s")


def _launch(work: KernelWork, figures: Figures) -> Level:
    each = figures.launch_seconds
    if each is None:
        return Level("launch", figures.lacking("launch_seconds"), "launches of a call")
    return Level("launch", work.launches * each, f"{work.launches} a call, {1e6 * each:.3g} µs each")


def _seconds(level: Level) -> float:
    return 0.0 if isinstance(level.seconds, Unknown) else level.seconds
