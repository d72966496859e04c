"""Bounds on what an ideal device could do: pure functions that need no device and no measurement."""
