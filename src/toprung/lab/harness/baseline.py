"""Watch over baselines: whether the samples of one scatter, and whether it is as fast as this machine knows it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from toprung.device import Device
from toprung.errors import DAMAGE
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import competitor_name, problem_name
from toprung.paths import data_dir
from toprung.store.entry import scatter

MOVED = 0.10
"""Distance that makes ratios to a baseline doubtful, as a share of its median: between its quartiles, or from earlier runs."""

LEAST, KEPT = 3, 25
"""Earlier runs that are needed to say what is usual, and the last of them that are looked at."""


class BaselineLog:
    """Medians of baselines in earlier runs on this machine: a line a run, in the user's data folder (``TOPRUNG_DATA`` moves it)."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_dir() / "baselines.jsonl"

    def usual(self, device: Device, m: Measurement) -> float | None:
        """Return the median seconds of earlier runs of the same competitor, problem and mode; None where there are too few."""
        try:
            lines = self.path.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            return None
        found, key = [], _key(device, m)
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["key"] == key:
                    found.append(float(entry["seconds"]))
            except DAMAGE:  # half a line, from a run that was killed
                continue
        return statistics.median(found[-KEPT:]) if len(found) >= LEAST else None

    def add(self, device: Device, m: Measurement) -> None:
        """Remember a run; where the folder cannot be written nothing is remembered."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": _key(device, m), "seconds": m.median}) + "\n")
        except OSError:
            return


def _key(device: Device, m: Measurement) -> str:
    return f"{device.slug} {device.backend} {device.driver}, {competitor_name(m.competitor)}, {problem_name(m.problem)}, {m.mode}"


def doubts(m: Measurement, name: str, usual: float | None) -> list[str]:
    """Return why ratios to a baseline are doubtful, a sentence each; none if it is steady and is as fast as usual.

    ``usual``: its median seconds in earlier runs.
    """
    found = []
    if (share := scatter(m.seconds)) > MOVED / 2:
        found.append(
            f"{name} at {problem_name(m.problem)} scatters by ± {100 * share:.0f} %: shares of it are that uncertain; end other "
            "programs and measure again"
        )
    if usual and abs(m.median / usual - 1) > MOVED:
        before = m.figure * m.median / usual
        why = "other programs used it then" if m.median < usual else "something else uses it now"
        found.append(
            f"{name} at {problem_name(m.problem)} reads {m.figure:,.4g} {m.measured_in}, and {before:,.4g} in earlier runs on this "
            f"machine: {why}, or its clock was another"
        )
    if m.competitor.get("threads"):
        found.append(
            f"{name} at {problem_name(m.problem)} was faster in one thread than in several: something else uses this machine"
        )
    return found


def watched(device: Device, baselines: Sequence[tuple[str, Measurement]], log: BaselineLog | None = None) -> list[str]:
    """Return the doubts about the baselines of a run, and remember how fast undisturbed ones were."""
    kept, found = log or BaselineLog(), []
    for name, m in baselines:
        found += doubts(m, name, kept.usual(device, m))
    for _, m in baselines:
        if scatter(m.seconds) <= MOVED / 2 and not m.competitor.get("threads"):  # else it says nothing of what is usual
            kept.add(device, m)
    return found
