"""Why a rung is as fast as it is: its compiled code and its tile, held against what a device can do, level by level."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from toprung import backends
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.errors import BadRecord, BuildError, MissingExtra, NoDevice, UnknownName, Unsupported
from toprung.kernels.record import LANGUAGES, kernel_source
from toprung.lab.bounds.arch import ARCHITECTURES, vendor_figures
from toprung.lab.bounds.banks import Traffic, traffic
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.levels import Bound, KernelWork, bound, step, warp_tile
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness import results
from toprung.lab.harness.compare import Row
from toprung.lab.harness.measure import Measurement
from toprung.lab.probe import store
from toprung.lab.rung import Options, Rung
from toprung.lab.sass.machine_code import MachineCode, inspect_source
from toprung.oracle.problem import Problem
from toprung.tile import Tile

ALIKE = 0.05
"""Part by which loads counted from subscripts and in machine code may differ: a pipelined loop has a few of its own."""


@dataclass(frozen=True)
class Explanation:
    """A rung on a device and a problem.

    Attributes
    ----------
    code : None where it was not compiled, with the reason in ``notes``
    measured, record : the fastest stored measurement of this very tile and problem, and the file it lies in
    notes : what is missing, a sentence each
    """

    rung: Rung
    tile: Tile
    options: Options
    device: Device
    problem: Problem
    figures: Figures
    bound: Bound
    code: MachineCode | None = None
    measured: Measurement | None = None
    record: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """The bound's time as a part of the measured one; None where it is unknown or ``beaten``."""
        seconds = self.bound.seconds
        return None if self.measured is None or isinstance(seconds, Unknown) or self.beaten else seconds / self.measured.median

    @property
    def beaten(self) -> str:
        """Which assumption of the model is wrong, where the rung was faster than its bound; empty where it was not."""
        return self.bound.beaten(self.measured.median) if self.measured else ""

    @property
    def without_caches(self) -> float | Unknown:
        """The paper's equation 10, in GFLOP/s: each block's tiles from memory, and nothing kept by any cache."""
        speed = self.figures.dram_read_bytes_per_s
        if speed is None or self.rung.routine != "gemm":
            return self.figures.lacking("dram_read_bytes_per_s") if speed is None else Unknown(("a tile of a product",))
        rows, cols = (self.tile.BM, self.tile.BN) if self.bound.work.staged else warp_tile(self.tile)
        return speed / 4 * 2 * rows * cols / (rows + cols) / 1e9

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        most, found = self.bound.gflops, self.bound.limiter
        return {
            "rung": self.rung.name, "number": self.rung.number, "idea": self.rung.idea, "tile": self.tile.given(),
            "options": dict(self.options), "problem": self.problem.describe(), "arch": self.device.arch,
            "bound_gflops": None if isinstance(most, Unknown) else most, "limiter": found.name if found else None,
            "levels": [
                {"name": v.name, "counted": v.counted}
                | ({"missing": list(v.seconds.missing)} if isinstance(v.seconds, Unknown) else {"seconds": v.seconds})
                for v in self.bound.levels
            ],
            "no_cache_gflops": None if isinstance(self.without_caches, Unknown) else self.without_caches,
            "registers": self.code.registers if self.code else None,
            "ffma_share": self.code.loop.ffma_share if self.code else None,
            "kept_share": self.code.loop.reads.kept_share if self.code else None,
            "measured_gflops": self.measured.gflops if self.measured else None, "share": self.share,
            "figures": self.figures.describe(), "notes": list(self.notes),
        }  # fmt: skip


def explain(
    rung: Rung,
    device: Device,
    problem: Problem,
    options: Options,
    tile: Tile | None = None,
    folder: Path | None = None,
    figures: Figures | None = None,
) -> Explanation:
    """Everything that is known about a rung on a device.

    Parameters
    ----------
    options : every switch of the rung with its value
    tile : by default the rung's own for the device
    folder : where to look for stored measurements and probes besides the user's own folder
    figures : of the device; by default what was measured, then what its vendor says

    Raises
    ------
    Unsupported
        a rung on matrix units: the model is one of fp32 multiply-adds
    """
    if rung.precision != "fp32":
        raise Unsupported(f"{rung} computes on matrix units, and the model bounds fp32 multiply-adds: `toprung inspect {rung}`")
    chosen = tile or rung.tile_for(device, options)
    known = figures or figures_of(device, folder)
    code, note = compiled(rung, chosen, options, device)
    work = work_of(rung, chosen, options, problem, code)
    found = measured(rung, chosen, options, problem, device, folder) if folder else None
    return Explanation(
        rung, chosen, options, device, problem, known, bound(work, known), code, found[1] if found else None,
        found[0] if found else None, (note,) if note else (),
    )  # fmt: skip


def compiled(rung: Rung, tile: Tile, options: Options, device: Device) -> tuple[MachineCode | None, str]:
    """The rung's machine code for a device's architecture, or why there is none."""
    if device.backend != "cuda" or not device.arch.startswith("sm_"):
        other = " (--arch sm_90 compiles as CUDA)" if LANGUAGES[rung.source.suffix] in nvrtc.LANGUAGES else ""
        return None, f"the machine code of {device} is not read: levels that need it are unknown{other}"
    try:
        return inspect_source(kernel_source(rung, tile, options), device.arch), ""
    except (BuildError, MissingExtra, UnknownName) as error:
        return None, f"not compiled: {error}"


def work_of(rung: Rung, tile: Tile, options: Options, problem: Problem, code: MachineCode | None) -> KernelWork:
    """Return what a bound has to know of a rung on a problem."""
    sizes: Any = problem
    if rung.routine != "gemm":  # one product of a matrix and a vector; its tile means something else
        return KernelWork(sizes.M, 1, sizes.N, problem.min_bytes)
    loop = code.loop.counts if code and code.loop.counts else None
    whole = rung.whole_operands(options)
    bm, bn, bk = tile.BM, tile.BN, tile.BK or 1
    M, N = (-(-sizes.M // bm) * bm, -(-sizes.N // bn) * bn) if "C" in whole else (sizes.M, sizes.N)
    K = -(-sizes.K // bk) * bk if "B" in whole else sizes.K
    work = KernelWork(
        M, N, K, problem.min_bytes, tile, whole="C" in whole, even=rung.even, staged=rung.local_bytes(tile) > 0,
        loop=loop, registers=code.registers if code else None,
        shared_bytes=code.shared_bytes if code else rung.local_bytes(tile), batch=getattr(problem, "batch", 1),
        useful_flops=problem.flops,
    )  # fmt: skip
    return replace(work, traffic=_traffic(rung, tile, options, work.count("LDS")))


def _traffic(rung: Rung, tile: Tile, options: Options, loads: float | None) -> Traffic | None:
    """Return the wavefronts that a rung's subscripts ask for, if the compiled code has as many ``loads`` a multiply-add as they."""
    if rung.shared_accesses is None or loads is None:
        return None
    for joined in (True, False):  # compilers differ in whether they make one load of neighbouring floats
        found = traffic(partial(rung.shared_accesses, tile, options), tile.work_items, joined)
        if abs(found.loads / step(tile) - loads) < ALIKE * loads:
            return found
    return None


def figures_of(device: Device, folder: Path | None = None) -> Figures:
    """Measured figures first, then the vendor's, else unknown."""
    found = measured_figures(device, folder)
    vendor = vendor_figures(device)
    return found.or_else(vendor) if found else vendor


def measured_figures(device: Device, folder: Path | None = None) -> Figures | None:
    """Return a probe's figures of a device: the user's own, the package's, or those under a folder of results."""
    if found := store.figures_for(device):
        return found
    for path in sorted(folder.glob(f"{device.slug}/probe-*.json")) if folder else ():
        try:
            return store.figures(store.read(path))
        except BadRecord:
            continue
    return None


def device_for(arch: str) -> Device:
    """An architecture as a device: one of it that was probed, here or by us, else the chip that the vendor's documents describe.

    Raises
    ------
    UnknownName
        an architecture nothing can be compiled for
    """
    device = nvrtc.device_of(arch)
    probed = (_recorded(content) for _, content in store.records_for(None) if content["environment"]["device"]["arch"] == arch)
    return next(filter(None, probed), None) or _chip(arch) or device


def device_named(name: str, folder: Path) -> Device:
    """The device a user means: one that is here, one of which there are records, or a chip of the vendor's documents.

    Raises
    ------
    UnknownName
        none of these has the name
    """
    try:
        return backends.find(name)
    except (UnknownName, NoDevice):
        pass
    wanted, known = name.lower().strip(), [str(d) for d in backends.devices()]
    for _, content in itertools.chain(store.records_for(None), records(folder)):
        of = content["environment"]["device"]
        if (device := _recorded(content)) and (wanted == of["slug"] or wanted in device.name.lower()):
            return device
        known += [of["slug"]] if device else []
    titles = {of.title: key for key, of in ARCHITECTURES.items() if key in nvrtc.architectures()}
    if found := next((key for title, key in titles.items() if wanted and wanted in title.lower()), None):
        return _chip(found) or nvrtc.device_of(found)
    raise UnknownName("device", name, dict.fromkeys([*known, *titles]))


def records(folder: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every record under a folder, and in the user's own, that can be read."""
    for path, record in results.read_all(results.folders(folder)) if folder else ():
        if not isinstance(record, BadRecord):
            yield path, record


def measured(
    rung: Rung, tile: Tile, options: Options, problem: Problem, device: Device, folder: Path
) -> tuple[Path, Measurement] | None:
    """The fastest stored measurement of a rung with this tile and these switches on this problem and device."""
    best: tuple[Path, Measurement] | None = None
    for path, record in records(folder):
        if not results.is_of(record, device) or record["environment"]["device"]["backend"] != device.backend:
            continue
        for m in record["measurements"]:
            who = m.competitor
            same = who["kind"] == "rung" and who["name"] == rung.name and who["tile"] == tile.given()
            if same and who["options"] == dict(options) and dict(m.problem) == problem.describe() and m.mode == "warm":
                best = (path, m) if best is None or m.median < best[1].median else best
    return best


class RungBounds:
    """Bounds of a ladder's rungs on one device, each computed once; none where the device was never probed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        found = measured_figures(device)
        self.figures = found.or_else(vendor_figures(device)) if found else None
        self.notes: dict[str, None] = {}
        """Which assumptions were wrong: rungs that were faster than their bounds."""
        self._codes: dict[tuple[Any, ...], MachineCode | None] = {}
        self._known: dict[tuple[Any, ...], Bound] = {}

    def of(self, rung: Rung, tile: Tile, options: Options, problem: Problem) -> Bound | None:
        """A rung's bound; None without figures, and for matrix units, which the model does not know."""
        if self.figures is None or rung.precision != "fp32":
            return None
        code = (rung.name, tile, tuple(options.items()))
        if code not in self._codes:
            self._codes[code] = compiled(rung, tile, options, self._device)[0]
        key = (*code, problem)
        if key not in self._known:
            self._known[key] = bound(work_of(rung, tile, options, problem, self._codes[code]), self.figures)
        return self._known[key]

    def share(self, row: Row, problem: Problem) -> float | None:
        """The bound's time as a part of the measured one; None for a peer, where either is missing, and where it is beaten.

        The bound is computed the first time that a row is seen with a tile, which is before it is timed.
        """
        who = row.who
        if not isinstance(who, RungCompetitor) or who.tile is None or row.state not in ("timing", "sampling", "done"):
            return None
        found = self.of(who.rung, who.tile, who.options, problem)
        if found is None or isinstance(found.seconds, Unknown) or row.measurement is None:
            return None
        if (wrong := found.beaten(row.measurement.median)) and row.state == "done":
            self.notes[f"{who.name} {who.variant}".rstrip() + f" at {problem}: {wrong}"] = None
        return None if wrong else found.seconds / row.measurement.median


def _recorded(content: Mapping[str, Any]) -> Device | None:
    """The NVIDIA GPU of a record, as far as it is written down; None for another device, or one reached otherwise."""
    of = content["environment"]["device"]
    if of["backend"] != "cuda" or of["arch"] not in nvrtc.architectures():
        return None
    chip = nvrtc.device_of(of["arch"])
    return replace(chip, id=of["slug"], name=of["name"], compute_units=of["compute_units"], clock_mhz=of["clock_mhz"])


def _chip(arch: str) -> Device | None:
    """The chip that stands for an architecture in the vendor's documents; None where none does."""
    of = ARCHITECTURES.get(arch.rstrip("af"))
    if of is None:
        return None
    return replace(nvrtc.device_of(arch), name=of.title, compute_units=of.sms or 0, clock_mhz=of.clock_mhz or 0.0)
