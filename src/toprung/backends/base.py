"""What a backend is: a few small classes with these methods. Everything else in toprung talks to devices through them.

Bring a device in by adding a module to this folder that has ``backend()``; nothing lists the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device

DYNAMIC_SHARED = "DYNAMIC_SHARED"
"""Macro of a CUDA text that asks for so many bytes of dynamic shared memory, the way past 48 KB."""

FLAGS = ("separate", "mad", "fast")
"""Build options that every backend has a spelling for: a * b + c in two roundings, in one or whatever is fastest, and all the
compiler's shortcuts at the price of precision."""

Launch = Callable[[], None]
"""Puts one launch, its arguments bound beforehand, into the session's queue."""


@dataclass(frozen=True)
class Source:
    """A kernel text to compile.

    Attributes
    ----------
    name : for messages, such as ``kepler/r06``
    text : as its file has it
    kernel : the function to launch
    defines : macros with their values
    language : ``"opencl"`` (which CUDA backends compile too) or ``"cuda"``
    flags : build options by the names of ``FLAGS``
    """

    name: str
    text: str
    kernel: str
    defines: Mapping[str, int]
    language: str = "opencl"
    flags: tuple[str, ...] = ()

    def defines_text(self) -> str:
        """The macros as a person reads them."""
        return " ".join([*(f"{k}={v}" for k, v in self.defines.items()), *self.flags])


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes from a compute unit; ``None`` where the runtime does not say.

    Attributes
    ----------
    registers : registers of a work-item
    local_bytes : local memory of a work-group
    private_bytes : private memory of a work-item outside registers (spills and arrays)
    """

    registers: int | None = None
    local_bytes: int | None = None
    private_bytes: int | None = None


class Buffer(Protocol):
    """Device memory."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def part(self, offset: int, nbytes: int) -> Buffer:
        """The ``nbytes`` from byte ``offset`` on (a multiple of the device's ``base_align``), sharing memory."""


class Kernel(Protocol):
    """A kernel loaded on a device."""

    @property
    def resources(self) -> Resources:
        """What it takes."""


class Session(Protocol):
    """An opened device with one in-order queue."""

    @property
    def device(self) -> Device:
        """The device's facts."""

    def fingerprint(self) -> str:
        """Everything except the source that can change a binary: compiler, driver, device, prelude, flags."""

    def compile(self, source: Source) -> bytes:
        """A binary that ``load`` takes, in this process or another. Raises BuildError with the log."""

    def load(self, binary: bytes, source: Source) -> Kernel:
        """Make a binary launchable. Raises BuildError if it is damaged, LaunchError if the device cannot run it."""

    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised device memory. Raises OutOfDeviceMemory."""

    def upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Copy a contiguous array into the start of a buffer; waits."""

    def download(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Fill a contiguous array from the start of a buffer; waits."""

    def bind(
        self,
        kernel: Kernel,
        groups: Sequence[int],
        local: Sequence[int],
        args: Sequence[Buffer | np.generic],
        options: Mapping[str, int] | None = None,
    ) -> Launch:
        """A launch of ``groups`` work-groups of ``local`` work-items. ``options``: a rung's switches, for launch-time ones."""

    def bind_unsized(self, kernel: Kernel, items: Sequence[int], args: Sequence[Buffer | np.generic]) -> Launch:
        """A launch of ``items`` work-items whose work-group size the runtime chooses. Raises Unsupported where there is none."""

    def branch(self) -> Session:
        """The same device and memory with a queue of its own, which has no marks: kernels and buffers serve both. Close it."""

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the device copies from by itself. Keep the session open longer. Raises OutOfDeviceMemory."""

    def start_upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Put a copy of a contiguous array into the queue; the array must stay as it is until that is empty."""

    def submit(self) -> None:
        """Hand what is in the queue to the device now, without waiting."""

    def mark(self) -> object:
        """A point in the queue that the device stamps with its time."""

    def seconds(self, start: object, end: object) -> float:
        """Device seconds between two marks; waits for the second."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def clock_mhz(self) -> float | None:
        """The clock the device runs at now, where it can be read."""

    def close(self) -> None:
        """Give everything back."""


class Backend(Protocol):
    """A way to reach devices."""

    name: str

    def devices(self) -> list[Device]:
        """What can be opened now; empty if the runtime is absent."""

    def advice(self) -> list[str]:
        """What is missing and how to get it, a sentence each."""

    def open(self, device: Device) -> Session:
        """Open a device of this backend."""
