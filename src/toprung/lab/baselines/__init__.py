"""Other people's matrix products, one small file each, found by looking in this folder.

A peer is a module with ``PEER``, a ``Peer``; an absent one says why and how to get it. Modules whose names
start with an underscore are what several peers share.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any

from toprung.backends import constants
from toprung.device import Device
from toprung.errors import Unsupported, named
from toprung.lab.competitor import BoundCompetitor, Promise
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice


class Peer(ABC):
    """Somebody else's routine: a ``Competitor`` that may be absent.

    ``kinds``: the baseline takes part beside devices of these kinds unless the user chooses; elsewhere it is not fair.
    """

    name: str
    title: str
    promise: Promise = Promise()
    kinds: tuple[str, ...] = ("cpu",)

    @abstractmethod
    def absent(self, device: Device) -> str:
        """Why it cannot take part beside this device, and what to do about it; empty if it can."""

    @abstractmethod
    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        """Get ready to run on these operands. Raises Unsupported for a problem it does not compute."""

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        """Return True if it is what the device's vendor or platform offers for a routine: a ladder's rung 0."""
        return False

    def describe(self, device: Device) -> dict[str, Any]:
        return {
            "kind": "peer", "name": self.name, "number": 0, "idea": self.title, "variant": "",
            "precision": self.promise.precision, "deterministic": self.promise.deterministic, "note": self.promise.note,
        }  # fmt: skip

    def product(self, placed: OnDevice, *, alpha: bool = True, beta: bool = True, batch: bool = True, zero: bool = True) -> Gemm:
        """The problem, if it is a matrix product that the peer computes.

        Parameters
        ----------
        alpha, beta, batch : whether it takes an α other than 1, a β other than 0, a batch of more than one product
        zero : whether it leaves A and B unread where α = 0, as BLAS says

        Raises
        ------
        Unsupported
            another routine, an empty product, or what the parameters rule out
        """
        problem = placed.operands.problem
        if not isinstance(problem, Gemm):
            raise Unsupported(f"{self.title} takes part in matrix products only, not in {problem.routine}")
        reasons = {
            "no empty matrices": not min(problem.M, problem.N, problem.K),
            "α ≠ 0 only, for it reads A and B all the same": not zero and problem.alpha == 0,
            "α = 1 only": not alpha and problem.alpha != 1,
            "β = 0 only": not beta and problem.beta != 0,
            "one product at a time": not batch and problem.batch > 1,
        }
        for reason, holds in reasons.items():
            if holds:
                raise Unsupported(f"{self.title} takes {reason}")
        return problem


@functools.cache
def peers() -> tuple[Peer, ...]:
    """Every peer of this folder, by name."""
    return tuple(sorted(constants(__name__, __path__, "PEER").values(), key=lambda p: p.name))


def peer(name: str) -> Peer:
    """A peer by name, or UnknownName."""
    return named("peer", name, {p.name: p for p in peers()})


def vendor(device: Device, routine: str) -> tuple[Peer | None, str]:
    """Rung 0 of a routine's ladders on a device, or None with the reason."""
    reasons = []
    for one in peers():
        if one.is_vendor_of(device, routine):
            if not (reason := one.absent(device)):
                return one, ""
            reasons.append(f"{one.title}: {reason}")
    return None, "; ".join(reasons) or f"no vendor library is known for {device}"
