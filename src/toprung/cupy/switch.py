"""``enable``, ``disable``, ``use`` and ``exclude``: which settings are active, for the whole process."""

from __future__ import annotations

import cupy

from toprung.blas import idle
from toprung.blas.switch import Block, Switch
from toprung.cupy import products
from toprung.cupy.seams import Installed
from toprung.cupy.settings import Settings
from toprung.errors import Unsupported

_installed: list[Installed] = []


def _apply(active: Settings | None, there: list[Settings]) -> None:
    """Make active settings hold from now on; CuPy's functions are replaced as long as some settings may become active."""
    products.now = None if active is None else products.products_of(active)
    if active is not None:
        idle.tell("CuPy", products.gpus)
    if there and not _installed:
        _installed.append(Installed())
    elif not there and _installed:
        _installed.pop().end()


_switch = Switch(_apply)


def _checked(precision: str, own: bool, min_flops: int | None) -> Settings:
    if cupy.cuda.runtime.is_hip:
        raise Unsupported("toprung.cupy takes CuPy for CUDA, and this one is for ROCm, which toprung reaches through OpenCL alone")
    return Settings.of(precision, own, min_flops)


def enable(precision: str = "auto", *, own: bool = False, min_flops: int | None = None) -> None:
    """Take CuPy's fp32 matrix products from now on: ``@``, ``matmul``, ``dot``, ``tensordot``, ``inner``, ``einsum``.

    It holds for the whole process. The first product of a kind (shapes, strides, alignment) waits for its kernel. Products are
    CuPy's own where toprung's kernels should not be faster, where the program asks for TF32, while the current stream is captured,
    and for all other types.

    Parameters
    ----------
    precision : ``"auto"`` and ``"fp32x"``: as accurate as fp32, on Tensor Cores where those are faster, or always; ``"fp32"``: IEEE
        single on ordinary cores
    own : True to run toprung's kernels also where CuPy's own are expected to be as fast
    min_flops : number of operations below which CuPy's own run; by default 4e6, with ``own`` 0

    Raises
    ------
    BadArgument
        a value that there is not
    Unsupported
        CuPy for another runtime than CUDA
    """
    settings = _checked(precision, own, min_flops)
    with _switch.lock:
        products.forget()
        _switch.enable(settings)


def disable() -> None:
    """Leave all products to CuPy again; blocks of ``use`` that are open keep what they say."""
    _switch.enable(None)


def is_enabled() -> bool:
    """Return True if products are taken now."""
    return products.now is not None


class use(Block[Settings]):
    """Take products in a block, or in a function that it decorates, for the whole process while it is open.

    The parameters are those of ``enable``.

    Examples
    --------
    >>> with toprung.cupy.use(precision="fp32x"):  # doctest: +SKIP
    ...     c = a @ b
    """

    def __init__(self, precision: str = "auto", *, own: bool = False, min_flops: int | None = None) -> None:
        super().__init__(_switch, _checked(precision, own, min_flops))


class exclude(Block[Settings]):
    """Leave products to CuPy in a block, or in a function that it decorates, for the whole process while it is open."""

    def __init__(self) -> None:
        super().__init__(_switch, None)
