"""``import toprung.cupy`` says what to do where CuPy is not installed, or is too old to be taken."""

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
    code = "import toprung\ntry:\n    import toprung.cupy\nexcept toprung.errors.MissingExtra as error:\n    print(error)"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0 and says in done.stdout, done.stdout + done.stderr
