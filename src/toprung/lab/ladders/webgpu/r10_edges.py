"""Rung 10: any M, N and K, without padding B and C; and the compiler's own checks, switchable."""

from dataclasses import replace

from toprung.lab.ladders.webgpu.r07_wide_loads import RUNG as WIDE_LOADS
from toprung.lab.ladders.webgpu.r09_double_buffer import RUNG as BEFORE
from toprung.lab.rung import Switch

RUNG = replace(
    BEFORE,
    idea="incomplete tiles",
    expects="nothing where sizes are whole tiles, and B's loads lose their width; elsewhere the passes that pad and crop are saved",
    whole=lambda options: "" if options["PREDICATE"] else "ABC",
    switches=(
        Switch("PREDICATE", "1: the kernel asks which elements exist; 0: B and C padded and cropped by helpers", values=(1, 0)),
        *WIDE_LOADS.switches,
    ),
)
