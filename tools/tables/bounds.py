"""Tables of the analytic bound and of bounds beside measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toprung.errors import UnknownName
from toprung.lab.bounds.arch import Architecture, architecture
from toprung.lab.bounds.figures import Unknown
from toprung.lab.bounds.levels import ADVICE
from toprung.lab.bounds.paper import MIXES, WIDTHS, Blocking, analyse, ffma_share, mix_throughput
from toprung.report.bound_table import read_bounds

BUDGET = {
    "C": 36, "prefetch of A and B": 12, "a column of A": 6, "a pair of B": 2, "addresses in global memory": 2, "end of the loop": 1,
    "addresses to write shared memory": 2, "and to read it": 2,
}  # fmt: skip
"""The 63 registers of a thread of the paper's kernel."""
ACHIEVED = {"NN": (1165, 11.0), "TN": (1157, 4.5), "NT": (1173, 3.0), "TT": (1163, 9.0)}
"""GFLOP/s of its kernels at 4800×4800, and by how many per cent they beat cuBLAS 4.1, on its own card of 1566 MHz."""

NAMES = {
    "core_clock_mhz": "core clock, MHz", "clock_mhz": "shader clock, MHz",
    "dram_bytes_per_s": "memory bandwidth, GB/s",
    "issue_per_dispatch": "warp instructions a dispatch unit and core clock", "sms": "multiprocessors",
    "schedulers": "warp schedulers",
    "dispatch_units": "dispatch units", "issue_lanes": "thread instructions issued a clock", "lanes": "fp32 lanes (SPs)",
    "ffma_lanes": "FFMA a clock", "tensor_fp16": "fp16 multiply-adds on Tensor Cores a clock",
    "ldst_units": "LD/ST units", "lds_lanes": "LDS a clock", "sfus": "SFUs",
    "shared_bytes": "shared memory, KB", "shared_bytes_per_clock": "shared memory, bytes a clock", "registers": "registers, K",
    "registers_thread": "registers a thread", "threads": "threads", "blocks": "blocks", "l2_bytes": "last cache, MiB",
}  # fmt: skip
SCALE = {"dram_bytes_per_s": 1e9, "shared_bytes": 1024, "registers": 1024, "l2_bytes": 2**20}


def markdown_bound(words: Sequence[str], root: Path) -> str:
    """``bound fermi [B_R=6 T_B=256 L=16 width=64 | BM=… BN=… BK=… TM=… TN=… width=…]``: the twelve lines of an analysis."""
    of = architecture(words[0])
    given = {name: int(value) for name, _, value in (w.partition("=") for w in words[1:])}
    width = given.pop("width", 64)
    plan = Blocking(**given, width=width) if "TM" in given else Blocking.square(**({"B_R": 6} | given), width=width)
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
    lanes = any(b["no_cache_gflops"] for b in record["bounds"])  # of a ladder on fp32 lanes
    lines = [
        "| rung | idea | registers | " + "FFMA share, % | no caches (10) | " * lanes + "bound | limiter | measured | % of bound |",
        "|---:|---|---:|" + "---:|---:|" * lanes + "---:|---|---:|---:|",
    ]
    for b in record["bounds"]:
        idea = f"`{b['variant']}`" if b["variant"] else b["idea"]
        of_lanes = (_number(b["ffma_share"], 100, 1), _number(b["no_cache_gflops"])) if lanes else ()
        cells = (
            str(b["number"]), idea, _number(b["registers"]), *of_lanes, _number(b["bound"]), b["limiter"] or "unknown",
            _number(b["measured"]), _number(b["share"], 100, 1),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    known, source = record["environment"], record["bounds"][0]["figures"]["source"] if record["bounds"] else "nothing"
    units = " and ".join(dict.fromkeys(b["unit"] for b in record["bounds"]))
    end = (
        f"{units}: {known['device']['short_name']}, figures from {source}, {known['date'][:10]}, commit {known['commit']}, "
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


TABLES = {
    "bound": markdown_bound,
    "architectures": markdown_architectures,
    "share": markdown_share,
    "mix": markdown_mix,
    "paper": markdown_paper,
    "beside": markdown_beside,
    "advice": markdown_advice,
}
