"""The oracle: what a right result of a problem is, and how far rounding may move it."""
