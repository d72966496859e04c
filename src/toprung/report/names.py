"""Names of quantities: one for each, on the terminal, in the tables of the documentation and on the report's page."""

from __future__ import annotations

MS = "ms"
SPREAD = "± %"
"""Half the range of the samples, in per cent of their median."""
PREVIOUS = "× previous"
"""Speed over that of the rung before; of a variant over that of its own rung."""
VENDOR = "% of vendor"
PEAK, READ, COPY = "% of peak", "% of read", "% of copy"
"""Share of the fp32 peak at the clock that was read; of the bandwidth of reading and of copying memory, from the same run."""
BOUND = "% of bound"
ALONE = "kernel alone"
"""Speed without the part of a call that lays out operands."""
HELPERS = "pad+transpose"
"""Share of a call that pads, transposes and crops operands."""
GRADE = "grade"
"""Grade ratio: largest error of an element, in the rounding that its own terms may cause."""
FROBENIUS = "Frobenius error"
CLOCK = "MHz"
EACH = "marks add"
"""Time that marks around each call add to that of marks around the loop."""
HOST = "host ms"
"""Least time that the host took to put a call into the queue."""
REGISTERS = "registers"
TILE = "tile"


def of(whom: str) -> str:
    """Return the name of the share of somebody's speed, in per cent: ``% of cuBLAS``."""
    return f"% of {whom}"


def times(whom: str) -> str:
    """Return the name of the ratio to somebody's speed, with its 95 % interval: ``× cublas (95 %)``."""
    return f"× {whom} (95 %)"
