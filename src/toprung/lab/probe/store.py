"""Probe records: what a device was found to do, kept for the bounds.

They lie in the user's data folder, ``probes/<device>-<backend>.json``; for devices that nobody has probed here, some come with the
package (``probe/known``). A record is a record like any other (``toprung.lab.harness.results``) with the findings in ``probe``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprung.device import Device
from toprung.errors import DAMAGE, BadRecord
from toprung.lab.bounds.figures import Figures
from toprung.lab.harness import results
from toprung.lab.probe.run import Finding
from toprung.paths import data_dir

KNOWN = Path(__file__).parent / "known"
WARP = 32


def record(
    what: str, environment: dict[str, Any], findings: Sequence[Finding], notes: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    """Return a record of one probe.

    Parameters
    ----------
    what : the command, as a user types it
    notes : benchmarks that the device could not run, with the reason
    seconds : how long it took
    """
    failures = [f"{f.benchmark.name} {f.case.label}: {f.problem}" for f in findings if f.problem]
    return results.record(
        what, environment, (), failures, kind="probe", notes=[f"{name}: {reason}" for name, reason in notes.items()],
        took_seconds=seconds,
        probe=[f.describe() for f in findings],
    )  # fmt: skip


def path_of(slug: str, backend: str) -> Path:
    """Return the path of a device's record."""
    return data_dir() / "probes" / f"{slug}-{backend}.json"


def read(path: Path) -> dict[str, Any]:
    """Read a probe record.

    Raises
    ------
    BadRecord
        not there, damaged, or of something else
    """
    content = results.read(path)
    try:
        device = content["environment"]["device"]
        int(device["compute_units"]), float(device["clock_mhz"])
        for one in content["probe"]:
            str(one["benchmark"]), str(one["label"]), str(one["unit"]), dict(one["params"]), float(one["work"])
            lists = [one["values"], one["seconds"], [c for c in one["clocks_mhz"] if c is not None]]
            if not all(0 < float(v) < float("inf") for values in lists for v in values):
                raise ValueError(f"{one['benchmark']} {one['label']} holds a figure that is no positive number")
    except KeyError as error:
        raise BadRecord(f"{path} is no record of a probe, it has no {error}: run toprung probe") from None
    except DAMAGE as error:
        raise BadRecord(f"{path} is damaged ({type(error).__name__}: {error}): run toprung probe") from None
    return content


def records_for(device: Device | None, complaints: list[str] | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every usable record of a device, or of all: the user's own before those shipped, its own backend's before the others'.

    What is damaged or of another device is passed over; ``complaints`` gets the reason.
    """
    for folder in (data_dir() / "probes", KNOWN):
        paths = folder.glob(f"{device.slug}-*.json" if device else "*.json")
        first = f"{device.slug}-{device.backend}.json" if device else ""
        for path in sorted(paths, key=lambda p: (p.name != first, p)):
            try:
                content = read(path)
                if device and not results.is_of(content, device):
                    of = content["environment"]["device"]
                    raise BadRecord(f"{path} is of another device, {of['slug']} through {of['runtime']}, not of {device}")
            except BadRecord as error:
                if complaints is not None:
                    complaints.append(str(error))
                continue
            yield path, content


def figures_for(device: Device, complaints: list[str] | None = None) -> Figures | None:
    """Return what was measured of a device, as the bounds take it; None if nothing was.

    A figure that one record lacks is taken from the next.
    """
    found: Figures | None = None
    for _, content in records_for(device, complaints):
        one = figures(content)
        found = one if found is None else found.or_else(one)
    return found


def figures(content: Mapping[str, Any]) -> Figures:
    """Return the figures of one record: medians, per clock with the clock while they were measured."""
    environment = content["environment"]
    device = environment["device"]
    sms = int(device["compute_units"])
    chains = [p for p in content["probe"] if p["benchmark"] == "ffma_chain" and p["values"]]
    chain = max(chains, key=lambda p: float(statistics.median(p["values"])), default=None)
    clock = _clock(chain) if chain else None
    outer, lds, widest, mixes = {}, {}, [], []
    for one in content["probe"]:
        rate, value = _per_clock(one, sms), _value(one)
        if one["benchmark"] == "ffma_outer" and rate is not None:
            outer[str(one["label"])] = rate / 2  # operations, two a multiply-add
        elif one["benchmark"] == "ffma_lds" and value is not None:
            mixes.append(value)
            if one["params"]["RATIO"] == 0:
                lds[str(32 * one["params"]["W"])] = value / WARP
        elif one["benchmark"] == "shared" and value is not None:
            widest.append(value)
    rate = _per_clock(chain, sms) if chain else None
    launch = _value(_case(content, "launch", "back to back"))
    rates = {level: _value(_case(content, "bandwidth", f"{level} read")) for level in ("L2", "memory")}
    copies = {level: _value(_case(content, "bandwidth", f"{level} copy")) for level in ("L2", "memory")}
    l1 = _case(content, "bandwidth", "L1 read")
    return Figures(
        name=str(device["name"]),
        arch=str(device["arch"]),
        sms=sms,
        clock_mhz=clock,
        issue_per_clock=max(mixes) / WARP if mixes else None,
        ffma_per_clock=None if rate is None else rate / 2,
        ffma_outer_per_clock=outer,
        shared_bytes_per_clock=max(widest, default=None),
        lds_per_clock=lds,
        l1_bytes_per_clock=_per_clock(l1, sms) if l1 else None,
        l2_read_bytes_per_s=None if rates["L2"] is None else 1e9 * rates["L2"],
        dram_read_bytes_per_s=None if rates["memory"] is None else 1e9 * rates["memory"],
        l2_copy_bytes_per_s=None if copies["L2"] is None else 1e9 * copies["L2"],
        dram_copy_bytes_per_s=None if copies["memory"] is None else 1e9 * copies["memory"],
        launch_seconds=None if launch is None else 1e-6 * launch,
        ffma_latency_clocks=_value(_case(content, "ffma_latency")),
        latency_clocks=_by_label(content, "latency", _value),
        barrier_clocks=_by_label(content, "barrier", _value),
        groups_per_clock=_by_label(content, "work_groups", lambda one: _per_clock(one, sms)),
        source=f"probe through {device['backend']}, {environment['date'][:10]}",
    )


def _case(content: Mapping[str, Any], benchmark: str, label: str = "") -> Mapping[str, Any] | None:
    """Return a record's first finding of a benchmark, with a word in its label; None without one."""
    return next((p for p in content["probe"] if p["benchmark"] == benchmark and label in ("", p["label"])), None)


def _by_label(content: Mapping[str, Any], benchmark: str, figure: Callable[[Mapping[str, Any]], float | None]) -> dict[str, float]:
    """Return a figure of every case by the first word of its label: a level, a number of threads."""
    cases = [p for p in content["probe"] if p["benchmark"] == benchmark]
    return {str(p["label"]).split()[0]: value for p in cases if (value := figure(p)) is not None}


def _value(one: Mapping[str, Any] | None) -> float | None:
    return float(statistics.median(one["values"])) if one and one["values"] else None


def _clock(one: Mapping[str, Any]) -> float | None:
    seen = [float(c) for c in one["clocks_mhz"] if c]
    return float(statistics.median(seen)) if seen else None


def _per_clock(one: Mapping[str, Any], sms: int) -> float | None:
    """Return a finding's work per clock and SM."""
    clock = _clock(one)
    if clock is None or not one["values"]:
        return None
    return float(one["work"] / (statistics.median(one["seconds"]) * clock * 1e6 * sms))
