"""Count how many clusters a GPU runs at once, by cluster size and blocks that an SM has room for: a record.

    python benchmarks/clusters.py results/nvidia-h100-80gb-hbm3/clusters.json

``counted`` is what the driver says, and ``CLUSTERS`` of ``kernels/cost_model.py``. Blocks that wait some microseconds confirm it:
``at_once`` is the largest number of clusters that take as long as one does, and ``spread`` up to how many clusters no SM has more
than one block, two and so on.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from toprung.arrays.base import Home
from toprung.arrays.sessions import session_at
from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.backends.plan import Address, C, KernelLaunch, Plan
from toprung.kernels.build import kernel_of
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

SIZES = range(2, 9)
ROOM = {1: 120_000, 2: 100_000, 3: 70_000, 4: 54_000}
"""Shared memory of a block by the blocks that an SM then has room for."""
CYCLES, LONGER, TRIES = 40_000, 1.4, 9
TEXT = """
extern "C" __global__ __cluster_dims__(SIZE, 1, 1) void wait_a_while(unsigned *sms, long long cycles) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) sms[blockIdx.x] = sm;
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


def counted(session: Any, size: int, each: int) -> dict[str, Any]:
    """Return the counts for clusters of so many blocks, of which an SM has room for ``each``."""
    source = Source("clusters", TEXT, "wait_a_while", {"SIZE": size, DYNAMIC_SHARED: ROOM[each]}, "cuda")
    kernel: Any = kernel_of(session, source)
    sms = torch.empty(4096, dtype=torch.int32, device="cuda")

    def seconds(clusters: int) -> float:
        run = session.launcher(Plan([KernelLaunch("wait", kernel, (size * clusters,), (64,), (Address(C), np.int64(CYCLES)))]))
        found = []
        for _ in range(TRIES):
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run(0, 0, 0, 0, sms.data_ptr(), 0, 1.0, 0.0, torch.cuda.current_stream().cuda_stream)
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) / 1e3)
        return min(found)

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY, config.blockDimZ = size, 1, 1, 64, 1, 1
    config.sharedMemBytes = ROOM[each]
    status, said = driver.cuOccupancyMaxActiveClusters(kernel.function, config)
    one, most, spread = seconds(1), 0, []
    for clusters in range(1, each * session.device.compute_units // size + 2):
        if seconds(clusters) > LONGER * one:
            break
        most = clusters
        busiest = max(Counter(sms[: size * clusters].tolist()).values())
        spread += [clusters] * (busiest - len(spread))
        spread[busiest - 1] = clusters
    return {"size": size, "each": each, "at_once": most, "counted": said if not int(status) else None, "spread": spread}


def main() -> None:
    """Count and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    begin, session = time.monotonic(), session_at(Home("cuda", 0))
    rows = [counted(session, size, each) for size in SIZES for each in ROOM]
    what = f"python benchmarks/clusters.py results/{session.device.slug}/{options.out.name}"
    results.write(options.out, results.record(what, environment(session.device), [], [], clusters=rows))
    for size in SIZES:
        print(size, *(f"{r['at_once']} ({r['counted']}; {r['spread']})" for r in rows if r["size"] == size))
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
