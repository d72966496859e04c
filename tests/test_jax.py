"""JAX's arrays: eager products in and out, what is traced, and the way through a callback. Skipped where JAX is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import toprung
from toprung import errors
from toprung.device import Device

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return jnp.asarray(RNG.uniform(-1, 1, shape).astype(np.float32))


@pytest.mark.parametrize(
    "first, second", [((5, 7), (7, 6)), ((2, 1, 5, 7), (3, 7, 6)), ((7,), (7, 6)), ((7,), (7,)), ((0, 7), (7, 6))]
)
def test_arrays_in_arrays_out(device: Device, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = drawn(*first), drawn(*second)
    for more in ({}, {"own": True, "device": device.id}):
        found = toprung.matmul(a, b, **more)
        assert isinstance(found, jax.Array) and found.dtype == jnp.float32
        np.testing.assert_allclose(found, np.matmul(np.float64(a), np.float64(b)), rtol=1e-5, atol=1e-6)


def test_an_epilogue_and_a_transpose() -> None:
    a, b, bias = drawn(6, 5), drawn(7, 6).T[:, ::2], drawn(4)
    found = toprung.matmul(a.T, b, bias=bias, activation="gelu")
    np.testing.assert_allclose(found, jax.nn.gelu(a.T @ b + bias, approximate=True), rtol=1e-4, atol=1e-5)


def test_what_is_traced_is_refused_and_told_what_to_do() -> None:
    a, b = drawn(5, 7), drawn(7, 6)
    for traced in (
        lambda: jax.jit(toprung.matmul)(a, b),
        lambda: jax.grad(lambda x: toprung.matmul(x, b).sum())(a),
        lambda: jax.vmap(lambda x: toprung.matmul(x, b))(a[None]),
    ):
        with pytest.raises(errors.BadArray, match="pure_callback"):
            traced()


def test_a_callback_takes_it_into_a_traced_function() -> None:
    a, b = drawn(5, 7), drawn(7, 6)

    @jax.jit
    def twice(x: Any, y: Any) -> Any:
        shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32)
        return 2 * jax.pure_callback(lambda u, v: toprung.matmul(np.asarray(u), np.asarray(v)), shape, x, y)

    np.testing.assert_allclose(twice(a, b), 2 * (a @ b), rtol=1e-5, atol=1e-6)


def test_other_types_and_results_to_write_into_are_refused() -> None:
    a, b = drawn(5, 7), drawn(7, 6)
    with pytest.raises(errors.BadArray, match="astype"):
        toprung.matmul(a.astype(jnp.bfloat16), b)
    with pytest.raises(errors.BadArray, match="cannot be written"):
        toprung.matmul(a, b, jnp.zeros((5, 6)))
