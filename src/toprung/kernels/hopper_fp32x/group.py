"""Groups in flight: which products share a launch, and the block that computes them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from toprung.backends.base import Session
from toprung.kernels.base import GroupLaunches, Member
from toprung.kernels.cost_model import group_sizes
from toprung.kernels.group import GroupForm, Matrix, by_traits, packed
from toprung.kernels.hopper_fp32x.config import aligned
from toprung.kernels.hopper_fp32x.cost import group_config, seconds_of_group
from toprung.kernels.hopper_fp32x.sources import product_source

Layout = tuple[bool, bool, int, int]
"""Traits that all products of a launch share: transposes of A and B, and floats to which they are aligned."""


def group_launches(session: Session, members: Sequence[Member]) -> GroupLaunches:
    """Return the launches of a group: one for each pair of transposes, or for each of their alignments where that is faster."""
    units = session.device.compute_units

    def form(layout: Layout, some: Sequence[Matrix]) -> GroupForm:
        config = group_config(group_sizes([m.desc for m in some]), *layout[2:], units)
        return GroupForm(config, layout, functools.partial(product_source, config, *layout), counts=True, overlaps=True)

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
            apart = sum(group_seconds(alike, align, units) for align, alike in by_align.items())
            if apart < group_seconds(every, least, units):
                yield from (((*trans, *align), alike) for align, alike in by_align.items())
                continue
        yield (*trans, *least), every


def group_seconds(members: Sequence[Matrix], align: tuple[int, int], units: int) -> float:
    """Return the predicted seconds of a launch, in the best block."""
    sizes = group_sizes([m.desc for m in members])
    return seconds_of_group(sizes, group_config(sizes, *align, units), *align, units)
