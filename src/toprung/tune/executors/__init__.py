"""Executors of trials: on this machine's devices, or on those of a cluster's workers."""
