"""Selection for products of halves: a kernel that reads them as they lie, or none if converting them first is faster."""

from __future__ import annotations

import math
from dataclasses import replace

from toprung.device import Device
from toprung.dispatch import ranking
from toprung.dispatch.select import classes
from toprung.dispatch.selection import Selection
from toprung.gemm.desc import ELEMENT_BYTES, Desc, GemmDesc
from toprung.kernels import cost_model
from toprung.kernels.registry import families

CONVERT = cost_model.fitted("selection")["convert"]
"""PyTorch's conversion of an operand: bytes per second, start in seconds (``models/selection.json``)."""


def select(device: Device, desc: Desc, precision: str, own: bool = False) -> Selection | str:
    """Return what runs a product of halves as they lie, or the reason, a part of a sentence, why they are converted first.

    ``own``: only kernels of toprung's own are asked for.
    """
    if desc.is_vector:
        return "as products with a vector are of float32"
    order, why = ranked(device, desc, precision, own)
    if not order or order[0].seconds == math.inf:
        return why
    ours, converted = order[0], converted_seconds(device, desc, precision)
    if converted < ours.seconds:
        return f"as that is predicted to take {converted * 1e6:.0f} us with the product, and {ours} {ours.seconds * 1e6:.0f}"
    against = ("converted first", f"{converted / ours.seconds:.1f} times as long by the cost model")
    halves = [f"{name} is read as {kind}" for name, kind in (("A", desc.type_a), ("B", desc.type_b)) if kind != "float32"]
    where = "" if ours.family.precision == "fp32" else ", on Tensor Cores"
    return Selection(ours.candidate, f"{' and '.join(halves)}, as it lies{where}", (against,))


def ranked(device: Device, desc: Desc, precision: str, own: bool = False) -> tuple[list[ranking.Predicted], str]:
    """Return all candidates that read operands of a product's types, least predicted time first, and why there are none if so.

    Candidates of which no time is known come last: a check measures them, too.
    """
    kinds, reasons, wanted = {desc.skinny.type_large, desc.skinny.type_small}, dict[str, None](), classes(precision)
    found: list[ranking.Predicted] = []
    for family in families():
        if own and not family.own:
            continue
        if family.precision in wanted and family.memory == "device" and kinds <= family.operand_dtypes:
            if reason := family.supports(device, desc):
                reasons[reason] = None
                continue
            found += ranking.of_family(device, desc, family)
    why = "; ".join(reasons) or "no kernel for this device and precision takes it"
    return sorted(found, key=ranking.BY_SECONDS), f"as {why}"


def converted_seconds(device: Device, desc: GemmDesc, precision: str) -> float:
    """Return the predicted seconds of a product whose halves are converted to float32 first."""
    plain = replace(desc, type_a="float32", type_b="float32", lda=0, ldb=0)
    seconds = min([ranking.least(device, plain, *ranking.able(device, plain, name, True)) for name in classes(precision)])
    for rows, kind, apart in ((desc.M, desc.type_a, desc.stride_a), (desc.N, desc.type_b, desc.stride_b)):
        if kind != "float32":
            elements = rows * desc.K * (desc.batch if apart else 1)
            seconds += CONVERT["start"] + elements * (ELEMENT_BYTES[kind] + 4) / CONVERT["rate"]
    return seconds
