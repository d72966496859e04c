"""Figures of a device: measured by the probe, said by its vendor, or unknown. Bounds are computed from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from toprung.errors import BadRecord

FORMAT = "toprung figures 1"


@dataclass(frozen=True)
class Unknown:
    """In place of a number that cannot be computed: which figures are missing for it."""

    missing: tuple[str, ...]

    def __str__(self) -> str:
        return "unknown: " + ", ".join(self.missing)


@dataclass(frozen=True)
class Figures:
    """One device in figures. None, or a key that a mapping lacks: unknown.

    ``per_clock`` is per multiprocessor (SM) and clock, at the clock a multiprocessor's arithmetic runs at.

    Attributes
    ----------
    name, arch : as a device has them; ``arch`` is ``"sm_90"``, or the name of an architecture of ``bounds.arch``
    sms : multiprocessors
    clock_mhz : the clock under load
    issue_per_clock : warp instructions
    ffma_per_clock : fused multiply-adds of single threads that all read one register
    ffma_outer_per_clock : the same as outer products of two register vectors, by shape and order, ``"8x8 boustrophedon"``
    tensor_per_clock : multiply-adds of fp16 numbers on Tensor Cores, summed in fp32
    shared_bytes_per_clock : bytes that shared memory hands out without conflicts
    lds_per_clock : warp-wide loads from shared memory without conflicts, by bits a thread: ``"32"``, ``"64"``, ``"128"``
    l1_bytes_per_clock : bytes that global loads get from the L1 cache
    l2_bytes : what the last cache holds
    l2_read_bytes_per_s, dram_read_bytes_per_s : the whole device's
    dram_bytes_per_s : of the memory interface, by the vendor: no access is faster, as what a probe reached may be exceeded
    l2_copy_bytes_per_s, dram_copy_bytes_per_s : bytes read plus bytes written
    launch_seconds : between two launches that do nothing
    ffma_latency_clocks : until a fused multiply-add may use the result of the one before
    latency_clocks : until a load has come, from ``"shared"``, ``"L1"``, ``"L2"``, ``"memory"``
    barrier_clocks : of a barrier at which all arrive at once, by threads of a block: ``"128"``
    groups_per_clock : blocks that begin on a multiprocessor where they do next to nothing, by threads
    source : where the figures come from: ``probe`` and its date, ``vendor documents``
    sources : the same for single figures, in words
    """

    name: str
    arch: str
    sms: int | None = None
    clock_mhz: float | None = None
    issue_per_clock: float | None = None
    ffma_per_clock: float | None = None
    ffma_outer_per_clock: Mapping[str, float] = field(default_factory=dict)
    tensor_per_clock: float | None = None
    shared_bytes_per_clock: float | None = None
    lds_per_clock: Mapping[str, float] = field(default_factory=dict)
    l1_bytes_per_clock: float | None = None
    l2_bytes: int | None = None
    l2_read_bytes_per_s: float | None = None
    l2_copy_bytes_per_s: float | None = None
    dram_bytes_per_s: float | None = None
    dram_read_bytes_per_s: float | None = None
    dram_copy_bytes_per_s: float | None = None
    launch_seconds: float | None = None
    ffma_latency_clocks: float | None = None
    latency_clocks: Mapping[str, float] = field(default_factory=dict)
    barrier_clocks: Mapping[str, float] = field(default_factory=dict)
    groups_per_clock: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("name", "arch", "source"):
                if not isinstance(value, str):
                    raise BadRecord(f"{f.name} of a device's figures is a text, not {value!r}")
            elif f.name == "sources":
                object.__setattr__(self, f.name, MappingProxyType({str(k): str(v) for k, v in value.items()}))
            elif f.name in MAPPINGS:
                for key, number in value.items():
                    _positive(f"{f.name} {key}", number)
                object.__setattr__(self, f.name, MappingProxyType(dict(value)))
            elif value is not None:
                _positive(f.name, value)

    @property
    def peak_gflops(self) -> float | Unknown:
        """Two operations a fused multiply-add."""
        sms, clock, lanes = self.sms, self.clock_mhz, self.ffma_per_clock
        if sms is None or clock is None or lanes is None:
            return self.lacking("sms", "clock_mhz", "ffma_per_clock")
        return 2e-3 * sms * clock * lanes

    def lacking(self, *names: str) -> Unknown:
        """Those of the figures that are unknown."""
        return Unknown(tuple(n for n in names if getattr(self, n) is None or getattr(self, n) == {}))

    def source_of(self, name: str) -> str:
        """Return the source of one figure; empty if it is unknown."""
        value = getattr(self, name)
        return "" if value is None or value == {} else self.sources.get(name, self.source)

    def or_else(self, other: Figures | None) -> Figures:
        """These figures (measured), and the other's (the vendor's) for those that are unknown here."""
        if other is None:
            return self
        taken: dict[str, Any] = {}
        sources = dict(self.sources)
        for f in fields(self):
            if f.name in ("name", "arch", "source", "sources"):
                continue
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if f.name in MAPPINGS:
                if added := {k: v for k, v in theirs.items() if k not in mine}:
                    taken[f.name] = {**mine, **added}
                    if not mine:
                        sources[f.name] = other.source_of(f.name)
            elif mine is None and theirs is not None:
                taken[f.name], sources[f.name] = theirs, other.source_of(f.name)
        source = self.source if not taken else "; ".join(dict.fromkeys(filter(None, (self.source, other.source))))
        for name in FIGURES:
            if name not in taken and self.source_of(name) and source != self.source:
                sources.setdefault(name, self.source)
        return replace(self, **taken, source=source, sources=sources)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"format": FORMAT} | {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}


MAPPINGS = ("ffma_outer_per_clock", "lds_per_clock", "latency_clocks", "barrier_clocks", "groups_per_clock")
FIGURES = tuple(f.name for f in fields(Figures) if f.name not in ("name", "arch", "source", "sources"))


def _positive(name: str, value: object) -> None:
    """Raise BadRecord unless it is a positive number; NaN is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadRecord(f"{name} must be a positive number, or unknown, and not {value!r}")
