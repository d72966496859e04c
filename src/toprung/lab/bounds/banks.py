"""Bank-conflict calculator: how often local memory must be asked for one access of a warp.

Local memory is a row of banks; float number a lies in bank a mod 32. A bank gives one float a turn, to every lane that asks for
that float. Lanes that want different floats of one bank wait for each other: that is a conflict.

An access of W floats a lane is served 32/W lanes at a time, so that no part of it asks for more than one float a bank unless it
must. Hardware may serve parts together whose lanes ask for the same floats, which is not documented: ``turns`` does not count
on it, ``least`` is what remains if it always happens. NVIDIA's GPUs have had 32 banks of 4 bytes since 2010 (Kepler: or 8 bytes).
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


def _turns(addresses: Sequence[int], width: int, banks: int) -> int:
    """The most different floats that any bank is asked for."""
    wanted: dict[int, set[int]] = defaultdict(set)
    for first in addresses:
        for address in range(first, first + width):
            wanted[address % banks].add(address)
    return max((len(floats) for floats in wanted.values()), default=0)
