"""torch.compile and torch.export: toprung.matmul in graphs without a break, aten's products below them, and caches kept apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import toprung
import toprung.torch
from toprung.torch import caches, products
from torch_device import DEVICE, EVERY

MODES = (None, "reduce-overhead", "max-autotune")


@pytest.fixture(autouse=True)
def afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    toprung.torch.disable()
    products.forget()
    torch._dynamo.reset()


def drawn(*shape: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=rng).mul(2).sub(1).to(DEVICE)


def net(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(toprung.matmul(a, b, own=True)) * 2


@pytest.mark.parametrize("mode", MODES)
def test_matmul_is_compiled_without_a_break(mode: str | None) -> None:
    a, b = drawn(20, 30).requires_grad_(), drawn(30, 10).requires_grad_()
    compiled = torch.compile(net, fullgraph=True, mode=mode)
    for _ in range(3):
        made = compiled(a, b)
        grads = torch.autograd.grad(made.sum(), (a, b))
    oracle = torch.relu(a.double() @ b.double()) * 2
    torch.testing.assert_close(made.double(), oracle, rtol=1e-5, atol=1e-5)
    for found, expected in zip(grads, torch.autograd.grad(oracle.sum(), (a, b)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_other_forms_of_matmul_are_compiled() -> None:
    a, b = drawn(20, 30), drawn(30, 10)
    packed = toprung.prepack(b)
    out = torch.empty(20, 10, device=DEVICE)

    def into(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        toprung.matmul(x, y, z)
        return z + 1

    assert torch.equal(torch.compile(into, fullgraph=True)(a, b, out), toprung.matmul(a, b) + 1)
    ready = torch.compile(lambda x: toprung.matmul(x, packed) + 1, fullgraph=True)
    torch.testing.assert_close(ready(a), a @ b + 1)
    dynamic = torch.compile(net, fullgraph=True, dynamic=True)
    for rows in (5, 9, 17):
        torch.testing.assert_close(dynamic(drawn(rows, 30), b), net(drawn(rows, 30), b))
    for x, y in ((drawn(30), b), (a, drawn(30)), (drawn(30), drawn(30)), (drawn(2, 1, 20, 30), drawn(3, 30, 10))):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(net, fullgraph=True)(x, y), torch.relu(x @ y) * 2, rtol=1e-5, atol=1e-5)


def test_a_prepacked_weight_gets_its_gradient_when_compiled() -> None:
    weight = drawn(10, 30).requires_grad_()
    packed = toprung.prepack(weight, trans=True)
    torch.compile(lambda x: toprung.matmul(x, packed).square().sum(), fullgraph=True)(drawn(20, 30)).backward()
    found, weight.grad = weight.grad, None
    (drawn(20, 30) @ weight.T).square().sum().backward()
    torch.testing.assert_close(found, weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool, tmp_path: Path) -> None:
    class Layer(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return toprung.matmul(a, b) + 1

    a, b = drawn(20, 30), drawn(30, 10)
    program = torch.export.export(Layer(), (a, b), strict=strict)
    assert torch.ops.toprung.matmul.default in [node.target for node in program.graph.nodes]
    torch.export.save(program, tmp_path / "layer.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "layer.pt2").module()(a, b), a @ b + 1)
    code = "import sys, torch, toprung.torch; torch.export.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "layer.pt2")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_operator_keeps_its_promises() -> None:
    from toprung.torch import operator  # noqa: F401

    a, b = drawn(20, 30).requires_grad_(), drawn(30, 10).requires_grad_()
    torch.library.opcheck(torch.ops.toprung.matmul.default, (a, b, "auto", True, "", 0))


@pytest.mark.parametrize("mode", MODES)
def test_compiled_programs_take_products_while_enabled(mode: str | None) -> None:
    layer = torch.nn.Linear(33, 18, device=DEVICE)
    x = drawn(20, 33)
    theirs = layer(x)
    compiled = torch.compile(layer, mode=mode)

    def step() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        layer.zero_grad()
        made = compiled(x)
        kept = made.clone()  # a graph's memory is overwritten by its next replay
        made.sum().backward()
        return kept

    step()
    with toprung.torch.use(**EVERY):
        for _ in range(4):
            made = step()
        ran = toprung.torch.report().taken
    torch.testing.assert_close(made, theirs, rtol=1e-5, atol=1e-5)
    if mode is None:
        assert ran >= 4  # reduce-overhead may replay what was captured, and max-autotune take a kernel of its own
    torch.testing.assert_close(step(), theirs, rtol=1e-5, atol=1e-5)


def test_caches_are_kept_apart() -> None:
    config = torch.compiler.config
    before = config.cache_key_tag
    toprung.torch.enable(**EVERY)
    one = config.cache_key_tag
    with toprung.torch.use("fp32", device_types=(DEVICE,)):
        assert config.cache_key_tag not in (one, before)
        with toprung.torch.exclude():
            assert config.cache_key_tag == before
    assert config.cache_key_tag == one != before and "toprung" in one
    toprung.torch.disable()
    assert config.cache_key_tag == before


def test_what_inductor_measured_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache

    seen: list[str] = []
    toprung.torch.enable(**EVERY)
    lookup = codecache.PersistentCache.lookup
    monkeypatch.setattr(codecache.PersistentCache, "lookup", lambda self, choices, op, *more, **named: seen.append(op))
    caches._keep_apart(codecache)
    cache = codecache.PersistentCache.__new__(codecache.PersistentCache)
    cache.lookup([], "mm", "inputs", None)
    toprung.torch.disable()
    cache.lookup([], "mm", "inputs", None)
    assert seen[0].startswith("mm toprung") and seen[1] == "mm"
    assert hasattr(lookup, "of_toprung")


def test_inductor_is_not_imported_for_it() -> None:
    code = (
        "import sys, toprung.torch\ntoprung.torch.enable()\n"
        "assert 'torch._inductor.codecache' not in sys.modules\n"
        "from torch._inductor import codecache\n"
        "assert codecache.PersistentCache.lookup.of_toprung\n"
        "assert not [f for f in sys.meta_path if 'toprung' in type(f).__module__]"
    )
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
