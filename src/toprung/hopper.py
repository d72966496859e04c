"""fp32-accurate products on Hopper's matrix units: split into two fp16 terms, three products, and the guard. A call → launches.

The operands are split into a workspace (4 bytes an element, 8 a row), then multiplied; what two terms cannot carry is computed
again in plain fp32 by the same launch. Where tiles of C are too few for the device, K is cut into slices whose results lie in the
workspace, too, until a third launch adds them up. The workspace is the session's for a stream and serves all plans there in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Buffer, Kernel, Session, Source
from toprung.backends.cuda import CUDABuffer
from toprung.backends.overlap import Overlapping
from toprung.build import source_kernel
from toprung.device import Device
from toprung.errors import BadSize, LaunchError, Unsupported

FOLDER = Path(__file__).parent / "ladders" / "hopper"
CHUNK = 32
"""Of K, in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes."""
ROW_BYTES = 8
"""What the splitting pass leaves beside the terms of each row."""
SHARED_BYTES = 227 * 1024
PLAIN_BYTES = 2 * 16 * 68 * 4
"""Shared memory of a consumer for what it computes again in plain fp32."""

LARGEST_GROUP = 1 << 10
"""Rows of tiles that are walked together at most."""

SHALLOWEST = 64
"""The promise begins at this K."""
DEEPEST = 1 << 24
"""Largest K: counts of elements and the copy engine's coordinates have room to spare."""
LIMIT = 4 << 30
"""Bytes of terms beyond which a call is cut into panels of M and N, or of the batch."""

SPLIT_THREADS = 512
SPLIT_HELD = 32
"""Elements a thread of the splitting pass holds in registers. Twice as many leave room for half the threads: slower at any K."""
PATCH_BYTES = SPLIT_THREADS * 144
"""Shared memory in which the warps of the splitting pass turn their tiles."""


class Call(Protocol):
    """A product without its pointers and scalars, as ``toprung.blas.call.GemmCall`` describes it."""

    @property
    def M(self) -> int:
        """Rows of C."""

    @property
    def N(self) -> int:
        """Columns of C."""

    @property
    def K(self) -> int:
        """Length of the sums."""

    @property
    def batch(self) -> int:
        """Independent products."""

    @property
    def trans_a(self) -> bool:
        """Whether A is stored K×M."""

    @property
    def trans_b(self) -> bool:
        """Whether B is stored N×K."""

    @property
    def lda(self) -> int:
        """Elements from one stored row of A to the next."""

    @property
    def ldb(self) -> int:
        """Of B."""

    @property
    def ldc(self) -> int:
        """Of C."""

    @property
    def stride_a(self) -> int:
        """Elements from one A to the next; 0: the same one each time."""

    @property
    def stride_b(self) -> int:
        """From one B."""

    @property
    def stride_c(self) -> int:
        """From one C."""


@dataclass(frozen=True)
class Product:
    """The plainest ``Call``; leading dimensions of 0 are tight."""

    M: int
    N: int
    K: int
    batch: int = 1
    trans_a: bool = False
    trans_b: bool = False
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0

    def __post_init__(self) -> None:
        tight = {"lda": self.M if self.trans_a else self.K, "ldb": self.K if self.trans_b else self.N, "ldc": self.N}
        for name, least in tight.items():
            object.__setattr__(self, name, getattr(self, name) or max(least, 1))
            if getattr(self, name) < least:
                raise BadSize(f"{name} = {getattr(self, name)} is shorter than a row of {least}")

    @staticmethod
    def of(problem: Any) -> Product:
        """A problem of the tests and benchmarks (``toprung.routines.gemm.Gemm``): matrices of a batch lie one below the other."""
        (a, lda), (b, ldb), (c, ldc) = ((m.rows // problem.batch * m.ld, m.ld) for m in problem.matrices)
        across = problem.trans[0] == "T", problem.trans[1] == "T"
        return Product(problem.M, problem.N, problem.K, problem.batch, *across, lda, ldb, ldc, a, b, c)


@dataclass(frozen=True)
class Variant:
    """Free parameters of the product's kernel; a block owns 64·CONSUMERS × BN of C at a time.

    Attributes
    ----------
    STAGES : of the ring
    INTERVAL : chunks of 32 of K whose hi·hi stays in the matrix unit
    GROUP : rows of tiles that are walked together
    """

    CONSUMERS: int = 2
    BN: int = 128
    STAGES: int = 6
    INTERVAL: int = 1
    GROUP: int = 8

    @property
    def BM(self) -> int:
        """Rows of C that a block owns at a time."""
        return 64 * self.CONSUMERS

    @property
    def shared_bytes(self) -> int:
        """The ring on 1024 bytes, and its barriers."""
        return self.STAGES * (self.BM + self.BN) * 128 + 1024 + 16 * self.STAGES

    def defines(self, **more: int) -> dict[str, int]:
        """As macros."""
        moved = self.CONSUMERS == 2  # registers change hands where the compiler could not give a thread enough
        registers = {"PRODUCER_REGISTERS": 24 * moved, "CONSUMER_REGISTERS": 240 * moved}
        return {"ARCH_SPECIFIC": 1, **asdict(self), **registers, **more}

    def refused(self) -> str:
        """Why no kernel is built with these parameters, as a sentence; empty where one is."""
        if self.CONSUMERS not in (1, 2) or self.BN not in (32, 64, 128):
            return f"fp32x has tiles of 64 or 128 rows and 32, 64 or 128 columns, not of {self.BM}×{self.BN}"
        if self.INTERVAL not in (1, 2) or not 1 <= self.GROUP <= LARGEST_GROUP:
            return (
                f"fp32x leaves 1 or 2 chunks in the matrix unit and walks 1 to {LARGEST_GROUP} rows of tiles together, not {self}"
            )
        if self.INTERVAL > 1 and self.BN > 64:
            return "fp32x with more than a chunk in the matrix unit has no registers left for 128 columns"
        if self.STAGES < 2:
            return "fp32x fills one stage of its ring while it multiplies another"
        if (used := self.shared_bytes + self.CONSUMERS * PLAIN_BYTES) > SHARED_BYTES:
            return f"{self.STAGES} stages of {self.BM}×{self.BN} take {used:,} bytes of shared memory; there are {SHARED_BYTES:,}"
        return ""

    def unfit(self, call: Call) -> str:
        """Why it is not as accurate as fp32 on a call, empty where it is."""
        if self.INTERVAL > 1 and call.K < TWICE:
            return f"two chunks may stay in the matrix unit from K = {TWICE} on"
        return ""

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN} S{self.STAGES} I{self.INTERVAL} G{self.GROUP}"


COSTS: Mapping[Variant, float] = {
    Variant(): 20.0,
    Variant(BN=64, STAGES=8): 11.2,
    Variant(CONSUMERS=1, BN=64, STAGES=8, GROUP=16): 6.8,
    Variant(CONSUMERS=1, BN=32, STAGES=8, GROUP=16): 4.5,
}
BY_AREA: Mapping[int, float] = {v.BM * v.BN: cost for v, cost in COSTS.items()}
"""``COSTS``: tiles that are weighed, each with the nanoseconds that an element of K takes where every multiprocessor has one.

Here and below, where nothing else is said: fitted to bursts of 512 to 4096 cubed on an H200 (``benchmarks/hopper.py``),
which they meet within a tenth. ``BY_AREA``: the same by a tile's elements, for those that only a tuner tries."""
TAIL = 0.15
"""Nanoseconds for each element of a tile's C, once."""
LAUNCH = 4e-6
"""Seconds of a launch that does nothing."""
SPLIT_RATE, ACROSS_RATE = 3.6e12, 2.6e12
"""Bytes a second of the splitting pass, what it reads and what it writes: of rows that lie along K, and of those that lie across.

Fitted to the launch alone on an H200 (``results/nvidia-h200/split-k.json``), in the slices chosen there and 65536 x 64 x 4096;
64 x 65536 x 4096 of ``fp32x-sustained.json``, nearly all across, takes longer than that by what they say."""
PLAIN_RATE, PLAIN_START = 51e12, 1e-5
"""Operations a second of the best plain fp32, and the seconds it takes beyond them."""
MEMORY_RATE = 4e12
"""Bytes a second of memory."""
MARGIN = 1.2
"""How much faster it must be by this reckoning to be called so."""

REDUCE_RATE = 4.3e12
"""Bytes a second at which the results of slices are read and added: fitted to ``split-k.json``, where there are 50 MB and more."""
SHORTEST = 256
"""Of K in a slice: below, a tile's beginning and end are most of its time."""

TWICE = 1024
"""K from which on the 128 x 64 tile leaves two chunks in the matrix unit: its error on U(0, 1) is half of a plain chain's there."""


class Way(NamedTuple):
    """A tile, and slices of K of a depth that is a multiple of 32 (all of K where it is one slice)."""

    variant: Variant
    slices: int = 1


def depth_of(K: int, slices: int) -> int:
    """Of K in a slice; the last one may be shorter."""
    return K if slices == 1 else CHUNK * ceil(ceil(K, CHUNK), slices)


def trimmed(K: int, slices: int) -> int:
    """As many slices of whole chunks as are not empty, at most ``slices``."""
    slices = max(1, min(slices, ceil(K, CHUNK)))
    return ceil(K, depth_of(K, slices)) if K else 1


def waves(call: Call, variant: Variant, units: int, slices: int = 1) -> int:
    """Tiles of the fullest multiprocessor."""
    return ceil(_tiles(call, variant) * slices, units)


def choose(call: Call, units: int) -> Way:
    """The tile and slices with which all is done first; the larger tile and the fewer slices where that is equal."""
    best = min(ways(call, units), key=lambda way: product_time(call, way, units))
    tile = best.variant
    return Way(replace(tile, INTERVAL=2), best.slices) if call.K >= TWICE and (tile.CONSUMERS, tile.BN) == (2, 64) else best


def ways(call: Call, units: int) -> list[Way]:
    """What is weighed: each tile with all of K, and with slices that fill the device once, twice or three times.

    Their results take no more memory than the operands, and a slice has ``SHORTEST`` of K at least.
    """
    found = []
    for variant in COSTS:
        counts = {filling(call, variant, n * units) for n in (1, 2, 3)} | {1}
        found += [Way(variant, slices) for slices in sorted(counts)]
    return found


def filling(call: Call, variant: Variant, units: int) -> int:
    """Slices of K with which there are no more tiles than multiprocessors, as many as memory and ``SHORTEST`` allow."""
    return trimmed(call.K, min(most_slices(call), units // max(_tiles(call, variant), 1)))


def most_slices(call: Call) -> int:
    """Slices of K whose results take no more memory than the operands, each with ``SHORTEST`` of K."""
    return max(1, min(call.K // SHORTEST, call.K * _rows(call) // max(call.M * _ldp(call.N) * call.batch, 1)))


def product_time(call: Call, way: Way, units: int) -> float:
    """Seconds of the second launch beyond its start, and all of the third."""
    variant, slices = way
    tile = 1e-9 * (BY_AREA[variant.BM * variant.BN] * depth_of(call.K, slices) + TAIL * variant.BM * variant.BN)
    multiply = max(waves(call, variant, units, slices) * tile, 4 * _rows(call) * call.K / MEMORY_RATE)
    return multiply + (LAUNCH + 4 * (slices + 1) * call.M * call.N * call.batch / REDUCE_RATE if slices > 1 else 0.0)


def split_time(call: Call) -> float:
    """Seconds of the first launch beyond its start."""
    sides = (call.M, call.stride_a, call.trans_a), (call.N, call.stride_b, not call.trans_b)
    return sum(
        8 * rows * _matrices(stride, call.batch) * call.K / (ACROSS_RATE if across else SPLIT_RATE)
        for rows, stride, across in sides
    )


def reckoned(call: Call, units: int) -> tuple[float, float]:
    """Seconds that a call takes about: this way, all launches; and in plain fp32."""
    rows = _rows(call)
    ours = 2 * LAUNCH + split_time(call) + product_time(call, choose(call, units), units)
    bytes_ = 4 * (rows * call.K + call.M * call.N * call.batch)
    return ours, PLAIN_START + max(2.0 * call.M * call.N * call.K * call.batch / PLAIN_RATE, bytes_ / MEMORY_RATE)


def _tiles(call: Call, variant: Variant) -> int:
    return ceil(call.M, variant.BM) * ceil(call.N, variant.BN) * call.batch


def _rows(call: Call) -> int:
    """Of A and columns of B, of all matrices that differ."""
    return call.M * _matrices(call.stride_a, call.batch) + call.N * _matrices(call.stride_b, call.batch)


def _ldp(cols: int) -> int:
    """Elements from a row of a slice's result to the next."""
    return ceil(cols, 4) * 4


def supported(device: Device, call: Call) -> str:
    """Why a call cannot be computed this way, as a sentence; empty where it can."""
    if device.backend != "cuda" or device.arch != "sm_90":
        return f"fp32x needs Hopper's matrix units; {device} has none"
    if call.M and call.N and not SHALLOWEST <= call.K <= DEEPEST:
        return f"fp32x is promised for K from {SHALLOWEST} to {DEEPEST:,}, not for {call.K}"
    if max(call.M, call.N, 1) * max(call.batch, 1) >= 1 << 31:
        return "fp32x counts rows with 31 bits"
    if (least := terms_bytes(min(call.M, 128), call.K) + terms_bytes(min(call.N, 128), call.K)) > LIMIT and call.M and call.N:
        return f"fp32x would need {least:,} bytes for the terms of 128 rows and columns, more than {LIMIT:,}"
    return ""


def faster(call: Call, units: int) -> str:
    """Why it should not be expected to be faster than plain fp32; empty where it should."""
    if not (call.M and call.N):
        return "the result is empty"
    ours, plain = reckoned(call, units)
    if ours * MARGIN <= plain:
        return ""
    return f"fp32x would take about {ours * 1e6:.0f} us with all its launches, plain fp32 {plain * 1e6:.0f}"


def source(file: str, kernel: str, defines: Mapping[str, int]) -> Source:
    """A text of the ladder's folder behind the common headers."""
    texts = ((name, (FOLDER / name).read_text()) for name in ("hopper.cuh", "terms.cuh", file))
    return Source(f"hopper/{kernel}", "\n".join(f'#line 1 "{name}"\n{text}' for name, text in texts), kernel, defines, "cuda")


def product_source(variant: Variant, **more: int) -> Source:
    """The product's kernel."""
    return source("fp32x.cu", "fp32x", {**variant.defines(**more), DYNAMIC_SHARED: variant.shared_bytes})


def split_source(cluster: int = 1, held: int = SPLIT_HELD) -> Source:
    """The splitting pass; ``cluster`` blocks together have the rows whose K runs across memory."""
    defines = {"ARCH_SPECIFIC": 1, "CLUSTER": cluster, "HELD": held, DYNAMIC_SHARED: PATCH_BYTES}
    return source("split.cu", "split", defines)


def reduce_source() -> Source:
    """What adds the results of slices."""
    return source("reduce.cu", "reduce", {"ARCH_SPECIFIC": 1})


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def width(K: int) -> int:
    """fp16 elements of a split row."""
    return 2 * CHUNK * ceil(K, CHUNK)


def terms_bytes(rows: int, K: int, slices: int = 1) -> int:
    """Of the terms of so many rows and of what stands beside them, each beginning on 256 bytes."""
    rows *= slices
    return _whole(2 * width(depth_of(K, slices)) * rows) + _whole(ROW_BYTES * rows)


def _whole(nbytes: int) -> int:
    return ceil(nbytes, 256) * 256


@dataclass(frozen=True)
class Panel:
    """A piece of a call that is split and multiplied at a time: rows from m, columns from n, products from z.

    Attributes
    ----------
    split_a, split_b : whether the operand's terms are not in the workspace yet
    """

    m: int
    rows: int
    n: int
    cols: int
    z: int
    batch: int
    split_a: bool
    split_b: bool


def panels(call: Call, limit: int) -> list[Panel]:
    """The pieces of a call whose terms need no more than ``limit`` bytes: all, some products of the batch, or parts of one.

    Raises
    ------
    Unsupported
        not even 128 rows and 128 columns fit
    """

    def cost(rows: int, cols: int, batch: int) -> int:
        return terms_bytes(rows * _matrices(call.stride_a, batch), call.K) + terms_bytes(
            cols * _matrices(call.stride_b, batch), call.K
        )

    M, N = call.M, call.N
    if cost(M, N, call.batch) <= limit:
        return [Panel(0, M, 0, N, 0, call.batch, True, True)]
    at_once = next((n for n in _halves(call.batch) if cost(M, N, n) <= limit), 0)
    if at_once:
        return [
            Panel(0, M, 0, N, z, min(at_once, call.batch - z), not z or call.stride_a > 0, not z or call.stride_b > 0)
            for z in range(0, call.batch, at_once)
        ]
    rows, cols = M, N
    while cost(rows, cols, 1) > limit:
        if max(rows, cols) <= 128:
            raise Unsupported(f"128 rows and columns of K = {call.K:,} need {cost(128, 128, 1):,} bytes, more than {limit:,}")
        if rows >= cols:
            rows = max(128, ceil(ceil(rows, 2), 128) * 128)
        else:
            cols = max(128, ceil(ceil(cols, 2), 128) * 128)
    found = []
    for z in range(call.batch):
        for n in range(0, N, cols):
            for m in range(0, M, rows):
                again = rows < M or n == 0  # a single panel of rows stays where it is
                found.append(Panel(m, min(rows, M - m), n, min(cols, N - n), z, 1, again, m == 0))
    return found


def _halves(batch: int) -> list[int]:
    found = []
    while batch > 1:
        batch = ceil(batch, 2)
        found.append(batch)
    return found


def _matrices(stride: int, batch: int) -> int:
    """How many there are to be split: one where all products share it."""
    return batch if stride else 1


def workspace_bytes(call: Call, limit: int = LIMIT, slices: int = 1) -> int:
    """Scratch memory of a call, on the device: terms, and results of slices with a flag for each 64 × 32 of them."""
    if not (call.M and call.N):
        return 0
    return max(sum(_parts(call, p, slices)) for p in panels(call, limit))


def _parts(call: Call, p: Panel, slices: int) -> tuple[int, int, int, int]:
    """Bytes of the workspace for A's terms, B's, the results of slices, and their flags."""
    a = terms_bytes(p.rows * _matrices(call.stride_a, p.batch), call.K, slices)
    b = terms_bytes(p.cols * _matrices(call.stride_b, p.batch), call.K, slices)
    results = slices * p.batch if slices > 1 else 0
    return a, b, _whole(4 * results * p.rows * _ldp(p.cols)), _whole(4 * results * ceil(p.rows, 64) * ceil(p.cols, 32))


@dataclass(frozen=True)
class Splitting:
    """How the splitting pass walks an operand.

    Attributes
    ----------
    lanes : threads of a row where K runs along memory; 0: it runs across
    """

    rows: int
    matrices: int
    lanes: int

    @staticmethod
    def of(rows: int, matrices: int, K: int, across: bool, units: int) -> Splitting:
        """Enough threads for a row to hold it, and for the device to have work everywhere."""
        if across:
            return Splitting(rows, matrices, 0)
        lanes = 32
        while lanes < SPLIT_THREADS and (
            lanes * SPLIT_HELD < K or (rows * matrices * lanes < units * SPLIT_THREADS and lanes * 4 < K)
        ):
            lanes *= 2
        return Splitting(rows, matrices, lanes)

    def blocks(self, cluster: int) -> int:
        """Work-groups, whole clusters."""
        if self.lanes:
            return ceil(ceil(self.rows * self.matrices * self.lanes, SPLIT_THREADS), cluster) * cluster
        return ceil(self.rows, 32) * self.matrices * cluster


def spread(K: int, across: bool) -> tuple[int, int]:
    """Blocks of a cluster and elements a thread holds in the splitting pass, so that K across memory is read once up to 4096."""
    cluster = 1
    while across and cluster < 8 and cluster * SPLIT_THREADS < K:
        cluster *= 2
    return cluster, SPLIT_HELD


_kernels: WeakKeyDictionary[Session, dict[Source, Kernel]] = WeakKeyDictionary()
_guard = threading.RLock()


def _kernel(session: Session, of: Source) -> Kernel:
    key = (of.kernel, tuple(of.defines.items()))
    with _guard:
        kept: Any = _kernels.setdefault(session, {})
        if key not in kept:
            kept[key] = source_kernel(of, session)
        found: Kernel = kept[key]
    return found


def _address(thing: Any) -> int:
    """Of a buffer, or of what already is one."""
    if isinstance(thing, int):
        return thing
    handle = getattr(thing, "handle", None)
    return int(thing.pointer if handle is None else handle)


class Prepared:
    """The terms of a B, and B itself, as they were: what happens to the source afterwards changes nothing here.

    It owns two pieces of memory, each as large as B: the terms, and a copy from which elements are computed again that two terms
    cannot carry. Every call takes it whose B has the same shape, transpose and leading dimension, whatever its A.
    ``copied``: B is a copy already, which nobody writes and the caller keeps.
    """

    def __init__(
        self, session: Session, call: Call, b: Any, offset_b: int = 0, queue: Any = None, copied: bool = False
    ) -> None:  # fmt: skip
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        if call.batch > 1 and call.stride_b:
            raise Unsupported(f"{call}: the operands of a batch cannot be prepared")
        self.session, self.like = session, _of_b(call)
        self.terms = session.allocate(terms_bytes(call.N, call.K))
        self.copy: Any = _address(b) + 4 * offset_b
        if not copied:
            rows, cols = (call.N, call.K) if call.trans_b else (call.K, call.N)
            source, nbytes = self.copy, 4 * ((rows - 1) * call.ldb + cols)
            self.copy = session.allocate(nbytes)
            _copied(session, _address(self.copy), source, nbytes, queue)
        self._split = Step.of_b(self, session, call)
        self._split.split_only(0, _address(self.copy), queue)

    def refused(self, plan: Plan) -> str:
        """Why a plan cannot take it, empty where it can."""
        if plan.session is not self.session:
            return f"B was prepared on {self.session.device}, not for {plan.session.device}"
        if _of_b(plan.call) != self.like or (plan.call.batch > 1 and plan.call.stride_b):
            return f"B was prepared as N, K, transposed, leading dimension = {self.like}, not for {plan.call}"
        return "the call is cut into panels of columns" if any(p.cols < plan.call.N for p in plan.panels) else ""


def _of_b(call: Call) -> tuple[int, int, bool, int]:
    """What the terms of B depend on, and the place of its elements."""
    return call.N, call.K, call.trans_b, call.ldb


def _current(session: Session) -> Any:
    found: Any = session
    return found.current()


def _copied(session: Session, to: int, source: int, nbytes: int, queue: Any) -> None:
    """Device to device, in a queue."""
    from cuda.bindings import driver

    with _current(session):
        (status,) = driver.cuMemcpyDtoDAsync(to, source, nbytes, session.queue if queue is None else queue)
    if status:
        raise LaunchError(f"the operand cannot be copied: {status.name}")


class Plan:
    """A call that is ready to run, as often as wanted, from any thread, on any stream of its session's context.

    Attributes
    ----------
    name : ``hopper/fp32x``
    variant, slices : the tile, and the slices of K
    why : why they were chosen
    workspace_bytes : scratch memory it takes of the stream it runs on
    """

    name = "hopper/fp32x"

    def __init__(
        self,
        session: Session,
        call: Call,
        variant: Variant | None = None,
        limit: int = LIMIT,
        overlap: bool = True,
        splitting: tuple[int, int] | None = None,
        slices: int = 0,
        **more: int,
    ) -> None:
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        self.session, self.call, self._overlap, self._more = session, call, overlap, more
        self._units = session.device.compute_units
        way = choose(call, self._units)
        self.variant = variant or way.variant
        self.slices = trimmed(call.K, slices or (1 if variant else way.slices))
        self.why = f"the fullest of {self._units} multiprocessors is done first with tiles of {self.variant.BM}×{self.variant.BN}"
        self.why += f" and {self.slices} slices of K" * (self.slices > 1)
        self.panels = panels(call, limit) if call.M and call.N else []
        self.workspace_bytes = workspace_bytes(call, limit, self.slices)
        across = call.trans_a or not call.trans_b
        self.cluster, self.held = splitting or spread(depth_of(call.K, self.slices), across)
        self._count = session.allocate(8)
        session.upload(self._count, np.zeros(1, np.uint64))
        self._steps: dict[int, tuple[Buffer, list[Step]]] = {}
        self._with: WeakKeyDictionary[Prepared, dict[int, tuple[Buffer, list[Step]]]] = WeakKeyDictionary()
        if self.panels:
            _kernel(session, product_source(self.variant, **more))
            _kernel(session, split_source(self.cluster, self.held))
            if self.slices > 1:
                _kernel(session, reduce_source())

    def ready(self, queue: Any = None) -> None:
        """Allocate what a stream needs, so that nothing is when ``run`` is captured into a graph.

        A graph keeps the addresses: keep the plan as long as the graph.
        """
        if self.panels:
            work = self.session.workspace(queue, self.workspace_bytes)
            with work.lock:
                self._on(queue, work.buffer, None)

    def run(
        self,
        a: Any,
        offset_a: int,
        b: Any,
        offset_b: int,
        c: Any,
        offset_c: int,
        alpha: float,
        beta: float,
        queue: Any = None,
    ) -> None:
        """Put one call into a queue (a CUDA stream's handle; None: the session's own); never waits.

        Offsets are in elements. B may be ``Prepared`` (its offset is not looked at). With β = 0 C is not read, with α = 0
        neither are A and B.
        """
        if not self.panels:
            return
        prepared = b if isinstance(b, Prepared) else None
        if prepared is not None and (reason := prepared.refused(self)):
            raise Unsupported(reason)
        at_a = _address(a) + 4 * offset_a
        at_b = _address(prepared.copy) if prepared else _address(b) + 4 * offset_b
        at_c = _address(c) + 4 * offset_c
        alpha, beta = _narrow(alpha), _narrow(beta)
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:  # another call's launches must not come between the two
            for step in self._on(queue, work.buffer, prepared):
                step.run(at_a, at_b, at_c, alpha, beta, queue)

    def prepare(self, b: Any, offset_b: int = 0, queue: Any = None) -> Prepared:
        """Split B once, for any number of calls with such a B."""
        return Prepared(self.session, self.call, b, offset_b, queue)

    def escalated(self) -> int:
        """How many pieces of C were computed in plain fp32 since the plan was made; waits for the device."""
        from cuda.bindings import driver

        with _current(self.session):
            driver.cuCtxSynchronize()
        found = np.empty(1, np.uint64)
        self.session.download(self._count, found)
        return int(found[0])

    def steps(self, queue: Any = None) -> Sequence[Step]:
        """Its launches on a stream, a panel each."""
        work = self.session.workspace(queue, self.workspace_bytes)
        with work.lock:
            return self._on(queue, work.buffer, None)

    def _on(self, queue: Any, workspace: Buffer, prepared: Prepared | None) -> Sequence[Step]:
        """The launches of a stream, made anew where its workspace has grown; whoever asks holds the workspace's lock."""
        number = int(self.session.queue if queue is None else queue)
        if prepared is None:
            kept = self._steps
        else:
            with _guard:
                kept = self._with.setdefault(prepared, {})
        found = kept.get(number)
        if found is None or found[0] is not workspace:
            found = kept[number] = workspace, [Step(self, p, workspace, prepared) for p in self.panels]
        return found[1]


class Step:
    """The launches of a panel in a workspace: two, or three where K is cut into slices.

    Attributes
    ----------
    addresses : of A's terms, what stands beside them, B's terms, what stands beside them
    """

    _split: Overlapping | None = None
    _multiply: Overlapping | None = None
    _reduce: Overlapping | None = None
    _parts = 0

    def __init__(self, plan: Plan, p: Panel, workspace: Buffer, prepared: Prepared | None) -> None:
        call, session, v, units, slices = plan.call, plan.session, plan.variant, plan._units, plan.slices
        i, long, address = np.int32, np.int64, np.uint64
        matrices_a, matrices_b = _matrices(call.stride_a, p.batch), _matrices(call.stride_b, p.batch)
        bytes_a, bytes_b, bytes_parts, _ = _parts(call, plan.panels[0], slices)  # the largest: terms that stay must not move
        terms_a = _address(workspace)
        terms_b = _address(prepared.terms) if prepared else terms_a + bytes_a
        slices_b = 1 if prepared else slices  # a prepared operand has its rows in one piece
        depth, depth_b = depth_of(call.K, slices), depth_of(call.K, slices_b)
        rows_a, rows_b = p.rows * matrices_a * slices, p.cols * matrices_b * slices_b
        self.addresses = _, info_a, _, info_b = _places(terms_a, rows_a, depth, terms_b, rows_b, depth_b)
        across_a, across_b = call.trans_a, not call.trans_b
        self._from_a = 4 * (p.z * call.stride_a + p.m * (1 if across_a else call.lda))
        self._from_b = 4 * (p.z * call.stride_b + p.n * (1 if across_b else call.ldb))
        self._from_c = 4 * (p.z * call.stride_c + p.m * call.ldc + p.n)
        sides = p.rows if p.split_a else 0, matrices_a, p.cols if p.split_b and prepared is None else 0, matrices_b
        self._split = _splitting(session, call, self.addresses, sides, (plan.cluster, plan.held), plan._overlap, slices)
        tiles = ceil(p.rows, v.BM) * ceil(p.cols, v.BN) * p.batch * slices
        maps: Any = session
        ldc, stride_c = call.ldc, call.stride_c
        parts = flags = 0
        lie = long(call.lda), long(call.stride_a), i(across_a), long(call.ldb), long(call.stride_b), i(across_b)
        sizes = i(p.rows), i(p.cols), i(call.K), i(p.batch), i(slices)
        count = address(_address(plan._count))
        if slices > 1:
            self._parts = parts = _address(workspace) + bytes_a + bytes_b
            flags, ldc = parts + bytes_parts, _ldp(p.cols)
            stride_c = p.rows * ldc
            pieces = ceil(p.rows, 16) * ceil(p.cols, 32) * p.batch
            self._reduce = Overlapping(
                session, _kernel(session, reduce_source()), pieces, 128, "PPPff",
                (address(parts), address(flags), count, *sizes, i(ldc), i(min(v.BN, 64)), *lie, i(call.ldc), long(call.stride_c)),
                plan._overlap,
            )  # fmt: skip
        self._multiply = Overlapping(
            session, _kernel(session, product_source(v, **plan._more)), min(tiles, units), 128 * (v.CONSUMERS + 1), "PPPff",
            (
                address(info_a), address(info_b), count, address(flags),
                maps.tensor_map(CUDABuffer(terms_a, 0), rows_a, width(depth), (v.BM, 64)),
                maps.tensor_map(CUDABuffer(terms_b, 0), rows_b, width(depth_b), (v.BN, 64)),
                *sizes, i(depth), i(p.rows * slices if call.stride_a else 0), i(p.cols * slices_b if call.stride_b else 0),
                i(p.rows), i(p.cols if slices_b == slices else 0), *lie, i(ldc), long(stride_c),
            ), plan._overlap,
        )  # fmt: skip

    @classmethod
    def of_b(cls, prepared: Prepared, session: Session, call: Call) -> Step:
        """What fills a prepared operand."""
        step = cls.__new__(cls)
        step._from_a = step._from_b = step._from_c = 0
        step.addresses = _places(0, 0, call.K, _address(prepared.terms), call.N, call.K)
        step._split = _splitting(session, call, step.addresses, (0, 1, call.N, 1), spread(call.K, not call.trans_b), True)
        return step

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """Split what is not split yet, multiply, and add up."""
        self.split_only(a, b, queue, alpha)
        self.multiply_only(a, b, c, alpha, beta, queue)
        self.reduce_only(a, b, c, alpha, beta, queue)

    def split_only(self, a: int, b: int, queue: Any, alpha: float = 1.0) -> None:
        """The first launch."""
        if self._split is not None:
            self._split(queue, a + self._from_a, b + self._from_b, alpha)

    def multiply_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """The second: into C, or into the results of slices."""
        assert self._multiply is not None
        if self._reduce is None:
            self._multiply(queue, a + self._from_a, b + self._from_b, c + self._from_c, alpha, beta)
        else:
            self._multiply(queue, a + self._from_a, b + self._from_b, self._parts, float(alpha != 0.0), 0.0)

    def reduce_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """The third, if there is one."""
        if self._reduce is not None:
            self._reduce(queue, a + self._from_a, b + self._from_b, c + self._from_c, alpha, beta)


def _places(terms_a: int, rows_a: int, depth_a: int, terms_b: int, rows_b: int, depth_b: int) -> tuple[int, int, int, int]:
    """Where the terms lie and what stands beside them."""
    beside_a, beside_b = _whole(2 * width(depth_a) * rows_a), _whole(2 * width(depth_b) * rows_b)
    return terms_a, terms_a + beside_a, terms_b, terms_b + beside_b


def _splitting(
    session: Session, call: Call, addresses: tuple[int, ...], sides: tuple[int, int, int, int], how: tuple[int, int],
    overlap: bool, slices: int = 1,
) -> Overlapping | None:  # fmt: skip
    """The splitting pass on rows of A's matrices and columns of B's; a side of 0 is left out, None where both are.

    Slices of K are matrices of their own.
    """
    i, long, units, depth = np.int32, np.int64, session.device.compute_units, depth_of(call.K, slices)
    rows, matrices_a, cols, matrices_b = sides[0], sides[1] * slices, sides[2], sides[3] * slices
    a = Splitting.of(rows, matrices_a, depth, call.trans_a, units)
    b = Splitting.of(cols, matrices_b, depth, not call.trans_b, units)
    blocks_a, blocks_b = a.blocks(how[0]) if rows else 0, b.blocks(how[0]) if cols else 0
    if not blocks_a + blocks_b:
        return None
    return Overlapping(
        session, _kernel(session, split_source(*how)), blocks_a + blocks_b, SPLIT_THREADS, "PPf",
        (
            *map(np.uint64, addresses), i(call.K), i(depth), i(slices), i(blocks_a),
            long(call.lda), long(call.stride_a), i(max(rows, 1)), i(matrices_a), i(a.lanes),
            long(call.ldb), long(call.stride_b), i(max(cols, 1)), i(matrices_b), i(b.lanes),
        ), overlap,
    )  # fmt: skip


def _narrow(x: float) -> float:
    """As float32 has it, infinite where it is too large."""
    if x in (0.0, 1.0):
        return x
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def plan(session: Session, call: Call, limit: int = LIMIT) -> Plan:
    """A call's plan, the tile chosen.

    Parameters
    ----------
    limit : bytes of workspace beyond which the call is cut into panels

    Raises
    ------
    Unsupported
        see ``supported``
    """
    return Plan(session, call, limit=limit)
