"""The hopper_fp32 ladder: nothing but IEEE fp32 multiply-adds on SM 9.0, fed by its copy engine. The kernels are our own."""

TITLE = "plain fp32, written for Hopper (2022)"
ROUTINE = "gemm"
VENDORS = ("cublas",)
