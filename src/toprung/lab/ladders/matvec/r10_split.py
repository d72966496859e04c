"""Rung 10: rows split over several work-groups where there are few of them."""

from dataclasses import replace

from toprung.lab.ladders.matvec.r09_rows import RUNG as BEFORE

RUNG = replace(
    BEFORE,
    idea="split rows",
    expects="every compute unit has work at 1100×100 000, where rung 9 has 35 work-groups: four times there; nothing at many rows",
    tiles={
        kind: tuple(replace(tile, SPLIT_K=64 if kind == "gpu" else 4) for tile in tiles) for kind, tiles in BEFORE.tiles.items()
    },
    space={**BEFORE.space, "SPLIT_K": (1, 4, 16, 64)},
)
