"""``toprung devices``."""

from __future__ import annotations

from typing import Annotated

from toprung import backends
from toprung.cli.common import WIDE, say, show
from toprung.errors import NoDevice
from toprung.report.grid import Column, Grid


def devices(wide: Annotated[bool, WIDE] = False) -> None:
    """List every device, best first, and what is missing on this machine.

    Example: toprung devices
    """
    found, advice = backends.devices(), backends.advice()
    if not found:
        raise NoDevice("no device found. " + " ".join(advice))
    # driver and runtime tell devices of one name apart, so that what a runtime does not say goes first
    grid = Grid("", [
        Column("device", right=False), Column("name", right=False, text=True), Column("units"), Column("MHz", 4),
        Column("local KB", 3), Column("memory GB", 2),
        *([Column("fp32 TFLOP/s", 1)] if any(d.peak_gflops for d in found) else []),
        Column("driver", right=False, text=True), Column("runtime", right=False, text=True),
    ])  # fmt: skip
    for d in found:
        grid.add({
            "device": d.id, "name": d.name, "runtime": d.runtime, "driver": d.driver, "units": str(d.compute_units),
            "MHz": f"{d.clock_mhz:.0f}" if d.clock_mhz else "–", "local KB": f"{d.local_bytes // 1024}",
            "memory GB": f"{d.memory_bytes / 2**30:.1f}", "fp32 TFLOP/s": f"{d.peak_gflops / 1e3:.1f}" if d.peak_gflops else "–",
        })  # fmt: skip
    show(grid, wide)
    for line in advice:
        say(line)


COMMANDS = {"devices": devices}
