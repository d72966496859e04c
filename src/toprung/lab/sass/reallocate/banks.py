"""Other registers for the same values, so that multiply-adds read from both banks evenly.

Two registers of different banks exchange what they hold for as long as it must be exchanged together: a chain of webs in the
one or the other of which each is alive with the next (Kempe's chains, known from the colouring of maps). After such an exchange
still no two webs are alive in one register, so whatever order the exchanges come in, the allocation stays right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toprung.lab.bounds.registers import BANKS, Reads, Register, Sources, cycles, register_reads
from toprung.lab.sass.reallocate.code import PLACES, STACK, ZERO, Code, Instruction
from toprung.lab.sass.reallocate.webs import Webs, bits

ROUNDS = 12


def sources_of(one: Instruction) -> Sources | None:
    """The sources of a multiply-add by place; None for anything else."""
    if one.kind != "FFMA":
        return None
    return tuple(
        Register(number, bool(one.reuse >> slot & 1)) if (number := one.places.get(place, ZERO)) != ZERO else None
        for slot, place in enumerate(PLACES)
    )


def reads(lines: Iterable[Instruction], ports: int, by_bank: bool = True) -> Reads:
    """Return what the multiply-adds of a stretch ask of the register file."""
    return register_reads([sources_of(one) for one in lines], reads=ports, by_bank=by_bank)


def allot(code: Code, found: Webs, ports: int) -> list[int]:
    """A register for each web, by local search from the compiler's."""
    wanted, touched = _wanted(code, found)
    register = [w.register for w in found.all]
    inside = [0] * (ZERO + 1)
    for w, r in enumerate(register):
        inside[r] |= 1 << w
    pinned = sum(1 << w for w, web in enumerate(found.all) if not web.free)
    begun = sum(1 << w for w, web in enumerate(found.all) if web.free and web.zeroed >= 0)

    def cost(webs: Sequence[tuple[int, int]]) -> int:
        return cycles([register[w] if w >= 0 else fixed for w, fixed in webs], BANKS, ports)

    paid = [cost(w) for w in wanted]
    for _ in range(ROUNDS):
        better = 0
        for w, web in enumerate(found.all):
            if not web.free or not any(paid[i] > 1 for i in touched.get(w, ())):
                continue
            best, exchange = 0, (0, 0, 0)
            here = register[w]
            for there in range(1 - here % 2, code.registers, 2):
                if there == STACK:
                    continue
                chain = _chain(w, here, there, inside, found.near)
                if chain & pinned or not _clears(chain & begun, inside[here], inside[there]):
                    continue
                moved = list(bits(chain))
                concerned = {i for m in moved for i in touched.get(m, ())}
                for m in moved:
                    register[m] = here + there - register[m]
                gain = sum(paid[i] - cost(wanted[i]) for i in concerned)
                for m in moved:
                    register[m] = here + there - register[m]
                if gain > best:
                    best, exchange = gain, (here, there, chain)
            if best:
                better += best
                here, there, chain = exchange
                for m in bits(chain):
                    register[m] = here + there - register[m]
                both = inside[here] | inside[there]
                inside[here] = sum(1 << m for m in bits(both) if register[m] == here)
                inside[there] = both & ~inside[here]
                for i in {i for m in bits(chain) for i in touched.get(m, ())}:
                    paid[i] = cost(wanted[i])
        if not better:
            break
    return register


def _wanted(code: Code, found: Webs) -> tuple[list[list[tuple[int, int]]], dict[int, list[int]]]:
    """For each multiply-add of the loop what it must read: (web, register); and for each web the multiply-adds that read it."""
    wanted: list[list[tuple[int, int]]] = []
    touched: dict[int, list[int]] = {}
    at_hand: dict[tuple[int, int], int] = {}
    for i in code.loop:
        sources = sources_of(code.instructions[i])
        if sources is None:
            continue
        needs = []
        for slot, source in enumerate(sources):
            if source is None:
                continue
            key = slot, source.number % BANKS
            if at_hand.pop(key, None) != source.number:
                w = found.at.get((i, PLACES[slot]), -1)
                needs.append((w, source.number))
                if w >= 0:
                    touched.setdefault(w, []).append(len(wanted))
            if source.reuse:
                at_hand[key] = source.number
        wanted.append(needs)
    return wanted, touched


def _chain(start: int, here: int, there: int, inside: Sequence[int], near: Sequence[int]) -> int:
    """The webs that change between two registers together with one, a bit each."""
    found, fresh = 1 << start, 1 << start
    both = inside[here] | inside[there]
    while fresh:
        reached = 0
        for w in bits(fresh):
            reached |= near[w]
        fresh = reached & both & ~found
        found |= fresh
    return found


def _clears(begun: int, here: int, there: int) -> bool:
    """Return True if what begins with zero still does: instructions that clear registers stay, so such webs change in pairs."""
    return (begun & here).bit_count() == (begun & there).bit_count()
