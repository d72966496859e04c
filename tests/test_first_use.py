"""First use: NumPy arrays are multiplied wherever NumPy multiplies them; who asks for a device learns why there is none."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toprung
from command import Typed
from toprung import backends, errors, paths
from toprung.arrays import sessions
from toprung.device import Device

PROGRAM = """
import sys, warnings
import numpy as np
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import toprung, toprung.errors
    a, b = np.ones((300, 400), np.float32), np.ones((400, 200), np.float32)
    assert (toprung.matmul(a, b) == 400).all()
    print(toprung.last_receipt().device)
    try:
        assert (toprung.matmul(a[:5], b, own=True) == 400).all()
        print(*toprung.last_receipt().kernels)
    except toprung.errors.ToprungError as error:
        print(type(error).__name__, error)
warned = [str(w.message) for w in said if w.category is RuntimeWarning]
print(len(warned), *warned)
"""

NOWHERE = "/dev/null/nowhere"
"""A folder that not even root can make."""


def run(*words: str, program: str = PROGRAM, without: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with some of the environment changed."""
    kept = {k: v for k, v in os.environ.items() if k not in without}
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env={**kept, **environment})


SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)

CACHES = ("TOPRUNG_CACHE", "POCL_CACHE_DIR", "TOPRUNG_DATA")


@pytest.mark.parametrize(
    ("without", "environment", "warned"),
    [
        ((*CACHES, "XDG_CACHE_HOME"), {"HOME": NOWHERE}, f"{NOWHERE}/.cache/pocl cannot be written"),
        SLOW(("TOPRUNG_CACHE", "XDG_CACHE_HOME"), {"HOME": NOWHERE}, f"{NOWHERE}/.cache/toprung cannot be written"),
        ((), {"HOME": NOWHERE}, ""),
        SLOW((), {"TOPRUNG_CACHE": NOWHERE}, f"{NOWHERE} cannot be written"),
        SLOW((), {"POCL_CACHE_DIR": NOWHERE}, f"{NOWHERE} cannot be written"),
        SLOW((), {"TOPRUNG_DATA": NOWHERE, "TOPRUNG_STORE": ""}, ""),
        ((*CACHES, "HOME", "XDG_CACHE_HOME"), {}, None),
    ],
    ids=["no HOME at all", "no HOME but for PoCL", "caches set", "our cache", "PoCL's cache", "no data", "HOME not set"],
)
def test_caches_that_cannot_be_written_cost_a_warning_and_no_product(
    without: tuple[str, ...], environment: dict[str, str], warned: str | None, device: Device
) -> None:
    done = run(without=without, **environment)
    assert done.returncode == 0, done.stderr
    home, kernels, said = done.stdout.splitlines()
    assert home == "the host" and kernels and "AttributeError" not in done.stderr
    if warned is not None:
        assert said.startswith("1 " if warned else "0") and warned in said, said
    if warned:
        assert all(name in said for name in ("TOPRUNG_CACHE", "POCL_CACHE_DIR", "XDG_CACHE_HOME"))


def test_a_user_without_a_name_or_a_home_multiplies() -> None:
    """As in a container that runs under a number."""
    nameless = "import pwd\ndef unknown(number): raise KeyError(number)\npwd.getpwuid = unknown\n"
    done = run(program=nameless + PROGRAM, without=(*CACHES, "HOME", "XDG_CACHE_HOME"))
    assert done.returncode == 0 and "this user has no home folder" in done.stdout, done.stderr
    assert not Path("~").exists()


def test_below_the_home_of_another_user_nothing_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose HOME is root's and whose user is not."""
    home = tmp_path / "home"
    home.mkdir(mode=0)
    for name in ("TOPRUNG_DATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    other = paths._temporary() / "data"
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root may look into every folder
        assert paths.data_dir() == other
    finally:
        os.seteuid(user)


def test_without_opencl_numpy_multiplies_and_own_says_the_reason() -> None:
    done = run(OCL_ICD_VENDORS=NOWHERE)
    assert done.returncode == 0 and done.stdout.endswith("\n0\n"), done.stderr
    assert done.stdout.startswith("the host\nNoDevice no device found. CUDA: no NVIDIA driver found")
    assert f"OCL_ICD_VENDORS={NOWHERE} has no .icd file: unset it" in done.stdout
    assert "pip install pocl" not in done.stdout, "it is installed"


def test_without_a_linker_pocl_is_not_asked_to_link(device: Device) -> None:
    """It ends the process. Slim images of Python have none."""
    done = run(PATH=NOWHERE)
    assert done.returncode == 0 and done.stdout.startswith("the host\n"), done.stderr
    assert "install your system's package binutils" in done.stdout


def test_a_small_product_looks_for_no_device() -> None:
    program = """
import sys
import numpy as np, toprung
print([m for m in sys.modules if m.startswith(("toprung.kernels", "toprung.store", "toprung.gemm.desc", "toprung.gemm.lowering"))])
a = np.ones((64, 64), np.float32)
toprung.matmul(a, a)
absent = "pyopencl cuda sqlite3 toprung.backends.opencl toprung.kernels.tiled.family importlib.metadata numpy.ma".split()
absent += ["toprung.dispatch.select", "toprung.gemm.desc"]
print(toprung.last_receipt().why, [m for m in absent if m in sys.modules], toprung.store.Store.__name__)
"""
    done = run(program=program)
    assert done.stdout == "[]\nthe product is so small that no device is looked for [] Store\n", done.stderr


def test_what_is_taken_does_not_depend_on_who_looked_before(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    a, looked = np.ones((64, 64), np.float32), []
    monkeypatch.setattr("toprung.blas.product.best", lambda: looked.append(1) or device)
    toprung.blas.calls.forget()
    toprung.matmul(a, a)
    first = toprung.last_receipt()
    toprung.devices()
    toprung.matmul(a[:32], a)
    assert looked == [] and first is not None and "no device is looked for" in toprung.last_receipt().why  # type: ignore[union-attr]
    wide = np.ones((2000, 2000), np.float32)
    toprung.matmul(wide, wide)
    assert looked == [1]


ELSEWHERE = """
import os, sys, pathlib, tempfile, subprocess, ctypes, concurrent.futures
import numpy as np
if sys.argv[1] == "darwin":
    sys.platform = sys.argv[1]
    del os.sched_getaffinity
else:
    import platformdirs.unix  # which Windows does not load
    for name in "getuid geteuid getgid getegid uname fork register_at_fork sched_getaffinity sysconf getloadavg".split():
        delattr(os, name)
    for name in ("fcntl", "pwd", "grp", "resource", "termios"):
        sys.modules[name] = None
import toprung
from toprung import paths
a, b = np.ones((300, 400), np.float32), np.ones((400, 200), np.float32)
assert (toprung.matmul(a, b) == 400).all() and (toprung.matmul(a[:9], b) == 400).all()
print(toprung.last_receipt().kernels[0], paths.cache_dir())
"""


def test_without_what_only_linux_has_numpy_multiplies(tmp_path: Path) -> None:
    """As far as another system can be had here: macOS's folders, and nothing that Windows' Python lacks."""
    loaders = {"OCL_ICD_VENDORS": NOWHERE, "HOME": str(tmp_path)}
    done = run("darwin", program=ELSEWHERE, without=(*CACHES, "XDG_CACHE_HOME", "XDG_DATA_HOME"), **loaders)
    assert done.stdout == f"numpy {tmp_path}/Library/Caches/toprung\n", done.stdout + done.stderr
    done = run("windows", program=ELSEWHERE, **(loaders | {"TOPRUNG_CACHE": NOWHERE}))
    kernel, _, folder = done.stdout.strip().partition(" ")
    assert kernel == "numpy" and Path(folder).parent.name.startswith("toprung-"), done.stdout + done.stderr


def test_a_runtime_that_fails_in_its_own_way_hides_no_other_device(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    class Broken:
        name = "broken"

        def devices(self) -> list[Device]:
            raise AttributeError("'Cache' object has no attribute 'mutex'")

        def advice(self) -> list[str]:
            return ["never asked"]

    there: Any = (*backends.backends(), Broken())
    monkeypatch.setattr(backends, "backends", lambda: there)
    assert device in toprung.devices()
    assert "broken: its runtime fails (AttributeError: 'Cache' object has no attribute 'mutex')" in backends.advice()
    monkeypatch.setattr(backends, "backends", lambda: there[-1:])
    sessions.best.cache_clear()
    toprung.blas.calls.forget()
    wide = np.ones((2000, 2000), np.float32)  # large enough that a device is looked for, even on 64 cores
    np.testing.assert_array_equal(toprung.matmul(wide, wide), wide @ wide)
    assert "there is no other: no device found. broken" in toprung.last_receipt().why  # type: ignore[union-attr]
    with pytest.raises(errors.NoDevice, match="broken: its runtime fails"):
        toprung.matmul(wide, wide, own=True)
    sessions.best.cache_clear()
    toprung.blas.calls.forget()


def test_the_temporary_folder_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name which others can write could hold binaries of theirs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = tmp_path / f"toprung-{os.getuid()}"
    paths._temporary.cache_clear()
    assert paths._temporary() == kept and kept.stat().st_mode & 0o777 == 0o700
    kept.chmod(0o777)
    paths._temporary.cache_clear()
    other = paths._temporary()
    assert other != kept and other.parent == tmp_path and other.stat().st_mode & 0o077 == 0
    kept.rmdir()
    kept.symlink_to(other)
    paths._temporary.cache_clear()
    assert paths._temporary() not in (kept, other)
    monkeypatch.undo()
    paths._temporary.cache_clear()


# what a newcomer types


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda a: toprung.matmul(a.astype(np.complex128), a), errors.BadArray, "multiply its real and imaginary parts"),
        (lambda a: toprung.matmul(a.astype(np.complex64), a), errors.BadArray, "complex64"),
        (lambda a: toprung.matmul(toprung.prepack(a), a), errors.BadArray, "only b can be"),
        (lambda a: toprung.plan(toprung.prepack(a), a), errors.BadArray, "only b can be"),
        (lambda a: toprung.prepack(a, trans="N"), errors.BadArgument, "trans is True or False, not 'N'"),
        (lambda a: toprung.matmul(np.zeros((2, 2), [("x", "f4"), ("y", "f4")]), a), errors.BadArray, "has fields, x, y: pass one"),
        (lambda a: toprung.matmul(a, a, device=""), errors.UnknownName, "there is no device ''"),
        (lambda a: toprung.matmul(a, a, own="yes"), errors.BadArgument, "own is True or False, not 'yes'"),
        (lambda a: toprung.matmul(a, a, device="cuda:0"), errors.UnknownName, "CUDA: no NVIDIA driver found"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_do(call: Any, error: type[Exception], says: str, device: Device) -> None:
    with pytest.raises(error, match=says) as caught:
        call(np.ones((5, 5), np.float32))
    assert "astype" not in str(caught.value)


def test_environment_variables_that_say_nonsense_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toprung.lab.rung import ladder_names

    monkeypatch.setenv("TOPRUNG_STORE", "maybe")
    toprung.blas.calls.forget()
    with pytest.raises(errors.BadArgument, match="TOPRUNG_STORE is on or off, not 'maybe'"):
        toprung.matmul(np.ones((6, 5), np.float32), np.ones((5, 6), np.float32))
    monkeypatch.setenv("TOPRUNG_LADDERS", str(tmp_path / "nowhere"))
    with pytest.raises(errors.BadRung, match="nowhere, which is no folder"):
        ladder_names()


def test_folders_of_kernels_that_cannot_be_used_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toprung.kernels.registry import families

    folder, device_family = tmp_path / "mine", Path(__file__).parent / "families" / "outer"
    monkeypatch.setenv("TOPRUNG_KERNELS", str(folder))
    with pytest.raises(errors.BadFamily, match="mine, which is no folder: correct it, or unset it"):
        families()
    (folder / "outer").mkdir(parents=True)
    for text, says in (("1 / 0\n", "does not load: ZeroDivisionError"), ("family = 1\n", "defines no FAMILY")):
        (folder / "outer" / "family.py").write_text(text)
        with pytest.raises(errors.BadFamily, match=f"outer/family.py {says}"):
            families()
    shutil.rmtree(folder / "outer")
    shutil.copytree(device_family, folder / "host_outer")
    with pytest.raises(errors.BadFamily, match=r"host_outer/family\.py is a family for memory of the device"):
        families()


def test_a_ladder_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toprung.lab.rung import ladder

    monkeypatch.setenv("TOPRUNG_LADDERS", str(tmp_path))
    for number, (text, says) in enumerate((("1 / 0", "does not load: ZeroDivisionError"), ("", "defines no TITLE and no ROUTINE"))):
        (tmp_path / f"mine{number}").mkdir()
        (tmp_path / f"mine{number}" / "__init__.py").write_text(text)
        with pytest.raises(errors.BadRung, match=says):
            ladder(f"mine{number}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run kepler/r05 --size 64 --tile BM=7", "cannot"),
        SLOW("run kepler/r05 --size 64 --tile BM=0", "BM must be an integer of at least 1, not 0"),
        SLOW("run kepler/r05 --size 64 --tile BM", "there is no value of BM ''; there is: BM=64, say"),
        SLOW("ladder kepler --rungs 5-2", "there is: 2-5"),
        ("ladder kepler --device= --rungs 1", "there is no device ''"),
        ("results compare {bad} {bad}", "bad.json is no record of toprung's"),
        SLOW("report {bad}", "bad.json: is no record of toprung's"),
    ],
)
def test_commands_say_what_is_wrong_in_a_line(
    words: str, says: str, tmp_path: Path, device: Device, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("[1]")
    monkeypatch.chdir(tmp_path)
    done = typed.done(*words.format(bad=bad).split())
    assert done.returncode in (1, 2) and says in done.stderr and "Traceback" not in done.stderr, done.stdout + done.stderr


def test_the_version_is_said_in_every_way(typed: Typed) -> None:
    import tomllib

    import trial

    version = tomllib.loads((trial.ROOT / "pyproject.toml").read_text())["project"]["version"]
    done = typed.done("--version")
    assert (done.returncode, done.stdout) == (0, f"toprung {version}\n") and toprung.__version__ == version
    assert f"version: {version}\n" in (trial.ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (trial.ROOT / "CHANGELOG.md").read_text()


def test_a_result_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, device: Device, typed: Typed
) -> None:
    (tmp_path / "file").write_text("")
    refused = [(tmp_path, "is a folder"), (tmp_path / "file" / "a.json", "is no folder")]
    refused += [(Path("/proc/a.json"), "cannot be written")] * Path("/proc").exists()  # root may write there, and nobody can
    for path, says in refused:
        done = typed.done("run", "kepler/r01", "--size", 64, "--device", device.id, "--json", path)
        assert done.returncode == 2 and says in done.stderr and done.stdout == "", done.stderr


def test_a_record_that_cannot_be_written_in_the_end_is_kept(tmp_path: Path) -> None:
    from toprung.lab.harness import results

    (tmp_path / "file").write_text("")
    with pytest.raises(errors.NotWritten, match="its content is kept in") as caught:
        results.write(tmp_path / "file" / "a.json", {"format": 1, "what": "a test"})
    assert '"a test"' in Path(str(caught.value).rpartition(" ")[2]).read_text()


def test_a_rung_without_a_number_is_told_which_there_are(typed: Typed) -> None:
    done = typed.done("run", "kepler")
    assert done.returncode == 2 and "there is no rung 'kepler'; there is: kepler/r01, kepler/r02" in done.stderr


@pytest.mark.slow
def test_types_are_seen_from_outside(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import toprung\n\nreveal_type(toprung.plan)\nx: int = toprung.last_receipt()\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "-> toprung.blas.plan.Plan" in done.stdout and 'has type "Receipt | None"' in done.stdout, done.stdout + done.stderr
    assert "py.typed" not in done.stdout
