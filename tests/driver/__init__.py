"""Driver's calls: products on a stand-in for NVIDIA's driver library (libcuda.c), which writes down what it is asked to do.

``launches.txt`` in ``tests/golden`` has the calls of each product of ``products.py``; ``python -m tests.golden`` writes it anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import once
from toprung import store
from toprung.backends import nvrtc

SOURCE = Path(__file__).with_name("libcuda.c")
GOLDEN = SOURCE.parents[1] / "golden" / "launches.txt"
FLAGS = ("-x", "c", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1")
Fault = tuple[str, str, str]


@contextlib.contextmanager
def installed(compiler: str = "gcc") -> Iterator[str]:
    """Make a folder where the stand-in is found as the driver's library, for the length of a ``with`` block."""
    with tempfile.TemporaryDirectory() as folder:
        library = once.shared_object(SOURCE.read_text(), (*FLAGS, *(f"-I{p}" for p in nvrtc.include_paths())), compiler=compiler)
        Path(folder, "libcuda.so.1").symlink_to(library)
        yield folder


def recorded(jobs: Sequence[tuple[Sequence[str], Sequence[Fault]]], entry: str | None = None) -> list[dict[str, str]]:
    """Return what each job's cases, all if it names none, ask of the driver, with a job's faults planted; by name of the case.

    ``entry``: file of the extension module whose launcher takes the place of Python's; None: Python's.
    """
    with installed() as folder:
        paths = {"PYTHONPATH": str(SOURCE.parents[1]), "LD_LIBRARY_PATH": folder}
        more = {name: os.pathsep.join(filter(None, (path, os.environ.get(name)))) for name, path in paths.items()}
        own = {"TOPRUNG_DRIVER_LOG": str(Path(folder, "log")), "TOPRUNG_CACHE": folder}  # its kernels do nothing: no one else's
        env = {**os.environ, **more, **own, store.VARIABLE: "off"}
        if entry is not None:
            env["TOPRUNG_NATIVE"] = entry
        done = subprocess.run(
            [sys.executable, "-m", "driver.products"],
            input=json.dumps(jobs),
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def golden() -> dict[str, str]:
    """Return what is recorded, by name of the case."""
    cases = GOLDEN.read_text().removeprefix("# ").rstrip("\n").split("\n# ")
    return {name: calls for name, _, calls in (case.partition("\n") for case in cases)}


def write() -> None:
    """Write what is recorded anew."""
    (found,) = recorded([([], [])])
    GOLDEN.write_text("\n".join("\n".join(filter(None, (f"# {name}", calls))) for name, calls in found.items()) + "\n")
