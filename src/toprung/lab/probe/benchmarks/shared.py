"""Bandwidth of shared memory, by width of the access and by stride between the lanes."""

from __future__ import annotations

from toprung.device import Device
from toprung.lab.bounds.arch import vendor_figures
from toprung.lab.bounds.banks import warp_access
from toprung.lab.probe.base import BYTES_PER_CLOCK, Benchmark, Case, only_cuda
from toprung.lab.probe.shared import AS_WRITTEN, case

STRIDES = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (1, 33), (2, 2), (2, 4), (2, 34), (4, 4), (4, 8), (4, 16), (4, 36))
"""Floats of an access, and floats from one lane's to the next."""


def _cases(device: Device) -> list[Case]:
    found = []
    most = vendor_figures(device).shared_bytes_per_clock
    for width, stride in STRIDES:
        cost = warp_access(lambda lane, stride=stride: lane * stride, width)  # type: ignore[misc]
        vendor = None if most is None else most * cost.ideal / cost.turns
        found.append(case(device, f"LDS.{32 * width} stride {stride}", 0, width, stride, 4 * width, vendor=vendor))
    return found


BENCHMARK = Benchmark("shared memory by width and stride", BYTES_PER_CLOCK, _cases, only_cuda(AS_WRITTEN))
