"""What is expected of a configuration before it runs: the one place where the search and the models meet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from toprung import hopper, hopper_fp32
from toprung.blas.call import Call, GemmCall
from toprung.blas.choice import FFMA, Choice
from toprung.blas.ffma import variant_of
from toprung.blas.fp32x import FP32X, way_of
from toprung.blas.pieces import PIECES
from toprung.blas.slices import sliced
from toprung.blas.tiles import tile_grid
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.ranking import Ranking


@dataclass(frozen=True)
class Model:
    """Seconds of a choice for one call.

    Attributes
    ----------
    predict : what it should take, in seconds on a GPU, in a unit of its own on a CPU; infinite where nothing is known, which
        leaves an order as it is
    bound : below which it cannot be; 0 where nothing is known, which discards nothing
    """

    predict: Callable[[Choice], float]
    bound: Callable[[Choice], float]


PIECES_SHARE = 0.76
"""Of the peak that the product by pieces should reach: rung 17 of turing did at 4096, through OpenCL."""

UNKNOWN = Model(lambda choice: float("inf"), lambda choice: 0.0)


def model(device: Device, call: Call, precision: str = "fp32") -> Model:
    """The ranking model where the device's figures are known and the call is a product of tiles; a rough one on a CPU.

    For fp32x what ``toprung.hopper`` reckons, which bounds nothing.
    """
    if not isinstance(call, GemmCall):
        return UNKNOWN
    if precision == FP32X:
        split = hopper.split_time(call)

        def reckoned(choice: Choice) -> float:
            return split + hopper.product_time(call, way_of(choice.tile, dict(choice.options)), device.compute_units)

        return Model(reckoned, lambda choice: 0.0)
    if device.kind != "gpu":
        return Model(lambda choice: _on_cpu(device, call, choice), lambda choice: 0.0)
    try:
        ranking = Ranking.of(device, call)
    except Unsupported:
        return UNKNOWN

    peak = device.peak_gflops
    least = call.flops / (1e9 * peak) if peak else 0.0

    def predict(choice: Choice) -> float:
        if choice.kernel == PIECES:
            return least / PIECES_SHARE
        if choice.kernel == FFMA:
            return hopper_fp32.reckoned(call, device.compute_units, variant_of(choice.tile, dict(choice.options)))
        if choice.kernel != "gemm" or choice.tile is None:
            return 0.0  # the kernels for short sides first: they are few
        return ranking.seconds(choice)

    def bound(choice: Choice) -> float:
        if choice.kernel in (FFMA, PIECES):
            return least
        return ranking.least(choice) if choice.kernel == "gemm" and choice.tile else 0.0

    return Model(predict, bound)


def _on_cpu(device: Device, call: GemmCall, choice: Choice) -> float:
    """What is computed, edges included, by the fullest core; small pieces read more for each multiplication."""
    tile = choice.tile
    if choice.kernel != "gemm" or tile is None:
        return 0.0
    blocks = math.prod(tile_grid(call, tile)) * call.batch * choice.slices
    waves = math.ceil(blocks / device.compute_units)
    reads = 1 + 8 / (tile.TM or 1) + 16 / (tile.TN or 1)
    return waves * tile.BM * tile.BN * (sliced(call.K, tile.BK or 1, choice.slices) + 64 / (tile.BK or 1)) * reads
