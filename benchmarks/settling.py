"""Find how long a competitor must run before its sample so that its neighbours in turn do not show, and check stored records by it.

    python benchmarks/settling.py results/nvidia-h200/settling.json
    python benchmarks/settling.py results/nvidia-h200/settling-records.json --records results/nvidia-h200

The first measures the vendor's library beside one neighbour at a time with several settling times, and between those alone, and
prints its speed beside each over its speed alone. ``SETTLE_SECONDS`` in ``toprung/lab/harness/compare.py`` is the shortest time
with which all are within 1 %. The second measures the vendor alone, settled, on every problem on which a stored ladder of this
device has it, and says by how much each record's figure differs; exit 1 if a settled record is off by more than 1 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from toprung import backends
from toprung.lab import baselines
from toprung.lab.harness import results
from toprung.lab.harness.bench import competitors
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import SamplingPlan
from toprung.lab.routines.gemm import from_size

TIMES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
NEIGHBOURS = {"gpu": ("cublas_fp16", "cublas_tf32", "hopper/r05", "hopper/r06", "turing/r17"), "cpu": ("scipy", "kepler/r04")}
SAMPLES = 9
ALONE = 0.5
"""Settling seconds of who is measured alone."""
WITHIN = 0.01


def sampled(placed, verified, who, settle, beside=()):
    """Return the samples of a competitor with a settling time; sys.exit if it, or a neighbour, is wrong.

    ``verified``: rows of this problem by name; who has one is not prepared and verified again, who has none gets one.
    """
    plan = ComparisonPlan(samples={"warm": SAMPLES}, sampling={"warm": SamplingPlan(settle_seconds=settle)})
    rows = [verified.setdefault(one.name, Row(one)) for one in (who, *beside)]
    for _ in compare(placed, rows, plan):
        pass
    for row in rows:
        if row.measurement is None:
            sys.exit(f"{row.who.name} at {placed.problem}: {row.state}: {row.note}")
    return list(rows[0].measurement.seconds)


def study(session, who, neighbours, sizes):
    """Yield, after each neighbour of each size, a row for each size, neighbour and settling time so far."""
    found = []
    for size in sizes:
        placed, verified = PlacedProblem(from_size((size,)), session), {}
        alone = sampled(placed, verified, who, ALONE)
        for neighbour in neighbours:
            for settle in TIMES:
                seconds = sampled(placed, verified, who, settle, [neighbour])
                found.append({"size": size, "neighbour": neighbour.name, "settle_seconds": settle, "seconds": seconds})
                print(f"  {size} beside {neighbour.name} after {settle:g} s", flush=True)
            again = sampled(placed, verified, who, ALONE)  # a device warms up: between neighbours anew
            level = statistics.median([*alone, *again])
            for row in found[-len(TIMES) :]:
                row["alone"], row["speed"] = [*alone, *again], level / statistics.median(row["seconds"])
            alone = again
            yield found


def table(found):
    """Print the vendor's speed beside each neighbour over its speed alone, a column for each settling time."""
    print(f"\n{'size':>6} {'beside':14}" + "".join(f"{f'{t:g} s':>9}" for t in TIMES))
    for size, name in dict.fromkeys((r["size"], r["neighbour"]) for r in found):
        own = [r for r in found if (r["size"], r["neighbour"]) == (size, name)]
        print(f"{size:6d} {name:14}" + "".join(f"{r['speed']:9.4f}" for r in own))
    enough = [t for t in TIMES if all(abs(r["speed"] - 1) <= WITHIN for r in found if r["settle_seconds"] >= t)]
    print(f"within {100 * WITHIN:.0f} % of itself alone from {enough[0]:g} s on" if enough else "no time was enough")


def records(session, who, folder):
    """Yield, after each, a row for each record and size so far that has the vendor, with its figure over the one alone."""
    device, found, alone = session.device, [], {}
    for path, record in results.read_all([folder]):
        if isinstance(record, results.BadRecord) or record.get("kind"):
            continue
        place = record["environment"]["device"]
        for m in record["measurements"]:
            mine = m.competitor["name"] == who.name and m.mode == "warm" and m.problem["routine"] == "gemm"
            if not mine or (place["slug"], place["backend"]) != (device.slug, device.backend):
                continue
            sizes = tuple(m.problem[k] for k in "MNK")
            if sizes not in alone:
                alone[sizes] = statistics.median(sampled(PlacedProblem(from_size(sizes), session), {}, who, ALONE))
            found.append(
                {"record": path.name, "size": "×".join(map(str, sizes)), "settle_seconds": m.settle_seconds,
                 "speed": alone[sizes] / m.median}
            )  # fmt: skip
            print(f"  {path.name} at {found[-1]['size']}", flush=True)
            yield found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--sizes", default="1024,4096,8192")
    parser.add_argument("--records", type=Path, help="a folder of records to check, in place of the study")
    options = parser.parse_args()
    device = backends.find(options.device)
    who, reason = baselines.vendor(device, "gemm")
    if who is None:
        sys.exit(reason)
    with backends.opened(device) as session:
        if options.records:
            measured = records(session, who, options.records)
        else:
            wanted = [c for c in competitors(NEIGHBOURS[device.kind]) if not c.absent(device)]
            measured = study(session, who, wanted, [int(s) for s in options.sizes.split(",")])
        command, found = results.command("python benchmarks/settling.py"), []
        for found in measured:  # stored as it goes: who ends it keeps what was measured
            results.write(options.out, results.record(command, environment(session), [], kind="settling", settling=found))
    if not options.records:
        table(found)
        return 0
    print(f"\n{'record':28} {'size':>16} {'settled':>9} {'of alone':>9}")
    for row in found:
        print(f"{row['record']:28} {row['size']:>16} {row['settle_seconds']:7g} s {row['speed']:9.4f}")
    off = [r for r in found if r["settle_seconds"] and abs(r["speed"] - 1) > WITHIN]
    print(
        f"{len(off)} of {sum(bool(r['settle_seconds']) for r in found)} settled figures are off by more than {100 * WITHIN:.0f} %"
    )
    return int(bool(off))


if __name__ == "__main__":
    sys.exit(main())
