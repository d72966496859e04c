"""Gradients of toprung.matmul and of prepacked operands: backward, twice, forward, batched; functorch; and what tensors refuse."""

from __future__ import annotations

import functools
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

import toprung
from toprung import errors
from toprung.arrays.torch import adapter
from torch_device import DEVICE

SHAPES = [
    ((4, 5), (5, 3)), ((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)), ((4, 5), (2, 5, 3)), ((2, 4, 5), (5,)), ((5,), (2, 5, 3)), ((1, 4, 5), (3, 5, 2)), ((4, 1), (1, 3)),
]  # fmt: skip

matmul = functools.partial(toprung.matmul, own=True)

STEP = {"eps": 0.5, "atol": 2e-3, "rtol": 1e-3}
"""Steps of gradcheck that fp32 resolves: a product is linear in each operand, so that none is too long."""


def wanted(*shape: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=rng).mul(2).sub(1).to(DEVICE).requires_grad_()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_gradients(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = wanted(*a), wanted(*b)
    assert torch.autograd.gradcheck(matmul, (x, y), check_forward_ad=True, **STEP)
    assert torch.autograd.gradgradcheck(matmul, (x, y), check_fwd_over_rev=True, **STEP)
    assert torch.autograd.gradcheck(lambda z: matmul(z, y.detach()), (x,), **STEP)
    made, theirs = matmul(x, y), torch.matmul(x.double(), y.double())
    torch.testing.assert_close(made.double(), theirs, rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad(made.sum(), (x, y))
    for found, oracle in zip(ours, torch.autograd.grad(theirs.sum(), (x, y)), strict=True):
        torch.testing.assert_close(found, oracle, rtol=1e-6, atol=1e-6)


def test_backward_runs_on_our_kernels_with_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = wanted(40, 30), wanted(30, 20)
    matmul(x, y).sum().backward()
    left = toprung.last_receipt()
    assert left is not None and left.own and "×" in left.problem
    with torch.no_grad():
        assert not matmul(x, y).requires_grad
    assert matmul(x.detach(), y).requires_grad and not matmul(x.detach(), y.detach()).requires_grad


@pytest.mark.parametrize("trans", [False, True])
def test_prepacked_operands(trans: bool) -> None:
    weight = wanted(6, 5) if trans else wanted(5, 6)
    packed = toprung.prepack(weight, trans=trans)
    for shape in ((4, 5), (2, 4, 5), (5,)):
        x = wanted(*shape)
        weight.grad = None
        matmul(x, packed).square().sum().backward()
        oracle_x, oracle_w = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
        (oracle_x @ (oracle_w.mT if trans else oracle_w)).square().sum().backward()
        torch.testing.assert_close(x.grad.double(), oracle_x.grad, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weight.grad.double(), oracle_w.grad, rtol=1e-5, atol=1e-5)
    x = wanted(3, 4, 5)
    assert torch.equal(vmap(lambda a: matmul(a, packed))(x), matmul(x, packed))
    _, tangent = jvp(lambda a: matmul(a, packed), (x.detach(),), (x.detach(),))
    torch.testing.assert_close(tangent, matmul(x.detach(), packed))
    fixed = toprung.prepack(weight.detach(), trans=trans)
    assert torch.autograd.gradcheck(lambda a: matmul(a, fixed), (wanted(4, 5),), **STEP)
    torch.testing.assert_close(matmul(x, packed), matmul(x, fixed))


@pytest.mark.parametrize("change", ["step", "add", "view", "data"])
def test_a_prepacked_weight_that_changed_is_refused(change: str) -> None:
    """By an optimiser's step, in place, through a view and by other memory; gradients of earlier products still come out."""
    x, weight = wanted(4, 5), wanted(5, 6)
    packed = toprung.prepack(weight)
    with torch.no_grad():
        plan = toprung.plan(x.detach(), packed)
        plan(x.detach(), packed)
    made = matmul(x, packed)
    if change == "step":
        weight.grad = torch.ones_like(weight)
        torch.optim.SGD([weight], lr=0.1).step()
    elif change == "data":
        weight.data = weight.detach().clone()
    else:
        with torch.no_grad():
            (weight if change == "add" else weight[2:]).add_(1)
    for call in (
        lambda: matmul(x, packed), lambda: toprung.matmul(x.detach(), packed, activation="relu"), lambda: plan(x.detach(), packed),
    ):  # fmt: skip
        with pytest.raises(errors.StaleOperand, match="prepack it again"), torch.no_grad():
            call()
    with pytest.raises(errors.StaleOperand):
        matmul(x, packed)
    made.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(matmul(x, toprung.prepack(weight)), x @ weight)


def test_a_prepacked_weight_alone_wants_a_gradient() -> None:
    x, weight = wanted(4, 5).detach(), wanted(5, 3)
    packed = toprung.prepack(weight)
    made = toprung.matmul(x, packed)
    assert made.requires_grad
    made.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(5, 3))
    with pytest.raises(errors.BadArray, match="gradient"):
        toprung.plan(x, packed)
    with torch.no_grad():
        assert not toprung.plan(x, packed)(x, packed).requires_grad


def test_functorch() -> None:
    x, w = wanted(6, 4, 5).detach(), wanted(5, 3).detach()
    torch.testing.assert_close(vmap(matmul, (0, None))(x, w), x @ w)
    torch.testing.assert_close(
        vmap(matmul, (None, 2), 1)(x[0], torch.stack([w, 2 * w], 2)), torch.stack([x[0] @ w, 2 * x[0] @ w], 1)
    )
    torch.testing.assert_close(vmap(matmul)(x[0], x[1]), (x[0] * x[1]).sum(-1))
    torch.testing.assert_close(vmap(vmap(matmul, (0, None)), (None, 0))(x, torch.stack([w, -w])), torch.stack([x @ w, -(x @ w)]))

    def loss(multiply: Any, weight: torch.Tensor) -> torch.Tensor:
        return multiply(x[0], weight).square().sum()

    for transform in (jacrev, jacfwd, hessian):
        ours, theirs = transform(functools.partial(loss, matmul))(w), transform(functools.partial(loss, torch.matmul))(w)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    per_sample = vmap(torch.func.grad(lambda weight, row: matmul(row, weight).square().sum()), (None, 0))(w, x)
    assert per_sample.shape == (6, 5, 3)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_gradients_in_a_batch() -> None:
    x, y = wanted(4, 5), wanted(5, 3)
    grads = wanted(7, 4, 3).detach()
    batched = torch.autograd.grad(matmul(x, y), (x, y), grads, is_grads_batched=True)
    for i, grad in enumerate(grads):
        for found, one in zip(batched, torch.autograd.grad(matmul(x, y), (x, y), grad), strict=True):
            torch.testing.assert_close(found[i], one, rtol=1e-5, atol=1e-5)


def test_out_with_a_gradient_is_refused() -> None:
    x, y = wanted(4, 5), wanted(5, 3)
    out = torch.full((4, 3), 7.5, device=DEVICE)
    with pytest.raises(errors.BadArray, match="no_grad"):
        matmul(x, y, out)
    assert (out == 7.5).all()
    with torch.no_grad():
        assert matmul(x, y, out) is out


def test_checkpoints_and_hooks() -> None:
    x, y = wanted(4, 5), wanted(5, 3)
    seen = []
    x.register_hook(lambda grad: seen.append(grad.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.utils.checkpoint.checkpoint(matmul, x, y, use_reentrant=False).sum().backward()
    assert seen == [x.shape] and y.grad is not None


def test_modules_that_see_operators_see_the_product() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        made = matmul(wanted(4, 5).detach(), wanted(5, 3).detach())
    assert made.shape == (4, 3)


def test_operands_can_be_sent_to_another_process() -> None:
    assert not adapter.is_watching()  # keeps a module of PyTorch
    assert pickle.loads(pickle.dumps(adapter)) is adapter
