"""Rung 8: A passes from lane to lane of a subgroup, not through workgroup memory."""

from toprung.device import Device
from toprung.lab.rung import Rung
from toprung.tile import POWER_OF_TWO, Rule, Tile


def one_tile(tile: Tile) -> int:
    """Bytes of Bs."""
    return 4 * (tile.BK or 0) * tile.BN


def lacks_subgroups(device: Device) -> str:
    """Return why a device cannot shuffle; empty if it can."""
    return "" if device.subgroup else "it passes values between the lanes of a subgroup, and the adapter has no subgroups"


RUNG = Rung(
    idea="subgroups: A by shuffles",
    expects="half of the workgroup memory, and none of A's reads of it; a loss where a shuffle costs what a read costs",
    tiles={
        "gpu": (
            Tile(BM=128, BN=128, BK=16, TM=8, TN=8, VA=4, VB=4),
            Tile(BM=128, BN=64, BK=16, TM=8, TN=8, VA=4, VB=4),
            Tile(BM=128, BN=32, BK=16, TM=8, TN=8, VA=4, VB=4),
        ),
        "cpu": (Tile(BM=64, BN=32, BK=16, TM=8, TN=8, VA=4, VB=4),),
    },
    local_bytes=one_tile,
    rules=(
        POWER_OF_TWO,
        Rule(
            "DN divides the subgroup",
            "a team of DN lanes must lie in one subgroup, the smallest the adapter may form",
            lambda t, d: (d.subgroup or 1) % t.DN == 0,
        ),
        Rule("BK % DN = 0", "a team takes DN columns of A at a time", lambda t, d: (t.BK or 0) % t.DN == 0),
        Rule(
            "LB · DM · DN · VB = BK · BN",
            "every invocation loads the same number of pieces of B's tile",
            lambda t, d: t.LB * t.work_items * (t.VB or 1) == (t.BK or 0) * t.BN,
        ),
    ),
    space={"BM": (32, 64, 128), "BN": (16, 32, 64, 128), "BK": (8, 16, 32), "TM": (4, 8), "TN": (4, 8)},
    whole="ABC",
    transposed="A",
    needs=lacks_subgroups,
)
