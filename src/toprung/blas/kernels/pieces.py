"""The tunable product by pieces: blocks of the last wave are cut along K."""

from dataclasses import replace

from toprung.blas.kernel import LibraryKernel
from toprung.blas.kernels import gemm
from toprung.blas.kernels.gemm import RULES, square, tiles_bytes
from toprung.rung import Switch
from toprung.tile import Rule

ORDER = Switch("ORDER", "1: multiplications down pairs of columns; 0: row by row", values=(1, 0), searched=True)
KEPT = ("TRANS_A", "TRANS_B", "VC", "INDEX32", "RESIDENT", "GROUP_M")

KERNEL = LibraryKernel(
    idea="blocks of the last wave, cut along K",
    expects="1.02 times the tunable product where C has a few waves of blocks, and the gain of pairs in deeper tiles",
    tiles={"gpu": (square(128, 16, 8, (32, 64)),), "cpu": tuple(replace(t, BK=8) for t in gemm.KERNEL.tiles["cpu"])},
    local_bytes=tiles_bytes,
    rules=(*RULES, Rule("TN % 2 = 0", "columns go in pairs", lambda t, d: (t.TN or 1) % 2 == 0)),
    space={"BK": (16, 8)},
    switches=(*(s for s in gemm.SWITCHES if s.name in KEPT), ORDER),
    routine="pieces",
)
