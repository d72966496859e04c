"""Occupancy: the number of blocks that an SM holds at once, and what keeps it from holding more.

The figures are those of NVIDIA's CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", and the rules
those of its occupancy calculator: a warp gets registers in units of 256, so 8 a thread; a block gets shared memory in units, and
since 8.0 the system takes 1 KiB of every block's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from toprung.errors import UnknownName

WARP = 32
REGISTER_UNIT = 256
RESERVED_BYTES = 1024


@dataclass(frozen=True)
class Room:
    """Resources of an SM.

    Attributes
    ----------
    registers : 32-bit registers; in units of ``REGISTER_UNIT`` to a warp, shared out among ``schedulers``
    shared_bytes : most shared memory of all its blocks together
    shared_unit : bytes in whose multiples a block gets it
    reserved_bytes : bytes of each block's that the system takes
    """

    threads: int
    blocks: int
    shared_bytes: int
    registers: int = 65536
    schedulers: int = 4
    shared_unit: int = 128
    reserved_bytes: int = RESERVED_BYTES


ROOMS = MappingProxyType({
    "sm_70": Room(2048, 32, 96 * 1024, shared_unit=256, reserved_bytes=0),
    "sm_75": Room(1024, 16, 64 * 1024, shared_unit=256, reserved_bytes=0),
    "sm_80": Room(2048, 32, 164 * 1024),
    "sm_86": Room(1536, 16, 100 * 1024),
    "sm_87": Room(1536, 16, 164 * 1024),
    "sm_89": Room(1536, 24, 100 * 1024),
    "sm_90": Room(2048, 32, 228 * 1024),
    "sm_100": Room(2048, 32, 228 * 1024),
    "sm_103": Room(2048, 32, 228 * 1024),
    "sm_120": Room(1536, 24, 100 * 1024),
})  # fmt: skip
"""Multiprocessors by architecture."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that fit.

    Attributes
    ----------
    blocks, threads, warps : on a multiprocessor at once
    share : of the warps it could hold
    limits : blocks that each resource has room for
    limiter : the scarcest: ``registers``, ``shared memory``, ``threads`` or ``blocks``
    """

    blocks: int
    threads: int
    warps: int
    share: float
    limits: MappingProxyType[str, int]
    limiter: str


def room(arch: str) -> Room:
    """An architecture's multiprocessor, or UnknownName."""
    name = re.sub(r"[af]$", "", arch)
    if name not in ROOMS:
        raise UnknownName("architecture", arch, ROOMS)
    return ROOMS[name]


def occupancy(arch: str | Room, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Blocks of ``threads`` threads with ``registers`` registers each and ``shared_bytes`` a block.

    Raises
    ------
    UnknownName
        an architecture whose figures are not here
    ValueError
        a block without threads
    """
    if threads < 1:
        raise ValueError(f"a block has at least one thread, not {threads}")
    of = room(arch) if isinstance(arch, str) else arch
    warps = -(-threads // WARP)
    # each scheduler has its own part of the registers, and a warp cannot lie in two
    of_warp = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = of.registers // of.schedulers // of_warp * of.schedulers // warps
    taken = -(-(shared_bytes + of.reserved_bytes) // of.shared_unit) * of.shared_unit if shared_bytes or of.reserved_bytes else 0
    limits = {
        "threads": of.threads // WARP // warps,
        "blocks": of.blocks,
        "registers": by_registers,
        "shared memory": of.shared_bytes // taken if taken else of.blocks,
    }
    # of equals the first: what is full cannot hold more, whatever else is left
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    share = blocks * warps / (of.threads // WARP)
    return Occupancy(blocks, blocks * warps * WARP, blocks * warps, share, MappingProxyType(limits), limiter)
