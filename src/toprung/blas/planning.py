"""How a call is planned that nobody has tuned: by the model (``estimate``), or by measuring what is promising, once (``measure``).

The idea and the words are those of FFTW's planner. What measures lies above this package and puts itself into ``PLANNERS``; it
stores what it finds, so that the choice itself stays where it is made, and every later program on the machine finds it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from toprung.backends.base import Session
from toprung.blas import tuned
from toprung.blas.call import Call
from toprung.blas.choose import is_empty
from toprung.device import Device
from toprung.errors import BadArgument, LaunchError, NoDevice, StoreError
from toprung.store import VARIABLE as STORE
from toprung.store import Store, off

VARIABLE = "TOPRUNG_PLANNING"
"""Environment variable: how calls are planned where the program does not say."""

RIGORS = ("estimate", "measure")

KEPT = 4096
"""Calls that are remembered as asked for; past that all are forgotten, and looked up once more."""


class Planner(Protocol):
    """What can have a call measured."""

    def measure(self, device: Device, call: Call, precision: str) -> str:
        """Have what is promising for a call timed and stored; returns why it was not, empty where it was.

        Raises
        ------
        NoDevice, StoreError
            nothing can be measured, or kept, by this process
        """


PLANNERS: list[Planner] = []
"""The first of them is asked."""

_given: str | None = None
_asked: dict[tuple[str, Call, str], str] = {}
_given_up: dict[str, str] = {}
_asking = threading.Lock()


def rigor() -> str:
    """How calls are planned: what this process was told, else the environment.

    Raises
    ------
    BadArgument
        the environment says something else than there is
    """
    return _given or known_rigor(os.environ.get(VARIABLE) or RIGORS[0], VARIABLE)


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
        _set(known_rigor(rigor))

    def __enter__(self) -> planning:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _set(self._before)


def measured(device: Device, call: Call, precision: str, session: Session | None = None, queue: Any = None) -> str:
    """Where calls are planned by measuring, have one measured that the store does not know; why that was not done, if so.

    Parameters
    ----------
    session, queue : where it will run: what is there already is waited for, so that it does not disturb
    """
    if rigor() != "measure" or precision == "tf32" or is_empty(call):
        return ""
    key = device.id, call, precision
    if (reason := _asked.get(key)) is not None:
        return reason
    if session is not None and session.capturing(queue):
        return "its stream is being captured into a graph, where nothing can wait"
    with _asking:  # others that want the same wait for it, and then find it
        if (reason := _asked.get(key)) is None:
            if len(_asked) >= KEPT:
                _asked.clear()
            reason = _asked[key] = _ask(device, call, precision, session, queue)
    return reason


def _release() -> None:
    """In a forked child: whoever was measuring is not there."""
    global _asking
    _asking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


def _ask(device: Device, call: Call, precision: str, session: Session | None, queue: Any) -> str:
    if off():
        return _warned(f"{STORE}=off leaves nothing to remember it")
    if tuned.settled(device, call, precision) or not PLANNERS:
        return ""
    if device.id in _given_up:
        return _given_up[device.id]
    try:
        Store.default().ready()
        if session is not None:
            with suppress(LaunchError):  # some other stream is being captured: it will be measured beside what is there
                session.synchronize() if queue is None else session.settle_queue(queue)
        return PLANNERS[0].measure(device, call, precision)
    except (NoDevice, StoreError) as error:
        _given_up[device.id] = _warned(str(error))
        return _given_up[device.id]
    finally:
        tuned.known(device)  # what was stored is read now, also by those who look at most once a second


def known_rigor(word: str, name: str = "planning") -> str:
    """A word for how calls are planned, or BadArgument."""
    if word not in RIGORS:
        raise BadArgument(f"{name} is one of {', '.join(RIGORS)}, not {word!r}")
    return word


def _set(word: str | None) -> None:
    """Set it; what was decided by the model is decided anew, and what could not be done is tried again."""
    global _given
    from toprung.blas import warm

    _given = word
    warm.forget()
    _asked.clear()
    _given_up.clear()


def _warned(reason: str) -> str:
    """The reason; said once a process."""
    tuned.warn_once(f"toprung plans by its model, and not by measuring: {reason}")
    return reason
