"""Other registers for a compiled kernel, and another order of its multiply-adds: the same program with fewer bank conflicts.

A compiler's main loop of a product loses cycles to register banks (``toprung.lab.bounds.registers``). What is in which register
does not matter to the result, so here it is decided anew, on machine code: the values that only scalar multiply-adds,
multiplications and additions touch get other registers, and the marks that keep a source at hand are set to what the new code
allows. What comes out is read again from its bytes and proved to be the same program; where that does not succeed the code
stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toprung.backends.nvrtc import capability
from toprung.device import FP32_LANES
from toprung.errors import BadCubin
from toprung.lab.bounds.registers import Reads, reads_of
from toprung.lab.sass.reallocate.banks import allot, reads
from toprung.lab.sass.reallocate.code import Code, decode
from toprung.lab.sass.reallocate.marks import marked
from toprung.lab.sass.reallocate.order import in_order, reordered
from toprung.lab.sass.reallocate.proof import prove
from toprung.lab.sass.reallocate.webs import webs


@dataclass(frozen=True)
class Report:
    """Report on a kernel's changed main loop.

    Attributes
    ----------
    instructions : of the main loop
    before, after : what its multiply-adds ask of the register file, marks counted by bank and place
    renamed : values that are in other registers
    moved : multiply-adds that stand elsewhere
    """

    kernel: str
    arch: str
    instructions: int
    before: Reads
    after: Reads
    renamed: int
    moved: int

    @property
    def share(self) -> float:
        """The part of the loop that is multiply-adds."""
        return self.before.instructions / self.instructions if self.instructions else 0.0

    @property
    def speedup(self) -> float:
        """Cycles of the loop before for one after, where each other instruction takes one, too, and nothing else limits.

        An upper bound: conflicts are counted for each multiply-add alone, and neighbours may share what one leaves unused.
        """
        return (self.instructions + self.before.extra_cycles) / (self.instructions + self.after.extra_cycles)


def reallocate(code: bytes, kernel: str, *, reorder: bool = False) -> tuple[bytes, Report]:
    """Give a kernel's values other registers.

    Parameters
    ----------
    code : a cubin
    kernel : the kernel's name
    reorder : whether multiply-adds may change places, too

    Returns
    -------
    bytes, Report
        a cubin of the same size, and what was changed

    Raises
    ------
    BadCubin
        no cubin, no such kernel, no loop of multiply-adds, or instructions that are not understood
    Unproven
        the new code is not shown to do the same: keep the old one
    MissingExtra
        the disassembler is not installed
    """
    old = decode(code, kernel)
    if not old.loop:
        raise BadCubin(f"{kernel} has no loop of multiply-adds: there is nothing to reallocate")
    ports = reads_of(FP32_LANES.get(capability(old.arch)))
    order = list(range(len(old.instructions)))
    new = old
    if reorder:
        order = reordered(old, webs(old), ports)
        new = marked(in_order(old, order))
    found = webs(new)
    register = allot(new, found, ports)
    new = marked(with_registers(new, found.at, register))
    out = new.into(code)
    prove(old, decode(out, kernel), order)
    loop = old.loop
    return out, Report(
        kernel=kernel,
        arch=old.arch,
        instructions=len(loop),
        before=reads((old.instructions[i] for i in loop), ports),
        after=reads((new.instructions[i] for i in loop), ports),
        renamed=sum(register[w] != web.register for w, web in enumerate(found.all)),
        moved=sum(i != at for at, i in enumerate(order)),
    )


def with_registers(code: Code, at: Mapping[tuple[int, int], int], register: Sequence[int]) -> Code:
    """With each value where it is to be."""
    lines = list(code.instructions)
    for (i, place), web in at.items():
        if lines[i].places[place] != register[web]:
            lines[i] = lines[i].with_register(place, register[web])
    return replace(code, instructions=tuple(lines))
