"""Check each promise of the library about arrays on an NVIDIA GPU: a line for each, exit code 1 if one fails.

    python benchmarks/gpu_library.py [--device 0] [--small]

Takes PyTorch, and CuPy where it is installed. --small leaves out the products of more than 2^31 elements (about 20 GB).
"""

import argparse
import os
import sys
import threading
import time
import traceback

import numpy as np
import torch

import toprung
from toprung import errors, last_receipt

CHECKS = []
LIMIT = 16 * 2.0**-24


def check(function):
    CHECKS.append(function)
    return function


def uniform(*shape):
    return torch.rand(shape, device=DEVICE) * 2 - 1


def right(found, a, b, alpha=1.0, beta=0.0, c=None, own=True):
    """The grade ratio against float64 on the GPU, NaN failing, and the receipt."""
    wide_a, wide_b = a.double(), b.double()
    reference, size = alpha * (wide_a @ wide_b), abs(alpha) * (wide_a.abs() @ wide_b.abs())
    if beta:
        reference, size = reference + beta * c.double(), size + abs(beta) * c.double().abs()
    found = torch.as_tensor(found, device=DEVICE)
    assert found.dtype == torch.float32 and found.shape == reference.shape, (found.dtype, found.shape, reference.shape)
    assert bool(((found.double() - reference).abs() <= LIMIT * size + 1e-40).all()), last_receipt()
    if own:
        receipt = last_receipt()
        assert receipt.own and receipt.device.startswith("cuda"), receipt


def matmul(a, b, out=None, **more):
    return toprung.matmul(a, b, out, **{"own": True, **more})


@check
def shapes_and_layouts():
    for m, n, k in [
        (1, 1, 1),
        (5, 7, 3),
        (33, 65, 129),
        (128, 128, 128),
        (1, 300, 200),
        (300, 1, 200),
        (257, 255, 1),
        (35, 79, 19),
        (3, 3, 431),
    ]:
        for turn_a in (False, True):
            for turn_b in (False, True):
                a = uniform(k, m).t() if turn_a else uniform(m, k)
                b = uniform(n, k).t() if turn_b else uniform(k, n)
                right(matmul(a, b), a, b)
                wide = torch.full((m, n + 5), float("nan"), device=DEVICE)
                result = matmul(a, b, wide[:, 2 : n + 2])
                right(result, a, b)
                assert wide[:, :2].isnan().all() and wide[:, n + 2 :].isnan().all()
                turned = torch.full((n, m), float("nan"), device=DEVICE)
                right(matmul(a, b, turned.t()), a, b)
    a, b = uniform(66, 90)[::2, ::3], uniform(30, 40)
    right(matmul(a, b), a, b)
    assert "neither rows nor columns" in str(last_receipt())
    row = uniform(30).expand(50, 30)
    right(matmul(row, b), row, b)
    flat = uniform(33 * 31 + 1)[1:].view(33, 31)
    right(matmul(flat, b[:, :1].expand(30, 31).t()), flat, b[:, :1].expand(30, 31).t())


@check
def zero_dimensions_and_k_zero():
    for m, n, k in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]:
        result = matmul(uniform(m, k), uniform(k, n))
        assert result.shape == (m, n) and not result.any()


@check
def batches():
    a, b = uniform(6, 1, 33, 17), uniform(5, 17, 20)
    right(matmul(a, b), a, b)
    a, b = uniform(70_000, 3, 4), uniform(70_000, 4, 5)
    right(matmul(a, b), a, b)
    right(matmul(a, b[0]), a, b[0])
    a, b = uniform(40, 64, 64).transpose(1, 2), uniform(64, 64)
    right(matmul(a, b), a, b)


@check
def scalars_and_scipys_meaning():
    for alpha in (0.0, 1.0, -1.0, 0.7):
        for beta in (0.0, 1.0, 1.3):
            a, b, c = uniform(33, 40), uniform(40, 21), uniform(33, 21)
            c_read = c.clone()
            if beta == 0:
                c.fill_(float("nan"))
            a_read = a.clone()
            if alpha == 0:
                a.fill_(float("nan"))
            found = toprung.sgemm(alpha, a, b, beta, c, own=True)
            right(found, a_read if alpha else a_read * 0, b, alpha, beta, c_read)
            assert found.stride() == (1, 33)
    c = torch.zeros(21, 33, device=DEVICE).t()
    assert toprung.sgemm(1, a_read, b, 0, c, overwrite_c=1, own=True) is c
    right(c, a_read, b)
    x, y = uniform(100), uniform(100)
    found = toprung.sgemv(0.5, a_read, x, 2.0, y, incx=-2, incy=3, own=True)
    expected = y.clone()
    expected[:97:3] = (0.5 * a_read.double() @ x[:79:2].flip(0).double() + 2 * y[:97:3].double()).float()
    assert torch.allclose(found, expected, atol=1e-5)


@check
def nan_and_inf():
    a, b = uniform(40, 50), uniform(50, 30)
    a[3, 4], b[5, 6], a[7, 8] = float("nan"), float("inf"), float("-inf")
    ours, theirs = matmul(a, b), (a.double() @ b.double()).float()
    assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())


@check
def same_bits_again():
    for m, n, k in [(512, 512, 512), (64, 64, 65536), (1000, 1000, 1000)]:
        a, b = uniform(m, k), uniform(k, n)
        first = matmul(a, b)
        assert all(torch.equal(matmul(a.clone(), b.clone()), first) for _ in range(3))


@check
def the_result_is_of_the_first_operands_kind():
    a, b = uniform(8, 8), uniform(8, 8)
    assert isinstance(matmul(a, b), torch.Tensor) and matmul(a, b).device == a.device
    cpu = matmul(a.cpu(), b.cpu())
    assert isinstance(cpu, torch.Tensor) and cpu.device.type == "cpu"
    right(cpu, a, b)
    assert isinstance(matmul(a.cpu().numpy(), b.cpu().numpy()), np.ndarray)


@check
def no_copy_to_the_host_and_no_wait():
    from torch.profiler import ProfilerActivity, profile

    a, b, c = uniform(256, 256), uniform(256, 256), uniform(256, 256)
    strided = uniform(512, 512)[::2, ::2]
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            matmul(a, b)
            matmul(a, b, c)
            matmul(strided, b)
            torch.cuda.synchronize()
    names = [event.key for event in seen.key_averages()]
    assert not [n for n in names if "Memcpy" in n or "DtoH" in n or "HtoD" in n], names


@check
def the_current_stream_is_used_and_not_waited_for():
    stream = torch.cuda.Stream(DEVICE)
    b = uniform(512, 512)
    torch.cuda.synchronize()
    matmul(b, b)
    with torch.cuda.stream(stream):
        matmul(b, b)  # this stream's scratch memory
        stream.synchronize()
        a = torch.zeros(512, 512, device=DEVICE)
        torch.cuda._sleep(500_000_000)
        a.fill_(1.0)
        result = matmul(a, b)
        done = torch.cuda.Event()
        done.record(stream)
        assert not done.query(), "the call waited for the device, or ran elsewhere"
    stream.synchronize()
    right(result, torch.ones_like(a), b)


@check
def a_cuda_graph():
    a, b, c = uniform(300, 200), uniform(200, 100), torch.zeros(300, 100, device=DEVICE)
    deep_a, deep_b, small = uniform(64, 32768), uniform(32768, 64), torch.zeros(64, 64, device=DEVICE)
    plan, deep = toprung.plan(a, b, c, own=True), toprung.plan(deep_a, deep_b, small, own=True)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        plan(a, b, out=c)
        deep(deep_a, deep_b, out=small)
        matmul(a, b, c)
        matmul(a, b)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        plan(a, b, out=c)
        deep(deep_a, deep_b, out=small)
        made = matmul(a, b)
        matmul(a, b, c)
    a.copy_(uniform(300, 200))
    deep_a.copy_(uniform(64, 32768))
    graph.replay()
    torch.cuda.synchronize()
    right(c, a, b)
    right(made, a, b)
    right(small, deep_a, deep_b)


@check
def plans_refuse_what_they_were_not_made_for():
    a, b = uniform(64, 32), uniform(32, 48)
    plan = toprung.plan(a, b, own=True)
    right(plan(a, b), a, b)
    for other in (uniform(65, 32), uniform(32, 64).t(), a.double(), a.cpu(), a.cpu().numpy()):
        try:
            plan(other, b)
        except errors.StalePlan:
            continue
        raise AssertionError(f"{type(other)} {tuple(other.shape)} was taken")
    loose = uniform(64 * 32 + 1)[1:].view(64, 32)
    right(plan(loose, b), loose, b)


@check
def errors_before_any_launch():
    a = uniform(8, 8)
    for call, kind in [
        (lambda: matmul(a.double(), a), TypeError), (lambda: matmul(a, a.cpu()), ValueError), (lambda: matmul(a, a, a), ValueError),
        (lambda: matmul(a, uniform(7, 8)), ValueError), (lambda: matmul(a.clone().requires_grad_(), a), TypeError),
        (lambda: matmul(a, a, a.t()), ValueError), (lambda: matmul(a, a, device="nowhere"), ValueError),
    ]:  # fmt: skip
        try:
            call()
        except kind as error:
            assert isinstance(error, errors.ToprungError), error
            continue
        raise AssertionError("not refused")


class Interface:
    """Nothing but ``__cuda_array_interface__``."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


class Handed:
    """Nothing but DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **more):
        return self.tensor.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@check
def the_protocols():
    a, b = uniform(33, 20), uniform(20, 41)
    for wrap in (Interface, Handed):
        made = matmul(wrap(a), wrap(b))
        right(torch.as_tensor(made, device=DEVICE), a, b)
        out = torch.full((33, 41), float("nan"), device=DEVICE)
        matmul(wrap(a), wrap(b), wrap(out))
        right(out, a, b)
        right(matmul(a, wrap(b)), a, b)


@check
def cupy_arrays():
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    a, b = cupy.random.rand(65, 40, dtype=np.float32), cupy.random.rand(40, 33, dtype=np.float32)
    as_torch = torch.as_tensor(a, device=DEVICE), torch.as_tensor(b, device=DEVICE)
    for _ in range(2):
        found = matmul(a, b)
        assert isinstance(found, cupy.ndarray)
        right(found, *as_torch)
    right(matmul(a[::-1], b[:, ::-2]), as_torch[0].flip(0), torch.as_tensor(cupy.ascontiguousarray(b[:, ::-2]), device=DEVICE))
    right(toprung.sgemm(1, a, b, own=True), *as_torch)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        right_one = a.copy()
        found = toprung.plan(right_one, b, own=True)(right_one, b)
    stream.synchronize()
    right(found, *as_torch)
    out = torch.empty(65, 33, device=DEVICE)
    matmul(a, b, cupy.asarray(out))
    right(out, *as_torch)
    right(matmul(a, as_torch[1]), *as_torch)
    return None


@check
def two_threads_two_streams():
    failures = []

    def work(seed):
        try:
            stream = torch.cuda.Stream(DEVICE)
            with torch.cuda.stream(stream):
                for i in range(60):
                    m, n, k = [(64, 64, 20000), (300, 200, 100), (1, 500, 300)][(i + seed) % 3]
                    a, b = uniform(m, k), uniform(k, n)
                    found = matmul(a, b)
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


@check
def host_arrays_in_panels():
    a, b = (np.random.default_rng(i).uniform(-1, 1, (4096, 4096)).astype(np.float32) for i in range(2))
    device = f"cuda:{DEVICE.index}"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        found = matmul(a, b, device=device)
        times.append(time.perf_counter() - start)
    on_gpu = [torch.from_numpy(x).to(DEVICE) for x in (a, b)]
    right(torch.from_numpy(found), *on_gpu)
    whole = str(last_receipt())
    os.environ["TOPRUNG_DEVICE_MEMORY"] = str(60 << 20)
    try:
        found = matmul(a, b, device=device)
        right(torch.from_numpy(found), *on_gpu)
        assert "panels" in str(last_receipt()), last_receipt()
        c = np.asfortranarray(a)
        found = toprung.sgemm(0.7, a[:1000, ::-1], b, 1.3, c[:1000], own=True, device=device)
        right(torch.from_numpy(found), on_gpu[0][:1000].flip(1), on_gpu[1], 0.7, 1.3, on_gpu[0][:1000])
    finally:
        del os.environ["TOPRUNG_DEVICE_MEMORY"]
    return f"4096 cubed from NumPy: {min(times) * 1e3:.0f} ms; {'panels' if 'panels' in whole else 'in one piece'}"


@check
def more_than_2_to_31_elements():
    if SMALL:
        return "left out"
    m, n = 65536, 32800
    a, b = uniform(m, 8), uniform(8, n)
    c = torch.full((m, n), float("nan"), device=DEVICE)
    matmul(a, b, c)
    for rows in (slice(0, 64), slice(m // 2, m // 2 + 64), slice(m - 64, m)):
        right(c[rows], a[rows], b)
    assert not c.isnan().any()
    thin = uniform(n, 4)
    found = matmul(c, thin)  # an input of as many
    for rows in (slice(0, 64), slice(m - 64, m)):
        right(found[rows], c[rows], thin)
    x = uniform(n)
    right(matmul(c, x)[-64:], c[-64:], x)
    tall = uniform(m, 1)
    right(matmul(c.t(), tall)[-64:], c.t()[-64:], tall)
    return None


@check
def beside_the_vendor():
    a, b = uniform(1000, 700), uniform(700, 900)
    found = matmul(a, b, own=False)
    right(found, a, b, own=False)
    return str(last_receipt()).splitlines()[1].strip()


def on_hopper(function):
    """A check of fp32x, left out elsewhere."""

    def run():
        if torch.cuda.get_device_capability(DEVICE) != (9, 0):
            return "left out: not a Hopper"
        return function()

    run.__name__ = function.__name__
    return check(run)


def precise(a, b, out=None, **more):
    """By fp32x, and the receipt says so."""
    found = matmul(a, b, out, **{"precision": "fp32x", **more})
    receipt = last_receipt()
    assert receipt.precision == "fp32x" and receipt.kernel == "hopper_fp32x" and receipt.own, receipt
    return found


def grade(found, a, b):
    """The grade ratio, and the Frobenius error."""
    wide_a, wide_b = a.double(), b.double()
    reference, size = wide_a @ wide_b, wide_a.abs() @ wide_b.abs()
    difference = (found.double() - reference).abs()
    return float((difference / (2.0**-24 * size)).max()), float(difference.norm() / reference.norm())


def beside_torch(found, a, b):
    """At most twice the grade ratio of torch's fp32 (2 is a rounding or two), NaN failing; how many times it is."""
    ours, theirs = grade(found, a, b)[0], grade(a @ b, a, b)[0]
    assert ours <= max(2 * theirs, 2.0), (ours, theirs, tuple(a.shape), tuple(b.shape), str(last_receipt()))
    return ours / theirs


@on_hopper
def fp32x_in_all_layouts():
    worst = 0.0
    for m, n, k in [
        (129, 257, 65),
        (1000, 700, 300),
        (512, 512, 512),
        (333, 1025, 1031),
        (7, 5, 64),
        (64, 4096, 100),
        (2049, 1, 72),
    ]:
        for turn_a in (False, True):
            for turn_b in (False, True):
                a = uniform(k, m).t() if turn_a else uniform(m, k)
                b = uniform(n, k).t() if turn_b else uniform(k, n)
                if min(m, n) == 1:
                    right(matmul(a, b, precision="fp32x"), a, b)
                    assert last_receipt().precision == "fp32" and "vector" in str(last_receipt())
                    continue
                worst = max(worst, beside_torch(precise(a, b), a, b))
                offset = uniform(m, k + 3)[:, 1 : k + 1]
                worst = max(worst, beside_torch(precise(offset, b), offset, b))
    return f"grade ratio at most {worst:.2f} times torch's fp32"


@on_hopper
def fp32x_is_no_less_accurate_than_torch():
    notes = []
    for n in (512, 1024, 2048, 4096):
        for name, make in (
            ("U(-1,1)", uniform),
            ("U(0,1)", lambda *s: torch.rand(s, device=DEVICE)),
            ("N(0,1)", lambda *s: torch.randn(s, device=DEVICE)),
        ):
            a, b = make(n, n), make(n, n)
            ours, theirs = grade(precise(a, b), a, b), grade(a @ b, a, b)
            assert ours[0] <= max(2 * theirs[0], 2.0), (n, name, ours, theirs)
            assert n < 2048 or ours[1] <= theirs[1], (n, name, ours, theirs)  # smaller ones cuBLAS cuts along K
            notes.append(ours[1] / theirs[1])
    return f"Frobenius error {min(notes):.2f} to {max(notes):.2f} times torch's fp32"


def classes(x):
    """Finite, NaN, Inf, -Inf as numbers."""
    return x.isnan() * 1 + (x == float("inf")) * 2 + (x == float("-inf")) * 3


@on_hopper
def fp32x_computes_again_what_two_terms_cannot_carry():
    a, b = uniform(300, 200), uniform(200, 260)
    precise(a, b)
    receipt = last_receipt()
    before = receipt.escalated
    precise(a, b)
    assert receipt.escalated == before, "common data escalated"
    counts = []
    for value in (float("nan"), float("inf"), float("-inf")):
        for where in "ab":
            x, y = a.clone(), b.clone()
            (x if where == "a" else y)[17, 5] = value
            before = receipt.escalated
            found = precise(x, y)
            counts.append(receipt.escalated - before)
            assert counts[-1] > 0, (value, where)
            plain = matmul(x, y, precision="fp32")
            assert torch.equal(classes(found), classes(plain)), (value, where)
            good = plain.isfinite()
            assert torch.allclose(found[good], plain[good], rtol=0, atol=1e-4)
    wide = [(torch.rand(s, device=DEVICE) - 0.5) * torch.exp(4 * torch.randn(s, device=DEVICE)) for s in (a.shape, b.shape)]
    before = receipt.escalated
    beside_torch(precise(*wide), *wide)
    counts.append(receipt.escalated - before)
    assert counts[-1] > 0, "data that are spread wide were not found"
    huge = a * 1e30, b * 1e30
    assert torch.equal(classes(precise(*huge)), classes(matmul(*huge, precision="fp32")))
    for tiny in ((a * 1e-30, b * 1e-14), (a * 0, b), (a * 1e-44, b * 1e30)):
        right(precise(*tiny), *tiny)
    return f"pieces: {counts}"


@on_hopper
def fp32x_scalars_batches_and_slices():
    for alpha in (0.0, 1.0, -0.7):
        for beta in (0.0, 1.0, 1.3):
            a, b, c = uniform(133, 140), uniform(140, 121), uniform(133, 121)
            old = c.clone()
            if beta == 0:
                c.fill_(float("nan"))
            read = a.clone() if alpha else a * 0
            if alpha == 0:
                a.fill_(float("nan"))
            right(toprung.sgemm(alpha, a, b, beta, c, own=True, precision="fp32x"), read, b, alpha, beta, old)
    for a, b in [
        (uniform(6, 130, 97), uniform(6, 97, 65)), (uniform(6, 130, 97), uniform(97, 65)), (uniform(130, 97), uniform(6, 97, 65)),
        (uniform(40, 64, 50).transpose(1, 2), uniform(40, 70, 64).transpose(1, 2)), (uniform(300, 3, 72), uniform(300, 72, 5)),
        (uniform(2, 3, 50, 72), uniform(3, 72, 33)), (uniform(4, 60, 70).transpose(0, 1), uniform(60, 70, 33)),
    ]:  # fmt: skip
        right(precise(a, b), a, b)
    for m, n, k in [(130, 97, 64), (257, 129, 300)]:
        a, b = uniform(m, k), uniform(k, n)
        for step in (n + 5, n + 8):
            wide = torch.full((m, step), float("nan"), device=DEVICE)
            right(precise(a, b, wide[:, 2 : n + 2]), a, b)
            assert wide[:, :2].isnan().all() and wide[:, n + 2 :].isnan().all()
        turned = torch.full((n, m), float("nan"), device=DEVICE)
        right(precise(a, b, turned.t()), a, b)
        strided = uniform(2 * m, k)[::2]
        right(precise(strided, b), strided, b)
    a, b = uniform(64, 20), uniform(20, 64)
    right(matmul(a, b, precision="fp32x"), a, b)
    assert last_receipt().precision == "fp32" and "K from 64" in str(last_receipt())


@on_hopper
def fp32x_prepared():
    b = uniform(300, 200)
    kept = b.clone()
    ready, turned = toprung.prepack(b), toprung.prepack(b, trans=True)
    assert ready.terms is not None and turned.terms is not None, (ready, turned)
    b.fill_(float("nan"))
    bits = None
    for m in (1, 7, 300, 1000):
        a = uniform(m, 300)
        found = matmul(a, ready)
        right(found, a, kept)
        if m > 1:
            assert "B was split beforehand" in str(last_receipt()), last_receipt()
            assert torch.equal(found, precise(a, kept)), "other bits than without"
        narrow = uniform(m, 200)
        right(matmul(narrow, turned), narrow, kept.t())
    a = uniform(4, 50, 300)
    right(matmul(a, ready), a, kept)
    a, out = uniform(128, 300), torch.zeros(128, 200, device=DEVICE)
    plan = toprung.plan(a, ready, out, own=True)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert plan(a, ready, out=out) is out
        bits = matmul(a, ready)
    stream.synchronize()
    right(out, a, kept)
    assert torch.equal(out, bits)
    a[3, 4] = float("inf")
    assert torch.equal(classes(matmul(a, ready)), classes(matmul(a, kept, precision="fp32")))
    kept[5, 6] = float("nan")
    a = uniform(128, 300)
    assert torch.equal(classes(matmul(a, toprung.prepack(kept))), classes(matmul(a, kept, precision="fp32")))
    right(matmul(a.clone(), ready, torch.empty(200, 128, device=DEVICE).t()), a, ready.array)
    short = toprung.prepack(uniform(20, 64))
    a = uniform(64, 20)
    right(matmul(a, short), a, short.array)
    assert "K from 64" in short.why


@on_hopper
def fp32x_in_a_graph():
    a, b, c = uniform(300, 200), uniform(200, 100), torch.zeros(300, 100, device=DEVICE)
    large, square = uniform(1024, 1024), torch.zeros(1024, 1024, device=DEVICE)
    ready = toprung.prepack(b)
    how = {"own": True, "precision": "fp32x"}
    plan, twice, with_ready = (
        toprung.plan(a, b, c, **how),
        toprung.plan(large, large, square, **how),
        toprung.plan(a, ready, c, **how),
    )
    other, doubled = torch.zeros_like(c), torch.zeros_like(a)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream())

    def work():
        torch.mul(a, 2.0, out=doubled)
        plan(doubled, b, out=c)
        c.mul_(0.5)
        with_ready(a, ready, out=other)
        twice(large, large, out=square)
        return matmul(a, b, precision="fp32x")

    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = work()
    for turn in range(3):
        a.copy_(uniform(300, 200))
        large.copy_(uniform(1024, 1024))
        if turn == 1:  # the stream's scratch memory grows, and the graph has the old addresses
            with torch.cuda.stream(stream):
                bigger = uniform(3000, 2000)
                right(precise(bigger, bigger.t()), bigger, bigger.t())
        if turn == 2:
            a[5, 7] = float("nan")
        stream.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        if turn < 2:
            for found in (c, other, made):
                right(found, a, b, own=False)
        else:
            for found in (c, other, made):
                assert found[5].isnan().all() and found[:5].isfinite().all() and found[6:].isfinite().all()
        right(square, large, large, own=False)


@on_hopper
def fp32x_from_two_threads():
    failures = []
    shared = torch.cuda.Stream(DEVICE)

    def work(seed, stream):
        try:
            with torch.cuda.stream(stream):
                for i in range(60):
                    m, n, k = [(64, 640, 2000), (300, 200, 100), (1025, 500, 300)][(i + seed) % 3]
                    a, b = uniform(m, k), uniform(k, n)
                    found = precise(a, b)
                    stream.synchronize()
                    right(found, a, b)
        except BaseException as error:
            failures.append(error)

    for streams in ([torch.cuda.Stream(DEVICE) for _ in range(2)], [shared] * 2):
        threads = [threading.Thread(target=work, args=(i, one)) for i, one in enumerate(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]


@on_hopper
def fp32x_in_slices():
    worst = []
    for m, n, k in [
        (128, 128, 65536),
        (256, 256, 131072),
        (70, 130, 9001),
        (384, 384, 16384),
        *((s, s, s) for s in (512, 768, 1000)),
    ]:
        a, b = uniform(m, k), uniform(n, k).t() if m == 384 else uniform(k, n)
        found = precise(a, b)
        receipt = last_receipt()
        split = "SPLIT_K" in receipt.kernels[0]  # of the last three the store may know that slices are faster
        assert receipt.launches == (3 if split else 2) and (split or k <= 4096), receipt
        assert receipt.workspace_bytes <= 8.2 * k * (m + n), receipt
        worst.append(beside_torch(found, a, b))
        assert receipt.escalated == 0 and all(torch.equal(found, precise(a, b)) for _ in range(5)), (m, n, k)
    k = 20000
    a, b = uniform(150, k), uniform(k, 90)
    ready = toprung.prepack(b)
    assert torch.equal(precise(a, b), matmul(a, ready, precision="fp32x")), "a prepared operand gives other bits"
    batch = uniform(3, 100, k)
    right(precise(batch, b), batch, b)
    c = uniform(150, 90)
    old = c.clone()
    right(toprung.sgemm(-0.7, a, b, 1.3, c, own=True, precision="fp32x"), a, b, -0.7, 1.3, old)
    for where, value in ((17, float("nan")), (k - 1, float("inf")), (k // 2, float("-inf"))):
        x, y = a.clone(), b.clone()
        x[140, where] = value
        y[where, 3] = -2.0
        for second in (y, toprung.prepack(y)):
            found = matmul(x, second, precision="fp32x")
            assert torch.equal(classes(found), classes(matmul(x, y, precision="fp32"))), value
        right(found[:140], x[:140], y, own=False)
    wide = [(torch.rand(s, device=DEVICE) - 0.5) * torch.exp(4 * torch.randn(s, device=DEVICE)) for s in ((150, k), (k, 90))]
    beside_torch(precise(*wide), *wide)
    assert last_receipt().escalated > 0
    torch.cuda.synchronize()
    start = time.perf_counter()
    precise(*[x * 1e18 for x in (uniform(256, 131072), uniform(131072, 256))])
    torch.cuda.synchronize()
    in_order = time.perf_counter() - start
    out, stream = torch.zeros(150, 90, device=DEVICE), torch.cuda.Stream(DEVICE)
    plan = toprung.plan(a, b, out, own=True, precision="fp32x")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        plan(a, b, out=out)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        plan(a, b, out=out)
    for turn in range(3):
        a.copy_(uniform(150, k))
        if turn == 1:
            a[5, 7] = float("nan")
        for _ in range(2):
            out.zero_()
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(classes(out), classes(precise(a, b))) and torch.equal(out[6:], precise(a, b)[6:])
        assert bool(out[5].isnan().all()) == (turn == 1) and out[6:].isfinite().all()
    right(out, a, b, own=False)
    notes = f"grade ratios {min(worst):.2f} to {max(worst):.2f} times torch's fp32"
    return f"{notes}; 256x256x131072 in order of K: {in_order * 1e3:.0f} ms"


@on_hopper
def fp32x_same_bits_again_and_does_not_wait():
    a, b = uniform(1500, 900), uniform(900, 1100)
    first = precise(a, b)
    for _ in range(20):
        assert torch.equal(first, precise(a, b))
    for size in (64, 1500):
        again = torch.empty(1500, 1100, device=DEVICE)
        precise(uniform(size, 900), b)
        assert torch.equal(first, precise(a, b, again))
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        precise(a, b)
        stream.synchronize()
        torch.cuda._sleep(int(2e9))
        found = precise(a, b)
        done = torch.cuda.Event()
        done.record(stream)
        assert not done.query(), "the call waited for the device, or ran elsewhere"
    stream.synchronize()
    assert torch.equal(first, found)
    begin = time.perf_counter()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(2e8))
        for _ in range(200):
            toprung.matmul(a, b, again, own=True, precision="fp32x")
    host = (time.perf_counter() - begin) / 200
    torch.cuda.synchronize()
    return f"{host * 1e6:.1f} us of the host's for a call"


@on_hopper
def fp32x_memory():
    n = 8192
    a, b, c = uniform(n, n), uniform(n, n), torch.empty(n, n, device=DEVICE)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info(DEVICE)[0]
    with torch.cuda.stream(stream):
        precise(a, b, c)
    stream.synchronize()
    taken, operands = before - torch.cuda.mem_get_info(DEVICE)[0], 8 * n * n
    assert taken <= 2 * operands, (taken, operands)
    assert last_receipt().workspace_bytes <= 1.01 * operands
    return f"{taken / operands:.2f} times the operands"


@on_hopper
def what_auto_takes():
    for shape, path in (((1024,) * 3, "fp32x"), ((4096, 4096, 512), "fp32x"), ((64,) * 3, "fp32"), ((16, 4096, 4096), "fp32")):
        a, b = uniform(shape[0], shape[2]), uniform(shape[2], shape[1])
        for own in (True, False):
            right(matmul(a, b, own=own), a, b, own=False)
            assert last_receipt().precision == path, last_receipt()
    for call in (lambda: matmul(a, b, precision="tf32"), lambda: matmul(a, b, precision="half")):
        try:
            call()
        except ValueError as error:
            assert isinstance(error, errors.ToprungError)
            continue
        raise AssertionError("not refused")
    a, b = uniform(1024, 1024), uniform(1024, 1024)
    found = matmul(a, b, precision="tf32", own=False)
    receipt = last_receipt()
    assert receipt.precision == "tf32" and "NOT as accurate" in receipt.why, receipt
    error = grade(found, a, b)[1]
    assert 1e-5 <= error <= 2e-3, error
    return f"TF32's Frobenius error is {error:.1e}"


def main():
    global DEVICE, SMALL
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", type=int, default=0)
    arguments.add_argument("--small", action="store_true")
    chosen = arguments.parse_args()
    DEVICE, SMALL = torch.device("cuda", chosen.device), chosen.small
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    failed = 0
    for function in CHECKS:
        start = time.perf_counter()
        try:
            note = function() or ""
            torch.cuda.synchronize()
            outcome = "ok    "
        except Exception as error:
            outcome, note = "FAILED", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            failed += 1
        print(f"{outcome} {function.__name__.replace('_', ' ')} ({time.perf_counter() - start:.1f} s) {note}", flush=True)
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
