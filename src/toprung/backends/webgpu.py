"""WebGPU through wgpu-py: the GPU of any system by Vulkan, Metal or Direct3D 12, for the ladders; kernels are written in WGSL.

WGSL has no macros: tile parameters and switches come as ``const NAME = value;`` in front of a kernel's first declaration, and loops
that are marked for it are unrolled (``unrolled.py``); line numbers in messages are the file's. A kernel's scalar
arguments, in their order, are one uniform structure at binding 0; its buffers, in their order, are bindings 1, 2, … of group 0. A
page in a browser does the same with the same files (``report/web``).

Nothing of wgpu is imported before somebody asks for devices.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from toprung import backends
from toprung.backends.base import Arguments, Buffer, Launch, Resources, Session, Source
from toprung.backends.opencl import clock_from_outside
from toprung.backends.unrolled import NotUnrolled, unrolled
from toprung.device import Device
from toprung.errors import ForkedDevice, LaunchError, NoDevice, OutOfDeviceMemory, Unsupported, let_through

INSTALL = 'pip install "toprung[webgpu]"'
APIS = {"Vulkan": "Vulkan", "Metal": "Metal", "D3D12": "DX12"}
"""Interfaces below WebGPU that are used, by what an adapter calls them; OpenGL would show the same devices once more."""
WIDTHS = (1, 2, 4)
TIMESTAMPS = "timestamp-query"
STAMPS = 256
"""Time stamps of a query set; a session takes a new set when one is full."""
IN_A_SUBMISSION = 256
"""Launches that are handed to the device together: some drivers end what keeps a GPU busy for seconds in one submission."""
DIRECTIVE = re.compile(r"^(?:enable|requires|diagnostic)\b[^;]*;", re.MULTILINE)
BINDING = re.compile(r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(uniform|storage)\s*(?:,\s*(read_write|read)\s*)?>")
USAGE = "STORAGE | COPY_SRC | COPY_DST"
DEVICE_SELECT = "NODEVICE_SELECT"
"""Environment variable with which Vulkan leaves out Mesa's sorting of devices: that layer complains where no one is logged in."""
UNCHECKED = "UNCHECKED"
"""Switch of a rung: 1 leaves out the checks that the compiler adds to indices and loops, 2 those of loops; 0 and all other kernels
keep them."""


@functools.cache
def _wgpu() -> Any:
    """Return wgpu, started; or the sentence that says why there is none."""
    if importlib.util.find_spec("wgpu") is None:
        return f"wgpu is not installed, and only the webgpu ladder needs it; {INSTALL}"
    if headless := not {"XDG_RUNTIME_DIR", DEVICE_SELECT} & set(os.environ):
        os.environ[DEVICE_SELECT] = "1"
    try:
        import wgpu
        from wgpu.backends.wgpu_native import extras

        extras.set_instance_extras(backends=list(APIS.values()))
        wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:  # a library that does not load, or a driver that does not start: nobody lists what they raise
        let_through(error)
        return f"wgpu does not start ({type(error).__name__}: {error})"
    finally:
        if headless:
            os.environ.pop(DEVICE_SELECT, None)
    return wgpu


_process = os.getpid()
"""The process that loaded this module: another one is its forked child."""


class WebGPUBackend:
    """All adapters that wgpu sees through Vulkan, Metal or Direct3D 12."""

    name = "webgpu"
    languages = ("wgsl",)
    ladders_only = (
        "WGSL lets a compiler assume that no value overflows or is Inf or NaN, and guarantees no fused multiply-add. "
        "Name an OpenCL or CUDA device (see toprung devices)"
    )

    def devices(self) -> list[Device]:
        """Return every adapter, in wgpu's order."""
        wgpu = _wgpu()
        if isinstance(wgpu, str):
            return []
        if os.getpid() != _process:
            raise ForkedDevice("a WebGPU adapter")
        return list(_look())

    def advice(self) -> list[str]:
        """Return how to get wgpu, or an adapter."""
        wgpu = _wgpu()
        if isinstance(wgpu, str):
            return [f"WebGPU: {wgpu}"]
        if _look():
            return []
        return [
            "WebGPU: no adapter found; a GPU needs a driver with Vulkan, Metal or Direct3D 12, and on Linux your system's package "
            "mesa-vulkan-drivers computes on the CPU"
        ]

    def open(self, device: Device) -> Session:
        """Open an adapter."""
        return WebGPUSession(device)


def backend() -> WebGPUBackend:
    """Return this module's backend."""
    return WebGPUBackend()


@functools.cache
def _look() -> tuple[Device, ...]:
    wgpu = _wgpu()
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] in APIS]
    others = [d for b in backends.backends() if b.name != WebGPUBackend.name for d in b.devices()]
    return tuple(_facts(wgpu, adapter, number, others) for number, adapter in enumerate(adapters))


def _facts(wgpu: Any, adapter: Any, number: int, others: Sequence[Device]) -> Device:
    """Return what WebGPU says of an adapter, and what it never says from the same device seen through another backend."""
    info, limits = adapter.info, adapter.limits
    kind = {"CPU": "cpu", "DiscreteGPU": "gpu", "IntegratedGPU": "gpu", "VirtualGPU": "gpu"}.get(info["adapter_type"], "other")
    largest = min(limits["max-buffer-size"], limits["max-storage-buffer-binding-size"])
    items = tuple(limits[f"max-compute-workgroup-size-{axis}"] for axis in "xyz")
    seen = Device(
        id=f"webgpu:{number}", backend="webgpu", name=info["device"], vendor=info["vendor"] or "unknown",
        driver=info["description"] or "unknown",
        runtime=f"{info['backend_type']} through wgpu {wgpu.__version__} ({info['device']})", kind=kind,
        compute_units=(os.cpu_count() or 1) if kind == "cpu" else UNITS, clock_mhz=0.0, lanes=None,
        local_bytes=limits["max-compute-workgroup-storage-size"], memory_bytes=limits["max-buffer-size"],
        max_buffer_bytes=largest, max_work_group=limits["max-compute-invocations-per-workgroup"], max_items=items,
        base_align=limits["min-storage-buffer-offset-alignment"], vector_widths=WIDTHS,
        subgroup=_smallest_subgroup(info) if "subgroup" in adapter.features else None, handle=adapter,
    )  # fmt: skip
    # a software adapter is a way to use the CPU: its figures belong beside those of the CPU's other runtimes
    same = next((d for d in others if d.kind == kind and (kind == "cpu" or d.slug == seen.slug)), None)
    if same is None:
        return seen
    return replace(
        seen, name=same.short_name if kind == "cpu" else seen.name, vendor=same.vendor, compute_units=same.compute_units,
        clock_mhz=same.clock_mhz, lanes=same.lanes, memory_bytes=same.memory_bytes, arch=same.arch if kind == "gpu" else "",
    )  # fmt: skip


UNITS = 16
"""Compute units assumed of a GPU that no other backend sees: WebGPU does not say, and probes launch some work-groups for each."""


def _smallest_subgroup(info: Mapping[str, Any]) -> int | None:
    """Return the fewest work-items of a sub-group on an adapter; wgpu 0.32 spells the field in its own way."""
    found = next((info[name] for name in ("subgroup_min_size", "stackgroup_min_size") if info.get(name)), None)
    return int(found) if found else None


def composed(source: Source) -> str:
    """Return the text that is compiled: with marked loops unrolled, and parameters as constants on a line that it has.

    ``enable subgroups`` is left out: what browsers ask for, wgpu knows no word of, and has the functions all the same.

    Raises
    ------
    NotUnrolled
        a marked loop that cannot be unrolled
    """
    text, _ = unrolled(source.text, source.defines)
    directives = list(DIRECTIVE.finditer(text))
    end = directives[-1].end() if directives else 0
    constants = " ".join(f"const {name} = {value}u;" for name, value in source.defines.items())
    head = re.sub(r"^enable subgroups;", "", text[:end], flags=re.MULTILINE)
    return f"{head}{constants} {text[end:]}"


class WebGPUBuffer:
    """A part of a GPUBuffer; ``raw`` is the whole."""

    def __init__(self, raw: Any, offset: int, nbytes: int, whole: WebGPUBuffer | None = None) -> None:
        self.raw, self.offset, self.nbytes, self._whole = raw, offset, nbytes, whole
        self.handle = raw, offset

    def part(self, offset: int, nbytes: int) -> WebGPUBuffer:
        # a part; bindings name an offset and a size, so nothing is made
        return WebGPUBuffer(self.raw, self.offset + offset, nbytes, self)


class WebGPUKernel:
    """A pipeline, and the layout of its bindings."""

    def __init__(self, pipeline: Any, layout: Any, bindings: tuple[int, ...], source: Source) -> None:
        self.pipeline, self.layout, self.bindings, self.source = pipeline, layout, bindings, source
        self.resources = Resources()


@dataclass
class Mark:
    """A time stamp: one of a query set, or the host's clock where the adapter has no time stamps."""

    queries: Any = None
    index: int = 0
    seconds: float | None = None


def _without(what: str) -> Any:
    """Return a method that refuses what WebGPU has not, and what only the library asks for."""

    def refuse(session: WebGPUSession, *given: object, **named: object) -> NoReturn:
        raise Unsupported(f"WebGPU has no {what}: {session.device} runs ladders and probes; use an OpenCL or CUDA device")

    return refuse


class WebGPUSession:
    """A GPUDevice with its queue. Launches gather in an encoder and are submitted when somebody waits, or when there are many."""

    def __init__(self, device: Device) -> None:
        self.device, self._wgpu, self.queue = device, _wgpu(), None
        self._alive()
        adapter: Any = device.handle
        features = [name for name in (TIMESTAMPS, "subgroup") if name in adapter.features]
        try:
            self._device = adapter.request_device_sync(required_features=features, required_limits=dict(adapter.limits))
        except Exception as error:  # wgpu raises RuntimeError and its own, of no common base
            let_through(error)
            raise NoDevice(f"{device} cannot be opened: {error}") from None
        self._stamped = TIMESTAMPS in features
        self._groups = int(adapter.limits["max-compute-workgroups-per-dimension"])
        self._encoder: Any = None
        self._pass: Any = None
        self._waiting = 0
        self._allocated = 0
        self._queries, self._used = None, STAMPS
        self._period = 1.0
        if self._stamped:  # nanoseconds per tick: wgpu returns the device's own ticks, which browsers convert
            from wgpu.backends.wgpu_native import lib

            self._period = float(lib.wgpuQueueGetTimestampPeriod(self._device.queue._internal))

    def fingerprint(self) -> str:
        # wgpu, driver and adapter: what is cached is the text that compiled
        d = self.device
        return "\n".join((d.runtime, d.driver, d.name))

    def compile(self, source: Source) -> bytes:
        # check a text; WebGPU has no binaries, so the text with its constants is what `load` takes
        self._alive()
        if source.language not in WebGPUBackend.languages:
            what = {"opencl": "OpenCL C", "cuda": "CUDA C++", "cubin": "machine code"}.get(source.language, source.language)
            raise source.failed(self.device, f"WebGPU compiles WGSL, not {what}; use another device")
        try:
            text = composed(source)
        except NotUnrolled as error:
            log = f"wgsl:{error.line}: {error}"
            raise source.failed(self.device, log) from None
        self._module(text, source)
        return text.encode()

    def load(self, binary: bytes, source: Source) -> WebGPUKernel:
        # make a pipeline, with the layout that the text declares: what a kernel declares and does not use is bound, too
        self._alive()
        try:
            text = binary.decode()
        except UnicodeDecodeError as error:
            raise source.failed(self.device, str(error)) from None
        if text != composed(source):  # kept by another version: it is compiled anew
            raise source.failed(self.device, "the text was composed in another way")
        entries: list[dict[str, Any]] = []
        for number, space, access in BINDING.findall(text):
            kind = "uniform" if space == "uniform" else "storage" if access == "read_write" else "read-only-storage"
            entries.append({"binding": int(number), "visibility": "COMPUTE", "buffer": {"type": kind}})
        module = self._module(text, source)
        try:
            layout = self._device.create_bind_group_layout(entries=entries)
            pipeline = self._device.create_compute_pipeline(
                layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": source.kernel},
            )
        except self._wgpu.GPUError as error:
            raise source.failed(self.device, _located(error, source)) from None
        return WebGPUKernel(pipeline, layout, tuple(sorted(e["binding"] for e in entries)), source)

    def _module(self, text: str, source: Source) -> Any:
        try:
            if left_out := source.defines.get(UNCHECKED):
                return _trusted(self._device, text, indices=left_out == 2)
            return self._device.create_shader_module(code=text)
        except self._wgpu.GPUError as error:
            raise source.failed(self.device, _located(error, source)) from None

    def allocate(self, nbytes: int) -> WebGPUBuffer:
        # allocate device memory; more than the device has is refused before the runtime is asked
        self._alive()
        device, size = self.device, max(-(-nbytes // 4) * 4, 4)
        if nbytes > device.max_buffer_bytes:
            raise OutOfDeviceMemory(str(device), nbytes, device.max_buffer_bytes)
        if self._allocated + nbytes > device.memory_bytes:
            raise OutOfDeviceMemory(str(device), nbytes, device.memory_bytes - self._allocated, "beside what is in use")
        try:
            raw = self._device.create_buffer(size=size, usage=USAGE)
        except self._wgpu.GPUOutOfMemoryError:
            raise OutOfDeviceMemory(str(device), nbytes, device.memory_bytes - self._allocated) from None
        except self._wgpu.GPUError as error:
            raise self._lost(error) from None
        self._allocated += nbytes
        buffer = WebGPUBuffer(raw, 0, nbytes)
        weakref.finalize(buffer, self._freed, nbytes)
        return buffer

    def _freed(self, nbytes: int) -> None:
        self._allocated -= nbytes

    def upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self.submit()
        if array.nbytes:
            try:
                self._device.queue.write_buffer(*buffer.handle, np.ascontiguousarray(array))
            except self._wgpu.GPUError as error:
                raise self._lost(error) from None

    def download(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self.submit()
        if array.nbytes:
            array.reshape(-1).view(np.uint8)[...] = np.frombuffer(self._read(buffer.handle, array.nbytes), np.uint8)

    def _read(self, at: tuple[Any, int], nbytes: int) -> memoryview:
        try:
            found: memoryview = self._device.queue.read_buffer(*at, nbytes)
        except (self._wgpu.GPUError, RuntimeError) as error:  # mapping a lost device's memory is a RuntimeError
            raise self._lost(error) from None
        return found

    def bind(
        self, kernel: Any, groups: Sequence[int], local: Sequence[int], args: Arguments, options: Mapping[str, int] | None = None
    ) -> Launch:
        # put scalars into a uniform buffer, and it and the buffers into a bind group; `local` is the text's own affair
        self._alive()
        what = f"{kernel.source.name} with {kernel.source.defines_text()}"
        grid = (*groups, 1, 1)[:3]
        if max(grid) > self._groups:
            raise LaunchError(
                f"{what} on {self.device} needs {max(grid):,} work-groups in one dimension, which may have {self._groups:,}: "
                "use a larger tile or a smaller size"
            )
        scalars = b"".join(a.tobytes() for a in args if isinstance(a, np.generic))
        buffers = [a for a in args if not isinstance(a, np.generic)]
        bindings = tuple(range(0 if scalars else 1, 1 + len(buffers)))
        if kernel.bindings != bindings:
            raise LaunchError(
                f"{what} on {self.device} declares bindings {kernel.bindings}, and the launch has {bindings}: scalars are a "
                "uniform structure at binding 0, buffers are bindings 1, 2, … in the order of the arguments"
            )
        try:
            entries: list[dict[str, Any]] = []
            if scalars:
                padded = scalars.ljust(-(-len(scalars) // 16) * 16, b"\0")  # WGSL rounds a structure's size up
                uniform = self._device.create_buffer_with_data(data=padded, usage="UNIFORM")
                entries.append({"binding": 0, "resource": {"buffer": uniform, "offset": 0, "size": len(padded)}})
            for number, part in enumerate(buffers, 1):
                raw, offset = part.handle
                resource = {"buffer": raw, "offset": offset, "size": max(part.nbytes, 4)}
                entries.append({"binding": number, "resource": resource})
            group = self._device.create_bind_group(layout=kernel.layout, entries=entries)
        except self._wgpu.GPUError as error:
            raise LaunchError(f"{what} on {self.device}: {_log(error)}") from None
        kept = tuple(args)

        def launch(kept: object = kept) -> None:
            passing = self._passing()
            passing.set_pipeline(kernel.pipeline)
            passing.set_bind_group(0, group)
            passing.dispatch_workgroups(*grid)
            self._waiting += 1
            if self._waiting >= IN_A_SUBMISSION:
                self.submit()

        return launch

    def _passing(self) -> Any:
        """Return the compute pass that is open; launches in one see what those before them wrote."""
        self._alive()
        if self._pass is None:
            self._pass = self._encoding().begin_compute_pass()
        return self._pass

    def _encoding(self) -> Any:
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        return self._encoder

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def submit(self) -> None:
        """Hand what was gathered to the device.

        Raises
        ------
        LaunchError
            it refuses, or is lost
        """
        self._alive()
        if self._encoder is None:
            return
        encoder, self._waiting = self._encoder, 0
        try:
            self._end_pass()
            self._encoder = None
            self._device.queue.submit([encoder.finish()])
        except self._wgpu.GPUError as error:
            self._encoder = self._pass = None
            raise self._lost(error) from None

    def _lost(self, error: Exception) -> LaunchError:
        advice = "If it is lost, open it again; if sizes were large, use smaller ones"
        return LaunchError(f"{self.device} refuses: {_log(error)}. {advice}")

    def mark(self) -> object:
        # record a pass that writes a time stamp at its end; without time stamps, read the host's clock when the queue is empty
        if not self._stamped:
            self.synchronize()
            return Mark(seconds=time.perf_counter())
        self._alive()
        if self._used == STAMPS:
            self._queries, self._used = self._device.create_query_set(type="timestamp", count=STAMPS), 0
        mark = Mark(self._queries, self._used)
        self._used += 1
        self._end_pass()
        writes = {"query_set": mark.queries, "end_of_pass_write_index": mark.index}
        self._encoding().begin_compute_pass(timestamp_writes=writes).end()
        return mark

    def seconds(self, start: Any, end: Any) -> float:
        # the seconds between two time stamps; waits for both
        return self._stamp(end) - self._stamp(start)

    def _stamp(self, mark: Mark) -> float:
        if mark.seconds is None:
            self.submit()
            to = self._device.create_buffer(size=8, usage="QUERY_RESOLVE | COPY_SRC")
            encoder = self._device.create_command_encoder()
            encoder.resolve_query_set(mark.queries, mark.index, 1, to, 0)
            self._device.queue.submit([encoder.finish()])
            mark.seconds = int(np.frombuffer(self._read((to, 0), 8), np.uint64)[0]) * self._period * 1e-9
            mark.queries = None
        return mark.seconds

    def hold(self) -> None:
        """Do nothing: WebGPU cannot hold a queue, and what was submitted runs."""

    def synchronize(self) -> None:
        self.submit()
        done = self._device.create_buffer(size=4, usage=USAGE)
        self._read((done, 0), 4)

    def clock_mhz(self) -> float | None:
        # the clock that another interface to the device reads: WebGPU has none
        return clock_from_outside(self.device)

    def close(self) -> None:
        # drop what was not submitted; memory goes when its last buffer does
        if os.getpid() == _process:
            self._encoder = self._pass = None

    def _alive(self) -> None:
        if os.getpid() != _process:
            raise ForkedDevice(str(self.device))

    def start_upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        # writing to a buffer is staged, and does not wait for the device
        self.upload(buffer, array)

    bind_unsized = _without("work-group size that the runtime selects")  # a WGSL kernel states its own
    branch = new_queue = copy_in = copy_out = _without("second queue")
    record = wait = settle = _without("event of a second queue")
    launcher = workspace = _without("launches of the library")
    pinned, foreign = _without("page-locked host memory"), _without("memory of other libraries")

    def settle_queue(self, queue: Any) -> None:
        self.synchronize()

    def capturing(self, queue: Any) -> bool:
        # false: WebGPU captures nothing into graphs
        return False


def _log(error: Exception) -> str:
    """Return a message of wgpu's without the frame that all of them have."""
    lines = [line.rstrip() for line in str(error).splitlines()]
    frame = ("Validation Error", "Caused by:")
    return "\n".join(x for x in lines if x and x not in frame and not x.strip().startswith("In wgpu")).strip()


def _located(error: Exception, source: Source) -> str:
    """Return a compiler's message with the lines of the file in place of those of the unrolled text."""
    _, lines = unrolled(source.text, source.defines)

    def line(found: re.Match[str]) -> str:
        return found[1] + str(lines[int(found[2]) - 1]).rjust(len(found[2])) + found[3]

    return re.sub(r"^( *┌─ \w*:| *)(\d+)(:| │)", line, _log(error), flags=re.MULTILINE)


def _trusted(device: Any, text: str, indices: bool) -> Any:
    """Compile without bounds on loops, with or without checks of ``indices``; it is wgpu-native's own and has no method in wgpu-py.

    Raises
    ------
    Unsupported
        this wgpu cannot
    """
    try:
        from wgpu.backends.wgpu_native import _api as api

        chained = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(text))
        chained[0].chain.next, chained[0].chain.sType = api.ffi.NULL, api.lib.WGPUSType_ShaderSourceWGSL
        link = api.ffi.cast("WGPUChainedStruct *", chained)
        struct = api.new_struct_p("WGPUShaderModuleDescriptor *", nextInChain=link, label=api.to_c_string_view(""))
        make = api.libf.wgpuDeviceCreateShaderModuleTrusted
        checks = api.lib.WGPUShaderRuntimeChecks_BoundsChecks if indices else api.lib.WGPUShaderRuntimeChecks_None
        module = make(device._internal, struct, checks)
        return api.GPUShaderModule("", module, device)
    except AttributeError as error:
        raise Unsupported(f"this wgpu cannot leave out its checks ({error}): use {UNCHECKED}=0, or another version") from None
