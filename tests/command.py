"""The command line in this process, as a user types it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from toprung.cli import common, main


class Typed:
    """Exit code and output of a command."""

    def __init__(self, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture, self._monkeypatch = capture, monkeypatch

    def __call__(self, *words: object) -> tuple[int, str]:
        done = self.done(*words)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def done(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Return what a process would have left, with some of the environment changed until the test's end."""
        for name, value in environment.items():
            self._monkeypatch.setenv(name, value)
        if "COLUMNS" in environment:
            self._monkeypatch.setattr(common.console, "width", int(environment["COLUMNS"]))
        self._monkeypatch.setattr(sys, "argv", ["toprung", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._capture.readouterr()
        return subprocess.CompletedProcess(words, int(end.value.code or 0), out, err)
