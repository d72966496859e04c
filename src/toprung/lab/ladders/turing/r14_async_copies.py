"""Rung 14: tiles copied by the hardware, several of them under way. CUDA only."""

from toprung.device import Device
from toprung.lab.bounds.banks import SharedAccesses
from toprung.lab.rung import Options, Rung
from toprung.tile import EQUAL_SHARES, Rule, Tile, divides


def ring(tile: Tile) -> int:
    """Bytes of STAGES buffers for As, which is padded along k, and for Bs."""
    bk = tile.BK or 0
    return 4 * (tile.STAGES or 0) * (tile.BM * (bk + (tile.PADA or 0)) + bk * tile.BN)


def shared_accesses(t: Tile, options: Options, tid: int) -> SharedAccesses:
    """Reads: four k of each row of As[m][k], and vectors of Bs[k][n]; what arrives passes the threads by."""
    high, wide, bk = (t.WM or 1) // (t.TM or 1), (t.WN or 1) // (t.TN or 1), t.BK or 1
    (warp, lane), across, pitch = divmod(tid, high * wide), t.BN // (t.WN or 1), bk + (t.PADA or 0)
    tm, tn = warp // across * (t.WM or 0) + lane // wide, warp % across * (t.WN or 0) + lane % wide * 4
    a = [((tm + i * high) * pitch + k, 4) for k in range(0, bk, 4) for i in range(t.TM or 1)]
    return a + [(k * t.BN + tn + j * wide, 4) for k in range(bk) for j in range(0, t.TN or 1, 4)], ()


def needs(device: Device) -> str:
    """CUDA, and an architecture that has the copies."""
    if device.backend != "cuda":
        return "asynchronous copies into shared memory are written in CUDA C++; OpenCL C has no equivalent"
    if int(device.arch.removeprefix("sm_") or 0) < 80:
        return f"asynchronous copies into shared memory came with SM 8.0, and this is {device.arch}"
    return ""


RUNG = Rung(
    idea="asynchronous copies",
    expects="no registers for data under way, one barrier a tile and two to three tiles ahead: 1.02 to 1.06 times rung 13 where it "
    "still waits for memory",
    tiles={
        "gpu": tuple(
            Tile(BM=128, BN=256, BK=16, WM=32, WN=128, TM=8, TN=16, VA=4, VB=4, STAGES=stages, PADA=4) for stages in (4, 3)
        ),
    },
    local_bytes=ring,
    shared_accesses=shared_accesses,
    dynamic=True,
    needs=needs,
    rules=(
        Rule("VA = VB = 4", "a copy moves 16 bytes", lambda t, d: t.VA == t.VB == 4),
        Rule("STAGES ≥ 2", "one buffer is filled while another is computed with", lambda t, d: (t.STAGES or 0) >= 2),
        divides("BM", "WM", "a block is whole warps high"),
        divides("BN", "WN", "and wide"),
        divides("WM", "TM", "a warp is whole work-items high"),
        divides("WN", "TN", "and wide"),
        divides("BK", "VA", "a copy takes four elements of one row of A"),
        divides("PADA", "VA", "every row of As must begin where a copy may"),
        *EQUAL_SHARES,
    ),
    space={
        "BM": (64, 128), "BN": (128, 256), "BK": (8, 16, 32), "WM": (32, 64), "WN": (64, 128), "TM": (8,), "TN": (8, 16),
        "STAGES": (2, 3, 4, 5), "PADA": (0, 4),
    },
    whole="ABC",
)  # fmt: skip
