"""Rung 10: the next tile and the next vectors are fetched into registers ahead of their use."""

from dataclasses import replace

from toprung.lab.ladders.turing.r09_warp_tiles import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="register prefetch",
    expects="the wait for global memory disappears behind a tile's multiplications: a tenth, less where other work-groups filled "
    "it already",
)
