"""Rungs and ladders. A rung is two files with one stem, ``rNN_name.py`` and ``rNN_name.cl`` (or ``.cu``, or machine
code, ``.cubin``); nothing lists them.

Ladders are folders in ``toprung/ladders`` and in every folder that the environment variable ``TOPRUNG_LADDERS`` names
(separated like ``PATH``): a folder ``kepler`` there adds its rungs to the kepler ladder.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType

from toprung.device import Device
from toprung.errors import BadRung, IllegalTile, SwitchRefused, UnknownName
from toprung.tile import COMMON, Rule, Tile, broken, fits_local, legal_tiles

STEM = re.compile(r"r(\d\d)_[a-z0-9_]+")
SOURCES = (".cl", ".cu", ".cubin")

Options = Mapping[str, int]
"""A value for each switch of a rung."""


@dataclass(frozen=True)
class Switch:
    """A choice a rung offers at compile or launch time.

    Attributes
    ----------
    name : as the kernel text, the command line and the records spell it
    idea : what it does, in one sentence
    values : what it may be; the first is the default
    fallback : the default where the device has no use for the first; None where the first works everywhere
    searched : whether its values are a search's to try; the others' follow from the call
    refusal : why a device has no use for it; empty where it has
    rules : conditions on the tile, beyond the rung's own, when it is not at its default
    """

    name: str
    idea: str
    refusal: Callable[[Device], str] = lambda device: ""
    values: tuple[int, ...] = (0, 1)
    rules: tuple[Rule, ...] = ()
    fallback: int | None = None
    searched: bool = False

    @property
    def default(self) -> int:
        """The value taken when nobody chooses."""
        return self.values[0]

    def default_on(self, device: Device) -> int:
        """The same on one device."""
        return self.default if self.fallback is None or not self.refusal(device) else self.fallback


def _no_lanes(device: Device) -> str:
    """Why lanes cannot exchange values."""
    return "" if device.subgroup else "its work-items cannot read each other's registers (no sub-group shuffle)"


SHUFFLE = Switch("SHUFFLE", "lanes of a sub-group exchange values; 0: through local memory", _no_lanes, values=(1, 0), fallback=0)


@dataclass(frozen=True)
class Rung:
    """One step of a ladder.

    Attributes
    ----------
    idea : the one thing it adds, in a few words
    expects : the gain predicted over its predecessor and why, before anything is timed
    tiles : its tiles for each kind of device; the first that is legal is taken
    local_bytes : local memory of a work-group, in bytes, for a tile
    published : the tile of the published kernel
    rules : conditions its tiles must meet, beyond those common to all
    space : values of the parameters that a search may try
    whole : operands that must come as whole, aligned tiles (shared padding kernels make them so, and are timed)
    transposed : operands that must come transposed (a shared kernel does it, and is timed)
    switches : choices it offers
    dynamic : its local memory is sized at launch (CUDA's dynamic shared memory, of which there is more)
    meets : work-groups that share a sum meet in its kernel, which gets room for their sums and a count for each sum
    needs : what the rung needs and a device has not, as a sentence; empty where the device can run it
    precision : what it promises of its results, by its name in ``toprung.precision``
    method : module of ``toprung.routines`` that brings its kernel to bear, where that is not its routine's own
    kernel : its kernel function's name, where that is not its routine's
    defines : macros of its text beyond those of tile and switches
    more_items : work-items of a work-group that own nothing of the tile: they fetch for those that do
    maps : its operands come as tensor maps, for the copy engine
    ladder, stem, source : where it was found; filled in by discovery
    routine : the routine it computes, which is also its kernel function's name; filled in by discovery
    """

    idea: str
    expects: str
    tiles: Mapping[str, tuple[Tile, ...]]
    local_bytes: Callable[[Tile], int] = lambda tile: 0
    published: Tile | None = None
    rules: tuple[Rule, ...] = ()
    space: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whole: str | Callable[[Options], str] = ""
    transposed: str = ""
    switches: tuple[Switch, ...] = ()
    dynamic: bool = False
    meets: bool = False
    needs: Callable[[Device], str] = lambda device: ""
    precision: str = "fp32"
    method: str = ""
    kernel: str = ""
    defines: Options = field(default_factory=dict)
    more_items: int = 0
    maps: bool = False
    ladder: str = ""
    stem: str = ""
    source: Path = Path()
    routine: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiles", MappingProxyType(dict(self.tiles)))
        object.__setattr__(self, "space", MappingProxyType(dict(self.space)))
        object.__setattr__(self, "defines", MappingProxyType(dict(self.defines)))

    @property
    def number(self) -> int:
        """Its place on the ladder."""
        return int(self.stem[1:3])

    @property
    def name(self) -> str:
        """``ladder/rNN``, as a user names it."""
        return f"{self.ladder}/{self.stem[:3]}"

    def whole_operands(self, options: Options) -> str:
        """Operands that must come as whole tiles under these options."""
        return self.whole(options) if callable(self.whole) else self.whole

    def tile_for(self, device: Device, options: Options = MappingProxyType({})) -> Tile:
        """The rung's tile for this device: the first of those for its kind that is legal, or IllegalTile if none is."""
        choices = self.tiles.get(device.kind) or self.tiles["gpu"]
        if lacking := self.needs(device):
            raise IllegalTile(self.name, choices[-1], str(device), [lacking])
        rules = self.all_rules(options)
        for tile in choices:
            if not broken(rules, tile, device):
                return tile
        raise IllegalTile(self.name, choices[-1], str(device), broken(rules, choices[-1], device))

    def options(self, device: Device, chosen: Options = MappingProxyType({})) -> dict[str, int]:
        """Every switch with its value.

        Raises
        ------
        UnknownName
            a switch or a value that the rung does not have
        SwitchRefused
            a switch that the device has no use for
        """
        known = {s.name: s for s in self.switches}
        values = {s.name: s.default_on(device) for s in self.switches}
        for name, value in chosen.items():
            if name not in known:
                raise UnknownName(f"switch of {self.name}", name, known)
            switch = known[name]
            if value not in switch.values:
                raise UnknownName(f"value of {name}", value, map(str, switch.values))
            if value != switch.default_on(device) and (reason := switch.refusal(device)):
                raise SwitchRefused(f"{self.name} {name}={value} on {device}: {reason}")
            values[name] = value
        return values

    def all_rules(self, options: Options) -> tuple[Rule, ...]:
        """Every rule a tile must meet under these options."""
        switched = (r for s in self.switches if options.get(s.name, s.default) != s.default for r in s.rules)
        return (*COMMON, fits_local(self.local_bytes, self.dynamic), *self.rules, *switched)

    def check(self, tile: Tile, options: Options, device: Device) -> None:
        """Raise IllegalTile, with every reason, unless the device can run the tile."""
        lacking = self.needs(device)
        if reasons := [lacking] * bool(lacking) + broken(self.all_rules(options), tile, device):
            raise IllegalTile(self.name, tile, str(device), reasons)

    def legal(self, device: Device, options: Options = MappingProxyType({})) -> Iterable[Tile]:
        """Every tile of the rung's space that is legal on the device."""
        return legal_tiles(self.space, self.tile_for(device, options), self.all_rules(options), device)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Ladder:
    """Rungs in order, and the routine they all compute.

    Attributes
    ----------
    vendors : peers that are its rung 0, by name; empty for what the device's vendor offers for the routine
    """

    name: str
    title: str
    routine: str
    rungs: tuple[Rung, ...]
    vendors: tuple[str, ...] = ()

    def rung(self, number: int) -> Rung:
        """The rung with this number, or UnknownName."""
        for rung in self.rungs:
            if rung.number == number:
                return rung
        raise UnknownName(f"rung of {self.name}", number, (str(r.number) for r in self.rungs))


def roots() -> tuple[Path, ...]:
    """Folders that hold ladders: the package's own, then the user's."""
    extra = os.environ.get("TOPRUNG_LADDERS", "")
    return (Path(__file__).parent / "ladders", *(Path(p) for p in extra.split(os.pathsep) if p))


def ladder_names() -> list[str]:
    """Names of all ladders."""
    return sorted({p.parent.name for root in roots() for p in root.glob("*/__init__.py")})


def ladder(name: str) -> Ladder:
    """Find a ladder and its rungs.

    Raises
    ------
    UnknownName
        no such ladder
    BadRung
        a rung without kernel source or RUNG record, or two with one number
    """
    if name not in ladder_names():
        raise UnknownName("ladder", name, ladder_names())
    folders = [root / name for root in roots() if (root / name).is_dir()]
    head = next(_load(f / "__init__.py") for f in folders if (f / "__init__.py").exists())
    rungs = sorted(
        (_rung(name, head.ROUTINE, path) for f in folders for path in f.glob("r[0-9][0-9]_*.py")), key=lambda r: r.number
    )
    for a, b in itertools.pairwise(rungs):
        if a.number == b.number:
            raise BadRung(f"{a.source} and {b.source} are both rung {a.number} of {name}: renumber one")
    return Ladder(name, head.TITLE, head.ROUTINE, tuple(rungs), tuple(getattr(head, "VENDORS", ())))


def rung(name: str) -> Rung:
    """The rung a user calls ``ladder/rNN``, or UnknownName."""
    of, _, number = name.partition("/")
    found = ladder(of)
    if not re.fullmatch(r"r?\d+", number):
        raise UnknownName(f"rung of {of}", number, (r.stem[:3] for r in found.rungs))
    return found.rung(int(number.lstrip("r")))


def select(rungs: Sequence[Rung], numbers: Iterable[int]) -> list[Rung]:
    """The rungs with these numbers, in ladder order."""
    wanted = set(numbers)
    return [r for r in rungs if r.number in wanted]


def _rung(ladder_name: str, routine: str, path: Path) -> Rung:
    if not STEM.fullmatch(path.stem):
        raise BadRung(f"{path}: a rung's files are called rNN_name, in small letters")
    source = next((s for e in SOURCES if (s := path.with_suffix(e)).exists()), None)
    if source is None:
        raise BadRung(f"{path} has no kernel beside it: add {path.stem}.cl")
    record = getattr(_load(path), "RUNG", None)
    if not isinstance(record, Rung):
        raise BadRung(f"{path} defines no RUNG = Rung(...)")
    return replace(record, ladder=ladder_name, stem=path.stem, source=source, routine=routine)


def _load(path: Path) -> ModuleType:
    """Run a rung's or ladder's Python file as a module of its own, wherever it lies."""
    name = f"toprung.ladders.{path.parent.name}" + ("" if path.stem == "__init__" else f".{path.stem}")
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module
