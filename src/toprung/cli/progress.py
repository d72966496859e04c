"""Progress of a command: a live table on a terminal, and a line a step, with an estimate, where output goes to a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from toprung.cli.common import console, errors_console

QUIET_SECONDS = 2.0
"""Seconds between two lines, and before the first: what is over sooner needs none."""


def duration(seconds: float) -> str:
    """Return a duration as a person says it: ``8 s``, ``3 min 20 s``, ``1 h 5 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """Progress of a command, as a context.

    On a terminal what ``table`` gives is drawn live, with a line below it; elsewhere a line a step goes to standard error, so that
    standard output has the result alone.

    Parameters
    ----------
    total : size of all steps together, in any unit; 0 where it is not known
    """

    def __init__(self, total: float = 0.0) -> None:
        self._total, self._done, self._text = total, 0.0, ""
        self._start = self._said = time.monotonic()
        self._live: Live | None = None
        self.table: Callable[[], RenderableType] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def __enter__(self) -> Progress:
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._drawn)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self.table, self._text = None, ""
            self._live.stop()

    def step(self, text: str, size: float = 0.0) -> None:
        """Say what is done now, or has been done; ``size`` of it counts as done."""
        self._done, self._text = self._done + size, text
        now = time.monotonic()
        if text and self._live is None and now - self._said >= QUIET_SECONDS:
            self._said = now
            errors_console.print(self.line(), markup=False, highlight=False, soft_wrap=True)

    def skip(self, size: float) -> None:
        """Leave out steps of that size."""
        self._total -= size

    def line(self) -> str:
        """Return what is being done, the time so far, and an estimate of the rest."""
        passed, share = self.elapsed, self._done / self._total if self._total > 0 else 0.0
        said = f"{self._text}: {duration(passed)}" if self._text else duration(passed)
        if 0 < share < 1 and passed > 1:
            said += f", {100 * share:.0f} %, about {duration(passed * (1 - share) / share)} to go"
        return said

    def _drawn(self) -> RenderableType:
        line = Text(self.line(), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self.table(), line) if self.table else line if self._text else Text("")
