"""The library's kernels, found by looking in this folder: ``name.py`` with a KERNEL record, ``name.cl`` beside it."""
