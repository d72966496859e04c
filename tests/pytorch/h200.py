"""An H200's session on the stand-in driver, for programs of test_taken.py; only kernels are fake."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import golden
from stand_in import kernel
from toprung.backends.base import Source
from toprung.backends.cuda import CUDASession
from toprung.blas.operands import How, View
from toprung.blas.product import OnDevice
from toprung.execute.executor import executor_of

FUNCTIONS: dict[str, int] = {}


class Session(golden.Recorder, CUDASession):
    """A session of an H200 whose kernels are the stand-in's, and write their first ten arguments down."""

    _can_overlap = False

    def load(self, binary: bytes, source: Source) -> Any:
        name = f"{source.kernel} {source.defines_text()}"
        if name not in FUNCTIONS:
            FUNCTIONS[name] = kernel(source.kernel, 8, 8, 8, 4, 4, 8, 4, 4, 4, 4)
        return SimpleNamespace(source=source, function=FUNCTIONS[name], dynamic=0, largest=1024)

    def download(self, buffer: Any, array: Any) -> None:
        array[:] = 0


SESSION = Session(golden.devices()["h200-cuda"])


def decided(
    alpha: float, a: View, b: View, beta: float, c: View, how: How, ranged: Any = lambda *product: product[-1]()
) -> OnDevice:
    """Return the call that runs a product on the session, in place of ``product.decided``."""
    make = partial(executor_of(SESSION).strided, a.layout, b.layout, c.layout, alpha, beta, how.own, how.precision)
    return OnDevice(ranged(SESSION, a, b, c, how, make) if ranged else make(), a, b, c, how)
