"""A good guest in any process: what a program that toprung is loaded into finds as it was."""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import inspect
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import typer

import toprung
import trial
from conftest import require
from forked import in_child
from toprung import backends, errors, forks
from toprung.arrays import sessions
from toprung.backends.base import Session, Source
from toprung.backends.opencl import OpenCLSession
from toprung.cli import app, main
from toprung.cli.streams import READER_GONE, UNWRITTEN
from toprung.device import Device
from toprung.kernels import registry

SOURCES = sorted((trial.ROOT / "src" / "toprung").rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    return ".".join(path.relative_to(trial.ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def error_classes(kind: type[errors.ToprungError] = errors.ToprungError) -> list[type[errors.ToprungError]]:
    """Every class of error below one, itself included."""
    return [kind, *(found for sub in kind.__subclasses__() for found in error_classes(sub))]


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_errors_keep_type_text_and_fields(copied: Callable[[Any], Any]) -> None:
    for path in SOURCES:
        if re.search(rf"^class \w+\(.*\b({'|'.join(k.__name__ for k in error_classes())})\b.*\):", path.read_text("utf-8"), re.M):
            importlib.import_module(module_of(path))
    several = ["one", "two"]
    values = {"str": "a text", "int": 3, "object": "a thing", "Any": 7, "Iterable[str]": several, "Sequence[str]": several}
    values["Sequence[int]"] = [1, 2]
    for kind in error_classes():
        own = [k for k in kind.__mro__ if "__init__" in vars(k) and issubclass(k, errors.ToprungError)]
        error = kind(*(values[str(p.annotation)] for p in inspect.signature(own[0]).parameters.values()) if own else ("a text",))
        error.add_note("a note")
        again = copied(error)
        assert (type(again), str(again), again.args, vars(again)) == (kind, str(error), error.args, vars(error)), kind
    full = copied(errors.NotWritten(28, "No space left on device", "/there"))
    assert (full.errno, full.filename) == (28, "/there")


# a disturbance is no absence


class Timeout(Exception):
    """What a program's own alarm raises."""


def alarmed() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(5)


def warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("made an error", RuntimeWarning, stacklevel=1)


def too_deep() -> None:
    too_deep()


def too_large() -> None:
    bytearray(1 << 62)


DISTURBED = {Timeout: alarmed, RuntimeWarning: warned, RecursionError: too_deep, MemoryError: too_large}


class Disturbed:
    """A backend whose first look for devices is disturbed."""

    name = "disturbed"

    def __init__(self, disturb: Callable[[], None], device: Device) -> None:
        self.disturb, self.device, self.looks = disturb, device, 0

    def devices(self) -> list[Device]:
        self.looks += 1
        if self.looks == 1:
            self.disturb()
        return [self.device]

    def advice(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    "error", [errors.OutOfDeviceMemory("a device", 4, 3), errors.NotReady("tiled", 600.0)], ids=lambda e: type(e).__name__
)
def test_an_error_of_toprungs_own_is_no_disturbance(error: errors.ToprungError) -> None:
    assert isinstance(error, errors.DISTURBANCES)
    errors.let_through(error)


@pytest.mark.parametrize("expected", DISTURBED, ids=lambda kind: kind.__name__)
def test_a_disturbed_look_for_devices_raises_the_disturbance_and_is_not_kept(
    expected: type[Exception], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ring(*_: object) -> None:
        raise Timeout

    before = signal.signal(signal.SIGALRM, ring)
    sessions.best.cache_clear()
    there: Any = (Disturbed(DISTURBED[expected], device),)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(backends, "backends", lambda: there)
            with pytest.raises(expected):
                sessions.best()
            assert sessions.best() is device
    finally:
        signal.signal(signal.SIGALRM, before)
        sessions.best.cache_clear()


TAKES_ANY = {"Exception", "BaseException"}
TAKES_RUNTIMES = TAKES_ANY | {"RuntimeError", "OSError"}
ELSEWHERE = ("torch/products.py", "backends/waiting.py")
"""Files whose handler is in a thread of toprung's own: one has no caller, and the other raises it in the caller's."""
LIBRARY = ["arrays", "backends", "blas", "cupy", "dispatch", "execute", "gemm", "kernels", "torch", "__init__.py"]


def swallowing(path: Path) -> list[str]:
    """Return the handlers of a file that keep a disturbance from the caller: of any error, or of a runtime's in what is cached."""
    found, text = [], path.read_text("utf-8")
    for function in (n for n in ast.walk(ast.parse(text if "except" in text else "")) if isinstance(n, ast.FunctionDef)):
        kept = any("cache" in ast.unparse(d) for d in function.decorator_list)
        for handler in (n for n in ast.walk(function) if isinstance(n, ast.ExceptHandler)):
            named = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else TAKES_ANY
            on = [ast.unparse(statement) for statement in handler.body]
            if named & (TAKES_RUNTIMES if kept else TAKES_ANY) and "raise" not in on and f"let_through({handler.name})" not in on:
                found.append(f"{path}:{handler.lineno}: {on[0]}")
    return found


def test_nothing_in_the_library_swallows_a_disturbance() -> None:
    root = SOURCES[0].parent
    some = [p for p in SOURCES if p.relative_to(root).parts[0] in LIBRARY and str(p.relative_to(root)) not in ELSEWHERE]
    assert [line for path in some for line in swallowing(path)] == []


# forks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}


def unregistered(path: Path) -> list[str]:
    """Return what a file makes that a child would not renew: a lock that is no argument of ``renewed``, a hook of its own."""
    tree = ast.parse(path.read_text("utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    fine = {id(m) for n in calls if ast.unparse(n.func).endswith("renewed") for m in ast.walk(n)}
    fine |= {id(m) for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) for m in ast.walk(n.annotation)}
    found = []
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Attribute | ast.Name) and id(n) not in fine):
        owner, _, name = ast.unparse(node).rpartition(".")
        lock = name in LOCKS and owner in ("threading", "multiprocessing", "asyncio")
        if lock or (owner, name) in (("functools", "cached_property"), ("os", "register_at_fork")):
            found.append(f"{path}:{node.lineno}: {owner}.{name}")
    return found + [
        f"{path}:{n.lineno}: names of threading are not imported" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)
        and n.module in ("threading", "functools") and {a.name for a in n.names} & (LOCKS | {"cached_property"})
    ]  # fmt: skip


def test_every_lock_is_renewed_in_a_child() -> None:
    some = [p for p in SOURCES if p.name != "forks.py" and re.search("threading|cached_property|at_fork", p.read_text("utf-8"))]
    assert [line for path in some for line in unregistered(path)] == []


@needs_fork
def test_a_child_waits_for_no_lock_that_a_thread_of_its_parent_holds(device: Device) -> None:
    """Every lock there is is held at the fork; what is left is refused, or computed by NumPy."""
    a = np.ones((33, 65), np.float32)
    planned = toprung.plan(a, a.T, own=True, device=device.id), toprung.plan(a, a.T)
    assert (toprung.matmul(a, a.T, own=True, device=device.id) == 65).all()
    held, over = threading.Event(), threading.Event()
    locks = list(forks._locks)

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60) and len(locks) > 10
        free = in_child(lambda: all(lock.acquire(blocking=False) for lock in locks))
        refused = [in_child(lambda: toprung.matmul(a, a.T, own=True)), in_child(lambda: planned[0](a, a.T))]
        computed = [in_child(lambda: toprung.matmul(a, a.T).sum()), in_child(lambda: planned[1](a, a.T).sum())]
    finally:
        over.set()
        holder.join()
    assert free == "True"
    assert all(said.startswith("ForkedDevice") and "spawn" in said for said in refused), refused
    assert computed == [str(33.0 * 33 * 65)] * 2


@needs_fork
def test_a_child_ends_no_import_that_a_thread_of_its_parent_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, over = threading.Event(), threading.Event()
    monkeypatch.setattr(toprung, "__path__", [*toprung.__path__, str(tmp_path)])
    monkeypatch.setattr(toprung, "wait_in_parent", lambda: (began.set(), over.wait(60)), raising=False)
    (tmp_path / "slow.py").write_text(f"import os, toprung\nif os.getpid() == {os.getpid()}:\n    toprung.wait_in_parent()\n")
    importer = threading.Thread(target=importlib.import_module, args=("toprung.slow",))
    importer.start()
    try:
        assert began.wait(60)
        assert in_child(lambda: importlib.import_module("toprung.slow").__name__) == "toprung.slow"
    finally:
        over.set()
        importer.join()
        monkeypatch.delitem(sys.modules, "toprung.slow")


# streams


def taking_streams(path: Path) -> list[str]:
    """Return what a file does to the streams of its process: descriptors that get another file, streams that are replaced."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        name = ast.unparse(node).rpartition(".")[2] if isinstance(node, ast.Attribute | ast.Name) else ""
        stored = isinstance(getattr(node, "ctx", None), ast.Store) and name in ("stdin", "stdout", "stderr")
        if stored or name in ("dup2", "redirect_stdout", "redirect_stderr"):
            found.append(f"{path}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}")
    return found


def test_nobody_takes_the_streams_of_the_process() -> None:
    """The command line alone is in a process of its own."""
    some = [
        p for p in SOURCES if p.name != "streams.py" and re.search("dup2|redirect_std|std(in|out|err) *=", p.read_text("utf-8"))
    ]
    assert [line for path in some for line in taking_streams(path)] == []


def test_standard_error_has_every_line_while_kernels_are_compiled(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    over, lines = threading.Event(), 0

    def log() -> None:
        nonlocal lines
        while not lines or not over.wait(0.0005):
            os.write(2, b"a line\n")
            lines += 1

    other = threading.Thread(target=log)
    other.start()
    wrong = f"__kernel void wrong(__global float *x) {{ x[0] = no_such_name_{time.time_ns()}; }}"
    try:
        with pytest.raises(errors.BuildError, match="no_such_name"):
            session.compile(Source("wrong", wrong, "wrong", {}))
    finally:
        over.set()
        other.join()
    assert capfd.readouterr().err.count("a line\n") == lines > 0


def entered(monkeypatch: pytest.MonkeyPatch, stdout: TextIO | None, *words: object) -> int:
    """Return the exit code of a command in this process that writes to a stream."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "argv", ["toprung", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


def commands(group: Any, *names: str) -> list[tuple[str, ...]]:
    """Return every command below a group, by the words that call it."""
    below = getattr(group, "commands", {})
    return [names, *(found for name, one in below.items() for found in commands(one, *names, name))]


QUICK = (
    ("results", "list"), ("results", "show", str(trial.fixture("h200-matvec.json"))), ("explain", "kepler/r08"),
    ("ladder", "kepler", "--sizes", "40x41x42", "--rungs", "1"),
)  # fmt: skip
"""Commands that end soon and print tables."""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_commands_are_readable_in_any_encoding(device: Device, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trial.ROOT)
    every = commands(typer.main.get_command(app)) if encoding == "ascii" else ()
    for words in (*((*names, "--help") for names in every), *QUICK):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        code = entered(monkeypatch, stream, *words)
        said = stream.buffer.getvalue().decode(encoding)
        assert code == 0 and said and not re.search(r"\\[xuU][0-9a-f]", said), (words, said)


def test_what_is_printed_has_a_spelling_in_ascii() -> None:
    """All texts of the package, of docstrings those of commands; but for characters that are looked for and never printed."""
    lacking = set()
    for path in (p for p in SOURCES if re.search(r"[^\0-\x7f]|\\u", p.read_text("utf-8"))):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        docs = {id(n.value) for n in nodes if isinstance(n, ast.Expr) and path.parent.name != "cli"}
        for text in (n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs):
            lacking |= {c for c in text if not c.isascii() and b"\\" in c.encode("ascii", "toprung-spelled")}
    assert lacking == set("┌─│\u2028\u2029")
    assert "2⁻²⁴ ± 3 × α·Aᵀ…\udcff".encode("cp1252", "toprung-spelled").decode("cp1252") == "2^-²^4 ± 3 × alpha·A^T…\\udcff"


def test_standard_output_that_cannot_be_written_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert entered(monkeypatch, None, "--version") == UNWRITTEN
    assert capsys.readouterr().err == "toprung: standard output cannot be written: closed\n"
    require(Path("/dev/full").exists(), "this system has no /dev/full")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "toprung", "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (UNWRITTEN, "toprung: standard output cannot be written: No space left on device\n")


def test_a_ladder_whose_reader_has_gone_ends_and_keeps_what_it_measured(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    read, write = os.pipe()
    os.close(read)
    record = tmp_path / "record.json"
    with os.fdopen(write, "w") as nobody:
        words = ("ladder", "kepler", "--device", device.id, "--sizes", "40,41,42", "--rungs", "1", "--json", record)
        assert entered(monkeypatch, nobody, *words) == READER_GONE
    kept = json.loads(record.read_text())
    assert capsys.readouterr().err == "" and kept["interrupted"] is True
    assert {m["problem"]["M"] for m in kept["measurements"]} == {40}


# elsewhere


def test_a_device_is_found_again_where_it_is_unpickled_and_a_plan_says_what_to_do(device: Device) -> None:
    again = pickle.loads(pickle.dumps(device))
    assert again == copy.deepcopy(device) == device
    session = backends.open_device(again)
    assert session.device.handle == device.handle
    session.close()
    with pytest.raises(errors.NoDevice, match="another machine"):
        backends.open_device(replace(again, name="another"))
    a = np.ones((9, 9), np.float32)
    for own in (True, False):
        plan = toprung.plan(a, a, own=own, device=device if own else None)
        assert copy.copy(plan) is copy.deepcopy(plan) is plan
        with pytest.raises(errors.Unsupported, match=r"call toprung\.plan where"):
            pickle.dumps(plan)


def test_without_files_of_kernels_a_sentence_says_how_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a zip file, and with byte code alone."""
    for given in (tmp_path / "toprung.zip" / "registry.py", tmp_path / "registry.py"):
        monkeypatch.setattr(registry, "__file__", str(given))
        registry._found.cache_clear()
        for memory in ("", "host"):
            with pytest.raises(errors.BadFamily, match="as a folder with its sources"):
                registry.families(memory)
    registry._found.cache_clear()


DAEMONS = """
import sys, threading
import numpy as np
import toprung
a = np.ones((300, 300), np.float32)
began = threading.Semaphore(0)

def work():
    while True:
        toprung.matmul(a, a, own=True, device=sys.argv[1])
        began.release()

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(9):
    began.acquire()
print("ends")
"""


def test_python_ends_in_good_order_while_daemon_threads_multiply(device: Device) -> None:
    done = subprocess.run([sys.executable, "-c", DAEMONS, device.id], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


ENDING = """
import sys
import numpy as np
import toprung
a = np.ones((300, 300), np.float32)

class Last:
    def __del__(self):
        found = [toprung.matmul(a, a), toprung.plan(a, a[:, :7])(a, a[:, :7]), toprung.sgemm(1.0, a, a)]
        found += [toprung.matmul_grouped([a], [a])[0], toprung.matmul(a, a, bias=a[0], activation="relu")]
        print([int(one[0, 0]) for one in found])
        try:
            toprung.matmul(a, a, own=True)
        except toprung.errors.Unsupported as error:
            print(error)

sys.modules["last"] = Last()
"""


def test_the_first_product_may_come_while_python_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120)
    assert done.stderr == "" and done.stdout.startswith("[300, 300, 300, 300, 301]\nPython is ending"), done


# files


def encoded_by_chance(path: Path) -> list[str]:
    """Return the calls of a file that read or write text in whatever encoding the system has."""
    found = []
    for call in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)):
        method, name = isinstance(call.func, ast.Attribute), ast.unparse(call.func).rpartition(".")[2]
        where = {"read_text": 0, "write_text": 1, "open": 2 if method else 3, "fdopen": 3}.get(name)
        if where is None or len(call.args) > where or any(k.arg == "encoding" for k in call.keywords):
            continue
        words = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        opens = name in ("open", "fdopen")
        if opens and (any(re.fullmatch("[rwax+]*b[rwax+]*", w) for w in words) or (method and call.args and not words)):
            continue  # bytes; or a device, and no file
        found.append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    return found


def test_text_is_read_and_written_in_utf_8() -> None:
    some = [p for p in SOURCES if re.search(r"_text\(|open\(", p.read_text("utf-8"))]
    assert [line for path in some for line in encoded_by_chance(path)] == []


def written(path: Path) -> list[str]:
    """Return the calls of a file that write files, but for those in a function that makes a temporary folder."""
    tree = ast.parse(path.read_text("utf-8"))
    apart = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and "tempfile.TemporaryDirectory(" in ast.unparse(n)]
    fine, found = {id(m) for n in apart for m in ast.walk(n)}, []
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and id(n) not in fine):
        name, words = ast.unparse(call.func), [n.value for n in ast.walk(call) if isinstance(n, ast.Constant)]
        opens = re.search(r"(^|\.)(fd)?open$", name) and any(
            isinstance(w, str) and re.fullmatch("[rwaxbt+]*[wax+][bt+]*", w) for w in words
        )
        if opens or re.search(
            r"\.(write_text|write_bytes|touch)$|^os\.(open|replace|rename)$|^shutil\.(copy|move)|^publish$", name
        ):
            found.append(f"{path.relative_to(SOURCES[0].parent)}: {name}")
    return found


def test_files_are_written_by_one_module() -> None:
    """It follows links and keeps modes. Others open the null device, and a log of toprung's own that grows by a line."""
    calls = re.compile(r"open\(|\.write_|\.touch\(|os\.re(place|name)\(|shutil\.|publish\(")
    some = [p for p in SOURCES if p.name != "paths.py" and calls.search(p.read_text("utf-8"))]
    assert [line for path in some for line in written(path)] == [
        "cli/streams.py: os.open",
        "lab/harness/baseline.py: self.path.open",
    ]


# environment


def test_the_page_lists_every_environment_variable_that_is_read_or_set() -> None:
    used: set[str] = set()
    for path in SOURCES:
        text = path.read_text("utf-8")
        named = dict(re.findall(r'^([A-Z_]+) = "([A-Z_]+)"$', text, re.M))
        for line in (line for line in text.splitlines() if "os.environ" in line):
            used |= {named.get(word, "") for word in re.findall(r"\b[A-Z_]{4,}\b", re.sub('"[^"]*"', "", line))}
            used |= set(re.findall(r'"([A-Z_]{4,})"', line))
    pages = [trial.ROOT / "docs" / page for page in ("process.md", "commands.md")]
    tables = [
        row for page in pages for row in page.read_text("utf-8").partition("\n## Environment\n")[2].splitlines() if row[:2] == "| "
    ]
    listed = {word.removesuffix("*") for row in tables for word in re.findall("`([A-Z_]{4,}[*]?)`", row)}
    assert used - {""} == listed


# waits

WAITS = {"wait", "acquire", "result", "exception", "communicate"}
ENDLESS = {
    "backends/opencl.py": ["end.wait()", "event.wait()"],  # OpenCL has no other wait
    "backends/waiting.py": ["over.wait()", "threading.Event().wait()"],  # a kernel, until Ctrl-C; and the process's end
    "cli/common.py": ["printed.get()"],  # no queue
    "blas/background.py": ["self._jobs.get()"],  # an idle thread, a daemon
    "tune/apart.py": ["talk.recv()"],  # a child, which its parent's end ends, too
    "tune/plan.py": ["talk.recv()"],  # as above
    "tune/worker.py": ["self._talk.recv()", "talk.recv()"],  # behind a poll; and as above
}
"""Waits without a limit, by file."""


def endless(path: Path) -> list[str]:
    """Return the calls of a file that may wait for ever: those without a time, or with None for one."""
    found = []
    for call in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)):
        name, given = ast.unparse(call.func).rpartition(".")[2], [*call.args, *(k.value for k in call.keywords)]
        none = name in WAITS and any(isinstance(n, ast.Constant) and n.value is None for one in given for n in ast.walk(one))
        if isinstance(call.func, ast.Attribute) and (none or (name in WAITS | {"join", "get", "recv"} and not given)):
            found.append(ast.unparse(call))
    return sorted(found)


def test_nothing_waits_without_a_limit() -> None:
    root = SOURCES[0].parent
    assert {str(path.relative_to(root)): found for path in SOURCES if (found := endless(path))} == ENDLESS


# threads


def test_other_threads_go_on_while_a_kernel_is_compiled(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    if session.device.backend != "opencl" or session.device.kind != "cpu":
        pytest.skip("PoCL compiles where a binary is asked for")
    turns, over, before = [0], threading.Event(), OpenCLSession._binary
    seen: list[int] = []

    def binary(*given: Any) -> bytes:
        seen.append(turns[0])
        found = before(*given)
        seen.append(turns[0])
        return found

    def turn() -> None:
        while not over.wait(0.0005):
            turns[0] += 1

    monkeypatch.setattr(OpenCLSession, "_binary", binary)
    other = threading.Thread(target=turn)
    other.start()
    try:
        text = f"__kernel void many(__global float *x) {{ size_t i = get_global_id(0); {'x[i] = x[x[i] > i] * i; ' * 300}}}"
        session.compile(Source("many", text, "many", {"NEVER_BUILT": time.time_ns() % 2**31}))
    finally:
        over.set()
        other.join()
    assert seen[1] - seen[0] >= 5, seen
