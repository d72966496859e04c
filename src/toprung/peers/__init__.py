"""Other people's matrix products, one small file each, found by looking in this folder.

A peer is a module with ``peer()``, which returns an object with these methods; an absent one says why and how to get it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Protocol

from toprung.backends.base import Session
from toprung.check import Operands
from toprung.competitor import Prepared, Promise
from toprung.device import Device


class Peer(Protocol):
    """Somebody else's routine."""

    name: str
    title: str
    promise: Promise

    def absent(self, device: Device) -> str:
        """Why it cannot take part beside this device, and what to do about it; empty if it can."""

    def is_vendor_of(self, device: Device, routine: str) -> bool:
        """Whether it is what the device's vendor or platform offers for a routine: a ladder's rung 0."""

    def prepare(self, operands: Operands, session: Session) -> Prepared:
        """Get ready to run on these operands."""


@functools.cache
def peers() -> tuple[Peer, ...]:
    """Every peer of this folder, by name."""
    found: list[Peer] = []
    for module in pkgutil.iter_modules(__path__):
        found.append(importlib.import_module(f"{__name__}.{module.name}").peer())
    return tuple(sorted(found, key=lambda p: p.name))


def vendor(device: Device, routine: str) -> tuple[Peer | None, str]:
    """Rung 0 of a routine's ladders on a device, or None with the reason."""
    reasons = []
    for peer in peers():
        if peer.is_vendor_of(device, routine):
            if not (reason := peer.absent(device)):
                return peer, ""
            reasons.append(f"{peer.title}: {reason}")
    return None, "; ".join(reasons) or f"no vendor library is known for {device}"
