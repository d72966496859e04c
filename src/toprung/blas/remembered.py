"""Ranges of sizes that this machine's processes found, on disk: a program that starts again does not wait for its plans.

Finding a range takes a worker a tenth of a second, and a new worker a second before. What it found holds until a file of the
package, the user's store or the device changes. Each range is a file, named by its sizes, in a folder for the products that
differ in the size alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from toprung import store as stores
from toprung.blas import background
from toprung.blas.ranges import Around, Operands, around, beside
from toprung.device import Device
from toprung.dispatch.tuned import stamp_of
from toprung.errors import ToprungError
from toprung.kernels.registry import families
from toprung.paths import cache_dir, data_dir, publish_cached

PACKAGE = Path(__file__).parents[1]

AHEAD = 6
"""Ranges beside the first for which a worker looks: a request costs the program more than a range."""


def found(
    device: Device, operands: Operands, axis: int | None, theirs: str, exact: bool = False, step: int = 0
) -> tuple[Around, ...]:  # fmt: skip
    """Return what ``ranges.around`` finds: from disk if a process has found it, otherwise in a worker.

    The product's own range comes first. All others that are on disk along its axis follow, each with the words of its greatest
    size, but not for ``exact``, whose caller has no use for them. A worker looks for ``AHEAD`` others at greater sizes (``step`` of
    1), at smaller ones (-1), or for half of them each (0). Where there is no worker there are no ranges: to plan each size would
    hold the GIL for half a second.
    """
    ask = background.HERE.ask if axis is None else background.HERE.apart
    # sources of families that a user brings may change without a change here
    if axis is None or not all(type(family).__module__.startswith("toprung.") for family in families()):
        return ask(around, device, operands, axis, theirs, exact) or ()
    folder, size = cache_dir() / "ranges" / _key(device, operands, axis, theirs, exact), operands.size(axis)
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208  # a Path for each takes longer, with the GIL
    spans = {name: tuple(map(int, name.split("-"))) for name in names if re.fullmatch("[0-9]+-[0-9]+", name)}
    own = {name for name, (first, last) in spans.items() if first <= size <= last}
    here, others = list[Around](), list[Around]()
    for name in own if exact or not own else spans:
        with suppress(Exception):  # a damaged file, or one that is being written
            one = pickle.loads((folder / name).read_bytes())
            (here if name in own else others).append(one._replace(words=one.made.at(size if name in own else spans[name][1])))
            background.breathe()
    return (*here, *others) if here else ask(_find, folder, step, device, operands, axis, theirs, exact) or ()


def _find(
    folder: Path, step: int, device: Device, operands: Operands, axis: int, theirs: str, exact: bool
) -> tuple[Around, ...]:  # fmt: skip
    """Return what ``ranges.around`` finds, and others beside it; keep them in a folder but for kernels' sources, which are long."""
    found = list(around(device, operands, axis, theirs, exact))
    for way in () if exact or not found else (step,) if step else (1, -1):
        size, span = operands.size(axis), found[0].made
        for _ in range(AHEAD if step else AHEAD // 2):
            if (size := beside(size, span, way)) < 2:
                break
            span = None
            with suppress(ToprungError):  # the first product of that size reports it
                for one in around(device, operands.at(axis, size), axis, theirs, exact):
                    span = one.made
                    found += [one._replace(words=span.at(span.last))] if span is not None and one.selection.unproven is None else []
    same = _key(device, operands, axis, theirs, exact) == folder.name  # a worker may have been started with another store
    for one in found if same else ():
        if one.made is not None and one.selection.unproven is None:
            publish_cached(folder / f"{one.made.first}-{one.made.last}", pickle.dumps(one._replace(sources=())))
    return tuple(found)


def _key(device: Device, operands: Operands, axis: int, theirs: str, exact: bool) -> str:
    """Return a hash of all that decides the ranges of products that differ in the size along an axis alone."""
    tuned = () if stores.off() else stamp_of(str(data_dir() / stores.FILE))
    words = _fixed(device), operands.kin(axis), theirs, exact, tuned, os.environ.get("TOPRUNG_DEVICE_MEMORY")
    return hashlib.sha256(repr(words).encode()).hexdigest()


@functools.cache
def _fixed(device: Device) -> str:
    return f"{program()} {replace(device, handle=None)!r}"


@functools.cache
def program() -> str:
    """Return a hash of the sizes and times of the package's files: plans of other sources may pass other words to a kernel."""
    facts = hashlib.sha256()
    for folder, _, names in sorted(os.walk(PACKAGE)):
        for name in sorted(names) if not folder.endswith("__pycache__") else ():
            with suppress(OSError):  # a file that an editor has removed meanwhile
                status = os.lstat(path := os.path.join(folder, name))  # noqa: PTH118  # as above
                facts.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return facts.hexdigest()
