"""The laboratory: ladders, bounds, microbenchmarks and the harness that measures them. The library knows nothing of it."""
