"""The turing ladder: CUDA kernels written for the RTX 2080 Super in 2020, eleven rungs from one thread an element to warp tiles,
prefetch and a double buffer, and rungs of our own beyond. The ideas and the order are the published ones; the original's matrices
are column-major, ours row-major, which exchanges the roles of A and B (and of M and N). The kernels are our own.
"""

TITLE = "CUDA SGEMM, written for Turing (2020)"
ROUTINE = "gemm"
