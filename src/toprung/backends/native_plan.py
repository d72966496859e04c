"""Plans of a CUDA session for the launcher in C++, ``launch.cpp``, which runs them without Python, from any thread."""

from __future__ import annotations

import ctypes
import functools
import struct
import sysconfig
import warnings
import weakref
from array import array
from collections.abc import Iterable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from toprung.backends import cxx
from toprung.backends.base import Buffer
from toprung.backends.launcher import checked, described, status_text
from toprung.backends.launcher import launcher as in_python
from toprung.backends.plan import Address, First, Handle, Library, Map, Plan, Run, Scalar, Struct
from toprung.errors import LaunchError, MissingExtra, Unfinished

SOURCE = Path(__file__).parents[1] / "native" / "launch.cpp"
ENTRY = SOURCE.with_name("entry.cpp"), SOURCE
"""Sources of the extension module, which has the launcher, too."""
NAME = "entry.abi3.so"
"""The extension module's file in a wheel."""

ADDRESS, SCALAR, MAP, BYTES = range(4)
"""Kinds of arguments, as ``Kind`` in ``launch.cpp``."""

UNFINISHED = -2
"""``TOPRUNG_UNFINISHED`` in ``launch.h``."""

WHEN = ("", "alpha", "beta", "no beta")


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Return a library that has the launcher, with the types of its functions; see ``launch.h``."""
    word, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.toprung_plan_new.argtypes, library.toprung_plan_new.restype = [pointer, ctypes.c_size_t], pointer
    library.toprung_plan_free.argtypes, library.toprung_plan_free.restype = [pointer], None
    library.toprung_flags.argtypes, library.toprung_flags.restype = [word] * 4, None
    library.toprung_launch.argtypes = [pointer, pointer, ctypes.c_double, ctypes.c_double, pointer]
    return library


def built() -> Path:
    """Return the file of the extension module in the cache, whether it has been built or not."""
    return cxx.kept("entry/abi3", (*ENTRY, SOURCE.with_suffix(".h")))


def build(path: Path | None = None) -> Path:
    """Compile the extension module, for every Python from 3.11 on, and return its file.

    Nothing is compiled where there is one already.

    Raises as ``cxx.compile_library`` does, and MissingExtra where Python's headers are missing.
    """
    if path is None and (module := entry()) is not None:
        return Path(module.__file__)
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise MissingExtra(f"there is no {headers / 'Python.h'}: install Python's headers, which Debian's python3-dev has")
    path = path or built()
    cxx.compile_library(path, ENTRY, f"-I{headers}", "-ldl")
    return path


@functools.cache
def entry() -> Any:
    """Return the extension module; None where the wheel has none and none has been built."""
    paths = cxx.FOLDER / NAME, built() if ENTRY[0].is_file() else None
    return next((loaded(path) for path in paths if path and path.is_file()), None)


def loaded(path: Path) -> Any:
    """Return the extension module in a file; None, with a warning, if it does not load.

    Its ``library`` has the functions of ``launch.h``.
    """
    try:
        loader = ExtensionFileLoader("toprung.native.entry", str(path))
        spec = spec_from_loader(loader.name, loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        module.library = declare(ctypes.CDLL(str(path)))  # type: ignore[attr-defined]
    except (ImportError, OSError) as error:
        text = f"products enter Python, for {error}: python -m toprung.torch --build makes the file anew"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    return module


class NativePlan:
    """A plan in the launcher's memory, with the objects that it needs.

    Attributes
    ----------
    handle : address of the ``toprung_plan``, which is freed with this object: no launch of it may then be in progress

    Raises
    ------
    LaunchError
        the grid is too large for the device, or a launch has too many arguments or is another library's
    """

    _made: ClassVar[weakref.WeakValueDictionary[tuple[int, int], NativePlan]] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, library: ctypes.CDLL, session: Any, plan: Plan) -> NativePlan:
        """Return a plan in a library's memory, the same one for every caller and thread."""
        key = id(library), id(plan)  # a NativePlan keeps both
        if (found := cls._made.get(key)) is None:
            found = cls._made[key] = cls(library, session, plan)
        return found

    def __init__(self, library: ctypes.CDLL, session: Any, plan: Plan) -> None:
        self.library, self.session, self.plan = library, session, plan
        words = words_of(session, plan)
        self.handle = library.toprung_plan_new(words, len(words) // 8)
        if not self.handle:
            raise LaunchError(f"the launcher in C++ takes no plan of {len(plan.launches)} launches on {session.device}")
        # not __del__, which runs while `_made` still has the object for other threads
        weakref.finalize(self, library.toprung_plan_free, self.handle)

    def prepare(self, stream: int) -> None:
        """Allocate what a stream needs before the plan is launched there; not while it is captured."""
        if nbytes := self.plan.flags_bytes:
            self.library.toprung_flags(int(self.session._context), stream, self.session.flags(stream, nbytes), nbytes)


def launcher(session: Any, plan: Plan) -> Run:
    """Return what ``toprung.backends.launcher`` does, by the launcher in C++ where it is built and takes the plan."""
    module = entry()
    try:
        made = module and NativePlan.of(module.library, session, plan)
    except LaunchError:
        made = None
    if not made:
        if plan.words is not None:
            raise LaunchError("a plan that was filled in from words needs the launcher in C++")
        return in_python(session, plan)

    def with_scratch(
        a: Any, offset_a: Any, b: Any, offset_b: Any, c: Any, offset_c: Any, alpha: Any, beta: Any, queue: Any, *more: Any
    ) -> None:  # fmt: skip
        work = session.workspace(queue, plan.workspace_bytes)
        with work.lock:  # another product's launches must not come between these
            stream, lent = int(session.queue if queue is None else queue), int(work.buffer.handle)
            flags = session.flags(stream, plan.flags_bytes) if plan.flags_bytes else 0
            bare(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, lent, *more, flags=flags)

    def failed(status: int) -> NoReturn:
        what = f"{described(plan.launches[0].kernel.source)} on {session.device}"
        if status == UNFINISHED:
            raise Unfinished(f"{what}: one of {len(plan.launches)} launches was refused after others")
        raise LaunchError(f"{what}: {status_text(session._driver, session._driver.CUresult(status))}")

    bound = struct.pack("=4Q", made.handle, int(session.queue), *plan.sizes)
    bare: Run = module.launcher((bound, made.prepare, None, failed))
    # with_scratch knows another function than the one that calls it: no cycle keeps the plan
    return module.launcher((bound, made.prepare, with_scratch, failed)) if plan.workspace_bytes else bare


def words_of(session: Any, plan: Plan) -> bytes:
    """Return a plan as words of 64 bits, in the order in which ``toprung_plan_new`` reads them."""
    if plan.words is not None:
        return plan.words
    scales = plan.scales or ()
    words = array("Q", (int(session._context), plan.workspace_bytes, plan.flags_bytes))
    words.extend((plan.scales is not None, len(plan.launches), len(scales)))
    for launch in (*plan.launches, *scales):
        kernel: Any = launch.kernel
        if isinstance(kernel, Library):
            raise LaunchError("the launcher in C++ launches toprung's kernels, not another library's")
        grid, block = checked(session.device, kernel, launch.groups, launch.local)
        overlaps = launch.overlaps and session._can_overlap and kernel.source.waits
        words.extend((int(kernel.function), *grid, *block, kernel.dynamic, overlaps))
        words.extend((WHEN.index(launch.when), len(launch.arguments)))
        for argument in launch.arguments:
            words.extend(_known(argument) if type(argument) in HASHED else _argument(argument))
    return words.tobytes()


def of_words(plan: Plan, words: bytes) -> Plan:
    """Return a plan with the words of another size; its kernels and buffers stay."""
    _, workspace, flags = struct.unpack_from("=3q", words)
    return plan._replace(workspace_bytes=workspace, flags_bytes=flags, words=words)


HASHED = {np.int32, np.uint32, np.int64, Address, Handle, Map, Scalar}
"""Types of arguments whose values tell their words; -0.0 equals 0.0 and has others."""


def _argument(argument: Any) -> Iterable[int]:
    if isinstance(argument, First):
        argument = np.int64(argument.plus)
    if isinstance(argument, np.generic):
        content = argument.tobytes()
        if len(content) <= 8:  # most are numbers
            return BYTES, len(content), 0, int.from_bytes(content, "little")
        return array("Q", (BYTES, len(content), 0)) + array("Q", content.ljust(-(-len(content) // 8) * 8, b"\0"))
    if isinstance(argument, Handle):
        return ADDRESS, argument.slot, 0
    if isinstance(argument, Address):
        return ADDRESS, argument.slot, argument.plus % 2**64
    if isinstance(argument, Scalar):
        return SCALAR, argument.number
    if isinstance(argument, Map):
        m = argument
        return MAP, m.slot, m.plus % 2**64, ("fp16", "fp32").index(m.dtype), m.rows, m.cols, m.stride, *m.box
    if isinstance(argument, Struct):
        addresses = np.column_stack((argument.places, argument.operands, argument.plus))
        head = array("Q", (BYTES, argument.content.nbytes, len(addresses)))
        return head + array("Q", argument.content.tobytes()) + array("Q", addresses.tobytes())
    buffer: Buffer = argument
    return BYTES, 8, 0, int(buffer.handle)


_known = functools.lru_cache(4096, typed=True)(_argument)
