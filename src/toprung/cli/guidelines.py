"""``toprung guidelines``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toprung import backends
from toprung.cli.common import WIDE, end, json_option, show, table_width
from toprung.cli.progress import Progress
from toprung.lab import guidelines
from toprung.lab.guidelines.base import WRONG, Finding
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.report import findings as report


def guidelines_command(
    device: Annotated[str | None, typer.Option(help="id or part of a name; by default the best")] = None,
    only: Annotated[str | None, typer.Option(help="names of guidelines, several with commas; by default all")] = None,
    json: Annotated[Path | None, json_option("store every sample and all circumstances in this file")] = None,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Put the advice of NVIDIA's OpenCL white paper of 2009 to the test: what it said, and what this device does today.

    Every experiment's result is verified before it is timed.

    Examples:

      toprung guidelines

      toprung guidelines --device pocl --only coalescing,divergence --json out.json
    """
    chosen = guidelines.select(only.split(",") if only is not None else None)
    where = backends.find(device)
    found: list[Finding] = []
    interrupted = False
    with backends.opened(where) as session:
        try:
            with Progress(len(chosen)) as progress:
                for guideline in chosen:
                    progress.step(guideline.title)
                    found.append(guideline.run(session))
                    progress.step(guideline.title, 1.0)
        except KeyboardInterrupt:
            interrupted = True
        failures = [f"{f.name}: {f.reason}" for f in found if f.verdict == WRONG]
        entries = [f.describe() for f in found]
        stored = results.record(
            results.command(), environment(session), [], failures, interrupted, kind="guidelines", findings=entries
        )
    show(report.table(found, f"guidelines on {where}", table_width(wide)), wide)
    if json is not None:
        results.write(json, stored)
    end(failures, interrupted)


COMMANDS = {"guidelines": guidelines_command}
