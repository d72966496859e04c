"""OpenCL through pyopencl: any OpenCL GPU, and PoCL or Intel's runtime on a CPU."""

from __future__ import annotations

import copy
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import sqlite3
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung import backends
from toprung.backends import cuda, pocl_cache, pocl_cpu
from toprung.backends.base import Arguments, Buffer, Launch, Resources, Session, Source, Workspace
from toprung.backends.plan import SMALLEST, WORKSPACE, First, Handle, KernelLaunch, Plan, Run, Scalar
from toprung.device import FP32_LANES, Device
from toprung.errors import BadCubin, ForkedDevice, LaunchError, NoDevice, OutOfDeviceMemory, Unfinished
from toprung.forks import in_child, renewed
from toprung.paths import cache_dir, of_user, publish_cached, unwritable

PRELUDE = Path(__file__).with_name("prelude.cl")
VECTOR_WIDTHS = (1, 2, 4, 8, 16)
ROOM_FOR = re.compile(r"room_for\([^()]*,\s*(\w+)\)")
"""The prelude's word for a kernel of which several work-groups are to fit a compute unit, with their number or its macro."""
REQUIRED_SIZE = re.compile(rb"(\.reqntid [^\n]+)")
BUILD_FLAGS = {"separate": "-DTOPRUNG_SEPARATE", "mad": "-cl-mad-enable", "fast": "-cl-fast-relaxed-math"}
NV_RESERVED = 16
"""Bytes of local memory that NVIDIA's compiler may put beside a kernel's own arrays."""


_forked = False


@in_child
def _note_fork() -> None:
    global _forked
    _forked = "pyopencl" in sys.modules


def _show_intel_runtime() -> str | None:
    """Make Intel's CPU runtime visible to the ICD loader; its wheel leaves a placeholder in place of its own path.

    Returns the library's path where the runtime is installed. The loader reads one folder of .icd files: we give it one with
    the system's files and Intel's. A folder the user chose (``OCL_ICD_VENDORS``) is left as it is.
    """
    library = next((p for p in (Path(sys.prefix) / "lib" / "libintelocl.so",) if p.exists()), None)
    if library is None or "OCL_ICD_VENDORS" in os.environ:
        return str(library) if library else None
    files = {p.name: p.read_bytes() for p in sorted(Path("/etc/OpenCL/vendors").glob("*.icd"))}
    files["toprung-intel.icd"] = f"{library}\n".encode()
    digest = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
    folder = cache_dir() / f"vendors-{digest}"
    for name, content in files.items():
        if not (folder / name).exists():
            publish_cached(folder / name, content)
    if all((folder / name).exists() for name in files):
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    return str(library)


@functools.cache
def _pyopencl() -> Any:
    """Return pyopencl; None if it cannot be imported (``_missing`` says why)."""
    _show_intel_runtime()
    pocl_cache.make_writable()
    if unwritable(of_user("user_cache_dir", "pytools")):
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # it fails at the first launch otherwise
    try:
        import pyopencl
    except ImportError as error:
        _missing.append(str(error))
        return None
    # This hides the warnings of all builds in the process. pyopencl warns from its own frames, so no filter can tell whose build it
    # was. warnings.catch_warnings around a build would undo what another thread does to the filters meanwhile.
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl


_missing: list[str] = []
"""Reason why pyopencl cannot be imported."""


class OpenCLBackend:
    """All OpenCL platforms of the machine."""

    name = "opencl"
    languages = ("opencl",)
    prelude = PRELUDE

    def devices(self) -> list[Device]:
        """Every device of every platform, in the loader's order."""
        if _forked:  # first: another thread may have been importing pyopencl, which no child ends
            raise ForkedDevice("an OpenCL platform")
        cl = _pyopencl()
        if cl is None:
            return []
        try:
            platforms = cl.get_platforms()
        except cl.Error:
            return []
        pocl_cpu.help_if_unknown()
        found: list[Device] = []
        for platform in platforms:
            try:
                handles = platform.get_devices()
            except cl.Error:
                continue
            found += [_facts(cl, platform, handle, len(found) + i) for i, handle in enumerate(handles)]
        return found

    def advice(self) -> list[str]:
        """Return advice on getting a CPU runtime where there is no device."""
        lines = []
        if _pyopencl() is None:
            installed = importlib.util.find_spec("pyopencl") is not None
            reason = f"cannot be imported ({_missing[0]}); reinstall it with" if installed else "is not installed;"
            lines.append(f"OpenCL: pyopencl {reason} pip install pyopencl")
        elif not self.devices():
            lines.append(f"OpenCL: {_no_runtime()}")
        return lines

    def open(self, device: Device) -> Session:
        """Open one device with a queue of its own."""
        return OpenCLSession(device)

    def adopt(self, queue: Any) -> Session:
        """Work in the context of somebody else's queue, whose memory and queues launches then take.

        Raises
        ------
        NoDevice
            the queue's device is not one of ours
        """
        for device in self.devices():
            if device.handle == queue.device:
                return OpenCLSession(device, queue.context)
        raise NoDevice(f"the queue's device {queue.device.name} is on no platform that is listed; see toprung devices")


def clock_from_outside(device: Device) -> float | None:
    """Return a device's clock in MHz where its runtime cannot: a CPU's by the operating system, an NVIDIA GPU's by the driver."""
    if device.kind != "cpu":
        same = backends.twin(device, "cuda")
        return cuda.clock_mhz(same) if same else None
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return max(clocks, default=None)


def _no_runtime() -> str:
    """Return why the loader finds no runtime, a sentence with the remedy."""
    folder = os.environ.get("OCL_ICD_VENDORS", "")
    if folder and not (Path(folder).is_file() or list(Path(folder).glob("*.icd"))):
        return f"no runtime found, because OCL_ICD_VENDORS={folder} has no .icd file: unset it, or set it to a folder that has some"
    if importlib.util.find_spec("pocl_binary_distribution") is not None:
        return (
            "no runtime found, though PoCL is installed (pocl-binary-distribution): its library does not load, or finds no folder "
            f"to write to; {pocl_cache.VARIABLE} sets that"
        )
    return (
        "no runtime found; on a CPU install PoCL with pip install pocl-binary-distribution (Linux x86-64) or your system's package "
        "pocl-opencl-icd; a GPU's driver brings its own"
    )


def backend() -> OpenCLBackend:
    """This module's backend."""
    return OpenCLBackend()


def _facts(cl: Any, platform: Any, handle: Any, number: int) -> Device:
    extensions = handle.extensions.split()
    kinds = {cl.device_type.GPU: "gpu", cl.device_type.CPU: "cpu"}
    kind = next((k for bit, k in kinds.items() if handle.type & bit), "other")
    lanes, arch, reserved = None, "", 0
    if "cl_nv_device_attribute_query" in extensions:
        capability = (handle.compute_capability_major_nv, handle.compute_capability_minor_nv)
        lanes, arch = FP32_LANES.get(capability), "sm_{}{}".format(*capability)
        reserved = NV_RESERVED
    subgroup = None
    if "cl_khr_subgroup_shuffle" in extensions and "cl_intel_required_subgroup_size" in extensions:
        subgroup = 16  # the prelude asks for it; these runtimes offer 4 to 64
    return Device(
        id=f"opencl:{number}", backend="opencl", name=handle.name.strip(), vendor=handle.vendor.strip(),
        driver=handle.driver_version.strip(), runtime=f"{platform.name.strip()} ({handle.version.strip()})", kind=kind,
        compute_units=handle.max_compute_units, clock_mhz=float(handle.max_clock_frequency), lanes=lanes,
        local_bytes=handle.local_mem_size - reserved, memory_bytes=handle.global_mem_size,
        max_buffer_bytes=handle.max_mem_alloc_size, max_work_group=handle.max_work_group_size,
        max_items=tuple(handle.max_work_item_sizes), base_align=handle.mem_base_addr_align // 8, vector_widths=VECTOR_WIDTHS,
        subgroup=subgroup, arch=arch, handle=handle,
    )  # fmt: skip


class OpenCLBuffer:
    """A pyopencl buffer."""

    def __init__(self, raw: Any, nbytes: int, whole: OpenCLBuffer | None = None) -> None:
        self.raw = self.handle = raw
        self.nbytes, self._whole = nbytes, whole

    def part(self, offset: int, nbytes: int) -> OpenCLBuffer:
        # a sub-buffer; an empty part still is one word long, because OpenCL has no empty buffers
        return OpenCLBuffer(self.raw.get_sub_region(offset, max(nbytes, 4)), nbytes, self)


def _kernel_object(cl: Any, program: Any, name: str) -> Any:
    """Return a new kernel object; a full disk costs pyopencl's cache of what it generates for one, and no kernel."""
    try:
        return cl.Kernel(program, name)
    except sqlite3.Error:
        cl._PYOPENCL_NO_CACHE = True
        return cl.Kernel(program, name)


class OpenCLKernel:
    """A built program; every bound launch takes its own kernel object, since arguments belong to the object."""

    def __init__(self, program: Any, source: Source, resources: Resources) -> None:
        self.program, self.source, self.resources = program, source, resources
        self.sizes: set[object] = set()
        """Work-group sizes it has been bound with: PoCL compiles it once more for each, at the first launch."""


class OpenCLSession:
    """A context and an in-order queue that stamps events with the device's time. ``context``: somebody else's, to work in."""

    def __init__(self, device: Device, context: Any = None) -> None:
        if _forked:
            raise ForkedDevice(str(device))
        self.device = device
        self._cl = cl = _pyopencl()
        self._handle: Any = device.handle
        self._context = cl.Context([device.handle]) if context is None else context
        self.queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE, device=device.handle)
        self._allocated = 0
        self._uploads: list[Any] = []
        self._workspaces: dict[int, Workspace] = {}
        self._workspace_lock = renewed(threading.Lock())

    def fingerprint(self) -> str:
        d = self.device
        return "\n".join((d.runtime, d.driver, d.name, d.arch, str(d.subgroup), PRELUDE.read_text("utf-8"), *pocl_cache.settings()))

    def compile(self, source: Source) -> bytes:
        # build for this device; returns the runtime's binary
        self._alive()
        cl = self._cl
        if source.language == "cubin":
            raise BadCubin(
                f"{source.name} is machine code for CUDA, and {self.device} is reached through OpenCL: use a CUDA device"
            )
        if source.language != "opencl":
            raise source.failed(self.device, "OpenCL cannot compile CUDA C++; use a CUDA device")
        self._need_tools(source)
        text = f"{PRELUDE.read_text('utf-8')}\n#line 1\n{source.text}"
        with self._alone(source):
            try:
                program = cl.Program(self._context, text).build(self._options(source), cache_dir=False)
            except cl.Error as error:  # with the build log; what a compiler prints besides stays on standard error
                self._need_room(source)
                raise source.failed(self.device, str(error)) from None
            used = self._registers(program)  # only this log says it: a line in front of the binary keeps it
            binary = self._binary(program, source)
        if room := ROOM_FOR.search(source.text):  # an NVIDIA binary is PTX, which can say what OpenCL C cannot
            groups = int(source.defines.get(room[1], room[1]))
            binary = REQUIRED_SIZE.sub(rb"\1\n.minnctapersm %d" % groups, binary) if groups else binary
        return used.encode() + b"\n" + binary

    def load(self, binary: bytes, source: Source) -> OpenCLKernel:
        self._alive()
        cl = self._cl
        self._need_tools(source)
        used, _, binary = binary.partition(b"\n")
        try:
            with self._alone(source):
                program = cl.Program(self._context, [self.device.handle], [binary]).build(self._options(source), cache_dir=False)
            kernel = _kernel_object(cl, program, source.kernel)
        except cl.Error as error:
            self._need_room(source)
            raise source.failed(self.device, str(error)) from None
        info, what = cl.kernel_work_group_info, self.device.handle
        local = int(kernel.get_work_group_info(info.LOCAL_MEM_SIZE, what))
        if local > self.device.local_bytes:
            raise LaunchError(
                f"{source.name} with {source.defines_text()} needs {local:,} bytes of local memory a work-group; "
                f"{self.device} has {self.device.local_bytes:,}: use a smaller tile"
            )
        private = int(kernel.get_work_group_info(info.PRIVATE_MEM_SIZE, what))
        registers = self._registers(program) or used.decode()
        return OpenCLKernel(program, source, Resources(int(registers) if registers else None, local, private))

    def _binary(self, program: Any, source: Source) -> bytes:
        """Return a program's binary, asked for through ctypes: PoCL compiles in this call, and pyopencl would hold the GIL."""
        what, devices = self._cl.program_info, program.get_info(self._cl.program_info.NUM_DEVICES)
        info = getattr(ctypes.CDLL(self._cl._cl.__file__), "clGetProgramInfo", None)  # of the loader that pyopencl has loaded
        if info is None:  # Windows shows no names of a library's libraries
            return bytes(program.get_info(what.BINARIES)[0])

        def ask(name: int, found: Any) -> None:
            if status := info(ctypes.c_void_p(program.int_ptr), name, ctypes.sizeof(found), found, None):
                raise source.failed(self.device, f"no binary: OpenCL's error {status}")

        ask(what.BINARY_SIZES, sizes := (ctypes.c_size_t * devices)())
        binary = ctypes.create_string_buffer(sizes[0])
        ask(what.BINARIES, (ctypes.c_void_p * devices)(ctypes.addressof(binary)))  # the first device's
        return binary.raw

    def _need_tools(self, source: Source) -> None:
        """Raise BuildError or NoRoom if PoCL could not link a CPU's kernel or write its files: it ends the process then."""
        links = self.device.kind == "cpu" and self.device.runtime.startswith(pocl_cache.PLATFORM)
        if links and shutil.which("ld", path=os.environ.get("PATH", "")) is None:
            advice = "PoCL links kernels with ld, which is not on the PATH: install your system's package binutils"
            raise source.failed(self.device, advice)
        self._need_room(source)

    def _need_room(self, source: Source) -> None:
        if self.device.runtime.startswith(pocl_cache.PLATFORM):
            pocl_cache.need_room(f"{source.name} with {source.defines_text() or 'no definitions'} on {self.device}")

    def _need_room_for(self, kernel: OpenCLKernel, items: object) -> None:
        if items not in kernel.sizes:
            self._need_room(kernel.source)
            kernel.sizes.add(items)

    def _registers(self, program: Any) -> str:
        """Registers of a work-item as NVIDIA's build log gives them; empty where it does not."""
        log = program.get_build_info(self._handle, self._cl.program_build_info.LOG) or ""
        used = re.search(r"Used (\d+) registers", log)
        return used[1] if used else ""

    def _alone(self, source: Source) -> AbstractContextManager[None]:
        """Nobody else builds this source meanwhile, where that would do harm."""
        if not self.device.runtime.startswith(pocl_cache.PLATFORM):
            return nullcontext()
        return pocl_cache.alone(" ".join(self._options(source)))

    def _options(self, source: Source) -> list[str]:
        """Macros, and what NVIDIA's compiler is told besides."""
        defines = dict(source.defines)
        if self.device.subgroup is not None:
            defines["SUBGROUP"] = self.device.subgroup
        options = [f"-D{name}={value}" for name, value in defines.items()] + [BUILD_FLAGS[flag] for flag in source.flags]
        if "cl_nv_compiler_options" in self._handle.extensions:
            options.append("-cl-nv-verbose")  # says how many registers it took; -cl-nv-maxrregcount would change nothing
        return options

    def allocate(self, nbytes: int) -> OpenCLBuffer:
        self._alive()
        cl, device = self._cl, self.device
        if nbytes > device.max_buffer_bytes:
            raise OutOfDeviceMemory(str(device), nbytes, device.max_buffer_bytes)
        if self._allocated + nbytes > device.memory_bytes:
            raise OutOfDeviceMemory(str(device), nbytes, device.memory_bytes - self._allocated, "beside what is in use")
        try:
            raw = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(nbytes, 4))
        except (cl.Error, MemoryError):
            raise OutOfDeviceMemory(str(device), nbytes, device.memory_bytes - self._allocated) from None
        self._allocated += nbytes
        buffer = OpenCLBuffer(raw, nbytes)
        weakref.finalize(buffer, self._freed, nbytes)
        return buffer

    def _freed(self, nbytes: int) -> None:
        self._allocated -= nbytes

    def upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self._alive()
        if array.nbytes:
            self._cl.enqueue_copy(self.queue, buffer.handle, np.ascontiguousarray(array), is_blocking=True)

    def download(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self._alive()
        if array.nbytes:
            self._cl.enqueue_copy(self.queue, array, buffer.handle, is_blocking=True)

    def bind(
        self, kernel: Any, groups: Sequence[int], local: Sequence[int], args: Arguments, options: Mapping[str, int] | None = None
    ) -> Launch:
        total = tuple(g * n for g, n in zip(groups, local, strict=True))
        return self._bound(kernel, total, tuple(local), args)

    def bind_unsized(self, kernel: Any, items: Sequence[int], args: Arguments) -> Launch:
        return self._bound(kernel, tuple(items), None, args)

    def _bound(self, kernel: Any, total: tuple[int, ...], items: tuple[int, ...] | None, args: Arguments) -> Launch:
        self._alive()
        self._need_room_for(kernel, items or total)
        cl, queue = self._cl, self.queue
        bound = _kernel_object(cl, kernel.program, kernel.source.kernel)
        bound.set_args(*(a if isinstance(a, np.generic) else a.handle for a in args))
        kept = tuple(args)  # the runtime need not keep memory alive that only an argument refers to

        def launch() -> None:
            try:
                cl.enqueue_nd_range_kernel(queue, bound, total, items)
            except cl.Error as error:
                what = f"{kernel.source.name} with {kernel.source.defines_text()} and {len(kept)} arguments"
                raise LaunchError(f"{what} on {self.device}: {error}") from None

        return launch

    def branch(self) -> OpenCLSession:
        # another queue in the same context, without profiling: time stamps may keep queues from running side by side
        self._alive()
        other = copy.copy(self)
        other.queue, other._uploads = self._cl.CommandQueue(self._context), []
        return other

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._alive()
        cl = self._cl
        try:
            raw = cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, max(nbytes, 4))
        except (cl.Error, MemoryError):
            raise OutOfDeviceMemory(str(self.device), nbytes, self.device.max_buffer_bytes, "pinned host memory") from None
        access = cl.map_flags.READ | cl.map_flags.WRITE
        array: NDArray[np.uint8] = cl.enqueue_map_buffer(self.queue, raw, access, 0, (nbytes,), np.uint8)[0]
        return array

    def start_upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self._alive()
        if array.nbytes:
            event = self._cl.enqueue_copy(self.queue, buffer.handle, array, is_blocking=False)
            self._uploads.append(event)  # pyopencl waits for the copy when its event goes

    def submit(self) -> None:
        self._alive()
        self.queue.flush()

    def launcher(self, plan: Plan) -> Run:
        self._alive()
        own = self.queue
        bound = [self._planned(launch) for launch in plan.launches]
        scaling = functools.cache(lambda: [self._planned(launch) for launch in plan.scales or ()])  # few programs ever scale so

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None, addend: Any = None, packed: Any = None,
        ) -> None:  # fmt: skip
            queue = own if queue is None else queue
            handles, first = [a, b, c, addend, workspace], [offset_a, offset_b, offset_c, 0, 0]
            some = scaling() if plan.scales is not None and -SMALLEST <= alpha <= SMALLEST else bound
            if not plan.workspace_bytes or workspace is not None:
                self._launch(queue, some, handles, first, alpha, beta)
            else:
                work = self.workspace(queue, plan.workspace_bytes)
                with work.lock:  # another product's launches must not come between these
                    handles[WORKSPACE] = work.buffer.handle
                    self._launch(queue, some, handles, first, alpha, beta)

        return run

    def _planned(self, launch: KernelLaunch) -> tuple[Any, tuple[int, ...], tuple[int, ...], list[tuple[int, Any]], str]:
        """Return a kernel object with the arguments that stay, its items, and the arguments that change with their places."""
        kernel: Any = launch.kernel
        made = _kernel_object(self._cl, kernel.program, kernel.source.kernel)
        changing = list[tuple[int, Any]]()
        for i, argument in enumerate(launch.arguments):
            if isinstance(argument, Handle | First | Scalar):
                changing.append((i, argument))
            else:
                made.set_arg(i, argument.handle if isinstance(argument, OpenCLBuffer) else argument)
        items = (*launch.local, *(1 for _ in launch.groups[len(launch.local) :]))
        self._need_room_for(kernel, items)
        what = f"{kernel.source.name} with {kernel.source.defines_text()}"
        return made, tuple(g * n for g, n in zip(launch.groups, items, strict=True)), items, changing, what

    def _launch(self, queue: Any, some: Any, handles: list[Any], first: list[int], alpha: float, beta: float) -> None:
        cl, numbers = self._cl, (alpha, beta, float(alpha != 0.0))
        in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        for number, (kernel, total, items, changing, what) in enumerate(some):
            try:
                with np.errstate(over="ignore"):
                    for i, argument in changing:
                        if isinstance(argument, Handle):
                            kernel.set_arg(i, handles[argument.slot])
                        elif isinstance(argument, First):
                            kernel.set_arg(i, np.int64(first[argument.slot] + argument.plus))
                        else:
                            kernel.set_arg(i, np.float32(numbers[argument.number]))
                if not in_order:  # our launches build on each other
                    cl.enqueue_barrier(queue)
                cl.enqueue_nd_range_kernel(queue, kernel, total, items)
                if not in_order:
                    cl.enqueue_barrier(queue)
            except cl.Error as error:
                raise (Unfinished if number else LaunchError)(f"{what} on {self.device}: {error}") from None

    def foreign(self, handle: Any, nbytes: int) -> OpenCLBuffer:
        return OpenCLBuffer(handle, nbytes)

    def workspace(self, queue: Any, nbytes: int) -> Workspace:
        # one for each queue, which grows; the runtime keeps the smaller one until its last launch is done
        key = (self.queue if queue is None else queue).int_ptr
        with self._workspace_lock:
            found = self._workspaces.get(key)
            if found is None:
                found = self._workspaces[key] = Workspace(self.allocate(nbytes))
        if found.buffer.nbytes < nbytes:
            with found.lock:
                found.buffer = self.allocate(nbytes)
        return found

    def mark(self) -> object:
        self._alive()
        return self._cl.enqueue_marker(self.queue)

    def seconds(self, start: Any, end: Any) -> float:
        end.wait()
        elapsed: float = (end.profile.end - start.profile.end) * 1e-9
        return elapsed

    def hold(self) -> None:
        """There is none: behind a user event runtimes keep commands to themselves, and hand them over when that has happened."""

    def synchronize(self) -> None:
        self._alive()
        self.queue.finish()
        self._uploads.clear()

    def over_host(self, address: int, nbytes: int) -> OpenCLBuffer:
        """Host memory as a buffer, without a copy on devices that share the host's; ``in_sight`` before the host reads it."""
        self._alive()
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        flags = self._cl.mem_flags
        raw = self._cl.Buffer(self._context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=memory)
        return OpenCLBuffer(raw, nbytes)

    def in_sight(self, buffer: Buffer) -> None:
        """Wait, and make what kernels wrote into memory of ``over_host`` visible to the host."""
        self._alive()
        cl, raw = self._cl, buffer.handle
        mapped, _ = cl.enqueue_map_buffer(self.queue, raw, cl.map_flags.READ, 0, (buffer.nbytes,), np.uint8)
        mapped.base.release(self.queue)
        self.queue.finish()

    def new_queue(self) -> Any:
        self._alive()
        return self._cl.CommandQueue(self._context, device=self._handle)

    def copy_in(self, queue: Any, buffer: Buffer, offset: int, array: NDArray[Any]) -> None:
        # put a copy of host memory to byte `offset` of a buffer into a queue; does not wait
        self._alive()
        self._cl.enqueue_copy(queue, buffer.handle, array, dst_offset=offset, is_blocking=False)
        queue.flush()

    def copy_out(self, queue: Any, array: NDArray[Any], buffer: Buffer, offset: int) -> None:
        # put a copy from byte `offset` of a buffer to host memory into a queue; does not wait
        self._alive()
        self._cl.enqueue_copy(queue, array, buffer.handle, src_offset=offset, is_blocking=False)
        queue.flush()

    def record(self, queue: Any) -> Any:
        self._alive()
        event = self._cl.enqueue_marker(queue)
        queue.flush()
        return event

    def wait(self, queue: Any, event: Any) -> None:
        # make what comes into a queue from now on wait for an event; the host does not
        self._alive()
        self._cl.enqueue_barrier(queue, wait_for=[event])

    def settle(self, event: Any) -> None:
        self._alive()
        event.wait()

    def settle_queue(self, queue: Any) -> None:
        self._alive()
        queue.finish()

    def capturing(self, queue: Any) -> bool:
        return False

    def clock_mhz(self) -> float | None:
        # OpenCL cannot read it; others can
        return clock_from_outside(self.device)

    def close(self) -> None:
        # finish; memory goes when its last buffer does
        if not _forked:
            self.queue.finish()

    def _alive(self) -> None:
        if _forked:
            raise ForkedDevice(str(self.device))
