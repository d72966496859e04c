"""Machine code in the wheel: it takes the place of compiling, and whatever is amiss with it, the kernel is compiled here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cubins
import driver
import golden
from toprung import store
from toprung.backends import nvrtc
from toprung.kernels.build import PACK, kept

ASKED = [
    (golden.Asked(golden.gemm(100, 100, 100), "fp32", own=True), False),
    (golden.Asked(golden.gemm(1, 64, 64, batch=9)), False),
]

PROGRAM = """
import json, sys
from pathlib import Path
import golden, test_cubins
from toprung.backends import find, opened
from toprung.execute.executable import Executable
from toprung.kernels import build

def compiled(pack, *, shipped=True):
    build.PACK = Path(pack)
    with opened(find("cuda:0")) as session:
        for one, _ in test_cubins.ASKED:
            executable = Executable.of(session, one.desc, one.selection(session.device))
            if not shipped:
                for kernel in build._kept[session].values():
                    build.source_kernel(kernel.source, session)
    kept = [*build.cache_dir().glob("binaries/*")]
    for file in kept:
        file.unlink()
    return len(kept)

packs = sys.argv[1:]
print(json.dumps([*map(compiled, packs), compiled(packs[0], shipped=False)]))
"""


IN_THE_BACKGROUND = """
import importlib.util, os, sys, time
from pathlib import Path
from toprung.backends import find, nvrtc, opened
from toprung.kernels import build
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.sources import product_source, reduce_source

# loaded as a file, for the package that it lies in imports PyTorch
place = Path(build.__file__).parents[1] / "blas" / "background.py"
spec = importlib.util.spec_from_file_location("background", place)
background = sys.modules["background"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(background)
session = opened(find("cuda:0")).__enter__()
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
if len(sys.argv) > 2:
    sys.executable = sys.argv[2]
else:
    nvrtc._compiled = None  # not in this process
source = reduce_source() if sys.argv[1] == "wait" else product_source(Fp32xConfig())
said = []

def work():
    try:
        said.append(build.kernel_of(session, source))
    except background.NotReady as error:
        said.append(error)

background.HERE.begin(background.Job(work, "a kernel"))
if sys.argv[1] == "wait":
    print(background.HERE.wait(), len(said), "apart" if background.HERE._workers else "here")
else:
    while not background.HERE._workers:
        time.sleep(0.01)
    print(background.HERE._workers[0].pid, flush=True)
"""


def run(folder: Path, program: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the stand-in for CUDA's driver, with an empty cache and without stores."""
    with driver.installed() as place:
        own = {"LD_LIBRARY_PATH": place, "TOPRUNG_CACHE": place, "TOPRUNG_DRIVER_LOG": str(folder / "log"), store.VARIABLE: "off"}
        path = os.pathsep.join(map(str, [*sys.path, Path(__file__).parent]))
        env = {**os.environ, **own, "PYTHONPATH": path, **env}
        command = [sys.executable, "-c", program, *map(str, words)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def stored(code: bytes) -> bytes:
    """Return what the cache holds of machine code."""
    return hashlib.sha256(code).digest() + code


@pytest.fixture(scope="module")
def codes() -> dict[str, bytes]:
    """The machine code of two products' kernels, by key."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TOPRUNG_CACHE", "TOPRUNG_DATA", store.VARIABLE):  # they are set by what finds the kernels
            patch.setenv(name, "")
        sources = cubins.needed(ASKED, "off")
    return {key: nvrtc.compile_cubin(source, cubins.DEVICE.arch).code for key, source in sources.items()}


def test_kernels_of_the_pack_are_not_compiled_and_others_are(codes: dict[str, bytes], tmp_path: Path) -> None:
    foreign = {key: code[:18] + bytes(1) + code[19:] for key, code in codes.items()}  # the header's machine is no GPU
    whole, count = cubins.packed({key: [stored(code)] for key, code in codes.items()}), len(codes)
    packs = {  # content, and how many kernels are compiled
        "whole": (whole, 0),
        "refused, then another": (cubins.packed({k: [stored(foreign[k]), stored(code)] for k, code in codes.items()}), 0),
        "of another architecture": (cubins.packed({k: [stored(code)] for k, code in foreign.items()}), count),
        "of a newer format": (cubins.packed({k: [stored(b"no ELF" + code)] for k, code in codes.items()}), count),
        "damaged": (cubins.packed({k: [stored(code)[:-1] + b"?"] for k, code in codes.items()}), count),
        "one is missing": (cubins.packed({k: [stored(code)] for k, code in [*codes.items()][1:]}), 1),
        "cut short": (whole[: whole.index(b"\n") + 100], count),
        "no pack": (b"\0", count),
    }
    for name, (content, _) in packs.items():
        (tmp_path / name).write_bytes(content)
    *found, measured = json.loads(run(tmp_path, PROGRAM, *(tmp_path / name for name in packs)).stdout)
    assert dict(zip(packs, found, strict=True)) == {name: compiled for name, (_, compiled) in packs.items()}
    assert measured == count, "what is measured is compiled by the NVRTC that its record names"


def test_a_wheel_with_other_kernels_than_are_selected_is_named(codes: dict[str, bytes], tmp_path: Path) -> None:
    wheel, (first, *rest) = tmp_path / "made.whl", codes
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toprung/__init__.py", "")
    assert cubins.stale(wheel, codes) == f"made.whl has no {PACK.name}"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(f"toprung/kernels/{PACK.name}", cubins.packed({key: [stored(codes[key])] for key in codes}))
    assert cubins.stale(wheel, codes) == ""
    assert cubins.stale(wheel, [first, "new"]) == f"made.whl lacks 1 kernels that are selected and has {len(rest)} that are not"


def test_the_pack_has_kernels_of_every_part_of_the_list() -> None:
    """Each compiles in a second or two: a release compiles them all, and here it is enough that none is forgotten."""
    asked = [*cubins.products()]
    assert len(asked) > len(golden.asked(cubins.DEVICE)) + 2 * 300
    assert any(bias for _, bias in asked) and any(getattr(one.desc, "is_mixed", False) for one, _ in asked)


@pytest.mark.parametrize("home", ["empty", "file"])
def test_the_background_compiles_in_a_process_of_its_own(tmp_path: Path, home: str) -> None:
    """On one core; where the cache's folder cannot be written the temporary one stands in."""
    (tmp_path / "file").touch()
    done = run(tmp_path, IN_THE_BACKGROUND, "wait", TOPRUNG_CACHE=str(tmp_path / home / "cache"), TMPDIR=str(tmp_path))
    assert done.stdout == "True 1 apart\n"
    assert (done.stderr == "") == (home == "empty") == bool([*tmp_path.glob("empty/cache/binaries/*")])
    assert len([*tmp_path.glob("**/binaries/*")]) == 1


def test_a_program_with_python_inside_is_not_started_again(tmp_path: Path) -> None:
    program = tmp_path / "app"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert run(tmp_path, IN_THE_BACKGROUND, "wait", program).stdout == "True 1 here\n"


def test_a_program_that_ends_while_a_kernel_is_compiled_leaves_nothing_running(tmp_path: Path) -> None:
    done = run(tmp_path, IN_THE_BACKGROUND, "end")
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_kernel_that_is_being_made_keeps_no_other_waiting() -> None:
    session, begun, made = cubins.Session(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kept, session, "first", lambda: begun.set() or made.wait(60))
        assert begun.wait(60) and kept(session, "second", lambda: 2) == 2
        made.set()
        assert first.result(60) and kept(session, "first", lambda: 3) is True, "it is made once"
