"""Run the tests that need an NVIDIA GPU, and keep their log in ``results/<device>/gpu-tests.txt``.

    python tools/gpu_tests.py [words for pytest]
    python tools/gpu_tests.py --again tests/pytorch/test_switch.py    # run these alone, and add them to the log

The log has git's hash of ``src``. CuPy, JAX and PyTorch must be there: a test that is skipped for want of one would say nothing.
pytest prints each file with a sign for each of its tests as it ends. A test that hangs fails, or ends the run and has its stack
printed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from toprung import backends
from toprung.errors import ToprungError
from toprung.lab.harness.environment import environment

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "cupy", "jax", "pytest", "hypothesis")
TESTS = ("tests/pytorch", *(f"tests/{p.name}" for p in sorted((ROOT / "tests").glob("test_cupy*.py"))), "tests/test_jax.py")

LIMIT = 300.0
"""Seconds that one test may take; all tests together take 230 on an H200."""


def run(tests: Sequence[str], words: Sequence[str], limit: float = LIMIT) -> tuple[int, list[str]]:
    """Run tests, print their lines as they come, and return pytest's exit status and the lines."""
    # pytest-timeout fails a test that waits in Python; one that waits in C ends the process, and faulthandler shows the stack
    limits = [f"--timeout={limit}"] if importlib.util.find_spec("pytest_timeout") else []
    limits += ["-o", f"faulthandler_timeout={limit * 1.2}", "-o", "faulthandler_exit_on_timeout=true"]
    options = ("-o", "addopts=", "--strict-markers", "-p", "no:cacheprovider", "-rs", "--durations=20", "--durations-min=5")
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    lines = []
    command, env = [sys.executable, "-u", "-m", "pytest", *options, *limits, *tests, *words], {**os.environ, "PYTHONPATH": paths}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, **output) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return process.returncode, lines


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
    again = words[:1] == ["--again"]
    given = words[1:] if again else [*TESTS, *words]
    code, lines = run((), given)
    packages = {name: importlib.metadata.version(name) for name in ("torch", "jax", "numpy")}
    head = [f"{key}: {known[key]}" for key in ("date", "commit", "src", "python", "device", "driver") if key in known]
    log = ROOT / "results" / device.slug / "gpu-tests.txt"
    log.parent.mkdir(exist_ok=True)
    # what failed (the headings of tracebacks), what was skipped, and the count; tracebacks name folders of the machine
    said = [one.strip("= ") for one in lines if re.match(r"_+ [^_].* _+$|SKIPPED|=+ .* in [\d.]+s|Timeout \(", one)]
    before = [log.read_text(), "Again, these tests alone:"] if again else []
    log.write_text("\n".join([*before, *head, f"packages: {packages}", f"tests: {' '.join(given)}", "", *said, ""]))
    print(f"kept in {log.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
