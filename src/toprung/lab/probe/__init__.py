"""Microbenchmarks: what a device can do, one thing at a time; the bounds are computed from what they find.

A microbenchmark is two files with one stem in ``probe/benchmarks``: a kernel (``.cl`` where OpenCL C can say it, else ``.cu``) and
a Python file that has ``BENCHMARK``. Nothing lists them.
"""
