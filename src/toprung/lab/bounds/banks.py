"""Bank-conflict calculator: how often local memory must be asked for one access of a warp.

Local memory is a row of banks; float number a lies in bank a mod 32. A bank gives one float a turn, to every lane that asks for
that float. Lanes that want different floats of one bank wait for each other: that is a conflict.

An access of W floats a lane is served 32/W lanes at a time, so that no part of it asks for more than one float a bank unless it
must. Hardware may serve parts together whose lanes ask for the same floats, which is not documented: ``turns`` does not count
on it, ``least`` is what remains if it always happens. NVIDIA's GPUs have had 32 banks of 4 bytes since 2010 (Kepler: or 8 bytes).

``traffic`` adds up what a kernel's subscripts ask for, in wavefronts as NVIDIA's counters have them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BANKS = 32
WARP = 32


@dataclass(frozen=True)
class Access:
    """Cost of one access of a warp.

    Attributes
    ----------
    turns : turns it takes, part by part
    ideal : turns it would take without conflicts: one a part
    ways : most turns of a part: 1 is free of conflicts, 2 a two-way conflict
    least : turns if parts were served together wherever that saves any
    floats : different floats that are read or written
    """

    turns: int
    ideal: int
    ways: int
    least: int
    floats: int


def access(addresses: Sequence[int | None], width: int = 1, banks: int = BANKS) -> Access:
    """The cost of one access.

    Parameters
    ----------
    addresses : the index of each lane's first float; None for a lane that does not take part
    width : floats a lane reads or writes side by side: 1, 2 or 4
    banks : banks of one float
    """
    if width not in (1, 2, 4):
        raise ValueError(f"an access has 1, 2 or 4 floats a lane, not {width}")
    lanes = banks // width
    parts = [[a for a in addresses[i : i + lanes] if a is not None] for i in range(0, len(addresses), lanes)]
    turns = [_turns(part, width, banks) for part in parts if part]
    everything = [a for part in parts for a in part]
    return Access(
        turns=sum(turns),
        ideal=len(turns),
        ways=max(turns, default=0),
        least=_turns(everything, width, banks),
        floats=len({a + e for a in everything for e in range(width)}),
    )


def warp_access(address: Callable[[int], int | None], width: int = 1) -> Access:
    """Return the cost of an access whose addresses are a function of the lane."""
    return access([address(lane) for lane in range(WARP)], width)


def wavefronts(addresses: Sequence[int | None], width: int = 1) -> int:
    """Return the wavefronts of one access of a warp, as counted on an H200.

    An access of 2 or 4 floats takes half the turns where neighbours, or every second lane, want the same floats: the counters
    show two for an LDS.128 then, and four otherwise.
    """
    turns = access(addresses, width).turns
    shared = any(all(addresses[i] == addresses[i ^ other] for i in range(len(addresses))) for other in (1, 2))
    return max(1, turns // 2) if width > 1 and shared else turns


SharedAccesses = tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]
"""Loads and stores of a work-item in one step over BK, in order: the first float of each and the number of floats."""


@dataclass(frozen=True)
class Traffic:
    """Shared-memory traffic of a work-group in one step over BK.

    Attributes
    ----------
    loads, stores : instructions of a work-item
    load_wavefronts, store_wavefronts : of a warp, on average over the work-group's warps
    conflicts : the part of all wavefronts that bank conflicts cost
    """

    loads: int
    stores: int
    load_wavefronts: float
    store_wavefronts: float
    conflicts: float


def traffic(shared_accesses: Callable[[int], SharedAccesses], work_items: int, joined: bool = True) -> Traffic:
    """Count the wavefronts of a work-group from the subscripts of its work-items.

    Parameters
    ----------
    shared_accesses : accesses of a work-item, by its linear index
    joined : single floats that follow each other in an aligned vector, for every lane, are one access, as compilers make it
    """
    instructions, found, free = [0, 0], [0, 0], 0
    warps = range(0, work_items, WARP)
    for first in warps:
        lanes = [shared_accesses(tid) for tid in range(first, min(first + WARP, work_items))]
        for kind in (0, 1):
            same = zip(*(lane[kind] for lane in lanes), strict=True)
            # a vector of more than four floats is loaded in fours
            pieces = [([at + i for at, _ in s], min(s[0][1], 4)) for s in same for i in range(0, s[0][1], 4)]
            accesses = _joined(pieces) if joined else pieces
            instructions[kind] = len(accesses)
            for addresses, width in accesses:
                asked = [*addresses, *[None] * (WARP - len(addresses))]
                found[kind] += (cost := wavefronts(asked, width))
                free += min(cost, access(asked, width).ideal)
    conflicts = 1 - free / sum(found) if any(found) else 0.0
    return Traffic(instructions[0], instructions[1], found[0] / len(warps), found[1] / len(warps), conflicts)


def _joined(accesses: Sequence[tuple[list[int], int]]) -> list[tuple[list[int], int]]:
    """Join single floats into aligned vectors of four or two wherever all lanes allow it."""
    made, at = [], 0
    while at < len(accesses):
        addresses, width = accesses[at]
        for wide in (4, 2):
            run = accesses[at : at + wide]
            follows = len(run) == wide and all(w == 1 for _, w in run) and all(a % wide == 0 for a in addresses)
            if follows and all([a + i for a in addresses] == other for i, (other, _) in enumerate(run)):
                width, at = wide, at + wide - 1
                break
        made.append((addresses, width))
        at += 1
    return made


def _turns(addresses: Sequence[int], width: int, banks: int) -> int:
    """The most different floats that any bank is asked for."""
    wanted: dict[int, set[int]] = defaultdict(set)
    for first in addresses:
        for address in range(first, first + width):
            wanted[address % banks].add(address)
    return max((len(floats) for floats in wanted.values()), default=0)
