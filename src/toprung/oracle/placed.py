"""Operands of a problem in a device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toprung.backends.base import Buffer, Session
from toprung.oracle.check import GUARD, Operands, encoded
from toprung.oracle.problem import F32


def copied(array: NDArray[Any], session: Session) -> Buffer:
    """Return a copy of an array in a device's memory."""
    buffer = session.allocate(array.nbytes)
    session.upload(buffer, array)
    return buffer


def fetched(buffer: Buffer, session: Session, shape: int | tuple[int, ...], kind: Any) -> NDArray[Any]:
    """Return the beginning of a buffer as an array of this shape and type."""
    array = np.empty(shape, kind)
    session.download(buffer, array)
    return array


class OnDevice:
    """Operands in a device's memory, guards and all; shared by every competitor of a session."""

    def __init__(self, operands: Operands, session: Session) -> None:
        self.operands, self.session = operands, session
        self.buffers: dict[str, Buffer] = {}
        self.parts: dict[str, Buffer] = {}
        for m in operands.problem.matrices:
            stored = encoded(operands.flat[m.name], m.dtype)
            self.buffers[m.name] = copied(stored, session)
            self.parts[m.name] = self.buffers[m.name].part(stored.itemsize * GUARD, m.nbytes)

    def reset(self) -> None:
        """Put the output back to what it was."""
        name = self.operands.problem.output.name
        self.session.upload(self.buffers[name], self.operands.flat[name])

    def fetch(self, name: str | None = None) -> F32:
        """A float32 operand's backing array as it is now; by default the output's."""
        name = name or self.operands.problem.output.name
        flat = self.operands.flat[name]
        return fetched(self.buffers[name], self.session, flat.shape, flat.dtype)
