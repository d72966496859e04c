"""Everything to be measured on a GPU, in one run: hostile checks, then the ladders, stored as records.

    python benchmarks/gpu.py OUT [--ladders kepler] [--sizes 1024,2048,4096,6144] [--devices cuda:0,opencl:0] [--sanitize]
    python benchmarks/gpu.py OUT --families hopper_fp32x,hopper_inflight,hopper_presplit,hopper_inflight_split_k,hopper_strassen

First the hostile tests of tests/test_rungs.py on every device (nothing is timed if one fails), then each ladder through each
device, beside the vendor, into OUT/<ladder>-<backend>.json. With --sanitize, every rung once at a small odd size under
compute-sanitizer's memcheck and racecheck. Prints one short table last.

With --families only configurations drawn from kernel families run, on products with edges, under each of compute-sanitizer's tools.
OUT/sanitizer-<tool>.json has what was found, the configurations, and the hashes of the sources.
"""

import argparse
import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from toprung.lab.harness import results
from toprung.lab.rung import ladder as find

ROOT = Path(__file__).parent.parent
CHECKED = {"gemm": "33x35x37,129x65x70", "gemv": "33x35,129x257"}


def run(words: list[str], log: Path, **environment: str) -> bool:
    """Run a command, its output into a file; says how it ended."""
    with log.open("w") as file:
        code = subprocess.run(
            words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}, check=False
        ).returncode
    print(f"{'ok    ' if code == 0 else 'FAILED'} {' '.join(words[1:])[:110]}", flush=True)
    if code:
        print("\n".join(log.read_text().splitlines()[-25:]), flush=True)
    return code == 0


def sanitize(tool: str, device: str, ladder: str, out: Path) -> bool:
    """Every rung once under one of compute-sanitizer's tools; findings count as failure."""
    words = ("--device", device, "--ladder", ladder, "--sizes", CHECKED[find(ladder).routine])
    verify = [sys.executable, str(ROOT / "benchmarks/verify.py"), *words]
    return run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", *verify], out / f"{ladder}-{tool}.log")


EDGES = "NT:2*137x134x139,TT:265x135x331+3+3+5@1,bf/137x135x107+5+1,700x2x12,TN:2100x230x40"
ONLY = ("--kernel-regex", "kns=toprung")
"""PyTorch's own kernels, which make and check operands, would be most of the time."""
TOOLS = {
    "memcheck": (EDGES, "normal,wide", ONLY),
    "racecheck": (EDGES, "normal,wide", ONLY),
    "synccheck": (EDGES, "normal,wide", ONLY),
    # it must see what other kernels and copies write, so it looks at all of them, on one small product
    "initcheck": ("2*70x66x75", "normal", ("--check-api-memory-access", "no")),
}
"""Products, data and words of each tool."""


def sanitize_families(tool: str, families: str, out: Path, logs: Path) -> bool:
    """Check drawn configurations of families under one of compute-sanitizer's tools, and store what it found.

    Each product is checked in a process of its own, all at once: the tools take the host's time, not the device's.
    """
    drawn = ",".join(f"any/{name}:3" for name in families.split(","))
    shapes, data, more = TOOLS[tool]
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", *more]
    words += [sys.executable, str(ROOT / "benchmarks/candidates.py")]

    def check(number: int, shape: str) -> tuple[bool, Path, Path]:
        part, log = logs / f"{tool}-{number}.json", logs / f"families-{tool}-{number}.log"
        which = ["--shapes", shape, "--candidates", drawn, "--data", data, "--peers", "", "--rounds", "0"]
        return run([*words, str(part), *which], log), part, log

    with ThreadPoolExecutor() as pool:
        checked = list(pool.map(check, itertools.count(), shapes.split(",")))
    good = all(right for right, _, _ in checked)
    records = [results.read(part) for _, part, _ in checked if part.exists()]
    lines = [line for _, _, log in checked for line in log.read_text().splitlines() if line.startswith("=========")]
    found = list(dict.fromkeys(line.removeprefix("=========").strip() for line in lines))
    if len(records) == len(checked):
        whole: dict[str, Any] = {name: [one for record in records for one in record[name]] for name in ("candidates", "failures")}
        kernels = {name: hash_ for record in records for name, hash_ in record["environment"]["kernels"].items()}
        whole["what"] = f"python benchmarks/gpu.py OUT --families {families} --tools {tool}"
        whole["environment"] = {**records[0]["environment"], "kernels": dict(sorted(kernels.items()))}
        results.write(
            out / f"sanitizer-{tool}.json", {**records[0], **whole, "sanitizer": {"tool": tool, "good": good, "printed": found}}
        )
    return good


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--ladders", default="kepler")
    arguments.add_argument("--sizes", default="1024,2048,4096,6144")
    arguments.add_argument("--devices", default="cuda:0,opencl:0")
    arguments.add_argument("--sanitize", action="store_true")
    arguments.add_argument("--families", help="with commas: only check these kernel families under compute-sanitizer")
    arguments.add_argument("--tools", default=",".join(TOOLS))
    chosen = arguments.parse_args()
    logs = chosen.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if chosen.families:
        with ThreadPoolExecutor() as pool:
            return sum(
                not g for g in pool.map(lambda t: sanitize_families(t, chosen.families, chosen.out, logs), chosen.tools.split(","))
            )
    good = True
    for device in chosen.devices.split(","):
        words = [sys.executable, "-m", "pytest", "-m", "not slow", str(ROOT / "tests/test_rungs.py")]
        right = run(words, logs / f"hostile-{device.replace(':', '')}.log", TOPRUNG_TEST_DEVICE=device)
        good &= right
        if not right:
            continue
        for ladder in chosen.ladders.split(","):
            if chosen.sanitize and device.startswith("cuda"):
                good &= sanitize("memcheck", device, ladder, logs)
                good &= sanitize("racecheck", device, ladder, logs)
            name = f"{ladder}-{device.partition(':')[0]}"
            log = logs / f"{name}.log"
            words = ["ladder", ladder, "--device", device, "--sizes", chosen.sizes, "--json", str(chosen.out / f"{name}.json")]
            good &= run([sys.executable, "-c", "from toprung.cli import main; main()", *words], log)
            print(log.read_text()[log.read_text().rfind("GFLOP/s over size") :], flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
