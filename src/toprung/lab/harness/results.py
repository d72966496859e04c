"""Records of measurements: JSON that says everything about how it came to be, written whole or not at all."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprung.device import Device
from toprung.errors import DAMAGE, BadRecord, NotWritten
from toprung.lab.harness.bandwidth import Bandwidth
from toprung.lab.harness.environment import PACKAGE, kernels
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.stats import Interval, ratio
from toprung.paths import data_dir, deliver
from toprung.store.entry import scatter

FORMAT = "toprung record 1"

UNKNOWN = "unknown"
"""``src`` of an older record whose code cannot be found: its commit is missing or gone, or files had changed."""
LINE = 160
"""Characters of a line in a result file that may hold several values."""
HOLDS = ("measurements", "graded", "findings", "probe", "shapes", "bounds")
"""Keys of a record below which its entries are."""


def record(
    what: str, environment: dict[str, Any], measurements: Sequence[Measurement | Mapping[str, Any]], failures: Sequence[str] = (),
    interrupted: bool = False, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A record of one run.

    Parameters
    ----------
    what : the command that was run, as a user types it
    environment : from ``toprung.lab.harness.environment``; the kernels that this process has loaded are added
    failures : what did not work, a sentence each
    interrupted : whether the user stopped it before the end
    more : further entries, JSON already: ``notes`` (who did not take part and why), ``graded`` (of ``toprung accuracy``),
        ``bandwidth`` (of ladders that are measured in GB/s)
    """
    return {
        **more,
        "format": FORMAT,
        "what": what,
        "environment": {"kernels": kernels(), **environment},
        "interrupted": interrupted,
        "failures": list(failures),
        "measurements": [m if isinstance(m, Mapping) else m.describe() for m in measurements],
    }


def command(program: str = "toprung") -> str:
    """Return the running command as it was typed; of a file that is not below the current folder the name alone.

    Such a folder belongs to the machine, not to the command that others would type.
    """
    words = []
    for word in sys.argv[1:]:
        *option, value = word.rpartition("=")
        path = Path(value)
        words.append("".join([*option, path.name if path.is_absolute() or ".." in path.parts else value]))
    return f"{program} {shlex.join(words)}"


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a record; its folder is made if need be.

    Raises
    ------
    NotWritten
        the file cannot be written; the record lies in a temporary folder, which the message names
    """
    deliver(path, (_text(_rounded(content)) + "\n").encode(errors="replace"))


def _rounded(value: Any) -> Any:
    """Return JSON data with nine significant digits of each number: more than any clock or sensor here has."""
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _text(value: Any, depth: int = 0) -> str:
    """Return JSON in which whatever fits into a line has one, so that a difference of two files shows a row as a row."""
    line = json.dumps(value, ensure_ascii=False)
    if depth + len(line) <= LINE or not isinstance(value, dict | list):
        return line
    keyed = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    inner = (("" if key is None else f"{json.dumps(key, ensure_ascii=False)}: ") + _text(one, depth + 1) for key, one in keyed)
    begin = "\n" + " " * depth
    return line[0] + ",".join(f"{begin} {one}" for one in inner) + begin + line[-1]


def read(path: Path) -> dict[str, Any]:
    """Read a record, its measurements as ``Measurement``.

    Raises
    ------
    BadRecord
        not there, damaged, or of another format
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or "format" not in content:
            raise BadRecord(f"{path} is no record of toprung's: those come from commands with --json")
        if content["format"] != FORMAT:
            raise BadRecord(f"{path} is a {content['format']!r}, and this toprung reads {FORMAT!r}: measure again")
        content["measurements"] = [Measurement.read(m) for m in content["measurements"]]
        Bandwidth.of(content)
        device = content["environment"]["device"]
        str(content["what"]), str(content["environment"]["date"])
        for key in ("slug", "backend", "short_name", "runtime", "compute_units"):
            device[key]
    except BadRecord:
        raise
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}") from None
    except DAMAGE as error:
        raise BadRecord(f"{path} is damaged ({type(error).__name__}: {error}): measure again") from None
    return dict(content)


def known(record: Mapping[str, Any]) -> bool:
    """Return True if the code that was measured is in the history: a record without may feed no headline."""
    return bool(record["environment"].get("src", UNKNOWN) != UNKNOWN)


def folders(stored: Path = Path("results"), ours: bool = False) -> list[Path]:
    """Return the folders with records: the user's own, in which ladders are kept by themselves, and ``./results`` or another.

    ``ours``: also the folder that came along, the clone's or the wheel's, for what is asked about a device that is not here.
    """
    places = [data_dir(), stored]
    if ours:
        places += [PACKAGE.parents[1] / "results", Path(sysconfig.get_path("data")) / "share/toprung/results"]
    return list({p.resolve(): p for p in reversed(places) if p.is_dir()}.values())[::-1]


def keep(content: dict[str, Any], name: str) -> str:
    """Write a record into the user's own folder, a file for each run; return where it is, a sentence."""
    of, date = content["environment"]["device"], re.sub("[^0-9]", "", content["environment"]["date"][:19])
    path = data_dir() / "results" / of["slug"] / f"{name}-{of['backend']}-{date}.json"
    try:
        write(path, content)
    except NotWritten as error:
        return str(error)
    return f"kept in {path}: toprung report makes a page of what is kept"


def is_of(content: Mapping[str, Any], device: Device) -> bool:
    """Return True if a record is of a device, whatever reached it.

    Other CPUs share its name ("AMD EPYC"): their target, which PoCL's runtime names, is another, or they have other cores.
    """
    of = content["environment"]["device"]
    alike = device.kind != "cpu" or all(of[k] == getattr(device, k) for k in ("backend", "runtime", "compute_units"))
    return bool(of["slug"] == device.slug and alike)


def files(path: Path) -> list[Path]:
    """Return a file itself, or a folder's ``*.json``; hidden folders, such as .venv, hold none of ours."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.rglob("*.json") if not any(part.startswith(".") for part in p.relative_to(path).parts[:-1]))


def read_all(
    paths: Sequence[Path], reader: Callable[[Path], dict[str, Any]] = read
) -> Iterator[tuple[Path, dict[str, Any] | BadRecord]]:  # fmt: skip
    """Every record of some files and folders, or why it is none."""
    for path in paths:
        for file in files(path):
            try:
                yield file, reader(file)
            except BadRecord as error:
                yield file, error


@dataclass(frozen=True)
class Change:
    """One competitor on one problem in two records or sets of records.

    Attributes
    ----------
    speed : new speed / old speed with its interval (old seconds / new seconds)
    verdict : one of ``VERDICTS``
    """

    device: str
    competitor: str
    problem: str
    mode: str
    speed: Interval
    verdict: str


VERDICTS = ("slower", "faster", "same", "undecided")
"""Verdicts by where the interval lies: beyond tolerance and noise on one side, within the tolerance, or neither."""

TOLERANCE = 0.03
"""Change between two runs that proves nothing by itself: clocks and temperatures differ more from run to run than the samples
of one run show."""


def compare(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], tolerance: float = TOLERANCE
) -> tuple[list[Change], int]:
    """Return what changed for every competitor that both sides measured on the same problem and device in the same mode.

    A change counts as one when the whole bootstrap interval of the ratio of the medians lies beyond ``tolerance`` by more than the
    noise of both sides, and two speeds as the same when it lies within; samples of several records of one side are taken together.
    The noise of a side is the largest scatter on that problem. The bootstrap takes samples for independent, and they are not where
    other programs run: those disturb neighbouring samples alike, and those of all competitors, which take turns.

    Returns
    -------
    changes, and how many measurements are on one side only
    """
    before, after = _by_key(old), _by_key(new)
    noise = _noise(before), _noise(after)
    changes = []
    for key in before:
        if key in after:
            device, who, problem, mode = key
            speed = ratio(before[key], after[key])
            beyond = 1 + sum(side[device, problem, mode] for side in noise)
            if min(len(before[key]), len(after[key])) < 2:
                verdict = "undecided"
            elif speed.high * beyond < 1 - tolerance:
                verdict = "slower"
            elif speed.low / beyond > 1 + tolerance:
                verdict = "faster"
            else:
                verdict = "same" if 1 - tolerance <= speed.low and speed.high <= 1 + tolerance else "undecided"
            changes.append(Change(device, who, problem, mode, speed, verdict))
    return changes, len(before.keys() ^ after.keys())


def counts(changes: Sequence[Change]) -> dict[str, int]:
    """Return how many changes have each verdict."""
    return {v: sum(c.verdict == v for c in changes) for v in VERDICTS}


def _by_key(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str, str], list[float]]:
    samples: dict[tuple[str, str, str, str], list[float]] = {}
    for record in records:
        device = record["environment"]["device"]
        for m in record["measurements"]:
            if m.seconds:
                key = (f"{device['slug']} {device['backend']}", competitor_name(m.competitor), problem_name(m.problem), m.mode)
                samples.setdefault(key, []).extend(m.seconds)
    return samples


def _noise(samples: Mapping[tuple[str, str, str, str], Sequence[float]]) -> dict[tuple[str, str, str], float]:
    """Return the largest scatter of any competitor's samples, by device, problem and mode."""
    found: dict[tuple[str, str, str], float] = {}
    for (device, _, problem, mode), seconds in samples.items():
        found[device, problem, mode] = max(found.get((device, problem, mode), 0.0), scatter(seconds))
    return found


def competitor_name(who: Mapping[str, Any]) -> str:
    """Return a competitor's name as a user writes it, switches included."""
    if who["kind"] != "rung":
        return str(who["name"])
    return f"{who['ladder']}/{who['rung'][:3]} {who['variant']}".rstrip()


def problem_name(problem: Mapping[str, Any]) -> str:
    """A problem as a person writes it, with all that is not as usual."""
    sizes = [problem[k] for k in "MNK" if k in problem]
    text = str(sizes[0]) if len(set(sizes)) == 1 else "×".join(map(str, sizes))
    usual = {"trans": "NN", "batch": 1, "alpha": 1, "beta": 0}
    types = f" {problem['type_a']}·{problem['type_b']}" if "type_a" in problem else ""
    unusual = (k for k, v in usual.items() if problem.get(k, v) != v)
    return text + "".join(f" {problem[k]}" if k == "trans" else f" {k}={problem[k]:g}" for k in unusual) + types
