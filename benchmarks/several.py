"""Products over several GPUs of a host, checked and timed, as a JSON file with the machine and the code.

    torchrun --nproc-per-node 2 benchmarks/several.py measured.json --sizes 16384,32768
    torchrun --nproc-per-node 2 benchmarks/several.py measured.json --precision fp32 --sizes 32768    # adds a run to the file

Options are those of ``python -m toprung.distributed bench``. ``toprung.distributed`` reads its speeds from such a file,
src/toprung/distributed/measured.json.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from toprung import backends
from toprung.distributed.__main__ import main
from toprung.lab.harness.environment import environment
from toprung.paths import deliver

if __name__ == "__main__":
    path, found = Path(sys.argv[1]), []
    status = main(["bench", *sys.argv[2:]], found)
    if dist.get_rank() == 0:
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
        said = {**environment(backends.find()), "torch": torch.__version__, "nccl": nccl}
        runs = json.loads(path.read_text()) if path.exists() else []
        deliver(path, (json.dumps([*runs, {"environment": said, "results": found}], indent=1) + "\n").encode())
    dist.destroy_process_group()
    sys.exit(status)
