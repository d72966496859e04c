"""Instructions that the override in C++ adds to a product that is left to PyTorch, counted by callgrind."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import require
from toprung.backends import cxx
from toprung.errors import BuildError
from torch_device import ELSEWHERE, native
from under_callgrind import CALLS, PRODUCTS, SEVERAL

MARKS = """
#include <valgrind/callgrind.h>
extern "C" __attribute__((visibility("default"))) void start() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" __attribute__((visibility("default"))) void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
"""

HEAP = ("malloc", "calloc", "realloc", "free", "posix_memalign")
"""Functions that are left out: their cost depends on all that was allocated before."""

LIMITS = {"small": 150, "left": 600}
"""Most instructions more than PyTorch alone: of a product under the size gate, and of one of a kind that was left before."""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the limits are of x86-64's instructions")
def test_a_product_that_is_left_costs_few_instructions_more(tmp_path: Path) -> None:
    require(shutil.which("valgrind"), "valgrind is not installed (Debian: apt install valgrind)")
    source, marks, log = tmp_path / "marks.cpp", tmp_path / "marks.so", tmp_path / "log"
    source.write_text(MARKS)
    try:
        cxx.compile_library(marks, [source])
    except BuildError:
        require(False, "valgrind's headers are not installed")
    options = ["--instr-atstart=no", "--combine-dumps=yes", f"--callgrind-out-file={log}"]
    options += [*(f"--toggle-collect={name}" for name in HEAP), "--collect-atstart=yes"]
    program = [sys.executable, str(Path(__file__).with_name("under_callgrind.py")), str(marks), native()._name]
    alone = {
        "PYTHONMALLOC": "malloc",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", *options, *program], env={**ELSEWHERE, **alone}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, list[float]] = {}
    for name, count in re.findall(r"^desc: Trigger: Client Request: (.+)$(?s:.*?)^summary: (\d+)", log.read_text(), re.M):
        counts.setdefault(name, []).append(int(count) / CALLS)
    more = {
        f"{settings} {product}": (min(counts[f"{settings} {product}"]) - min(counts[f"PyTorch {product}"]))
        / SEVERAL.get(product, 1)
        for settings in LIMITS
        for product in PRODUCTS
    }
    assert not {name: round(count) for name, count in more.items() if count > LIMITS[name.split()[0]]}, more
