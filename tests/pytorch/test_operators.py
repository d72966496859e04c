"""PyTorch's own samples of every operator that multiplies, forward and backward, with its products on toprung's kernels.

Which operators multiply is found out by running them. Results and gradients are compared with the operator's in float64.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import once
import toprung.torch
from torch_device import DEVICE, EVERY, Eligible, left, overriding

RANDOM = {"svd_lowrank", "pca_lowrank", "linalg.pinv.singular"}
"""Operators that draw numbers, others in float64 than in float32: they are compared with PyTorch's own in float32."""

TIMES = 4.0
"""Factor by which an error may exceed that of PyTorch's own in float32."""

SLACK = 2e-6
"""Error, relative to the largest element, that a result may have however small PyTorch's own is."""

SHARE = 0.9
"""Least share of the products of fp32 tensors whose shapes fit that must have run on toprung's kernels."""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op: Any, count: int | None = None) -> Iterator[Any]:
    """An operator's samples in float32, the same each time.

    ``op.sample_inputs`` yields the same, but looks through the stack and all modules for each: nine tenths of the time.
    """
    made = iter(op.sample_inputs_func(op, DEVICE, torch.float32, op.supports_autograd))
    for _ in itertools.count() if count is None else range(count):
        set_rng_seed()
        if (sample := next(made, None)) is None:
            return
        yield sample


def called(op: Any, sample: Any) -> list[Any]:
    """The results of an operator and the gradients of its inputs; those that are tensors of numbers, detached."""
    arguments = _pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), (sample.input, sample.args, sample.kwargs)
    )
    torch.manual_seed(1)
    made = op(arguments[0], *arguments[1], **arguments[2])
    made = sample.output_process_fn_grad(made) if sample.output_process_fn_grad else made
    outs = [t for t in _pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
    if any(t.requires_grad for t in outs):
        torch.manual_seed(2)
        sum((t.abs() if t.is_complex() else t).mul(1.3).sum() for t in outs if t.requires_grad).backward()
    inputs = [t for t in _pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.grad is not None]
    found = [*outs, *(t.grad for t in inputs)]
    return [t.detach() for t in found if t.is_floating_point() or t.is_complex()]


def doubled(sample: Any) -> Any:
    """A sample in float64."""

    def double(t: torch.Tensor) -> torch.Tensor:
        return t.detach().double().requires_grad_(t.requires_grad) if t.dtype == torch.float32 else t

    return sample.transform(lambda x: double(x) if isinstance(x, torch.Tensor) else torch.float64 if x is torch.float32 else x)


PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "addr", "_addmm_activation", "linalg_matrix_exp", "_trilinear"}
"""Overloads of aten that multiply, or call what does where a dispatch mode no longer sees it."""


class Seen(TorchDispatchMode):
    """Note the overloads of aten that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def found() -> bytes:
    """Names of the operators whose first samples make products, forward or backward, as PyTorch alone runs them."""
    names = []
    for op in op_db:
        if not op.supports_dtype(torch.float32, DEVICE) or op.name.startswith(
            "sparse."
        ):  # whose factors are not matrices in memory
            continue
        with Seen() as seen, contextlib.suppress(Exception):  # one that this build lacks
            for sample in samples(op, 6):
                called(op, sample)
        if seen.names & PRODUCTS:
            names.append(name_of(op))
    return json.dumps(names).encode()


@functools.cache
def multiplying() -> list[str]:
    """Return the names, which are those of a release of PyTorch."""
    return json.loads(once.kept(found, torch.__version__, DEVICE, Path(__file__).read_bytes()))


def error(found: torch.Tensor, oracle: torch.Tensor) -> float:
    """The largest error relative to the largest element."""
    wide = torch.complex128 if found.is_complex() else torch.float64
    found, oracle = found.to(wide).cpu(), oracle.to(wide).cpu()
    both = torch.isfinite(found) & torch.isfinite(oracle)
    assert torch.equal(torch.isnan(found), torch.isnan(oracle))
    if not both.any():
        return 0.0
    return float((found - oracle)[both].abs().max() / oracle[both].abs().max().clamp(min=1e-30))


def test_many_operators_multiply() -> None:
    found = set(multiplying())
    assert {"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "matmul", "einsum", "tensordot", "nn.functional.linear"} <= found
    assert {"nn.functional.multi_head_attention_forward", "linalg.multi_dot", "linalg.matrix_power", "linalg.qr"} <= found
    assert len(found) > 40


@pytest.mark.parametrize("language", ["Python", pytest.param("C++", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", multiplying())
def test_samples(name: str, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overriding(language, monkeypatch)
    (op,) = (op for op in op_db if name_of(op) == name)
    toprung.torch.enable(**EVERY)
    toprung.torch.disable()
    eligible = Eligible(monkeypatch)
    for number, sample in enumerate(samples(op)):
        try:
            theirs = called(op, sample)
        except Exception:
            continue  # a sample that PyTorch itself cannot compute here
        with toprung.torch.use(**EVERY):
            ours = called(op, sample)
        oracle = theirs if name in RANDOM else called(op, doubled(sample))
        assert len(ours) == len(theirs) == len(oracle)
        for a, b, c in zip(ours, theirs, oracle, strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), f"sample {number}"
            if name in RANDOM:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
            else:
                assert error(a, c) <= TIMES * error(b, c) + SLACK, f"sample {number}"
    assert eligible.taken >= SHARE * eligible.count, left()
