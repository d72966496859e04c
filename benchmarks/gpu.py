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
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    print(f"{'ok    ' if code == 0 else 'FAILED'} {log.stem}", flush=True)
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


def sanitize_families(tools: list[str], families: list[str], out: Path, logs: Path, seconds: float) -> bool:
    """Check drawn configurations of families under compute-sanitizer's tools, and store the findings.

    Each family multiplies each product in a process of its own, as many at once as there are cores: the tools take the host's
    time. A run without a tool comes first, so that they watch no compiler. A process that exceeds its time limit is ended.
    """
    end = time.monotonic() + seconds
    check = [sys.executable, str(ROOT / "benchmarks/candidates.py")]
    named = ["--peers", "", "--rounds", "0", "--candidates"]
    shapes = ",".join(dict.fromkeys(TOOLS[tool][0] for tool in tools))
    drawn = ",".join(f"any/{name}:3" for name in families)
    if not run([*check, str(logs / "plain.json"), "--shapes", shapes, "--data", "normal", *named, drawn], logs / "plain.log"):
        return False

    def checked(tool: str, shape: str, family: str) -> tuple[bool, Path]:
        part = logs / f"{tool}-{shape.replace('/', '-').replace('*', 'x')}-{family}.json"
        part.unlink(missing_ok=True)
        words = ["timeout", "-s", "KILL", f"{max(1.0, end - time.monotonic()):.0f}"]
        words += ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", *TOOLS[tool][2], *check, str(part)]
        data = "normal" if family == "hopper_strassen" else TOOLS[tool][1]  # it bounds errors by norms, not by rows and columns
        words += ["--shapes", shape, "--data", data, *named, f"any/{family}:3"]
        return run(words, part.with_suffix(".log")), part

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        asked = [(tool, shape, family) for tool in tools for shape in TOOLS[tool][0].split(",") for family in families]
        done = list(zip(asked, pool.map(checked, *zip(*asked, strict=True)), strict=True))
    for tool in tools:
        parts = [(f"{shape} {family}", good, part) for (of, shape, family), (good, part) in done if of == tool]
        logged = {of: part.with_suffix(".log").read_text() for of, _, part in parts}
        late = [f"{of}: not ended" for of, text in logged.items() if "SUMMARY" not in text]
        lines = [line for text in logged.values() for line in text.splitlines() if line.startswith("=========")]
        found = list(dict.fromkeys(line.removeprefix("=========").strip() for line in lines))
        good = all(right for _, right, _ in parts)
        ended = f"{len(parts) - len(late)} of {len(parts)} ended"
        print(f"{tool}: {'good' if good else 'NOT GOOD'}, {ended}", *late, sep="\n  ", flush=True)
        if records := [results.read(part) for _, _, part in parts if part.exists()]:
            kernels = {name: hash_ for record in records for name, hash_ in record["environment"]["kernels"].items()}
            whole = {
                **records[0],
                "what": f"python benchmarks/gpu.py OUT --families {','.join(families)} --tools {tool}",
                "environment": {**records[0]["environment"], "kernels": dict(sorted(kernels.items()))},
                "candidates": [row for record in records for row in record["candidates"]],
                "failures": [text for record in records for text in record["failures"]] + late,
                "sanitizer": {"tool": tool, "good": good, "printed": found},
            }
            results.write(out / f"sanitizer-{tool}.json", whole)
    return all(good for _, (good, _) in done)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--ladders", default="kepler")
    arguments.add_argument("--sizes", default="1024,2048,4096,6144")
    arguments.add_argument("--devices", default="cuda:0,opencl:0")
    arguments.add_argument("--sanitize", action="store_true")
    arguments.add_argument("--families", help="with commas: only check these kernel families under compute-sanitizer")
    arguments.add_argument("--tools", default=",".join(TOOLS))
    arguments.add_argument("--seconds", type=float, default=600, help="after which --families ends what is not done")
    chosen = arguments.parse_args()
    logs = chosen.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if chosen.families:
        families, tools = chosen.families.split(","), chosen.tools.split(",")
        return 0 if sanitize_families(tools, families, chosen.out, logs, chosen.seconds) else 1
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
