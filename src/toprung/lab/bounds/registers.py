"""Costs of reading registers: the banks of the register file, and the cache that ``.reuse`` fills.

A multiply-add reads three registers. Since Volta the register file has two banks, even and odd numbers. On Volta, where a warp's
multiply-add occupies its scheduler's 16 lanes for two cycles, each bank gives two registers meanwhile: conflicts occur only where
all three sources lie in one bank (Jia, Maggioni, Staiger, Scarpazza, "Dissecting the NVIDIA Volta GPU Architecture via
Microbenchmarking", 2018, section 3.1.1). With 32 lanes, from SM 8.6 on, a multiply-add starts every cycle, and each bank gives
one register: two different registers of one bank take a cycle more. That is not documented; it is what the speed of outer
products in registers shows (docs/probe.md), where the Volta rule sees no conflict at all.

A source marked ``.reuse`` is kept for the next instruction of the warp, which gets it without a read if it wants the same
register at the same place (the first, second or third source). So the rule is, instruction by instruction: sources that are at
hand need no read; of the others, the different registers of each bank are counted; more than the bank gives take further cycles.

What is assumed and not documented: that what is kept is lost with the next instruction, of whatever kind, unless that marks it
again; and that the warp is not interrupted between the two. So the count is of what the compiler planned.

``stalls`` is the nearest to hardware that is known here. What is kept lasts until its bank is read again at its place
(``by_bank``), which gives the speed of outer products in rows and in columns. And a multiply-add that wants more of a bank than it
gives in a cycle holds nobody up if the bank has nothing else to do in the next one: operands may be read over several cycles
(Huerta, Shoushtary, Cruz, González, "Analyzing Modern NVIDIA GPU cores", arXiv 2503.20481, 2025, section 5.3: three on Ampere, as
an approximation). In kernels whose neighbours ask for the one bank and the other in turn nothing else explains the speed; with
two cycles the outer products of 8 and 16 come out as well (tests/test_registers.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

BANKS = 2
OPERAND_CYCLES = 2
"""Cycles over which a multiply-add may read its registers."""
READS = 2
"""Registers a bank gives a multiply-add that occupies its lanes for two cycles."""


def reads_of(lanes: int | None) -> int:
    """Registers a bank gives a multiply-add before it costs a cycle more, from the fp32 lanes of a multiprocessor."""
    return READS if lanes is None or lanes <= 64 else 1


@dataclass(frozen=True)
class Register:
    """A register as a source of an instruction."""

    number: int
    reuse: bool = False


Sources = tuple[Register | None, ...]
"""The sources of an instruction by place; None: a constant, zero, or no source."""


@dataclass(frozen=True)
class Reads:
    """Demand of a stretch of code's multiply-adds on the register file.

    Attributes
    ----------
    instructions : multiply-adds
    sources : registers they name as sources
    marked : sources marked ``.reuse``
    kept : sources that are at hand from the instruction before
    read : different registers that are read
    conflicted : multiply-adds that take more than one cycle to read
    extra_cycles : cycles more than one, summed
    stalls : cycles that the code takes beside one for each instruction, where what is kept lasts as in ``by_bank`` and registers
        may be read over ``OPERAND_CYCLES``
    """

    instructions: int = 0
    sources: int = 0
    marked: int = 0
    kept: int = 0
    read: int = 0
    conflicted: int = 0
    extra_cycles: int = 0
    stalls: int = 0

    @property
    def kept_share(self) -> float:
        """The part of the sources that needs no read."""
        return self.kept / self.sources if self.sources else 0.0

    @property
    def reads_each(self) -> float:
        """Registers read by a multiply-add."""
        return self.read / self.instructions if self.instructions else 0.0

    @property
    def conflicts_each(self) -> float:
        """Extra cycles a multiply-add."""
        return self.extra_cycles / self.instructions if self.instructions else 0.0


def cycles(sources: Sequence[int], banks: int = BANKS, reads: int = READS) -> int:
    """Cycles to read some registers: one at least."""
    different = set(sources)
    return max(1, *(-(-sum(n % banks == bank for n in different) // reads) for bank in range(banks)))


def register_reads(code: Sequence[Sources | None], banks: int = BANKS, reads: int = READS, by_bank: bool = False) -> Reads:
    """Count a stretch of code; None stands for an instruction that is no multiply-add.

    ``by_bank``: what is marked is at hand until the next multiply-add reads another register of the same bank at the same place,
    instructions of other kinds in between or not. Exactly where this rule finds a use for a mark, NVIDIA's compiler sets one.
    """
    instructions = named = marked = served = read = conflicted = extra = 0
    for sources, wanted in zip(code, _wanted(code, banks, by_bank), strict=True):
        if sources is None or wanted is None:
            continue
        registers = [s for s in sources if s is not None]
        instructions += 1
        named += len(registers)
        served += len(registers) - len(wanted)
        read += len(set(wanted))
        marked += sum(s.reuse for s in registers)
        more = cycles(wanted, banks, reads) - 1
        conflicted += more > 0
        extra += more
    return Reads(instructions, named, marked, served, read, conflicted, extra, _stalls(_wanted(code, banks, True), banks, reads))


def _wanted(code: Sequence[Sources | None], banks: int, by_bank: bool) -> Iterator[list[int] | None]:
    """Yield the registers of every multiply-add that are not at hand."""
    at_hand: dict[tuple[int, int], int] = {}

    def key(place: int, number: int) -> tuple[int, int]:
        return place, number % banks if by_bank else 0

    for sources in code:
        if sources is None:
            at_hand = at_hand if by_bank else {}
            yield None
            continue
        registers = [(place, s) for place, s in enumerate(sources) if s is not None]
        yield [s.number for place, s in registers if at_hand.get(key(place, s.number)) != s.number]
        if not by_bank:
            at_hand = {}
        for place, s in registers:
            at_hand.pop(key(place, s.number), None)
            if s.reuse:
                at_hand[key(place, s.number)] = s.number


def _stalls(code: Iterable[list[int] | None], banks: int, reads: int) -> int:
    """Cycles without an instruction: one begins a cycle after the other, but not before its registers can be read in time."""
    stalls, owed = 0, [0] * banks  # registers that each bank has still to give
    for wanted in code:
        more = [len({n for n in wanted or () if n % banks == bank}) for bank in range(banks)]
        while any(before and before + now > OPERAND_CYCLES * reads for before, now in zip(owed, more, strict=True)):
            owed = [max(0, before - reads) for before in owed]
            stalls += 1
        owed = [max(0, before + now - reads) for before, now in zip(owed, more, strict=True)]
    return stalls
