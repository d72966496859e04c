"""Products below aten: PyTorch's results, strides, dtypes, out= rules and errors, whatever the operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import toprung.torch
from toprung import errors
from toprung.torch import bridge, products
from toprung.torch.overloads import OVERLOADS, kernel
from torch_device import DEVICE, EVERY, Eligible, as_fast, left, overriding

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True, params=["Python", "C++"])
def eligible(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Eligible]:
    """Enable toprung, with overrides in either language, and count the products that it must take."""
    overriding(request.param, monkeypatch)
    counted = Eligible(monkeypatch)
    toprung.torch.enable(**EVERY)
    yield counted
    toprung.torch.disable()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(*shape, generator=rng).mul(2).sub(1).to(DEVICE)


def guarded(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor full of NaN inside a larger one, and the larger one."""
    whole = torch.full((math.prod(shape) + 64,), 7.5, device=DEVICE)
    part = whole[32 : 32 + math.prod(shape)].view(shape)
    part.fill_(NAN)
    return part, whole


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda t: t,
    "columns": lambda t: t.mT.contiguous().mT,
    "gaps": lambda t: torch.stack([t, torch.full_like(t, NAN)], -1)[..., 0],
    "padded": lambda t: torch.nn.functional.pad(t, (0, 3), value=NAN)[..., : t.shape[-1]],
    "offset": lambda t: torch.cat([t.new_full((1,), NAN), t.reshape(-1)])[1:].view(t.shape),
    "expanded": lambda t: t[..., :1, :].expand(t.shape),
}
"""Layouts of an operand, NaN in every gap."""


def agree(found: torch.Tensor, oracle: torch.Tensor, depth: int) -> None:
    """Compare with float64, within a bound that grows with K."""
    assert found.dtype == torch.float32
    scale = depth * 2.0**-24 * 8
    torch.testing.assert_close(found.double(), oracle, rtol=scale, atol=scale, equal_nan=True)


def taken() -> int:
    return toprung.torch.report().taken


@pytest.mark.parametrize("lie", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_layouts(lie: str, other: str, eligible: Eligible) -> None:
    for shapes in (((7, 33), (33, 18)), ((3, 7, 33), (3, 33, 18))):
        a, b = (LAYOUTS[how](drawn(*shape)) for how, shape in zip((lie, other), shapes, strict=True))
        multiply = torch.mm if a.dim() == 2 else torch.bmm
        made = multiply(a, b)
        agree(made, a.double() @ b.double(), 33)
        with toprung.torch.exclude():
            assert made.stride() == multiply(a, b).stride()
        out, whole = guarded(*made.shape)
        assert multiply(a, b, out=out) is out and torch.equal(out, made)
        assert (whole[:32] == 7.5).all() and (whole[-32:] == 7.5).all()
    assert eligible.count == taken() == 4, left()


@pytest.mark.parametrize("beta", [0, 1, 0.5, -2, True])
@pytest.mark.parametrize("alpha", [1, -0.7, 3])
def test_sums_of_products(alpha: float, beta: float, eligible: Eligible) -> None:
    a, b, x = drawn(9, 40), drawn(40, 21), drawn(40)
    batch, other = drawn(4, 9, 40), drawn(4, 40, 21)
    nothing = beta == 0
    for c in (drawn(9, 21), drawn(21), drawn(9, 1), drawn(1, 21), drawn(1)[0], drawn(9, 21).T.contiguous().T):
        old = c.fill_(NAN) if nothing else c
        oracle = alpha * (a.double() @ b.double()) + (0 if nothing else beta * c.double())
        agree(torch.addmm(old, a, b, beta=beta, alpha=alpha), oracle, 40)
        out, _ = guarded(9, 21)
        agree(torch.addmm(old, a, b, beta=beta, alpha=alpha, out=out), oracle, 40)
        if c.shape == (9, 21):
            agree(old.clone().addmm_(a, b, beta=beta, alpha=alpha), oracle, 40)
        oracle = alpha * (batch.double() @ other.double()) + (0 if nothing else beta * c.double())
        agree(torch.baddbmm(old, batch, other, beta=beta, alpha=alpha), oracle, 40)
    for c in (drawn(4, 9, 21), drawn(4, 1, 21)):
        oracle = alpha * (batch.double() @ other.double()) + beta * c.double()
        agree(torch.baddbmm(c, batch, other, beta=beta, alpha=alpha), oracle, 40)
    c = drawn(4, 9, 21)
    oracle = alpha * (batch.double() @ other.double()) + beta * c.double()
    agree(c.baddbmm_(batch, other, beta=beta, alpha=alpha), oracle, 40)
    for c in (drawn(9), drawn(1)):
        oracle = alpha * (a.double() @ x.double()) + beta * c.double()
        agree(torch.addmv(c, a, x, beta=beta, alpha=alpha), oracle, 40)
    agree(drawn(9).addmv_(a, x), drawn(9).double() + a.double() @ x.double(), 40)
    agree(a.T.mv(drawn(9)[:9]), a.T.double() @ drawn(9).double(), 9)
    assert taken() > 20 and eligible.count == taken(), left()


def test_activations() -> None:
    bias, a, b = drawn(21), drawn(9, 40), drawn(40, 21)
    for gelu in (False, True):
        made = torch.ops.aten._addmm_activation(bias, a, b, use_gelu=gelu)
        out = torch.empty(9, 21, device=DEVICE)
        torch.ops.aten._addmm_activation.out(bias, a, b, use_gelu=gelu, out=out)
        with toprung.torch.exclude():
            theirs = torch.ops.aten._addmm_activation(bias, a, b, use_gelu=gelu)
        torch.testing.assert_close(made, theirs, rtol=1e-5, atol=1e-5)
        assert torch.equal(made, out)
    assert taken() == 4


def test_infinity_nan_and_subnormals_are_pytorchs() -> None:
    a, b = drawn(9, 40), drawn(40, 21)
    a[2, 3], a[4, 5], b[7, 8], b[9, 10], a[6] = INF, NAN, -INF, 2e38, 1e-40
    with toprung.torch.exclude():
        theirs = torch.mm(a, b)
    ours = torch.mm(a, b)
    assert taken() == 1
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


CALLS: dict[str, Callable[[], Any]] = {
    "sizes that do not fit": lambda: torch.mm(drawn(3, 4), drawn(5, 6)),
    "batches that do not fit": lambda: torch.bmm(drawn(2, 3, 4), drawn(3, 4, 5)),
    "a vector for a matrix": lambda: torch.mm(drawn(3, 4), drawn(4)),
    "a number for a matrix": lambda: torch.mm(drawn(3, 4), drawn(1)[0]),
    "a batch for a matrix": lambda: torch.mm(drawn(2, 3, 4), drawn(4, 5)),
    "other dtypes": lambda: torch.mm(drawn(3, 4), drawn(4, 5).double()),
    "float64": lambda: torch.mm(drawn(3, 4).double(), drawn(4, 5).double()),
    "bfloat16": lambda: torch.mm(drawn(3, 4).bfloat16(), drawn(4, 5).bfloat16()),
    "complex": lambda: torch.mm(drawn(3, 4).cfloat(), drawn(4, 5).cfloat()),
    "integers": lambda: torch.mm(drawn(3, 4).int(), drawn(4, 5).int()) if DEVICE == "cpu" else None,
    "no rows": lambda: torch.mm(drawn(3, 4)[:0], drawn(4, 5)),
    "no depth": lambda: torch.addmm(drawn(3, 5), drawn(3, 4)[:, :0], drawn(4, 5)[:0], beta=0.5),
    "no batch": lambda: torch.bmm(drawn(2, 3, 4)[:0], drawn(2, 4, 5)[:0]),
    "sparse": lambda: torch.mm(drawn(3, 4).to_sparse(), drawn(4, 5)),
    "sparse rows": lambda: torch.mm(drawn(3, 4).to_sparse_csr(), drawn(4, 5)),
    "a pending sign": lambda: torch.mm(torch.complex(drawn(3, 4), drawn(3, 4)).conj().imag, drawn(4, 5)),
    "an out of another shape": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=drawn(2, 2)[:0]),
    "an out that is resized": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=torch.empty(0, device=DEVICE)),
    "an out of another dtype": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=torch.empty(3, 5, device=DEVICE).double()),
    "an out of columns": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=torch.empty(5, 3, device=DEVICE).T),
    "an out with gaps": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=torch.empty(3, 10, device=DEVICE)[:, ::2]),
    "an out that is the first operand": lambda: _into_operand(0),
    "an out that is the second operand": lambda: _into_operand(1),
    "an out that begins in the second operand": lambda: _into_operand(1, 1),
    "an out that is what is added": lambda: _into_bias(drawn(3, 5)),
    "an out that is a part of what is added": lambda: _into_bias(drawn(4, 5)[:3]),
    "an out that is expanded": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=torch.empty(1, 5, device=DEVICE).expand(3, 5)),
    "an out that wants a gradient": lambda: torch.mm(drawn(3, 4), drawn(4, 5), out=drawn(3, 5).requires_grad_()),
    "a bias that does not expand": lambda: torch.addmm(drawn(4), drawn(3, 4), drawn(4, 5)),
    "a bias of another dtype": lambda: torch.addmm(drawn(5).double(), drawn(3, 4), drawn(4, 5)),
    "a complex factor": lambda: torch.addmm(drawn(5), drawn(3, 4), drawn(4, 5), alpha=1j),
    "alpha of 0": lambda: torch.addmm(drawn(5), drawn(3, 4).fill_(INF), drawn(4, 5), alpha=0),
    "in place of another shape": lambda: drawn(5).addmm_(drawn(3, 4), drawn(4, 5)),
    "meta": lambda: torch.mm(drawn(3, 4).to("meta"), drawn(4, 5).to("meta")).shape,
    "a subclass": lambda: torch.mm(drawn(3, 4).as_subclass(Named), drawn(4, 5)),
    "another device": lambda: torch.mm(drawn(3, 4), drawn(4, 5).cpu()),
}  # fmt: skip


class Named(torch.Tensor):
    """A subclass as users write them."""


def _into_operand(which: int, shift: int = 0) -> Any:
    """Multiply into an operand, when a like product into memory of its own has been remembered."""
    memory = drawn(1, 200)[0]
    a, b = memory[:16].view(4, 4), memory[64:80].view(4, 4)
    first = 64 * which + 4 * shift
    torch.mm(a, b, out=memory[128:144].view(4, 4))
    return torch.mm(a, b, out=memory[first : first + 16].view(4, 4))


def _into_bias(bias: torch.Tensor) -> Any:
    return torch.addmm(bias, drawn(3, 4), drawn(4, 5), beta=0.5, out=bias)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CALLS)
def test_what_pytorch_returns_or_raises_is_what_is_returned_and_raised(case: str) -> None:
    def outcome() -> Any:
        try:
            return CALLS[case]()
        except Exception as error:
            return error

    ours = outcome()
    with toprung.torch.exclude():
        theirs = outcome()
    assert type(ours) is type(theirs)
    if isinstance(ours, Exception):
        assert str(ours) == str(theirs)
    elif isinstance(ours, torch.Tensor):
        assert (ours.shape, ours.dtype, ours.stride(), ours.layout) == (theirs.shape, theirs.dtype, theirs.stride(), theirs.layout)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True, check_layout=False)


def test_a_kernel_that_fails_leaves_the_product_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(9, 40), drawn(40, 21)
    torch.mm(a, b)
    (entry,) = products.now.entries.values()

    def fails(*_: Any) -> None:
        raise errors.LaunchError("it does not start")

    monkeypatch.setattr(entry.call, "start", fails)
    products.now.collect(forget=True)  # so that it enters Python again
    agree(torch.mm(a, b), a.double() @ b.double(), 40)
    (row,) = toprung.torch.report().rows
    assert (row.taken, row.left, row.why) == (1, 1, "it does not start")


def test_products_that_differ_in_one_thing_are_not_taken_for_each_other(eligible: Eligible) -> None:
    """Shapes, strides and alignment of each operand, of the result and of what is added; each is met twice."""
    firsts = [LAYOUTS[lie](drawn(12, 36)) for lie in ("rows", "columns", "padded", "gaps")]
    seconds = [LAYOUTS[lie](drawn(36, 20, seed=1)) for lie in ("rows", "columns", "padded", "gaps")]
    outs = [torch.empty(12, 20, device=DEVICE), torch.empty(20, 12, device=DEVICE).T, torch.empty(12, 24, device=DEVICE)[:, :20]]
    outs.append(torch.empty(12, 40, device=DEVICE)[:, ::2])  # which no kernel writes in place
    added = [drawn(20, seed=2), drawn(12, 1, seed=3), drawn(12, 20, seed=4)]
    for _ in range(2):
        for a in firsts:
            for b in seconds:
                oracle = a.double() @ b.double()
                agree(torch.mm(a, b), oracle, 36)
                for out in outs:
                    agree(torch.mm(a, b, out=out.fill_(NAN)), oracle, 36)
        for c in added:
            agree(torch.addmm(c, a, b), c.double() + oracle, 36)
        for out in outs:
            for beta in (0, 0.5, 1, 2, 0):
                old = torch.full_like(out, NAN) if beta == 0 else drawn(12, 20, seed=4)
                out.copy_(old)
                agree(out.addmm_(a, b, beta=beta), oracle + (0 if beta == 0 else beta * old.double()), 36)
    launched = DEVICE == "cuda" and bridge.library() is not None  # in C++ from the second time on, which is not counted here
    assert eligible.count == taken() or (launched and eligible.count < taken()), left()


BASES = [drawn(30, 30, seed=i) for i in range(4)]
LIES = {"shape": lambda t: t[:7, :8], "stride": lambda t: t[:16:2, :8], "alignment": lambda t: t[:8, 1:9]}


def test_a_product_is_found_again_by_all_that_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that differ in one thing are two entries."""
    a, b, c, out = plain = [t[:8, :8] for t in BASES]
    calls: dict[str, Callable[[], Any]] = {
        "mm": lambda: torch.mm(a, b), "bmm": lambda: torch.bmm(a[None], b[None]), "mm into": lambda: torch.mm(a, b, out=out),
        "addmm": lambda: torch.addmm(c, a, b), "addmm with another beta": lambda: torch.addmm(c, a, b, beta=0.5),
        "addmm without": lambda: torch.addmm(c, a, b, beta=0), "addmm into": lambda: torch.addmm(c, a, b, out=out),
        "relu": lambda: torch.ops.aten._addmm_activation(c[0], a, b), "row": lambda: torch.addmm(c[0], a, b),
        "gelu": lambda: torch.ops.aten._addmm_activation(c[0], a, b, use_gelu=True), "in place": lambda: out.addmm_(a, b),
        "in place without": lambda: out.addmm_(a, b, beta=0), "in place, halved": lambda: out.addmm_(a, b, beta=0.5),
        "gaps added": lambda: torch.addmm(BASES[2][:16:2, :8], a, b),
    }  # fmt: skip
    for i, name in enumerate("ab"):
        for differs in ("stride", "alignment"):
            given = [LIES[differs](t) if i == j else t for j, t in enumerate((BASES[0], BASES[1]))]
            x, y = (t if i == j else plain[j] for j, t in enumerate(given))
            calls[f"{differs} of {name}"] = lambda x=x, y=y: torch.mm(x, y)
    calls["shape of a"], calls["shape of b"] = lambda: torch.mm(a[:7], b), lambda: torch.mm(a, b[:, :7])
    for differs in ("stride", "alignment"):
        calls[f"{differs} of the result"] = lambda lies=LIES[differs]: torch.mm(a, b, out=lies(BASES[3]))
        calls[f"{differs} of the result in place"] = lambda lies=LIES[differs]: lies(BASES[3]).addmm_(a, b)
    as_fast(monkeypatch)
    for own in (True, False):  # taken, then left
        with toprung.torch.use(**{**EVERY, "own": own}):
            for count, (name, call) in enumerate(calls.items(), 1):
                for _ in range(2):
                    call()
                    assert len(products.now.entries) == count, name
            toprung.torch.report()
            assert all((entry.taken, entry.left) == ((2, 0) if own else (0, 2)) for entry in products.now.entries.values()), left()


def test_a_factor_that_is_0_in_fp32_reads_no_bias() -> None:
    a, b, row = drawn(8, 16), drawn(16, 4), torch.full((4,), NAN, device=DEVICE)
    with toprung.torch.use(**EVERY):
        for _ in range(3):  # decided, remembered, and by the bridge
            agree(torch.addmm(row, a, b, beta=1e-50), a.double() @ b.double(), 16)
            agree(torch.baddbmm(row, a[None], b[None], beta=1e-50)[0], a.double() @ b.double(), 16)
    assert taken() == 6, left()


def test_memory_of_operands_and_results_may_be_resized_afterwards() -> None:
    """As FSDP does with parameters."""
    a, b, out = drawn(8, 6).cpu(), drawn(6, 5).cpu(), torch.empty(8, 5)
    toprung.matmul(a, b, out=out, own=True)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    with toprung.torch.use(**{**EVERY, "device_types": ("cpu",)}):
        torch.mm(a, b, out=out)
    assert all(t.untyped_storage().resizable() for t in (a, b, out))


def test_a_pending_sign_is_never_taken_for_none() -> None:
    b, pair = drawn(4, 4), torch.complex(drawn(4, 4, seed=1), drawn(4, 4, seed=2))
    plain, turned = pair.imag, pair.conj().imag
    assert turned.is_neg() and (plain.stride(), plain.data_ptr()) == (turned.stride(), turned.data_ptr())
    for x, sign in ((plain, 1), (turned, -1)) * 2:
        agree(torch.mm(x, b), sign * (plain.double() @ b.double()), 4)
        agree(torch.mm(b, x), sign * (b.double() @ plain.double()), 4)
        agree(torch.addmm(x, b, b), sign * plain.double() + b.double() @ b.double(), 4)


def test_a_result_with_the_negative_bit_is_refused() -> None:
    a, b, turned = drawn(8, 6), drawn(6, 5), torch.zeros(8, 5, dtype=torch.complex64, device=DEVICE).conj().imag
    with pytest.raises(errors.BadShape, match="out is read-only"):
        toprung.matmul(a, b, out=turned, own=True)
    agree(torch.mm(a, b, out=turned), a.double() @ b.double(), 6)


class Wrapper(torch.Tensor):
    """A tensor without memory, as DTensor is."""

    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, *given: Any) -> Any:
        raise AssertionError


def test_a_tensor_without_memory_is_named() -> None:
    a, b, freed = drawn(8, 6), drawn(6, 5), drawn(8, 6).cpu()
    freed.untyped_storage().resize_(0)
    for given, kind in ((Wrapper(a), "Wrapper"), (freed, "Tensor")):
        with pytest.raises(errors.BadArray, match=f"a, a {kind}, has no memory of its own"):
            toprung.sgemm(1.0, given, b.to(given.device), own=True)
    for _ in range(2):  # the second time it is found again
        toprung.matmul(a.cpu(), b.cpu(), own=True)
    with pytest.raises(errors.BadArray, match="a, a Tensor, has no memory of its own"):
        toprung.matmul(freed, b.cpu(), own=True)
    with pytest.raises(errors.BadArray, match="out, a Wrapper, has no memory of its own"):
        toprung.matmul(a, b, out=Wrapper(drawn(8, 5)), own=True)


def test_pytorch_itself_says_that_memory_was_freed() -> None:
    a, b, c, bias = drawn(8, 6), drawn(6, 5), drawn(8, 5), drawn(8, 5)
    calls: list[Any] = [
        lambda: torch.mm(a, b),
        lambda: torch.mm(a, b, out=c),
        lambda: torch.addmm(bias, a, b),
        lambda: c.addmm_(a, b),
    ]
    before = taken()
    for call in calls * 2:
        call()
    assert taken() == before + 8
    for freed, using in ((c, calls[1::2]), (b, calls)):
        freed.untyped_storage().resize_(0)
        for call in using:
            with pytest.raises(RuntimeError, match=r"its data is not allocated yet|out of bounds for storage of size 0"):
                call()
    assert taken() == before + 8


def test_threads_multiply_at_once() -> None:
    import threading

    pairs = [(drawn(20 + i, 30), drawn(30, 10 + i)) for i in range(6)]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(40):
            a, b = pairs[(i + seed) % 6]
            if not torch.allclose(torch.mm(a, b).double(), a.double() @ b.double(), atol=1e-5):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and taken() > 120  # counts of threads that meet may miss one another


def test_pytorchs_groups_in_fp32_are_taken_product_by_product() -> None:
    a, b, ends = drawn(40, 32), drawn(3, 32, 20), (8, 24, 40)
    before = taken()
    found = torch._grouped_mm(a, b, offs=torch.tensor(ends, dtype=torch.int32, device=DEVICE))
    assert taken() - before == len(ends)
    parts = zip(a.double().tensor_split(ends[:-1]), b.double(), strict=True)
    agree(found, torch.cat([x @ y for x, y in parts]), 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [name for name in OVERLOADS if ".dtype" in name])
def test_overloads_that_name_the_results_type_leave_halves_to_pytorch(name: str, dtype: Any) -> None:
    """PyTorch has them on GPUs alone, so its kernel is planted here: it gets all arguments as they came, and nothing is written."""
    op = OVERLOADS[name]
    shapes = ((2, 30, 40), (2, 40, 20)) if "bmm" in op else ((30, 40), (40, 20))
    given: list[Any] = []

    def original(*args: Any, **keywords: Any) -> str:
        given.extend((*args, *keywords.values()))
        return "PyTorch's"

    for a, b, theirs in (
        (*(drawn(*shape).to(dtype) for shape in shapes), True), (drawn(*shapes[0]), drawn(*shapes[1]).to(dtype), True),
        (*(drawn(*shape) for shape in shapes), False),
    ):  # fmt: skip
        given.clear()
        operands = (a, b, torch.float32)
        if "add" in op:
            operands = (drawn(20), *operands)
        out = {"out": torch.full((*a.shape[:-1], 20), NAN, device=DEVICE)} if name.endswith("_out") else {}
        before = taken()
        made = kernel(name, original)(*operands, **out)
        assert (made == "PyTorch's") is theirs if isinstance(made, str) else not theirs
        assert taken() - before == (not theirs)
        if theirs:
            assert all(any(one is x for x in given) for one in (*operands, *out.values()))
            assert all(bool(x.isnan().all()) for x in out.values())
        else:
            agree(made, a.double() @ b.double() + (operands[0].double() if "add" in op else 0), 40)
