"""Grouped products: many pairs of matrices of unequal shapes in one call."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from toprung import arrays
from toprung.arrays.base import HOST
from toprung.arrays.sessions import session_at
from toprung.backends.base import Session
from toprung.blas import epilogue, receipt
from toprung.blas.operands import How, finished, same_memory, sizes
from toprung.blas.packed import PackedOperand
from toprung.blas.product import Call, follow
from toprung.blas.receipt import Receipt
from toprung.blas.routines import RECORDERS, matmul
from toprung.device import Device
from toprung.dispatch.select import group_family
from toprung.errors import BadArgument, Overlap, ToprungError
from toprung.gemm import overlap
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import Epilogue
from toprung.gemm.lowering import Layout, epilogue_of, lower
from toprung.kernels.base import GroupLaunches, KernelFamily, Member

VARIABLE = "TOPRUNG_GROUPED"
"""Environment variable that is ``one`` where products may share a launch.

Nobody gets it unasked: the kernel's text was verified on a CPU, and in this form it has not run on a GPU yet."""


def matmul_grouped(
    a: Sequence[Any], b: Sequence[Any], out: Sequence[Any] | None = None, *, bias: Sequence[Any] | None = None,
    activation: str | None = None, precision: str = "auto", own: bool = False, device: Device | str | None = None,
) -> list[Any]:  # fmt: skip
    """Return the products of pairs of float32 arrays whose shapes may all differ: experts, heads, blocks of a sparse matrix.

    Every product is checked and decided before the first is launched: an error leaves all of ``out`` as it was. On a Hopper GPU
    through CUDA, with ``TOPRUNG_GROUPED=one`` in the environment, products in fp32x go into one launch, whatever their shapes:
    where K is 64 or more, matrices are row-major or transposed, and each is not so large that it is faster by itself. The others
    go into the library's stream one after the other, each a launch of its own kernel. The receipt is that of all together.

    Parameters
    ----------
    a, b : as many arrays each; pair i is multiplied by the rules of ``matmul``
    out : as many arrays to put the results into, or None. None may share memory with an operand or with another
    bias : as many arrays to add, or None; one of them may be None
    activation, precision, own, device : as for ``matmul``, for all products

    Returns
    -------
    List of ``out``'s arrays, or of new ones.

    Raises
    ------
    BadArgument
        sequences of different lengths, or an array in place of a sequence
    ToprungError
        what ``matmul`` raises of a pair; the message begins with the pair's number

    Examples
    --------
    >>> import numpy as np, toprung
    >>> a, b = ([np.ones((m, 2), np.float32) for m in (1, 3)], [np.ones((2, n), np.float32) for n in (2, 1)])
    >>> [c.shape for c in toprung.matmul_grouped(a, b)]
    [(1, 2), (3, 1)]
    """
    count = len(_sequence(a, "a"))
    outs, biases = out if out is not None else [None] * count, bias if bias is not None else [None] * count
    for given, name in ((b, "b"), (outs, "out"), (biases, "bias")):
        if len(_sequence(given, name)) != count:
            raise BadArgument(f"a has {count} arrays and {name} has {len(given)}: a group has as many of each")
    function, how = epilogue.known_activation(activation), How("matmul_grouped", precision, own, device)
    pairs = list(zip(a, b, outs, biases, strict=True))
    if any(_is_recorded(thing) for pair in pairs for thing in pair):
        more: dict[str, Any] = {"activation": activation, "precision": precision, "own": own, "device": device}
        return [matmul(x, y, z, bias=v, **more) for x, y, z, v in pairs]
    checked = []
    for i, (x, y, z, v) in enumerate(pairs):
        with _numbered(i):
            checked.append(epilogue.checked(x, y, z, v, function, how))
    if out is not None:
        _apart(checked)
    groups, left = _grouped(checked) if os.environ.get(VARIABLE) == "one" else ([], list(range(count)))
    alone = []
    for i in left:
        with _numbered(i):
            alone.append(epilogue.ready(checked[i]))
    for group in groups:
        group.run()
    for one in alone:
        epilogue.run(one)
    if groups or len(alone) > 1:
        first, last = (" · ".join(sizes(x.shape) for x in checked[i].given[:2]) for i in (0, -1))
        problem, calls = f"{len(checked)} products, {first} to {last}", [one.call for one in alone]
        together = [(g.family, g.session, g.launches, len(g.products)) for g in groups]  # not the arrays, which it would keep
        receipt.leave(lambda: _receipt(problem, together, calls))
    return [finished(one.given, z) for one, z in zip(checked, outs, strict=True)]


class _Group(NamedTuple):
    """Products that a family computes together, in one queue: nothing is computed yet."""

    family: KernelFamily
    session: Session
    launches: GroupLaunches
    products: list[epilogue.Checked]

    def run(self) -> None:
        """Launch them; queues of operands wait for them, and they for those."""
        queue = self.products[0].given.first.queue
        operands = [v.operand for p in self.products for v in (p.given.a, p.given.b, p.given.c, p.bias) if v is not None]
        others = {other.queue: None for other in operands if other.queue is not None and other.queue != queue}
        for other in others:
            follow(self.session, queue, other)
        try:
            self.launches.start(queue)
        finally:
            for other in others:
                follow(self.session, other, queue)
            if any(operand.unordered for operand in operands):
                self.session.settle_queue(queue)


def _grouped(checked: list[epilogue.Checked]) -> tuple[list[_Group], list[int]]:
    """Return what goes into launches with others, compiled, and the numbers of the pairs that go alone."""
    found: dict[Hashable, list[tuple[int, KernelFamily, Member]]] = {}
    for i, product in enumerate(checked):
        operand = product.given.first
        if operand.home.kind == HOST or product.packed is not None:
            continue
        if member := _member(product):
            family, described = member
            found.setdefault((family.name, operand.home, operand.queue), []).append((i, family, described))
    groups, taken = [], set[int]()
    for several in found.values():
        if len(several) < 2:
            continue  # by itself it may have slices of K, and what was measured
        numbers, (family, *_), members = zip(*several, strict=True)
        products = [checked[i] for i in numbers]
        operand = products[0].given.first
        session = session_at(operand.home, operand.queue)
        groups.append(_Group(family, session, family.grouped(session, members), products))
        taken.update(numbers)
    return groups, [i for i in range(len(checked)) if i not in taken]


def _member(product: epilogue.Checked) -> tuple[KernelFamily, Member] | None:
    """Return the family that computes a product best together with others, and the product as it takes it."""
    given, bias, _, activation, how = product
    strides = None if bias is None else bias.strides
    lowered = _lowered(given.a.layout, given.b.layout, given.c.layout, strides, activation)
    if lowered is None:
        return None
    desc, added = lowered
    session = session_at(given.first.home, given.first.queue)
    needs = added.needs if added else frozenset[str]()
    family = group_family(session.device, desc, how.precision, needs)
    if family is None:
        return None
    return family, Member(desc, added, given.a.address, given.b.address, given.c.address, 0 if bias is None else bias.address)


@functools.lru_cache(4096)
def _lowered(
    a: Layout, b: Layout, c: Layout, d: tuple[int, ...] | None, activation: str
) -> tuple[GemmDesc, Epilogue | None] | None:  # fmt: skip
    """Return one product of matrices as they lie, and its epilogue, None if there is none; None for anything else.

    ``d``: strides of what is added, in C's shape.
    """
    program = lower(a, b, c, 0.0)
    if not program.is_direct or not isinstance(desc := program.descs[0], GemmDesc):
        return None
    if d is None and not activation:
        return desc, None
    added = epilogue_of(desc, c.shape, c.strides, d, activation)
    return None if added is None else (desc, added)


def _receipt(problem: str, groups: list[tuple[KernelFamily, Session, GroupLaunches, int]], calls: list[Call]) -> Receipt:
    """Return one receipt of groups, each with the number of its products, and of calls of their own."""
    alone = [one for call in calls if (one := call.receipt()) is not None]
    words = [f"{count} products in {one.launches} launch{'es' * (one.launches > 1)}" for _, _, one, count in groups]
    counters = [c for _, _, launches, _ in groups for c in launches.counters]
    return Receipt(
        operation="matmul_grouped",
        problem=problem,
        kernels=_once([k for _, _, launches, _ in groups for k in launches.kernels], *(one.kernels for one in alone)),
        own=all(family.own for family, *_ in groups) and all(one.own for one in alone),
        precision=" and ".join(_once([family.precision for family, *_ in groups], [one.precision for one in alone])),
        device=" and ".join(_once([str(session.device) for _, session, *_ in groups], [one.device for one in alone])),
        why="; ".join(_once(words, [one.why for one in alone if one.why])),
        passed_over=_once(*(one.passed_over for one in alone)),
        copies=tuple(copy for one in alone for copy in one.copies),
        launches=sum(launches.launches for _, _, launches, _ in groups) + sum(one.launches for one in alone),
        workspace_bytes=max((one.workspace_bytes for one in alone), default=0),
        counters=_once(counters, *(one.counters for one in alone)),
    )


def _once(*several: Iterable[Any]) -> tuple[Any, ...]:
    """Return what is in any of several sequences, each thing once, in order."""
    return tuple(dict.fromkeys(itertools.chain(*several)))


def _sequence(given: Any, name: str) -> Sequence[Any]:
    """Return a sequence of arrays; raise BadArgument for anything else, an array too, whose rows would be taken for arrays."""
    if arrays.adapter_of(given) is not None or isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        raise BadArgument(f"{name} is a sequence of arrays, not {type(given).__name__}: for a batch of equal ones call matmul")
    return given  # type: ignore[no-any-return]


def _is_recorded(thing: Any) -> bool:
    """Return True if an array's library must see what happens to it."""
    thing = thing.source if isinstance(thing, PackedOperand) else thing
    library = arrays.adapter_of(thing)
    return library is not None and library.name in RECORDERS and library.is_recorded(thing)


@contextmanager
def _numbered(i: int) -> Iterator[None]:
    """Put the number of a pair in front of an error's message."""
    try:
        yield
    except ToprungError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"pair {i}: {error.args[0]}", *error.args[1:])
        raise


def _apart(ready: list[epilogue.Checked]) -> None:
    """Raise Overlap if a result shares memory with another pair's operand or result: the order would decide what comes out."""
    spans = []
    for i, one in enumerate(ready):
        for name, operand in (("a", one.given.first), ("b", one.given.second), ("out", one.given.result)):
            low, high = overlap.span(operand.address, operand.shape, operand.strides)
            spans.append((low, high, i, name, operand))
        if one.bias is not None:
            operand = one.bias.operand
            spans.append((*overlap.span(operand.address, operand.shape, operand.strides), i, "bias", operand))
    spans.sort(key=lambda span: span[:2])
    reaching: list[tuple[int, int, int, str, Any]] = []
    for span in spans:
        reaching = [other for other in reaching if other[1] > span[0]]
        for other in reaching:
            if span[2] == other[2] or "out" not in (span[3], other[3]) or not same_memory(span[4], other[4]):
                continue
            here, there = ((s[4].address, s[4].shape, s[4].strides) for s in (span, other))
            if span[4].home == other[4].home and overlap.share(here, there):
                first, second = (span, other) if span[3] == "out" else (other, span)
                raise Overlap(
                    f"out[{first[2]}] shares memory with {second[3]}[{second[2]}] of another pair: pass an array of its own"
                )
        reaching.append(span)
