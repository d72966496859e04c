"""The hopper ladder: CUDA kernels for the matrix units of SM 9.0, from one matrix instruction at a time in fp16 to products that
are as accurate as fp32. The kernels are our own.
"""

TITLE = "matrix units, written for Hopper (2022)"
ROUTINE = "gemm"
VENDORS = ("cublas_fp16", "cublas")
