"""The command line in this process, as a user types it."""

from __future__ import annotations

import sys

import pytest

from toprung.cli import main


class Typed:
    """Exit code and output of a command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *words: object) -> tuple[int, str]:
        self._monkeypatch.setattr(sys, "argv", ["toprung", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._capsys.readouterr()
        return int(end.value.code or 0), " ".join((out + err).split())
