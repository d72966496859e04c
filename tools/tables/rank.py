"""The model that ranks tiles beside what was measured: a Markdown table, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord
from toprung.lab.bounds.arch import card
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.rank import Machine, machine
from toprung.lab.harness.results import read
from toprung.lab.probe import store
from toprung.report.plot import check, matplotlib_pyplot, save
from toprung.tune.ranking import TOP, WITHOUT, Agreement, agreement, predictions, timed, without

CHOSEN, SPILLED, FIRST = "#3182bd", "#bdbdbd", "#d95f0e"


def machine_of(path: Path) -> Machine:
    """The device of a probe record, with what its vendor says of the last cache.

    Raises
    ------
    BadRecord
        a probe that lacks what the model needs
    """
    measured = store.figures(store.read(path))
    _, cache, source = card(measured.name)
    found = machine(measured.or_else(Figures(measured.name, measured.arch, l2_bytes=cache, source=source)))
    if isinstance(found, Unknown):
        raise BadRecord(f"{path} lacks {', '.join(found.missing)}: run toprung probe")
    return found


def block(words: Sequence[str], root: Path) -> str:
    """A record of benchmarks/rank.py, one of the probe: how well the model orders the tiles, whole and less each of its parts."""
    from toprung.report.text import source_line

    if len(words) < 2:
        return "Not measured yet."
    record, on = read(root / words[0]), machine_of(root / words[1])
    problems = list(timed(record))
    rows: dict[str, list[Agreement]] = {}
    for product, tiles in problems:
        measured = [t.seconds for t in tiles]
        rows.setdefault("with what the compiler made", []).append(agreement(predictions(on, product, tiles), measured))
        rows.setdefault("before compiling", []).append(agreement(predictions(on, product, tiles, False), measured))
        for part in WITHOUT:
            rows.setdefault(f"without {part}", []).append(agreement(without(part, on, product, tiles), measured))
    heads = [f"{p.M}" if p.M == p.N == p.K else f"{p.M}×{p.N}×{p.K}" for p, _ in problems]
    columns = "".join(f" {h}: all | fastest quartile | best of the first {TOP} | spread |" for h in heads)
    lines = [f"| seed {record['seed']} |{columns}", "|---|" + "---:|---:|---:|---:|" * len(heads)]
    for name, found in rows.items():
        cells = [c for a in found for c in (f"{a.spearman:.3f}", f"{a.quartile:.3f}", f"{a.top:.3f}", f"{a.spread:.3f}")]
        lines.append("| " + " | ".join((name, *cells)) + " |")
    counts = ", ".join(f"{len(t)} tiles ({sum(x.code.local_accesses > 0 for x in t)} spill)" for _, t in problems)
    return "\n".join([
        *lines, "",
        f"{counts}. Rank correlation (Spearman) of predicted and measured seconds, over all tiles and over the fastest quartile as "
        f"measured; the best measured time among the model's first {TOP} over the best of all; standard deviation of the logarithm "
        "of measured over predicted." + _described(record) + "  ",
        source_line(words[0], record), source_line(words[1], store.read(root / words[1])),
    ])  # fmt: skip


def _described(record: dict[str, Any]) -> str:
    """That the compiler's part is younger than the times."""
    again = record.get("described")
    return f" The code was compiled and described again on {again['date'][:10]} (commit {again['commit']})." if again else ""


def scatter(record: dict[str, Any], probe: Path, path: Path) -> None:
    """Draw measured over predicted seconds, a panel a problem; the model's first tiles and those that spill stand out."""
    check(path)
    on, problems, plt = machine_of(probe), list(timed(record)), matplotlib_pyplot()
    figure, axes = plt.subplots(1, len(problems), figsize=(4.6 * len(problems), 4.4), layout="constrained", squeeze=False)
    for panel, (product, tiles) in zip(axes[0], problems, strict=True):
        predicted = predictions(on, product, tiles)
        first = set(sorted(range(len(tiles)), key=lambda i: predicted[i])[:TOP])
        groups = (
            ("spills", SPILLED, False, True),
            ("fits its registers", CHOSEN, False, False),
            (f"the first {TOP}", FIRST, True, None),
        )
        for label, color, leading, spills in groups:
            chosen = [
                i for i, t in enumerate(tiles) if (i in first) == leading and (leading or (t.code.local_accesses > 0) == spills)
            ]
            panel.scatter(
                [1e6 * predicted[i] for i in chosen], [1e6 * tiles[i].seconds for i in chosen], s=9, color=color, label=label
            )
        ends = [1e6 * f(f(predicted), f(t.seconds for t in tiles)) for f in (min, max)]
        panel.plot(ends, ends, color="#444444", linewidth=0.8, linestyle="--")
        panel.set(xscale="log", yscale="log", xlabel="predicted µs", ylabel="measured µs")
        panel.set_title(f"{product.M}×{product.N}×{product.K}", loc="left", fontsize=10)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=8, frameon=False)
    save(figure, path)


TABLES = {"rank": block}
