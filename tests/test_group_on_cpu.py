"""Groups in one launch, by the in-flight kernel's own text on a CPU: unequal shapes, edges, epilogues, what is computed again."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
import toprung
from conftest import require
from hopper_on_cpu import aligned, bug
from test_fused_epilogue import finished
from test_hopper_inflight_on_cpu import Folder, Product, picked
from toprung import errors
from toprung.arrays.base import Home
from toprung.arrays.numpy import adapter as numpy_adapter
from toprung.backends import nvrtc
from toprung.blas import calls, grouped
from toprung.dispatch import select
from toprung.dispatch.select import group_family
from toprung.gemm.desc import GemmDesc
from toprung.gemm.epilogue import ACTIVATIONS, Epilogue
from toprung.gemm.overlap import array_at
from toprung.kernels import group as packed
from toprung.kernels.base import GroupLaunches, Member
from toprung.kernels.cost_model import block_count, group_sizes
from toprung.kernels.hopper_fp32x import cost, group, launches
from toprung.kernels.hopper_fp32x.config import Fp32xConfig, in_flight
from toprung.kernels.hopper_fp32x.family import INFLIGHT
from toprung.oracle.bias import bias
from toprung.oracle.precision import precision as promise

SMALL, FOURS = in_flight(1, 32, 5), in_flight(1, 64, 5)
SHAPES = ((70, 40, 100), (3, 5, 64), (1, 1, 75), (66, 33, 130), (64, 32, 65), (17, 66, 64), (9, 7, 331))
"""One tile and many, edges each way, K of two k-blocks and of eleven."""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    monkeypatch.setattr(packed, "kernel_of", lambda session, source: source)
    monkeypatch.setattr(packed, "has_large_parameters", lambda: True)
    monkeypatch.setattr(group, "best", lambda *what: (0.0, SMALL))
    Folder.launches = 0
    return Folder(tmp_path_factory.getbasetemp(), units=2)


class Group:
    """Operands with NaN around them, C full of NaN between canaries, and float64 beside them."""

    def __init__(
        self, shapes: Any, trans: str = "NN", pad: int = 0, activation: str = "", biased: Any = (), batch: int = 1
    ) -> None:
        rng = np.random.default_rng(len(shapes))
        self.kept: list[Any] = []
        self.members: list[Member] = []
        self.addresses: list[list[int]] = []
        self.a, self.b, self.c, self.d, self.activation = [], [], [], [], activation  # type: ignore[var-annotated]
        for i, (M, N, K) in enumerate(shapes):
            a, b = (self.placed(batch, *shape, pad, turned == "T") for shape, turned in zip(((M, K), (K, N)), trans, strict=True))
            c, d = self.placed(batch, M, N, 3, False), None
            a[1][...], b[1][...] = rng.uniform(-1, 1, a[1].shape), rng.uniform(-1, 1, b[1].shape)
            epilogue = Epilogue(activation=activation) if activation or biased else None
            if i in biased:
                how = i % 3  # a row, a column, a matrix that lies transposed
                d = rng.uniform(-4, 4, ((1, N), (M, 1), (N, M))[how]).astype(np.float32)
                d = d.T if how == 2 else d
                steps = [0 if n == 1 and how < 2 else s // 4 for n, s in zip(d.shape, d.strides, strict=True)]
                epilogue = Epilogue(True, *steps, 0, activation)
            lds = [x[0].shape[2] for x in (a, b, c)]
            strides = [x[0][0].size if batch > 1 else 0 for x in (a, b, c)]
            align = next(w for w in (4, 2, 1) if lds[0] % w == lds[1] % w == strides[0] % w == strides[1] % w == 0)
            desc = aligned(M, N, K, batch, trans[0] == "T", trans[1] == "T", *lds, *strides, align_a=align, align_b=align)
            at = [x[0].ctypes.data for x in (a, b, c)]
            self.members.append(Member(desc, epilogue))
            self.addresses.append([*at, 0 if d is None else d.ctypes.data])
            for held, made in zip((self.a, self.b, self.c, self.d), (a, b, c, d), strict=True):
                held.append(made if held is self.d else made[1])
            self.kept.append(c[0])

    def placed(self, batch: int, rows: int, cols: int, pad: int, turned: bool) -> tuple[Any, Any]:
        rows, cols = (cols, rows) if turned else (rows, cols)
        whole = np.full(batch * rows * (cols + pad) + 32, np.nan, np.float32)
        first = -whole.ctypes.data % 16 // 4 + 8
        stored = whole[first : first + batch * rows * (cols + pad)].reshape(batch, rows, cols + pad)
        self.kept.append(whole)
        inside = stored[:, :, :cols]
        return stored, inside.transpose(0, 2, 1) if turned else inside

    def run(self, folder: Folder) -> GroupLaunches:
        session: Any = folder
        made = group.group_launches(session, self.members)
        made.start(None, np.array(self.addresses).T)
        return made

    def check(self) -> None:
        for a, b, c, d in zip(self.a, self.b, self.c, self.d, strict=True):
            with np.errstate(all="ignore"):
                x, y = np.float64(a), np.float64(b)
                exact = finished(np.matmul(x, y) + (0 if d is None else np.float64(d)), self.activation)
                bound = 16 * 2.0**-24 * (np.matmul(np.abs(x), np.abs(y)) + (0 if d is None else np.abs(d)) + 1e-30)
            sound = np.isfinite(exact)
            assert np.array_equal(c[~sound], exact[~sound].astype(np.float32), equal_nan=True)
            assert (np.abs(c[sound] - exact[sound]) <= bound[sound]).all()
        for stored, c in zip(self.kept[3::4], self.c, strict=True):
            assert np.isnan(stored[:, :, c.shape[2] :]).all(), "written outside"
        for whole in self.kept[2::4]:
            assert np.isnan(whole[:8]).all() and np.isnan(whole[-8:]).all(), "written outside"


def counted(made: GroupLaunches) -> int:
    return sum(int((ctypes.c_uint64 * 1).from_address(counter.buffer.pointer)[0]) for counter in made.plan.kept)


def test_unequal_shapes_in_one_launch(folder: Folder) -> None:
    several = Group(SHAPES)
    made = several.run(folder)
    several.check()
    assert (Folder.launches, made.launches, counted(made)) == (1, 1, 0)
    again = Group(SHAPES[::-1])  # the same kernel, its parameters written anew
    again.run(folder)
    again.check()


def test_sums_of_one_sign_are_not_biased(folder: Folder) -> None:
    several = Group(SHAPES[:4])
    for x in (*several.a, *several.b):
        x[...] = np.abs(x)
    several.run(folder)
    exact = np.concatenate([np.matmul(np.float64(a), np.float64(b)).ravel() for a, b in zip(several.a, several.b, strict=True)])
    off = bias(np.concatenate([c.ravel() for c in several.c]), exact, exact)
    assert off is not None and not off.beyond(promise("fp32x").bias_limit(100)), off


@pytest.mark.slow
def test_bits_are_those_of_a_launch_of_its_own(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    several, one = Group(SHAPES), Product.of(*SHAPES[0])
    several.run(folder)
    one.a[0], one.b[0] = several.a[0][0], several.b[0][0]
    monkeypatch.setattr(launches, "kernel_of", lambda session, source: source)
    assert np.array_equal(one.run(folder, SMALL)[0], several.c[0][0])


@pytest.mark.slow
def test_what_is_computed_again_and_epilogues(folder: Folder) -> None:
    several = Group(SHAPES, activation="relu", biased=(0, 1, 3, 5), pad=1)
    several.a[3][0, 1, 3], several.b[3][0, 5, 30], several.a[5][0, 16, 60] = np.inf, np.nan, -np.inf
    made = several.run(folder)
    several.check()
    assert counted(made) > 0 and made.launches == 1


@pytest.mark.parametrize("operand", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_small_elements_among_zeros_are_computed_again(folder: Folder, operand: str) -> None:
    """One product of several has them, in its last tile."""
    several = Group(SHAPES)
    picked(SimpleNamespace(a=several.a[3], b=several.b[3]), operand, 2, first=96)  # type: ignore[arg-type]
    made = several.run(folder)
    several.check()
    assert counted(made) > 0


@pytest.fixture
def device(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """NumPy's arrays stand for a device's, the folder for its session."""
    library = type(numpy_adapter)
    original = library.operand

    def operand(self: Any, thing: Any, name: str) -> Any:
        return original(self, thing, name)._replace(home=Home("cuda", 0), queue=7)

    monkeypatch.setattr(library, "operand", operand)
    monkeypatch.setattr(grouped, "session_at", lambda home, queue: folder)
    monkeypatch.setattr(select, "LONG", np.inf)  # with two multiprocessors all are long
    calls.forget()
    yield folder
    calls.forget()


@pytest.mark.usefixtures("device")
def test_a_call_is_one_launch_with_one_receipt() -> None:
    rng = np.random.default_rng(3)
    a, b = (
        [rng.uniform(-1, 1, x).astype(np.float32) for x in of]
        for of in (((3, 64), (40, 70), (33, 80)), ((64, 5), (70, 7), (80, 40)))
    )
    c = [np.full((x.shape[0], y.shape[1]), np.nan, np.float32) for x, y in zip(a, b, strict=True)]
    bias = [None, rng.uniform(-1, 1, 7).astype(np.float32), rng.uniform(-1, 1, (33, 1)).astype(np.float32)]
    found = toprung.matmul_grouped(a, b, c, bias=bias, activation="relu")
    for x, y, z, v, made in zip(a, b, c, bias, found, strict=True):
        exact = np.maximum(np.float64(x) @ y + (0 if v is None else v), 0)
        assert made is z
        np.testing.assert_allclose(z, exact, rtol=1e-5, atol=1e-5)
    left = toprung.last_receipt()
    assert left is not None and Folder.launches == left.launches == 1
    assert (left.precision, left.kernels, left.own) == ("fp32x", (f"hopper_inflight {SMALL}",), True)
    assert left.why == "3 products in 1 launch" and left.problem == "3 products, 3×64 · 64×5 to 33×80 · 80×40"
    with pytest.raises(errors.Overlap, match="out"):
        toprung.matmul_grouped(a[1:], b[1:], [c[1], a[1][:33, :40]])
    assert Folder.launches == 1


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("into", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_group_like_an_earlier_one_is_not_looked_at_again(into: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    for seed in range(5):
        a, b = drawn(seed, (3, 64), (40, 70), (33, 80)), drawn(seed + 9, (64, 5), (70, 7), (80, 40))
        bias = [None, *drawn(seed, (7,), (33, 1))]
        c = [np.full((x.shape[0], y.shape[1]), np.nan, np.float32) for x, y in zip(a, b, strict=True)]
        kept.append((a, b, bias, c))  # so that the next ones lie elsewhere
        if seed == 3:
            monkeypatch.setattr(grouped.epilogue, "checked", None)
        found = toprung.matmul_grouped(a, b, c if into else None, bias=bias, activation="relu")
        for x, y, v, z, made in zip(a, b, bias, c, found, strict=True):
            assert made is z or not into
            exact = np.maximum(np.float64(x) @ y + (0 if v is None else v), 0)
            np.testing.assert_allclose(made, exact, rtol=1e-5, atol=1e-5)
        left = toprung.last_receipt()
        assert left is not None and (left.launches, left.why) == (1, "3 products in 1 launch")


def computed(session: Any, launch: Any, values: list[Any]) -> None:
    """Compute a launch by NumPy, from the parameters of the kernel: nothing is compiled."""
    type(session).launches += 1
    (_, trans_a, trans_b, *align), macros = launch.kernel
    (group,) = values[-1].view(packed.group_type(macros["GROUPED"], "EPILOGUE" in macros))
    for of in group["of"][: group["count"]]:
        m, n, k, lda, ldb, ldc = (int(of[name]) for name in ("M", "N", "K", "lda", "ldb", "ldc"))
        a = array_at(int(of["a"]), (m, k), (1, lda) if trans_a else (lda, 1), None, False)
        b = array_at(int(of["b"]), (k, n), (1, ldb) if trans_b else (ldb, 1), None, False)
        assert not any(at % 16 and at % (4 * n) for at, n in zip((int(of["a"]), int(of["b"])), align, strict=True))
        exact = np.float64(a) @ b
        if "d" in of.dtype.names and of["d"]:
            exact += array_at(int(of["d"]), (m, n), (int(of["down"]), int(of["on"])), None, False)
        activation = next((name for name, value in ACTIVATIONS.items() if value == macros.get("ACTIVATION")), "")
        array_at(int(of["c"]), (m, n), (ldc, 1), None, True)[...] = finished(exact, activation)


@pytest.fixture
def by_numpy(device: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(device), "start", computed)
    monkeypatch.setattr(group, "product_source", lambda *what, **macros: (what, macros))


@pytest.mark.usefixtures("by_numpy")
def test_what_differs_in_one_thing_is_another_group() -> None:
    """Each call differs from one before in a single thing that decides its result; all come three times."""
    a, b = drawn(1, (9, 70), (20, 70)), drawn(2, (70, 6), (70, 12))
    wide = drawn(3, (70, 12), (40, 140))
    bias = drawn(4, (6,), (12,))
    ways: list[tuple[Any, Any, dict[str, Any]]] = [
        (a, b, {}), (a[::-1], b, {}), (a, b[::-1], {}), (a, [b[0], wide[0]], {}), (a, [b[0], b[1][:, :6]], {}),
        (a, [wide[0][:, :6], b[1]], {}), ([a[0], wide[1][::2, :70]], b, {}),
        ([a[0], b[1].T], [b[0], a[1].T], {}), (a, b, {"activation": "relu"}), (a, b, {"bias": bias}),
        (a, b, {"bias": [None, bias[1]]}), (a, b, {"bias": [bias[0], None]}), (a, b, {"bias": [bias[0], bias[1][:1]]}),
        (a, b, {"bias": [bias[0][::-1], bias[1]], "activation": "gelu"}), (a + a, b + b, {}),
        ([x[:, :64] for x in a], [x[:64] for x in b], {}), ([a[0], wide[1][:, 2:72]], b, {}),
        ([a[0], wide[1][:20, :70]], b, {}), ([a[0], wide[1][:20, 1:71]], b, {}), ([a[0], wide[1][:20, 2:72]], b, {}),
        (a, [b[0], b[1][:, 6:]], {"bias": [None, bias[0]]}), (a, [b[0], b[1][:, 6:]], {"bias": [bias[0], None]}),
    ]  # fmt: skip
    for _ in range(3):
        for x, y, more in ways:
            added = more.get("bias") or [None] * len(x)
            wanted = [
                finished(np.float64(u) @ w + (0 if v is None else v), more.get("activation", ""))
                for u, w, v in zip(x, y, added, strict=True)
            ]
            transposed = [np.full(z.shape[::-1], np.nan, np.float32).T for z in wanted]
            for out in (None, [np.full(z.shape, np.nan, np.float32) for z in wanted], [z.copy() for z in transposed]):
                for found, z in zip(toprung.matmul_grouped(x, y, out, **more), wanted, strict=True):
                    np.testing.assert_allclose(found, z, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("activation", [None, "relu"])
def test_pairs_of_other_groups_are_not_looked_at_again(activation: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(1, (9, 70), (20, 64), (33, 66), (5, 200)), drawn(2, (70, 6), (64, 12), (66, 40), (200, 70))
    bias = [None, *drawn(3, (12,), (33, 1)), None]
    wanted = [finished(np.float64(x) @ y + (0 if v is None else v), activation or "") for x, y, v in zip(a, b, bias, strict=True)]

    def check(*numbers: int) -> None:
        x, y, v = ([of[i] for i in numbers] for of in (a, b, bias))
        out = [np.full(wanted[i].shape, np.nan, np.float32) for i in numbers]
        for found, i in zip(toprung.matmul_grouped(x, y, out, bias=v, activation=activation), numbers, strict=True):
            np.testing.assert_allclose(found, wanted[i], rtol=1e-4, atol=1e-5)
        left, names = toprung.last_receipt(), [" · ".join("×".join(map(str, of[i].shape)) for of in (a, b)) for i in numbers]
        assert left is not None and left.problem == f"{len(numbers)} products, {names[0]} to {names[-1]}"

    for _ in range(2):
        check(0, 1)
        check(2, 3)
    monkeypatch.setattr(grouped.epilogue, "checked", None)
    for numbers in ((0, 2), (3, 1, 0), (1, 1, 2, 0, 3), (2, 0)):
        check(*numbers)
    shared = np.empty((9, 6), np.float32)
    with pytest.raises(TypeError):  # it is looked at, to say what overlaps
        toprung.matmul_grouped([a[0], a[0]], [b[0], b[0]], [shared, shared], activation=activation)


@pytest.mark.usefixtures("by_numpy")
def test_overlaps_are_refused_again() -> None:
    whole = drawn(1, (200, 70))[0]
    a, b = [whole[:30], whole[30:70]], drawn(2, (70, 70), (70, 70))
    good = [np.empty((30, 70), np.float32), np.empty((40, 70), np.float32)]
    for _ in range(3):
        toprung.matmul_grouped(a, b, good)
    before = Folder.launches
    bad = ([whole[20:50], good[1]], [good[0], whole[:40]], [good[0], whole[69:109]], [whole[100:130], whole[120:160]])
    for out in bad:
        with pytest.raises(errors.Overlap, match="out"):
            toprung.matmul_grouped(a, b, out)
    locked = good[1].copy()
    locked.flags.writeable = False
    with pytest.raises(errors.BadShape, match=r"pair 1: .*read-only"):
        toprung.matmul_grouped(a, b, [good[0], locked])
    assert Folder.launches == before
    toprung.matmul_grouped(a, b, [whole[70:100], whole[100:140]])
    assert Folder.launches == before + 1
    columns = drawn(3, (40, 140))[0]  # they lie between each other, and share nothing
    toprung.matmul_grouped(a, b, [columns[:30, :70], columns[:, 70:]])
    np.testing.assert_allclose(columns[:, 70:], np.float64(a[1]) @ b[1], rtol=1e-4, atol=1e-5)


def test_results_that_lie_apart_are_told_from_those_that_do_not() -> None:
    """By the spans of all arrays, beside a comparison of each with each."""
    rng, said = np.random.default_rng(5), set()
    for trial in range(3000):
        count = int(rng.integers(1, 6))
        at = rng.integers(1, 400, (4, count))
        length = rng.integers(0, 12, (4, count))
        low, high = at - rng.integers(0, 3, (4, count)), at + length
        if trial % 3 == 0:
            at[3] = low[3] = high[3] = 0  # nothing is added
        decided = object.__new__(grouped._Decided)
        decided._low, decided._high = low - at, high - at
        spans = [(row, i, low[row, i], high[row, i]) for row in range(4) for i in range(count) if low[row, i] < high[row, i]]
        shares = any(
            2 in (one[0], other[0]) and one[2] < other[3] and other[2] < one[3]
            for one in spans
            for other in spans
            if one[:2] != other[:2]
        )
        clear = decided.is_clear(at)
        assert not (clear and shares), (low, high)
        said.add((bool(clear), shares))
    assert {(True, False), (False, True)} <= said


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NT", "TN", "TT"])
@pytest.mark.parametrize("config", [SMALL, FOURS, in_flight(2, 128, 4), in_flight(2, 64, 6)], ids=str)
def test_layouts_and_blocks(folder: Folder, monkeypatch: pytest.MonkeyPatch, config: Fp32xConfig, trans: str) -> None:
    monkeypatch.setattr(group, "best", lambda *what: (0.0, config))
    for biased, activation in (((), ""), ((0, 2, 3, 4), "gelu")):
        several = Group((*SHAPES, (128, 256, 96)), trans, biased=biased, activation=activation)
        several.a[6][0, 2, 7] = np.inf
        several.run(folder)
        several.check()


@pytest.mark.slow
def test_batches_and_more_than_parameters_have_room_for(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "has_large_parameters", lambda: False)
    several = Group([(5 + i % 7, 9, 64 + i) for i in range(40)], batch=2)
    assert several.run(folder).launches == Folder.launches == 2, "80 products, and 64 to a launch"
    several.check()


def test_alignments_share_a_launch_where_that_is_faster() -> None:
    def members(*shapes: Any) -> list[Member]:
        return [Member(aligned(*shape, align_a=align, align_b=align)) for *shape, align in shapes]

    few = members((100, 64, 128, 4), (100, 64, 128, 1))
    (layout, both), *rest = group.classes(few, 132)
    assert not rest and layout == (False, False, 1, 1) and len(both) == 2
    many = members(*[(2048, 2048, 1024, 4)] * 20, (64, 64, 64, 1))
    assert [(align_a, len(mine)) for (_, _, align_a, _), mine in group.classes(many, 132)] == [(4, 20), (1, 1)]
    turned = [Member(aligned(64, 64, 64, 1, t, False)) for t in (False, True)]
    assert len(list(group.classes(turned, 132))) == 2


def test_parameters_fit_and_hold_what_the_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "has_large_parameters", lambda: True)
    assert [packed.member_type(fused).itemsize for fused in (False, True)] == [56, 80]
    for fused in (False, True):
        for capacity, limit in zip(packed.capacities(fused), packed.PARAMETER_BYTES, strict=False):
            assert 16 + capacity * (4 + packed.member_type(fused).itemsize) <= limit


def test_the_cost_model_counts_the_first_blocks_turns() -> None:
    """Largest K first: of 264 equal tiles and one deep one two turns; what comes last costs least."""
    descs = [GemmDesc(64, 32, 64 if i else 4096) for i in range(265)]
    config = in_flight(1, 32, 8)
    chunk, tile = cost.times(4, 4)[1, 32]
    found = cost.seconds_of_group(group_sizes(descs[::-1]), config, 4, 4, 132)
    assert found >= cost.FLIGHT.launch + 128 * chunk + tile + 2 * chunk + cost.FLIGHT.again * tile
    assert found < cost.FLIGHT.launch + 1.1 * (130 * chunk + 2 * tile)
    assert block_count(descs[0], config) == 1


def test_who_is_taken_into_a_group() -> None:
    hopper, none = dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=132), frozenset[str]()
    taken = {
        GemmDesc(100, 200, 300): True, GemmDesc(2, 2048, 1024, align_a=4, align_b=4): True, GemmDesc(100, 200, 63): False,
        GemmDesc(2, 4096, 4096, align_a=4, align_b=4): False,  # plain fp32 is as fast as memory
        GemmDesc(16384, 16384, 16384, align_a=4, align_b=4, align_c=4): False, GemmDesc(64, 64, 64, 65, stride_c=4096): False,
    }  # fmt: skip
    for desc, wanted in taken.items():
        assert (group_family(hopper, desc, "auto", none) is INFLIGHT) == wanted, desc
        assert (
            group_family(hopper, desc, "fp32", none) is not INFLIGHT
            and group_family(hopper, desc, "auto", frozenset({"tanh"})) is None
        )


PLANTS = (
    ("end-of-product", "~>="), ("begin-of-product", "0 && "),
    ("down-of-product", "0 * "), ("d-of-product", "~0.5f"),
    ("k-of-product", " + 1"), ("stages-of-product", "~0"),
    ("n-of-product", " + 1"), ("d-of-row", "~on"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place, text", PLANTS)
def test_a_planted_bug_is_found(folder: Folder, place: str, text: str) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        test_unequal_shapes_in_one_launch(folder)
        test_what_is_computed_again_and_epilogues(folder)
