"""Rules that all tables share: which record a figure comes from, what is said of its code, and no two cards in a column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from relabelled import LAYOUT, places
from toprung.errors import BadRecord
from toprung.kernels.tokens import source_digest
from toprung.lab.harness.environment import PACKAGE, blob
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import known, problem_name, read
from toprung.report.headline import Record, by_rule, ladder_of

NOTHING = "Not measured yet."
"""A table of records that are not there."""


MOST = 6
"""Kernels that a table names of those that have changed since."""


def is_measured(path: Path, measured: str) -> bool:
    """Return True if a kernel source is the one with git's hash ``measured``, or differs from it in comments and layout alone."""
    content = path.read_bytes()
    if blob(content) == measured:
        return True
    digest = json.loads(LAYOUT.read_text()).get(measured)
    return digest is not None and digest == source_digest([content.decode()])


def about_code(records: Mapping[str, Record], rung: str = "") -> str:
    """Return what a table must say of the code that was measured: kernels that have changed since, or that it cannot be found.

    ``records`` by their paths; ``rung``: the one rung that the table is about.
    """
    changed: dict[str, None] = {}
    for record in records.values():
        for name, measured in record["environment"].get("kernels", {}).items():
            file = Path(name)
            of_ladder = "ladders" in file.parts and file.suffix != ".cuh" and file.name[0] == "r"
            if of_ladder and not file.name.startswith(rung):
                continue
            if not any(is_measured(path, measured) for path in places(PACKAGE, name)):
                changed[file.name.partition("_")[0] if of_ladder else f"`{file.name}`"] = None
    named = ", ".join(list(changed)[:MOST]) + f" and {len(changed) - MOST} more" * (len(changed) > MOST)
    said = f"Measured with kernels that have changed since: {named}." if changed else ""
    lost = [f"`{path}`" for path, record in records.items() if not known(record)]
    return "  \n".join(filter(None, (said, f"Files whose measured code is in no commit: {', '.join(lost)}." if lost else "")))


def of_one_card(records: Mapping[str, Record], table: str) -> None:
    """Raise BadRecord where figures of two devices stand in one column: several may share a table whose head names each."""
    devices = {
        record["environment"]["device"]["slug"]: record["environment"]["device"]["short_name"] for record in records.values()
    }
    head = next((line for line in table.splitlines() if line.startswith("|")), "")
    if len(devices) > 1 and not all(name in head for name in devices.values()):
        raise BadRecord(f"figures of {' and '.join(devices.values())} in one column: give each a table, or columns, of its own")


@cache
def _read(path: Path, changed: int) -> dict[str, Any] | None:
    try:
        return read(path)
    except BadRecord:
        return None


def ladders_of(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return every sound record of a ladder in a folder."""
    found = ((path, _read(path, path.stat().st_mtime_ns)) for path in sorted(folder.glob("*.json")))
    return [(path, record) for path, record in found if record and ladder_of(record)]


def ladder_record(word: str, root: Path) -> tuple[dict[str, Any], str]:
    """Return a ladder's record with its measurements by the rule of ``toprung.report.headline``, and where rung 0 is from.

    Parameters
    ----------
    word : a record, or several of one ladder, device and backend with ``+`` between them: each rung is then in it once. Rung 0, the
        vendor, comes from whichever record of the folder the rule names.
    """
    paths = [root / part for part in word.split("+")]
    own = [(path, read(path)) for path in paths]
    base = max((record for _, record in own), key=lambda r: len(r["measurements"]))
    around = [(path, r) for folder in dict.fromkeys(p.parent for p in paths) for path, r in ladders_of(folder)]
    records = {str(path): record for path, record in (*around, *own)}
    mine = by_rule(((str(path), m) for path, record in own for m in record["measurements"]), records.__getitem__)
    all_of = by_rule(((path, m) for path, record in records.items() for m in record["measurements"]), records.__getitem__)
    chosen: list[Measurement] = []
    others: dict[str, None] = {}
    for key, (path, m) in mine.items():
        if m.competitor["number"] == 0 and all_of[key][0] not in map(str, paths):
            path, m = all_of[key]
            others[Path(path).relative_to(root).as_posix()] = None
        chosen.append(m)
    order = {problem_name(m.problem): i for i, m in enumerate(base["measurements"])}
    chosen.sort(key=lambda m: (order.get(problem_name(m.problem), len(order)), m.competitor["number"]))
    said = f"Rung 0 is from `{'`, `'.join(others)}`." if others else ""
    return {**base, "measurements": chosen}, said


NAMES = {
    "deep_and_odd": {"torch fp32": "fp32", "torch TF32": "tf32"},
    "inflight": {"torch fp32": "fp32", "torch TF32": "tf32", "hopper_fp32x ": "beforehand", "hopper_inflight ": ""},
    "odd_shapes": {"torch fp32": "cublas", "toprung": "default"},
    "presplit": {
        "one hopper_presplit ": "one ", "pass hopper_presplit ": "presplit ", "prepacked hopper_presplit ": "prepacked ",
        "hopper_inflight ": "in flight ", "hopper_fp32x ": "fp32x ",
    },
    "mixed": {"toprung": "{types} matmul", "torch fp32": "{types} torch fp32", "torch TF32": "{types} torch TF32"},
}  # fmt: skip
"""Beginnings of arms' names in records of ``benchmarks/candidates.py``, with the names in records of scripts before it, by key.

What follows a beginning is kept behind a name that is empty or ends with a blank."""
TYPES = {"f": "float32", "h": "float16", "b": "bfloat16"}


def product_rows(record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a record's rows of products under the key, and with the arms, that its script had before ``candidates.py``."""
    if key in record:
        return list(record[key])

    def named(name: str, types: str) -> str:
        for begin, to in NAMES.get(key, {}).items():
            if name.startswith(begin):
                return to.format(types=types) + name[len(begin) :] * (to[-1:] in ("", " "))
        return name

    rows = []
    for row in record["candidates"]:
        arms = {part: {named(n, row["types"]): x for n, x in row[part].items()} for part in ("seconds", "error", "predicted")}
        shape = [*row["size"], row["layout"]]
        row = {**row, **arms, "shape": shape, "selected": row["kernel"], "type_a": TYPES[row["types"][0]]}
        if key in ("presplit", "mixed"):
            row["size"] = row["size"][1:]
        rows.append(row)
    return rows


def unit(*records: dict[str, Any]) -> str:
    """Return the unit of the records' figures."""
    units = {m.measured_in for r in records for m in r["measurements"]}
    return " or ".join(sorted(units)) or "GFLOP/s"


def speed_source(path: str, record: dict[str, Any], what: str = "") -> str:
    """Return ``source_line`` with the unit of the record's measurements."""
    return source_line(path, record, f"{what or unit(record)}, medians")


def source_line(path: str, record: dict[str, Any], what: str = "Medians") -> str:
    """Return the line below a table: its figures and their unit (``what``), device, date, commit, command and file."""
    e, device = record["environment"], record["environment"]["device"]
    return (
        f"{what}: {device['short_name']}, {device['runtime']}, driver {device['driver']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{path}`.  "
    )
