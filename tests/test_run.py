"""``tests/run.py`` takes a test file as passed if nothing it read has changed, and finds a change of each kind of input."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEPENDS_ON = ("tests/run.py", "tests/recording/*.py")

TREE = {
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-q -p no:cacheprovider"\npythonpath = ["lib"]\n',
    "requirements-dev.lock": "used==1.0 \\\n    --hash=sha256:0\nother==1.0 ; sys_platform == 'none' \\\n    --hash=sha256:0\n",
    "lib/imported.py": "VALUE = 1\n",
    "lib/imported_by_a_program.py": "VALUE = 1\n",
    "lib/unrelated.py": "VALUE = 1\n",
    "kernels/a.cl": "// text\n",
    "read_by_a_program.txt": "1",
    "tests/test_reads.py": """
import pathlib, subprocess, sys
ROOT = pathlib.Path(__file__).parents[1]

def test_imports():
    import imported
    assert imported.VALUE == 1

def test_lists_and_reads():
    assert sum("text" in path.read_text() for path in (ROOT / "kernels").glob("*.cl")) == 1

def test_looks():
    assert not (ROOT / "absent.txt").exists()

def test_a_program_imports_and_reads():
    code = "import imported_by_a_program as x, pathlib; assert x.VALUE == int(pathlib.Path('read_by_a_program.txt').read_text())"
    assert not subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, 'lib'); " + code], cwd=ROOT).returncode
""",
    "tests/test_starts.py": "import os\n\ndef test_starts_what_is_not_python():\n    assert not os.system('true')\n",
    "tests/test_depends.py": "import os\n\nDEPENDS_ON = ('lib/*.py',)\n\ndef test_starts():\n    assert not os.system('true')\n",
}


Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small tree whose tests have passed once."""
    root = tmp_path_factory.mktemp("tree")
    for name, text in TREE.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(HERE / "run.py", root / "tests/run.py")
    shutil.copytree(HERE / "recording", root / "tests/recording", ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("__pycache__/\n")
    subprocess.run(["git", "init", "-q", root], check=True)
    assert run(root).endswith("0 tests were taken as passed: their inputs have not changed\n6 passed, 0 failed, 0 skipped\n")
    return root


def run(root: Path, *words: str, wrong: int = 0, **variables: str) -> str:
    """Run the tree's tests, and return what is printed but for times."""
    env = {**os.environ, "TOPRUNG_TESTS_ONCE": str(root.with_name("store")), **variables}
    done = subprocess.run([sys.executable, "tests/run.py", *words, "tests"], cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == wrong, done.stdout + done.stderr
    return re.sub(r".* by the clock\n", "", done.stdout)


def changed(root: Path, *words: str, **variables: str) -> set[str]:
    """Return the files that would run."""
    return set(re.findall(r"^tests/test_(\w+)\.py: ", run(root, "--list", *words, **variables), re.M))


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("lib/imported.py", "VALUE = 2\n", {"reads", "starts", "depends"}),
        ("lib/imported_by_a_program.py", "VALUE = 2\n", {"reads", "starts", "depends"}),
        ("lib/unrelated.py", "VALUE = 2\n", {"starts", "depends"}),
        ("kernels/a.cl", "// changed\n", {"reads", "starts"}),
        ("kernels/b.cl", "// another text\n", {"reads", "starts"}),
        ("absent.txt", "", {"reads", "starts"}),
        ("read_by_a_program.txt", "2", {"reads", "starts"}),
        ("notes.txt", "nothing reads this\n", {"starts"}),
        ("pyproject.toml", "[project]\n", {"reads", "starts", "depends"}),
        ("requirements-dev.lock", "pytest==0\n", {"reads", "starts", "depends"}),
    ],
)
def test_a_change_of_an_input_is_found(root: Path, file: str, text: str, expected: set[str]) -> None:
    path = root / file
    path.write_text(text)
    try:
        assert changed(root) == expected
    finally:
        path.unlink()
        if file in TREE:
            path.write_text(TREE[file])


@pytest.mark.parametrize(("name", "expected"), [("used", {"reads", "starts", "depends"}), ("other", {"starts"})])
def test_packages_that_a_lock_pins_here_are_inputs(root: Path, name: str, expected: set[str]) -> None:
    installed = root / "tests" / f"{name}-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    try:
        assert changed(root) == expected
    finally:
        shutil.rmtree(installed)


def test_options_and_variables_are_inputs(root: Path) -> None:
    for more, variables in (
        (["-k", "looks"], {}),
        (["--all"], {}),
        ([], {"POCL_EXTRA_BUILD_FLAGS": "-w"}),
        ([], {"PYTHONPATH": "elsewhere"}),
    ):
        assert changed(root, *more, **variables) == {"reads", "starts", "depends"}
    assert changed(root) == set()


def test_a_planted_fault_is_found_warm_and_again(root: Path) -> None:
    assert "0 of 3 files ran; 6 tests were taken as passed" in run(root)
    (root / "lib/imported.py").write_text("VALUE = 2\n")
    for left in (2, 4):  # the two files that pass with the fault are taken as passed the second time
        assert "FAIL tests/test_reads.py: 4 tests" in (printed := run(root, wrong=1)) and "assert 2 == 1" in printed
        assert f"{left - 2} tests were taken as passed" in printed and printed.endswith("5 passed, 1 failed, 0 skipped\n")
    (root / "lib/imported.py").write_text(TREE["lib/imported.py"])
    assert changed(root) == {"starts", "depends"}
