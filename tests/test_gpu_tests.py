"""Tests of ``tools/gpu_tests.py``: a test that hangs is stopped and named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gpu_tests


def test_tests_on_a_gpu_are_named_as_they_end_and_one_that_hangs_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_first.py").write_text("def test_ends(): pass\n")
    (tmp_path / "test_then.py").write_text("import time\ndef test_hangs(): time.sleep(3600)\n")
    monkeypatch.setitem(sys.modules, "pytest_timeout", None)  # as where it is not installed
    code, lines = gpu_tests.run([str(tmp_path)], ["-p", "no:timeout", "--rootdir", str(tmp_path)], limit=2)
    text = capsys.readouterr().out
    assert code == 1 and text.splitlines() == lines
    assert text.index("test_first.py .") < text.index("Timeout (") < text.index("in test_hangs")
