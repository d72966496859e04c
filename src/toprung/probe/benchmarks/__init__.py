"""The microbenchmarks."""
