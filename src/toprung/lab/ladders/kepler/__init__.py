"""The kepler ladder: an OpenCL tutorial written for the Tesla K40m in 2014, ten rungs from one thread an element to register
blocking, prefetch and edges. The ideas and the order are the tutorial's; its matrices are column-major, ours row-major, which
exchanges the roles of A and B (and of M and N). The kernels are our own.
"""

TITLE = "OpenCL SGEMM, written for Kepler (2014)"
ROUTINE = "gemm"
