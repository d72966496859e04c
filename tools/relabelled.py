"""Find results whose label changed while their samples stayed: the source hash of a shipped entry, the commit of a result file.

    python tools/relabelled.py             list them; exit code 1 if there are any
    python tools/relabelled.py --restore   put hashes of shipped entries back to those that came with the samples
    python tools/relabelled.py --compare   compile those of CUDA as they were and as they are, and keep in same-code.json which
                                           have the same instructions: these may carry the new hash; delete the file to
                                           compare again what it has
    python tools/relabelled.py --rungs REV compile every CUDA and OpenCL rung as it was at a commit and as it is, and list those
                                           whose instructions differ; exit code 1 if there are any

Needs the whole history, and for --compare and --rungs NVRTC and nvdisasm; no GPU.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.kernels.tokens import source_digest
from toprung.lab.harness.environment import blob

ROOT = Path(__file__).parents[1]
SHIPPED = ("src/toprung/store/shipped", "src/toprung/tuned")
"""Folders of the shipped entries, today's and the one before."""
SAME = Path(__file__).with_name("same-code.json")
"""Entries by their samples, each with the hashes whose machine code is the same as that of the first."""

LAYOUT = Path(__file__).with_name("same-tokens.json")
"""Kernel sources that result files name and that have changed in comments and layout alone, for ``tables.common.about_code``:
the digest of their tokens by git's hash. ``make tables`` writes it."""

LISTER = """
import json, sys
from tests import golden
from toprung.dispatch.selection import decoded
from toprung.execute.executable import Executable
from toprung.gemm.desc import described

class Session(golden.Recorder):
    def load(self, binary, source):
        found.append({"text": source.text, "kernel": source.kernel, "language": source.language, "flags": list(source.flags),
                      "defines": dict(sorted(source.defines.items()))})
        return super().load(binary, source)

for entry in json.load(sys.stdin):
    found = []
    with golden.recording():
        session = Session(golden.devices()["h200-cuda"])
        made = Executable.of(session, described(entry["shape"]), decoded(entry["candidate"]))
        made.run(1 << 30, 0, 2 << 30, 0, 3 << 30, 0, 1.0, 0.0)
    print(json.dumps(found))
"""
"""Program that prints the sources of an entry's launches, a line each; it runs in the tree of either commit."""

RUNGS = """
import json
from toprung.backends import nvrtc
from toprung.kernels.record import kernel_source
from toprung.lab.rung import ladder, ladder_names

device = nvrtc.device_of("sm_90")
for rung in (rung for name in ladder_names() for rung in ladder(name).rungs if rung.source.suffix in (".cl", ".cu")):
    source = kernel_source(rung, rung.tile_for(device), rung.options(device))
    print(json.dumps({"name": rung.name, "text": source.text, "kernel": source.kernel, "language": source.language,
                      "flags": list(source.flags), "defines": dict(sorted(source.defines.items()))}))
"""
"""Program that prints the source of each rung that NVRTC compiles, a line each."""


def git(root: Path, *words: str, given: str = "") -> bytes:
    """Return what a git command prints."""
    return subprocess.run(["git", "-C", str(root), *words], input=given.encode(), capture_output=True, check=True).stdout


def is_whole(root: Path) -> bool:
    """Return True in a clone with all of its history."""
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    return done.stdout.strip() == "false"


def versions(root: Path, *paths: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield commit, path and content of every version of the JSON files below some paths, oldest first."""
    log = git(root, "log", "--reverse", "--topo-order", "-m", "--raw", "--no-abbrev", "--no-renames", "--format=%H", "--", *paths)
    found, commit = [], ""
    for line in log.decode().splitlines():
        if line.startswith(":"):
            blob, path = line.split(" ", 4)[3], line.split("\t")[-1]
            if set(blob) != {"0"} and path.endswith(".json"):
                found.append((commit, path, blob))
        elif line:
            commit = line
    contents = io.BytesIO(git(root, "cat-file", "--batch", given="\n".join(blob for *_, blob in found)))
    for commit, path, _ in found:
        size = int(contents.readline().split()[2])
        yield commit, path, contents.read(size + 1)


def key_of(entry: Mapping[str, Any]) -> str:
    """Return a digest of an entry's samples, with their problem and tile."""
    what = [entry["shape"], entry["candidate"].get("tile"), entry["seconds"], entry["date"][:13]]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Relabelled:
    """A shipped entry that carries another hash than the one that came with its samples.

    Attributes
    ----------
    commit : the first with these samples
    """

    path: Path
    entry: Mapping[str, Any]
    commit: str
    before: str


def entries(root: Path = ROOT, same: Path = SAME) -> list[Relabelled]:
    """Return the shipped entries with another hash than that of their samples, unless the machine code was shown to be the same."""
    first: dict[str, tuple[str, str]] = {}
    for commit, _, content in versions(root, *SHIPPED):
        for entry in json.loads(content)["entries"]:
            first.setdefault(key_of(entry), (commit, entry["source"]))
    shown = json.loads(same.read_text())["entries"] if same.exists() else {}
    found = []
    for path in sorted((root / SHIPPED[0]).glob("*.json")):
        for entry in json.loads(path.read_text())["entries"]:
            commit, source = first.get(key_of(entry), ("", entry["source"]))
            if source != entry["source"] and entry["source"] not in shown.get(key_of(entry), {}):
                found.append(Relabelled(path, entry, commit, source))
    return found


def records(root: Path = ROOT) -> list[str]:
    """Return the result files of which one run was said to be of two commits, a line each, unless they are marked unknown."""
    first: dict[tuple[str, str], str] = {}
    found: dict[str, str] = {}
    for commit, path, content in versions(root, "results"):
        named = re.search(rb'"date": "([^"]*)",\s*"commit": "?([^",]*)', content)
        if named:
            date, label = (one.decode() for one in named.groups())
            before = first.setdefault((path, date), label)
            if before != label:
                found[path] = f"{path} of {date}: commit {before}, since {commit[:12]} {label}"
    now = ((root / path, line) for path, line in found.items())
    return [line for path, line in now if path.exists() and '"src": "unknown"' not in path.read_text()]


def restore(found: list[Relabelled]) -> None:
    """Write the hashes that came with the samples; every entry is a line of its file."""
    for one in found:
        lines = one.path.read_text().splitlines(keepends=True)
        for i, line in enumerate(lines):
            if line.startswith('{"candidate"') and json.loads(line.rstrip(",\n]}") + "}") == one.entry:
                lines[i] = line.replace(f'"source":"{one.entry["source"]}"', f'"source":"{one.before}"')
        one.path.write_text("".join(lines))


def listed(tree: Path, program: str, given: str = "") -> list[Any]:
    """Return what a program in a tree prints, a JSON value a line."""
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, cwd=tree, env={"PYTHONPATH": f"{tree / 'src'}:{tree}:{tree / 'tests'}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def before_and_now(commit: str, program: str, given: str = "") -> tuple[list[Any], list[Any]]:
    """Return what a program prints in the tree of a commit, and in this one."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(git(ROOT, "archive", commit, "src", "tests"))) as packed:
            packed.extractall(folder, filter="data")
        return listed(Path(folder), program, given), listed(ROOT, program, given)


@functools.cache
def instructions(source: str) -> str:
    """Return the digest of what a source, as JSON, compiles to."""
    from toprung.backends import nvrtc
    from toprung.backends.base import Source
    from toprung.lab.sass.machine_code import disassemble

    code = nvrtc.compile_cubin(Source(**{"name": "compared", **json.loads(source)}), "sm_90").code
    return hashlib.sha256(disassemble(code).encode()).hexdigest()


def compare(found: list[Relabelled]) -> dict[str, dict[str, str]]:
    """Return for each entry whose instructions are those of its samples today's hash, and the digest of the instructions.

    Launches of an entry are compared whatever the order in which they are loaded.
    """
    shown: dict[str, dict[str, str]] = {}
    for commit in dict.fromkeys(one.commit for one in found):
        mine = [one for one in found if one.commit == commit and one.entry["machine"]["backend"] == "cuda"]
        given = json.dumps([{"shape": one.entry["shape"], "candidate": one.entry["candidate"]} for one in mine])
        for one, *launches in zip(mine, *before_and_now(commit, LISTER, given), strict=True):
            old, new = (sorted(instructions(json.dumps(source)) for source in sources) for sources in launches)
            print(one.entry["candidate"]["kernel"], one.entry["shape"], "same" if old == new else "differs", flush=True)
            if old == new:
                shown[key_of(one.entry)] = {one.entry["source"]: hashlib.sha256("".join(new).encode()).hexdigest()[:16]}
    return shown


def other_rungs(commit: str) -> list[str]:
    """Return the rungs whose instructions differ from those at a commit."""
    old, new = ({one["name"]: json.dumps(one) for one in each} for each in before_and_now(commit, RUNGS))
    print(f"{len(new)} rungs, {sum(old.get(name) != source for name, source in new.items())} with another text", flush=True)
    return [name for name, source in new.items() if name not in old or instructions(old[name]) != instructions(source)]


def places(package: Path, name: str) -> list[Path]:
    """Return the kernel source that a result file names, or those of its name where it has moved."""
    file = package / name
    return [file] if file.exists() else sorted((package / "kernels").rglob(file.name))


def relaid(root: Path = ROOT) -> dict[str, str]:
    """Return what ``LAYOUT`` keeps: a hash that a result file names, and whose text has the tokens of that file as it is today."""
    found: dict[str, str] = {}
    for path in sorted((root / "results").rglob("*.json")):
        for name, measured in json.loads(path.read_text())["environment"].get("kernels", {}).items():
            files = places(root / "src" / "toprung", name)
            if not files or any(blob(file.read_bytes()) == measured for file in files):
                continue
            with suppress(subprocess.CalledProcessError):  # what was never committed is not in the history
                digest = source_digest([git(root, "cat-file", "blob", measured).decode()])
                if any(digest == source_digest([file.read_text("utf-8")]) for file in files):
                    found[measured] = digest
    return dict(sorted(found.items()))


def main() -> int:
    """List, restore or compare; return 1 if something is relabelled."""
    if not is_whole(ROOT):
        print("the history is not whole: git fetch --unshallow")
        return 1
    if "--rungs" in sys.argv:
        others = other_rungs(sys.argv[sys.argv.index("--rungs") + 1])
        print(*others, f"{len(others)} rungs with other instructions", sep="\n")
        return 1 if others else 0
    if "--compare" in sys.argv:
        from toprung.backends import nvrtc

        kept = json.loads(SAME.read_text()) if SAME.exists() else {"entries": {}}
        kept["entries"] |= compare(entries())
        SAME.write_text(json.dumps({"compiler": nvrtc.version(), "arch": "sm_90", **kept}, indent=1) + "\n")
    found = entries()
    for one in found:
        print(f"{one.path.name}: {one.entry['candidate']['kernel']}, {one.entry['problem_class']}: samples of "
              f"{one.entry['date']} came with {one.before[:8]} in {one.commit[:12]}, now {one.entry['source'][:8]}")  # fmt: skip
    others = records()
    print(*others, f"{len(found)} shipped entries and {len(others)} result files are relabelled", sep="\n")
    if "--restore" in sys.argv:
        restore(found)
    return 1 if found or others else 0


if __name__ == "__main__":
    sys.exit(main())
