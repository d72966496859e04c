"""Groups in flight: which products share a launch, and the block that computes them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from operator import itemgetter

from toprung.backends.base import Session
from toprung.kernels.base import GroupLaunches, Member
from toprung.kernels.cost_model import group_sizes
from toprung.kernels.group import GroupForm, Matrix, by_traits, packed
from toprung.kernels.hopper_fp32x.config import IN_FLIGHT, Fp32xConfig, aligned
from toprung.kernels.hopper_fp32x.cost import WEIGHED, seconds_of_group
from toprung.kernels.hopper_fp32x.sources import product_source

Layout = tuple[bool, bool, int, int]
"""Traits that all products of a launch share: transposes of A and B, and floats to which they are aligned."""


def group_launches(session: Session, members: Sequence[Member]) -> GroupLaunches:
    """Return the launches of a group: one for each pair of transposes, or for each of their alignments where that is faster."""
    units = session.device.compute_units

    def form(layout: Layout, some: Sequence[Matrix]) -> GroupForm:
        _, config = best(some, layout[2:], units)
        return GroupForm(config, layout, functools.partial(product_source, config, *layout), counts=True)

    return packed(session, "hopper_inflight", members, classes(members, units), form)


def classes(members: Sequence[Member], units: int) -> Iterator[tuple[Layout, list[Matrix]]]:
    """Yield the products of a launch, batches matrix by matrix, with what they have in common.

    Transposes and alignments are compiled in. Products that are aligned better than others of their transposes share a launch
    with them, copied in small pieces as those must be, if that is predicted to take no longer than a launch for each alignment.
    """
    by_trans: dict[tuple[bool, bool], dict[tuple[int, int], list[Matrix]]] = {}
    for (trans, align), mine in by_traits(members, lambda desc: ((desc.trans_a, desc.trans_b), aligned(desc))).items():
        by_trans.setdefault(trans, {})[align] = mine
    for trans, by_align in by_trans.items():
        least = min(a for a, _ in by_align), min(b for _, b in by_align)
        every = [m for alike in by_align.values() for m in alike]
        if len(by_align) > 1:
            apart = sum(best(alike, align, units)[0] for align, alike in by_align.items())
            if apart < best(every, least, units)[0]:
                yield from (((*trans, *align), alike) for align, alike in by_align.items())
                continue
        yield (*trans, *least), every


def best(members: Sequence[Matrix], align: tuple[int, int], units: int) -> tuple[float, Fp32xConfig]:
    """Return the least predicted seconds of a launch, and the block that takes them."""
    sizes = group_sizes([m.desc for m in members])
    return min(((seconds_of_group(sizes, one, *align, units), one) for one in WEIGHED[IN_FLIGHT]), key=itemgetter(0))
