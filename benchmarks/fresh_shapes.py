"""Time steps that meet new shapes, by PyTorch alone and with toprung's kernels, and the first ``toprung.matmul`` of a shape.

    python benchmarks/fresh_shapes.py results/nvidia-h200/fresh-shapes.json [--device cuda:0]
    python benchmarks/fresh_shapes.py OUT.json --device cpu --cases graphs,matmul --rounds 1 --seconds 0.5

Each run is a process of its own, in turns: PyTorch alone, again, toprung without a compiled kernel (cold), and with those of the
run before (warm). Step i of a case has the same shape in each run, and its time is compared with that of PyTorch alone; PyTorch's
own second run shows what the host adds by itself. The first and the last result of a run are checked against float64; a wrong run
is a failure, and enters no ratio.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.paths import cache_dir
from torch_models import WRONG, listed, options

ARMS = ("PyTorch", "again", "cold", "warm")
TOPRUNG = ARMS[2:]

LONG = 1.3
"""Times as long as PyTorch's from which on a single step is counted as ``long``."""

LATE = 2.0
"""Seconds after the first step from which on a cold program should run at full speed."""

PREPARING = 10.0
"""Seconds that a cold run prepares after its last step, so that the warm run finds kernels."""

LOADING = {"cuda": 24, "opencl": 2}
"""First shapes of ``matmul``, by backend, that are left out of the medians: they load kernels that later shapes share."""

Made = tuple[nn.Module, Callable[[int], tuple[torch.Tensor, ...]], Iterator[int]]
"""A network, its inputs by size, and the sizes of its steps, each new unless the case repeats them."""


class Product(nn.Module):
    """A product of two matrices."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Decoder(nn.Module):
    """A layer of a decoder that computes one token with the keys and values of all before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.query, self.out = heads, nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        batch, width = x.shape
        query = self.query(x).view(batch * self.heads, 1, width // self.heads)
        weights = torch.softmax(query @ keys.transpose(1, 2) * query.shape[-1] ** -0.5, -1)
        x = x + self.out((weights @ values).view(batch, width))
        return x + self.down(F.gelu(self.up(x)))


class Convolutions(nn.Module):
    """Two graph convolutions: features times weights, then sums over the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x)
            x = F.gelu(y.index_add(0, end, y[start]))
        return x


def _shuffled(low: int, high: int) -> Iterator[int]:
    """Yield each size of a range once, in an order that is always the same, and then all over again."""
    return itertools.cycle(random.Random(0).sample(range(low, high), high - low))


def batch_sizes(small: bool) -> Made:
    """Six linear layers, forward and backward, with a new batch size each step."""
    width = 16 if small else 1024
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())))
    return net, lambda n: (torch.randn(n, width),), _shuffled(16, 64 if small else 4096)


def sequence_lengths(small: bool) -> Made:
    """A transformer's layer, forward and backward, four sequences of a new length each step."""
    width = 16 if small else 768
    heads, how = width // 8 if small else 12, {"dropout": 0.0, "activation": "gelu", "batch_first": True}
    net = nn.TransformerEncoderLayer(width, heads, 4 * width, **how)
    return net, lambda n: (torch.randn(4, n, width),), _shuffled(16, 64 if small else 1024)


def growing_cache(small: bool) -> Made:
    """Generation by eight streams, with one more key and value each step."""
    width, heads, streams = (32, 4, 8) if small else (1024, 16, 8)

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(streams, width), *(torch.randn(streams * heads, n, width // heads) for _ in range(2))

    return Decoder(width, heads).requires_grad_(False), inputs, itertools.cycle(range(16 if small else 512, 8192))


def graphs(small: bool) -> Made:
    """Convolutions on a graph with a new number of nodes each step, forward and backward."""
    width = 16 if small else 256

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(n, width), torch.randint(n, (8 * n,)), torch.randint(n, (8 * n,))

    return Convolutions(width), inputs, _shuffled(100, 500 if small else 20_000)


def in_turn(small: bool) -> Made:
    """Three hundred products of different sizes in turn, again and again."""
    draw, most = random.Random(0), 64 if small else 2048
    shapes = [[round(16 * (most / 16) ** draw.random()) for _ in range(3)] for _ in range(300)]
    return (
        Product(),
        lambda n: (torch.randn(shapes[n][0], shapes[n][2]), torch.randn(*shapes[n][:0:-1])),
        itertools.cycle(range(300)),
    )


CASES: dict[str, Callable[[bool], Made]] = {
    "batch": batch_sizes, "sequence": sequence_lengths, "cache": growing_cache, "graphs": graphs, "in-turn": in_turn,
}  # fmt: skip


# one run


def drawn(inputs: Callable[[int], tuple[torch.Tensor, ...]], size: int) -> tuple[torch.Tensor, ...]:
    """Return the inputs of a step, the same ones in each run."""
    torch.manual_seed(size)
    return inputs(size)


def outcome(net: nn.Module, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Run a step, backward where the network learns; return its result and the gradients."""
    made = net(*given)
    weights = [p for p in net.parameters() if p.requires_grad]
    return [made.detach(), *(torch.autograd.grad(made.sin().mean(), weights) if weights else ())]


def error(net: nn.Module, given: tuple[torch.Tensor, ...]) -> float:
    """Return a step's largest error against float64's, in norms of its tensors."""
    exact = outcome(copy.deepcopy(net).double(), tuple(x.double() if x.is_floating_point() else x for x in given))
    return max(((x - e).norm() / e.norm()).item() for x, e in zip(outcome(net, given), exact, strict=True))


def steps(case: str, arm: str, device: torch.device, small: bool, seconds: float) -> dict[str, Any]:
    """Run a case for a time; return start and seconds of each step, and whether kernels were being prepared after it."""
    import toprung.torch
    from toprung.blas import background
    from toprung.torch import products

    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.manual_seed(0)
    with torch.device(device):
        net, inputs, sizes = CASES[case](small)
        first = next(sizes)
        given, size, found = drawn(inputs, first), first, []
        if arm in TOPRUNG:
            toprung.torch.enable(**options(device, small))
        finish()
        began = time.perf_counter()
        while not found or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            outcome(net, given)
            finish()
            end = time.perf_counter()
            preparing = products.now is not None and any(e.job and not e.job.done.is_set() for e in products.now.entries.every())
            found.append((start - began, end - start, preparing))
            size = next(sizes)
            given = drawn(inputs, size)
        said, end = toprung.torch.report() if arm in TOPRUNG else None, time.perf_counter() + PREPARING
        while arm == "cold" and background.HERE._open and time.perf_counter() < end:
            toprung.torch.wait(0.5)
        wrong = max(error(net, drawn(inputs, one)) for one in (first, size))
        toprung.torch.disable()
    return {"steps": found, "taken": said.taken if said else 0, "overrides": said.overrides if said else "", "error": wrong}


def firsts(device: backends.Device, small: bool, seconds: float) -> list[dict[str, Any]]:
    """Return seconds of the first and second ``toprung.matmul`` of shapes with a new M, or all sizes new, by kind of array.

    Shapes inside a known range of sizes have a row of their own. CuPy's arrays are left out where it is not installed.
    """
    import numpy as np

    import toprung
    from toprung.blas import background, fresh

    draw, rows, least, most = random.Random(0), [], 16, 128 if small else 2048
    place = torch.device(device.id) if device.backend == "cuda" else torch.device("cpu")
    finish = torch.cuda.synchronize if place.type == "cuda" else lambda: None
    put: dict[str, Callable[..., Any]] = {"NumPy": np.asarray, "PyTorch": lambda x: torch.from_numpy(x).to(place)}
    if place.type == "cuda" and importlib.util.find_spec("cupy"):
        put["CuPy"] = importlib.import_module("cupy").asarray
    hits, find = list[object](), fresh.Kin.find
    fresh.Kin.find = lambda kin, size: hits.append(find(kin, size)) or hits[-1]
    for arrays, kind in itertools.product(put, ("new M", "new sizes")):
        taken: list[list[list[float]]] = [[], []]
        wrong, rng, began, sizes = 0.0, np.random.default_rng(0), time.perf_counter(), _shuffled(least, 2 * most)
        multiply = partial(toprung.matmul, own=True, device=device if arrays == "NumPy" else None)
        while len(taken[0]) <= LOADING[device.backend] or (time.perf_counter() - began < seconds and max(map(len, taken)) < 300):
            drawn_sizes = (round(least * (most / least) ** draw.random()) for _ in range(3))
            m, n, k = (next(sizes), most // 2, most // 2) if kind == "new M" else drawn_sizes
            host = [rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n))]
            a, b = map(put[arrays], host)
            times = []
            hits.clear()
            for _ in range(2):
                finish()
                start = time.perf_counter()
                made = multiply(a, b)
                times.append(time.perf_counter() - start)
            exact = host[0].astype(np.float64) @ host[1]
            there = np.asarray(made.get() if arrays == "CuPy" else made.cpu() if arrays == "PyTorch" else made)
            wrong = max(wrong, float(np.linalg.norm(there - exact) / np.linalg.norm(exact)))
            taken[any(hits)].append(times)
            if len(taken[0]) == LOADING[device.backend]:
                background.HERE.wait()
        for some, more, loading in zip(taken, ("", " in a range"), (LOADING[device.backend], 0), strict=True):
            rows.append({"arrays": arrays, "kind": kind + more, "seconds": some, "loading": loading, "error": wrong})
    return rows


def child(given: argparse.Namespace, device: backends.Device) -> None:
    """Measure one run, in a process of its own, and print its figures as JSON."""
    small = device.backend != "cuda"
    place = torch.device("cpu" if small else device.id)
    torch.set_num_threads(1)  # on a CPU a core is left for what prepares, as on a GPU's host
    case, arm = given.run
    found = firsts(device, small, given.seconds) if case == "matmul" else steps(case, arm, place, small, given.seconds)
    print(json.dumps(found))


# all runs


def run(case: str, arm: str, given: argparse.Namespace, device: backends.Device, folder: str) -> Any:
    """Return what a run in a process of its own measured."""
    names = {name: f"{folder}/{name}" for name in ("TOPRUNG_CACHE", "TOPRUNG_DATA", "POCL_CACHE_DIR", "XDG_CACHE_HOME")}
    command = [sys.executable, __file__, str(given.out), "--device", device.id, "--seconds", str(given.seconds), "--run", case, arm]
    limit = 120 + 20 * given.seconds
    done = subprocess.run(command, env={**os.environ, **names}, stdout=subprocess.PIPE, text=True, check=True, timeout=limit)
    return json.loads(done.stdout.splitlines()[-1])


def compared(case: str, rounds: list[dict[str, Any]], failures: list[str]) -> list[dict[str, Any]]:
    """Return a case's rows by arm: how many times as long as PyTorch's its steps took, each the median of the rounds.

    ``first``: the first step. ``median``: of all others, ``preparing``: of those while kernels were prepared, ``late``: of those
    ``LATE`` seconds after the first. ``worst``: the largest of a single step, ``long``: share of those beyond ``LONG``. ``ready``:
    seconds after which nothing was prepared any more, if that was before the last step. ``step``: seconds of PyTorch's step.
    """
    rows = []
    wrong = [(arm, one[arm]["error"]) for one in rounds for arm in ARMS if not one[arm]["error"] <= WRONG["toprung"]]
    failures += [f"{case} {arm}: wrong by {away:.1e}" for arm, away in wrong]
    theirs = [[seconds for _, seconds, _ in one["PyTorch"]["steps"]] for one in rounds]
    usual = [statistics.median(turns) for turns in zip(*theirs, strict=False)]
    for arm in ARMS[1:]:
        found: dict[str, list[float]] = {}
        for one in rounds:
            if not one[arm]["error"] <= WRONG["toprung"]:
                continue
            pairs = list(zip(one[arm]["steps"], usual, strict=False))
            ratios = [(start, seconds / alone, preparing) for (start, seconds, preparing), alone in pairs]
            kinds = {
                "first": [r for _, r, _ in ratios[:1]],
                "median": [r for _, r, _ in ratios[1:]],
                "preparing": [r for _, r, preparing in ratios[1:] if preparing],
                "late": [r for start, r, _ in ratios[1:] if start > LATE],
                "worst": [max((r for _, r, _ in ratios[1:]), default=1.0)],
                "long": [statistics.mean(r > LONG for _, r, _ in ratios[1:])] if ratios[1:] else [],
                "ready": [max((start + seconds for start, seconds, preparing in one[arm]["steps"] if preparing), default=0.0)],
            }
            if one[arm]["steps"][-1][2]:
                del kinds["ready"]
            for name, values in kinds.items():
                if values:
                    found.setdefault(name, []).append(statistics.median(values))
        row = {name: statistics.median(values) for name, values in found.items()}
        counts = {"steps": [len(one[arm]["steps"]) for one in rounds], "taken": [one[arm]["taken"] for one in rounds]}
        counts["overrides"] = rounds[0][arm]["overrides"]
        rows.append({"case": case, "kernels": arm, "step": statistics.median(usual), **counts, **row})
    return rows


def spread(rounds: list[dict[str, Any]], failures: list[str]) -> list[dict[str, Any]]:
    """Return rows of ``matmul``: microseconds of a row's first call, and of a shape's first over its second call."""
    rows = []
    for arm in TOPRUNG:
        for turns in zip(*(one[arm] for one in rounds), strict=True):
            row = {"arrays": turns[0]["arrays"], "kind": turns[0]["kind"], "kernels": arm}
            failures += [f"matmul {row}: wrong by {one['error']:.1e}" for one in turns if not one["error"] <= WRONG["toprung"]]
            later = [pair for one in turns for pair in one["seconds"][one["loading"] :]]
            if not later:  # no range was found
                continue
            more = [1e6 * (first - second) for first, second in later]
            row["process_first"] = 1e6 * statistics.median(one["seconds"][0][0] for one in turns if one["seconds"])
            row["second"] = 1e6 * statistics.median(second for _, second in later)
            row["shapes"], row["more"] = len(later), statistics.median(more)
            row["more_low"], row["more_high"] = sorted(more)[len(more) // 10], sorted(more)[-1 - len(more) // 10]
            rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--cases", type=listed((*CASES, "matmul")), default=[*CASES, "matmul"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a run, or of a kind of matmul")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    device = backends.find("pocl" if given.device == "cpu" else given.device)
    if given.run:
        child(given, device)
        return 0
    rows, failures = {"steps": [], "matmul": []}, list[str]()
    for case in given.cases:
        rounds = []
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as folder:
                for built in ("bridge", "entry"):  # a cold process has these, as from a wheel
                    if (cache_dir() / built).is_dir():
                        shutil.copytree(cache_dir() / built, Path(folder) / "TOPRUNG_CACHE" / built)
                rounds.append({arm: run(case, arm, given, device, folder) for arm in (TOPRUNG if case == "matmul" else ARMS)})
        if case == "matmul":
            rows["matmul"] = spread(rounds, failures)
            for row in rows["matmul"]:
                print(
                    "{arrays:8}{kind:22}{kernels:5} first of all {process_first:9.0f} µs, second of a shape ".format(**row),
                    end="",
                )
                print("{second:6.0f}, first {more:6.0f} more ({more_low:.0f} … {more_high:.0f})".format(**row), flush=True)
            continue
        rows["steps"] += (added := compared(case, rounds, failures))
        for row in added:
            shown = [f"{name} {row[name]:.2f}" for name in ("first", "median", "preparing", "late", "worst", "long") if name in row]
            print(f"{case:9}{row['kernels']:5} {1e3 * row['step']:6.2f} ms, × PyTorch's: {', '.join(shown)};", end="")
            ready = f"ready after {row['ready']:.1f} s" if "ready" in row else "not ready"
            print(f" {ready}, {row['taken']} taken in {row['steps']} steps", flush=True)
    words = f"--cases {','.join(given.cases)} --rounds {given.rounds} --seconds {given.seconds:g}"
    what = f"python benchmarks/fresh_shapes.py results/{device.slug}/{given.out.name} {words}"
    facts = environment(backends.session_for(device))
    facts["packages"]["torch"] = torch.__version__
    results.write(given.out, results.record(what, facts, [], failures, fresh_shapes=rows))
    print(*failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
