"""A product of matrices that are spread over several devices, and a tensor-parallel layer; each result is checked.

    torchrun --nproc-per-node 2 examples/torch_several.py                               # 65536 on two GPUs: 9 GB of each matrix
    torchrun --nproc-per-node 2 examples/torch_several.py --device cpu --size 300       # the same in two processes on CPU tensors

The product is ``toprung.distributed.matmul``. The layer is PyTorch's own, whose products ``toprung.torch.enable()`` takes.
"""

from __future__ import annotations

import argparse
import os
import sys

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit("this example needs PyTorch: pip install torch")

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import toprung


def product(mesh: DeviceMesh, size: int) -> float:
    """Multiply two square matrices, both sharded by rows; return the error of each row's sum, as a share of the largest."""
    torch.manual_seed(dist.get_rank())
    a, b = (torch.distributed.tensor.empty(size, size, device_mesh=mesh, placements=[Shard(0)]) for _ in range(2))
    for matrix in (a, b):
        matrix.to_local().normal_()
    c = toprung.distributed.matmul(a, b, out_placements=[Shard(0)])
    if dist.get_rank() == 0:
        print(f"product of {size} on {mesh.size()} ranks:\n{toprung.distributed.last_receipt()}\n", flush=True)
    # C·1 = A·(B·1), in float64 and by blocks, for a copy of a shard in float64 may not fit
    sums = torch.cat([block.double().sum(1) for block in b.to_local().split(1024)])
    sums = DTensor.from_local(sums, mesh, [Shard(0)], shape=torch.Size((size,)), stride=(1,)).full_tensor()
    right = torch.cat([block.double() @ sums for block in a.to_local().split(1024)])
    found = torch.cat([block.double().sum(1) for block in c.to_local().split(1024)])
    return float((found - right).abs().max() / right.abs().max())


def layer(mesh: DeviceMesh, width: int, options: dict[str, object]) -> float:
    """Train two tensor-parallel linear layers for a step; return the largest error of the output, against one process."""
    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width))
    whole, x = whole.to(mesh.device_type), torch.randn(64, width, device=mesh.device_type)
    with torch.no_grad():
        right = whole.double()(x.double())
    parts = parallelize_module(whole.float(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with toprung.torch.use(reproducible=True, **options):
        made = parts(x)
        made.square().mean().backward()
        if dist.get_rank() == 0:
            print(f"tensor-parallel layer of {width}:\n{toprung.torch.report()}\n", flush=True)
    return float((made.detach().double() - right).abs().max() / right.abs().max())


def main() -> None:
    """Run both on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--size", type=int, default=65536)
    parser.add_argument("--width", type=int, default=4096, help="inputs of the layer")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("this example runs in several processes: torchrun --nproc-per-node 2 examples/torch_several.py")
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
    mesh = init_device_mesh(options.device, (dist.get_world_size(),))
    errors = [product(mesh, options.size)]
    errors.append(layer(mesh, options.width, {"device_types": (options.device,), "own": options.device == "cpu"}))
    print(f"rank {dist.get_rank()}: errors of the product {errors[0]:.1e}, of the layer {errors[1]:.1e}")
    dist.destroy_process_group()
    sys.exit(max(errors) > 1e-5)


if __name__ == "__main__":
    main()
