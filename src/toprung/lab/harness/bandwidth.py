"""Bandwidth of a device's memory: reading and copying, verified and timed like everything else. The ceiling where memory limits.

Each of the two kernels goes over the memory in several ways, because no one way is best on every device; all take turns being timed
and the fastest counts. The bytes are far more than any cache holds.
"""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Session
from toprung.device import Device
from toprung.errors import WrongResult
from toprung.lab.competitor import BoundCompetitor
from toprung.lab.harness.measure import SAMPLES, Timing
from toprung.lab.routines.base import shared_kernel
from toprung.lab.routines.gemm import PLAIN, round_up
from toprung.oracle.problem import F32
from toprung.tile import Tile

Words = NDArray[np.uint32]

BYTES: Mapping[str, int] = {"gpu": 4 << 30, "cpu": 256 << 20, "other": 1 << 30}
"""Memory that is read, or half of which is copied onto the other half, for each kind of device: 80 times the L2 of an H200, and a
millisecond's work for it, so that a launch is no part of the time."""

PIECE = 4096
"""Bytes that offsets are multiples of: every device's ``base_align`` divides it."""

PERIOD = (16 << 20) - PIECE
"""Bytes after which the contents repeat; no power of two, so that what is read from a wrong place differs."""

POISON = np.uint32(0x7FC0BAD0)


@dataclass(frozen=True)
class Way:
    """Order in which a kernel goes over the memory.

    Attributes
    ----------
    items : work-items of a work-group
    in_flight : loads that each has on their way
    span : bytes that a work-group takes at a time, side by side
    per_unit : work-groups for each compute unit, which walk; 0: a work-group for every span
    words : 32-bit words of a load
    """

    items: int
    in_flight: int
    span: int
    per_unit: int = 0
    words: int = 4

    @property
    def tile(self) -> Tile:
        """Macros of the kernels."""
        own = self.in_flight * self.words
        return Tile(BM=1, BN=self.items * own, TN=own, VEC=self.words, KU=self.in_flight)

    def groups(self, nbytes: int, device: Device) -> int:
        """Work-groups of a launch."""
        spans = -(-nbytes // self.span)
        return min(spans, self.per_unit * device.compute_units) if self.per_unit else spans

    def __str__(self) -> str:
        walk = f"{self.per_unit} groups a unit" if self.per_unit else "a group a span"
        return f"{self.items} items × {self.in_flight} loads of {4 * self.words} bytes, spans of {self.span >> 10} KiB, {walk}"


WAYS: Mapping[str, Sequence[Way]] = {
    "gpu": (
        Way(256, 4, 16 << 10), Way(256, 8, 32 << 10), Way(256, 8, 128 << 10), Way(512, 4, 128 << 10),
        Way(256, 4, 16 << 10, 8), Way(256, 8, 32 << 10, 8), Way(512, 4, 128 << 10, 4),
    ),
    "cpu": (Way(1, 4, 16 << 10, words=16), Way(1, 2, 1 << 20, words=16), Way(1, 8, 16 << 10)),
    "other": (Way(64, 4, 16 << 10),),
}  # fmt: skip
"""Ways that are tried on each kind of device."""


@dataclass(frozen=True)
class Rate:
    """One kernel, one way.

    Attributes
    ----------
    bytes : that cross the memory interface in a call; a copy's are counted twice, read and written
    seconds : a call's time, one for each sample
    calls : calls in a sample
    """

    way: str
    bytes: int
    seconds: tuple[float, ...]
    calls: int

    @property
    def gbytes_per_s(self) -> float:
        """GB/s at the median."""
        return self.bytes / statistics.median(self.seconds) / 1e9 if self.seconds else math.nan

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "gbytes_per_s": self.gbytes_per_s}

    @staticmethod
    def read(record: Mapping[str, Any]) -> Rate:
        """The inverse of ``describe``; KeyError or TypeError if the record is damaged."""
        return Rate(record["way"], int(record["bytes"]), tuple(map(float, record["seconds"])), int(record["calls"]))


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth that was measured: the best way of each kernel, and every way that was tried."""

    copies: tuple[Rate, ...]
    reads: tuple[Rate, ...]

    @property
    def copy(self) -> Rate:
        """The fastest way to copy."""
        return max(self.copies, key=lambda r: r.gbytes_per_s)

    @property
    def read(self) -> Rate:
        """The fastest way to read."""
        return max(self.reads, key=lambda r: r.gbytes_per_s)

    def describe(self) -> dict[str, Any]:
        """As JSON: the best of each, and below it what was tried."""
        return {
            "copy": {**self.copy.describe(), "tried": [r.describe() for r in self.copies]},
            "read": {**self.read.describe(), "tried": [r.describe() for r in self.reads]},
        }

    @staticmethod
    def of(record: Mapping[str, Any]) -> Bandwidth | None:
        """Return a record's bandwidth, None where it was not measured. Raises KeyError or TypeError if the record is damaged."""
        if not (found := record.get("bandwidth")):
            return None
        copies, reads = (tuple(map(Rate.read, found[name]["tried"])) for name in ("copy", "read"))
        if not (copies and reads):
            raise KeyError("tried")
        return Bandwidth(copies, reads)

    def __str__(self) -> str:
        return f"memory: read {self.read.gbytes_per_s:,.0f} GB/s, copy {self.copy.gbytes_per_s:,.0f} GB/s"


class Memory:
    """Device memory with known contents in its lower half and, until something is copied there, zeros in its upper half.

    Attributes
    ----------
    half : bytes of a half
    sum : of the words of the lower half
    """

    def __init__(self, session: Session, nbytes: int | None = None) -> None:
        device = session.device
        wanted = nbytes or BYTES[device.kind]
        pieces = max(1, min(wanted, device.max_buffer_bytes, device.memory_bytes // 4) // (2 * PIECE))
        self.half = (pieces - 1 | 1) * PIECE  # odd, so that no half is a multiple of 16 KiB and loops' ends are verified, too
        self.session, self.buffer = session, session.allocate(2 * self.half)
        self.lower, self.upper = self.buffer.part(0, self.half), self.buffer.part(self.half, self.half)
        self.contents = np.random.default_rng(0).integers(0, 2**32, min(PERIOD, self.half) // 4, np.uint32)
        self.sum = 0
        for offset, part in self._parts():
            session.upload(self.buffer.part(offset, part.nbytes), part)
            self.sum += int(part.sum(dtype=np.uint64))
        rows, columns = self.half // PIECE, PIECE // 4
        self._zero = session.bind(
            shared_kernel("scale", PLAIN, session),
            (columns // PLAIN.BN, round_up(rows, PLAIN.BM) // PLAIN.BM),
            (PLAIN.BN, PLAIN.BM),
            (np.int32(rows), np.int32(columns), np.float32(0), self.upper, np.int32(columns)),
        )
        self.poison()

    def _parts(self) -> Iterator[tuple[int, Words]]:
        """The contents, a period at a time: from which byte on, and the words (OpenCL has no parts of parts)."""
        for offset in range(0, self.half, self.contents.nbytes):
            yield offset, self.contents[: (self.half - offset) // 4]

    def poison(self) -> None:
        """Fill the upper half with zeros, which are not what a copy brings."""
        self._zero()
        self.session.synchronize()

    def copied(self) -> bool:
        """Return True if the upper half is the lower half, bit for bit."""
        there = np.empty_like(self.contents)
        for offset, part in self._parts():
            self.session.download(self.buffer.part(self.half + offset, part.nbytes), there[: part.size])
            if not np.array_equal(there[: part.size], part):
                return False
        return True


class _Stream(BoundCompetitor):
    """A kernel bound to memory."""

    kernel: str

    def __init__(self, way: Way, memory: Memory, source: Buffer, target: Buffer | None = None) -> None:
        """By default ``target`` is a new buffer with a word for each work-group."""
        self.way, self.memory, self.clock = way, memory, memory.session
        session, vector = memory.session, 4 * way.words
        self.groups = way.groups(source.nbytes, session.device)
        self.target = target or session.allocate(4 * self.groups)
        args = (np.uint32(source.nbytes // vector), np.uint32(way.span // vector), source, self.target)
        self._launch = session.bind(shared_kernel(self.kernel, way.tile, session), (self.groups, 1), (way.items, 1), args)

    @abstractmethod
    def right(self) -> bool:
        """Return True if the last run left what it should."""

    def run(self) -> None:
        self._launch()

    def fetch(self) -> F32:
        words = np.empty(self.target.nbytes // 4, np.float32)
        self.memory.session.download(self.target, words)
        return words


class Copy(_Stream):
    """The lower half onto the upper half."""

    kernel = "stream_copy"

    def __init__(self, way: Way, memory: Memory) -> None:
        super().__init__(way, memory, memory.lower, memory.upper)

    def reset(self) -> None:
        self.memory.poison()

    def right(self) -> bool:
        return self.memory.copied()


class Read(_Stream):
    """Both halves, which must be alike."""

    kernel = "stream_read"

    def __init__(self, way: Way, memory: Memory) -> None:
        super().__init__(way, memory, memory.buffer)

    def reset(self) -> None:
        self.memory.session.upload(self.target, np.full(self.groups, POISON))

    def right(self) -> bool:
        return (int(self.fetch().view(np.uint32).sum(dtype=np.uint64)) - 2 * self.memory.sum) % 2**32 == 0


def measure(session: Session, nbytes: int | None = None, samples: int = SAMPLES) -> Bandwidth:
    """Verify every way of both kernels, then time them in turns.

    Parameters
    ----------
    nbytes : memory to use, by default ``BYTES`` or a quarter of what the device has

    Raises
    ------
    WrongResult
        a kernel left out, or changed, something: its speed would mean nothing
    OutOfDeviceMemory
        the memory is not there
    """
    memory = Memory(session, nbytes)
    streams: list[_Stream] = [make(way, memory) for make in (Copy, Read) for way in WAYS[session.device.kind]]
    for stream in streams:  # copies come first, and leave both halves alike
        stream.reset()
        stream.time(1)
        if not stream.right():
            raise WrongResult(f"{stream.kernel} with {stream.way} is wrong on {session.device}: its speed means nothing")
    timings = [Timing(stream) for stream in streams]
    for timing in timings:
        timing.warm_up()
    for _ in range(samples):
        for timing in timings:
            timing.sample()
    rates = [Rate(str(s.way), 2 * memory.half, tuple(t.seconds), t.calls) for s, t in zip(streams, timings, strict=True)]
    count = len(WAYS[session.device.kind])
    return Bandwidth(tuple(rates[:count]), tuple(rates[count:]))
