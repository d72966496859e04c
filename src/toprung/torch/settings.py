"""Settings of ``toprung.torch``: which products are taken, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from toprung.blas.switch import check_precision, least_flops
from toprung.errors import BadArgument

ALL = ("mm", "bmm", "addmm", "baddbmm", "_addmm_activation", "addmv")
"""Operators of aten that can be taken, each with its in-place, ``out=`` and ``dtype`` variants. ``mv`` arrives as ``addmv``."""

DEVICE_TYPES = ("cuda", "cpu")

LEAST = 500_000_000
"""Floating-point operations below which PyTorch's own runs by default: there launches and Python take longer than the product."""

UNSEEN = (
    "convolutions and recurrent layers (cuDNN)",
    "fused attention (scaled_dot_product_attention but for its math)",
    "decompositions and solvers (cuSOLVER)",
    "code that was compiled ahead of time (AOTInductor)",
)
"""Products that do not pass through aten's operators, and are never taken from PyTorch."""


@dataclass(frozen=True)
class Settings:
    """Options of ``enable`` and ``use``, checked.

    Attributes
    ----------
    precision : path of products, as for ``toprung.matmul``
    ops : operators that are taken
    device_types : devices whose tensors are taken
    own : True to run toprung's kernels also where PyTorch's own are expected to be as fast
    min_flops : floating-point operations below which PyTorch's own run
    reproducible : True to run toprung's kernels in PyTorch's deterministic mode too, each call waiting for its kernel; None and
        False: in that mode PyTorch's own run
    modules : True to count products by the module that makes them

    Raises
    ------
    BadArgument
        a value that there is not
    """

    precision: str = "auto"
    ops: tuple[str, ...] = ALL
    device_types: tuple[str, ...] = ("cuda",)
    own: bool = False
    min_flops: int = LEAST
    reproducible: bool | None = None
    modules: bool = False

    @property
    def eager(self) -> bool:
        """True if a kernel is prepared for the first product of its kind: the program wants it whether it gains or not."""
        return self.own or bool(self.reproducible)

    @classmethod
    def of(
        cls, precision: str, ops: Collection[str], device_types: Collection[str], own: bool, min_flops: int | None,
        reproducible: bool | None, modules: bool = False,
    ) -> Settings:  # fmt: skip
        """Return settings from what a caller gave."""
        check_precision(precision, "torch", "PyTorch's own: set torch.backends.cuda.matmul.fp32_precision = 'tf32'")
        taken = _words("ops", ops, ALL)
        types = _words("device_types", device_types, DEVICE_TYPES)
        for name, value in (("own", own), ("reproducible", reproducible), ("modules", modules)):
            if value is not None and not isinstance(value, bool):
                raise BadArgument(f"{name} is True or False, not {value!r}")
        return cls(precision, taken, types, bool(own), least_flops(min_flops, 0 if own else LEAST), reproducible, bool(modules))


def _words(name: str, given: Collection[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return names that exist, in their usual order; raise BadArgument for others, or for none."""
    words = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    unknown = [word for word in words if not isinstance(word, str) or word not in known]
    if unknown or not words:
        raise BadArgument(f"{name} are some of {', '.join(known)}, not {', '.join(map(repr, unknown)) or 'none'}")
    return tuple(word for word in known if word in words)
