"""Clusters of blocks, which read and write each other's shared memory: who has them, and how many blocks they may have."""

from __future__ import annotations

import functools

from toprung.backends import nvrtc
from toprung.device import Device

LARGEST = 8
"""Largest cluster that every GPU with clusters can run (CUDA's portable size)."""
SIZES = (2, 3, 4, 6, 8)
"""Cluster sizes that are weighed; each block of a cluster has one slice of K."""


@functools.lru_cache(16)
def no_clusters(device: Device) -> str:
    """Return why a device has no clusters; empty if it has."""
    if device.backend == "cuda" and nvrtc.capability(device.arch) >= (9, 0):
        return ""
    return "clusters are of compute capability 9.0 and on, through CUDA"
