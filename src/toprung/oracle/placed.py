"""Operands of a problem in a device's memory."""

from __future__ import annotations

import numpy as np

from toprung.backends.base import Buffer, Session
from toprung.oracle.check import GUARD, Operands, encoded
from toprung.oracle.problem import F32


class OnDevice:
    """Operands in a device's memory, guards and all; shared by every competitor of a session."""

    def __init__(self, operands: Operands, session: Session) -> None:
        self.operands, self.session = operands, session
        self.buffers: dict[str, Buffer] = {}
        self.parts: dict[str, Buffer] = {}
        for m in operands.problem.matrices:
            stored = encoded(operands.flat[m.name], m.dtype)
            self.buffers[m.name] = session.allocate(stored.nbytes)
            self.parts[m.name] = self.buffers[m.name].part(stored.itemsize * GUARD, m.nbytes)
            session.upload(self.buffers[m.name], stored)

    def reset(self) -> None:
        """Put the output back to what it was."""
        name = self.operands.problem.output.name
        self.session.upload(self.buffers[name], self.operands.flat[name])

    def fetch(self, name: str | None = None) -> F32:
        """A float32 operand's backing array as it is now; by default the output's."""
        name = name or self.operands.problem.output.name
        flat = np.empty_like(self.operands.flat[name])
        self.session.download(self.buffers[name], flat)
        return flat
