"""Rung 10: any M, N and K, by padding as published or by predication."""

from dataclasses import replace

from toprung.lab.ladders.kepler.r09_prefetch import RUNG as BEFORE
from toprung.lab.rung import Switch

RUNG = replace(
    BEFORE,
    idea="incomplete tiles",
    expects="nothing where sizes are whole tiles; elsewhere predication saves the passes that pad B and C and crop C",
    whole=lambda options: "" if options["PREDICATE"] else "ABC",
    switches=(
        Switch("PREDICATE", "1: the kernel asks which elements exist; 0: B and C padded and cropped by helpers", values=(1, 0)),
    ),
)
