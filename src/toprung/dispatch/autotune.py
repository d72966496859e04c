"""Autotune on first use: what nobody has tuned is selected by the heuristic (``estimate``), or measured once (``measure``).

The idea and the two words are those of FFTW's planner. What measures lies above this package and puts itself into ``PLANNERS``; it
stores what it finds, so that selection stays where it is made, and every later program on the machine finds it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from toprung.backends.base import Session
from toprung.device import Device
from toprung.dispatch import tuned
from toprung.dispatch.select import paths
from toprung.errors import BadArgument, LaunchError, NoDevice, StoreError
from toprung.gemm.desc import Desc
from toprung.store import VARIABLE as STORE
from toprung.store import Store, off

VARIABLE = "TOPRUNG_PLANNING"
"""Environment variable: the autotune level where the program does not say."""

LEVELS = ("estimate", "measure")

KEPT = 4096
"""Products that are remembered as asked for; past that all are forgotten, and looked up once more."""


class Planner(Protocol):
    """Something that can have a product measured."""

    def measure(self, device: Device, desc: Desc, precision: str) -> str:
        """Have what is promising for a product timed and stored; return why it was not, empty where it was.

        Raises
        ------
        NoDevice, StoreError
            nothing can be measured, or kept, by this process
        """


PLANNERS: list[Planner] = []
"""The first of them is asked."""

FORGET: list[Callable[[], None]] = []
"""Called when the level changes: what was selected by the heuristic is selected anew."""

_given: str | None = None
_asked: dict[tuple[str, Desc, str], str] = {}
_given_up: dict[str, str] = {}
_asking = threading.Lock()


def level() -> str:
    """Return the autotune level: what this process was told, else the environment.

    Raises
    ------
    BadArgument
        the environment says something else than there is
    """
    return _given or known_level(os.environ.get(VARIABLE) or LEVELS[0], VARIABLE)


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
        self._before = _given
        _set(known_level(rigor))

    def __enter__(self) -> planning:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _set(self._before)


def measured(device: Device, desc: Desc, precision: str, session: Session | None = None, queue: Any = None) -> str:
    """Have a product measured that the store does not know, where the level is ``measure``; return why that was not done, if so.

    Parameters
    ----------
    session, queue : where it will run: what is there already is waited for, so that it does not disturb
    """
    if level() != "measure" or precision == "tf32" or desc.is_empty:
        return ""
    key = device.id, desc, precision
    if (reason := _asked.get(key)) is not None:
        return reason
    if session is not None and session.capturing(queue):
        return "its stream is being captured into a graph, where nothing can wait"
    with _asking:  # others that want the same wait for it, and then find it
        if (reason := _asked.get(key)) is None:
            if len(_asked) >= KEPT:
                _asked.clear()
            reason = _asked[key] = _ask(device, desc, precision, session, queue)
    return reason


def _release() -> None:
    """In a forked child: whoever was measuring is not there."""
    global _asking
    _asking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


def _ask(device: Device, desc: Desc, precision: str, session: Session | None, queue: Any) -> str:
    if off():
        return _warned(f"{STORE}=off leaves nothing to remember it")
    if tuned.settled(device, desc, paths(device, desc, precision) or ("fp32",)) or not PLANNERS:
        return ""
    if device.id in _given_up:
        return _given_up[device.id]
    try:
        Store.default().ready()
        if session is not None:
            with suppress(LaunchError):  # some other stream is being captured: it will be measured beside what is there
                session.synchronize() if queue is None else session.settle_queue(queue)
        return PLANNERS[0].measure(device, desc, precision)
    except (NoDevice, StoreError) as error:
        _given_up[device.id] = _warned(str(error))
        return _given_up[device.id]
    finally:
        tuned.known(device)  # what was stored is read now, also by those who look at most once a second


def known_level(word: str, name: str = "planning") -> str:
    """Return an autotune level, or raise BadArgument."""
    if word not in LEVELS:
        raise BadArgument(f"{name} is one of {', '.join(LEVELS)}, not {word!r}")
    return word


def _set(word: str | None) -> None:
    """Set the level: what the heuristic selected is selected anew, and what could not be measured is tried again."""
    global _given
    _given = word
    for forget in FORGET:
        forget()
    _asked.clear()
    _given_up.clear()


def _warned(reason: str) -> str:
    """Return the reason; it is said once a process."""
    tuned.warn_once(f"toprung selects by its cost model, and not by measuring: {reason}")
    return reason
