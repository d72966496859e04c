"""Rung 10: any M, N and K, by padding as published or by predication."""

from toprung.lab.ladders.kepler.r05_transposed import EQUAL_SHARES
from toprung.lab.ladders.kepler.r07_wide_loads import PUBLISHED, SPACE, TILES, shared_accesses
from toprung.lab.ladders.kepler.r09_prefetch import two_buffers
from toprung.lab.rung import Rung, Switch

RUNG = Rung(
    idea="incomplete tiles",
    expects="nothing where sizes are whole tiles; elsewhere predication saves the passes that pad B and C and crop C",
    tiles=TILES,
    local_bytes=two_buffers,
    shared_accesses=shared_accesses,
    published=PUBLISHED,
    rules=EQUAL_SHARES,
    space=SPACE,
    whole=lambda options: "" if options["PREDICATE"] else "ABC",
    transposed="A",
    switches=(
        Switch("PREDICATE", "1: the kernel asks which elements exist; 0: B and C padded and cropped by helpers", values=(1, 0)),
    ),
)
