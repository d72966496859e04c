"""Golden record of what the library selects and launches: some 400 products on stored descriptions of three devices.

``python -m tests.golden`` writes ``selected.json`` and ``bits.json`` anew from the root of the repository; with
``--device cuda:0`` it adds the bits of a GPU's results to ``bits.json``. A change to either file is a decision, said in
its commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from toprung.backends import cublas
from toprung.backends.base import Session, Source
from toprung.backends.plan import Address, First, Handle, KernelLaunch, Map, Plan, Scalar
from toprung.device import Device
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, Selection, decoded
from toprung.dispatch.tuned import version
from toprung.errors import BuildError, IllegalTile, LaunchError
from toprung.execute import verify
from toprung.execute.executable import Executable
from toprung.gemm.desc import Desc, GemmDesc, GemvDesc
from toprung.kernels.tokens import tokens
from toprung.oracle.check import GUARD, hostile
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem
from toprung.oracle.problems import problem_of

FOLDER = Path(__file__).parent
SELECTED, BITS, DEVICES = FOLDER / "selected.json", FOLDER / "bits.json", FOLDER / "devices.json"

LAYOUTS = ("NN", "NT", "TN", "TT")
OPERANDS = {"a": 1 << 30, "b": 2 << 30, "c": 3 << 30}
"""Made-up addresses of A, B and C; memory that the library asks for lies at ``WORKSPACE`` and ``OWN``."""
WORKSPACE, OWN = 1 << 40, 1 << 44


# products


@dataclass(frozen=True)
class Asked:
    """One product as it is asked for."""

    desc: Desc
    precision: str = "auto"
    own: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    forced: Candidate | None = None

    def selection(self, device: Device) -> Selection:
        """Return the selection, or the forced configuration."""
        return Selection(self.forced) if self.forced else select(device, self.desc, self.own, self.precision)

    def __str__(self) -> str:
        values = {f.name: getattr(self.desc, f.name) for f in fields(self.desc)}
        given = {k: v for k, v in values.items() if v != DEFAULTS[type(self.desc)].get(k)}
        words = " ".join(f"{k}={int(v)}" for k, v in given.items())
        kind = "gemm" if isinstance(self.desc, GemmDesc) else "gemv"
        return (
            f"{kind} {words} | {'forced ' * bool(self.forced)}{self.precision}{' own' * self.own} α={self.alpha:g} β={self.beta:g}"
        )


DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    GemmDesc: {"batch": 1, "trans_a": False, "trans_b": False, "stride_a": 0, "stride_b": 0, "stride_c": 0, "beta_zero": True,
               "align_a": 4, "align_b": 4, "align_c": 4, "type_a": "float32", "type_b": "float32"},
    GemvDesc: {"trans": False, "incx": 1, "incy": 1, "align_a": 4, "align_x": 4, "beta_zero": True},
}  # fmt: skip


def gemm(m: int, n: int, k: int, layout: str = "NN", batch: int = 1, pad: int = 0, align: int = 4, **more: Any) -> GemmDesc:
    """A product with rows ``pad`` elements longer than they must be; matrices of a batch one below the other."""
    a, b = layout[0] == "T", layout[1] == "T"
    lds = (m if a else k) + pad, (k if b else n) + pad, n + pad
    rows = k if a else m, n if b else k, m
    strides = {f"stride_{name}": r * max(ld, 1) for name, r, ld in zip("abc", rows, lds, strict=True)} if batch > 1 else {}
    return GemmDesc(
        m, n, k, batch, a, b, *(max(ld, 1) for ld in lds), **{**strides, **more}, align_a=align, align_b=align, align_c=align
    )  # fmt: skip


PIECES = decoded({
    "kernel": "stream_k",
    "tile": {"BM": 128, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "TM": 8, "TN": 8, "VEC": 4, "VA": 4, "VB": 4, "STAGES": 1,
             "PADA": 4, "PADB": 4},
    "options": {"GROUP_M": 4, "INDEX32": 1, "ORDER": 1, "RESIDENT": 2, "TRANS_A": 0, "TRANS_B": 0, "VC": 4},
})  # fmt: skip
"""Nothing selects the product by pieces but what was tuned."""
STREAM_K = (gemm(8192, 8192, 64), gemm(3000, 3000, 3000), gemm(1000, 1004, 5000))


def asked(device: Device) -> list[Asked]:
    """The products of a device; layouts, precisions and scalars take turns, so that each meets each."""
    made = [Asked(call, "fp32", own=True) for call in calls(device.kind == "gpu")]
    if device.kind == "gpu":
        made += [Asked(call, "fp32", True, 1.5, 0.5, PIECES) for call in STREAM_K]
    gpu = device.backend == "cuda"
    for i, call in enumerate(calls(device.kind == "gpu")):
        if gpu and i % 2 == 0:
            made.append(Asked(call))
        if gpu and i % 4 == 1:
            made.append(Asked(call, "fp32x", own=True))
        if gpu and i % 9 == 2:
            made.append(Asked(call, "tf32"))
        if i % 5 == 3:
            beta = Asked(_with_beta(call), "auto", True, 1.5, -0.5)
            made += [beta, Asked(call, "fp32", True, 0.0, 0.5)] if i % 10 == 3 else [beta]
    return made


def _with_beta(desc: Desc) -> Desc:
    return replace(desc, beta_zero=False)


def calls(gpu: bool) -> list[Desc]:
    """Every kind of product there is: squares, deep, shallow, skinny, batched, broadcast, unaligned, empty, vectors."""
    squares = (1, 7, 16, 33, 64, 100, 128, 255, 256, 512, 777, 1000, 1024, 2048, 3000, 4096, 8191, 8192, 16384)
    shapes = [
        (4096, 4096, 64), (2048, 2048, 1), (128, 128, 100_000), (99, 101, 99_999), (256, 256, 65_536), (16384, 64, 4096),
        (64, 16384, 4096), (65536, 64, 1024), (333, 4097, 1025), (4000, 3000, 5000), (1, 1, 100_000), (17, 5000, 5000),
        (20000, 20000, 32), (1024, 64, 512),
    ]  # fmt: skip
    skinny = [
        (1, 4096, 4096),
        (4096, 1, 4096),
        (2, 8192, 1024),
        (8, 3000, 3000),
        (16, 4096, 4096),
        (4096, 16, 4096),
        (3, 1000, 20_000),
    ]
    if not gpu:
        squares = (1, 7, 16, 33, 64, 100, 128, 255, 300, 512)
        shapes = [(300, 300, 8), (40, 40, 10_000), (33, 31, 100_000), (1024, 64, 512), (200, 300, 1), (17, 500, 700), (1, 1, 5000)]
        skinny = [(1, 800, 900), (900, 1, 800), (2, 2000, 300), (8, 700, 700), (16, 900, 400), (900, 16, 400), (3, 200, 3000)]
    found: list[Desc] = [gemm(n, n, n, LAYOUTS[i % 4]) for i, n in enumerate(squares)]
    found += [gemm(n, n, n, layout) for n in ((512, 1024, 4096) if gpu else (256,)) for layout in LAYOUTS]
    found += [gemm(*shape, LAYOUTS[i % 4]) for i, shape in enumerate(shapes)]
    found += [gemm(*shape, layout) for i, shape in enumerate(skinny) for layout in (LAYOUTS[i % 4], LAYOUTS[(i + 1) % 4])]
    batches = [
        (64, 64, 64, 100),
        (256, 256, 256, 16),
        (99, 101, 103, 100),
        (1, 64, 64, 1000),
        (2048, 2048, 128, 4),
        (8, 8, 8, 70_000),
    ]
    for i, (m, n, k, batch) in enumerate(batches):
        if gpu or m * n * k * batch < 3e7:
            found.append(gemm(m, n, k, LAYOUTS[i % 4], batch))
            found.append(gemm(m, n, k, LAYOUTS[(i + 1) % 4], batch, stride_b=0))
    found += [gemm(n, n, n, layout, pad=pad, align=align)
              for n, pad, align in ((300, 1, 4), (300, 2, 2), (301, 0, 1), (300, 4, 4), (2052 if gpu else 150, 0, 1))
              for layout in ("NN", "TT")]  # fmt: skip
    found += [gemm(0, 5, 5), gemm(5, 0, 5, "TN"), gemm(5, 5, 0, "NT"), gemm(640, 640, 0)]
    for m, n in (
        ((5000, 5000), (100_000, 100), (100, 100_000), (77, 1300), (1, 1), (0, 9), (9, 0)) if gpu else ((600, 700), (77, 130))
    ):
        found += [GemvDesc(m, n, t, align_a=4, align_x=4) for t in (False, True)]
    found += [GemvDesc(700, 600, True, 601, 3, -2), GemvDesc(700, 600, False, 600, -1, 2, 2, 2)]
    return found


# what is selected, and what would be launched


@dataclass(eq=False)
class Recorder:
    """A session that keeps launches in place of starting them: no device is needed, nothing is computed."""

    device: Device
    queue: Any = 1
    launched: list[str] = field(default_factory=list)
    _context: Any = 1

    def fingerprint(self) -> str:
        """No compiler's."""
        return "recorder"

    def compile(self, source: Source) -> bytes:
        """Nothing is compiled."""
        return b"recorded"

    def load(self, binary: bytes, source: Source) -> Any:
        """The source stands for the kernel."""
        return SimpleNamespace(source=source)

    def allocate(self, nbytes: int) -> Any:
        """A made-up address."""
        return SimpleNamespace(handle=OWN, pointer=OWN, nbytes=nbytes, part=lambda offset, nbytes: self.allocate(nbytes))

    def upload(self, buffer: Any, array: Any) -> None:
        """Nowhere to."""

    def workspace(self, queue: Any, nbytes: int) -> Any:
        """A made-up address."""
        return SimpleNamespace(buffer=SimpleNamespace(handle=WORKSPACE, pointer=WORKSPACE, nbytes=nbytes), lock=threading.RLock())

    def current(self) -> Any:
        """Nothing to make current."""
        return contextlib.nullcontext()

    def flags(self, stream: int, nbytes: int) -> int:
        """A made-up address."""
        return OWN

    def launcher(self, plan: Plan) -> Any:
        """Return a function that keeps what is launched, with all its arguments."""

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None, addend: int = 0, packed: int = 0,
        ) -> None:  # fmt: skip
            handles, first = (a, b, c, addend, workspace or WORKSPACE, packed, OWN), (offset_a, offset_b, offset_c, 0, 0, 0, 0)
            for launch in plan.due(alpha, beta):
                words = (_word(argument, handles, first, plan.sizes, (alpha, beta, 1.0)) for argument in launch.arguments)
                self.keep(launch, words)

        return run

    def keep(self, launch: KernelLaunch, words: Iterable[str]) -> None:
        """One line a launch: function, grid, block, source with macros, arguments."""
        source = launch.kernel.source
        made = digest([*tokens(source.text), *(f"{k}={v}" for k, v in sorted(source.defines.items()))])
        grid, block = ("x".join(map(str, size)) for size in (launch.groups, launch.local))
        self.launched.append(f"{source.kernel} {grid} {block} {made} {digest(list(words))}")


def _word(argument: Any, handles: Any, first: Any, sizes: tuple[int, int], numbers: tuple[float, ...]) -> str:
    """Return an argument of a launch as text."""
    match argument:
        case Handle(slot):
            return f"{handles[slot]:x}"
        case First(slot, plus):
            return str(first[slot] + plus)
        case Address(slot, plus) | Map(slot, plus):
            size = sizes[slot] if slot < len(sizes) else 4
            shape = (
                [argument.rows, argument.cols, argument.stride, argument.box, argument.dtype] if isinstance(argument, Map) else ""
            )
            return f"{handles[slot] + size * first[slot] + plus:x} {shape}"
        case Scalar(number):
            return repr(numbers[number])
        case np.generic():
            return argument.tobytes().hex()
    return f"{argument.handle:x}"


def digest(words: Sequence[str]) -> str:
    """A short hash."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Have cuBLAS believed to be installed."""
    library = cublas.library
    cublas.library = lambda: "installed"
    try:
        yield
    finally:
        cublas.library = library


def selected(device: Device, one: Asked) -> str:
    """Return a line with the selection for a product and its launches."""
    selection = one.selection(device)
    stored = selection.candidate.encode()
    tile = " ".join(f"{k}={v}" for k, v in sorted(stored["tile"].items()))
    options = " ".join(f"{k}={v}" for k, v in sorted(stored["options"].items()))
    head = f"{stored['kernel']} [{tile}] [{options}] {selection.precision}"
    if not selection.family.own:
        return head
    session: Any = Recorder(device)
    executable = Executable.of(session, one.desc, selection)
    executable.run(OPERANDS["a"], 8, OPERANDS["b"], 16, OPERANDS["c"], 32, one.alpha, one.beta)
    source = version(stored["kernel"], device.backend)
    return f"{head} workspace={executable.lent_bytes} launches={executable.launches} source={source} : " + " ; ".join(
        session.launched
    )


def devices() -> dict[str, Device]:
    """The stored descriptions: the H200 by CUDA and by OpenCL, and two cores by PoCL."""
    return {
        name: Device(**{k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()})
        for name, facts in json.loads(DEVICES.read_text()).items()
    }


def all_selected() -> dict[str, dict[str, str]]:
    """Device → product → what is selected and launched."""
    with recording():
        return {name: {str(one): selected(device, one) for one in asked(device)} for name, device in devices().items()}


# bits of results


@dataclass(frozen=True)
class Forced:
    """A small problem and the configuration that computes it."""

    problem: Problem
    candidate: Candidate

    def __str__(self) -> str:
        p = {k: v for k, v in self.problem.describe().items() if k not in ("measured_in",)}
        stored = self.candidate.encode()
        return json.dumps([p, stored["kernel"], stored["tile"], dict(sorted(stored["options"].items()))])

    @staticmethod
    def read(text: str) -> Forced:
        """The inverse."""
        described, kernel, tile, options = json.loads(text)
        return Forced(problem_of(described), decoded({"kernel": kernel, "tile": tile, "options": options}))


def forced(device: Device) -> list[Forced]:
    """A problem with edges in every direction for each configuration that a device's products select, β = 0 and not."""
    found: dict[str, Forced] = {}
    with recording():
        for one in asked(device):
            selection = one.selection(device)
            if selection.family.own and one.precision != "tf32":
                for alpha, beta in verify.SCALARS:
                    made = Forced(*verify.small_problem(one.desc, selection.candidate, alpha, beta))
                    found.setdefault(str(made), made)
    return list(found.values())


def bits(session: Session, one: Forced) -> str:
    """A hash of the result's bits, any NaN counting as the same; the error's name where the device cannot run the configuration."""
    try:
        executable = Executable.of(session, one.problem.desc, one.candidate)
    except (BuildError, IllegalTile, LaunchError) as error:
        return type(error).__name__
    operands = hostile(one.problem)
    placed = OnDevice(operands, session)
    a, b, c = (placed.buffers[m.name].handle for m in one.problem.matrices)
    problem: Any = one.problem
    executable.run(a, GUARD, b, GUARD, c, GUARD, problem.alpha, problem.beta)
    result = np.ascontiguousarray(placed.fetch())
    result[np.isnan(result)] = np.nan
    return hashlib.sha256(result.tobytes()).hexdigest()[:16]
