"""``toprung.cupy``, loaded when it is asked for, says what to do where CuPy is not installed, or is too old."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OLD = """
__version__ = "13.6.0"
def matmul(): pass
class _core:
    def tensordot_core(): pass
"""


@pytest.mark.parametrize(
    ("there", "says"),
    [("raise ImportError", "pip install cupy-cuda13x"), (OLD, "CuPy 14, and this is 13.6.0")],
    ids=["none", "old"],
)
def test_it_says_what_to_install(there: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text(there)
    code = "import toprung\ntry:\n    toprung.cupy.enable()\nexcept toprung.errors.MissingExtra as error:\n    print(error)"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0 and says in done.stdout, done.stdout + done.stderr


def test_a_program_run_by_toprung_torch_says_in_one_line_that_pytorch_is_missing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    says = "toprung.torch needs PyTorch, which is not installed: pip install torch\n"
    for words, code in ((("-m", "toprung.torch", "train.py"), 2), (("-c", "import toprung; toprung.torch.enable()"), 1)):
        done = subprocess.run(
            [sys.executable, *words], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == code and done.stderr.endswith(says), done.stderr
        assert done.stderr == says or "importlib" not in done.stderr, "a traceback of the program's and toprung's own lines"
