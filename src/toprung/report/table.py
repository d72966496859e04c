"""The ladder as a table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from toprung.lab.harness.climb import Entry
from toprung.report.text import Limits, gflops_text

STATES: Mapping[str, str] = {
    "waiting": "",
    "building": "building …",
    "checking": "checking …",
    "wrong": "WRONG",
    "failed": "failed",
}

NO_LIMITS = Limits()


def ladder_table(
    rows: Sequence[Entry],
    title: str,
    limits: Limits = NO_LIMITS,
    width: int = 120,
    measured_in: str = "GFLOP/s",
    each: bool = False,
    bound: Callable[[Entry], float | None] | None = None,
) -> Table:
    """One row an entry, as far as it has got.

    ``× prev`` compares a rung with the rung before it, and a variant with its own rung; ``layout`` is the share of the time
    that goes into padding and transposing operands; ``error`` is the grade ratio. Narrow terminals go without the tile.
    Where rungs are not fp32 a column ``kernel`` gives the speed without helpers.
    ``limits`` give the columns ``% peak``, at the clock that was read, or ``% read`` and ``% copy``; ``each`` a column with what
    marks around each call say more than marks around the loop; ``bound`` an entry's share of what the device allows its kernel.
    """
    vendors = [e for e in rows if e.number == 0]
    vendor = vendors[0] if vendors else None
    apart = any(e.number and e.precision != "fp32" for e in rows)
    wide = width >= 108
    shares = [] if limits.gflops_per_mhz is None else ["% of peak"]
    if apart:
        shares = []
    if measured_in != "GFLOP/s":
        shares = ["% of read", "% of copy"] if limits.memory else []
    table = _table(title)
    table.add_column("rung", no_wrap=True)
    table.add_column("idea", overflow="ellipsis", no_wrap=True)
    if wide:
        table.add_column("tile", no_wrap=True)
    for name in ("ms", measured_in, *["kernel"] * apart, "× prev"):
        table.add_column(name, justify="right", no_wrap=True)
    if vendor:
        table.add_column(f"% {vendor.idea}" if len(vendors) == 1 else "% of 0", justify="right", no_wrap=True)
    for name in [*(s.replace("of ", "") for s in shares), *(["each"] if each else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout", justify="right", no_wrap=True)
    table.add_column("error", justify="right", no_wrap=True)
    if bound:
        table.add_column("% bound", justify="right", no_wrap=True)
    base: Entry | None = None
    for entry in rows:
        cells: list[str | Text] = [_label(entry), entry.variant or entry.idea]
        if wide:
            cells.append(str(entry.tile or "–"))
        m = entry.measurement
        if m is None:
            state = STATES.get(entry.state, "warming up …")
            cells += ["", Text(state, style="bold red" if entry.failure else "dim"), *[""] * (1 + apart)]
            cells += [""] * (bool(vendor) + len(shares) + each)
            cells += ["", f"{entry.verdict.grade:.2g}" if entry.verdict else ""]
        else:
            before = base.measurement if base else None
            cells += [f"{m.median * 1e3:.3g}", gflops_text(m.figure), *[gflops_text(m.alone)] * apart]
            cells.append(f"{m.figure / before.figure:.2f}" if before else "–")
            if vendor:
                rival = m.rival(e.measurement for e in vendors if e.measurement)
                cells.append(f"{100 * m.share_of(rival):.1f}" if rival else "")
            known = limits.shares(m)
            cells += [f"{100 * known[name]:.1f}" if name in known else "–" for name in shares]
            if each:
                cells.append(f"{100 * (m.each / m.median - 1):+.1f} %" if m.each else "–")
            cells += [f"{100 * m.helpers:.0f} %" if m.helpers else "–", f"{m.verdict['grade']:.2g}"]
        if entry.number and not entry.variant:
            base = entry
        share = bound(entry) if bound else None
        if share is not None:
            cells.append(f"{100 * share:.1f}")
        table.add_row(*cells, style="dim" if entry.variant else None)
    return table


def sweep_table(results: Mapping[str, Sequence[Entry]]) -> Table:
    """The speed of every entry over the sizes of a sweep."""
    units = {e.measurement.measured_in for rows in results.values() for e in rows if e.measurement}
    table = _table(f"{' and '.join(sorted(units)) or 'speed'} over size")
    table.add_column("rung", no_wrap=True)
    table.add_column("idea", overflow="ellipsis", no_wrap=True)
    for size in results:
        table.add_column(size, justify="right", no_wrap=True)
    labels = {(e.label, e.variant or e.idea): None for rows in results.values() for e in rows}
    for label, idea in labels:
        cells = []
        for rows in results.values():
            m = next((e.measurement for e in rows if (e.label, e.variant or e.idea) == (label, idea)), None)
            cells.append(gflops_text(m.figure) if m else "–")
        table.add_row(label.split()[0], idea, *cells)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def _label(entry: Entry) -> str:
    return f"{entry.number}" if not entry.variant else f"  {entry.number}"
