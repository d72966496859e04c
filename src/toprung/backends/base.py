"""What a backend is: a few small classes with these methods. Everything else in toprung talks to devices through them.

Bring a device in by adding a module to this folder that has ``backend()``; nothing lists the modules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

Relaunch = Callable[..., None]
"""``relaunch(queue, *values)`` puts one launch with new values for the leading arguments into a queue; for one thread at a time."""

HOLD_SECONDS = 0.02
"""Seconds after which a queue that is held goes on by itself."""

SLOTS = {"P": "Q", "l": "q", "f": "f4x"}
"""Kinds of arguments that a ``Relaunch`` takes (a buffer's handle, a 64-bit integer, a float), and how each fills 8 bytes."""


@dataclass(frozen=True)
class Source:
    """A kernel text to compile.

    Attributes
    ----------
    name : for messages, such as ``kepler/r06``
    text : as its file has it
    kernel : the function to launch
    defines : macros with their values
    language : ``"opencl"`` (which CUDA backends compile too), ``"cuda"``, or ``"cubin"``: machine code, and no text
    binary : the machine code
    flags : build options by the names of ``FLAGS``
    """

    name: str
    text: str
    kernel: str
    defines: Mapping[str, int]
    language: str = "opencl"
    flags: tuple[str, ...] = ()
    binary: bytes = b""

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

    @property
    def handle(self) -> Any:
        """What the runtime knows it by: an address in CUDA, a memory object in OpenCL."""

    def part(self, offset: int, nbytes: int) -> Buffer:
        """The ``nbytes`` from byte ``offset`` on (a multiple of the device's ``base_align``), sharing memory."""


class Kernel(Protocol):
    """A kernel loaded on a device."""

    @property
    def resources(self) -> Resources:
        """What it takes."""


@dataclass
class Workspace:
    """Scratch memory of one queue. Launches in one queue follow each other, so one piece serves all of them."""

    buffer: Buffer
    lock: threading.RLock = field(default_factory=threading.RLock)
    outgrown: list[Buffer] = field(default_factory=list)


class Session(Protocol):
    """An opened device with one in-order queue. Launches of ``relaunch`` may go to queues of other people's."""

    queue: Any

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
        """Host memory that the device copies from and to by itself. Keep the session open longer. Raises OutOfDeviceMemory."""

    def start_upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Put a copy of a contiguous array into the queue; the array must stay as it is until that is empty."""

    def submit(self) -> None:
        """Hand what is in the queue to the device now, without waiting."""

    def relaunch(
        self, kernel: Kernel, groups: Sequence[int], local: Sequence[int], kinds: str, fixed: Sequence[np.generic]
    ) -> Relaunch:
        """A launch whose leading arguments, of these kinds (see ``SLOTS``), are given anew each time; the ``fixed`` ones follow."""

    def foreign(self, handle: Any, nbytes: int) -> Buffer:
        """Somebody else's memory on this device as a buffer: an address in CUDA, a memory object in OpenCL. It is not owned."""

    def workspace(self, queue: Any, nbytes: int) -> Workspace:
        """Memory for what passes between launches that follow each other in a queue; hold its lock while they are put there."""

    def mark(self) -> object:
        """A point in the queue that the device stamps with its time."""

    def seconds(self, start: object, end: object) -> float:
        """Device seconds between two marks; waits for the second."""

    def hold(self) -> Launch | None:
        """Keep what comes into the queue from now on from starting until what is returned is called, or for ``HOLD_SECONDS``.

        None where queues cannot be held.
        """

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def new_queue(self) -> Any:
        """One more queue of the session's context."""

    def copy_in(self, queue: Any, buffer: Buffer, offset: int, array: NDArray[Any]) -> None:
        """Put a copy of a contiguous array to byte ``offset`` of a buffer into a queue; the array stays until it is done."""

    def copy_out(self, queue: Any, array: NDArray[Any], buffer: Buffer, offset: int) -> None:
        """Put a copy from byte ``offset`` of a buffer into a contiguous array into a queue."""

    def record(self, queue: Any) -> Any:
        """An event behind what is in a queue now."""

    def wait(self, queue: Any, event: Any) -> None:
        """What comes into a queue from now on waits for an event; the host does not."""

    def settle(self, event: Any) -> None:
        """The host waits for an event."""

    def settle_queue(self, queue: Any) -> None:
        """The host waits for a queue."""

    def capturing(self, queue: Any) -> bool:
        """Whether what comes into a queue is recorded into a graph in place of being run, so that the host may not wait for it."""

    def clock_mhz(self) -> float | None:
        """The clock the device runs at now, where it can be read."""

    def close(self) -> None:
        """Give everything back."""


class Backend(Protocol):
    """A way to reach devices.

    Attributes
    ----------
    prelude : file whose text stands in front of every OpenCL C kernel that the backend compiles; it may be missing
    """

    name: str

    def devices(self) -> list[Device]:
        """What can be opened now; empty if the runtime is absent."""

    def advice(self) -> list[str]:
        """What is missing and how to get it, a sentence each."""

    def open(self, device: Device) -> Session:
        """Open a device of this backend."""
