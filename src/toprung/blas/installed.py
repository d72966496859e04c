"""Comparison of a decided call with what the arrays' own library would run in its place, before either has run."""

from __future__ import annotations

from toprung.blas.product import Call, InPlace, OnDevice
from toprung.dispatch import ranking

MARGIN = 1.08
"""Factor by which a product must be faster than the vendor's by the cost model to be taken: below, the model errs too often.

Chosen by ``results/nvidia-h200/torch-products.json``, whose forced paths show what another choice would have taken."""


def slower(call: Call, theirs: str) -> str:
    """Return why what the arrays' library runs by itself, named ``theirs``, should be as fast; empty if toprung's is faster."""
    if not isinstance(call, OnDevice | InPlace):
        return "the host's own BLAS is as fast"
    executable = call.executable
    if not executable.own:
        return f"{executable.kernels[0]} is as fast: {executable.why}"
    device = executable.session.device
    for desc, selection in executable.selections.items():
        if selection.weighed:
            continue  # both have been measured
        times = ranking.against_installed(device, desc, selection.candidate)
        if times < MARGIN:
            return f"{theirs} takes {times:.2f} times as long as {selection} by the cost model"
    return ""
