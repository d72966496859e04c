"""Make the tables and pictures of the documentation anew from ``results/``; ``--check`` only says which tables are stale."""

import json
import sys
from pathlib import Path

import relabelled
from tables import BLOCK, averaged, climb, hopper_fp32, rank, refresh
from tables.common import ladder_record
from toprung.lab.bounds.arch import FERMI
from toprung.lab.bounds.paper import Blocking
from toprung.lab.harness import results
from toprung.lab.probe import store
from toprung.report import bench_plot, bound_plot, plot, probe_plot, tune
from toprung.report.text import size_of

ROOT = Path(__file__).parent.parent
PICTURES = {
    "docs/kepler/ladder.svg": ("results/nvidia-h200/kepler-cuda.json", "4096"),
    "docs/turing/ladder.svg": ("results/nvidia-h200/turing-cuda.json+results/nvidia-h200/turing-last-cuda.json", "4096"),
    "docs/matvec/ladder.svg": ("results/nvidia-h200/matvec-cuda.json", "32768"),
    "docs/hopper/ladder.svg": ("results/nvidia-h200/hopper-cuda.json", "4096"),
}
"""Picture: the record it is drawn from, or several with ``+``, and the size."""
SWEEP = (
    ROOT / "docs/turing/sweep.svg",
    "+".join(f"results/nvidia-h200/turing-sweep{part}.json" for part in ("", "-2", "-3")),
)
"""Picture of the turing ladder over sizes from 256 to 6144, and the records that it is drawn from, for ``ladder_record``."""
SQUARES = (ROOT / "docs/transposes.svg", ROOT / "results/nvidia-h200/library.json")
"""The library beside cuBLAS over the size of squares, in four transposes: what the device takes."""
FP32 = (ROOT / "docs/fp32-transposes.svg", ROOT / "results/nvidia-h200/fp32-sustained.json")
"""Plain fp32 on Hopper beside cuBLAS, in four transposes."""
MIXES = (ROOT / "docs/probe-mixes.svg", ROOT / "results/nvidia-h200/probe-cuda.json")
"""Another, of multiply-adds beside loads, where that was measured."""

RANKED = (ROOT / "docs/ranking.svg", ROOT / "results/nvidia-h200/rank.json", MIXES[1])
"""And of tiles, measured over predicted."""

DRAWN = {"climb": climb.drawn, "averaged": averaged.drawn}
"""Pictures that a table's marker names, by the marker's first word."""

PROGRESS = {
    ROOT / "docs/tuning-progress.svg": ROOT / "results/amd-epyc",
    ROOT / "docs/tuning-progress-h200.svg": ROOT / "results/nvidia-h200",
}
STRATEGIES = {"climb": "tune.json", "random": "tune-random.json"}
"""And of two strategies' best so far over time, where both were measured."""


def is_square(m) -> bool:
    """A single product of a power of two, by one of both libraries, with the queue held."""
    problem = m.problem
    square = problem["batch"] == 1 and problem["M"] == problem["N"] == problem["K"] and problem["M"] & (problem["M"] - 1) == 0
    return square and m.mode == "held" and m.competitor["name"] in ("cublas", "toprung")


def pages() -> list[Path]:
    """Return README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Make tables and pictures anew; return 1 if ``--check`` finds a stale table."""
    if "--check" not in sys.argv and relabelled.is_whole(ROOT):
        relabelled.LAYOUT.write_text(json.dumps(relabelled.relaid(), indent=1) + "\n")
    stale = []
    for page in pages():
        old = page.read_text()
        new = refresh(old, ROOT)
        if "--check" not in sys.argv:
            for one in BLOCK.finditer(new):
                if one["what"] in DRAWN:
                    name, *words = one["words"].split()
                    (page.parent / name).write_text(DRAWN[one["what"]](*words, ROOT))
        if new != old:
            stale.append(page.relative_to(ROOT))
            if "--check" not in sys.argv:
                page.write_text(new)
    for page in stale:
        print(f"{'out of date' if '--check' in sys.argv else 'made anew'}: {page}")
    if "--check" not in sys.argv:
        for name, (stored, size) in PICTURES.items():
            record, _ = ladder_record(stored, ROOT)
            record["measurements"] = [m for m in record["measurements"] if size_of(m) == size]
            plot.ladder(record, ROOT / name)
        picture, parts = SWEEP
        plot.ladder(ladder_record(parts, ROOT)[0], picture)
        bound_plot.sweep(FERMI, [Blocking.square(b) for b in range(1, 17)], ROOT / "docs/bound.svg")
        picture, source = SQUARES
        record = results.read(source)
        record["measurements"] = [m for m in record["measurements"] if is_square(m)]
        bench_plot.bench(record, picture)
        picture, source = FP32
        hopper_fp32.transposes(results.read(source), picture)
        picture, source = MIXES
        if source.exists():
            probe_plot.mixes(store.read(source), picture)
        picture, source, probe = RANKED
        rank.scatter(results.read(source), probe, picture)
        for picture, folder in PROGRESS.items():
            if all((folder / name).exists() for name in STRATEGIES.values()):
                tune.best_over_time({label: results.read(folder / name) for label, name in STRATEGIES.items()}, picture)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
