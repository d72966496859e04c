"""Kernel records: what a kernel source needs of tiles, switches and devices; and its binaries, one for each session."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from toprung.backends.base import Kernel, Session, Source
from toprung.build import build, rung_source, with_includes
from toprung.device import Device
from toprung.errors import SwitchRefused, UnknownName
from toprung.kernels.base import TileConfig
from toprung.rung import Rung
from toprung.tile import Tile, broken

Options = tuple[tuple[str, int], ...]
"""Values of a kernel's switches, sorted by name."""


@dataclass(frozen=True, eq=False)
class LibraryKernel(Rung):
    """The record of a kernel that belongs to no ladder: ``source`` is its file, ``routine`` the name of the function in it."""

    @property
    def name(self) -> str:
        """The kernel's name in messages: ``skinny/rows``."""
        return f"{self.ladder}/{self.stem}" if self.ladder else self.stem

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @functools.lru_cache(1 << 14)  # noqa: B019  # records live as long as the process
    def allows(self, tile: Tile, options: Options, device: Device) -> bool:
        """Return True if a tile breaks no rule of the kernel with these switches on a device."""
        return not broken(self.all_rules(dict(options)), tile, device)

    def refused(self, config: TileConfig, device: Device) -> str:
        """Return why the device cannot run a configuration; empty if it can."""
        try:
            switches = self.options(device, dict(config.options))
        except (UnknownName, SwitchRefused) as error:
            return str(error)
        return self.needs(device) or "; ".join(broken(self.all_rules(switches), replace(config.tile, SPLIT_K=None), device))

    def text(self) -> str:
        """Return the source with its includes in place, as its hash covers it."""
        return with_includes(self.source.read_text(), self.source.parent)

    def source_for(self, tile: Tile, options: Options, device: Device) -> Source:
        """Return what is compiled for a tile and switches; the number of K slices is the launch's affair."""
        return rung_source(self, replace(tile, SPLIT_K=None), self.options(device, dict(options)))


_Key = tuple[LibraryKernel, Tile, Options]
_loaded: WeakKeyDictionary[Session, dict[_Key, Kernel]] = WeakKeyDictionary()
_loading = threading.RLock()


def loaded(session: Session, record: LibraryKernel, tile: Tile, options: Mapping[str, int] | Options = ()) -> Kernel:
    """Return a kernel compiled for a session's device and loaded there; kept as long as the session."""
    tile, options = replace(tile, SPLIT_K=None), tuple(sorted(dict(options).items()))
    key = record, tile, options
    with _loading:
        kept = _loaded.setdefault(session, {})
        if key not in kept:
            kept[key] = build(record, tile, dict(options), session).kernel
        return kept[key]
