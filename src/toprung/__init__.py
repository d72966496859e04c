"""toprung: a laboratory and library for single-precision matrix multiplication on GPUs."""

from toprung import errors, moved
from toprung.backends import devices
from toprung.blas.packed import Prepared
from toprung.blas.plan import Plan, plan
from toprung.blas.prepack import prepare
from toprung.blas.receipt import Receipt, last_receipt
from toprung.blas.routines import matmul, sgemm, sgemv
from toprung.device import Device
from toprung.dispatch.autotune import planning
from toprung.tune import planner as _planner  # noqa: F401  # puts itself where calls are planned

moved.install()

__all__ = [
    "Device",
    "Plan",
    "Prepared",
    "Receipt",
    "devices",
    "errors",
    "last_receipt",
    "matmul",
    "plan",
    "planning",
    "prepare",
    "sgemm",
    "sgemv",
]
