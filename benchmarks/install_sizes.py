"""Measure the disk space of an installation with each extra: a new environment each, filled by pip from the wheel of this checkout.

python benchmarks/install_sizes.py results/amd-epyc/install-sizes.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from toprung import backends
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("", "cuda", "cuda12", "cuda13", "intel", "plot", "report", "tune")


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def packages(python):
    """Return the bytes of every installed package, by the files it lists."""
    program = (
        "import importlib.metadata as m, json; print(json.dumps({d.name: sum(f.locate().stat().st_size for f in d.files or () "
        "if f.locate().exists()) for d in m.distributions()}))"
    )
    return json.loads(run(python, "-c", program))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    chosen = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
        (wheel,) = Path(folder).glob("*.whl")
        for extra in EXTRAS:
            place = Path(folder) / f"env-{extra}"
            run(sys.executable, "-m", "venv", place)
            python = place / "bin" / "python"
            before = packages(python)
            run(python, "-m", "pip", "install", "-q", "--no-compile", f"{wheel}[{extra}]" if extra else wheel)
            found = {name: size for name, size in packages(python).items() if name not in before}
            rows.append({"extra": extra, "bytes": sum(found.values()), "packages": found})
            largest = ", ".join(sorted(found, key=found.get, reverse=True)[:3])
            print(f"{extra or 'none':8s} {sum(found.values()) / 1e6:8.0f} MB  {len(found):3d} packages  {largest}")
    device = backends.find("pocl")
    what = f"python benchmarks/install_sizes.py results/{device.slug}/{chosen.out.name}"
    with backends.opened(device) as session:
        results.write(chosen.out, results.record(what, environment(session), [], installations=rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
