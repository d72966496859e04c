"""Machine code as a file: read without a GPU, and refused with the reason before a driver sees it."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trial
from conftest import require
from tables import refresh
from toprung import cli
from toprung.backends import cubin, nvrtc
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.errors import BadCubin, BadRecord, UnknownName
from toprung.kernels.build import build
from toprung.kernels.record import Own, kernel_source
from toprung.lab.harness import results
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, compare
from toprung.lab.harness.environment import environment
from toprung.lab.harness.single import FILE, HERE, LoadedRung
from toprung.lab.rung import rung
from toprung.lab.sass.machine_code import inspect_source
from toprung.oracle.gemm import Gemm

TEXT = """
extern "C" __global__ void __launch_bounds__(128) first(float *p, int n, double d, char c, const int *q)
{
    __shared__ float z[100];
    z[threadIdx.x % 100] = n;
    __syncthreads();
    p[0] = d + c + q[0] + z[5];
}
extern "C" __global__ void second(int k) {}
"""


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")


@cache
def code(arch: str = "sm_90") -> bytes:
    return nvrtc.compile_cubin(Source("two", TEXT, "first", {}, "cuda"), arch).code


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_cubin_says_what_it_is(arch: str) -> None:
    found = cubin.facts(code(arch), "two.cubin")
    assert found.arch == arch and set(found.kernels) == {"first", "second"}
    first, second = found.kernels["first"], found.kernels["second"]
    assert first.parameters == (8, 4, 8, 1, 8) and second.parameters == (4,)
    assert (first.threads, second.threads) == (128, None)
    assert first.shared_bytes in (400, 400 + 1024) and second.shared_bytes in (0, 1024)
    assert 0 < second.registers <= first.registers < 64


def test_registers_are_those_the_compiler_named() -> None:
    which = rung("kepler/r07")
    made = nvrtc.compile_cubin(kernel_source(which, which.tile_for(nvrtc.device_of("sm_90")), {}), "sm_90")
    found = cubin.check(made.code, "r07", "sm_90", "gemm")
    assert f"Used {found.registers} registers" in made.log
    assert found.threads == 256 and found.parameters == (4, 4, 4, 4, 8, 4, 8, 4, 4, 8, 4)


def test_another_architecture_is_refused() -> None:
    with pytest.raises(BadCubin, match=r"two\.cubin is machine code for sm_80, and the device is sm_90"):
        cubin.check(code("sm_80"), "two.cubin", "sm_90", "first")
    with pytest.raises(BadCubin, match="sm_90, and the device is sm_80"):
        cubin.check(code(), "two.cubin", "sm_80", "first")
    cubin.check(code("sm_80"), "two.cubin", "sm_86", "first")
    assert not cubin.runs_on("sm_86", "sm_80") and not cubin.runs_on("sm_90", "sm_100") and cubin.runs_on("sm_100", "sm_103")


def test_a_missing_kernel_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"no kernel of two\.cubin 'third'; there is: (first, second|second, first)"):
        cubin.check(code(), "two.cubin", "sm_90", "third")


def test_every_truncation_is_noticed() -> None:
    whole = code()
    for length in (*range(0, 400), *range(400, len(whole), 97), len(whole) - 1):
        with pytest.raises(BadCubin, match=r"two\.cubin"):
            cubin.facts(whole[:length], "two.cubin")


def test_damage_never_ends_in_anything_but_a_typed_error() -> None:
    whole = code()
    for at in range(0, len(whole), 13):
        for value in (0, 0xFF):
            damaged = bytearray(whole)
            damaged[at] = value
            try:
                cubin.facts(bytes(damaged), "two.cubin")
            except BadCubin as error:
                assert "two.cubin" in str(error)


@pytest.mark.parametrize(("content", "says"), [(b"", "no cubin"), (b"// PTX", "no cubin")])
def test_something_else_is_named(content: bytes, says: str) -> None:
    with pytest.raises(BadCubin, match=says):
        cubin.facts(content, "file")


def test_a_program_of_the_host_is_no_cubin() -> None:
    host = bytearray(code())
    struct.pack_into("<H", host, 18, 62)
    with pytest.raises(BadCubin, match="not for NVIDIA GPUs"):
        cubin.facts(bytes(host), "a.out")


def test_a_kernel_of_another_kind_is_not_launched() -> None:
    cubin.check_launch(code(), "two.cubin", "first", (128, 1, 1), (8, 4, 8, 1, 8))
    with pytest.raises(
        BadCubin, match=r"takes parameters of 4 bytes, and is to be launched with 8 4: it is no kernel of this rung"
    ):
        cubin.check_launch(code(), "two.cubin", "second", (1, 1, 1), (8, 4))
    with pytest.raises(BadCubin, match="blocks of 128 threads, and the rung's tile has 256"):
        cubin.check_launch(code(), "two.cubin", "first", (16, 16, 1), (8, 4, 8, 1, 8))


def without_reuse(path: Path, out: Path) -> None:
    """The example of docs/own-machine-code.md, run as it is printed."""
    page = (trial.ROOT / "docs" / "own-machine-code.md").read_text()
    (program,) = re.findall(r"^```python\n(# without_reuse.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program, str(path), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_round_trip_as_it_is_documented(tmp_path: Path) -> None:
    """Dump, disassemble, patch, disassemble: only the marks on the sources are gone."""
    dumped, patched = tmp_path / "r07.cubin", tmp_path / "patched.cubin"
    assert CliRunner().invoke(cli.app, ["inspect", "kepler/r07", "--cubin", str(dumped)]).exit_code == 0
    without_reuse(dumped, patched)
    which, device = rung("kepler/r07"), nvrtc.device_of("sm_90")
    tile = which.tile_for(device)
    before, after = (inspect_source(kernel_source(which, tile, {}, Own.read(p)), "sm_90") for p in (dumped, patched))
    compiled = inspect_source(kernel_source(which, tile, {}), "sm_90")
    assert before.counts == after.counts == compiled.counts
    assert before.loop.reads == compiled.loop.reads and before.loop.reads.marked > 0
    assert after.loop.reads.marked == after.loop.reads.kept == 0 and after.loop.reads.instructions == 1024
    assert (before.registers, before.stack_bytes, after.registers) == (compiled.registers, 0, compiled.registers)
    assert len(dumped.read_bytes()) == len(patched.read_bytes())


def test_a_rung_may_ship_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "__init__.py").write_text("TITLE, ROUTINE = 'own', 'gemm'\n")
    (folder / "r01_dumped.py").write_text("from toprung.lab.ladders.kepler.r07_wide_loads import RUNG\n")
    which = rung("kepler/r07")
    source = kernel_source(which, which.tile_for(nvrtc.device_of("sm_90")), {})
    (folder / "r01_dumped.cubin").write_bytes(nvrtc.compile_cubin(source, "sm_90").code)
    monkeypatch.setenv("TOPRUNG_LADDERS", str(tmp_path))
    shipped = rung("own/r01")
    found = kernel_source(shipped, shipped.tile_for(nvrtc.device_of("sm_90")), {})
    assert found.language == "cubin" and found.kernel == "gemm"
    assert inspect_source(found, "sm_90").counts == inspect_source(source, "sm_90").counts
    with pytest.raises(BadCubin, match="sm_90, and the device is sm_80"):
        inspect_source(found, "sm_80")


def test_run_command_verifies_and_times_one_kernel(device: Device, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = ["run", "kepler/r01", "--size", "33x35x37", "--device", device.id, "--json", str(out)]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0 and "GFLOP/s" in done.output, done.output
    (measured,) = results.read(out)["measurements"]
    assert measured.verdict["right"] and measured.competitor["name"] == "kepler/r01" and len(measured.seconds) == 5


def test_two_forms_of_a_rung_are_compared_in_turns(session: Session, tmp_path: Path) -> None:
    """On PoCL both forms are compiled here: what is tested is the comparison and its table."""
    which, problem = rung("kepler/r01"), Gemm(40, 40, 40)
    tile, plan = which.tile_for(session.device), ComparisonPlan(samples={"warm": 5}, tolerates=())
    forms = [LoadedRung(label, which, {}, tile) for label in (HERE, FILE)]
    rows = plan.rows(forms)
    assert [r.state for r in compare(PlacedProblem(problem, session), rows, plan)].count("done") == 2
    assert all(r.verdict and r.verdict.right for r in rows) and all(len(f.load_seconds) == 5 for f in forms)
    loads = [{"label": f.label, "compile_seconds": f.compile_seconds, "load_seconds": f.load_seconds} for f in forms]
    measured = [r.measurement for r in rows if r.measurement]
    results.write(tmp_path / "a.json", results.record("toprung run", environment(session), measured, loads=loads))
    table = refresh("<!-- toprung:loads kepler/r01 a.json -->\n<!-- toprung:end -->\n", tmp_path)
    assert table.count("| kepler/r01 |") == 2 and f"| {FILE} | 40 |" in table and " to " in table
    with pytest.raises(BadRecord, match="two forms"):
        refresh("<!-- toprung:loads kepler/r02 a.json -->\n<!-- toprung:end -->\n", tmp_path)


def test_run_command_refuses_bad_machine_code_before_a_device(device: Device, tmp_path: Path) -> None:
    def refused(*words: str, note: str = "") -> str:
        (tmp_path / "k.cubin.json").unlink(missing_ok=True)
        if note:
            (tmp_path / "k.cubin.json").write_text(note)
        done = CliRunner().invoke(cli.app, ["run", *words, "--device", device.id])
        assert isinstance(done.exception, (BadCubin, UnknownName)), done.output
        return str(done.exception)

    path = tmp_path / "k.cubin"
    given = ("kepler/r07", "--cubin", str(path))
    assert "cannot be read" in refused(*given)
    path.write_bytes(code()[:3000])
    assert "cut off" in refused(*given)
    path.write_bytes(code())
    assert "no kernel of" in refused(*given, "--kernel", "third")
    assert "name the rung" in refused("--cubin", str(path))
    assert "k.cubin.json is damaged" in refused("--cubin", str(path), note="[1]")
    assert "use a CUDA device" in refused(*given, "--kernel", "first")
    assert "give --cubin FILE" in refused("kepler/r07", "--kernel", "first")
    assert "name the rung" in refused()


def test_opencl_says_that_it_takes_no_machine_code(session: Session) -> None:
    which = rung("kepler/r07")
    with pytest.raises(BadCubin, match="use a CUDA device"):
        build(which, which.tile_for(session.device), {}, session, Own(code(), "two.cubin"))
