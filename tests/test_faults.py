"""Files are written whole, whatever ends a process; ten faults of each kind are drawn anew in every run of ``make test-all``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from command import Typed
from toprung import paths
from toprung.errors import DAMAGE
from toprung.lab.harness.baseline import BaselineLog

SEED = "TOPRUNG_TESTS_SEED"
"""Environment variable: the seed that a failed test printed, to draw the same faults again."""


@pytest.mark.drawn
@pytest.mark.parametrize("kind", ("kill", "words", "results", "store"))
def test_drawn_faults_lose_nothing_and_the_next_start_works(kind: str) -> None:
    seed = ("--seed", os.environ[SEED]) if SEED in os.environ else ()
    script = str(Path(__file__).with_name("faults.py"))
    done = subprocess.run([sys.executable, script, kind, *seed], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, f"{SEED}: {done.stdout}{done.stderr}"


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    dead, empty, begun, living = (tmp_path / f".{n}.json.0.part" for n in ("dead", "empty", "begun", "living"))
    for path in (dead, empty, begun, living):
        path.write_bytes(b"" if path in (empty, begun) else b"half")
    os.utime(empty, (time.time() - 3600,) * 2)
    others = tmp_path / ".notes.json"
    others.write_bytes(b"a user's")
    with paths.locked(living):
        paths.publish(tmp_path / "a.json", b"whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([begun.name, living.name, others.name, "a.json"])


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_the_new(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, pathlib; from toprung.paths import publish\n"
        "sys.addaudithook(lambda event, given: event == 'os.rename' and os.kill(os.getpid(), signal.SIGKILL))\n"
        f"publish(pathlib.Path({str(tmp_path / 'a.json')!r}), b'new')"
    )
    (tmp_path / "a.json").write_bytes(b"old")
    subprocess.run([sys.executable, "-c", program])
    assert (tmp_path / "a.json").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    paths.publish(tmp_path / "b.json", b"new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_links_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    link, pipe, read = tmp_path / "link", tmp_path / "pipe", []
    link.symlink_to("behind.json")
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    for path in (link, pipe):
        paths.publish(path, b"content")
    reader.join()
    assert link.is_symlink() and (tmp_path / "behind.json").read_bytes() == b"content" and pipe.is_fifo() and read == [b"content"]


@pytest.mark.parametrize(
    "line", (b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b'{"key": 1}', b'{"key": "K", "seconds": ' + b"9" * 400 + b"}")
)
def test_a_damaged_line_among_speeds_of_baselines_is_passed_over(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toprung.lab.harness.baseline._key", lambda device, m: "K")
    log = BaselineLog(tmp_path / "baselines.jsonl")
    log.path.write_bytes(b"\n".join([json.dumps({"key": "K", "seconds": 0.5}).encode()] * 3 + [line]) + b"\n")
    assert log.usual(None, None) == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ladder", "kepler", "--sizes", "1:100000000000000000:1"], "more than 10000 sizes"),
        (["ladder", "kepler", "--sizes", "9" * 5000], "positive whole numbers"),
        (["ladder", "kepler", "--rungs", "9" * 5000], "no rung of kepler"),
        (["ladder", "kepler", "--switch", f"INDEX32={'9' * 5000}"], "no value of INDEX32"),
        (["ladder", "kepler", "--budget", "9" * 400 + "h"], "a budget is a time"),
        (["tune", "--limit", "nan"], "--limit"), (["tune", "--limit", "inf"], "--limit"),
        (["tune", "--check", "--shapes", "1" + "0" * 18], "--shapes"),
        (["results", "show", "\udcff.json"], "cannot be read"),
    ],
)  # fmt: skip
def test_numbers_without_end_are_refused(words: list[str], says: str, typed: Typed) -> None:
    code, text = typed(*words)
    assert code == 2 and says in text


def test_a_data_folder_that_may_not_be_looked_at_has_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPRUNG_DATA", "/" + "x" * 300)  # too long a name, which root, too, may not look at
    monkeypatch.setenv("TOPRUNG_STORE", "on")
    assert not paths.has_store()


def test_every_error_of_a_parser_counts_as_damage() -> None:
    for text in ("[" * 100_000, "9" * 5000, "{", "\ud800", '{"a": 1'):
        with pytest.raises(DAMAGE):
            json.loads(text)
    with pytest.raises(DAMAGE):
        float(10**400)
