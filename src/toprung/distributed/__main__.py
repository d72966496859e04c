"""``torchrun --nproc-per-node 2 -m toprung.distributed bench``: check and time products."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from toprung.blas import routines
from toprung.blas.receipt import last_receipt as local_receipt
from toprung.distributed import last_receipt, matmul
from toprung.distributed.schedule import GRAIN, ITEM, PANELS, best, rates_of
from toprung.errors import ToprungError, WrongResult

LONG = 2.0
"""Seconds after which nothing is repeated more than twice."""

SETTLE = 0.2
"""Seconds of products before each timed run on GPUs, so that all runs begin with an equally warm GPU."""

PLACEMENTS: tuple[Placement, ...] = (Shard(0), Shard(1), Replicate(), Partial())


def spread(tensor: torch.Tensor, mesh: DeviceMesh, places: Sequence[Placement]) -> Any:
    """Return a tensor as a DTensor; along mesh dimensions where that is partial each rank has an equal part of the value."""
    whole = distribute_tensor(tensor, mesh, [Replicate() if place.is_partial() else place for place in places])
    parts = math.prod(size for size, place in zip(mesh.shape, places, strict=True) if place.is_partial())
    return DTensor.from_local(whole.to_local() / parts, mesh, places, shape=tensor.shape, stride=tensor.stride())


def every_placement(mesh: DeviceMesh, most: int = 240, **options: Any) -> tuple[int, float, list[str]]:
    """Multiply small matrices with uneven shards in all placements, or a sample of at most a number of them.

    Return the number of products, the largest error as a share of the largest element, and the schedules' letters, panels and
    movers.
    """
    torch.manual_seed(0)
    a, b = (torch.randn(shape, device=mesh.device_type) for shape in ((11, 33), (33, 13)))
    right, worst, seen = a.double() @ b.double(), 0.0, set()
    places = list(itertools.product(PLACEMENTS, repeat=mesh.ndim))
    cases = list(itertools.product(places, places, [None, *places]))
    cases = cases[:: -(-len(cases) // most)]
    for given_a, given_b, wanted in cases:
        c = matmul(spread(a, mesh, given_a), spread(b, mesh, given_b), out_placements=wanted, **options)
        receipt = last_receipt()
        if receipt is None or c.placements != (wanted or c.placements):
            raise WrongResult(f"{given_a} times {given_b} has the placements {c.placements}, not {wanted}")
        seen.add(f"{receipt.schedule.letters} {receipt.schedule.panel} {receipt.schedule.movers}")
        error = float((c.full_tensor().double() - right).abs().max() / right.abs().max())
        if not error < 1e-5:
            raise WrongResult(f"{given_a} times {given_b} to {wanted} has an error of {error}: {receipt.schedule}")
        worst = max(worst, error)
    return len(cases), worst, sorted(seen)


def predicted(result: dict[str, Any], panel_bytes: int | None = None) -> float:
    """Return the predicted seconds of a product of the bench, by the speeds of the same run."""
    size, rows = result["size"], ("S0",)
    return best(size, size, size, (result["ranks"],), rows, rows, rows, panel_bytes, rates_of(result)).seconds


class Bench:
    """Products of two square DTensors, both sharded by rows, on all ranks."""

    def __init__(self, device: str, precision: str, own: bool, repeats: int, panel_bytes: int | None) -> None:
        self.how: dict[str, Any] = {"precision": precision, "own": own}
        self.repeats, self.panel_bytes = repeats, panel_bytes
        self.device = torch.device(device)
        if device == "cuda":
            local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))  # launchers other than torchrun may set RANK alone
            self.device = torch.device("cuda", local % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink's multicast
            torch.backends.cuda.matmul.fp32_precision = "ieee"
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo")
        self.ranks = dist.get_world_size()
        self.mesh = init_device_mesh(self.device.type, (self.ranks,))

    def agreed(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        worst = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst)

    def seconds(self, arms: dict[str, Callable[[], Any]], settle: Callable[[], Any]) -> dict[str, float]:
        """Return the median seconds of each arm on the slowest rank, after a first round that does not count.

        Arms run in turns, in reverse order every second round, and each after SETTLE seconds of ``settle``: all meet an
        equally warm device. Rounds end after LONG seconds per arm, but not before the second counted round.
        """
        taken: dict[str, list[float]] = {name: [] for name in arms}
        settled = SETTLE if self.device.type == "cuda" else 0.0
        for turn in range(self.repeats + 1):
            if turn > 2 and sum(map(sum, taken.values())) > LONG * len(arms):
                break
            for name, work in list(arms.items())[:: -1 if turn % 2 else 1]:
                began = time.perf_counter()
                while self.agreed(time.perf_counter() - began) < settled:  # ends for all ranks at once
                    settle()
                began = time.perf_counter()
                work()
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                taken[name].append(self.agreed(time.perf_counter() - began))
        return {name: statistics.median(times[1:]) for name, times in taken.items()}

    def wrong(self, a: Any, b: Any, c: Any) -> float:
        """Return the largest error in each rank's first row of C, as a share of what rounding may leave."""
        parts = [tensor.to_local() for tensor in (a, b, c)]
        rows = torch.empty(self.ranks, a.shape[1], device=self.device)
        first = torch.zeros(1, a.shape[1], device=self.device)  # also of a rank without rows
        dist.all_gather_into_tensor(rows, first.copy_(parts[0][:1]) if len(parts[0]) else first)
        at, each = dist.get_rank(), -(-b.shape[0] // self.ranks)
        rows = rows[:, at * each : at * each + parts[1].shape[0]].double()
        sums = torch.empty(2, self.ranks, b.shape[1], dtype=torch.float64, device=self.device)
        for start in range(0, b.shape[1], 1024):
            some = slice(start, start + 1024)
            block = parts[1][:, some].double()
            sums[0, :, some], sums[1, :, some] = rows @ block, rows.abs() @ block.abs()
        dist.all_reduce(sums)
        error = (parts[2][:1].double() - sums[0, at]).abs() / sums[1, at]
        return self.agreed(float(error.max() if len(error) else 0.0) / (4 * math.sqrt(a.shape[1]) * 2.0**-24))

    def size(self, size: int, panel_bytes: Sequence[int] = ()) -> dict[str, Any]:
        """Return the measurements of the product of one size; of ``matmul`` also with panels of other bytes."""
        torch.manual_seed(dist.get_rank())
        shape = torch.Size((size, size))
        each = -(-size // self.ranks)
        rows = max(0, min(each, size - each * dist.get_rank()))
        locals_ = [torch.randn(rows, size, device=self.device) for _ in range(2)]
        a, b = (DTensor.from_local(x, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=(size, 1)) for x in locals_)
        whole, out = (torch.empty(height, size, device=self.device) for height in (each * self.ranks, rows))
        padded = torch.nn.functional.pad(locals_[1], (0, 0, 0, each - rows))
        gather = functools.partial(dist.all_gather_into_tensor, whole, padded)
        local = functools.partial(routines.matmul, locals_[0], whole[:size], out, **self.how)
        part = locals_[0][:8192], whole[:size, :16384], out[:8192, :16384]
        result: dict[str, Any] = {"size": size, "ranks": self.ranks, **self.how, "panel_bytes": {}}
        ours = {}
        for most in (self.panel_bytes, *panel_bytes):
            ours[most] = functools.partial(matmul, a, b, out_placements=[Shard(0)], panel_bytes=most, **self.how)
            error, receipt = self.wrong(a, b, ours[most]()), last_receipt()
            assert receipt is not None
            found = {
                "error": error, "schedule": str(receipt.schedule), "panels": receipt.panels, "bytes": receipt.bytes,
                "memory": receipt.memory, "kernels": getattr(local_receipt(), "kernels", ()),
            }  # fmt: skip
            if most == self.panel_bytes:
                result |= found
            else:
                result["panel_bytes"][str(most)] = found

        arms: dict[str, Callable[[], Any]] = {"seconds": ours.pop(self.panel_bytes), **{str(x): work for x, work in ours.items()}}
        small = [torch.ones(GRAIN, GRAIN * self.ranks, device=self.device) for _ in range(2)]
        little = [DTensor.from_local(x, self.mesh, [Shard(0)], run_check=False) for x in small]
        panel = little[0].to_local().numel() * self.ranks * ITEM // PANELS
        arms["host"] = functools.partial(matmul, *little, out_placements=[Shard(0)], panel_bytes=panel, **self.how)
        arms |= {"local": local, "gather": gather, "gather, then local": lambda: (gather(), local())}
        arms["PyTorch's A @ B, fp32"] = lambda: a @ b
        gather()  # before B is multiplied
        settling = functools.partial(routines.matmul, *part, **self.how)
        for name, taken in self.seconds(arms, lambda: (settling(), arms["host"]())).items():  # an idle rank closes peers' memory
            if name in result["panel_bytes"]:
                result["panel_bytes"][name]["seconds"] = taken
            else:
                result[name] = taken
        arms["seconds"]()
        receipt = last_receipt()
        assert receipt is not None
        result |= {name: self.agreed(sum(one() for one in receipt.times[name])) for name in ("products", "sent")}
        local()
        result |= {"overlap": self.agreed(receipt.overlap), "local kernels": getattr(local_receipt(), "kernels", ())}
        result["link"] = ITEM * each * size * (self.ranks - 1) / result["gather"]
        return result | {"predicted": predicted(result, self.panel_bytes)}


def bench(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Check and time products; print the measurements on the first rank, and yield them."""
    one = Bench(options.device, options.precision, options.own, options.repeats, options.panel_bytes)
    first = dist.get_rank() == 0
    meshes = [(one.ranks,)] + ([(2, one.ranks // 2)] if one.ranks > 2 and one.ranks % 2 == 0 else [])
    for shape in meshes if options.check else ():
        mesh = init_device_mesh(one.device.type, shape)
        count, worst, _ = every_placement(mesh, panel_bytes=400, **one.how)
        if first:
            print(f"{count} placements on {' x '.join(map(str, shape))}: largest error {worst:.1e}", flush=True)
    for size in options.sizes:
        result = one.size(size, options.also)
        if first:
            rate = 2e-12 * size**3
            times = {
                name: result[name] for name in ("seconds", "predicted", "local", "gather, then local", "PyTorch's A @ B, fp32")
            }
            times |= {f"panels of {int(given):,} bytes": also["seconds"] for given, also in result["panel_bytes"].items()}
            print(f"{size}: {result['schedule']}")
            for name, seconds in times.items():
                share = result["local"] / seconds
                print(f"  {name:30} {seconds * 1e3:10.3f} ms {rate / seconds:9.3f} TFLOP/s {share:6.1%} of local")
            sent = f"{result['bytes']:,} bytes received at {result['link'] / 1e9:.1f} GB/s, {result['overlap']:.0%} overlapped"
            print(f"  {sent}; {result['memory']:,} bytes of scratch; error {result['error']:.2f} of what is allowed", flush=True)
        yield result


def numbers(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(number) for number in text.split(",")]


def main(given: list[str] | None = None, store: Callable[[dict[str, Any]], object] = lambda result: None) -> int:
    """Run a command; call a function with the measurements of each size as they come, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m toprung.distributed", description="Products of matrices on several devices.")
    parser.add_argument("command", choices=["bench"], help="check and time products, in each process of torchrun")
    parser.add_argument("--sizes", type=numbers, default=[16384, 32768, 65536])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--precision", default="auto", help="as for toprung.matmul")
    parser.add_argument("--own", action="store_true", help="run toprung's kernels alone")
    parser.add_argument(
        "--no-check", dest="check", action="store_false", help="do not check small products in all placements first"
    )
    parser.add_argument("--repeats", type=int, default=5, help="times that each is measured; the median counts")
    parser.add_argument("--panel-bytes", type=int, help="as for toprung.distributed.matmul")
    parser.add_argument("--also", type=numbers, default=[], help="other bytes of panels to time as well")
    options = parser.parse_args(given)
    if "RANK" not in os.environ:
        parser.error("bench runs in several processes: torchrun --nproc-per-node 2 -m toprung.distributed bench")
    status = 0
    try:
        for result in bench(options):
            store(result)
            status |= any(not one["error"] <= 1 for one in (result, *result["panel_bytes"].values()))
    except ToprungError as error:
        print(error, file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    status = main()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(status)
