"""Record what a process reads of this source tree: files, listings of folders, looks for a file, and programs it starts.

``tests/run.py`` starts it in the process of each test file; Python programs that a test starts take it up by ``sitecustomize.py``.
A line of the record is a kind and a path below the tree: ``file`` (its content), ``list`` (names in a folder), ``look`` (is it
there), or ``tree`` and a reason, where a program may have read anything.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

VARIABLE = "TOPRUNG_TESTS_RECORD"
"""Environment variable that names the record, for programs that a test starts."""

ROOT = Path(__file__).parents[2]
HERE = str(Path(__file__).parent)

ASIDE = (".git", ".hypothesis", ".venv", ".venv-torch", ".mypy_cache", ".ruff_cache", "site", "dist", "build")
"""Names at the top of the tree that hold no inputs: caches, products, and packages, whose list is a part of the key."""

KNOWN = (
    "g++", "gcc", "ld", "lscpu", "nvdisasm", "cuobjdump", "ldconfig", "uname", "chromium", "chromedriver", "oclgrind", "valgrind",
)  # fmt: skip
"""Programs that read nothing of the tree but what their caller has read: compilers' stores are keyed by their input texts."""

NAMES_COMMIT = ("rev-parse", "status", "diff")
"""Commands of git that a record's provenance uses; no test asserts which commit it is."""

MACHINERY = ("importlib", "_pytest", "pluggy", "inspect", "linecache")
"""Callers that look around to find one file: the file itself is recorded when it is opened."""

LIBRARY = ("pathlib", "os", "genericpath", "posixpath", "glob", "shutil", "contextlib")
"""Modules through which a look or a listing goes: the caller is behind them."""


def start(record: str) -> None:
    """Append to a record from now on, in this process and in all that it forks."""
    os.environ[VARIABLE] = record
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    out, root, seen = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND), f"{ROOT}{os.sep}", set()

    def note(kind: str, path: Any) -> None:
        # not Path.resolve(): links stay links
        path = "" if isinstance(path, int) else os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        below = path.removeprefix(root) if path.startswith(root) else ""
        if kind == "list" and path == str(ROOT):
            below = "."
        if not below or below.partition(os.sep)[0] in ASIDE:
            return
        if below.endswith(".pyc"):  # Python's and pytest's names for what they compiled begin with the module's
            folder, _, name = below.rpartition("__pycache__/")
            below = f"{folder}{name.partition('.')[0]}.py"
        line(kind, below)

    def line(kind: str, what: str) -> None:
        if (kind, what) not in seen and "__pycache__" not in what:
            seen.add((kind, what))
            try:
                os.write(out, os.fsencode(f"{kind}\t{what}\n"))
            except OSError as error:
                if error.errno != errno.EFBIG:  # a test's own limit: what its process reads now others of the file read, too
                    raise

    def started(program: Any, words: Any, env: Any) -> None:
        words = [words] if isinstance(words, str | bytes | os.PathLike) else list(words)
        words = [os.fsdecode(word) for word in words]
        name = Path(os.fsdecode(program or words[0])).name
        inherits = os.environ if env is None else {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}
        if name in KNOWN or (name == "git" and set(words) & set(NAMES_COMMIT)):
            return
        flags = [word for word in words[1:] if word.startswith("-") and not word.startswith("--")]
        records = inherits.get(VARIABLE) == record and HERE in inherits.get("PYTHONPATH", "").split(os.pathsep)
        if not (records and is_python(name, os.fsdecode(program or words[0])) and not {"-I", "-E", "-S"} & set(flags)):
            line("tree", " ".join([name, *words[1:3]])[:80].replace("\n", " "))

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = given
            if isinstance(path, str | bytes | os.PathLike) and not (flags or 0) & os.O_WRONLY:
                note("file", path)
        elif event in ("os.listdir", "os.scandir"):
            if not by_machinery(sys._getframe(1)):
                note("list", "." if given[0] is None else given[0])
        elif event == "subprocess.Popen":
            started(given[0], given[1], given[3])
        elif event in ("os.exec", "os.posix_spawn", "os.spawn"):
            started(given[-3], given[-2], given[-1])
        elif event == "os.system":
            line("tree", os.fsdecode(given[0])[:80])

    def looked(original: Any) -> Any:
        def stat(path: Any, *given: Any, **named: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike) and not by_machinery(sys._getframe(1)):
                note("look", path)
            return original(path, *given, **named)

        return stat

    os.stat, os.lstat = looked(os.stat), looked(os.lstat)  # looks are no audit events
    sys.addaudithook(hook)


def by_machinery(frame: Any) -> bool:
    """Return True if the first frame outside the standard library's path functions belongs to imports or to pytest."""
    while frame.f_back and frame.f_globals.get("__name__") in LIBRARY:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(MACHINERY)


def is_python(name: str, path: str) -> bool:
    """Return True for an interpreter or a script of an environment, which starts one."""
    if name.startswith("python"):
        return True
    try:
        with Path(path).open("rb") as script:
            return b"python" in script.readline(200) and Path(path).parent.samefile(Path(sys.executable).parent)
    except OSError:
        return False
