"""Run the tests that need an NVIDIA GPU, and keep their log with git's hash of ``src`` in ``results/<device>/gpu-tests.txt``.

    python tools/gpu_tests.py [words for pytest]

CuPy, JAX and PyTorch must be there: a test that is skipped for want of one would say nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from toprung import backends
from toprung.errors import ToprungError
from toprung.lab.harness.environment import environment

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "cupy", "jax", "pytest", "hypothesis")
TESTS = ("tests/pytorch", *(f"tests/{p.name}" for p in sorted((ROOT / "tests").glob("test_cupy*.py"))), "tests/test_jax.py")


def main(words: list[str]) -> int:
    """Run the tests, print what they say, and write the log; return pytest's exit status, or 1 where something is missing."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        print(f"these packages are missing: {', '.join(missing)}", file=sys.stderr)
        return 1
    try:
        device = backends.find("cuda")
    except ToprungError as error:
        print(f"there is no GPU: {error}", file=sys.stderr)
        return 1
    known = environment(device)
    options = ("-o", "addopts=", "--strict-markers", "-p", "no:cacheprovider", "-q", "-rs")
    command = [sys.executable, "-m", "pytest", *options, *TESTS, *words]
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    print(done.stdout)
    packages = {name: importlib.metadata.version(name) for name in ("torch", "jax", "numpy")}
    head = [f"{key}: {known[key]}" for key in ("date", "commit", "src", "python", "device", "driver") if key in known]
    log = ROOT / "results" / device.slug / "gpu-tests.txt"
    log.parent.mkdir(exist_ok=True)
    # what failed (the headings of tracebacks), what was skipped, and the count; tracebacks name folders of the machine
    said = [one for one in done.stdout.splitlines() if re.match(r"_{2,} \S.* _{2,}$|SKIPPED|\d+ (passed|failed)", one)]
    log.write_text("\n".join([*head, f"packages: {packages}", f"tests: {' '.join([*TESTS, *words])}", "", *said, ""]))
    print(f"kept in {log.relative_to(ROOT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
