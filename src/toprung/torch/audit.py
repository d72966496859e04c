"""Audit of a program: the precision in which PyTorch really computes each of its matrix products, and toprung's beside it."""

from __future__ import annotations

import functools
import math
import os
import textwrap
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toprung.blas import routines
from toprung.dispatch import known_precision
from toprung.errors import BadArgument, ToprungError
from toprung.torch.modules import Modules
from toprung.torch.products import lie, problem_of
from toprung.torch.settings import ALL, UNSEEN, Settings
from toprung.torch.switch import exclude

FACTORS = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "addmv": (1, 2), "baddbmm": (1, 2),
    "_addmm_activation": (1, 2),
}  # fmt: skip
"""Operators of aten that multiply matrices, and which of their arguments are the factors."""

ADDING = {"_addmm_activation": "addmm"}
"""Operators without their activation."""

HIDDEN = (
    "convolution", "addbmm", "_rnn", "lstm", "gru", "_scaled_dot_product", "_flash_attention", "_efficient_attention", "linalg",
    "cholesky", "triangular_solve", "geqrf", "ormqr",
)  # fmt: skip
"""Parts of the names of operators that multiply matrices without one of ``FACTORS``."""

BITS = {"TF32": 10, "bf16": 7}
"""Bits of the significand to which fp32 operands are rounded where a product is computed in less."""

EMULATION = "CUBLAS_EMULATE_SINGLE_PRECISION"
"""Variable that lets cuBLAS compute fp32 products from bf16 ones."""


@dataclass
class Row:
    """The products of one kind that a module made.

    Attributes
    ----------
    module : path of the innermost module that ran, in the forward pass, as ``ModuleTracker`` has it; empty outside of modules
    backward : True if it ran in the backward pass
    op : operator of aten
    problem, layout : batch×M×N×K, and how A and B lie, as in ``report``
    device : PyTorch's name of the device
    dtype : type of A
    count : calls
    precision : what PyTorch computed in: ``fp32``, ``TF32``, ``bf16``, ``emulated fp32``, or for other types their own; ``?`` if
        its result is no number where it should be one
    error : ‖C − C_ref‖ / ‖C_ref‖ of PyTorch's result against float64, over the sampled rows; NaN if none are finite
    ours : the same of toprung's result; NaN for types that are not fp32, on devices that are not taken, and where toprung refused
    why : the reason why ``ours`` is missing
    """

    module: str
    backward: bool
    op: str
    problem: str
    layout: str
    device: str
    dtype: str
    count: int = 0
    precision: str = ""
    error: float = math.nan
    ours: float = math.nan
    why: str = ""

    @property
    def lowered(self) -> bool:
        """True if fp32 operands were multiplied in less than fp32."""
        return self.precision in BITS


@dataclass
class Audit:
    """Result of ``audit``; ``print`` it, or take ``to_json()``.

    Attributes
    ----------
    rows : kinds of products by module, in the order in which they first ran
    hidden : calls of operators that multiply inside of other libraries, whose products were not seen, by name
    result : what the audited function returned
    """

    rows: list[Row] = field(default_factory=list)
    hidden: dict[str, int] = field(default_factory=dict)
    result: Any = None

    @property
    def lowered(self) -> list[Row]:
        """Rows of fp32 products that were computed in less than fp32."""
        return [row for row in self.rows if row.lowered]

    def to_json(self) -> dict[str, Any]:
        """Return what was found as plain data; NaN is None, and an infinite error ``"inf"``."""
        rows = [{k: None if v != v else "inf" if v == math.inf else v for k, v in asdict(row).items()} for row in self.rows]
        return {"rows": rows, "lowered": len(self.lowered), "hidden": self.hidden, "not_seen": list(UNSEEN)}

    def __str__(self) -> str:
        calls = sum(row.count for row in self.rows)
        low = sum(row.count for row in self.lowered)
        said = f"{calls} product{'' if calls == 1 else 's'}, none in less than the type of its operands"
        lines = [f"{low} of {calls} products had fp32 operands and were computed in less than fp32" if low else said]
        worst = [_figure(max((x for x in errors if not math.isnan(x)), default=math.nan)) for errors in self._errors]
        if all(worst):
            lines.append(f"largest error of fp32 products: PyTorch's {worst[0]}, toprung's {worst[1]}")
        if self.rows:
            lines.append(
                f"{'operator':12} {'batch×M×N×K':20} {'layout':6} {'calls':>5} {'computed in':13} {'PyTorch':>8} {'toprung':>8}"
            )
        for module in dict.fromkeys(row.module for row in self.rows):
            lines.append(module or "(no module)")
            for row in self.rows:
                if row.module == module:
                    mark = "!" if row.lowered else " "
                    what = f"{row.op + ' ←' * row.backward:10} {row.problem}"
                    lines.append(
                        f"{mark} {what:31} {row.layout:6} {row.count:5} {row.precision:13} "
                        f"{_figure(row.error):>8} {_figure(row.ours):>8}"
                    )
        for why in dict.fromkeys(row.why for row in self.rows if row.why):
            lines += textwrap.wrap(f"toprung's error is missing where {why}", 78, subsequent_indent="    ")
        if self.hidden:
            lines.append("not looked into, because they multiply inside of other libraries:")
            lines += [f"    {name}: {count} call{'s' * (count > 1)}" for name, count in self.hidden.items()]
        if self.rows:
            lines += [
                "layout of A and B: N by rows, T by columns, S with gaps; ← in the backward pass",
                "! in less than fp32; last two columns: errors of sampled rows against float64",
            ]
        return "\n".join(lines)

    @property
    def _errors(self) -> tuple[list[float], list[float]]:
        """PyTorch's errors and toprung's, of the kinds of which there are both."""
        both = [row for row in self.rows if not math.isnan(row.ours)]
        return [row.error for row in both], [row.ours for row in both]


def _figure(x: float) -> str:
    return "" if math.isnan(x) else f"{x:.1e}"


def audit(
    fn: Callable[..., Any], *args: Any, precision: str = "auto", rows: int = 64, device_types: Collection[str] = ("cuda",),
    **kwargs: Any,
) -> Audit:  # fmt: skip
    """Run a function once and return, for each matrix product it makes, the precision PyTorch uses and its error and toprung's.

    PyTorch's own kernels run, whatever is enabled, and compiled functions run uncompiled. The first product of each kind and
    module is compared: some of its rows with float64, and with what TF32 and bf16 would make of the same operands. Work that other
    threads of the program start is not seen, but for the backward pass.

    Parameters
    ----------
    fn : function to run, a module, say, or a whole training step
    args, kwargs : what it is given
    precision : path of toprung's products, as for ``toprung.matmul``
    rows : rows of each result that are compared with float64
    device_types : devices whose tensors toprung multiplies, too, as for ``enable``

    Raises
    ------
    BadArgument
        no function, a precision or a type of device that there is not, or no rows

    Examples
    --------
    >>> found = toprung.torch.audit(lambda: loss(model(x)).backward())  # doctest: +SKIP
    >>> print(found)  # doctest: +SKIP
    >>> assert not found.lowered  # nobody has switched on TF32  # doctest: +SKIP
    """
    if not callable(fn):
        raise BadArgument(f"fn is a function to run, not {type(fn).__name__}: pass lambda: loss(model(x)).backward(), say")
    known_precision(precision)
    device_types = Settings.of("auto", ALL, device_types, False, None, None).device_types
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise BadArgument(f"rows is a number of rows from 1 on, not {rows!r}")
    auditing = Auditing(precision, rows, device_types)
    with auditing:
        auditing.found.result = fn(*args, **kwargs)
    return auditing.found


class Auditing(TorchDispatchMode):  # type: ignore[misc]
    """A block in which each product is looked at; ``found`` has what ``audit`` returns."""

    def __init__(self, precision: str = "auto", rows: int = 64, device_types: Collection[str] = ("cuda",)) -> None:
        super().__init__()
        self.found = Audit()
        self._precision, self._sampled, self._device_types = precision, rows, device_types
        self._kinds: dict[tuple[Any, ...], Row] = {}
        self._modules = Modules()
        self._around: tuple[Any, ...] = ()

    def __enter__(self) -> Any:
        self._around = exclude(), torch.compiler.set_stance("force_eager"), self._modules
        for one in self._around:
            one.__enter__()
        return super().__enter__()

    def __exit__(self, *what: Any) -> None:
        super().__exit__(*what)
        for one in reversed(self._around):
            one.__exit__(*what)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and look at it if it multiplies matrices."""
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name not in FACTORS:
            if any(part in name for part in HIDDEN) and not name.endswith("check_errors"):
                self.found.hidden[name] = self.found.hidden.get(name, 0) + 1
            return func(*args, **kwargs)
        first, second = FACTORS[name]
        a, b = args[first], args[second]
        row = self._row(name, a, b)
        result = func(*args, **kwargs)
        row.count += 1
        if row.count == 1 and a.numel() and b.numel() and a.layout == b.layout == torch.strided:
            # where something is added, the same operator adds zeros, for the product alone is compared
            self._look(row, a, b, result if first == 0 else getattr(torch, ADDING.get(name, name))(torch.zeros_like(args[0]), a, b))
        return result

    def _row(self, name: str, a: Any, b: Any) -> Row:
        module, backward = self._modules.of(a, b)
        dtype = str(a.dtype).removeprefix("torch.")
        key = module, backward, name, problem_of(a, b), lie(a) + lie(b), str(a.device), dtype
        row = self._kinds.get(key)
        if row is None:
            row = self._kinds[key] = Row(*key)
            self.found.rows.append(row)
        return row

    def _look(self, row: Row, a: Any, b: Any, theirs: Any) -> None:
        """Fill in precision and errors."""
        a, b = a.detach(), b.detach()
        if not a.is_floating_point():
            row.precision = row.dtype
            return
        with torch.no_grad():
            picked, exact = _sampled(a, b, self._sampled)
            row.error = _error(picked(theirs), exact(_as_is))
            if a.dtype != torch.float32:
                row.precision, row.why = row.dtype, "operands are not fp32"
                return
            rounded = {name: _error(exact(functools.partial(_rounded, bits=bits)), exact(_as_is)) for name, bits in BITS.items()}
            row.precision = _computed_in(row.error, rounded, a.device.type)
            if a.device.type not in self._device_types:
                row.why = f"tensors on {a.device.type} are left alone"
                return
            try:
                row.ours = _error(picked(routines.computed(a, b, None, self._precision, False, None)), exact(_as_is))
            except ToprungError as error:
                row.why = str(error)


def _as_is(x: Any) -> Any:
    return x


def _rounded(x: Any, bits: int) -> Any:
    """Return fp32 numbers rounded to a significand of so many bits behind the point."""
    cut = 23 - bits
    words = x.contiguous().view(torch.int32)
    made = (words + ((words >> cut) & 1) + (1 << (cut - 1)) - 1) >> cut << cut
    return torch.where(x.isfinite(), made.view(torch.float32), x)


def _sampled(a: Any, b: Any, rows: int) -> tuple[Callable[[Any], Any], Callable[[Callable[[Any], Any]], Any]]:
    """Return functions: sampled rows of a result; and the same rows in float64, of operands that go through a function first."""
    vector = b.dim() == 1
    x = a.reshape(1, 1, -1) if a.dim() == 1 else a.unsqueeze(0) if a.dim() == 2 else a
    y = b.reshape(1, -1, 1) if vector else b.unsqueeze(0) if b.dim() == 2 else b
    batches = _spread(x.shape[0], max(1, min(x.shape[0], math.isqrt(rows))), a.device)
    lines = _spread(x.shape[1], max(1, rows // len(batches)), a.device)

    def picked(result: Any) -> Any:
        return result.reshape(x.shape[0], x.shape[1], y.shape[2])[batches][:, lines].double()

    def exact(through: Callable[[Any], Any]) -> Any:
        return through(x[batches][:, lines]).double() @ through(y[batches]).double()

    return picked, exact


def _spread(count: int, wanted: int, device: Any) -> Any:
    """Return ``wanted`` indices from the first to the last of ``count``, or all."""
    return torch.arange(count, device=device) if count <= wanted else torch.linspace(0, count - 1, wanted, device=device).long()


def _error(found: Any, exact: Any) -> float:
    """Return ‖found − exact‖ / ‖exact‖ of what fp32 can hold; infinite if something there is no number, NaN if there is nothing."""
    finite = exact.float().isfinite()
    if not bool(finite.any()):
        return math.nan
    whole = float(exact[finite].norm())
    off = float((found[finite] - exact[finite]).norm())
    return 0.0 if off == 0 else off / whole if whole and math.isfinite(off) else math.inf


def _computed_in(error: float, rounded: dict[str, float], device_type: str) -> str:
    """Return the precision of a product of fp32 operands, by its error beside those that rounding its operands would make.

    Operands that rounding leaves as they are (small integers, say) tell nothing; then it is what PyTorch's settings say.
    """
    asked = torch._C._get_fp32_precision_getter("cuda" if device_type == "cuda" else "mkldnn", "matmul")
    if rounded["TF32"] == 0:
        return {"tf32": "TF32", "bf16": "bf16"}.get(asked, "fp32") if device_type == "cuda" else "fp32"
    if math.isinf(error):
        return "?"
    if error >= math.sqrt(rounded["TF32"] * rounded["bf16"]):
        return "bf16"
    if error >= 0.3 * rounded["TF32"]:
        return "TF32"
    return "emulated fp32" if device_type == "cuda" and os.environ.get(EMULATION, "0") not in ("", "0") else "fp32"
