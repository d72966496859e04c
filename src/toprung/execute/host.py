"""Products by the host's BLAS, through NumPy, and the question whether that suits host arrays better than a device."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toprung.errors import BadArgument

if TYPE_CHECKING:
    from toprung.device import Device
    from toprung.kernels.base import HostFamily

LINK = 2.0e10
"""Bytes per second between host and device that ``is_small`` assumes."""
STARTING = 6e-5
"""Least seconds of a product through a device's memory that ``is_small`` assumes."""


AGAIN, AGAIN_SECONDS = 10, 0.1
"""Calls of NumPy, and seconds after which there is no other, before it is passed over for what was tuned."""


LIMIT = "TOPRUNG_DEVICE_MEMORY"
"""Environment variable with the bytes of device memory that a product of host arrays may take; if set, CPU devices copy, too."""


def limit() -> int | None:
    """Return the bytes of device memory that the environment allows, None if it sets no limit."""
    text = os.environ.get(LIMIT)
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise BadArgument(f"{LIMIT} is a number of bytes above 0, not {text!r}")
    return value


def host_blas() -> HostFamily | None:
    """Return the family that multiplies host arrays where they are; None if there is none."""
    from toprung.kernels.base import HostFamily  # kernels are loaded with the first product
    from toprung.kernels.registry import families

    return next((one for one in families("host") if isinstance(one, HostFamily)), None)


def is_small(blas: HostFamily, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return True if the host's BLAS is predicted to be done before the fastest device has the operands."""
    (rows, depth), cols, batch = a[-2:], b[-1], math.prod(a[:-2])
    there = STARTING + 4 * batch * (rows * depth + depth * cols + rows * cols) / LINK
    return blas.host_seconds(2 * batch * rows * cols * depth) <= there


def preferred(blas: HostFamily, device: Device, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Return why the host's BLAS suits host arrays better than a device; empty if it does not.

    Without a GPU it always does. With one, the predicted time of the transfers is compared with that of the host's BLAS.
    """
    if device.kind != "gpu":
        return "the arrays are on the host and there is no GPU: NumPy's BLAS is what was there already"
    return f"moving the arrays to {device} would take longer than NumPy's BLAS does" if is_small(blas, a, b) else ""


def product_seconds(a: NDArray[np.float32], b: NDArray[np.float32], enough: float) -> float:
    """Return the fewest seconds of a few calls of NumPy's product, the last of which took fewer than ``enough``, if one did.

    Whoever tunes on a machine in use may find NumPy slow for that alone, for its threads wait for each other.
    """
    best, begin = math.inf, time.perf_counter()
    for _ in range(AGAIN):
        start = time.perf_counter()
        np.matmul(a, b)
        best = min(best, (end := time.perf_counter()) - start)
        if best < enough or end - begin > AGAIN_SECONDS:
            break
    return best


def numpy_product(
    alpha: float, a: NDArray[np.float32], b: NDArray[np.float32], beta: float, c: NDArray[np.float32]
) -> None:  # fmt: skip
    """Compute C = α·A·B + β·C with NumPy; β = 0 does not read C, α = 0 reads neither A nor B."""
    with np.errstate(all="ignore"):
        if alpha == 0 or a.shape[-1] == 0:
            if beta == 0:
                c[...] = 0
            else:
                c *= np.float32(beta)
            return
        if alpha == 1 and beta == 0:
            np.matmul(a, b, out=c)
            return
        product = np.matmul(a, b)
        product *= np.float32(alpha)
        if beta != 0:
            product += np.float32(beta) * c
        c[...] = product
