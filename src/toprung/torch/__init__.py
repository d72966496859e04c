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

from toprung.torch.background import wait
from toprung.torch.report import Report, report
from toprung.torch.settings import ALL, Settings
from toprung.torch.switch import disable, enable, exclude, is_enabled, use

__all__ = ["ALL", "Report", "Settings", "disable", "enable", "exclude", "is_enabled", "report", "use", "wait"]
