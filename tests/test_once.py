"""The store of what tests compile: each input of an entry, changed alone, makes another entry; damage and age are seen."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import once
from conftest import BUILD

GXX = """#!/bin/sh
if [ "$1" = --version ]; then echo {version}; exit; fi
for word; do [ "$last" = -o ] && out=$word; last=$word; done
cat "$last" > "$out"
"""
"""A compiler whose version can be changed; g++ itself runs in every test of a kernel on a CPU."""
RELEASE = b"13.0"
"""What the NVRTC of these tests is."""

Change = Callable[[Path, pytest.MonkeyPatch], object]
Use = Callable[[Path], object]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of its own, and a tree with what entries depend on."""
    monkeypatch.setenv(once.VARIABLE, str(tmp_path / "store"))
    monkeypatch.setattr(once, "ROOT", tmp_path)
    files = {"requirements.lock": "numpy==2.0", "shim.h": '#pragma once\n#include "inner.h"\n', "inner.h": "#define ONE 1\n"}
    files |= {"headers/a.h": "#define A 1\n", "g++": GXX.format(version=12)} | {
        f"src/toprung/{part}/a.py": "" for part in once.READING
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "g++").chmod(0o755)
    yield tmp_path
    forget()


def forget() -> None:
    """Read the machine and its files anew, as another process does."""
    for one in (once.machine, once.version, once.file_hash):
        one.cache_clear()


def entries() -> set[Path]:
    return {path for path in once.folder().rglob("*") if path.is_file()}


def patched(owner: object, name: str, value: object) -> Change:
    return lambda tree, patch: patch.setattr(owner, name, value)


def written(path: str, text: str) -> Change:
    return lambda tree, patch: (tree / path).write_text(text)


def plain(tree: Path) -> object:
    return once.kept(lambda: b"content", "a part", "another")


def shared(text: str = "int f() { return ONE; }", flags: tuple[str, ...] = (), headers: str = "#include <new>\n") -> Use:
    return lambda tree: once.shared_object(f'#include "{tree}/shim.h"\n{text}', flags, headers, str(tree / "g++")).read_bytes()


def compiler(text: str, name: str, flags: tuple[str, ...], ptx: bool = False) -> tuple[str, bytes]:
    return ("", b"") if text == "wrong" else (f"log of {name}\n", RELEASE if ptx else f"{text}\n{flags}".encode())


def another(text: str, name: str, flags: tuple[str, ...], ptx: bool = False) -> tuple[str, bytes]:
    return compiler(text, name, flags, ptx)


def compiled(text: str = "#include <a.h>", name: str = "k", *more: str, by: Callable[..., tuple[str, bytes]] = compiler) -> Use:
    return lambda tree: once.nvrtc(by)(text, name, (f"--include-path={tree}/headers", *more), "ptx" in name)


def disassemble(cubin: bytes) -> str:
    return f"listing of {cubin!r}"


def listed(cubin: bytes = b"code", tool: str = "g++") -> Use:
    return lambda tree: once.disassembled(disassemble, lambda: str(tree / tool))(cubin)


def cached(tree: Path) -> object:
    for folder in once.caches().values():
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "binary").exists() or Path(folder, "binary").touch()
    return once.caches()


SOURCE = "src/toprung/backends/a.py"
BOTH: dict[str, tuple[Use, Use | None, Change | None]] = {
    "CPU": (plain, None, patched(once, "cpu", lambda: "another")),
    "package": (plain, None, patched(once, "packages", lambda: ["nvidia-cuda-nvrtc==99"])),
    "interpreter": (plain, None, patched(sys, "version", "4.0")),
    "C library": (plain, None, patched(platform, "libc_ver", lambda: ("glibc", "9"))),
    "lock file": (plain, None, written("requirements.lock", "numpy==2.1")),
    "new lock file": (plain, None, written("requirements-torch.lock", "")),
    "C++": (shared(), shared("int f() { return 2; }"), None),
    "C++ flags": (shared(), shared(flags=("-O2",)), None),
    "C++ headers": (shared(), shared(headers="#include <cmath>\n"), None),
    "shim": (shared(), None, written("shim.h", "#define ONE 1\n")),
    "shim's include": (shared(), None, written("inner.h", "#define ONE 2\n")),
    "g++": (shared(), None, written("g++", GXX.format(version=13))),
    "CUDA": (compiled(), compiled("#include <b.h>"), None),
    "CUDA name": (compiled(), compiled(name="other"), None),
    "CUDA flags": (compiled(), compiled("#include <a.h>", "k", "--fmad=false"), None),
    "CUDA headers": (compiled(), None, written("headers/a.h", "#define A 2\n")),
    "NVRTC": (compiled(), None, patched(sys.modules[__name__], "RELEASE", b"13.1")),
    "caller of NVRTC": (compiled(), compiled(by=another), None),
    "cubin": (listed(), listed(b"edoc"), None),
    "nvdisasm": (listed(), None, written("g++", GXX.format(version=13))),
    "PoCL's flags": (cached, None, lambda tree, patch: patch.setenv(BUILD, "-cl-fast-relaxed-math")),
    "PoCL's method": (cached, None, lambda tree, patch: patch.setenv("POCL_WORK_GROUP_METHOD", "cbs")),
    "caches' source": (cached, None, written(SOURCE, "another")),
    "CPU of caches": (cached, None, patched(once, "cpu", lambda: "another")),
}
"""By input: what makes an entry, and that with another input, or what changes outside of it."""


@pytest.mark.parametrize(("use", "other", "change"), [pytest.param(*case, id=name) for name, case in BOTH.items()])
def test_an_input_changed_alone_is_a_miss(
    use: Use, other: Use | None, change: Change | None, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    made, first = use(tree), entries()
    times = {path: path.stat().st_mtime_ns for path in first}
    forget()
    assert first and use(tree) == made and {path: path.stat().st_mtime_ns for path in entries()} == times
    if change:
        change(tree, monkeypatch)
    forget()
    (other or use)(tree)
    assert entries() > first


def test_a_tree_elsewhere_has_the_same_entries(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    forget()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(tree, elsewhere, dirs_exist_ok=True)
    for use in (shared(), compiled()):
        use(tree)
        first = entries()
        use(elsewhere)
        assert entries() == first


def test_what_is_damaged_or_refused_is_made_again(tree: Path) -> None:
    calls: list[int] = []
    for damage in (b"", b"short", b"x" * 64, None):
        assert once.kept(lambda: calls.append(1) or b"content", "part") == b"content"  # type: ignore[func-returns-value]
        if damage is not None:
            next(path for path in entries()).write_bytes(damage)
    assert len(calls) == 4 and once.kept(lambda: b"never made", "part") == b"content"
    before = entries()
    assert compiled("wrong")(tree) == ("", b"") and entries() == before
    with pytest.raises(ZeroDivisionError):
        once.file(lambda path: path.write_text("half") // 0, "fails")
    assert entries() == before


def test_readers_see_whole_entries_while_others_write(tree: Path) -> None:
    seen: list[bytes] = []

    def read(number: int) -> None:
        for part in range(40):
            seen.append(once.kept(lambda part=part: b"%d" % part * 10_000, str(part)))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(b"%d" % part * 10_000 for part in range(40) for _ in threads)


def test_what_is_not_used_goes(tree: Path) -> None:
    names = (
        "entries/aa/old",
        "entries/aa/new",
        "toprung/key/binaries/old",
        "pocl/key/AA/old/program.bc",
        "pocl/key/AA/new/program.bc",
    )
    for name in names:
        (path := once.folder() / name).parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if "old" in name:
            os.utime(path, (time.time() - 86400 * (once.DAYS + 1),) * 2)
    once.prune()
    left = {str(path.relative_to(once.folder())) for path in entries()}
    assert left == {"pruned", *(name for name in names if "new" in name)}
    os.utime(once.folder() / "entries/aa/new", (0, 0))
    once.prune()  # not twice a day
    assert (once.folder() / "entries/aa/new").exists()
