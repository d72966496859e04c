"""Autotune on first use: what nobody has tuned is selected by the heuristic (``estimate``), or measured once (``measure``).

The idea and the two words are those of FFTW's planner. What measures lies above this package and is given to an ``Autotuner``; it
stores what it finds, so that selection stays where it is made, and every later program on the machine finds it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from toprung.device import Device
from toprung.dispatch import ON_REQUEST
from toprung.dispatch.recent import Recent
from toprung.errors import BadArgument, LaunchError, NoDevice, StoreError
from toprung.forks import in_child, renewed

if TYPE_CHECKING:
    from toprung.backends.base import Session
    from toprung.gemm.desc import Desc

VARIABLE = "TOPRUNG_PLANNING"
"""Environment variable: the autotune level where the program does not say."""

LEVELS = ("estimate", "measure")

KEPT = 4096
"""Number of products, the last, that are remembered as asked for."""


class Planner(Protocol):
    """Something that can have a product measured."""

    def measure(self, device: Device, desc: Desc, precision: str) -> str:
        """Have what is promising for a product timed and stored; return why it was not, empty where it was.

        Raises
        ------
        NoDevice, StoreError
            nothing can be measured, or kept, by this process
        """


class Autotuner:
    """Autotuning of products that the store does not know, where the level is ``measure``."""

    def __init__(self) -> None:
        self.make_planner: Callable[[], Planner] | None = None
        """Called at the first measurement; None: nothing is ever measured."""
        self.forget: list[Callable[[], None]] = []
        """Called when the level changes: what was selected by the heuristic is selected anew."""
        self._planner: Planner | None = None
        self._given: str | None = None
        self._asked: Recent[str] = Recent(KEPT)
        self._given_up: dict[str, str] = {}
        self._asking = renewed(threading.Lock())

    @property
    def planner(self) -> Planner | None:
        """Planner that measures, made at the first request; None if there is none."""
        if self._planner is None and self.make_planner is not None:
            self._planner = self.make_planner()
        return self._planner

    def level(self) -> str:
        """Return the autotune level: what this process was told, else the environment.

        Raises
        ------
        BadArgument
            the environment says something else than there is
        """
        return self._given or known_level(os.environ.get(VARIABLE) or LEVELS[0], VARIABLE)

    def set_level(self, word: str | None) -> str | None:
        """Set the level and return the one before.

        What the heuristic selected is selected anew, and what could not be measured is tried again. None means the environment's.
        """
        before, self._given = self._given, word
        for forget in self.forget:
            forget()
        self._asked.clear()
        self._given_up.clear()
        return before

    def measured(self, device: Device, desc: Desc, precision: str, session: Session | None = None, queue: Any = None) -> str:
        """Have a product measured that the store does not know; return why that was not done, if so.

        Parameters
        ----------
        session, queue : where it will run: what is there already is waited for, so that it does not disturb
        """
        if self.level() != "measure" or precision in ON_REQUEST or desc.is_empty:
            return ""
        key = device.id, desc, precision
        if (reason := self._asked[key]) is not None:
            return reason
        if session is not None and session.capturing(queue):
            return "its stream is being captured into a graph, where nothing can wait"
        with self._asking:  # others that want the same wait for it, and then find it
            if (reason := self._asked[key]) is None:
                reason = self._ask(device, desc, precision, session, queue)
                self._asked.keep(key, reason)
        return reason

    def _ask(self, device: Device, desc: Desc, precision: str, session: Session | None, queue: Any) -> str:
        from toprung.dispatch import tuned
        from toprung.dispatch.select import paths
        from toprung.paths import STORE, store_off

        if store_off():
            return self._warned(f"{STORE}=off leaves nothing to remember it")
        if tuned.HERE.at(device, desc).settled(paths(device, desc, precision) or ("fp32",)):
            return ""
        planner = self.planner
        if planner is None:
            return ""
        if device.id in self._given_up:
            return self._given_up[device.id]
        try:
            tuned.HERE.ready()
            if session is not None:
                with suppress(LaunchError):  # some other stream is being captured: it will be measured beside what is there
                    session.synchronize() if queue is None else session.settle_queue(queue)
            return planner.measure(device, desc, precision)
        except (NoDevice, StoreError) as error:
            self._given_up[device.id] = self._warned(str(error))
            return self._given_up[device.id]

    def _warned(self, reason: str) -> str:
        """Return the reason; it is said once a process."""
        from toprung.dispatch import tuned

        tuned.HERE.warn_once(f"toprung selects by its cost model, and not by measuring: {reason}")
        return reason

    def after_fork(self) -> object:
        """Return the parent's planner, which is forgotten: its process that measures is no child's."""
        theirs, self._planner = self._planner, None
        return theirs


HERE = Autotuner()
"""This process's autotuner, which ``planning`` sets. ``toprung`` gives it what measures."""

in_child(HERE.after_fork)


def known_level(word: str, name: str = "planning") -> str:
    """Return an autotune level, or raise BadArgument."""
    if word not in LEVELS:
        raise BadArgument(f"{name} is one of {', '.join(LEVELS)}, not {word!r}")
    return word


class planning:
    """Set how calls are planned that the store has no measurement of: for the process, or for a ``with`` block.

    Parameters
    ----------
    rigor : ``"estimate"``: a model chooses, and nothing is measured. ``"measure"``: the first call of a shape has the promising
        kernels and what is installed measured, in a process beside, which takes seconds; the result is kept in the user's
        store, so that neither this program nor any later one on the machine measures that shape again

    Raises
    ------
    BadArgument
        any other word

    Notes
    -----
    By default what the environment variable ``TOPRUNG_PLANNING`` says, else ``"estimate"``. It holds for all threads. Where
    nothing can be measured (in a stream that is being captured, without a store that can be written) the model chooses, and the
    receipt says why. After FFTW's ``FFTW_ESTIMATE`` and ``FFTW_MEASURE``: Frigo and Johnson, Proc. IEEE 93(2), 2005.

    Examples
    --------
    >>> import numpy as np, toprung
    >>> with toprung.planning("estimate"):
    ...     toprung.matmul(np.ones((2, 3), np.float32), np.ones((3, 1), np.float32)).ravel()
    array([3., 3.], dtype=float32)
    """

    def __init__(self, rigor: str) -> None:
        self._before = HERE.set_level(known_level(rigor))

    def __enter__(self) -> planning:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        HERE.set_level(self._before)
