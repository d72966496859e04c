"""Products on the stand-in for NVIDIA's driver, each in a process of its own: ``python -m driver.products``.

Standard input is JSON: jobs, each a list of names of ``CASES`` and of faults (file below ``toprung``, text, what replaces it).
Standard output is JSON: for each job what the stand-in wrote down of its cases, by name. TOPRUNG_DRIVER_LOG is a file for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import json
import math
import os
import re
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from cuda import core  # noqa: F401  # here, so that children need not
from cuda.bindings import driver

import once
import toprung
import toprung.blas.grouped  # faults are planted in what is loaded
from toprung.arrays import cupy  # noqa: F401  # faults are planted in what is loaded
from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends import launcher, native_plan, nvrtc  # noqa: F401
from toprung.blas import background, calls
from toprung.blas.operands import How, arranged, strict
from toprung.blas.product import decided, fused
from toprung.errors import LaunchError
from toprung.execute import staging  # noqa: F401  # faults are planted in what is loaded
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc
from toprung.kernels.build import loaded
from toprung.kernels.helpers import SCALE
from toprung.kernels.registry import families

DRIVER = ctypes.CDLL("libcuda.so.1")
DRIVER.driver_array.restype, DRIVER.driver_array.argtypes = ctypes.c_uint64, [ctypes.c_size_t, ctypes.c_char_p]
SOURCES = Path(toprung.__file__).parent

# CuPy, as far as the adapter of its arrays needs it


COUNTS: Counter[str] = Counter()


class Array:
    """A CuPy array: memory of the stand-in under a name, ``off`` elements from its beginning; strides in elements."""

    def __init__(self, name: str, *shape: int, strides: Any = None, off: int = 0, dtype: Any = np.float32) -> None:
        self.dtype, self.shape, self.device = np.dtype(dtype), shape, SimpleNamespace(id=0)
        each = self.dtype.itemsize
        tight = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self.strides = tuple(each * s for s in strides or tight)
        span = sum(s * (n - 1) for s, n in zip(self.strides, shape, strict=True)) + each if math.prod(shape) else 0
        COUNTS[name] += 1  # A, A2, A3 …: arrays of one name are told apart
        label = name + str(COUNTS[name]) * (name != "" and COUNTS[name] > 1)
        self.memory, self.is_new = DRIVER.driver_array(off * each + max(span, each), label.encode()), not name
        self.data = SimpleNamespace(ptr=self.memory + off * each)

    def __del__(self) -> None:
        if self.is_new:  # what the library asked for: it must not be launched upon afterwards
            DRIVER.cuMemFree_v2(ctypes.c_uint64(self.memory))

    def astype(self, dtype: Any) -> Array:
        return empty(self.shape, dtype)  # CuPy's kernel that converts is CuPy's


Array.__name__, Array.__module__ = "ndarray", "cupy"
STREAM = SimpleNamespace(ptr=0, is_capturing=lambda: False)


def empty(shape: tuple[int, ...], dtype: Any, order: str = "C") -> Array:
    strides = tuple(math.prod(shape[:i]) for i in range(len(shape))) if order == "F" else None
    return Array("", *shape, strides=strides, dtype=dtype)


CUPY: Any = ModuleType("cupy")
CUPY.float32, CUPY.empty, CUPY.ndarray = np.float32, empty, Array
CUPY.cuda = SimpleNamespace(
    Device=contextlib.nullcontext,
    get_current_stream=lambda number=-1: STREAM,
    alloc=lambda nbytes: SimpleNamespace(ptr=(held := Array("", nbytes // 4)).memory, held=held),
)
sys.modules["cupy"] = CUPY


class OnStream:
    """An array that names the stream on which it is ready, 0 for none."""

    def __init__(self, name: str, *shape: int, stream: Any = 0) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (Array(name, *shape).data.ptr, False), "version": 3, "stream": stream or None
        }  # fmt: skip


def abc(m: int, n: int, k: int, layout: str = "NN", batch: tuple[int, ...] = (), pad: int = 0, off: int = 0) -> list[Array]:
    """Return A, B and C; ``pad``: elements between rows."""
    made = []
    for name, rows, cols, trans in zip("ABC", (m, k, m), (k, n, n), (*layout, "N"), strict=True):
        down, on = (1, rows + pad) if trans == "T" else (cols + pad, 1)
        matrix = max(rows * down, cols * on)
        outer = [matrix * math.prod(batch[i + 1 :]) for i in range(len(batch))]
        made.append(Array(name, *batch, rows, cols, strides=(*outer, down, on), off=off))
    return made


# Cases: methods of Cases by their names, and those that product() adds

CASES: dict[str, Callable[[], Any]] = {}


def product(title: str, *sizes: Any, own: bool = True, precision: str = "fp32", more: Any = dict, **given: Any) -> None:
    """Make a case of a product into ``out``, and of another one like it at other addresses."""

    def run() -> None:
        for _ in range(2):
            toprung.matmul(*abc(*sizes, **given), own=own, precision=precision, **more())

    CASES[f"{title}: {'×'.join(map(str, sizes))} {precision}"] = run


product("tiled", 64, 64, 64)
product("tiled, padded", 60, 52, 36, "NT", pad=3)
product("tiled, batch", 64, 64, 64, batch=(3, 2))
product("tiled, split-K", 128, 128, 20000)
product("tiled_cluster", 1000, 1000, 1000)
product("stream_k", 8192, 8192, 64)
product("skinny columns", 3, 1000, 20000)
product("skinny rows", 4096, 1, 4096, off=3)
product("skinny_cluster", 8, 3000, 3000)
product("hopper_sgemm", 4096, 4096, 4096)
product("hopper_sgemm", 4096, 4096, 4096, "TT")
product("hopper_sgemm", 333, 4097, 1025)
product("hopper_inflight", 1000, 1000, 1000, precision="fp32x")
product("hopper_inflight, batch", 200, 96, 128, "TN", batch=(5,), precision="fp32x")
product("hopper_inflight_split_k", 128, 128, 20000, precision="fp32x")
product("hopper_fp32x", 4096, 4096, 4096, precision="auto", own=False)
product("hopper_fp32x, split-K", 1024, 1024, 8192, precision="fp32x")
product("hopper_presplit", 16384, 64, 4096, "NT", precision="fp32x")
product("hopper_presplit", 16384, 64, 4096, precision="fp32x")
product("hopper_strassen", 8192, 8192, 8192, precision="fp32x-strassen")
product("bias", 1000, 1000, 1000, precision="fp32x", more=lambda: {"bias": Array("D", 1000), "activation": "relu"})
product("bias of columns, relu", 200, 96, 128, precision="fp32x", more=lambda: {"bias": Array("D", 200, 1), "activation": "relu"})
product("gelu", 64, 64, 64, more=lambda: {"activation": "gelu"})
product("bias and relu in passes of their own", 64, 64, 64, more=lambda: {"bias": Array("D", 64), "activation": "relu"})
product("nothing to sum", 5, 7, 0)
product("no result", 0, 5, 5)

PLAIN: dict[str, Any] = {"own": True, "precision": "fp32"}
ALIGNED = {"align_a": 4, "align_b": 4, "align_c": 4}


def session() -> Any:
    return session_at(Home("cuda"))


def grouped(*sizes: Any, bias: bool = False, **options: Any) -> None:
    a, b, c = map(list, zip(*(abc(*size) for size in sizes), strict=True))
    toprung.matmul_grouped(a, b, c, bias=[Array("D", size[1]) for size in sizes] if bias else None, own=True, **options)


class Cases:
    def a_launcher_that_is_dropped(self) -> None:
        made, kept = executor_of(session()).product(GemmDesc(128, 128, 20000, **ALIGNED), True, "fp32"), Array("", 1)
        gc.disable()
        run, gone = session().launcher(made.plan._replace(kept=(kept,))), weakref.ref(kept)
        del run, kept
        note("kept" if gone() else "its plan is gone")

    def scratch_memory_of_a_capture(self) -> None:
        toprung.matmul(*abc(4096, 4096, 4096), precision="fp32x")
        STREAM.is_capturing = lambda: True
        toprung.matmul(*abc(4096, 4096, 4096), precision="fp32x")

    def results_of_new_arrays(self) -> None:
        for _ in range(2):
            toprung.matmul(*abc(64, 64, 64)[:2], **PLAIN)

    def vectors(self) -> None:
        toprung.matmul(Array("A", 4096), Array("B", 4096, 1024), **PLAIN)
        toprung.matmul(Array("A", 4096), Array("B", 4096), **PLAIN)

    def broadcast_batches(self) -> None:
        for shapes in (((2, 1, 64, 64), (3, 64, 64)), ((1, 64, 64), (6, 64, 64)), ((6, 64, 64), (64, 64))):
            toprung.matmul(*(Array(name, *shape) for name, shape in zip("AB", shapes, strict=True)), **PLAIN)

    def another_alignment_of_out(self) -> None:
        for off in (0, 1, 2, 0):
            toprung.matmul(*abc(64, 64, 64)[:2], Array("C", 64, 64, off=off), **PLAIN)

    def operands_that_are_copied(self) -> None:
        for more in ({}, {}, {"bias": Array("D", 40)}):
            b = Array("B", 64, 40) if not more else Array("B", 64, 40, strides=(2, 150))
            toprung.matmul(Array("A", 60, 64, strides=(200, 3)), b, Array("C", 60, 40, strides=(100, 2)), **more, **PLAIN)

    def sgemm_and_sgemv(self) -> None:
        for alpha, beta in ((1.5, 0.0), (0.5, -2.0), (0.0, 3.0), (1e60, 1.0)):
            a, b, c = Array("A", 36, 60, strides=(1, 36)), Array("B", 36, 52), Array("C", 60, 52, strides=(1, 60))
            toprung.sgemm(alpha, a, b, beta, c, trans_a=1, overwrite_c=1, **PLAIN)
            toprung.sgemm(alpha, a, b, trans_a=1, **PLAIN)
            a, x, y = Array("A", 700, 600), Array("X", 2000), Array("Y", 1500)
            toprung.sgemv(alpha, a, x, beta, y, 5, -3, 7, 2, overwrite_y=1, **PLAIN)
            toprung.sgemv(alpha, a, x, offy=1, incy=2, trans=1, **PLAIN)

    def scalars_of_every_kernel(self) -> None:
        for *sizes, precision in (
            (128, 128, 20000, "fp32"), (4096, 4096, 4096, "fp32"), (4096, 4096, 4096, "fp32x"), (128, 128, 20000, "fp32x"),
            (8192, 8192, 8192, "fp32x-strassen"), (8, 3000, 3000, "fp32"),
        ):  # fmt: skip
            made = executor_of(session()).product(GemmDesc(*sizes, beta_zero=False, **ALIGNED), True, precision)
            a, b, c = (array.data.ptr for array in abc(*sizes))
            for alpha, beta in ((1.5, 0.5), (0.0, 0.5)):
                made.run(a, 8, b, 16, c, 32, alpha, beta)
        made.run(a, 8, b, 16, c, 32, 1e60, 0.5)

    def scalars_of_a_fused_bias(self) -> None:
        a, b, c = (strict(array, "") for array in abc(200, 96, 128))
        how = How("matmul", "fp32x", True, None)
        given = arranged(a, b, c, c.thing, how)
        call: Any = decided(1.0, given.a, given.b, 0.0, given.c, how)
        call = fused(call, (0, 1), "relu", given.a, given.b, given.c, how)
        for alpha, beta in ((1.5, 0.5), (0.0, 0.5)):
            call.start(*abc(200, 96, 128), a.address, b.address, c.address, alpha, beta, Array("D", 96).data.ptr)

    def halves(self) -> None:
        for type_a, type_b, precision in (("f2", "f4", "fp32x"), ("f4", "f2", "fp32"), ("f2", "f2", "fp32")):
            toprung.matmul(Array("A", 512, 512, dtype=type_a), Array("B", 512, 512, dtype=type_b), own=True, precision=precision)

    def prepacked(self) -> None:
        packed = toprung.prepack(Array("B", 1024, 1024))
        planned = toprung.plan(Array("A", 2048, 1024), packed, own=True)
        for _ in range(2):
            planned(Array("A", 2048, 1024), packed, Array("C", 2048, 1024))
        toprung.matmul(Array("A", 2048, 1024), packed, Array("C", 2048, 1024), own=True)
        toprung.matmul(Array("A", 16384, 4096), toprung.prepack(Array("B", 4096, 64)), own=True)

    def lent_scratch_memory(self) -> None:
        for *sizes, precision in (
            (128, 128, 20000, "fp32"), (4096, 4096, 4096, "fp32"), (128, 128, 20000, "fp32x"), (4096, 4096, 4096, "fp32x"),
            (16384, 64, 4096, "fp32x"), (8192, 8192, 8192, "fp32x-strassen"),
        ):  # fmt: skip
            made = executor_of(session()).product(GemmDesc(*sizes, **ALIGNED), True, precision)
            a, b, c, lent = (array.data.ptr for array in (*abc(*sizes), Array("W", made.lent_bytes // 4)))
            made.run(a, 0, b, 0, c, 0, 1.0, 0.0, None, lent)
            made.reserve(session().new_queue())

    def plans(self) -> None:
        planned = toprung.plan(*abc(60, 52, 36), **PLAIN)
        for off in (0, 0, 1):
            planned(*abc(60, 52, 36, off=off))
        planned(*abc(60, 52, 36)[:2], Array("C", 60, 52, off=1))
        planned(*abc(60, 52, 36)[:2])

    def groups(self) -> None:
        for _ in range(2):  # looked at, then known
            grouped((64, 64, 64), (60, 52, 36), (128, 128, 96, "NT"), (100, 20, 200), precision="fp32")
            grouped((4096, 4096, 4096), (512, 256, 128), (256, 64, 256), bias=True, activation="relu")
        grouped((64, 64, 64), precision="fp32")
        grouped((60, 52, 36), (64, 64, 64), precision="fp32")  # known pairs in another group

    def groups_on_several_streams(self) -> None:
        first, second, third = (int(session().new_queue()) for _ in range(3))
        a = [OnStream("A", 64, 64, stream=first), OnStream("A", 60, 36, stream=first)]
        b = [OnStream("B", 64, 64, stream=second), OnStream("B", 36, 52, stream=first)]
        toprung.matmul_grouped(a, b, [OnStream("C", 64, 64, stream=third), OnStream("C", 60, 52)], **PLAIN)

    def operands_on_several_streams(self) -> None:
        streams = [int(session().new_queue()) for _ in range(4)]
        for n, precision in ((64, "fp32"), (1000, "fp32x")):
            a, b, c = (OnStream(name, n, n, stream=at) for name, at in zip("ABC", streams[:3], strict=True))
            toprung.matmul(a, b, c, own=True, precision=precision)
            toprung.matmul(a, b, c, bias=OnStream("D", n, stream=streams[3]), own=True, activation="relu", precision=precision)
        toprung.matmul(a, OnStream("B", n, n), **PLAIN)
        toprung.matmul(a, b, c, bias=OnStream("D", n), activation="relu", **PLAIN)
        toprung.matmul(a, b, OnStream("C", n, n), activation="relu", **PLAIN)

    def current_streams(self) -> None:
        for *sizes, precision in ((128, 128, 20000, "fp32"), (128, 128, 20000, "fp32x"), (1000, 1000, 1000, "fp32x")):
            for STREAM.ptr in (0, int(session().new_queue()), 0):
                toprung.matmul(*abc(*sizes), own=True, precision=precision)

    def contexts_are_left_as_they_were(self) -> None:
        for n, precision in ((64, "fp32"), (1000, "fp32x")):
            operands = abc(n, n, n)
            for _ in range(3):  # a thread's first call like an earlier one lays its launch out, in the session's context
                toprung.matmul(*operands, own=True, precision=precision)
            driver.cuCtxSetCurrent(driver.CUcontext(0))
            toprung.matmul(*operands, own=True, precision=precision)
            note(f"context {int(driver.cuCtxGetCurrent()[1])}")

    def two_threads(self) -> None:
        for n, precision in ((64, "fp32"), (1000, "fp32x")):
            made = executor_of(session()).product(GemmDesc(n, n, n, **ALIGNED), True, precision)
            warm = functools.partial(toprung.matmul, own=True, precision=precision)
            for _ in range(3):  # launches that threads share by mistake are made by then
                warm(*abc(n, n, n))
            for call in (lambda *abc, made=made: made.run(*(x for one in abc for x in (one.data.ptr, 0)), 1.0, 0.0), warm):
                DRIVER.driver_meet(2)
                both = [threading.Thread(target=call, args=abc(n, n, n)) for _ in range(2)]
                for one in both:
                    one.start()
                for one in both:
                    one.join()
                DRIVER.driver_meet(0)

    def host_arrays_in_panels(self) -> None:
        here: dict[str, Any] = {**PLAIN, "device": session().device}
        a, b = (np.arange(math.prod(shape), dtype=np.float32).reshape(shape) % 7 for shape in ((100, 300), (300, 150)))
        os.environ["TOPRUNG_DEVICE_MEMORY"] = "300000"
        toprung.sgemm(1.0, a, b, 0.5, np.ones((100, 150), np.float32, "F"), overwrite_c=1, **here)
        os.environ["TOPRUNG_DEVICE_MEMORY"] = "150000"
        toprung.matmul(np.ones((400, 8), np.float32), np.ones((8, 100), np.float32), **here)
        del os.environ["TOPRUNG_DEVICE_MEMORY"]
        toprung.matmul(a.reshape(3, 2, 50, 100), b[:100], **here)

    def ranges_of_sizes(self) -> None:
        """With the launcher in C++, sizes from 33 to 64 become a range and are selected no more; its calls stay."""
        host = np.random.default_rng(1).random((70, 70, 96), np.float32)
        rows: tuple[int, ...] = 36, 40, 44, 48, 33, 64, 32, 65
        cases: list[tuple[tuple[int, ...], Callable[[int], list[Any]]]] = [
            (rows, lambda m: [host[1, :m, :64], host[2, :64, :60]]),
            ((33, 62), lambda m: [host[2, :64, :m].T, host[:64, 3, 60:0:-1]]),  # the copies' strides are the same
            (rows[1:-2], lambda m: [host[:m, :24, :40], host[:m, :40]]),
            (rows[1:], lambda m: abc(m, 60, 64, "NT", pad=4)[:2]),
        ]
        for sizes, make in cases:
            for size in sizes:
                a, b = make(size)
                here: Any = {"own": True, "precision": "fp32", "device": None if isinstance(a, Array) else "cuda:0"}
                ours = entered(lambda: toprung.matmul(a, b, **here))  # noqa: B023
                if native_plan.entry() is not None and size in (33, 62, 64):
                    most = 180 if here["device"] is None else 440
                    assert "select" not in ours and len(ours) <= most, (size, len(ours), Counter(ours))
                background.HERE.wait()

    def escalations_are_counted(self) -> None:
        toprung.matmul(*abc(1000, 1000, 1000), own=True, precision="fp32x")
        note(f"escalated {toprung.last_receipt().escalated}")

    def a_launch_that_is_refused_after_another(self) -> None:
        made = executor_of(session()).product(GemmDesc(128, 128, 20000, **ALIGNED), True, "fp32").plan
        multiply, add = made.launches
        refused, places = (
            add._replace(kernel=SimpleNamespace(**{**vars(add.kernel), "dynamic": 1 << 20})),
            [x.data.ptr for x in abc(128, 128, 20000)],
        )
        for launches in ([multiply, refused], [refused]):
            try:
                session().launcher(made._replace(launches=launches))(*(x for at in places for x in (at, 0)), 1.0, 0.0)
            except LaunchError as error:
                note(type(error).__name__)

    def a_launch_of_the_laboratory(self) -> None:
        s = session()
        fixed = [np.float32(0.5), np.uint32(6), np.uint32(7), *map(np.int64, (1, 2, 3, 4))]
        memory = s.foreign(Array("C", 4096).data.ptr, 16384)
        kernel, options = loaded(s, SCALE, SCALE.tile_for(s.device)), {"CARVEOUT": 1}
        launch = s.bind(kernel, (2, 3, 5), (8, 4, 2), [memory, np.int64(0), *fixed], options)
        driver.cuCtxSetCurrent(driver.CUcontext(0))
        launch()
        s.hold()()
        assert s.allocate(64).nbytes == s.pinned(64).nbytes  # given back at once


CASES |= {name.replace("_", " "): getattr(Cases(), name) for name in vars(Cases) if name[0] != "_"}


# running


@functools.cache
def functions() -> dict[str, list[FunctionType]]:
    """Return all functions by their file."""
    found: dict[str, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def changed(file: str, old: str, new: str) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions of a module that is loaded, each with its code in the source with a fault."""
    path, found = SOURCES / file, dict[str, CodeType]()
    text = path.read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
    left = [compile(text.replace(old, new), str(path), "exec", dont_inherit=True)]
    while left:
        inner = [c for c in left.pop().co_consts if isinstance(c, CodeType)]
        found |= {c.co_qualname: c for c in inner}
        left += inner
    return [(one, found[one.__code__.co_qualname]) for one in functions()[str(path)] if one.__code__.co_qualname in found]


def entered(call: Callable[[], object]) -> list[str]:
    """Return the names of the functions of toprung's that a call enters, without generator expressions and the like."""
    found: list[CodeType] = []
    sys.setprofile(lambda frame, event, _: found.append(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [code.co_name for code in found if code.co_filename.startswith(str(SOURCES)) and code.co_name[0] != "<"]


def note(text: str) -> None:
    DRIVER.driver_note(text.encode())


def recorded(name: str, faults: list[tuple[str, str, str]]) -> str:
    """Return what the stand-in writes down of a case, run in a forked child."""
    log, codes = Path(os.environ["TOPRUNG_DRIVER_LOG"]), [one for fault in faults for one in changed(*fault)]
    log.write_text("")
    if not (child := os.fork()):
        signal.alarm(600)  # threads may wait for each other in vain
        for function, code in codes:
            function.__code__ = code
        try:
            calls.know([strict(Array("", 1), "")])  # so that the second call like a first one is warm
            CASES[name]()
            if left := toprung.last_receipt():
                note(f"receipt: {left.launches} launches, {left.workspace_bytes} bytes of scratch memory")
        except BaseException as error:  # an outcome like any other
            note(f"{type(error).__name__}: {error}")
        gc.collect()
        DRIVER.driver_end()
        os._exit(0)
    os.waitpid(child, 0)
    lines = log.read_text().splitlines()
    return "\n".join(sorted(lines) if "threads" in name else lines)


def signatures(compiled: Callable[..., tuple[str, bytes]]) -> Callable[..., tuple[str, bytes]]:
    """Return ``nvrtc._compiled`` for kernels that return at once: the stand-in reads parameters and attributes, and compiles fast.

    What replaces the machine code's hash is that of all macros, in four unused bytes of the file's beginning.
    """

    def through(text: str, name: str, flags: tuple[str, ...], ptx: bool = False) -> tuple[str, bytes]:
        if ptx:
            return compiled(text, name, flags, ptx)
        log, code = compiled(re.sub(r"^(?!#).*(?:__kernel|__global__)[^{;]*\{", r"\g<0> return;", text, flags=re.M), name, flags)
        macros = hashlib.sha256(repr([name, *sorted(f for f in flags if f.startswith("--define"))]).encode()).digest()[:4]
        return log, code and code[:12] + macros + code[16:]

    return through


if __name__ == "__main__":
    nvrtc._compiled = signatures(once.nvrtc(nvrtc._compiled))
    nvrtc.version(), nvrtc.architectures(), families(), functions()  # once for all children
    native = native_plan.loaded(Path(os.environ["TOPRUNG_NATIVE"])) if "TOPRUNG_NATIVE" in os.environ else None
    native_plan.entry = lambda: native  # type: ignore[assignment]
    gc.freeze()
    json.dump([{name: recorded(name, faults) for name in names or CASES} for names, faults in json.load(sys.stdin)], sys.stdout)
