"""Progress of a command: a live table on a terminal, and a line a step, with an estimate, where output goes to a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
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


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of sizes by kind."""
    found: dict[str, float] = {}
    for part in parts:
        for kind, size in part.items():
            found[kind] = found.get(kind, 0.0) + size
    return found


class Progress:
    """Progress of a command, as a context.

    On a terminal what ``table`` gives is drawn live, with a line below it; elsewhere a line a step goes to standard error, so that
    standard output has the result alone.

    Parameters
    ----------
    total : size of all steps together in any unit, or of the steps of each kind; nothing where it is not known. What is left of a
        kind is estimated by how long its steps have taken so far: kernels may be built slowly and then run fast
    """

    def __init__(self, total: float | Mapping[str, float] = 0.0) -> None:
        self._total = dict(total) if isinstance(total, Mapping) else {"": total}
        self._done, self._took = dict.fromkeys(self._total, 0.0), dict.fromkeys(self._total, 0.0)
        self._text, self._stepped = "", time.monotonic()
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

    def step(self, text: str, size: float = 0.0, kind: str = "") -> None:
        """Say what is done now, or has been done; ``size`` of a kind counts as done, and took the time since the last such step."""
        now, self._text = time.monotonic(), text
        if size:
            self._done[kind] += size
            self._took[kind] += now - self._stepped
            self._stepped = now
        if text and self._live is None and now - self._said >= QUIET_SECONDS:
            self._said = now
            errors_console.print(self.line(), markup=False, highlight=False, soft_wrap=True)

    def leave_out(self, sizes: Mapping[str, float]) -> None:
        """Leave out what is left of a part: steps by kind."""
        for kind, size in sizes.items():
            self._total[kind] -= size

    def left(self) -> float:
        """Return about how many seconds are left; 0 where nothing is known."""
        done, took = sum(self._done.values()), sum(self._took.values())
        seconds = 0.0
        for kind, total in self._total.items():
            # of a kind that has not begun no more is known than of all together
            a_unit = self._took[kind] / self._done[kind] if self._done[kind] else took / done if done else 0.0
            seconds += max(0.0, total - self._done[kind]) * a_unit
        return seconds

    def line(self) -> str:
        """Return what is being done, the time so far, and an estimate of the rest."""
        passed, left = self.elapsed, self.left()
        said = f"{self._text}: {duration(passed)}" if self._text else duration(passed)
        return said + (f", about {duration(left)} to go" if left and passed > 1 else "")

    def _drawn(self) -> RenderableType:
        line = Text(self.line(), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self.table(), line) if self.table else line if self._text else Text("")
