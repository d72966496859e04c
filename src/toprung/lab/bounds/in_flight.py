"""Bound of fp32-accurate products that split their operands in flight: cycles of an SM for 32 of K, by what they take.

Three products of terms run on the matrix units; meanwhile elements pass through shared memory, are split into terms by ordinary
instructions, and partial sums are promoted to fp32, because the units' accumulators truncate. Whichever takes longest is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEPTH = 32
"""Elements of K that are counted together: a row of 128 bytes."""
LANES, BANKS = 128, 128
"""Instructions for a thread that an SM issues in a cycle; bytes of its shared memory that it moves in one."""
GROUP = 64
"""Rows of a matrix instruction, each of which reads all of B's tile."""


@dataclass(frozen=True)
class Scheme:
    """A pair of terms, and what it costs.

    Attributes
    ----------
    rate : multiply-adds a cycle of an SM's matrix units
    term : bytes of a term
    split_a, split_b : instructions for an element of A, which stays in registers, and of B, which goes back to shared memory
    back : bytes of B's element that go back: both terms, or one where the unit takes the other as it came
    promote : instructions for a partial sum
    """

    name: str
    rate: int
    term: int
    split_a: float
    split_b: float
    back: int
    promote: float


SCHEMES = (
    # copies and loads 1; the largest of 32, half; scale, round, back, subtract, round: 5; stores
    Scheme("fp16, a scale for each row and 32 of K", 2048, 2, 7.0, 7.5, 4, 2.25),
    # copies and loads 1; mask, subtract; a store
    Scheme("TF32, the word itself and what is left of it", 1024, 4, 3.0, 3.5, 4, 1.0),
)


def cycles(scheme: Scheme, rows: int, cols: int) -> Mapping[str, float]:
    """Return the least cycles of an SM for 32 of K of a ``rows`` × ``cols`` tile: matrix units, instructions, shared memory."""
    a, b = rows * DEPTH, cols * DEPTH
    read_by_units = rows / GROUP * b * 3 * scheme.term
    return {
        "matrix units": 3 * rows * b / scheme.rate,
        "instructions": (a * scheme.split_a + b * scheme.split_b + rows * cols * scheme.promote) / LANES,
        "shared memory": (4 * (a + b) * 2 + scheme.back * b + read_by_units) / BANKS,
    }
