"""``toprung probe``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from toprung import backends
from toprung.cli.common import WIDE, console, end, json_option, result_file, say, show
from toprung.cli.progress import Progress
from toprung.lab.harness import results
from toprung.lab.harness.baseline import MOVED
from toprung.lab.harness.environment import environment
from toprung.lab.harness.measure import SAMPLES
from toprung.lab.probe import store
from toprung.lab.probe.base import benchmark, benchmarks
from toprung.lab.probe.run import Finding, probe, refusals
from toprung.report import plot as pictures
from toprung.report.probe_plot import mixes
from toprung.report.probe_table import probe_table
from toprung.store.entry import scatter


def probe_command(
    device: Annotated[str | None, typer.Option(help="an id, or a part of a name (see toprung devices)")] = None,
    only: Annotated[str | None, typer.Option(help="some microbenchmarks, with commas; they are shown and not kept")] = None,
    json: Annotated[Path | None, json_option("store every sample and all circumstances in this file, too")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw multiply-adds beside loads from shared memory (.png, .svg)", callback=result_file)
    ] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Measure what a device can do, one thing at a time, for the bounds: arithmetic, shared memory, caches, memory, launches.

    The record is kept in the user's data folder (TOPRUNG_DATA moves it), one for each device and backend.

    Examples:

      toprung probe

      toprung probe --device cuda:0 --json results/probe.json

      toprung probe --only bandwidth,launch
    """
    if plot is not None:
        pictures.check(plot)
    wanted = [benchmark(name) for name in only.split(",")] if only else list(benchmarks())
    where = backends.find(device)
    findings: list[Finding] = []
    interrupted = False
    start = time.monotonic()
    with backends.opened(where) as session:
        notes = refusals(session, wanted)
        try:
            with Progress(len(wanted)) as progress:
                progress.step(f"probing {where}")
                for finding in probe(session, wanted, SAMPLES):
                    is_next = not findings or findings[-1].benchmark.name != finding.benchmark.name
                    findings.append(finding)
                    progress.step(f"{finding.benchmark.name} {finding.case.label}", float(is_next))
        except KeyboardInterrupt:
            interrupted = True
        content = store.record(results.command(), environment(session), findings, notes, time.monotonic() - start)
        content["interrupted"] = interrupted
    show(probe_table(content["probe"], f"{where}, {content['took_seconds']:.0f} s"), wide)
    most, what = max(((scatter(e["values"]), e["label"]) for e in content["probe"]), default=(0.0, ""))
    if most > MOVED:
        say(f"samples scatter, most by ± {100 * most:.0f} % (those of {what}): end other programs and probe again", "yellow")
    for name, reason in notes.items():
        say(f"left out: {name}: {reason}", "dim", indent=2)
    if json is not None:
        results.write(json, content)
    if interrupted or only:
        console.print("not kept: it is not the whole probe", style="yellow")
    else:
        path = store.path_of(where.slug, where.backend)
        results.write(path, content)
        say(f"kept as {path}")
    if plot is not None:
        mixes(content, plot)
    end(content["failures"], interrupted)


COMMANDS = {"probe": probe_command}
