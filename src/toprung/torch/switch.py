"""``enable``, ``disable``, ``use`` and ``exclude``: which settings are active, for the whole process."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import time
import warnings
from collections import deque
from collections.abc import Collection
from typing import Any

import torch

from toprung.backends import backends, native_plan
from toprung.blas import background, idle, remembered
from toprung.blas.switch import Block, Switch
from toprung.kernels.registry import families
from toprung.torch import bridge, caches, products
from toprung.torch.modules import Modules
from toprung.torch.overloads import OVERLOADS, form, kernel
from toprung.torch.settings import ALL, Settings


class _Overriding:
    """Kernels of ours in place of PyTorch's own for a type of device, until ``end``."""

    def __init__(self, device_type: str) -> None:
        self._key = key = device_type.upper()
        self.native = bridge.library()
        keys = torch.DispatchKeySet(getattr(torch.DispatchKey, key))  # PyTorch's own kernels want one, and do not look at it
        self._library = torch.library.Library("aten", "IMPL")
        self._kernels = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            for name, op in OVERLOADS.items():
                base, _, overload = name.partition(".")
                # some overloads exist on GPUs alone, and some not in every version
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                    continue
                original = functools.partial(torch.library.get_kernel(f"aten::{name}", key).call_boxed, keys)
                which = [text.encode() for text in (f"aten::{base}", overload, key)]
                if self.native is not None:
                    self.native.toprung_keep(*which)
                self._library.impl(name, kernel(name, original), key)
                if self.native is not None and not self.native.toprung_override(*which, form(name).encode(), ALL.index(op)):
                    bridge.refused.add(name)
                self._kernels.append(torch.library.get_kernel(f"aten::{name}", key))

    def end(self) -> None:
        """Give PyTorch's own kernels their places back."""
        if self.native is not None:
            self.native.toprung_restore(self._key.encode())
        self._library._destroy()
        _ended.append((time.monotonic(), self._kernels))
        while time.monotonic() - _ended[0][0] > GRACE:
            _ended.popleft()


_overriding: dict[str, _Overriding] = {}

GRACE = 60.0
"""Seconds that our kernels live on after they were replaced."""

_ended: deque[tuple[float, list[Any]]] = deque()
"""Kernels that were replaced, and when: PyTorch frees them at once, while other threads may be about to run them."""


def _apply(active: Settings | None, there: list[Settings]) -> None:
    """Make active settings hold from now on; PyTorch's kernels are overridden as long as some settings may become active."""
    wanted = {kind for settings in there for kind in settings.device_types}
    native = bridge.library()
    for kind in [kind for kind, one in _overriding.items() if one.native is not native]:
        _overriding.pop(kind).end()
    for kind in wanted - _overriding.keys():
        _overriding[kind] = _Overriding(kind)
    products.activate(None if active is None else products.products_of(active))
    if (active is not None and active.modules) != (products.watching is not None):
        if products.watching is None:
            products.watching = Modules().__enter__()
        else:
            products.watching.__exit__(None, None, None)
            products.watching = None
    # PyTorch reads its table of kernels while another thread writes it, and may call one kernel with another's state. So overrides
    # in C++ stay for good: those that take nothing cost a hundred instructions.
    for kind in _overriding.keys() - wanted if native is None else ():
        _overriding.pop(kind).end()
    caches.tag(active)
    if active is not None and "cpu" not in active.device_types and not idle.tell("PyTorch", products.gpus):
        # load now what preparing needs: loading it later would hold the GIL while the program computes
        backends()
        families()
        native_plan.entry()
        remembered.program()
        with contextlib.suppress(ImportError):
            importlib.import_module("cuda.core")
        if gc.isenabled():  # it would look at all these modules, for a tenth of a second, once preparing has made some objects
            _collect_once()
        background.HERE.start()
        if why := bridge.missing():
            idle.say("overrides", f"products that stay PyTorch's ({torch.__version__}) enter Python: {why}")
    if active is not None and "cuda" in active.device_types and torch.cuda.is_initialized():
        products.tell(torch.cuda.current_device(), active)


_collect_once = functools.cache(gc.collect)

_switch = Switch(_apply)


def enable(
    precision: str = "auto", *, ops: Collection[str] = ALL, device_types: Collection[str] = ("cuda",), own: bool = False,
    min_flops: int | None = None, reproducible: bool | None = None, modules: bool = False,
) -> None:  # fmt: skip
    """Take PyTorch's fp32 matrix products of this process from now on: forward and backward, eager and compiled.

    No product waits: PyTorch's own runs until the kernel is ready, which is prepared beside the program once products of its kind
    were frequent enough to gain what that costs. So a product's bits may change once. Where the program asks for TF32, for its
    deterministic mode, or for another type by autocast, it gets what it asks for.

    Parameters
    ----------
    precision : ``"auto"`` and ``"fp32x"``: as accurate as fp32, on Tensor Cores where those are faster, or always; ``"fp32"``: IEEE
        single on ordinary cores
    ops : operators of aten to take, by default all that can be: ``toprung.torch.ALL``
    device_types : ``"cuda"``, and ``"cpu"``, where OpenCL's kernels run on the tensors' own memory
    own : True to run toprung's kernels also where PyTorch's own are expected to be as fast
    min_flops : number of operations below which PyTorch's own run; by default 5e8, with ``own`` 0
    reproducible : True to run toprung's kernels in PyTorch's deterministic mode, too: then a product waits for its kernel,
        so that results depend on nothing but the operands. After 600 s it raises ``NotReady``, which names the kernel. In a
        forked child nothing waits, and all products are PyTorch's, as are in a capture those that were not prepared before
    modules : True to count products by the module that makes them, for ``report``; costs some microseconds for each module that
        runs, and compiled functions have none

    Raises
    ------
    BadArgument
        a value that there is not
    """
    settings = Settings.of(precision, ops, device_types, own, min_flops, reproducible, modules)
    with _switch.lock:
        products.forget()
        _switch.enable(settings)


def disable() -> None:
    """Leave all products to PyTorch again; blocks of ``use`` that are open keep what they say."""
    _switch.enable(None)


def is_enabled() -> bool:
    """Return True if products are taken now."""
    return products.now is not None


class use(Block[Settings]):
    """Take products in a block, or in a function that it decorates; the parameters are those of ``enable``.

    It holds for the whole process while it is open, as the flags of ``torch.backends`` do, for PyTorch's backward runs on threads
    of its own. A ``backward()`` in the block is taken, one after it is not.

    Examples
    --------
    >>> with toprung.torch.use(precision="fp32x"):  # doctest: +SKIP
    ...     loss(model(x)).backward()
    """

    def __init__(
        self, precision: str = "auto", *, ops: Collection[str] = ALL, device_types: Collection[str] = ("cuda",), own: bool = False,
        min_flops: int | None = None, reproducible: bool | None = None, modules: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(_switch, Settings.of(precision, ops, device_types, own, min_flops, reproducible, modules))


class exclude(Block[Settings]):
    """Leave products to PyTorch in a block, or in a function that it decorates, for the whole process while it is open."""

    def __init__(self) -> None:
        super().__init__(_switch, None)
