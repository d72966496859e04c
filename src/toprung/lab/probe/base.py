"""Microbenchmarks: cases, each a kernel whose work is known, with a check that all of the work was done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from toprung import backends
from toprung.backends import constants
from toprung.backends.base import Arguments, Session, Source
from toprung.device import Device
from toprung.errors import Unsupported, named
from toprung.kernels.record import LANGUAGES

FOLDER = Path(__file__).parent / "benchmarks"
SEED = 20121


@dataclass(frozen=True)
class Placed:
    """A case's operands on a device.

    Attributes
    ----------
    args : the kernel's arguments
    check : what is wrong with the output of one launch, as a sentence; empty if it is right
    read : the figure, where the kernel itself has measured it
    """

    args: Arguments
    check: Callable[[], str]
    read: Callable[[], float] | None = None


@dataclass(frozen=True)
class Case:
    """One kernel to be timed.

    Attributes
    ----------
    label : what distinguishes it within its benchmark
    groups, local : work-groups of a launch, and work-items of each
    work : what one launch does, in the unit's numerator: operations, bytes, thread instructions, launches
    place : puts random operands on a device
    vendor : what the vendor's documents say, or our own kernels assume, in the benchmark's unit; None where they say nothing
    power : whether the power it draws is of interest
    synchronous : the host waits for every launch, and its clock counts
    """

    label: str
    params: Mapping[str, int]
    source: Source
    groups: int
    local: int
    work: float
    place: Callable[[Session], Placed]
    vendor: float | None = None
    power: bool = False
    synchronous: bool = False


@dataclass(frozen=True)
class Unit:
    """Rule by which work and time make a figure.

    Attributes
    ----------
    per_clock : a figure is per clock and compute unit, and needs the clock
    inverse : time by work, not work by time
    scale : what the figure is multiplied with
    """

    name: str
    scale: float = 1.0
    per_clock: bool = False
    inverse: bool = False

    def figure(self, work: float, seconds: float, clock_mhz: float | None, units: int) -> float | None:
        """Return the figure of one sample; None where it needs a clock that nobody can read."""
        if self.inverse:
            return self.scale * seconds / work
        if not self.per_clock:
            return self.scale * work / seconds
        return None if clock_mhz is None else self.scale * work / (seconds * clock_mhz * 1e6 * units)


GFLOPS = Unit("GFLOP/s", 1e-9)
GBYTES = Unit("GB/s", 1e-9)
THREADS_PER_CLOCK = Unit("thread instructions per clock and SM", per_clock=True)
BYTES_PER_CLOCK = Unit("bytes per clock and SM", per_clock=True)
MICROSECONDS = Unit("µs", 1e6, inverse=True)
CLOCKS = Unit("clocks")


@dataclass(frozen=True)
class Benchmark:
    """Cases that belong together: they take turns at being timed.

    Attributes
    ----------
    title : what it measures, in a few words
    unit : what its figures are given in
    cases : its cases for a device
    needs : why a device cannot run it, as a sentence; empty where it can
    name : its file's stem; filled in by discovery
    """

    title: str
    unit: Unit
    cases: Callable[[Device], Sequence[Case]]
    needs: Callable[[Device], str] = lambda device: ""
    name: str = field(default="")


@functools.cache
def benchmarks() -> tuple[Benchmark, ...]:
    """Every microbenchmark, by name."""
    found = constants("toprung.lab.probe.benchmarks", [str(FOLDER)], "BENCHMARK")
    return tuple(replace(one, name=name, needs=functools.partial(_needs, one, name)) for name, one in found.items())


def benchmark(name: str) -> Benchmark:
    """Return a microbenchmark by name; raises UnknownName."""
    return named("microbenchmark", name, {b.name: b for b in benchmarks()})


def source(stem: str, label: str, defines: Mapping[str, int], device: Device) -> Source:
    """Return a benchmark's kernel with its macros, in a language that the device compiles; Unsupported if there is none."""
    if reason := _unwritten(stem, device):
        raise Unsupported(reason)
    path = next(p for language in backends.languages(device) for p in _kernels(stem) if LANGUAGES[p.suffix] == language)
    return Source(
        f"probe/{stem} {label}", path.read_text("utf-8"), "probe", MappingProxyType(dict(defines)), LANGUAGES[path.suffix]
    )


def _kernels(stem: str) -> list[Path]:
    """Return the files of a benchmark's kernel, one for each language."""
    return [p for suffix in LANGUAGES if (p := FOLDER / f"{stem}{suffix}").exists()]


def _unwritten(stem: str, device: Device) -> str:
    """Return why a device cannot compile a benchmark's kernel; empty if it can, or if the benchmark runs another's kernel."""
    written = [LANGUAGES[p.suffix] for p in _kernels(stem)]
    if not written or set(written) & set(backends.languages(device)):
        return ""
    return f"its kernel is written in {' and '.join(written)} only, which {device.backend} does not compile"


def _needs(one: Benchmark, stem: str, device: Device) -> str:
    return one.needs(device) or _unwritten(stem, device)


def only_gpus(what: str) -> Callable[[Device], str]:
    """Return the refusal of a benchmark that says nothing about a CPU."""
    return lambda d: "" if d.kind == "gpu" else f"{what}: it is for GPUs"


def only_cuda(what: str) -> Callable[[Device], str]:
    """Return the refusal of a benchmark that is written in CUDA C++."""
    return lambda d: "" if d.backend == "cuda" else f"{what}, for which OpenCL C has no equivalent: use a CUDA device"
