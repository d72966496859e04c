"""Architectures as their vendor describes them, every figure with the document it is from. None: the documents do not say.

The three oldest are the table of Lai and Seznec's paper on an upper bound of SGEMM (INRIA RR-7923, 2012), with its unknowns as
unknowns: what it marks as a guess is in ``guesses``, which is shown and never computed with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from toprung.device import FP32_LANES, Device
from toprung.errors import UnknownName
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.occupancy import room

PAPER = "Lai and Seznec, INRIA RR-7923 (2012), table of architectures"
GUIDE = "CUDA C++ Programming Guide"
SPECIFICATIONS = f'{GUIDE}, table "Technical Specifications per Compute Capability"'
ARITHMETIC = f'{GUIDE}, table "Throughput of Native Arithmetic Instructions"'
SCHEDULERS = f"{GUIDE}, the section of each compute capability: four warp schedulers, an instruction a clock each"
BANKS = f"{GUIDE}, shared memory: 32 banks of 32 bits a clock"
WARP = 32


@dataclass(frozen=True)
class Architecture:
    """A multiprocessor (SM), and the chip whose figures stand for the architecture.

    Attributes
    ----------
    key : how a user names it
    title : its name and its chip's
    sms, clock_mhz, core_clock_mhz : the chip; ``clock_mhz`` is that of the arithmetic, which before Kepler was another than the
        core's; later chips have one clock, and no figure of a second
    dram_bytes_per_s, l2_bytes : the chip's memory bandwidth and the size of its last cache
    schedulers, dispatch_units : of a multiprocessor
    issue_per_dispatch : warp instructions a dispatch unit issues in a core clock
    issue_lanes : instructions of single threads issued per clock and multiprocessor
    lanes : fp32 units; each starts an instruction a clock
    flops_per_lane : operations such an instruction counts for in the theoretical peak
    ffma_lanes, lds_lanes : fused multiply-adds and 32-bit loads from shared memory of single threads, per clock
    tensor_fp16 : multiply-adds of fp16 numbers on Tensor Cores, per clock
    ldst_units, sfus : load/store and special function units
    shared_bytes, shared_bytes_block : shared memory of a multiprocessor, and the most that one block may have
    shared_bytes_per_clock : what shared memory hands out
    registers, registers_thread : 32-bit registers, and the most of a thread
    threads, blocks : most that a multiprocessor holds
    guesses : figures that the source itself marks with a question mark
    sources : where each figure is from; ``""`` is where those are from that are not named
    """

    key: str
    title: str
    sms: int | None = None
    clock_mhz: float | None = None
    core_clock_mhz: float | None = None
    dram_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    schedulers: int | None = None
    dispatch_units: int | None = None
    issue_per_dispatch: int | None = None
    issue_lanes: int | None = None
    lanes: int | None = None
    flops_per_lane: int = 2
    ffma_lanes: int | None = None
    lds_lanes: int | None = None
    tensor_fp16: int | None = None
    ldst_units: int | None = None
    sfus: int | None = None
    shared_bytes: int | None = None
    shared_bytes_block: int | None = None
    shared_bytes_per_clock: int | None = None
    registers: int | None = None
    registers_thread: int | None = None
    threads: int | None = None
    blocks: int | None = None
    guesses: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guesses", MappingProxyType(dict(self.guesses)))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))

    @property
    def peak_gflops(self) -> float | Unknown:
        """The theoretical peak: every unit starts an instruction each clock."""
        if self.sms is None or self.clock_mhz is None or self.lanes is None:
            return self.lacking("sms", "clock_mhz", "lanes")
        return 1e-3 * self.sms * self.clock_mhz * self.lanes * self.flops_per_lane

    def lacking(self, *names: str) -> Unknown:
        """Those of the figures that the documents do not give."""
        return Unknown(tuple(f"{name} of {self.title}" for name in names if getattr(self, name) is None))

    def source_of(self, name: str) -> str:
        """Return the source of a figure; empty if it is unknown."""
        return "" if getattr(self, name) is None else self.sources.get(name, self.sources.get("", ""))

    def table(self) -> list[tuple[str, str, str]]:
        """Every figure of the chip: its name, its value (``?`` unknown, ``256?`` the source's guess) and its source."""
        rows = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("key", "title", "guesses", "sources") or (f.name == "core_clock_mhz" and value is None):
                continue
            guess = self.guesses.get(f.name)
            text = f"{value:g}" if isinstance(value, float) else str(value)
            if value is None:
                text = "?" if guess is None else f"{guess:g}?"
            rows.append((f.name, text, self.source_of(f.name)))
        return rows

    def figures(self) -> Figures:
        """The documents' figures in the form in which a probe gives a device's own."""
        mine = {
            "sms": (self.sms, "sms"),
            "clock_mhz": (self.clock_mhz, "clock_mhz"),
            "issue_per_clock": (None if self.issue_lanes is None else self.issue_lanes / WARP, "issue_lanes"),
            "ffma_per_clock": (self.ffma_lanes, "ffma_lanes"),
            "tensor_per_clock": (self.tensor_fp16, "tensor_fp16"),
            "shared_bytes_per_clock": (self.shared_bytes_per_clock, "shared_bytes_per_clock"),
            "l2_bytes": (self.l2_bytes, "l2_bytes"),
            "dram_bytes_per_s": (self.dram_bytes_per_s, "dram_bytes_per_s"),
            "dram_read_bytes_per_s": (self.dram_bytes_per_s, "dram_bytes_per_s"),
        }
        values = {k: v for k, (v, _) in mine.items()}
        sources = {k: self.source_of(name) for k, (v, name) in mine.items() if v is not None}
        return Figures(self.title, self.key, **values, source="vendor documents", sources=sources)  # type: ignore[arg-type]


def _today(key: str, title: str, paper: str, **chip: int | float) -> Architecture:
    """An architecture of the Programming Guide's tables; ``chip`` figures are the white paper's."""
    of = room(key)
    digits = key.removeprefix("sm_")
    lanes = FP32_LANES[int(digits[:-1]), int(digits[-1])]
    own: dict[str, int | float] = {
        "schedulers": of.schedulers, "dispatch_units": of.schedulers, "issue_per_dispatch": 1, "issue_lanes": WARP * of.schedulers,
        "lanes": lanes, "ffma_lanes": lanes, "shared_bytes": of.shared_bytes,
        "shared_bytes_block": of.shared_bytes - of.reserved_bytes, "shared_bytes_per_clock": 128, "lds_lanes": WARP,
        "registers": of.registers, "registers_thread": 255, "threads": of.threads, "blocks": of.blocks,
    }  # fmt: skip
    sources = dict.fromkeys(
        ("shared_bytes", "shared_bytes_block", "registers", "registers_thread", "threads", "blocks"), SPECIFICATIONS
    )
    sources |= dict.fromkeys(("schedulers", "dispatch_units", "issue_per_dispatch", "issue_lanes"), SCHEDULERS)
    sources |= dict.fromkeys(("shared_bytes_per_clock", "lds_lanes"), BANKS) | dict.fromkeys(("lanes", "ffma_lanes"), ARITHMETIC)
    if "shared_bytes_per_clock" in chip:
        sources["shared_bytes_per_clock"] = "NVIDIA Ampere GA102 GPU architecture white paper, comparison of the SM with Turing's"
        sources["lds_lanes"] = sources["shared_bytes_per_clock"]
    return Architecture(key, title, **(own | chip), sources={"": paper, **sources})  # type: ignore[arg-type]


KIB = 1024
MIB = 1024 * KIB
_PAPER = {"": PAPER, "sms": "NVIDIA's specification of the card; not in the paper's table"}

GT200 = Architecture(
    "gt200", "GT200 (GTX 280)", sms=30, clock_mhz=1296, core_clock_mhz=602, dram_bytes_per_s=141.7e9, schedulers=1,
    dispatch_units=1, issue_per_dispatch=1, issue_lanes=16, lanes=8, flops_per_lane=3, ffma_lanes=8, sfus=2,
    shared_bytes=16 * KIB, shared_bytes_block=16 * KIB, registers=16 * KIB, registers_thread=127,
    sources=_PAPER | {"flops_per_lane": "a MAD and a MUL a clock, as the peak of 933 GFLOP/s counts them"},
)  # fmt: skip
FERMI = Architecture(
    "fermi", "Fermi (GTX 580)", sms=16, clock_mhz=1544, core_clock_mhz=772, dram_bytes_per_s=192.4e9, schedulers=2,
    dispatch_units=2, issue_per_dispatch=1, issue_lanes=32, lanes=32, ffma_lanes=32, ldst_units=16, lds_lanes=16, sfus=4,
    shared_bytes=48 * KIB, shared_bytes_block=48 * KIB, registers=32 * KIB, registers_thread=63, sources=_PAPER,
)  # fmt: skip
KEPLER = Architecture(
    "kepler", "Kepler (GTX 680)", sms=8, clock_mhz=1006, core_clock_mhz=1006, dram_bytes_per_s=192.26e9, schedulers=4,
    dispatch_units=8, lanes=192, ldst_units=32, sfus=32, shared_bytes=48 * KIB, shared_bytes_block=48 * KIB, registers=64 * KIB,
    registers_thread=63, guesses={"issue_per_dispatch": 1, "issue_lanes": 256, "ffma_lanes": 192, "lds_lanes": 32}, sources=_PAPER,
)  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({
    a.key: a
    for a in (
        GT200, FERMI, KEPLER,
        _today("sm_75", "Turing (RTX 2080 Ti)", "NVIDIA Turing GPU architecture white paper", sms=68, clock_mhz=1545,
               dram_bytes_per_s=616e9, l2_bytes=5632 * KIB, shared_bytes_per_clock=64, lds_lanes=16, sfus=16),
        _today("sm_80", "Ampere (A100 SXM, 40 GB)", "NVIDIA A100 Tensor Core GPU architecture white paper", sms=108, clock_mhz=1410,
               dram_bytes_per_s=1555e9, l2_bytes=40 * MIB, sfus=16, tensor_fp16=1024),
        _today("sm_86", "Ampere (RTX 3090)", "NVIDIA Ampere GA102 GPU architecture white paper", sms=82, clock_mhz=1695,
               dram_bytes_per_s=936e9, l2_bytes=6 * MIB, sfus=16),
        _today("sm_89", "Ada (RTX 4090)", "NVIDIA Ada GPU architecture white paper", sms=128, clock_mhz=2520,
               dram_bytes_per_s=1008e9, l2_bytes=72 * MIB, sfus=16),
        _today("sm_90", "Hopper (H100 SXM)", "NVIDIA H100 Tensor Core GPU architecture white paper and data sheet", sms=132,
               clock_mhz=1980, dram_bytes_per_s=3350e9, l2_bytes=50 * MIB, sfus=16, tensor_fp16=2048),
        _today("sm_100", "Blackwell (B200)", "NVIDIA HGX B200 data sheet", dram_bytes_per_s=8000e9),
    )
})  # fmt: skip
"""By the name a user types. SMs, clock and cache of a B200 are in no document of the vendor's that says them plainly: unknown."""

CARDS: Mapping[str, tuple[float, int, str]] = MappingProxyType({
    "RTX 2080 Ti": (616e9, 5632 * KIB, "NVIDIA Turing GPU architecture white paper"),
    "A100-SXM4-40GB": (1555e9, 40 * MIB, "NVIDIA A100 data sheet"),
    "A100-SXM4-80GB": (2039e9, 40 * MIB, "NVIDIA A100 data sheet"),
    "RTX 3090": (936e9, 6 * MIB, "NVIDIA Ampere GA102 GPU architecture white paper"),
    "RTX 4090": (1008e9, 72 * MIB, "NVIDIA Ada GPU architecture white paper"),
    "H100 80GB HBM3": (3350e9, 50 * MIB, "NVIDIA H100 data sheet"),
    "H200": (4800e9, 50 * MIB, "NVIDIA H200 data sheet; the cache: H100 white paper, the same chip"),
    "B200": (8000e9, 0, "NVIDIA HGX B200 data sheet"),
})  # fmt: skip
"""Memory bandwidth and last cache of cards by a part of the name their driver gives (0: unknown); several share an architecture."""


def architecture(key: str) -> Architecture:
    """An architecture by its name; ``sm_90a`` is ``sm_90``.

    Raises
    ------
    UnknownName
        none of these: nothing is known about it, and nothing is guessed
    """
    name = key.lower()
    if name.startswith("sm_"):
        name = name.rstrip("af")
    if name not in ARCHITECTURES:
        raise UnknownName("architecture in the model", key, ARCHITECTURES)
    return ARCHITECTURES[name]


def card(name: str) -> tuple[float | None, int | None, str]:
    """Memory bandwidth, last cache and their source for a device's name; None where no document is at hand."""
    for part, (bandwidth, cache, source) in CARDS.items():
        if part in name:
            return bandwidth, cache or None, source
    return None, None, ""


def vendor_figures(device: Device) -> Figures:
    """Return the vendor's figures of a device; for one whose architecture is not in the model, its driver's."""
    bandwidth, cache, source = card(device.name)
    sources = dict.fromkeys(("dram_bytes_per_s", "dram_read_bytes_per_s", "l2_bytes"), source) | {"ffma_per_clock": ARITHMETIC}
    own = Figures(
        device.name, device.arch, sms=device.compute_units or None, clock_mhz=device.clock_mhz or None, ffma_per_clock=device.lanes,
        dram_bytes_per_s=bandwidth, dram_read_bytes_per_s=bandwidth, l2_bytes=cache, source="the device's driver", sources=sources,
    )  # fmt: skip
    key = device.arch.rstrip("af")
    if key not in ARCHITECTURES:
        return own
    of = ARCHITECTURES[key]
    if device.name == of.title:
        return of.figures()
    # the memory and the cache of the architecture's record are those of another card
    same = replace(of.figures(), dram_bytes_per_s=None, dram_read_bytes_per_s=None)
    return own.or_else(replace(same, l2_bytes=None, sms=None, clock_mhz=None))
