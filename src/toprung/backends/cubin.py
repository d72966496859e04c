"""Machine code for NVIDIA GPUs as a file: what it says of itself, read without a driver, so that errors come before a launch.

A cubin is an ELF file. Its header's flags name the architecture; a function marked as an entry is a kernel; the sections
``.nv.info`` hold what the driver must know, as attributes: the format in one byte, the attribute's number in one, then a size and
that many bytes (format 4) or the value itself in two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from toprung.errors import DAMAGE, BadCubin, UnknownName

CUDA_MACHINE = 190
NOBITS = 8
ENTRY = 0x10
FUNCTION = 2
REGISTERS, FRAME, PARAMETER, EXACT_THREADS, MOST_THREADS = 0x2F, 0x11, 0x17, 0x10, 0x05
SIZED = 4
HEADER, SECTION, SEGMENT, SYMBOL = 64, 64, 56, 24


@dataclass(frozen=True)
class KernelFacts:
    """Facts that a cubin states about one kernel.

    Attributes
    ----------
    registers : of a thread
    shared_bytes : static shared memory of a block, with what the system takes
    parameters : the size of each, in bytes
    threads : threads of a block it was compiled for, at most; None where it does not say
    stack_bytes : of a thread
    offset, size : where its instructions lie in the file, in bytes
    """

    registers: int
    shared_bytes: int
    parameters: tuple[int, ...]
    threads: int | None
    stack_bytes: int = 0
    offset: int = 0
    size: int = 0


@dataclass(frozen=True)
class Facts:
    """Facts that a cubin states about itself."""

    arch: str
    kernels: Mapping[str, KernelFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int


def facts(code: bytes, name: str) -> Facts:
    """Read a cubin; BadCubin says what is wrong with it. ``name``: how messages call it."""
    if code[:4] != b"\x7fELF":
        raise BadCubin(f"{name} is no cubin: it does not begin like an ELF file; nvcc -cubin or toprung inspect --cubin makes one")
    try:
        return _facts(code, name)
    except (struct.error, *DAMAGE) as error:
        if isinstance(error, BadCubin):
            raise
        raise BadCubin(f"{name} is damaged or cut off ({type(error).__name__}: {error}): make it anew") from None


def check(code: bytes, name: str, arch: str, kernel: str) -> KernelFacts:
    """The facts of one kernel, if a GPU of an architecture can run it.

    Raises
    ------
    BadCubin
        damaged, cut off, or for another architecture
    UnknownName
        it has no kernel of that name
    """
    found = facts(code, name)
    if not runs_on(found.arch, arch):
        raise BadCubin(f"{name} is machine code for {found.arch}, and the device is {arch}: make it anew with that architecture")
    if kernel not in found.kernels:
        raise UnknownName(f"kernel of {name}", kernel, found.kernels)
    return found.kernels[kernel]


def check_launch(code: bytes, name: str, kernel: str, block: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise BadCubin unless a kernel takes arguments of these sizes and blocks of this size."""
    one = facts(code, name).kernels[kernel]
    if one.parameters != tuple(sizes):
        raise BadCubin(
            f"{kernel} of {name} takes parameters of {_listed(one.parameters)} bytes, and is to be launched with {_listed(sizes)}: "
            "it is no kernel of this rung"
        )
    threads = block[0] * block[1] * block[2]
    if one.threads is not None and threads > one.threads:
        raise BadCubin(
            f"{kernel} of {name} was compiled for blocks of {one.threads} threads, and the rung's tile has {threads}: "
            "give the tile that it was compiled with"
        )


def runs_on(code: str, device: str) -> bool:
    """Return True if a GPU runs code for an architecture: the same major number, and a minor one that is not greater."""
    (a, b), (c, d) = (divmod(int("".join(filter(str.isdigit, name)) or 0), 10) for name in (code, device))
    return a == c and b <= d


def _listed(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes)) or "no"


def _facts(code: bytes, name: str) -> Facts:
    if code[4] != 2 or struct.unpack_from("<H", code, 18)[0] != CUDA_MACHINE:
        raise BadCubin(f"{name} is an ELF file, but not for NVIDIA GPUs: nvcc -cubin or toprung inspect --cubin makes one")
    (flags,) = struct.unpack_from("<I", code, 48)
    arch = f"sm_{flags >> 8 & 0xFF if code[8] >= 8 else flags & 0xFF}"  # CUDA 13 moved it
    sections = _sections(code, name)
    counts: dict[tuple[int, int], int] = {}
    symbols = next((s for s in sections if s.name == ".symtab"), None)
    if symbols is None:
        raise BadCubin(f"{name} has no symbols: make it anew")
    for info in (s for s in sections if s.name == ".nv.info"):
        for attribute, value in _attributes(code, info):
            if attribute in (REGISTERS, FRAME):
                which, count = struct.unpack("<II", value)
                counts[attribute, which] = count
    kernels = {}
    for i in range(symbols.size // SYMBOL):
        where, info_, other, section, _value, _size = struct.unpack_from("<IBBHQQ", code, symbols.offset + i * SYMBOL)
        if info_ & 15 == FUNCTION and other & ENTRY:
            kernel = _text(code, sections[symbols.link], where)
            # before CUDA 12 the section of the code held the number of registers
            text = sections[section]
            registers, stack = counts.get((REGISTERS, i), text.info >> 24), counts.get((FRAME, i), 0)
            kernels[kernel] = replace(
                _kernel(code, sections, kernel), registers=registers, stack_bytes=stack, offset=text.offset, size=text.size
            )
    return Facts(arch, MappingProxyType(kernels))


def _kernel(code: bytes, sections: Sequence[_Section], kernel: str) -> KernelFacts:
    parameters: dict[int, int] = {}
    threads: int | None = None
    for section in (s for s in sections if s.name == f".nv.info.{kernel}"):
        for attribute, value in _attributes(code, section):
            if attribute == PARAMETER:
                _index, ordinal, _offset, packed = struct.unpack("<IHHI", value)
                parameters[ordinal] = packed >> 18
            elif attribute in (EXACT_THREADS, MOST_THREADS):
                x, y, z = struct.unpack("<III", value[:12])
                threads = x * y * z
    shared = sum(s.size for s in sections if s.name == f".nv.shared.{kernel}")
    return KernelFacts(0, shared, tuple(parameters[i] for i in sorted(parameters)), threads)


def _sections(code: bytes, name: str) -> list[_Section]:
    """Every section, each known to lie in the file."""
    segments, table = struct.unpack_from("<QQ", code, 32)
    segment_size, segment_count, size, count, names = struct.unpack_from("<HHHHH", code, 54)
    if (segment_count and segment_size != SEGMENT) or size != SECTION:
        raise BadCubin(f"{name} is damaged: its tables have entries of an unknown size; make it anew")
    if table + count * size > len(code) or segments + segment_count * SEGMENT > len(code):
        raise BadCubin(f"{name} is cut off: it has {len(code):,} bytes, and its tables end behind them; make it anew")
    raw = [struct.unpack_from("<IIQQQQII", code, table + i * size) for i in range(count)]
    for _name, kind, _flags, _address, offset, length, _link, _info in raw:
        if kind != NOBITS and offset + length > len(code):
            raise BadCubin(f"{name} is cut off: it has {len(code):,} bytes, and a section ends behind them; make it anew")
    texts = _Section("", raw[names][1], raw[names][4], raw[names][5], 0, 0)
    return [_Section(_text(code, texts, r[0]), r[1], r[4], r[5], r[6], r[7]) for r in raw]


def _text(code: bytes, section: _Section, at: int) -> str:
    start = section.offset + at
    return code[start : code.index(b"\0", start)].decode()


def _attributes(code: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """Every attribute with its value."""
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", code, at)
        at += 4
        if form == SIZED:
            if at + size > end:
                raise ValueError("an attribute ends behind its section")
            yield attribute, code[at : at + size]
            at += size
