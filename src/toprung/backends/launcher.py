"""The launcher of plans on CUDA, in Python: a function for each thread that fills in what changes, and launches."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Source
from toprung.backends.plan import (
    FLAGS,
    SMALLEST,
    WORKSPACE,
    Address,
    First,
    Handle,
    KernelLaunch,
    Library,
    Map,
    Plan,
    Run,
    Scalar,
    Struct,
    is_due,
    whole,
)
from toprung.errors import LaunchError, Unfinished

MAX_GROUPS = (2**31 - 1, 65535, 65535)
"""Work-groups in each dimension of a launch, on every NVIDIA GPU."""
TENSOR_MAP_BYTES = 128
KEPT_MAPS = 64
"""Tensor maps that an argument keeps by address: memory that a pool lends comes back at a few."""


def checked(device: Any, kernel: Any, groups: Sequence[int], local: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return grid and block in three dimensions; LaunchError if the device has none of that size."""
    grid, block = (*groups, 1, 1)[:3], (*local, 1, 1)[:3]
    why = ""
    for size, most in zip(grid, MAX_GROUPS, strict=True):
        if size > most:
            why = f"{size:,} work-groups in a dimension that has {most:,} at most; use a larger tile or a smaller size"
    if math.prod(block) > kernel.largest:
        why = f"work-groups of {math.prod(block)}, but it was compiled for {kernel.largest} at most"
    if why:
        raise LaunchError(f"{described(kernel.source)} on {device}: {why}")
    return grid, block


def launch_config(driver: Any, kernel: Any, grid: Sequence[int], block: Sequence[int], overlaps: bool) -> Any:
    """Return the launch configuration for cuLaunchKernelEx; with ``overlaps`` the launch may begin before the previous one ends."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = kernel.dynamic
    if overlaps:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    return config


def described(source: Source) -> str:
    """Return a kernel's name with its macros, for messages."""
    return f"{source.name} with {source.defines_text()}"


def in_memory(value: Buffer | np.generic) -> NDArray[Any]:
    """Return memory that holds a kernel argument; a tensor map's begins on 64 bytes, as the driver asks."""
    if not isinstance(value, np.generic):
        value = np.uint64(value.handle)
    if value.nbytes < TENSOR_MAP_BYTES:
        return np.array(value)
    room = np.zeros(value.nbytes + 64, np.uint8)
    skip = -room.ctypes.data % 64
    aligned = room[skip : skip + value.nbytes]
    aligned[:] = np.frombuffer(value.tobytes(), np.uint8)
    return aligned


def status_text(driver: Any, status: Any) -> str:
    """Return what a status of the driver means."""
    meaning = driver.cuGetErrorString(status)[1]
    return f"{status.name}, {meaning.decode()}" if meaning else str(status.name)


class Bound:
    """One launch with room for its arguments; for one thread at a time.

    Attributes
    ----------
    places : slot and bytes behind its address, of each address in ``raw``
    numbers : scalars behind them, by their place among α, β, and 1 if α is not 0
    maps : slot, offset, current address, memory and encoder of each tensor map
    structs : arguments that have the addresses of a group, with their memory
    """

    def __init__(self, session: Any, launch: KernelLaunch) -> None:
        driver, kernel = session._driver, launch.kernel
        self.what, self.when = f"{described(kernel.source)} on {session.device}", launch.when
        grid, block = checked(session.device, kernel, launch.groups, launch.local)
        overlaps = launch.overlaps and session._can_overlap and kernel.source.waits
        self.config = launch_config(driver, kernel, grid, block, overlaps)
        self.function, self.stream = kernel.function, -1
        self.places: list[tuple[int, int]] = []
        self.numbers: list[int] = []
        self.maps: list[list[Any]] = []
        self.structs: list[tuple[Struct, NDArray[np.int64]]] = []
        addresses = [x for x in launch.arguments if isinstance(x, Handle | Address)]
        scalars = [x for x in launch.arguments if isinstance(x, Scalar)]
        self.raw = bytearray(8 * (len(addresses) + len(scalars)))
        self.pack = struct.Struct(f"<{len(addresses)}Q" + "f4x" * len(scalars)).pack_into
        base = np.frombuffer(self.raw, np.uint8).ctypes.data
        at, self.kept = list[int](), list[Any]()
        for argument in launch.arguments:
            if isinstance(argument, Handle | Address):
                at.append(base + 8 * len(self.places))
                self.places.append((argument.slot, argument.plus if isinstance(argument, Address) else 0))
            elif isinstance(argument, Scalar):
                at.append(base + 8 * (len(addresses) + len(self.numbers)))
                self.numbers.append(argument.number)
            else:
                if isinstance(argument, Map):
                    memory = in_memory(np.void(bytes(128)))
                    encode = functools.lru_cache(KEPT_MAPS)(functools.partial(session.encoded, argument))
                    self.maps.append([argument.slot, argument.plus, None, memory, encode])
                elif isinstance(argument, Struct):
                    memory = argument.content.copy()
                    self.structs.append((argument, memory))
                else:
                    memory = in_memory(np.int64(argument.plus) if isinstance(argument, First) else argument)
                self.kept.append(memory)
                at.append(memory.ctypes.data)
        self.addresses = np.array(at, np.uint64)
        self.at = int(self.addresses.ctypes.data)

    def fill(self, at: Sequence[int], numbers: Sequence[float], operands: Any = None) -> None:
        """Write the arguments of a run; ``at`` has the addresses of all slots, ``operands`` those of a group."""
        values = [at[slot] + plus for slot, plus in self.places]
        try:
            self.pack(self.raw, 0, *values, *[numbers[i] for i in self.numbers])
        except OverflowError:  # a scalar beyond float32 is infinite there
            with np.errstate(over="ignore"):
                self.pack(self.raw, 0, *values, *[float(np.float32(numbers[i])) for i in self.numbers])
        for one in self.maps:
            slot, plus, before, memory, encode = one
            if (address := at[slot] + plus) != before:
                memory[:] = encode(address)
                one[2] = address
        for struct_, words in self.structs:
            struct_.fill(words, operands)

    def start(self, session: Any, stream: int) -> None:
        """Put the launch into a stream of the context that is current."""
        driver = session._driver
        if stream != self.stream:
            self.stream, self.config.hStream = stream, driver.CUstream(stream)
        (status,) = driver.cuLaunchKernelEx(self.config, self.function, self.at, 0)
        if status:
            raise LaunchError(f"{self.what} with {len(self.addresses)} arguments: {status_text(driver, status)}")
        session._last = self.what


class BoundLibrary:
    """One launch of another library, as ``Bound``."""

    def __init__(self, launch: KernelLaunch) -> None:
        self.run, self.when, self.values = launch.kernel.make(), launch.when, list[Any]()
        self.places = [(x.slot, x.plus) for x in launch.arguments if isinstance(x, Address)]

    def fill(self, at: Sequence[int], numbers: Sequence[float], operands: Any = None) -> None:
        """Keep the arguments of a run."""
        self.values = [*(word for slot, plus in self.places for word in (at[slot] + plus, 0)), *numbers[:2]]

    def start(self, session: Any, stream: int) -> None:
        """Call the library."""
        self.run(*self.values, stream)


def launcher(session: Any, plan: Plan) -> Run:
    """Return a function that puts a plan's launches into a stream; for one thread.

    Raises
    ------
    LaunchError
        the device has no grid of that size; nothing was launched
    """
    driver = session._driver
    bound = [BoundLibrary(x) if isinstance(x.kernel, Library) else Bound(session, x) for x in plan.launches]
    scaling = functools.cache(lambda: [Bound(session, x) for x in plan.scales or ()])  # few programs ever scale so
    context, number = session._context, int(session._context)
    own, current, enter = int(session.queue), driver.cuCtxGetCurrent, driver.cuCtxSetCurrent
    size_a, size_b = plan.sizes

    def launch(some: Sequence[Bound | BoundLibrary], at: list[int], alpha: float, beta: float, stream: int, operands: Any) -> None:
        numbers = alpha, beta, 1.0 if alpha else 0.0
        before = current()[1]
        away = int(before) != number
        if away:  # another device's context is current, or none: restore it afterwards
            enter(context)
        begun = False
        try:
            for one in some:
                if is_due(one.when, alpha, beta):
                    one.fill(at, numbers, operands)
                    one.start(session, stream)
                    begun = True
        except LaunchError as error:
            if not begun:
                raise
            raise Unfinished(str(error)) from None
        finally:
            if away:
                enter(before)

    def run(
        a: int, offset_a: int, b: int, offset_b: int, c: int, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: int | None = None, addend: int = 0, packed: int = 0, operands: Any = None,
    ) -> None:  # fmt: skip
        stream = own if queue is None else int(queue)
        at = [a + size_a * offset_a, b + size_b * offset_b, c + 4 * offset_c, addend, workspace or 0, packed, 0]
        some = scaling() if plan.scales is not None and -SMALLEST <= alpha <= SMALLEST else bound
        if plan.workspace_bytes and workspace is None:
            work = session.workspace(queue, plan.workspace_bytes)
            with work.lock:  # another product's launches must not come between these
                at[WORKSPACE], at[FLAGS] = int(work.buffer.handle), flags(stream)
                launch(some, at, alpha, beta, stream, operands)
            return
        if plan.flags_bytes and workspace is not None and session.capturing(queue):
            at[FLAGS] = workspace + whole(plan.workspace_bytes)  # a graph has flags of its own: it may run beside the stream
            session.zero(at[FLAGS], plan.flags_bytes // 4, stream)
        else:
            at[FLAGS] = flags(stream)
        launch(some, at, alpha, beta, stream, operands)

    def flags(stream: int) -> int:
        return session.flags(stream, plan.flags_bytes) if plan.flags_bytes else 0

    return run
