"""A choice that was right on another driver, compiler or kernel text, verified here before it is used."""

from __future__ import annotations

from dataclasses import replace

from toprung import hopper
from toprung.backends.base import Session
from toprung.blas import launches
from toprung.blas.call import Call, GemvCall
from toprung.blas.choice import Choice
from toprung.blas.fp32x import FP32X, path_of, way_of
from toprung.blas.problems import call_of
from toprung.blas.short import Skinny, turn
from toprung.blas.slices import whole_slices
from toprung.check import GUARD, Oracle, hostile
from toprung.competitor import OnDevice
from toprung.errors import BuildError, IllegalTile
from toprung.problem import Problem
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv

SCALARS = ((1.0, 0.0), (1.3, 0.7))
"""α and β; with β = 0 a kernel that reads C computes NaN."""

OVER = 5
"""Widest accesses that a side of the small problem has beyond whole tiles, so that there are edges to get wrong."""

MOST_SLICES = 3


def problems(session: Session, call: Call, choice: Choice) -> tuple[str, ...]:
    """What is wrong with a choice's kernel on a session: it runs on small hostile operands against the float64 oracle.

    Tile, switches and thus the binary are those the call would run; only the slices of K may be fewer.

    Raises
    ------
    LaunchError, OutOfDeviceMemory
        it could not be found out now
    """
    assert choice.tile is not None
    try:
        for alpha, beta in SCALARS:
            problem, small = likeness(call, choice, alpha, beta)
            run = launches.maker(session, call_of(problem), small)()
            operands = hostile(problem)
            placed = OnDevice(operands, session)
            a, b, c = (placed.buffers[m.name].handle for m in problem.matrices)
            run(a, GUARD, b, GUARD, c, GUARD, alpha, beta, None)
            if found := Oracle(operands).verify(placed.fetch(), path_of(choice.kernel)).problems:
                return found
    except (BuildError, IllegalTile) as error:
        return (str(error),)
    return ()


def likeness(call: Call, choice: Choice, alpha: float, beta: float) -> tuple[Problem, Choice]:
    """A small problem of a call's kind with edges in every direction, and the choice for it."""
    assert choice.tile is not None
    tile, more = choice.tile, OVER * 4  # a multiple of the widest access
    skinny = choice.kernel in ("rows", "columns")
    piece = turn(tile) if skinny else tile.BK or 1
    length, depth = 2 * tile.BM + more if skinny else 0, MOST_SLICES * piece + more
    if choice.kernel == FP32X and way_of(tile, dict(choice.options)).variant.INTERVAL > 1:
        depth += hopper.TWICE  # where its promise begins
    slices = whole_slices(depth, piece, min(choice.slices, MOST_SLICES))
    small = replace(choice, tile=replace(tile, SPLIT_K=slices if slices > 1 else None))
    if isinstance(call, GemvCall):
        rows, cols = (depth, length or 100) if call.trans else (length or 100, depth)
        return Gemv(rows, cols, alpha, beta, incx=call.incx if call.incx > 1 else 1, trans="T" if call.trans else "N"), small
    batch = min(call.batch, 2)
    if length:
        few = Skinny.of(call).few
        m, n = (few, length) if Skinny.of(call).turned else (length, few)
    else:
        m, n = tile.BM + more, tile.BN + more
    return Gemm(m, n, depth, alpha, beta, trans=call.trans, batch=batch), small
