"""A GPU's energy counter, read through NVML; nothing is ever set."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from toprung import backends
from toprung.backends import nvml
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import LaunchError


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
            self._handle = nvml.nvmlDeviceGetHandleByPciBusId(_bus(gpu))
            self.joules()
        except nvml.NVMLError as error:
            self.absent, self._handle = f"NVML does not count this GPU's energy: {error}", None

    def joules(self) -> float:
        """Energy since the driver was loaded: its integral of the power it measures."""
        return float(_nvml().nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


def clock_reader(session: Session) -> Callable[[], float | None]:
    """Return a reader of the clock at which a device runs: its session's, or for an NVIDIA GPU through OpenCL the driver's."""
    gpu = backends.twin(session.device, "cuda") if session.device.kind == "gpu" else None
    if gpu is None or session.device.backend == "cuda":
        return session.clock_mhz
    bus = _bus(gpu)
    return lambda: nvml.clock_mhz(bus)


def _bus(device: Device) -> str:
    """A CUDA device's PCI address."""
    from cuda.bindings import driver

    status, bus = driver.cuDeviceGetPCIBusId(32, device.handle)
    if status:
        raise LaunchError(f"{device} has no PCI address: {status.name}")
    return str(bus.split(b"\0")[0].decode())
