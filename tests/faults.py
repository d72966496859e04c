"""Drawn faults: commands killed while they write, words that make no sense, damaged files.

    python tests/faults.py kill --times 200 --json faults.json
    python tests/faults.py words results store --seed 7

Nothing may be lost or half written, a fault ends with a message and a documented exit code, and the next start works. Commands run
in children forked from this process, which has imported them: a start takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "POCL_EXTRA_BUILD_FLAGS": "-cl-opt-disable", "TOPRUNG_COMMIT": "0" * 12}

import damage
from damage import LADDER, MAKING, OWN_READERS, REPORT, RUN, TUNE
from toprung import backends
from toprung.cli import main
from toprung.errors import StoreError
from toprung.lab.harness import results as stored
from toprung.lab.harness.environment import environment
from toprung.report.html import page
from toprung.store import Store

LIMIT, MEMORY = 600.0, 8 << 30
"""Seconds and bytes of data after which a command counts as endless: the slowest takes 10 s on two busy cores."""
KILLED = {"tune": TUNE, "ladder": LADDER, "report": REPORT, "cache": RUN}
WRITES = {"os.rename", "os.chmod", "os.mkdir", "os.remove", "os.rmdir"}


class Home:
    """Folder of a user's own, with data, caches, and a working folder in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work, self.told = folder, folder / "here" / "work", folder / "told"
        self.events = mmap.mmap(-1, 8)
        self.normal, self.good = dict[str, tuple[int, float]](), dict[str, bytes]()
        for name in ("data/probes", "cache", "pocl", "tmp", "here/work/results"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def child(self, words: tuple[str, ...], at: int) -> None:
        """Run a command in a forked process, which kills itself before its ``at``-th write, or in its ``-at``-th."""
        os.setsid()
        for name, folder in (("TOPRUNG_DATA", "data"), ("TOPRUNG_CACHE", "cache"), ("POCL_CACHE_DIR", "pocl"), ("TMPDIR", "tmp")):
            os.environ[name] = str(self.folder / folder)
        os.environ |= {"XDG_CACHE_HOME": str(self.folder / "cache/others"), "TOPRUNG_STORE": "on"}
        tempfile.tempdir = os.environ["TMPDIR"]
        os.chdir(self.work)
        for number, name in ((0, os.devnull), (1, self.told), (2, self.told)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), number)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        own = os.getpid()

        def point() -> None:
            if os.getpid() == own:
                count = int.from_bytes(self.events[:8], "little") + 1
                self.events[:] = count.to_bytes(8, "little")
                if count == at:
                    os.kill(own, signal.SIGKILL)
                if count == -at:  # then a file is open, and empty
                    sys.setprofile(lambda frame, event, what: os.kill(own, 9 * (event == "c_call")))

        def hook(event: str, given: tuple[Any, ...]) -> None:
            if event in WRITES or (event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
                point()

        def traced(*given: Any, connect: Any = sqlite3.connect, **named: Any) -> Any:
            made = connect(*given, **named)
            made.set_trace_callback(lambda statement: point())  # before each statement
            return made

        sqlite3.connect = traced  # type: ignore[assignment]
        sys.addaudithook(hook)
        sys.argv, code = ["toprung", *words], 70
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def run(self, words: tuple[str, ...], at: int = 0, after: float = LIMIT) -> tuple[int, str, float]:
        """Run a command; return its exit code (minus the signal that ended it), its output and the seconds it took.

        ``at``: number of the write before which it kills itself, or minus that in which it does; ``after``: seconds it has to live.
        """
        self.told.write_text("")
        self.events[:] = bytes(8)
        begin, code = time.monotonic(), None
        if not (child := os.fork()):
            self.child(words, at)
        while code is None:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - begin > after:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        return code, self.told.read_text(errors="replace"), time.monotonic() - begin

    def contents(self) -> dict[Path, bytes]:
        """Return every file of the user's that toprung writes; of a store its entries' identities, none if it is damaged."""
        found = {}
        for folder in (self.folder / "data", self.folder / "cache/binaries", self.work):
            for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(("-wal", "-shm", "-journal"))):
                if path.suffix == ".sqlite":
                    found[path] = b"[]"
                    with contextlib.suppress(StoreError):
                        found[path] = json.dumps([entry.id for entry in Store(path).entries()]).encode()
                else:
                    found[path] = path.read_bytes()
        return found

    def broken(self, before: dict[Path, bytes], named: tuple[str, ...] = ()) -> list[str]:
        """Return what is lost or half written: not temporary files, nor what a command ``named`` to put anything there."""
        now, faults, left_out = self.contents(), [], {self.work / word for word in named}
        for path in (p for p in (before.keys() | now.keys()) - left_out if not p.name.startswith(".")):
            old, new = before.get(path, b""), now.get(path)
            if new == old:
                continue
            try:
                assert new is not None, "is lost"
                if path.suffix == ".sqlite":
                    assert set(json.loads(old or b"[]")) <= set(json.loads(new)), "has lost entries"
                elif path.parent.name == "binaries":
                    assert hashlib.sha256(new[32:]).digest() == new[:32], "is half written"
                elif path.suffix == ".jsonl":
                    assert new.startswith(old) and new.endswith(b"\n"), "has lost lines"
                elif path.suffix in (".json", ".store"):
                    json.loads(new)
                else:
                    ends = {".html": b"</html>", ".svg": b"</svg>"}.get(path.suffix, b"")
                    assert new and new.rstrip().endswith(ends), "is half written"
            except (AssertionError, ValueError) as error:
                faults.append(f"{path.relative_to(self.folder)} {error}")
        return faults

    def left(self, age: bool = False) -> list[Path]:
        """Return temporary files and folders that are there; ``age`` makes them look an hour old."""
        found = [*self.folder.rglob(".*.part"), *(self.folder / "tmp").iterdir()]
        for path in found if age else ():
            os.utime(path, (time.time() - 3600,) * 2)
        return found

    def outcome(self, chosen: tuple[str, ...], expected: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
        """Run a command that may be refused; return its exit code and what is wrong with what it says and leaves."""
        before = self.contents()
        code, text, took = self.run(chosen)
        faults = self.broken({p: c for p, c in before.items() if p.suffix != ".sqlite" or "clear" not in chosen}, chosen)
        if code not in expected or "Traceback" in text or (code and not text.strip()):
            faults.append(f"exit code {code} after {took:.0f} s: {text[-3000:]}")
        return {"command": [w if len(w) < 60 else f"{w[:20]}… ({len(w)})" for w in chosen], "code": code, "faults": faults}


def kill(home: Home, draw: random.Random, at: int) -> dict[str, Any]:
    """Kill a command at a drawn write or moment, look at what is there, and run it again to its end."""
    name = list(KILLED)[at % len(KILLED)]
    writes, seconds = home.normal[name]
    if name == "cache":
        shutil.rmtree(home.folder / draw.choice(("cache/binaries", "pocl")), ignore_errors=True)
    before = home.contents()
    write, after = (draw.randint(1, writes), LIMIT) if draw.random() < 0.5 else (0, draw.uniform(0, seconds))
    write *= draw.choice((1, -1))
    code, _, took = home.run(KILLED[name], write, after)
    faults, left = home.broken(before), len(home.left(age=True))
    again, text, _ = home.run(KILLED[name])
    if again != 0:
        faults.append(f"does not run again: exit code {again}: {text[-2000:]}")
    faults += [f"again: {one}" for one in home.broken(before)] + [f"{p} is left" for p in home.left()]
    point = f"{'before' if write > 0 else 'in'} write {abs(write)} of {writes}" if write else f"{after:.3f} s of {seconds:.3f}"
    return {"command": name, "at": point, "code": code, "seconds": round(took, 3), "temporary": left, "faults": faults}


def prepare(home: Home, kinds: list[str]) -> None:
    """Run the commands as they are meant, before faults of some kinds are drawn."""
    for chosen in (*KILLED.values(), *(MAKING if kinds != ["kill"] else ())):
        code, text, _ = home.run(chosen)
        assert code == 0, (chosen, text)
    for name, chosen in KILLED.items() if "kill" in kinds else ():
        seconds = min(home.run(chosen)[2] for _ in range(2))
        home.normal[name] = int.from_bytes(home.events[:8], "little"), seconds
    if kinds != ["kill"]:
        known = json.loads((home.work / "results/probe.json").read_bytes())["environment"]["device"]
        shutil.copy(home.work / "results/probe.json", home.folder / f"data/probes/{known['slug']}-{known['backend']}.json")
        with contextlib.closing(sqlite3.connect(home.folder / "data/tuned.sqlite")) as db:
            db.execute("PRAGMA journal_mode = DELETE")
        shutil.copy(home.folder / "data/tuned.sqlite", home.work / "old.sqlite")
        (home.work / "suite.json").write_text('[{"M": 16, "N": 16, "K": 16, "trans": "NT", "batch": 2}]')
        (home.work / "link.json").symlink_to("results/run.json")
        files = (*home.work.glob("results/*.json"), *map(home.work.joinpath, OWN_READERS))
        home.good |= {path.name: path.read_bytes() for path in files}


def drawn() -> None:
    """Draw faults, print each that leaves something wrong, and exit 1 if one did."""
    known = {"kill": kill, "words": damage.words, "results": damage.results, "store": damage.store}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=known)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", type=Path, help="file for a row of every fault")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    page.needed()  # imported before the fork, and Vega is bundled before it: four seconds of each report that write nothing
    vega = f"import vl_convert; print(vl_convert.javascript_bundle(vl_version={page.VEGA_LITE!r}))"
    bundle = subprocess.run([sys.executable, "-c", vega], capture_output=True, text=True, check=True).stdout
    sys.modules["vl_convert"].javascript_bundle = lambda **named: bundle  # type: ignore[attr-defined]
    rows, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        prepare(home := Home(Path(folder)), given.kinds)
        for kind, at in ((kind, at) for kind in given.kinds for at in range(given.times)):
            draw = random.Random(f"{given.seed} {kind} {at}")
            rows.append({"kind": kind, "number": at, **known[kind](home, draw, at)})
            if rows[-1]["faults"]:
                print(json.dumps(rows[-1], indent=1, ensure_ascii=True), flush=True)
    bad = sum(bool(row["faults"]) for row in rows)
    more = {"kind": "faults", "seed": given.seed, "wrong": bad, "took_seconds": round(time.monotonic() - begin)}
    print(f"{len(rows)} faults drawn, {bad} left something wrong; {more['took_seconds']} s")
    if given.json is not None:
        del os.environ["TOPRUNG_COMMIT"]
        said, where = stored.command("tests/faults.py"), environment(backends.find("pocl"))
        stored.write(given.json, stored.record(said, where, [], **more, rows=rows))
    sys.exit(bool(bad))


if __name__ == "__main__":
    drawn()
