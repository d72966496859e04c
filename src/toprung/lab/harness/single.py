"""One rung, verified and timed; from its text, from machine code in its place, or from both in turns."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import BadArgument, BadCubin, UnknownName
from toprung.kernels.build import Compiled
from toprung.kernels.record import Own, kernel_source
from toprung.lab.competitor import BoundRung, describe_rung, refuse_what_cannot_fit
from toprung.lab.harness.measure import SAMPLES, Measurement, Timing
from toprung.lab.harness.power import clock_reader
from toprung.lab.rung import Options, Rung
from toprung.oracle.check import Oracle, Verdict, hostile
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem
from toprung.tile import Tile

HERE = "compiled here"
"""Label of what was compiled in this process."""
FILE = "loaded from a file"
"""Label of machine code that was read from a file."""


@dataclass
class Job:
    """A rung in one form.

    Attributes
    ----------
    own : machine code in place of the rung's text; None: compiled in this process, whatever the cache holds
    load_seconds : what the driver took to load the code, each time it did
    """

    label: str
    own: Own | None
    compile_seconds: float = 0.0
    load_seconds: list[float] = field(default_factory=list)
    verdict: Verdict | None = None
    measurement: Measurement | None = None


def run(
    which: Rung, tile: Tile, options: Options, problem: Problem, session: Session, jobs: Sequence[Job], samples: int = SAMPLES
) -> Iterator[Job]:
    """Verify every job, then time those that were right in turns; a job is given when it is done.

    Raises
    ------
    ToprungError
        whatever keeps one from running: a tile, machine code, memory, a launch
    """
    options = which.options(session.device, options)
    which.check(tile, options, session.device)
    sources = [kernel_source(which, tile, options, job.own) for job in jobs]
    compiled = []
    for job, source in zip(jobs, sources, strict=True):
        start = time.perf_counter()
        binary = session.compile(source)
        job.compile_seconds = time.perf_counter() - start
        for _ in range(max(1, samples)):
            start = time.perf_counter()
            kernel = session.load(binary, source)
            job.load_seconds.append(time.perf_counter() - start)
        compiled.append(Compiled(which, tile, options, kernel, job.compile_seconds + job.load_seconds[-1], cached=False))
    refuse_what_cannot_fit(problem, session.device)
    operands = hostile(problem)
    placed, oracle = OnDevice(operands, session), Oracle(operands)
    timings: list[tuple[Job, Compiled[Rung], Timing]] = []
    for job, one in zip(jobs, compiled, strict=True):
        prepared = BoundRung(one, placed)
        prepared.reset()
        prepared.time(1)
        job.verdict = oracle.verify(prepared.fetch())
        if not job.verdict.right or not samples:
            yield job
            continue
        timing = Timing(prepared)
        timing.warm_up()
        timings.append((job, one, timing))
    clock = clock_reader(session)
    for _ in range(samples):
        for _job, _one, timing in timings:
            timing.sample(clock)
    for job, one, timing in timings:
        assert job.verdict is not None
        who = describe_rung(which, tile, options, job.label, one.resources)
        job.measurement = timing.measurement(who, problem, job.verdict)
        yield job


def both(which: Rung, tile: Tile, options: Options, session: Session, own: Own | None = None) -> list[Job]:
    """A rung as it is compiled here, beside machine code: that given, or its own from a file that is written and read again."""
    if own is None:
        source = kernel_source(which, tile, which.options(session.device, options))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dumped.cubin"
            path.write_bytes(session.compile(source))
            own = replace(Own.read(path), name="dumped.cubin")
    return [Job(HERE, None), Job(FILE, own)]


def tile_of(which: Rung, options: Options, changes: Mapping[str, int], device: Device) -> Tile:
    """The rung's tile for a device, with some parameters changed.

    Raises
    ------
    UnknownName
        a parameter that the rung's tile does not have
    BadArgument
        a value that is none for the parameter
    IllegalTile
        the tile breaks a rule
    """
    chosen = which.tile_for(device, options)
    for name in changes:
        if name not in chosen.given():
            raise UnknownName(f"tile parameter of {which}", name, chosen.given())
    try:
        changed = replace(chosen, **changes)
    except ValueError as error:
        raise BadArgument(str(error)) from None
    which.check(changed, options, device)
    return changed


@dataclass(frozen=True)
class Note:
    """What a stored cubin was made from: it lies beside it, and says how the cubin is launched."""

    rung: str
    tile: Mapping[str, int]
    options: Mapping[str, int]
    kernel: str

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def read(cls, cubin: Path) -> Note | None:
        """The note beside a cubin; None if there is none, BadCubin if it is damaged."""
        path = note_path(cubin)
        try:
            content = json.loads(path.read_bytes())
            note = cls(
                str(content["rung"]), {str(k): int(v) for k, v in content["tile"].items()},
                {str(k): int(v) for k, v in content["options"].items()}, str(content["kernel"]),
            )  # fmt: skip
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCubin(
                f"{path} is damaged ({type(error).__name__}: {error}): name the rung, its tile and its switches"
            ) from None
        return note


def note_path(cubin: Path) -> Path:
    """Where the note of a cubin lies."""
    return cubin.with_name(f"{cubin.name}.json")
