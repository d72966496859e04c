"""Multiply-adds mixed with loads from shared memory (Lai and Seznec's Figure 2)."""

from __future__ import annotations

from toprung.device import Device
from toprung.lab.probe.base import THREADS_PER_CLOCK, Benchmark, Case, only_cuda
from toprung.lab.probe.shared import AS_WRITTEN, case

RATIOS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
WIDTHS = (1, 2, 4)


def _cases(device: Device) -> list[Case]:
    lanes = None if device.lanes is None else float(device.lanes)
    return [
        case(device, f"LDS.{32 * width} {ratio}:1", ratio, width, width, ratio + 1, vendor=lanes)
        for width in WIDTHS
        for ratio in RATIOS
    ]


BENCHMARK = Benchmark("multiply-adds to one load from shared memory", THREADS_PER_CLOCK, _cases, only_cuda(AS_WRITTEN))
