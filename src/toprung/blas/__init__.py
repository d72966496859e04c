"""The library: what ``matmul``, ``sgemm`` and ``sgemv`` run on. ``engine`` works on device memory; arrays are the layer above."""
