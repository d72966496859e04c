"""PoCL on a CPU newer than the LLVM inside it.

PoCL asks LLVM for the name of the host's CPU and passes the answer to its compiler. An LLVM that does not know the CPU answers
"generic", which that compiler refuses: nothing builds (pocl/pocl issue 1049). PoCL's wheel carries the LLVM of 2022 and has no
option for this, so on such a machine the function that names the CPU is made to give the name of an older one with the same
instructions: two instructions in this process's copy of the library, no file is touched. Where anything is not as expected,
nothing is done, and ``toprung devices`` says how to get another runtime.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
import threading
from pathlib import Path

import numpy as np

from toprung.errors import let_through
from toprung.forks import renewed

SYMBOL = b"_ZN4llvm3sys14getHostCPUNameEv"
KNOWN_AT_A_PLACE = b"POclIcdGetPlatformIDsKHR"
UNKNOWN = b"generic"
_HASWELL = frozenset(("avx2", "fma", "bmi1", "bmi2", "f16c"))
NAMES: tuple[tuple[str, frozenset[str]], ...] = (
    ("skylake-avx512", _HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("haswell", _HASWELL),
    ("nehalem", frozenset(("sse4_2", "popcnt"))),
)
"""CPUs that any LLVM knows, best first, with what a CPU must have (as Linux calls it) to run code compiled for them."""


class _StringRef(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t))


_patching = renewed(threading.Lock())
"""Held while PoCL's code is patched: a second thread that patches would make the page read-only before the first has written."""


def help_if_unknown() -> str:
    """Give a loaded PoCL that does not know this CPU a name it knows, once in a process; return that name, or an empty one."""
    with _patching:
        return _helped()


@functools.cache
def _helped() -> str:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return ""
    try:
        library = _loaded_library()
        name = _best_name(Path("/proc/cpuinfo").read_text("utf-8"))
        if not library or not name:
            return ""
        places = _symbols(library.read_bytes(), (SYMBOL, KNOWN_AT_A_PLACE))
        exported = ctypes.cast(getattr(ctypes.CDLL(str(library)), KNOWN_AT_A_PLACE.decode()), ctypes.c_void_p).value or 0
        address = exported - places[KNOWN_AT_A_PLACE] + places[SYMBOL]
        said = ctypes.CFUNCTYPE(_StringRef)(address)()
        if ctypes.string_at(said.data, said.length) != UNKNOWN:
            return ""
        _answer(address, name.encode())
    except (OSError, KeyError, ValueError, AttributeError, struct.error) as error:
        let_through(error)
        return ""
    return name


def _loaded_library() -> Path | None:
    """PoCL's library as this process has mapped it."""
    mapped = (Path(line.split(maxsplit=5)[-1]) for line in Path("/proc/self/maps").read_text("utf-8").splitlines())
    return next((path for path in mapped if path.name.startswith("libpocl")), None)


def _best_name(cpuinfo: str) -> str:
    """The best of ``NAMES`` whose code this CPU runs."""
    flags = next((line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return next((name for name, needed in NAMES if needed <= set(flags)), "")


def _symbols(elf: bytes, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Values of symbols of a 64-bit x86 ELF library; KeyError if one is missing, ValueError if it is something else."""
    if elf[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", elf, 18) != (62,):
        raise ValueError("not a 64-bit x86 library")
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    found: dict[bytes, int] = {}
    for _, kind, _, _, start, length, link, _, _, _ in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        text_start, text_length = sections[link][4:6]
        text = elf[text_start : text_start + text_length]
        fields = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")])
        symbols = np.frombuffer(elf, fields, length // fields.itemsize, start)
        for name in names:
            at = text.find(b"\0" + name + b"\0") + 1
            match = symbols[symbols["name"] == at] if at else symbols[:0]
            if match.size:
                found[name] = int(match["value"][0])
    return {name: found[name] for name in names}


def _answer(address: int, name: bytes) -> None:
    """Make the function at ``address`` return ``name``: mov rax, text; mov edx, length; ret."""
    text = ctypes.create_string_buffer(name)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))  # for ever: PoCL's threads may outlive the interpreter
    code = b"\x48\xb8" + struct.pack("<Q", ctypes.addressof(text)) + b"\xba" + struct.pack("<I", len(name)) + b"\xc3"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = address + len(code) - page
    if libc.mprotect(page, length, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memmove(address, code, len(code))
    libc.mprotect(page, length, mmap.PROT_READ | mmap.PROT_EXEC)
