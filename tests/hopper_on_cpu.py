"""CUDA kernels' own sources on a CPU, launched by the library's plans: only their speed needs a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import mmap
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import once
from toprung import backends
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.backends.plan import Address, First, Handle, KernelLaunch, Map, Plan, Scalar, Struct
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import Launches
from toprung.kernels.blocks import LONG_CHAIN
from toprung.oracle.bias import bias
from toprung.oracle.data import DISTRIBUTIONS, ONE_SIGNED
from toprung.oracle.precision import precision as promise

HOST = Path(__file__).with_name("host")
HEADERS = "|".join(re.escape(path.name) for path in HOST.glob("*.cuh"))
"""Headers of instructions, for which the host has its own."""
LACKING = {
    -1: "a barrier is used that no fence has shown to other blocks", -2: "Tensor Cores are given registers without a fence",
    -3: "copies or Tensor Cores read what was written without a fence", -4: "threads read or overwrite what others have not let go",
    -5: "a flag says that global memory is written, which others or copies may not see yet",
}  # fmt: skip
"""Meanings of what ``run`` returns below 0: what would be wrong on a GPU alone."""


def aligned(M: int, N: int, K: int, *layout: Any, **more: Any) -> GemmDesc:
    """Return a descriptor whose operands and C lie on 16 bytes."""
    return GemmDesc(M, N, K, *layout, **{"align_a": 4, "align_b": 4, "align_c": 4, **more})


def biased(one: Any, run: Callable[[], Any], prepare: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Return biases of a product's results beyond those of fp32x, by the operands' distribution, and the number of wrong integers.

    ``prepare`` is called when operands are drawn, and may round them.
    """
    found: dict[str, Any] = {}
    for name in ONE_SIGNED:
        rng, drawn = np.random.default_rng(0), DISTRIBUTIONS[name]
        one.a[...], one.b[...] = drawn.fills[0](rng, one.a.shape), drawn.fills[0](rng, one.b.shape)
        prepare()
        want = one.reference()
        off = bias(run(), want, np.abs(want))
        assert off is not None
        if off.beyond(promise("fp32x").bias_limit(one.a.shape[-1], near_one=2 * (name == "near-one"))):
            found[name] = off
    one.a[...], one.b[...] = rng.integers(0, 9, one.a.shape), rng.integers(0, 9, one.b.shape)
    if wrong := int(np.sum(run() != one.reference())):
        found["integers"] = wrong
    return found


def chained(a: Any, b: Any) -> Any:
    """Return a product in float32 as plain fp32 adds it on a GPU: chains of fused multiply-adds, added in their order.

    Elements are multiples of 2**-11 times a power of two of their row: then float64 has each step's sum exactly.
    """
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k0 in range(0, len(b), LONG_CHAIN):
        chain = np.zeros_like(total)
        for k in range(k0, min(k0 + LONG_CHAIN, len(b))):
            chain = (chain + np.outer(a[:, k].astype(np.float64), b[k])).astype(np.float32)
        total += chain
    return total


def coarse(x: Any) -> Any:
    """Return elements up to 1 rounded to multiples of 2**-11."""
    return (np.round(x * 2**11) / 2**11).astype(np.float32)


def reads_behind_memory(program: str) -> bool:
    """Return True if a program ends by a signal, as a read behind ``ends_with_memory`` makes it; another failure is an error."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode <= 0, done.stdout + done.stderr
    return done.returncode < 0


KEPT: list[mmap.mmap] = []
"""Memory of operands, which lasts as long as the process."""


def ends_with_memory(count: int) -> Any:
    """Return ``count`` floats, the last at the end of a page: to read behind it ends the process. In front of them is NaN."""
    pages = -(-4 * count // mmap.PAGESIZE) + 1
    KEPT.append(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE))
    behind = ctypes.addressof(ctypes.c_char.from_buffer(KEPT[-1])) + pages * mmap.PAGESIZE
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(behind), mmap.PAGESIZE, 0):
        raise OSError("a page cannot be protected")
    np.frombuffer(KEPT[-1], np.float32, pages * mmap.PAGESIZE // 4)[...] = np.nan
    return np.frombuffer(KEPT[-1], np.float32, count, pages * mmap.PAGESIZE - 4 * count)


def missing() -> str:
    """Return why nothing can be run; empty if it can."""
    return nvrtc.missing() or ("" if shutil.which("g++") else "no g++")


def for_cpu(source: Source) -> str:
    """Return a kernel's text as the host compiler takes it: behind ``cuda.h``, with the host's headers of instructions."""
    text = re.sub(rf'^#line 1 "({HEADERS})"$.*?^(?=#line )', r'#include "tests/host/\1"\n', source.text, flags=re.M | re.S)
    defines = "".join(f"#define {name} {value}\n" for name, value in source.defines.items())
    prelude = backends.prelude("cuda") if source.language == "opencl" else ""
    return f'#include "tests/host/cuda.h"\n{defines}{prelude}{text}\nLAUNCHES({source.kernel})\n'


class Fence(ctypes.Structure):
    """Call that can be left out: where in the text, and in which function once it ran."""

    _fields_: ClassVar = [("place", ctypes.c_char_p), ("function", ctypes.c_char_p), ("line", ctypes.c_int)]


class Part(ctypes.Structure):
    """One copy of a library, as ``cuda.h`` has it."""

    _fields_: ClassVar = [
        ("kernel", ctypes.c_void_p), ("memory", ctypes.c_void_p),
        ("launch", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 4, ctypes.c_void_p)),
        ("arguments", ctypes.c_int), ("left_out", ctypes.c_int),
        ("fences", Fence * 64),
    ]  # fmt: skip


class Library:
    """What was built of a kernel: a copy for each block of a cluster, whose shared memory is the copy's own variables."""

    def __init__(self, path: Path, cluster: int) -> None:
        self.copies = [ctypes.CDLL(str(path))]
        for _ in range(1, cluster):
            with tempfile.NamedTemporaryFile(suffix=".so") as copy:
                shutil.copyfile(path, copy.name)
                self.copies.append(ctypes.CDLL(copy.name))
        for copy in self.copies:
            copy.part_of.restype = ctypes.POINTER(Part)
        self.parts = [copy.part_of().contents for copy in self.copies]
        self.arguments = self.parts[0].arguments

    def fences(self) -> dict[int, tuple[str, str]]:
        """Return each fence's place in the text, and the function in which it ran if it did, by its number."""
        return {
            i: (f"{one.place.decode()} {one.line}", (one.function or b"").decode())
            for i, one in enumerate(self.parts[0].fences) if one.place
        }  # fmt: skip

    def leave_out(self, fence: int) -> None:
        """Leave a fence out by its number; none for -1."""
        for part in self.parts:
            part.left_out = fence

    def start(self, groups: Sequence[int], threads: int, values: Sequence[Any]) -> None:
        """Run the kernel, and see that its threads come to an end and have ordered what they write and read."""
        RAN.append(self)
        parts = (ctypes.POINTER(Part) * len(self.parts))(*map(ctypes.pointer, self.parts))
        x, y = (*groups, 1)[:2]
        given = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        found = self.parts[0].launch(parts, len(parts), x, y, threads, given)
        assert not found, LACKING.get(found, f"{found} threads wait for each other for ever")


RAN: list[Library] = []
"""Libraries that were run."""


@functools.cache
def library(text: str, cluster: int = 1) -> Library:
    """Return the library that is built of a text; once in a process, for the store reads and hashes all of it."""
    headers = "".join(re.findall(r"^#include <.*\n", (HOST / "cuda.h").read_text(), re.M))  # they take longer than a kernel
    flags = ("-std=c++20", "-Og", "-ffp-contract=off", "-fpermissive", "-w", "-fPIC", "-mtls-dialect=gnu2")
    return Library(once.shared_object(text, flags, headers), cluster)


class Folder:
    """Stand-in for a session on a device with ``units`` SMs, which builds kernels for the CPU and runs them."""

    queue = 1
    launches: ClassVar[int] = 0

    def __init__(self, path: Path, units: int = 5) -> None:
        self.path, self.device = path, dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=units)
        self._workspace: Any = None
        self._flags: Any = None

    def built(self, source: Source) -> Library:
        """Return the library of a kernel."""
        return library(for_cpu(source), source.defines.get("CLUSTER") or source.defines.get("SLICES") or 1)

    def allocate(self, nbytes: int) -> Any:
        """Return memory aligned to 256 bytes, filled with 0xA5."""
        array = np.full(nbytes + 256, 0xA5, np.uint8)
        start = array.ctypes.data + -array.ctypes.data % 256
        part = lambda offset, nbytes: SimpleNamespace(array=array, pointer=start + offset, nbytes=nbytes)  # noqa: E731
        return SimpleNamespace(array=array, pointer=start, nbytes=nbytes, part=part)

    def upload(self, buffer: Any, array: Any) -> None:
        """Copy an array into memory that stands for the device's."""
        ctypes.memmove(buffer.pointer, array.ctypes.data, array.nbytes)

    def download(self, buffer: Any, array: Any) -> None:
        """Copy such memory into an array."""
        ctypes.memmove(array.ctypes.data, buffer.pointer, array.nbytes)

    def workspace(self, queue: Any, nbytes: int) -> Any:
        """Return the workspace that all launches share, at least as large."""
        if self._workspace is None or self._workspace.buffer.nbytes < nbytes:
            self._workspace = SimpleNamespace(buffer=self.allocate(nbytes), lock=threading.RLock())
        return self._workspace

    def launcher(self, plan: Plan) -> Any:
        """Return a function that runs a plan's launches, as a session's."""

        def run(
            a: int, offset_a: int, b: int, offset_b: int, c: int, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None, addend: int = 0, packed: int = 0, operands: Any = None,
        ) -> None:  # fmt: skip
            scratch = workspace or (self.workspace(queue, plan.workspace_bytes).buffer.pointer if plan.workspace_bytes else 0)
            flags = self.flags(queue, plan.flags_bytes) if plan.flags_bytes else 0
            size_a, size_b = plan.sizes
            at = [a + size_a * offset_a, b + size_b * offset_b, c + 4 * offset_c, addend, scratch, packed, flags]
            numbers = np.float32(alpha), np.float32(beta), np.float32(alpha != 0.0)
            for launch in plan.due(alpha, beta):
                self.start(launch, [self.argument(x, at, numbers, operands) for x in launch.arguments])

        return run

    def start(self, launch: KernelLaunch, values: list[Any]) -> None:
        """Run a launch with its arguments, and count it."""
        type(self).launches += 1
        library = self.built(launch.kernel)
        assert library.arguments == len(values)
        library.start(launch.groups, launch.local[0], values)

    def argument(self, argument: Any, at: list[int], numbers: tuple[Any, ...], operands: Any) -> Any:
        """Return what a launch passes for an argument of a plan."""
        match argument:
            case Handle():
                return np.array([at[argument.slot]], np.uint64)
            case First():
                return np.array([argument.plus], np.int64)
            case Address():
                return np.array([at[argument.slot] + argument.plus], np.uint64)
            case Scalar():
                return np.array([numbers[argument.number]])
            case Map():
                return self.encoded(argument, at[argument.slot] + argument.plus)
            case Struct():
                argument.fill(words := argument.content.copy(), operands)
                return words
            case np.generic():
                return np.atleast_1d(argument)
        return np.array([argument.pointer], np.uint64)

    def encoded(self, of: Map, address: int) -> Any:
        """Return a map as ``TensorMap`` in ``host/hopper.cuh`` has it."""
        size = 2 if of.dtype == "fp16" else 4
        assert address % 16 == 0 and of.stride % 16 == 0 and of.stride >= size * of.cols and max(of.box) <= 256
        return np.array([address, of.rows, of.cols, of.stride // size, *of.box, size], np.int64)

    def flags(self, queue: Any, nbytes: int) -> int:
        """Return the address of flags that all launches share, 0 at first."""
        if self._flags is None:
            self._flags = self.allocate(max(nbytes, 1024))
            self._flags.array[:] = 0
        return int(self._flags.pointer)


def counted(made: Launches) -> int:
    """Return how many pieces were computed again."""
    (counter,) = made.plan.kept
    return int(np.ctypeslib.as_array((ctypes.c_uint64 * 1).from_address(counter.buffer.pointer))[0])


def unneeded(*checks: Callable[[], None], names: str = "") -> list[str]:
    """Return the fences and waits, by name and function, without which all checks pass in each build that they run.

    ``names`` : pattern of those that are left out at all
    """
    users: dict[Library, list[Callable[[], None]]] = {}
    for check in checks:
        RAN.clear()
        check()
        for library in dict.fromkeys(RAN):
            users.setdefault(library, []).append(check)
    functions, needed = dict[str, str](), set[str]()
    for library, uses in users.items():
        for number, (place, function) in library.fences().items():
            if not re.search(names, place):
                continue
            functions[place] = function or functions.get(place, "")
            if place in needed:
                continue
            library.leave_out(number)
            try:
                for check in uses:
                    check()
            except AssertionError:
                needed.add(place)
            finally:
                library.leave_out(-1)
    left = [(place, function) for place, function in functions.items() if place not in needed]
    return sorted(place.split()[1] + (f" in {function}" if function else " that never ran") for place, function in left)


Plants = tuple[tuple[Callable[..., None], tuple[Any, ...], tuple[tuple[str, str], ...]], ...]
"""Checks, what they are given after the folder, and bugs that each of them finds, as ``bug`` takes them."""
TOKEN = r"\s*(?:0x[\da-f.]+p-?\d+f?|\w[\w.]*|[-+*/%&|^<>=!]+)"


def each_plant(plants: Plants) -> list[Any]:
    """Return a parameter for each bug, alone with the check that finds it: with all checks for each a bug took half a minute."""
    return [pytest.param(check, given, *bug, id=bug[0]) for check, given, bugs in plants for bug in bugs]


@contextlib.contextmanager
def bug(place: str, text: str) -> Iterator[None]:
    """Plant a bug in each kernel that is built: a text is inserted at ``/*!place*/``, or behind ``~`` is there for the next token.

    Raises
    ------
    LookupError
        no kernel had the place; no assertion, which would count as the bug's discovery
    """
    marker, found = re.compile(re.escape(f"/*!{place}*/") + TOKEN * text.startswith("~")), 0
    original = Folder.built

    def built(self: Folder, source: Source) -> Library:
        nonlocal found
        changed, count = marker.subn(lambda _: text.removeprefix("~"), source.text)
        found += count
        return original(self, dataclasses.replace(source, text=changed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "built", built)
        yield
    if not found:
        raise LookupError(f"no kernel has a place {place}")
