"""Tables of the errors of random products beside the vendor's, and of what it costs that they are bounded."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables.common import NOTHING
from toprung.lab.harness.results import read

EDGES = (0.25, 0.5, 0.75, 0.9, 1.1)
"""Upper ends of the ratios that are counted together, below the limit of the record."""


def _histogram(words: Sequence[str], root: Path) -> str:
    """Return the histogram of rms errors over the vendor's, by kernel family."""
    if not words:
        return NOTHING
    (word,) = words
    record = read(root / word)
    limits, edges = record["limits"], (*EDGES, record["limits"]["rms"])
    alone, biases = Counter[tuple[int, str]](), []
    for line in record["products"]:
        of = dict(zip(record["columns"], line.split("|"), strict=True))
        family = of["kernel"].split(" ")[0]
        if family and of["rms"] and int(of["results"]) >= limits["judged"] and family not in limits["vendors"]:
            ours, theirs = float(of["rms"]), float(of["vendor_rms"])
            ratio = ours / theirs if theirs else 1.0 if not ours else math.inf
            alone[sum(ratio > edge for edge in edges), family] += 1
            biases += [float(of["bias"])] if of.get("bias") else []  # older records have none
    count = Counter[str]()
    for (_, family), n in alone.items():
        count[family] += n
    families = [family for family, _ in count.most_common(5)]
    names = [f"up to {edges[0]:g}", *(f"to {edge:g}" for edge in edges[1:]), f"above {edges[-1]:g}"]
    lines = [
        "| rms error over the vendor's | " + " | ".join(f"`{f}`" for f in families) + " |",
        "|---|" + "---:|" * len(families),
        *(f"| {name} | " + " | ".join(str(alone[i, f]) for f in families) + " |" for i, name in enumerate(names)),
    ]
    e = record["environment"]
    last = (
        f"{len(record['products']):,} products; counted are the {count.total():,} of {limits['judged']:,} results and more that no "
        f"kernel of the vendor's computed; {len(record['failures'])} failed. "
        + (f"The largest bias of {len(biases):,} with sums of one sign is {max(biases, key=abs):+.1e}. " if biases else "")
        + f"{e['device']['name']}, driver "
        f"{e['device']['driver']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{word}`."
    )
    return "\n".join([*lines, "", last])


def _cost(words: Sequence[str], root: Path) -> str:
    """Return the times of two records of ``toprung bench``, and of two of ``benchmarks/chains.py``, after over before."""
    if not words:
        return NOTHING
    before, after, small_before, small_after = (read(root / word) for word in words)

    def times(record: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float]]:
        found = {}
        for m in record["measurements"]:
            p = m.problem
            size = f"{p['M']}×{p['N']}×{p['K']}" if len({p["M"], p["N"], p["K"]}) > 1 else str(p["M"])
            found[size, m.competitor["name"]] = statistics.median(m.seconds), m.verdict["frobenius"]
        return found

    lines = [
        "| | before, µs | after, µs | after / before | cuBLAS / after | error over cuBLAS's, before | after |",
        "|---|" + "---:|" * 6,
    ]
    was, now = times(before), times(after)
    for (size, name), (seconds, error) in now.items():
        if name == "toprung_untuned":
            (old, old_error), vendor, old_vendor = was[size, name], now[size, "cublas"], was[size, "cublas"]
            lines.append(
                f"| {size} | {1e6 * old:.1f} | {1e6 * seconds:.1f} | {seconds / old:.3f} | {vendor[0] / seconds:.3f} "
                f"| {old_error / old_vendor[1]:.2f} | {error / vendor[1]:.2f} |"
            )
    for text, (seconds, _) in small_after["chains"].items():
        old = small_before["chains"][text][0]
        size = text.replace("x", "×").replace("*", ", batch ").replace(":", " ")
        lines.append(f"| {size} | {1e6 * old:.1f} | {1e6 * seconds:.1f} | {seconds / old:.3f} | | | |")
    commits = [r["environment"]["commit"] for r in (before, after, small_before, small_after)]
    e = after["environment"]
    last = (
        f"Kernels taken by estimate. {e['device']['name']}, driver {e['device']['driver']}; above, where cuBLAS took part, commits "
        f"{commits[0]} ({before['environment']['date'][:10]}) and {commits[1]} ({e['date'][:10]}), on two days; below commits "
        f"{commits[2]} and {commits[3]}, one after the other. Stored in " + ", ".join(f"`{word}`" for word in words) + "."
    )
    return "\n".join([*lines, "", last])


TABLES = {"fuzz": _histogram, "fuzz_cost": _cost}
