"""Report of the products that ran, on which kernels, and why PyTorch's own ran."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from toprung.blas import idle
from toprung.blas.counted import LEGEND, CountedReport, indented, not_by_kind
from toprung.errors import BadArgument
from toprung.torch import bridge, products, timing
from toprung.torch.settings import UNSEEN


@dataclass(frozen=True)
class Row:
    """One kind of product.

    Attributes
    ----------
    op : operator of aten
    problem : batch×M×N×K
    layout : how A and B lie: N row by row, T column by column, S with gaps
    device : PyTorch's name of the device
    taken, left : calls on toprung's kernels, and on PyTorch's
    kernel : toprung's kernel with its tile; empty if PyTorch's own ran
    why : reason why PyTorch's own ran
    eligible : True if toprung could have computed it
    path : ``fp32``, or ``fp32x`` on Tensor Cores; empty if PyTorch's own ran
    escalated : pieces of the results that fp32x computed again in plain fp32, for numbers that lie too far apart for its terms
    modules : calls by the module that made them, an arrow behind those of the backward pass; empty unless ``enable(modules=True)``
    seconds, their_seconds : time of a call on toprung's kernels and on PyTorch's, where ``report`` measured it, else NaN
    their_kernel : PyTorch's kernel, where it measured on a GPU
    """

    op: str
    problem: str
    layout: str
    device: str
    taken: int
    left: int
    kernel: str
    why: str
    eligible: bool
    path: str = ""
    escalated: int = 0
    modules: dict[str, int] = field(default_factory=dict)
    seconds: float = math.nan
    their_seconds: float = math.nan
    their_kernel: str = ""

    def line(self) -> str:
        """Return what ran it or why not, and what both take."""
        found = f"{self.kernel} ({self.path})" if self.kernel else self.why
        if not math.isnan(self.seconds):
            found += f": {1e6 * self.seconds:.1f} µs"
        if not math.isnan(self.their_seconds):
            found += f"; PyTorch's{f' {self.their_kernel}' * bool(self.their_kernel)}: {1e6 * self.their_seconds:.1f} µs"
        if self.kernel and self.left:
            times = "once" if self.left == 1 else f"{self.left} times"
            found += f"; PyTorch's own ran {times}: {self.why or 'the kernel was not ready'}"
        if self.escalated:
            found += f"; {self.escalated:,} pieces were computed again in plain fp32, for their numbers lie too far apart"
        return found


@dataclass(frozen=True)
class Report(CountedReport[Row]):
    """Counts of products since ``enable``, by kind; ``print`` it, or take ``to_json()`` or ``to_html()``.

    Attributes
    ----------
    device_types : devices whose tensors are taken, by any of the settings that were active
    overrides : language of the overrides that products pass, and why Python's where it is
    step : times of the program's step, where ``report`` was given one and it ran on a GPU
    """

    device_types: tuple[str, ...] = ()
    overrides: str = ""
    step: timing.Step | None = None

    @property
    def nothing(self) -> str:
        """Sentence that no product has run; empty where one has."""
        if self.rows or self.small or self.refused:
            return ""
        return f"no fp32 matrix product of tensors on {' or '.join(self.device_types) or 'any device'} has run"

    @property
    def eligible(self) -> int:
        """Calls that toprung could have computed."""
        return sum(row.taken + row.left for row in self.rows if row.eligible)

    def to_json(self) -> dict[str, Any]:
        # the report as plain data; NaN is None
        rows = [{k: None if v != v else v for k, v in asdict(row).items()} for row in self.rows]
        return {**super().to_json(), "rows": rows, "not_seen": list(UNSEEN)}

    def to_html(self) -> str:
        """Return the report as a page; MissingExtra without jinja2 (extra ``report``)."""
        from toprung.torch import page  # with the report's style, which a program that only trains does not need

        return page.rendered(self)

    def __str__(self) -> str:
        lines = [f"{self.taken} products on toprung's kernels, {self.left} on PyTorch's, {self.small} too small"]
        lines += indented(str(self.step or ""))
        if self.rows:
            lines.append(f"{'operator':18} {'batch×M×N×K':24} {'layout':6} {'toprung':>8} {'PyTorch':>8}")
        for row in self.rows:
            lines.append(f"{row.op:18} {row.problem:24} {row.layout:6} {row.taken:8} {row.left:8}")
            lines += indented(row.line())
            if row.modules:
                first, *others = row.modules
                more = f" and {len(others)} more" if others else ""
                lines += indented(f"in {first or 'no module'}{more}")
        lines += self.left_to("PyTorch")
        if self.rows:
            lines.append(LEGEND)
        lines += indented(self.nothing)
        return "\n".join([*lines, f"overrides: {self.overrides}", "not seen:", *(f"    {what}" for what in UNSEEN)])


def _modules(entries: list[Any]) -> dict[str, int]:
    """Return the calls of a kind by module."""
    found = dict[str, int]()
    for entry in entries:
        for (module, backward), count in entry.modules.items():
            name = module + " ←" * backward
            found[name] = found.get(name, 0) + count
    return found


def report(measure: bool = False, *, step: Callable[[], Any] | None = None) -> Report:
    """Return what ran on which kernels since ``enable``, or since the first ``use``.

    Parameters
    ----------
    measure : True to run each kind of product anew, on random operands that lie alike, and say how long toprung's kernels and
        PyTorch's own take; some tenths of a second for each
    step : function that runs one step of the program as it is: the report then says how long the GPU is idle in a step, and what a
        CUDA graph would bring. It is run two dozen times at least, the last time under PyTorch's profiler, and its products
        count. Where PyTorch uses no GPU it is not run

    Raises
    ------
    BadArgument
        another value of ``measure``, or a step that cannot be called
    NotReady
        kernels of the step's products took too long to be ready
    """
    if not isinstance(measure, bool):
        raise BadArgument(f"measure is True or False, not {measure!r}: the report is of all products since enable")
    if step is not None and not callable(step):
        raise BadArgument(f"step is a function that runs a step of the program, not {step!r}")
    times = None if step is None else timing.timed(step)
    kinds: dict[tuple[str, ...], list[Any]] = {}
    for one in products.every():
        one.collect()
        for entry in one.counted():
            kinds.setdefault((entry.op, entry.problem, entry.layout, entry.device, entry.kernel, entry.why), []).append(entry)
    rows = [
        Row(
            op, problem, layout, device, sum(e.taken for e in entries), sum(e.left for e in entries), kernel, why,
            any(e.eligible for e in entries), entries[-1].path,
            entries[-1].escalated, _modules(entries), *(timing.measured(entries[-1]) if measure else ()),
        )
        for (op, problem, layout, device, kernel, why), entries in kinds.items()
    ]  # fmt: skip
    kinds_of_device = dict.fromkeys(kind for one in products.every() for kind in one.settings.device_types)
    ordered = sorted(rows, key=lambda row: -(row.taken + row.left))
    why = ""
    if "cpu" not in kinds_of_device and not any(row.taken for row in rows):
        why = idle.reason("PyTorch", products.gpus, torch.cuda.current_device() if torch.cuda.is_initialized() else None)
    python = bridge.missing()
    overrides = "C++; products left to PyTorch enter no Python" + (python and f" but {python}")
    if bridge.library() is None:
        overrides = f"Python, {python}"
    return Report(tuple(ordered), *not_by_kind(products.every()), why, tuple(kinds_of_device), overrides, times)
