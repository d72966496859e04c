"""Routing by the store: exact sizes, then a neighbour, then the model; what is stale is verified, what is wrong passed over."""

from __future__ import annotations

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
from test_choice import HOPPER as H200
from test_store import WRITER, child, garbage
from test_tune import InProcess
from toprung import store as stores
from toprung.backends.base import Session
from toprung.blas import engine, execute, proof, tuned, vendor
from toprung.blas import kernel as kernels
from toprung.blas.call import GemmCall
from toprung.blas.choice import Choice
from toprung.blas.choose import choose
from toprung.blas.competitor import WAYS
from toprung.blas.problems import call_of, class_of, source_hash
from toprung.blas.receipt import Receipt
from toprung.blas.route import route
from toprung.blas.tiles import GPU
from toprung.check import Oracle, hostile
from toprung.competitor import OnDevice
from toprung.device import Device
from toprung.errors import LaunchError
from toprung.problem import Problem
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.store import Entry, Machine, Store, exchange
from toprung.tile import Tile
from toprung.tune.session import Budget, Tuner

SMALL = Tile(BM=16, BN=16, BK=8, WM=16, WN=16, TM=4, TN=4, VEC=4, VA=4, VB=4, STAGES=1, PADA=4, PADB=4)
"""A tile of the tunable product that the model never takes on a CPU, for more than a few elements."""
PLAIN = Tile(BM=1, BN=32)


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
    """Forget plans and stores: what a call does is decided anew."""
    tuned.forget()
    execute.forget()
    engine._kept.clear()


def entry(
    device: Device, problem: Problem, kernel: str = "gemm", tile: Tile | None = SMALL, seconds: float = 1e-3, **more: Any
) -> Entry:  # fmt: skip
    candidate = {"kernel": kernel, "tile": tile.given() if tile else {}, "options": more.pop("options", {})}
    known = {"source": source_hash(kernel, device.backend) if kernel in (*kernels.kernel_names(), "ffma", "fp32x") else "1"}
    return Entry(
        more.pop("machine", Machine.of(device)), class_of(call_of(problem)), problem.describe(), candidate,
        seconds=(seconds,), date="2025-01-31T12:00:00+00:00", **{**known, **more},
    )  # fmt: skip


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


def test_the_very_sizes_come_before_a_neighbour_and_that_before_the_model(device: Device, stored: Store) -> None:
    stored.add(
        entry(device, Gemm(64, 64, 64)), entry(device, Gemm(96, 64, 64), "plain", PLAIN),
        entry(device, Gemm(96, 64, 64), tile=replace(SMALL, BK=16), seconds=2e-3),
    )  # fmt: skip
    exact = multiplied(device, 64, 64, 64)
    assert exact.kernels == (f"blas/gemm {SMALL}",) and exact.why == "tuned on these very sizes: 1 ms on 2025-01-31"
    other = multiplied(device, 96, 64, 64)
    assert (
        other.kernel == "blas/plain"
        and ("blas/gemm 16×16×16 4×4 v4 WM16 WN16 STAGES1", "2.00 times as long when measured") in other.passed_over
    )
    near = multiplied(device, 72, 64, 64)
    assert near.kernels == exact.kernels and near.why.startswith(
        "tuned on 64×64×64, the nearest of its class that were tuned: 1 ms"
    )
    assert multiplied(device, 90, 64, 64).kernel == "blas/plain"
    for far in (Gemm(400, 64, 64), Gemm(64, 64, 64, trans="TN"), Gemm(63, 63, 63)):  # sizes, layout, alignment
        assert "by the model" in choose(device, call_of(far)).why


def test_a_search_begins_with_what_is_known_of_near_sizes(session: Session, stored: Store) -> None:
    stored.add(entry(session.device, Gemm(64, 64, 64)))
    lanes: Any = SimpleNamespace(lanes=lambda: [InProcess(session)])
    tuner = Tuner([Gemm(72, 64, 64)], lanes, stored, Budget(trials=2))
    for _ in tuner.run():
        pass
    tried = [e.candidate["tile"] for e in stored.entries() if e.shape["M"] == 72 and e.kernel == "gemm"]
    assert len(tried) == 2 and SMALL.given() in tried


def test_the_environment_turns_it_off(device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.add(entry(device, Gemm(64, 64, 64)))
    monkeypatch.setenv(stores.VARIABLE, "off")
    assert "by the model" in multiplied(device, 64, 64, 64).why


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
    assert found["toprung_untuned"]["tile"] != SMALL.given() and "by the model" in found["toprung_untuned"]["why"]


@pytest.mark.parametrize(
    ("problem", "kernel", "tile"),
    [
        (Gemm(64, 64, 64, batch=5), "gemm", replace(SMALL, BK=16)),
        (Gemm(80, 70, 61, trans="TT"), "gemm", replace(SMALL, VA=1, VB=1)),
        (Gemm(64, 64, 4096), "gemm", replace(SMALL, SPLIT_K=5)),
        (Gemm(4, 500, 600), "columns", Tile(BM=32, BN=16, TM=4, TN=8, VA=4, KU=4)),
        (Gemm(500, 3, 640), "rows", None),
        (Gemv(500, 600), "rows", None),
        (Gemv(500, 600, trans="T"), "columns", None),
    ],
    ids=str,
)
def test_entries_of_every_kernel_are_followed_and_proved(
    problem: Any, kernel: str, tile: Tile | None, session: Session, stored: Store
) -> None:
    call = call_of(problem)
    tile = tile or choose(session.device, call).tile
    assert tile is not None
    stale = replace(entry(session.device, problem, kernel, tile, options={}), source="another text")
    stored.add(stale)
    first = choose(session.device, call)
    assert first.kernel == kernel and first.tile == tile and first.unproven == stale
    assert hash(first) == hash(replace(first, unproven=None)), "what is kept of choices is kept of those, too"
    assert proof.problems(session, call, first) == ()
    made = engine.prepare(session, call)
    assert made.choice.kernel == kernel and made.choice.unproven is None and "these very sizes" in made.why


def test_slices_of_a_neighbour_keep_the_device_as_full(stored: Store) -> None:
    tile = replace(SMALL, BM=64, BN=64, BK=16, WM=32, WN=32, TM=8, SPLIT_K=32)
    stored.add(entry(H200, Gemm(128, 128, 65536), tile=tile))
    exact, near = (choose(H200, call_of(Gemm(m, 128, 65536))) for m in (128, 192))
    assert exact.slices == 32 and near.slices == round(32 * 4 / 6)
    shallow = choose(H200, call_of(Gemm(128, 128, 50_000)))
    assert shallow.kernel == "gemm" and shallow.slices == 32


def test_a_neighbour_whose_tile_has_strayed_too_far_is_left_for_the_model(stored: Store) -> None:
    # 32×64 gives 512 one wave of work-groups that fills the device, and 628 half a wave more
    tile = next(c.tile for c in GPU if (c.tile.BM, c.tile.BN, c.tile.BK) == (32, 64, 32))
    stored.add(entry(H200, Gemm(512, 512, 512), tile=tile))
    assert choose(H200, call_of(Gemm(512, 512, 512))).tile == choose(H200, call_of(Gemm(500, 512, 512))).tile == tile
    found = choose(H200, call_of(Gemm(628, 628, 628)))
    assert found.tile != tile and "by the model" in found.why
    assert any("tuned on 512×512×512" in why and "another by the model here" in why for _, why in found.passed_over)


# what is installed


def test_what_was_faster_where_both_were_measured(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "lacking", lambda device: "")
    cublas, ours, large, near = "cublas", Gemm(128, 128, 128), Gemm(4096, 4096, 4096), Gemm(4000, 4096, 4096)
    fallback = choose(H200, call_of(NARROW), own=False)
    assert fallback.kernel == "cublas" and "no measurement" in fallback.passed_over[0][1]
    assert choose(H200, call_of(large), own=False).kernel == "ffma", "faster by the model"
    stored.add(
        entry(H200, large, tile=Tile(**large_tile()), seconds=1.0), entry(H200, large, cublas, None, 1.02),
        entry(H200, ours, tile=Tile(**large_tile()), seconds=1.0), entry(H200, ours, cublas, None, 0.5),
    )  # fmt: skip
    assert (found := choose(H200, call_of(large), own=False)).kernel == "gemm" and (
        "cublas",
        "1.02 times as long when measured",
    ) in found.passed_over
    assert choose(H200, call_of(near), own=False).kernel == "ffma", "a neighbour that is too close to call leaves it to the model"
    smaller = choose(H200, call_of(Gemm(120, 128, 128)), own=False)
    assert smaller.kernel == "cublas" and "nearest" in smaller.why, "one where cuBLAS was far ahead does not"
    larger = choose(H200, call_of(Gemm(4400, 4096, 4096)), own=False)
    assert larger.kernel == "ffma" and "by the model" in larger.why, "a smaller neighbour says nothing against Hopper's kernel"
    assert (found := choose(H200, call_of(ours), own=False)).kernel == "cublas" and "measured faster" in found.why
    for problem in (large, near, ours):
        assert choose(H200, call_of(problem), own=True).kernel == "gemm"
    monkeypatch.setattr(vendor, "lacking", lambda device: "there is none")
    assert choose(H200, call_of(ours), own=False).kernel == "gemm"


NARROW = Gemm(3520, 11229, 59, trans="NT")
"""What cuBLAS is faster at by the model: nothing of it lies on more than a float."""


def test_a_neighbour_s_comparison_is_carried_over_by_the_model(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "lacking", lambda device: "")
    there, here = Gemm(1536, 1536, 1536), Gemm(2048, 2048, 2048)
    stored.add(entry(H200, there, tile=Tile(**large_tile()), seconds=1.0), entry(H200, there, "cublas", None, 0.98))
    assert choose(H200, call_of(there), own=False).kernel == "cublas"
    ratios = {Gemm(1536, 1536, 1536): 1.0, Gemm(2048, 2048, 2048): 1.1}
    monkeypatch.setattr(tuned, "cublas_ratio", lambda device, call: ratios[Gemm(call.M, call.N, call.K)])
    assert choose(H200, call_of(here), own=False).kernel == "ffma", "there our lead is larger"
    ratios[here] = 1.01
    assert choose(H200, call_of(here), own=False).kernel == "cublas"


def large_tile() -> dict[str, int]:
    return replace(SMALL, BM=128, BN=128, WM=32, WN=64, TM=8, TN=8).given()


def test_ours_alone_says_nothing_about_what_is_installed(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "lacking", lambda device: "")
    stored.add(entry(H200, NARROW, tile=replace(Tile(**large_tile()), VA=1, VB=1)))
    assert choose(H200, call_of(NARROW)).tile == replace(Tile(**large_tile()), VA=1, VB=1)
    found = choose(H200, call_of(NARROW), own=False)
    assert found.kernel == "cublas" and "no measurement" in found.passed_over[0][1]


def test_numpy_is_taken_where_it_was_faster(device: Device, stored: Store) -> None:
    require(device.kind == "cpu", "beside a GPU the way to it decides")
    stored.add(entry(device, Gemm(64, 64, 64)), entry(device, Gemm(128, 128, 128)))
    assert multiplied(device, 64, 64, 64, own=False).kernels == ("numpy",), "not known: what was there already"
    stored.add(entry(device, Gemm(64, 64, 64), "numpy", None, 2e-3), entry(device, Gemm(128, 128, 128), "numpy", None, 0.5e-3))
    afresh()
    faster = multiplied(device, 64, 64, 64, own=False)
    assert faster.kernel == "blas/gemm" and ("numpy", "slower when both were measured") in faster.passed_over
    slower = multiplied(device, 128, 128, 128, own=False)
    assert slower.kernels == ("numpy",) and "faster when both were measured" in slower.why
    assert multiplied(device, 128, 128, 128).kernel == "blas/gemm", "own=True never returns a vendor's"


def test_the_store_decides_between_fp32x_and_fp32_where_it_knows_both(stored: Store) -> None:
    problem, call = Gemm(4096, 4096, 4096), call_of(Gemm(4096, 4096, 4096))
    assert route(H200, call, True, "auto")[1] == "fp32x"
    stored.add(entry(H200, problem, "fp32x", None, 2.0))
    assert route(H200, call, True, "auto")[1] == "fp32x", "one alone says nothing"
    stored.add(entry(H200, problem, tile=Tile(**large_tile()), seconds=1.0))
    choice, path = route(H200, call, True, "auto")
    assert path == "fp32" and "2.00 times as long" in dict(choice.passed_over)["fp32x"]
    stored.add(entry(H200, problem, "fp32x", None, 0.5))
    choice, path = route(H200, call, True, "auto")
    assert path == "fp32x" and "the store" in dict(choice.passed_over)["fp32"]


# stale entries


def test_a_changed_kernel_is_verified_once_and_remembered(device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.add(entry(device, Gemm(64, 64, 64), source="an older text"))
    count = 0
    real = proof.problems

    def counted(*args: Any) -> tuple[str, ...]:
        nonlocal count
        count += 1
        return real(*args)

    monkeypatch.setattr(proof, "problems", counted)
    for _ in range(2):
        assert "these very sizes" in multiplied(device, 64, 64, 64).why
        assert "tuned on 64×64×64" in multiplied(device, 72, 64, 64).why
        afresh()  # as another process would begin
    assert count == 1
    (kept,) = stored.proofs(Machine.of(device))
    assert (kept.message, kept.source) == ("", source_hash("gemm", kept.machine.backend))


def test_a_wrong_kernel_is_passed_over(device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted = trial.altered(kernels.kernel("plain"), tmp_path, ("k < K", "k + 1 < K"))
    real = kernels.kernel
    monkeypatch.setattr(kernels, "_loaded", type(kernels._loaded)())
    monkeypatch.setattr(kernels, "kernel", lambda stem: planted if stem == "plain" else real(stem))
    problem = Gemm(64, 64, 64)
    other = replace(Machine.of(device), driver="an older driver")
    stored.add(entry(device, problem, "plain", PLAIN, machine=other), entry(device, problem, seconds=2e-3))
    stored.clear(kernel="gemm")
    left = multiplied(device, 64, 64, 64)
    (said,) = (why for name, why in left.passed_over if name.startswith("blas/plain"))
    assert "by the model" in left.why and said.startswith("wrong with this driver and kernel: C[")
    (kept,) = stored.proofs(Machine.of(device))
    assert "C[" in kept.message
    afresh()
    monkeypatch.setattr(proof, "problems", lambda *_: pytest.fail("it was verified before"))
    assert "by the model" in multiplied(device, 64, 64, 64).why


def test_what_takes_the_process_down_is_not_tried_again(device: Device, stored: Store) -> None:
    stored.add(entry(device, Gemm(64, 64, 64), source="an older text"))
    program = """
import os, signal, sys
from toprung import backends
from toprung.blas import engine, proof
from toprung.blas.problems import call_of
from toprung.routines.gemm import Gemm
proof.problems = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
engine.prepare(backends.session_for(backends.find(sys.argv[1])), call_of(Gemm(64, 64, 64)))
"""
    other = child(program, device.id)
    _, err = other.communicate(timeout=60)
    assert other.returncode == -signal.SIGKILL, err
    left = multiplied(device, 64, 64, 64)
    assert "by the model" in left.why and any("did not end" in why for _, why in left.passed_over)


def test_what_the_device_refuses_now_may_be_right_later(session: Session, stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.add(entry(session.device, Gemm(64, 64, 64), source="an older text"))

    def refused(*_: Any) -> tuple[str, ...]:
        raise LaunchError("no room")

    monkeypatch.setattr(proof, "problems", refused)
    made = engine.prepare(session, call_of(Gemm(64, 64, 64)))
    assert "by the model" in made.why and any("no room" in why for _, why in made.passed_over)
    assert stored.proofs(Machine.of(session.device)) == []


def test_entries_of_this_driver_come_before_those_of_another(stored: Store) -> None:
    problem, older = Gemm(4096, 4096, 4096), replace(Machine.of(H200), driver="older")
    stored.add(
        entry(H200, problem, tile=Tile(**large_tile()), seconds=1.0), entry(H200, problem, "plain", PLAIN, 0.5, machine=older)
    )
    found = choose(H200, call_of(problem))
    assert found.kernel == "gemm" and found.unproven is None


# what must not be followed


@pytest.mark.parametrize(
    ("kernel", "tile", "options", "says"),
    [
        ("nosuch", SMALL, {}, "there is no kernel"),
        ("gemm", SMALL, {"EVIL": 1}, "no switch EVIL=1"),
        ("gemm", SMALL, {"ORDER": 7}, "no switch ORDER=7"),
        ("gemm", None, {}, "needs a tile"),
        ("gemm", replace(SMALL, BM=20), {}, "BM % WM"),
        ("gemm", replace(SMALL, BM=1024, BN=1024, TM=512, TN=512), {}, "larger than"),
        ("gemm", replace(SMALL, BK=1 << 15), {}, "larger than"),
        ("rows", Tile(BM=32, BN=128, TM=4, TN=4, VA=4), {}, "does not compute"),
        ("gemm", replace(SMALL, VA=8), {}, "wider than"),
        ("gemm", replace(SMALL, BM=8192, BN=8192, WM=512, WN=512), {}, "work-group"),
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
    real = kernels.build
    monkeypatch.setattr(
        kernels, "build", lambda rung, tile, options, s: built.append((tile, options)) or real(rung, tile, options, s)
    )
    monkeypatch.setattr(kernels, "_loaded", type(kernels._loaded)())
    stored.add(entry(device, Gemm(64, 64, 64), kernel, tile, source="x", options=options))
    left = multiplied(device, 64, 64, 64)
    assert "by the model" in left.why and any(says in why for _, why in left.passed_over), left
    assert built and not [b for b in built if b[0] == tile or "EVIL" in b[1]]


def test_a_damaged_store_is_warned_of_once_and_the_model_decides(device: Device, stored: Store) -> None:
    stored.path.parent.mkdir(parents=True)
    garbage(stored.path)
    with pytest.warns(RuntimeWarning, match="clear --damaged") as said:
        assert "by the model" in multiplied(device, 64, 64, 64).why
        assert "by the model" in multiplied(device, 60, 64, 64).why
    assert len(said) == 1


def test_a_proof_that_cannot_be_kept_is_no_error(
    device: Device, stored: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ship(device, tmp_path, entry(device, Gemm(64, 64, 64), source="older"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "file" / "folder"))
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert "these very sizes" in multiplied(device, 64, 64, 64).why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "tuned on 64×64×64" in multiplied(device, 72, 64, 64).why


def test_what_another_process_tuned_is_seen(device: Device, stored: Store) -> None:
    call = GemmCall(640, 640, 640, align_a=4, align_b=4, align_c=4)
    assert "by the model" in choose(device, call).why
    program = WRITER.replace("test_store.entry(n)", "test_tuned.entry(find(sys.argv[4]), Gemm(n, n, n))").replace(
        "import test_store", "import test_tuned\nfrom toprung.backends import find\nfrom toprung.routines.gemm import Gemm"
    )
    other = child(program, stored.path, 640, 1, device.id)
    _, err = other.communicate(timeout=60)
    assert other.returncode == 0, err
    assert "these very sizes" in choose(device, call).why


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
    assert choose(device, call_of(Gemm(64, 64, 64))).unproven is not None
    assert multiplied(device, 64, 64, 64).kernels == (f"blas/gemm {SMALL}",)
    assert len(stored.proofs(Machine.of(device))) == 1
    assert "by the model" in choose(device, call_of(Gemm(300, 300, 300))).why
    assert choose(device, call_of(Gemm(128, 64, 64))).kernel == "plain"


def test_pocl_is_given_what_ships_for_another_processor(device: Device, stored: Store, tmp_path: Path) -> None:
    here = replace(Machine.of(device), compiler="OpenCL 3.0 PoCL pthread-x86_64-unknown-linux-gnu", backend="opencl")
    other = replace(here, device="another", name="another")
    found = [entry(device, Gemm(64, 64, 64), machine=m) for m in (other, replace(here, device="gpu", compiler="OpenCL 3.0 CUDA"))]
    (tmp_path / "shipped").mkdir()
    for one, more in zip(found, ([entry(device, Gemm(64, 64, 64), "numpy", None, machine=other)], []), strict=True):
        from_store = Store(tmp_path / f"{one.machine.device}.sqlite")
        from_store.add(one, *more)
        from_store.export(tmp_path / "shipped" / f"{one.machine.device}-opencl.json", [one, *more])
    assert stores.shipped(here) == found[:1], "neither another device's nor what NumPy took there"
    assert stores.shipped(replace(here, compiler="OpenCL 3.0 PoCL aarch64")) == []
    assert stores.shipped(replace(here, backend="cuda")) == []
    require("PoCL" in device.runtime and "x86_64" in device.runtime, "the rest is about PoCL on x86-64")
    assert choose(device, call_of(Gemm(64, 64, 64))).unproven == found[0]
    assert multiplied(device, 64, 64, 64).kernels == (f"blas/gemm {SMALL}",)
    assert len(stored.proofs(Machine.of(device))) == 1, "verified before it was used"
    ship(device, tmp_path, entry(device, Gemm(300, 300, 300)))
    afresh()
    assert "by the model" in choose(device, call_of(Gemm(64, 64, 64))).why, "what ships for the device itself comes alone"


def test_everything_in_the_package_can_be_used() -> None:
    refused: list[tuple[str, str]] = []
    for path in sorted((trial.ROOT / "src" / "toprung" / "tuned").glob("*.json")):
        found = stores.read_exchange(path, refused)
        assert found and {f"{e.machine.device}-{e.machine.backend}" for e in found} == {path.stem}
        assert [tuned.refusal(e) for e in found] == [""] * len(found)
        assert {e.status for e in found} == {"right"}
    assert refused == []


def test_a_choice_of_the_store_says_where_it_is_from(device: Device, stored: Store) -> None:
    stored.add(entry(device, Gemm(64, 64, 64)))
    found = choose(device, call_of(Gemm(64, 64, 64)))
    assert isinstance(found, Choice) and "2025-01-31" in found.why and "1 ms" in found.why


def test_the_store_can_name_hopper_s_plain_fp32_kernel(stored: Store) -> None:
    problem, tile = Gemm(4096, 4096, 4096), Tile(BM=256, BN=128, BK=16, TM=8, TN=16, STAGES=5)
    named = entry(H200, problem, "ffma", tile, 0.5, options={"GROUP": 4, "TURN_A": 0, "WAIT_AT": 8})
    stored.add(named, entry(H200, problem, tile=Tile(**large_tile()), seconds=1.0))
    found = choose(H200, call_of(problem))
    assert (found.kernel, found.tile, dict(found.options)) == ("ffma", tile, {"GROUP": 4, "TURN_A": 0, "WAIT_AT": 8})
    assert "tuned on these very sizes" in found.why and found.passed_over[0][0].startswith("blas/gemm")
    assert isinstance(tuned.fitted(H200, call_of(Gemm(4000, 4001, 4002, trans="TT")), named, False), Choice)
    assert "one product at a time" in str(tuned.fitted(H200, call_of(Gemm(64, 64, 64, batch=3)), named, False))
    for wrong in ({"BM": 64}, {"STAGES": 10}, {"BK": 7}):
        assert tuned.refusal(entry(H200, problem, "ffma", replace(tile, **wrong), 0.5, options={"GROUP": 4, "WAIT_AT": 6}))
    assert "needs a tile" in tuned.refusal(entry(H200, problem, "ffma", tile, 0.5))
