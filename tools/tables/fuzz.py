"""Table of the errors of random products beside the vendor's, from a record of ``benchmarks/fuzz.py``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

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
    alone = Counter[tuple[int, str]]()
    for line in record["products"]:
        of = dict(zip(record["columns"], line.split("|"), strict=True))
        family = of["kernel"].split(" ")[0]
        if family and of["rms"] and int(of["results"]) >= limits["judged"] and family not in limits["vendors"]:
            ours, theirs = float(of["rms"]), float(of["vendor_rms"])
            ratio = ours / theirs if theirs else 1.0 if not ours else math.inf
            alone[sum(ratio > edge for edge in edges), family] += 1
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
        f"kernel of the vendor's computed; {len(record['failures'])} failed. {e['device']['name']}, driver "
        f"{e['device']['driver']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{word}`."
    )
    return "\n".join([*lines, "", last])


TABLES = {"fuzz": _histogram}
