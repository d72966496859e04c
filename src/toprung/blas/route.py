"""Which precision path a call takes and with what: decided from the device and the call alone, never from the data.

The data decide on the device: fp32x computes again in plain fp32 what two fp16 terms cannot carry.
"""

from __future__ import annotations

from dataclasses import replace

from toprung import hopper
from toprung.blas import fp32x, vendor
from toprung.blas.call import Call, GemmCall, GemvCall
from toprung.blas.choice import Choice, PassedOver
from toprung.blas.choose import STORES, choose
from toprung.device import Device
from toprung.errors import Unsupported

PRECISIONS = ("auto", "fp32", "fp32x", "tf32")
"""What can be asked for."""

NEAR = 1.25
"""How many times as long as plain fp32 fp32x may take by the reckoning of both to be worth measuring."""

TF32 = (("TF32", 1),)
"""The options of cuBLAS with operands cut to TF32."""


def route(device: Device, call: Call, own: bool, precision: str) -> tuple[Choice, str]:
    """What runs a call, and the path by its name in ``toprung.precision``.

    Raises
    ------
    Unsupported
        a precision there is no path for: an unknown one, or TF32 where cuBLAS is missing or only kernels of ours were asked for
    """
    if precision not in PRECISIONS:
        raise Unsupported(f"there is no precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    if precision == "tf32":
        return _tf32(device, call, own)
    if precision == "fp32":
        return choose(device, call, own=own), "fp32"
    reason, told = unsuited(device, call), None
    if not reason and precision == "auto":
        assert not isinstance(call, GemvCall)
        told = next((t for one in STORES if (t := one.fp32x(device, call, own)) is not None), None)
        reason = hopper.faster(call, device.compute_units) if told is None else told
    if not reason:
        assert not isinstance(call, GemvCall)
        passed: PassedOver = ()
        if precision == "auto" and told is not None:
            passed = (("fp32", "slower where both were measured, says the store"),)
        elif precision == "auto":
            ours, plain = hopper.reckoned(call, device.compute_units)
            passed = (("fp32", f"{plain / ours:.1f} times as long by the reckoning of both"),)
        found = fp32x_choice(device, call)
        why = f"as accurate as fp32, on matrix units, {found.why}"
        return replace(found, why=why, passed_over=(*passed, *found.passed_over)), "fp32x"
    plain_one = choose(device, call, own=own)
    if precision == "fp32x":  # asked for, and not had: the first thing to be told
        return replace(plain_one, why=f"{reason}; fp32 ran in its place. {plain_one.why}".strip()), "fp32"
    if device.arch == "sm_90" and device.backend == "cuda":
        return replace(plain_one, passed_over=(*plain_one.passed_over, ("fp32x", reason))), "fp32"
    return plain_one, "fp32"


def fp32x_choice(device: Device, call: Call) -> Choice:
    """The tile and slices of fp32x for a call that it can compute: what a store knows, else what is reckoned."""
    passed: PassedOver = ()
    for one in STORES:
        found, more = one.fp32x_choice(device, call)
        passed += more
        if found is not None:
            return replace(found, passed_over=(*found.passed_over, *passed))
    return replace(reckoned_choice(device, call), passed_over=passed)


def reckoned_choice(device: Device, call: Call) -> Choice:
    """What fp32x takes where nobody has tuned, whatever is stored."""
    assert not isinstance(call, GemvCall)
    tile, slices = way = hopper.choose(call, device.compute_units)
    return fp32x.choice_of(way, f"in tiles of {tile.BM}×{tile.BN}" + f" and {slices} slices of K" * (slices > 1))


def promising(device: Device, call: Call) -> bool:
    """Whether fp32x is, or may be, faster than plain fp32 on a call that it can compute."""
    assert isinstance(call, GemmCall)
    ours, plain = hopper.reckoned(call, device.compute_units)
    return ours <= NEAR * plain


def paths(device: Device, call: Call, precision: str) -> tuple[str, ...]:
    """The paths that are worth measuring: fp32x first, so that the comparison after plain fp32 has the best of it."""
    if precision == "fp32" or unsuited(device, call):
        return () if precision == fp32x.FP32X else ("fp32",)
    if precision == fp32x.FP32X:
        return (fp32x.FP32X,)
    return (fp32x.FP32X, "fp32") if promising(device, call) else ("fp32",)


def unsuited(device: Device, call: Call) -> str:
    """Why fp32x cannot compute a call, as a sentence; empty where it can."""
    if isinstance(call, GemvCall):
        return "fp32x is for products of matrices: with a vector memory is the limit"
    return hopper.supported(device, call)


def _tf32(device: Device, call: Call, own: bool) -> tuple[Choice, str]:
    """cuBLAS's, which is not as accurate as fp32."""
    advice = "use 'auto', which is as accurate as fp32"
    if own:
        raise Unsupported(f"precision 'tf32' has no kernels of toprung's own: leave own=True out, or {advice}")
    if reason := vendor.lacking(device):
        raise Unsupported(f"precision 'tf32' is cuBLAS's, and {reason}: {advice}")
    if isinstance(call, GemvCall):
        plain = choose(device, call, own=own)
        return replace(plain, why=f"with a vector memory is the limit, and fp32 as fast as TF32. {plain.why}"), "fp32"
    why = "asked for: operands cut to 11 bits, NOT as accurate as fp32"
    return Choice("cublas", None, TF32, why, (("fp32x", "TF32 was asked for"),)), "tf32"
