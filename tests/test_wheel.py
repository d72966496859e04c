"""The wheel has all it needs: built, installed in a clean environment, it runs a rung."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import trial
from conftest import require
from toprung.device import Device

PROGRAM = """
import sys, toprung
from toprung.backends import find, opened
from toprung.kernels.build import build
from toprung.oracle.check import Oracle, hostile
from toprung.lab.competitor import BoundRung
from toprung.oracle.placed import OnDevice
from toprung.oracle.gemm import Gemm
from toprung.lab.rung import ladder_names, rung
operands, last = hostile(Gemm(33, 35, 37, 0.7, 1.3)), rung(sys.argv[2])
with opened(find(sys.argv[1])) as session:
    prepared = BoundRung(build(last, last.tile_for(session.device), {}, session), OnDevice(operands, session))
    prepared.time(1)
    verdict = Oracle(operands).verify(prepared.fetch())
print(toprung.__file__, *ladder_names(), verdict.right, *verdict.problems, sep="\\n")
"""


def run(*command: object, **env: str) -> str:
    """Return what a command prints; its errors are the test's."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TOPRUNG_LADDERS")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=env.pop("cwd"), env={**clean, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=str(trial.ROOT))
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = trial.ROOT / "src" / "toprung"
    files = {p.relative_to(package.parent).as_posix() for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert {".py", ".cl"} <= {Path(f).suffix for f in files}
    assert files - packed == set()
    assert {f for f in packed if ".dist-info/" not in f and ".data/data/share/toprung/" not in f} == files
    assert any(f.endswith("licenses/LICENSE") for f in packed)


def test_the_installed_wheel_runs_a_rung(wheel: Path, tmp_path: Path, device: Device) -> None:
    """toprung comes from the wheel; what it depends on is lent by this environment, so that nothing is fetched."""
    new = tmp_path / "env"
    run(sys.executable, "-m", "venv", "--without-pip", new, cwd=str(tmp_path))
    python = new / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    require(python.exists(), f"venv made no {python.name}")
    folder = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=str(tmp_path)).strip())
    # .pth files in the lent folder are not read, so that an editable toprung there stays unseen
    (folder / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    absent = "import importlib.util, numpy; print(importlib.util.find_spec('toprung'))"
    assert run(python, "-c", absent, cwd=str(tmp_path)) == "None\n", "toprung itself must not be lent"
    install = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    run(sys.executable, *install, cwd=str(tmp_path))
    said = run(python, "-c", PROGRAM, device.id, "kepler/r10", cwd=str(tmp_path)).splitlines()
    assert Path(said[0]) == folder / "toprung" / "__init__.py"
    assert said[1:] == [*(p.parent.name for p in sorted((folder / "toprung" / "lab" / "ladders").glob("*/__init__.py"))), "True"]
    assert (python.parent / "toprung").exists(), "the command is installed"
