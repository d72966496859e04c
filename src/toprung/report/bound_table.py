"""Bounds as tables: on the terminal, as a record, and in Markdown."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from toprung import results
from toprung.bounds.arch import Architecture, architecture
from toprung.bounds.figures import Unknown
from toprung.bounds.levels import ADVICE, rate
from toprung.bounds.paper import ACHIEVED, BUDGET, MIXES, WIDTHS, Plan, analyse, ffma_share, mix_throughput
from toprung.device import Device
from toprung.environment import commit, packages
from toprung.errors import BadRecord, UnknownName
from toprung.explain import Explanation

CHECKED = ("FFMA lanes", "issue slots", "register operands", "shared memory", "L1", "L2")


def overview(found: Sequence[tuple[str, Explanation]], title: str) -> Table:
    """A ladder's rungs with their bounds, a row each."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("rung", no_wrap=True)
    table.add_column("idea", no_wrap=True, overflow="ellipsis", max_width=24)
    for name in CHECKED:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    table.add_column("limiter", no_wrap=True)
    for name in ("bound", "measured", "% of\nbound"):
        table.add_column(name, justify="right", no_wrap=True)
    for variant, e in found:
        most, limiter = e.bound.gflops, e.bound.limiter
        rates = {level.name: rate(e.bound.work, level.seconds) for level in e.bound.levels}
        cells = [_short(rates[name]) for name in CHECKED]
        table.add_row(
            f"{'  ' if variant else ''}{e.rung.number}", variant or e.rung.idea, *cells, limiter.name if limiter else "unknown",
            _short(most),
            f"{e.measured.gflops:,.0f}" if e.measured else "–", f"{100 * e.share:.1f}" if e.share is not None else "–",
            style="dim" if variant else None,
        )  # fmt: skip
    return table


def _short(value: float | Unknown) -> str:
    return "?" if isinstance(value, Unknown) else "–" if value >= 1e7 else f"{value:,.0f}"


def bounds_record(what: str, device: Device, found: Sequence[tuple[str, Explanation]]) -> dict[str, Any]:
    """Every bound as a record like any other (``toprung.results``), with ``bounds`` and without measurements of its own."""
    circumstances = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(), "packages": packages(),
        "device": {
            "name": device.name, "short_name": device.short_name, "slug": device.slug, "kind": device.kind, "arch": device.arch,
            "backend": device.backend, "runtime": device.runtime, "driver": device.driver, "compute_units": device.compute_units,
            "clock_mhz": device.clock_mhz, "peak_gflops": device.peak_gflops,
        },
    }  # fmt: skip
    notes = {f"{e.rung.name} {variant}".rstrip(): " ".join(e.notes) for variant, e in found if e.notes}
    entries = [{"variant": variant, **e.describe()} for variant, e in found]
    return results.record(what, circumstances, (), kind="bounds", notes=notes, bounds=entries)


def read_bounds(path: Path) -> dict[str, Any]:
    """A record that ``toprung explain --json`` wrote, or BadRecord."""
    content = results.read(path)
    try:
        for b in content["bounds"]:
            for key in ("rung", "number", "idea", "variant", "limiter"):
                b[key]
            for key in ("bound_gflops", "measured_gflops", "share", "no_cache_gflops", "registers", "ffma_share"):
                if b[key] is not None and not 0 <= float(b[key]) < float("inf"):
                    raise ValueError(f"{b['rung']}: {key} is {b[key]}")
            str(b["figures"]["source"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadRecord(f"{path} is no record of bounds ({type(error).__name__}: {error}): toprung explain LADDER --json") from None
    return content


# --- Markdown: blocks between markers ---------------------------------------------------------------------------------------------


def markdown_bound(words: Sequence[str], root: Path) -> str:
    """``bound fermi [B_R=6 T_B=256 L=16 width=64 | BM=… BN=… BK=… TM=… TN=… width=…]``: the twelve lines of an analysis."""
    of = architecture(words[0])
    given = {name: int(value) for name, _, value in (w.partition("=") for w in words[1:])}
    width = given.pop("width", 64)
    plan = Plan(**given, width=width) if "TM" in given else Plan.square(**({"B_R": 6} | given), width=width)
    analysis = analyse(of, plan)
    lines = ["| | condition | with numbers | |", "|---:|---|---|---|"]
    for c in analysis.conditions:
        value = c.value
        result = (
            str(value) if isinstance(value, Unknown) else f"{value:,.5g}" if c.holds is None else "holds" if c.holds else "refused"
        )
        lines.append(f"| {c.number} | {c.rule} | {c.numbers} | {result} |")
    most, peak = analysis.potential, of.peak_gflops
    if isinstance(most, Unknown) or isinstance(peak, Unknown):
        end = f"Potential: {most}."
    else:
        end = f"Potential: {most:,.0f} GFLOP/s, {100 * most / peak:.1f} % of {peak:,.0f}; limited by {analysis.limiter}."
    if refused := [str(c.number) for c in analysis.conditions if c.holds is False]:
        end = f"Refused by condition {' and '.join(refused)}."
    tile = f"{plan.BM}×{plan.BN}×{plan.BK} {plan.TM}×{plan.TN}, {plan.threads} threads, LDS of {width} bits"
    return "\n".join([f"{of.title}, {tile}:", "", *lines, "", end])


NAMES = {
    "core_clock_mhz": "core clock, MHz", "clock_mhz": "shader clock, MHz",
    "dram_bytes_per_s": "memory bandwidth, GB/s",
    "issue_per_dispatch": "warp instructions a dispatch unit and core clock", "sms": "multiprocessors",
    "schedulers": "warp schedulers",
    "dispatch_units": "dispatch units", "issue_lanes": "thread instructions issued a clock", "lanes": "fp32 lanes (SPs)",
    "ffma_lanes": "FFMA a clock", "ldst_units": "LD/ST units", "lds_lanes": "LDS a clock", "sfus": "SFUs",
    "shared_bytes": "shared memory, KB", "shared_bytes_per_clock": "shared memory, bytes a clock", "registers": "registers, K",
    "registers_thread": "registers a thread", "threads": "threads", "blocks": "blocks", "l2_bytes": "last cache, MiB",
}  # fmt: skip
SCALE = {"dram_bytes_per_s": 1e9, "shared_bytes": 1024, "registers": 1024, "l2_bytes": 2**20}


def markdown_architectures(words: Sequence[str], root: Path) -> str:
    """``architectures gt200 fermi …``: a column each; ``?`` is unknown, ``256?`` the source's own guess."""
    chosen = [architecture(w) for w in words]
    lines = ["| of a multiprocessor, where it is not of the chip | " + " | ".join(a.title for a in chosen) + " |"]
    lines.append("|---|" + "---:|" * len(chosen))
    for name, text in NAMES.items():
        cells = [_figure(a, name) for a in chosen]
        if set(cells) != {"?"}:
            lines.append(f"| {text} | " + " | ".join(cells) + " |")
    peaks = ["?" if isinstance(p := a.peak_gflops, Unknown) else f"{p:,.0f}" for a in chosen]
    lines.append("| theoretical peak, GFLOP/s | " + " | ".join(peaks) + " |")
    sources = {source for a in chosen for _, _, source in a.table() if source}
    return "\n".join([*lines, "", "Sources: " + "; ".join(sorted(sources)) + "."])


def _figure(of: Architecture, name: str) -> str:
    value, guess = getattr(of, name), of.guesses.get(name)
    if value is None:
        return "?" if guess is None else f"{guess:g}?"
    return f"{value / SCALE.get(name, 1):g}"


def markdown_share(words: Sequence[str], root: Path) -> str:
    """``share 12``: Figure 1 as a table, FFMA share of the main loop in per cent for B_R up to a number."""
    lines = ["| B_R | " + " | ".join(_lds(w) for w in WIDTHS) + " |", "|---:|" + "---:|" * len(WIDTHS)]
    for B_R in range(1, int(words[0]) + 1):
        lines.append(f"| {B_R} | " + " | ".join(f"{100 * ffma_share(B_R, B_R, w):.1f}" for w in WIDTHS) + " |")
    return "\n".join(lines)


def markdown_mix(words: Sequence[str], root: Path) -> str:
    """``mix fermi``: the paper's measured mixes, and what becomes of the FFMA share with them."""
    of = architecture(words[0])
    if of.key not in MIXES or of.issue_lanes is None:
        raise UnknownName("architecture with mixes measured in the paper", of.key, MIXES)
    lines = ["| load | FFMA beside each | instructions a clock | % of the issue rate | FFMA share at B_R = 6, % | product, % |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for w in WIDTHS:
        beside, reached = MIXES[of.key][w]
        part, share = mix_throughput(of, w), ffma_share(6, 6, w)
        lines.append(f"| {_lds(w)} | {beside} | {reached} | {100 * part:.1f} | {100 * share:.1f} | {100 * part * share:.1f} |")
    return "\n".join(lines)


def markdown_paper(words: Sequence[str], root: Path) -> str:
    """``paper achieved`` and ``paper registers``: what its kernels reached, and its register budget."""
    if words[0] == "achieved":
        lines = ["| 4800×4800 | GFLOP/s | over cuBLAS 4.1, % |", "|---|---:|---:|"]
        return "\n".join(lines + [f"| {trans} | {speed:,} | {over:g} |" for trans, (speed, over) in ACHIEVED.items()])
    if words[0] == "registers":
        lines = ["| for | registers |", "|---|---:|", *(f"| {what} | {n} |" for what, n in BUDGET.items())]
        return "\n".join([*lines, f"| all | {sum(BUDGET.values())} |"])
    raise UnknownName("table of the paper", words[0], ("achieved", "registers"))


def markdown_beside(words: Sequence[str], root: Path) -> str:
    """``beside results/<device>/bounds-<ladder>.json``: prediction beside measurement for every rung."""
    record = read_bounds(root / words[0])
    lines = [
        "| rung | idea | registers | FFMA share, % | no caches (10) | bound | limiter | measured | % of bound |",
        "|---:|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for b in record["bounds"]:
        idea = f"`{b['variant']}`" if b["variant"] else b["idea"]
        cells = (
            str(b["number"]), idea, _number(b["registers"]), _number(b["ffma_share"], 100, 1), _number(b["no_cache_gflops"]),
            _number(b["bound_gflops"]), b["limiter"] or "unknown", _number(b["measured_gflops"]), _number(b["share"], 100, 1),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    known, source = record["environment"], record["bounds"][0]["figures"]["source"] if record["bounds"] else "nothing"
    end = (
        f"GFLOP/s: {known['device']['short_name']}, figures from {source}, {known['date'][:10]}, commit {known['commit']}, "
        f"`{record['what']}`, stored in `{words[0]}`."
    )
    return "\n".join([*lines, "", end])


def markdown_advice(words: Sequence[str], root: Path) -> str:
    """``advice all``: what would have to change next, by limiter."""
    return "\n".join(["| limiter | what would have to change |", "|---|---|", *(f"| {k} | {v} |" for k, v in ADVICE.items())])


def _lds(width: int) -> str:
    return "LDS" if width == 32 else f"LDS.{width}"


def _number(value: float | None, scale: float = 1, digits: int = 0) -> str:
    return "–" if value is None else f"{value * scale:,.{digits}f}"


MAKERS = {
    "bound": markdown_bound, "architectures": markdown_architectures, "share": markdown_share, "mix": markdown_mix,
    "paper": markdown_paper, "beside": markdown_beside, "advice": markdown_advice,
}  # fmt: skip
"""Blocks of the documentation that this module makes, by their marker's first word."""
