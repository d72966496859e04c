"""Tables of what commands measured: bench, probe, machine code beside its source, and calls of the library on the host."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.common import NOTHING, source_line, speed_source
from toprung.errors import BadRecord
from toprung.kernels.registry import families
from toprung.lab.bounds.registers import Reads
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import read
from toprung.lab.harness.stats import paired_ratio
from toprung.lab.probe.store import read as read_probe
from toprung.report import names
from toprung.report.text import gflops_text, scatter_text, size_of


def _overhead(words: Sequence[str], root: Path) -> str:
    """Costs of the library's calls on the host, a row for each kind of array and call; from benchmarks/overhead.py."""
    if not words:
        return NOTHING
    lines = ["| device | arrays | call | µs |", "|---|---|---|---:|"]
    sources = []
    for word in words:
        record = read(root / word)
        e, device = record["environment"], record["environment"]["device"]
        for row in record["overheads"]:
            lines.append(f"| {device['short_name']} | {row['arrays']} | `{row['call']}` | {row['microseconds']['median']:.1f} |")
        loading = record.get("imports", {})
        took = f"`import numpy` {loading['numpy']:.3f} s, `import toprung` {loading['toprung']:.3f} s; " if loading else ""
        if "first_product" in record:
            took += f"a program's first 64×64 product of NumPy arrays {1e3 * record['first_product']:.1f} ms; "
        sources.append(
            f"Microseconds of a call on the host, medians: {took}{device['short_name']}, {device['runtime']}, "
            f"Python {e['python']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{word}`.  "
        )
    return "\n".join([*lines, "", *sources])


def _host_arrays(words: Sequence[str], root: Path) -> str:
    """Products of NumPy arrays by own kernels on a CPU and by NumPy, a row for each product; from benchmarks/host_arrays.py."""
    record = read(root / words[0])
    e, device = record["environment"], record["environment"]["device"]
    lines = ["| product | kernel | ms | NumPy's ms | of NumPy's time, 95 % interval |", "|---|---|---:|---:|---:|"]
    here = {one.name for one in families()}
    for row in record["host_arrays"]:
        if row["kernel"].split()[0] not in here:  # of a family that is gone
            continue
        ours, theirs = row["seconds"]["toprung"], row["seconds"]["numpy"]
        ratio = paired_ratio(ours, theirs)
        product = f"{row['M']}×{row['N']}×{row['K']}" + ("" if row["trans"] == "NN" else " " + row["trans"])
        lines.append(
            f"| {product} | `{row['kernel']}` | {1e3 * statistics.median(ours):.3g} | {1e3 * statistics.median(theirs):.3g} | "
            f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) |"
        )
    source = (
        f"Medians: {device['short_name']}, {device['compute_units']} cores, {device['runtime']}, NumPy {e['packages']['numpy']}, "
        f"Python {e['python']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


def _standstill(words: Sequence[str], root: Path) -> str:
    """Longest standstill of another thread in a first product, a row for each way to count it; from benchmarks/standstill.py."""
    record = read(root / words[0])
    e, device, runs = record["environment"], record["environment"]["device"], record["standstill"]
    lines = ["| of another thread, ms | median | most |", "|---|---:|---:|"]
    for text, name in (("interpreter's lock held, at most", "held"), ("between two of its turns", "wall")):
        found = [1e3 * run["longest"][name][name] for run in runs]
        lines.append(f"| {text} | {statistics.median(found):.0f} | {max(found):.0f} |")
    loads = [run["load"] for run in runs]
    source = (
        f"The longest of each of {len(runs)} first products: {device['short_name']}, {device['compute_units']} cores, a load of "
        f"{min(loads):.0f} to {max(loads):.0f}, {device['runtime']}, Python {e['python']}, {e['date'][:10]}, commit {e['commit']}, "
        f"`{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


def _torch_models(words: Sequence[str], root: Path) -> str:
    """Training steps under PyTorch, a row for each model and named mode (all if none is); from benchmarks/torch_models.py.

    Of several records with ``+`` between them the newest row of each model and mode is shown.
    """
    *modes, word = words
    path, *more = word.split("+")
    record = read(root / path)
    e, device = record["environment"], record["environment"]["device"]
    newest = {(row["model"], row["mode"]): row for row in record["torch_models"] if not modes or row["mode"] in modes}
    others = {}
    for other in more:
        for row in read(root / other)["torch_models"]:
            if row["date"] > newest.get(key := (row["model"], row["mode"]), {}).get("date", "9"):
                newest[key] = row
                others[key] = f"{row['title'].partition(',')[0]}: {row['date'][:10]}, commit {row['commit']}, `{other}`.  "
    rows = [row for row in newest.values() if "skipped" not in row]
    if not rows:
        raise BadRecord(f"{path} holds no step that is {' or '.join(modes)}")
    arms = ("fp32", "tf32", "toprung")
    lines = [
        "| model, mode | PyTorch fp32, ms | PyTorch TF32, ms | toprung, ms | speed-up over fp32, 95 % interval | "
        "gradient error fp32 / TF32 / toprung |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        times = [row["seconds"].get(name) for name in arms]
        errors = [row["errors"].get(name) for name in arms]
        speedup = "{:.2f} ({:.2f} to {:.2f})".format(*row["speedup"]) if "speedup" in row else "–"
        cells = (
            f"{row['title']}, {row['mode']}",
            *(f"{1e3 * statistics.median(t):.1f}" if t else "–" for t in times),
            speedup,
            " / ".join(f"{one['gradient']:.1e}" if one else "–" for one in errors),
        )
        lines.append("| " + " | ".join(cells) + " |")
    samples = max((len(t) for row in rows for t in row["seconds"].values()), default=0)
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in rows if row in record["torch_models"]))
    steps = f" of {rows[0]['steps']} steps each" if "steps" in rows[0] else ""  # newer records time for so long instead
    versions = "".join(f"{name} {e['packages'][name]}, " for name in ("transformers", "nccl") if name in e["packages"])
    source = (
        f"Medians of {samples} samples{steps}, in turns. Errors are Frobenius norms of all gradients, against float64; of the "
        f"results, where a program computes no gradients. Measured on {device['short_name']}, driver {device['driver']}, "
        f"{versions}Python {e['python']}, PyTorch {e['packages']['torch']}, {e['date'][:10]}, commit {commits}, "
        f"`{record['what']}`, stored in `{path}`.  "
    )
    return "\n".join([*lines, "", source, *others.values()])


def _torch_curves(words: Sequence[str], root: Path) -> str:
    """Losses of training in four arithmetics, and how far each was from float64's; from benchmarks/torch_curves.py."""
    record = read(root / words[0])
    e, device, found = record["environment"], record["environment"]["device"], record["torch_curves"]
    exact = found["losses"]["float64"]
    lines = ["| arithmetic | last loss | farthest from float64's in any step | in the last |", "|---|---:|---:|---:|"]
    for name, losses in found["losses"].items():
        away = [abs(x - y) for x, y in zip(losses, exact, strict=True)]
        far = " | ".join("" if name == "float64" else f"{x:.1e}" for x in (max(away), away[-1]))
        lines.append(f"| {'PyTorch, ' * (name != 'toprung')}{name} | {losses[-1]:.6f} | {far} |")
    source = (
        f"{found['steps']} steps of AdamW, {found['model']}: {device['short_name']}, driver {device['driver']}, PyTorch "
        f"{e['packages']['torch']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


def _several(words: Sequence[str], root: Path) -> str:
    """Products over several GPUs, a row for each size, precision and number of GPUs; from benchmarks/several.py."""
    path = f"{words[0]}/measured.json"
    runs = json.loads((root / path).read_text("utf-8"))
    lines = [
        "| size, precision, GPUs | TFLOP/s | of the local product's speed | all-gather first | PyTorch's `A @ B`, fp32, TFLOP/s | "
        "predicted over measured time |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in (row for run in runs for row in run["results"]):
        of_local = (f"{row['local'] / row[name]:.0%}".replace("%", " %") for name in ("seconds", "gather, then local"))
        ours, theirs = (2e-12 * row["size"] ** 3 / row[name] for name in ("seconds", "PyTorch's A @ B, fp32"))
        cells = (f"{ours:.0f}", *of_local, f"{theirs:.0f}", f"{row['predicted'] / row['seconds']:.2f}")
        lines.append("| " + " | ".join((f"{row['size']}, {row['precision']}, {row['ranks']}", *cells)) + " |")
    sources = (
        f"Medians: {e['device']['name']}, driver {e['device']['driver']}, PyTorch {e['packages']['torch']}, "
        f"{e['date'][:10]}, commit {e['commit'][:9]}, stored in `{path}`.  "
        for e in (run["environment"] for run in runs)
    )
    return "\n".join([*lines, "", *dict.fromkeys(sources)])


def _torch_products(words: Sequence[str], root: Path) -> str:
    """Single products of PyTorch's with toprung enabled, summed up by what became of them; from benchmarks/torch_products.py."""
    record = read(root / words[0])
    device, e = record["environment"]["device"], record["environment"]
    rows = record["torch_products"]
    kinds = {
        "below 5e8 operations: left to PyTorch": [r for r in rows if r["kind"] == "small"],
        "larger, left to PyTorch": [r for r in rows if r["kind"] == "large" and not r["kernel"]["toprung"]],
        "larger, taken": [r for r in rows if r["kind"] == "large" and r["kernel"]["toprung"]],
    }
    lines = [
        "| products | how many | device time over PyTorch's: geometric mean | and the largest | host time more than PyTorch's: "
        "median, µs | and the largest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, found in kinds.items():
        ratios = [r["device"]["toprung"] / r["device"]["torch"] for r in found]
        hosts = [1e6 * (r["host"]["toprung"] - r["host"]["torch"]) for r in found if r["host"]]
        mean = statistics.geometric_mean(ratios)
        lines.append(
            f"| {name} | {len(found)} | {mean:.3f} | {max(ratios):.3f} | {statistics.median(hosts):.1f} | {max(hosts):.1f} |"
        )
    source = (
        f"Device times by CUDA graphs, medians of {len(rows[0]['samples']['torch'])} samples, in turns; host times of products "
        f"of up to 3e9 operations: {device['short_name']}, driver {device['driver']}, PyTorch {e['packages']['torch']}, Python "
        f"{e['python']}, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


def _installations(words: Sequence[str], root: Path) -> str:
    """Disk space of installations, a row for each extra; from benchmarks/install_sizes.py."""
    record = read(root / words[0])
    e = record["environment"]
    lines = ["| extra | MB | the largest of it, MB |", "|---|---:|---|"]
    for row in record["installations"]:
        largest = sorted(row["packages"].items(), key=lambda one: -one[1])[:3]
        named = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in largest)
        lines.append(f"| {'`' + row['extra'] + '`' if row['extra'] else '–'} | {row['bytes'] / 1e6:.0f} | {named} |")
    when = f"{e['date'][:10]}, commit {e['commit']}"
    source = f"{e['system']}, Python {e['python']}, {when}, `{record['what']}`, stored in `{words[0]}`.  "
    return "\n".join([*lines, "", source])


def _commits(words: Sequence[str], root: Path) -> str:
    """Two sides of benchmarks/commits.py, a row for each product."""
    record = read(root / words[0])
    e, device = record["environment"], record["environment"]["device"]
    old, new = (record["products"][0]["told"][side]["runtime"].split(", ")[-1] for side in ("old", "new"))
    if old == new:  # two commits with one compiler
        old, new = record["what"].split()[2], str(e["commit"])[:7]
    lines = [
        f"| product | kernel | ms, {old} | time, {new} / {old} (95 % interval) | Frobenius error, {new} / {old} |",
        "|---|---|---:|---:|---:|",
    ]
    for row in record["products"]:
        took = 1e3 * statistics.median(seconds for seconds, _ in row["samples"]["old"])
        value, low, high = row["new_over_old"]
        error = row["told"]["new"]["error"] / row["told"]["old"]["error"]
        product = row.get("product") or f"{row['precision']} {row['M']}×{row['N']}×{row['K']} {row['trans']}"
        kernel = row["told"]["new"]["kernel"]
        lines.append(f"| {product} | `{kernel}` | {took:.3g} | {value:.3f} ({low:.3f} to {high:.3f}) | {error:.3f} |")
    source = (
        f"{device['short_name']}, driver {device['driver']}, in turns, {e['date'][:10]}, commit {e['commit']}, `{record['what']}`, "
        f"stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


def _bench(words: Sequence[str], root: Path) -> str:
    """A record of ``toprung bench``: everybody's speed over the sizes, and the Frobenius error at the last."""
    record = read(root / words[0])
    measurements: list[Measurement] = record["measurements"]
    if len({m.competitor["name"] for m in measurements}) == len({m.mode for m in measurements}) == 1:
        return _alone(words[0], record)
    columns = list(dict.fromkeys((size_of(m), m.mode) for m in measurements))
    heads = [size if mode == "warm" else f"{size} {mode}" for size, mode in columns]
    lines = ["| who | precision | " + " | ".join(heads) + f" | {names.FROBENIUS} |", "|---|---|" + "---:|" * (len(heads) + 1)]
    for name in dict.fromkeys(m.competitor["name"] for m in measurements):
        own = {(size_of(m), m.mode): m for m in measurements if m.competitor["name"] == name}
        last = list(own.values())[-1]
        cells = [_with_host(own[c]) if c in own else "–" for c in columns]
        error = f"{last.verdict['frobenius']:.2e}"
        lines.append(f"| {name} | {last.competitor['precision']} | " + " | ".join(cells) + f" | {error} |")
    if any(m.host for m in measurements):
        lines += ["", "In brackets: µs that the host takes to put a call into the queue, the least.  "]
    else:
        lines.append("")
    return "\n".join([*lines, speed_source(words[0], record)])


def _alone(path: str, record: dict[str, Any]) -> str:
    """A record of ``toprung bench`` with one competitor: its speed, a row for each size and a column for each transpose."""
    speeds: dict[str, dict[str, str]] = {}
    for m in record["measurements"]:
        speeds.setdefault(size_of(m).split(" ")[0], {})[m.problem["trans"]] = gflops_text(m.figure)
    transposes = list(dict.fromkeys(trans for row in speeds.values() for trans in row))
    lines = ["| size | " + " | ".join(transposes) + " |", "|---|" + "---:|" * len(transposes)]
    lines += [f"| {size} | " + " | ".join(row.get(t, "–") for t in transposes) + " |" for size, row in speeds.items()]
    return "\n".join([*lines, "", speed_source(path, record)])


def _versus(words: Sequence[str], root: Path) -> str:
    """A record of ``toprung bench`` with two competitors, a row for each product: both speeds, their ratio, the first's error."""
    record = read(root / words[0])
    measurements: list[Measurement] = record["measurements"]
    first, second = dict.fromkeys(m.competitor["name"] for m in measurements)
    lines = [
        f"| size | precision of {first} | {first} | {second} | times as fast, 95 % interval | {names.FROBENIUS} of {first} |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for size in dict.fromkeys(size_of(m) for m in measurements):
        own = {m.competitor["name"]: m for m in measurements if size_of(m) == size}
        if len(own) != 2:
            continue
        ours, theirs = own[first], own[second]
        ratio = paired_ratio(theirs.seconds, ours.seconds)
        speeds = " | ".join(f"{gflops_text(m.figure)} ± {scatter_text(m.seconds)} %" for m in (ours, theirs))
        lines.append(
            f"| {size} | {ours.competitor['precision']} | {speeds} | {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) | "
            f"{ours.verdict['frobenius']:.2e} |"
        )
    return "\n".join([*lines, "", speed_source(words[0], record)])


def _with_host(m: Measurement) -> str:
    """The speed, and the host's microseconds where they are known."""
    return gflops_text(m.figure) + (f" ({1e6 * m.host:.1f})" if m.host else "")


def _probe(words: Sequence[str], root: Path) -> str:
    """Microbenchmarks of ``toprung probe``: every case, a column a record."""
    names, *paths = words
    if not paths:
        return NOTHING
    records = [read_probe(root / p) for p in paths]
    rows: dict[tuple[str, str, str], list[Mapping[str, Any] | None]] = {}
    for i, record in enumerate(records):
        for one in record["probe"]:
            if one["benchmark"] in names.split(","):
                rows.setdefault((one["title"], one["label"], one["unit"]), [None] * len(records))[i] = one
    if not rows:
        raise BadRecord(f"{' '.join(paths)}: no measurement of {names}")
    runtimes = [r["environment"]["device"]["backend"] for r in records]
    heads = ["what", "case", "unit", *runtimes, "vendor", "% of it", "MHz", "W"]
    counted = any(f and f.get("reads") for found in rows.values() for f in found)
    heads += ["registers", "read by an FFMA", "bank conflicts, % of FFMA"] * counted
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|" + "---:|" * (len(heads) - 3)]
    for (title, label, unit), found in rows.items():
        first = next(f for f in found if f)
        values = [gflops_text(f["value"]) if f and f["value"] else "–" for f in found]
        clocks = [c for c in first["clocks_mhz"] if c]
        more = (
            gflops_text(first["vendor"]) if first["vendor"] else "–",
            f"{100 * first['value'] / first['vendor']:.1f}" if first["vendor"] and first["value"] else "–",
            f"{statistics.median(clocks):.0f}" if clocks else "–",
            f"{first['watts']:.0f}" if first["watts"] else "–",
        )
        reads = Reads(**first["reads"]) if first.get("reads") else None
        registers: tuple[str, ...] = ("–", "–", "–") if counted else ()
        if reads:
            conflicts = 100 * reads.conflicts_each
            registers = (str(first["registers"]), f"{reads.reads_each:.2f}", f"{conflicts:.1f}")
        lines.append("| " + " | ".join((title, label, unit, *values, *more, *registers)) + " |")
    return "\n".join([*lines, "", *(source_line(p, r) for p, r in zip(paths, records, strict=True))])


def _loads(words: Sequence[str], root: Path) -> str:
    """A rung compiled in the process beside its machine code from a file, of ``toprung run --both``."""
    name, *paths = words
    if not paths:
        return NOTHING
    lines = [
        "| rung | code | size | ms | GFLOP/s | speed / compiled here, 95 % interval | load, ms |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    records = [read(root / p) for p in paths]
    for path, record in zip(paths, records, strict=True):
        own = [m for m in record["measurements"] if m.competitor["name"] == name]
        if len(own) != 2:
            raise BadRecord(f"{path} does not hold {name} in two forms: toprung run {name} --both")
        ratio = paired_ratio(own[0].seconds, own[1].seconds)
        loads = {one["label"]: statistics.median(one["load_seconds"]) for one in record["loads"]}
        for m in own:
            label = m.competitor["variant"]
            against = "1" if m is own[0] else f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"
            cells = (name, label, size_of(m), f"{m.median * 1e3:.3g}", gflops_text(m.figure), against, f"{1e3 * loads[label]:.3g}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(speed_source(p, r) for p, r in zip(paths, records, strict=True))])


TABLES = {
    "overhead": _overhead,
    "host_arrays": _host_arrays,
    "standstill": _standstill,
    "torch_models": _torch_models,
    "torch_curves": _torch_curves,
    "several": _several,
    "torch_products": _torch_products,
    "installations": _installations,
    "commits": _commits,
    "bench": _bench,
    "versus": _versus,
    "probe": _probe,
    "loads": _loads,
}
