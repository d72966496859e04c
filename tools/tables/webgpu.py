"""Tables of the webgpu ladder: what a rung changes, and an estimate from its reads of workgroup memory beside its speed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from tables.common import NOTHING, source_line
from toprung.lab.harness.results import read
from toprung.lab.probe.store import read as read_probe
from toprung.lab.rung import Rung, ladder, rung
from toprung.report.text import gflops_text, size_of
from toprung.tile import Tile

READS = re.compile(r"For each multiply-add: .* bytes of buffers, (?P<bytes>.*?) bytes of workgroup memory")


def _changes(words: Sequence[str], root: Path) -> str:
    """Return all lines of a rung's kernel that the rung before has not, or no longer, with a line around them; heads left out."""
    (name,) = words
    found = rung(name)
    rungs = ladder(name.partition("/")[0]).rungs
    before = rungs[rungs.index(found) - 1]
    lines = difflib.unified_diff(_body(before), _body(found), n=1, lineterm="")
    shown = [" " if line.startswith("@@") else line for line in list(lines)[2:]]
    return "\n".join(["```diff", *shown[1:], "```", ""])


def _body(found: Rung) -> list[str]:
    """Return a kernel's lines behind its head."""
    return found.source.read_text().partition("\n\n")[2].splitlines()


def bytes_of_workgroup_memory(found: Rung, tile: Tile) -> float:
    """Return the bytes of workgroup memory that a rung reads for each multiply-add, as the head of its kernel says."""
    said = READS.search(found.source.read_text())
    assert said, f"{found} does not say what it reads"
    return float(eval(said["bytes"], {"__builtins__": {}}, dict(tile.defines())))  # the head is ours, and a test reads all of them


def _reads(words: Sequence[str], root: Path) -> str:
    """Each rung at a size: bytes of workgroup memory a multiply-add, the estimate from them, the speed, workgroups at 1024."""
    size, path, probed = words
    if not (root / path).is_file() or not (root / probed).is_file():
        return NOTHING
    record, probe = read(root / path), read_probe(root / probed)
    bandwidth = next(one["value"] for one in probe["probe"] if one["benchmark"] == "workgroup_memory")
    lines = [
        f"| rung | bytes a multiply-add | estimate from them | measured at {size} | % of it | workgroups at 1024 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for m in record["measurements"]:
        of = m.competitor
        if not of["number"] or of["variant"] or size_of(m) != size:
            continue
        tile = Tile(**of["tile"])
        each = bytes_of_workgroup_memory(rung(of["name"]), tile)
        estimate = 2 * bandwidth / each if each else 0.0
        shown = (
            (gflops_text(estimate), gflops_text(m.figure), f"{100 * m.figure / estimate:.0f}")
            if estimate
            else ("–", gflops_text(m.figure), "–")
        )
        groups = -(-1024 // tile.BM) * -(-1024 // tile.BN)
        lines.append(f"| {of['number']} | {each:.3g} | " + " | ".join(shown) + f" | {groups:,} |")
    return "\n".join([*lines, "", "GFLOP/s.  ", source_line(path, record), source_line(probed, probe)])


TABLES = {"changes": _changes, "webgpu_reads": _reads}
