"""A GPU's energy counter, read through NVML; nothing is ever set."""

from __future__ import annotations

import functools
from typing import Any

from toprung import backends
from toprung.backends import cuda
from toprung.device import Device


@functools.cache
def _nvml() -> Any:
    """The NVML binding, started, or None."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or one it does not know: its errors share no base with the import's
        return None
    return pynvml


class Meter:
    """Reads of one GPU; ``absent`` says why there are none."""

    def __init__(self, device: Device) -> None:
        self.absent, self._handle = "", None
        if device.kind != "gpu" or "nvidia" not in device.vendor.lower():
            self.absent = "energy is read from NVIDIA GPUs only"
            return
        nvml = _nvml()
        if nvml is None:
            self.absent = "energy needs NVML; pip install nvidia-ml-py"
            return
        gpu = backends.twin(device, "cuda")
        if gpu is None:
            self.absent = "energy needs CUDA to tell which GPU this is; see toprung devices"
            return
        try:
            self._handle = nvml.nvmlDeviceGetHandleByPciBusId(cuda.bus(gpu.handle))
            self.joules()
        except nvml.NVMLError as error:
            self.absent, self._handle = f"NVML does not count this GPU's energy: {error}", None

    def joules(self) -> float:
        """Energy since the driver was loaded: its integral of the power it measures."""
        return float(_nvml().nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
