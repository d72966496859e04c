"""Tables for terminals of any width: no number is cut; lesser columns are left out, and who reads is told which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

GAP = 2
"""Blanks between two columns."""

LEAST = 20
"""Fewest cells of a text that may be cut, before a column that matters would have to go."""


@dataclass(frozen=True)
class Column:
    """A column of a grid.

    Attributes
    ----------
    rank : 0 for a column that is always shown; of the others the highest is left out first
    right : whether cells are set flush right, as numbers are
    text : whether its cells are texts, which may be cut where space is short; numbers never are
    """

    name: str
    rank: int = 0
    right: bool = True
    text: bool = False

    @property
    def heading(self) -> str:
        """The name, on two lines where it has several words and stands above numbers."""
        if not self.right or len(self.name) <= 5:
            return self.name
        if "+" in self.name:
            return self.name.replace("+", "+\n")
        where = self.name.find(" (") if " (" in self.name else self.name.rfind(" ")
        return self.name if where < 0 else f"{self.name[:where]}\n{self.name[where + 1 :]}"


@dataclass
class Grid:
    """A table before it is known how wide it may be.

    ``rows``: cells by the name of their column, and the row's style; a missing cell is empty.
    """

    title: str
    columns: Sequence[Column]
    rows: list[tuple[Mapping[str, str | Text], str]] = field(default_factory=list)
    lines: bool = False

    def add(self, cells: Mapping[str, str | Text], style: str = "") -> None:
        """Add a row."""
        self.rows.append((cells, style))

    def widths(self) -> dict[str, int]:
        """Return the cells that each column takes in full."""
        found = {}
        for column in self.columns:
            texts = [*column.heading.split("\n"), *(str(cells.get(column.name, "")) for cells, _ in self.rows)]
            found[column.name] = max(cell_len(t) for t in texts)
        return found

    def fitted(self, width: int | None, most: int | None = None) -> tuple[Group, tuple[str, ...], int]:
        """Return the table for a width, names of the columns that are left out, and the cells that it takes.

        Parameters
        ----------
        width : cells that there are; None for no limit
        most : cells of a text, where there is no other limit
        """
        full, shown = self.widths(), list(self.columns)
        full = {c.name: min(full[c.name], most) if most and c.text else full[c.name] for c in shown}
        least = {c.name: min(full[c.name], LEAST) if c.text else full[c.name] for c in shown}

        def taken(sizes: Mapping[str, int]) -> int:
            return sum(sizes[c.name] for c in shown) + GAP * (len(shown) - 1)

        while width is not None and taken(least) > width and any(c.rank for c in shown):
            shown.remove(max(reversed(shown), key=lambda c: c.rank))
        sizes = dict(full)
        for column in [c for c in reversed(shown) if c.text]:
            if width is not None and (excess := taken(sizes) - width) > 0:
                sizes[column.name] = max(least[column.name], sizes[column.name] - excess)
        table = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
            padding=(0, GAP - 1, 0, 0), show_lines=self.lines,
        )  # fmt: skip
        for c in shown:
            table.add_column(
                c.heading, justify="right" if c.right else "left", no_wrap=True, overflow="ellipsis", width=sizes[c.name]
            )
        for cells, style in self.rows:
            table.add_row(*(cells.get(c.name, "") for c in shown), style=style)
        # a table's own title would be wrapped at its width
        title = [Text(self.title, "bold", no_wrap=True, overflow="ignore")] if self.title else []
        return Group(*title, table), tuple(c.name for c in self.columns if c not in shown), taken(sizes)


def left_out(names: Sequence[str], width: int | None) -> str:
    """Return the line below a table that has columns left out; empty if it has not."""
    return f"left out at {width} columns: {', '.join(names)}; --wide shows them" if names else ""
