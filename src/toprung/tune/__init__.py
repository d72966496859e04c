"""Search for faster configurations of the library's kernels, and what it learnt into the store."""
