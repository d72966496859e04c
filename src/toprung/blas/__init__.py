"""The library: ``matmul``, ``sgemm``, ``sgemv``, ``plan`` and ``prepack`` on arrays of any library."""
