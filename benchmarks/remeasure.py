"""Measure the entries of a store file again, after kernels have changed, beside what the cost model finds best now.

    python benchmarks/remeasure.py src/toprung/store/shipped/nvidia-h200-cuda.json nvidia-h200-cuda.json --device cuda:0

For each shape of the file: its entries whose configurations can still be built, and the cost model's first ``FIRST`` of each
accuracy class that the shape has entries of, compiled on all cores, then verified and timed in turns. The file that is written has
the fastest of each of toprung's kernel families, and each entry of a vendor's, with the new samples.
"""

import argparse
import math
from pathlib import Path

from toprung import backends
from toprung.dispatch.ranking import ranked
from toprung.dispatch.selection import decoded
from toprung.oracle.problems import problem_of
from toprung.store.entry import Entry, Machine
from toprung.store.exchange import read_exchange, write_exchange
from toprung.tune.compiler import Compiler
from toprung.tune.measure import Measurer
from toprung.tune.trial import Trial, entry_of

FIRST = 6


def candidates_of(device, problem, entries):
    """Return what is timed on a problem: legal configurations of its entries, and the model's best."""
    found = []
    for entry in entries:
        candidate = decoded(entry.candidate)
        fit = candidate.family.adapt(device, problem.desc, candidate.config, problem.desc, True)
        if not isinstance(fit, str):
            found.append(candidate)
    for precision in dict.fromkeys(candidate.family.precision for candidate in found):
        found += [p.candidate for p in ranked(device, problem.desc, precision)[:FIRST] if p.seconds < math.inf]
    return tuple(dict.fromkeys(found))


def again(session, measurer, problem, candidates, entries):
    """Return a problem's entries, measured now."""
    outcome = measurer.run(Trial(problem, candidates, turns=9, hopeless=1.2))
    machine, fastest, kept = Machine.of(session), {}, []
    for candidate, sampled in sorted(zip(candidates, outcome.sampled, strict=True), key=lambda one: one[1].median):
        if sampled.status != "right" or not sampled.seconds:
            print(f"  {candidate}: {sampled.status} {sampled.message}")
        elif candidate.family.own:
            fastest.setdefault(candidate.kernel, (sampled.median, candidate, sampled))
        else:
            kept.append((sampled.median, candidate, sampled))
    before = {entry.candidate["kernel"]: entry.median for entry in entries}
    kept = [*fastest.values(), *kept]
    for seconds, candidate, _ in kept:
        was = before.get(candidate.kernel)
        print(
            f"{problem!s:32} {seconds * 1e6:9.1f} µs {f'{seconds / was:.3f} of before' if was else '':>15}  {candidate}", flush=True
        )
    return [entry_of(machine, problem, candidate, sampled) for _, candidate, sampled in kept]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("store", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--device")
    chosen = arguments.parse_args()
    shapes: dict[str, list[Entry]] = {}
    for entry in read_exchange(chosen.store, []):
        shapes.setdefault(str(sorted(entry.shape.items())), []).append(entry)
    found = []
    with backends.opened(backends.find(chosen.device)) as session:
        measurer, compiler = Measurer(session), Compiler(session.device)
        asked = [(problem_of(entries[0].shape), entries) for entries in shapes.values()]
        candidates = [candidates_of(session.device, problem, entries) for problem, entries in asked]
        made = [
            compiler.ahead(candidate, problem.desc, session.fingerprint())
            for (problem, _), some in zip(asked, candidates, strict=True)
            for candidate in some
        ]
        for future in filter(None, made):
            future.exception()  # what is wrong with it is said where it is measured
        compiler.close()
        for (problem, entries), some in zip(asked, candidates, strict=True):
            found += again(session, measurer, problem, some, entries)
            write_exchange(chosen.out, found)


if __name__ == "__main__":
    main()
