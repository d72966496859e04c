"""Interface of a backend: a few small classes through which everything else in toprung talks to devices.

To support another kind of device, add a module with a function ``backend()`` to this folder; nothing lists the modules.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toprung import forks
from toprung.device import Device
from toprung.errors import BuildError

if TYPE_CHECKING:
    from toprung.backends.plan import Plan, Run

DYNAMIC_SHARED = "DYNAMIC_SHARED"
"""Name of the macro with the bytes of dynamic shared memory that a CUDA source asks for, the only way past 48 KB."""

FLAGS = ("separate", "mad", "fast")
"""Build options that every backend translates: ``separate``, a * b + c in two roundings; ``mad``, in one or two, the faster one;
``fast``, all the compiler's shortcuts at the price of precision."""

Launch = Callable[[], None]
"""Function that puts one launch, its arguments bound beforehand, into the session's queue."""

HOLD_SECONDS = 0.02
"""Seconds after which a held queue goes on by itself."""


_FIRST_ERROR = (
    r"^(?:.*error: (?P<before>.+)\n\s*┌─ )?(?:error: )?(?P<file>[^\s(:]*)[(:](?P<line>\d+)(?:[:,](?P<column>\d+))?"
    r"(?(before)|\)?: (?:fatal )?(?:error: )?(?P<what>(?!warning|note|remark).+))$"
)
"""The first error of a compiler's log: clang's ``file:7:51: error: …``, NVRTC's ``file(7): error: …``, or naga's above ``┌─``."""


@dataclass(frozen=True)
class Source:
    """A kernel's source to compile, or its machine code.

    Attributes
    ----------
    name : name for messages, such as ``kepler/r06``
    text : source text, as in its file
    kernel : name of the function to launch
    defines : macros with their values, which are numbers
    language : ``"opencl"`` (which CUDA backends compile too), ``"cuda"``, ``"wgsl"``, or ``"cubin"``: machine code, and no text
    binary : machine code of a ``"cubin"``
    flags : build options by their names in ``FLAGS``
    title : name by which a profiler on CUDA shows the kernel, behind ``toprung_``; empty: the function's own
    file : path of the text, for messages; empty where it has none
    """

    name: str
    text: str
    kernel: str
    defines: Mapping[str, Any]
    language: str = "opencl"
    flags: tuple[str, ...] = ()
    binary: bytes = b""
    title: str = ""
    file: str = field(default="", compare=False)

    @property
    def symbol(self) -> str:
        """Name of the function in CUDA's machine code."""
        return f"toprung_{self.title}" if self.title else self.kernel

    @forks.cached_property
    def waits(self) -> bool:
        """True if the kernel waits for the one before it in its queue, so that a backend may start it before that one is done."""
        return "wait_for_previous();" in self.text

    def defines_text(self) -> str:
        """Return macros and flags as readable text."""
        return " ".join([*(f"{k}={v}" for k, v in self.defines.items()), *self.flags])

    def failed(self, device: object, log: str) -> BuildError:
        """Return the error of a text that does not compile; its message begins with the first error's place in the file."""
        from pathlib import Path  # a program that only imports toprung loads it not

        first, path = "", Path(self.file)
        if self.file and (found := re.search(_FIRST_ERROR, log, re.MULTILINE)):
            here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            where = found["file"] if '#line 1 "' in self.text else here  # lines behind an include are the compiler's to name
            column = f":{found['column']}" if found["column"] else ""
            first = f"{where}:{found['line']}{column}: {found['what'] or found['before']}"
        return BuildError(self.name, self.defines_text(), str(device), log, first)


class Resources(NamedTuple):
    """Resources that a compiled kernel takes from a compute unit; ``None`` where the runtime does not report them.

    Attributes
    ----------
    registers : number of registers of a work-item
    local_bytes : bytes of local memory of a work-group
    private_bytes : bytes of private memory of a work-item outside registers (spills and arrays)
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
        """Handle of the memory in its runtime: an address in CUDA, a memory object in OpenCL."""

    def part(self, offset: int, nbytes: int) -> Buffer:
        """Return the ``nbytes`` from byte ``offset`` on (a multiple of the device's ``base_align``), sharing memory."""


class Kernel(Protocol):
    """A kernel loaded on a device."""

    @property
    def resources(self) -> Resources:
        """Resources that the kernel takes."""


Arguments = Sequence[Buffer | np.generic]
"""Arguments of a launch: memory and scalars, in the order of the kernel's parameters."""

KEPT_BYTES = 64 << 20
"""Largest piece of scratch memory that should be kept from one product to the next; a session keeps any that it is asked for."""


class Workspace:
    """Scratch memory of one queue. Launches in one queue follow each other, so one piece serves all of them."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer, self.outgrown = buffer, list[Buffer]()
        self.lock = forks.renewed(threading.RLock())


class Session(Protocol):
    """An opened device with one in-order queue. A launcher may put launches into other programs' queues, too."""

    queue: Any

    @property
    def device(self) -> Device:
        """Properties of the device."""

    def fingerprint(self) -> str:
        """Return a text of everything but the source that can change a binary: compiler, driver, device, prelude, flags."""

    def compile(self, source: Source) -> bytes:
        """Compile a source to a binary that ``load`` takes, in this process or another. Raises BuildError with the log."""

    def load(self, binary: bytes, source: Source) -> Kernel:
        """Make a binary launchable. Raises BuildError if it is damaged, LaunchError if the device cannot run it."""

    def allocate(self, nbytes: int) -> Buffer:
        """Return uninitialised device memory. Raises OutOfDeviceMemory."""

    def upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Copy a contiguous array into the start of a buffer; waits."""

    def download(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Fill a contiguous array from the start of a buffer; waits."""

    def bind(
        self, kernel: Kernel, groups: Sequence[int], local: Sequence[int], args: Arguments, options: Mapping[str, int] | None = None
    ) -> Launch:
        """Return a launch of ``groups`` work-groups of ``local`` work-items; of ``options``, a rung's, launch-time ones count."""

    def bind_unsized(self, kernel: Kernel, items: Sequence[int], args: Arguments) -> Launch:
        """Return a launch of ``items`` work-items whose work-group size the runtime selects. Raises Unsupported if it cannot."""

    def branch(self) -> Session:
        """Return a session with a queue of its own, without marks, that shares device, kernels and buffers. Close it."""

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Return page-locked host memory, which the device copies itself; the session must outlive it. Raises OutOfDeviceMemory."""

    def start_upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Put a copy of a contiguous array into the queue; the array must stay as it is until that is empty."""

    def submit(self) -> None:
        """Hand the work in the queue to the device now, without waiting."""

    def launcher(self, plan: Plan) -> Run:
        """Return a function that puts a plan's launches into a queue; for one thread. LaunchError if the device cannot run them.

        A launch may start before the one before it in the queue is done, where the backend can do that and ``Source.waits``.
        """

    def foreign(self, handle: Any, nbytes: int) -> Buffer:
        """Return somebody else's memory on this device as a buffer that does not own it; ``handle`` as in ``Buffer``."""

    def workspace(self, queue: Any, nbytes: int) -> Workspace:
        """Return a queue's scratch memory for data between launches that follow each other; hold its lock while enqueuing them."""

    def mark(self) -> object:
        """Put a mark into the queue that the device stamps with its time; return it."""

    def seconds(self, start: object, end: object) -> float:
        """Return the device seconds between two marks; waits for the second."""

    def hold(self) -> Launch | None:
        """Hold the queue: later work in it does not start until the returned function is called, or for ``HOLD_SECONDS``.

        None where queues cannot be held.
        """

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def new_queue(self) -> Any:
        """Return one more queue of the session's context."""

    def copy_in(self, queue: Any, buffer: Buffer, offset: int, array: NDArray[Any]) -> None:
        """Put a copy of a contiguous array to byte ``offset`` of a buffer into a queue; the array must stay until it is done."""

    def copy_out(self, queue: Any, array: NDArray[Any], buffer: Buffer, offset: int) -> None:
        """Put a copy from byte ``offset`` of a buffer into a contiguous array into a queue."""

    def record(self, queue: Any) -> Any:
        """Return an event after the work that is in a queue now."""

    def wait(self, queue: Any, event: Any) -> None:
        """Make work that enters a queue from now on wait for an event; the host does not wait."""

    def settle(self, event: Any) -> None:
        """Make the host wait for an event."""

    def settle_queue(self, queue: Any) -> None:
        """Make the host wait until a queue is empty."""

    def capturing(self, queue: Any) -> bool:
        """Return True if work that enters a queue is captured into a graph, not run, so that the host may not wait for it."""

    def clock_mhz(self) -> float | None:
        """Return the device's clock in MHz now, None if it cannot be read."""

    def close(self) -> None:
        """Release everything."""


class Backend(Protocol):
    """A runtime through which devices are reached.

    Attributes
    ----------
    languages : languages of ``Source`` that it compiles, the preferred one first
    prelude : file whose text precedes every OpenCL C kernel that the backend compiles; the attribute may be missing
    ladders_only : why the library does not compute on its devices, as a sentence; missing or empty: it does
    """

    name: str
    languages: tuple[str, ...]

    def devices(self) -> list[Device]:
        """Return the devices that can be opened now; empty if the runtime is absent."""

    def advice(self) -> list[str]:
        """Return a sentence on each thing that is missing, and how to get it."""

    def open(self, device: Device) -> Session:
        """Open a device of this backend."""
