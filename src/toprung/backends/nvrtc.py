"""NVRTC: CUDA C++, and the kernels' OpenCL C through ``prelude.cuh``, to a cubin. Needs no GPU and no driver."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

from toprung.backends import cuda_libraries
from toprung.backends.base import Source
from toprung.device import FP32_LANES, Device
from toprung.errors import MissingExtra, UnknownName, let_through

PRELUDE = Path(__file__).with_name("prelude.cuh")
FLAGS = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--fmad=true",  # a * b + c is one fused multiply-add, as in OpenCL with FP_CONTRACT
    "--ptxas-options=-v",
    "--diag-suppress=177",  # a prelude's functions need not all be used
)
BUILD_FLAGS = {"separate": "--fmad=false", "mad": "--fmad=true", "fast": "--use_fast_math"}
STATIC_LOCAL_BYTES = 48 * 1024
"""Arrays declared ``__shared__`` or ``__local`` may have this size on every architecture; more must be dynamic."""
DYNAMIC_LOCAL_KB = {
    (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 8): 99, (8, 9): 99,
    (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
"""Shared memory of a block with opt-in, by compute capability: CUDA C++ Programming Guide, table of technical specifications."""
VECTOR_WIDTHS = (1, 2, 4)
WARP = 32


class Cubin(NamedTuple):
    """Machine code for one architecture, and what the compiler said about it."""

    code: bytes
    log: str


@functools.cache
def _nvrtc() -> Any:
    """cuda.bindings.nvrtc with a library behind it, or the sentence that says why not."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return 'cuda-bindings is not installed; pip install "toprung[cuda]"'
    cuda_libraries.prefer("nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the library is looked for at the first call
        let_through(error)
        return 'NVRTC is not installed; pip install "toprung[cuda]"'
    return nvrtc


def missing() -> str:
    """Why nothing can be compiled here, as a sentence; empty where it can."""
    found = _nvrtc()
    return found if isinstance(found, str) else ""


def _library() -> Any:
    if reason := missing():
        raise MissingExtra(f"CUDA: {reason}")
    return _nvrtc()


@functools.cache
def version() -> str:
    """NVRTC's version to the last digit, which only its output tells."""
    ptx = _compiled("", "version", ("--gpu-architecture=compute_80",), ptx=True)[1].decode()
    found = re.search(r"release [\d.]+, V([\d.]+)", ptx)
    _status, major, minor = _library().nvrtcVersion()
    return found.group(1) if found else f"{major}.{minor}"


@functools.cache
def architectures() -> tuple[str, ...]:
    """Return the architectures that it compiles for, oldest first."""
    _status, numbers = _library().nvrtcGetSupportedArchs()
    return tuple(f"sm_{n}" for n in numbers)


def fingerprint(arch: str) -> str:
    """Return what decides about an architecture's machine code, but for the source and NVRTC's version."""
    return "\n".join((arch, *FLAGS, PRELUDE.read_text("utf-8")))


LANGUAGES = ("cuda", "opencl")
"""Languages of ``Source`` that NVRTC compiles, OpenCL C behind the prelude."""


def compile_cubin(source: Source, arch: str, device: str = "") -> Cubin:
    """Compile for an architecture.

    An OpenCL text gets the prelude in front. A CUDA text is taken as it stands; with the macro ``ARCH_SPECIFIC=1`` it gets the
    instructions that only this very architecture has (``sm_90a``).

    Raises
    ------
    BuildError
        with the compiler's log
    UnknownName
        an architecture NVRTC does not compile for
    MissingExtra
        NVRTC is not installed
    """
    if arch not in architectures():
        raise UnknownName("architecture", arch, architectures())
    if source.language not in LANGUAGES:
        log = f"NVRTC compiles OpenCL C and CUDA C++, and this is {source.language}: open it on a device of its own backend"
        raise source.failed(device or arch, log)
    text = source.text
    if source.language == "opencl":
        text = f'{PRELUDE.read_text("utf-8")}\n#line 1 "{source.name}.cl"\n{text}'
    elif source.defines.get("ARCH_SPECIFIC"):
        arch += "a"
    usual = [f for f in FLAGS if not (source.flags and f.startswith("--fmad"))]  # NVRTC refuses an option said twice
    flags = [f"--gpu-architecture={arch}", *usual, *(f"--include-path={p}" for p in include_paths())]
    flags += [BUILD_FLAGS[flag] for flag in source.flags]
    flags += [f"--define-macro={name}={value}" for name, value in source.defines.items()]
    if source.title:
        flags.append(f"--define-macro={source.kernel}={source.symbol}")
    log, code = _compiled(text, source.name, tuple(flags))
    if not code:
        raise source.failed(device or arch, log)
    return Cubin(code, log)


def machine_code(source: Source, arch: str, runtime: str) -> bytes:
    """Return ``compile_cubin``'s code; empty if this process has another NVRTC than the device's runtime."""
    return compile_cubin(source, arch).code if runtime.endswith(f"NVRTC {version()}") else b""


@functools.cache
def include_paths() -> tuple[str, ...]:
    """Return the folders of CUDA's own headers, for sources that include them."""
    from cuda import pathfinder

    found = cuda_libraries.headers() or pathfinder.find_nvidia_header_directory("cudart")
    return (str(found),) if found else ()


def _compiled(text: str, name: str, flags: tuple[str, ...], ptx: bool = False) -> tuple[str, bytes]:
    """The compiler's log, and its output: empty where the text does not compile."""
    nvrtc = _library()
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    if status:
        return f"NVRTC cannot start: {nvrtc.nvrtcGetErrorString(status)[1].decode()}", b""
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        if status:
            return log.decode(errors="replace").rstrip("\0\n"), b""
        size, get = (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if ptx else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        output = bytearray(size(program)[1])
        get(program, output)
        return log.decode(errors="replace").rstrip("\0\n"), bytes(output)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def capability(arch: str) -> tuple[int, int]:
    """``sm_90`` → (9, 0)."""
    number = int(re.sub(r"\D", "", arch))
    return divmod(number, 10)


def device_of(arch: str) -> Device:
    """An architecture as a device that nobody has: enough to choose tiles and switches for it.

    Raises
    ------
    UnknownName
        an architecture NVRTC does not compile for
    """
    if arch not in architectures():
        raise UnknownName("architecture", arch, architectures())
    return Device(
        id=arch, backend="cuda", name=arch, vendor="NVIDIA", driver="", runtime=f"NVRTC {version()}", kind="gpu", compute_units=1,
        clock_mhz=0.0, lanes=FP32_LANES.get(capability(arch)), local_bytes=STATIC_LOCAL_BYTES, memory_bytes=0, max_buffer_bytes=0,
        max_work_group=1024, max_items=(1024, 1024, 64), base_align=256, vector_widths=VECTOR_WIDTHS, subgroup=WARP, arch=arch,
        dynamic_local_bytes=1024 * DYNAMIC_LOCAL_KB.get(capability(arch), 0),
    )  # fmt: skip
