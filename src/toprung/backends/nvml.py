"""NVIDIA's management library, to read what the driver and the clocks are. Nothing is ever set."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from toprung.errors import let_through


def driver_version() -> str | None:
    """The driver's own version, where the operating system shows it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"\s(\d{3,}\.[\d.]+)\s", text)
    return found.group(1) if found else None


def clock_mhz(bus: str) -> float | None:
    """The clock that the multiprocessors of the GPU at a PCI address run at now; None where nobody tells."""
    read = _reader(bus)
    try:
        return read() if read else None
    except Exception as error:  # each package has errors of its own, and none matters: the clock is then unknown
        let_through(error)
        return None


@functools.cache
def _reader(bus: str) -> Callable[[], float] | None:
    """Through whichever package brings the library."""
    for open_gpu in (_through_pynvml, _through_bindings):
        try:
            return open_gpu(bus)
        except Exception as error:  # not installed, or no such library on this machine
            let_through(error)
            continue
    return None


def _through_pynvml(bus: str) -> Callable[[], float]:
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByPciBusId(bus)
    return lambda: float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))


def _through_bindings(bus: str) -> Callable[[], float]:
    from cuda.bindings import nvml

    nvml.init_v2()
    gpu = nvml.device_get_handle_by_pci_bus_id_v2(bus)
    return lambda: float(nvml.device_get_clock_info(gpu, int(nvml.ClockType.CLOCK_SM)))
