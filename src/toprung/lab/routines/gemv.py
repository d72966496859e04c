"""y = α·op(A)·x + β·y: the launches that bring a rung's kernel to bear on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toprung.backends.base import Buffer, Launch, Session
from toprung.device import Device
from toprung.errors import BadSize
from toprung.kernels.build import Compiled
from toprung.lab.routines.base import Step, shared_kernel
from toprung.lab.routines.gemm import Maker, Placed, round_up
from toprung.lab.rung import Rung
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import copied
from toprung.oracle.problem import checked_size
from toprung.tile import Tile

LINE = Tile(BM=1, BN=256)
"""Tile of the shared kernels on vectors."""

DEFAULT_SIZES = {"gpu": ((8192,), (100_000, 1100), (1100, 100_000)), "cpu": ((4096,), (20_000, 1100)), "other": ((4096,),)}
"""Sizes for each kind of device when nobody chooses."""

RESIDENT = {"gpu": 2048, "cpu": 64}
"""Work-items that a compute unit of each kind can keep under way."""


def from_size(size: tuple[int, ...]) -> Gemv:
    """The problem a user means by ``512`` (square) or ``100000x1100`` (M×N).

    Raises
    ------
    BadSize
        not one or two numbers, or one that is not positive
    """
    if len(size) not in (1, 2):
        raise BadSize(f"a size is N or MxN, not {'x'.join(map(str, size))}")
    M, N = (checked_size(n, v, least=1) for n, v in zip("MN", size * 2 if len(size) == 1 else size, strict=True))
    return Gemv(M, N)


def steps(compiled: Compiled[Rung], problem: Gemv, buffers: Mapping[str, Buffer], session: Session) -> list[Step]:
    """The launches that compute ``problem`` with a rung, in order.

    A kernel gets (M, N, α, A, lda, x, incx, β, y, incy) and computes y[m] = α·Σ A[m][n]·x[n] + β·y[m]; with
    ``transposed="A"`` it gets A[n][m]. So the rungs without it compute ``trans="N"`` as they are and ``"T"`` through a copy
    of A, and those with it the other way round. ``whole="x"``: x must come tight.

    The first dimension of the grid has a work-group for every BM elements of y. Where a work-group takes one at a time (BM = 1),
    there are as many as the device keeps under way, and each walks; the switch GROUPS_PER_UNIT says how many for each compute
    unit. A tile with SPLIT_K may have the sums in slices along the second: where there is more than one, the
    kernel leaves its sums, unscaled, in slice · M + m of what it gets for y, and a second kernel adds them in order. One that
    ``meets`` adds them itself: behind its arguments it gets room for the sums, and a zero for every work-group of the first
    dimension, which it leaves zero.
    """
    if not problem.length:
        return []
    length, depth = problem.length, problem.depth
    alpha, beta = np.float32(problem.alpha), np.float32(problem.beta)
    a = Placed(buffers["A"], problem.M, problem.N, problem.lda or 1)
    x, incx = buffers["x"], problem.incx
    y, incy = buffers["y"], np.int32(problem.incy)
    if not depth or not alpha:
        return [Step("scale", _line(session, "reduce", length, np.uint32(length), np.uint32(0), alpha, y, beta, y, incy))]

    rung, tile = compiled.record, compiled.tile
    before: list[Step] = []
    if ("A" in rung.transposed) != (problem.trans == "T"):
        maker = Maker(session)
        turned = maker.scratch(a.cols, a.rows)
        before.append(maker.copy("transpose", a, turned))
        a = turned
    if "x" in rung.whole_operands(compiled.options) and incx != 1:
        tight = session.allocate(4 * depth)
        before.append(Step("gather", _line(session, "gather", depth, np.uint32(depth), x, np.int32(incx), tight)))
        x, incx = tight, 1
    groups, slices = grid(rung, tile, compiled.options, length, depth, session.device)
    sums = session.allocate(4 * slices * length) if slices > 1 else y
    target, inc_target = (sums, np.int32(1)) if slices > 1 and not rung.meets else (y, incy)
    args: list[Buffer | np.generic] = [
        np.uint32(length), np.uint32(depth), alpha, a.buffer, np.int32(a.ld), x, np.int32(incx), beta, target, inc_target,
    ]  # fmt: skip
    if rung.meets:
        args += [sums, copied(np.zeros(groups, np.uint32), session)]
    main = session.bind(compiled.kernel, (groups, slices), (tile.work_items, 1), args, compiled.options)
    found = [*before, Step(rung.name, main, helper=False)]
    if slices > 1 and not rung.meets:
        add = _line(session, "reduce", length, np.uint32(length), np.uint32(slices), alpha, target, beta, y, incy)
        found.append(Step("reduce", add, helper=False))
    return found


def grid(rung: Rung, tile: Tile, options: Mapping[str, int], length: int, depth: int, device: Device) -> tuple[int, int]:
    """Return the work-groups along y and the slices of the sums."""
    groups = round_up(length, tile.BM) // tile.BM
    if tile.BM == 1:
        groups = min(groups, resident(device, tile))
    if per_unit := options.get("GROUPS_PER_UNIT"):
        groups = per_unit * device.compute_units
    return groups, slices_for(tile, groups, depth, device, 0.5 if rung.meets else 2)


def resident(device: Device, tile: Tile) -> int:
    """Work-groups that a device keeps under way."""
    return max(1, RESIDENT.get(device.kind, 64) // tile.work_items) * device.compute_units


def slices_for(tile: Tile, groups: int, depth: int, device: Device, rounds: float = 2) -> int:
    """Slices of the sums: enough to keep the device busy ``rounds`` times over, none shorter than four turns of the kernel's loop.

    Half a round is where work-groups meet in one launch: the last one's work grows with the slices, and with several loads in
    flight half of the work-items suffice to keep memory busy.
    """
    wanted = int(rounds * resident(device, tile)) // groups
    return max(1, min(tile.SPLIT_K or 1, wanted, depth // (4 * tile.BN)))


def _line(session: Session, kernel: str, length: int, *args: Buffer | np.generic) -> Launch:
    """A shared kernel with one work-item an element of a vector."""
    size = LINE.work_items
    return session.bind(shared_kernel(kernel, LINE, session), (round_up(length, size) // size, 1), (size, 1), args)
