"""PyTorch's fp32 matrix products through toprung, in one line.

``enable()`` puts toprung's kernels below aten's products (``mm``, ``bmm``, ``addmm``, ``baddbmm``, ``addmv`` and their variants).
``linear``, ``matmul`` and ``einsum`` then take them without a change to the model: forward and backward, eager, compiled, in CUDA
graphs. ``python -m toprung.torch train.py`` does the same for a program that is not edited at all. Whatever toprung has no faster
kernel for runs as if nothing had been enabled.

Examples
--------
>>> import toprung.torch
>>> toprung.torch.enable()  # doctest: +SKIP
>>> with toprung.torch.exclude():  # doctest: +SKIP
...     loss = model(batch)
>>> print(toprung.torch.report())  # doctest: +SKIP
"""

from toprung.errors import MissingExtra

try:
    import torch
except ImportError:
    raise MissingExtra("toprung.torch needs PyTorch, which is not installed: pip install torch") from None
if not hasattr(torch.library, "get_kernel"):
    raise MissingExtra(f"toprung.torch needs a newer PyTorch than {torch.__version__}: pip install --upgrade torch")

from toprung.torch import operator as _operator  # noqa: F401  # registers it: a graph that was exported with it can be loaded
from toprung.torch.audit import Audit, audit
from toprung.torch.background import wait
from toprung.torch.report import Report, report
from toprung.torch.settings import ALL, Settings
from toprung.torch.switch import disable, enable, exclude, is_enabled, use

__all__ = ["ALL", "Audit", "Report", "Settings", "audit", "disable", "enable", "exclude", "is_enabled", "report", "use", "wait"]
