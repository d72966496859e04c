"""(session, call) → Executable: the kernel chosen, compiled and ready to run on pointers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from toprung.backends.base import Buffer, Session
from toprung.blas import ffma, fp32x, launches, planning, proof, tuned
from toprung.blas.call import Call
from toprung.blas.choice import FFMA, Choice
from toprung.blas.fp32x import FP32X
from toprung.blas.kernel import Run
from toprung.blas.route import route
from toprung.hopper import Prepared as Terms
from toprung.tile import Tile

NAMES = {"cublas": "cublas", FP32X: "hopper/fp32x", FFMA: "hopper_fp32/ffma"}
"""Kernels whose texts do not lie in ``blas/kernels``."""


class Executable:
    """A call that is ready to run, as often as wanted, from any thread, on any queue of its session's context.

    Attributes
    ----------
    name : the kernel, ``blas/gemm``, ``hopper/fp32x`` or ``hopper_fp32/ffma``, or the library's, ``cublas``
    tile : with ``SPLIT_K`` where the sums are cut; None for somebody else's kernel
    precision : the path, by its name in ``toprung.precision``
    why : why it was chosen, a sentence
    passed_over : what else there was, and why not
    workspace_bytes : scratch memory it takes of the queue it runs on
    launches : kernels a run starts
    """

    def __init__(self, session: Session, call: Call, choice: Choice, precision: str) -> None:
        self.session, self.call, self.choice, self.precision = session, call, choice, precision
        self.name = NAMES.get(choice.kernel, f"blas/{choice.kernel}")
        self.tile: Tile | None = choice.tile
        self.why, self.passed_over = choice.why, choice.passed_over
        self.workspace_bytes = launches.workspace_bytes(call, choice, session.device.compute_units)
        self.launches = launches.count(call, choice, session.device.compute_units)
        self._make: Callable[[], Run] = launches.maker(session, call, choice)
        self._mine = threading.local()
        self._mine.run = self._make()  # what is wrong with it shows now

    def run(
        self,
        a: Buffer,
        offset_a: int,
        b: Buffer,
        offset_b: int,
        c: Buffer,
        offset_c: int,
        alpha: float,
        beta: float,
        queue: Any = None,
    ) -> None:
        """Put one call into a queue (a CUDA stream's handle, a pyopencl queue; None: the session's own); never waits.

        Offsets are in elements. For a ``GemvCall`` B is x and C is y. With β = 0 C is not read, with α = 0 or K = 0 neither
        are A and B: their buffers are not looked at.
        """
        try:
            run = self._mine.run
        except AttributeError:
            run = self._mine.run = self._make()
        run(a.handle, offset_a, b.handle, offset_b, c.handle, offset_c, alpha, beta, queue)

    def launcher(self) -> Run:
        """What ``run`` does, on handles (``Buffer.handle``) in place of buffers and with nothing looked up.

        The callable keeps its arguments in one place: give each thread its own.
        """
        return self._make()

    def reserve(self, queue: Any = None) -> None:
        """Make the scratch memory of a queue now: inside a CUDA graph's capture nothing can be allocated."""
        if self.choice.kernel == FP32X:
            fp32x.plan_of(self.session, self.call, self.choice).ready(queue)
        elif self.choice.kernel == FFMA:
            ffma.plan_of(self.session, self.call, self.choice).ready(queue)
        elif self.workspace_bytes:
            self.session.workspace(queue, self.workspace_bytes)

    def takes(self, terms: Terms) -> bool:
        """Whether ``run`` can have a prepared B in place of B's buffer."""
        return self.choice.kernel == FP32X and not terms.refused(fp32x.plan_of(self.session, self.call, self.choice))

    def escalated(self) -> int:
        """Pieces of C that all its calls so far computed again in plain fp32, see ``toprung.hopper``; waits for the device."""
        return fp32x.plan_of(self.session, self.call, self.choice).escalated() if self.choice.kernel == FP32X else 0

    def __str__(self) -> str:
        return f"{self.name} {self.tile}" if self.tile else self.name


_kept: WeakKeyDictionary[Session, dict[tuple[Call, bool, str, str], Executable]] = WeakKeyDictionary()
_preparing = threading.RLock()


def prepare(session: Session, call: Call, *, own: bool = True, precision: str = "fp32", queue: Any = None) -> Executable:
    """The executable of a call, made at the first request and kept; measured then, if calls are planned so.

    Parameters
    ----------
    own : only kernels of ours; else what is installed may be chosen, too
    precision : ``"fp32"``; ``"fp32x"``, or fp32 where that cannot be; ``"auto"``, the faster of both; ``"tf32"``
    queue : where it will run first: nothing is measured while it is captured, or before what is in it is done

    Raises
    ------
    Unsupported
        a precision there is no path for, see ``route``
    BadArgument
        a planning that there is not, see ``planning``
    BuildError, IllegalTile, LaunchError
        nothing was launched
    """
    key = call, own, precision, planning.rigor()
    try:
        return _kept[session][key]
    except KeyError:
        pass
    unmeasured = planning.measured(session.device, call, precision, session, queue)
    choice, path = route(session.device, call, own, precision)
    while choice.unproven is not None and not tuned.proved(choice.unproven, session.device):
        with tuned.verifying(choice.unproven, session.device) as found:
            found.extend(proof.problems(session, call, choice))
        choice, path = route(session.device, call, own, precision)  # a wrong one is passed over now
    if unmeasured:
        choice = replace(choice, why=f"{choice.why}; not measured: {unmeasured}")
    with _preparing:
        kept = _kept.setdefault(session, {})
        if key not in kept:
            kept[key] = Executable(session, call, choice, path)
        return kept[key]
