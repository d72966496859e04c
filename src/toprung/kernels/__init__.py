"""Kernel families, a folder each, and what they share. ``registry.py`` finds them."""
