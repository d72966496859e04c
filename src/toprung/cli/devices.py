"""``toprung devices``."""

from __future__ import annotations

from typing import Annotated

import typer

from toprung import backends
from toprung.cli.common import WIDE, say, show
from toprung.errors import NoDevice
from toprung.report.grid import Column, Grid


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(devices)


def devices(wide: Annotated[bool, WIDE] = False) -> None:
    """List every device, best first, and what is missing on this machine.

    Example: toprung devices
    """
    found, advice = backends.devices(), backends.advice()
    if not found:
        raise NoDevice("no device found. " + " ".join(advice))
    grid = Grid("", [
        Column("device", right=False), Column("name", right=False, text=True), Column("units"), Column("MHz", 1),
        Column("local KB", 2), Column("memory GB"), Column("fp32 TFLOP/s"), Column("driver", 3, right=False),
        Column("runtime", 4, right=False, text=True),
    ])  # fmt: skip
    for d in found:
        grid.add({
            "device": d.id, "name": d.name, "runtime": d.runtime, "driver": d.driver, "units": str(d.compute_units),
            "MHz": f"{d.clock_mhz:.0f}", "local KB": f"{d.local_bytes // 1024}", "memory GB": f"{d.memory_bytes / 2**30:.1f}",
            "fp32 TFLOP/s": f"{d.peak_gflops / 1e3:.1f}" if d.peak_gflops else "unknown",
        })  # fmt: skip
    show(grid, wide)
    for line in advice:
        say(line)
