"""Which search finds fast tiles with the fewest evaluations: strategies on recorded times, at equal evaluations; needs no device.

    python benchmarks/search.py results/nvidia-h200/rank.json --out results/nvidia-h200/search.json --plot search.png

Each strategy runs with many seeds on every problem of a record of ``benchmarks/rank.py``: a fair sample of the whole space, each
point timed. What counts is the best so far as a share of the best of the sample, after so many evaluations.
"""

import argparse
import random
import statistics
from pathlib import Path

from recorded import Table, course
from toprung.backends.nvrtc import capability
from toprung.device import FP32_LANES, Device
from toprung.errors import MissingExtra
from toprung.gemm.desc import GemmDesc
from toprung.lab.harness import results
from toprung.oracle.gemm import Gemm
from toprung.report import plot
from toprung.tune.model import model
from toprung.tune.search import STRATEGIES

AT = (5, 10, 20, 40, 80)
PLAIN = "climb without the model"


def device_of(record):
    """The record's device, as far as a model asks for it."""
    d = record["environment"]["device"]
    lanes = FP32_LANES.get(capability(d["arch"])) if d["arch"] else None
    return Device(
        "recorded:0", d["backend"], d["name"], "", d["driver"], d["runtime"], d["kind"], d["compute_units"], d["clock_mhz"], lanes,
        49152, 1 << 36, 1 << 36, 1024, (1024, 1024, 64), 256, (1, 2, 4, 8, 16), 32 if d["kind"] == "gpu" else None, d["arch"],
    )  # fmt: skip


def main():
    """Run every strategy on every problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--evaluations", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=20)
    wanted = parser.parse_args()
    record = results.read(wanted.record)
    device, found = device_of(record), {}
    for entry in record["problems"]:
        problem = Gemm(**{k: v for k, v in entry["problem"].items() if k != "routine"})
        desc = problem.desc
        assert isinstance(desc, GemmDesc)
        ranking = model(device, desc).predict
        shares = {}
        for name in (*STRATEGIES, PLAIN):
            courses = []
            for seed in range(1 if name in ("ranked", "climb") else wanted.seeds):
                tiles = list(entry["tiles"])
                random.Random(seed).shuffle(tiles)
                table = Table.of(tiles, None if name == PLAIN else ranking)
                try:
                    search = STRATEGIES["climb" if name == PLAIN else name](table, seed)
                except MissingExtra as error:
                    print(error)
                    break
                best = min(table.seconds.values())
                steps = course(table, search, wanted.evaluations) or [float("inf")]
                steps += steps[-1:] * (wanted.evaluations - len(steps))
                courses.append([best / s for s in steps])
            if courses:
                shares[name] = [statistics.mean(c[i] for c in courses) for i in range(wanted.evaluations)]
        found[str(problem)] = shares
        print(f"\n{problem}, {len(entry['tiles'])} tiles: best so far / best, mean over seeds, after evaluations")
        print(" " * 26 + "".join(f"{n:>8}" for n in AT))
        for name, values in shares.items():
            print(f"  {name:24}" + "".join(f"{values[n - 1]:8.3f}" for n in AT if n <= len(values)))
    if wanted.out:
        what = results.command("python benchmarks/search.py")
        stored = results.record(what, record["environment"], [], kind="search", source=str(wanted.record), shares=found)
        results.write(wanted.out, stored)
    if wanted.plot:
        draw(found, wanted.plot)


def draw(found, path):
    """A picture a problem, side by side."""
    plot.check(path)
    plt = plot.matplotlib_pyplot()
    figure, axes = plt.subplots(1, len(found), figsize=(5.2 * len(found), 4.2), layout="constrained", squeeze=False)
    for ax, (name, shares) in zip(axes[0], found.items(), strict=True):
        for label, values in shares.items():
            ax.step(range(1, len(values) + 1), values, where="post", label=label)
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_xlabel("evaluations")
        ax.set_ylabel("best so far, share of the best of the sample")
        ax.grid(color="#dddddd", linewidth=0.6)
    axes[0][-1].legend(frameon=False, fontsize=8)
    plot.save(figure, path)


if __name__ == "__main__":
    main()
