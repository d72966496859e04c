"""Dispatch: which kernel family computes a product, with which configuration.

``select`` asks the store of tuned entries (``tuned``), then the families' cost models (``ranking``). An entry of another driver,
compiler or source is verified on first use (``verify``); where nothing is tuned, it may be (``autotune``).
"""
