"""Named sets of products to compare on, and the user's own from a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toprung.errors import DAMAGE, BadSize, UnknownName
from toprung.oracle.gemm import TRANSPOSES, Gemm

CPU_FLOPS = 2 * 1024**3
"""Products with more operations than 1024³ are left out on a CPU, where a simple kernel needs a second for one."""


@dataclass(frozen=True)
class Suite:
    """Products that belong together.

    Attributes
    ----------
    title : what they stand for
    problems : M, N, K and, where it is not 1, the batch
    trans : transposes it is run in when nobody chooses
    more : products that are run as they are, in no other transpose
    """

    title: str
    problems: tuple[tuple[int, ...], ...]
    trans: tuple[str, ...] = ("NN",)
    more: tuple[tuple[int, ...], ...] = ()

    def gemms(self) -> list[Gemm]:
        """The products in one transpose, then those in all, whose largest take longest."""
        made, once = (
            [Gemm(m, n, k, batch=batch[0] if batch else 1) for m, n, k, *batch in sizes] for sizes in (self.problems, self.more)
        )
        return [*once, *(replace(g, trans=t, **TIGHT) for g in made for t in self.trans)]


TIGHT: Mapping[str, Any] = MappingProxyType({"lda": None, "ldb": None, "ldc": None})
"""For ``replace``: leading dimensions as the stored shapes have them, which a transpose changes."""


def _squares(*sizes: int) -> tuple[tuple[int, ...], ...]:
    return tuple((n, n, n) for n in sizes)


SUITES: Mapping[str, Suite] = MappingProxyType({
    "squares": Suite("M = N = K, powers of two and 6144", _squares(256, 512, 1024, 2048, 4096, 6144, 8192, 16384)),
    "transformer": Suite(
        "layers of a 7-billion-parameter transformer: prompts of 2048 and 256 tokens, then 16 and 1 at a time",
        tuple(
            (tokens, n, k)
            for tokens in (2048, 256, 16, 1)
            for n, k in ((12288, 4096), (4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096))
        ),
    ),
    "skinny": Suite(
        "one dimension much shorter than the others",
        (
            (65536, 64, 4096), (64, 65536, 4096), (16384, 128, 1024), (128, 16384, 1024), (16, 4096, 4096), (4096, 16, 4096),
            (1, 8192, 8192), (8192, 1, 8192), (8192, 8192, 64), (4096, 4096, 512), (1024, 16, 1024),
        ),
    ),
    "deep-k": Suite(
        "little of C, long sums: K must be split to fill a GPU",
        ((128, 128, 65536), (256, 256, 131072), (512, 512, 32768), (64, 64, 262144), (1024, 1024, 16384), (32, 32, 65536)),
    ),
    "batched": Suite(
        "many small products at a time",
        ((32, 32, 32, 8192), (64, 64, 64, 4096), (128, 128, 128, 1024), (256, 256, 256, 256), (512, 512, 64, 96), (64, 64, 64, 64)),
    ),
    "odd": Suite(
        "sizes that no tile divides",
        ((35, 79, 19), (3, 3, 431), (127, 129, 131), (257, 511, 1023), (1000,) * 3, (2047, 2049, 2051), (4095, 4097, 4099)),
    ),
    "blas-paper": Suite(
        "squares up to 4800 in all transposes, as in the study that bounded SGEMM on Fermi and Kepler",
        _squares(480, 960, 1920, 2880, 3840, 4800), TRANSPOSES,
    ),
    "transposes": Suite(
        "squares, powers of two and 6144, in all transposes", _squares(256, 512, 1024, 2048, 4096, 6144, 8192), TRANSPOSES
    ),
    "library": Suite(
        "what the library is held to: squares in all transposes, and one of every shape that needs another kernel",
        _squares(256, 512, 1024, 2048, 4096, 8192, 16384), TRANSPOSES,
        (
            (4096, 4096, 512), (65536, 64, 4096), (64, 65536, 4096), (128, 128, 65536), (256, 256, 131072), (1000, 1000, 1000),
            (4095, 4097, 4099), (8192, 8192, 64), (16, 4096, 4096), (1, 8192, 8192),
            (64, 64, 64, 10_000), (256, 256, 256, 1000),
        ),
    ),
})  # fmt: skip
"""Every suite by name."""


def suite(name: str, trans: Sequence[str] = ()) -> list[Gemm]:
    """The products of a named suite, or of a JSON file, in the transposes given or in its own.

    Raises
    ------
    UnknownName
        neither a suite nor a file
    BadSize
        a file that does not hold a list of products
    """
    if name in SUITES:
        return (replace(SUITES[name], trans=tuple(trans)) if trans else SUITES[name]).gemms()
    path = Path(name)
    if path.suffix != ".json" and not path.exists():
        raise UnknownName("suite", name, [*SUITES, "or a .json file"])
    found = _read(path)
    return [replace(g, trans=t, **TIGHT) for g in found for t in trans] if trans else found


def _read(path: Path) -> list[Gemm]:
    """A user's list of products: objects with M, N, K and any of trans, batch, alpha, beta, lda, ldb, ldc."""
    form = 'a list such as [{"M": 512, "N": 512, "K": 64, "trans": "NT", "batch": 8}]'
    try:
        entries = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadSize(f"the suite {path} cannot be read: {error.strerror}") from None
    except DAMAGE as error:
        raise BadSize(f"the suite {path} is not JSON ({error}): it should be {form}") from None
    if not isinstance(entries, list) or not entries:
        raise BadSize(f"the suite {path} should be {form}")
    made = []
    for entry in entries:
        try:
            made.append(Gemm(**entry))
        except TypeError as error:
            raise BadSize(f"{entry!r} in the suite {path} is no product ({error}): it should be {form}") from None
        if min(made[-1].M, made[-1].N, made[-1].K) < 1:
            raise BadSize(f"{entry!r} in the suite {path} is an empty product")
    return made


def fitting(problems: Sequence[Gemm], kind: str) -> tuple[list[Gemm], list[Gemm]]:
    """Return the products for a kind of device, and those that are left out there."""
    fits: Callable[[Gemm], bool] = lambda g: kind == "gpu" or g.flops <= CPU_FLOPS  # noqa: E731
    return [g for g in problems if fits(g)], [g for g in problems if not fits(g)]
