"""Programs of the kinds that PyTorch's public reports show: each with its products on toprung's kernels, beside float64 or PyTorch.

Each scenario says how many products toprung must take, so that none passes because nothing was taken. Numbers are those of
github.com/pytorch/pytorch/issues, or of functorch where that is named. On a GPU (``make test-gpu``) all run on CUDA tensors.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _python_dispatch, checkpoint

import forked
import toprung.torch
from toprung.kernels import build
from toprung.torch import products
from torch_device import DEVICE, EVERY, left

on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="there is no GPU")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Enable toprung for every product, and leave the process as it was."""
    toprung.torch.enable(**EVERY)
    yield
    toprung.torch.disable()
    products.forget()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(*shape, generator=rng).mul(2).sub(1).to(DEVICE)


def agree(found: torch.Tensor, oracle: torch.Tensor, depth: int = 64) -> None:
    """Compare with float64, within a bound that grows with K."""
    bound = 8 * depth * 2.0**-24
    torch.testing.assert_close(found.detach().double(), oracle.detach().double(), rtol=bound, atol=bound, equal_nan=True)


def taken(count: int, call: Callable[[], Any]) -> Any:
    """Return what a call returns; toprung must take so many products in it."""
    before = toprung.torch.report().taken
    made = call()
    assert toprung.torch.report().taken - before == count, left()
    return made


def as_pytorch(call: Callable[[], Any], count: int = 0) -> Any:
    """Return what a call returns, if PyTorch's own returns the same, or raises the same; toprung takes so many products in it."""

    def outcome() -> Any:
        try:
            return call()
        except Exception as error:
            return type(error), str(error)

    ours = taken(count, outcome)
    with toprung.torch.exclude():
        theirs = outcome()
    if isinstance(ours, torch.Tensor):
        assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
    else:
        assert ours == theirs
    return ours


class Net(torch.nn.Module):
    """Two layers with their bias, and a third with the first's weight."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.random.fork_rng(devices=[])
        with rng:
            torch.manual_seed(0)
            self.first, self.second, self.tied = torch.nn.Linear(24, 40), torch.nn.Linear(40, 24), torch.nn.Linear(24, 40)
        self.tied.weight = self.first.weight
        self.to(DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(torch.tanh(self.second(torch.tanh(self.first(x)))))


def gradients(net: torch.nn.Module, call: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of a network's parameters after a backward pass."""
    net.zero_grad()
    call().square().sum().backward()
    return [p.grad.clone() for p in net.parameters()]


def oracle(net: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients in float64."""
    wide = copy.deepcopy(net).double()
    return gradients(wide, lambda: wide(x.double()))


# results that are written into memory that the caller gave


def test_out_is_an_operand_of_mm() -> None:
    """#85852, #40685, #13892."""
    a = drawn(50, 50)
    as_pytorch(lambda: torch.mm(c := a.clone(), a, out=c))
    assert taken(1, lambda: torch.mm(a, a, out=torch.empty_like(a))) is not None


def test_out_is_an_operand_of_bmm() -> None:
    """#87551."""
    a = drawn(3, 16, 16)
    as_pytorch(lambda: torch.bmm(c := a.clone(), a.mT, out=c))


def test_out_is_an_operand_of_addmm() -> None:
    """#48900."""
    a, b = drawn(20, 20), drawn(20)
    as_pytorch(lambda: torch.addmm(b, c := a.clone(), a, out=c))


def test_out_is_a_slice_of_what_an_operand_is_a_slice_of() -> None:
    """Neighbours in one allocation are apart, and overlapping ones are left to PyTorch."""
    pool = drawn(1, 4096)[0]
    a, b = pool[:256].view(16, 16), pool[256:512].view(16, 16)
    want = a.double() @ b.double()
    agree(taken(1, lambda: torch.mm(a, b, out=pool[512:768].view(16, 16))), want)
    taken(0, lambda: torch.mm(a, b, out=pool[500:756].view(16, 16)))


def test_out_of_another_shape_is_resized_with_pytorchs_warning() -> None:
    """#28576."""
    a, b = drawn(9, 33), drawn(33, 17)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        as_pytorch(lambda: torch.mm(a, b, out=torch.ones(3, 1, device=DEVICE)))
    ours, theirs = (str(one.message) for one in told)
    assert ours == theirs and "was resized since it had shape [3, 1]" in ours


def test_out_with_gaps_keeps_its_strides() -> None:
    """#48281."""
    a, b, base = drawn(8, 8), drawn(8, 8), torch.zeros(8, 16, device=DEVICE)
    out = base[:, ::2]
    agree(taken(1, lambda: torch.matmul(a, b, out=out)), a.double() @ b.double())
    assert out.stride() == (16, 2) and not base[:, 1::2].any()


@pytest.mark.parametrize("how", ["dtype", "device", "gradient", "expanded"])
def test_out_that_pytorch_refuses(how: str) -> None:
    """#23063, #17935."""
    a, b = drawn(9, 33), drawn(33, 17)
    outs: dict[str, Callable[[], torch.Tensor]] = {
        "dtype": lambda: torch.empty(9, 17, device=DEVICE, dtype=torch.float64),
        "device": lambda: torch.empty(9, 17, device="meta"),
        "gradient": lambda: torch.empty(9, 17, device=DEVICE, requires_grad=True),
        "expanded": lambda: torch.empty(1, 17, device=DEVICE).expand(9, 17),
    }
    as_pytorch(lambda: torch.mm(a, b, out=outs[how]()))


def test_in_place_on_a_view_touches_nothing_else() -> None:
    whole = torch.full((12, 30), 7.0, device=DEVICE)
    a, b = drawn(10, 16), drawn(16, 20)
    taken(1, lambda: whole[1:11, 5:25].addmm_(a, b, beta=0.5, alpha=-2))
    agree(whole[1:11, 5:25], 3.5 - 2 * (a.double() @ b.double()))
    whole[1:11, 5:25] = 7.0
    assert (whole == 7.0).all()


def test_in_place_on_a_tensor_that_autograd_saved() -> None:
    """The version counter grows, and backward refuses, as with PyTorch's own."""

    def call() -> torch.Tensor:
        x = drawn(8, 8).requires_grad_()
        y = x.exp()
        y.addmm_(y.detach().clone(), y.detach().clone())
        return torch.autograd.grad(y.sum(), x)[0]

    kind, said = as_pytorch(call, 1)
    assert kind is RuntimeError and "modified by an inplace operation" in said


# operands


@pytest.mark.parametrize("shape, stride", [((16, 16), (1, 1)), ((16, 16), (0, 1)), ((16, 16), (3, 1)), ((16, 16), (1, 0))], ids=str)
def test_operands_whose_elements_share_memory(shape: tuple[int, int], stride: tuple[int, int]) -> None:
    """#30596: cuBLAS has no overlapping strides."""
    a, b = drawn(1, 64)[0].as_strided(shape, stride), drawn(16, 12)
    agree(taken(1, lambda: torch.mm(a, b)), a.double() @ b.double())


def test_lazy_conjugates_and_signs() -> None:
    z, b = torch.complex(drawn(8, 8), drawn(8, 8, seed=1)), drawn(8, 6)
    agree(taken(1, lambda: torch.mm(z.imag, b)), z.imag.double() @ b.double())
    as_pytorch(lambda: torch.mm(z.conj().imag, b), 1)
    as_pytorch(lambda: torch.mm(z.conj(), b.to(z.dtype)))


@pytest.mark.parametrize("m, n, k", [(0, 5, 4), (5, 0, 4), (5, 6, 0), (0, 0, 0)])
def test_empty_operands(m: int, n: int, k: int) -> None:
    """#175905: the result of a sum over nothing is zero, or β times what is added."""
    a, b, c = torch.ones(m, k, device=DEVICE), torch.ones(k, n, device=DEVICE), torch.ones(m, n, device=DEVICE)
    as_pytorch(lambda: torch.mm(a, b))
    as_pytorch(lambda: torch.addmm(c, a, b, beta=2))
    as_pytorch(lambda: torch.bmm(a[None], b[None]))


def test_beta_of_0_reads_nothing_of_what_is_added() -> None:
    """#196596, #187521: an uninitialised accumulator may hold NaN."""
    a, b, nan = drawn(2, 9, 33), drawn(2, 33, 17), torch.full((2, 9, 17), float("nan"), device=DEVICE)
    agree(taken(1, lambda: torch.baddbmm(nan, a, b, beta=0)), a.double() @ b.double())
    agree(taken(1, lambda: torch.addmm(nan[0], a[0], b[0], beta=0)), a[0].double() @ b[0].double())
    agree(taken(1, lambda: nan[0].addmm_(a[0], b[0], beta=0)), a[0].double() @ b[0].double())


def test_alpha_of_0_reads_nothing_of_the_operands() -> None:
    """#196596."""
    nan = torch.full((8, 8), float("nan"), device=DEVICE)
    as_pytorch(lambda: torch.addmm(drawn(8, 8), nan, nan, alpha=0))


def test_factors_of_every_kind() -> None:
    a, b, c = drawn(9, 33), drawn(33, 17), drawn(9, 17)
    want = 2 * c.double() + 3 * (a.double() @ b.double())
    for beta, alpha in ((2, 3), (2.0, 3.0), (torch.tensor(2), torch.tensor(3.0))):
        agree(taken(1, lambda beta=beta, alpha=alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha)), want)
    agree(taken(1, lambda: torch.addmm(c, a, b, beta=True, alpha=True)), c.double() + a.double() @ b.double())


def test_nan_and_infinity_arrive() -> None:
    a, b = drawn(9, 33), drawn(33, 17)
    a[2, 3], a[4, 5], b[7, 8] = float("nan"), float("inf"), float("-inf")
    as_pytorch(lambda: torch.mm(a, b), 1)
    as_pytorch(lambda: torch.mm(torch.zeros_like(a), b), 1)


def test_broadcasting_of_five_dimensions() -> None:
    a, b = drawn(2, 1, 3, 9, 33), drawn(4, 1, 33, 17)
    agree(taken(1, lambda: torch.matmul(a, b)), a.double() @ b.double())


def test_einsum_and_tensordot() -> None:
    """#17199 multiplies so."""
    a, b = drawn(2, 50, 10), drawn(2, 40, 10)
    agree(taken(1, lambda: torch.einsum("ijl,ikl->ijk", a, b)), torch.einsum("ijl,ikl->ijk", a.double(), b.double()))
    agree(taken(1, lambda: torch.tensordot(a, b, ([0, 2], [0, 2]))), torch.tensordot(a.double(), b.double(), ([0, 2], [0, 2])))


def test_other_types_and_layouts_are_pytorchs() -> None:
    a, b = drawn(8, 8), drawn(8, 8, seed=1)
    for one in (a.double(), a.bfloat16(), a.cfloat()):
        as_pytorch(lambda one=one: torch.mm(one, one))
    as_pytorch(lambda: torch.sparse.mm(a.relu().to_sparse(), b))
    as_pytorch(lambda: torch.mm(a.relu().to_sparse_csr(), b))
    as_pytorch(lambda: torch.mm(a.to("meta"), b.to("meta")).shape)
    nested = torch.nested.nested_tensor([a, b[:5]], layout=torch.jagged)
    agree(taken(1, lambda: torch.matmul(nested, b)).values(), torch.cat([a, b[:5]]).double() @ b.double())


# autograd and torch.func


def test_tied_weights_get_both_gradients() -> None:
    net, x = Net(), drawn(9, 24)
    for found, want in zip(taken(8, lambda: gradients(net, lambda: net(x))), oracle(net, x), strict=True):
        agree(found, want)


def test_double_backward() -> None:
    a, b = drawn(5, 6).requires_grad_(), drawn(6, 4).requires_grad_()

    def penalty(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (of_a,) = torch.autograd.grad((a @ b).tanh().sum(), a, create_graph=True)
        return of_a.square().sum()

    found = taken(6, lambda: torch.autograd.grad(penalty(a, b), (a, b)))
    wide = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    for one, want in zip(found, torch.autograd.grad(penalty(*wide), wide), strict=True):
        agree(one, want)


def test_checkpoint_computes_the_same_again() -> None:
    net, x = Net(), drawn(9, 24)
    with checkpoint.set_checkpoint_early_stop(False):
        again = lambda: gradients(net, lambda: checkpoint.checkpoint(net, x.requires_grad_(), use_reentrant=False))  # noqa: E731
        for found, want in zip(taken(12, again), oracle(net, x), strict=True):
            agree(found, want)


def test_hooks_of_tensors_and_of_what_autograd_saves() -> None:
    seen: list[tuple[int, ...]] = []
    a, b = drawn(9, 33).requires_grad_(), drawn(33, 17).requires_grad_()
    a.register_hook(lambda grad: grad * 2)

    def pack(saved: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(saved.shape))
        return saved.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.to(DEVICE)):
        taken(3, lambda: torch.mm(a, b).sum().backward())
    assert sorted(seen) == [(9, 33), (33, 17)]
    agree(a.grad, 2 * torch.ones(9, 17).double().to(DEVICE) @ b.double().T)


def test_no_grad_and_inference_mode() -> None:
    a, b = drawn(9, 33).requires_grad_(), drawn(33, 17)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            made = taken(1, lambda: torch.mm(a, b))
        assert not made.requires_grad and made.is_inference() == isinstance(mode, torch.inference_mode)
        agree(made, a.double() @ b.double())
    assert torch.mm(a, b).requires_grad


def test_gradients_per_sample() -> None:
    """functorch #292, #328: vmap over grad over functional_call."""
    net, x = Net(), drawn(7, 24)
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, params, (x[None],)).square().sum()

    before = toprung.torch.report().taken
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)
    assert toprung.torch.report().taken > before
    wide = copy.deepcopy(net).double()
    for i, one in enumerate(x):
        for name, want in zip(params, gradients(wide, lambda one=one: wide(one[None].double())), strict=True):
            agree(found[name][i], want)


def test_jacobians_forward_and_in_reverse() -> None:
    """functorch #597, #417, #847; #182842."""
    a, x = drawn(6, 6), drawn(6, 6, seed=1)
    call = lambda x: (a.to(x.dtype) @ x).tanh() @ x  # noqa: E731
    want = torch.func.jacrev(call)(x.double())
    before = toprung.torch.report().taken
    agree(torch.func.jacrev(call)(x), want)
    agree(torch.func.jacfwd(call)(x), want)
    batch = torch.stack([x, 2 * x])
    agree(torch.func.vmap(torch.func.jacfwd(call))(batch)[0], want)
    _, tangent = torch.func.jvp(call, (x,), (torch.ones_like(x),))
    agree(tangent, want.sum((-1, -2)))
    assert toprung.torch.report().taken - before >= 8, left()


# modules and optimizers


def test_copies_and_pickles_of_modules() -> None:
    net, x = Net(), drawn(9, 24)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        assert torch.equal(taken(3, lambda other=other: other(x)), net(x)) and other.tied.weight is other.first.weight


@pytest.mark.parametrize("wrap", [torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.parametrizations.orthogonal])
def test_parametrized_weights(wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    layer, x = wrap(torch.nn.Linear(12, 12)).to(DEVICE), drawn(9, 12)
    before = toprung.torch.report().taken
    found = gradients(layer, lambda: layer(x))
    assert toprung.torch.report().taken - before >= 2, left()
    for one, want in zip(found, oracle(layer, x), strict=True):
        agree(one, want, 512)


def test_training_with_foreach_goes_the_same_way() -> None:
    def trained() -> list[torch.Tensor]:
        net, x = Net(), drawn(9, 24)
        steps = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, foreach=True)
        for _ in range(3):
            gradients(net, lambda: net(x))
            steps.step()
        return [p.detach() for p in net.parameters()]

    found = taken(24, trained)
    with toprung.torch.exclude():
        for one, want in zip(found, trained(), strict=True):
            torch.testing.assert_close(one, want, rtol=1e-4, atol=1e-5)


def test_attention_in_its_math_and_its_fast_path() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(DEVICE)
    wide, x = copy.deepcopy(layer).double(), drawn(2, 7, 16)
    for mode in (True, False):
        layer.train(mode)
        before = toprung.torch.report().taken
        with torch.no_grad():
            agree(layer(x), wide(x.double()), 512)
        assert mode is False or toprung.torch.report().taken - before >= 4, left()


def test_recurrent_layers() -> None:
    layer, x = torch.nn.LSTM(12, 20).to(DEVICE), drawn(5, 3, 12)
    ours = layer(x)[0]
    with toprung.torch.exclude():  # cuDNN's, on a GPU, with the TF32 that it has by default
        torch.testing.assert_close(ours, layer(x)[0], rtol=1e-5, atol=1e-5)


def test_decompositions_that_multiply_inside() -> None:
    a = drawn(12, 12) + 12 * torch.eye(12, device=DEVICE)
    agree(taken(3, lambda: torch.linalg.matrix_power(a, 5)) / 12**5, torch.linalg.matrix_power(a.double(), 5) / 12**5, 512)
    chain = [drawn(9, 33), drawn(33, 17), drawn(17, 5)]
    agree(taken(2, lambda: torch.linalg.multi_dot(chain)), torch.linalg.multi_dot([one.double() for one in chain]), 512)
    agree(torch.linalg.solve(a, chain[0][:, :12].T), torch.linalg.solve(a.double(), chain[0][:, :12].double().T), 512)


# layers above aten


class Watched(torch.Tensor):
    """A subclass that sees functions."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Seen(_python_dispatch.TorchDispatchMode):
    """A mode that sees operators of aten."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_subclasses_and_modes_see_what_they_saw() -> None:
    a, b = drawn(9, 33), drawn(33, 17)
    made = taken(1, lambda: torch.mm(a.as_subclass(Watched), b))
    assert type(made) is Watched and "mm" in Watched.seen
    agree(made.as_subclass(torch.Tensor), a.double() @ b.double())
    with Seen() as seen:
        agree(taken(1, lambda: F.linear(a, b.T.contiguous(), torch.zeros(17, device=DEVICE))), a.double() @ b.double())
    assert "addmm" in seen.names


def test_traces_hold_atens_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x = Net(), drawn(9, 24)
    graph = make_fx(net)(x)
    assert [n.target for n in graph.graph.nodes].count(torch.ops.aten.addmm.default) == 3
    exported = torch.export.export(net, (x,)).module()
    for program in (graph, torch.fx.symbolic_trace(net), exported):
        assert torch.equal(taken(3, lambda program=program: program(x)), net(x))


def test_fake_tensors_compute_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = taken(0, lambda: torch.mm(torch.empty(9, 33, device=DEVICE), torch.empty(33, 17, device=DEVICE)))
    assert made.shape == (9, 17)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(dynamic: bool) -> None:
    """With the graph run by aten, for what Inductor makes is test_compiled.py's."""
    torch._dynamo.reset()
    net = Net()
    program = torch.compile(net, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (9, 11):
        x = drawn(rows, 24)
        for found, want in zip(taken(8, lambda x=x: gradients(net, lambda: program(x))), oracle(net, x), strict=True):
            agree(found, want)
    torch._dynamo.reset()


def test_autocast_is_pytorchs() -> None:
    a, b = drawn(9, 33), drawn(33, 17)
    with torch.autocast(DEVICE, torch.bfloat16):
        as_pytorch(lambda: torch.mm(a, b))
        with torch.autocast(DEVICE, enabled=False):
            agree(taken(1, lambda: torch.mm(a, b)), a.double() @ b.double())


def test_flags_that_change_while_a_program_runs() -> None:
    a, b = drawn(9, 33), drawn(33, 17)
    product = functools.partial(torch.mm, a, b)
    taken(1, product)
    for count, precision in ((0, "high"), (1, "highest"), (0, "medium"), (1, "highest")):
        torch.set_float32_matmul_precision(precision)
        taken(count, product)
    torch.set_default_dtype(torch.float64)
    try:
        assert taken(1, product).dtype == torch.float32 and torch.mm(a.cpu().double(), torch.ones(33, 2)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_deterministic_algorithms_give_the_same_bits() -> None:
    a, b = drawn(33, 500), drawn(500, 17)
    torch.use_deterministic_algorithms(True)
    try:
        first = taken(1, lambda: torch.mm(a, b))
        assert all(torch.equal(first, taken(1, lambda: torch.mm(a, b))) for _ in range(5))
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_profiler_names_products() -> None:
    a, b = drawn(9, 33), drawn(33, 17)
    with torch.profiler.profile() as profile:
        taken(1, lambda: torch.mm(a, b))
    assert {"aten::mm", "toprung::mm"} <= {event.key for event in profile.key_averages()}


# threads, coroutines, processes


def test_threads_while_another_enables_and_disables() -> None:
    over, wrong = threading.Event(), list[BaseException | None]()

    def work(seed: int) -> None:
        try:
            a, b = drawn(9 + seed, 33), drawn(33, 17)
            want = a.double() @ b.double()
            for _ in range(60):
                agree(torch.mm(a, b), want)
        except BaseException as error:
            wrong.append(error)

    def switch() -> None:
        try:
            while not over.is_set():
                toprung.torch.disable()
                toprung.torch.enable(**EVERY)
        except BaseException as error:
            wrong.append(error)

    switching, threads = threading.Thread(target=switch), [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in (switching, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    switching.join()
    assert not wrong, wrong[0]
    taken(1, lambda: torch.mm(drawn(9, 33), drawn(33, 17)))


def test_coroutines_in_their_own_contexts() -> None:
    word = contextvars.ContextVar("word", default=0)

    async def work(i: int) -> bool:
        word.set(i)
        a, b = drawn(9 + i, 33), drawn(33, 17)
        found = [torch.mm(a, b)]
        for _ in range(3):
            await asyncio.sleep(0)
            found.append(await asyncio.to_thread(torch.mm, a, b))
        return word.get() == i and all(torch.equal(one, found[0]) for one in found)

    async def main() -> list[bool]:
        return await asyncio.gather(*(work(i) for i in range(3)))

    assert all(taken(12, lambda: asyncio.run(main())))


def in_child(action: Callable[[], object]) -> str:
    """Return what a function returns, or raises, in a forked child with one thread, as text.

    OpenMP's threads are not there, and PyTorch would wait for them: a data loader's workers have one thread, too.
    """
    return forked.in_child(lambda: (torch.set_num_threads(1), action())[1])


def on_host(a: torch.Tensor, b: torch.Tensor) -> str:
    """Multiply on the host, in a child: right, and by PyTorch, for the parent's OpenCL is of no use there."""
    agree(torch.mm(a, b), a.double() @ b.double())
    agree(torch.mm(b.T, a.T), b.T.double() @ a.T.double())
    return f"right, {toprung.torch.report().taken} taken"


@needs_fork
def test_a_forked_child_multiplies() -> None:
    """#17199: such a program never ended."""
    a, b = drawn(9, 33), drawn(33, 17)
    taken(1, lambda: torch.mm(a, b))
    host = a.cpu(), b.cpu()
    assert in_child(lambda: on_host(*host)) == "right, 0 taken"
    if DEVICE == "cpu":
        assert in_child(lambda: (on_host(*host), "waits for no kernel" in toprung.torch.report().rows[0].why)[1]) == "True"
    else:
        assert "forked subprocess" in in_child(lambda: torch.mm(drawn(9, 33), drawn(33, 17)))


@needs_fork
def test_a_child_that_is_forked_while_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's thread holds the compiler's locks: the child waits neither for them nor for that thread's kernel."""
    began, over, compiling = threading.Event(), threading.Event(), build._kernel

    def slow(*given: Any) -> Any:
        began.set()
        assert over.wait(600)
        return compiling(*given)

    monkeypatch.setattr(build, "_kernel", slow)
    monkeypatch.setattr(build, "_kept", WeakKeyDictionary())  # no kernel is there yet
    a, b = drawn(61, 47), drawn(47, 39)
    host = a.cpu(), b.cpu()
    builder = threading.Thread(target=lambda: torch.mm(a, b))
    builder.start()
    try:
        assert began.wait(600)
        said = in_child(lambda: on_host(*host))
    finally:
        over.set()
        builder.join()
    assert said == "right, 0 taken"
    agree(taken(1, lambda: torch.mm(a, b)), a.double() @ b.double())


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that are multiplied where they are loaded."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3, 8), float(i)) @ torch.ones(8, 2)


@needs_fork
def test_workers_of_a_data_loader_multiply() -> None:
    """#75147, #1355."""
    taken(1, lambda: torch.mm(drawn(9, 33), drawn(33, 17)))
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=300)
    assert torch.equal(torch.cat(list(loader))[:, 0, 0], 8.0 * torch.arange(6))


def multiplied(tensors: Any, answers: Any) -> None:
    """Multiply what comes from one queue, enabled anew in a process of its own, and put the result into another."""
    toprung.torch.enable(**EVERY)
    a, b = tensors.get(timeout=300)
    answers.put((torch.mm(a.to(DEVICE), b.to(DEVICE)).cpu(), toprung.torch.report().taken))
    tensors.get(timeout=300)  # until the other process has the result's memory


@pytest.mark.slow
def test_a_spawned_process_gets_tensors_by_a_queue() -> None:
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    child = context.Process(target=multiplied, args=(tensors, answers))
    child.start()
    a, b = drawn(9, 33).cpu(), drawn(33, 17).cpu()
    tensors.put((a, b))
    made, count = answers.get(timeout=300)
    agree(made.clone(), a.double() @ b.double())
    tensors.put(None)
    child.join(300)
    assert (count, child.exitcode) == (1, 0)


# a GPU's streams, graphs and memory


@on_gpu
def test_replays_of_a_graph_read_new_operands() -> None:
    """#114844, #99196: captured on a side stream after a warm-up, replayed without growing."""
    layer, x = torch.nn.Linear(512, 512, device=DEVICE), drawn(512, 512)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            layer(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()

    def captured() -> torch.Tensor:
        with torch.no_grad(), torch.cuda.graph(graph):
            return layer(x)

    made, held = taken(1, captured), list[int]()
    for seed in range(4):
        x.copy_(drawn(512, 512, seed=seed))
        graph.replay()
        agree(made, copy.deepcopy(layer).double()(x.double()), 512)
        held.append(torch.cuda.memory_allocated())
    assert held[-1] <= held[0]  # the first oracle has cuBLAS allocate


@on_gpu
def test_results_are_used_on_another_stream_than_they_were_made_on() -> None:
    side, a, b = torch.cuda.Stream(), drawn(1024, 700), drawn(700, 900)
    want = a.double() @ b.double()
    for _ in range(20):
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            made = torch.mm(a, b)
        torch.cuda.current_stream().wait_stream(side)
        made.record_stream(torch.cuda.current_stream())
        agree(made, want, 700)
    assert toprung.torch.report().taken == 20, left()


@on_gpu
def test_results_come_from_the_pool_that_is_in_use() -> None:
    pool = torch.cuda.MemPool()
    a, b = drawn(2048, 1024), drawn(1024, 2048)
    torch.mm(a, b)
    with torch.cuda.use_mem_pool(pool):
        made = taken(1, lambda: torch.mm(a, b))
    segments = [s for s in pool.snapshot() if s["address"] <= made.data_ptr() < s["address"] + s["total_size"]]
    assert len(segments) == 1
    agree(made, a.double() @ b.double(), 1024)
    del made


@on_gpu
def test_segments_that_expand() -> None:
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        for rows in (1000, 3000, 5000):
            a, b = drawn(rows, 1024), drawn(1024, 2048)
            agree(taken(1, lambda a=a, b=b: torch.mm(a, b)), a.double() @ b.double(), 1024)
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


@on_gpu
def test_memory_that_runs_out_and_is_there_again() -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("the GPU has no 40 GB left: other processes use it")
    a, b = torch.ones(1 << 16, 16, device=DEVICE), torch.ones(16, 1 << 16, device=DEVICE)
    assert taken(1, lambda: outcome(lambda: torch.mm(a, b))) == "16.0"
    torch.cuda.empty_cache()
    filler = torch.empty(max(torch.cuda.mem_get_info()[0] - (8 << 30), 1), dtype=torch.uint8, device=DEVICE)
    assert taken(0, lambda: outcome(lambda: torch.mm(a, b))) == "OutOfMemoryError"
    del filler
    torch.cuda.empty_cache()
    assert taken(1, lambda: outcome(lambda: torch.mm(a, b))) == "16.0"


def outcome(call: Callable[[], torch.Tensor]) -> str:
    """Return the name of the error that a call raises, or the value of its result's last element."""
    try:
        return str(call()[-1, -1].item())
    except Exception as error:
        return type(error).__name__


@on_gpu
@pytest.mark.slow
def test_results_of_more_than_2_to_31_elements() -> None:
    """#196431, #191083: indices of 32 bits wrap."""
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("the GPU has no 24 GB left")
    batch, side = 8209, 512
    a, b = drawn(batch, side, 1), drawn(batch, 1, side)
    made = taken(1, lambda: torch.bmm(a, b))
    for i in (0, batch // 2, batch - 1):
        agree(made[i], a[i].double() @ b[i].double())
    del made
    a, b = drawn(46341, 8), drawn(8, 46342)
    made = taken(1, lambda: torch.mm(a, b))
    for rows in (slice(0, 64), slice(23000, 23064), slice(46341 - 64, None)):
        agree(made[rows], a[rows].double() @ b.double())
