"""Which sources to keep at hand, by the rule that the compiler's own marks follow.

In every kernel looked at, NVIDIA's compiler marks a source where, and only where, the next multiply-add that reads a register
of the same bank at the same place reads that register, the warp keeps its turn, and nothing overwrites it; whether instructions
of other kinds stand between does not matter to it. That is a cache of one register for each place and bank, as Huerta, Abaie
Shoushtary, Cruz, González ("Analyzing Modern NVIDIA GPU cores", 2025) describe it.
"""

from __future__ import annotations

from dataclasses import replace

from toprung.lab.sass.reallocate.code import FIRST, PLACES, REUSE, SECOND, Code, Instruction
from toprung.lab.sass.reallocate.proof import unmet


def marked(code: Code) -> Code:
    """With marks where the loop's multiply-adds have a use for them; elsewhere the compiler's, if they still have one."""
    lines = list(code.instructions)
    for i in code.loop:
        one = lines[i]
        if not one.multiplies:
            continue
        reuse = sum(1 << slot for slot, place in enumerate((FIRST, SECOND)) if _useful(code, one, place))
        lines[i] = one.with_bits(REUSE, 4, reuse)
    for i, one in enumerate(lines):
        if i in code.loop or one.kind != "FFMA":
            continue
        for slot, place in enumerate(PLACES):
            if one.reuse >> slot & 1 and place in one.places and unmet(code, one, place, one.places[place]):
                lines[i] = one.with_bits(REUSE, 4, 0)
    return replace(code, instructions=tuple(lines))


def _useful(code: Code, one: Instruction, place: int) -> bool:
    register = one.places.get(place)
    return register is not None and not unmet(code, one, place, register, ours=True)
