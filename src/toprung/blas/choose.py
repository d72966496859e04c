"""Which kernel runs a call, and with which tile: the one place where that is decided."""

from __future__ import annotations

from dataclasses import dataclass

from toprung.blas.call import Call
from toprung.blas.kernel import kernel
from toprung.device import Device
from toprung.tile import Tile


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    kernel : its stem in ``blas/kernels``, or ``"cublas"``
    tile : None for somebody else's
    options : its switches
    why : a sentence
    passed_over : what else there was, and why not
    """

    kernel: str
    tile: Tile | None
    options: tuple[tuple[str, int], ...] = ()
    why: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()


def choose(device: Device, call: Call, own: bool = True) -> Choice:
    """The kernel, tile and switches for a call on a device."""
    return Choice("plain", kernel("plain").tile_for(device), (), "it computes every call")
