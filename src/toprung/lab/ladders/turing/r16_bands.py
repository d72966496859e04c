"""Rung 16: work-groups that run at one time lie together."""

from dataclasses import replace

from toprung.lab.ladders.turing.r15_room_for_two import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="bands of work-groups",
    expects="264 work-groups run at one time on an H200; row by row at 8192 they span 4 rows and all 64 columns of blocks, in "
    "bands 8 rows and 33 columns: 41 tiles from memory in place of 68 a step. Little up to 4096, where A and B almost fit the last "
    "cache; 1.01 to 1.03 times at 8192",
)
