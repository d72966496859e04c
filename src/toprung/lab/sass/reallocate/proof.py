"""Proof that changed machine code does what it did: read anew from its bytes, and shown without asking how it was made.

Four things are shown. Every instruction is the old one but for its registers, its marks, and where it stands. Every register
that it reads holds what the old one's held: from the start on, which new register holds what which old one holds is followed
along every way through the code. Nothing is read or overwritten before the barrier that guards it has been waited for, nor
sooner after it was begun than before. And a mark never serves a value that has been overwritten since.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toprung.errors import Unproven
from toprung.lab.sass.reallocate.code import AT_ONCE, CONTROL, PLACES, SIMPLE, STACK, WAITS, ZERO, Code, Instruction
from toprung.lab.sass.reallocate.webs import LATENCY, bits, reachable, until_waited

BETWEEN = ("FFMA", "LDS", "LDG", "STS")
"""Instructions that may stand between a mark in the loop and its use; the compiler allows itself more."""
AHEAD = 32
"""Instructions after which a mark in the loop is used at the latest. The compiler's go further: 36 at the first place and 61 at the
second were seen, across loads and across instructions that wait."""
SAME = (1 << CONTROL) - 1
"""The bits of an instruction that say what it does."""


def prove(before: Code, after: Code, order: Sequence[int] | None = None) -> None:
    """Raise Unproven unless two pieces of code do the same.

    ``order``: for each place the instruction of ``before`` that stands there now; None: every one where it stood.
    """
    where = list(range(len(before.instructions))) if order is None else list(order)
    if len(after.instructions) != len(before.instructions) or sorted(where) != list(range(len(before.instructions))):
        raise Unproven(f"{len(before.instructions)} instructions became {len(after.instructions)}, or one stands twice")
    old = [before.instructions[i] for i in where]
    for was, now in zip(old, after.instructions, strict=True):
        _same(was, now)
        for n, o in zip((*now.reads, *now.writes), (*was.reads, *was.writes), strict=True):
            if n != o and (n >= before.limits[now.index] or n == STACK):
                raise Unproven(f"{_say(now)} names R{n}, which is not to be had")
    _moves(before, after, where)
    _waits(before, after)
    _holds(old, after)
    _guarded(before, after, where)
    _latencies(before, after, where)
    _marks(before, after)


def _same(was: Instruction, now: Instruction) -> None:
    """Check that an instruction is the same but for registers that may be others, marks, and how it waits."""
    if (was.name, was.guard, _shape(was)) != (now.name, now.guard, _shape(now)):
        raise Unproven(f"{_say(now)} was {_say(was)}: another instruction")
    mask = SAME
    if was.kind in SIMPLE and was.places.keys() == now.places.keys():
        for place in was.places:
            mask &= ~(ZERO << place)
    elif (was.reads, was.writes) != (now.reads, now.writes):
        raise Unproven(f"{_say(now)} was {_say(was)}: its registers are not to be changed")
    if (was.word ^ now.word) & mask:
        raise Unproven(f"{_say(now)} was {_say(was)}: more than registers and marks is changed")
    if len(was.reads) != len(now.reads) or len(was.writes) != len(now.writes):
        raise Unproven(f"{_say(now)} was {_say(was)}: it reads or writes more or fewer registers")
    if was.barriers != now.barriers:
        raise Unproven(f"{_say(now)} releases other barriers")


def _shape(one: Instruction) -> str:
    return re.sub(r"(?<![A-Z0-9_])R\d+", "R", one.operands.replace(".reuse", ""))


def _say(one: Instruction) -> str:
    return f"instruction {one.index}, {one.name} {one.operands},"


def _moves(before: Code, after: Code, where: Sequence[int]) -> None:
    """Only multiply-adds change places, within stretches that control runs through, and none overtakes what it depends on."""
    for at, i in enumerate(where):
        was, now = before.instructions[at], after.instructions[at]
        if was.next != now.next or was.labelled != now.labelled:
            raise Unproven(f"{_say(now)} goes elsewhere than what stood there")
        if at != i and not (before.instructions[i].multiplies and was.multiplies and not was.guard):
            raise Unproven(f"{_say(before.instructions[i])} was moved, and may not be")
        if at != i and (was.stall, was.stays) != (now.stall, now.stays):
            raise Unproven(f"{_say(now)} gives the next one another time to start than what stood there")
        if at == i and (was.word ^ now.word) >> CONTROL & ((1 << WAITS - CONTROL) - 1):
            raise Unproven(f"{_say(now)} takes another time")
    for first, last in stretches(before):
        span = where[first : last + 1]
        if sorted(span) != list(range(first, last + 1)):
            raise Unproven(f"an instruction left its stretch, {first} to {last}")
        place = {i: at for at, i in enumerate(span)}
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for i in range(first, last + 1):
            one = before.instructions[i]
            needs = [writer[r] for r in one.reads if r in writer]
            needs += [j for r in one.writes for j in (*readers.get(r, ()), *((writer[r],) if r in writer else ()))]
            if any(place[j] > place[i] for j in needs):
                raise Unproven(f"{_say(one)} now comes before something it depends on")
            for r in one.reads:
                readers.setdefault(r, []).append(i)
            for r in one.writes:
                writer[r], readers[r] = i, []


def _waits(before: Code, after: Code) -> None:
    """Between two instructions of other kinds than multiply-adds, what was waited for still is."""
    then = now = 0
    for was, one in zip(before.instructions, after.instructions, strict=True):
        then, now = then | was.waits, now | one.waits
        if not one.multiplies or one.next != (one.index + 1,) or after.instructions[one.index + 1].labelled:
            if then & ~now:
                raise Unproven(f"up to {_say(one)} less is waited for than before")
            then = now = 0


def stretches(code: Code) -> list[tuple[int, int]]:
    """First and last instruction of what control runs through from beginning to end."""
    found, first = [], 0
    for one in code.instructions:
        if one.index > first and one.labelled:
            found.append((first, one.index - 1))
            first = one.index
        if one.next != (one.index + 1,):
            found.append((first, one.index))
            first = one.index + 1
    return [(a, b) for a, b in (*found, (first, len(code.instructions) - 1)) if a <= b]


def _holds(old: Sequence[Instruction], after: Code) -> None:
    """Check that each instruction reads what it read: for each register now, a bit for every one that held the same before."""
    lines = after.instructions
    everything = (1 << 256) - 1
    into: list[tuple[list[int], int, int] | None] = [None] * len(lines)
    into[0] = ([1 << r for r in range(256)], 0, 0)
    todo = [0]
    while todo:
        i = todo.pop()
        state = into[i]
        assert state is not None
        held, was_zero, is_zero = list(state[0]), state[1], state[2]
        was, now = old[i], lines[i]
        clear_was, clear_is = sum(1 << r for r in {*was.writes}), sum(1 << r for r in {*now.writes})
        kept = [(n, o) for n, o in zip(now.writes, was.writes, strict=True) if not now.certain and held[n] >> o & 1]
        for r in range(256):
            held[r] = 0 if clear_is >> r & 1 else held[r] & ~clear_was & everything
        was_zero, is_zero = was_zero & ~clear_was, is_zero & ~clear_is
        if now.zeroes:
            was_zero, is_zero = was_zero | clear_was, is_zero | clear_is
            for r in bits(is_zero):
                held[r] |= was_zero
        elif now.certain:
            for n, o in zip(now.writes, was.writes, strict=True):
                held[n] |= 1 << o
        for n, o in kept:
            held[n] |= 1 << o
        for n in now.next:
            there = into[n]
            if there is None:
                into[n] = (list(held), was_zero, is_zero)
                todo.append(n)
                continue
            both = [a & b for a, b in zip(there[0], held, strict=True)]
            merged = (both, there[1] & was_zero, there[2] & is_zero)
            if merged != there:
                into[n] = merged
                todo.append(n)
    for was, now, state in zip(old, lines, into, strict=True):
        if state is None:  # control never comes here
            continue
        for n, o in zip(now.reads, was.reads, strict=True):
            if not state[0][n] >> o & 1:
                raise Unproven(f"{_say(now)} reads R{n}, which does not hold what R{o} held before")


def _guarded(before: Code, after: Code, where: Sequence[int]) -> None:
    """No register is touched before the barrier that guards it has been waited for, where it was not before."""
    allowed = _unguarded(before, range(len(where)))
    for i, j in _unguarded(after, where) - allowed:
        raise Unproven(
            f"{_say(before.instructions[j])} does not wait for {_say(before.instructions[i])} whose registers it touches"
        )


def _unguarded(code: Code, where: Sequence[int]) -> set[tuple[int, int]]:
    live = reachable(code)
    found = set()
    for one in code.instructions:
        if not live[one.index] or one.kind in AT_ONCE:
            continue
        for j in until_waited(code, one, wrote=True)[0] if one.writes else ():
            other = code.instructions[j]
            if set(one.writes) & {*other.reads, *other.writes}:
                found.add((where[one.index], where[j]))
        for j in until_waited(code, one)[0] if one.reads else ():
            if set(one.reads) & set(code.instructions[j].writes):
                found.add((where[one.index], where[j]))
    return found


def _latencies(before: Code, after: Code, where: Sequence[int]) -> None:
    """Nothing starts sooner after what it reads or overwrites than it did, unless that is long done."""
    then = _distances(before, range(len(where)))
    for pair, cycles in _distances(after, where).items():
        if cycles < min(then.get(pair, LATENCY), LATENCY):
            i, j = pair
            raise Unproven(
                f"{_say(before.instructions[j])} starts {cycles} cycles after {_say(before.instructions[i])} whose result it needs"
            )


def _distances(code: Code, where: Sequence[int]) -> dict[tuple[int, int], int]:
    """Cycles from an instruction that takes a fixed time to one that reads or overwrites what it writes, where they are few."""
    found: dict[tuple[int, int], int] = {}
    for one in code.instructions:
        if not one.writes or one.kind not in AT_ONCE:
            continue
        best: dict[int, int] = {}
        todo = [(n, one.stall) for n in one.next]
        while todo:
            i, passed = todo.pop()
            if passed >= best.get(i, LATENCY):
                continue
            best[i] = passed
            other = code.instructions[i]
            todo += [(n, passed + max(other.stall, 1)) for n in other.next]
            if set(one.writes) & {*other.reads, *(other.writes if one.kind not in SIMPLE or other.kind not in SIMPLE else ())}:
                pair = where[one.index], where[i]
                found[pair] = min(passed, found.get(pair, LATENCY))
    return found


def _marks(before: Code, after: Code) -> None:
    """A mark is met by the next multiply-add that reads that bank at that place, with nothing written or branched in between."""
    lines = after.instructions
    for one in lines:
        if one.kind != "FFMA" or (before.instructions[one.index].word == one.word and not _near_change(before, after, one)):
            continue
        for slot, place in enumerate(PLACES):
            register = one.places.get(place)
            if register is None or not one.reuse >> slot & 1:
                continue
            reason = unmet(after, one, place, register, one.index in after.loop)
            if reason:
                raise Unproven(f"{_say(one)} marks R{register}, and {reason}")


def _near_change(before: Code, after: Code, one: Instruction) -> bool:
    span = range(one.index, min(one.index + AHEAD, len(after.instructions)))
    return any(before.instructions[i].word != after.instructions[i].word for i in span)


def unmet(code: Code, one: Instruction, place: int, register: int, ours: bool = False) -> str:
    """Why a mark is of no use or wrong; empty where it is right. Marks that are ours are held to more than the compiler's."""
    at = one
    while True:
        if ours and not (at.passes and at.kind in BETWEEN):
            return f"{at.name} stands between, or the warp may lose its turn"
        if ours and at.index - one.index >= AHEAD:
            return "it is read too late"
        if register in at.writes:
            return "it is overwritten"
        if at.next != (at.index + 1,):
            return "control may go elsewhere before it is read"
        at = code.instructions[at.index + 1]
        if at.labelled:
            return "control may come from elsewhere before it is read"
        found = at.places.get(place) if at.kind == "FFMA" else None
        if found is not None and found % 2 == register % 2:
            return "" if found == register else f"R{found} is read there next"
