"""Grouped products: many pairs of matrices of unequal shapes in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from toprung import arrays
from toprung.blas import epilogue
from toprung.blas.operands import How, finished, same_memory
from toprung.blas.packed import PackedOperand
from toprung.blas.routines import RECORDERS, matmul
from toprung.device import Device
from toprung.errors import BadArgument, Overlap, ToprungError
from toprung.gemm import overlap


def matmul_grouped(
    a: Sequence[Any], b: Sequence[Any], out: Sequence[Any] | None = None, *, bias: Sequence[Any] | None = None,
    activation: str | None = None, precision: str = "auto", own: bool = False, device: Device | str | None = None,
) -> list[Any]:  # fmt: skip
    """Return the products of pairs of float32 arrays whose shapes may all differ: experts, heads, blocks of a sparse matrix.

    Every product is checked and decided before the first is launched: an error leaves all of ``out`` as it was. The products go
    into the library's stream one after the other, each a launch of its own kernel.

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
    ready = []
    for i, (x, y, z, v) in enumerate(pairs):
        with _numbered(i):
            ready.append(epilogue.ready(x, y, z, v, function, how))
    if out is not None:
        _apart(ready)
    for one in ready:
        epilogue.run(one)
    return [finished(one.given, z) for one, z in zip(ready, outs, strict=True)]


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


def _apart(ready: list[epilogue.Ready]) -> None:
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
