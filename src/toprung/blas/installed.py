"""Comparison of a decided call with what the arrays' own library would run in its place, before either has run."""

from __future__ import annotations

import math

from toprung.blas.product import Call, InPlace, OnDevice
from toprung.device import Device
from toprung.dispatch import ranking
from toprung.dispatch.selection import Selection
from toprung.gemm.desc import Desc

MARGIN = 1.08
"""Factor by which a product must be faster than the vendor's by the cost model to be taken: below, the model errs too often.

Chosen by ``results/nvidia-h200/torch-products.json``, whose forced paths show what another choice would have taken."""


def slower(call: Call, theirs: str) -> str:
    """Return why what the arrays' library runs by itself, named ``theirs``, should be as fast; empty if toprung's is faster."""
    if not isinstance(call, OnDevice | InPlace):
        return "the host's own BLAS is as fast"
    device, every = call.executable.session.device, call.executable.selections.items()
    reasons = (not_faster(device, desc, selection, theirs) for desc, selection in every)
    return next(filter(None, reasons), "")


def not_faster(device: Device, desc: Desc, selection: Selection, theirs: str) -> str:
    """Return why what the arrays' library runs in place of a selection should be as fast; empty if toprung's is faster."""
    if not selection.family.own:
        return f"{selection} is as fast: {selection.why}"
    times = math.inf if selection.weighed else ranking.against_installed(device, desc, selection.candidate)  # both were measured
    return f"{theirs} takes {times:.2f} times as long as {selection} by the cost model" if times < MARGIN else ""
