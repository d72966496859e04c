"""Train a small language model in four arithmetics and draw their losses in one picture.

    python benchmarks/torch_curves.py results/nvidia-h200/torch-curves.json --picture docs/torch_curves.svg
    python benchmarks/torch_curves.py OUT.json --picture OUT.svg --small --device cpu

PyTorch in fp32, PyTorch in TF32, toprung's fp32 under PyTorch, and PyTorch in float64, each from the same weights and through the
same batches of a made-up language, with AdamW. What is shown is how far each arithmetic's losses are from float64's.
"""

import argparse
import copy
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import toprung.torch
from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from torch_models import arm
from torch_programs import GPT, Size

ARMS = ("float64", "fp32", "tf32", "toprung")
COLOURS = {"float64": "#777777", "fp32": "#1f77b4", "tf32": "#d62728", "toprung": "#2ca02c"}
FULL, SMALL = Size(6, 512, 8, 512, 16, 256), Size(1, 32, 2, 32, 2, 16)
STEPS, RATE = 300, 3e-4
"""Steps of each arm, and the learning rate."""


def batches(size, steps, device):
    """Yield batches of a language in which each word leaves eight that may follow it."""
    rng = torch.Generator().manual_seed(2)
    follows = torch.randint(size.vocabulary, (size.vocabulary, 8), generator=rng)
    for _ in range(steps):
        words = torch.randint(size.vocabulary, (size.batch, 1), generator=rng)
        for _ in range(size.length):
            pick = torch.randint(8, (size.batch, 1), generator=rng)
            words = torch.cat([words, follows[words[:, -1:]].gather(2, pick[..., None]).squeeze(2)], 1)
        yield words.to(device)


def trained(name, model, data, device, small):
    """Return the losses of all steps, and the seconds that they took together."""
    model = copy.deepcopy(model).to(torch.float64 if name == "float64" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    losses, begin = [], time.perf_counter()
    with arm(name, device, small):
        for words in data:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found = [loss.item() for loss in losses]
    return found, time.perf_counter() - begin


def picture(losses):
    """Return an SVG: the losses above, and below how far each is from float64's, on a logarithmic scale."""
    steps, width, height, left = len(losses["float64"]), 640, 180, 70
    top = max(max(v) for v in losses.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + left + 110} {2 * height + 90}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Losses of four arithmetics by step, and their distances from float64">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]

    def axis(y, text, marks):
        lines.append(f'<text x="{left}" y="{y - 8}">{text}</text>')
        lines.append(f'<path d="M{left} {y}V{y + height}H{left + width}" fill="none" stroke="black"/>')
        lines.extend(
            f'<text x="{left - 6}" y="{y + height - at * height + 4:.1f}" text-anchor="end">{mark}</text>' for mark, at in marks
        )

    def curve(name, y, heights):
        points = " ".join(f"{left + width * i / steps:.1f},{y + height * (1 - h):.1f}" for i, h in enumerate(heights))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.2"/>')

    low, high = -9, -1  # powers of ten of the distances
    axis(30, "loss", [(f"{top * part / 4:.1f}", part / 4) for part in range(5)])
    axis(height + 70, "|loss − float64's|", [(f"1e{p}", (p - low) / (high - low)) for p in range(low, high + 1, 2)])
    for i, (name, found) in enumerate(losses.items()):
        curve(name, 30, [x / top for x in found])
        lines.append(f'<text x="{left + width + 8}" y="{50 + 18 * i}" fill="{COLOURS[name]}">{name}</text>')
        if name != "float64":
            away = [abs(x - y) for x, y in zip(found, losses["float64"], strict=True)]
            logs = (float(torch.tensor(max(x, 10.0**low)).log10()) for x in away)
            curve(name, height + 70, [min(1.0, (x - low) / (high - low)) for x in logs])
    lines.append(f'<text x="{left + width}" y="{2 * height + 86}" text-anchor="end">step, 0 to {steps}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    given.small |= given.device == "cpu"
    device = torch.device(given.device)
    place = backends.find("cuda:0" if given.device == "cuda" else "pocl")
    torch.manual_seed(0)
    random.seed(0)
    size = SMALL if given.small else FULL
    model = GPT(size).to(device)
    data = list(batches(size, given.steps, device))
    losses, seconds = {}, {}
    for name in ARMS:
        if name == "toprung":  # its kernels are ready before the first step that counts
            trained(name, model, data[:3], device, given.small)
            if not toprung.torch.wait(300):
                sys.exit("toprung's kernels were not ready in time")
        losses[name], seconds[name] = trained(name, model, data, device, given.small)
        away = max(abs(x - y) for x, y in zip(losses[name], losses["float64"], strict=True))
        print(f"{name:8} last loss {losses[name][-1]:.6f}, at most {away:.1e} from float64's, {seconds[name]:.1f} s", flush=True)
    what = f"python benchmarks/torch_curves.py results/{place.slug}/{given.out.name} --picture docs/{given.picture.name}"
    kept = {"model": str(size), "steps": given.steps, "losses": losses, "seconds": seconds}
    results.write(given.out, results.record(what, environment(place), [], torch_curves=kept))
    given.picture.write_text(picture(losses))
    return 0


if __name__ == "__main__":
    sys.exit(main())
