"""Kernels that a search may tune, found by looking in this folder: ``name.py`` with a TUNABLE record."""
