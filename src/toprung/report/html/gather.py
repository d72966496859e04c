"""Files and folders → sound records of one device, and a complaint for everything that is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toprung.device import Device
from toprung.errors import DAMAGE, BadRecord, UnknownName
from toprung.lab.bounds.arch import vendor_figures
from toprung.lab.bounds.figures import Figures
from toprung.lab.harness import results
from toprung.lab.harness.accuracy import Graded
from toprung.lab.harness.bandwidth import Bandwidth
from toprung.lab.harness.measure import Measurement
from toprung.lab.harness.results import problem_name
from toprung.lab.probe import store
from toprung.oracle.precision import precision
from toprung.report.bound_table import read_bounds
from toprung.report.html.tuning import read_tuning
from toprung.tile import Tile


@dataclass(frozen=True)
class Stored:
    """A sound record and where it lies.

    Attributes
    ----------
    name : its path from the folder that was searched on, so that no page tells where a user's home is
    content : as ``toprung.lab.harness.results.read`` gives it
    """

    name: str
    content: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def device(self) -> Mapping[str, Any]:
        """The device it was measured on."""
        found: Mapping[str, Any] = self.content["environment"]["device"]
        return found

    @property
    def slug(self) -> str:
        """The device's name in file names."""
        return str(self.device["slug"])

    @property
    def backend(self) -> str:
        """Backend that the device was reached through."""
        return str(self.device["backend"])

    @property
    def date(self) -> str:
        """When, to the second, in UTC."""
        return str(self.content["environment"]["date"])

    @property
    def commit(self) -> str:
        """Commit of toprung; empty where it was not known."""
        return str(self.content["environment"].get("commit") or "")

    @property
    def kind(self) -> str:
        """``bench``, ``probe``, …; ladders have none in the file and are ``ladder`` here."""
        ladder = any(m.competitor["kind"] == "rung" for m in self.measurements)
        return str(self.content.get("kind") or ("ladder" if ladder else "other"))

    @property
    def measurements(self) -> Sequence[Measurement]:
        """Measurements of the record."""
        found: Sequence[Measurement] = self.content["measurements"]
        return found


@dataclass(frozen=True)
class Complaint:
    """A file that is not in the report, and why; ``elsewhere``: nothing is wrong with it but that it is of another device."""

    name: str
    reason: str
    elsewhere: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Gathered:
    """Records that a report is made of.

    Attributes
    ----------
    slug : the device's; empty where nothing was found
    mine : whether it is a device of this machine, as far as that was asked
    """

    records: tuple[Stored, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    slug: str = ""
    mine: bool = False

    def of(self, kind: str) -> list[Stored]:
        """The records of one kind."""
        return [r for r in self.records if r.kind == kind]

    def device(self, backend: str = "cuda") -> Device | None:
        """The device as far as its records tell: the best known of one backend."""
        own = [r.device for r in self.records if r.backend == backend]
        return as_device(own[0]) if own else None

    def figures(self) -> Figures | None:
        """Return what the device can do: its stored probes, those that come with the package, its vendor's documents."""
        device = self.device()
        if device is None:
            return None
        found: Figures | None = None
        probes: list[Mapping[str, Any]] = [r.content for r in self.of("probe")]
        probes = probes or [store.read(p) for p in sorted(store.KNOWN.glob(f"{self.slug}-*.json"))]
        for content in sorted(probes, key=lambda c: str(c["environment"]["device"]["backend"]) != "cuda"):
            one = store.figures(content)
            found = one if found is None else found.or_else(one)
        vendor = vendor_figures(device)
        known = found.or_else(vendor) if found else vendor
        memories = [memory for r in self.records if (memory := Bandwidth.of(r.content))]
        fastest = max((1e9 * memory.read.gbytes_per_s for memory in memories), default=0.0)
        if fastest > (known.dram_read_bytes_per_s or 0.0):  # a ladder tries more ways to read than the probe
            known = replace(known, dram_read_bytes_per_s=fastest)
        return known


def as_device(known: Mapping[str, Any]) -> Device:
    """The device of a record, as far as bounds and legal tiles need it; nothing has to be installed for it."""
    units, clock, peak = int(known["compute_units"]), float(known["clock_mhz"]), known.get("peak_gflops")
    lanes = round(float(peak) / (2e-3 * units * clock)) if isinstance(peak, int | float) and units * clock else None
    return Device(
        id=known["slug"], backend=known["backend"], name=known["name"], vendor="", driver=known["driver"], runtime=known["runtime"],
        kind=known["kind"], compute_units=units, clock_mhz=clock, lanes=lanes, local_bytes=0, memory_bytes=0, max_buffer_bytes=0,
        max_work_group=0, max_items=(), base_align=1, vector_widths=(1,), arch=known["arch"],
    )  # fmt: skip


def read_sound(paths: Sequence[Path]) -> tuple[list[Stored], list[Complaint]]:
    """Every sound record of some files and folders, in order of their names, and a complaint for each other file.

    Raises
    ------
    BadRecord
        a path that does not exist, because nobody means that
    """
    good: dict[Path, Stored] = {}
    bad: list[Complaint] = []
    for given in paths:
        if not given.exists():
            raise BadRecord(f"there is neither a file nor a folder {given}: toprung report takes records that --json stored")
        for path in results.files(given):
            if path.resolve() in good:
                continue
            name = _name(path, given)
            try:
                good[path.resolve()] = Stored(name, sound(path))
            except BadRecord as error:
                bad.append(Complaint(name, str(error).replace(str(path), "it").removeprefix("it ")))
    return list(good.values()), bad


def chosen(found: Sequence[Stored], device: str | None) -> str:
    """The slug of the device that is meant: by it or a part of its name, or the one with the most measurements; empty without any.

    Raises
    ------
    UnknownName
        no record is of such a device
    """
    slugs = sorted({r.slug for r in found})
    if device is not None:
        fits = sorted({r.slug for r in found if device == r.slug or device.lower() in str(r.device["name"]).lower()})
        if device in fits or len(fits) == 1:
            return device if device in fits else fits[0]
        raise UnknownName("device with records", device, slugs)
    counts = Counter(dict.fromkeys(slugs, 0))
    for r in found:
        counts[r.slug] += 1 + 1000 * len(r.measurements)
    return max(slugs, key=lambda s: (counts[s], s), default="")


def gather(paths: Sequence[Path], device: str | None = None, *, present: Sequence[Device] = ()) -> Gathered:
    """Return what some files and folders hold of one device.

    Parameters
    ----------
    device : its slug or a part of its name; by default the one with the most measurements
    present : devices of this machine; what is stored of one of them goes before what is stored of any other

    Raises
    ------
    BadRecord
        a path that does not exist
    UnknownName
        no record is of such a device
    """
    found, complaints = read_sound(paths)
    mine = [r for r in found if any(results.is_of(r.content, d) for d in present)]
    slug = chosen(mine or found, device)
    own = [r for r in mine or found if r.slug == slug]
    complaints += [
        Complaint(r.name, f"is of another device, {r.device['short_name']}: --device {r.slug} makes its report", True)
        for r in found
        if r.slug != slug
    ]
    complaints += [
        Complaint(r.name, f"is of another machine whose CPU has this name: --device {slug} takes it in", True)
        for r in found
        if r.slug == slug and r not in own
    ]
    return Gathered(tuple(own), tuple(complaints), slug, any(r in mine for r in own))


def _name(path: Path, given: Path) -> str:
    """``results/nvidia-h200/kepler.json``: from the folder that was named on."""
    if not given.is_dir():
        return path.as_posix() if not path.is_absolute() else path.name
    below = path.relative_to(given)
    return (Path(given.resolve().name) / below if given.is_absolute() else given / below).as_posix()


def sound(path: Path) -> dict[str, Any]:
    """A record in which a report finds everything where it looks for it, or BadRecord."""
    try:
        content = results.read(path)
        readers = {"bounds": read_bounds, "probe": store.read}
        if (kind := content.get("kind")) in readers:
            content = readers[str(kind)](path)
        elif kind == "tune":
            list(read_tuning(content))
        for key in ("name", "slug", "short_name", "backend", "arch", "kind", "runtime", "driver"):
            _text(content["environment"]["device"][key])
        for key in ("compute_units", "clock_mhz"):  # 0 where a runtime does not tell
            _number(content["environment"]["device"][key], least=0.0)
        if not isinstance(content["failures"], list) or not isinstance(content.get("notes") or [], list | dict):
            raise TypeError("failures or notes are no list")
        bool(content["interrupted"]), dict(content["environment"].get("packages") or {})
        for m in content["measurements"]:
            _check(m)
        for g in content.get("graded", ()):
            one = Graded.read(g)
            _check_name(one.competitor)
            problem_name(one.problem)
            _number(one.problem["K"])
            _text(one.distribution)
            _text(one.note)
        for text in (content["what"], content["environment"]["date"], *(content.get("notes") or ()), *content["failures"]):
            _text(text)
        for key in results.HOLDS:
            len(content.get(key, ()))
    except BadRecord:
        raise
    except DAMAGE as error:
        raise BadRecord(f"{path} is damaged ({type(error).__name__}: {error}): measure again") from None
    return content


def _check(m: Measurement) -> None:
    """KeyError, TypeError or ValueError unless a measurement can be shown."""
    who, problem, verdict = m.competitor, m.problem, m.verdict
    _check_name(who)
    if who["kind"] == "rung":
        Tile(**who["tile"])
        dict(who["options"])
    for key in ("M", "N", *(k for k in ("K", "batch") if k in problem)):
        _number(problem[key])
    for key in ("routine", *(k for k in ("trans", "measured_in") if k in problem)):
        _text(problem[key])
    problem_name(problem)
    _number(verdict["frobenius"], least=0.0)
    _number(verdict["grade"], least=0.0)
    if not m.seconds:
        raise ValueError("a measurement without samples")
    for value in (*m.seconds, m.flops, m.min_bytes):
        _number(value)
    for value in (*m.helper_seconds, *(c for c in m.clocks_mhz if c is not None), *m.joules):
        _number(value, least=0.0)


def _check_name(who: Mapping[str, Any]) -> None:
    """KeyError, TypeError or ValueError unless a competitor can be named."""
    for key in ("kind", "name", "idea", "variant", "precision", *(("ladder", "rung") if who["kind"] == "rung" else ())):
        _text(who[key])
    precision(who["precision"])
    if not isinstance(who["number"], int):
        raise TypeError("a competitor's number is no whole number")


def _text(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a text belongs")


def _number(value: object, least: float | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} stands where a number belongs")
    if value <= 0 if least is None else value < least:
        raise ValueError(f"{value!r} stands where a positive number belongs")
