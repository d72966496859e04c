"""Time candidates of kernel families, what the library selects, and PyTorch on the same products, in turns, once all are right.

    python benchmarks/candidates.py results/nvidia-h200/shapes.json --data normal
    python benchmarks/candidates.py OUT.json --shapes odd --precision fp32 --own --candidates default,rank:4,hopper_sgemm:4
    python benchmarks/candidates.py OUT.json --shapes routers --data normal --candidates default,hopper_inflight:2
    python benchmarks/candidates.py OUT.json --shapes presplit --data normal --candidates \\
        one/hopper_presplit,pass/hopper_presplit,prepacked/hopper_presplit,hopper_inflight:1,hopper_fp32x:1
    python benchmarks/candidates.py OUT.json --shapes deep,drawn --candidates hopper_fp32x,hopper_inflight,hopper_inflight_split_k
    python benchmarks/candidates.py OUT.json --shapes edges --data special,wide,tiny --rounds 0 --candidates hopper_inflight
    python benchmarks/candidates.py results/nvidia-h200/bias.json --shapes bias --data positive,lognormal,relu-relu,near-one \\
        --rounds 0 --peers fp32,tf32,bf16,triton_tf32x3,triton_bf16x6 --candidates \\
        default,hopper_fp32x,hopper_inflight:1,hopper_inflight_split_k:1,one/hopper_presplit:1,pass/hopper_presplit:1,hopper_strassen

A product is ``[TYPES/][LAYOUT:][BATCH*]MxNxK[+A+B+C][@SKIP]``: types of A and B (``f``, ``h`` and ``b`` for float32, float16 and
bfloat16), ``NT``, elements by which stored rows are longer than they need be, where NaN stands, and elements in front of A and B.
A name of ``SHAPES`` stands for its products. A candidate is ``default`` (what ``toprung.matmul`` selects), ``rank:N`` (the first N
of the cost model's order), ``FAMILY``, ``FAMILY:N`` (N of least predicted time) or ``FAMILY=TEXT`` (configurations that print so).
``prepacked/`` in front of a family gives it B split beforehand; ``one/`` and ``pass/`` have hopper_presplit split it in its own
launch and in one before that; ``any/`` takes all that a tuner may try, or N drawn of that, also of small products.

Each arm is held against float64: Inf and NaN where it has them, errors, nothing written beside C, the same bits twice, α and β.
Sums of one sign have a bias, which is printed, and which our own arms are held to, too.
On CUDA arms then take turns as graphs, which leave out the host's time. The record has seconds, errors, biases and predictions by
arm.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import toprung
from toprung import backends
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends.base import Session, Source
from toprung.device import Device, cores
from toprung.dispatch.ranking import ranked
from toprung.dispatch.selection import Candidate
from toprung.errors import LaunchError, Unsupported
from toprung.execute.executable import Executable
from toprung.gemm.desc import GemmDesc
from toprung.gemm.layout import aligned
from toprung.kernels.base import SearchedFamily, candidates
from toprung.kernels.build import is_kept, sources_of
from toprung.kernels.hopper_fp32x.config import IN_FLIGHT
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches
from toprung.kernels.registry import family
from toprung.lab import baselines
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.oracle.bias import Bias, bias
from toprung.oracle.data import SIGNED_GRADE
from toprung.oracle.gemm import Gemm
from toprung.oracle.precision import precision as promise
from toprung.tune.compiler import MOST, compile_one

SHAPES = {
    "programs": (  # squares, attention, batches, a few rows, routers, layers of a GPT of width 1024
        "256x256x256,512x512x512,1024x1024x1024,2048x2048x2048,NT:64*1024x1024x64,64*1024x64x1024,1024*64x64x64,256*128x128x128,"
        "64*256x256x256,32*512x512x512,128x4096x4096,16x4096x4096,NT:4096x256x7168,NT:64x256x7168,NT:16384x128x2048,"
        "NT:4096x1024x1024,NT:4096x3072x1024,NT:4096x1024x4096,TN:1024x3072x4096"
    ),
    "odd": (
        "1085x2219x2438,413x732x61981,1405x399x71663,423x2144x55458,1x4096x4096,100*99x101x103,37x4096x4096,4096x37x4096,"
        "2049x2049x2049,1023x1025x1027,999x4001x333,8191x129x1023,3520x11229x59,4096x100x4096,600x600x3000,130x130x100000"
    ),
    "deep": (  # gradients of weights, layers of a graph network, a vision transformer and BERT
        "TN:256x256x262144,TN:256x513x262144,262144x513x256,NT:262144x256x513,NT:768*197x197x64,768*197x64x197,TN:768*64x197x197,"
        "TN:256x256x16384,TN:256x512x16384,TN:512x384x32768,TN:768x768x4096,TN:3072x768x4096,TN:1024x1024x4096,TN:1024x3072x4096,"
        "413x732x61981,1405x399x71663,96x96x100000,300x300x5000,NT:1000x600x9000,128x4096x4096,NT:200x3000x3000,NT:64x256x7168,"
        "TT:4096x160x65536,512x512x512,1024x1024x1024,2048x2048x2048,1085x2219x2438,2049x2049x2049,NT:4096x50257x1024,"
        "NT:4096x768x768,NT:4096x1024x1024"
    ),
    "presplit": (  # routers and heads, products of a GPT's step, squares
        "NT:4096x256x7168,bf/NT:4096x256x7168,NT:16384x128x2048,NT:4096x1024x1024,NT:1024x256x7168,bf/NT:16384x64x2048,"
        "bf/NT:16384x256x4096,4096x256x7168,NT:4096x768x2048,bf/NT:4096x64x7168,bf/NT:1024x768x2048,TN:1024x1024x4096,"
        "NT:1024x1024x1024,bf/2048x512x4096,NT:2048x2048x2048,TN:4096x512x1024,hf/NT:4096x512x4096,TT:3000x384x5000,"
        "bf/NT:128x768x7168,NT:512x512x8192,8192x192x3072,bf/TN:6000x320x2560,NT:32768x96x1024,bf/NT:4096x128x4096"
    ),
    "routers": ",".join(
        f"{types}/NT:{m}x{n}x{k}"
        for m in (4096, 1, 16, 128, 1024, 16384) for n in (256, 64, 768) for k in (7168, 2048) for types in ("ff", "bf", "fb")
    ),
    "halves": ",".join(
        f"{t}/NT:{size}" for t in ("bb", "hh") for size in (
            "256x256x256", "1024x1024x1024", "4096x256x7168", "16x4096x4096", "4096x4096x1024", "1024x1024x16384", "4096x4096x4096")
    ),
    "slices": (
        "128x128x65536,256x256x131072,65536x64x4096,512x512x512,768x768x768,1000x1000x1000,384x384x16384,512x512x16384,"
        "512x512x65536,640x640x8192,128x4096x16384,128x128x4096"
    ),
    "bias": (  # K from 16 to 100,000; 3072, for powers of two show less bias; Strassen, halves, a batch
        "NT:4096x256x16,NT:4096x256x64,NT:4096x256x256,NT:4096x256x1024,NT:4096x256x3072,NT:4096x256x4096,"
        "NT:4096x256x20000,NT:4096x256x100000,NT:1024x1024x1024,NT:8192x8192x8192,bf/NT:4096x256x4096,"
        "fb/NT:4096x256x4096,bb/NT:4096x256x4096,hh/NT:4096x256x4096,"
        "NT:16*256x256x1024"
    ),
    "edges": (  # one element, prime sides, layouts, padding, alignments, batches, types: small, for checks
        "1x1x65,2*137x134x139,NT:2*137x134x139,TN:2*137x134x139,TT:2*137x134x139,129x65x203+5+6+3,TT:265x135x331+3+3+5@1,"
        "NT:137x262x203+2+2@2,NT:137x70x587@1,70x90x5000,NT:70x90x2500+0+4,700x2x12,3x700x5,bf/137x135x107+5+1,fb/NT:137x263x107+1+7,"
        "bf/TN:265x135x331+9+2+5,hf/TT:136x135x107+0+1,300*33x31x64,64x5000x4096,1000x1000x1000,TN:2100x230x40"
    ),
}  # fmt: skip
"""Products by the name of what they are for."""
TYPES = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16}
PEERS = {"fp32": "torch fp32", "tf32": "torch TF32", "half": "torch half", "bf16": "torch bf16"}
"""Arms of PyTorch's; ``half`` multiplies two halves as they are, the others convert them in the same graph."""
EMULATIONS = {"triton_tf32x3": ("Triton tf32x3", "tf32x3"), "triton_bf16x6": ("Triton bf16x6", "bf16x6")}
"""Arms of others that emulate fp32, and their precision paths, where they are installed and support the device; only checked.

cuBLAS emulates fp32 (BF16x9) on Blackwell alone: on an H200 its compute type gives the very bits of plain fp32."""
SAMPLE_SECONDS, LOWEST = 3e-3, 2.0**-149
UNIT = 2.0**-24
SAMPLED, WHOLE = 1 << 20, 1 << 34
"""Elements of C in whole rows that are compared with float64 where a product has more than so many multiply-adds."""

Arm = Callable[[float, float], Any]
"""Function of α and β that puts a product into PyTorch's stream, or the session's queue."""


@dataclass(frozen=True)
class Product:
    """A product: its sizes, layout and types, elements that stored rows are longer, and elements before an operand."""

    text: str
    batch: int
    m: int
    n: int
    k: int
    layout: str = "NN"
    types: str = "ff"
    longer: tuple[int, int, int] = (0, 0, 0)
    skip: int = 0

    @classmethod
    def of(cls, text: str) -> Product:
        """Return the product of a text as ``--shapes`` has it."""
        types, _, rest = text.rpartition("/")
        layout, _, rest = rest.rpartition(":")
        rest, _, skip = rest.partition("@")
        rest, *more = rest.split("+")
        batch, _, sizes = rest.rpartition("*")
        m, n, k = map(int, sizes.split("x"))
        on_a, on_b, on_c = (*map(int, more), 0, 0, 0)[:3]
        return cls(text, int(batch or 1), m, n, k, layout or "NN", types or "ff", (on_a, on_b, on_c), int(skip or 0))

    @property
    def stored(self) -> list[tuple[int, int, int]]:
        """Rows, columns and leading dimension of A, B and C in memory."""
        a, b = ((self.m, self.k), (self.k, self.n))
        sides = (a[::-1] if self.layout[0] == "T" else a, b[::-1] if self.layout[1] == "T" else b, (self.m, self.n))
        return [(rows, cols, cols + more) for (rows, cols), more in zip(sides, self.longer, strict=True)]

    def desc(self) -> GemmDesc:
        """Return its descriptor."""
        lda, ldb, ldc = (ld for *_, ld in self.stored)
        on_a, on_b, on_c = (rows * ld if self.batch > 1 else 0 for rows, _, ld in self.stored)
        align_a, align_b = (aligned(self.skip * TYPES[t].itemsize) for t in self.types)
        type_a, type_b = (str(TYPES[t]).removeprefix("torch.") for t in self.types)
        trans_a, trans_b = (t == "T" for t in self.layout)
        return GemmDesc(
            self.m, self.n, self.k, self.batch, trans_a, trans_b, lda, ldb, ldc, on_a, on_b, on_c, align_a, align_b, 4,
            type_a=type_a, type_b=type_b,
        )  # fmt: skip


def drawn(seed: int = 11, count: int = 48, odd: int = 16) -> str:
    """Return products that cost models are fitted on: layouts, batches and sizes; rows of the last ``odd`` begin anywhere."""
    rng, found = random.Random(seed), list[str]()
    while len(found) < count:
        step = 4 if len(found) < count - odd else 1
        batch = rng.choice((1, 1, 1, 4, 16, 64, 256))
        m, n, k = (int(2 ** rng.uniform(5, 12)) // step * step for _ in range(3))
        text = f"{rng.choice(('NN', 'NT', 'TN', 'TT'))}:{batch}*{m}x{n}x{max(k, 64)}"
        if 2**20 < batch * m * n * max(k, 64) < 2**35 and batch * m * n < 2**27:
            found.append(text)
    return ",".join(found)


SIGNED = ("uniform", "normal", "special", "tiny", "huge", "subnormal", "rising", "falling", "zeros")
"""Values with random signs and of one size, whose errors stay below ``SIGNED_GRADE`` units."""
BOTH_ONE_SIGNED = ("positive", "lognormal", "relu-relu", "near-one")
"""Values of one sign in both operands: sums show a bias."""
DATA = (*SIGNED, *BOTH_ONE_SIGNED, "wide", "relu", "softmax", "gradient")


def values(product: Product, data: str, rng: torch.Generator) -> list[torch.Tensor]:
    """Return A and B in fp32 as they are stored, without what rows are longer.

    ``relu``: what is negative of A is 0; ``wide``: besides, all are multiplied by e^(2N), N normal numbers; ``softmax:4``: A's
    stored rows are the softmax of normal numbers with that deviation; ``gradient:4``: B's are what such a softmax passes back.
    """
    kind, _, deviation = data.partition(":")
    made = []
    for rows, cols, _ in product.stored[:2]:
        x = torch.empty(product.batch, rows, cols, device=rng.device)
        is_normal = kind in ("normal", "lognormal", "relu-relu")
        made.append(x.normal_(generator=rng) if is_normal else x.uniform_(generator=rng))
    a, b = made if kind == "normal" or kind in BOTH_ONE_SIGNED else [x.sub_(0.5) for x in made]
    x, y = (one.mT if t == "T" else one for t, one in zip(product.layout, (a, b), strict=True))
    for one in (a, b):
        if kind == "lognormal":
            one.exp_()
        elif kind == "relu-relu":
            one.relu_()
        elif kind == "near-one":
            one.mul_(0.001).add_(1)
    if kind == "wide":
        for one in (a, b):
            one *= torch.exp(2 * torch.randn(one.shape, device=rng.device, generator=rng))
    if kind in ("relu", "wide"):
        a.relu_()
    elif kind in ("softmax", "gradient"):
        like = a if kind == "softmax" else b
        weights = (float(deviation) * torch.randn(like.shape, device=rng.device, generator=rng)).softmax(2)
        if kind == "gradient":
            given = torch.randn(like.shape, device=rng.device, generator=rng)
            weights *= given - (weights * given).sum(2, keepdim=True)
        like.copy_(weights)
    elif kind == "special":
        x[0, min(5, product.m - 1), min(50, product.k - 1)], x[0, -1, min(10, product.k - 1)] = math.inf, -math.inf
        y[0, min(3, product.k - 1), min(7, product.n - 1)] = math.nan
    elif kind in ("tiny", "huge", "subnormal"):
        power_a, power_b = {"tiny": (-100, -35), "huge": (-60, 127), "subnormal": (-130, 60)}[kind]
        a *= 2.0**power_a
        b *= 2.0**power_b
    elif kind in ("rising", "falling"):  # from one k-block of 32 to the next, where B has zeros
        steps = torch.exp2(60.0 * (torch.arange(product.k, device=rng.device) // 32).clamp(max=2) - 60)
        x *= steps if kind == "rising" else steps.flip(0)
        y *= 2.0**-30
        y[:, slice(32, None) if kind == "rising" else slice(0, 64), 5:20] = 0
    elif kind == "zeros":
        x[:, 3:60], y[:, :, min(7, product.n - 1)] = 0, 0
    return [a, b]


class Placed:
    """A product's operands on a device, with NaN where nothing may be read or stay, and what float64 makes of them."""

    def __init__(self, session: Session, product: Product, data: str) -> None:
        self.session, self.product, self.data, self.desc = session, product, data, product.desc()
        self.on_gpu = session.device.backend == "cuda"
        rng = torch.Generator("cuda" if self.on_gpu else "cpu").manual_seed(product.m + product.n + product.k)
        self.whole, self.views = [], []
        filled = [*values(product, data, rng), None]
        for (rows, cols, ld), kind, given in zip(product.stored, f"{product.types}f", filled, strict=True):
            skip = product.skip if given is not None else 0
            flat = torch.full((skip + product.batch * rows * ld,), math.nan, device=rng.device, dtype=TYPES[kind])
            view = flat[skip:].view(product.batch, rows, ld)[:, :, :cols]
            if given is not None:
                view.copy_(given)
            self.whole.append(flat)
            self.views.append(view)
        turned = (v.mT if t == "T" else v for t, v in zip(f"{product.layout}N", self.views, strict=True))
        self.x, self.y, self.z = turned if product.batch > 1 else (v[0] for v in turned)
        some = (
            1
            if product.batch * product.m * product.n * product.k < WHOLE
            else max(1, product.batch * product.m * product.n // SAMPLED)
        )
        self.some = (Ellipsis, slice(None, None, some), slice(None))
        x, y = self.x[self.some].double(), self.y.double()
        self.exact, self.size = x @ y, x.abs() @ y.abs()
        self.before = torch.rand(self.z.shape, generator=rng, device=rng.device)
        self.buffers = [] if self.on_gpu else [session.allocate(x.numel() * x.element_size()) for x in self.whole]
        for buffer, x in zip(self.buffers, self.whole, strict=False):
            session.upload(buffer, x.view(torch.uint8).numpy())

    @property
    def handles(self) -> list[Any]:
        """Handles of A, B and C."""
        return [x.data_ptr() for x in self.whole] if self.on_gpu else [buffer.handle for buffer in self.buffers]

    def run(self, arm: Arm, alpha: float, beta: float, is_ours: bool) -> torch.Tensor:
        """Run an arm once on a fresh C and return all of C's memory, what lies between rows included."""
        whole, view = self.whole[2], self.z
        whole.fill_(math.nan)
        if beta:
            view.copy_(self.before)
        if is_ours and not self.on_gpu:
            self.session.upload(self.buffers[2], whole.numpy())
        arm(alpha, beta)
        if self.on_gpu:
            torch.cuda.synchronize()
        elif is_ours:
            self.session.download(self.buffers[2], whole.numpy())
        return whole.clone()

    def fault(
        self, arm: Arm, alpha: float, beta: float, limit: float, is_ours: bool, most: float = math.inf
    ) -> tuple[str, float, float, Bias | None]:
        """Return what is wrong with an arm's result, as words, its Frobenius error, largest error in 2⁻²⁴·Σ|a||b|, and bias.

        ``limit``, ``most`` : the largest error and bias that are accepted
        """
        self.run(arm, alpha, beta, is_ours)
        old = beta * self.before[self.some].double() if beta else 0.0
        exact, size = alpha * self.exact + old, abs(alpha) * self.size + abs(old)
        found, finite = self.z[self.some], exact.isfinite()
        classes = [v.nan_to_num(7.0, 1e38, -1e38) for v in (found[~finite], exact[~finite].float())]
        off = (found.double() - exact).abs()[finite]
        error = float(off.norm() / exact[finite].norm()) if off.numel() else 0.0
        grade = float((off / (UNIT * size[finite] + LOWEST)).max()) if off.numel() else 0.0
        product = self.product
        share = bias(*(x.cpu().numpy() for x in (found, exact, size))) if self.data in BOTH_ONE_SIGNED else None
        beside = self.whole[2].view(product.batch, product.m, -1)[:, :, product.n :]
        reasons = ("other Inf and NaN than float64 has" if not torch.equal(*classes) else "",
                   "" if grade <= limit else f"an error of {grade:.3g} units, {limit:.3g} are allowed",
                   "" if share is None or not share.beyond(most) else f"a bias of {share.median:.2g}, {most:.2g} is allowed",
                   "" if bool(beside.isnan().all()) else "written beside C")  # fmt: skip
        return "; ".join(filter(None, reasons)), error, grade, share


def configured(device: Device, desc: GemmDesc, text: str, precision: str) -> Iterator[tuple[str, Candidate]]:
    """Yield the prefix and the candidate of each arm that a word of ``--candidates`` means for a product."""
    how, _, word = text.rpartition("/")
    if word.startswith("rank:"):
        first = ranked(device, desc, "fp32x" if precision == "auto" else precision)[: int(word[5:])]
        yield from (("", p.candidate) for p in first if p.seconds < math.inf)
        return
    name, _, wanted = word.partition("=")
    name, _, most = name.partition(":")
    one = family(name)
    if not {desc.type_a, desc.type_b} <= one.operand_dtypes:
        return
    if (how != "any" and one.supports(device, desc)) or (how == "one" and not desc.trans_b):
        return
    tried: Any = candidates(one, device, desc)
    if how == "any":  # legal points of the axes, also of a product so small that the family has none
        searched = isinstance(one, SearchedFamily)
        large = replace(desc, M=4096, N=4096, K=4096, batch=1, lda=4096, ldb=4096, ldc=4096)
        axes = one.space(device, large) if searched else one.config.axes()
        points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
        configs = (one.at(device, desc, point) if searched else replace(one.config, **point) for point in points)
        tried = dict.fromkeys(c for c in configs if c and not c.refused())
        if desc.batch > 1:  # in flight, parts of K take the place of a batch
            tried = [c for c in tried if getattr(c, "split", "") != IN_FLIGHT or c.k_parts == 1]
    found = [c for c in tried if wanted in str(c)]
    if most and how == "any":
        found = random.Random(str(desc)).sample(found, min(int(most), len(found)))
    elif most:
        found = sorted(found, key=lambda c: one.cost(device, desc, c))[: int(most)]
    yield from ((f"{how} " if how else "", Candidate(one, config)) for config in found)


def executable(placed: Placed, how: str, one: Candidate) -> Arm:
    """Return the arm of a candidate; it keeps what its launches need."""
    session, desc, (a, b, c) = placed.session, placed.desc, placed.handles
    skip_a = skip_b = placed.product.skip
    made: Any = Executable.of(session, desc, one)
    lent = torch.empty(max(made.lent_bytes, 4), dtype=torch.uint8, device=placed.whole[2].device)
    run, workspace, packed = made.starter(), lent.data_ptr() if placed.on_gpu else None, 0
    if how == "prepacked ":
        stored = replace(desc, type_a="float32")
        terms = one.family.packs(session, stored, b + 4 * skip_b, torch.cuda.current_stream().cuda_stream)
        if not made.accepts(terms):
            raise SystemExit(f"{one} takes no prepacked B")
        run, packed = made.prepacked.starter(), terms.address
    elif how in ("one ", "pass "):
        run = Fp32xLaunches(session, desc, one.config, is_one=how == "one ").starter()  # type: ignore[arg-type]

    def arm(alpha: float, beta: float) -> None:
        queue = torch.cuda.current_stream().cuda_stream if placed.on_gpu else None
        run(a, skip_a, b, skip_b, c, 0, alpha, beta, queue, workspace, 0, packed)

    arm.kept = made, lent, terms if packed else None  # type: ignore[attr-defined]
    return arm


def emulation(placed: Placed, word: str) -> Arm:
    """Return an arm of the laboratory's peers, which know α = 1 and β = 0 alone here; Unsupported where the peer is absent."""
    product, session = placed.product, placed.session
    if not placed.on_gpu or product.types != "ff":
        raise Unsupported(f"{word} multiplies float32 on CUDA devices")
    title, who = EMULATIONS[word][0], baselines.peer(word)
    if reason := who.absent(session.device):
        raise Unsupported(reason)
    lds = dict(zip(("lda", "ldb", "ldc"), (ld for *_, ld in product.stored), strict=True))
    problem = Gemm(product.m, product.n, product.k, trans=product.layout, batch=product.batch, **lds)
    parts = {name: session.foreign(x.data_ptr(), 4 * x.numel()) for name, x in zip("ABC", placed.whole, strict=True)}  # type: ignore[attr-defined]
    before = torch.cuda.current_stream()
    try:
        bound = who.prepare(SimpleNamespace(operands=SimpleNamespace(problem=problem), session=session, parts=parts))
        bound.run()
        session.synchronize()
    except Exception as error:  # the peers' own, of many kinds, where a device or a product is none for them
        raise Unsupported(f"{title}: {type(error).__name__}: {error}") from error
    finally:
        torch.cuda.set_stream(before)  # some peers go to the session's stream for good
    return lambda *_: (torch.cuda.synchronize(), bound.run(), session.synchronize())


def peer(placed: Placed, word: str) -> Arm:
    """Return an arm of PyTorch's."""
    x, y, z = placed.x, placed.y, placed.z
    theirs: Any = torch.bmm if placed.product.batch > 1 else torch.mm
    how = {"out_dtype": torch.float32} if word in ("half", "bf16") else {}
    kind = {"half": x.dtype, "bf16": torch.bfloat16}.get(word, torch.float32)

    def arm(*_: float) -> None:
        torch.backends.cuda.matmul.allow_tf32 = word == "tf32"
        theirs(x.to(kind), y.to(kind), out=z, **how)
        torch.backends.cuda.matmul.allow_tf32 = False

    return arm


def default(placed: Placed, options: argparse.Namespace) -> Arm:
    """Return the arm of what ``toprung.matmul`` selects."""
    how: dict[str, Any] = {"precision": options.precision, **({"own": True} if options.own else {})}
    how |= {} if placed.on_gpu else {"device": placed.session.device}
    x, y, z = (v if placed.on_gpu else v.numpy() for v in (placed.x, placed.y, placed.z))
    return lambda *_: toprung.matmul(x, y, z, **how)


def arms_of(placed: Placed, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Arm], str, float]]:
    """Yield each arm's name, what makes it, its precision path, and its predicted seconds (NaN for others' arms)."""
    product, device = placed.product, placed.session.device
    for word in filter(None, options.peers.split(",")):
        if word in EMULATIONS:
            title, path = EMULATIONS[word]
            yield title, functools.partial(emulation, placed, word), path, math.nan
        elif word not in ("half", "bf16") or (placed.on_gpu and (word == "bf16" or product.types in ("bb", "hh"))):
            path = word if word in ("tf32", "bf16") else "fp32"
            yield PEERS[word], functools.partial(peer, placed, word), path, math.nan
    for word in filter(None, options.candidates.split(",")):
        if word == "default":
            yield "toprung", functools.partial(default, placed, options), "fp32", math.nan
            continue
        for how, one in configured(device, placed.desc, word, options.precision):
            predicted = one.family.cost(device, placed.desc, one.config)
            yield (
                f"{how}{one.kernel} {one.config}",
                functools.partial(executable, placed, how, one),
                one.family.precision,
                predicted,
            )


def compile_all(session: Session, sources: list[Source]) -> None:
    """Compile what the build cache lacks on all cores; nothing to do where the backend is not CUDA."""
    mark, unlike = session.fingerprint(), {str(s): s for s in sources}.values()
    if session.device.backend == "cuda" and (lacking := [s for s in unlike if not is_kept(s, mark)]):
        with ProcessPoolExecutor(min(cores(), MOST), get_context("spawn")) as pool:
            todo = [pool.submit(compile_one, s, session.device.arch, mark) for s in lacking]
            print(f"{len(todo)} sources, {sum(bool(f.result()) for f in todo)} not compiled", flush=True)


def captured(run: Callable[[], Any], calls: int, side: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """Return a graph of ``calls`` calls; each library is called on the stream before, and has its handles and memory."""
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(calls):
            run()
    return graph


def seconds(run: Callable[[], Any]) -> float:
    """Return the GPU's seconds of what is put into the queue."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def elapsed(session: Session, run: Callable[[], Any], calls: int) -> float:
    """Return the wall seconds of a call where there are no graphs."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    session.synchronize()
    return (time.perf_counter() - start) / calls


def measured(placed: Placed, options: argparse.Namespace) -> dict[str, Any]:
    """Return errors, predictions and samples of every arm; an arm that is wrong has no samples."""
    product = placed.product
    row: dict[str, Any] = {
        "text": product.text, "size": [product.batch, product.m, product.n, product.k], "layout": product.layout,
        "types": product.types, "data": placed.data, "seconds": {}, "error": {}, "grade": {}, "bias": {}, "bias_chance": {},
        "wrong": [], "predicted": {}, "kernel": "",
    }  # fmt: skip
    samplers: dict[str, Callable[[], float]] = {}
    side = torch.cuda.Stream() if placed.on_gpu else None
    kept = []  # what a graph launches must stay: executables own counters and maps of tensors
    signed = SIGNED_GRADE if placed.data in SIGNED else None
    for name, make, path, predicted in arms_of(placed, options):
        if name in row["error"]:
            continue  # two words of --candidates may mean it
        print(f"{product.text} {placed.data} {name}", flush=True)  # whoever ends the process is the last one named
        is_ours, limit = not math.isnan(predicted), promise(path).limit(product.k, signed)
        most = promise("fp32x" if name == "toprung" else path).bias_limit(product.k, near_one=2 * (placed.data == "near-one"))
        if not (is_ours or name == "toprung") or "f" not in product.types:
            most = math.inf  # of others it is shown, and of two halves, which have no lo that could carry a share
        try:
            arm = make()
        except (LaunchError, Unsupported) as error:  # a tuner may try it, and this product is none for it
            print(f"  {error}", flush=True)
            continue
        reason, row["error"][name], row["grade"][name], share = placed.fault(arm, 1.0, 0.0, limit, is_ours, most)
        if share is not None and math.isfinite(share.low):
            row["bias"][name], row["bias_chance"][name] = share.median, (share.high - share.low) / 2
            print(f"  bias {share.median:+.2e} by {share.low:+.2e} to {share.high:+.2e}", flush=True)
        if name == "toprung" and (left := toprung.last_receipt()) is not None:
            row["kernel"] = "; ".join(left.kernels)
        if is_ours:
            row["predicted"][name] = predicted
            reason = reason or placed.fault(arm, 0.5, 2.0, limit, is_ours)[0]
            first, again = (placed.run(arm, 1.0, 0.0, is_ours).view(torch.int32) for _ in range(2))
            reason = reason or ("" if torch.equal(first, again) else "other bits in a second run")
        if reason:
            row["wrong"].append(f"{name}: {reason}")
            print(f"  WRONG {reason}", flush=True)
            continue
        run = functools.partial(arm, 1.0, 0.0)
        kept.append(run)
        if not options.rounds or name in (title for title, _ in EMULATIONS.values()):
            continue
        if not placed.on_gpu:
            calls = max(1, min(200, round(SAMPLE_SECONDS / max(elapsed(placed.session, run, 1), 1e-6))))
            samplers[name] = functools.partial(elapsed, placed.session, run, calls)
            continue
        seconds(run)
        calls = max(1, min(200, round(SAMPLE_SECONDS / max(seconds(run), 1e-6))))
        graph = captured(run, calls, side)
        if reason := placed.fault(lambda *_, graph=graph: graph.replay(), 1.0, 0.0, limit, is_ours)[0]:
            row["wrong"].append(f"{name}, graph: {reason}")
            continue
        samplers[name] = lambda graph=graph, calls=calls: seconds(graph.replay) / calls  # type: ignore[misc]
    row["seconds"] = {name: [] for name in samplers}
    for _ in range(options.rounds):
        for name, sample in samplers.items():
            row["seconds"][name].append(sample())
    return row


def line(row: dict[str, Any], most: int = 6) -> str:
    """Return a product's table: µs of each arm, the fastest first, times PyTorch's over it, errors over PyTorch's."""
    found = {name: 1e6 * statistics.median(samples) for name, samples in row["seconds"].items()}
    base, theirs = found.get("torch fp32", math.nan), row["error"].get("torch fp32", math.nan)
    lines = [f"{row['text']} {row['data']}: torch fp32 {base:.1f} µs" + "".join(f"\n   WRONG {w}" for w in row["wrong"])]
    for name in sorted(found, key=found.__getitem__)[:most]:
        told = f" (predicted {1e6 * row['predicted'][name]:.1f})" if name in row["predicted"] else ""
        kernel = f": {row['kernel']}" if name == "toprung" else ""
        error = row["error"][name] / theirs
        lines.append(f"   {found[name]:9.1f} {base / found[name]:6.3f}  error {error:5.2f}  {name}{kernel}{told}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", default="programs", help=f"products with commas, or of {', '.join(SHAPES)}, drawn")
    parser.add_argument("--candidates", default="default", help="default, rank:N, FAMILY, FAMILY:N, FAMILY=TEXT, with commas")
    parser.add_argument("--peers", default="fp32,tf32", help=f"of {', '.join((*PEERS, *EMULATIONS))}, with commas")
    parser.add_argument("--data", default="uniform", help=f"with commas, of {', '.join(DATA)}, the last two with :X")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "fp32x"))
    parser.add_argument("--own", action="store_true", help="the default by toprung's own kernels alone")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each arm; 0 only checks")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further product is begun")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    for data in options.data.split(","):
        if data.partition(":")[0] not in DATA or (data.startswith(("softmax", "gradient")) and ":" not in data):
            parser.error(f"--data is of {', '.join(DATA)}, softmax:X and gradient:X with a deviation, not {data}")
    begin, device = time.monotonic(), backends.find(options.device)
    handle: Any = device.handle
    session = session_at(Home("cuda", handle)) if device.backend == "cuda" else backends.open_device(device)
    texts = ",".join(drawn() if name == "drawn" else SHAPES.get(name, name) for name in options.shapes.split(",")).split(",")
    products = [Product.of(text) for text in texts]
    sources: list[Source] = []
    for product in products:
        for word in (w for w in options.candidates.split(",") if w and w != "default"):
            for _, one in configured(device, product.desc(), word, options.precision):
                sources += sources_of(one.family, device, product.desc(), one.config)
    compile_all(session, sources)
    what = f"python benchmarks/candidates.py results/{device.slug}/{options.out.name} --shapes {options.shapes}"
    what += f" --candidates {options.candidates} --peers {options.peers} --data {options.data} --precision {options.precision}"
    what += " --own" * options.own
    rows: list[dict[str, Any]] = []
    for product in products:
        for data in options.data.split(","):
            if time.monotonic() - begin > options.limit:
                print(f"no time is left for {product.text}")
                continue
            rows.append(measured(Placed(session, product, data), options))
            print(line(rows[-1]), flush=True)
            wrong = [f"{row['text']} {row['data']} {w}" for row in rows for w in row["wrong"]]
            results.write(options.out, results.record(what, environment(session), [], wrong, candidates=rows))
    ratios = [
        statistics.median(row["seconds"]["toprung"]) / statistics.median(row["seconds"]["torch TF32"])
        for row in rows if {"toprung", "torch TF32"} <= row["seconds"].keys()
    ]  # fmt: skip
    if ratios:
        print(f"toprung over TF32: geometric mean {statistics.geometric_mean(ratios):.3f} of {len(ratios)} products")
    print(f"{len(rows)} products, {sum(len(row['wrong']) for row in rows)} wrong, {time.monotonic() - begin:.0f} s")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
