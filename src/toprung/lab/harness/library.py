"""The library itself as a competitor: as a user gets it, and without arrays, device memory in, device memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from toprung.arrays.cuda_interface import DeviceArray
from toprung.backends.plan import Run
from toprung.blas.receipt import last_receipt
from toprung.blas.routines import matmul
from toprung.device import Device
from toprung.dispatch.ranking import select_own
from toprung.dispatch.selection import Candidate, Selection
from toprung.errors import Unsupported
from toprung.execute.executable import Executable
from toprung.execute.executor import executor_of
from toprung.lab.baselines._host import BoundOnHost
from toprung.lab.baselines._torch import cuda_tensors, no_torch_cuda
from toprung.lab.baselines._twin import stream
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice, Competitor, Promise
from toprung.oracle.check import GUARD
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice


class BoundProduct(BoundOnDevice):
    """An executable bound to operands in device memory."""

    def __init__(self, placed: OnDevice, executable: Executable, offset: int = GUARD, launch: Run | None = None) -> None:
        problem: Any = placed.operands.problem
        self.executable = executable
        a, b, c = (placed.buffers[m.name].handle for m in problem.matrices)
        self._launcher = launch = launch or executable.starter()
        alpha, beta = float(problem.alpha), float(problem.beta)
        super().__init__(placed, lambda: launch(a, offset, b, offset, c, offset, alpha, beta, None))

    def elsewhere(self, placed: OnDevice) -> BoundProduct:
        """Return the executable bound to other operands, for the same thread: both share one launcher."""
        return BoundProduct(placed, self.executable, launch=self._launcher)


class Toprung:
    """The library as a competitor, with kernels of its own or with a given candidate.

    Its ``promise`` is the precision of the problem prepared last: ``"auto"`` is fp32 where fp32x is not supported or is slower.
    """

    title = "toprung"

    def __init__(
        self, name: str = "toprung", candidate: Candidate | None = None, precision: str = "fp32", tuned: bool = True
    ) -> None:
        self.name, self._candidate, self._precision, self._tuned, self.promise = name, candidate, precision, tuned, Promise()
        self._last: Selection | None = None

    def absent(self, device: Device) -> str:
        return ""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        session, desc = placed.session, placed.operands.problem.desc
        given = self._candidate or (None if self._tuned else select_own(session.device, desc))
        if given:
            made = Executable.of(session, desc, given)
        else:
            made = executor_of(session).product(desc, own=True, precision=self._precision)
        self._last, self.promise = made.selections[desc], Promise(made.precision)
        return BoundProduct(placed, made)

    def describe(self, device: Device) -> dict[str, Any]:
        # kernel, tile and switches of the problem prepared last
        last = self._last
        encoded = last.candidate.encode() if last else {"kernel": "", "tile": {}, "options": {}}
        return {
            "kind": "library", "name": self.name, "number": 0, "idea": "the library, kernels of its own", "variant": "",
            **encoded, "why": last.why if last else "",
            "precision": self.promise.precision, "deterministic": True, "note": "",
        }  # fmt: skip


class Matmul:
    """``toprung.matmul`` as a user gets it: arrays in, an array out, on the arrays that a user has beside the device.

    On a CPU these are NumPy's. On a GPU they lie in its memory: PyTorch's or CuPy's where one of them is installed, else arrays
    that speak ``__cuda_array_interface__``, and pyopencl's in a session of OpenCL. Precision, kernel and place are the library's
    choice; the ``promise`` is the precision of the receipt.
    """

    name, title = "matmul", "toprung.matmul"

    def __init__(self) -> None:
        self.promise, self._receipt, self._arrays = Promise(), last_receipt(), ""

    def absent(self, device: Device) -> str:
        return ""

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        # wrap the operands, and compute the product once, so that selection is over
        problem = placed.operands.problem
        if not isinstance(problem, Gemm) or problem.alpha != 1 or problem.beta != 0:
            raise Unsupported("toprung.matmul takes part in matrix products with α = 1 and β = 0 only")
        bound: BoundCompetitor
        if placed.session.device.kind == "gpu":
            self._arrays, stacks = arrays_on(placed, problem)
            bound = BoundOnDevice(placed, _product(problem, stacks))
        else:
            self._arrays = "numpy"
            bound = BoundOnHost(placed.operands, problem, lambda stacks: _product(problem, stacks))
        bound.run()
        self._receipt = last_receipt()
        self.promise = Promise(self._receipt.precision if self._receipt else "fp32")
        return bound

    def describe(self, device: Device) -> dict[str, Any]:
        # the arrays, and the receipt's entries, of the problem prepared last
        receipt = self._receipt
        return {
            "kind": "library", "name": self.name, "number": 0, "idea": self.title, "variant": "", "arrays": self._arrays,
            "kernel": ", ".join(receipt.kernels) if receipt else "", "tile": {}, "options": {},
            "why": receipt.why if receipt else "",
            "precision": self.promise.precision, "deterministic": True, "note": "",
        }  # fmt: skip


def _product(problem: Gemm, stacks: Sequence[Any]) -> Callable[[], object]:
    a, b, c = stacks if problem.batch > 1 else (s[0] for s in stacks)
    return lambda: matmul(a, b, out=c)


def arrays_on(placed: OnDevice, problem: Gemm) -> tuple[str, Sequence[Any]]:
    """Return a library's name, and op(A), op(B) and C as its arrays in the session's memory, batch first."""
    session: Any = placed.session
    if session.device.backend == "cuda" and not no_torch_cuda(session.device):
        return "torch", cuda_tensors(placed, problem)
    stacks: list[Any] = []
    for m in problem.matrices:
        rows = m.rows // problem.batch
        shape, strides = (problem.batch, rows, m.cols), (4 * rows * m.ld, 4 * m.ld, 4)
        if not m.output and problem.trans["AB".index(m.name)] == "T":
            shape, strides = (shape[0], shape[2], shape[1]), (strides[0], strides[2], strides[1])
        if session.device.backend == "cuda":
            stacks.append(_Stack(placed.parts[m.name], shape, strides, stream(session), session.device.handle))
        else:
            import pyopencl.array as cl_array

            data, start = placed.buffers[m.name].handle, 4 * GUARD
            stacks.append(cl_array.Array(session.queue, shape, "float32", data=data, offset=start, strides=strides))
    return "pyopencl" if session.device.backend == "opencl" else "cuda array interface", stacks


class _Stack(DeviceArray):
    """Matrices in CUDA memory, of which one can be taken."""

    def __getitem__(self, place: int) -> DeviceArray:
        nbytes = 4 + sum((n - 1) * s for n, s in zip(self.shape[1:], self.strides[1:], strict=True))
        part = self._buffer.part(place * self.strides[0], nbytes)
        return DeviceArray(part, self.shape[1:], self.strides[1:], self._stream, self.number)


WAYS: Mapping[str, Callable[[], Competitor]] = MappingProxyType({
    Matmul.name: Matmul,
    Toprung.title: Toprung,
    "toprung_auto": lambda: Toprung("toprung_auto", precision="auto"),
    "toprung_untuned": lambda: Toprung("toprung_untuned", tuned=False),
})  # fmt: skip
"""The library as competitors, by name: as a user gets it, and kernels of its own in three ways."""
