"""The name PoCL is given for a CPU its LLVM does not know."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from toprung.backends import pocl_cpu
from toprung.device import Device

FLAGS = "flags\t\t: fpu sse4_2 popcnt avx2 fma bmi1 bmi2 f16c"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (f"{FLAGS} avx512f avx512bw avx512cd avx512dq avx512vl", "skylake-avx512"),
        (f"{FLAGS} avx512f", "haswell"),  # part of AVX-512 is not enough
        ("flags : sse4_2 popcnt avx2", "nehalem"),
        ("flags : sse2", ""),
        ("Features : asimd", ""),
    ],
)
def test_no_name_promises_instructions_that_are_not_there(cpuinfo: str, name: str) -> None:
    assert pocl_cpu._best_name(cpuinfo) == name


def test_what_is_no_library_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit x86 library"):
        pocl_cpu._symbols(b"#!/bin/sh\n" + bytes(64), (b"main",))
    other = bytearray(b"\x7fELF\x02\x01" + bytes(58))
    struct.pack_into("<H", other, 18, 183)  # another machine's
    with pytest.raises(ValueError, match="not a 64-bit x86 library"):
        pocl_cpu._symbols(bytes(other), (b"main",))


def test_a_name_is_given_only_where_none_is_known(device: Device) -> None:
    """Whatever was done here, kernels build: the other tests show that. Asked again, the answer stays the same."""
    given = pocl_cpu.help_if_unknown()
    assert given == pocl_cpu.help_if_unknown()
    assert given in ("", pocl_cpu._best_name(Path("/proc/cpuinfo").read_text()))
    assert "generic" not in device.runtime


THREADS = """
import sys, threading
import pyopencl
from toprung.backends import pocl_cpu

pyopencl.get_platforms()
start, said = threading.Barrier(8), []

def work():
    start.wait()
    said.append(pocl_cpu.help_if_unknown())

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(len(said), len(set(said)))
"""


def test_threads_that_look_first_give_the_name_once(device: Device) -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8 1\n", "")
