"""Multiply random matrices and compare results with float64 and with the vendor's on the same data.

    python benchmarks/fuzz.py --device cuda:0 --seeds 1,2,3 --count 3334 --out fuzz.json
    python benchmarks/fuzz.py --device opencl:0 --minutes 1

A product is a short program: operands with values, views and batches of all kinds, ``out`` inside guarded memory, one call. It is
run as source, so that a failure can be made smaller and printed as a program that reproduces it. A product fails if

* it raises, though the vendor's does not; or writes outside ``out``;
* an element has another class (finite, Inf, -Inf, NaN) than the vendor's, unless sums of its terms can overflow;
* an error is larger than any order of summing allows;
* its rms error is more than ``RMS`` times the vendor's, or its largest one more than ``LARGEST`` times the vendor's and ``UNITS``;
* sums of one sign have a bias beyond what chance and their precision path allow (``toprung.oracle.bias``).

Errors are counted in units of u·(|α||A||B| + |β||C|), u = 2⁻²⁴, element by element, so that rows of different scale count alike.
The limits on rms and largest error are for products of ``JUDGED`` results or more; smaller ones are judged together, by kernel
and K. Results of expanded operands, which are the same many times over, count once, and a vendor's own kernels are not judged.

The vendor is cuBLAS, by PyTorch, on an NVIDIA GPU, and elsewhere NumPy's BLAS, with operands copied to contiguous ones.

A run that ``--minutes`` ends before ``--count`` continues when it is run again with the same sources and ``--out``; failed
products are examined again.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import os
import queue
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import toprung
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment, kernels
from toprung.oracle.bias import bias
from toprung.oracle.precision import precision
from toprung.oracle.problem import UNIT_ROUNDOFF

RMS, LARGEST, UNITS, JUDGED = 1.3, 2.0, 4.0, 4096
GUARD, CANARY = 64, 1.2345678
STUCK = 60
"""Seconds without an outcome after which all processes are ended; only products in progress are lost."""
VENDORS = ("cublas", "numpy", "host_blas")
"""Kernels of a vendor's, whose errors differ with the layout they are called in: they are not judged."""
FLOAT32_MAX = float(np.finfo(np.float32).max)

VALUES = {
    "uniform": "rng.uniform(-1, 1, shape)",
    "normal": "rng.standard_normal(shape)",
    "positive": "rng.random(shape)",
    "spread 1": "(rng.random(shape) - 0.5) * np.exp(rng.standard_normal(shape))",
    "spread 2": "(rng.random(shape) - 0.5) * np.exp(2 * rng.standard_normal(shape))",
    "spread 4": "(rng.random(shape) - 0.5) * np.exp(4 * rng.standard_normal(shape))",
    "huge": "rng.uniform(-1, 1, shape) * 2.0**60",
    "overflowing": "rng.uniform(-1, 1, shape) * 2.0**63",
    "tiny": "rng.uniform(-1, 1, shape) * 2.0**-60",
    "subnormal": "rng.uniform(-1, 1, shape) * 2.0**-127",
    "scaled rows": "rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-30, 30, (*shape[:-1], 1))",
    "scaled columns": "rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-30, 30, shape[-1:])",
    "Inf": "np.where(rng.random(shape) < 3e-4, rng.choice([np.inf, -np.inf], shape), rng.uniform(-1, 1, shape))",
    "NaN": "np.where(rng.random(shape) < 1e-4, np.nan, rng.uniform(-1, 1, shape))",
    "integers": "rng.integers(-4, 5, shape)",
    "fp16": "rng.uniform(-1, 1, shape).astype(np.float16)",
}
"""Expressions for the values of an operand, rounded to float32 afterwards."""
ONE_SIGNED = {
    "positive": VALUES["positive"],
    "e^normal": "np.exp(rng.standard_normal(shape))",
    "ReLU": "np.maximum(rng.standard_normal(shape), 0)",
    "near one": "1 + 0.001 * rng.random(shape)",
}
"""Values of both operands in one product of five: sums have terms of one sign, and show a bias."""
USUAL = ("uniform", "normal", "positive", "spread 1")
"""Values that half of all operands have."""

VIEWS = {
    "dense": ("(*batch, rows, cols)", ""),
    "transposed": ("(*batch, cols, rows)", ".swapaxes(-1, -2)"),
    "padded": ("(*batch, rows, cols + 5)", "[..., :cols]"),
    "padded, transposed": ("(*batch, cols, rows + 3)", "[..., :rows].swapaxes(-1, -2)"),
    "wide": ("(*batch, rows, cols + 8)", "[..., 4 : cols + 4]"),
    "offset": ("(*batch, rows, cols + 3)", "[..., 1 : cols + 1]"),
    "every second column": ("(*batch, rows, 2 * cols)", "[..., ::2]"),
    "every second row": ("(*batch, 2 * rows, cols)", "[..., 1::2, :]"),
}
"""Views of a larger array: its shape and what is taken of it."""


@dataclass(frozen=True)
class Side:
    """An operand: batch dimensions, values, view, and whether one row (or column) stands for all of them."""

    batch: tuple[int, ...] = ()
    values: str = "uniform"
    view: str = "dense"
    expanded: str = ""


@dataclass(frozen=True)
class Case:
    """A product to multiply: sizes, operands, and how it is called."""

    seed: int
    M: int
    N: int
    K: int
    a: Side = field(default_factory=Side)
    b: Side = field(default_factory=Side)
    batch: tuple[int, ...] = ()
    out: str = "dense"
    routine: str = "matmul"
    alpha: float = 1.0
    beta: float = 0.0
    precision: str = "auto"
    own: bool = True

    def __str__(self) -> str:
        times = "".join(f"{n}×" for n in self.batch)
        scalars = f", α {self.alpha:g}, β {self.beta:g}" if self.routine == "sgemm" else ""
        sides = (f"{s.values}, {s.view}{', expanded ' + s.expanded if s.expanded else ''}" for s in (self.a, self.b))
        return f"{times}{self.M}×{self.N}×{self.K} ({'; '.join(sides)}; out {self.out}){scalars}, {self.precision}"


def side_length(rng: random.Random, largest: int) -> int:
    """Return a length: 1 to ``largest`` by its logarithm, a power of two or a neighbour of one, or anything."""
    kind = rng.random()
    if kind < 0.5:
        return min(largest, round(math.exp(rng.uniform(0, math.log(largest)))))
    if kind < 0.75:
        return max(1, min(largest, (1 << rng.randint(0, largest.bit_length())) + rng.choice((-1, 0, 0, 0, 1))))
    return rng.randint(1, largest)


def drawn(seed: int, number: int, largest: int) -> Case:
    """Return the product that a seed and a number stand for, with sides up to ``largest``."""
    rng = random.Random(f"{seed}:{number}")
    m, n, k = (side_length(rng, largest) for _ in range(3))
    if rng.random() < 0.04:
        m, n, k = side_length(rng, largest // 4), side_length(rng, largest // 4), rng.randint(5 * largest, 25 * largest)
    if rng.random() < 0.01:
        m, n, k = rng.choice(((0, n, k), (m, 0, k), (m, n, 0)))
    batch: tuple[int, ...] = ()
    if rng.random() < 0.3 and m * n * k < largest**3 // 8:
        most = max(1, min(200, largest**3 // 8 // max(m * n * k, 1), (1 << 25) // max(m * n, m * k, n * k, 1)))
        batch = (side_length(rng, most),) if rng.random() < 0.7 else (side_length(rng, min(most, 14)), rng.randint(1, 3))
    sides = []
    for _ in "ab":
        kind, of = rng.random(), batch
        if batch and kind < 0.2:
            of = ()
        elif batch and kind < 0.35:
            which = rng.randrange(len(batch))
            of = tuple(1 if i == which else length for i, length in enumerate(batch))
        values = rng.choice(USUAL) if rng.random() < 0.5 else rng.choice(tuple(VALUES))
        view = "dense" if rng.random() < 0.3 else rng.choice(tuple(VIEWS))
        expanded = rng.choice(("rows", "columns")) if rng.random() < 0.04 else ""
        sides.append(Side(of, values, view, expanded))
    a, b = sides
    if batch and not (a.batch or b.batch):
        batch = ()
    elif batch:
        batch = np.broadcast_shapes(a.batch, b.batch)
    case = Case(
        rng.randrange(1 << 30), m, n, k, a, b, batch, out=rng.choice(tuple(VIEWS)), own=rng.random() < 0.7,
        precision=rng.choice(("auto", "auto", "fp32", "fp32", "fp32x")),
    )  # fmt: skip
    if not batch and rng.random() < 0.25:
        scalars = {"alpha": rng.choice((1.0, -1.0, 0.7, 0.0)), "beta": rng.choice((0.0, 1.0, 1.3, -0.5))}
        case = replace(case, routine="sgemm", out="transposed", **scalars)
    if rng.random() < 0.2:
        a, b = (replace(side, values=rng.choice(tuple(ONE_SIGNED))) for side in (a, b))
        case = replace(case, a=a, b=b)
    if rng.random() < 0.02:  # a router's or a head's: a long A meets few columns
        sizes = rng.randint(largest, 6 * largest), rng.randint(33, 256), rng.randint(largest // 2, 2 * largest)
        case = replace(case, M=sizes[0], N=sizes[1], K=sizes[2], a=replace(a, batch=()), b=replace(b, batch=()), batch=())
    return case


def operand_lines(name: str, side: Side, rows: int, cols: int, put: str) -> str:
    """Return statements that make an operand: its values inside a larger array of NaN."""
    few = (1 if side.expanded == "rows" else rows), (1 if side.expanded == "columns" else cols)
    outer, view = VIEWS[side.view]
    lines = [
        f"batch, rows, cols = {side.batch}, {few[0]}, {few[1]}",
        "shape = (*batch, rows, cols)",
        f"{name} = full({outer}){view}",
        f"{name}[...] = {put}(np.asarray({(VALUES | ONE_SIGNED)[side.values]}, np.float32))",
    ]
    if side.expanded:
        lines.append(f"{name} = xp.broadcast_to({name}, (*batch, {rows}, {cols}))")
    return "\n".join(lines)


def program(case: Case, device: str) -> str:
    """Return the product as a program: afterwards ``found`` is the result, and ``room`` has ``out`` and what surrounds it."""
    gpu = device.startswith("cuda")
    call = f"precision={case.precision!r}, own={case.own}" + ("" if gpu else f", device={device!r}")
    outer, view = VIEWS[case.out]
    text = [
        "import math",
        "import numpy as np",
        *(["import torch as xp"] if gpu else ["xp = np"]),
        "import toprung",
        "",
        f"rng = np.random.default_rng({case.seed})",
        "put = lambda values: xp.from_numpy(values).to(where)" if gpu else "put = lambda values: values",
        f"where = {device!r}",
        (
            "full = lambda shape, value=math.nan: xp.full(shape, value, device=where)"
            if gpu
            else "full = lambda shape, value=math.nan: np.full(shape, value, np.float32)"
        ),
        operand_lines("a", case.a, case.M, case.K, "put"),
        operand_lines("b", case.b, case.K, case.N, "put"),
        f"batch, rows, cols = {case.batch}, {case.M}, {case.N}",
        f"outer = {outer}",
        f"inside = lambda room: room[{GUARD} : {GUARD} + math.prod(outer)].reshape(outer){view}",
        f"room = full((math.prod(outer) + {2 * GUARD},), {CANARY})",
        "out = inside(room)",
    ]
    if case.routine == "sgemm":
        old = "put(rng.uniform(-1, 1, (rows, cols)).astype(np.float32))" if case.beta else "math.nan"
        text += [
            f"out[...] = {old}",
            f"old = {'np.copy(out)' if not gpu else 'out.clone()'}",
            f"found = toprung.sgemm({case.alpha}, a, b, {case.beta}, out, overwrite_c=1, {call})",
        ]
    else:
        text += ["out[...] = math.nan", "old = None", f"found = toprung.matmul(a, b, out, {call})"]
    return "\n".join(text) + "\n"


def vendors(case: Case, a: Any, b: Any, old: Any, device: str) -> Any:
    """Return the vendor's result; where α = 0, C times β."""
    if not case.alpha:
        return old * np.float32(case.beta) if case.beta else 0 * (old == old)
    if device.startswith("cuda"):
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        if "transposed" in case.out:  # cuBLAS adds up in another order where the result lies the other way
            a, b, old = b.mT, a.mT, None if old is None else old.mT
        found = torch.matmul(a, b) if old is None else torch.addmm(old, a, b, alpha=case.alpha, beta=case.beta)
        return found.mT if "transposed" in case.out else found
    product = np.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b))
    if old is not None:
        product = np.float32(case.alpha) * product
        product = product + np.float32(case.beta) * old if case.beta else product
    return product


@dataclass
class Errors:
    """Errors of a result in units of u·(|α||A||B| + |β||C|), and relative to the whole: rms, largest, Frobenius."""

    rms: float
    largest: float
    frobenius: float


@dataclass
class Outcome:
    """Outcome of a product.

    Attributes
    ----------
    kernel : kernels that ran, with their tiles; empty if nothing had to be computed
    results : finite results whose errors are compared, those of expanded operands once
    ours, vendor : errors; None where nothing is compared
    bias : median signed relative error of sums of one sign; None where there are none
    failures : what must not be, a sentence each
    """

    case: Case
    kernel: str = ""
    results: int = 0
    ours: Errors | None = None
    vendor: Errors | None = None
    bias: float | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Our rms error over the vendor's; infinite where only the vendor makes none."""
        if not (self.ours and self.vendor and self.ours.rms):
            return 1.0
        return self.ours.rms / self.vendor.rms if self.vendor.rms else math.inf


def errors_of(found: Any, reference: Any, magnitude: Any, where: Any, xp: Any) -> Errors:
    """Return the errors of the results that ``where`` names."""
    difference = xp.abs(found[where] - reference[where])
    least = 2.0**-150  # below the normal range fp32 rounds to a fixed step: half of it
    units = difference / xp.clip(UNIT_ROUNDOFF * magnitude[where], least, None)
    norm = float((reference[where] ** 2).sum()) ** 0.5
    frobenius = float((difference**2).sum()) ** 0.5 / norm if norm else 0.0
    return Errors(float((units**2).mean()) ** 0.5, float(units.max()), frobenius)


def classes(array: Any, xp: Any) -> Any:
    """Return 0 for finite numbers, 1 for Inf, 2 for -Inf, 3 for NaN."""
    return 1 * (array == math.inf) + 2 * (array == -math.inf) + 3 * xp.isnan(array)


def examined(case: Case, device: str) -> Outcome:
    """Run a product and return what is to be said of it."""
    if gpu := device.startswith("cuda"):
        import torch as xp
    else:
        xp = np  # type: ignore[no-redef]
    names: dict[str, Any] = {}
    try:
        with np.errstate(all="ignore"):
            exec(program(case, device), names)
    except Exception as error:
        return Outcome(case, failures=[f"{type(error).__name__}: {error}"])
    receipt = toprung.last_receipt()
    outcome = Outcome(case, ", ".join(receipt.kernels) if receipt else "")
    a, b, old, out, room = (names[name] for name in ("a", "b", "old", "out", "room"))

    result = xp.clone(out) if gpu else np.copy(out)
    out[...] = CANARY
    if bool((room != room[0]).any()):
        outcome.failures.append("something outside of out was written")
    if not math.prod(result.shape):
        return outcome

    def wide(array: Any) -> Any:
        return array.double() if gpu else np.asarray(array, np.float64)

    with np.errstate(all="ignore"):
        found, product, bound, finite_bound = wide(result), 0.0, 0.0, 0.0
        alpha, beta = float(np.float32(case.alpha)), float(np.float32(case.beta))
        if alpha:
            of_a, of_b = wide(a), wide(b)
            product, bound = alpha * (of_a @ of_b), abs(alpha) * (xp.abs(of_a) @ xp.abs(of_b))
            finite = [xp.where(xp.isfinite(x), xp.abs(x), 0.0) for x in (of_a, of_b)]
            finite_bound = abs(alpha) * (finite[0] @ finite[1])
        if old is not None and beta:
            product, bound = product + beta * wide(old), bound + abs(beta) * xp.abs(wide(old))
            finite_bound = finite_bound + abs(beta) * xp.abs(wide(old))
        product, bound, finite_bound = (x + 0 * xp.where(xp.isfinite(found), found, 0.0) for x in (product, bound, finite_bound))
        theirs = wide(vendors(case, a, b, old, device))
        differ = (classes(found, xp) != classes(theirs, xp)) & (finite_bound <= FLOAT32_MAX * (1 - 2.0**-20))
        if bool(differ.any()):
            outcome.failures.append(
                f"{int(differ.sum())} results of another class than the vendor's, first {float(found[differ][0])} and "
                f"{float(theirs[differ][0])}"
            )
        where = xp.isfinite(found) & xp.isfinite(theirs) & (bound <= FLOAT32_MAX)
        copies = (case.N if case.b.expanded == "columns" else 1) * (case.M if case.a.expanded == "rows" else 1)
        outcome.results = int(where.sum()) // copies  # rows or columns that are all the same have the same errors
        if bool(where.any()):
            outcome.ours = errors_of(found, product, bound, where, xp)
            outcome.vendor = errors_of(theirs, product, bound, where, xp)
            outcome.failures += judged(outcome)
        kinds = case.a.values, case.b.values
        if receipt and {*kinds} <= ONE_SIGNED.keys():
            # rows of C from copies of a row of A have the same errors; where each column of B is one number, all rows of C share
            # its rounding: one row counts
            copied = {case.a.expanded, case.b.expanded}
            one = (..., slice(1 if "rows" in copied else None), slice(1 if "columns" in copied else None))
            off = bias(*(x[one].cpu().numpy() if gpu else x[one] for x in (found, product, bound)))
            most = precision(receipt.precision).bias_limit(case.K, case.alpha, kinds.count("near one"))
            outcome.bias = off and off.median
            if off and off.beyond(most) and not outcome.kernel.startswith(VENDORS):
                outcome.failures.append(f"sums of one sign are off by {off.median:.3g} of themselves, {most:.3g} are allowed")
    if gpu and xp.cuda.memory_reserved() > 2 << 30:
        names.clear()
        del a, b, old, out, room, result, found, theirs, product, bound, finite_bound
        xp.cuda.empty_cache()  # other processes multiply on the same device
    return outcome


def judged(outcome: Outcome) -> list[str]:
    """Return what is wrong with the errors of a product."""
    ours, vendor, found = outcome.ours, outcome.vendor, []
    assert ours and vendor
    if not ours.largest <= outcome.case.K + 4:
        found.append(f"an error of {ours.largest:.3g} units, more than any order of summing gives")
    if outcome.results >= JUDGED and not outcome.kernel.startswith(VENDORS):
        if not ours.rms <= RMS * vendor.rms:
            found.append(f"the rms error is {ours.rms:.3g} units, the vendor's {vendor.rms:.3g}")
        if not ours.largest <= max(LARGEST * vendor.largest, UNITS):
            found.append(f"the largest error is {ours.largest:.3g} units, the vendor's {vendor.largest:.3g}")
    return found


def simpler(case: Case) -> Iterator[Case]:
    """Yield products that are like one and simpler, the simplest first."""
    plain = Side()
    for name in "MNK":
        size = getattr(case, name)
        for less in {1, size // 16, size // 4, size // 2, size - size // 4, size - 1}:
            if 0 < less < size:
                yield replace(case, **{name: less})
    if case.batch:
        yield replace(case, batch=(), a=replace(case.a, batch=()), b=replace(case.b, batch=()))
    if case.routine != "matmul":
        yield replace(case, routine="matmul", alpha=1.0, beta=0.0)
    yield replace(case, out="dense" if case.routine == "matmul" else "transposed")
    for name in "ab":
        side = getattr(case, name)
        for more in (
            replace(plain, batch=side.batch),
            replace(side, view="dense"),
            replace(side, expanded=""),
            replace(side, values="uniform"),
        ):
            yield replace(case, **{name: more})


def shrunk(case: Case, fails: Callable[[Case], bool], tries: int = 200) -> Case:
    """Return a product that fails as well and of which nothing simpler does, as far as so many tries show."""
    again = True
    while again and tries > 0:
        again = False
        for less in simpler(case):
            if less == case or tries <= 0:
                continue
            tries -= 1
            if fails(less):
                case, again = less, True
                break
    return case


def kind_of(failure: str) -> str:
    """Return a failure without its numbers."""
    return "".join(c for c in failure.partition(":")[0] if not c.isdigit())[:40]


def family_of(kernel: str) -> str:
    """Return the name of the first of the kernels that ran, without its tile."""
    return kernel.split(" ")[0].rstrip(",")


def reproduction(case: Case, device: str) -> str:
    """Return a program that reproduces a failure: as small as it gets, with the errors it has."""
    before = {kind_of(f) for f in examined(case, device).failures}
    if before:
        case = shrunk(case, lambda less: bool(before & {kind_of(f) for f in examined(less, device).failures}))
    lines = [f"# {failure}" for failure in examined(case, device).failures] or ["# fails no more when it is run again"]
    return "\n".join([f"# {case}", *lines, program(case, device)])


# many products: children multiply them, so that one that takes its process along costs only itself


def child(device: str, largest: int) -> None:
    """Examine products, named by seed and number on standard input: a JSON line each, then loaded kernels."""
    for line in sys.stdin:
        seed, number = (int(word) for word in line.split())
        case = drawn(seed, number, largest)
        try:
            outcome = examined(case, device)
        except Exception:
            outcome = Outcome(case, failures=[f"the comparison failed: {traceback.format_exc(limit=-1)}"])
        print(json.dumps(asdict(outcome)), flush=True)
    print(json.dumps(kernels()))


def outcomes(
    numbers: Iterator[tuple[int, int]], device: str, largest: int, jobs: int, loaded: dict[str, str]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield seed, number and outcome of products from ``jobs`` processes; add their kernels to ``loaded``."""
    done: queue.SimpleQueue[tuple[int, int, dict[str, Any]] | None] = queue.SimpleQueue()
    lock, processes = threading.Lock(), dict[int, subprocess.Popen[str]]()
    command = [sys.executable, __file__, "--child", "--device", device, "--largest", str(largest)]

    def start(job: int) -> subprocess.Popen[str]:
        processes[job] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return processes[job]

    def serve(job: int) -> None:
        process = start(job)
        while True:
            with lock:
                at = next(numbers, None)
            if at is None:
                break
            assert process.stdin and process.stdout
            print(*at, file=process.stdin, flush=True)
            if line := process.stdout.readline():
                done.put((*at, json.loads(line)))
            else:
                case = drawn(*at, largest)
                done.put((*at, asdict(Outcome(case, failures=[f"the process ended with status {process.wait()}"]))))
                process = start(job)
        assert process.stdin and process.stdout
        process.stdin.close()
        loaded.update(json.loads(process.stdout.readline() or "{}"))
        process.wait()
        done.put(None)

    for job in range(jobs):
        threading.Thread(target=serve, args=(job,), daemon=True).start()
    running = jobs
    while running:
        try:
            one = done.get(timeout=STUCK)
        except queue.Empty:
            for process in processes.values():
                process.kill()
            continue
        if one is None:
            running -= 1
        else:
            yield one


@dataclass
class Pool:
    """Small products of one kernel and one range of K, judged together."""

    products: int = 0
    results: int = 0
    ours: float = 0.0
    vendor: float = 0.0

    def add(self, results: int, ours: float, vendor: float) -> None:
        """Count a product's results and rms errors."""
        self.products, self.results = self.products + 1, self.results + results
        self.ours, self.vendor = self.ours + results * ours**2, self.vendor + results * vendor**2

    @property
    def ratio(self) -> float:
        """Our rms error over the vendor's."""
        return math.sqrt(self.ours / self.vendor) if self.vendor else 1.0 if not self.ours else math.inf


COLUMNS = (
    "seed", "number", "batch", "M", "N", "K", "values", "kernel", "results", "rms", "vendor_rms", "largest", "vendor_largest",
    "frobenius", "vendor_frobenius", "bias",
)  # fmt: skip
"""Columns of a stored product, a line with ``|`` between them: errors in units, Frobenius errors relative to the result."""


def stored(seed: int, number: int, outcome: Mapping[str, Any]) -> list[Any]:
    """Return a product as it is stored."""
    case, ours, vendor = outcome["case"], outcome["ours"] or {}, outcome["vendor"] or {}
    sides = [case["M"], case["N"], case["K"], f"{case['a']['values']} × {case['b']['values']}"]
    errors = [float(f"{of[name]:.4g}") if of else None for name in ("rms", "largest", "frobenius") for of in (ours, vendor)]
    off = None if outcome["bias"] is None else float(f"{outcome['bias']:.3g}")
    return [seed, number, math.prod(case["batch"]), *sides, outcome["kernel"], outcome["results"], *errors, off]


def line_of(row: list[Any]) -> str:
    """Return a product as a line of the record."""
    return "|".join("" if value is None else str(value) for value in row)


def earlier(out: Path | None, what: str, facts: Mapping[str, Any]) -> tuple[dict[tuple[int, int], str], dict[str, str]]:
    """Return passed products by seed and number, and kernels, of a record of the same command and sources."""
    if not (out and out.exists()):
        return {}, {}
    old = results.read(out)
    where = [(of["src"], of["device"]["name"], of["device"]["driver"]) for of in (old["environment"], facts)]
    if not old["what"].startswith(what + " ") or where[0] != where[1]:
        return {}, {}
    lines = {(int(seed), int(number)): line for line in old["products"] for seed, number in [line.split("|")[:2]]}
    failed = {text.partition(" ")[0] for text in old["failures"]}
    return {at: line for at, line in lines.items() if "{}:{}".format(*at) not in failed}, old["environment"]["kernels"]


def products(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the compared products of a record, by column, with the ratio of their rms errors."""
    for line in record["products"]:
        of: dict[str, Any] = dict(zip(record["columns"], line.split("|"), strict=True))
        if of["rms"] and of["kernel"]:
            ours, theirs = float(of["rms"]), float(of["vendor_rms"])
            ratio = ours / theirs if theirs else 1.0 if not ours else math.inf
            yield {**of, "results": int(of["results"]), "K": int(of["K"]), "rms": ours, "vendor_rms": theirs, "ratio": ratio}


def judged_alone(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the products that are judged by themselves: large ones that a kernel of ours computed."""
    for of in products(record):
        if of["results"] >= JUDGED and not of["kernel"].startswith(VENDORS):
            yield of


def pools(record: Mapping[str, Any]) -> dict[tuple[str, int], Pool]:
    """Return the small products by family and by the bits of K."""
    found = collections.defaultdict[tuple[str, int], Pool](Pool)
    for of in products(record):
        if of["results"] < JUDGED and not of["kernel"].startswith(VENDORS):
            found[family_of(of["kernel"]), max(of["K"], 1).bit_length()].add(of["results"], of["rms"], of["vendor_rms"])
    return found


def named(pool: tuple[str, int]) -> str:
    """Return a pool as text."""
    return f"{pool[0]}, K {1 << pool[1] - 1} to {(1 << pool[1]) - 1}"


def summary(record: Mapping[str, Any]) -> list[str]:
    """Return a few lines on all products."""
    alone = sorted(of["ratio"] for of in judged_alone(record))
    lines = [f"{len(record['products'])} products, {len(record['failures'])} failures"]
    if alone:
        at = {"median": 0.5, "99 %": 0.99, "largest": 1.0}
        text = ", ".join(f"{name} {alone[min(len(alone) - 1, int(share * len(alone)))]:.3g}" for name, share in at.items())
        lines.append(f"rms errors over the vendor's, of {len(alone)} products of {JUDGED} results and more: {text}")
    judged_pools = {name: pool for name, pool in pools(record).items() if pool.results >= JUDGED}
    for name, pool in sorted(judged_pools.items(), key=lambda item: -item[1].ratio)[:3]:
        lines.append(f"of smaller ones together, {named(name)}: {pool.ratio:.3g} ({pool.products} products)")
    return lines


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", help="an id, as toprung devices lists them; the best by default")
    arguments.add_argument("--seeds", help="numbers with commas; by default one that the clock gives")
    arguments.add_argument("--count", type=int, help="products of each seed")
    arguments.add_argument("--minutes", type=float, help="time after which no further product begins; 1 without --count")
    arguments.add_argument("--largest", type=int, help="longest side but for deep K; 3000 on a GPU, 400 elsewhere")
    arguments.add_argument("--jobs", type=int, help="processes; one for each core of a GPU's host, up to 16, else 1")
    arguments.add_argument("--shrink", type=int, default=3, help="failures of which the smallest program is looked for")
    arguments.add_argument("--out", type=Path, help="file for the record")
    arguments.add_argument("--only", help="SEED:NUMBER of a product to run alone")
    arguments.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    device = backends.find(chosen.device)
    largest = chosen.largest or (3000 if device.kind == "gpu" else 400)
    if chosen.child:
        child(device.id, largest)
        return 0
    if chosen.only:
        seed, number = (int(word) for word in chosen.only.split(":"))
        print(reproduction(drawn(seed, number, largest), device.id))
        return 0
    seeds = [int(word) for word in chosen.seeds.split(",")] if chosen.seeds else [int(time.time())]
    minutes = chosen.minutes or (None if chosen.count else 1.0)
    jobs = chosen.jobs or (min(16, os.cpu_count() or 1) if device.kind == "gpu" else 1)
    end = time.monotonic() + 60 * minutes if minutes else math.inf
    count = range(chosen.count) if chosen.count else itertools.count()
    what = f"python benchmarks/fuzz.py --device {device.id} --seeds {','.join(map(str, seeds))} --largest {largest}"
    facts = environment(device)
    lines, facts["kernels"] = earlier(chosen.out, what, facts)
    asked = ((seed, number) for number in count for seed in seeds if (seed, number) not in lines)
    numbers = itertools.takewhile(lambda _: time.monotonic() < end, asked)
    print(f"{device.name}, seeds {', '.join(map(str, seeds))}, {jobs} at once, {len(lines)} products done before", flush=True)

    failures, started, before = [], time.monotonic(), len(lines)
    for seed, number, outcome in outcomes(numbers, device.id, largest, jobs, facts["kernels"]):
        lines[seed, number] = line_of(stored(seed, number, outcome))
        if outcome["failures"]:
            failures.append((seed, number, outcome))
            print(f"{seed}:{number} {outcome['kernel']}: {'; '.join(outcome['failures'])[:300]}", flush=True)
        elif len(lines) % 500 == 0:
            print(f"{len(lines) - before} products in {time.monotonic() - started:.0f} s, {len(failures)} failed", flush=True)
    kinds = dict[tuple[str, str], Case]()
    for seed, number, outcome in failures:
        kinds.setdefault((family_of(outcome["kernel"]), kind_of(outcome["failures"][0])), drawn(seed, number, largest))
    programs = [reproduction(case, device.id) for case in list(kinds.values())[: chosen.shrink]]
    texts = [f"{seed}:{number} {outcome['kernel']}: {'; '.join(outcome['failures'])}" for seed, number, outcome in failures]
    what += f" --count {chosen.count}" if chosen.count else f" --minutes {minutes:g}"
    cut = bool(chosen.count) and len(lines) < chosen.count * len(seeds)
    more = {
        "limits": {"rms": RMS, "largest": LARGEST, "units": UNITS, "judged": JUDGED, "vendors": VENDORS},
        "columns": COLUMNS,
        "programs": programs,
    }
    record = results.record(what, facts, [], texts, cut, products=[lines[at] for at in sorted(lines)], **more)
    record["failures"] += [
        f"smaller products together, {named(name)}: rms error {pool.ratio:.3g} times the vendor's over {pool.results} results"
        for name, pool in pools(record).items()
        if pool.results >= JUDGED and not pool.ratio <= RMS
    ]
    if chosen.out:
        results.write(chosen.out, record)
    for text in programs:
        print(f"\n{text}")
    print("", *summary(record), *record["failures"][len(texts) :], sep="\n")
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
