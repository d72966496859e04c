"""Device: all that is known of one, as a frozen record that everything else reads."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """One device as one backend sees it.

    Attributes
    ----------
    id : how a user names it, ``backend:number``
    backend : name of the backend that opens it
    name, vendor, driver, runtime : as the runtime reports them; ``runtime`` names the platform and its version
    kind : ``"gpu"``, ``"cpu"`` or ``"other"``
    compute_units : streaming multiprocessors or cores
    clock_mhz : highest clock reported, in MHz
    lanes : fp32 multiply-adds a compute unit starts each clock; None where unknown
    local_bytes : local (shared) memory a work-group may use, in bytes
    memory_bytes, max_buffer_bytes : device memory and the largest single buffer, in bytes
    max_work_group : work-items a work-group may have
    max_items : the same for each dimension
    base_align : bytes to which a part of a buffer must be aligned
    vector_widths : widths of vector types that kernels may use
    subgroup : work-items that run in step (warp, sub-group); None where unknown or where they cannot exchange values
    arch : architecture name for a compiler (``"sm_90"``), empty where there is none
    dynamic_local_bytes : local memory a work-group may have where the launch, not the kernel's text, gives its size (CUDA's dynamic
        shared memory); 0 where there is no such thing
    handle : what the backend needs to find the device again
    """

    id: str
    backend: str
    name: str
    vendor: str
    driver: str
    runtime: str
    kind: str
    compute_units: int
    clock_mhz: float
    lanes: int | None
    local_bytes: int
    memory_bytes: int
    max_buffer_bytes: int
    max_work_group: int
    max_items: tuple[int, ...]
    base_align: int
    vector_widths: tuple[int, ...]
    subgroup: int | None = None
    arch: str = ""
    dynamic_local_bytes: int = 0
    handle: object = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        # a runtime's own object stays in its process: where it is unpickled, `open_device` looks for the device again
        return {**vars(self), "handle": self.handle if isinstance(self.handle, int) else None}

    @property
    def peak_gflops(self) -> float | None:
        """fp32 peak in GFLOP/s at ``clock_mhz``: two operations a lane and clock. None where the lanes are unknown."""
        return None if self.gflops_per_mhz is None else self.gflops_per_mhz * self.clock_mhz

    @property
    def gflops_per_mhz(self) -> float | None:
        """fp32 peak in GFLOP/s for each MHz of whatever clock it runs at. None where the lanes are unknown."""
        return None if self.lanes is None else 2e-3 * self.lanes * self.compute_units

    @property
    def short_name(self) -> str:
        """The name without marks and prefixes."""
        return re.sub(r"\((R|TM|C)\)|^pthread-|^cpu-", "", self.name, flags=re.IGNORECASE)

    @property
    def slug(self) -> str:
        """The device's folder name under ``results/``: the same through every backend."""
        return re.sub(r"[^a-z0-9.]+", "-", self.short_name.lower()).strip("-")

    def __str__(self) -> str:
        return f"{self.id} ({self.short_name})"


FP32_LANES: dict[tuple[int, int], int] = {
    (3, 0): 192, (3, 5): 192, (3, 7): 192, (5, 0): 128, (5, 2): 128, (6, 0): 64, (6, 1): 128,
    (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128,
    (10, 0): 128, (10, 3): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
"""fp32 multiply-adds a clock and multiprocessor by compute capability: NVIDIA's CUDA C++ Programming Guide, table "Throughput
of Native Arithmetic Instructions"."""


def rank(device: Device) -> tuple[int, float, bool]:
    """Sort key: greatest first is best. GPUs before CPUs, then arithmetic rate, then the backend that can do more."""
    lanes = device.lanes or max(device.vector_widths)
    kind = {"gpu": 2, "cpu": 1}.get(device.kind, 0)
    return kind, lanes * device.compute_units * device.clock_mhz, device.backend == "cuda"


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
