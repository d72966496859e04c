"""A kernel's machine code as instructions that say which registers they read and write, and where in their 16 bytes these stand.

Only what is known is taken apart. Of an instruction whose operands are not known by width, every register that it names is
taken with its neighbours in an aligned group of four as both read and perhaps written: nothing there is ever moved.

The layout of an instruction since Volta: bits 0 to 11 its code, 16 to 23 the register it writes, 24, 32 and 64 its sources;
from bit 105 on what the hardware does not find out itself: cycles until the next instruction (4 bits), whether the warp keeps
its turn (1), the barriers that are released when it has written and when it has read (3 each, 7 is none), those it waits for
(6), and ``.reuse`` for each source (4). Nothing of that is documented; Jia, Maggioni, Staiger, Scarpazza (2018) found it for
Volta.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from toprung.backends import cubin
from toprung.errors import BadCubin
from toprung.lab.sass.machine_code import disassemble

BYTES = 16
WRITTEN, FIRST, SECOND, THIRD = 16, 24, 32, 64
"""Bit positions of the numbers of registers in an instruction."""
PLACES = (FIRST, SECOND, THIRD)
ZERO = 255
NONE = 7
CONTROL, WAITS, REUSE = 105, 116, 122
STACK = 1
"""The register that points to the stack."""

SIMPLE = ("FFMA", "FMUL", "FADD")
"""Instructions whose registers may be others: scalar, with the same latency, of a fixed one."""
ONE = (
    "FFMA", "FMUL", "FADD", "FSEL", "FMNMX", "MOV", "IMAD", "IADD3", "LEA", "LOP3", "SHF", "SEL", "PRMT", "VIADD", "S2R",
    "HFMA2", "IMNMX", "VIMNMX", "IABS", "MUFU", "I2F", "F2I", "I2FP", "POPC", "FLO", "SHFL", "IADD", "ISCADD", "VIADDMNMX",
)  # fmt: skip
"""They write one register, the first that they name."""
LOADS = ("LDS", "LDG", "LD", "LDL", "LDC")
SILENT = (
    "STS", "STG", "ST", "STL", "BAR", "BRA", "EXIT", "ISETP", "FSETP", "PLOP3", "NOP", "BSSY", "BSYNC", "WARPSYNC", "R2UR",
    "LDGDEPBAR", "DEPBAR", "LDGSTS", "RED", "MEMBAR", "ERRBAR", "BREAK", "USETMAXREG",
)  # fmt: skip
"""They write no register."""
AT_ONCE = (
    "FFMA", "FMUL", "FADD", "FSEL", "FMNMX", "MOV", "IMAD", "IADD3", "LEA", "LOP3", "SHF", "SEL", "PRMT", "VIADD", "HFMA2",
    "IMNMX", "VIMNMX", "IABS", "ISETP", "FSETP", "PLOP3", "CS2R", "IADD", "ISCADD", "VIADDMNMX",
)  # fmt: skip
"""They read their sources when they start, and take a fixed time: no barrier guards them."""
LEAVES = ("CALL", "RET", "BRX", "JMP", "JMX", "BRXU", "RPCMOV", "KILL", "WARPGROUP", "HGMMA")
"""Code with these is not taken apart: control goes where the listing does not say, or registers are owned by others."""

LEFT = 2
"""Registers at the top of what ``USETMAXREG`` gives that the compiler leaves unused, in every kernel looked at."""

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
NAMED = re.compile(r"(?<![A-Z0-9_])R(\d+)(\.64)?(?![A-Z0-9_])")
PREDICATE = re.compile(r"!?U?P[0-9T]$")
PLAIN = re.compile(r"-?\|?R(\d+|Z)\|?(?:\.reuse)?$")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    index : its place in the kernel, counted in instructions
    word : its 128 bits
    name, operands, guard : as the disassembler has them
    reads, writes : registers, each one by itself
    certain : it always writes what it writes, whole
    zeroes : it writes zero
    places : place of a source or destination in its bits → register, where it may be another
    next : where control may go
    """

    index: int
    word: int
    name: str
    operands: str
    guard: str = ""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    certain: bool = True
    zeroes: bool = False
    places: Mapping[int, int] = field(default_factory=dict)
    next: tuple[int, ...] = ()
    labelled: bool = False

    @functools.cached_property
    def kind(self) -> str:
        """Its name without modifiers."""
        return self.name.split(".")[0]

    @property
    def multiplies(self) -> bool:
        """True if it is a multiply-add of three registers."""
        return self.word & 0xFFF == 0x223

    @property
    def stall(self) -> int:
        """Cycles until the next instruction of the warp may start."""
        return self.word >> CONTROL & 15

    @property
    def stays(self) -> bool:
        """True if the scheduler is told to stay with this warp."""
        return bool(self.word >> CONTROL + 4 & 1)

    @property
    def passes(self) -> bool:
        """True if the next instruction follows at once, so that what is marked is still at hand."""
        return self.stall == 1 and self.stays

    @property
    def written(self) -> tuple[int, ...]:
        """The barrier that it releases once it has written, if there is one."""
        return tuple(b for b in (self.word >> CONTROL + 5 & 7,) if b != NONE)

    @property
    def barriers(self) -> tuple[int, ...]:
        """Barriers that say that it has read: the one for that, and the one for having written, which comes later."""
        return self.written + tuple(b for b in (self.word >> CONTROL + 8 & 7,) if b != NONE)

    @property
    def waits(self) -> int:
        """Barriers it waits for, a bit each."""
        return self.word >> WAITS & 63

    @property
    def reuse(self) -> int:
        """Marks of its sources, a bit each."""
        return self.word >> REUSE & 15

    @property
    def sources(self) -> tuple[int, int, int]:
        """The three registers of a multiply-add; 255 is zero."""
        return (self.word >> FIRST & 255, self.word >> SECOND & 255, self.word >> THIRD & 255)

    @property
    def target(self) -> int:
        """Register that a multiply-add writes."""
        return self.word >> WRITTEN & 255

    def with_register(self, place: int, number: int) -> Instruction:
        """A simple instruction that names another register at a place."""
        places = {**self.places, place: number}
        changed = replace(
            self,
            places=places,
            reads=tuple(r for p, r in places.items() if p != WRITTEN),
            writes=tuple(r for p, r in places.items() if p == WRITTEN),
        )
        return changed.with_bits(place, 8, number)

    def with_bits(self, at: int, width: int, value: int) -> Instruction:
        """With other bits, and nothing else thought over: to be written, not to be read."""
        mask = (1 << width) - 1
        return replace(self, word=self.word & ~(mask << at) | (value & mask) << at)


@dataclass(frozen=True)
class Code:
    """A kernel's instructions, and where they lie in the file.

    Attributes
    ----------
    launched : registers of a thread when the kernel starts
    """

    instructions: tuple[Instruction, ...]
    offset: int
    launched: int
    arch: str

    @functools.cached_property
    def limits(self) -> tuple[int, ...]:
        """Registers that a thread has at each instruction, the fewest by any way there; 0 where control does not come."""
        found = [0] * len(self.instructions)
        todo = [(0, self.launched)]
        while todo:
            i, count = todo.pop()
            if found[i] and found[i] <= count:
                continue
            found[i] = count
            one = self.instructions[i]
            after = _asked(one) if one.kind == "USETMAXREG" else count
            todo += [(n, after) for n in one.next]
        return tuple(found)

    @functools.cached_property
    def registers(self) -> int:
        """Registers that a thread has in the main loop."""
        return min((self.limits[i] for i in self.loop), default=self.launched)

    def into(self, whole: bytes) -> bytes:
        """The file with these instructions."""
        out = bytearray(whole)
        for one in self.instructions:
            at = self.offset + one.index * BYTES
            out[at : at + BYTES] = one.word.to_bytes(BYTES, "little")
        return bytes(out)

    @functools.cached_property
    def loop(self) -> range:
        """The loop with most multiply-adds of its own, or an empty range."""
        loops = [range(j, i.index + 1) for i in self.instructions for j in i.next if j < i.index and i.kind == "BRA"]

        def own(loop: range) -> int:
            inner = [x for x in loops if x != loop and x.start in loop and x.stop <= loop.stop]
            return sum(self.instructions[i].multiplies and not any(i in x for x in inner) for i in loop)

        best = max(sorted(loops, key=len), key=own, default=range(0))
        return best if best and own(best) else range(0)


def decode(whole: bytes, kernel: str, name: str = "cubin") -> Code:
    """Take a kernel apart.

    Raises
    ------
    BadCubin
        damaged, without that kernel's instructions, or with control flow that the listing does not tell
    """
    found = cubin.facts(whole, name)
    if kernel not in found.kernels:
        cubin.check(whole, name, found.arch, kernel)
    facts = found.kernels[kernel]
    lines, labels = _lines(disassemble(whole), kernel)
    if len(lines) * BYTES != facts.size:
        raise BadCubin(f"{kernel} of {name} has {facts.size} bytes, and {len(lines)} instructions are listed: it is left as it is")
    marked = set(labels.values())
    code = []
    for index, (guard, opcode, operands) in enumerate(lines):
        at = facts.offset + index * BYTES
        one = Instruction(index, int.from_bytes(whole[at : at + BYTES], "little"), opcode, operands, guard)
        if one.kind in LEAVES:
            raise BadCubin(f"{kernel} of {name} has {opcode}: where its registers go is not known, and it is left as it is")
        if one.kind == "USETMAXREG":
            _asked(one)
        code.append(replace(_operands(one), next=_next(one, labels, len(lines)), labelled=index in marked))
    return Code(tuple(code), facts.offset, facts.registers, found.arch)


def _asked(one: Instruction) -> int:
    """Return the registers that ``USETMAXREG`` gives a thread; where it only tries, control stays there until it has them."""
    found = re.search(r"(?:^|\s)0x([0-9a-f]+)$", one.operands)
    if not found or one.guard:
        raise BadCubin(f"{one.name} {one.operands}: how many registers it gives is not known, and the code is left as it is")
    return int(found[1], 16) - LEFT


def _lines(listing: str, kernel: str) -> tuple[list[tuple[str, str, str]], dict[str, int]]:
    lines: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    inside = False
    for line in listing.splitlines():
        if line.startswith("//-----"):
            inside = f".text.{kernel} " in line
        elif inside and (label := LABEL.match(line)):
            labels[label[1]] = len(lines)
        elif inside and (found := LINE.match(line)):
            lines.append((found[2] or "", found[3], found[4].strip()))
    return lines, labels


def _next(one: Instruction, labels: Mapping[str, int], count: int) -> tuple[int, ...]:
    ahead = (one.index + 1,) if one.index + 1 < count else ()
    if one.kind == "EXIT":
        return ahead if one.guard else ()
    if one.kind == "BRA":
        target = TARGET.search(one.operands)
        if not target or target[1] not in labels:
            raise BadCubin(f"a jump to {one.operands} is not understood: the code is left as it is")
        plain = not one.guard and one.operands.startswith("`")
        return (labels[target[1]],) if plain else (*ahead, labels[target[1]])
    return ahead


def _operands(one: Instruction) -> Instruction:
    """Return the registers that an instruction reads and writes."""
    words = [w.strip() for w in _split(one.operands)]
    named = [(int(m[1]), bool(m[2])) for m in NAMED.finditer(one.operands)]
    modifiers = one.name.split(".")[1:]
    wide = 4 if "128" in modifiers else 2 if "64" in modifiers else 1
    target: int | None = None
    width = 1
    if one.kind in ONE or one.kind in LOADS or one.kind == "CS2R":
        first = next((w for w in words if not PREDICATE.match(w)), "")
        if not (found := re.match(r"R(\d+|Z)$", first)):
            return _unknown(one, named)
        target = None if found[1] == "Z" else int(found[1])
        if one.kind in LOADS:
            width = wide
        elif one.kind == "CS2R":
            width = 1 if "32" in modifiers else 2
        elif "WIDE" in modifiers:
            width = 2
        elif (wide > 1 and one.kind != "SHF") or "F64" in modifiers:
            return _unknown(one, named)
        if target is not None:
            named = named[1:]
    elif one.kind not in SILENT:
        return _unknown(one, named)
    reads: list[int] = []
    for i, (number, pair) in enumerate(named):
        last = i == len(named) - 1
        if one.kind in ("STS", "STG", "ST", "STL", "RED"):
            more = wide if last else 2 if pair else 1
        else:
            more = 2 if pair or (last and ("WIDE" in modifiers or "HI" in modifiers)) else 1
        reads += range(number, number + more)
    writes = () if target is None else tuple(range(target, target + width))
    zeroes = one.kind == "CS2R" and words[-1] == "SRZ"
    zeroes |= one.kind in ("MOV", "IMAD") and all(w == "RZ" for w in words[1:]) and one.name in ("MOV", "IMAD.MOV.U32")
    zeroes |= one.name in ("HFMA2.MMA", "HFMA2") and words[1:] == ["-RZ", "RZ", "0", "0"]
    known = replace(one, reads=tuple(reads), writes=writes, certain=not one.guard, zeroes=zeroes and not one.guard)
    return replace(known, places=_places(known, words)) if one.kind in SIMPLE else known


def _unknown(one: Instruction, named: Sequence[tuple[int, bool]]) -> Instruction:
    group = sorted({r for number, _ in named for r in range(number // 4 * 4, number // 4 * 4 + 4)})
    return replace(one, reads=tuple(group), writes=tuple(group), certain=False)


def _places(one: Instruction, words: Sequence[str]) -> dict[int, int]:
    """Return the places of a simple instruction's registers; empty where the listing says otherwise than the bits."""
    form = one.word >> 9 & 7
    if one.kind == "FFMA":
        at = {1: (FIRST, SECOND, THIRD), 2: (FIRST, THIRD, SECOND), 3: (FIRST, THIRD, SECOND)}.get(form, (FIRST, SECOND, THIRD))
    else:
        at = (FIRST, SECOND, THIRD)
    found = {}
    for place, word in zip((WRITTEN, *at), words, strict=False):
        if plain := PLAIN.match(word):
            number = ZERO if plain[1] == "Z" else int(plain[1])
            if one.word >> place & 255 != number:
                return {}
            if number != ZERO:
                found[place] = number
    return found


def _split(operands: str) -> list[str]:
    """Operands between commas that stand in no bracket."""
    return re.split(r",(?![^\[]*\])", operands)
