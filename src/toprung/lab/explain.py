"""Why a rung is as fast as it is: its compiled code and its tile, held against what a device can do, level by level."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from toprung import backends
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.errors import BadRecord, BuildError, MissingExtra, NoDevice, UnknownName, Unsupported
from toprung.kernels.record import LANGUAGES, kernel_source
from toprung.lab.bounds.arch import ARCHITECTURES, vendor_figures
from toprung.lab.bounds.banks import WARP, Traffic, traffic, wavefronts
from toprung.lab.bounds.figures import Figures, Unknown
from toprung.lab.bounds.levels import LINE, Bound, KernelWork, VectorWork, bound, held, step, warp_tile
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness import results
from toprung.lab.harness.compare import Row
from toprung.lab.harness.measure import Measurement
from toprung.lab.probe import store
from toprung.lab.routines.gemv import grid
from toprung.lab.rung import Options, Rung
from toprung.lab.sass.machine_code import MachineCode, kept
from toprung.oracle.precision import precision
from toprung.oracle.problem import Problem
from toprung.tile import Tile

ALIKE = 0.05
"""Part by which loads counted from subscripts and in machine code may differ: a pipelined loop has a few of its own."""


HELPERS, SLOWED, FAR, FEW_WARPS = 0.1, 0.97, 0.7, 0.5
"""Limits of what `next` mentions: time in helpers, clock under load, measured over bound, warps that an SM holds."""
COALESCED = 8
"""Lines of memory that a coalesced load of a warp touches at most."""


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
        return None if self.measured is None or self.beaten else reached(self.bound, self.measured)

    @property
    def beaten(self) -> str:
        """Which assumption of the model is wrong, where the rung was faster than its bound; empty where it was not."""
        return self.bound.beaten(kernel_seconds(self.measured)) if self.measured else ""

    @property
    def speed(self) -> float | None:
        """The measured speed in the bound's unit, without helpers that only narrow operands."""
        return None if (m := self.measured) is None else m.alone if m.narrow else m.figure

    @property
    def next(self) -> str:
        """Advice on what to change next, from the measurement and the bound."""
        return next_step(self.bound, self.measured, self.figures)

    @property
    def without_caches(self) -> float | Unknown:
        """The paper's equation 10, in GFLOP/s: each block's tiles from memory, and nothing kept by any cache."""
        speed = self.figures.dram_read_bytes_per_s
        if speed is None or self.rung.routine != "gemm" or self.rung.tensor:
            return self.figures.lacking("dram_read_bytes_per_s") if speed is None else Unknown(("a tile of a product",))
        rows, cols = (self.tile.BM, self.tile.BN) if self.bound.work.staged else warp_tile(self.tile)
        return speed / 4 * 2 * rows * cols / (rows + cols) / 1e9

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        most, found = self.bound.figure, self.bound.limiter
        return {
            "rung": self.rung.name, "number": self.rung.number, "idea": self.rung.idea, "tile": self.tile.given(),
            "options": dict(self.options), "problem": self.problem.describe(), "arch": self.device.arch,
            "unit": self.bound.work.unit, "bound": None if isinstance(most, Unknown) else most,
            "limiter": found.name if found else None,
            "levels": [
                {"name": v.name, "counted": v.counted}
                | ({"missing": list(v.seconds.missing)} if isinstance(v.seconds, Unknown) else {"seconds": v.seconds})
                for v in self.bound.levels
            ],
            "no_cache_gflops": None if isinstance(self.without_caches, Unknown) else self.without_caches,
            "registers": self.code.registers if self.code else None,
            "ffma_share": self.code.loop.ffma_share if self.code else None,
            "kept_share": self.code.loop.reads.kept_share if self.code else None,
            "measured": self.speed, "share": self.share,
            "next": self.next,
            "figures": self.figures.describe(), "notes": list(self.notes),
        }  # fmt: skip


def explain(
    rung: Rung, device: Device, problem: Problem, options: Options, tile: Tile | None = None, folder: Path | None = None
) -> Explanation:
    """Everything that is known about a rung on a device.

    Parameters
    ----------
    options : every switch of the rung with its value
    tile : by default the rung's own for the device
    folder : where to look for stored measurements and probes besides the user's own folder

    Raises
    ------
    Unsupported
        a rung on Tensor Cores whose .py does not say what it asks of them
    """
    if not bounded(rung):
        raise Unsupported(
            f"{rung} computes on Tensor Cores, and its .py gives no `tensor`, its work on them: `toprung inspect {rung}`"
        )
    chosen = tile or rung.tile_for(device, options)
    known = figures_of(device, folder)
    code, note = compiled(rung, chosen, options, device)
    work = work_of(rung, chosen, options, problem, code, device)
    found = measured(rung, chosen, options, problem, device, folder) if folder else None
    return Explanation(
        rung, chosen, options, device, problem, known, bound(work, known), code, found[1] if found else None,
        found[0] if found else None, (note,) if note else (),
    )  # fmt: skip


def kernel_seconds(m: Measurement) -> float:
    """Return the seconds of a call that a bound is held against: without helpers that only narrow operands."""
    return m.median * (1 - m.helpers) if m.narrow else m.median


def reached(found: Bound, m: Measurement) -> float | None:
    """Return the bound's time as a part of the measured one; None where it is unknown."""
    return None if isinstance(found.seconds, Unknown) or not m.median else found.seconds / kernel_seconds(m)


def next_step(found: Bound, m: Measurement | None, figures: Figures) -> str:
    """Return what to change next: first helpers, a clock that fell and what no level counts, then what eases the limiter."""
    if m is None or found.limiter is None or reached(found, m) is None:
        return "once it comes near its bound: " * found.advice.startswith("nothing") + found.advice
    said, alone = [], m
    if m.helpers > HELPERS and not m.narrow:
        alone = replace(m, seconds=tuple((1 - m.helpers) * s for s in m.seconds), helper_seconds=())
        said.append(f"helpers (padding, transposes, splitting) take {100 * m.helpers:.0f} % of the time")
    if m.clock and figures.clock_mhz and m.clock < SLOWED * figures.clock_mhz:
        there = bound(found.work, replace(figures, clock_mhz=m.clock))
        # a clock that was read at another moment explains nothing
        if there.limiter and isinstance(there.figure, float) and not there.beaten(kernel_seconds(alone)):
            found = there
            said.append(
                f"power or heat held the clock at {m.clock:,.0f} of {figures.clock_mhz:,.0f} MHz, where the bound is "
                f"{there.figure:,.0f} {found.work.unit} by {there.limiter.name}"
            )
    share = reached(found, alone) or 0.0
    if share < FAR:
        so = "even so" if said else "it is"
        said.append(f"{so} far below its bound, at {100 * share:.0f} %: look at {', '.join(_uncounted(found, figures))}")
    elif said:
        said.append(f"the kernel itself is at {100 * share:.0f} %")
    if share >= FAR or not found.advice.startswith("nothing"):
        said.append(found.advice.rstrip("."))
    return "; ".join(said) + "."


def _uncounted(found: Bound, figures: Figures) -> Iterator[str]:
    """Yield what may hold up a kernel that is far below its bound, with the numbers that are at hand."""
    work, waits = found.work, figures.latency_clocks
    if work.vector and work.vector.lines > COALESCED:
        yield f"coalescing (a warp's load touches {work.vector.lines} lines of memory)"
    if not work.tensor and (warps := held(work, figures)) and warps.share < FEW_WARPS:
        yield f"occupancy ({warps.warps} warps an SM, {100 * warps.share:.0f} % of its room; scarcest: {warps.limiter})"
    if "memory" in waits:
        yield f"latency (a load takes {waits['L2']:.0f} clocks from L2, {waits['memory']:.0f} from memory)"
    if barriers := (work.loop or {}).get("BAR"):
        yield f"barriers ({barriers} in the main loop)"
    if work.tile and work.staged and not work.tensor and work.traffic is None:
        yield "bank conflicts, which its .py does not give"
    if work.vector:
        yield "instructions at the end of each row"


def bounded(rung: Rung) -> bool:
    """Return True if the model knows the rung's arithmetic: fp32 lanes, or Tensor Cores whose work its .py gives."""
    return rung.precision == "fp32" or rung.tensor is not None


def compiled(rung: Rung, tile: Tile, options: Options, device: Device) -> tuple[MachineCode | None, str]:
    """The rung's machine code for a device's architecture, or why there is none."""
    if device.backend != "cuda" or not device.arch.startswith("sm_"):
        other = " (--arch sm_90 compiles as CUDA)" if LANGUAGES[rung.source.suffix] in nvrtc.LANGUAGES else ""
        return None, f"the machine code of {device} is not read: levels that need it are unknown{other}"
    try:
        return kept(kernel_source(rung, tile, options), device.arch), ""
    except (BuildError, MissingExtra, UnknownName) as error:
        return None, f"not compiled: {error}"


def work_of(rung: Rung, tile: Tile, options: Options, problem: Problem, code: MachineCode | None, device: Device) -> KernelWork:
    """Return what a bound has to know of a rung on a problem."""
    sizes: Any = problem
    loop = code.loop.counts if code and code.loop.counts else None
    if rung.routine != "gemm":  # one product of a matrix and a vector; its tile means something else
        vector = _vector_work(rung, tile, options, sizes, loop, device)
        registers, shared = (code.registers, code.shared_bytes) if code else (None, None)
        return KernelWork(
            sizes.M, 1, sizes.N, problem.min_bytes, vector=vector, loop=loop, registers=registers, shared_bytes=shared
        )
    whole = rung.whole_operands(options)
    bm, bn, bk = tile.BM, tile.BN, tile.BK or 1
    M, N = (-(-sizes.M // bm) * bm, -(-sizes.N // bn) * bn) if "C" in whole else (sizes.M, sizes.N)
    K = -(-sizes.K // bk) * bk if "B" in whole else sizes.K
    tensor, least = rung.tensor(tile) if rung.tensor else None, problem.min_bytes
    if not precision(rung.precision).accurate:  # fp16 operands, which helpers make beforehand
        least -= 2 * getattr(problem, "batch", 1) * (sizes.M * sizes.K + sizes.K * sizes.N)
    work = KernelWork(
        M, N, K, least, tile, tensor=tensor, cluster=options.get("CLUSTER", 1),
        whole="C" in whole, even=rung.even, staged=rung.local_bytes(tile) > 0,
        loop=loop, registers=code.registers if code else None,
        shared_bytes=code.shared_bytes if code else rung.local_bytes(tile), batch=getattr(problem, "batch", 1),
        useful_flops=problem.flops,
    )  # fmt: skip
    return replace(work, traffic=_traffic(rung, tile, options, work.count("LDS")))


def _vector_work(
    rung: Rung, tile: Tile, options: Options, problem: Any, loop: Mapping[str, int] | None, device: Device
) -> VectorWork:
    """Return the work of a product with a vector on the busiest SM, and its longest chain."""
    length, depth, width, sms = problem.length, problem.depth, tile.VA or tile.VEC or 1, max(1, device.compute_units)
    lda = problem.lda or 1
    if ("A" in rung.transposed) != (problem.trans == "T"):  # the helper's copy
        lda = length if rung.transposed else depth
    width = 1 if lda % width else width
    rows, columns, piece = tile.TM or 1, tile.TN or 1, min(width, 4)  # floats of a load
    groups, slices = grid(rung, tile, options, length, depth, device)
    steps = depth / slices / tile.BN  # of the loop; where rows end within one, not all lanes load
    # lanes along a row are neighbours in memory; those in other rows are as far apart as these, unless A comes transposed
    along = 1 if rung.transposed else tile.BN // columns
    lanes = [lane * width if rung.transposed else lane // along * rows * lda + lane % along * width for lane in range(WARP)]
    of_x = columns if rung.transposed else ceil(columns / piece)  # loads of x in a step
    each = rows * columns // piece * wavefronts(lanes, piece) + of_x
    busiest = ceil(length // tile.BM * slices / sms) if length >= tile.BM else length / tile.BM
    turns = ceil(ceil(length / tile.BM) / groups)
    loaded = sum(n for kind, n in (loop or {}).items() if kind.startswith(f"LDG.{32 * piece}"))
    asks = rows * columns // piece + (0 if rung.transposed else of_x)
    deep = max(1, loaded // asks) if loop else ceil(steps)  # steps whose loads the compiled loop may have under way together
    waits = {event: turns * n for event, n in (rung.waits(tile, options) if rung.waits else {}).items()}
    lines = len({at // LINE for at in lanes})
    return VectorWork(busiest * tile.work_items / WARP * steps * each, turns * ceil(steps / deep), waits, tile.work_items, lines)


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
    """Every record under a folder, in the user's own and of ours, that can be read."""
    for path, record in results.read_all(results.folders(folder, ours=True)) if folder else ():
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
        self._known: dict[tuple[Any, ...], Bound] = {}

    def of(self, rung: Rung, tile: Tile, options: Options, problem: Problem) -> Bound | None:
        """A rung's bound; None without figures, and on Tensor Cores where the rung does not say its work on them."""
        if self.figures is None or not bounded(rung):
            return None
        key = (rung.name, tile, tuple(options.items()), problem)
        if key not in self._known:
            code, _ = compiled(rung, tile, options, self._device)
            self._known[key] = bound(work_of(rung, tile, options, problem, code, self._device), self.figures)
        return self._known[key]

    def share(self, row: Row, problem: Problem) -> float | None:
        """The bound's time as a part of the measured one; None for a peer, where either is missing, and where it is beaten.

        The bound is computed the first time that a row is seen with a tile, which is before it is timed.
        """
        who = row.who
        if not isinstance(who, RungCompetitor) or who.tile is None or row.state not in ("timing", "sampling", "done"):
            return None
        found = self.of(who.rung, who.tile, who.options, problem)
        if found is None or row.measurement is None:
            return None
        if (wrong := found.beaten(kernel_seconds(row.measurement))) and row.state == "done":
            self.notes[f"{who.name} {who.variant}".rstrip() + f" at {problem}: {wrong}"] = None
        return None if wrong else reached(found, row.measurement)


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
