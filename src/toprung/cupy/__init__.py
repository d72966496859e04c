"""CuPy's fp32 matrix products through toprung, in one line.

``enable()`` has toprung's kernels compute ``a @ b``, ``cupy.matmul``, ``cupy.dot``, ``cupy.tensordot``, ``cupy.inner`` and
``cupy.einsum`` of float32 arrays where they are faster. Whatever toprung has no faster kernel for runs as if nothing had been
enabled.

Examples
--------
>>> import toprung.cupy
>>> toprung.cupy.enable()  # doctest: +SKIP
>>> with toprung.cupy.exclude():  # doctest: +SKIP
...     c = a @ b
>>> print(toprung.cupy.report())  # doctest: +SKIP
"""

from toprung.errors import MissingExtra

try:
    import cupy
except ImportError:
    raise MissingExtra("toprung.cupy needs CuPy, which is not installed: pip install cupy-cuda13x") from None
if not hasattr(cupy.matmul, "_try_fastcall_func") or not hasattr(cupy._core, "tensordot_core"):
    raise MissingExtra(f"toprung.cupy needs CuPy 14, and this is {cupy.__version__}: pip install --upgrade cupy-cuda13x")

from toprung.cupy.report import Report, report
from toprung.cupy.settings import Settings
from toprung.cupy.switch import disable, enable, exclude, is_enabled, use

__all__ = ["Report", "Settings", "disable", "enable", "exclude", "is_enabled", "report", "use"]
