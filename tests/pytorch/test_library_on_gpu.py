"""The library's promises about arrays on an NVIDIA GPU: results, layouts, protocols, streams, graphs, threads and memory."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

import toprung
from arrays import ENTRIES, enter
from toprung import errors, last_receipt
from toprung.backends.base import KEPT_BYTES
from torch_device import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="there is no GPU")
HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability() == (9, 0)
PRECISIONS = ("fp32", pytest.param("fp32x", marks=pytest.mark.skipif(not HOPPER, reason="fp32x needs a Hopper GPU")))
on_hopper = pytest.mark.skipif(not HOPPER, reason="fp32x needs a Hopper GPU")
paths = pytest.mark.parametrize("precision", PRECISIONS)
UNIT = 2.0**-24


@pytest.fixture(autouse=True, params=ENTRIES)
def afresh(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    enter(request.param, monkeypatch)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(shape, device=DEVICE) * 2 - 1


def matmul(a: Any, b: Any, out: Any = None, **more: Any) -> Any:
    return toprung.matmul(a, b, out, **{"own": True, "precision": "fp32", **more})


def grade(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest error in 2⁻²⁴·Σ|a||b|."""
    x, y = a.double(), b.double()
    return float(((found.double() - x @ y).abs() / (UNIT * (x.abs() @ y.abs()))).nan_to_num(math.inf).max())


def right(found: Any, a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, c: Any = None, own: bool = True) -> None:
    """Assert that a result is float64's, and that our kernels made it."""
    x, y = a.double(), b.double()
    want, size = alpha * (x @ y), abs(alpha) * (x.abs() @ y.abs())
    if beta:
        want, size = want + beta * c.double(), size + abs(beta) * c.double().abs()
    found = torch.as_tensor(found, device=DEVICE)
    assert found.dtype == torch.float32 and found.shape == want.shape
    assert bool(((found.double() - want).abs() <= 16 * UNIT * size + 1e-40).all()), last_receipt()
    receipt = last_receipt()
    assert not own or (receipt is not None and receipt.own and receipt.device.startswith(DEVICE)), receipt


def classes(x: torch.Tensor) -> torch.Tensor:
    """Return 0, 1, 2 or 3 where an element is finite, NaN, Inf or -Inf."""
    return x.isnan() * 1 + (x == math.inf) * 2 + (x == -math.inf) * 3


@paths
@pytest.mark.parametrize(
    "size", [(1, 1, 1), (33, 65, 129), (1, 300, 200), (300, 1, 200), (257, 255, 1), (3, 3, 431), (333, 1025, 1031)]
)
def test_layouts_views_and_guards(size: tuple[int, int, int], precision: str) -> None:
    m, n, k = size
    for turn_a, turn_b in itertools.product((False, True), repeat=2):
        a = uniform(k, m).t() if turn_a else uniform(m, k)
        b = uniform(n, k).t() if turn_b else uniform(k, n)
        right(matmul(a, b, precision=precision), a, b)
        wide = torch.full((m, n + 5), math.nan, device=DEVICE)
        right(matmul(a, b, wide[:, 2 : n + 2], precision=precision), a, b)
        assert wide[:, :2].isnan().all() and wide[:, n + 2 :].isnan().all()
        turned = torch.full((n, m), math.nan, device=DEVICE)
        right(matmul(a, b, turned.t(), precision=precision), a, b)
    strided, offset = uniform(2 * m, 3 * k)[::2, ::3], uniform(m, k + 3)[:, 1 : k + 1]
    for x in (strided, offset, uniform(k).expand(m, k), uniform(m * k + 1)[1:].view(m, k)):
        right(matmul(x, b, precision=precision), x, b)


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_nothing_to_multiply(size: tuple[int, int, int]) -> None:
    m, n, k = size
    found = matmul(uniform(m, k), uniform(k, n))
    assert found.shape == (m, n) and not found.any()


@paths
@pytest.mark.parametrize(
    ("left", "second"),
    [
        ((6, 1, 33, 17), (5, 17, 20)), ((70_000, 3, 4), (70_000, 4, 5)), ((70_000, 3, 4), (4, 5)), ((6, 130, 97), (97, 65)),
        ((130, 97), (6, 97, 65)), ((300, 3, 72), (300, 72, 5)), ((2, 3, 50, 72), (3, 72, 33)),
    ],
)  # fmt: skip
def test_batches(left: tuple[int, ...], second: tuple[int, ...], precision: str) -> None:
    a, b = uniform(*left), uniform(*second)
    right(matmul(a, b, precision=precision), a, b)
    a = uniform(*left[:-2], left[-1], left[-2]).mT
    right(matmul(a, b, precision=precision), a, b)


@paths
@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.7])
@pytest.mark.parametrize("beta", [0.0, 1.0, 1.3])
def test_scalars_as_blas_means_them(alpha: float, beta: float, precision: str) -> None:
    a, b, c = uniform(133, 140), uniform(140, 121), uniform(133, 121)
    read, old = (a.clone() if alpha else a * 0), c.clone()
    if beta == 0:
        c.fill_(math.nan)
    if alpha == 0:
        a.fill_(math.nan)
    found = toprung.sgemm(alpha, a, b, beta, c, own=True, precision=precision)  # type: ignore[arg-type]
    right(found, read, b, alpha, beta, old)
    assert found.stride() == (1, 133)


def test_blas_results_in_place_and_increments() -> None:
    a, b, c = uniform(33, 40), uniform(40, 21), torch.zeros(21, 33, device=DEVICE).t()
    assert toprung.sgemm(1, a, b, 0, c, overwrite_c=1, own=True) is c
    right(c, a, b)
    x, y = uniform(100), uniform(100)
    found, want = toprung.sgemv(0.5, a, x, 2.0, y, incx=-2, incy=3, own=True), y.clone()
    want[:97:3] = (0.5 * a.double() @ x[:79:2].flip(0).double() + 2 * y[:97:3].double()).float()
    assert torch.allclose(found, want, atol=1e-5)


@paths
@pytest.mark.parametrize("size", [(512, 512, 512), (64, 64, 65536), (1000, 1001, 1000)])
def test_the_same_bits_again(size: tuple[int, int, int], precision: str) -> None:
    m, n, k = size
    a, b = uniform(m, k), uniform(k, n)
    first = matmul(a, b, precision=precision)
    matmul(uniform(64, k), b, precision=precision)
    assert all(torch.equal(matmul(a.clone(), b.clone(), precision=precision), first) for _ in range(5))


def test_results_are_of_the_operands_kind() -> None:
    a, b = uniform(8, 8), uniform(8, 8)
    assert matmul(a, b).device == a.device
    cpu = matmul(a.cpu(), b.cpu())
    assert (
        isinstance(cpu, torch.Tensor)
        and cpu.device.type == "cpu"
        and isinstance(matmul(a.cpu().numpy(), b.cpu().numpy()), np.ndarray)
    )


@paths
def test_nothing_is_copied_to_the_host_and_no_call_waits(precision: str) -> None:
    a, b, c = uniform(512, 512), uniform(512, 512), uniform(512, 512)
    strided, stream = uniform(1024, 1024)[::2, ::2], torch.cuda.Stream()
    for _ in range(2):
        with torch.profiler.profile() as seen:
            matmul(a, b, precision=precision), matmul(a, b, c, precision=precision), matmul(strided, b, precision=precision)
            torch.cuda.synchronize()
    assert not [e.key for e in seen.key_averages() if any(word in e.key for word in ("Memcpy", "DtoH", "HtoD"))]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        matmul(b, b, precision=precision)  # this stream's scratch memory
        stream.synchronize()
        a = torch.zeros(512, 512, device=DEVICE)
        torch.cuda._sleep(500_000_000)
        a.fill_(1.0)
        found, done = matmul(a, b, precision=precision), torch.cuda.Event()
        done.record(stream)
        assert not done.query(), "the call waited for the device, or ran elsewhere"
    stream.synchronize()
    right(found, torch.ones_like(a), b, own=False)


@paths
def test_a_graph_holds_plans_and_prepacked_operands(precision: str) -> None:
    a, b, c = uniform(300, 200), uniform(200, 100), torch.zeros(300, 100, device=DEVICE)
    deep_a, deep_b, small = uniform(64, 32768), uniform(32768, 64), torch.zeros(64, 64, device=DEVICE)
    how, other = {"own": True, "precision": precision}, torch.zeros_like(c)
    ready = toprung.prepack(b)
    plan, deep = toprung.plan(a, b, c, **how), toprung.plan(deep_a, deep_b, small, **how)  # type: ignore[arg-type]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def work() -> Any:
        plan(a, b, out=c)
        deep(deep_a, deep_b, out=small)
        toprung.matmul(a, ready, other, own=True)
        return matmul(a, b, precision=precision)

    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = work()
    for turn in range(3):
        a.copy_(uniform(300, 200)), deep_a.copy_(uniform(64, 32768))
        if turn == 1:  # the stream's scratch memory grows, and the graph has the old addresses
            with torch.cuda.stream(stream):
                matmul(uniform(3000, 2000), uniform(2000, 3000), precision=precision)
        if turn == 2:
            a[5, 7] = math.nan
        stream.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        for found in (c, made, other):
            if turn < 2:
                right(found, a, b, own=False)
            else:
                assert found[5].isnan().all() and found[:5].isfinite().all() and found[6:].isfinite().all()
        right(small, deep_a, deep_b, own=False)


def test_plans_take_only_what_they_were_made_for() -> None:
    a, b = uniform(64, 32), uniform(32, 48)
    plan = toprung.plan(a, b, own=True)
    right(plan(a, b), a, b)
    for other in (uniform(65, 32), uniform(32, 64).t(), a.double(), a.cpu(), a.cpu().numpy()):
        with pytest.raises(errors.StalePlan):
            plan(other, b)
    loose = uniform(64 * 32 + 1)[1:].view(64, 32)
    right(plan(loose, b), loose, b)


class Interface:
    """An array with nothing but ``__cuda_array_interface__``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__


class Handed:
    """An array with nothing but DLPack."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.__dlpack__, self.__dlpack_device__ = tensor, tensor.__dlpack__, tensor.__dlpack_device__


@pytest.mark.parametrize("wrap", [Interface, Handed])
def test_protocols(wrap: Any) -> None:
    a, b, out = uniform(33, 20), uniform(20, 41), torch.full((33, 41), math.nan, device=DEVICE)
    right(torch.as_tensor(matmul(wrap(a), wrap(b)), device=DEVICE), a, b)
    matmul(wrap(a), wrap(b), wrap(out))
    right(out, a, b)
    right(matmul(a, wrap(b)), a, b)


def test_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    a, b = cupy.random.rand(65, 40, dtype=np.float32), cupy.random.rand(40, 33, dtype=np.float32)
    x, y = torch.as_tensor(a, device=DEVICE), torch.as_tensor(b, device=DEVICE)
    found = matmul(a, b)
    assert isinstance(found, cupy.ndarray)
    right(found, x, y)
    right(matmul(a[::-1], b), x.flip(0), y)
    right(toprung.sgemm(1, a, b, own=True), x, y)
    right(matmul(a, y), x, y)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        found = toprung.plan(a, b, own=True)(a, b)
    stream.synchronize()
    right(found, x, y)


@on_hopper
def test_scratch_memory_of_cupy_serves_each_stream_and_is_given_back() -> None:
    cupy = pytest.importorskip("cupy")
    a, b, *outs = (cupy.random.rand(4096, 4096, dtype=np.float32) for _ in range(4))  # both operands are split: 128 MiB
    pool, streams = cupy.get_default_memory_pool(), [cupy.cuda.Stream(non_blocking=True) for _ in outs]
    cupy.cuda.Device().synchronize()
    pool.free_all_blocks()
    used, total = pool.used_bytes(), pool.total_bytes()
    for _ in range(4):
        for stream, out in zip(streams, outs, strict=True):
            with stream:
                matmul(a, b, out, precision="fp32x")
    cupy.cuda.Device().synchronize()
    assert pool.used_bytes() == used and pool.total_bytes() - total >= len(streams) * KEPT_BYTES
    x, y = (torch.as_tensor(one, device=DEVICE) for one in (a, b))
    for out in outs:
        right(out, x, y)


@paths
@pytest.mark.parametrize("shared", [False, True])
def test_two_threads(shared: bool, precision: str) -> None:
    failures: list[BaseException] = []
    common = torch.cuda.Stream()

    def work(seed: int) -> None:
        stream = common if shared else torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                for i in range(60):
                    m, n, k = [(64, 64, 20000), (300, 200, 100), (1025, 500, 300)][(i + seed) % 3]
                    a, b = uniform(m, k), uniform(k, n)
                    found = matmul(a, b, precision=precision)
                    stream.synchronize()
                    right(found, a, b)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_host_arrays_in_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (np.random.default_rng(i).uniform(-1, 1, (2048, 2048)).astype(np.float32) for i in range(2))
    x, y = (torch.from_numpy(one).to(DEVICE) for one in (a, b))
    right(torch.from_numpy(matmul(a, b, device="cuda:0")), x, y)
    monkeypatch.setenv("TOPRUNG_DEVICE_MEMORY", str(15 << 20))
    right(torch.from_numpy(matmul(a, b, device="cuda:0")), x, y)
    assert "panels" in str(last_receipt())
    c = np.asfortranarray(a)
    found = toprung.sgemm(0.7, a[:1000, ::-1], b, 1.3, c[:1000], own=True, device="cuda:0")
    right(torch.from_numpy(found), x[:1000].flip(1), y, 0.7, 1.3, x[:1000])


@pytest.mark.slow
def test_more_than_2_to_31_elements() -> None:
    m, n = 65536, 32800
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("the GPU has no 24 GB left")
    a, b, c = uniform(m, 8), uniform(8, n), torch.full((m, n), math.nan, device=DEVICE)
    matmul(a, b, c)
    assert not c.isnan().any()
    thin, x, tall = uniform(n, 4), uniform(n), uniform(m, 1)
    found, along, across = matmul(c, thin), matmul(c, x), matmul(c.t(), tall)  # inputs of as many
    for rows in (slice(0, 64), slice(m // 2, m // 2 + 64), slice(m - 64, m)):
        right(c[rows], a[rows], b)
        right(found[rows], c[rows], thin)
        right(along[rows], c[rows], x)
    right(across[-64:], c.t()[-64:], tall)


@on_hopper
@pytest.mark.parametrize("size", [512, 1024, 2048, 4096])
@pytest.mark.parametrize("make", [uniform, lambda *s: torch.rand(s, device=DEVICE), lambda *s: torch.randn(s, device=DEVICE)])
def test_fp32x_is_no_less_accurate_than_torch(size: int, make: Any) -> None:
    a, b = make(size, size), make(size, size)
    found = matmul(a, b, precision="fp32x")
    receipt = last_receipt()
    assert receipt is not None and receipt.precision == "fp32x" and grade(found, a, b) <= max(2 * grade(a @ b, a, b), 2.0)


@on_hopper
@pytest.mark.parametrize("size", [(300, 200, 260), (150, 90, 20000)])
def test_fp32x_computes_again_what_two_terms_cannot_carry(size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = uniform(m, k), uniform(k, n)
    matmul(a, b, precision="fp32x")
    receipt = last_receipt()
    before = receipt.escalated  # of all such calls in this process
    matmul(a, b, precision="fp32x")
    assert receipt.escalated == before, "common data were computed again"
    for value, where in itertools.product((math.nan, math.inf, -math.inf), "ab"):
        x, y = a.clone(), b.clone()
        (x if where == "a" else y)[17, 5] = value
        found, plain = matmul(x, y, precision="fp32x"), matmul(x, y)
        assert torch.equal(classes(found), classes(plain))
        assert torch.equal(classes(matmul(x, toprung.prepack(y), precision="fp32x")), classes(plain))
    wide = [(torch.rand(x.shape, device=DEVICE) - 0.5) * torch.exp(4 * torch.randn(x.shape, device=DEVICE)) for x in (a, b)]
    found = matmul(*wide, precision="fp32x")
    assert grade(found, *wide) <= max(2 * grade(wide[0] @ wide[1], *wide), 2.0)
    huge = a * 1e30, b * 1e30
    # Inf or NaN by the order of the sums: an exact product too large for fp32 leaves an infinite sum of the other sign as it is
    assert not matmul(*huge, precision="fp32x").isfinite().any() and not matmul(*huge).isfinite().any()
    for tiny in ((a * 1e-30, b * 1e-14), (a * 0, b), (a * 1e-44, b * 1e30)):
        right(matmul(*tiny, precision="fp32x"), *tiny)


@on_hopper
def test_a_prepacked_operand_is_what_it_was() -> None:
    b = uniform(300, 200)
    ready, turned = toprung.prepack(b), toprung.prepack(b, trans=True)
    for m in (1, 7, 300, 1000):
        a, narrow = uniform(m, 300), uniform(m, 200)
        right(toprung.matmul(a, ready, own=True), a, b)
        right(toprung.matmul(narrow, turned, own=True), narrow, b.t())
    a = uniform(4, 50, 300)
    right(toprung.matmul(a, ready, own=True), a, b)
    b.fill_(math.nan)
    with pytest.raises(errors.StaleOperand):
        toprung.matmul(a, ready, own=True)


@on_hopper
def test_fp32x_takes_no_more_memory_than_its_operands() -> None:
    n = 8192
    a, b, c = uniform(n, n), uniform(n, n), torch.empty(n, n, device=DEVICE)
    matmul(a, b, c, precision="fp32x")
    receipt = last_receipt()
    assert receipt is not None and receipt.workspace_bytes <= 1.01 * 8 * n * n


@on_hopper
def test_launches_that_split_b_themselves_on_several_streams_at_once() -> None:
    from toprung.arrays.base import Home
    from toprung.arrays.sessions import session_at
    from toprung.gemm.desc import GemmDesc
    from toprung.kernels.hopper_fp32x.config import presplit
    from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches

    session, todo = session_at(Home("cuda", 0)), []
    for n in range(4):  # more blocks than SMs have room for
        m, cols, k = 4096 - 300 * n, 256 + 40 * n, 1024 * (1 + n % 3)
        a, b, out = uniform(m, k), uniform(cols, k), torch.full((m, cols), math.nan, device=DEVICE)
        desc = GemmDesc(m, cols, k, 1, False, True, align_a=4, align_b=4, align_c=4)
        made = Fp32xLaunches(session, desc, presplit())
        work = torch.empty(made.plan.workspace_bytes, dtype=torch.uint8, device=DEVICE)
        todo.append((torch.cuda.Stream(), made.starter(), a, b, out, work))
    torch.cuda.synchronize()
    for _ in range(40):
        for stream, run, a, b, out, work in todo:
            run(a.data_ptr(), 0, b.data_ptr(), 0, out.data_ptr(), 0, 1.0, 0.0, stream.cuda_stream, work.data_ptr())
    torch.cuda.synchronize()
    for _, _, a, b, out, _ in todo:
        right(out, a, b.mT, own=False)


@on_hopper
def test_what_auto_takes() -> None:
    for m, n, k, path in ((1024, 1024, 1024, "fp32x"), (4096, 4096, 512, "fp32x"), (64, 64, 64, "fp32"), (16, 4096, 4096, "fp32")):
        a, b = uniform(m, k), uniform(k, n)
        for own in (True, False):
            right(matmul(a, b, own=own, precision="auto"), a, b, own=False)
            receipt = last_receipt()
            assert receipt is not None and receipt.precision == path, receipt
    a, b = uniform(1024, 1024), uniform(1024, 1024)
    found, receipt = matmul(a, b, precision="tf32", own=False), last_receipt()
    assert receipt is not None and receipt.precision == "tf32" and "NOT as accurate" in receipt.why
    x, y = a.double(), b.double()
    assert 1e-5 <= float((found.double() - x @ y).norm() / (x @ y).norm()) <= 2e-3
