"""Which values share a register, and which are alive together.

A web is what has to be in one register: writes of which some instruction may read either, and all that read them. Two webs may
share a register if neither is written while the other is alive. A value is alive longer than its last reader shows where an
instruction reads or writes it in its own time: until the barrier that guards it has been waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from toprung.lab.sass.reallocate.code import AT_ONCE, SIMPLE, STACK, WRITTEN, Code, Instruction

LATENCY = 10
"""Cycles after which whatever takes a fixed time has been written, with some to spare."""


@dataclass
class Web:
    """A value by the places where it is written and read.

    Attributes
    ----------
    register : where it is
    free : whether every instruction that names it may name another register
    uses : (instruction, place) where it stands
    zeroed : instruction that begins it with zero; -1 if none does
    """

    register: int
    free: bool = True
    uses: list[tuple[int, int]] = field(default_factory=list)
    zeroed: int = -1


@dataclass
class Webs:
    """The webs of a kernel and who is alive together.

    Attributes
    ----------
    near : for each web, a bit for every web that is alive with it
    at : (instruction, place) → web, for what may be renamed
    """

    all: list[Web]
    near: list[int]
    at: dict[tuple[int, int], int]


def reachable(code: Code) -> list[bool]:
    """Which instructions control can come to."""
    seen = [False] * len(code.instructions)
    todo = [0]
    while todo:
        if not seen[i := todo.pop()]:
            seen[i] = True
            todo += code.instructions[i].next
    return seen


def webs(code: Code) -> Webs:
    """Find them."""
    lines = code.instructions
    live = reachable(code)
    values = list(range(256))  # the register of each value; the first are what is there at the start
    written: list[dict[int, int]] = [{} for _ in lines]
    for one in lines:
        for register in one.writes if live[one.index] else ():
            written[one.index][register] = len(values)
            values.append(register)
    reaching = _reaching(code, written)
    parent = list(range(len(values)))

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    read: list[dict[int, int]] = [{} for _ in lines]
    for one in lines:
        if not live[one.index]:
            continue
        for register in (*one.reads, *(() if one.certain else one.writes)):
            first, *others = bits(reaching[one.index].get(register, 0))
            for other in others:
                parent[root(other)] = root(first)
            read[one.index][register] = first
        if not one.certain:
            for register in one.writes:
                parent[root(written[one.index][register])] = root(read[one.index][register])
    number: dict[int, int] = {}
    found: list[Web] = []
    for v, register in enumerate(values):
        if root(v) not in number:
            number[root(v)] = len(found)
            found.append(Web(register))
        if v < 256 or register == STACK:
            found[number[root(v)]].free = False
    need = [{r: number[root(v)] for r, v in registers.items()} for registers in read]
    made = [{r: number[root(v)] for r, v in registers.items()} for registers in written]
    at: dict[tuple[int, int], int] = {}
    for one in lines:
        for reading, registers in ((False, made[one.index]), (True, need[one.index])):
            for register, w in registers.items():
                if one.zeroes:
                    found[w].free &= found[w].zeroed < 0
                    found[w].zeroed = one.index
                    continue
                places = [p for p, r in one.places.items() if (p != WRITTEN) == reading and r == register]
                found[w].free &= bool(places)
                for place in places:
                    found[w].uses.append((one.index, place))
                    at[one.index, place] = w
    alive, makes = _alive(code, live, found, need, made)
    near = [0] * len(found)
    for both, new in zip(alive, makes, strict=True):
        for w in bits(new):
            near[w] |= both & ~(1 << w)
    near += [0] * (max((m.bit_length() for m in near), default=0) - len(near))
    for w, mask in enumerate(near):
        for other in bits(mask):
            near[other] |= 1 << w
    for web in found:  # a branch of the kernel with fewer registers than the loop keeps those it has
        web.free = web.free and all(code.limits[i] >= code.registers for i, _ in web.uses)
    # what the compiler itself laid into one register is right for reasons that are not seen here: it stays
    for w, web in enumerate(found):
        for other in bits(near[w]):
            if found[other].register == web.register:
                web.free = found[other].free = False
    return Webs(found, near, at)


def _alive(
    code: Code, live: list[bool], found: list[Web], need: list[dict[int, int]], made: list[dict[int, int]]
) -> tuple[list[int], list[int]]:
    """For each instruction, a bit for every web that is alive after it, and for every one that it writes."""
    lines = code.instructions
    needs = [sum({1 << w for w in registers.values()}) for registers in need]
    makes = [sum({1 << w for w in registers.values()}) for registers in made]
    kills = [mask if one.certain else 0 for mask, one in zip(makes, lines, strict=True)]
    held = list(needs)
    for one in lines:
        if not live[one.index] or not (one.reads or one.writes):
            continue
        if one.kind not in AT_ONCE:
            for j in set.union(*until_waited(code, one)):
                held[j] |= needs[one.index]
            for j in set.union(*until_waited(code, one, wrote=True)):
                held[j] |= makes[one.index]
        elif one.kind not in SIMPLE:  # a result that nobody reads still arrives, and later than a multiply-add's
            for j in _soon(code, one):
                held[j] |= makes[one.index]
    needs = held
    first, last = _cleared(code, found)
    for w, web in enumerate(found):
        if web.zeroed < 0 or not web.free:
            continue
        if not first <= web.zeroed <= last or any(u <= last for u, _ in web.uses if u > web.zeroed):
            web.free = False
        elif web.zeroed < last:
            # the register is taken from where it is cleared; which value begins in it is settled at the end of the stretch
            taken = len(found)
            found.append(Web(web.register, free=False))
            for mask in (makes, kills):
                mask[web.zeroed] = mask[web.zeroed] & ~(1 << w) | 1 << taken
                mask[last] |= 1 << w
            needs[last] |= 1 << taken
    into, out = [0] * len(lines), [0] * len(lines)
    before: list[list[int]] = [[] for _ in lines]
    for one in lines:
        for n in one.next:
            before[n].append(one.index)
    todo = [i for i in range(len(lines)) if live[i]]
    waiting = set(todo)
    while todo:
        waiting.discard(i := todo.pop())
        out[i] = 0
        for n in lines[i].next:
            out[i] |= into[n]
        now = needs[i] | out[i] & ~kills[i]
        if now != into[i]:
            into[i] = now
            fresh = [b for b in before[i] if b not in waiting]
            todo += fresh
            waiting.update(fresh)
    return [o | m for o, m in zip(out, makes, strict=True)], makes


def _soon(code: Code, one: Instruction, cycles: int = LATENCY) -> list[int]:
    """Instructions that may start within some cycles."""
    found: dict[int, int] = {}
    todo = [(n, one.stall) for n in one.next]
    while todo:
        i, passed = todo.pop()
        if passed < found.get(i, cycles):
            found[i] = passed
            todo += [(n, passed + max(code.instructions[i].stall, 1)) for n in code.instructions[i].next]
    return list(found)


def _cleared(code: Code, found: list[Web]) -> tuple[int, int]:
    """First and last instruction of the straight stretch before the loop in which most values begin with zero."""
    lines = code.instructions
    best, most = (0, -1), 0
    begun = Counter(w.zeroed for w in found if w.zeroed >= 0 and w.free)
    zeroing = [i for i in sorted(begun) if i < code.loop.start]
    for k, first in enumerate(zeroing):
        last, count = first, begun[first]
        for later in zeroing[k + 1 :]:
            if any(lines[i].next != (i + 1,) or lines[i + 1].labelled for i in range(last, later)):
                break
            last, count = later, count + begun[later]
        if count > most:
            best, most = (first, last), count
    return best


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _reaching(code: Code, written: list[dict[int, int]]) -> list[dict[int, int]]:
    """For each instruction and register, a bit for every value that may be in it there."""
    lines = code.instructions
    into: list[dict[int, int]] = [{} for _ in lines]
    into[0] = {r: 1 << r for r in range(256)}
    todo = [0]
    visited = [False] * len(lines)
    while todo:
        i = todo.pop()
        visited[i] = True
        out = dict(into[i])
        for register, value in written[i].items():
            out[register] = (0 if lines[i].certain else out.get(register, 0)) | 1 << value
        for n in lines[i].next:
            if not visited[n]:
                into[n] = dict(out)
                todo.append(n)
                visited[n] = True
                continue
            target = into[n]
            changed = False
            for register, mask in out.items():
                if mask & ~target.get(register, 0):
                    target[register] = target.get(register, 0) | mask
                    changed = True
            if changed and n not in todo:
                todo.append(n)
    return into


def until_waited(code: Code, one: Instruction, wrote: bool = False) -> tuple[set[int], set[int]]:
    """Instructions that come before an instruction is known to have read, and those that wait for that; or to have written.

    To have read is not to have written: a load may have a barrier for each. One without such a barrier is guarded by that of
    the next of its kind, which is done after it.
    """
    seen: set[tuple[int, tuple[int, ...]]] = set()
    todo = [(n, one.written if wrote else one.barriers) for n in one.next]
    early: set[int] = set()
    waiting: set[int] = set()
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        i, barriers = state
        at = code.instructions[i]
        if any(at.waits >> b & 1 for b in barriers):
            waiting.add(i)
            continue
        early.add(i)
        if not barriers and at.kind == one.kind:
            barriers = at.written if wrote else at.barriers
        todo += [(n, barriers) for n in at.next]
    return early, waiting
