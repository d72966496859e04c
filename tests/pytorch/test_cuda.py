"""Tests that need a GPU: CUDA graphs in every idiom, streams, memory, backward's own threads, and what the profiler sees."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import toprung
import toprung.torch
from toprung.backends.cuda import CUDASession
from toprung.errors import Unsupported
from toprung.torch import products
from torch_device import DEVICE, left

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="there is no GPU")


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    yield
    toprung.torch.disable()
    products.forget()
    torch.cuda.synchronize()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator(DEVICE).manual_seed(seed)
    return torch.rand(*shape, generator=rng, device=DEVICE).mul(2).sub(1)


def agree(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    oracle = a.double() @ b.double()
    assert float((found - oracle).norm() / oracle.norm()) < 2e-6


SIZES = [(512, 512, 512), (2048, 1024, 768), (300, 200, 5000), (64, 4096, 4096), (1024, 1000, 17)]
PATHS = ("fp32", "fp32x", "auto")


@pytest.mark.parametrize("precision", PATHS)
@pytest.mark.parametrize("size", SIZES)
def test_matmul_is_captured_after_a_warm_up_on_another_stream(size: tuple[int, int, int], precision: Any) -> None:
    m, n, k = size
    a, b, out = drawn(m, k), drawn(k, n), torch.empty(m, n, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        toprung.matmul(a, b, out=out, own=True, precision=precision)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        toprung.matmul(a, b, out=out, own=True, precision=precision)
    for seed in (1, 2):
        a.copy_(drawn(m, k, seed=seed))
        out.fill_(float("nan"))
        toprung.matmul(drawn(700, 900), drawn(900, 800), own=True, precision=precision)  # other work must not disturb it
        graph.replay()
        agree(out, a, b)


@pytest.mark.parametrize("precision", PATHS)
def test_matmul_is_captured_without_any_warm_up(precision: Any) -> None:
    a, b, out = drawn(1111, 777), drawn(777, 555), torch.empty(1111, 555, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        toprung.matmul(a, b, out=out, own=True, precision=precision)
        receipt = toprung.last_receipt()
        assert receipt is not None
        if receipt.counters:
            with pytest.raises(Unsupported, match="after the capture"):
                receipt.escalated  # noqa: B018
    out.fill_(float("nan"))
    graph.replay()
    agree(out, a, b)


@pytest.mark.parametrize("precision", PATHS)
def test_operands_and_a_result_that_are_copied_are_captured(precision: Any) -> None:
    a, b, out = drawn(700, 1200)[:, ::3], drawn(300, 400).T, torch.empty(700, 601, device=DEVICE)[:, 1::2]
    toprung.matmul(a, b, out=out, own=True, precision=precision)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        toprung.matmul(a, b, out=out, own=True, precision=precision)
    out.fill_(float("nan"))
    toprung.matmul(drawn(900, 1500)[:, ::3], drawn(500, 800), own=True, precision=precision)  # other temporaries
    graph.replay()
    agree(out, a, b)


@pytest.mark.parametrize("size", [(1, 4096, 4096), (1085, 2219, 2438), (413, 732, 6198)])
def test_a_product_that_is_left_to_cublas_is_captured_on_a_stream_it_has_not_seen(size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b, out = drawn(m, k), drawn(k, n), torch.empty(m, n, device=DEVICE)
    toprung.matmul(a, b, out=out, precision="fp32")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        toprung.matmul(a, b, out=out, precision="fp32")
    out.fill_(float("nan"))
    graph.replay()
    agree(out, a, b)


def test_graphs_of_many_threads_and_streams_share_no_memory() -> None:
    graphs = []
    for i in range(4):
        a, b = drawn(1024, 512, seed=i), drawn(512, 768, seed=10 + i)
        out = torch.empty(1024, 768, device=DEVICE)
        toprung.matmul(a, b, out=out, own=True, precision="fp32x")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            toprung.matmul(a, b, out=out, own=True, precision="fp32x")
        graphs.append((graph, a, b, out, torch.cuda.Stream()))
    for _ in range(50):
        for graph, *_, stream in graphs:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for _, a, b, out, _ in graphs:
        agree(out, a, b)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).to(DEVICE)


def stepped(net: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        for p in net.parameters():
            p.grad = None
        net(x).square().mean().backward()

    return step


@pytest.mark.parametrize("warm", [False, True])
def test_a_training_step_is_captured(warm: bool) -> None:
    """With PyTorch's own idiom; without a warm-up PyTorch's kernels are captured."""
    x = drawn(2048, 512)
    net = model()
    step = stepped(net, x)
    step()
    theirs = [p.grad.clone() for p in net.parameters()]
    toprung.torch.enable(own=True, min_flops=0)
    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        toprung.torch.wait()
        step()
    before = toprung.torch.report().taken
    graph = torch.cuda.CUDAGraph()
    for p in net.parameters():
        p.grad = None
    with torch.cuda.graph(graph):
        step()
    captured = toprung.torch.report().taken - before
    assert captured == (5 if warm else 0), left()
    for p in net.parameters():
        p.grad.fill_(float("nan"))
    graph.replay()
    for found, oracle in zip([p.grad for p in net.parameters()], theirs, strict=True):
        assert float((found - oracle).norm() / oracle.norm()) < 1e-5


def test_graphed_callables() -> None:
    x = drawn(2048, 512).requires_grad_()
    net, other = model(), model()
    other(x.detach()).sum().backward()
    oracle = other[0].weight.grad
    with toprung.torch.use(own=True, min_flops=0, reproducible=True):
        graphed = torch.cuda.make_graphed_callables(net, (x,))
        for p in net.parameters():
            p.grad = None
        graphed(x).sum().backward()
    torch.testing.assert_close(net[0].weight.grad, oracle, rtol=1e-4, atol=1e-3)


def test_first_products_of_one_thread_do_not_break_the_capture_of_another() -> None:
    """In PyTorch's own capture mode, in which any thread's allocation, copy or wait would invalidate it.

    So would the collector, if it freed a graph of an earlier test meanwhile: those of graphed callables are in cycles, and
    tensors in them may outlive a collection.
    """
    for _ in range(5):
        gc.collect()
    a, b, out = drawn(64, 64), drawn(64, 64), torch.empty(64, 64, device=DEVICE)
    torch.mm(a, b, out=out)
    began, done, errors = threading.Event(), threading.Event(), []

    def others() -> None:
        began.wait(60)
        try:
            for i, precision in enumerate(PATHS):
                with torch.cuda.stream(torch.cuda.Stream()):
                    x, y = torch.ones(640 + 64 * i, 333), torch.ones(333, 448)
                    packed = toprung.matmul(x.numpy(), y.numpy(), device="cuda:0", own=True, precision=precision)
                    assert (packed == 333).all()
        except Exception as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=others)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(a, b, out=out)
        began.set()
        assert done.wait(120) and not errors, errors
        out.add_(1)
    thread.join()
    graph.replay()
    agree(out - 1, a, b)


def test_kernels_are_prepared_beside_a_capture() -> None:
    """In PyTorch's own capture mode, in which any thread's allocation would spoil it."""
    toprung.torch.enable(own=True, min_flops=0)
    a, b = drawn(1536, 1280), drawn(1280, 1792)
    c, d = drawn(96, 160), drawn(160, 224)
    out = torch.empty(96, 224, device=DEVICE)
    torch.mm(a, b)  # begins to be prepared, and goes on while the stream is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(c, d, out=out)
        assert toprung.torch.wait(120)
        out.add_(1)
    graph.replay()
    agree(out - 1, c, d)
    agree(torch.mm(a, b), a, b)
    assert toprung.torch.report().taken == 1


def test_backward_runs_on_our_kernels() -> None:
    net, x = model(), drawn(2048, 512)
    with toprung.torch.use(own=True, min_flops=0, reproducible=True):
        made = net(x).square().mean()
        before = toprung.torch.report().taken
        made.backward()
        assert toprung.torch.report().taken - before == 3, left()


def test_scratch_memory_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda.empty_cache()
    toprung.torch.enable(own=True, min_flops=0, reproducible=True)
    a, b = drawn(4096, 2048), drawn(2048, 4096)
    torch.mm(a, b)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    allocated, ours = torch.cuda.memory_allocated(), list[int]()
    allocate = CUDASession.allocate

    def counted(self: CUDASession, nbytes: int) -> Any:
        ours.append(nbytes)
        return allocate(self, nbytes)

    monkeypatch.setattr(CUDASession, "allocate", counted)

    made: list[tuple[torch.Tensor, ...]] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(40):
                x, y = drawn(1024 + 64 * ((i + seed) % 9), 1536, seed=seed), drawn(1536, 2048, seed=seed)
                made.append((x, y, torch.mm(x, y)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert sum(ours) < 1 << 20  # counters of what is computed again
    for x, y, found in made[::7]:
        agree(found, x, y)
    made.clear()
    del x, y, found
    torch._C._cuda_clearCublasWorkspaces()  # of the oracle
    assert torch.cuda.memory_allocated() <= allocated


def test_the_profiler_sees_kernels_and_records() -> None:
    toprung.torch.enable(own=True, min_flops=0, reproducible=True)
    a, b = drawn(2048, 1024), drawn(1024, 2048)
    torch.mm(a, b)
    with torch.profiler.profile() as profiler:
        torch.mm(a, b)
        torch.cuda.synchronize()
    events = {e.key: e for e in profiler.key_averages()}
    assert "toprung::mm" in events
    assert events["toprung::mm"].device_time_total > 10
    assert any(e.key.startswith("toprung_") and e.self_device_time_total > 10 for e in events.values()), sorted(events)


def test_two_streams_at_once() -> None:
    toprung.torch.enable(own=True, min_flops=0, reproducible=True)
    streams = [torch.cuda.Stream() for _ in range(4)]
    pairs = [(drawn(1024, 700, seed=i), drawn(700, 900, seed=i)) for i in range(4)]
    torch.cuda.synchronize()
    made: list[torch.Tensor] = []
    for i in range(60):
        with torch.cuda.stream(streams[i % 4]):
            made.append(torch.mm(*pairs[i % 4]))
    torch.cuda.synchronize()
    for i, found in enumerate(made):
        agree(found, *pairs[i % 4])


SHAPES = [
    ((1000, 768), (768, 768)),
    ((4096, 256), (256, 520)),
    ((300, 5000), (5000, 200)),
    ((6, 257, 128), (6, 128, 96)),
    ((8, 512, 64), (64, 96)),
]


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("precision", PATHS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_an_epilogue_is_in_the_products_launch(sizes: Any, precision: Any, activation: Any) -> None:
    """Bias by column, by row, whole, transposed and one for all: each beside float64, in one launch where the kernel can."""
    a, b = (drawn(*s, seed=i) for i, s in enumerate(sizes))
    shape = torch.matmul(a, b).shape
    rows, cols = shape[-2:]
    for bias in (drawn(cols), drawn(rows, 1), drawn(*shape), drawn(*shape[:-2], cols, rows).mT, drawn(1), None):
        if bias is None and activation is None:
            continue
        out = torch.full(shape, float("nan"), device=DEVICE)
        toprung.matmul(a, b, out=out, own=True, precision=precision, bias=bias, activation=activation)
        exact = a.double() @ b.double() + (0 if bias is None else bias.double())
        exact = exact.relu() if activation == "relu" else exact
        exact = torch.nn.functional.gelu(exact, approximate="tanh") if activation == "gelu" else exact
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=2e-5)
        left_behind = toprung.last_receipt()
        assert left_behind is not None
        # a batch that shares B is one tall matrix, in which some of these have no stride from row to row
        rows_in_line = bias is None or b.dim() == 3 or a.dim() == 2 or bias.dim() == 1 or (bias.is_contiguous() and bias.dim() == 3)
        if precision == "fp32x" and rows_in_line:
            assert "in the same launch" in left_behind.why, left_behind


def test_addmm_makes_no_pass_of_its_own() -> None:
    """``nn.Linear`` runs one product's launches: nothing copies the bias, nothing adds it."""
    layer, x = torch.nn.Linear(1024, 4096, device=DEVICE), drawn(2048, 1024)
    old, square = drawn(2048, 2048, seed=1), drawn(2048, 2048, seed=2)
    with torch.no_grad(), toprung.torch.use(precision="fp32x", own=True, min_flops=0, reproducible=True):
        run = lambda: (layer(x), torch.addmm(old, square, square, beta=-2.0, alpha=0.5))  # noqa: E731
        run()
        toprung.torch.wait()  # what is prepared on other threads copies, too
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            y, z = run()
            torch.cuda.synchronize()
    # records of ours and of the profiler's stand among the device's events, too
    names = [e.key for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA and e.count]
    names = [name for name in names if "::" not in name and "Buffer" not in name]
    assert names and all(name.startswith("toprung_") for name in names), names
    torch.testing.assert_close(y.double(), x.double() @ layer.weight.double().T + layer.bias.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z.double(), -2 * old.double() + 0.5 * square.double() @ square.double(), rtol=1e-5, atol=1e-4)
