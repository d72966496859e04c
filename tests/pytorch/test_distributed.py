"""Several processes on CPU tensors: ``toprung.distributed.matmul`` beside float64, its failures, and steps of PyTorch's own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
import scaling
import toprung.distributed
import trial
from steps import BOUND, error, every_step
from toprung.distributed import __main__ as program
from toprung.distributed import schedule
from torch_device import ELSEWHERE


def line_of(mesh: Any) -> list[Any]:
    """All placements over one mesh dimension, by the best schedule and then by one schedule after the other."""
    from toprung.distributed import product

    said, turn = program.every_placement(mesh, panel_bytes=400, own=True), itertools.count()

    def next_one(m: int, n: int, k: int, *rest: Any) -> Any:
        found = list(schedule.schedules({"m": m, "n": n, "k": k}, *rest))
        return found[next(turn) % len(found)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "best", next_one)
        return [*said[:2], program.every_placement(mesh, panel_bytes=400)[2]]


def grid() -> list[Any]:
    """A sample of all placements over two mesh dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    from toprung.distributed import product

    mesh = init_device_mesh("cpu", (2, 2))
    # a column, which PyTorch redistributes into a part of a padded shard
    a, b = (
        program.spread(torch.ones(7, 16), mesh, (Shard(0), Shard(1))),
        program.spread(torch.ones(16, 1), mesh, (Shard(1), Shard(1))),
    )
    assert torch.equal(toprung.distributed.matmul(a, b).full_tensor(), torch.full((7, 1), 16.0))
    # so that bytes decide: of matrices as small as these the host's time would be all; the process ends afterwards
    product.H200 = product.H200._replace(host=0.0)
    return program.every_placement(mesh, panel_bytes=400, own=True)


def details() -> dict[str, Any]:
    """Gradients, bits, receipts and refusals on one mesh dimension, each by a name."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return {name: check(mesh) for name, check in CHECKS.items()}


def gradients(mesh: Any) -> float:
    """Return the largest error of the gradients of A and B, and of gradients of those."""
    from torch.distributed.tensor import Replicate

    worst = 0.0
    for ones in list(itertools.product(program.PLACEMENTS, repeat=2))[::3]:
        torch.manual_seed(0)
        whole = [torch.randn(size) for size in ((11, 33), (33, 13))]
        right = [tensor.double().requires_grad_() for tensor in whole]
        parts = [program.spread(tensor, mesh, (place,)).requires_grad_() for tensor, place in zip(whole, ones, strict=True)]
        for operands, product in ((right, torch.mm), (parts, toprung.distributed.matmul)):
            made = product(*operands, **({"own": True, "panel_bytes": 400} if operands is parts else {}))
            first = torch.autograd.grad((made * made).sum(), operands, create_graph=True)
            if operands is parts:
                assert [one.placements for one in first] == [(Replicate() if place.is_partial() else place,) for place in ones]
            sum((one * one).sum() for one in first).backward()
            operands += [one.detach() for one in first]
        found = [part.grad.full_tensor() for part in parts[:2]] + [part.full_tensor() for part in parts[2:]]
        worst = max(worst, *map(error, found, [one.grad for one in right[:2]] + right[2:]))
    return worst


def bits(mesh: Any) -> bool:
    """Return True if a product has the same bits again."""
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    a, b = (distribute_tensor(torch.randn(70, 70), mesh, [place]) for place in (Shard(1), Shard(0)))
    first, again = (toprung.distributed.matmul(a, b, own=True, panel_bytes=900).to_local() for _ in range(2))
    return torch.equal(first, again)


def receipt(mesh: Any) -> dict[str, Any]:
    """Return what a receipt says of a product whose B is sent in panels."""
    from torch.distributed.tensor import Shard, distribute_tensor

    a, b = (distribute_tensor(torch.ones(96, 96), mesh, [Shard(0)]) for _ in range(2))
    toprung.distributed.matmul(a, b, own=True, panel_bytes=96 * 4 * 12)
    left = toprung.distributed.last_receipt()
    assert left is not None and left.measured > 0 and 0 <= left.overlap <= 1 and left.predicted is None
    return {"text": str(left), "movers": left.schedule.movers, "panels": left.panels, "bytes": left.bytes, "memory": left.memory}


def refused(mesh: Any) -> dict[str, str]:
    """Return the errors of calls that cannot be, by what is wrong."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    def spread_out(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
        return distribute_tensor(torch.ones(shape, dtype=dtype), mesh, [Replicate()])

    a, said = spread_out(4, 4), {}
    calls: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "numpy": (torch.ones(4, 4).numpy(), torch.ones(4, 4).numpy(), {}),
        "plain": (a, torch.ones(4, 4), {}),
        "dtype": (a, spread_out(4, 4, dtype=torch.float64), {}),
        "vector": (a, spread_out(4), {}),
        "shapes": (a, spread_out(5, 4), {}),
        "placements": (a, a, {"out_placements": [Shard(0), Shard(1)]}),
        "shard": (a, a, {"out_placements": [Shard(2)]}),
        "average": (a, a, {"out_placements": [Partial("avg")]}),
        "panel": (a, a, {"panel_bytes": 0}),
        "precision": (a, a, {"precision": "fp64"}),
    }
    for name, (left, right, options) in calls.items():
        try:
            toprung.distributed.matmul(left, right, **options)
        except toprung.errors.ToprungError as wrong:
            said[name] = f"{type(wrong).__name__}: {wrong}"
    return said


def alike(mesh: Any) -> dict[str, Any]:
    """Return what each rank is told where rank 1 does something else, or has too little memory."""
    import resource

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    odd = torch.distributed.get_rank() == 1
    other = init_device_mesh("cpu", (torch.distributed.get_world_size(), 1))
    a = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    tall = [distribute_tensor(torch.ones(shape), mesh, [Replicate()]) for shape in ((6000, 4), (4, 6000))]
    elsewhere = distribute_tensor(torch.ones(4, 4), other, [Replicate(), Replicate()])
    said = {}

    def call(name: str, *operands: Any, **options: Any) -> None:
        try:
            toprung.distributed.matmul(*operands, **options)
        except toprung.errors.ToprungError as wrong:
            said[name] = [type(wrong).__name__, list(getattr(wrong, "ranks", ())), str(wrong)]

    call("dtype", a, a.double() if odd else a)
    call("options", a, a, precision="fp32" if odd else "auto")
    call("neither", *([torch.ones(4, 4)] * 2 if odd else [a] * 2))
    call("mesh", *([elsewhere] * 2 if odd else [a] * 2))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if odd:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (32 << 20), limits[1]))
    call("memory", *tall, out_placements=[Replicate()])
    resource.setrlimit(resource.RLIMIT_AS, limits)
    call("right again", a, a)
    return said


def bench(mesh: Any) -> dict[str, Any]:
    """Run the bench at sizes of uneven shards; return its status and what it measured."""
    found: list[dict[str, Any]] = []
    os.environ["RANK"] = str(torch.distributed.get_rank())
    words = ["--device", "cpu", "--sizes", "65,1", "--repeats", "1", "--panel-bytes", "8000", "--also", "5000"]
    return {"status": program.main(["bench", "--own", "--no-check", *words], found.append), "results": found}


CHECKS = {
    "line": line_of,
    "gradients": gradients,
    "bits": bits,
    "receipt": receipt,
    "refused": refused,
    "alike": alike,
    "bench": bench,
    "steps": every_step,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return ranks.run("test_distributed.details", folder, timeout=60)


@pytest.mark.parametrize(("name", "products"), [("dtensor", 9), ("fsdp2", 6), ("tensor", 6), ("sequence", 6)])
def test_every_product_of_pytorchs_steps_is_toprungs_and_right(results: list[dict[str, Any]], name: str, products: int) -> None:
    for step in (rank["steps"][name] for rank in results):
        assert step["taken"] == products and not step["left"], step["report"]
        assert step["error"] < BOUND


def test_all_placements_give_the_product(results: list[dict[str, Any]]) -> None:
    for rank in results:
        count, worst, seen = rank["line"]
        assert count == 80 and worst < BOUND and {"m k B", "m n B", "n m A", "n k A", "k m C", "k n C"} <= set(seen)


@pytest.mark.slow
def test_all_placements_give_the_product_on_two_by_two(tmp_path: Path) -> None:
    for count, worst, seen in ranks.run("test_distributed.grid", tmp_path, world=4):
        assert count == 230 and worst < BOUND and {"mn k A", "km n BC", "kn m AC", "nm k B"} <= set(seen)


def test_gradients_and_their_gradients(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert rank["gradients"] < 10 * BOUND


def test_bits_are_the_same_again(results: list[dict[str, Any]]) -> None:
    assert [rank["bits"] for rank in results] == [True, True]


def test_the_receipt(results: list[dict[str, Any]]) -> None:
    for rank in results:
        left = rank["receipt"]
        assert (left["movers"], left["panels"], left["bytes"]) == ("B", 8, 96 * 96 * 4 // 2)
        assert left["memory"] <= 2 * 96 * 4 * 12 and "stationary A and C; m over mesh dimension 0" in left["text"]


def test_what_cannot_be_is_refused(results: list[dict[str, Any]]) -> None:
    for rank in results:
        kinds = {name: text.partition(":")[0] for name, text in rank["refused"].items()}
        assert kinds == {
            "numpy": "BadArray", "plain": "BadArray", "dtype": "BadArray", "vector": "BadShape", "shapes": "BadShape",
            "placements": "BadArgument", "shard": "BadArgument", "average": "BadArgument", "panel": "BadArgument",
            "precision": "BadArgument",
        }, rank["refused"]  # fmt: skip
        assert "distribute_tensor(" in rank["refused"]["plain"] and ".float()" in rank["refused"]["dtype"]


def compiled() -> float:
    """Return the error of a product, and of its gradient, in a function that is compiled."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    a, b = (distribute_tensor(torch.ones(6, 6), mesh, [Shard(0)]).requires_grad_() for _ in range(2))
    function = torch.compile(lambda a, b: toprung.distributed.matmul(a * 2, b).to_local() + 1, backend="aot_eager")
    made = function(a, b)
    made.sum().backward()
    return error(made, torch.full((3, 6), 13.0)) + error(a.grad.to_local(), torch.full((3, 6), 12.0))


@pytest.mark.slow
def test_a_compiled_function_is_interrupted(tmp_path: Path) -> None:
    assert ranks.run("test_distributed.compiled", tmp_path) == [0, 0]


def test_every_rank_is_told_who_differs_or_has_too_little_memory(results: list[dict[str, Any]]) -> None:
    first, odd = (rank["alike"] for rank in results)
    assert set(first) == set(odd) == {"dtype", "neither", "options", "mesh", "memory"}
    assert [odd[name][0] for name in ("dtype", "neither", "memory")] == ["BadArray", "BadArray", "OutOfDeviceMemory"]
    for name in first:
        assert first[name][:2] == ["RankFailed", [1]], first[name]
    for name in ("options", "mesh"):
        assert odd[name][:2] == ["RankFailed", [1]], odd[name]
    assert "BadArray: b is torch.float64" in first["dtype"][2] and "BadArray: a is Tensor" in first["neither"][2]
    assert "OutOfDeviceMemory: rank 1" in first["memory"][2]
    assert "144,000,000 bytes" in first["memory"][2]  # the whole result, which is replicated


class Ended:
    """An event of a product that has ended."""

    def query(self) -> bool:
        return True


def begun_again() -> list[bool]:
    """For two groups in turn on one store: no old message is left, and memory is closed after a product."""
    import torch.distributed as dist

    from toprung.distributed import peers
    from toprung.distributed.agreement import Agreement

    asked: list[str] = []
    peers._driver = lambda name, *given: asked.append(name)  # type: ignore[assignment]
    store, found = dist.FileStore("outlives", 1), []
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        with Agreement([0]) as agreement:
            found.append(agreement.store.check([f"{agreement.key}/said/0"]))
            assert agreement.reach("a product", "mine") == {0: "mine"}
            agreement.meet()
            peers.opened["a handle"] = None, 0
            agreement.watch(Ended(), [])
            while peers.opened and agreement.left(1) > 1:
                time.sleep(0.05)
            found.append("cuIpcCloseMemHandle" in asked)
            asked.clear()
    return found


def test_a_group_reads_nothing_of_one_that_was_destroyed_and_memory_is_closed_after_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ranks.run("test_distributed.begun_again", tmp_path, 1) == [[False, True, False, True]]


def test_the_bench_checks_and_times_products(results: list[dict[str, Any]]) -> None:
    for rank in results:
        result, small = rank["bench"]["results"]  # of the second size a rank has no rows
        assert rank["bench"]["status"] == 0 and result["error"] <= 1 and result["panels"] > 1 and result["bytes"] > 0
        assert all(result[name] > 0 for name in ("seconds", "predicted", "host", "local", "gather", "gather, then local"))
        assert result["predicted"] > result["host"] / schedule.PANELS
        assert result["panel_bytes"]["5000"]["memory"] <= 10000 and small["error"] <= 1


def test_the_model_is_within_a_tenth_of_what_was_measured() -> None:
    for one in (one for run in schedule.MEASURED for one in run["results"]):
        assert one["predicted"] == pytest.approx(program.predicted(one)), "benchmarks/several.py --predict"
        assert 0.9 < one["predicted"] / one["seconds"] < 1.1, (one["size"], one["precision"], one["ranks"])


def test_the_page_has_the_models_tables() -> None:
    page = (trial.ROOT / "docs" / "distributed.md").read_text()
    strong, weak = scaling.tables().strip().split("\n\n")
    assert strong in page and weak in page


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (2, 4)])
def test_ranks_begin_with_their_own_panels_and_owners_send_to_one_at_a_time(mesh: tuple[int, ...]) -> None:
    """On even shards. Ranks with the same part of C have the same order, and so the same bits."""
    ats = list(itertools.product(*map(range, mesh)))
    places = list(itertools.product(("S0", "S1", "R", "P"), repeat=len(mesh)))
    for a, b in list(itertools.product(places, places))[:: 2 * len(mesh)]:
        for one in schedule.schedules({"m": 24, "n": 48, "k": 72}, mesh, a, b, None, 300, schedule.H200):
            orders = {at: one.order(at) for at in ats}
            parts: dict[Any, Any] = {}
            for at in ats:
                part = tuple(index for index, letter in zip(at, one.letters, strict=True) if letter != "-")
                assert parts.setdefault(part, orders[at]) == orders[at]
            for name, at in itertools.product(one.movers.replace("C", ""), ats):
                for d in one.owners(name):
                    group = [(*at[:d], index, *at[d + 1 :]) for index in range(mesh[d])]
                    shards = [range(*one.owned(name, rank)) for rank in group]
                    for j in range(len(orders[at])):
                        owners = [[orders[rank][j][0] in shard for shard in shards].index(True) for rank in group]
                        assert sorted(owners) == list(range(mesh[d])), (str(one), orders)
                    own = [start in shards[at[d]] for start, _ in orders[at]]
                    assert len(one.movers) > 1 or own == sorted(own, reverse=True), (str(one), orders)


def test_ranks_read_from_each_other_only_if_all_can_and_are_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks close memory that its owner has freed."""
    from toprung.distributed import peers as module

    peers = module.Peers(torch.device("cpu"), {"B": torch.ones(2, 2)})
    here, there = (json.dumps({"host": host, "device": 0, "freed": []}) for host in ("here", "there"))
    monkeypatch.setattr(module, "_offered", {"kept": (1, 7), "gone": (2, 8)})
    monkeypatch.setattr(module, "_identity", {1: 7, 2: 9}.get)
    unread = peers.offer(reads=False)  # also says what is freed, as in a product whose panels NCCL sends
    assert json.loads(unread) == {"freed": ["gone"]} and list(module._offered) == ["kept"]
    assert not peers.accept({0: here, 1: unread}) and not peers.accept({0: here, 1: there})
    assert not peers.accept({0: unread, 1: unread}) and peers.accept({0: here})
    closed: list[Any] = []
    monkeypatch.setattr(module, "_driver", lambda name, *given: closed.append((name, *given)))
    for reads in (True, False):
        monkeypatch.setattr(module, "opened", {"first": (None, 1), "second": (None, 2)})
        peers = module.Peers(torch.device("cpu"), {})
        offer = json.loads(here if reads else unread) | {"freed": ["second", "third"]}
        assert peers.accept({1: json.dumps(offer)}) is reads
        assert list(module.opened) == ["first"] and ("cuIpcCloseMemHandle", 2) in closed
        closed.clear()


def test_two_ranks_hold_one_panel_and_multiply_their_own_where_it_is() -> None:
    one = schedule.best(8192, 8192, 8192, (2,), ("S0",), ("S0",), ("S0",))
    assert (one.movers, one.panel, len(one.cuts) - 1, one.held) == ("B", "k", 2, 1)
    assert one.memory == one.bytes == 4096 * 8192 * 4  # the other's shard; less is received in no schedule


def test_schedules_move_the_least() -> None:
    """A is tall: B is gathered. K is long: C is reduced. On a mesh of two dimensions no panel is whole."""

    def movers(m: int, n: int, k: int, mesh: tuple[int, ...], a: tuple[str, ...], b: tuple[str, ...]) -> str:
        return schedule.best(m, n, k, mesh, a, b, a).movers

    assert movers(65536, 4096, 4096, (8,), ("S0",), ("S0",)) == "B"
    assert movers(4096, 4096, 65536, (8,), ("S1",), ("S0",)) == "C"
    assert movers(4096, 65536, 4096, (8,), ("S1",), ("S1",)) == "A"
    assert len(movers(65536, 65536, 65536, (8, 8), ("S0", "S1"), ("S0", "S1"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-m", "toprung.distributed", "bench", "--device", "cpu", "--sizes", "129", "--repeats", "1"], "stationary A and C"),
        ([trial.ROOT / "examples" / "torch_several.py", "--device", "cpu", "--size", "129", "--width", "32"], "stationary A and C"),
        (
            [trial.ROOT / "benchmarks" / "torch_several.py", "out.json", "--device", "cpu", "--width", "32", "--seconds", "0.1"],
            "sequence       2 processes",
        ),
    ],
    ids=["bench", "example", "benchmark"],
)
def test_programs_run_under_torchrun(words: list[Any], text: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path, env=ELSEWHERE)
    assert done.returncode == 0 and text in done.stdout, done.stdout + done.stderr


def failing() -> dict[str, Any]:
    """Multiply on all ranks while the last fails, in between or before; return what this rank is told, and when."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    from toprung.distributed import agreement, product

    how, when, device = json.loads(os.environ["FAILURE"])
    world = torch.distributed.get_world_size()
    mesh = init_device_mesh(device, (2, 2) if world == 4 else (2,))

    def spread_out() -> Any:
        return distribute_tensor(torch.ones(64, 64, device=device), mesh, [Shard(0), Replicate()][: mesh.ndim])

    def fail() -> None:
        if how == "memory":
            torch.empty(1 << 50, device=device)
        else:
            os.kill(os.getpid(), getattr(signal, how))

    a, b = spread_out(), spread_out()
    toprung.distributed.matmul(a, b, panel_bytes=4096)
    if when == "redistributing":  # by PyTorch, which would leave no time to find out who hangs
        b = program.spread(torch.ones(64, 64, device=device), mesh, [Partial()] * mesh.ndim)
    if device == "cuda":
        torch.cuda.synchronize()
    if torch.distributed.get_rank() == world - 1:
        if when == "before":
            fail()
        reach, multiply = agreement.Agreement.reach, product.Product.multiply

        def failing_reach(self: Any, *given: str) -> dict[int, str]:
            offers = reach(self, *given)
            if when == "redistributing":
                fail()
            return offers

        def failing_multiply(self: Any, j: int) -> None:
            if j:
                fail()
            multiply(self, j)

        agreement.Agreement.reach = failing_reach  # type: ignore[method-assign]
        product.Product.multiply = failing_multiply  # type: ignore[method-assign]
    try:
        toprung.distributed.matmul(a, b, panel_bytes=4096)
        if device == "cuda":
            torch.cuda.synchronize()
        toprung.distributed.matmul(a, b, panel_bytes=4096)  # a rank that shares no mesh dimension with the lost one is told here
    except RuntimeError as wrong:
        return {"ranks": getattr(wrong, "ranks", None), "text": str(wrong)}
    return {}


GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def read_from_peers() -> dict[str, Any]:
    """Multiply on two GPUs of one host, by NCCL and by copies; operands are overwritten after the call."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from toprung.distributed import peers

    mesh = init_device_mesh("cuda", (2,))
    said: dict[str, Any] = {"placements": program.every_placement(mesh, 80, panel_bytes=400)[:2]}
    torch.manual_seed(0)
    whole = [torch.randn(4096, 4096, device="cuda") for _ in range(2)]
    right = whole[0].double() @ whole[1].double()
    made, held = [], set()
    for panel_bytes in (1 << 23, 1 << 23, None):
        a, b = (distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in whole)
        made.append(toprung.distributed.matmul(a, b, out_placements=[Shard(0)], panel_bytes=panel_bytes))
        for operand in (a, b):
            operand.to_local().fill_(float("nan"))  # after the call operands may be overwritten
        held |= peers.opened.keys()
        del a, b, operand
        torch.cuda.empty_cache()
    until = time.monotonic() + 60
    while peers.opened and time.monotonic() < until:
        time.sleep(0.05)
    said |= {"opened": len(held), "left": len(peers.opened), "bits": torch.equal(made[0].to_local(), made[1].to_local())}
    return {**said, "error": max(error(one.full_tensor(), right) for one in made)}


@GPUS
def test_two_gpus_read_from_each_others_memory_and_close_it(tmp_path: Path) -> None:
    for said in ranks.run("test_distributed.read_from_peers", tmp_path, timeout=60):
        count, worst = said["placements"]
        assert count == 80 and worst < BOUND and said["error"] < BOUND and said["bits"]
        assert said["opened"] and not said["left"], said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("SIGKILL", "before"),
        ("SIGKILL", "between"),
        ("SIGSTOP", "between"),
        ("SIGSTOP", "redistributing"),
        ("memory", "between"),
    ],
)
@pytest.mark.parametrize(("device", "world"), [("cpu", 2), ("cpu", 4), pytest.param("cuda", 2, marks=GPUS)])
def test_every_rank_names_the_rank_that_fails(
    how: str, when: str, device: str, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILURE", json.dumps([how, when, device]))
    processes = ranks.started("test_distributed.failing", tmp_path, world, timeout=10)
    *others, last = ranks.finished(processes, tmp_path, lost=how != "memory")
    assert last is None or (how == "memory" and last["ranks"] is None and "memory" in last["text"])
    for said in others:
        assert said["ranks"] == [world - 1] and f"rank {world - 1} " in said["text"], said


def watched() -> list[Any]:
    """Watch a product that a device never ends, for the last rank is killed; return what is raised in a wait of the program."""
    from toprung.distributed.agreement import Agreement

    class Never:
        def query(self) -> bool:
            return False

    with Agreement([0, 1]) as agreement:
        agreement.reach("a product")
        if agreement.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        agreement.watch(Never(), [torch.distributed.group.WORLD])
    try:
        while agreement.left(10) > 0.001:
            time.sleep(0.1)
    except toprung.errors.RankFailed as wrong:
        return [wrong.ranks, str(wrong)]
    return []


@pytest.mark.slow
def test_the_program_is_told_wherever_it_waits(tmp_path: Path) -> None:
    """As on GPUs, whose event is stood in for."""
    (said, text), _ = ranks.finished(ranks.started("test_distributed.watched", tmp_path, timeout=10), tmp_path, lost=True)
    assert said == [1] and "on the device" in text
