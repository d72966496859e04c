"""Verify on first use: a configuration that was right on another driver, compiler or source, checked here before it runs."""

from __future__ import annotations

from toprung.backends.base import Session
from toprung.dispatch.selection import Candidate
from toprung.errors import BuildError, IllegalTile
from toprung.gemm.desc import Desc, described
from toprung.kernels.launch import launches_of
from toprung.oracle.check import GUARD, Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem

SCALARS = ((1.0, 0.0), (1.3, 0.7))
"""α and β; with β = 0 a kernel that reads C computes NaN."""


def problems(session: Session, desc: Desc, candidate: Candidate) -> tuple[str, ...]:
    """Return what is wrong with a candidate's kernel on a session: it runs on small hostile operands against the float64 oracle.

    Configuration and thus the binary are those the product would run; only the slices of K may be fewer.

    Raises
    ------
    LaunchError, OutOfDeviceMemory
        it could not be found out now
    """
    try:
        for alpha, beta in SCALARS:
            problem, small = small_problem(desc, candidate, alpha, beta)
            run = launches_of(session, described(problem.describe()), small.family, small.config).starter()
            operands = hostile(problem)
            placed = OnDevice(operands, session)
            a, b, c = (placed.buffers[m.name].handle for m in problem.matrices)
            run(a, GUARD, b, GUARD, c, GUARD, alpha, beta, None)
            if found := Oracle(operands).verify(placed.fetch(), small.family.precision).problems:
                return found
    except (BuildError, IllegalTile) as error:
        return (str(error),)
    return ()


def small_problem(desc: Desc, candidate: Candidate, alpha: float, beta: float) -> tuple[Problem, Candidate]:
    """Return a small problem of a product's kind with edges in every direction, and the candidate for it."""
    (rows, cols, depth), config = candidate.family.test_problem(desc, candidate.config)
    small = Candidate(candidate.family, config)
    if desc.is_vector:
        sizes = (depth, rows) if desc.trans else (rows, depth)
        return Gemv(*sizes, alpha, beta, incx=max(desc.incx, 1), trans="T" if desc.trans else "N"), small
    return Gemm(rows, cols, depth, alpha, beta, trans=desc.trans, batch=min(desc.batch, 2)), small
