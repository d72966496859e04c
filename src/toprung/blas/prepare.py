"""Splitting a second operand once, for many products."""

from __future__ import annotations

from typing import Any

from toprung import hopper
from toprung.blas import routines
from toprung.blas.arrays.base import HOST
from toprung.blas.call import GemmCall
from toprung.blas.execute import known
from toprung.blas.layout import addressed
from toprung.blas.prepared import Prepared
from toprung.blas.product import View, copy
from toprung.blas.route import unsuited
from toprung.blas.sessions import session_at
from toprung.errors import BadShape


def prepare(b: Any, *, trans: bool = False, precision: str = "fp32x") -> Prepared:
    """Copy a matrix and split the copy once: a second operand for ``matmul`` and ``plan`` that need not be split again.

    Parameters
    ----------
    b : (K, N), or (N, K) with ``trans``; float32, of any library toprung knows and with any strides. Written to afterwards, it
        changes nothing: prepare it again
    trans : whether products take its transpose
    precision : what products take that ask for ``"auto"``: ``"fp32x"`` for each of them, ``"auto"`` where that is faster

    Returns
    -------
    The prepared operand: on Hopper in device memory a copy and the terms, together twice as large as ``b``; elsewhere the copy
    alone (its ``why`` says so). Waits until it is done, so that any stream may use it.

    Raises
    ------
    BadArray, BadShape, BadArgument
        no float32 matrix; a precision that does not exist
    OutOfDeviceMemory
        no room for the copy and the terms

    Examples
    --------
    >>> import numpy as np, toprung
    >>> b = np.ones((64, 3), np.float32)
    >>> ready = toprung.prepare(b)
    >>> b[:] = 0
    >>> toprung.matmul(np.ones((1, 64), np.float32), ready)
    array([[64., 64., 64.]], dtype=float32)
    """
    known(precision)
    given = routines.strict(b, "b")
    if len(given.shape) != 2:
        raise BadShape(f"b is {routines.sizes(given.shape)}, and only a matrix can be prepared")
    view = View(given, given.shape, given.strides)
    if trans:
        view = View(given, given.shape[::-1], given.strides[::-1])
    columns = view.strides[0] == 1 and view.strides[1] != 1  # stay as they are
    made = given.adapter.empty(given, view.shape, fortran=columns)
    kept = given.adapter.operand(made, "the copy")
    copy(view, View(kept, kept.shape, kept.strides))
    if given.home.kind == HOST:
        return Prepared(made, kept.shape, None, precision, "it is on the host")
    session = session_at(kept.home, kept.queue)
    terms, (depth, cols) = None, kept.shape
    how = addressed(depth, cols, *kept.strides)
    why = "it is empty"
    if how is not None and depth and cols:
        call = GemmCall(1, cols, depth, trans_b=how.trans, ldb=how.ld)
        why = "" if precision in ("auto", "fp32x") else f"{precision} needs none"
        why = why or unsuited(session.device, call)
        if not why:
            terms = hopper.Prepared(session, call, kept.address, queue=kept.queue, copied=True)
    session.settle_queue(kept.queue)
    return Prepared(made, kept.shape, terms, precision, why)
