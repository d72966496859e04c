"""Rung 5: the tree folds the partial sums in halves."""

from dataclasses import replace

from toprung.lab.ladders.matvec.r04_tree import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="sequential addressing",
    expects="no bank conflicts, and the idle lanes are whole warps: some 1.3 times at short rows",
)
