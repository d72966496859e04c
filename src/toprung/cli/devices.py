"""``toprung devices``."""

from __future__ import annotations

import typer
from rich import box
from rich.table import Table

from toprung import backends
from toprung.cli.common import console
from toprung.errors import NoDevice


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(devices)


def devices() -> None:
    """List every device, best first, and what is missing on this machine.

    Example: toprung devices
    """
    found, advice = backends.devices(), backends.advice()
    if not found:
        raise NoDevice("no device found. " + " ".join(advice))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("device", no_wrap=True)
    table.add_column("name, runtime, driver")
    for name in ("units", "MHz", "local KB", "memory GB", "fp32 TFLOP/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for d in found:
        peak = f"{d.peak_gflops / 1e3:.1f}" if d.peak_gflops else "unknown"
        facts = (str(d.compute_units), f"{d.clock_mhz:.0f}", f"{d.local_bytes // 1024}", f"{d.memory_bytes / 2**30:.1f}", peak)
        table.add_row(d.id, f"{d.name}\n{d.runtime}, driver {d.driver}", *facts)
    console.print(table)
    for line in advice:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
