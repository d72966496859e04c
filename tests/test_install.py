"""Installations as users have them: pip puts what is built into clean environments, and beside PyTorch it changes nothing.

Packages are fetched, so that all of it is slow, and skipped where no package index answers.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import once
import trial
from conftest import require

pytestmark = pytest.mark.slow
DEPENDS_ON = ("pyproject.toml", "requirements*.lock", "README.md", "LICENSE", "NOTICE", "src/**/*", "tests/every_kernel.py")

QUICKLY = ("--disable-pip-version-check", "--use-feature=fast-deps")  # metadata alone, not whole wheels

USE = """
import numpy as np, toprung
a, b = np.ones((70, 50), np.float32), np.ones((50, 60), np.float32)
assert (toprung.matmul(a, b) == 50).all() and (toprung.sgemm(2.0, a, b) == 100).all()
print(toprung.__file__, toprung.__version__)
"""


def run(*command: object, cwd: Path, **env: str) -> str:
    """Return what a command prints; its errors are the test's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TOPRUNG", "PYOPENCL"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env={**kept, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def index_answers() -> bool:
    """Return True if pip finds a package that is not installed."""
    words = [sys.executable, "-m", "pip", "index", "versions", "iniconfig"]
    return subprocess.run(words, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist of this source tree."""
    require(index_answers(), "no package index answers")
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder, cwd=trial.ROOT)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def pip(python: Path, *words: object) -> None:
    """Run this environment's pip on another one."""
    run(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", python, *words, cwd=python.parent)


def environment(folder: Path, *packages: object) -> Path:
    """Return the Python of a new environment with packages in it."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    pip(python, "install", "--no-compile", *packages)
    return python


def test_the_sdist_builds_the_same_wheel(built: dict[str, Path], tmp_path: Path) -> None:
    pip(Path(sys.executable), "wheel", "--no-deps", "-w", tmp_path, built["sdist"])
    here, there = (zipfile.ZipFile(path) for path in (built["wheel"], next(tmp_path.glob("*.whl"))))
    assert {x.filename: x.CRC for x in here.infolist()} == {x.filename: x.CRC for x in there.infolist()}


def test_what_is_built_works_in_a_clean_environment(built: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "env", built["wheel"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    data = {"TOPRUNG_DATA": str(tmp_path / "data")}
    file, version = run(python, "-c", USE, cwd=elsewhere, **data).split()
    assert Path(file).is_relative_to(tmp_path / "env")
    for command in ([python.with_name("toprung")], [python, "-m", "toprung"]):
        assert run(*command, "--version", cwd=elsewhere, **data).strip() == f"toprung {version}"
    ladder = "ladder", "kepler", "--rungs", "1", "--sizes", "64", "--json", "record.json"
    assert "kepler at 64" in run(python, "-m", "toprung", *ladder, cwd=elsewhere, **data)
    (measured,) = [m for m in json.loads((elsewhere / "record.json").read_text())["measurements"] if "r01" in str(m)]
    assert measured["verdict"]["right"]
    pip(python, "check")


# CUDA beside PyTorch


def extra(name: str) -> list[str]:
    """Return what an extra asks for."""
    project = tomllib.loads((trial.ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][name]]


Resolve = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Resolve:
    """A function that returns the versions pip would install into an environment that has nothing; the newest pip, by metadata."""
    require(index_answers(), "no package index answers")
    folder = tmp_path_factory.mktemp("pip")
    python = environment(folder / "env", "--upgrade", "pip")
    install = (python, "-m", "pip", "install", "-q", *QUICKLY, "--dry-run", "--report", folder / "report.json")

    @functools.cache
    def versions(*packages: str) -> dict[str, str]:
        run(*install, *packages, cwd=folder)
        report = json.loads((folder / "report.json").read_text())
        return {one["metadata"]["name"].lower().replace("_", "-"): one["metadata"]["version"] for one in report["install"]}

    return versions


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch brings CUDA's packages on Linux alone")
@pytest.mark.parametrize(
    ("torch", "name"),
    [
        ("torch", "cuda"), ("torch", "cuda13"), ("torch==2.14.*", "cuda13"), ("torch==2.11.*", "cuda13"), ("torch==2.11.*", "cuda"),
        ("torch==2.10.*", "cuda12"), ("torch==2.10.*", "cuda"), ("torch==2.9.*", "cuda12"),
    ],
)  # fmt: skip
def test_beside_pytorch_its_packages_stay_what_they_were(torch: str, name: str, resolved: Resolve) -> None:
    if resolved("torch")["torch"].startswith(torch[7:-1]):
        torch = "torch"  # the newest, which is looked at anyway
    alone, together = resolved(torch), resolved(torch, *extra(name))
    assert alone == {package: together[package] for package in alone}


@pytest.mark.skipif(sys.platform != "linux", reason="asked of Linux's packages")
@pytest.mark.parametrize(("name", "major"), [("cuda", None), ("cuda13", 13), ("cuda12", 12)])
def test_alone_an_extra_takes_the_newest_of_its_version(name: str, major: int | None, resolved: Resolve) -> None:
    found = resolved(*extra(name))
    compiler = int(found["nvidia-cuda-nvrtc-cu12" if major == 12 else "nvidia-cuda-nvrtc"].split(".")[0])
    assert int(found["cuda-bindings"].split(".")[0]) == compiler
    assert compiler == major if major else compiler >= 13


def test_no_extra_holds_cuda_to_one_release() -> None:
    for name in ("cuda", "cuda12", "cuda13"):
        assert not [word for word in extra(name) if "==" in word.split(";")[0]], name


@pytest.mark.skipif(sys.platform != "linux", reason="asked of Linux's packages")
def test_cuda_12_compiles_every_kernel_and_is_used_where_pytorch_has_it(built: dict[str, Path], tmp_path: Path) -> None:
    """The oldest NVRTC that is promised: little is spilled, and no product of the matrix units waits for another."""
    old = "nvidia-cuda-nvrtc-cu12==12.6.*", "nvidia-cuda-runtime-cu12==12.6.*"
    python = environment(tmp_path / "env", f"{built['wheel']}[cuda12]", *old)
    store = {once.VARIABLE: str(once.folder())}
    said = run(python, Path(__file__).with_name("every_kernel.py"), cwd=tmp_path, **store).splitlines()
    assert said[0].startswith("12.6.") and "cuda_runtime" in said[0]
    assert re.fullmatch(r"\d\d+ compiled", said[-1]), said[1:]
    # The widest blocks of two families, which 13.0 compiles without, spill with 12.6: slower there, and no less right. What turns A
    # has the sums of a chain's links in each thread's memory, as it is written, and fp32x sums of which some are computed again.
    wide = r"hopper_(inflight|inflight_split_k|presplit) 128x128x32.*: \d{3,4} bytes of local memory, "
    flying = r"hopper_(inflight|inflight_split_k|presplit) \d+x(32|64)x32.*: (176|240) bytes of local memory, "
    fp32x = r"hopper_fp32x \d+×\d+×32.*: (136|200|328) bytes of local memory, "
    rest = r"(hopper_sgemm 512×64×12 8×16 STAGES4: 512|skinny_cluster rows 128×32 4×4 v1/4 SPLIT_K\d: 104) bytes of local memory, "
    known = re.compile(rf"{wide}|{flying}|{fp32x}|{rest}")
    assert all(known.fullmatch(line) for line in said[1:-1]), said[1:]
    # CUDA 13 beside it: cuda-bindings are 12's; then a PyTorch of 13, and one of 12 with bindings of 13
    pip(python, "install", "nvidia-cuda-nvrtc==13.*")
    version = "from toprung.backends import nvrtc; print(nvrtc.version().split('.')[0])"
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise RuntimeError('nobody asked for PyTorch')\n")
    assert run(python, "-c", version, cwd=tmp_path / "env").strip() == "12"
    (torch / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '13.0'\n")
    assert run(python, "-c", version, cwd=tmp_path).strip() == "13"
    pip(python, "install", "cuda-bindings==13.*")
    assert run(python, "-c", version, cwd=tmp_path / "env").strip() == "13"
    (torch / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '12.8'\n")
    assert run(python, "-c", version, cwd=tmp_path).strip() == "12"
