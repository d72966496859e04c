"""The ladder as a table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.text import Text

from toprung.lab.harness.compare import Row
from toprung.report import names
from toprung.report.grid import GAP, LEAST, Column, Grid
from toprung.report.text import Limits, gflops_text, ms_text, scatter_text
from toprung.store.entry import NOISY, scatter

STATES: Mapping[str, str] = {
    "waiting": "", "building": "building …", "running": "running …", "checking": "checking …", "wrong": "WRONG",
    "failed": "failed", "absent": "absent", "unsupported": "not this one", "dropped": "no sample",
}  # fmt: skip

NO_LIMITS = Limits()


def ladder_table(
    rows: Sequence[Row], title: str, limits: Limits = NO_LIMITS, measured_in: str = "GFLOP/s", each: bool = False,
    bound: Callable[[Row], float | None] | None = None,
) -> Grid:  # fmt: skip
    """One row for each rung, variant and vendor, as far as it has got.

    Where rungs are not fp32 a column gives the speed of the kernel alone. ``limits`` give shares of the fp32 peak or of memory's
    bandwidth; ``each`` a column with what marks around each call add; ``bound`` a row's share of what the device allows its kernel.
    """
    vendors = [row for row in rows if row.number == 0]
    apart = any(row.number and row.precision != "fp32" for row in rows)
    shares = [] if limits.gflops_per_mhz is None or apart else [names.PEAK]
    if measured_in != "GFLOP/s":
        shares = [names.READ, names.COPY] if limits.memory else []
    against = names.of(vendors[0].idea if len(vendors) == 1 else "rung 0")
    columns = [
        Column("rung", right=False), Column("idea", right=False, text=True), Column(names.TILE, 9, right=False),
        Column(names.MS), Column(measured_in), Column(names.SPREAD), *[Column(names.ALONE, 1)] * apart, Column(names.PREVIOUS, 1),
        *[Column(against)] * bool(vendors), *(Column(name, 3) for name in shares), *[Column(names.EACH, 2)] * each,
        *[Column(names.BOUND, 3)] * bool(bound), Column(names.HELPERS, 4), Column(names.GRADE, 2),
    ]  # fmt: skip
    grid = Grid(title, columns)
    base: Row | None = None
    for row in rows:
        label = f"{row.number}" if not row.variant else f"  {row.number}"
        cells: dict[str, str | Text] = {"rung": label, "idea": row.variant or row.idea, names.TILE: str(row.tile or "–")}
        if row.verdict:
            cells[names.GRADE] = f"{row.verdict.grade:.2g}"
        m = row.measurement
        if m is None:
            state = STATES.get(row.state, "warming up …")
            cells[measured_in] = Text(state, style="bold red" if row.failed else "dim")
        else:
            before, skipped = base.measurement if base else None, ""
            if base and row.number - base.number > 1:  # the rung before is not here
                skipped = f" ({base.number})"
            baseline = m.baseline(other.measurement for other in vendors if other.measurement)
            share, known = bound(row) if bound else None, limits.shares(m)
            cells |= {
                names.MS: ms_text(m.median), measured_in: gflops_text(m.figure), names.SPREAD: scatter_text(m.seconds),
                names.ALONE: gflops_text(m.alone), names.PREVIOUS: f"{m.figure / before.figure:.2f}{skipped}" if before else "–",
                against: f"{100 * m.share_of(baseline):.1f}" if baseline and scatter(baseline.seconds) <= NOISY else "–",
                **{name: f"{100 * known[name]:.1f}" if name in known else "–" for name in shares},
                names.EACH: f"{100 * (m.each / m.median - 1):+.1f} %" if m.each else "–",
                names.BOUND: f"{100 * share:.1f}" if share is not None else "",
                names.HELPERS: f"{100 * m.helpers:.0f} %" if m.helpers else "–", names.GRADE: f"{m.verdict['grade']:.2g}",
            }  # fmt: skip
        if row.number and not row.variant:
            base = row
        grid.add(cells, "dim" if row.variant else "")
    return grid


def sweep_tables(results: Mapping[str, Sequence[Row]], width: int | None) -> list[Grid]:
    """Return the speed of every rung over the sizes of a sweep, in as many tables as a width needs for whole numbers."""
    units = {row.measurement.measured_in for rows in results.values() for row in rows if row.measurement}
    labels = {(row.label, row.variant or row.idea): None for rows in results.values() for row in rows}
    wide = max((len(size) for size in results), default=0)
    count = len(results) if width is None else max(1, (width - LEAST - 2 * GAP - 4) // (max(wide, 7) + GAP))
    sizes, made = list(results), []
    for i in range(0, len(sizes), count):
        part = sizes[i : i + count]
        title = f"{' and '.join(sorted(units)) or 'speed'} over size"
        grid = Grid(title, [Column("rung", right=False), Column("idea", right=False, text=True), *map(Column, part)])
        for label, idea in labels:
            cells: dict[str, str | Text] = {"rung": label.split()[0], "idea": idea}
            for size in part:
                rows = results[size]
                m = next((row.measurement for row in rows if (row.label, row.variant or row.idea) == (label, idea)), None)
                cells[size] = gflops_text(m.figure) if m else "–"
            grid.add(cells)
        made.append(grid)
    return made
