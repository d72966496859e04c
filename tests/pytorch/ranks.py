"""Processes of one group, each running a function of a test module; as a program, one of them."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LONGEST = 240.0
"""Seconds after which a group is ended: far more than any needs on a slow machine."""


def started(function: str, folder: Path, world: int = 2, timeout: float = LONGEST) -> list[subprocess.Popen[bytes]]:
    """Start the processes of a group; ``function`` is ``module.name``, ``timeout`` the group's, seconds."""
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    command = [sys.executable, __file__, function, str(folder), str(world), str(timeout)]
    return [subprocess.Popen([*command, str(rank)], env={**os.environ, "PYTHONPATH": path}) for rank in range(world)]


def finished(processes: list[subprocess.Popen[bytes]], folder: Path, lost: bool = False) -> list[Any]:
    """Return what each rank's function returned, by rank; None for a rank that was killed. The last is not waited for if ``lost``.

    Raises
    ------
    AssertionError
        a rank that raised an error
    """
    try:
        for process in processes[:-1] if lost else processes:
            process.wait(LONGEST)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = [folder / f"{rank}.json" for rank in range(len(processes))]
    results = [json.loads(path.read_text()) if path.exists() else None for path in said]
    for result in results:
        assert result is None or "error" not in result, result["error"]
    return [result and result["result"] for result in results]


def run(function: str, folder: Path, world: int = 2, timeout: float = LONGEST) -> list[Any]:
    """Return what a function returns in each process of a group, by rank."""
    results = finished(started(function, folder, world, timeout), folder)
    assert None not in results
    return results


def main(function: str, folder: str, world: str, timeout: str, rank: str) -> None:
    """Run a function as one rank of a group on CPU tensors, on GPUs too where each rank has one, and store what it returns."""
    import torch
    import torch.distributed as dist

    module, _, name = function.rpartition(".")
    limit, how = datetime.timedelta(seconds=float(timeout)), "gloo"
    if torch.cuda.device_count() >= int(world) > 1:
        torch.cuda.set_device(int(rank))
        os.environ["NCCL_NVLS_ENABLE"], how = "0", "cpu:gloo,cuda:nccl"
    # the group's time limit runs from here: the import of PyTorch, slower in some ranks, must not count
    Path(folder, f"{rank}.here").touch()
    while len([*Path(folder).glob("*.here")]) < int(world):
        time.sleep(0.01)
    try:
        dist.init_process_group(how, init_method=f"file://{folder}/store", rank=int(rank), world_size=int(world), timeout=limit)
        said = {"result": getattr(importlib.import_module(module), name)()}
    except Exception:
        said = {"error": f"rank {rank}: {traceback.format_exc()}"}
    (Path(folder) / f"{rank}.tmp").write_text(json.dumps(said))
    (Path(folder) / f"{rank}.tmp").replace(Path(folder) / f"{rank}.json")
    os._exit(0)  # threads of a group whose peer was killed would be waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
