"""Settings of ``toprung.cupy``: which products are taken, and how."""

from __future__ import annotations

from dataclasses import dataclass

from toprung.blas.switch import check_precision, least_flops
from toprung.errors import BadArgument

LEAST = 4_000_000
"""Floating-point operations below which CuPy's own runs by default: 128³, the least square that was measured, and faster
(``benchmarks/cupy_products.py``, ``results/nvidia-h200/cupy-products.json``)."""


@dataclass(frozen=True)
class Settings:
    """Options of ``enable`` and ``use``, checked.

    Attributes
    ----------
    precision : path of products, as for ``toprung.matmul``
    own : True to run toprung's kernels also where CuPy's own are expected to be as fast
    min_flops : floating-point operations below which CuPy's own run

    Raises
    ------
    BadArgument
        a value that there is not
    """

    precision: str = "auto"
    own: bool = False
    min_flops: int = LEAST

    @classmethod
    def of(cls, precision: str, own: bool, min_flops: int | None) -> Settings:
        """Return settings from what a caller gave."""
        check_precision(precision, "cupy", "CuPy's own: set CUPY_TF32=1 in the environment")
        if not isinstance(own, bool):
            raise BadArgument(f"own is True or False, not {own!r}")
        return cls(precision, own, least_flops(min_flops, 0 if own else LEAST))
