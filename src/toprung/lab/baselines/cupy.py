"""CuPy: NumPy's interface on an NVIDIA GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

from toprung.device import Device
from toprung.lab.baselines import Peer
from toprung.lab.baselines._twin import no_cuda, placed_through, stream
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice
from toprung.oracle.placed import OnDevice


class CuPyPeer(Peer):
    """``cupy.matmul`` into memory of ours."""

    name = "cupy"
    title = "CuPy"
    kinds = ("gpu",)

    def absent(self, device: Device) -> str:
        # why CuPy is missing, or a GPU for it; empty if both are there
        return no_cuda(device) or ("" if importlib.util.find_spec("cupy") else "CuPy is not installed; pip install cupy-cuda13x")

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        # wrap the session's memory; CuPy works on the session's stream from here on
        import cupy

        problem = self.product(placed, alpha=False, beta=False)
        placed = placed_through(placed, "cuda")
        session: Any = placed.session
        cupy.cuda.Device(session.device.handle).use()
        queue = cupy.cuda.ExternalStream(stream(session), session.device.handle)
        queue.use()
        arrays = []
        for m in problem.matrices:
            part: Any = placed.parts[m.name]
            memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(part.pointer, m.nbytes, part, session.device.handle), 0)
            rows = m.rows // problem.batch
            array = cupy.ndarray((problem.batch, rows, m.cols), cupy.float32, memory, strides=(4 * rows * m.ld, 4 * m.ld, 4))
            turned = not m.output and problem.trans["AB".index(m.name)] == "T"
            arrays.append(array.transpose(0, 2, 1) if turned else array)
        a, b, c = arrays if problem.batch > 1 else (x[0] for x in arrays)

        def launch(kept: object = queue) -> None:
            cupy.matmul(a, b, out=c)

        return BoundOnDevice(placed, launch)


PEER = CuPyPeer()
