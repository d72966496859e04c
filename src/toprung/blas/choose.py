"""Which kernel runs a call, and with which tile: the one place where that is decided.

The order is: what a tuned store knows (``STORES``, asked first), then a model. The model is a rough count of clocks
(``blas/expected.py``) of the ways that ``tiles.py``, ``short.py`` and ``ffma.py`` beside this file have for a call.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from toprung.blas import expected, vendor
from toprung.blas.call import Call, GemmCall, GemvCall
from toprung.blas.choice import FFMA, SHOWN, Choice, PassedOver, Way
from toprung.blas.ffma import ffma_by_model, ffma_ways
from toprung.blas.kernel import kernel
from toprung.blas.short import FEW, is_skinny, short_choice, short_on_cpu, short_sides
from toprung.blas.tiles import candidate_like, clocks, products, tiled_choice, tiled_on_cpu
from toprung.device import Device
from toprung.tile import Tile

CUBLAS, CUBLAS_MORE, CUBLAS_SLICED = 1.01, 2e-6, 2e-6
"""cuBLAS takes about so many times as long as our best tile with sides from ``tiles.CUBLAS_SIDE`` on, with operands that lie well,
and so many seconds more, a few more still where sums are cut. See ``benchmarks/fit_routes.py``."""

CUBLAS_FEW, CUBLAS_SHORT = 4, 1.4
"""Products with a side from two to so many elements take it about so many times as long as that: its tiles stay large."""

SIZES = {"tiny": 768, "small": 1536}
"""Classes of products by the side of a square one with as much to do."""


class Adviser(Protocol):
    """What knows more than the model."""

    def choice(self, device: Device, call: Call, own: bool) -> tuple[Choice | None, PassedOver]:
        """What to run, or None where it does not know; and what it knows of and passed over."""

    def fp32x(self, device: Device, call: Call, own: bool) -> str | None:
        """Why fp32x is slower than plain fp32, empty where it is faster; None where it does not know."""

    def fp32x_choice(self, device: Device, call: Call) -> tuple[Choice | None, PassedOver]:
        """The tile of fp32x to run, or None where it does not know one; and what it knows of and passed over."""


STORES: list[Adviser] = []
"""Asked in turn before the model: the store of tuned entries puts itself here (``toprung.blas.tuned``)."""


def choose(device: Device, call: Call, own: bool = True) -> Choice:
    """The kernel, tile and switches for a call on a device. ``own``: only ours; else what is installed may be chosen, too."""
    chosen, passed_over = _advised(device, call, own)
    chosen = chosen or by_model(device, call)
    chosen = replace(chosen, passed_over=(*chosen.passed_over, *passed_over))
    if own:
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", "only kernels of ours were asked for")))
    if chosen.weighed:
        return chosen
    if reason := lacking(device, call) or preferred(device, call):
        return replace(chosen, passed_over=(*chosen.passed_over, ("cublas", reason)))
    passed = (f"blas/{chosen.kernel}", f"no measurement says that it is faster on a {problem_class(call)} product, nor the model")
    return Choice("cublas", None, (), "it is installed, and by the model the faster", (passed,))


def _advised(device: Device, call: Call, own: bool) -> tuple[Choice | None, PassedOver]:
    """What the first that knows says; and what all that were asked passed over."""
    passed: PassedOver = ()
    for one in STORES:
        found, more = one.choice(device, call, own)
        passed += more
        if found is not None:
            return found, passed
    return None, passed


def lacking(device: Device, call: Call) -> str:
    """Why cuBLAS cannot take a call; empty if it can."""
    return vendor.lacking(device) or _unsuited(call)


def preferred(device: Device, call: Call) -> str:
    """Why a kernel of ours is taken where the store does not compare it with cuBLAS; empty where cuBLAS is."""
    ratio = cublas_ratio(device, call)
    return f"{ratio:.2f} times as long by the model" if ratio >= 1 else ""


def cublas_ratio(device: Device, call: Call) -> float:
    """cuBLAS's time over that of our best choice, by the model: infinite where nothing is computed.

    cuBLAS takes narrow operands as it takes wide ones, in large tiles, and a program takes longer to call it. That both come from
    one model is the point: where it errs it errs on both.
    """
    if is_empty(call):
        return math.inf
    ours, theirs = ways(device, call), ways(device, call, well=True)
    if not ours or not theirs:
        return 0.0
    least = min(CUBLAS * way.seconds + (CUBLAS_SLICED if way.slices > 1 else 0.0) for way in theirs) + CUBLAS_MORE
    if isinstance(call, GemmCall) and 1 < min(call.M, call.N) <= CUBLAS_FEW:
        least *= CUBLAS_SHORT
    return max(least, expected.HOST.cublas) / ours[0].seconds


def problem_class(call: Call) -> str:
    """``vector``, ``skinny``, ``batched``, ``deep``, ``shallow``, ``tiny``, ``small`` or ``large``."""
    if isinstance(call, GemvCall) or min(call.M, call.N) == 1:
        return "vector"
    if min(call.M, call.N) <= FEW:
        return "skinny"
    if call.batch > 1:
        return "batched"
    if call.K >= 16 * max(call.M, call.N):
        return "deep"
    if 16 * call.K <= min(call.M, call.N):
        return "shallow"
    return next((name for name, side in SIZES.items() if call.flops < 2 * side**3), "large")


def _unsuited(call: Call) -> str:
    """Why cuBLAS does not take the call."""
    if isinstance(call, GemvCall) and (call.incx < 0 or call.incy < 0):
        return "negative increments"
    return ""


def by_model(device: Device, call: Call) -> Choice:
    """Our kernel for a call, whatever is stored: what nobody has tuned gets."""
    found: Choice | None = None
    if not is_empty(call):
        if device.kind == "gpu":
            found = _on_gpu(device, call)
        else:
            found = short_on_cpu(device, call) if isinstance(call, GemvCall) or is_skinny(call) else tiled_on_cpu(device, call)
    return found or Choice(
        "plain", kernel("plain").tile_for(device), (), "" if is_empty(call) else "no tile of the faster kernels is legal here"
    )


def is_empty(call: Call) -> bool:
    """Whether there is nothing to multiply."""
    return not (call.M and call.N and (isinstance(call, GemvCall) or call.K))


def ways(device: Device, call: Call, well: bool = False) -> list[Way]:
    """What is weighed on a GPU, the fastest by the model first; ``well``: only what cuBLAS may have, as if operands lay
    well."""
    found: list[Way] = []
    if isinstance(call, GemvCall) or is_skinny(call):
        found += short_sides(device, call, well)
    if isinstance(call, GemmCall) and min(call.M, call.N) > 1:
        found += products(device, call, well)
        found += [] if well else ffma_ways(device, call)
    return sorted(found, key=lambda way: way.seconds)


def _on_gpu(device: Device, call: Call) -> Choice | None:
    found = ways(device, call)
    if not found:
        return None
    best, named = found[0], dict[tuple[str, Tile], Way]()
    for other in found[1:]:
        if (other.kernel, other.tile) != (best.kernel, best.tile) and (len(named) < SHOWN or other.kernel == FFMA):
            named.setdefault((other.kernel, other.tile), other)
    first = sorted(named.values(), key=lambda way: way.kernel != FFMA)
    passed = tuple((way.name, f"{way.seconds / best.seconds:.2f} times as long by the model") for way in first)
    return _by_way(device, call, best, passed)


def _by_way(device: Device, call: Call, way: Way, passed: PassedOver = ()) -> Choice:
    if way.candidate is None and way.kernel != FFMA:
        return short_choice(device, call, way.tile, way.slices, passed)
    assert isinstance(call, GemmCall)
    if way.candidate is None:
        return ffma_by_model(device, call, passed)
    return tiled_choice(device, call, way.candidate, way.slices, passed)


def next_by_model(device: Device, call: Call, most: int) -> list[Choice]:
    """The first choices of the model, its best among them; a GPU's, for on a CPU it weighs few."""
    if device.kind != "gpu" or is_empty(call):
        return []
    return [_by_way(device, call, way) for way in ways(device, call)[:most]]


def tile_loss(device: Device, call: GemmCall, tile: Tile) -> float | None:
    """How many times as long as the best by the model a tile takes, with its slices; None where no candidate is like it."""
    bare = replace(tile, SPLIT_K=None)
    like = candidate_like(tile)
    found = ways(device, call) if like and device.kind == "gpu" else []
    if like is None or not found:
        return None
    slices = tile.SPLIT_K or 1
    cost = clocks(device, call, replace(like, tile=bare), slices)
    return expected.seconds(cost, min(slices, 2), expected.hz(device)) / found[0].seconds
