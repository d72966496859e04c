"""Speed and accuracy of all competitors on this machine's NVIDIA GPU: four records in a folder, in less than six minutes.

    python benchmarks/gpu_bench.py results/nvidia-h200

Correctness first; then every precision path beside cuBLAS, the same under load with energy, accuracy over the input
distributions, and cuBLAS over squares in four transposes. A part that runs out of time stores what it has.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from toprung import backends
from toprung.lab.baselines import peers
from toprung.lab.harness import results
from toprung.lab.harness.bench import competitors
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, compare
from toprung.oracle.gemm import TRANSPOSES, Gemm

BUDGET = 350.0
LAST = 10.0
RUNG = "kepler/r10"
SUSTAINED = "cublas,cublas_tf32,cublas_fp16,triton_tf32x3,triton_bf16x6"
HOSTILE = [
    *(Gemm(131, 67, 45, 0.7, beta, 150, 151, 152, trans) for trans in TRANSPOSES for beta in (0, 1.3)),
    *(Gemm(256, 128, 64, trans=trans) for trans in TRANSPOSES), Gemm(33, 17, 65, trans="TN", batch=5), Gemm(3, 3, 431),
]  # fmt: skip


def verify(device, names):
    """Every competitor on hostile operands: failures, a line each."""
    wrong = []
    with backends.opened(device) as session:
        for problem in HOSTILE:
            plan = ComparisonPlan(samples={"warm": 0})
            rows = plan.rows(competitors(names))
            for _ in compare(PlacedProblem(problem, session), rows, plan):
                pass
            wrong += [f"{r.who.name} {problem} α={problem.alpha} β={problem.beta}: {r.note}" for r in rows if r.failed]
    return wrong


def run(end, *words):
    """A toprung command, interrupted (it then stores what it has) when the time is over."""
    start = time.monotonic()
    command = [sys.executable, "-c", "from toprung.cli import main; main()", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=max(1.0, end - start))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    print(f"# {words[0]} {words[-1]}: exit {process.returncode}, {time.monotonic() - start:.0f} s", flush=True)
    if process.returncode not in (0, 130):
        print("\n".join(line for line in output.splitlines() if "%" not in line)[-3000:], flush=True)


def measurements(path):
    return results.read(path)["measurements"] if path.exists() else []


def table(folder):
    """The short table: what a reader wants to know first."""
    print("\ncuBLAS fp32, TFLOP/s (median, warm)")
    squares = {(m.problem["M"], m.problem["trans"]): m for m in measurements(folder / "squares.json")}
    for size in sorted({k[0] for k in squares}):
        cells = (f"{t} {squares[size, t].gflops / 1e3:6.2f}" for t in TRANSPOSES if (size, t) in squares)
        print(f"{size:6d}  " + "  ".join(cells))
    paths = measurements(folder / "paths.json")
    sizes = sorted({m.problem["M"] for m in paths})
    print("\nTFLOP/s at " + ", ".join(map(str, sizes)) + "; Frobenius error at the last")
    for name in dict.fromkeys(m.competitor["name"] for m in paths):
        own = {m.problem["M"]: m for m in paths if m.competitor["name"] == name and m.mode == "warm"}
        speeds = " ".join(f"{own[s].gflops / 1e3:7.2f}" if s in own else "      –" for s in sizes)
        print(f"{name:14s} {own[max(own)].competitor['precision']:7s} {speeds}  {own[max(own)].verdict['frobenius']:.2e}")
    print("\nsustained: TFLOP/s, W, MHz, pJ/flop")
    for m in measurements(folder / "sustained.json"):
        if m.mode == "sustained":
            energy = f"{m.energy / m.median:4.0f} W {m.energy / m.flops * 1e12:6.3f} pJ/flop" if m.energy else "no energy"
            print(f"{m.competitor['name']:14s} {m.problem['M']:6d} {m.gflops / 1e3:7.2f} {energy} {m.clock or 0:.0f} MHz")
    accuracy = folder / "accuracy.json"
    if accuracy.exists():
        graded = [g for g in results.read(accuracy)["graded"] if g["verdict"]]
        deepest = max(g["problem"]["K"] for g in graded)
        print(f"\ngrade ratio at K = {deepest}: uniform, positive, phi4; wrong on")
        for name in dict.fromkeys(g["competitor"]["name"] for g in graded):
            own = {
                g["distribution"]: g["verdict"] for g in graded if (g["competitor"]["name"], g["problem"]["K"]) == (name, deepest)
            }
            grades = " ".join(f"{own[d]['grade']:9.3g}" for d in ("uniform", "positive", "phi4") if d in own)
            print(f"{name:14s} {grades}  {' '.join(d for d, v in own.items() if not v['right']) or '–'}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    start = time.monotonic()
    end = start + BUDGET - LAST
    folder = Path(sys.argv[1])
    device = next((d for d in backends.devices() if d.backend == "cuda"), None)
    if device is None:
        sys.exit("no CUDA device: " + " ".join(backends.advice()))
    gpu_peers = [p for p in peers() if "gpu" in p.kinds]
    for p in gpu_peers:
        if reason := p.absent(device):
            print(f"# absent: {p.name}: {reason}")
    names = [p.name for p in gpu_peers if not p.absent(device)]
    names.sort(key=lambda n: n != "cublas")
    wrong = verify(device, [*names, RUNG])
    for line in wrong:
        print(f"WRONG {line}")
    seconds = time.monotonic() - start
    print(
        f"# correctness: {len(names) + 1} competitors, {len(HOSTILE)} problems, {len(wrong)} failures, {seconds:.0f} s", flush=True
    )
    everyone = ",".join([*names, RUNG])
    common = ("--device", device.id)
    run(end - 230, "bench", "--sizes", "1024,2048,4096,8192", "--peers", everyone, *common, "--json", folder / "paths.json")
    heavy = ",".join(n for n in SUSTAINED.split(",") if n in names)
    run(end - 160, "bench", "--sizes", "8192", "--peers", heavy, "--sustained", *common, "--json", folder / "sustained.json")
    run(end - 110, "accuracy", "--sizes", "64,512,4096,16384", "--peers", everyone, *common, "--json", folder / "accuracy.json")
    run(end, "bench", "--suite", "transposes", "--peers", "cublas", *common, "--json", folder / "squares.json")
    table(folder)
    print(f"# {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
