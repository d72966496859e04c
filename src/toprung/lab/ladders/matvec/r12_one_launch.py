"""Rung 12: the last work-group of a sum adds what the others left. CUDA only."""

from toprung.device import Device
from toprung.lab.ladders.matvec.r11_transposed import column_sums
from toprung.lab.rung import Rung
from toprung.tile import POWER_OF_TWO, Rule, Tile


def needs(device: Device) -> str:
    """CUDA."""
    if device.backend != "cuda":
        return "a work-group sees what another wrote only behind a fence over the whole device, which OpenCL C 1.2 has not"
    return ""


RUNG = Rung(
    idea="one launch",
    expects="the second launch costs 3 to 5 µs, which is 5 to 7 % of a call at 8192 and 3 to 5 % at 100 000×1100; nothing where "
    "one slice is enough",
    tiles={"gpu": (Tile(BM=64, BN=128, TM=4, TN=8, VA=4, KU=8, SPLIT_K=256),)},
    local_bytes=lambda tile: column_sums(tile) + 4,
    needs=needs,
    meets=True,
    rules=(
        POWER_OF_TWO,
        Rule("TM = VA = 4", "a thread owns one vector of y", lambda t, d: t.TM == t.VA == 4),
        Rule("TN = KU", "and takes KU rows of A a turn", lambda t, d: t.TN == t.KU),
        Rule(
            "DM · DN = 2ⁱ · BM ≤ DN · BM",
            "every element's slices are added by a power of two of threads",
            lambda t, d: t.work_items % t.BM == 0 and (t.work_items // t.BM) & (t.work_items // t.BM - 1) == 0,
        ),
    ),
    space={"BM": (64, 128, 256), "BN": (32, 64, 128), "TN": (2, 4, 8), "KU": (2, 4, 8), "SPLIT_K": (8, 16, 32, 64, 256)},
    transposed="A",
)
