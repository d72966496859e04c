"""JAX's arrays: eager products in and out, what is traced, and the way through a callback. Skipped where JAX is not installed.

Tests named ``on_a_gpu`` need JAX's CUDA plugin and a GPU. Without the packages that tests/conftest.py wants:
``python -m pytest --noconftest tests/test_jax.py -k on_a_gpu``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import toprung
from toprung import errors
from toprung.device import Device

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

try:
    GPUS = jax.devices("gpu")
except RuntimeError:
    GPUS = []

gpu = pytest.mark.skipif(not GPUS, reason="JAX has no GPU")
RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return jnp.asarray(RNG.uniform(-1, 1, shape).astype(np.float32))


@pytest.mark.parametrize(
    "first, second", [((5, 7), (7, 6)), ((2, 1, 5, 7), (3, 7, 6)), ((7,), (7, 6)), ((7,), (7,)), ((0, 7), (7, 6))]
)
def test_arrays_in_arrays_out(device: Device, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = drawn(*first), drawn(*second)
    for more in ({}, {"own": True} if GPUS else {"own": True, "device": device.id}):  # a GPU's arrays stay on it
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
        toprung.matmul(a.astype(jnp.int32), b)
    with pytest.raises(errors.BadArray, match="cannot be written"):
        toprung.matmul(a, b, jnp.zeros((5, 6)))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_halves_in_any_mix(kind: str) -> None:
    a, b = drawn(5, 7), drawn(7, 6)
    for x, y in ((a.astype(kind), b), (a, b.astype(kind)), (a.astype(kind), b.astype(kind))):
        found = toprung.matmul(x, y)
        assert isinstance(found, jax.Array) and found.dtype == jnp.float32
        np.testing.assert_allclose(found, np.asarray(x, np.float64) @ np.asarray(y, np.float64), rtol=1e-5, atol=1e-6)


def test_what_was_deleted_or_donated_is_refused() -> None:
    a, b = drawn(5, 7), drawn(7, 6)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated := drawn(5, 7)).block_until_ready()
    deleted = drawn(7, 6)
    deleted.delete()
    for call in (lambda: toprung.matmul(donated, b), lambda: toprung.matmul(a, deleted), lambda: toprung.prepack(deleted)):
        with pytest.raises(errors.BadArray, match="donated"):
            call()
    np.testing.assert_allclose(toprung.matmul(a, b), a @ b, rtol=1e-5, atol=1e-6)


def test_what_is_spread_over_devices_is_refused() -> None:
    """In a process of its own, where JAX makes four devices of the CPU."""
    code = """
import jax, jax.numpy as jnp, numpy as np, toprung
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
for spec in (PartitionSpec("x"), PartitionSpec()):
    spread = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, spec))
    try:
        toprung.matmul(spread, spread)
        raise SystemExit("it was taken")
    except toprung.errors.BadArray as error:
        assert "device_put" in str(error), error
one = jax.device_put(spread, jax.devices()[0])
assert (toprung.matmul(one, one) == 8).all()
"""
    told = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# on a GPU


def on(array: Any) -> Any:
    return jax.device_put(array, GPUS[0])


@gpu
@pytest.mark.parametrize(
    "first, second",
    [
        ((5, 7), (7, 6)),
        ((2, 1, 5, 7), (3, 7, 6)),
        ((7,), (7, 6)),
        ((7,), (7,)),
        ((0, 7), (7, 6)),
        ((5, 0), (0, 6)),
        ((1500, 700), (700, 900)),
    ],
)
def test_arrays_in_arrays_out_on_a_gpu(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = on(drawn(*first)), on(drawn(*second))
    before = np.array(a), np.array(b)
    wanted = np.matmul(np.float64(a), np.float64(b))
    for more in ({}, {"own": True}, {"precision": "fp32"}):
        found = toprung.matmul(a, b, **more)
        assert isinstance(found, jax.Array) and found.dtype == jnp.float32 and found.shape == wanted.shape
        assert found.devices() == {GPUS[0]}
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert (np.array(a) == before[0]).all() and (np.array(b) == before[1]).all()


@gpu
def test_jax_and_toprung_wait_for_each_other_on_a_gpu() -> None:
    """JAX computes on a stream of its own: operands that it has not finished, and results that it uses at once."""

    q = on(np.linalg.qr(np.float64(drawn(2048, 2048)))[0].astype(np.float32))

    @jax.jit
    def late(x: Any) -> Any:
        return jax.lax.fori_loop(0, 300, lambda i, y: y @ q, x)  # of the size of x, for q turns it

    late(q).block_until_ready()  # compiled
    for _ in range(5):
        x = on(drawn(2048, 2048)).block_until_ready()
        operand = late(x)  # JAX is still computing it
        made = toprung.matmul(operand, q)
        after = jnp.sum(made, axis=0)
        wanted = np.float64(operand) @ np.float64(q)
        for found, right in ((made, wanted), (after, wanted.sum(0))):
            assert np.linalg.norm(np.float64(found) - right) < 1e-5 * np.linalg.norm(right)


@gpu
def test_memory_that_jax_takes_back_on_a_gpu() -> None:
    """Operands and results are dropped at once, and their memory is used again, while other work is under way."""
    b = on(jnp.eye(1024, dtype=jnp.float32))
    found = []
    for value in range(40):
        made = toprung.matmul(on(jnp.full((1024, 1024), float(value))), b)
        found.append(made[3, 5] + 0 * on(jnp.full((1024, 1024), -1.0))[0, 0])
    np.testing.assert_array_equal(np.array(found), np.arange(40.0))


@gpu
def test_what_is_traced_donated_or_to_be_written_is_refused_on_a_gpu() -> None:
    a, b = on(drawn(5, 7)), on(drawn(7, 6))
    for traced in (lambda: jax.jit(toprung.matmul)(a, b), lambda: jax.grad(lambda x: toprung.matmul(x, b).sum())(a)):
        with pytest.raises(errors.BadArray, match="pure_callback"):
            traced()
    with pytest.raises(errors.BadArray, match="cannot be written"):
        toprung.matmul(a, b, on(jnp.zeros((5, 6))))
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated := on(drawn(5, 7))).block_until_ready()
    if donated.is_deleted():
        with pytest.raises(errors.BadArray, match="donated"):
            toprung.matmul(donated, b)
    with pytest.raises(errors.MixedPlaces):
        toprung.matmul(a, np.ones((7, 6), np.float32))


@gpu
def test_a_callback_takes_it_into_a_traced_function_on_a_gpu() -> None:
    a, b = on(drawn(50, 70)), on(drawn(70, 60))

    @jax.jit
    def twice(x: Any, y: Any) -> Any:
        shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32)
        return 2 * jax.pure_callback(lambda u, v: toprung.matmul(np.asarray(u), np.asarray(v)), shape, x, y)

    np.testing.assert_allclose(twice(a, b), 2 * (np.float64(a) @ np.float64(b)), rtol=1e-5, atol=1e-4)


@gpu
def test_other_libraries_arrays_beside_jaxs_on_a_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    a, b = drawn(65, 33), drawn(33, 17)
    wanted = np.float64(a) @ np.float64(b)
    made = toprung.matmul(on(a), cupy.asarray(np.asarray(b)))
    assert isinstance(made, jax.Array)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
    other = toprung.matmul(cupy.asarray(np.asarray(a)), on(b))
    assert isinstance(other, cupy.ndarray)
    np.testing.assert_allclose(other.get(), wanted, rtol=1e-5, atol=1e-5)


@gpu
def test_an_epilogue_on_a_gpu() -> None:
    a, b, bias = on(drawn(65, 33)), on(drawn(33, 17)), on(drawn(17))
    found = toprung.matmul(a, b, bias=bias, activation="relu")
    np.testing.assert_allclose(found, np.maximum(np.float64(a) @ np.float64(b) + np.float64(bias), 0), rtol=1e-5, atol=1e-5)
