"""Products of bfloat16 and float16 tensors with float32: results, gradients, compiled functions, the second call, plans."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import toprung
from toprung import errors
from torch_device import DEVICE

HALVES = (torch.bfloat16, torch.float16)
MIXES = [p for p in itertools.product((torch.float32, *HALVES), repeat=2) if p != (torch.float32, torch.float32)]


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def right(found: Any, a: Any, b: Any) -> bool:
    """Return True if a product is as near to float64's of the operands as given as chains in fp32 would be."""
    x, y = a.detach().double(), b.detach().double()
    bound = (16 + x.shape[-1] ** 0.5) * 2.0**-24 * (x.abs() @ y.abs())
    return found.dtype == torch.float32 and bool(((found.double() - x @ y).abs() <= bound).all())


@pytest.mark.parametrize("types", MIXES, ids=str)
def test_any_mix(types: Any) -> None:
    """Each product three times: decided, remembered, and started again, on other values at other addresses."""
    for turn in range(3):
        a, b = drawn(3, 33, 65 + turn % 2, dtype=types[0]), drawn(70, 17, dtype=types[1])[: 65 + turn % 2]
        for x, y in ((a, b), (a[0], b), (a.mT, a[:, :, :20]), (a[0, :, 1], b[:33]), (a[:, ::2], b), (a[:, :, :0], b[:0])):
            for _ in range(3):
                assert right(toprung.matmul(x, y), x, y)
                x = x + 1
        out = torch.full((33, 17), torch.nan, device=DEVICE)
        for _ in range(3):
            assert toprung.matmul(a[0], b, out=out) is out and right(out, a[0], b)
        made = toprung.matmul(a[0], b, bias=out[0], activation="relu")
        torch.testing.assert_close(made, torch.relu(a[0].float() @ b.float() + out[0]), rtol=1e-4, atol=1e-4)


def test_one_signature_for_each_type() -> None:
    """A call that was remembered for one type is not taken for another of the same size."""
    a, b = drawn(40, 64), drawn(64, 40)
    for kinds in [*MIXES, *MIXES, (torch.float32, torch.float32)]:
        x, y = a.to(kinds[0]), b.to(kinds[1])
        assert right(toprung.matmul(x, y), x, y)


def test_a_plan_takes_its_own_types() -> None:
    a, b = drawn(40, 64, dtype=torch.bfloat16), drawn(64, 40)
    plan = toprung.plan(a, b)
    for _ in range(3):
        assert right(plan(a, b), a, b)
        a = a + 1
    for wrong in (a.float(), a.half()):
        with pytest.raises(errors.StalePlan):
            plan(wrong, b)


def test_prepacked_weights_and_the_receipt() -> None:
    a, b = drawn(40, 64, dtype=torch.bfloat16), drawn(64, 40)
    assert right(toprung.matmul(a, toprung.prepack(b)), a, b)
    toprung.matmul(a, b)
    receipt = toprung.last_receipt()
    assert receipt is not None and "bfloat16" in str(receipt)
    with pytest.raises(errors.BadArray, match="float32"):
        toprung.prepack(b.half())


@pytest.mark.parametrize("types", MIXES, ids=str)
def test_gradients_have_the_types_of_their_operands(types: Any) -> None:
    a, b = drawn(6, 40, dtype=types[0]).requires_grad_(), drawn(40, 5, dtype=types[1]).requires_grad_()
    grad = drawn(6, 5)
    toprung.matmul(a, b).backward(grad)
    assert a.grad is not None and b.grad is not None and (a.grad.dtype, b.grad.dtype) == types
    x, y = (t.detach().double().requires_grad_() for t in (a, b))
    (x @ y).backward(grad.double())
    for found, exact in ((a.grad, x.grad), (b.grad, y.grad)):
        torch.testing.assert_close(found, exact.to(found.dtype))


def test_a_compiled_function() -> None:
    a, b = drawn(6, 40, dtype=torch.bfloat16), drawn(40, 5)
    made = torch.compile(lambda x, y: 2 * toprung.matmul(x, y), backend="aot_eager")(a, b)
    assert right(made / 2, a, b)


def test_other_types_are_refused() -> None:
    b = drawn(40, 5)
    for kind in (torch.float64, torch.int32, torch.complex64, torch.bool, torch.float8_e4m3fn):
        with pytest.raises(errors.BadArray):
            toprung.matmul(torch.zeros((6, 40), device=DEVICE).to(kind), b)
    with pytest.raises(errors.BadArray):
        toprung.matmul(drawn(6, 40), b, out=torch.empty((6, 5), dtype=torch.bfloat16, device=DEVICE))
