"""Rung 2: tiles that do not fill a whole wave are cut along K, evenly over all blocks."""

from dataclasses import replace

from toprung.lab.ladders.hopper_fp32.r01_copy_engine import RUNG as BEFORE

CUT = {"ARCH_SPECIFIC": 1, "GROUP": 8, "CUT": 1}

RUNG = replace(
    BEFORE,
    idea="the last wave, cut along K",
    expects="all multiprocessors end together: 1.02 times rung 1 at 4096 and 8192, where whole waves leave 3 % idle; several times "
    "where C has few tiles",
    defines=CUT,
    even=True,
)
