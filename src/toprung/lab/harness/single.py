"""One rung from its source, or from machine code in its place, as a competitor; and the note beside a stored cubin."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import DAMAGE, BadArgument, BadCubin, UnknownName
from toprung.kernels.build import Compiled
from toprung.kernels.record import Own, kernel_source
from toprung.lab.competitor import RungCompetitor
from toprung.lab.rung import Options, Rung
from toprung.tile import Tile

HERE = "compiled here"
"""Label of what was compiled in this process."""
FILE = "loaded from a file"
"""Label of machine code that was read from a file."""
SAMPLES = 5
"""Samples of each form, and times that it is loaded."""


class LoadedRung(RungCompetitor):
    """A rung in one form: from its source, compiled in this process whatever the cache holds, or from machine code in its place.

    Attributes
    ----------
    label : ``HERE`` or ``FILE``
    own : machine code in place of the rung's source; None: compiled
    compile_seconds : seconds that the compiler took
    load_seconds : seconds that the driver took to load the code, each time it did
    """

    def __init__(self, label: str, rung: Rung, options: Options, tile: Tile, own: Own | None = None, loads: int = SAMPLES) -> None:
        super().__init__(rung, options, label, tile)
        self.label, self.own, self._loads = label, own, loads
        self.compile_seconds = 0.0
        self.load_seconds: list[float] = []

    def compiled(self, tile: Tile, options: Options, session: Session) -> Compiled[Rung]:
        self.rung.check(tile, options, session.device)
        source = kernel_source(self.rung, tile, options, self.own)
        start = time.perf_counter()
        binary = session.compile(source)
        self.compile_seconds, self.load_seconds = time.perf_counter() - start, []
        for _ in range(self._loads):
            start = time.perf_counter()
            kernel = session.load(binary, source)
            self.load_seconds.append(time.perf_counter() - start)
        return Compiled(self.rung, tile, options, kernel, self.compile_seconds + self.load_seconds[-1], cached=False)


def both(which: Rung, tile: Tile, options: Options, session: Session, own: Own | None = None) -> list[LoadedRung]:
    """Return a rung as it is compiled here, beside machine code: that given, or its own from a file that is written and read."""
    if own is None:
        source = kernel_source(which, tile, which.options(session.device, options))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dumped.cubin"
            path.write_bytes(session.compile(source))
            own = Own.read(path)._replace(name="dumped.cubin")
    return [LoadedRung(HERE, which, options, tile), LoadedRung(FILE, which, options, tile, own)]


def tile_of(which: Rung, options: Options, changes: Mapping[str, int], device: Device) -> Tile:
    """The rung's tile for a device, with some parameters changed.

    Raises
    ------
    UnknownName
        a parameter that the rung's tile does not have
    BadArgument
        a value that is none for the parameter
    IllegalTile
        the tile breaks a rule
    """
    chosen = which.tile_for(device, options)
    for name in changes:
        if name not in chosen.given():
            raise UnknownName(f"tile parameter of {which}", name, chosen.given())
    try:
        changed = replace(chosen, **changes)
    except ValueError as error:
        raise BadArgument(str(error)) from None
    which.check(changed, options, device)
    return changed


@dataclass(frozen=True)
class Note:
    """Origin of a stored cubin: it lies beside it, and says how the cubin is launched."""

    rung: str
    tile: Mapping[str, int]
    options: Mapping[str, int]
    kernel: str

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def read(cls, cubin: Path) -> Note | None:
        """The note beside a cubin; None if there is none, BadCubin if it is damaged."""
        path = note_path(cubin)
        try:
            content = json.loads(path.read_bytes())
            note = cls(
                str(content["rung"]), {str(k): int(v) for k, v in content["tile"].items()},
                {str(k): int(v) for k, v in content["options"].items()}, str(content["kernel"]),
            )  # fmt: skip
        except FileNotFoundError:
            return None
        except (OSError, *DAMAGE) as error:
            raise BadCubin(
                f"{path} is damaged ({type(error).__name__}: {error}): name the rung, its tile and its switches"
            ) from None
        return note


def note_path(cubin: Path) -> Path:
    """Return the path of a cubin's note."""
    return cubin.with_name(f"{cubin.name}.json")
