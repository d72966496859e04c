"""The matvec ladder: the six listings of a white paper on OpenCL for the GTX 285 (2009), from one work-item a row to a reduction
without barriers, and rungs of our own beyond. The ideas and the order are the paper's; the kernels are our own.
"""

TITLE = "OpenCL matrix-vector products, written for the GTX 285 (2009)"
ROUTINE = "gemv"
