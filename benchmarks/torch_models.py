"""Steps of whole programs: PyTorch in fp32, PyTorch in TF32, and toprung's fp32 under PyTorch.

    python benchmarks/torch_models.py results/nvidia-h200/torch-models.json [--models gpt,gpt2] [--modes eager,graphed]
    python benchmarks/torch_models.py OUT.json --small --device cpu

A step is forward, loss and backward, as written (eager), through ``torch.compile`` (compiled) and as a replayed CUDA graph
(graphed). Before anything is timed, the gradients that each step leaves are compared with float64's of the same weights and tokens.
The three arms then take turns in one process. If toprung's gradients are further off than 1.1 times PyTorch fp32's, the result file
says so and the exit status is 1. A second run adds its models and modes to OUT.json and replaces those that it measured again.

``gpt`` and ``open``, the same without a causal mask, are written out below, ``vit``, ``graph``, ``pca`` and ``muon`` in
``torch_programs.py``; ``gpt2`` and ``bert`` come from transformers, ``swin`` from timm, ``conformer`` from torchaudio and ``gp``
from gpytorch, each if that is installed, with random weights: nothing is downloaded. Attention written here is two matrix products
around a softmax, and dropout is 0. ``--arms`` can add ``bf16``: PyTorch in fp32 under autocast to bfloat16.

It keeps a loop of its own: what is timed is a whole step, forward and backward, which is no product of ``compare``.
"""

import argparse
import contextlib
import copy
import datetime
import functools
import gc
import importlib.metadata
import math
import statistics
import sys
import time
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import toprung.torch
from toprung import backends
from toprung.backends import cuda
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.harness.stats import paired_ratio
from torch_programs import PROGRAMS, Block, Learning

ARMS = ("fp32", "tf32", "toprung", "bf16")
MODES = ("eager", "compiled", "graphed")

WRONG = {"fp32": 1e-4, "tf32": 1e-2, "toprung": 1e-4, "bf16": 1e-1}
"""Relative gradient error from which on an arm counts as wrong and is not timed."""

TOLERATED = 1.1
"""Largest gradient error of toprung in units of PyTorch fp32's."""

FAINT = 1e-12
"""Share of the whole gradient's norm below which a parameter's own relative error is left out.

The gradient of the keys' bias is zero in exact arithmetic: it moves all scores of a row alike, and softmax does not see that.
"""

WARM = 3
"""Untimed steps before a step is verified: the first ones allocate, compile and let toprung prepare its kernels."""

SETTLE = 0.2
"""Seconds of untimed steps of the same arm before a sample: the card's clock gives way to what ran before."""

READY = 300
"""Seconds that toprung's kernels may take to be ready."""

# --- the models -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int

    def __str__(self):
        return f"{self.layers} layers, d {self.width}, {self.batch}×{self.length} tokens"


SIZES = {
    "gpt": Size(12, 1024, 16, 50304, 4, 1024),  # GPT-2's 50257 entries rounded up to a multiple of 64, as training scripts do
    "open": Size(12, 1024, 16, 50304, 4, 1024),
    "gpt2": Size(12, 1024, 16, 50257, 4, 1024),
    "bert": Size(12, 768, 12, 30522, 32, 128),
}
SMALL = Size(2, 64, 4, 211, 2, 16)
TITLES = {
    "gpt": "GPT-2-like", "open": "GPT-2-like without causal mask", "gpt2": "GPT-2 of transformers", "bert": "BERT of transformers",
}  # fmt: skip


class GPT(nn.Module):
    """GPT-2's layers and initial weights; the output layer's weights are those of the token embedding.

    ``causal``: a token sees those before it; else all of them, which spares the mask and leaves more of the time to products.
    """

    def __init__(self, size, causal):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.register_buffer("hidden", torch.ones(size.length, size.length, dtype=torch.bool).triu(1) if causal else None)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.hidden)
        return F.linear(self.norm(x), self.tokens.weight)


def gpt(size, device, causal=True):
    """Return the model and a function ``(model, tokens)`` that returns its logits."""
    return GPT(size, causal).to(device), lambda model, tokens: model(tokens)


def gpt2(size, device):
    """Return ``GPT2LMHeadModel`` with eager attention; raise ImportError where transformers is absent."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=size.layers, n_embd=size.width, n_head=size.heads, vocab_size=size.vocabulary, n_positions=size.length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device)
    # with a mask that is ready; transformers would make one in each step, wait for the device, and make another one in a capture
    lowest = torch.finfo(torch.float32).min
    mask = torch.full((size.length, size.length), lowest, device=device).triu(1)[None, None]
    return model, lambda model, tokens: model(tokens, attention_mask=mask).logits


def bert(size, device):
    """Return ``BertForMaskedLM`` with eager attention; raise ImportError where transformers is absent."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=size.layers, hidden_size=size.width, num_attention_heads=size.heads, intermediate_size=4 * size.width,
        vocab_size=size.vocabulary, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    # transformers would make each of these anew in each step, on the host
    given = {
        "attention_mask": torch.zeros(1, 1, size.length, size.length, device=device),
        "token_type_ids": torch.zeros(1, size.length, dtype=torch.long, device=device),
        "position_ids": torch.arange(size.length, device=device)[None],
    }
    return BertForMaskedLM(config).to(device), lambda model, tokens: model(tokens, **given).logits


MAKERS = {"gpt": gpt, "open": functools.partial(gpt, causal=False), "gpt2": gpt2, "bert": bert}


# --- a training step --------------------------------------------------------------------------------------------------------------


class Training(Learning):
    """A language model with tokens and labels; all arms and modes train this one."""

    def __init__(self, name, size, device):
        model, self.logits = MAKERS[name](size, device)
        super().__init__(
            f"{TITLES[name]}, {size}", model, torch.randint(size.vocabulary, (2, size.batch, size.length), device=device)
        )

    def loss(self, model, tokens, labels):
        """Return the cross entropy of every position's logits with random labels."""
        return F.cross_entropy(self.logits(model, tokens).flatten(0, 1), labels.flatten())

    def exact(self):
        """Return float64's loss and gradients, of one sequence at a time: the activations of all together may not fit."""
        model, loss = copy.deepcopy(self.model).double(), 0.0
        for tokens, labels in zip(*(x.split(1) for x in self.inputs), strict=True):
            part = self.loss(model, tokens, labels) / len(self.inputs[0])
            part.backward()
            loss += part.item()
        return loss, [p.grad for p in model.parameters()]


class Eager:
    """The step as it is written."""

    def __init__(self, training):
        self.training, self.loss = training, training.loss

    def __call__(self):
        return self.training.step(self.loss)

    def forget_gradients(self):
        """Drop the outcome, or fill it with NaN, so that an older one cannot pass for the next step's."""
        self.training.forget()

    @property
    def gradients(self):
        return self.training.outcome()


class Compiled(Eager):
    """Forward and backward through ``torch.compile``."""

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

    def forget_gradients(self):
        for gradient in self.kept:
            gradient.fill_(math.nan)

    @property
    def gradients(self):
        return self.kept


STEPS = {"eager": Eager, "compiled": Compiled, "graphed": Graphed}


def options(device, small):
    """Return toprung's options; in small models every product is taken, which else PyTorch's own would run."""
    return {"precision": "auto", "device_types": (device.type,)} | ({"own": True, "min_flops": 0} if small else {})


@contextlib.contextmanager
def arm(name, device, small):
    """Make PyTorch multiply as an arm says: precisions through ``set_float32_matmul_precision`` alone, toprung's upon "highest"."""
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
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


def errors(training, step, exact):
    """Run a step from the first weights and return its errors against float64.

    Returns
    -------
    dict with relative errors: ``gradient`` (Frobenius norm over all parameters together), ``largest`` (that of the worst parameter,
    named by ``parameter``; gradients that are zero in exact arithmetic do not count), ``loss``
    """
    exact_loss, exact_gradients = exact
    step.forget_gradients()
    loss = step().item()
    norms = [e.norm().item() for e in exact_gradients]
    away = [(g.double() - e).norm().item() for g, e in zip(step.gradients, exact_gradients, strict=True)]
    whole = math.hypot(*norms)
    worst = {n: a / norm for n, a, norm in zip(training.names, away, norms, strict=True) if norm > FAINT * whole}
    name = max(worst, key=worst.get)
    return {
        "gradient": math.hypot(*away) / whole, "largest": worst[name], "parameter": name, "left_out": len(norms) - len(worst),
        "loss": abs(loss - exact_loss) / abs(exact_loss),
    }  # fmt: skip


def ready(step):
    """Run a step until toprung has nothing more to prepare for it.

    Raises
    ------
    RuntimeError
        kernels are not ready after ``READY`` seconds
    """
    for _ in range(2):  # what the first pass falls back from may bring another kernel
        step()
        if not toprung.torch.wait(READY):
            raise RuntimeError(f"toprung's kernels were not ready after {READY} s")


def prepared(name, mode, training, exact, device, small):
    """Return an arm's step in a mode, verified, and its facts: errors, seconds of all this, and toprung's report of these steps."""
    start = time.perf_counter()
    if name == "toprung":
        toprung.torch.enable(**options(device, small))  # the report counts from here
        toprung.torch.disable()
    with arm(name, device, small):
        if name == "toprung":
            ready(Eager(training))  # before anything is captured or compiled
        step = STEPS[mode](training)
        for _ in range(WARM):
            step()
        if name == "toprung":
            ready(step)
        facts = {"errors": errors(training, step, exact), "preparation_seconds": time.perf_counter() - start}
        if name == "toprung":
            facts["report"] = toprung.torch.report().to_json()
    return step, facts


def sample(step, steps, place):
    """Return the seconds of a step, over ``steps`` of them after a settling run, and the card's clock in MHz while they ran."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < SETTLE:
        step().item()  # waits for the device
    if place.backend != "cuda":
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - begin) / steps, None
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(steps):
        step()
    last.record()
    clock = cuda.clock_mhz(place)
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / steps, clock


def measured(mode, training, exact, place, device, given):
    """Return what is stored of a model in a mode: errors of all arms and their samples, taken in turns."""
    row = {"errors": {}, "preparation_seconds": {}, "seconds": {}, "clocks_mhz": {}, "failures": []}
    steps = {}
    for name in given.arms:
        try:
            step, facts = prepared(name, mode, training, exact, device, given.small)
        except Exception as error:  # out of memory, a capture that fails: the other arms can still be measured
            row["failures"].append(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            continue
        row["errors"][name], row["preparation_seconds"][name] = facts["errors"], facts["preparation_seconds"]
        if name == "toprung":
            row["report"] = facts["report"]
        if facts["errors"]["gradient"] < training.wrong.get(name, WRONG[name]):  # NaN is not less
            steps[name], row["seconds"][name], row["clocks_mhz"][name] = step, [], []
        else:
            row["failures"].append(f"{name}: gradients are wrong by {facts['errors']['gradient']:.1e}, not timed")
    found = {name: one["gradient"] for name, one in row["errors"].items()}
    if {"fp32", "toprung"} <= found.keys() and not found["toprung"] <= TOLERATED * found["fp32"]:
        row["failures"].append(f"toprung: gradient error {found['toprung']:.1e} is over {TOLERATED} × fp32's {found['fp32']:.1e}")
    # everything was compiled before it was verified: compiling once more in a sample is a fault, and would be timed
    compiling = functools.partial(torch.compiler.set_stance, "fail_on_recompile") if mode == "compiled" else contextlib.nullcontext
    names = list(steps)
    try:
        for turn in range(given.rounds if names else 0):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                with arm(name, device, given.small), compiling():
                    seconds, clock = sample(steps[name], given.steps, place)
                row["seconds"][name].append(seconds)
                row["clocks_mhz"][name].append(clock)
    except RuntimeError as error:
        row["failures"].append(f"while timed: {(str(error).splitlines() or [''])[0]}")
    if row["seconds"].get("fp32") and row["seconds"].get("toprung"):
        ratio = paired_ratio(row["seconds"]["fp32"], row["seconds"]["toprung"])
        row["speedup"] = [ratio.value, ratio.low, ratio.high]
    return row


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
    """Return a short table: ms, speed-up over fp32 and gradient errors of the three arms."""
    heads = " ".join(f"{head:>8}" for head in ("fp32 ms", "tf32 ms", "toprung", "bf16 ms", "speed-up"))
    lines = [f"{'model':5} {'mode':8}{heads}   gradient errors"]
    for row in rows:
        times = [row["seconds"].get(name) for name in ARMS]
        ms = " ".join(f"{1e3 * statistics.median(t):8.2f}" if t else f"{'–':>8}" for t in times)
        faster = f"{row['speedup'][0]:8.2f}" if "speedup" in row else f"{'–':>8}"
        wrong = " ".join(f"{row['errors'][name]['gradient']:.1e}" if name in row["errors"] else f"{'–':>7}" for name in ARMS)
        lines.append(f"{row['model']:5} {row['mode']:8}{ms} {faster}   {wrong}")
    return "\n".join(lines)


def means(rows):
    """Return a line for each mode: the geometric mean of the speed-ups over fp32 of all programs in the result file."""
    lines = []
    for mode in MODES:
        found = [row["speedup"][0] for row in rows if row["mode"] == mode and "speedup" in row]
        if found:
            lines.append(f"{mode}: {len(found)} programs, geometric mean of the speed-ups {statistics.geometric_mean(found):.2f}")
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
    parser.add_argument("--models", type=listed([*SIZES, *PROGRAMS]), default=[*SIZES, *PROGRAMS])
    parser.add_argument("--modes", type=listed(MODES), default=list(MODES))
    parser.add_argument("--arms", type=listed(ARMS), default=list(ARMS[:3]))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models, with every product by toprung's own kernels")
    parser.add_argument("--rounds", type=int, default=6, help="samples of each arm")
    parser.add_argument("--steps", type=int, default=10, help="steps of a sample")
    given = parser.parse_args()
    given.small |= given.device == "cpu"
    warnings.filterwarnings("ignore", message=".*capturable=True.*")  # each step outside a graph would be told that it needs none

    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
    place = backends.find("cuda:0" if given.device == "cuda" else "pocl")
    facts = environment(place)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["packages"]["transformers"] = importlib.metadata.version("transformers")
    rows, notes = earlier(given.out, facts, given.small)
    notes = [one for one in notes if one.partition(":")[0] not in (*given.models, *given.modes)]
    words = [f"--{name} {','.join(getattr(given, name))}" for name in ("models", "modes", "arms")] + ["--small"] * given.small
    what = " ".join(["python benchmarks/torch_models.py", f"results/{place.slug}/{given.out.name}", *words])
    if given.device == "cpu" and "graphed" in given.modes:
        given.modes.remove("graphed")
        notes.append("graphed: a CPU has no CUDA graphs")

    here = []
    for model in given.models:
        torch.manual_seed(0)
        try:
            if model in PROGRAMS:
                training = PROGRAMS[model](device, given.small)
            else:
                training = Training(model, SMALL if given.small else SIZES[model], device)
        except ImportError as error:
            notes.append(f"{model}: {error}")
            continue
        exact = training.exact()
        for mode in [m for m in given.modes if m in (training.modes or MODES)]:
            begin = time.perf_counter()
            row = {
                "model": model, "mode": mode, "title": training.title, "parameters": sum(p.numel() for p in training.parameters),
                "steps": given.steps,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": facts["commit"],
                **measured(mode, training, exact, place, device, given),
            }  # fmt: skip
            row["failures"] = [f"{model} {mode}: {one}" for one in row["failures"]]
            rows[model, mode] = row
            here.append(row)
            ordered = sorted(rows.values(), key=lambda r: ([*SIZES, *PROGRAMS].index(r["model"]), MODES.index(r["mode"])))
            failures = [one for r in ordered for one in r["failures"]]
            # written after each mode: a run that is cut short keeps what it measured
            results.write(
                given.out,
                results.record(what, facts, [], failures, notes=notes, small=given.small, torch_models=ordered),
            )
            print(f"{model} {mode}: {time.perf_counter() - begin:.0f} s", *row["failures"], sep="\n  ", flush=True)
            # the next mode needs the memory of this one's graphs and compiled functions
            torch.compiler.reset()
            gc.collect()
            if given.device == "cuda":
                torch.cuda.empty_cache()
    print(*notes, table(here), means(rows.values()), sep="\n")
    return int(any(row["failures"] for row in here))


if __name__ == "__main__":
    sys.exit(main())
