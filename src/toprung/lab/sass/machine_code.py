"""Machine code of a kernel: registers, spills and instruction counts, read from a compiler's output. Needs no GPU.

Counts are static: an instruction in a loop counts once. The main loop is the one that does most of the arithmetic itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toprung.backends import cubin as cubin_file
from toprung.backends import nvrtc
from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.backends.nvrtc import Cubin, capability, compile_cubin
from toprung.backends.waiting import finished
from toprung.device import FP32_LANES
from toprung.errors import DAMAGE, BadCubin, MissingExtra
from toprung.lab.bounds import registers
from toprung.lab.bounds.registers import READS, Reads, Register, Sources, reads_of, register_reads
from toprung.paths import cache_dir, publish_cached

INTEGER = (
    "IMAD IADD IADD3 LEA LOP3 PLOP3 SHF SHL SHR ISETP IABS IMNMX VIADD VIMNMX UIMAD UIADD3 ULEA ULOP3 USHF UISETP LOP R2UR S2UR"
)
MOVE = "MOV UMOV CS2R S2R LDC ULDC LDCU SEL USEL PRMT HFMA2"
CONTROL = "BRA BRX JMP CALL RET EXIT BSSY BSYNC WARPSYNC BREAK NOP YIELD"
GROUPS: Mapping[str, str] = MappingProxyType(
    {op: group for group, ops in (("integer", INTEGER), ("move", MOVE), ("control", CONTROL)) for op in ops.split()}
)
"""Instructions counted together; HFMA2 and MOV-like ones only bring constants into registers in an fp32 kernel."""

MEMORY = ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LD", "ST")
ALONE = (
    "FFMA", "FFMA2", "FADD", "FMUL", "LDGSTS", "SHFL", "BAR", "HGMMA", "HMMA", "DFMA",
    "UTMALDG", "SYNCS", "WARPGROUP", "USETMAXREG",
)  # fmt: skip
ARITHMETIC = ("HGMMA", "HMMA", "FFMA")
"""Instructions that a kernel is there for: the first of these that it has."""

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
REGISTER = re.compile(r"-?\|?R(\d+)\|?((?:\.reuse)?)\Z")


@dataclass(frozen=True)
class Loop:
    """Instructions of a loop by class, and what its multiply-adds ask of the register file."""

    counts: Mapping[str, int]
    reads: Reads = field(default_factory=Reads)

    @property
    def instructions(self) -> int:
        """Number of instructions."""
        return sum(self.counts.values())

    @property
    def ffma_share(self) -> float:
        """The part of them that are fused multiply-adds: what issues one instruction a clock cannot exceed."""
        return self.share("FFMA")

    def share(self, kind: str) -> float:
        """The part of them that are of a class."""
        return self.counts.get(kind, 0) / self.instructions if self.instructions else 0.0


@dataclass(frozen=True)
class MachineCode:
    """One kernel compiled for one architecture.

    Attributes
    ----------
    registers : of a thread
    spill_stores, spill_loads : bytes of a thread that are stored and loaded because registers ran out
    stack_bytes : of a thread, in memory: its arrays that are indexed by a variable, and what was spilled
    shared_bytes : shared memory of a block, with what a launch adds
    counts : instructions of the whole kernel by class, such as ``"LDS.128"``
    loop : those of the main loop; empty where there is none
    straight : instructions outside of the main loop on the way that turns aside at no condition and repeats nothing: of a kernel
        whose special cases are jumped to, what it runs in the common case
    """

    kernel: str
    arch: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    shared_bytes: int
    counts: Mapping[str, int]
    loop: Loop
    straight: int = 0

    @property
    def local_bytes(self) -> int:
        """Bytes of a thread that live in memory in place of registers, spilled or on its stack."""
        return max(self.spill_stores, self.spill_loads, self.stack_bytes)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> MachineCode:
        """Return what ``describe`` described."""
        loop = Loop(MappingProxyType(dict(content["loop"])), Reads(**content["register_reads"]))
        given = {name: content[name] for name in cls.__dataclass_fields__}
        return cls(**{**given, "loop": loop, "counts": MappingProxyType(dict(content["counts"]))})

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kernel": self.kernel, "arch": self.arch, "registers": self.registers, "spill_stores": self.spill_stores,
            "spill_loads": self.spill_loads, "stack_bytes": self.stack_bytes, "shared_bytes": self.shared_bytes,
            "counts": dict(self.counts), "loop": dict(self.loop.counts), "ffma_share": self.loop.ffma_share,
            "register_reads": asdict(self.loop.reads), "straight": self.straight,
        }  # fmt: skip


def inspect_source(source: Source, arch: str) -> MachineCode:
    """Compile a kernel text for an architecture and read the result.

    Raises
    ------
    BuildError
        with the compiler's log
    MissingExtra
        NVRTC or the disassembler is not installed
    """
    disassembler()  # before the time of a compilation is spent
    if source.language == "cubin":
        return _inspect_own(source, arch)
    static = read(compile_cubin(source, arch), source.symbol, arch)
    return replace(static, shared_bytes=static.shared_bytes + source.defines.get(DYNAMIC_SHARED, 0))


def kept(source: Source, arch: str) -> MachineCode:
    """Return what ``inspect_source`` does, from the cache if it was read before; the key is everything that can change it."""
    what = (source.text, source.defines_text(), source.kernel, source.language, source.binary.hex(), arch, nvrtc.version())
    reader = b"".join(Path(file).read_bytes() for file in (__file__, registers.__file__, nvrtc.PRELUDE))
    path = cache_dir() / "machine-code" / f"{hashlib.sha256(repr(what).encode() + reader).hexdigest()}.json"
    try:
        return MachineCode.of(json.loads(path.read_bytes()))
    except (OSError, *DAMAGE):
        code = inspect_source(source, arch)
        publish_cached(path, json.dumps(code.describe()).encode())
        return code


def _inspect_own(source: Source, arch: str) -> MachineCode:
    """Machine code that is there already: no compiler's log, but what it says of itself."""
    own = cubin_file.check(source.binary, source.name, arch, source.symbol)
    shared = own.shared_bytes + source.defines.get(DYNAMIC_SHARED, 0)
    code = read(Cubin(source.binary, ""), source.symbol, arch)
    return replace(code, registers=own.registers, stack_bytes=own.stack_bytes, shared_bytes=shared)


def read(cubin: Cubin, kernel: str, arch: str) -> MachineCode:
    """Read one kernel of a cubin, and what its compiler's log says about it."""
    parts = cubin.log.split("Compiling entry function ")
    used = next((p for p in parts[1:] if p.startswith(f"'{kernel}'")), "")
    whole, loop, straight = read_code(disassemble(cubin.code), kernel, reads_of(FP32_LANES.get(capability(arch))))
    said = ("Used # registers", "# bytes spill stores", "# bytes spill loads", "# bytes stack frame", "# bytes smem")
    found = (re.search(text.replace("#", r"(\d+)"), used) for text in said)
    registers, stores, loads, stack, shared = (int(f[1]) if f else 0 for f in found)
    return MachineCode(kernel, arch, registers, stores, loads, stack, shared, whole, loop, straight)


def classify(opcode: str) -> str:
    """The class an instruction is counted in: memory by width, arithmetic alone, the rest in groups."""
    name, *modifiers = opcode.split(".")
    if name in MEMORY:
        width = next((m for m in modifiers if m in ("64", "128", "U8", "S8", "U16", "S16")), "32")
        return f"{name}.{width}" + (".CONSTANT" if "CONSTANT" in modifiers else "")
    if name in ALONE:
        return name
    return GROUPS.get(name, "other")


def disassemble(cubin: bytes) -> str:
    """Return the listing of a cubin.

    Raises
    ------
    BadCubin
        the disassembler does not read it: that of CUDA 13 reads no code for GPUs before sm_75
    MissingExtra
        there is no disassembler
    NotReady
        it does not end
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = finished([tool := disassembler(), "-c", "-ndf", str(path)], "install another one, of a newer CUDA toolkit")
        if done.returncode:
            raise BadCubin(f"{tool} does not read the machine code: {done.stderr.strip() or f'it ended with {done.returncode}'}")
        return done.stdout


def disassembler() -> str:
    """Return the path of nvdisasm, in a wheel, in a toolkit, or on the path; or raise MissingExtra."""
    wheels = importlib.util.find_spec("nvidia")
    folders = [Path(p) / "cu13" / "bin" for p in (wheels.submodule_search_locations or [])] if wheels else []
    found = shutil.which("nvdisasm", path=os.pathsep.join(map(str, folders))) if folders else None
    found = found or shutil.which("nvdisasm") or shutil.which("nvdisasm", path="/usr/local/cuda/bin")
    if not found:
        raise MissingExtra('nvdisasm is not installed; pip install "toprung[cuda]"')
    return found


@dataclass(frozen=True)
class _Instruction:
    address: int
    kind: str
    target: str  # the label it jumps to, if it does
    sources: Sources | None = None  # the registers a multiply-add reads
    conditional: bool = False
    leaves: bool = False


def innermost_loops(listing: str, kernel: str) -> list[Loop]:
    """Every loop of a kernel that has no other one in it, in order."""
    code, labels = _parse(listing, kernel)
    loops = _loops(code, labels)
    inner = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    return [_loop([i for i in code if a <= i.address <= b]) for a, b in sorted(inner)]


def read_code(listing: str, kernel: str, reads: int = READS) -> tuple[Mapping[str, int], Loop, int]:
    """The whole kernel's instructions, the main loop, and how many are outside it on the straight way."""
    code, labels = _parse(listing, kernel)
    loops = _loops(code, labels)
    main: list[_Instruction] = []
    most = 0
    work = next((kind for kind in ARITHMETIC if any(i.kind == kind for i in code)), "")
    for first, last in loops:
        nested = [(a, b) for a, b in loops if (a, b) != (first, last) and first <= a and b <= last]
        body = [i for i in code if first <= i.address <= last]
        own = sum(i.kind == work for i in body if not any(a <= i.address <= b for a, b in nested))
        if own > most:
            main, most = body, own
    return _tally(code), _loop(main, reads), _straight(code, labels, main)


def _straight(code: Sequence[_Instruction], labels: Mapping[str, int], main: Sequence[_Instruction]) -> int:
    """Instructions outside the main loop where no condition is met; a jump back is the end of a loop that runs once."""
    inside = range(main[0].address, main[-1].address + 1) if main else range(0)
    count, skip_to = 0, 0
    for i in code:
        if i.address < skip_to or i.address in inside:
            continue
        count += 1
        if i.conditional:
            continue
        if i.leaves:
            break
        skip_to = max(skip_to, labels.get(i.target, 0))
    return count


def _loop(body: Sequence[_Instruction], reads: int = READS) -> Loop:
    return Loop(_tally(body), register_reads([i.sources for i in body], reads=reads))


def _loops(code: Sequence[_Instruction], labels: Mapping[str, int]) -> list[tuple[int, int]]:
    """First and last address of every loop, the shortest first."""
    return sorted(
        (
            (labels[i.target], i.address)
            for i in code
            if i.target and labels.get(i.target, i.address) < i.address  # a jump to itself pads the end of the code
        ),
        key=lambda span: span[1] - span[0],
    )


def _parse(listing: str, kernel: str) -> tuple[list[_Instruction], dict[str, int]]:
    """Instructions of a kernel and the addresses of its labels."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in _section(listing, kernel):
        if label := LABEL.match(line):
            waiting.append(label.group(1))
        elif found := INSTRUCTION.match(line):
            address = int(found.group(1), 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            opcode, operands = found.group(3), found.group(4)
            target = TARGET.search(operands) if opcode.startswith("BRA") else None
            kind = classify(opcode)
            sources = _sources(operands) if kind == "FFMA" else None
            aside = bool(found.group(2))
            code.append(_Instruction(address, kind, target.group(1) if target else "", sources, aside, opcode == "EXIT"))
    return code, labels


def _sources(operands: str) -> Sources:
    """The registers that a multiply-add reads, by place; ``R105, R44, R52.reuse, R105`` begins with what it writes."""
    found = [REGISTER.match(word.strip()) for word in operands.split(",")[1:4]]
    return tuple(Register(int(f.group(1)), bool(f.group(2))) if f else None for f in found)


def _section(listing: str, kernel: str) -> Iterator[str]:
    inside = False
    for line in listing.splitlines():
        if line.startswith("//-----"):
            inside = f".text.{kernel} " in line
        elif inside:
            yield line


def _tally(code: Sequence[_Instruction]) -> Mapping[str, int]:
    return MappingProxyType(dict(sorted(Counter(i.kind for i in code).items())))
