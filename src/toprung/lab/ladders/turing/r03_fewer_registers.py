"""Rung 3: places computed once, pointers that walk."""

from dataclasses import replace

from toprung.lab.ladders.turing.r02_local_tiles import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="fewer live registers",
    expects="nothing where the compiler moves the arithmetic out of the loop by itself; the register counts say whether it does",
)
