"""Plain fp32 products on Hopper: fused multiply-adds alone, operands through the copy engine. A call → launches.

The product wants A as K×M and B as K×N, on 16 bytes. An operand that lies otherwise goes through a layout pass first, into a
workspace; one launch lays out both. The product's blocks stay, each with its share of the tiles; where tiles do not fill whole
waves, some are cut along K and their parts added in a fixed order, so that results repeat to the bit. Long sums are computed in
chains, a launch each, where cuBLAS cuts them, too: errors are as small as its, and the loop is the same. The workspace is the
session's for a stream and serves all plans there in turn.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Buffer, Kernel, Session, Source
from toprung.backends.overlap import Overlapping
from toprung.build import with_includes
from toprung.device import Device
from toprung.errors import BadArgument, Unsupported
from toprung.hopper import Call, ceil
from toprung.hopper.kernels import _kernel
from toprung.hopper.launches import _address, _narrow
from toprung.hopper.sizes import _whole
from toprung.ladders.hopper_fp32.r05_loads_in_order import ring
from toprung.tile import Tile

FOLDER = Path(__file__).parent / "ladders" / "hopper_fp32"
DEEPEST = 1 << 24
"""Largest K: a share's stages are counted with 31 bits."""
LIMIT = 4 << 30
"""Bytes of operands laid out at a time beyond which a call is cut into panels of M and N."""
LAY_THREADS = 256
LAY_SIDE = 64
"""Elements of a side of what a block of the layout pass takes."""


@dataclass(frozen=True)
class Variant:
    """Free parameters of the product's kernel: a block of eight warps of 64 × 64 and a warpgroup that fetches.

    Attributes
    ----------
    BM, BN : of C, that a block owns at a time
    BK : of K, in a stage of the ring; even, the loop over it is unrolled and must fit the instruction cache
    STAGES : of the ring
    WAIT_AT : the k in a stage before which the next stage is waited for
    GROUP : rows of tiles that are walked together
    TURN_A : 1: A is stored M×K, on 16 bytes, and turned in shared memory stage by stage, not by a pass beforehand
    """

    BM: int = 128
    BN: int = 256
    BK: int = 14
    STAGES: int = 5
    WAIT_AT: int = 7
    GROUP: int = 8
    TURN_A: int = 0

    @property
    def shared_bytes(self) -> int:
        """The ring, and A's stages before they are turned."""
        return ring(self.tile) + self.TURN_A * self.STAGES * 4 * self.BM * self.BK

    @property
    def tile(self) -> Tile:
        """As a rung's, or a choice's."""
        return Tile(BM=self.BM, BN=self.BN, BK=self.BK, TM=8, TN=16, STAGES=self.STAGES)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.BM * self.BN // 128 + 128

    def refused(self) -> str:
        """Why there is no such kernel, empty where there is."""
        if self.BM % 64 or self.BN % 64 or self.BM * self.BN != 8 * 64 * 64:
            return "a block is eight warps of 64 × 64: more do not have the registers they were compiled for"
        if self.BK % 2 or not 0 <= self.WAIT_AT < self.BK:
            return "fragments alternate between two sets of registers, and the wait stands within a stage"
        if self.TURN_A and self.BK != 12:
            return "what turns A meets no bank of shared memory twice where a stage is 12 deep, and only there"
        if self.TURN_A and self.BM % 128:
            return "what turns A takes 128 rows at a time"
        if self.STAGES < 2 or self.shared_bytes > 227 * 1024:
            return f"{self.STAGES} stages are {self.shared_bytes:,} bytes of shared memory: from 2 stages to {227 * 1024:,} bytes"
        return ""

    def defines(self, **more: int) -> dict[str, int]:
        """As macros; with ``ROWS`` of the kernel that adds to C."""
        pad = (ADDING_PADS if more.get("ROWS") else PADS).get((self.BM, self.BK), 0)
        return {"ARCH_SPECIFIC": 1, "IN_ORDER": 1, "APART": 1, "PAD": pad, **asdict(self), **more}

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}x{self.BK} S{self.STAGES} W{self.WAIT_AT} G{self.GROUP}" + " turns A" * self.TURN_A


PADS = {(64, 14): 6, (256, 14): 2, (512, 14): 2, (512, 12): 2}
"""Instructions in front of the main loop, by BM and BK, which move it within a line of 128 bytes, as NVRTC 13.0 compiles the
kernel: for BM = 128, where none are needed, and 64 to where it was the fastest of eight places; else to where it was measured."""
ADDING_PADS = {(128, 14): 7}
"""The same of the kernel that adds to C, whose loop has other registers; of others no place was better."""
ADDED_ROWS = 2
"""Rows of C that this kernel fetches together. Its loop takes up to a hundredth longer than that of the kernel that only writes."""
FIRST = Variant()
VARIANTS = (
    FIRST,
    Variant(256, 128),
    Variant(512, 64, GROUP=4),
    Variant(64, 512, GROUP=16),
    Variant(512, 64, BK=12, STAGES=4, WAIT_AT=11, GROUP=4, TURN_A=1),
)
"""Block shapes that are weighed."""

RATE = 58.7e12 / 132
"""Operations a second of a multiprocessor in the main loop: of a product of 8192 cubed on an H200, at the clock it keeps there.

This and what follows come from one shape and one layout (TN) and were not fitted since: ``fp32-sustained.json`` and
``fp32-shapes.json`` of results/nvidia-h200 hold what they reckon beside what was measured."""
START = 8e-6
"""Seconds of a launch, before its first product and after its last."""
TILE = 2e-6
"""Seconds in which a multiprocessor writes a tile."""
PART = 3e-6
"""Seconds in which it adds a part that another left."""
LAY_RATE = 4e12
"""Bytes a second of the layout pass, what it reads and what it writes."""
LAY_START = 4e-6
"""Seconds of the layout pass's launch."""
BROAD = 32
"""Waves of tiles from which on a wave is as high as it is wide: a fifth less is fetched from memory, which takes less power. With
half as many it changes nothing, with an eighth it is slower."""
MEMORY_RATE = 4e12
"""Bytes a second of memory."""
TURNING = 1.1
"""Times as long as without: a product that turns A."""
CHAINED = 5e-6
"""Seconds that a tile takes longer where it is added to what C has: 2 to 9 µs by ``chains-rows.json`` of results/nvidia-h200."""
CHAIN, SHORT_CHAIN, MOST_CHAINS = 1536, 750, 4
"""Elements of K that a chain has at least, where no operand is laid out and where tiles leave waves unfilled; and how many chains
there may be. ``library.json`` and ``fp32-list.json`` of results/nvidia-h200 show cuBLAS's errors, of sums cut into two to four
there, and of uncut ones elsewhere."""
FILLED = 0.8
"""Share of the multiprocessors that waves of tiles occupy, from which on they are called filled."""


def supported(device: Device, call: Call) -> str:
    """Why a call cannot be computed this way, as a sentence; empty where it can."""
    if device.backend != "cuda" or device.arch != "sm_90":
        return f"its copy engine and its exchange of registers are Hopper's, and this is {device}"
    if call.batch != 1:
        return "it computes one product at a time"
    if not (call.M and call.N and call.K):
        return "the product is empty"
    if call.K > DEEPEST:
        return f"K is {call.K:,}, more than {DEEPEST:,}"
    return ""


class Schedule(NamedTuple):
    """How tiles are dealt out.

    Attributes
    ----------
    grid : blocks
    shared : tiles that are cut along K over all of them; the rest are dealt out whole
    """

    grid: int
    shared: int


def tiles_of(call: Call, variant: Variant) -> int:
    """Tiles of C."""
    return ceil(call.M, variant.BM) * ceil(call.N, variant.BN)


def schedules(call: Call, variant: Variant, units: int) -> list[Schedule]:
    """What is weighed: whole tiles alone, or what does not fill whole waves cut evenly over all blocks."""
    tiles, chunks = tiles_of(call, variant), ceil(call.K, variant.BK)
    found = [Schedule(min(units, tiles), 0)]
    if tiles > units and tiles % units:
        found.append(Schedule(units, tiles % units + units))
    elif tiles < units:
        grids = {min(tiles * n, units) for n in range(2, ceil(units, tiles) + 1)}
        found += [Schedule(grid, tiles) for grid in sorted(grids) if grid <= tiles * chunks]
    return found


def chains_of(call: Call, variant: Variant, units: int) -> int:
    """Into how many launches, one after the other, sums are cut so that errors are no larger than cuBLAS's.

    A sum of K terms in one go is off by about √K roundings of its last terms, in n chains by √(K/n). What it costs: a launch and
    another pass over C each. A tile that is cut for several multiprocessors has as many chains at once.
    """
    tiles = tiles_of(call, variant)
    filled = tiles / (ceil(tiles, units) * units) >= FILLED
    if filled and not (direct_a(call) and direct_b(call)):
        return 1
    wanted = min(MOST_CHAINS, call.K // (CHAIN if filled else SHORT_CHAIN))
    return max(1, ceil(wanted * tiles, max(units, tiles)))


def links(K: int, count: int, step: int) -> list[tuple[int, int]]:
    """First element and length of each chain: whole stages but for the last."""
    each = ceil(ceil(K, step), count) * step
    return [(k, min(each, K - k)) for k in range(0, K, each)]


def schedule_time(call: Call, variant: Variant, schedule: Schedule) -> float:
    """Seconds that the fullest block takes."""
    tiles, chunks = tiles_of(call, variant), ceil(call.K, variant.BK)
    grid, shared = schedule
    whole = ceil(tiles - shared, grid)
    mine = ceil(shared * chunks, grid) + whole * chunks
    parts = ceil(grid, shared) if shared else 0  # of a tile: one is written and the others are added
    each = 2.0 * variant.BM * variant.BN * variant.BK / RATE
    return mine * each + (whole + ceil(shared, grid)) * TILE + parts * PART


def schedule(call: Call, variant: Variant, units: int) -> Schedule:
    """What is done first."""
    return min(schedules(call, variant, units), key=lambda s: schedule_time(call, variant, s))


def product_time(call: Call, variant: Variant, units: int) -> float:
    """Seconds of the product's launches."""
    moved, added = 4 * (call.M * call.K + call.K * call.N + call.M * call.N), ceil(tiles_of(call, variant), units) * CHAINED
    cut = links(call.K, chains_of(call, variant, units), variant.BK)
    pieces: list[Any] = [_Part(call.M, call.N, depth) for _, depth in cut]
    time = sum(schedule_time(piece, variant, schedule(piece, variant, units)) for piece in pieces)
    return len(cut) * START + (len(cut) - 1) * added + max(time, moved / MEMORY_RATE)


def choose(call: Call, units: int) -> Variant:
    """The block's shape with which all is done first; very large products are walked in bands twice as high."""
    found = min((v for v in VARIANTS if not unfit(call, v)), key=lambda v: reckoned(call, units, v))
    return replace(found, GROUP=2 * found.GROUP) if found == FIRST and tiles_of(call, found) > BROAD * units else found


def reckoned(call: Call, units: int, variant: Variant | None = None) -> float:
    """Seconds that a call takes about, the layout pass included."""
    variant = variant or choose(call, units)
    laid = 8.0 * call.K * ((0 if direct_a(call, variant) else call.M) + (0 if direct_b(call) else call.N))
    time = product_time(call, variant, units) * (TURNING if variant.TURN_A else 1.0)
    return time + (LAY_START + laid / LAY_RATE if laid else 0.0)


def direct_a(call: Call, variant: Variant = FIRST) -> bool:
    """Whether A is read where it lies: every row on 16 bytes, and K×M, or M×K where the product turns it."""
    long_enough = call.trans_a and call.lda >= call.M and not variant.TURN_A
    turned = variant.TURN_A and not call.trans_a and call.lda >= call.K
    return bool((long_enough or turned) and call.lda % 4 == 0 and getattr(call, "align_a", 4) == 4)


def unfit(call: Call, variant: Variant) -> str:
    """Why a variant cannot compute a call, empty where it can."""
    return "it turns A, which must be M×K on 16 bytes" if variant.TURN_A and not direct_a(call, variant) else ""


def direct_b(call: Call) -> bool:
    """Whether B is."""
    return not call.trans_b and call.ldb % 4 == 0 and call.ldb >= call.N and getattr(call, "align_b", 4) == 4


def product_source(variant: Variant, **more: int) -> Source:
    """The product's kernel."""
    text = "".join(f'#include "{name}"\n' for name in ("../hopper/hopper.cuh", "ffma.cuh", "share.cuh", "turn.cuh", "ffma.cu"))
    defines = {**variant.defines(**more), DYNAMIC_SHARED: variant.shared_bytes}
    return Source("hopper_fp32/ffma", with_includes(text, FOLDER), "ffma", defines, "cuda")


def lay_source() -> Source:
    """The layout pass."""
    text = '#include "../hopper/hopper.cuh"\n#include "lay.cu"\n'
    return Source("hopper_fp32/lay", with_includes(text, FOLDER), "lay", {"ARCH_SPECIFIC": 1}, "cuda")


def pitch(rows: int) -> int:
    """Elements from one k to the next of an operand laid out."""
    return ceil(rows, 4) * 4


def laid_bytes(rows: int, K: int) -> int:
    """Of an operand laid out, from 256 bytes on."""
    return _whole(4 * K * pitch(rows))


@dataclass(frozen=True)
class Panel:
    """A piece of a call: rows from m, columns from n.

    Attributes
    ----------
    lay_a, lay_b : whether the operand is laid out for it; else it lies well as it is, or in the workspace since the piece before
    """

    m: int
    rows: int
    n: int
    cols: int
    lay_a: bool
    lay_b: bool


def panels(call: Call, limit: int = LIMIT, variant: Variant = FIRST) -> list[Panel]:
    """The pieces of a call whose operands, laid out, need no more than ``limit`` bytes, or 32 rows and columns each.

    Pieces are multiples of 32 high and wide: operands that are read where they lie stay on 16 bytes.
    """
    turn_a, turn_b = not direct_a(call, variant), not direct_b(call)
    rows, cols = call.M, call.N

    def needed() -> int:
        return turn_a * laid_bytes(rows, call.K) + turn_b * laid_bytes(cols, call.K)

    def half(n: int) -> int:
        return ceil(ceil(n, 2), 32) * 32

    while needed() > limit:
        if turn_a and rows > 32 and (rows >= cols or not turn_b or cols <= 32):
            rows = half(rows)
        elif turn_b and cols > 32:
            cols = half(cols)
        else:
            break
    return [
        Panel(
            m, min(rows, call.M - m), n, min(cols, call.N - n),
            turn_a and (n == 0 or rows < call.M), turn_b and m == 0,
        )  # a single panel of rows stays where it is
        for n in range(0, call.N, cols)
        for m in range(0, call.M, rows)
    ]  # fmt: skip


def workspace_bytes(call: Call, variant: Variant, units: int, limit: int = LIMIT, cut: bool = True) -> int:
    """Scratch memory of a call, on the device."""
    return sum(_parts(call, panels(call, limit, variant)[0], variant, units, cut)) if call.M and call.N else 0


def _parts(call: Call, p: Panel, variant: Variant, units: int, cut: bool) -> tuple[int, int, int]:
    """Bytes of the workspace for A, for B, and for parts of tiles, where the largest panel is ``p``."""
    a = 0 if direct_a(call, variant) else laid_bytes(p.rows, call.K)
    b = 0 if direct_b(call) else laid_bytes(p.cols, call.K)
    return a, b, 4 * units * variant.BM * variant.BN if cut else 0


class _Part(NamedTuple):
    """A panel as a call, for the schedule."""

    M: int
    N: int
    K: int


class Plan:
    """A call that is ready to run, as often as wanted, from any thread, on any stream of its session's context.

    Attributes
    ----------
    name : ``hopper_fp32/ffma``
    variant : the block's shape
    why : why it was chosen
    workspace_bytes : scratch memory it takes of the stream it runs on

    Parameters
    ----------
    kernel : a rung's, in place of the library's
    cut : whether tiles may be cut along K
    chains : launches that sums are cut into, one after the other; by default as many as ``chains_of`` says
    overlap : whether a launch may begin before the one before it has ended
    more : macros
    """

    name = "hopper_fp32/ffma"

    def __init__(
        self, session: Session, call: Call, variant: Variant | None = None, limit: int = LIMIT, *, kernel: Kernel | None = None,
        cut: bool = True, chains: int | None = None, overlap: bool = True, **more: int,
    ) -> None:  # fmt: skip
        if reason := supported(session.device, call):
            raise Unsupported(f"{call}: plain fp32 on Hopper cannot compute this: {reason}")
        self.session, self.call, self.units = session, call, session.device.compute_units
        self.variant = variant or choose(call, self.units)
        if reason := self.variant.refused() or unfit(call, self.variant):
            raise Unsupported(f"{self.variant}: {reason}")
        self.cut, self.overlap = cut, overlap
        self.why = f"the fullest of {self.units} multiprocessors is done first with tiles of {self.variant.BM}×{self.variant.BN}"
        self.panels = panels(call, limit, self.variant)
        self.links = links(call.K, chains or chains_of(call, self.variant, self.units), self.variant.BK)
        self.workspace_bytes = workspace_bytes(call, self.variant, self.units, limit, cut)
        self._kernels: list[Kernel | None] = [kernel or _kernel(session, product_source(self.variant, **more)), kernel]
        self._more, self._making = more, threading.Lock()
        if len(self.links) > 1:
            self.kernel(True)
        self.lay = None if direct_a(call, self.variant) and direct_b(call) else _kernel(session, lay_source())
        self._steps: dict[int, tuple[Buffer, list[Step]]] = {}
        self._flags: dict[int, Buffer] = {}

    def kernel(self, adding: bool) -> Kernel:
        """The product's, for β = 0 or for another β."""
        with self._making:
            found = self._kernels[adding]
            if found is None:
                source = product_source(self.variant, **{"ROWS": ADDED_ROWS, **self._more})
                found = self._kernels[adding] = _kernel(self.session, source)
            return found

    @property
    def launches(self) -> int:
        """Of a run."""
        return launches(self.panels, self.links)

    def ready(self, queue: Any = None) -> None:
        """Allocate and load what a stream needs, so that nothing is when ``run`` is captured into a graph.

        A graph keeps the addresses: keep the plan as long as the graph.
        """
        for step in self.steps(queue):
            for link in step.links:
                link.launch(False)
                link.launch(True)

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None
    ) -> None:
        """Put one call into a queue (a CUDA stream's handle; None: the session's own); never waits.

        Offsets are in elements. With β = 0 C is not read, with α = 0 neither are A and B.

        Raises
        ------
        BadArgument
            an operand that is not on 16 bytes, where the call says that it is
        """
        at_a, at_b, at_c = (_address(x) + 4 * offset for x, offset in ((a, offset_a), (b, offset_b), (c, offset_c)))
        alpha, beta = _narrow(alpha), _narrow(beta)
        work = self._workspace(queue)
        with work.lock:  # another call's launches must not come between the two
            for step in self._on(queue, work.buffer):
                step.run(at_a, at_b, at_c, alpha, beta, queue)

    def steps(self, queue: Any = None) -> list[Step]:
        """Its launches on a stream, a panel each."""
        work = self._workspace(queue)
        with work.lock:
            return self._on(queue, work.buffer)

    def _workspace(self, queue: Any) -> Any:
        return self.session.workspace(queue, max(self.workspace_bytes, 1))

    def _on(self, queue: Any, workspace: Buffer) -> list[Step]:
        """The launches of a stream, made anew where its workspace has grown; whoever asks holds the workspace's lock."""
        number = int(self.session.queue if queue is None else queue)
        found = self._steps.get(number)
        if found is None or found[0] is not workspace:
            found = self._steps[number] = workspace, [Step(self, p, workspace, self.flags(number)) for p in self.panels]
        return found[1]

    def flags(self, number: int) -> Buffer:
        """A stream's flags, which each launch finds and leaves 0; no other plan may write there."""
        with self._making:
            if number not in self._flags:
                made = self.session.allocate(4 * self.units)
                self.session.upload(made, np.zeros(self.units, np.uint32))
                self._flags[number] = made
            return self._flags[number]


def launches(pieces: list[Panel], chain: list[tuple[int, int]]) -> int:
    """Of all panels, each with all links of its sums' chain."""
    return sum(len(chain) + (p.lay_a or p.lay_b) for p in pieces)


KEPT_MAPS = 64
"""Tensor maps of addresses that a launch remembers."""


class Step:
    """The launches of a panel in a workspace: the layout pass, where there is something to lay out, and the product's."""

    def __init__(self, plan: Plan, p: Panel, workspace: Buffer, flags: Buffer) -> None:
        call, session = plan.call, plan.session
        i, long, address = np.int32, np.int64, np.uint64
        # of the largest panel: what stays must not move
        bytes_a, bytes_b, _ = _parts(call, plan.panels[0], plan.variant, plan.units, plan.cut)
        laid_a = _address(workspace)
        laid_b = laid_a + bytes_a
        self._from_a = 4 * p.m * (1 if call.trans_a else call.lda)
        self._from_b = 4 * p.n * (call.ldb if call.trans_b else 1)
        self._from_c = 4 * (p.m * call.ldc + p.n)
        self._lay: Overlapping | None = None
        if p.lay_a or p.lay_b:
            assert plan.lay is not None
            deep = ceil(call.K, LAY_SIDE)
            blocks_a, blocks_b = (deep * ceil(n, LAY_SIDE) * lay for n, lay in ((p.rows, p.lay_a), (p.cols, p.lay_b)))
            self._lay = Overlapping(
                session, plan.lay, blocks_a + blocks_b, LAY_THREADS, "PP",
                (
                    address(laid_a), address(laid_b), i(call.K), i(blocks_a), i(p.rows), i(p.cols),
                    i(call.trans_a), i(not call.trans_b), long(call.lda), long(call.ldb), long(pitch(p.rows)), long(pitch(p.cols)),
                ), plan.overlap,
            )  # fmt: skip
        self.links = [Link(plan, p, k, depth, (laid_a, laid_b), laid_b + bytes_b, flags) for k, depth in plan.links]

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """Lay out, and multiply."""
        self.lay_only(a, b, alpha, queue)
        self.multiply_only(a, b, c, alpha, beta, queue)

    def lay_only(self, a: int, b: int, alpha: float, queue: Any) -> None:
        """The first launch, where there is one; α = 0 has no use for operands."""
        if self._lay is not None and alpha != 0.0:
            self._lay(queue, a + self._from_a, b + self._from_b)

    def multiply_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """The others: the first link of the chain finds β·C, each other what is there by then."""
        for link in self.links if alpha != 0.0 else self.links[:1]:
            link.run(a + self._from_a, b + self._from_b, c + self._from_c, alpha, beta, queue)
            beta = 1.0


class Link:
    """A launch of the product: a panel's sums over some of K.

    Attributes
    ----------
    schedule : how its tiles are dealt out
    """

    def __init__(self, plan: Plan, p: Panel, k: int, depth: int, laid: tuple[int, int], parts: int, flags: Buffer) -> None:
        call, v = plan.call, plan.variant
        i, address = np.int32, np.uint64
        self._plan = plan
        self._turned = bool(v.TURN_A)
        piece: Any = _Part(p.rows, p.cols, depth)
        self.schedule = schedule(piece, v, plan.units) if plan.cut else schedules(piece, v, plan.units)[0]
        each, extra = divmod(self.schedule.shared * ceil(depth, v.BK), self.schedule.grid)
        self._direct = direct_a(call, v), direct_b(call)
        self._depth, self._stage, self._sides = depth, v.BK, ((p.rows, v.BM), (p.cols, v.BN))
        self._lds = call.lda if self._direct[0] else pitch(p.rows), call.ldb if self._direct[1] else pitch(p.cols)
        self._skipped = [4 * k * (1 if turned else ld) for turned, ld in zip((self._turned, False), self._lds, strict=True)]
        nothing = np.void(bytes(128))
        self._maps: tuple[dict[int, np.void], dict[int, np.void]] = {}, {}
        self._fixed = [
            *(nothing if direct else self._map(which, laid[which]) for which, direct in enumerate(self._direct)),
            i(call.ldc), i(p.rows), i(p.cols), i(depth), address(parts), address(_address(flags)),
            i(self.schedule.shared), i(each), i(extra),
        ]  # fmt: skip
        self._launches: list[Overlapping | None] = [None, None]
        self._at = [0, 0], [0, 0]  # the operands of each launch's maps

    def launch(self, adding: bool) -> Overlapping:
        """What starts the kernel for β = 0, or for another β."""
        found = self._launches[adding]
        if found is None:
            plan = self._plan
            found = self._launches[adding] = Overlapping(
                plan.session, plan.kernel(adding), self.schedule.grid, plan.variant.threads, "Pff", self._fixed, plan.overlap
            )
        return found

    def _map(self, which: int, address: int) -> np.void:
        """Of A or B as the product reads it, where the panel's begins at an address."""
        (rows, side), ld = self._sides[which], self._lds[which]
        session: Any = self._plan.session
        address += self._skipped[which]
        if which == 0 and self._turned:
            turned: np.void = session.tensor_map_fp32(address, rows, self._depth, ld, (min(side, 256), self._stage))
            return turned
        found: np.void = session.tensor_map_fp32(address, self._depth, rows, ld, (self._stage, min(side, 256)))
        return found

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """Put it into a queue, for operands that begin where the panel's do."""
        launch, at = self.launch(beta != 0.0), self._at[beta != 0.0]
        for which, address in enumerate((a, b)) if alpha != 0.0 else ():
            if self._direct[which] and at[which] != address:
                launch.replace(which, self._look_at(which, address))
                at[which] = address
        launch(queue, c, alpha, beta)

    def _look_at(self, which: int, address: int) -> np.void:
        """A tensor map holds an address and a shape: one is made where the address is new."""
        if address % 16:
            raise BadArgument(f"{'AB'[which]} lies at {address:#x}: not on 16 bytes, as the call says; make a plan for align = 1")
        kept = self._maps[which]
        if address not in kept:
            if len(kept) >= KEPT_MAPS:
                kept.clear()
            kept[address] = self._map(which, address)
        return kept[address]
