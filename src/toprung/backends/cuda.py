"""CUDA: cuda.core holds device, stream and events; the driver API beneath it loads, copies and launches; NVRTC compiles.

Nothing of CUDA is imported before somebody asks for devices.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import importlib.util
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends import cubin, nvml, nvrtc
from toprung.backends.base import (
    DYNAMIC_SHARED,
    HOLD_SECONDS,
    Arguments,
    Buffer,
    Kernel,
    Launch,
    Resources,
    Session,
    Source,
    Workspace,
)
from toprung.backends.launcher import checked, described, in_memory, status_text
from toprung.backends.native_plan import launcher
from toprung.backends.plan import Map, Plan, Run
from toprung.device import FP32_LANES, Device
from toprung.errors import BadArgument, ForkedDevice, LaunchError, NoDevice, OutOfDeviceMemory, Unsupported, let_through
from toprung.forks import in_child, renewed

INSTALL = 'pip install "toprung[cuda]"'
HOLD = Path(__file__).with_name("hold.cu")
PORTABLE_CLUSTER = 8
"""Largest cluster that every GPU with clusters can run; larger ones are asked for by name."""
OVERLAPS, CAPTURES_OVERLAPS = (9, 0), 12030
"""Compute capability from which on a kernel may start before the previous one in its stream is done (programmatic launch), and
driver from which on such launches can be captured in a graph."""
ALL_SHARED = 100
"""Per cent of the L1 cache that CARVEOUT turns into shared memory, as far as the hardware goes."""

_started = False
_forked = False


@in_child
def _note_fork() -> None:
    global _forked
    _forked = _started


class _DriverError(LaunchError):
    """A call the driver refused; whoever knows more of it makes a better message."""

    def __init__(self, status: Any, text: str) -> None:
        self.status = status
        super().__init__(text)


def uninstalled() -> str:
    """Return the package that CUDA lacks here, as a sentence; empty if it has all. The driver is not started."""
    try:
        if importlib.util.find_spec("cuda.core") is None:  # importing it takes longer than listing devices does
            raise ImportError
        import cuda.bindings.driver  # noqa: F401
    except ImportError:
        return f"cuda-core is not installed; {INSTALL}"
    return nvrtc.missing()


@functools.cache
def _driver() -> Any:
    """The driver API, started; or the sentence that says why there is none."""
    global _started
    if missing := uninstalled():
        return missing
    from cuda.bindings import driver

    _started = True  # before: another thread may fork meanwhile
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # the driver's library is looked for at the first call
        _started = False
        let_through(error)
        return "no NVIDIA driver found; an NVIDIA GPU needs one, other devices do not"
    if status:
        return f"the driver does not start: {status_text(driver, status)}"
    return driver


def _call(result: tuple[Any, ...]) -> Any:
    """Return what a driver call gave (a tuple if it gave several things), or raise _DriverError."""
    status, *values = result
    if status:
        raise _DriverError(status, status_text(_driver(), status))
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def _look() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Devices that can be used, and a sentence for each reason why one cannot."""
    driver = _driver()
    if isinstance(driver, str):
        return (), (f"CUDA: {driver}",)
    usable: list[Device] = []
    advice: list[str] = []
    compiled_for = nvrtc.architectures()
    try:
        for number in range(_call(driver.cuDeviceGetCount())):
            device = _facts(driver, number)
            if device.arch in compiled_for:
                usable.append(device)
            elif nvrtc.capability(device.arch) < nvrtc.capability(compiled_for[0]):
                advice.append(f"CUDA: {device.name} is {device.arch}, older than NVRTC's {compiled_for[0]}; use it through OpenCL")
            else:
                advice.append(f"CUDA: {device.name} is {device.arch}, newer than NVRTC's {compiled_for[-1]}; use it through OpenCL")
    except _DriverError as error:
        advice.append(f"CUDA: the driver does not answer: {error}")
    return tuple(usable), tuple(advice)


class CUDABackend:
    """All NVIDIA GPUs that the installed NVRTC compiles for."""

    name = "cuda"
    languages = (*nvrtc.LANGUAGES, "cubin")
    prelude = nvrtc.PRELUDE

    def devices(self) -> list[Device]:
        """GPUs in the driver's order."""
        if _forked:
            raise ForkedDevice("a CUDA device")
        return list(_look()[0])

    def advice(self) -> list[str]:
        """Which package or driver is missing, or which GPU is too old."""
        return list(_look()[1])

    def open(self, device: Device) -> Session:
        """Open a GPU with a stream of its own."""
        return CUDASession(device)


def backend() -> CUDABackend:
    """This module's backend."""
    return CUDABackend()


def _facts(driver: Any, number: int) -> Device:
    handle = _call(driver.cuDeviceGet(number))

    def fact(name: str) -> int:
        return int(_call(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)))

    capability = fact("COMPUTE_CAPABILITY_MAJOR"), fact("COMPUTE_CAPABILITY_MINOR")
    version = int(_call(driver.cuDriverGetVersion()))
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    memory = int(_call(driver.cuDeviceTotalMem(handle)))
    return Device(
        id=f"cuda:{number}", backend="cuda", name=_call(driver.cuDeviceGetName(256, handle)).split(b"\0")[0].decode().strip(),
        vendor="NVIDIA Corporation", driver=nvml.driver_version() or cuda, runtime=f"{cuda}, NVRTC {nvrtc.version()}", kind="gpu",
        compute_units=fact("MULTIPROCESSOR_COUNT"), clock_mhz=fact("CLOCK_RATE") / 1e3, lanes=FP32_LANES.get(capability),
        local_bytes=fact("MAX_SHARED_MEMORY_PER_BLOCK"), memory_bytes=memory, max_buffer_bytes=memory,
        max_work_group=fact("MAX_THREADS_PER_BLOCK"), max_items=tuple(fact(f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ"),
        base_align=256, vector_widths=nvrtc.VECTOR_WIDTHS, subgroup=fact("WARP_SIZE"), arch="sm_{}{}".format(*capability),
        dynamic_local_bytes=fact("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), handle=number,
    )  # fmt: skip


def device_of(pointer: int) -> int:
    """The number of the device that an address belongs to; 0 where the driver does not know it."""
    driver = _driver()
    if isinstance(driver, str):
        raise NoDevice(f"an array in CUDA memory cannot be reached: {driver}")
    if _forked:
        raise ForkedDevice("a CUDA device")
    status, number = driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
    return 0 if status else int(number)


class _Thread(threading.local):
    """A thread's number, which no other ever has: what an ended thread has started may still run, and graphs keep its memory."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self.numbers)


_thread = _Thread()


def number_of(stream: int) -> int | tuple[int, int]:
    """Return a key for a stream that no other has: the default stream of each thread has one handle, 2, for all of them."""
    return (stream, _thread.number) if stream == 2 else stream


class _Event:
    """An event that goes when nobody refers to it any more; the driver keeps it until it has happened."""

    def __init__(self, handle: Any, context: Any) -> None:
        self.handle = handle
        weakref.finalize(self, _release, _driver().cuEventDestroy, handle, context)


def _release(free: Callable[[Any], Any], handle: Any, context: Any) -> None:
    """Give something back to the context it came from. In a forked child nothing can be given back."""
    with beside_captures():
        if not _forked:
            _driver().cuCtxSetCurrent(context)
            free(handle)


@contextmanager
def beside_captures() -> Iterator[None]:
    """Let a block, or a function, load, allocate, copy, wait and make streams while some stream is captured into a graph.

    Anywhere else the driver would refuse that, and invalidate the capture, whichever thread's it is. Loading is asked for by
    the thread that multiplies first, waiting by a thread that verifies a kernel, freeing by Python's collector: none of them
    knows of the capture. Waiting for what is captured stays an error. In a forked child it does nothing, as no call may follow.
    Only launches, which must not wait, and queries that any thread may make are outside such a block.
    """
    if _forked:
        yield
        return
    driver = _driver()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = _call(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


@functools.cache
def bus(number: object) -> str:
    """Return the PCI address of a GPU by its number."""
    return str(_call(_driver().cuDeviceGetPCIBusId(32, number)).split(b"\0")[0].decode())


def clock_mhz(device: Device) -> float | None:
    """The clock that the multiprocessors of a GPU of this backend run at now, where NVML can be asked."""
    return nvml.clock_mhz(bus(device.handle))


class CUDABuffer:
    """Device memory; it goes when the last buffer that shares it does."""

    def __init__(self, pointer: int, nbytes: int, whole: CUDABuffer | None = None) -> None:
        self.pointer, self.nbytes, self._whole = pointer, nbytes, whole

    @property
    def handle(self) -> int:
        return self.pointer

    def part(self, offset: int, nbytes: int) -> CUDABuffer:
        return CUDABuffer(self.pointer + offset, nbytes, self)


class CUDAKernel:
    """A function of a loaded cubin.

    Attributes
    ----------
    dynamic : bytes of dynamic shared memory a launch asks for
    largest : threads a block may have with the registers the function takes
    """

    def __init__(self, function: Any, source: Source, resources: Resources, dynamic: int, largest: int) -> None:
        self.function, self.source, self.resources, self.dynamic, self.largest = function, source, resources, dynamic, largest


class CUDASession:
    """A GPU's primary context, which other libraries share, and a stream of our own."""

    @beside_captures()
    def __init__(self, device: Device) -> None:
        if _forked:
            raise ForkedDevice(str(device))
        from cuda import core

        self.device = device
        self._driver = driver = _driver()
        self._gpu = gpu = core.Device(device.handle)
        try:
            gpu.set_current()  # cuda.core keeps the primary context until the process ends
            self._stream = gpu.create_stream()
        except Exception as error:  # cuda.core's own type for these is not public
            let_through(error)
            raise NoDevice(f"{device} cannot be opened: {error}") from None
        self._context = _call(driver.cuCtxGetCurrent())
        self.queue = self._stream.handle
        self._timed = core.EventOptions(timing_enabled=True)
        self._last = "the queue"
        self._workspaces: dict[Hashable, Workspace] = {}
        self._workspace_lock = renewed(threading.Lock())
        self._flags: dict[Hashable, CUDABuffer] = {}
        self._outgrown: list[CUDABuffer] = []
        self._can_overlap = nvrtc.capability(device.arch) >= OVERLAPS and _call(driver.cuDriverGetVersion()) >= CAPTURES_OVERLAPS
        self._gate: tuple[Kernel, NDArray[Any], Iterator[int]] | None = None

    def fingerprint(self) -> str:
        return "\n".join((self.device.runtime, self.device.driver, nvrtc.fingerprint(self.device.arch)))

    @beside_captures()  # NVRTC looks into the driver, too
    def compile(self, source: Source) -> bytes:
        # a cubin for this GPU's architecture: compiled, or checked where it is machine code already
        self._alive()
        if source.language == "cubin":
            cubin.check(source.binary, source.name, self.device.arch, source.symbol)
            return source.binary
        return nvrtc.compile_cubin(source, self.device.arch, str(self.device)).code

    @beside_captures()
    def load(self, binary: bytes, source: Source) -> CUDAKernel:
        self._alive()
        driver, device = self._driver, self.device
        what, codes = described(source), driver.CUresult
        try:
            module = _call(driver.cuModuleLoadData(binary))
            function = _call(driver.cuModuleGetFunction(module, source.symbol.encode()))
        except _DriverError as error:
            if error.status == codes.CUDA_ERROR_NO_BINARY_FOR_GPU:
                raise LaunchError(
                    f"{what}: the binary is for another architecture than {device.arch} of {device}; compile it for that"
                ) from None
            raise source.failed(device, f"the binary does not load: {error}") from None

        def fact(name: str) -> int:
            which = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            return int(_call(driver.cuFuncGetAttribute(which, function)))

        dynamic = source.defines.get(DYNAMIC_SHARED, 0)
        shared = fact("SHARED_SIZE_BYTES") + dynamic
        if shared > max(device.local_bytes, device.dynamic_local_bytes):
            raise LaunchError(
                f"{what} needs {shared:,} bytes of shared memory a block; "
                f"{device} has {device.dynamic_local_bytes:,}: use a smaller tile"
            )
        if dynamic:
            largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _call(driver.cuFuncSetAttribute(function, largest, dynamic))
        if fact("REQUIRED_CLUSTER_WIDTH") > PORTABLE_CLUSTER:
            allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _call(driver.cuFuncSetAttribute(function, allowed, 1))
        resources = Resources(fact("NUM_REGS"), shared, fact("LOCAL_SIZE_BYTES"))
        kernel = CUDAKernel(function, source, resources, dynamic, fact("MAX_THREADS_PER_BLOCK"))
        weakref.finalize(kernel, _release, driver.cuModuleUnload, module, self._context)
        return kernel

    @beside_captures()
    def allocate(self, nbytes: int) -> CUDABuffer:
        self._alive()
        driver = self._driver
        free, _ = _call(driver.cuMemGetInfo())
        if nbytes > free:
            raise OutOfDeviceMemory(str(self.device), nbytes, free, "beside what is in use")
        try:
            pointer = _call(driver.cuMemAlloc(max(nbytes, 4)))
        except _DriverError as error:
            if error.status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise OutOfDeviceMemory(str(self.device), nbytes, free, "in one piece") from None
            raise self._failed(error) from None
        buffer = CUDABuffer(int(pointer), nbytes)
        weakref.finalize(buffer, _release, driver.cuMemFree, pointer, self._context)
        return buffer

    @beside_captures()
    def upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self._alive()
        if array.nbytes:
            source = np.ascontiguousarray(array)
            self._do(self._driver.cuMemcpyHtoDAsync(buffer.handle, source.ctypes.data, source.nbytes, self.queue))
            self.synchronize()

    @beside_captures()
    def download(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self._alive()
        if array.nbytes:
            self._do(self._driver.cuMemcpyDtoHAsync(array.ctypes.data, buffer.handle, array.nbytes, self.queue))
            self.synchronize()

    def bind(
        self, kernel: Any, groups: Sequence[int], local: Sequence[int], args: Arguments, options: Mapping[str, int] | None = None
    ) -> Launch:
        # lay the arguments out once, so that a launch is one call
        self._alive()
        driver, what = self._driver, f"{described(kernel.source)} on {self.device}"
        grid, block = checked(self.device, kernel, groups, local)
        if kernel.source.language == "cubin":
            sizes = [a.nbytes if isinstance(a, np.generic) else 8 for a in args]
            cubin.check_launch(kernel.source.binary, kernel.source.name, kernel.source.symbol, block, sizes)
        if (options or {}).get("CARVEOUT"):
            carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            self._do(driver.cuFuncSetAttribute(kernel.function, carveout, ALL_SHARED))
        # the driver takes an array of addresses of the arguments; all of it must live as long as the launch
        values = [in_memory(a) for a in args]
        addresses = np.array([value.ctypes.data for value in values], np.uint64)
        kept = (kernel, tuple(args), values, addresses)
        function, dynamic, at = kernel.function, kernel.dynamic, int(addresses.ctypes.data)
        enter, start, context, queue = driver.cuCtxSetCurrent, driver.cuLaunchKernel, self._context, self.queue

        def launch() -> None:
            enter(context)  # another session, or another thread, may have been here
            (status,) = start(function, *grid, *block, dynamic, queue, at, 0)
            if status:
                raise LaunchError(f"{what} with {len(kept[1])} arguments: {status_text(driver, status)}")
            self._last = what

        return launch

    def tensor_map(self, buffer: Buffer, rows: int, cols: int, box: tuple[int, int]) -> np.void:
        """A kernel argument that tells the copy engine of a matrix of fp16, row-major and tight, and of the boxes it fetches.

        ``box``: rows and columns; a row of it has 128 bytes at most and comes swizzled by 128 bytes. Wants rows of whole 16 bytes.
        """
        return self._encoded("fp16", buffer.handle, (rows, cols), 2 * cols, box)

    def _encoded(self, of: str, address: int, shape: tuple[int, int], stride: int, box: tuple[int, int]) -> np.void:
        self._alive()
        d, (rows, cols) = self._driver, shape
        kinds, swizzles = d.CUtensorMapDataType, d.CUtensorMapSwizzle
        kind = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_FLOAT{of[2:]}")
        swizzle = swizzles.CU_TENSOR_MAP_SWIZZLE_128B if of == "fp16" else swizzles.CU_TENSOR_MAP_SWIZZLE_NONE
        try:
            found = _call(d.cuTensorMapEncodeTiled(
                kind, 2, address, [d.cuuint64_t(cols), d.cuuint64_t(rows)], [d.cuuint64_t(stride)],
                [d.cuuint32_t(box[1]), d.cuuint32_t(box[0])], [d.cuuint32_t(1), d.cuuint32_t(1)],
                d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))  # fmt: skip
        except _DriverError as error:
            raise LaunchError(
                f"no tensor map of {rows}×{cols} {of} in boxes of {box[0]}×{box[1]} on {self.device}: {error}"
            ) from None
        return np.void(b"".join(int(word).to_bytes(8, "little") for word in found.opaque))

    def bind_unsized(self, kernel: Any, items: Sequence[int], args: Arguments) -> Launch:
        raise Unsupported("CUDA has no launch without a block size")

    @beside_captures()
    def branch(self) -> CUDASession:
        self._alive()
        other = copy.copy(self)
        other._stream = self._gpu.create_stream()
        other.queue = other._stream.handle
        return other

    @beside_captures()
    def start_upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        # host to device, not waited for; from memory that is not pinned the driver waits by itself
        self._alive()
        if array.nbytes:
            self._do(self._driver.cuMemcpyHtoDAsync(buffer.handle, array.ctypes.data, array.nbytes, self.queue))

    def submit(self) -> None:
        # nothing to do: a stream passes on what it is given
        self._alive()

    def launcher(self, plan: Plan) -> Run:
        self._alive()
        return launcher(self, plan)

    def encoded(self, of: Map, address: int) -> NDArray[np.uint8]:
        """Return the bytes of a tensor map of the matrix at an address.

        Raises
        ------
        BadArgument
            the address is not on 16 bytes
        """
        if address % 16:
            raise BadArgument(f"an operand at {address:#x} is not on 16 bytes, as the call says; make an executable for align = 1")
        made = self._encoded(of.dtype, address, (of.rows, of.cols), of.stride, of.box)
        return np.frombuffer(made.tobytes(), np.uint8)

    def flags(self, stream: int, nbytes: int) -> int:
        """Return the address of a stream's flags: words that are 0 whenever no launch in it runs. Graphs keep the addresses."""
        key = number_of(stream)
        found = self._flags.get(key)
        if found is None or found.nbytes < nbytes:
            with self._workspace_lock:
                found = self._flags.get(key)  # another thread may have made it meanwhile
                if found is None or found.nbytes < nbytes:
                    if found is not None:
                        self._outgrown.append(found)
                    found = self.allocate(max(nbytes, 1024))
                    self.upload(found, np.zeros(found.nbytes, np.uint8))
                    self._flags[key] = found
        return found.pointer

    def zero(self, address: int, words: int, stream: Any) -> None:
        """Put into a stream that 32-bit words become 0."""
        self._alive()
        self._do(self._driver.cuMemsetD32Async(address, 0, words, stream))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this session's context the thread's own for the length of a ``with`` block, as other libraries need it."""
        before = self._driver.cuCtxGetCurrent()[1]
        self._alive()
        try:
            yield
        finally:
            self._driver.cuCtxSetCurrent(before)

    def foreign(self, handle: Any, nbytes: int) -> CUDABuffer:
        return CUDABuffer(int(handle), nbytes)

    def workspace(self, queue: Any, nbytes: int) -> Workspace:
        # one for each stream, which doubles at least when it grows; what it outgrew stays, for graphs keep the addresses
        key = number_of(int(self.queue if queue is None else queue))
        found = self._workspaces.get(key)
        if found is None or found.buffer.nbytes < nbytes:
            with self._workspace_lock:
                found = self._workspaces.get(key)
                if found is None:
                    found = self._workspaces[key] = Workspace(self.allocate(nbytes))
                elif found.buffer.nbytes < nbytes:
                    with found.lock:
                        larger = self.allocate(max(nbytes, 2 * found.buffer.nbytes))
                        found.outgrown.append(found.buffer)
                        found.buffer = larger
        return found

    @beside_captures()
    def mark(self) -> object:
        self._alive()
        return self._stream.record(options=self._timed)

    @beside_captures()
    def seconds(self, start: Any, end: Any) -> float:
        self._alive()
        self._do(self._driver.cuEventSynchronize(end.handle))
        elapsed: float = (end - start) * 1e-3
        return elapsed

    def hold(self) -> Launch:
        if self._gate is None:
            source = Source(HOLD.stem, HOLD.read_text("utf-8"), HOLD.stem, {}, "cuda")
            self._gate = self.load(self.compile(source), source), self.pinned(8).view(np.int64), itertools.count(1)
            self._gate[1][0] = 0
        kernel, opened, numbers = self._gate
        number = next(numbers)
        args = (CUDABuffer(opened.ctypes.data, 8), np.int64(number), np.int64(1e9 * HOLD_SECONDS))
        self.bind(kernel, (1,), (1,), args)()

        def release() -> None:
            opened[0] = number

        return release

    @beside_captures()
    def synchronize(self) -> None:
        self._alive()
        self._do(self._driver.cuStreamSynchronize(self.queue))

    @beside_captures()
    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._alive()
        driver = self._driver
        try:
            address = int(_call(driver.cuMemHostAlloc(max(nbytes, 1), 0)))
        except _DriverError as error:
            raise OutOfDeviceMemory(str(self.device), nbytes, 0, f"page-locked host memory: {error}") from None
        memory = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
        weakref.finalize(memory, _release, driver.cuMemFreeHost, address, self._context)
        return np.ctypeslib.as_array(memory)[:nbytes]

    @beside_captures()
    def new_queue(self) -> Any:
        # one more stream, kept as long as the session; it waits for no other
        self._alive()
        stream = _call(self._driver.cuStreamCreate(self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        weakref.finalize(self, _release, self._driver.cuStreamDestroy, stream, self._context)
        return stream

    @beside_captures()
    def copy_in(self, queue: Any, buffer: Buffer, offset: int, array: NDArray[Any]) -> None:
        # put a copy of pinned memory to byte `offset` of a buffer into a queue; does not wait
        self._alive()
        self._do(self._driver.cuMemcpyHtoDAsync(buffer.handle + offset, array.ctypes.data, array.nbytes, queue))

    @beside_captures()
    def copy_out(self, queue: Any, array: NDArray[Any], buffer: Buffer, offset: int) -> None:
        # put a copy from byte `offset` of a buffer to pinned memory into a queue; does not wait
        self._alive()
        self._do(self._driver.cuMemcpyDtoHAsync(array.ctypes.data, buffer.handle + offset, array.nbytes, queue))

    @beside_captures()
    def record(self, queue: Any) -> Any:
        self._alive()
        event = _call(self._driver.cuEventCreate(self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._do(self._driver.cuEventRecord(event, queue))
        return _Event(event, self._context)

    @beside_captures()
    def wait(self, queue: Any, event: Any) -> None:
        # make what comes into a queue from now on wait for an event; the host does not
        self._alive()
        self._do(self._driver.cuStreamWaitEvent(queue, event.handle, 0))

    @beside_captures()
    def settle(self, event: Any) -> None:
        self._alive()
        self._do(self._driver.cuEventSynchronize(event.handle))

    @beside_captures()
    def settle_queue(self, queue: Any) -> None:
        self._alive()
        self._do(self._driver.cuStreamSynchronize(queue))

    def capturing(self, queue: Any) -> bool:
        # true if a stream is being captured; the default stream may not be used while any is, and counts as captured
        self._alive()
        driver = self._driver
        status, *found = driver.cuStreamIsCapturing(self.queue if queue is None else queue)
        return bool(status) or found[0] != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE

    def clock_mhz(self) -> float | None:
        return clock_mhz(self.device)

    @beside_captures()
    def close(self) -> None:
        # finish; memory goes when its last buffer does
        if not _forked:
            self._driver.cuStreamSynchronize(self.queue)
            self._stream.close()

    def _alive(self) -> None:
        if _forked:
            raise ForkedDevice(str(self.device))
        self._driver.cuCtxSetCurrent(self._context)

    def _do(self, result: tuple[Any, ...]) -> None:
        try:
            _call(result)
        except _DriverError as error:
            raise self._failed(error) from None

    def _failed(self, error: _DriverError) -> LaunchError:
        """Name what was launched last as the likely cause: a kernel's faults are reported by whatever is asked next."""
        return LaunchError(
            f"{self.device}: {error}; last launched: {self._last}. After a fault in a kernel, start the process again"
        )
