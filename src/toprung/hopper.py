"""fp32-accurate products on Hopper's matrix units: split into two fp16 terms, three products, and the guard. A call → launches.

The operands are split into a workspace (4 bytes an element, 8 a row), then multiplied; what two terms cannot carry is computed
again in plain fp32 by the same launch. The workspace belongs to a stream and serves all plans there, one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from toprung.backends.base import DYNAMIC_SHARED, Buffer, Kernel, Session, Source
from toprung.backends.cuda import CUDABuffer
from toprung.backends.overlap import Overlapping
from toprung.build import source_kernel
from toprung.device import Device
from toprung.errors import BadSize, Unsupported

FOLDER = Path(__file__).parent / "ladders" / "hopper"
CHUNK = 32
"""Of K, in a stage of the ring: 32 hi and 32 lo are a row of 128 bytes."""
ROW_BYTES = 8
"""What the splitting pass leaves beside the terms of each row."""
SHARED_BYTES = 227 * 1024
PLAIN_BYTES = 2 * 16 * 68 * 4
"""Shared memory of a consumer for what it computes again in plain fp32."""

SHALLOWEST = 32
"""The promise begins at this K."""
DEEPEST = 1 << 24
"""Largest K: counts of elements and the copy engine's coordinates have room to spare."""
LIMIT = 4 << 30
"""Bytes of workspace beyond which a call is cut into panels of M and N, or of the batch."""

SPLIT_THREADS = 512
SPLIT_HELD = 32
"""Elements a thread of the splitting pass holds in registers; twice that where K runs across memory and is long."""
PATCH_BYTES = SPLIT_THREADS * 144
"""Shared memory in which the warps of the splitting pass turn their tiles."""


class Call(Protocol):
    """A product without its pointers and scalars, as ``toprung.blas.call.GemmCall`` describes it."""

    M: int
    N: int
    K: int
    batch: int
    trans_a: bool
    trans_b: bool
    lda: int
    ldb: int
    ldc: int
    stride_a: int
    stride_b: int
    stride_c: int


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

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN} S{self.STAGES} I{self.INTERVAL} G{self.GROUP}"


COSTS: Mapping[Variant, float] = {
    Variant(): 1.0,
    Variant(BN=64, STAGES=8): 1.15,
    Variant(CONSUMERS=1, BN=64, STAGES=8, GROUP=16): 1.35,
    Variant(CONSUMERS=1, BN=32, STAGES=8, GROUP=16): 1.8,
}
"""Tiles that are weighed, each with what an element of its C costs where every multiprocessor has one."""


def choose(call: Call, units: int) -> Variant:
    """The tile of which the fullest multiprocessor has the least work; the larger one where that is equal."""

    def work(variant: Variant) -> float:
        tiles = ceil(call.M, variant.BM) * ceil(call.N, variant.BN) * call.batch
        return ceil(tiles, units) * variant.BM * variant.BN * COSTS[variant]

    return min(COSTS, key=work)


FASTER: tuple[tuple[str, int], ...] = (("least side", 512), ("K", 128), ("M·N", 512 * 512))
"""What a product must have at least for ``faster``; from records under ``results``."""


def supported(device: Device, call: Call) -> str:
    """Why a call cannot be computed this way, as a sentence; empty where it can."""
    if device.backend != "cuda" or device.arch != "sm_90":
        return f"fp32x needs Hopper's matrix units; {device} has none"
    if call.M and call.N and not SHALLOWEST <= call.K <= DEEPEST:
        return f"fp32x is promised for K from {SHALLOWEST} to {DEEPEST:,}, not for {call.K}"
    if max(call.M, call.N, 1) * max(call.batch, 1) >= 1 << 31:
        return "fp32x counts rows with 31 bits"
    return ""


def faster(call: Call) -> bool:
    """Whether it is known to be faster than plain fp32."""
    found = {"least side": min(call.M, call.N), "K": call.K, "M·N": call.M * call.N * call.batch}
    return all(found[name] >= least for name, least in FASTER)


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


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def width(K: int) -> int:
    """fp16 elements of a split row."""
    return 2 * CHUNK * ceil(K, CHUNK)


def terms_bytes(rows: int, K: int) -> int:
    """Of the terms of so many rows and of what stands beside them, each beginning on 256 bytes."""
    return ceil(2 * width(K) * rows, 256) * 256 + ceil(ROW_BYTES * rows, 256) * 256


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


def workspace_bytes(call: Call, limit: int = LIMIT) -> int:
    """Scratch memory of a call, on the device."""
    if not (call.M and call.N):
        return 0
    return max(sum(_parts(call, p)) for p in panels(call, limit))


def _parts(call: Call, p: Panel) -> tuple[int, int]:
    """Bytes of the workspace for A's terms and B's."""
    return (
        terms_bytes(p.rows * _matrices(call.stride_a, p.batch), call.K),
        terms_bytes(p.cols * _matrices(call.stride_b, p.batch), call.K),
    )


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
    """Blocks of a cluster and elements a thread holds in the splitting pass, so that K across memory is read once up to 8192."""
    if not across:
        return 1, SPLIT_HELD
    cluster = 1
    while cluster < 8 and cluster * SPLIT_THREADS < K:
        cluster *= 2
    return cluster, SPLIT_HELD if K <= 8 * SPLIT_THREADS else 2 * SPLIT_HELD


_scratch: WeakKeyDictionary[Session, dict[int, Buffer]] = WeakKeyDictionary()
"""The workspace of each stream."""
_kernels: WeakKeyDictionary[Session, dict[Source, Kernel]] = WeakKeyDictionary()
_guard = threading.RLock()


def _kernel(session: Session, of: Source) -> Kernel:
    key = (of.kernel, tuple(of.defines.items()))
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
    cannot carry. α and β are the call's; the shape, layout and leading dimension are those it was prepared for.
    """

    def __init__(self, plan: Plan, b: Any, offset_b: int, queue: Any) -> None:
        call, session = plan.call, plan.session
        if len(plan.panels) > 1 or call.batch > 1:
            raise Unsupported(f"{call}: an operand of a batch, or one that is cut into panels, cannot be prepared")
        self.call, self.steps = call, dict[int, list[Step]]()
        rows, cols = (call.N, call.K) if call.trans_b else (call.K, call.N)
        nbytes = 4 * ((rows - 1) * call.ldb + cols)
        self.copy, self.terms = session.allocate(nbytes), session.allocate(terms_bytes(call.N, call.K))
        plan.copy(self.copy, _address(b) + 4 * offset_b, nbytes, queue)
        plan.split_into(self, queue)


class Plan:
    """A call that is ready to run, as often as wanted, on any stream of its session's context.

    Attributes
    ----------
    name : ``fp32x`` with its tile
    why : why the tile was chosen
    workspace_bytes : scratch memory it takes of the stream it runs on
    """

    def __init__(
        self,
        session: Session,
        call: Call,
        variant: Variant | None = None,
        limit: int = LIMIT,
        overlap: bool = True,
        splitting: tuple[int, int] | None = None,
        **more: int,
    ) -> None:
        if reason := supported(session.device, call):
            raise Unsupported(reason)
        self.session, self.call, self._overlap, self._more = session, call, overlap, more
        self._units = session.device.compute_units
        self.variant = variant or choose(call, self._units)
        self.name = f"fp32x {self.variant}"
        self.why = f"the fullest of {self._units} multiprocessors has least to do with tiles of {self.variant.BM}×{self.variant.BN}"
        self.panels = panels(call, limit) if call.M and call.N else []
        self.workspace_bytes = workspace_bytes(call, limit)
        across = call.trans_a or not call.trans_b
        self.cluster, self.held = splitting or spread(call.K, across)
        self._lock = threading.RLock()
        self._count = session.allocate(8)
        session.upload(self._count, np.zeros(1, np.uint64))
        self._steps: dict[int, list[Step]] = {}
        if self.panels:
            _kernel(session, product_source(self.variant, **more))
            _kernel(session, split_source(self.cluster, self.held))

    def ready(self, queue: Any = None) -> None:
        """Allocate what a stream needs, so that nothing is when ``run`` is captured into a graph.

        A graph keeps the addresses: keep the plan as long as the graph.
        """
        with self._lock:
            self._on(queue, None)

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
        prepared = b if isinstance(b, Prepared) else None
        if prepared is not None and prepared.call != self.call:
            raise Unsupported(f"B was prepared for {prepared.call}, not for {self.call}")
        at_a = _address(a) + 4 * offset_a
        at_b = _address(prepared.copy) if prepared else _address(b) + 4 * offset_b
        at_c = _address(c) + 4 * offset_c
        alpha, beta = _narrow(alpha), _narrow(beta)
        with self._lock:
            for step in self._on(queue, prepared):
                step.run(at_a, at_b, at_c, alpha, beta, queue)

    def prepare(self, b: Any, offset_b: int = 0, queue: Any = None) -> Prepared:
        """Split B once, for any number of calls of this shape."""
        return Prepared(self, b, offset_b, queue)

    def escalated(self) -> int:
        """How many pieces of C were computed in plain fp32 since the plan was made; waits for the device."""
        from cuda.bindings import driver

        driver.cuCtxSynchronize()
        found = np.empty(1, np.uint64)
        self.session.download(self._count, found)
        return int(found[0])

    def copy(self, to: Buffer, source: int, nbytes: int, queue: Any) -> None:
        """Device to device, in a queue."""
        from cuda.bindings import driver

        (status,) = driver.cuMemcpyDtoDAsync(_address(to), source, nbytes, self.session.queue if queue is None else queue)
        if status:
            raise Unsupported(f"the operand cannot be copied: {status.name}")

    def split_into(self, prepared: Prepared, queue: Any) -> None:
        """Fill a prepared operand from its copy."""
        with self._lock:
            one = Step(self, self.panels[0], None, prepared, only_b=True)
            one.split_only(0, _address(prepared.copy), queue)

    def steps(self, queue: Any = None) -> Sequence[Step]:
        """Its launches on a stream, a panel each."""
        with self._lock:
            return self._on(queue, None)

    def _on(self, queue: Any, prepared: Prepared | None) -> Sequence[Step]:
        """The launches of a stream."""
        number = int(self.session.queue if queue is None else queue)
        steps = prepared.steps if prepared else self._steps
        if number in steps:
            return steps[number]
        with _guard:
            found = _scratch.setdefault(self.session, {})
            if number not in found or found[number].nbytes < self.workspace_bytes:
                found[number] = self.session.allocate(self.workspace_bytes)  # plans that use the smaller one keep it
        made = steps[number] = [Step(self, p, found[number], prepared) for p in self.panels]
        return made


class Step:
    """The two launches of a panel in a workspace.

    Attributes
    ----------
    addresses : of A's terms, what stands beside them, B's terms, what stands beside them
    """

    def __init__(self, plan: Plan, p: Panel, workspace: Buffer | None, prepared: Prepared | None, only_b: bool = False) -> None:
        call, session, v, units = plan.call, plan.session, plan.variant, plan._units
        i, long, address = np.int32, np.int64, np.uint64
        self._prepared = prepared
        matrices_a, matrices_b = _matrices(call.stride_a, p.batch), _matrices(call.stride_b, p.batch)
        bytes_a, _ = _parts(call, plan.panels[0])  # the largest: terms that stay must not move
        base = _address(workspace) if workspace is not None else 0
        terms_a, terms_b = base, _address(prepared.terms) if prepared else base + bytes_a
        wide = width(call.K)
        info_a = terms_a + ceil(2 * wide * p.rows * matrices_a, 256) * 256
        info_b = terms_b + ceil(2 * wide * p.cols * matrices_b, 256) * 256
        across_a, across_b = call.trans_a, not call.trans_b
        self._from_a = 4 * (p.z * call.stride_a + p.m * (1 if across_a else call.lda))
        self._from_b = 4 * (p.z * call.stride_b + p.n * (1 if across_b else call.ldb))
        self._from_c = 4 * (p.z * call.stride_c + p.m * call.ldc + p.n)
        a = Splitting.of(p.rows, matrices_a, call.K, across_a, units)
        b = Splitting.of(p.cols, matrices_b, call.K, across_b, units)
        blocks_a = a.blocks(plan.cluster) if p.split_a and not only_b else 0
        blocks_b = b.blocks(plan.cluster) if p.split_b and (only_b or prepared is None) else 0
        self._split = self._multiply = None
        self.addresses = terms_a, info_a, terms_b, info_b
        if blocks_a + blocks_b:
            self._split = Overlapping(
                session, _kernel(session, split_source(plan.cluster, plan.held)), blocks_a + blocks_b, SPLIT_THREADS, "PPf",
                (
                    *map(address, self.addresses), i(call.K), i(blocks_a), long(call.lda), long(call.stride_a), i(p.rows),
                    i(matrices_a), i(a.lanes), long(call.ldb), long(call.stride_b), i(p.cols), i(matrices_b), i(b.lanes),
                ), plan._overlap,
            )  # fmt: skip
        if only_b:
            return
        tiles = ceil(p.rows, v.BM) * ceil(p.cols, v.BN) * p.batch
        maps: Any = session
        self._multiply = Overlapping(
            session, _kernel(session, product_source(v, **plan._more)), min(tiles, units), 128 * (v.CONSUMERS + 1), "PPPff",
            (
                address(info_a), address(info_b), address(_address(plan._count)),
                maps.tensor_map(CUDABuffer(terms_a, 0), p.rows * matrices_a, wide, (v.BM, 64)),
                maps.tensor_map(CUDABuffer(terms_b, 0), p.cols * matrices_b, wide, (v.BN, 64)),
                i(p.rows), i(p.cols), i(call.K), i(p.batch), i(p.rows if call.stride_a else 0), i(p.cols if call.stride_b else 0),
                long(call.lda), long(call.stride_a), i(across_a), long(call.ldb), long(call.stride_b), i(across_b), i(call.ldc),
                long(call.stride_c),
            ), plan._overlap,
        )  # fmt: skip
        self._kept = workspace

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """Split what is not split yet, and multiply."""
        self.split_only(a, b, queue, alpha)
        self.multiply_only(a, b, c, alpha, beta, queue)

    def split_only(self, a: int, b: int, queue: Any, alpha: float = 1.0) -> None:
        """The first launch."""
        if self._split is not None:
            self._split(queue, a + self._from_a, b + self._from_b, alpha)

    def multiply_only(self, a: int, b: int, c: int, alpha: float, beta: float, queue: Any) -> None:
        """The second."""
        assert self._multiply is not None
        self._multiply(queue, a + self._from_a, b + self._from_b, c + self._from_c, alpha, beta)


def _narrow(x: float) -> float:
    """As float32 has it, infinite where it is too large."""
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
