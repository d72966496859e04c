"""Executables: (session, desc) → a product that is selected, compiled and ready to run on pointers."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from toprung.backends.base import Buffer, Session
from toprung.dispatch import autotune, tuned
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, Selection
from toprung.execute import verify
from toprung.gemm.desc import Desc
from toprung.kernels.base import Run
from toprung.kernels.launch import Ready


class Executable:
    """A product that is ready to run, as often as wanted, from any thread, on any queue of its session's context.

    Attributes
    ----------
    selection : family, configuration, and the reason
    name : name of the family
    own : True if the kernel is toprung's
    precision : accuracy class, by its name in ``toprung.oracle.precision``
    why : reason of the selection, a sentence
    passed_over : other candidates, each with the reason against it
    workspace_bytes : bytes of scratch memory that a run takes of its queue
    launches : number of kernels that a run starts
    """

    def __init__(self, session: Session, desc: Desc, selected: Selection | Candidate) -> None:
        selection = selected if isinstance(selected, Selection) else Selection(selected)
        self.session, self.desc, self.selection = session, desc, selection
        family, config, device = selection.family, selection.config, session.device
        self.name, self.own, self.precision = family.name, family.own, family.precision
        self.why, self.passed_over = selection.why, selection.passed_over
        self.workspace_bytes = family.workspace_bytes(device, desc, config)
        self.launches = family.launch_count(device, desc, config)
        self._ready = Ready(session, desc, family, config)
        self._mine = threading.local()
        self._mine.run = self._ready.starter()  # errors show now, not in the first run

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
        """Put one product into a queue (a CUDA stream's handle, a pyopencl queue; None: the session's own); never waits.

        Offsets are in elements. For a ``GemvDesc`` B is x and C is y. With β = 0 C is not read, with α = 0 or K = 0 neither
        are A and B: their buffers are not looked at.
        """
        try:
            run = self._mine.run
        except AttributeError:
            run = self._mine.run = self._ready.starter()
        run(a.handle, offset_a, b.handle, offset_b, c.handle, offset_c, alpha, beta, queue)

    def launcher(self) -> Run:
        """Return a function that does the same as ``run`` on handles (``Buffer.handle``), without any look-up.

        It keeps its arguments in one place: give each thread its own.
        """
        return self._ready.starter()

    def reserve(self, queue: Any = None) -> None:
        """Allocate the scratch memory of a queue now: inside a CUDA graph's capture nothing can be allocated."""
        self._ready.reserve(queue)

    def accepts(self, packed: Any) -> bool:
        """Return True if ``run`` can have a prepacked B in place of B's buffer."""
        return self._ready.accepts(packed)

    def escalated(self) -> int:
        """Return the number of pieces of C that all runs so far computed again in plain fp32; waits for the device."""
        return self._ready.escalated()

    def __str__(self) -> str:
        return str(self.selection)


_kept: WeakKeyDictionary[Session, dict[tuple[Desc, bool, str, str], Executable]] = WeakKeyDictionary()
_preparing = threading.RLock()


def prepare(session: Session, desc: Desc, *, own: bool = True, precision: str = "fp32", queue: Any = None) -> Executable:
    """Return the executable of a product, made at the first request and kept; autotuned then, if the autotune level says so.

    Parameters
    ----------
    own, precision : as for ``toprung.dispatch.select.select``
    queue : queue it will run in first: nothing is measured while that is captured, or before the work in it is done

    Raises
    ------
    Unsupported
        the precision is not supported for this product
    BadArgument
        there is no such autotune level
    BuildError, IllegalTile, LaunchError
        nothing was launched
    """
    key = desc, own, precision, autotune.level()
    try:
        return _kept[session][key]
    except KeyError:
        pass
    device = session.device
    unmeasured = autotune.measured(device, desc, precision, session, queue)
    selected = select(device, desc, own, precision)
    while selected.unproven is not None and not tuned.proved(selected.unproven, device):
        with tuned.verifying(selected.unproven, device) as found:
            found.extend(verify.problems(session, desc, selected.candidate))
        selected = select(device, desc, own, precision)  # a wrong one is passed over now
    if unmeasured:
        selected = replace(selected, why=f"{selected.why}; not measured: {unmeasured}")
    with _preparing:
        kept = _kept.setdefault(session, {})
        if key not in kept:
            kept[key] = Executable(session, desc, selected)
        return kept[key]
