"""Hopper's plain fp32 kernels on a CPU, by their own texts, launched by ``SgemmLaunches`` itself: layouts, edges, parts."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
from conftest import require
from hopper_on_cpu import Folder, aligned, bug
from toprung.kernels.hopper_sgemm import cost, launches
from toprung.kernels.hopper_sgemm.config import SgemmConfig
from toprung.kernels.hopper_sgemm.family import AREA, SPACE
from toprung.kernels.hopper_sgemm.launches import SgemmLaunches
from toprung.kernels.record import kernel_source
from toprung.lab.rung import Rung, ladder
from toprung.tile import Tile

TINY = SgemmConfig(STAGES=2, GROUP=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    return Folder(tmp_path_factory.mktemp("hopper_fp32"), units=4)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "kernel_of", lambda session, source: source)


def laid(folder: Folder, x: Any, ld: int, skip: int = 0) -> Any:
    """A matrix in memory whose padding is NaN, ``skip`` elements in."""
    rows, cols = x.shape
    buffer = folder.allocate(4 * (rows * ld + skip))
    flat = np.full(rows * ld + skip, np.nan, np.float32)
    np.lib.stride_tricks.as_strided(flat[skip:], (rows, cols), (4 * ld, 4))[...] = x
    folder.upload(buffer, flat)
    return buffer


def product(
    folder: Folder, M: int, N: int, K: int, trans: str = "NN", alpha: float = 1.0, beta: float = 0.0, variant: SgemmConfig = TINY,
    pad: tuple[int, int, int] = (0, 0, 0), skip: tuple[int, int] = (0, 0), parts: bool = True,
    **how: Any,
) -> SgemmLaunches:  # fmt: skip
    """A product of small integers, exact in fp32, twice by one plan; nothing beyond C is written."""
    rng = np.random.default_rng(M + N + K)
    a, b, c = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N)))
    stored = a.T if trans[0] == "T" else a, b.T if trans[1] == "T" else b, c
    lds = [x.shape[1] + p for x, p in zip(stored, pad, strict=True)]
    kept = [laid(folder, x, ld, s) for x, ld, s in zip(stored, lds, (*skip, 0), strict=True)]
    if alpha == 0:
        kept[:2] = [laid(folder, np.full_like(x, np.nan), ld) for x, ld in zip(stored[:2], lds, strict=False)]
    if beta == 0:
        folder.upload(kept[2], np.full(M * lds[2], np.nan, np.float32))
    begins = {"align_a": 1 if skip[0] else 4, "align_b": 1 if skip[1] else 4}
    call = aligned(M, N, K, 1, trans[0] == "T", trans[1] == "T", *lds, **begins, beta_zero=beta == 0)
    with pytest.MonkeyPatch.context() as patch:
        if parts:
            patch.setattr(cost.MODEL, "part", -1.0)  # as many parts as may be
        plan = SgemmLaunches(folder, call, variant, **how)  # type: ignore[arg-type]
        run, want = plan.starter(), alpha * (a @ b) if alpha else np.zeros((M, N), np.float32)
        for _ in range(2):
            want = want + beta * c if beta else want
            run(kept[0].pointer, skip[0], kept[1].pointer, skip[1], kept[2].pointer, 0, alpha, beta)
            found = kept[2].array[kept[2].pointer - kept[2].array.ctypes.data :][: 4 * M * lds[2]].view(np.float32).reshape(M, -1)
            np.testing.assert_array_equal(found[:, :N], want)
            assert np.isnan(found[:, N:]).all()
            c, want = found[:, :N].copy(), alpha * (a @ b) if alpha else np.zeros((M, N), np.float32)
    if plan.plan.flags_bytes:
        assert not any(ctypes.string_at(folder.flags(None, plan.plan.flags_bytes), plan.plan.flags_bytes)), "left as found"
    return plan


@pytest.mark.parametrize("trans", ["NN", "TN", *(pytest.param(t, marks=pytest.mark.slow) for t in ("NT", "TT"))])
def test_layouts_edges_and_parts_of_tiles(folder: Folder, trans: str) -> None:
    plan = product(folder, 132, 260, 100, trans, alpha=0.5, beta=-1.0)
    assert any(launch.name == "lay" for launch in plan.plan.launches) == (trans != "TN")


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), *(pytest.param(s, marks=pytest.mark.slow) for s in ((3, 300, 5), (200, 2, 13), (300, 520, 25)))], ids=str
)
def test_sizes(folder: Folder, shape: tuple[int, int, int]) -> None:
    product(folder, *shape, "TN", pad=(3, 2, 1))
    product(folder, *shape, "NT", pad=(4, 1, 3), parts=False)


def test_every_fence_is_needed(folder: Folder) -> None:
    def check() -> None:
        product(folder, 132, 260, 100, "TN", alpha=0.5, beta=-1.0)
        product(folder, 260, 260, 200, "TN", beta=-1.0)

    def narrow() -> None:
        product(folder, 263, 519, 75, "TN", LINK=2, pad=(1, 1, 0), NARROW_C=1)

    def turning() -> None:
        product(folder, 136, 260, 52, variant=SgemmConfig(128, 256, BK=12, STAGES=2, WAIT_AT=11, TURN_A=1))

    left = hopper_on_cpu.unneeded(check, narrow, turning, names="fence|syncwarp")
    assert left == ["__syncwarp in store_rows"], "in front of the next tile's loop, in which warps meet before they write there"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(512, 64), (256, 128), (64, 512)])
def test_block_shapes(folder: Folder, shape: tuple[int, int]) -> None:
    product(folder, 520, 68, 30, "TN", variant=SgemmConfig(*shape, STAGES=3))
    product(folder, 66, 515, 30, "NN", variant=SgemmConfig(*shape, STAGES=3))


@pytest.mark.parametrize("k", [1, 20, 59])
def test_shorter_stages(folder: Folder, k: int) -> None:
    product(folder, 132, 260, k, "TN", variant=SgemmConfig(BK=10, STAGES=3, WAIT_AT=5, GROUP=16), alpha=0.5, beta=-1.0)


@pytest.mark.parametrize("bm", [pytest.param(bm, marks=[pytest.mark.slow] * (bm in (128, 256))) for bm in SPACE["BM"]])
def test_a_turned_in_flight(folder: Folder, bm: int) -> None:
    variant = SgemmConfig(bm, AREA // bm, BK=12, STAGES=2, WAIT_AT=11, TURN_A=1)
    if refused := variant.refused():
        assert "128 rows" in refused and bm == 64
        return
    plan = product(folder, bm + 8, AREA // bm + 4, 52, "NN", variant=variant)
    assert [launch.name for launch in plan.plan.launches] == ["multiply"]


COPYING = replace(TINY, COPY=1)


@pytest.mark.parametrize("trans", ["NN", "TT", *(pytest.param(t, marks=pytest.mark.slow) for t in ("NT", "TN"))])
def test_operands_are_copied_where_they_lie(folder: Folder, trans: str) -> None:
    """Rows begin anywhere, tiles and stages have edges, links of a chain and parts of tiles; padding is NaN and goes nowhere."""
    plan = product(folder, 133, 261, 99, trans, alpha=0.5, beta=-1.0, pad=(1, 2, 1), skip=(1, 3), variant=COPYING, LINK=2)
    assert all(launch.name == "multiply" for launch in plan.plan.launches) and plan.plan.lent_bytes < 4 * 4 * 128 * 256 + 1024, (
        "nothing is laid out"
    )
    assert plan.plan.launches[0].kernel.defines["COPY_A"] == 1 + (trans[0] == "T")  # type: ignore[attr-defined]


@pytest.mark.parametrize("trans", ["NN", pytest.param("TT", marks=pytest.mark.slow)])
def test_one_operand_is_copied_and_the_copy_engine_fetches_the_other(folder: Folder, trans: str) -> None:
    plan = product(folder, 132, 260, 50, trans, variant=COPYING)
    found = plan.plan.launches[-1].kernel.defines
    assert (found["COPY_A"], found["COPY_B"]) == {"NN": (1, 0), "TT": (0, 1)}[trans]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(512, 64), (256, 128), (64, 512)])
@pytest.mark.parametrize("trans", ["NN", "TT"])
def test_block_shapes_copy_their_panels(folder: Folder, shape: tuple[int, int], trans: str) -> None:
    for k in (1, 59):
        product(folder, shape[0] + 3, shape[1] + 5, k, trans, variant=SgemmConfig(*shape, BK=10, STAGES=2, WAIT_AT=5, COPY=1))


PLANTS = [
    ("k-copied", " + 1"),  # one of K too many, which is NaN
    ("rows-copied", " - 1"),
    ("row-copied", "(WIDE - 1) + 0 * "),
    ("next-copied", "true || "),
    ("panel-copied", "~1"),
]


@pytest.mark.parametrize(("place", "text"), [pytest.param(*p, marks=[pytest.mark.slow] * (i > 0)) for i, p in enumerate(PLANTS)])
def test_a_planted_bug_of_copies_is_found(folder: Folder, place: str, text: str) -> None:
    wide = SgemmConfig(512, 64, BK=10, STAGES=2, WAIT_AT=5, COPY=1)
    with bug(place, text), pytest.raises(AssertionError):
        product(folder, 133, 261, 33, "NN", pad=(1, 2, 1), variant=COPYING)
        product(folder, 261, 69, 33, "TT", pad=(3, 2, 1), variant=wide)
        product(folder, 500, 69, 33, "NN", pad=(1, 2, 1), variant=wide)


def test_more_tiles_than_blocks(folder: Folder) -> None:
    plan = product(folder, 260, 516, 26, "TN")
    assert plan.schedule == (4, 9 % 4 + 4)


@pytest.mark.slow
@pytest.mark.parametrize("one", ladder("hopper_fp32").rungs[:3], ids=str)
def test_the_rungs_before_the_last(folder: Folder, one: Rung) -> None:
    tile = Tile(BM=128, BN=256, BK=16, TM=8, TN=16, STAGES=2)
    kernel: Any = kernel_source(one, tile, {})
    assert kernel.defines["GROUP"] == 8
    cut = bool(one.defines["CUT"])
    plan = product(folder, 260, 516, 35, "NN", variant=SgemmConfig(BK=16, STAGES=2, WAIT_AT=8), kernel=kernel, cut=cut)
    assert bool(plan.schedule.shared) == cut


@pytest.mark.parametrize(
    ("trans", "link"),
    [
        ("TN", 2),
        *(pytest.param(t, n, marks=pytest.mark.slow) for t in ("NN", "NT", "TN", "TT") for n in (1, 2, 5) if (t, n) != ("TN", 2)),
    ],
)
def test_sums_in_links_of_a_chain(folder: Folder, trans: str, link: int) -> None:
    plan = product(folder, 260, 516, 75, trans, alpha=0.5, beta=-1.0, LINK=link, pad=(4, 4, 4))  # six stages
    schedule = plan.schedule
    assert schedule.grid == 4 and 0 < schedule.shared < 9, "some tiles are whole, and some are cut for several blocks"
    rows = {one.when: one.kernel.defines.get("ROWS") for one in plan.plan.launches if one.name == "multiply"}
    assert rows["beta"] and not rows["no beta"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", [SgemmConfig(256, 128, BK=12, STAGES=2, WAIT_AT=11, TURN_A=1), TINY], ids=str)
def test_links_shorten_the_errors_of_long_sums(folder: Folder, variant: SgemmConfig) -> None:
    """By as much as the length of a chain says, in shared memory and in memory of a thread's own."""
    rng = np.random.default_rng(0)
    a, b = rng.random((64, 700), np.float32), rng.random((700, 64), np.float32)
    call, kept = aligned(64, 64, 700), [laid(folder, x, x.shape[1]) for x in (a, b, np.zeros((64, 64), np.float32))]
    errors = []
    for link in (4, 1000):
        plan = SgemmLaunches(folder, call, variant, cut=False, LINK=link)  # type: ignore[arg-type]
        plan.starter()(kept[0].pointer, 0, kept[1].pointer, 0, kept[2].pointer, 0, 1.0, 0.0)
        found = kept[2].array[kept[2].pointer - kept[2].array.ctypes.data :][: 4 * 64 * 64].view(np.float32).reshape(64, 64)
        errors.append(np.linalg.norm(found - a.astype(float) @ b))
    assert errors[0] < 0.5 * errors[1]


def test_operands_that_begin_on_four_bytes(folder: Folder) -> None:
    product(folder, 64, 72, 20, "TN", skip=(1, 0))
    product(folder, 64, 72, 20, "TN", skip=(0, 3))


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_a_narrow_c_is_written_through_shared_memory(folder: Folder, beta: float) -> None:
    """Behind links of a chain, whose sums lay there; and a second tile's links come there again."""
    plan = product(folder, 263, 519, 75, "TN", beta=beta, LINK=2, pad=(1, 1, 0), NARROW_C=1)
    assert not any(launch.kernel.defines.get("ROWS") for launch in plan.plan.launches) and plan.schedule.grid == 4
    product(folder, 66, 69, 20, "TN", beta=beta, pad=(2, 3, 2), NARROW_C=1)


def test_only_a_narrow_c_is_written_so() -> None:
    assert cost.narrow_c(aligned(64, 65, 64), TINY)
    assert cost.narrow_c(aligned(64, 64, 64, align_c=2)) and not cost.narrow_c(aligned(64, 65, 64, ldc=68))
    turning = SgemmConfig(512, 64, BK=12, STAGES=4, WAIT_AT=11, TURN_A=1)
    assert not cost.narrow_c(aligned(64, 65, 64), turning), "its ring leaves no room"


def test_without_alpha_operands_are_not_read(folder: Folder) -> None:
    product(folder, 70, 80, 20, "NN", alpha=0.0, beta=2.0)
    product(folder, 70, 80, 20, "TN", alpha=0.0)
