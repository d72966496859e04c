"""PyTorch's views of our operands: the same memory, on the host or on a GPU, and our stream."""

from __future__ import annotations

import importlib.util
from typing import Any

from toprung.device import Device
from toprung.lab.baselines._twin import no_cuda, stream
from toprung.oracle.check import view
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import F32


def no_torch() -> str:
    """Return how to get PyTorch; empty if it is installed."""
    return "" if importlib.util.find_spec("torch") else "PyTorch is not installed; pip install torch"


def no_torch_cuda(device: Device) -> str:
    """Why PyTorch cannot work on a GPU; empty if it can."""
    if reason := no_cuda(device) or no_torch():
        return reason
    import torch

    return "" if torch.cuda.is_available() else "this PyTorch cannot use the GPU; install a build of it for CUDA"


class _Interface:
    """Device memory as anything that speaks ``__cuda_array_interface__`` takes it."""

    def __init__(self, buffer: Any, elements: int) -> None:
        self._buffer = buffer  # kept alive for as long as the view
        self.__cuda_array_interface__ = {"shape": (elements,), "typestr": "<f4", "data": (buffer.pointer, False), "version": 3}


def cuda_tensors(placed: OnDevice, problem: Gemm) -> tuple[Any, Any, Any]:
    """op(A), op(B) and C as tensors in the session's memory, batch first; PyTorch works on the session's stream from here on."""
    import torch

    session: Any = placed.session
    where = torch.device("cuda", session.device.handle)
    torch.cuda.set_device(where)
    torch.cuda.set_stream(torch.cuda.ExternalStream(stream(session), device=where))
    flat = {m.name: torch.as_tensor(_Interface(placed.parts[m.name], m.extent), device=where) for m in problem.matrices}
    return _stacks(flat, problem)


def host_tensors(flat: dict[str, F32], problem: Gemm) -> tuple[Any, Any, Any]:
    """Return op(A), op(B) and C in the host's memory, from backing arrays."""
    import torch

    first = {m.name: torch.from_numpy(flat[m.name]) for m in problem.matrices}
    starts = {m.name: view(m, flat[m.name]) for m in problem.matrices}
    offset = {n: (starts[n].ctypes.data - flat[n].ctypes.data) // 4 for n in first}
    return _stacks({n: t[offset[n] :] for n, t in first.items()}, problem)


def _stacks(flat: dict[str, Any], problem: Gemm) -> tuple[Any, Any, Any]:
    stacked = []
    for m in problem.matrices:
        rows = m.rows // problem.batch
        t = flat[m.name].as_strided((problem.batch, rows, m.cols), (rows * m.ld, m.ld, 1))
        turned = not m.output and problem.trans["AB".index(m.name)] == "T"
        stacked.append(t.transpose(1, 2) if turned else t)
    return stacked[0], stacked[1], stacked[2]
