"""Bytes a second from and to memory, from the cache that all share, and from each multiprocessor's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toprung import backends
from toprung.backends.base import Buffer, Session
from toprung.device import Device
from toprung.kernels.build import source_kernel
from toprung.lab.bounds.arch import card
from toprung.lab.probe.arithmetic import differing, sampled
from toprung.lab.probe.base import GBYTES, Benchmark, Case, Placed, source
from toprung.oracle.placed import fetched
from toprung.oracle.problem import F64, UNIT_ROUNDOFF

DEEP = 8
FILL, READ, COPY = 0, 1, 2
KINDS = {READ: "read", COPY: "copy"}


@dataclass(frozen=True)
class Level:
    """A working set: ``each`` work-groups a compute unit with a slice of ``kib`` KiB, read ``passes`` times."""

    name: str
    each: int
    kib: int
    passes: int
    own: bool = False


GPU = (Level("L1", 2, 32, 512, own=True), Level("L2", 4, 32, 128), Level("memory", 8, 2048, 1))
CPU = (Level("L1", 1, 16, 4096, own=True), Level("L2", 1, 256, 256, own=True), Level("memory", 16, 8192, 1))
"""132 multiprocessors: 64 KiB each, 16.5 MiB together, 2 GiB. Each core: 16 KiB, 256 KiB, 128 MiB."""


def _cases(device: Device) -> list[Case]:
    found = []
    for level in CPU if _in_turn(device) else GPU:
        for kind in (READ,) if level.own else (READ, COPY):
            found.append(_case(device, level, kind))
    return found


def _in_turn(device: Device) -> bool:
    """Return True for a CPU that runs work-items one after the other: several would each stride through the whole slice."""
    return device.kind == "cpu" and "opencl" in backends.languages(device)


def _case(device: Device, level: Level, kind: int) -> Case:
    local, vec = (1, 16) if _in_turn(device) else (256, 4)
    halved = kind == COPY and level.passes > 1  # both halves of a copy share the cache
    groups = device.compute_units * (level.each // 2 if halved else level.each)
    vectors = level.kib * 1024 // (4 * vec)
    each = vectors * vec * 4
    most = min(device.memory_bytes // 4 // (1 + (kind == COPY)), device.max_buffer_bytes)
    while groups > device.compute_units and groups * each > most > 0:
        groups -= device.compute_units
    nbytes = groups * each
    # a pass that is not the group's own takes the slice of one far away; a prime divides no number of groups
    jump = groups if level.own else 10007
    defines = {"KIND": kind, "SLICE": vectors, "VEC": vec, "LOCAL": local, "DEEP": DEEP, "JUMP": jump}
    label = f"{level.name} {KINDS[kind]}"

    def place(session: Session) -> Placed:
        data = session.allocate(nbytes)
        fill = source_kernel(source("bandwidth", "fill", {**defines, "KIND": FILL}, device), session)
        unread = session.allocate(4 * vec)  # one buffer as both is what WebGPU forbids
        session.bind(fill, (groups,), (local,), (np.int32(1), unread, data))()
        out = session.allocate(nbytes if kind == COPY else 4 * vec * local * groups)

        def check() -> str:
            if kind == COPY:
                return _check_copy(session, out, groups, vectors * vec)
            return _check_read(session, out, groups, local, vectors, vec, level.passes, jump)

        return Placed((np.int32(level.passes), data, out), check)

    work = float(nbytes) * level.passes * (2 if kind == COPY else 1)
    memory = card(device.name)[0] if level.name == "memory" else None
    vendor = None if memory is None else memory / 1e9
    return Case(
        label, {**defines, "groups": groups}, source("bandwidth", label, defines, device), groups, local, work, place, vendor
    )


def numbers(places: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> F64:
    """Return the values that the fill writes at these places."""
    i = (places & 0xFFFFFFFF).astype(np.uint64)
    for factor, shift in ((2654435761, 15), (2246822519, 13)):
        i = i * np.uint64(factor) & np.uint64(0xFFFFFFFF)
        i = i ^ (i >> np.uint64(shift))
    return (i >> np.uint64(8)).astype(np.float64) * 2.0**-23 - 1.0


def _check_read(
    session: Session, out: Buffer, groups: int, local: int, vectors: int, vec: int, passes: int, jump: int
) -> str:  # fmt: skip
    """Check some work-items' sums."""
    found = fetched(out, session, (groups * local, vec), np.float32)
    some = sampled(groups * local, 6)
    expected, sizes = np.zeros((2, some.size, vec))
    for place, item in enumerate(some):
        slices = (item // local + np.arange(passes) * jump) % groups
        mine = (np.arange(item % local, vectors, local)[:, None] * vec + np.arange(vec))[None]
        values = numbers(slices[:, None, None] * vectors * vec + mine)
        expected[place], sizes[place] = values.sum((0, 1)), np.abs(values).sum((0, 1))
    terms = passes * vectors // (local * DEEP) + DEEP
    return differing(found[some], expected, terms * UNIT_ROUNDOFF * sizes, some)


def _check_copy(session: Session, out: Buffer, groups: int, length: int) -> str:
    """Check the first and the last slice."""
    for first in (0, (groups - 1) * length):
        found = fetched(out.part(4 * first, 4 * length), session, length, np.float32)
        if problem := differing(found, numbers(np.arange(first, first + length)), 0.0, np.arange(first, first + length)):
            return problem
    return ""


BENCHMARK = Benchmark("reading and copying", GBYTES, _cases)
