"""BLAS routines as problems, each with the steps that bring a rung's kernel to bear on it."""
