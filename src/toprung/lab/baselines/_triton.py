"""Triton's ``tl.dot`` at one of its precisions, in a kernel of ours that is tuned over a few tiles for each problem."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

from toprung.device import Device
from toprung.errors import LaunchError, Unsupported
from toprung.lab.baselines import Peer
from toprung.lab.baselines._torch import cuda_tensors, no_torch_cuda
from toprung.lab.baselines._twin import placed_through
from toprung.lab.competitor import BoundCompetitor, BoundOnDevice, Promise
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice


class Choice(NamedTuple):
    """A tile, and how Triton runs it."""

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int


MATRIX_UNITS = (
    Choice(128, 256, 32, 8, 3), Choice(128, 128, 64, 8, 3), Choice(128, 128, 32, 8, 3), Choice(128, 128, 32, 4, 3),
    Choice(128, 64, 32, 4, 4), Choice(64, 64, 32, 4, 4),
)  # fmt: skip
ORDINARY = (Choice(128, 128, 16, 8, 2), Choice(128, 64, 16, 8, 3), Choice(64, 64, 16, 4, 3))
BAND = 8
TRIAL_CALLS = 3
UNTUNED_FLOPS = 10**9
"""Products with fewer operations take the smallest tile untried: compiling the others takes longer than any gain is worth."""


class TritonPeer(Peer):
    """``input_precision`` is Triton's own name for the path."""

    kinds = ("gpu",)

    def __init__(self, name: str, title: str, promise: Promise, input_precision: str, choices: tuple[Choice, ...]) -> None:
        self.name, self.title, self.promise = name, title, promise
        self._input_precision, self._choices = input_precision, choices
        self._chosen: dict[tuple[int | str, ...], Choice] = {}

    def absent(self, device: Device) -> str:
        if reason := no_torch_cuda(device):
            return reason
        return "" if importlib.util.find_spec("triton") else "Triton is not installed; pip install triton"

    def prepare(self, placed: OnDevice) -> BoundCompetitor:
        problem = self.product(placed, beta=False, batch=False, zero=False)
        if max(m.extent for m in problem.matrices) >= 2**31:
            raise Unsupported(f"{self.title} computes offsets in 32 bits, and {problem} has a matrix past 2³¹ elements")
        placed = placed_through(placed, "cuda")
        tensors = cuda_tensors(placed, problem)
        key = (problem.M, problem.N, problem.K, problem.trans)
        if key not in self._chosen:
            small = problem.flops < UNTUNED_FLOPS
            self._chosen[key] = self._choices[-1] if small else self._fastest(placed, problem, tensors)
        return BoundOnDevice(placed, self._launch(problem, tensors, self._chosen[key]))

    def _launch(self, problem: Gemm, tensors: tuple[Any, Any, Any], choice: Choice) -> Callable[[], object]:
        from toprung.lab.baselines._triton_kernel import matmul

        a, b, c = (t[0] for t in tensors)
        grid = (-(-problem.M // choice.BM) * -(-problem.N // choice.BN),)
        kernel = matmul[grid]
        sizes = (problem.M, problem.N, problem.K, float(problem.alpha), *a.stride(), *b.stride(), c.stride(0))
        options = {
            "BM": choice.BM, "BN": choice.BN, "BK": choice.BK, "BAND": BAND, "WHOLE_K": problem.K % choice.BK == 0,
            "WHOLE": problem.M % choice.BM == 0 and problem.N % choice.BN == 0,
            "PRECISION": self._input_precision, "num_warps": choice.warps, "num_stages": choice.stages,
        }  # fmt: skip
        return lambda: kernel(a, b, c, *sizes, **options)

    def _fastest(self, placed: OnDevice, problem: Gemm, tensors: tuple[Any, Any, Any]) -> Choice:
        times: dict[Choice, float] = {}
        reasons = []
        for choice in self._choices:
            prepared = BoundOnDevice(placed, self._launch(problem, tensors, choice))
            try:
                prepared.time(1)  # compiles
                times[choice] = prepared.time(TRIAL_CALLS)
            except Exception as error:  # Triton's own, of many kinds: a tile may need more than this GPU has
                reasons.append(f"{choice}: {type(error).__name__}: {error}")
        if not times:
            raise LaunchError(f"{self.title} ran with none of its tiles: " + "; ".join(reasons))
        return min(times, key=times.__getitem__)
