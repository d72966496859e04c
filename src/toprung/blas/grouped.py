"""Grouped products: many pairs of matrices of unequal shapes in one call."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toprung import arrays
from toprung.arrays.base import HOST, Home, Operand
from toprung.arrays.sessions import session_at
from toprung.backends.base import Session
from toprung.blas import calls, epilogue, receipt
from toprung.blas.operands import How, finished, same_memory, sizes
from toprung.blas.packed import PackedOperand
from toprung.blas.product import Call, follow
from toprung.blas.receipt import Receipt
from toprung.blas.routines import RECORDERS, matmul
from toprung.device import Device
from toprung.dispatch import known_precision
from toprung.errors import BadArgument, Overlap, ToprungError
from toprung.gemm import overlap

if TYPE_CHECKING:
    from toprung.kernels.base import GroupLaunches, KernelFamily, Member


def matmul_grouped(
    a: Sequence[Any], b: Sequence[Any], out: Sequence[Any] | None = None, *, bias: Sequence[Any] | None = None,
    activation: str | None = None, precision: str = "auto", own: bool = False, device: Device | str | None = None,
) -> list[Any]:  # fmt: skip
    """Return the products of pairs of float32 arrays whose shapes may all differ: experts, heads, blocks of a sparse matrix.

    Every product is checked and decided before the first is launched: an error leaves all of ``out`` as it was. On NVIDIA GPUs
    through CUDA, products go into one launch, whatever their shapes: where matrices are row-major or transposed, and each is not
    so large that it is faster by itself. With ``auto`` on Hopper it is one of fp32x, and another of plain fp32 where K is below 64.
    The others go into the library's stream one after the other, each a launch of its own kernel. The receipt is that of all
    together. A group like an earlier one, of arrays that lie elsewhere, costs the host least.

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
    function, how = epilogue.known_activation(activation), How("matmul_grouped", known_precision(precision), own, device)
    key, at = _seen(a, b, out, bias, (function, precision, own, device))
    if key is not None:
        kept: _Decided | None = calls.groups[key]
        if kept is None and (kept := _of_known_pairs(key, a[0], at)):
            calls.groups.keep(key, kept)
        if kept is not None and (out is None or kept.is_clear(at)):
            return kept.start(a, b, out, at)

    pairs = list(zip(a, b, outs, biases, strict=True))
    if key is None and any(_is_recorded(thing) for pair in pairs for thing in pair):
        more: dict[str, Any] = {"activation": activation, "precision": precision, "own": own, "device": device}
        recorded = []
        for i, (x, y, z, v) in enumerate(pairs):
            with _numbered(i):
                recorded.append(matmul(x, y, z, bias=v, **more))
        return recorded
    checked = []
    for i, (x, y, z, v) in enumerate(pairs):
        with _numbered(i):
            checked.append(epilogue.checked(x, y, z, v, function, how))
    if out is not None:
        _apart(checked)
    groups, left = _grouped(checked)
    alone = []
    for i in left:
        with _numbered(i):
            alone.append(epilogue.ready(checked[i]))
    # of A, B, C and D of each product, a row each; 0 where nothing is added
    views = ((p.given.a, p.given.b, p.given.c, p.bias) for p in checked)
    addresses = np.array([[0 if v is None else v.address for v in row] for row in views], np.int64).reshape(-1, 4).T
    for group in groups:
        group.run(checked, addresses)
    for one in alone:
        epilogue.run(one)
    named = [(i, one.call, one.bias is not None) for i, one in zip(left, alone, strict=True)]
    found = [_pair(product) for product in checked]
    decided = _Decided(groups, named, found)
    if groups or len(alone) > 1:
        receipt.leave(decided.receipt)
    if _may_be_kept(checked, alone):
        calls.know(o for product in checked for o in _operands(product))
        if key is not None:
            calls.groups.keep(key, decided)
            keys = list(_pair_keys(key, at))
            for group in groups:
                for i, member in zip(group.numbers, group.members, strict=True):
                    calls.pairs.keep(keys[i], found[i]._replace(family=group.family, member=member))
    return [finished(one.given, z) for one, z in zip(checked, outs, strict=True)]


def _seen(
    a: Sequence[Any], b: Sequence[Any], out: Sequence[Any] | None, bias: Sequence[Any] | None, options: tuple[Any, ...]
) -> tuple[Hashable, Any]:  # fmt: skip
    """Return a key of everything but addresses that decides a group, and the addresses; None for a group that must be looked at.

    The addresses are of A, B, C and D, a row each, 0 for what is not there.
    """
    count, biases = len(a), bias or (None,) * len(a)
    adapter = calls.adapter_of([*a, *b, *(out or ()), *(x for x in biases if x is not None)])
    if adapter is None or not all(isinstance(option, Hashable) for option in options):
        return None, None
    signature, address = adapter.signature, adapter.address
    likes = [*map(signature, a), *map(signature, b)]
    likes += [()] * count if out is None else [signature(x, writable=True) for x in out]
    likes += [() if x is None else signature(x) for x in biases]
    if None in likes:
        return None, None
    try:
        rows = [list(map(address, a)), list(map(address, b)), [0] * count if out is None else list(map(address, out))]
        rows.append([0 if x is None else address(x) for x in biases])
    except RuntimeError:  # tensors that stand for others, inside torch.vmap, have none
        return None, None
    at = np.array(rows, np.int64)
    return (adapter, options, (at & 15).tobytes(), *likes), at


def _pair_keys(key: Any, at: NDArray[np.int64]) -> Iterator[Hashable]:
    """Yield the key of each pair of a group with a key of ``_seen``'s."""
    adapter, options, _, *likes = key
    count = len(likes) // 4
    rows = (likes[i * count : (i + 1) * count] for i in range(4))
    for like, bits in zip(zip(*rows, strict=True), (at & 15).T.tolist(), strict=True):
        yield adapter, options, like, tuple(bits)


class _Pair(NamedTuple):
    """A pair that is checked: everything but addresses.

    Attributes
    ----------
    home : place of its arrays
    shape : shape of the result
    text : shapes of both operands, to be read
    reach : bytes from each array's address to its lowest byte and to the end of its highest; of A, B, C and D
    family, member : who computes it together with others, and how that sees it; None if it goes alone
    """

    home: Home
    shape: tuple[int, ...]
    text: str
    reach: list[tuple[int, int]]
    family: KernelFamily | None = None
    member: Member | None = None


def _pair(product: epilogue.Checked) -> _Pair:
    """Return what is known of a pair before it is decided."""
    given, bias = product.given, product.bias
    operands = (given.first, given.second, given.result, None if bias is None else bias.operand)
    reach = [(0, 0) if o is None else overlap.span(0, o.shape, o.strides) for o in operands]
    return _Pair(given.first.home, given.shape, f"{sizes(given.first.shape)} · {sizes(given.second.shape)}", reach)


def _of_known_pairs(key: Any, first: Any, at: NDArray[np.int64]) -> _Decided | None:
    """Return a group that was not asked for yet, of pairs that were, in other groups; None if one was not, or goes alone."""
    found: list[_Pair] = []
    for pair_key in _pair_keys(key, at):
        pair: _Pair | None = calls.pairs[pair_key]
        if pair is None or (pair.home, pair.family) != ((found or [pair])[0].home, (found or [pair])[0].family):
            return None
        found.append(pair)
    if len(found) < 2:
        return None
    family, home, members = found[0].family, found[0].home, [pair.member for pair in found if pair.member is not None]
    assert family is not None and family.groups is not None
    session = session_at(home, key[0].queue(first, home))
    numbers = list(range(len(found)))
    return _Decided([_Group(family, session, family.groups.launches(session, members), numbers, members)], [], found)


class _Decided:
    """A group that is decided: everything but addresses, of which it keeps no array."""

    def __init__(self, groups: list[_Group], alone: list[tuple[int, Call, bool]], pairs: list[_Pair]) -> None:
        self._groups, self._calls, self.count = groups, alone, len(pairs)
        self._home, self._shapes = pairs[0].home if pairs else None, [pair.shape for pair in pairs]
        self._low, self._high = np.array([pair.reach for pair in pairs], np.int64).reshape(-1, 4, 2).T
        self._problem = f"{len(pairs)} products, {pairs[0].text} to {pairs[-1].text}" if pairs else ""

    def is_clear(self, at: NDArray[np.int64]) -> bool:
        """Return True if no result's memory, from its lowest to its highest byte, overlaps that of another array of the group."""
        low, high = at + self._low, at + self._high
        order = np.argsort(low[2])
        first, last = low[2][order], high[2][order]
        if (last[:-1] > first[1:]).any():
            return False
        # results that begin before an array's end, less those that end before its beginning
        inputs = [0, 1, 3]
        return not (np.searchsorted(first, high[inputs]) > np.searchsorted(last, low[inputs], "right")).any()

    def start(self, a: Sequence[Any], b: Sequence[Any], out: Sequence[Any] | None, at: NDArray[np.int64]) -> list[Any]:
        """Compute the products of arrays like those it was decided for, at these addresses."""
        adapter: Any = arrays.adapter_of(a[0])
        if out is None:
            made = [adapter.fresh(x, shape) for x, shape in zip(a, self._shapes, strict=True)]
            at[2] = [adapter.address(x) for x in made]
        else:
            made = list(out)
        queue = adapter.queue(a[0], self._home)
        for group in self._groups:
            group.launches.start(queue, at[:, group.numbers])
        for i, call, is_added in self._calls:
            at_a, at_b, at_c, at_d = at[:, i].tolist()
            more = (1.0, 1.0, at_d) if is_added else ()
            call.start(a[i], b[i], made[i], at_a, at_b, at_c, *more)
        if self._groups or len(self._calls) > 1:
            receipt.leave(self.receipt)
        return made if out is not None else [x if s else adapter.scalar(x) for x, s in zip(made, self._shapes, strict=True)]

    def receipt(self) -> Receipt:
        """Return one receipt of all products."""
        return _receipt(self._problem, self._groups, [call for _, call, _ in self._calls])


def _may_be_kept(checked: list[epilogue.Checked], alone: list[epilogue.Ready]) -> bool:
    """Return True if a group can be started on other arrays like its own; see ``calls.signatures``."""
    if not checked or not all(
        one.packed is None and not one.call.depends and (one.is_fused or (one.bias is None and not one.activation)) for one in alone
    ):
        return False
    first = checked[0].given.first
    adapter = first.adapter
    if first.home.kind == HOST or adapter.has_memory_objects or adapter.signature(first.thing) is None:
        return False
    for operand in (o for product in checked for o in _operands(product)):
        like = operand.adapter is adapter and (operand.home, operand.queue) == (first.home, first.queue)
        if not like or operand.unordered or adapter.address(operand.thing) != operand.address:
            return False
    return True


def _operands(product: epilogue.Checked) -> list[Operand]:
    """Return the operands of a product, and what is added to it."""
    given, bias = product.given, product.bias
    return [given.first, given.second, given.result, *(() if bias is None else (bias.operand,))]


class _Group(NamedTuple):
    """Products that a family computes together, in one queue, wherever they lie; ``numbers``: theirs among all pairs."""

    family: KernelFamily
    session: Session
    launches: GroupLaunches
    numbers: list[int]
    members: Sequence[Member]

    def run(self, checked: list[epilogue.Checked], addresses: NDArray[np.int64]) -> None:
        """Launch them; queues of operands wait for them, and they for those."""
        operands = [o for i in self.numbers for o in _operands(checked[i])]
        queue = operands[0].queue
        others = {other.queue: None for other in operands if other.queue is not None and other.queue != queue}
        for other in others:
            follow(self.session, queue, other)
        try:
            self.launches.start(queue, addresses[:, self.numbers])
        finally:
            for other in others:
                follow(self.session, other, queue)
            if any(operand.unordered for operand in operands):
                self.session.settle_queue(queue)


def _grouped(checked: list[epilogue.Checked]) -> tuple[list[_Group], list[int]]:
    """Return what goes into launches with others, compiled, and the numbers of the pairs that go alone."""
    found: dict[tuple[str, Home, Any], list[tuple[int, KernelFamily, Member]]] = {}
    sessions: dict[tuple[Home, Any], Session] = {}
    for i, product in enumerate(checked):
        operand = product.given.first
        if operand.home.kind == HOST or product.packed is not None:
            continue
        place = operand.home, operand.queue
        if place not in sessions:
            sessions[place] = session_at(*place)
        if member := _member(product, sessions[place].device):
            family, described = member
            found.setdefault((family.name, *place), []).append((i, family, described))
    groups, taken = [], set[int]()
    for (_, home, queue), several in found.items():
        if len(several) < 2:
            continue  # by itself it may have slices of K, and what was measured
        numbers, (family, *_), members = zip(*several, strict=True)
        session = sessions[home, queue]
        groups.append(_Group(family, session, family.groups.launches(session, members), list(numbers), members))
        taken.update(numbers)
    return groups, [i for i in range(len(checked)) if i not in taken]


def _member(product: epilogue.Checked, device: Device) -> tuple[KernelFamily, Member] | None:
    """Return the family that computes a product best together with others, and the product as it takes it."""
    given, bias, _, activation, how = product
    from toprung.dispatch.select import group_member  # with the first group on a device

    strides = None if bias is None else bias.strides
    return group_member(device, given.a.layout, given.b.layout, given.c.layout, strides, activation, how.precision, how.own)


def _receipt(problem: str, groups: list[_Group], calls: list[Call]) -> Receipt:
    """Return one receipt of groups and of calls of their own."""
    alone = [one for call in calls if (one := call.receipt()) is not None]
    together = [group.launches for group in groups]
    words = [f"{len(g.numbers)} products in {g.launches.launches} launch{'es' * (g.launches.launches > 1)}" for g in groups]
    counters = [c for launches in together for c in launches.counters]
    return Receipt(
        operation="matmul_grouped",
        problem=problem,
        kernels=_once([k for launches in together for k in launches.kernels], *(one.kernels for one in alone)),
        own=all(g.family.own for g in groups) and all(one.own for one in alone),
        precision=" and ".join(_once([g.family.precision for g in groups], [one.precision for one in alone])),
        device=" and ".join(_once([str(g.session.device) for g in groups], [one.device for one in alone])),
        why="; ".join(_once(words, [one.why for one in alone if one.why])),
        passed_over=_once(*(one.passed_over for one in alone)),
        copies=tuple(copy for one in alone for copy in one.copies),
        launches=sum(launches.launches for launches in together) + sum(one.launches for one in alone),
        workspace_bytes=max((one.workspace_bytes for one in alone), default=0),
        counters=_once(counters, *(one.counters for one in alone)),
    )


def _once(*several: Iterable[Any]) -> tuple[Any, ...]:
    """Return what is in any of several sequences, each thing once, in order."""
    return tuple(dict.fromkeys(itertools.chain(*several)))


def _sequence(given: Any, name: str) -> Sequence[Any]:
    """Return a sequence of arrays; raise BadArgument for anything else, an array too, whose rows would be taken for arrays."""
    if type(given) in (list, tuple):
        return given  # type: ignore[no-any-return]
    if arrays.adapter_of(given) is not None:
        raise BadArgument(f"{name} is a sequence of arrays, not {type(given).__name__}: for a batch of equal ones call matmul")
    # of a dict the keys would be taken, and a set has no order by which two could be paired
    if isinstance(given, (str, bytes, Mapping, Set)) or not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        raise BadArgument(f"{name} is a sequence of arrays, not {type(given).__name__}: pass a list")
    return given  # type: ignore[no-any-return]


def _is_recorded(thing: Any) -> bool:
    """Return True if an array's library must see what happens to it."""
    thing = thing.source if isinstance(thing, PackedOperand) else thing
    library = arrays.adapter_of(thing)
    return library is not None and library.name in RECORDERS and library.is_recorded(thing)


@contextmanager
def _numbered(i: int) -> Iterator[None]:
    """Put the number of a pair in front of an error's message, unless it is about an option, which all pairs share."""
    try:
        yield
    except BadArgument:
        raise
    except ToprungError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"pair {i}: {error.args[0]}", *error.args[1:])
        raise


def _apart(ready: list[epilogue.Checked]) -> None:
    """Raise Overlap if a result shares memory with another pair's operand or result: the order would decide what comes out."""
    spans = []
    for i, one in enumerate(ready):
        for name, operand in (("a", one.given.first), ("b", one.given.second), ("out", one.given.result)):
            low, high = overlap.span(operand.address, operand.shape, operand.strides, operand.size)
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
            first, second = (span, other) if span[3] == "out" else (other, span)
            here, there = ((s[4].address, s[4].shape, s[4].strides) for s in (first, second))
            if span[4].home == other[4].home and overlap.share(here, there, second[4].size):
                raise Overlap(
                    f"out[{first[2]}] shares memory with {second[3]}[{second[2]}] of another pair: pass an array of its own"
                )
        reaching.append(span)
