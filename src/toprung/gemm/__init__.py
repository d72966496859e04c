"""Descriptors of matrix products, and the classes that measurements of them share."""
