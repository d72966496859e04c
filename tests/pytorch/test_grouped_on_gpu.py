"""matmul_grouped of PyTorch's tensors on a GPU: one launch beside float64, in a CUDA graph, of 1 to 300 products.

In fp32x on a Hopper GPU, and in plain fp32 on any NVIDIA GPU.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import toprung

CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (7, 0)
HOPPER = CUDA and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not CUDA, reason="one launch for a group needs an NVIDIA GPU")
on_hopper = pytest.mark.skipif(not HOPPER, reason="one launch in fp32x needs a Hopper GPU")


class Group:
    """Products of drawn sizes; results full of NaN, each between columns that nobody may write."""

    def __init__(
        self, count: int, trans: str = "NN", biased: bool = False, largest: int = 300, least: tuple[int, int, int] = (2, 2, 64)
    ) -> None:
        rng, self.generator = random.Random(count), torch.Generator("cuda").manual_seed(count)
        shapes = [tuple(rng.randint(low, largest) for low in least) for _ in range(count)]
        self.a = [self.drawn(m, k, trans[0] == "T") for m, n, k in shapes]
        self.b = [self.drawn(k, n, trans[1] == "T") for m, n, k in shapes]
        self.bias = [self.drawn(n) if i % 3 else None for i, (_, n, _) in enumerate(shapes)] if biased else None
        self.wide = [torch.full((m + 2, n + 5), torch.nan, device="cuda") for m, n, _ in shapes]
        self.out = [x[1:-1, 2:-3] for x in self.wide]

    def drawn(self, *shape: Any) -> torch.Tensor:
        *sizes, turned = shape if isinstance(shape[-1], bool) else (*shape, False)
        made = torch.rand(*(sizes[::-1] if turned else sizes), device="cuda", generator=self.generator) - 0.5
        return made.mT if turned else made

    def run(self, activation: str | None = None, precision: str = "auto") -> None:
        found = toprung.matmul_grouped(
            self.a, self.b, self.out, bias=self.bias, activation=activation, precision=precision, own=precision == "fp32"
        )
        assert all(x is y for x, y in zip(found, self.out, strict=True))

    def check(self, activation: str | None = None) -> None:
        for i, (a, b, out, wide) in enumerate(zip(self.a, self.b, self.out, self.wide, strict=True)):
            x, y, added = a.double(), b.double(), self.bias[i] if self.bias else None
            exact = x @ y + (0 if added is None else added.double())
            exact = {"relu": torch.relu, "gelu": lambda v: torch.nn.functional.gelu(v, approximate="tanh")}.get(
                activation or "", lambda v: v
            )(exact)
            bound = 2.0**-20 * (x.abs() @ y.abs() + 1)
            assert torch.equal(out.isnan(), exact.isnan()) and torch.equal(out.isinf(), exact.isinf())
            finite = exact.isfinite()
            assert bool(((out.double() - exact).abs() <= bound)[finite].all()), i
            edge = wide.clone()
            edge[1:-1, 2:-3] = torch.nan
            assert bool(edge.isnan().all()), "written outside"


@on_hopper
@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_groups_are_float64s(count: int, trans: str) -> None:
    group = Group(count, trans)
    group.run()
    group.check()
    left = toprung.last_receipt()
    assert left is not None and left.operation == "matmul_grouped"
    if count > 1:
        assert left.precision == "fp32x" and left.kernels[0].startswith("hopper_inflight")
        # rows begin anywhere: there may be a launch for each of nine pairs of alignments
        assert 1 <= left.launches <= min(count, 9)


@on_hopper
def test_aligned_ones_are_one_launch() -> None:
    weights = [torch.rand(256, 512, device="cuda") for _ in range(64)]
    tokens = [torch.rand(random.Random(i).randint(2, 200), 256, device="cuda") for i in range(64)]
    found = toprung.matmul_grouped(tokens, weights)
    left = toprung.last_receipt()
    assert left is not None and (left.launches, len(left.kernels)) == (1, 1), left
    assert "64 products in 1 launch" in left.why
    for x, y, z in zip(tokens, weights, found, strict=True):
        torch.testing.assert_close(z.double(), x.double() @ y.double(), rtol=1e-5, atol=1e-5)


@on_hopper
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_epilogues(activation: str | None) -> None:
    group = Group(40, biased=True)
    group.run(activation)
    group.check(activation)


@on_hopper
def test_hostile_values_are_computed_again_and_counted() -> None:
    group = Group(7)
    group.run()
    before = toprung.last_receipt().escalated  # type: ignore[union-attr]
    group.a[3][1, 5], group.b[5][7, 0], group.a[6][0] = torch.inf, torch.nan, 1e-42
    for x in group.out:
        x.fill_(torch.nan)
    group.run()
    group.check()
    assert toprung.last_receipt().escalated > before  # type: ignore[union-attr]


@on_hopper
@pytest.mark.parametrize("count", [2, 300])
def test_a_graph_holds_a_group(count: int) -> None:
    group = Group(count)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        group.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.run()
    other = Group(count + 1)  # the same kernels with other parameters between capture and replay
    other.run()
    for x in group.a:
        x.mul_(2)
    for x in group.out:
        x.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    group.check()
    other.check()


@on_hopper
def test_large_ones_batches_and_vectors_go_as_they_did() -> None:
    a = [torch.rand(*s, device="cuda") for s in ((8192, 4096), (3, 70, 80), (90,), (0, 64), (40, 3), (50, 64), (60, 64))]
    b = [torch.rand(*s, device="cuda") for s in ((4096, 8192), (3, 80, 50), (90, 7), (64, 5), (3, 5), (64, 33), (64, 70))]
    for x, y, z in zip(a, b, toprung.matmul_grouped(a, b), strict=True):
        torch.testing.assert_close(z.double(), x.double() @ y.double(), rtol=1e-5, atol=1e-5)
    found = toprung.matmul_grouped(a, b, precision="fp32")
    left = toprung.last_receipt()
    assert left is not None and left.precision == "fp32" and len(found) == len(a)


@on_hopper
@pytest.mark.parametrize("activation", [None, "relu"])
def test_groups_like_earlier_ones_of_tensors_elsewhere(activation: str | None) -> None:
    """Also products that go alone, with what is added, in a stream of their own, and into new tensors."""
    shapes = ((3000, 2500, 2000), (70, 80, 90), (64, 64, 40), (300, 200, 100))
    kept, weights = [], [torch.nn.Parameter(torch.rand(k, n, device="cuda"), requires_grad=False) for _, n, k in shapes]
    for trial in range(6):
        a = [torch.rand(m, k, device="cuda") - 0.5 for m, _, k in shapes]
        bias = [torch.rand(n, device="cuda") if i % 2 else None for i, (_, n, _) in enumerate(shapes)] if trial % 2 else None
        out = [torch.full((m, n), torch.nan, device="cuda") for m, n, _ in shapes] if trial < 4 else None
        kept.append((a, bias, out))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream() if trial == 3 else torch.cuda.current_stream()):
            found = toprung.matmul_grouped(a, weights, out, bias=bias, activation=activation)
        torch.cuda.synchronize()
        for i, (x, y, z) in enumerate(zip(a, weights, found, strict=True)):
            assert out is None or z is out[i]
            exact = x.double() @ y.double() + (0 if bias is None or bias[i] is None else bias[i].double())
            torch.testing.assert_close(z.double(), exact.relu() if activation else exact, rtol=1e-5, atol=1e-4)
    with pytest.raises(toprung.errors.Overlap):
        toprung.matmul_grouped(
            a, weights, [x[:, : y.shape[1]] if x.shape[1] >= y.shape[1] else z for x, y, z in zip(a, weights, found, strict=True)]
        )


# plain fp32


LEAST = 1, 1, 1
"""Single rows and columns, and K of 1, are in a group, too."""


def one_launch(count: int) -> None:
    left = toprung.last_receipt()
    assert left is not None and (left.operation, left.precision, left.own) == ("matmul_grouped", "fp32", True)
    assert left.launches == 1 and left.kernels[0].startswith("tiled_group ") and f"{count} products in 1 launch" in left.why, left


@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("count", [2, 7, 300])
def test_plain_groups_are_float64s(count: int, trans: str) -> None:
    group = Group(count, trans, least=LEAST)
    group.run(precision="fp32")
    group.check()
    if trans == "NN":  # a transposed single row is a row: elsewhere there may be a launch for each pair of transposes
        one_launch(count)


@pytest.mark.parametrize("largest", [20, 700])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_plain_groups_with_epilogues(activation: str | None, largest: int) -> None:
    """Small products and large ones, for which other blocks are selected."""
    group = Group(40, biased=True, largest=largest, least=LEAST)
    group.run(activation, "fp32")
    group.check(activation)
    one_launch(40)


@pytest.mark.parametrize("block", range(5))
def test_every_block_of_plain_groups(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from toprung.blas import calls
    from toprung.kernels.tiled_group import family

    monkeypatch.setattr(family, "group_block", lambda *what: family.BLOCKS[block])
    calls.forget()
    for trans in ("NN", "TT"):
        group = Group(60, trans, biased=True, least=LEAST)
        group.run("relu", "fp32")
        group.check("relu")
        left = toprung.last_receipt()
        assert left is not None and left.kernels == (f"tiled_group {family.BLOCKS[block]}",)
    calls.forget()


def test_plain_groups_keep_what_is_no_number() -> None:
    group = Group(7, least=(2, 2, 8))
    group.a[3][1, 5], group.b[5][7, 0], group.a[6][0] = torch.inf, torch.nan, 1e-42
    group.run(precision="fp32")
    group.check()
    one_launch(7)


@pytest.mark.parametrize("count", [2, 300])
def test_a_graph_holds_a_plain_group(count: int) -> None:
    group = Group(count, biased=True, least=LEAST)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        group.run("relu", "fp32")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.run("relu", "fp32")
    one_launch(count)
    other = Group(count + 1, least=LEAST)  # the same kernel with other parameters between capture and replay
    other.run(precision="fp32")
    for x in group.a:
        x.mul_(2)
    for x in group.out:
        x.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    group.check("relu")
    other.check()


def test_more_products_than_parameters_have_room_for() -> None:
    group = Group(1200, largest=40, least=LEAST)
    group.run(precision="fp32")
    group.check()
    left = toprung.last_receipt()
    assert left is not None and 1 < left.launches < 30


@pytest.mark.skipif(HOPPER, reason="there fp32x is taken")
def test_auto_is_plain_where_there_is_no_hopper() -> None:
    group = Group(30)
    toprung.matmul_grouped(group.a, group.b, group.out, own=True)
    group.check()
    one_launch(30)


@on_hopper
def test_a_short_k_is_one_launch_beside_fp32x() -> None:
    """With ``auto`` products that fp32x is not promised for are a launch in plain fp32, all of them."""
    a = [torch.rand(m, k, device="cuda") for m, k in ((40, 64), (50, 128), (60, 32), (1, 12), (33, 3))]
    b = [torch.rand(x.shape[1], 24, device="cuda") for x in a]
    found = toprung.matmul_grouped(a, b)
    for x, y, z in zip(a, b, found, strict=True):
        torch.testing.assert_close(z.double(), x.double() @ y.double(), rtol=1e-5, atol=1e-5)
    left = toprung.last_receipt()
    assert left is not None and left.launches == 2 and left.precision == "fp32x and fp32", left
