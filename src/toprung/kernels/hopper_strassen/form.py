"""Strassen's form and Winograd's: seven products of sums of quarters in place of eight, as tables of signs."""

from __future__ import annotations

from dataclasses import dataclass

Signs = tuple[tuple[int, ...], ...]

PRODUCTS = 7
"""Products of a level."""


@dataclass(frozen=True)
class Form:
    """A way to multiply 2×2 blocks with seven products: C_q = Σ c[q][p]·(Σ a[p][i]·A_i)·(Σ b[p][j]·B_j).

    Attributes
    ----------
    a, b : for each product a sign for each quarter, 11, 12, 21, 22; 0 where it takes no part
    c : for each quarter of C a sign for each product
    """

    name: str
    a: Signs
    b: Signs
    c: Signs

    def signs(self, which: str) -> int:
        """Return the table of ``"a"``, ``"b"`` or ``"c"`` as the kernels have it.

        A sign is two bits, 1 for +1 and 2 for −1, the first the lowest. Quarters go by rows of A and by columns of B first:
        11, 12, 21, 22 of A and 11, 21, 12, 22 of B.
        """
        rows: Signs = getattr(self, which)
        order = (0, 2, 1, 3) if which == "b" else range(len(rows[0]))
        return sum(row[i] % 3 << 2 * (len(row) * n + place) for n, row in enumerate(rows) for place, i in enumerate(order))


STRASSEN = Form(
    "Strassen",
    ((1, 0, 0, 1), (0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 0), (-1, 0, 1, 0), (0, 1, 0, -1)),
    ((1, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, -1), (-1, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (0, 0, 1, 1)),
    ((1, 0, 0, 1, -1, 0, 1), (0, 0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 0, 0), (1, -1, 1, 0, 0, 1, 0)),
)
"""Sums of two quarters at most: 12 quarters of each operand are read."""

WINOGRAD = Form(
    "Winograd",
    ((1, 0, 0, 0), (0, 1, 0, 0), (1, 1, -1, -1), (0, 0, 0, 1), (0, 0, 1, 1), (-1, 0, 1, 1), (1, 0, -1, 0)),
    ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, -1, -1, 1), (-1, 1, 0, 0), (1, -1, 0, 1), (0, -1, 0, 1)),
    ((1, 1, 0, 0, 0, 0, 0), (1, 0, 1, 0, 1, 1, 0), (1, 0, 0, -1, 0, 1, 1), (1, 0, 0, 0, 1, 1, 1)),
)
"""Fewer additions where products share sums, which a splitting pass cannot do: 14 quarters of each operand are read."""
