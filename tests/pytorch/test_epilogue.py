"""matmul(…, bias=, activation=) of PyTorch's tensors: values, gradients, compiled, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import toprung
from toprung import errors
from torch_device import DEVICE

CASES = (((9, 7), (7, 5), (5,)), ((9, 7), (7, 5), (9, 1)), ((2, 9, 7), (7, 5), (2, 1, 5)))


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(sum(shape)))


def reference(a: Any, b: Any, bias: Any, activation: str | None) -> Any:
    made = a @ b + bias
    if activation == "relu":
        return torch.relu(made)
    return torch.nn.functional.gelu(made, approximate="tanh") if activation else made


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("shapes", CASES, ids=str)
def test_values_and_gradients_are_float64s(shapes: Any, activation: str | None) -> None:
    mine = [drawn(*shape).requires_grad_() for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in mine]
    with torch.no_grad():
        plain = toprung.matmul(mine[0], mine[1], bias=mine[2], activation=activation)
    found = toprung.matmul(mine[0], mine[1], bias=mine[2], activation=activation)
    wanted = reference(*exact, activation)
    torch.testing.assert_close(plain.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    weights = drawn(*found.shape)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    for x, y in zip(mine, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-5, atol=1e-4)


def test_the_biass_gradient_alone_is_recorded() -> None:
    a, b, bias = drawn(4, 6), drawn(6, 3), drawn(3).requires_grad_()
    toprung.matmul(a, b, bias=bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((3,), 4.0, device=DEVICE))


def test_compiled_it_is_one_product_and_pytorchs_epilogue() -> None:
    a, b, bias, out = drawn(9, 7), drawn(7, 5), drawn(5), torch.empty(9, 5, device=DEVICE)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def made(x: Any, y: Any, z: Any) -> Any:
        return toprung.matmul(x, y, bias=z, activation="gelu")

    torch.testing.assert_close(made(a, b, bias), reference(a, b, bias, "gelu"), rtol=1e-5, atol=1e-5)
    assert toprung.matmul(a, b, out, bias=bias, activation="relu") is out
    torch.testing.assert_close(out, reference(a, b, bias, "relu"), rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused_where_gradients_are_recorded() -> None:
    a, b = drawn(4, 6).requires_grad_(), drawn(6, 3)
    for error, options in (
        (errors.BadShape, {"bias": drawn(4)}), (errors.BadShape, {"bias": drawn(1, 1, 3)}),
        (errors.BadArray, {"bias": drawn(3).double()}), (errors.BadArray, {"bias": [1.0, 2.0, 3.0]}),
        (errors.BadArgument, {"activation": "elu"}), (errors.BadArgument, {"activation": ["relu"]}),
        (errors.BadArgument, {"activation": torch.relu}),
    ):  # fmt: skip
        with pytest.raises(error):
            toprung.matmul(a, b, **options)
    with pytest.raises(errors.BadShape, match="pair 1: "):
        toprung.matmul_grouped([a, a], [b, b.T])


def test_a_group_records_the_gradients_of_each_pair() -> None:
    a, b = [drawn(3, 4).requires_grad_(), drawn(2, 6)], [drawn(4, 5), drawn(6, 7).requires_grad_()]
    found = toprung.matmul_grouped(a, b, bias=[None, drawn(7)], activation="relu")
    sum(x.sum() for x in found).backward()
    wanted = torch.relu(a[0].double() @ b[0].double()).sum() + torch.relu(a[1].double() @ b[1].double() + drawn(7).double()).sum()
    first, second = torch.autograd.grad(wanted, (a[0], b[1]))
    torch.testing.assert_close(a[0].grad, first, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(b[1].grad, second, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert toprung.matmul_grouped(a, b)[0].grad_fn is None
