"""Steps of whole programs: PyTorch in fp32, PyTorch in TF32, and toprung's fp32 under PyTorch.

    python benchmarks/torch_models.py results/nvidia-h200/programs.json --modes eager,graphed
    python benchmarks/torch_models.py results/nvidia-h200/programs.json --programs gpt2,swin --modes compiled --seconds 5
    python benchmarks/torch_models.py OUT.json --programs nerf --modes eager --seeds 3
    python benchmarks/torch_models.py OUT.json --small --device cpu

The programs are those of ``torch_programs.py``. A step runs as written (eager), through ``torch.compile`` (compiled) and as a
replayed CUDA graph (graphed). Before anything is timed, its gradients or results are compared with float64's of the same weights
and inputs. The arms then take turns in one process. If toprung's error is over ``TOLERATED`` times PyTorch fp32's, ``DRAWS`` of
weights and inputs are compared. If the median is over as well, the result file says so and the exit status is 1. A run that was
cut short goes on: what OUT.json holds is measured again only with ``--again``.

With ``--seeds``, errors are taken for as many draws of weights and inputs. ``--arms`` can add ``bf16``: PyTorch in fp32 under
autocast to bfloat16.

It keeps a loop of its own: what is timed is a whole step, forward and backward, which is no product of ``compare``.
"""

import argparse
import contextlib
import datetime
import functools
import gc
import importlib.metadata
import math
import signal
import statistics
import sys
import time
import types
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import toprung.torch
from toprung import backends
from toprung.backends import cuda
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.stats import paired_ratio
from toprung.torch import timing
from torch_programs import MODES, PROGRAMS, in_double, made

ARMS = ("fp32", "tf32", "toprung", "bf16")

WRONG = {"fp32": 1e-3, "tf32": 0.3, "toprung": 1e-3, "bf16": 0.3}
"""Relative error from which on an arm counts as wrong and is not timed."""

TOLERATED = 3
"""Largest error of toprung in units of PyTorch fp32's, in the median over draws of weights and inputs."""

DRAWS = 3
"""Draws that decide where the first is over ``TOLERATED``.

An activation next to a ReLU's zero falls to one side in fp32 and to the other in float64: in ``results/nvidia-h200/nerf.json``
toprung's error is 0.05 to 4 times fp32's, by the draw.
"""

PACKAGES = ("transformers", "timm", "torchaudio", "gpytorch", "torch-geometric")

WARM = 3
"""Untimed steps before a step is verified: the first ones allocate, compile and let toprung prepare its kernels."""

ROUNDS = 8
"""Samples of each arm."""

SETTLE = 0.4
"""Share of an arm's turn that is not timed: the card's clock gives way to what ran before."""

READY = 300
"""Seconds that toprung's kernels may take to be ready."""

COMPILED = 30
"""Seconds that ``torch.compile`` may take for an arm."""

# --- a step -----------------------------------------------------------------------------------------------------------------------


class Eager:
    """The step as it is written."""

    def __init__(self, training):
        self.training, self.loss = training, training.loss

    def __call__(self):
        return self.training.step(self.loss)

    def forget(self):
        """Drop the outcome, or fill it with NaN, so that an older one cannot pass for the next step's."""
        self.training.forget()

    def outcome(self):
        return self.training.outcome()


class Compiled(Eager):
    """The program's function through ``torch.compile``, and what it makes of the backward pass."""

    def __init__(self, training):
        super().__init__(training)
        # Dynamo keeps what it compiled with the function's code object: with a copy of its own, an arm shares nothing with another
        loss = type(training).loss
        own = types.FunctionType(loss.__code__.replace(), loss.__globals__, loss.__name__, loss.__defaults__, loss.__closure__)
        self.loss = torch.compile(types.MethodType(own, training))


class Graphed(Eager):
    """The eager step captured as a CUDA graph, which writes into gradients of its own."""

    def __init__(self, training):
        super().__init__(training)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                training.step(training.loss)
        torch.cuda.current_stream().wait_stream(side)
        training.forget()  # the captured backward then allocates and writes them, and adds to nothing
        gc.collect()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.found = training.step(training.loss)
        self.kept = training.outcome()

    def __call__(self):
        self.graph.replay()
        return self.found

    def forget(self):
        for tensor in self.kept:
            tensor.fill_(math.nan)

    def outcome(self):
        return self.kept


STEPS = {"eager": Eager, "compiled": Compiled, "graphed": Graphed}


def options(device, small):
    """Return toprung's options; in small models every product is taken, which else PyTorch's own would run."""
    return {"precision": "auto", "device_types": (device.type,)} | ({"own": True, "min_flops": 0} if small else {})


@contextlib.contextmanager
def arm(name, device, small):
    """Make PyTorch multiply as an arm says; toprung's products run where "highest" asks for fp32.

    Convolutions and recurrent networks of cuDNN are TF32 in that arm alone; by PyTorch's default they would be in all.
    """
    cudnn = torch.backends.cudnn
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=name == "tf32"):
            if name == "toprung":
                with toprung.torch.use(**options(device, small)):
                    yield
            elif name == "bf16":
                with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):  # a graph may hold no cached weights
                    yield
            else:
                yield
    finally:
        torch.set_float32_matmul_precision("highest")


# --- verified, then timed ---------------------------------------------------------------------------------------------------------


def largest(value):
    """Return the largest of all ranks' values where several processes make a step, else the value."""
    if not dist.is_initialized():
        return value
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def errors(step, exact):
    """Run a step from the first weights and return its errors against float64.

    Returns
    -------
    dict with relative errors: ``gradient`` (Frobenius norm over all gradients or results together), ``bias`` (share by which they
    are too long along the exact ones: what does not average away), ``loss``
    """
    exact_loss, exact_tensors = exact
    step.forget()
    loss = step().item()
    whole = sum(e.norm().item() ** 2 for e in exact_tensors)
    away = along = 0.0
    for found, e in zip(step.outcome(), exact_tensors, strict=True):
        difference = in_double(found) - e
        away += difference.norm().item() ** 2
        along += (difference * e.conj()).sum().real.item()
    return {"gradient": largest(math.sqrt(away / whole)), "bias": along / whole, "loss": abs(loss - exact_loss) / abs(exact_loss)}


def ready(step):
    """Run a step until toprung has nothing more to prepare for it.

    Raises
    ------
    RuntimeError
        kernels are not ready after ``READY`` seconds
    """
    step()  # products are known when they come again
    for _ in range(2):  # what the first pass falls back from may bring another kernel
        step()
        if not toprung.torch.wait(READY):
            raise RuntimeError(f"toprung's kernels were not ready after {READY} s")


@contextlib.contextmanager
def limited(seconds):
    """Raise TimeoutError in the block where it takes longer, whatever the block makes of being interrupted."""
    over = []

    def late(*_):
        over.append(True)
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    except Exception as error:
        raise TimeoutError(f"not compiled within {seconds} s") if over else error from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def prepared(name, mode, training, exact, device, small):
    """Return an arm's step in a mode, verified, and its facts: errors, seconds of all this, and toprung's report of these steps.

    Raises
    ------
    TimeoutError
        ``torch.compile`` took longer than ``COMPILED`` seconds
    """
    start = time.perf_counter()
    if name == "toprung":
        toprung.torch.enable(**options(device, small))  # the report counts from here
        toprung.torch.disable()
    with arm(name, device, small):
        if name == "toprung":
            ready(Eager(training))  # before anything is captured or compiled
        with limited(COMPILED) if mode == "compiled" else contextlib.nullcontext():
            step = STEPS[mode](training)
            for _ in range(WARM):
                step()
        if name == "toprung":
            ready(step)
        facts = {"errors": errors(step, exact), "preparation_seconds": time.perf_counter() - start}
        if name == "toprung":
            facts["report"] = toprung.torch.report().to_json()
    return step, facts


def sample(step, seconds, place):
    """Return the seconds of a step, timed for ``seconds`` after a settling run, and the card's clock in MHz while they ran."""
    begin, settled = time.perf_counter(), 0
    while (past := largest(time.perf_counter() - begin)) < SETTLE * seconds or not settled:
        step().item()  # waits for the device
        settled += 1
    steps = max(1, round((1 - SETTLE) * seconds * settled / past))
    if place.backend != "cuda":
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        return largest((time.perf_counter() - begin) / steps), None
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(steps):
        step()
    last.record()
    clock = cuda.clock_mhz(place)
    last.synchronize()
    return largest(first.elapsed_time(last) / 1e3 / steps), clock


def intolerable(draws):
    """Return a list with a sentence if toprung's median error over draws is over ``TOLERATED`` times fp32's, else an empty one."""
    theirs, ours = (statistics.median(d[name]["gradient"] if name in d else 0 for d in draws) for name in ("fp32", "toprung"))
    fine = ours <= TOLERATED * theirs or not theirs
    return [] if fine else [f"toprung: error {ours:.1e} is over {TOLERATED} × fp32's {theirs:.1e}, draws: {len(draws)}"]


def measured(mode, training, exact, place, device, given):
    """Return what is stored of a program in a mode: errors of all arms and their samples, taken in turns."""
    row = {"errors": {}, "preparation_seconds": {}, "seconds": {}, "clocks_mhz": {}, "failures": []}
    steps = {}
    for name in given.arms:
        try:
            step, facts = prepared(name, mode, training, exact, device, given.small)
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if mode != "eager" and (name == "fp32" or isinstance(error, TimeoutError)):
                return row | {"skipped": reason}  # PyTorch alone cannot compile or capture it
            row["failures"].append(f"{name}: {reason}")  # such as memory: the other arms can still be measured
            continue
        row["errors"][name], row["preparation_seconds"][name] = facts["errors"], facts["preparation_seconds"]
        if name == "toprung":
            row["report"] = facts["report"]
        if facts["errors"]["gradient"] < WRONG[name]:  # NaN is not less
            steps[name], row["seconds"][name], row["clocks_mhz"][name] = step, [], []
        else:
            row["failures"].append(f"{name}: wrong by {facts['errors']['gradient']:.1e}, not timed")
    # everything was compiled before it was verified: compiling once more in a sample is a fault, and would be timed
    compiling = functools.partial(torch.compiler.set_stance, "fail_on_recompile") if mode == "compiled" else contextlib.nullcontext
    names = list(steps)
    try:
        for turn in range(ROUNDS if names else 0):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                with arm(name, device, given.small), compiling():
                    seconds, clock = sample(steps[name], given.seconds / ROUNDS / len(names), place)
                row["seconds"][name].append(seconds)
                row["clocks_mhz"][name].append(clock)
    except RuntimeError as error:
        row["failures"].append(f"while timed: {(str(error).splitlines() or [''])[0]}")
    if row["seconds"].get("fp32") and row["seconds"].get("toprung"):
        ratio = paired_ratio(row["seconds"]["fp32"], row["seconds"]["toprung"])
        row["speedup"] = [ratio.value, ratio.low, ratio.high]
    return row


def busy(row, device, small):
    """Return the share of an eager step of PyTorch's fp32 in which a kernel runs; the rest of it the device waits for the host.

    The step is built anew, after all have been timed: a profiler that was there once may slow each launch.
    """
    step = Eager(made(row["model"], device, small))
    with arm("fp32", device, small):
        for _ in range(WARM):
            step()
        kernels = timing.busy_seconds(timing.profiled(step, device.type))
    return kernels / statistics.median(row["seconds"]["fp32"])


def drawn(name, mode, device, given, draws):
    """Return the errors of each arm for each further draw of weights and inputs."""
    found = []
    for seed in range(1, draws):
        training = made(name, device, given.small, seed)
        exact = training.exact()
        found.append({one: prepared(one, mode, training, exact, device, given.small)[1]["errors"] for one in given.arms})
    return found


# --- the result file --------------------------------------------------------------------------------------------------------------


def earlier(out, facts, small):
    """Return rows and notes of an earlier run that this one adds to; exit if those are of another device, PyTorch or size."""
    if not out.exists():
        return {}, []
    old = results.read(out)

    def key(e, small):
        return e["device"]["name"], e["device"]["driver"], e["packages"]["torch"], small

    if key(old["environment"], old.get("small")) != key(facts, small):
        sys.exit(f"{out} holds another device, driver, PyTorch or size: name another file")
    return {(row["model"], row["mode"]): row for row in old["torch_models"]}, old["notes"]


def table(rows):
    """Return a short table: median and quartiles in ms of each arm, times as fast as fp32, and errors and biases."""
    width = max(map(len, PROGRAMS)) + 1
    heads = "".join(f"{f'{name} ms (quartiles)':>24}" for name in ARMS[:3])
    heads = f"{'program':{width}}{'mode':9}{heads} {'tf32 ×':>7} {'toprung × (95 %)':>21} {'busy':>5}"
    lines = [f"{heads}   errors (biases): toprung's over fp32's"]
    for row in rows:
        if "skipped" in row:
            lines.append(f"{row['model']:{width}}{row['mode']:9} {row['skipped']}")
            continue
        times = {name: [1e3 * t for t in found] for name, found in row["seconds"].items() if len(found) > 1}
        middle = {name: statistics.quantiles(found, n=4) for name, found in times.items()}
        ms = "".join(
            f"{'{:.2f} ({:.2f}–{:.2f})'.format(*(middle[n][i] for i in (1, 0, 2))) if n in middle else '–':>24}" for n in ARMS[:3]
        )
        tf32 = f"{middle['fp32'][1] / middle['tf32'][1]:.2f}" if {"fp32", "tf32"} <= middle.keys() else "–"
        faster = "{:.2f} ({:.2f}–{:.2f})".format(*row["speedup"]) if "speedup" in row else "–"
        busy = f"{row['busy']:.0%}" if "busy" in row else "–"
        first, *others = (
            ", ".join(f"{n} {e['gradient']:.1e} ({e['bias']:+.0e})" for n, e in found.items())
            + (
                f": {found['toprung']['gradient'] / found['fp32']['gradient']:.2f} ×"
                if "toprung" in found and found.get("fp32", {}).get("gradient")
                else ""
            )
            for found in (row["errors"], *row.get("drawn", ()))
        )
        lines.append(f"{row['model']:{width}}{row['mode']:9}{ms} {tf32:>7} {faster:>21} {busy:>5}   {first}")
        lines += [f"{'':{width}}seed {seed}   {off}" for seed, off in enumerate(others, 1)]
    return "\n".join(lines)


def means(rows):
    """Return a line for each mode: the geometric mean of the speed-ups over fp32 of all programs in the result file, and losers."""
    lines = []
    for mode in MODES:
        found = {row["model"]: row["speedup"][0] for row in rows if row["mode"] == mode and "speedup" in row}
        if found:
            mean, slower = statistics.geometric_mean(found.values()), ", ".join(f"{n} {x:.2f}" for n, x in found.items() if x < 1)
            lines.append(f"{mode}: {len(found)} programs, {mean:.2f} × in the geometric mean; slower: {slower or 'none'}")
    return "\n".join(lines)


def listed(known):
    """Return a parser of comma-separated names out of ``known``."""

    def parse(text):
        names = text.split(",")
        if unknown := [n for n in names if n not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return names

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", type=listed(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--modes", type=listed(MODES), default=list(MODES))
    parser.add_argument("--arms", type=listed(ARMS), default=list(ARMS[:3]))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, with every product by toprung's own kernels")
    parser.add_argument("--seconds", type=float, default=5, help="of all samples of a program in a mode")
    parser.add_argument("--seeds", type=int, default=1, help="draws of weights and inputs whose errors are taken, eager")
    parser.add_argument("--again", action="store_true", help="measure again what the file holds")
    given = parser.parse_args()
    given.small |= given.device == "cpu"
    warnings.filterwarnings("ignore", message=".*capturable=True.*")  # each step outside a graph would be told that it needs none

    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
    place = backends.find("cuda:0" if given.device == "cuda" else "pocl")
    facts = environment(place)
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts["packages"][package] = importlib.metadata.version(package)
    rows, notes = earlier(given.out, facts, given.small)
    words = [f"--{name} {','.join(getattr(given, name))}" for name in ("programs", "modes", "arms")] + ["--small"] * given.small
    what = " ".join(["python benchmarks/torch_models.py", f"results/{place.slug}/{given.out.name}", *words])
    if given.device == "cpu":
        given.modes = [mode for mode in given.modes if mode != "graphed"]  # a CPU has no CUDA graphs

    def store():
        """Write the result file: after each mode, so that a run that is cut short keeps what it measured."""
        order = list(PROGRAMS)  # programs that are gone come first
        ordered = sorted(rows.values(), key=lambda r: (r["model"] in order and order.index(r["model"]), MODES.index(r["mode"])))
        failures = [one for row in ordered for one in row["failures"]]
        results.write(given.out, results.record(what, facts, [], failures, notes=notes, small=given.small, torch_models=ordered))

    here = []
    for name in given.programs:
        wanted = [mode for mode in given.modes if mode in PROGRAMS[name].modes and (given.again or (name, mode) not in rows)]
        if not wanted:
            continue
        notes = [one for one in notes if one.partition(":")[0] != name]
        try:
            training = made(name, device, given.small)
            exact = training.exact()
        except (ImportError, RuntimeError) as error:  # no such package, out of memory: the other programs can still be measured
            notes.append(f"{name}: {(str(error).splitlines() or [type(error).__name__])[0]}")
            continue
        for mode in wanted:
            begin = time.perf_counter()
            row = {
                "model": name, "mode": mode, "title": training.title, "parameters": sum(p.numel() for p in training.parameters),
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": facts["commit"],
                **measured(mode, training, exact, place, device, given),
            }  # fmt: skip
            draws = max(given.seeds if mode == "eager" else 1, DRAWS if intolerable([row["errors"]]) else 1)
            if draws > 1:
                try:
                    row["drawn"] = drawn(name, mode, device, given, draws)
                except Exception as error:  # such as memory, which the first draw still holds
                    row["failures"].append(f"drawn again: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            row["failures"] += intolerable([row["errors"], *row.get("drawn", ())])
            row["failures"] = [f"{name} {mode}: {one}" for one in row["failures"]]
            rows[name, mode] = row
            here.append(row)
            store()
            print(f"{name} {mode}: {time.perf_counter() - begin:.0f} s", *row["failures"], sep="\n  ", flush=True)
            # the next mode needs the memory of this one's graphs and compiled functions
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
    for row in rows.values():
        if device.type == "cuda" and row["mode"] == "eager" and row["seconds"].get("fp32") and "busy" not in row:
            row["busy"] = busy(row, device, given.small)
    store()
    print(*notes, table(here), means(rows.values()), sep="\n")
    return int(any(row["failures"] for row in here))


if __name__ == "__main__":
    sys.exit(main())
