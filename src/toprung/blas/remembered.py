"""Ranges of sizes that this machine's processes found, on disk: a program that starts again does not wait for its plans.

Finding a range takes a worker a tenth of a second, and a new worker a second before. What it found holds until a file of the
package, the user's store or the device changes. The ranges of products that differ in one size alone are a file.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import pickle
import random
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from toprung.blas import background
from toprung.blas.ranges import Around, Operands, around
from toprung.device import Device
from toprung.dispatch.tuned import stamp_of
from toprung.errors import ToprungError
from toprung.kernels.base import version
from toprung.kernels.registry import families
from toprung.paths import STORE_FILE, cache_dir, data_dir, publish_cached, store_off

PACKAGE = Path(__file__).parents[1]

AHEAD = 0.4
"""Seconds for which a worker looks for other ranges beside a product's: a request costs the program more than a range."""

MISSES = 8
"""Sizes in a row that are drawn in ranges known already until a worker looks for no others."""

Others = tuple[int, int, list[tuple[int, int]]]
"""Least and greatest size of others to look for, and the first and last size of each range that is known."""

Kept = dict[tuple[int, int], Around]
"""Selections by first and last size."""


def found(
    device: Device, operands: Operands, axis: int | None, theirs: str, exact: bool = False, others: Others = (0, 0, [])
) -> tuple[Around, ...]:  # fmt: skip
    """Return what ``ranges.around`` finds: from disk if a process has found it, otherwise in a worker.

    The product's own range comes first. Others along its axis follow, each with the words of its greatest size: those on disk if no
    range is known, and those that a worker finds meanwhile; but not for ``exact``, whose caller has no use for them. Where there is
    no worker there are no ranges: to plan each size would hold the GIL for half a second.
    """
    ask = background.HERE.ask if axis is None else background.HERE.apart
    # sources of families that a user brings may change without a change here
    if not all(type(family).__module__.startswith("toprung.") for family in families()):
        return ask(around, device, operands, axis, theirs, exact) or ()
    path = cache_dir() / "ranges" / _key(device, operands, axis, theirs, exact)
    here = () if others[2] else _answer(_kept(path), operands, axis, exact)  # a worker says what a file has besides what is known
    return here or ask(_find, path, others, device, operands, axis, theirs, exact) or ()


def _kept(path: Path) -> Kept:
    """Return what a file has; nothing if there is none, or it is damaged."""
    with suppress(Exception):
        return cast(Kept, pickle.loads(path.read_bytes()))
    return {}


def _answer(kept: Kept, operands: Operands, axis: int | None, exact: bool) -> tuple[Around, ...]:
    """Return the selection for a product, and then the others unless ``exact``; empty if there is none for it."""
    size = 0 if axis is None else operands.size(axis)
    own = next((span for span in kept if span[0] <= size <= span[1]), None)
    if own is None:
        return ()
    every = (own,) if exact else sorted(kept, key=own.__ne__)
    return tuple(
        one if one.made is None else one._replace(words=one.made.at(size if span == own else span[1]))
        for span in every
        if (one := kept[span]).made is not None or span == own
    )


def _find(
    path: Path, others: Others, device: Device, operands: Operands, axis: int | None, theirs: str, exact: bool
) -> tuple[Around, ...]:  # fmt: skip
    """Return what ``ranges.around`` finds, and others; keep them in a file but for kernels' sources, which are long."""
    size, (least, most, known), begun = 0 if axis is None else operands.size(axis), others, time.perf_counter()
    drawn, misses, kept = random.Random(size), 0, {span: one for span, one in _kept(path).items() if span not in known}
    made = Kept()
    # the product's size, then drawn ones without end: wide ranges, which serve most products, are met first
    for there in itertools.chain((size,), iter(lambda: drawn.randint(least, most), 0) if most else ()):
        if any(first <= there <= last for first, last in (*known, *kept, *made)):
            misses += 1
        else:
            misses = 0
            try:
                more = around(device, operands if there == size else operands.at(cast(int, axis), there), axis, theirs, exact)
            except ToprungError:  # the first product of another size reports it
                more = ()
                if there == size:
                    raise
            made |= {(there, there) if one.made is None else (one.made.first, one.made.last): one for one in more}
            if there == size and not more:
                return ()
        if misses == MISSES or time.perf_counter() > begun + AHEAD:
            break
    same = _key(device, operands, axis, theirs, exact) == path.name  # a worker may have been started with another store
    proven = {span: one._replace(sources=()) for span, one in made.items() if one.selection.unproven is None}
    if same and proven:
        publish_cached(path, pickle.dumps(_kept(path) | proven))
    return _answer(kept | made, operands, axis, exact)


def _key(device: Device, operands: Operands, axis: int | None, theirs: str, exact: bool) -> str:
    """Return a hash of all that decides a product's selection, or the ranges of products that differ in one size alone."""
    tuned = () if store_off() else stamp_of(str(data_dir() / STORE_FILE))
    # exact selections take an installed library where it is the fastest
    libraries = [version(family, device.backend) for family in families() if exact and not family.own]
    words = _fixed(device), operands.kin(axis), theirs, exact, libraries, tuned, os.environ.get("TOPRUNG_DEVICE_MEMORY")
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
