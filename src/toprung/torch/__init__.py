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

import sys

from toprung.errors import MissingExtra

try:
    import torch

    if not hasattr(torch.library, "get_kernel"):
        raise MissingExtra(f"toprung.torch needs a newer PyTorch than {torch.__version__}: pip install --upgrade torch")
except ImportError as error:
    text = (
        str(error) if isinstance(error, MissingExtra) else "toprung.torch needs PyTorch, which is not installed: pip install torch"
    )
    if sys.argv[:1] == ["-m"] and ("-m", __name__) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
        print(text, file=sys.stderr)  # an error would stand below eight lines of runpy's
        sys.exit(2)
    raise MissingExtra(text) from None

from toprung.torch import operator as _operator  # noqa: F401  # registers it: a graph that was exported with it can be loaded
from toprung.torch.audit import Audit, audit
from toprung.torch.products import wait
from toprung.torch.report import Report, report
from toprung.torch.settings import ALL, Settings
from toprung.torch.switch import disable, enable, exclude, is_enabled, use

__all__ = ["ALL", "Audit", "Report", "Settings", "audit", "disable", "enable", "exclude", "is_enabled", "report", "use", "wait"]
