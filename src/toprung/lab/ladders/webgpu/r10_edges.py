"""Rung 10: any M, N and K, without padding B and C; and the compiler's own checks, switchable."""

from toprung.lab.ladders.webgpu.r01_naive import CHECKS
from toprung.lab.ladders.webgpu.r03_more_work import LOOPS
from toprung.lab.ladders.webgpu.r07_wide_loads import SPACE
from toprung.lab.ladders.webgpu.r09_double_buffer import TILES, two_buffers
from toprung.lab.rung import Rung, Switch
from toprung.tile import EQUAL_SHARES

RUNG = Rung(
    idea="incomplete tiles",
    expects="nothing where sizes are whole tiles, and B's loads lose their width; elsewhere the passes that pad and crop are saved",
    tiles=TILES,
    local_bytes=two_buffers,
    rules=EQUAL_SHARES,
    space=SPACE,
    whole=lambda options: "" if options["PREDICATE"] else "ABC",
    transposed="A",
    switches=(
        Switch("PREDICATE", "1: the kernel asks which elements exist; 0: B and C padded and cropped by helpers", values=(1, 0)),
        LOOPS,
        CHECKS,
    ),
)
