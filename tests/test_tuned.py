"""Selection by the store: exact sizes, a neighbour, then the heuristic; what is stale is verified, what is wrong passed over."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import toprung
import trial
from conftest import require
from test_store import WRITER, child, garbage
from test_tune import H200, InProcess
from toprung import store as stores
from toprung.backends import cublas
from toprung.backends.base import Session
from toprung.blas import calls
from toprung.blas.receipt import Receipt
from toprung.device import Device
from toprung.dispatch import ranking, tuned
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, Selection
from toprung.dispatch.tuned import Measured
from toprung.errors import LaunchError
from toprung.execute import executor, verify
from toprung.execute.executor import executor_of
from toprung.gemm.classes import class_of
from toprung.gemm.desc import GemmDesc
from toprung.kernels import build
from toprung.kernels.base import KernelFamily, TileConfig, candidates
from toprung.kernels.blocks import BLOCKS
from toprung.kernels.plain import family as plain
from toprung.kernels.registry import families
from toprung.lab.harness.library import WAYS
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.oracle.problem import Problem
from toprung.store import Entry, Machine, Store, exchange
from toprung.tile import Tile
from toprung.tune import trial as trials
from toprung.tune.session import Budget, Tuner

SMALL = Tile(BM=16, BN=16, BK=8, WM=16, WN=16, TM=4, TN=4, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4)
"""A tile of the block kernel that the heuristic never takes on a CPU, for more than a few elements."""
PLAIN = Tile(BM=1, BN=32)
OURS = {f.name for f in families() if f.own}


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A user's store of one's own, nothing shipped, and nothing remembered from before."""
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(exchange, "SHIPPED", tmp_path / "shipped")
    afresh()
    yield Store.default()
    afresh()


def afresh() -> None:
    """Forget plans and stores: what a call does is selected anew."""
    tuned.HERE.forget()
    calls.forget()
    executor.forget()


def entry(
    device: Device, problem: Problem, kernel: str = "tiled", tile: Tile | None = SMALL, seconds: float = 1e-3, **more: Any
) -> Entry:  # fmt: skip
    candidate = {"kernel": kernel, "tile": tile.given() if tile else {}, "options": more.pop("options", {})}
    known = {"source": tuned.version(kernel, device.backend) if kernel in OURS else "1"}
    return Entry(
        more.pop("machine", Machine.of(device)), class_of(problem.desc), problem.describe(), candidate,
        seconds=(seconds,), date="2025-01-31T12:00:00+00:00", **{**known, **more},
    )  # fmt: skip


def install_cublas(monkeypatch: pytest.MonkeyPatch, there: bool = True) -> None:
    """Let cuBLAS be installed, or not."""
    monkeypatch.setattr(cublas, "library", lambda: "installed" if there else None)
    real = tuned.version
    monkeypatch.setattr(trials, "version", lambda name, backend: "cublas 13" if name == "cublas" else real(name, backend))


def tile_of(selected: Selection | Candidate) -> Tile:
    """Return the tile of what was selected."""
    assert isinstance(selected.config, TileConfig)
    return selected.config.tile


def multiplied(device: Device, M: int, N: int, K: int, own: bool = True) -> Receipt:
    """A product of NumPy arrays, held against float64; what the receipt says."""
    rng = np.random.default_rng(M + N + K)
    a, b = (rng.random(shape, np.float32) for shape in ((M, K), (K, N)))
    where = {"device": device} if own else {}
    found = toprung.matmul(a, b, own=own, **where)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-5)
    left = toprung.last_receipt()
    assert left is not None
    return left


# the order


def test_the_very_sizes_come_before_a_neighbour_and_that_before_the_heuristic(device: Device, stored: Store) -> None:
    stored.add(
        entry(device, Gemm(64, 64, 64)), entry(device, Gemm(96, 64, 64), "plain", PLAIN),
        entry(device, Gemm(96, 64, 64), tile=replace(SMALL, BK=16), seconds=2e-3),
    )  # fmt: skip
    exact = multiplied(device, 64, 64, 64)
    assert exact.kernels == (f"tiled {SMALL}",) and exact.why == "tuned on these very sizes: 1 ms on 2025-01-31"
    other = multiplied(device, 96, 64, 64)
    assert (
        other.kernel == "plain"
        and ("tiled 16×16×16 4×4 v4 WM16 WN16 STAGES1", "2.00 times as long when measured") in other.passed_over
    )
    near = multiplied(device, 72, 64, 64)
    assert near.kernels == exact.kernels and near.why.startswith(
        "tuned on 64×64×64, the nearest of its class that were tuned: 1 ms"
    )
    assert multiplied(device, 90, 64, 64).kernel == "plain"
    for far in (Gemm(400, 64, 64), Gemm(64, 64, 64, trans="TN"), Gemm(63, 63, 63)):  # sizes, layout, alignment
        assert "by the cost model" in select(device, far.desc).why


def test_a_search_begins_with_what_is_known_of_near_sizes(session: Session, stored: Store) -> None:
    stored.add(entry(session.device, Gemm(64, 64, 64)))
    lanes: Any = SimpleNamespace(lanes=lambda: [InProcess(session)])
    tuner = Tuner([Gemm(72, 64, 64)], lanes, stored, Budget(trials=2))
    for _ in tuner.run():
        pass
    tried = [e.candidate["tile"] for e in stored.entries() if e.shape["M"] == 72 and e.kernel == "tiled"]
    assert len(tried) == 2 and SMALL.given() in tried


def test_the_environment_turns_it_off(device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.add(entry(device, Gemm(64, 64, 64)))
    monkeypatch.setenv(stores.VARIABLE, "off")
    assert "by the cost model" in multiplied(device, 64, 64, 64).why


def test_the_library_without_what_was_tuned_is_a_rival_of_its_own(session: Session, stored: Store) -> None:
    problem = Gemm(64, 64, 64)
    stored.add(entry(session.device, problem))
    placed = OnDevice(hostile(problem, seed=1), session)
    found = {}
    for name in ("toprung", "toprung_untuned"):
        way = WAYS[name]()
        prepared = way.prepare(placed)
        prepared.time(1)
        assert Oracle(placed.operands).verify(prepared.fetch()).right
        found[name] = way.describe(session.device)
    assert found["toprung"]["tile"] == SMALL.given()
    assert found["toprung_untuned"]["tile"] != SMALL.given() and "by the cost model" in found["toprung_untuned"]["why"]


@pytest.mark.parametrize(
    ("problem", "name", "tile"),
    [
        (Gemm(64, 64, 64, batch=5), "tiled", replace(SMALL, BK=16)),
        (Gemm(80, 70, 61, trans="TT"), "tiled", replace(SMALL, VA=1, VB=1)),
        (Gemm(64, 64, 4096), "tiled", replace(SMALL, SPLIT_K=5)),
        (Gemm(4, 500, 600), "skinny columns", Tile(BM=32, BN=16, TM=4, TN=8, VA=4, KU=4)),
        (Gemm(500, 3, 640), "skinny rows", Tile(BM=64, BN=4, TM=4, TN=4, VEC=4, VB=1)),
        (Gemv(500, 600), "skinny rows", None),
        (Gemv(500, 600, trans="T"), "skinny columns", None),
    ],
    ids=str,
)
def test_entries_of_every_kernel_are_followed_and_verified(
    problem: Any, name: str, tile: Tile | None, session: Session, stored: Store
) -> None:
    desc = problem.desc
    tile = tile or tile_of(select(session.device, desc))
    stale = replace(entry(session.device, problem, name.split()[0], tile, options={}), source="another text")
    stored.add(stale)
    first = select(session.device, desc)
    assert str(first) == f"{name} {tile}" and tile_of(first) == tile and first.unproven == stale
    assert hash(first) == hash(replace(first, unproven=None)), "what is kept of selections is kept of those, too"
    assert verify.problems(session, desc, first.candidate) == ()
    made = executor_of(session).product(desc)
    assert made.kernels == (str(first),) and made.selections[desc].unproven is None
    assert "tuned on these sizes, with an older source" in made.why


def test_nothing_is_verified_in_a_capture(session: Session, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may wait for the device there: an unproven entry is passed over."""
    problem = Gemm(64, 64, 64, trans="TT")
    stored.add(replace(entry(session.device, problem, "tiled", SMALL, options={}), source="another text"))
    monkeypatch.setattr(verify, "problems", lambda *_: pytest.fail("it was verified"))
    with monkeypatch.context() as patched:
        patched.setattr(session, "capturing", lambda queue: True)
        captured = executor_of(session).product(problem.desc)
    assert captured.kernels != (f"tiled {SMALL}",) and "must be verified before a capture" in captured.why


def test_samples_of_an_older_source_decide_nothing_by_themselves(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a neighbour's they must be ``MARGIN`` faster than what is installed, and planning by measuring takes new ones."""
    device, problem = H200, Gemm(4096, 4096, 4096)
    install_cublas(monkeypatch)
    tile = Tile(BM=32, BN=32, BK=16, WM=16, WN=32, TM=4, TN=4, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4)
    now = entry(device, problem, "tiled", tile)
    old = replace(now, source="another text")
    stored.add(old, entry(device, problem, "cublas", None, 1.01e-3))
    assert tuned.HERE.at(device, problem.desc).fp32(False)[0] is None
    assert not tuned.HERE.at(device, problem.desc).settled(("fp32",))
    stored.add(now)
    tuned.HERE.forget()
    found, _ = tuned.HERE.at(device, problem.desc).fp32(False)
    assert found is not None and "these very sizes" in found.why
    assert tuned.HERE.at(device, problem.desc).settled(("fp32",))


def test_slices_of_a_neighbour_keep_the_device_as_full(stored: Store) -> None:
    tile = replace(SMALL, BM=64, BN=64, BK=16, WM=32, WN=32, TM=8, SPLIT_K=32)
    stored.add(entry(H200, Gemm(128, 128, 65536), tile=tile))
    exact, near = (select(H200, Gemm(m, 128, 65536).desc) for m in (128, 192))
    assert exact.config.slices == 32 and near.config.slices == round(32 * 4 / 6)
    shallow = select(H200, Gemm(128, 128, 50_000).desc)
    assert shallow.family.name == "tiled" and shallow.config.slices == 32


def test_a_neighbour_whose_tile_has_strayed_too_far_is_left_for_the_heuristic(stored: Store) -> None:
    # 32×64 gives 512 one wave of work-groups that fills the device, and 628 half a wave more
    tile = next(b.tile for b in BLOCKS if (b.tile.BM, b.tile.BN, b.tile.BK) == (32, 64, 32))
    stored.add(entry(H200, Gemm(512, 512, 512), tile=tile))
    assert all(tile_of(select(H200, Gemm(m, 512, 512).desc)) == tile for m in (512, 500))
    found = select(H200, Gemm(628, 628, 628).desc)
    assert tile_of(found) != tile and "by the cost model" in found.why
    assert any("tuned on 512×512×512" in why and "another by the cost model here" in why for _, why in found.passed_over)


# what is installed


def test_what_was_faster_where_both_were_measured(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cublas(monkeypatch)
    ours, large, near = Gemm(128, 128, 128), Gemm(4096, 4096, 4096), Gemm(4000, 4096, 4096)
    fallback = select(H200, NARROW.desc, own=False)
    assert fallback.family.name == "cublas" and "no measurement" in fallback.passed_over[0][1]
    assert select(H200, large.desc, own=False).family.name == "hopper_sgemm", "faster by the cost model"
    stored.add(
        entry(H200, large, tile=Tile(**large_tile()), seconds=1.0), entry(H200, large, "cublas", None, 1.02),
        entry(H200, ours, tile=Tile(**large_tile()), seconds=1.0), entry(H200, ours, "cublas", None, 0.5),
    )  # fmt: skip
    assert (found := select(H200, large.desc, own=False)).family.name == "tiled" and (
        "cublas",
        "1.02 times as long when measured",
    ) in found.passed_over
    assert select(H200, near.desc, own=False).family.name == "hopper_sgemm", (
        "a neighbour that is too close to call leaves it to the cost model"
    )
    smaller = select(H200, Gemm(120, 128, 128).desc, own=False)
    assert smaller.family.name == "cublas" and "nearest" in smaller.why, "one where cuBLAS was far ahead does not"
    larger = select(H200, Gemm(4400, 4096, 4096).desc, own=False)
    assert larger.family.name == "hopper_sgemm" and "by the cost model" in larger.why, (
        "a smaller neighbour says nothing against Hopper's kernel"
    )
    assert (found := select(H200, ours.desc, own=False)).family.name == "cublas" and "measured faster" in found.why
    for problem in (large, near, ours):
        assert select(H200, problem.desc, own=True).family.name == "tiled"
    install_cublas(monkeypatch, False)
    assert select(H200, ours.desc, own=False).family.name == "tiled"


NARROW = Gemm(8191, 161, 1023, trans="NT")
"""A product that cuBLAS is faster at by the cost model: C is thin, and nothing in it is aligned to more than one float."""


def test_a_neighbour_s_comparison_is_carried_over_by_the_cost_model(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cublas(monkeypatch)
    there, here = Gemm(1536, 1536, 1536), Gemm(2048, 2048, 2048)
    stored.add(entry(H200, there, tile=Tile(**large_tile()), seconds=1.0), entry(H200, there, "cublas", None, 0.98))
    assert select(H200, there.desc, own=False).family.name == "cublas"
    ratios = {Gemm(1536, 1536, 1536): 1.0, Gemm(2048, 2048, 2048): 1.1}

    def ratio(device: Device, desc: Any, theirs: KernelFamily) -> float:
        assert theirs.name == "cublas"
        return ratios[Gemm(desc.M, desc.N, desc.K)]

    monkeypatch.setattr(ranking, "ratio", ratio)
    assert select(H200, here.desc, own=False).family.name == "hopper_sgemm", "there our lead is larger"
    ratios[here] = 1.01
    assert select(H200, here.desc, own=False).family.name == "cublas"


def test_a_neighbour_says_nothing_of_a_family_that_was_not_measured_there(stored: Store) -> None:
    there, here = Gemm(512, 512, 512), Gemm(416, 416, 416)
    own = [f for f in families() if f.name in ("tiled", "tiled_cluster")]
    order = [Candidate(f, c) for f in own for c in candidates(f, H200, there.desc)]
    one = next(c for c in order if str(c) == "tiled 32×64×32 4×4 v4 WM16 WN32 STAGES2")
    stored.add(replace(entry(H200, there, seconds=12e-6), candidate=one.encode()))
    found = select(H200, here.desc)
    assert found.family.name == "tiled_cluster" and any("not measured there" in why for _, why in found.passed_over)
    assert select(H200, there.desc).family.name == "tiled", "these very sizes were measured"
    other = next(c for c in order if c.kernel == "tiled_cluster")
    stored.add(replace(entry(H200, there, other.kernel, seconds=13e-6), candidate=other.encode()))
    assert (found := select(H200, here.desc)).family.name == "tiled" and "nearest" in found.why, "it was, and was slower"


def large_tile() -> dict[str, int]:
    return replace(SMALL, BM=128, BN=128, WM=32, WN=64, TM=8, TN=8).given()


def test_ours_alone_says_nothing_about_what_is_installed(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cublas(monkeypatch)
    stored.add(entry(H200, NARROW, tile=replace(Tile(**large_tile()), VA=1, VB=1)))
    assert tile_of(select(H200, NARROW.desc)) == replace(Tile(**large_tile()), VA=1, VB=1)
    found = select(H200, NARROW.desc, own=False)
    assert found.family.name == "cublas" and "no measurement" in found.passed_over[0][1]


@pytest.mark.parametrize("status", ["wrong", "crashed"])
def test_what_is_installed_is_not_taken_where_it_went_wrong(
    status: str, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    install_cublas(monkeypatch)
    stored.add(entry(H200, NARROW, tile=replace(Tile(**large_tile()), VA=1, VB=1)))
    failed = entry(H200, NARROW, "cublas", None, status=status, message="planted")
    stored.add(replace(failed, machine=replace(failed.machine, driver="another")))
    assert select(H200, NARROW.desc, own=False).family.name == "cublas", "that was another driver's"
    stored.add(failed)
    found = select(H200, NARROW.desc, own=False)
    assert found.family.name == "tiled" and any(name == "cublas" and "went wrong" in why for name, why in found.passed_over)
    assert select(H200, replace(NARROW, K=1021).desc, own=False).family.name == "cublas"


def test_numpy_is_taken_where_it_was_faster(device: Device, stored: Store) -> None:
    require(device.kind == "cpu", "beside a GPU the way to it decides")
    stored.add(entry(device, Gemm(64, 64, 64), seconds=1e-9), entry(device, Gemm(128, 128, 128)))
    assert multiplied(device, 64, 64, 64, own=False).kernels == ("numpy",), "not known: what was there already"
    stored.add(entry(device, Gemm(64, 64, 64), "numpy", None, 2e-3), entry(device, Gemm(128, 128, 128), "numpy", None, 0.5e-3))
    afresh()
    faster = multiplied(device, 64, 64, 64, own=False)
    assert faster.kernel == "tiled" and ("numpy", "slower when both were measured") in faster.passed_over
    slower = multiplied(device, 128, 128, 128, own=False)
    assert slower.kernels == ("numpy",) and "faster when both were measured" in slower.why
    assert multiplied(device, 128, 128, 128).kernel == "tiled", "own=True never returns a vendor's"


def test_what_was_tuned_on_a_busy_machine_is_not_slower_than_numpy_for_good(device: Device, stored: Store) -> None:
    """As stored by a run of ``tune`` beside two busy programs: NumPy's threads waited for each other, ours less."""
    require(device.kind == "cpu", "beside a GPU the way to it decides")
    slow, ours = (31e-3, 45e-3, 56.9e-3, 58e-3, 94e-3), (0.6e-3, 0.8e-3, 0.882e-3, 1.1e-3, 10.6e-3)
    stored.add(
        replace(entry(device, Gemm(64, 64, 64), "numpy", None), seconds=slow, marked=(), clocks_mhz=()),
        replace(entry(device, Gemm(64, 64, 64)), seconds=ours, marked=(), clocks_mhz=()),
    )
    for size in (64, 72):  # these very sizes, and a neighbour's
        found = multiplied(device, size, 64, 64, own=False)
        assert found.kernels == ("numpy",) and "faster when it was, again, in this process, measured" in found.why


def test_samples_that_scatter_decide_nothing(device: Device, stored: Store) -> None:
    problem, scattered = Gemm(64, 64, 64), (1e-9, 1e-9, 5e-8, 1e-7, 1e-7)
    noisy = replace(entry(device, problem), seconds=scattered, marked=(), clocks_mhz=())
    stored.add(noisy)
    assert noisy.noisy and "by the cost model" in select(device, problem.desc).why
    stored.add(replace(noisy, seconds=(*scattered[:1] * 4, scattered[-1])))  # one outlier is nothing
    afresh()
    assert "tuned on these very sizes" in select(device, problem.desc).why


@pytest.mark.usefixtures("beforehand_only")
def test_the_store_decides_between_fp32x_and_fp32_where_it_knows_both(stored: Store) -> None:
    problem, desc = Gemm(4096, 4096, 4096), Gemm(4096, 4096, 4096).desc
    assert select(H200, desc, True, "auto").precision == "fp32x"
    stored.add(entry(H200, problem, "hopper_fp32x", Tile(128, 128, 32, STAGES=4), 2.0, options={"GROUP": 8}))
    assert select(H200, desc, True, "auto").precision == "fp32x", "one alone says nothing"
    stored.add(entry(H200, problem, tile=Tile(**large_tile()), seconds=1.0))
    found = select(H200, desc, True, "auto")
    assert found.precision == "fp32" and "2.00 times as long" in dict(found.passed_over)["fp32x"]
    stored.add(entry(H200, problem, "hopper_fp32x", Tile(128, 128, 32, STAGES=4), 0.5, options={"GROUP": 8}))
    found = select(H200, desc, True, "auto")
    assert found.precision == "fp32x" and "the store" in dict(found.passed_over)["fp32"]


# stale entries


def test_a_changed_kernel_is_verified_once_and_remembered(device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.add(entry(device, Gemm(64, 64, 64), source="an older text"))
    count = 0
    real = verify.problems

    def counted(*args: Any) -> tuple[str, ...]:
        nonlocal count
        count += 1
        return real(*args)

    monkeypatch.setattr(verify, "problems", counted)
    for _ in range(2):
        assert "an older source" in multiplied(device, 64, 64, 64).why
        assert "tuned on 64×64×64" in multiplied(device, 72, 64, 64).why
        afresh()  # as another process would begin
    assert count == 1
    (kept,) = stored.proofs(Machine.of(device))
    assert (kept.message, kept.source) == ("", tuned.version("tiled", kept.machine.backend))


def test_a_wrong_kernel_is_passed_over(device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem = Gemm(64, 64, 64)
    other = replace(Machine.of(device), driver="an older driver")
    stored.add(entry(device, problem, "plain", PLAIN, machine=other), entry(device, problem, seconds=2e-3))
    stored.clear(kernel="tiled")
    monkeypatch.setattr(plain, "RECORD", trial.altered(plain.RECORD, tmp_path, ("k < end", "k + 1 < end")))
    left = multiplied(device, 64, 64, 64)
    (said,) = (why for name, why in left.passed_over if name.startswith("plain"))
    assert "by the cost model" in left.why and said.startswith("wrong with this driver and kernel: C[")
    (kept,) = stored.proofs(Machine.of(device))
    assert "C[" in kept.message
    afresh()
    monkeypatch.setattr(verify, "problems", lambda *_: pytest.fail("it was verified before"))
    assert "by the cost model" in multiplied(device, 64, 64, 64).why


def test_what_takes_the_process_down_is_not_tried_again(device: Device, stored: Store) -> None:
    stored.add(entry(device, Gemm(64, 64, 64), source="an older text"))
    program = """
import os, signal, sys
from toprung import backends
from toprung.execute import verify
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc
verify.problems = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
executor_of(backends.session_for(backends.find(sys.argv[1]))).product(GemmDesc(64, 64, 64, align_a=4, align_b=4, align_c=4))
"""
    other = child(program, device.id)
    _, err = other.communicate()
    assert other.returncode == -signal.SIGKILL, err
    left = multiplied(device, 64, 64, 64)
    assert "by the cost model" in left.why and any("did not end" in why for _, why in left.passed_over)


@pytest.mark.parametrize("asked", [True, False])
def test_an_entry_that_is_being_verified_is_not_wrong(
    asked: bool, device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor to another thread of the process that verifies it, nor to a process that selects for that one."""
    stored.add(one := entry(device, Gemm(64, 64, 64), source="an older text"))
    desc = GemmDesc(64, 64, 64, align_a=4, align_b=4, align_c=4)
    other = tuned.TunedStore()
    with tuned.HERE.verifying(one, device):
        assert select(device, desc, True, "fp32", other).unproven is None  # any other process leaves it alone
        monkeypatch.setattr(other, "verifies", False)
        assert select(device, desc, True, "fp32", tuned.HERE if asked else other).unproven == one


def test_what_the_device_refuses_now_may_be_right_later(session: Session, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.add(entry(session.device, Gemm(64, 64, 64), source="an older text"))

    def refused(*_: Any) -> tuple[str, ...]:
        raise LaunchError("no room")

    monkeypatch.setattr(verify, "problems", refused)
    made = executor_of(session).product(Gemm(64, 64, 64).desc)
    assert "by the cost model" in made.why and any("no room" in why for _, why in made.passed_over)
    assert stored.proofs(Machine.of(session.device)) == []


def test_entries_of_this_driver_come_before_those_of_another(stored: Store) -> None:
    problem, older = Gemm(4096, 4096, 4096), replace(Machine.of(H200), driver="older")
    stored.add(
        entry(H200, problem, tile=Tile(**large_tile()), seconds=1.0), entry(H200, problem, "plain", PLAIN, 0.5, machine=older)
    )
    found = select(H200, problem.desc)
    assert found.family.name == "tiled" and found.unproven is None


def test_what_is_installed_has_no_tile(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    install_cublas(monkeypatch)
    large = Gemm(4096, 4096, 4096)
    wrong = entry(H200, large, "cublas", SMALL, 0.5), entry(H200, large, "cublas", None, 0.6, options={"TF32": 1})
    stored.add(entry(H200, large, tile=Tile(**large_tile()), seconds=1.0), *wrong)
    assert all("the nearest is" in tuned.refusal(one) for one in wrong)
    assert select(H200, large.desc, own=False).family.name == "tiled"


# what must not be followed


@pytest.mark.parametrize(
    ("kernel", "tile", "options", "says"),
    [
        ("nosuch", SMALL, {}, "there is no kernel family"),
        ("tiled", SMALL, {"EVIL": 1}, "no switch EVIL=1"),
        ("tiled", SMALL, {"ORDER": 7}, "no switch ORDER=7"),
        ("tiled", None, {}, "needs a tile"),
        ("tiled", replace(SMALL, BM=20), {}, "BM % WM"),
        ("tiled", replace(SMALL, BM=1024, BN=1024, TM=512, TN=512), {}, "larger than"),
        ("tiled", replace(SMALL, BK=1 << 15), {}, "larger than"),
        ("skinny", Tile(BM=32, BN=128, TM=4, TN=4, VEC=4), {}, "no side is"),
        ("tiled", replace(SMALL, VA=8), {}, "wider than"),
        ("tiled", replace(SMALL, BM=8192, BN=8192, WM=512, WN=512), {}, "work-group"),
    ],
)
def test_an_entry_that_cannot_be_is_never_built(
    kernel: str,
    tile: Tile | None,
    options: dict[str, int],
    says: str,
    device: Device,
    stored: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[tuple[Tile, Any]] = []
    real = build.build
    monkeypatch.setattr(
        build,
        "build",
        lambda kernel, tile, options, *more, **how: built.append((tile, options)) or real(kernel, tile, options, *more, **how),
    )
    monkeypatch.setattr(build, "_kept", type(build._kept)())
    stored.add(entry(device, Gemm(64, 64, 64), kernel, tile, source="x", options=options))
    left = multiplied(device, 64, 64, 64)
    assert "by the cost model" in left.why and any(says in why for _, why in left.passed_over), left
    assert built and not [b for b in built if b[0] == tile or "EVIL" in b[1]]


def test_a_damaged_store_is_warned_of_once_and_the_heuristic_decides(device: Device, stored: Store) -> None:
    stored.path.parent.mkdir(parents=True)
    garbage(stored.path)
    with pytest.warns(RuntimeWarning, match="clear --damaged") as said:
        assert "by the cost model" in multiplied(device, 64, 64, 64).why
        assert "by the cost model" in multiplied(device, 60, 64, 64).why
    assert len(said) == 1


def test_a_proof_that_cannot_be_kept_is_no_error(
    device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ship(device, tmp_path, entry(device, Gemm(64, 64, 64), source="older"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "file" / "folder"))
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert "an older source" in multiplied(device, 64, 64, 64).why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "tuned on 64×64×64" in multiplied(device, 72, 64, 64).why


def test_what_another_process_tuned_is_seen(device: Device, stored: Store) -> None:
    desc = GemmDesc(640, 640, 640, align_a=4, align_b=4, align_c=4)
    assert "by the cost model" in select(device, desc).why
    program = WRITER.replace("test_store.entry(n)", "test_tuned.entry(find(sys.argv[4]), Gemm(n, n, n))").replace(
        "import test_store", "import test_tuned\nfrom toprung.backends import find\nfrom toprung.lab.routines.gemm import Gemm"
    )
    other = child(program, stored.path, 640, 1, device.id)
    _, err = other.communicate()
    assert other.returncode == 0, err
    assert "these very sizes" in select(device, desc).why


@pytest.mark.parametrize("change", ["an entry in the log", "another size", "another time", "another file", "none", "another path"])
def test_a_store_is_read_again_where_its_file_or_its_log_changed(
    change: str, device: Device, stored: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    stored.add(entry(device, Gemm(64, 64, 64)))
    path, log = stored.path, stored.path.with_name(f"{stored.path.name}-wal")
    log.touch()
    known = tuned.HERE.known(device)
    assert tuned.HERE.known(device) is known and len(list(known.book.at(class_of(Gemm(64, 64, 64).desc), (64, 64, 64, 1)))) == 1
    status = path.stat()
    if change == "an entry in the log":
        log.write_bytes(b"more")
    elif change == "another size":
        path.write_bytes(path.read_bytes() + bytes(16))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "another time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "another file":
        shutil.copy2(path, tmp_path / "other")
        (tmp_path / "other").replace(path)
        assert path.stat().st_mtime_ns == status.st_mtime_ns
    elif change == "none":
        path.rename(tmp_path / "gone")
    else:
        monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "elsewhere"))
    assert tuned.HERE.known(device) is not known


# what comes with the package


def ship(device: Device, folder: Path, *found: Entry) -> None:
    (folder / "shipped").mkdir(exist_ok=True)
    Store(folder / "from.sqlite").export(folder / "shipped" / f"{device.slug}-{device.backend}.json", found)


def test_shipped_entries_lie_below_the_users(device: Device, stored: Store, tmp_path: Path) -> None:
    older = replace(Machine.of(device), driver="older")
    elsewhere = replace(Machine.of(device), device="another")
    ship(
        device, tmp_path, entry(device, Gemm(64, 64, 64), machine=older), entry(device, Gemm(300, 300, 300), machine=elsewhere),
        entry(device, Gemm(128, 64, 64), seconds=1e-6),
    )  # fmt: skip
    stored.add(entry(device, Gemm(128, 64, 64), "plain", PLAIN))
    assert select(device, Gemm(64, 64, 64).desc).unproven is not None
    assert multiplied(device, 64, 64, 64).kernels == (f"tiled {SMALL}",)
    assert len(stored.proofs(Machine.of(device))) == 1
    assert "by the cost model" in select(device, Gemm(300, 300, 300).desc).why
    assert select(device, Gemm(128, 64, 64).desc).family.name == "plain"


def test_pocl_is_given_what_ships_for_another_processor(device: Device, stored: Store, tmp_path: Path) -> None:
    here = replace(Machine.of(device), compiler="OpenCL 3.0 PoCL pthread-x86_64-unknown-linux-gnu", backend="opencl")
    other = replace(here, device="another", name="another")
    found = [entry(device, Gemm(64, 64, 64), machine=m) for m in (other, replace(here, device="gpu", compiler="OpenCL 3.0 CUDA"))]
    (tmp_path / "shipped").mkdir()
    for one, more in zip(found, ([entry(device, Gemm(64, 64, 64), "numpy", None, machine=other)], []), strict=True):
        from_store = Store(tmp_path / f"{one.machine.device}.sqlite")
        from_store.add(one, *more)
        from_store.export(tmp_path / "shipped" / f"{one.machine.device}-opencl.json", [one, *more])
    mine = stores.shipped(here, elsewhere=lambda e: e.kernel in OURS)
    assert mine == found[:1], "neither another device's nor what NumPy took there"
    assert stores.shipped(replace(here, compiler="OpenCL 3.0 PoCL aarch64")) == []
    assert stores.shipped(replace(here, backend="cuda")) == []
    require("PoCL" in device.runtime and "x86_64" in device.runtime, "the rest is about PoCL on x86-64")
    assert select(device, Gemm(64, 64, 64).desc).unproven == found[0] and not tuned.HERE.known(device).host
    assert multiplied(device, 64, 64, 64).kernels == (f"tiled {SMALL}",)
    assert len(stored.proofs(Machine.of(device))) == 1, "verified before it was used"
    ship(device, tmp_path, entry(device, Gemm(300, 300, 300)))
    afresh()
    assert "by the cost model" in select(device, Gemm(64, 64, 64).desc).why, "what ships for the device itself comes alone"


def test_everything_in_the_package_can_be_used() -> None:
    refused: list[tuple[str, str]] = []
    for path in sorted((trial.ROOT / "src" / "toprung" / "store" / "shipped").glob("*.json")):
        found = stores.read_exchange(path, refused)
        assert found and {f"{e.machine.device}-{e.machine.backend}" for e in found} == {path.stem}
        assert [tuned.refusal(e) for e in found] == [""] * len(found)
        assert {e.status for e in found} == {"right"}
    assert refused == []


def test_a_selection_of_the_store_says_where_it_is_from(device: Device, stored: Store) -> None:
    stored.add(entry(device, Gemm(64, 64, 64)))
    found = select(device, Gemm(64, 64, 64).desc)
    assert isinstance(found, Selection) and "2025-01-31" in found.why and "1 ms" in found.why


def test_the_store_can_name_hopper_s_plain_fp32_kernel(stored: Store) -> None:
    problem, tile = Gemm(4096, 4096, 4096), Tile(BM=256, BN=128, BK=16, TM=8, TN=16, STAGES=4)
    options = {"GROUP": 4, "TURN_A": 0, "WAIT_AT": 8}
    named = entry(H200, problem, "hopper_sgemm", tile, 0.5, options=options)
    stored.add(named, entry(H200, problem, tile=Tile(**large_tile()), seconds=1.0))
    found = select(H200, problem.desc)
    assert found.candidate.encode() == {"kernel": "hopper_sgemm", "tile": tile.given(), "options": options}
    assert "tuned on these very sizes" in found.why and found.passed_over[0][0].startswith("tiled")
    assert isinstance(Measured(named, named.machine).fitted(H200, Gemm(4000, 4001, 4002, trans="TT").desc, False), Candidate)
    assert "one product at a time" in str(Measured(named, named.machine).fitted(H200, Gemm(64, 64, 64, batch=3).desc, False))
    assert not tuned.refusal(entry(H200, problem, "hopper_sgemm", tile, 0.5, options={**options, "WAIT_AT": 6}))
    for wrong in ({"BM": 64}, {"STAGES": 1}, {"BK": 7}):
        bad = entry(H200, problem, "hopper_sgemm", replace(tile, **wrong), 0.5, options={**options, "WAIT_AT": 6})
        assert tuned.refusal(bad)
    assert "nearest" in tuned.refusal(entry(H200, problem, "hopper_sgemm", tile, 0.5))
