"""Products by the host's BLAS, through NumPy, and the question whether that suits host arrays better than a device."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from toprung.device import Device
from toprung.kernels.base import KernelFamily
from toprung.kernels.registry import families

LINK = 2.0e10
"""Bytes per second between host and device that ``preferred`` assumes."""
STARTING = 6e-5
"""Least seconds of a product through a device's memory that ``preferred`` assumes."""


def preferred(device: Device, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[KernelFamily | None, str]:
    """Return the host's BLAS and the reason why it suits host arrays better; None and an empty text if it does not.

    Without a GPU it always does. With one, the predicted time of the transfers is compared with that of the host's BLAS.
    """
    blas = next((f for f in families() if f.memory == "host"), None)
    if blas is None:
        return None, ""
    if device.kind != "gpu":
        return blas, "the arrays are on the host and there is no GPU: NumPy's BLAS is what was there already"
    (rows, depth), cols, batch = a[-2:], b[-1], math.prod(a[:-2])
    there = STARTING + 4 * batch * (rows * depth + depth * cols + rows * cols) / LINK
    if blas.host_seconds(2 * batch * rows * cols * depth) <= there:
        return blas, f"moving the arrays to {device} would take longer than NumPy's BLAS does"
    return None, ""


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
