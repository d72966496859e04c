"""Ladders: a folder each; a rung is two files with one stem. ``ls`` is the table of contents."""
