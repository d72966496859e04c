"""The library: ``matmul``, ``sgemm`` and ``sgemv`` on arrays, and the ``engine`` on device memory that they run on."""
