"""Check and time products over several GPUs of a host, and store them with the machine and the code.

    torchrun --nproc-per-node 2 benchmarks/several.py measured.json --sizes 16384,32768
    torchrun --nproc-per-node 2 benchmarks/several.py measured.json --precision fp32 --sizes 32768    # adds a run to the file

Options are those of ``python -m toprung.distributed bench``. ``toprung.distributed`` reads its speeds from such a file,
src/toprung/distributed/measured.json. ``python benchmarks/several.py measured.json --predict`` measures nothing: it predicts all
products of a file again, by the model as it is and the speeds of their run.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from toprung import backends
from toprung.distributed.__main__ import main, predicted
from toprung.lab.harness.environment import environment
from toprung.paths import deliver


def stored(path: Path, words: list[str]) -> int:
    """Run the bench, and add its measurements as a run to a file after each size; return the exit status."""
    runs = json.loads(path.read_text()) if path.exists() else []
    results: list[dict[str, Any]] = []

    def store(result: dict[str, Any]) -> None:
        results.append(result)
        if dist.get_rank() == 0:
            nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
            said = {**environment(backends.find()), "torch": torch.__version__, "nccl": nccl}
            deliver(path, (json.dumps([*runs, {"environment": said, "results": results}], indent=1) + "\n").encode())

    return main(["bench", *words], store)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    if sys.argv[2:] == ["--predict"]:
        runs = json.loads(path.read_text())
        for one in (one for run in runs for one in run["results"]):
            one["predicted"] = predicted(one)
        deliver(path, (json.dumps(runs, indent=1) + "\n").encode())
        sys.exit()
    status = stored(path, sys.argv[2:])
    dist.destroy_process_group()
    sys.exit(status)
