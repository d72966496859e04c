"""Selection: the kernel family and configuration for a product, from the device and its descriptor alone, never from the data.

The data decide on the device: fp32x computes again in plain fp32 what two fp16 terms cannot carry.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection

from toprung.device import Device
from toprung.dispatch import INSTEAD, PRECISIONS, ranking, tuned
from toprung.dispatch.selection import PassedOver, Selection
from toprung.dispatch.tuned import Lookup, TunedStore
from toprung.errors import Unsupported
from toprung.gemm.classes import problem_class
from toprung.gemm.desc import Desc, GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.gemm.layout import Layout
from toprung.gemm.lowering import Addressed, epilogue_of, lower
from toprung.kernels.base import KernelFamily, Member

FASTER = ("fp32x",)
"""Accuracy classes beside plain fp32 that are as accurate as it: ``auto`` takes the fastest."""

GROUPED = {"auto": (*FASTER, "fp32"), "fp32": ("fp32",), **{name: (name,) for name in FASTER}}
"""Accuracy classes whose families may compute a group of a precision in one launch, in the order in which they are asked."""

LONG = 20e-6
"""Predicted seconds of a product in a group from which it is asked whether it is not faster by itself; less is a launch's own cost,
several times over with what the host does for it."""

ORDINARY = GemmDesc(1024, 1024, 1024)
"""A product that a family takes if it can run on a device at all."""


def product_with(depth: int, cols: int, how: Addressed) -> GemmDesc:
    """Return a product that takes such a second operand, with as many rows as ordinary ones have."""
    return GemmDesc(ORDINARY.M, cols, depth, trans_b=how.trans, ldb=how.ld)


def select(
    device: Device, desc: Desc, own: bool = True, precision: str = "fp32", store: TunedStore = tuned.HERE
) -> Selection:  # fmt: skip
    """Return what runs a product whose operands lie in a device's memory.

    Parameters
    ----------
    own : only kernels of toprung's; else what is installed may be selected, too
    precision : ``"fp32"``; ``"fp32x"``, or fp32 where that cannot be; ``"auto"``, the faster of both; ``"fp32x-strassen"``,
        or ``"fp32x"`` where that gains nothing; ``"tf32"``
    store : lookup in the stores of tuned entries, which is asked before the heuristic

    Raises
    ------
    Unsupported
        a precision there is none of, or that nothing here computes
    """
    if precision not in PRECISIONS:
        raise Unsupported(f"there is no precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    stored = store.at(device, desc)
    if precision in INSTEAD and (reason := unsuited(device, desc, precision)):
        more = INSTEAD[precision]  # at least as accurate
        found = select(device, desc, own, more, store)
        return found.beside(why=f"{reason}; {more} ran in its place. {found.why}") if found.precision == more else found
    if precision in INSTEAD:
        return of_precision(device, desc, precision, stored)
    if precision == "fp32":
        return _fp32(device, desc, own, stored)
    if precision not in ("auto", *FASTER):
        return _asked_for(device, desc, own, precision, stored)

    @functools.cache
    def plain() -> float:
        return ranking.least(device, desc, *ranking.able(device, desc, "fp32", own or None))

    refused: PassedOver = ()
    measured: PassedOver = ()  # what the store refuses: told last, as it says most
    without: set[str] = set()  # families that were measured, and took longer than plain fp32 or went wrong
    best: KernelFamily | None = None
    passed: PassedOver = ()
    faster = faster_families(precision)
    ever = ranking.reasons(device, ORDINARY, faster)
    for family, reason in ranking.reasons(device, desc, faster).items():
        told = None
        if not reason and (reason := stored.failed(family)):
            without.add(family.name)
        elif not reason and precision == "auto":
            told = stored.slower_than_fp32(own, family)
            reason = told or ""
            if told is None and best is None:  # of those behind the first nothing is told
                reason = ranking.slower_than_fp32(device, desc, family, plain)
        if told:
            without.add(family.name)
            measured += ((family.precision, told),)
        elif reason:
            if precision != "auto" or not ever[family]:
                refused += ((family.precision, reason),)
        elif best is None:
            best = family
            if precision == "auto" and told is not None:
                passed = (("fp32", "slower where both were measured, says the store"),)
            elif precision == "auto":
                ours, theirs = ranking.against_fp32(device, desc, family, plain)
                passed = (("fp32", f"{theirs / ours:.1f} times as long by the cost model"),)
    if best is not None:
        found = of_precision(device, desc, best.precision, stored, without)
        why = f"as accurate as fp32, on Tensor Cores, {found.why}"
        return found.beside(why=why, first=passed)
    plain_one = _fp32(device, desc, own, stored)
    if precision != "auto" and refused:  # asked for, and not had: the first thing to be told
        return plain_one.beside(why=f"{refused[0][1]}; fp32 ran in its place. {plain_one.why}".strip())
    return plain_one.beside(*refused, *measured)


def group_member(
    device: Device, a: Layout, b: Layout, c: Layout, d: tuple[int, ...] | None, activation: str, precision: str, own: bool
) -> tuple[KernelFamily, Member] | None:  # fmt: skip
    """Return the family that computes f(A·B + D) best in one launch with others, and the product as it takes it."""
    if (lowered := _lowered(a, b, c, d, activation)) is None:
        return None
    desc, added = lowered
    family = group_family(device, desc, precision, added.needs if added else frozenset(), own)
    return None if family is None else (family, Member(desc, added))


@functools.lru_cache(4096)
def _lowered(
    a: Layout, b: Layout, c: Layout, d: tuple[int, ...] | None, activation: str
) -> tuple[GemmDesc, Epilogue | None] | None:  # fmt: skip
    """Return one product of matrices as they lie, and its epilogue, None if there is none; None for anything else.

    ``d``: strides of what is added, in C's shape.
    """

    program = lower(a, b, c, 0.0, vectors=False)
    if not program.is_direct or (desc := program.descs[0]).is_vector or desc.is_mixed:
        return None
    if d is None and not activation:
        return desc, None
    added = epilogue_of(desc, c.shape, c.strides, d, activation)
    return None if added is None else (desc, added)


def group_family(
    device: Device, desc: GemmDesc, precision: str, needs: frozenset[str], own: bool = True
) -> KernelFamily | None:  # fmt: skip
    """Return the family that computes a product best in one launch with others; None if it is faster by itself, or none can.

    With ``auto`` plain fp32 is asked only where no faster class can have the product: products of one call share few launches then.

    Parameters
    ----------
    needs : abilities that its epilogue asks for, see ``Epilogue.needs``
    own : by itself, only kernels of toprung's may run it; else what is installed, too
    """
    for name in GROUPED.get(precision, ()):
        families = tuple(f for f in ranking.members(name) if needs <= f.epilogues)
        possible, best = _group_family(device, desc, precision, families, own)
        if possible:
            return best
    return None


@functools.lru_cache(4096)
def _group_family(
    device: Device, desc: GemmDesc, precision: str, families: tuple[KernelFamily, ...], own: bool
) -> tuple[bool, KernelFamily | None]:  # fmt: skip
    """Return True if one of the families can have a product in a group, and that one unless the product is faster by itself."""
    able = [(f.groups.share(device, desc), f) for f in families if f.groups]
    share, best = min(able, key=lambda one: one[0], default=(math.inf, None))
    if share == math.inf:
        return False, None
    if share < LONG:
        return True, best
    order = (ranking.ranked(device, desc, name, own or None) for name in classes(precision))
    alone = min((some[0].seconds for some in order if some), default=math.inf)
    return True, best if share <= alone else None


def of_precision(
    device: Device, desc: Desc, precision: str, stored: Lookup | None = None, without: Collection[str] = ()
) -> Selection:
    """Return the selection of another accuracy class for a product that it supports: what the store knows, else the heuristic's.

    ``without``: names of families that are not to be selected.
    """
    found, passed = (stored or tuned.HERE.at(device, desc)).of_precision(precision, without)
    if found is None:
        order = [p for p in ranking.ranked(device, desc, precision) if p.family.name not in without]
        found = ranking.select_own(device, desc, precision, order)
    return found.beside(*passed)


def paths(device: Device, desc: Desc, precision: str) -> tuple[str, ...]:
    """Return the accuracy classes worth measuring, plain fp32 last, so that its comparison has the best of the others."""
    can = [f for f in faster_families("auto") if not f.supports(device, desc)]
    if precision == "fp32" or not can:
        return ("fp32",) if precision not in FASTER else ()
    if precision in FASTER:
        return (precision,)
    return (*(f.precision for f in can if ranking.promising(device, desc, f)), "fp32")


def classes(precision: str) -> tuple[str, ...]:
    """Return the accuracy classes that a product of a precision may run in."""
    return ("fp32", *FASTER) if precision == "auto" else (precision,)


def unsuited(device: Device, desc: Desc, precision: str) -> str:
    """Return why no family of an accuracy class can compute a product, as a sentence; empty where one can."""
    reasons = [f.supports(device, desc) for f in ranking.members(precision)]
    return "" if "" in reasons else next(iter(reasons), f"nothing here computes {precision}")


def faster_families(precision: str) -> tuple[KernelFamily, ...]:
    """Return the families beside plain fp32 that a precision may take: for ``auto`` all that are as accurate."""
    wanted = FASTER if precision == "auto" else (precision,) * (precision in FASTER)
    return tuple(itertools.chain.from_iterable(map(ranking.members, wanted)))


def _fp32(device: Device, desc: Desc, own: bool, stored: Lookup) -> Selection:
    """Return the selection of plain fp32: the store's, else the heuristic's, beside what is installed."""
    found, passed_over = stored.fp32(own)
    found, more = found or ranking.select_own(device, desc), list[tuple[object, str | float]](passed_over)
    for family in ranking.members("fp32", own=False):
        if own:
            more.append((family.name, "only kernels of ours were asked for"))
        elif not found.weighed:
            reason = family.supports(device, desc) or stored.failed(family)
            ratio = ranking.ratio(device, desc, family) if not reason else 0.0
            if not reason and ratio < 1:
                theirs, *_ = ranking.ranked(device, desc, own=False)
                why = f"no measurement says that it is faster on a {problem_class(desc)} product, nor the cost model"
                return ranking.selection(device, desc, theirs, ((found, why),))
            more.append((family.name, reason or ratio))
    return found.beside(*more)


def _asked_for(device: Device, desc: Desc, own: bool, precision: str, stored: Lookup) -> Selection:
    """Return the selection of a class that is less accurate than fp32, which nobody gets who does not ask for it."""
    advice = "use 'auto', which is as accurate as fp32"
    if own and not ranking.members(precision, own=True):
        raise Unsupported(f"precision {precision!r} has no kernels of toprung's own: leave own=True out, or {advice}")
    if reason := unsuited(device, ORDINARY, precision):
        raise Unsupported(f"precision {precision!r} cannot be had here: {reason}; {advice}")
    if reason := unsuited(device, desc, precision):
        plain = _fp32(device, desc, own, stored)
        return plain.beside(why=f"{reason}. {plain.why}".strip())
    best = ranking.ranked(device, desc, precision, own=None)[0]
    return ranking.selection(device, desc, best, ((FASTER[0], f"{precision} was asked for"),))
