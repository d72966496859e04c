"""Tile sizes under their one set of names, and the rules that say which of them are legal, as data."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from toprung.device import Device


@dataclass(frozen=True)
class Tile:
    """Free parameters of a kernel; see the glossary for what each name means. ``None``: the kernel has no such parameter.

    Derived sizes (``DM``, ``DN``, ``LA``, ``LB``) are properties: they are computed here and nowhere else.
    """

    BM: int
    BN: int
    BK: int | None = None
    WM: int | None = None
    WN: int | None = None
    TM: int | None = None
    TN: int | None = None
    VEC: int | None = None
    VA: int | None = None
    VB: int | None = None
    KU: int | None = None
    STAGES: int | None = None
    PADA: int | None = None
    PADB: int | None = None
    SPLIT_K: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if value is None or (type(value) is int and value > 0):
                continue  # a search makes some hundred thousand tiles
            least = 0 if name.startswith("PAD") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")

    @property
    def DM(self) -> int:
        """Work-items along M."""
        return self.BM // (self.TM or 1)

    @property
    def DN(self) -> int:
        """Work-items along N."""
        return self.BN // (self.TN or 1)

    @property
    def work_items(self) -> int:
        """Work-items of a work-group."""
        return self.DM * self.DN

    @property
    def LA(self) -> int:
        """Loads, each of VA floats, with which a work-item fetches its share of a BM×BK tile of A; 0 without work-items."""
        return self.BM * (self.BK or 0) // (self.work_items * (self.VA or 1)) if self.work_items else 0

    @property
    def LB(self) -> int:
        """Loads, each of VB floats, with which a work-item fetches its share of a BK×BN tile of B; 0 without work-items."""
        return self.BN * (self.BK or 0) // (self.work_items * (self.VB or 1)) if self.work_items else 0

    @property
    def widest(self) -> int:
        """Floats of the widest single access to a matrix."""
        return max(self.VEC or 1, self.VA or 1, self.VB or 1)

    def given(self) -> dict[str, int]:
        """The free parameters this tile has."""
        return {name: v for name, v in self.__dict__.items() if v is not None}

    def defines(self) -> dict[str, int]:
        """Macros that the kernel's source is compiled with: the free parameters and the derived sizes."""
        return {**self.given(), "DM": self.DM, "DN": self.DN, "LA": self.LA, "LB": self.LB}

    @functools.lru_cache(1 << 12)  # noqa: B019  # selection names some of few tiles each time
    def __str__(self) -> str:
        block = "×".join(str(v) for v in (self.BM, self.BN, self.BK) if v is not None)
        text = block
        if self.TM or self.TN:
            text += f" {self.TM or 1}×{self.TN or 1}"
        widths = sorted({v for v in (self.VEC, self.VA, self.VB) if v is not None})
        if widths:
            text += " v" + "/".join(str(w) for w in widths)
        rest = {k: v for k, v in self.given().items() if k in ("WM", "WN", "KU", "STAGES", "SPLIT_K")}
        return text + "".join(f" {k}{v}" for k, v in rest.items())


class Rule(NamedTuple):
    """One condition a tile must meet.

    Attributes
    ----------
    name : the condition, as a formula
    why : what goes wrong otherwise
    test : whether tile and device meet it
    """

    name: str
    why: str
    test: Callable[[Tile, Device], bool]


def divides(whole: str, part: str, why: str) -> Rule:
    """The rule that one parameter is a multiple of another; parameters a tile does not have count as 1."""

    def test(tile: Tile, device: Device) -> bool:
        return (getattr(tile, whole) or 1) % (getattr(tile, part) or 1) == 0

    return Rule(f"{whole} % {part} = 0", why, test)


EQUAL_SHARES = (
    Rule(
        "LA · DM · DN · VA = BM · BK",
        "every work-item loads the same number of pieces of A's tile",
        lambda t, d: t.LA * t.work_items * (t.VA or 1) == t.BM * (t.BK or 0),
    ),
    Rule(
        "LB · DM · DN · VB = BK · BN",
        "every work-item loads the same number of pieces of B's tile",
        lambda t, d: t.LB * t.work_items * (t.VB or 1) == (t.BK or 0) * t.BN,
    ),
)
"""Rules of kernels whose work-items load tiles of A and B into local memory together."""

POWER_OF_TWO = Rule("DN is a power of two", "each step of the tree halves what is left", lambda t, d: t.DN & (t.DN - 1) == 0)

TEAM_IN_SUBGROUP = Rule(
    "DN divides the sub-group",
    "a team lies within one sub-group, and sub-groups are whole",
    lambda t, d: (d.subgroup or t.DN) % t.DN == 0 and t.work_items % (d.subgroup or 1) == 0,
)


def partial_sums(tile: Tile) -> int:
    """Bytes of a float for each work-item."""
    return 4 * tile.work_items


COMMON: tuple[Rule, ...] = (
    divides("BM", "TM", "every work-item owns TM whole rows"),
    divides("BN", "TN", "every work-item owns TN whole columns"),
    divides("TN", "VEC", "a work-item's columns are whole vectors"),
    divides("TN", "VB", "a work-item's columns are whole vectors"),
    divides("TM", "VA", "a work-item's rows are whole vectors"),
    Rule(
        "DM · DN ≤ largest work-group",
        "the device would refuse the launch",
        lambda t, d: t.work_items <= d.max_work_group and t.DN <= d.max_items[0] and t.DM <= d.max_items[1],
    ),
    Rule(
        "vector widths exist",
        "the device's kernel language has no vector type this wide",
        lambda t, d: all(w is None or w in d.vector_widths for w in (t.VEC, t.VA, t.VB)),
    ),
)


def fits_local(local_bytes: Callable[[Tile], int], dynamic: bool = False) -> Rule:
    """The rule that a work-group's local memory fits the device. Some CPU runtimes crash the process otherwise."""
    return Rule(
        "local memory fits",
        "the work-group needs more local memory than the device gives one; some runtimes crash instead of refusing",
        lambda t, d: local_bytes(t) <= (d.dynamic_local_bytes if dynamic else d.local_bytes),
    )


def broken(rules: Sequence[Rule], tile: Tile, device: Device) -> list[str]:
    """Each rule the tile breaks on the device, with its reason. Empty: the tile is legal."""
    return [f"{rule.name}: {rule.why}" for rule in rules if not rule.test(tile, device)]


def legal_tiles(space: Mapping[str, Sequence[int]], start: Tile, rules: Sequence[Rule], device: Device) -> Iterator[Tile]:
    """All combinations of ``space``, other parameters as in ``start``, that break no rule."""
    for values in itertools.product(*space.values()):
        tile = replace(start, **dict(zip(space, values, strict=True)))
        if not broken(rules, tile, device):
            yield tile
