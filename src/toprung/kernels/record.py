"""Kernel records: a kernel source with its tiles, rules and switches, and the text that is compiled for them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from toprung import backends
from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.device import Device
from toprung.errors import BadCubin, BadRung, IllegalTile, SwitchRefused, UnknownName
from toprung.kernels.base import SearchedFamily, Switches, TileConfig
from toprung.tile import COMMON, Rule, Tile, broken, fits_local, legal_tiles

LANGUAGES = {".cl": "opencl", ".cu": "cuda", ".wgsl": "wgsl", ".cubin": "cubin"}
"""Language of a kernel by its file's suffix."""
INCLUDE = re.compile(r'^#include "((?:\.\./)*(?:\w+/)*[\w.]+)".*$', re.MULTILINE)

LARGEST_PIECE, DEEPEST = 1024, 512
"""Results of a work-item, and K of a tile, beyond which nothing is built: compilers unroll both."""

Options = Mapping[str, int]
"""A value for each switch of a kernel."""


class Switch(NamedTuple):
    """A choice that a kernel offers at compile or launch time.

    Attributes
    ----------
    name : as the kernel text, the command line and the records spell it
    idea : what it does, in one sentence
    values : what it may be; the first is the default
    fallback : the default where the device has no use for the first; None where the first works everywhere
    searched : whether its values are a search's to try; the others' follow from the call
    refusal : why a device has no use for it; empty where it has
    rules : conditions on the tile, beyond the kernel's own, when it is not at its default
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
        """Value taken when nobody chooses."""
        return self.values[0]

    def default_on(self, device: Device) -> int:
        """Return the default on one device."""
        return self.default if self.fallback is None or not self.refusal(device) else self.fallback


SHUFFLE = Switch(
    "SHUFFLE", "lanes of a sub-group exchange values; 0: through local memory",
    lambda device: "" if device.subgroup else "its work-items cannot read each other's registers (no sub-group shuffle)",
    values=(1, 0), fallback=0,
)  # fmt: skip


@dataclass(frozen=True)
class KernelRecord:
    """Record of a kernel source: its tiles, rules, switches and needs. A rung is one, and so is each kernel of a family.

    Attributes
    ----------
    idea : what it does, in a few words
    expects : the speed predicted for it and why, before anything is timed
    tiles : its tiles for each kind of device; the first that is legal is taken
    local_bytes : local memory of a work-group, in bytes, for a tile
    rules : conditions its tiles must meet, beyond those common to all
    space : values of the parameters that a search may try
    switches : choices it offers
    dynamic : its local memory is sized at launch (CUDA's dynamic shared memory, of which there is more)
    needs : what the kernel needs and a device has not, as a sentence; empty where the device can run it
    precision : what it promises of its results, by its name in ``toprung.oracle.precision``
    kernel : its kernel function's name, where that is not its routine's
    defines : macros of its text beyond those of tile and switches
    stem, source : name of its files, and the source file
    routine : the routine it computes, which is also its kernel function's name
    """

    idea: str
    expects: str
    tiles: Mapping[str, tuple[Tile, ...]]
    local_bytes: Callable[[Tile], int] = lambda tile: 0
    rules: tuple[Rule, ...] = ()
    space: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    dynamic: bool = False
    needs: Callable[[Device], str] = lambda device: ""
    precision: str = "fp32"
    kernel: str = ""
    defines: Options = field(default_factory=dict)
    stem: str = ""
    source: Path = Path()
    routine: str = ""

    def __post_init__(self) -> None:
        for name in ("tiles", "space", "defines"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def name(self) -> str:
        """Name of the kernel in messages."""
        return self.stem

    def tile_for(self, device: Device, options: Options = MappingProxyType({})) -> Tile:
        """Return the tile for a device: the first of those for its kind that is legal. Raises IllegalTile if none is."""
        choices = self.tiles.get(device.kind) or self.tiles["gpu"]
        if lacking := self.needs(device):
            raise IllegalTile(self.name, choices[-1], str(device), [lacking])
        rules = self.all_rules(options)
        for tile in choices:
            if not broken(rules, tile, device):
                return tile
        raise IllegalTile(self.name, choices[-1], str(device), broken(rules, choices[-1], device))

    def options(self, device: Device, chosen: Options = MappingProxyType({})) -> dict[str, int]:
        """Return every switch with its value.

        Raises
        ------
        UnknownName
            a switch or a value that the kernel does not have
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
        """Return every rule that a tile must meet under these options."""
        switched = (r for s in self.switches if options.get(s.name, s.default) != s.default for r in s.rules)
        return (*COMMON, fits_local(self.local_bytes, self.dynamic), *self.rules, *switched)

    def check(self, tile: Tile, options: Options, device: Device) -> None:
        """Raise IllegalTile, with every reason, unless the device can run the tile."""
        lacking = self.needs(device)
        if reasons := [lacking] * bool(lacking) + broken(self.all_rules(options), tile, device):
            raise IllegalTile(self.name, tile, str(device), reasons)

    def legal(self, device: Device, options: Options = MappingProxyType({})) -> Iterable[Tile]:
        """Return every tile of the kernel's space that is legal on the device."""
        return legal_tiles(self.space, self.tile_for(device, options), self.all_rules(options), device)

    def text(self) -> str:
        """Return the source with its includes in place, as its hash covers it."""
        return with_includes(self.source.read_text("utf-8"), self.source.parent)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class LibraryKernel(KernelRecord):
    """The record of a kernel of a family: ``source`` is its file, ``routine`` the name of the function in it."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def name(self) -> str:
        # `skinny/rows`; `tiled` for a folder's only kernel
        folder, stem = self.source.parent.name, self.source.stem
        return stem if stem == folder else f"{folder}/{stem}"

    @functools.lru_cache(1 << 14)  # noqa: B019  # records live as long as the process
    def allows(self, tile: Tile, options: Switches, device: Device) -> bool:
        """Return True if a tile breaks no rule of the kernel with these switches on a device."""
        return not broken(self.all_rules(dict(options)), tile, device)

    def refused(self, config: TileConfig, device: Device) -> str:
        """Return why the device cannot run a configuration; empty if it can."""
        try:
            switches = self.options(device, dict(config.options))
        except (UnknownName, SwitchRefused) as error:
            return str(error)
        return self.needs(device) or "; ".join(broken(self.all_rules(switches), replace(config.tile, SPLIT_K=None), device))

    def check_built(self, config: TileConfig) -> None:
        """Raise ValueError for a tile that is never built, or a switch or value that the kernel does not have."""
        tile = config.tile
        if (tile.TM or 1) * (tile.TN or 1) > LARGEST_PIECE or (tile.BK or 1) > DEEPEST:
            raise ValueError("its tile is larger than is ever built")
        known = {s.name: s.values for s in self.switches}
        for name, value in config.options:
            if value not in known.get(name, ()):
                raise ValueError(f"{self.name} has no switch {name}={value}")

    def complete(self, device: Device, options: Iterable[tuple[str, int]]) -> Switches:
        """Return every switch with its value, sorted by name."""
        return tuple(sorted(self.options(device, dict(options)).items()))

    def source_for(self, tile: Tile, options: Switches, device: Device) -> Source:
        """Return what is compiled for a tile and switches; the number of K slices is the launch's affair."""
        return kernel_source(self, replace(tile, SPLIT_K=None), self.options(device, dict(options)))

    def title(self, tile: Tile) -> str:
        """Return the name by which a profiler shows the kernel."""
        sides = [n for n in (tile.BM, tile.BN, tile.BK) if n]
        return "_".join([self.name.replace("/", "_"), *(["x".join(map(str, sides))] if sides else [])])


Tiles = TypeVar("Tiles", bound=TileConfig)


class RecordFamily(SearchedFamily[Tiles]):
    """A family of kernels with records, whose configurations are a tile and switches.

    Attributes
    ----------
    records : in the order in which their sources identify the code
    """

    config: Tiles = TileConfig()  # type: ignore[assignment]
    records: tuple[LibraryKernel, ...]

    def record(self, config: Tiles) -> LibraryKernel:
        """Return the record of a configuration's product kernel; ValueError for a tile that has none."""
        return self.records[0]

    @functools.lru_cache(1 << 10)  # noqa: B019  # families live as long as the process; selection adapts the same ones again
    def complete(self, device: Device, config: Tiles) -> Tiles | str:
        """Return a configuration with every switch, or why the device cannot run it."""
        record = self.record(config)
        return record.refused(config, device) or replace(config, options=record.complete(device, config.options))

    def texts(self, backend: str) -> Iterable[str]:
        return [backends.prelude(backend), *(record.text() for record in self.records)]

    def source(self, device: Device, config: Tiles) -> Source:
        """Return the source of the product's kernel; the configuration names every switch."""
        return self.record(config).source_for(config.tile, config.options, device)


class Own(NamedTuple):
    """Machine code in place of a kernel's source.

    Attributes
    ----------
    name : origin of the code, for messages
    kernel : function to launch; by default the record's, or the one that is named like the routine
    """

    code: bytes
    name: str
    kernel: str = ""

    @classmethod
    def read(cls, path: Path, kernel: str = "") -> Own:
        """Return the machine code of a file, or raise BadCubin if it cannot be read."""
        try:
            return cls(path.read_bytes(), str(path), kernel)
        except OSError as error:
            raise BadCubin(f"{path} cannot be read: {error.strerror}") from None


def kernel_source(record: KernelRecord, tile: Tile, options: Options, own: Own | None = None) -> Source:
    """Return the source to compile for a kernel, with its includes, and tile and switches as macros; or its machine code."""
    dynamic = {DYNAMIC_SHARED: record.local_bytes(tile)} if record.dynamic else {}
    defines = {**tile.defines(), **options, **record.defines, **dynamic}
    if own is None and record.source.suffix == ".cubin":
        own = Own.read(record.source)
    if own is not None:
        return Source(
            f"{record.name} from {own.name}", "", own.kernel or record.kernel or record.routine, defines, "cubin", binary=own.code
        )
    text = with_includes(record.source.read_text("utf-8"), record.source.parent)
    title = record.title(tile) if isinstance(record, LibraryKernel) else ""
    return Source(
        record.name, text, record.kernel or record.routine, defines, LANGUAGES[record.source.suffix], title=title,
        file=str(record.source),
    )  # fmt: skip


@functools.cache  # every new shape needs its kernels' sources
def joined(folder: Path, *names: str) -> str:
    """Return files one after the other with their includes in place; names are relative to ``folder``."""
    return with_includes("".join(f'#include "{name}"\n' for name in names), folder)


def with_includes(text: str, folder: Path) -> str:
    """Return a kernel source with each ``#include "name"`` replaced by that file: a binary's key covers the whole source.

    Names are relative to the including file's folder: a rung includes ``tiled.cl`` of the family to share it.

    Raises
    ------
    BadRung
        an included file does not exist
    """

    def included(match: re.Match[str]) -> str:
        name, before = match[1], text.count("\n", 0, match.start())
        try:
            file = folder / name
            inner = file.read_text("utf-8")
        except OSError:
            raise BadRung(f"{folder} has no {name}, which a kernel there includes: add it") from None
        return f'#line 1 "{file.name}"\n{with_includes(inner, file.parent)}\n#line {before + 2}'

    return INCLUDE.sub(included, text)
