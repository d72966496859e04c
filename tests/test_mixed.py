"""Products of halves with float32 and with each other: NumPy arrays, selection, layouts, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import golden
import toprung
from toprung import errors
from toprung.arrays.base import Home, Operand
from toprung.backends.base import Session
from toprung.blas.operands import How, apart
from toprung.dispatch import mixed
from toprung.dispatch.select import select
from toprung.dispatch.selection import Selection
from toprung.execute.executable import Executable
from toprung.execute.executor import Executor
from toprung.gemm.desc import GemmDesc
from toprung.gemm.layout import Layout
from toprung.gemm.lowering import lower
from toprung.gemm.overlap import span
from toprung.kernels.base import candidates
from toprung.kernels.hopper_fp32x.config import on_words
from toprung.kernels.hopper_fp32x.family import INFLIGHT
from toprung.oracle.check import GUARD, Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.placed import OnDevice

H200 = golden.devices()["h200-cuda"]
ROUTER = GemmDesc(4096, 256, 7168, trans_b=True, align_a=4, align_b=4, align_c=4, type_a="bfloat16")


def drawn(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def right(found: Any, a: Any, b: Any) -> bool:
    """Return True if a product is as near to float64's of the operands as given as chains of 32 in fp32 would be."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    bound = (16 + np.sqrt(x.shape[-1])) * 2.0**-24 * (np.abs(x) @ np.abs(y))
    return bool(found.dtype == np.float32 and (np.abs(found - x @ y) <= bound).all())


@pytest.mark.parametrize("options", [{}, {"own": True}], ids=str)
@pytest.mark.parametrize("types", ["ef", "fe", "ee"])
def test_float16_in_any_mix(types: str, options: Any) -> None:
    """Strides of any kind, batches, vectors, results to write into, and bits that rounding to float16 would lose."""
    a, b = drawn(3, 33, 65).astype(types[0]), drawn(65, 17).astype(types[1])
    for x, y in ((a, b), (a[:, ::-2, 1::2], b[1::2]), (a[0], b[:, 3]), (a[0, 1], b), (a[:0], b), (a[..., :0], b[:0]), (a.mT, a)):
        assert right(toprung.matmul(x, y, **options), x, y)
    out = np.full((33, 17), np.nan, np.float32)
    assert toprung.matmul(a[0], b, out=out, **options) is out and right(out, a[0], b)
    made = toprung.matmul(a[0], b, bias=out[0], activation="relu", **options)
    assert np.allclose(made, np.maximum(a[0].astype(np.float64) @ b + out[0], 0), rtol=1e-5, atol=1e-5)


def test_special_values() -> None:
    a, b = drawn(5, 64).astype(np.float16), drawn(64, 6)
    a[1, 3], a[2, 5], a[3] = np.inf, np.nan, 6e-8  # the last one is subnormal
    found = toprung.matmul(a, b, own=True)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b
    assert np.array_equal(np.isnan(found), np.isnan(wanted)) and np.array_equal(np.isinf(found), np.isinf(wanted))
    assert right(found[3:], a[3:], b)


def test_plans_and_receipts() -> None:
    a, b = drawn(40, 64).astype(np.float16), drawn(64, 50)
    plan = toprung.plan(a, b, own=True)
    assert right(plan(a, b), a, b)
    with pytest.raises(errors.StalePlan):
        plan(a[:, :60], b)


@pytest.mark.parametrize("options", [{}, {"own": True}], ids=str)
@pytest.mark.parametrize("types", ["bf", "fb", "bb", "be", "eb"])
def test_bfloat16_of_ml_dtypes(types: str, options: Any) -> None:
    """NumPy's bfloat16 in any mix, with strides, batches, vectors and empty sums; a group; and bits that neither type may lose."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    kinds = [bfloat16 if kind == "b" else np.dtype(kind) for kind in types]
    a, b = drawn(3, 33, 65).astype(kinds[0]), drawn(65, 17).astype(kinds[1])
    for x, y in ((a, b), (a[:, ::-2, 1::2], b[1::2]), (a[0], b[:, 3]), (a[0, 1], b), (a[:0], b), (a[..., :0], b[:0]), (a.mT, a)):
        assert right(toprung.matmul(x, y, **options), x, y)
    out = np.full((33, 17), np.nan, np.float32)
    assert toprung.matmul(a[0], b, out=out, **options) is out and right(out, a[0], b)
    for found, x in zip(toprung.matmul_grouped([a[0], a[1, :5]], [b, b], **options), (a[0], a[1, :5]), strict=True):
        assert right(found, x, b)
    a[0, 1, 3], a[0, 2, 5] = np.inf, np.nan
    found = toprung.matmul(a[0], b, **options)
    with np.errstate(invalid="ignore"):
        wanted = a[0].astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(np.isnan(found), np.isnan(wanted)) and np.array_equal(np.isinf(found), np.isinf(wanted))


def test_what_is_not_taken() -> None:
    a, b = drawn(5, 7), drawn(7, 6)
    for kind in (np.float64, np.int8, np.complex64, np.bool_):
        with pytest.raises(errors.BadArray, match="float32"):
            toprung.matmul(a.astype(kind), b)
    half = b.astype(np.float16)
    for call in (
        lambda: toprung.prepack(half), lambda: toprung.matmul(a, b, bias=np.zeros(6, np.float16)),
        lambda: toprung.matmul(a, b, out=np.zeros((5, 6), np.float16)),
    ):  # fmt: skip
        with pytest.raises(errors.BadArray):
            call()
    with pytest.raises(errors.BadArray, match="mask"):
        toprung.matmul(np.ma.masked_array(a.astype(np.float16)), b)


# overlap


def test_memory_behind_halves_is_no_overlap() -> None:
    """Halves end where as many floats would have come halfway."""

    def at(address: int, shape: tuple[int, ...], dtype: str = "float32") -> Operand:
        adapter: Any = None
        return Operand(adapter, None, shape, (shape[1], 1), Home("cuda"), address, dtype=dtype)

    a = at(4096, (8, 16), "bfloat16")
    apart(at(4096 + 8 * 16 * 2, (8, 8)), (a,), How("matmul"), "out")
    with pytest.raises(errors.Overlap):
        apart(at(4096 + 8 * 16 * 2 - 4, (8, 8)), (a,), How("matmul"), "out")
    assert span(0, (8, 16), (16, 1), 2) == (0, 256)


# short sides: read as they lie on every device

SHORT = [
    Gemm(1, 70, 300, 1.3, 0.7, trans="NT", type_b="bfloat16"),
    Gemm(1, 66, 257, trans="NT", type_a="float16"),
    Gemm(3, 68, 300, trans="NT", type_a="float16", type_b="bfloat16"),
    Gemm(70, 1, 97, 1.3, 0.7, trans="TN", type_a="float16", type_b="bfloat16"),
    Gemm(4, 68, 97, trans="TN", type_a="bfloat16", type_b="float16"),
]


@pytest.mark.parametrize("problem", SHORT, ids=str)
def test_a_short_side_is_multiplied_without_a_conversion(session: Session, problem: Gemm) -> None:
    """Between guards of NaN, against float64; the executable of strided arrays takes a single row as a matrix, too."""
    found = mixed.select(session.device, problem.desc, "fp32")
    assert isinstance(found, Selection) and found.family.name == "skinny" and "Tensor Cores" not in found.why
    made, operands = Executable.of(session, problem.desc, found.candidate), hostile(problem)
    placed = OnDevice(operands, session)
    handles = (placed.buffers[m.name].handle for m in problem.matrices)
    made.starter()(*(word for handle in handles for word in (handle, GUARD)), problem.alpha, problem.beta, None)
    assert not Oracle(operands).verify(placed.fetch(), "fp32").problems
    a, b, c = (Layout((m.rows, m.cols), (m.ld, 1), 4, m.dtype) for m in problem.matrices)
    a, b = (x.transposed if t == "T" else x for x, t in zip((a, b), problem.trans, strict=True))
    assert isinstance(Executor(session).mixed(a, b, c, 1.0, 0.0, "fp32"), Executable)


# what is launched on a Hopper


def test_the_router_is_read_as_it_lies() -> None:
    found = mixed.select(H200, ROUTER, "auto")
    assert isinstance(found, Selection) and found.family.name == "hopper_presplit" and found.precision == "fp32x"
    for precision in ("fp32", "tf32"):
        assert isinstance(mixed.select(H200, ROUTER, precision), str)
    assert isinstance(mixed.select(golden.devices()["pocl"], ROUTER, "auto"), str)


def test_tiles_are_counted_with_as_many_blocks_behind_the_last() -> None:
    """A block goes on by as many tiles as there are blocks, which fits 31 bits."""
    few, many = (GemmDesc(1, 1, 64, batch, stride_c=1, type_a="float16") for batch in ((1 << 30) - 1, 1 << 30))
    hopper = golden.devices()["h200-cuda"]
    assert INFLIGHT.supports(hopper, few) == "" and "31 bits" in INFLIGHT.supports(hopper, many)


def test_rows_between_words_are_converted() -> None:
    odd = GemmDesc(64, 64, 65, trans_b=True, align_a=2, align_b=2, align_c=4, type_b="float16")
    assert not on_words(odd) and "words" in str(mixed.select(H200, odd, "auto"))
    assert on_words(GemmDesc(64, 64, 65, type_b="float16")) and not on_words(GemmDesc(64, 64, 65, type_a="float16"))


def test_a_type_that_there_is_not() -> None:
    with pytest.raises(errors.BadSize, match="float32, float16, bfloat16"):
        GemmDesc(1, 1, 1, type_a="float64")


def test_types_stay_with_operands_that_change_places() -> None:
    """A column-major result exchanges A and B; strides of elements are those of each type."""
    a, b = Layout((64, 128), (128, 1), 4, "bfloat16"), Layout((128, 32), (1, 128), 2)
    (straight,) = lower(a, b, Layout((64, 32), (32, 1), 4), 0.0).descs
    (turned,) = lower(a, b, Layout((64, 32), (1, 64), 4), 0.0).descs
    assert isinstance(straight, GemmDesc) and isinstance(turned, GemmDesc)
    assert (straight.type_a, straight.type_b) == ("bfloat16", "float32") == (turned.type_b, turned.type_a)
    assert straight.bytes_read == turned.bytes_read == 128 * (64 * 2 + 32 * 4)
    assert str(straight).endswith("bfloat16·float32")


def test_the_launch_reads_halves_at_their_own_offsets() -> None:
    """Executables of a session that records its launches: offsets count elements, of two bytes or four."""
    with golden.recording():
        session: Any = golden.Recorder(H200)
        addresses: list[Any] = []
        session.keep = lambda launch, words: addresses.append((launch.kernel.source, list(words)))
        a, b, c = Layout((256, 512), (512, 1), 4, "float16"), Layout((512, 128), (1, 512), 4), Layout((256, 128), (128, 1), 4)
        found = Executor(session).mixed(a, b, c, 1.0, 0.0, "auto")
        assert not isinstance(found, str) and found.program.is_direct
        found.run(1 << 20, 8, 1 << 21, 8, 1 << 22, 8, 1.0, 0.0, 1)
    ((source, values),) = addresses
    assert [int(v.split()[0], 16) for v in values[:3]] == [(1 << 20) + 16, (1 << 21) + 32, (1 << 22) + 32]
    assert (source.defines["A_TYPE"], source.defines["B_TYPE"]) == (1, 0)
    assert Executor(session).mixed(a, b, c, 1.0, 0.0, "fp32").__class__ is str
    every_second = Layout((256, 256), (1024, 2), 4, "float16")
    assert isinstance(Executor(session).mixed(every_second, Layout((256, 128), (1, 256), 4), c, 1.0, 0.0, "auto"), str)


def test_two_products_take_less_than_three() -> None:
    """The family's model: fewer products and bytes, so never more seconds than of float32."""
    plain = GemmDesc(4096, 256, 7168, trans_b=True, align_a=4, align_b=4, align_c=4)
    family = select(H200, plain, True, "fp32x").family
    halves = mixed.select(H200, ROUTER, "fp32x")
    assert isinstance(halves, Selection)
    seconds = min(family.cost(H200, plain, c) for c in candidates(family, H200, plain))
    assert family.name == "hopper_presplit" and family.cost(H200, ROUTER, halves.config) < 0.9 * seconds
