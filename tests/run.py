"""Run test files, each in a forked process of its own, and take as passed what passed here with the same inputs.

A file's inputs are all that its process read of the source tree when it passed (``recording/recorder.py``), the options, and the
environment: packages, interpreter, processor, variables, programs. They are kept in the user's cache. ``--all`` takes nothing
as passed.

    python tests/run.py -m "not slow" tests/test_*.py
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two files run at once; and a process with threads cannot be forked safely

import pytest
from packaging.requirements import Requirement
from platformdirs import user_cache_dir

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "recording"))
import recorder  # noqa: E402

ROOT, FORMAT = recorder.ROOT, "passed 1"
ALONE = ("requirements-site.lock", "requirements-wheels.lock")
"""Lock files of packages that only `make site` and `make wheels` use, and that no test sees."""
OUTCOMES = ("passed", "failed", "skipped", "xfailed")


def digest(*parts: object) -> str:
    """Return the hash of some values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def tree_files() -> list[str]:
    """Return the paths of all files of the tree that git does not ignore."""
    said = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(filter(None, said.stdout.split("\0")))


def environment() -> str:
    """Return a digest of all that can change a test's outcome and lies outside the tree.

    Of packages it takes those that a lock file pins for this platform, but for those of ALONE.
    """
    locks = [path for path in sorted(ROOT.glob("requirements*.lock")) if path.name not in ALONE]
    pins = [Requirement(pin) for path in locks for pin in re.findall(r"^[\w.-]+(?:\[.*\])?==[^\\\n]+", path.read_text(), re.M)]
    pinned = {pin.name.lower() for pin in pins if pin.marker is None or pin.marker.evaluate()}
    packages = sorted((d.metadata["Name"], d.version) for d in importlib.metadata.distributions())
    packages = [x for x in packages if x[0].lower().replace("_", "-") in pinned]
    prefixes = ("TOPRUNG_", "PYTHON", "POCL_", "OCL_", "OPENCL", "CUDA", "OPENBLAS", "CI", "LD_", "PYOPENCL", "NVIDIA")
    variables = sorted((k, v) for k, v in os.environ.items() if k.startswith(prefixes) and k != recorder.VARIABLE)
    programs = []
    for name in ("g++", "oclgrind", "valgrind", "chromium", "chromedriver", "nvidia-smi", "git", "make"):
        if found := shutil.which(name):
            about = Path(found).resolve().stat()
            programs.append((name, about.st_size, about.st_mtime_ns))
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    cpu = sorted({x for x in lines if x.startswith(("model name", "flags"))})
    texts = [path.read_bytes() for path in locks]
    return digest(FORMAT, sys.version, platform.platform(), texts, packages, variables, programs, cpu)


class Inputs:
    """Digests of recorded inputs as they are now, each computed once a run."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._everything: str | None = None

    def of(self, line: str) -> str:
        """Return the digest of an input: a kind and a path, as the recorder writes them."""
        if line not in self._known:
            kind, _, what = line.partition("\t")
            self._known[line] = getattr(self, f"_{kind}")(what)
        return self._known[line]

    def _file(self, path: str) -> str:
        try:
            return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()[:32]
        except OSError:
            return "no file"

    def _list(self, path: str) -> str:
        if not (ROOT / path).is_dir():
            return "no folder"
        return digest(sorted(x.name for x in (ROOT / path).iterdir() if x.name not in ("__pycache__", *recorder.ASIDE)))

    def _look(self, path: str) -> str:
        found = ROOT / path
        return "folder" if found.is_dir() else "file" if found.exists() else "nothing"

    def _glob(self, pattern: str) -> str:
        found = (str(path) for path in sorted(ROOT.glob(pattern)) if path.is_file() and "__pycache__" not in path.parts)
        return digest([(path, self._file(path)) for path in found])

    def _tree(self, reason: str) -> str:
        if self._everything is None:
            self._everything = digest([(path, self._file(path)) for path in tree_files()])
        return self._everything


class Counts:
    """A pytest plugin: outcomes of the tests of a file, and what its ``DEPENDS_ON`` names."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.depends_on: tuple[str, ...] | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items[:1]:
            self.depends_on = getattr(item.module, "DEPENDS_ON", None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.outcomes["failed"] += 1
        elif report.skipped:
            self.outcomes["xfailed" if hasattr(report, "wasxfail") else "skipped"] += 1
        elif report.when == "call":
            self.outcomes["passed"] += 1


def child(path: str, options: list[str], folder: Path) -> None:
    """Run a test file in this process, which the caller has forked, and end it."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    counts = Counts()
    recorder.start(str(folder / "record"))
    sys.argv = ["pytest", *options, path]
    status = int(pytest.main([*options, path], [counts]))
    (folder / "outcome").write_text(json.dumps({**counts.outcomes, "depends_on": counts.depends_on, "status": status}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Kept:
    """Test files that passed before, with their inputs then, in the user's cache."""

    def __init__(self, options: list[str]) -> None:
        self.folder = Path(os.environ.get("TOPRUNG_TESTS_ONCE") or user_cache_dir("toprung-tests")) / "passed"
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            if old.stat().st_mtime < time.time() - 30 * 86400:
                old.unlink(missing_ok=True)
        self._key, self._now = (environment(), sorted(options)), Inputs()

    def _path(self, test: str) -> Path:
        return self.folder / f"{digest(test, self._key)}.json"

    def passed(self, test: str) -> dict[str, Any]:
        """Return the outcomes of a file that passed here; under ``changed``, an input that it passed with and has no longer."""
        try:
            kept: dict[str, Any] = json.loads(self._path(test).read_text())
            changed = (line for line, was in kept["inputs"].items() if self._now.of(line) != was)
            return {**kept, "changed": next(changed, "")}
        except (OSError, ValueError, KeyError, AttributeError):
            return {"changed": "it has not passed with this environment and these options"}

    def keep(self, test: str, outcome: dict[str, Any], record: Iterable[str], began: float) -> None:
        """Keep that a file passed, unless an input was written meanwhile."""
        lines = set(record) | {"file\ttests/run.py", "file\ttests/recording/recorder.py"}
        if outcome["depends_on"] is not None:  # what the programs that it starts can read
            lines = {x for x in lines if not x.startswith("tree\t")} | {f"glob\t{x}" for x in outcome["depends_on"]}
        files = [ROOT / x.partition("\t")[2] for x in lines if x.startswith("file\t")]
        if any(path.exists() and path.stat().st_mtime > began for path in files):
            return
        new = self._path(test).with_suffix(f".{os.getpid()}")
        now = Inputs()
        new.write_text(json.dumps({**outcome, "test": test, "inputs": {x: now.of(x) for x in sorted(lines)}}))
        new.replace(self._path(test))

    def seconds(self, test: str) -> float:
        """Return the time that a file took when it last passed, with whatever inputs; without any, its size stands for it."""
        try:
            return float(json.loads(self._path(test).read_text())["seconds"])
        except (OSError, ValueError, KeyError):
            return (ROOT / test).stat().st_size / 1e3


def chosen(paths: list[str], without: list[str], word: str) -> Iterator[str]:
    """Yield the test files below some paths but not below others that have a word in their text."""
    for path in map(Path, paths):
        for found in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            file = found.resolve()
            if not any(file.is_relative_to(Path(x).resolve()) for x in without) and word in file.read_text():
                yield str(file.relative_to(ROOT))


def main() -> int:
    """Run the files, print what failed, and end with the counts and CPU seconds."""
    parser = argparse.ArgumentParser(description="Run test files; unknown options go to pytest.")
    parser.add_argument("--all", action="store_true", help="take nothing as passed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="files at once")
    parser.add_argument("--without", action="append", default=[], metavar="PATH", help="leave out what is below it")
    parser.add_argument("--list", action="store_true", help="print the files that would run, each with an input that has changed")
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE", help="import it once for all files")
    parser.add_argument("-m", dest="marks", default="", help="pytest's -m")
    parser.add_argument("-k", dest="words", default="", help="pytest's -k")
    parser.add_argument("paths", nargs="+", help="test files and folders")
    asked, options = parser.parse_known_args()
    options += [*(["-m", asked.marks] if asked.marks else []), *(["-k", asked.words] if asked.words else [])]
    began, kept = time.time(), Kept(options)
    mark = asked.marks.partition(" ")[0]
    files = list(chosen(asked.paths, asked.without, mark if mark in ("slow", "drawn") else ""))  # a file without the mark has none
    total, taken, wrong = dict.fromkeys(OUTCOMES, 0), 0, []
    todo = []
    for file in files:
        before = {"changed": "--all"} if asked.all else kept.passed(file)
        if before["changed"]:
            todo.append(file)
            if asked.list:
                print(f"{file}: {before['changed']}")
            continue
        for name in OUTCOMES:
            total[name] += before[name]
        taken += before["passed"]
    if asked.list:
        return 0
    todo.sort(key=kept.seconds, reverse=True)  # the longest first: the end waits for no one
    for name in asked.preload if todo else ():
        importlib.import_module(name)
    gc.freeze()  # children share this memory
    running: dict[int, tuple[str, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="toprung-tests-") as scratch:
        queue = list(todo)
        while queue or running:
            while queue and len(running) < asked.jobs:
                file, folder = queue.pop(0), Path(tempfile.mkdtemp(dir=scratch))
                sys.stdout.flush()
                pid = os.fork()
                if not pid:
                    try:
                        child(file, options, folder)
                    finally:
                        os._exit(70)
                running[pid] = file, folder, time.time()
            pid, status, used = os.wait4(-1, 0)
            if pid not in running:
                continue
            file, folder, at = running.pop(pid)
            try:
                outcome = json.loads((folder / "outcome").read_text())
            except (OSError, ValueError):
                outcome = {**dict.fromkeys(OUTCOMES, 0), "failed": 1, "status": f"ended by {status}", "depends_on": None}
            for name in OUTCOMES:
                total[name] += outcome[name]
            outcome["seconds"] = time.time() - at
            good = outcome["status"] in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
            if good:
                kept.keep(file, outcome, (folder / "record").read_text(errors="surrogateescape").splitlines(), at)
            else:
                wrong.append(file)
                total["failed"] += not outcome["failed"]
                print((folder / "log").read_text(errors="replace"))
            ran = sum(outcome[name] for name in OUTCOMES)
            if ran or not good:
                cpu = used.ru_utime + used.ru_stime
                print(f"{'ok  ' if good else 'FAIL'} {file}: {ran} tests, {cpu:.1f} CPU s, {outcome['seconds']:.1f} s", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    print(f"{len(todo)} of {len(files)} files ran; {taken} tests were taken as passed: their inputs have not changed")
    print(f"{cpu:.0f} CPU seconds, user and system, children included; {time.time() - began:.0f} s by the clock")
    for file in wrong:
        print(f"failed: {file}")
    print(f"{total['passed'] + total['xfailed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
