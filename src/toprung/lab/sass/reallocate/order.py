"""Another order of a loop's multiply-adds, in which more of their sources are still at hand.

Only multiply-adds change places, and only with each other: every other instruction stays where it is, and so do the cycles and
barriers that are waited for. What may go where follows from the registers: after what it reads was written (and as many cycles
later as before, up to those after which everything has arrived) and its barrier was waited for, and before anything overwrites
it.

At each place the multiply-add is taken that costs least now; of those the one that would cost least if marks held for one
instruction only; then the one that reads least, and after which most others find both factors at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from toprung.lab.bounds.registers import BANKS, cycles
from toprung.lab.sass.reallocate.code import AT_ONCE, CONTROL, SIMPLE, THIRD, ZERO, Code, Instruction
from toprung.lab.sass.reallocate.proof import BETWEEN, stretches
from toprung.lab.sass.reallocate.webs import LATENCY, Webs, reachable, until_waited

WINDOWS = (96, 48, 24, 16)
"""Number of the next multiply-adds of the old order that are looked at for a place."""


@dataclass
class _Limits:
    """Places where a multiply-add may stand: from a place on, up to one, and so many cycles after others."""

    first: int
    last: int
    after: dict[int, int] = field(default_factory=dict)


def reordered(code: Code, found: Webs, ports: int) -> list[int]:
    """For each place the instruction that is to stand there."""
    order = list(range(len(code.instructions)))
    waited = _waited(code)
    for first, last in stretches(code):
        if first in code.loop and last in code.loop:
            places = [i for i in range(first, last + 1) if code.instructions[i].multiplies and not code.instructions[i].guard]
            limits = _limits(code, range(first, last + 1), set(places), waited)
            tried = [t for w in WINDOWS if (t := _schedule(code, found, range(first, last + 1), places, limits, w, ports))]
            if tried:
                _, best = min(tried)
                for place, i in zip(places, best, strict=True):
                    order[place] = i
    return order


def in_order(code: Code, order: Sequence[int]) -> Code:
    """Code with its instructions in another order; a place keeps its time and what it waits for."""
    low = (1 << CONTROL) - 1
    lines = []
    for place, i in enumerate(order):
        there, one = code.instructions[place], code.instructions[i]
        if place != i:
            one = replace(one, index=place, word=one.word & low | there.word & ~low, next=there.next, labelled=there.labelled)
        lines.append(one)
    return replace(code, instructions=tuple(lines))


def _waited(code: Code) -> list[tuple[Instruction, set[int], set[int]]]:
    """Instructions that take their time, and the places where they are waited for: until they have read, have written."""
    live = reachable(code)
    slow = (i for i in code.instructions if live[i.index] and i.kind not in AT_ONCE and (i.reads or i.writes))
    return [(one, until_waited(code, one)[1], until_waited(code, one, wrote=True)[1]) for one in slow]


def _clock(code: Code, span: range) -> dict[int, int]:
    now, found = 0, {}
    for i in span:
        found[i] = now
        now += max(code.instructions[i].stall, 1)
    return found


def _limits(code: Code, span: range, movable: set[int], waited: list[tuple[Instruction, set[int], set[int]]]) -> dict[int, _Limits]:
    lines, clock = code.instructions, _clock(code, span)
    found = {i: _Limits(span.start, span.stop - 1) for i in movable}
    for slow, have_read, have_written in waited:
        for place in (have_read | have_written) & set(span):
            for i in movable:
                one = lines[i]
                after_read = place in have_read and set(slow.reads) & set(one.writes)
                after_written = place in have_written and set(slow.writes) & {*one.reads, *one.writes}
                if i >= place and (after_read or after_written):
                    found[i].first = max(found[i].first, place)
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for j in span:
        one = lines[j]
        needs: dict[int, int] = {}
        for r in one.reads:
            if r in writer:
                needs[writer[r]] = min(clock[j] - clock[writer[r]], LATENCY)
        for r in one.writes:
            for i in readers.get(r, ()):
                needs.setdefault(i, 1)
            if r in writer and writer[r] not in needs:
                both = one.kind in SIMPLE and lines[writer[r]].kind in SIMPLE
                needs[writer[r]] = 1 if both else min(clock[j] - clock[writer[r]], LATENCY)
        needs.pop(j, None)
        for i, cycles_ in needs.items():
            if i in movable and j in movable:
                found[j].after[i] = cycles_
            elif j in movable:
                found[j].first = max(found[j].first, next(p for p in span if p > i and clock[p] >= clock[i] + cycles_))
            elif i in movable:
                found[i].last = min(found[i].last, max(p for p in span if p < j and clock[p] <= clock[j] - cycles_))
        for r in one.reads:
            readers.setdefault(r, []).append(j)
        for r in one.writes:
            writer[r], readers[r] = j, []
    for j in sorted(movable, reverse=True):
        for i, cycles_ in found[j].after.items():
            latest = max(p for p in span if p < found[j].last and clock[p] <= clock[found[j].last] - cycles_)
            found[i].last = min(found[i].last, latest)
    return found


def _schedule(
    code: Code, found: Webs, span: range, places: Sequence[int], limits: dict[int, _Limits], window: int, ports: int
) -> tuple[int, list[int]] | None:
    """Cycles lost and the multiply-adds in their new order; None where the window leads nowhere."""
    lines, clock = code.instructions, _clock(code, span)
    left, order = list(places), []
    placed: dict[int, int] = {}
    bank_of: dict[int, int] = {}
    hand: dict[tuple[int, int], int] = {}
    just: dict[int, int] = {}
    lost, before = 0, span.start - 1

    def factors(i: int) -> Iterator[tuple[int, int]]:
        return enumerate(lines[i].sources[:2])

    def needs(i: int) -> list[int]:
        return [r for slot, r in factors(i) if hand.get((slot, r % BANKS)) != r]

    def cost(i: int, read: Sequence[int]) -> int:
        w = found.at.get((i, THIRD), -1)
        known = bank_of.get(w) if w >= 0 and found.all[w].free else lines[i].sources[2] % BANKS
        banks = range(BANKS) if known is None else (known,)
        return min(cycles([*read, ZERO + 1 + bank], BANKS, ports) for bank in banks) - 1

    def costs(i: int) -> tuple[int, int]:
        return cost(i, needs(i)), cost(i, [r for slot, r in factors(i) if just.get(slot) != r])

    def others(i: int, ready: Sequence[int]) -> int:
        kept = dict(hand)
        hand.update({(slot, r % BANKS): r for slot, r in factors(i)})
        found_all = sum(not needs(j) for j in ready if j != i)
        hand.clear()
        hand.update(kept)
        return found_all

    for n, place in enumerate(places):
        between = lines[before + 1 : place]
        if between:
            just = {}
        if any(one.kind not in BETWEEN or not one.passes for one in between):
            hand.clear()
        tight = _tight(left, limits, places, n)
        ready = [
            i for i in left[:window]
            if limits[i].first <= place <= limits[i].last <= tight
            and all(q in placed and clock[place] >= clock[placed[q]] + c for q, c in limits[i].after.items())
        ]  # fmt: skip
        if not ready:
            return None
        chosen = min(ready, key=lambda i: (*costs(i), len(needs(i)), -others(i, ready), i))
        lost += sum(costs(chosen))
        w, read = found.at.get((chosen, THIRD), -1), needs(chosen)
        if w >= 0 and len({r % BANKS for r in read}) == 1:
            bank_of.setdefault(w, 1 - read[0] % BANKS)
        passes, target = lines[place].passes, lines[chosen].target
        hand.update({(slot, r % BANKS): r for slot, r in factors(chosen)})
        hand = {key: r for key, r in hand.items() if passes and r != target}
        just = {slot: r for slot, r in factors(chosen) if passes and r != target}
        left.remove(chosen)
        placed[chosen] = place
        order.append(chosen)
        before = place
    return lost, order


def _tight(left: Sequence[int], limits: dict[int, _Limits], places: Sequence[int], n: int) -> int:
    """The place up to which as many must stand as have room: one of them is next. The last place of all if there is time."""
    counts: dict[int, int] = {}
    for i in left:
        counts[limits[i].last] = counts.get(limits[i].last, 0) + 1
    room, due = n, 0
    for last in sorted(counts):
        due += counts[last]
        while room < len(places) and places[room] <= last:
            room += 1
        if due >= room - n:
            return last
    return max(counts)
