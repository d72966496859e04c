"""Descriptors of matrix products, and the problem classes within which measurements carry over."""
