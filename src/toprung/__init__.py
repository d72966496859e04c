"""toprung: a laboratory and library for single-precision matrix multiplication on GPUs."""

from typing import Any

from toprung import errors
from toprung.backends import devices
from toprung.blas import epilogue, routines
from toprung.blas.grouped import matmul_grouped
from toprung.blas.packed import PackedOperand
from toprung.blas.plan import Plan, plan
from toprung.blas.prepack import prepack
from toprung.blas.receipt import Receipt, last_receipt
from toprung.blas.routines import matmul, sgemm, sgemv
from toprung.device import Device
from toprung.dispatch import autotune
from toprung.dispatch.autotune import planning

__all__ = [
    "Device",
    "PackedOperand",
    "Plan",
    "Receipt",
    "devices",
    "errors",
    "last_receipt",
    "matmul",
    "matmul_grouped",
    "plan",
    "planning",
    "prepack",
    "sgemm",
    "sgemv",
]


def _planner() -> autotune.Planner:
    """Return what measures products, loaded when the first one is to be measured."""
    from toprung.tune.planner import Planner

    return Planner()


def _recorded(*args: Any) -> Any:
    """Return a product that PyTorch records, traces or transforms."""
    from toprung.torch import recorded

    return recorded.matmul(*args)


def _traced(
    a: Any, b: Any, out: Any = None, *, bias: Any = None, activation: str | None = None, precision: str = "auto", own: bool = False,
    device: Device | str | None = None,
) -> Any:  # fmt: skip
    """Return a product as torch.compile traces it, in place of ``matmul``."""
    from toprung.torch.operator import traced

    return traced(a, b, out, precision, own, device, bias, epilogue.known_activation(activation))


# the library knows nothing of the tuner, nor of what records gradients: here, above all of them, it is given both
autotune.HERE.make_planner = _planner
routines.RECORDERS["PyTorch"] = _recorded
matmul._torchdynamo_inline = _traced  # type: ignore[attr-defined]  # where Dynamo looks for what it traces instead


__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":  # read from the installed package when somebody asks: that takes longer than most imports
        from toprung.store.entry import version

        return version()
    if name in ("torch", "cupy", "distributed", "store"):  # PyTorch, CuPy and SQLite, which a program without them need not load
        return __import__(f"toprung.{name}", fromlist=["__name__"])  # as an import does: its frames are in no traceback
    raise AttributeError(f"module 'toprung' has no attribute {name!r}")
