"""Words and figures that tables, pictures and pages share: sizes, speeds, sources, and the limits that figures are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toprung.lab.harness.bandwidth import Bandwidth
from toprung.lab.harness.measure import Measurement
from toprung.report import names
from toprung.store.entry import scatter


@dataclass(frozen=True)
class Limits:
    """Limits that a record's figures are compared with: the fp32 peak at each clock, or what memory gave in the same run."""

    gflops_per_mhz: float | None = None
    memory: Bandwidth | None = None

    @staticmethod
    def of(record: Mapping[str, Any]) -> Limits:
        """Those of a record."""
        device = record["environment"]["device"]
        peak, clock = device.get("peak_gflops"), device.get("clock_mhz")
        return Limits(peak / clock if peak and clock else None, Bandwidth.of(record))

    def shares(self, m: Measurement) -> dict[str, float]:
        """Shares of what is known, by the name of their column; none of the fp32 peak for what computes otherwise."""
        if m.units:
            return {}
        if m.measured_in == "GFLOP/s":
            share = m.share_of_peak(self.gflops_per_mhz)
            return {} if share is None else {names.PEAK: share}
        if not self.memory:
            return {}
        return {names.READ: m.figure / self.memory.read.gbytes_per_s, names.COPY: m.figure / self.memory.copy.gbytes_per_s}

    def share(self, m: Measurement) -> float | None:
        """The first of them: what stands in brackets behind a figure."""
        return next(iter(self.shares(m).values()), None)

    def names(self, record: Mapping[str, Any]) -> list[str]:
        """The columns that a record's measurements need."""
        return list(dict.fromkeys(name for m in record["measurements"] for name in self.shares(m)))


def size_of(m: Measurement) -> str:
    """A problem's size as a person writes it."""
    sizes = [m.problem[k] for k in "MNK" if k in m.problem]
    trans = m.problem.get("trans", "N")
    return (str(sizes[0]) if len(set(sizes)) == 1 else "×".join(map(str, sizes))) + (f" {trans}" if "T" in trans else "")


def gflops_text(value: float) -> str:
    """A speed with three digits, more where they are whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def scatter_text(seconds: Sequence[float]) -> str:
    """The scatter of samples in per cent; empty of a single one, which has none."""
    return f"{100 * scatter(seconds):.1f}" if len(seconds) > 1 else ""


def ms_text(seconds: float) -> str:
    """A time in milliseconds with three digits and no exponent."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 else f"{value:.5f}"
