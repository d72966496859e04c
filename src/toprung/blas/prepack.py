"""``toprung.prepack``: a second operand is split once, for many products."""

from __future__ import annotations

from typing import Any

from toprung.arrays import adapter_of
from toprung.arrays.base import HOST
from toprung.arrays.sessions import session_at
from toprung.blas.operands import View, sizes, strict
from toprung.blas.packed import PackedOperand
from toprung.blas.product import copy
from toprung.dispatch import known_precision
from toprung.errors import BadArgument, BadShape


def prepack(b: Any, *, trans: bool = False, precision: str = "fp32x") -> PackedOperand:
    """Copy a matrix and split the copy once, as a second operand for ``matmul`` and ``plan`` that need not be split again.

    Parameters
    ----------
    b : (K, N), or (N, K) with ``trans``; float32, of any library toprung knows and with any strides. Later writes to it do not
        change the prepacked operand: prepack it again. After writes to a PyTorch tensor, an optimiser's step too, products refuse
        it (StaleOperand); only those through ``.data`` go unnoticed. A tensor that requires a gradient gets those of the products
    trans : True if products take its transpose
    precision : path of products that ask for ``"auto"``: ``"fp32x"`` for each of them, or ``"auto"`` for fp32x where it is faster

    Returns
    -------
    The prepacked operand: on Hopper a copy and its two fp16 terms (hi and lo) in device memory, together twice as large as ``b``;
    elsewhere the copy alone (its ``why`` says so). Waits until it is done, so that any stream may use it.

    Raises
    ------
    BadArray, BadShape, BadArgument
        ``b`` is no float32 matrix; the precision does not exist
    OutOfDeviceMemory
        there is no room for the copy and the terms

    Examples
    --------
    >>> import numpy as np, toprung
    >>> b = np.ones((64, 3), np.float32)
    >>> ready = toprung.prepack(b)
    >>> b[:] = 0
    >>> toprung.matmul(np.ones((1, 64), np.float32), ready)
    array([[64., 64., 64.]], dtype=float32)
    """
    known_precision(precision)
    if not isinstance(trans, bool):
        raise BadArgument(f"trans is True or False, not {trans!r}")
    library, origin = adapter_of(b), None
    changed = None if library is None else library.watch(b)
    if library is not None and library.is_recorded(b):
        b, origin = library.detached(b), b
    given = strict(b, "b")
    if len(given.shape) != 2:
        raise BadShape(f"b is {sizes(given.shape)}, and only a matrix can be prepacked")
    view = View(given, given.shape, given.strides)
    if trans:
        view = View(given, given.shape[::-1], given.strides[::-1])
    columns = view.strides[0] == 1 and view.strides[1] != 1  # a column-major matrix stays column-major
    made = given.adapter.empty(given, view.shape, fortran=columns)
    kept = given.adapter.operand(made, "the copy")
    copy(view, View(kept, kept.shape, kept.strides))
    if given.home.kind == HOST:
        return PackedOperand(made, kept.shape, None, precision, "it is on the host", origin, trans, changed)
    from toprung.dispatch.select import faster_families, product_with
    from toprung.gemm.lowering import addressed

    session = session_at(kept.home, kept.queue)
    terms, (depth, cols) = None, kept.shape
    how = addressed(depth, cols, *kept.strides)
    why = "it is empty"
    if how is not None and depth and cols:
        desc = product_with(depth, cols, how)
        why = f"{precision} needs none"
        for family in faster_families(precision):
            if reason := family.supports(session.device, desc):
                why = reason
            elif family.packs:
                terms, why = family.packs(session, desc, kept.address, kept.queue), ""
                break
    session.settle_queue(kept.queue)
    return PackedOperand(made, kept.shape, terms, precision, why, origin, trans, changed)
