"""Rungs of the webgpu ladder with more and with fewer of their loops unrolled: milliseconds of each, and a record.

    python benchmarks/webgpu_unroll.py OUT.json [--size 4096] [--device webgpu] [--rungs 2-10]

`k` turns the mark of the innermost loop over k round: unrolled where the rung leaves it a loop, and a loop where it unrolls it.
`UNROLL=0` leaves all loops; "no bound" leaves out wgpu's counters of loops, "no checks" its checks of indices as well.
All are verified against float64 first.
"""

import argparse
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from toprung import backends
from toprung.backends.unrolled import MARK
from toprung.cli.common import parse_numbers
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness import results
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, compare
from toprung.lab.harness.environment import environment
from toprung.lab.routines.gemm import from_size
from toprung.lab.rung import Rung, Switch, ladder

LOOP = r"k = 0u; k < BK(?: / 4u)?; k\+\+|l = 0u; l < DN; l\+\+"
INNERMOST = re.compile(rf"(/\* unroll \*/ |(?<!/\* unroll \*/ ))(?=for \(var (?:{LOOP})\))")
VARIANTS = {
    "as it is": (False, {}),
    "k": (True, {}),
    "UNROLL=0": (False, {"UNROLL": 0}),
    "UNROLL=0 no bound": (False, {"UNROLL": 0, "UNCHECKED": 2}),
    "no bound": (False, {"UNCHECKED": 2}),
    "no checks": (False, {"UNCHECKED": 1}),
    "k, no checks": (True, {"UNCHECKED": 1}),
}


def altered(rung: Rung, folder: Path, other: bool) -> Rung:
    """Return a rung that has both switches, with the innermost loop's mark turned round if ``other``."""
    path = folder / f"{rung.stem}{'_k' * other}.wgsl"
    text = rung.source.read_text()
    if other:
        text, count = INNERMOST.subn(lambda found: "" if found[1] else f"{MARK} ", text)
        assert count == 1, f"{rung} has {count} innermost loops"
    path.write_text(text)
    more = [Switch(name, "", values=v) for name, v in (("UNROLL", (1, 0)), ("UNCHECKED", (0, 1, 2)))]
    kept = [s for s in rung.switches if s.name not in ("UNROLL", "UNCHECKED")]
    return replace(rung, source=path, switches=(*kept, *more))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--rungs", default="2-10")
    chosen = parser.parse_args()
    rungs = ladder("webgpu").rungs
    numbers = parse_numbers(chosen.rungs, [r.number for r in rungs if r.number > 1], "rung")
    with tempfile.TemporaryDirectory() as folder, backends.opened(backends.find(chosen.device)) as session:
        competing = [
            RungCompetitor(altered(r, Path(folder), other), options, name)
            for r in rungs if r.number in numbers for name, (other, options) in VARIANTS.items()
        ]  # fmt: skip
        plan = ComparisonPlan(samples={"warm": 3})
        rows = plan.rows(competing)
        for _ in compare(PlacedProblem(from_size((chosen.size,)), session), rows, plan):
            pass
        measured = [row.measurement for row in rows if row.measurement]
        results.write(
            chosen.out, results.record(f"benchmarks/webgpu_unroll.py --size {chosen.size}", environment(session), measured, [])
        )
    print(f"{'rung':8}" + "".join(f"{name:>18}" for name in VARIANTS) + f"   ms at {chosen.size}")
    for start in range(0, len(rows), len(VARIANTS)):
        some = rows[start : start + len(VARIANTS)]
        cells = (f"{1e3 * row.measurement.median:.3g}" if row.measurement else row.state for row in some)
        print(f"{some[0].who.name:8}" + "".join(f"{cell:>18}" for cell in cells))
    for row in rows:
        if row.failed:
            print(f"{row.who.name} {row.variant}: {row.note}")


if __name__ == "__main__":
    main()
