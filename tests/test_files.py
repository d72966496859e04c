"""Files of the user's: every option that names one follows links, writes into pipes, keeps modes, and is refused in time."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from command import Typed
from conftest import require
from forked import in_child
from toprung import paths
from toprung.cli import app, common, streams
from toprung.device import Device
from toprung.errors import BadArgument, NotWritten
from toprung.store import Store
from toprung.store.exchange import SHIPPED

CALLBACKS = {common.result_file, common.record_file, common.page_file}
READ = {
    "explain --results", "report records", "run --cubin", "results list --dir", "results show file", "results compare --dir",
    "results plot file", "store import file", "store merge database",
}  # fmt: skip
"""Parameters with the path of a file or a folder that is read."""
DATABASES = {f"store {name} --store" for name in ("list", "export", "import", "merge", "clear")}
"""Parameters with the path of a store, which SQLite opens in place."""
COMMANDS = {
    "run": ("kepler/r01", "--size", "16", "--device"), "ladder": ("kepler", "--sizes", "16", "--rungs", "1", "--device"),
    "bench": ("--sizes", "16", "--peers", "numpy", "--device"), "probe": ("--only", "launch", "--device"),
    "accuracy": ("--sizes", "16", "--peers", "numpy", "--inputs", "uniform", "--device"),
    "explain": ("kepler/r01", "--arch", "sm_90"),
    "inspect": ("kepler/r01",), "bound": ("--sweep",), "web": (), "results plot": ("RECORD",), "store list": ("--store", "STORE"),
    "store export": ("--store", "STORE"), "report": ("RECORD", "--no-code"),
    "guidelines": ("--only", "coalescing", "--device"), "tune": ("gemm", "--sizes", "16", "--budget", "1", "--device"),
}  # fmt: skip
"""Cheap words of each command that writes a file; behind ``--device`` stands the device under test."""
SLOW = {"report", "guidelines", "tune"}
ENDINGS = {"--json": ".json", "--csv": ".csv", "--cubin": ".cubin", "file": ".json"}
"""Endings of files that are no pictures."""


COMMAND: Any = typer.main.get_command(app)
"""The whole command line."""


def parameters() -> Iterator[tuple[str, Any]]:
    """Every parameter of every command, with the command's words."""

    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        for name, sub in getattr(command, "commands", {}).items():
            yield from below(sub, f"{words} {name}".strip())
        yield from ((words, parameter) for parameter in command.params)

    return below(COMMAND, "")


def is_writer(parameter: Any) -> bool:
    """Return True if what a parameter names is written to, and has been looked at before."""
    return getattr(parameter.callback, "__wrapped__", None) in CALLBACKS


WRITERS = [(words, p) for words, p in parameters() if is_writer(p)]
GIVEN = {words: [p for other, p in WRITERS if other == words] for words, _ in WRITERS}
"""Parameters that name files to be written, by command."""
GIVEN["probe"].pop()  # its picture is of what a CUDA device alone measures


def test_every_path_is_read_or_looked_at_before_it_is_written() -> None:
    """A new option that writes a file has its callback from ``toprung.cli.common``, and its command a line in this file."""
    unknown = []
    for words, p in parameters():
        named = f"{words} {p.opts[0]}"
        of_a_file = "Path" in str(getattr(p, "type_descriptor", p).__dict__) or re.search(
            r"\b(write|store|draw|keep)\b.*\bfile\b", getattr(p, "help", None) or ""
        )
        if of_a_file and not is_writer(p) and named not in READ | DATABASES:
            unknown.append(named)
    assert unknown == [] and set(GIVEN) == set(COMMANDS) and len(WRITERS) > 20


def name_of(parameter: Any) -> str:
    """Return the name of a file that a parameter may name, with its ending."""
    if parameter.callback.__wrapped__ is common.page_file:
        return "page/index.html"
    return f"{parameter.name}{ENDINGS.get(parameter.opts[0], '.svg')}"


def folder_of(parameter: Any, path: Path) -> Path:
    """Return what a parameter is given so that a file is written: its folder, for a page."""
    return path.parent if name_of(parameter) == "page/index.html" else path


def looked_at(words: str, parameter: Any, path: object) -> dict[str, Any]:
    """Return a command's parameters with a file named: what is refused is refused here, and nothing has run."""
    command: Any = COMMAND
    for word in words.split():
        command = command.commands[word]
    given = [str(path)] if parameter.opts[0] == "file" else [parameter.opts[0], str(path)]
    needed = ["RECORD"] if words == "results plot" else []
    with command.make_context(words, [*needed, *given]) as context:
        return dict(context.params)


def as_nobody(action: Callable[[], object]) -> str:
    """Return what a function returns, or raises, as text, for a user who is not root."""

    def called() -> object:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return action()

    return in_child(called)


@pytest.mark.parametrize(("words", "parameter"), [pytest.param(w, p, id=f"{w} {p.opts[0]}") for w, p in WRITERS])
def test_what_cannot_be_written_is_refused_before_anything_runs(words: str, parameter: Any, tmp_path: Path) -> None:
    folder, name = tmp_path / "there", Path(name_of(parameter)).name
    for made in ("folder", "link", "loop", "pipe", "fine"):
        (folder / made).mkdir(parents=True)
    (folder / "file").touch()
    (folder / "folder" / name).mkdir()
    (folder / "link" / name).symlink_to(tmp_path)
    (folder / "loop" / name).symlink_to(name)
    os.mkfifo(folder / "pipe" / name)
    expected = {"folder": "is a folder", "link": "is a folder", "loop": "symbolic link", "file": "is no folder"}
    for at, says in expected.items():
        with pytest.raises(BadArgument, match=says):
            looked_at(words, parameter, folder_of(parameter, folder / at / name))
    if Path("/proc").exists():  # where root, too, makes no file
        with pytest.raises(BadArgument, match="cannot be written"):
            looked_at(words, parameter, f"/proc/{name}")
    looked_at(words, parameter, folder_of(parameter, folder / "pipe" / name))  # which nobody reads yet
    looked_at(words, parameter, folder_of(parameter, folder / "new" / "fine" / name))
    assert not (folder / "new").exists()


def test_two_options_cannot_name_one_place(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "link.csv").symlink_to("one.json")
    for first, second in (("-", "-"), (tmp_path / "one.json", tmp_path / "link.csv")):
        done = typed.done("bench", "--json", first, "--csv", second)
        assert done.returncode == 2 and "is named twice" in done.stderr and done.stdout == ""


@pytest.fixture(scope="module")
def inputs(device: Device, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A record and a store that commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    record, store = folder / "record.json", folder / "tuned.sqlite"
    with contextlib.redirect_stdout(io.StringIO()):
        COMMAND.main(["ladder", *COMMANDS["ladder"], device.id, "--json", str(record)], standalone_mode=False)
    Store(store).import_(next(iter(sorted(SHIPPED.glob("*-opencl.json")))))
    return {"RECORD": str(record), "STORE": str(store)}


def right(parameter: Any, content: bytes) -> bool:
    """Return True for a file's content that is whole, once, and of the kind that its option promises."""
    kind = Path(name_of(parameter)).suffix
    if kind == ".json":
        return isinstance(json.loads(content), dict | list)
    if kind == ".csv":
        return len({len(row) for row in csv.reader(io.StringIO(content.decode()))}) == 1
    begin, end = {".svg": (b"<", b"</svg>"), ".html": (b"<!doctype html>", b"</html>"), ".cubin": (b"\x7fELF", b"")}[kind]
    return content[: len(begin)].lower() == begin.lower() and content.rstrip().endswith(end)


@pytest.mark.parametrize(
    ("words", "turn"),
    [
        pytest.param(words, turn, marks=[pytest.mark.slow] * (words in SLOW or turn != i % 3), id=f"{words} {turn}")
        for i, words in enumerate(COMMANDS) for turn in range(3)
    ],
)  # fmt: skip
def test_links_pipes_modes_and_standard_output(
    words: str, turn: int, device: Device, inputs: dict[str, str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of a command, each with a file of another kind; in the next turn with the next kind."""
    given = [inputs.get(word, word) for word in COMMANDS[words]]
    given += [device.id] * (given[-1:] == ["--device"])
    read: dict[str, bytes] = {}
    threads, checks = [], []
    for i, parameter in enumerate(GIVEN[words]):
        path = tmp_path / name_of(parameter)
        path.parent.mkdir(exist_ok=True)
        kind = ("pipe", "link", "-")[(i + turn) % 3]
        if kind == "pipe":
            path = folder_of(parameter, path) if folder_of(parameter, path) == path else tmp_path / "pipe"
            os.mkfifo(path)
            reader = threading.Thread(target=lambda to, path: read.update({to: path.read_bytes()}), args=(parameter.name, path))
            reader.daemon = True  # it waits for ever for a command that fails
            reader.start()
            threads.append(reader)
            named: object = path
        elif kind == "link":
            secret = tmp_path / f"secret of {parameter.name}"
            secret.write_text("old")
            secret.chmod(0o600)
            path.symlink_to(secret)
            named = folder_of(parameter, path)
            checks.append((path, secret, parameter))
        else:
            named = "-"
        given += [str(named)] if parameter.opts[0] == "file" else [parameter.opts[0], str(named)]
    monkeypatch.setenv("TOPRUNG_STORE", "on")
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    code, said = Typed(capsys, monkeypatch)(*words.split(), *given)
    assert code == 0, said
    for thread in threads:
        thread.join(60)
    out.flush()
    printed = out.buffer.getvalue()  # type: ignore[attr-defined]
    for i, parameter in enumerate(GIVEN[words]):
        if (i + turn) % 3 == 0:
            assert right(parameter, read[parameter.name])
        elif (i + turn) % 3 == 2:
            assert right(parameter, printed)
    for path, secret, parameter in checks:
        assert path.is_symlink() and right(parameter, secret.read_bytes()) and stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert common.console.stderr is False


def test_a_file_is_written_as_open_would_write_it(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        paths.publish(tmp_path / "new", b"1")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    for name, mode in (("secret", 0o600), ("program", 0o755)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
        paths.publish(tmp_path / name, b"2")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    (tmp_path / "other name").hardlink_to(tmp_path / "secret")
    paths.publish(tmp_path / "secret", b"3")
    assert (tmp_path / "other name").read_bytes() == b"3"
    if os.geteuid() == 0:
        os.chown(tmp_path / "program", 12, 34)
        paths.publish(tmp_path / "program", b"4")
        facts = (tmp_path / "program").stat()
        assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (12, 34, 0o755)


def test_a_device_is_written_into(tmp_path: Path) -> None:
    """A terminal stands for all devices: nothing can be put in its place."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    (tmp_path / "link").symlink_to(os.ttyname(theirs))
    try:
        assert paths.refusal(tmp_path / "link") == ""
        paths.deliver(tmp_path / "link", b"content")
        assert os.read(ours, 100) == b"content" and (tmp_path / "link").is_char_device()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_user_writes_where_permissions_are_and_nowhere_else() -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own lies below one that root alone may enter
    try:
        for name, mode in (("read-only", 0o444), ("open", 0o666), ("closed/file", 0o666), ("closed/read-only", 0o444)):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("old")
            (folder / name).chmod(mode)
        folder.chmod(0o777)
        (folder / "closed").chmod(0o755)
        if os.geteuid():
            (folder / "closed").chmod(0o555)
        for name in ("read-only", "closed/read-only", "closed/new"):
            assert as_nobody(lambda name=name: paths.refusal(folder / name)) == "permission denied"
            assert as_nobody(lambda name=name: paths.publish(folder / name, b"new")).startswith("PermissionError")
        for name in ("open", "closed/file"):
            before = (folder / name).stat()
            assert as_nobody(lambda name=name: (paths.refusal(folder / name), paths.publish(folder / name, b"new"))) == "('', None)"
            after = (folder / name).stat()
            assert (folder / name).read_text() == "new" and (before.st_uid, before.st_mode) == (after.st_uid, after.st_mode)
        assert sorted(p.name for p in folder.rglob("*")) == ["closed", "file", "open", "read-only", "read-only"]
    finally:
        (folder / "closed").chmod(0o755)
        shutil.rmtree(folder)


def test_what_nobody_reads_is_kept(tmp_path: Path) -> None:
    """The reader of a pipe has gone."""
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=lambda: os.close(os.open(tmp_path / "pipe", os.O_RDONLY)))
    reader.start()
    with pytest.raises(NotWritten, match=r"Broken pipe.*its content is kept in") as caught:
        paths.deliver(tmp_path / "pipe", bytes(1 << 20))
    reader.join()
    assert Path(str(caught.value).rpartition(" ")[2]).stat().st_size == 1 << 20


def test_a_shell_reads_a_file_from_its_pipes_and_from_standard_output(inputs: dict[str, str], tmp_path: Path) -> None:
    """Process substitution, and ``/dev/stdout`` in a file."""
    require(bash := shutil.which("bash"), "no bash")
    command = f"{sys.executable} -m toprung store list --best 1 --store {inputs['STORE']}"
    script = f"{command} --json >(cat > a.json) > a.txt; {command} --json /dev/stdout 2> b.txt > b.json; wait; cat a.json"
    done = subprocess.run([str(bash), "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    read = [json.loads(text)["entries"] for text in (done.stdout, (tmp_path / "b.json").read_text())]
    assert read[0] == read[1] and len(read[0]) > 1
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "b.txt").read_text() != ""


@pytest.mark.parametrize("command", ("web --out -", "store export --store STORE -"))
def test_standard_output_that_cannot_be_written_has_its_own_exit_codes(
    command: str, inputs: dict[str, str], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "toprung", *(inputs.get(word, word) for word in command.split())]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(write)
    assert (gone.returncode, gone.stderr, list(tmp_path.iterdir())) == (streams.READER_GONE, "", [])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == streams.UNWRITTEN and "(No space left on device): its content is kept in" in done.stderr
    assert len(list(tmp_path.rglob("-"))) == 1


# disks

DISK = """
import resource, sys, warnings
import numpy as np
import toprung

device, how, when, folder = sys.argv[1:]
a = np.ones((300, 65), np.float32)

def fill():
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        return
    try:
        with open(folder + "/fill", "wb", 0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        assert error.errno == 28, error

def multiplied(rows):
    try:
        return bool((toprung.matmul(a[:rows], a.T, own=True, device=device) == 65).all())
    except toprung.errors.NoRoom as error:
        return str(error)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    done = [multiplied(300)] if when == "later" else []
    fill()
    done += [multiplied(rows) for rows in (300, 3)]
print(done, [str(w.message) for w in caught if w.category is RuntimeWarning], sep="\\n")
"""


@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("disk", "later"),
        ("limit", "first"),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in (("disk", "first"), ("limit", "later"))),
    ],
)
def test_a_full_disk_ends_no_process_and_is_named(how: str, when: str, device: Device, tmp_path: Path) -> None:
    """LLVM ends the process where it cannot write; ``limit`` stands for a quota, which holds for every folder."""
    words, folder = [sys.executable, "-c", DISK, device.id, how, when, str(tmp_path)], str(tmp_path)
    if how == "disk":
        mounting = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m none "$0" && exec "$@"', folder]
        if not shutil.which("unshare") or subprocess.run([*mounting, "true"], capture_output=True).returncode:
            pytest.skip("this user may not mount a disk")
        words = [*mounting, *words]
    moved = {name: f"{folder}/{name}" for name in ("TOPRUNG_CACHE", "POCL_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **moved})
    assert done.returncode == 0, done.stderr
    products, warned = map(ast.literal_eval, done.stdout.splitlines())
    reason = "no space left on device" if how == "disk" else "file too large"
    refused = f"PoCL's folder {moved['POCL_CACHE_DIR']} cannot be written ({reason})"
    if when == "later":  # what is compiled goes on
        assert products[:2] == [True, True] and refused in products[2] and warned == []
    elif how == "disk":  # the temporary folder has room
        assert products == [True, True] and len(warned) == 1 and f"{moved['POCL_CACHE_DIR']} cannot be written" in warned[0]
    else:
        assert all(refused in said for said in products) and len(warned) == 1 and "nor can" in warned[0]
