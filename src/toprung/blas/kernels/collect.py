"""The second launch of a product by pieces."""

from toprung.blas.kernel import LibraryKernel
from toprung.blas.kernels.gemm import square
from toprung.rung import Switch

KERNEL = LibraryKernel(
    idea="parts of blocks, added in their order",
    expects="the speed of the last cache, and a launch",
    tiles={"gpu": (square(128, 16, 8, (32, 64)),)},
    switches=(Switch("VC", "floats of an access to C", values=(1, 2, 4)),),
    routine="collect",
)
