"""Executors: a session's executables, each selected, verified where that is due, compiled once and kept."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast
from weakref import WeakSet

from toprung import forks
from toprung.backends.base import Session
from toprung.dispatch import autotune, mixed, tuned
from toprung.dispatch.autotune import Autotuner
from toprung.dispatch.recent import Recent
from toprung.dispatch.select import select
from toprung.dispatch.selection import Selection
from toprung.execute.executable import Executable
from toprung.execute.lane import Lane
from toprung.forks import renewed
from toprung.gemm.desc import Desc
from toprung.gemm.layout import Layout
from toprung.gemm.lowering import Place, Program, copies_between, lower

KEPT = 4096
"""Number of executables, the last that were asked for, that an executor keeps."""


class Executor:
    """The library's cache of executables, one for each session.

    Parameters
    ----------
    autotuner : what measures a product before it is selected
    """

    def __init__(self, session: Session, autotuner: Autotuner = autotune.HERE) -> None:
        self.session, self.autotuner = session, autotuner
        self._kept: Recent[Executable] = Recent(KEPT)
        self._making = renewed(threading.RLock())

    @forks.cached_property
    def lane(self) -> Lane:
        """Queues and memory for staged products of host arrays."""
        return Lane(self.session)

    def executable(self, program: Program, own: bool = True, precision: str = "fp32", queue: Any = None) -> Executable:
        """Return the executable of a program, made at the first request; autotuned then, if the autotune level says so.

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
        key = program, own, precision, self.autotuner.level()
        found = self._kept[key]
        if found is None:
            selections = {desc: self.select(desc, own, precision, queue) for desc in program.descs}
            with self._making:
                if (found := self._kept[key]) is None:
                    found = Executable(self.session, program, selections)
                    self._kept.keep(key, found)
        return found

    def product(self, desc: Desc, own: bool = True, precision: str = "fp32", queue: Any = None) -> Executable:
        """Return the executable of one product on operands as a descriptor has them."""
        return self.executable(Program.of(desc), own, precision, queue)

    def copies(
        self, shape: tuple[int, ...], slot: int, src: tuple[int, ...], dst: tuple[int, ...], activation: str = ""
    ) -> Executable:
        """Return the executable that copies A, or C itself for slot 2, to C, which have these strides in elements."""
        steps = copies_between(shape, Place(slot, 0), src, Place(2, 0), dst, activation=activation) if 0 not in shape else ()
        return self.executable(Program(tuple(steps)))

    def strided(
        self, a: Layout, b: Layout, c: Layout, alpha: float, beta: float, own: bool, precision: str, queue: Any = None
    ) -> Executable:  # fmt: skip
        """Return the executable of C = α·A·B + β·C for operands of any strides."""
        return self.executable(lower(a, b, c, beta if beta in (0, 1) else 2.0, alpha != 0), own, precision, queue)

    def mixed(
        self, a: Layout, b: Layout, c: Layout, alpha: float, beta: float, precision: str, own: bool = False
    ) -> Executable | str:
        """Return the executable of C = α·A·B + β·C that reads halves as they lie, or a reason why they are converted."""
        program = lower(a, b, c, beta if beta in (0, 1) else 2.0, alpha != 0, vectors=False)
        if not program.is_direct:
            return "as no kernel can read it as it lies"
        (desc,) = program.descs
        found = mixed.select(self.session.device, desc, precision, own)
        return found if isinstance(found, str) else self.executable(program, own, precision)

    def forget(self) -> None:
        """Forget all executables of the session."""
        self._kept.clear()

    def select(self, desc: Desc, own: bool, precision: str, queue: Any = None) -> Selection:
        """Return the selection for a product, measured first if the autotune level says so, and verified if it is unproven."""
        device, store = self.session.device, tuned.HERE
        if not desc.is_vector and desc.is_mixed:
            halves = mixed.select(device, desc, precision, own)
            return cast(Selection, halves)  # a reason only where the operands are converted first
        unmeasured = self.autotuner.measured(device, desc, precision, self.session, queue)
        found = select(device, desc, own, precision, store)
        while (unproven := found.unproven) is not None and not store.proved(unproven, device):
            if self.session.capturing(queue):  # to verify is to wait for the device, which would end the capture
                plain = select(device, desc, own, precision, tuned.Untuned())
                return replace(plain, why=f"{plain.why}; a tuned entry is passed over: it must be verified before a capture")
            from toprung.execute import verify  # the oracle comes along: only if something must be verified

            with store.verifying(unproven, device) as problems:
                problems.extend(verify.problems(self.session, desc, found.candidate))
            found = select(device, desc, own, precision, store)  # a wrong one is passed over now
        return replace(found, why=f"{found.why}; not measured: {unmeasured}") if unmeasured else found


_executors: WeakSet[Executor] = WeakSet()
_opening = renewed(threading.Lock())


def executor_of(session: Session) -> Executor:
    """Return the executor of a session, made at the first request; it goes when the session does."""
    here: dict[str, Any] = session.__dict__  # not a dictionary by session: what it kept would keep the session, too
    found: Executor | None = here.get("executor")
    if found is None or found.session is not session:  # a branch begins with a copy of its session's attributes
        with _opening:
            found = here.get("executor")
            if found is None or found.session is not session:
                found = here["executor"] = Executor(session)
                _executors.add(found)
    return found


def forget() -> None:
    """Forget all executables: each is selected and made anew."""
    for one in list(_executors):
        one.forget()
