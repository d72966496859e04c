"""Particulars of the hopper ladder: what its kernels are made of, what it says elsewhere, two vendors, tables of fp32x."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import require
from test_results import DEVICE, VERDICT
from test_shares import table
from toprung import cli
from toprung.backends import nvrtc
from toprung.backends.base import Session
from toprung.errors import BadRung, IllegalTile, Unsupported
from toprung.kernels.record import kernel_source, with_includes
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness import results
from toprung.lab.harness.climb import find_vendors, runnable
from toprung.lab.harness.compare import Row
from toprung.lab.harness.measure import Measurement
from toprung.lab.routines.base import method, routine
from toprung.lab.rung import ladder, rung
from toprung.lab.sass.machine_code import MachineCode, classify, inspect_source
from toprung.oracle.gemm import Gemm
from toprung.report.table import ladder_table
from toprung.tile import Tile

LADDER = ladder("hopper")
RUNGS = LADDER.rungs


@functools.cache
def compiled(name: str) -> MachineCode:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    one, device = rung(name), nvrtc.device_of("sm_90")
    code = inspect_source(kernel_source(one, one.tile_for(device), one.options(device)), "sm_90")
    assert code.spill_stores == code.spill_loads == 0
    return code


def test_promises() -> None:
    assert [r.precision for r in RUNGS] == ["fp16"] * 5 + ["fp32x"] * 5 + ["fp32x-strassen"]
    assert [RungCompetitor(r).promise.precision for r in RUNGS] == [r.precision for r in RUNGS]
    assert all(hasattr(method(r), "BRINGS") for r in RUNGS)
    assert routine("gemm") is method(rung("kepler/r01"))


def test_threads_move_tiles_on_rung_1_only() -> None:
    first, third = compiled("hopper/r01"), compiled("hopper/r03")
    assert first.loop.counts["LDG.128"] == first.loop.counts["STS.128"] == 16 and not first.counts.get("UTMALDG")
    assert not any(kind.startswith(("LDG", "STS", "LDS", "BAR", "UTMALDG")) for kind in third.loop.counts)
    assert third.counts["UTMALDG"] == third.counts["USETMAXREG"] == 2


def test_two_blocks_of_rung_3_fit() -> None:
    third = rung("hopper/r03")
    assert compiled("hopper/r03").registers * 2 * (third.tile_for(nvrtc.device_of("sm_90")).work_items + third.more_items) <= 65536
    with pytest.raises(IllegalTile, match="two rings fit"):
        third.check(Tile(BM=128, BN=128, BK=64, TM=4, TN=32, STAGES=4), {}, nvrtc.device_of("sm_90"))


@pytest.mark.slow
def test_products_a_step_are_those_the_pages_say() -> None:
    """Instructions of 16 of K each: 128×128×64 by those of 64×128 or of 64×256 for each of two consumers; three products of 32."""
    assert [compiled(f"hopper/r{n:02}").loop.counts["HGMMA"] for n in (1, 2, 3, 4, 5, 6)] == [8, 8, 8, 4, 4, 6]
    assert compiled("hopper/r06").loop.counts["FADD"] == 64  # every sum is promoted once a step


@pytest.mark.slow
def test_nothing_is_serialized() -> None:
    """The compiler says so where it must wait for products one by one."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    device = nvrtc.device_of("sm_90")
    for r in RUNGS:
        assert "serialized" not in nvrtc.compile_cubin(kernel_source(r, r.tile_for(device), r.options(device)), "sm_90").log


def test_the_narrowing_helper_compiles_for_any_gpu() -> None:
    from toprung.backends.base import Source

    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    text = RUNGS[0].source.with_name("narrow.cu").read_text()
    code = inspect_source(Source("hopper/narrow", text, "narrow", {}, "cuda"), "sm_90")
    assert code.local_bytes == 0 and code.shared_bytes == 64 * 66 * 2


def test_includes_become_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\nint a;\n')
    (tmp_path / "b.cuh").write_text("int b;\n")
    text = with_includes('// first\n#include "a.cuh" // why\nint c;\n', tmp_path)
    lines = [line for line in text.splitlines() if line]
    assert lines == ["// first", '#line 1 "a.cuh"', '#line 1 "b.cuh"', "int b;", "#line 2", "int a;", "#line 3", "int c;"]
    (tmp_path / "beside").mkdir()
    assert with_includes('#include "../beside/../a.cuh"\n', tmp_path) == '#include "../beside/../a.cuh"\n', "no other way out"
    assert "int b;" in with_includes(f'#include "../{tmp_path.name}/b.cuh"\n', tmp_path / "beside" / "..")
    (tmp_path / "beside" / "inner").mkdir()
    (tmp_path / "beside" / "d.cuh").write_text('#include "../b.cuh"\nint d;\n')
    lines = with_includes('#include "../../beside/d.cuh"\n', tmp_path / "beside" / "inner").splitlines()
    wanted = ['#line 1 "d.cuh"', '#line 1 "b.cuh"', "int b;", "#line 2", "int d;", "#line 2"]
    assert [line for line in lines if line] == wanted, "names are relative to the file that includes"
    with pytest.raises(BadRung, match=r"has no c\.cuh"):
        with_includes('#include "c.cuh"\n', tmp_path)


def test_elsewhere_it_says_what_is_missing(session: Session) -> None:
    device = session.device
    with pytest.raises(Unsupported, match=r"no rung of hopper .* CUDA C\+\+.*toprung inspect hopper"):
        runnable(RUNGS, [device])
    older = replace(nvrtc.device_of("sm_80"), name="older")
    with pytest.raises(Unsupported, match=r"SM 9\.0's .* this is sm_80"):
        runnable(RUNGS, [older])
    hopper = nvrtc.device_of("sm_90")
    assert runnable(RUNGS, [device, hopper]) == [hopper] and runnable([], [device]) == [device]
    vendors, why = find_vendors(device, LADDER)
    assert not vendors and why.count("needs an NVIDIA GPU") == 2


def test_the_command_refuses_before_it_starts(session: Session) -> None:
    done = CliRunner().invoke(cli.app, ["ladder", "hopper", "--device", session.device.id, "--sizes", "64"])
    assert isinstance(done.exception, Unsupported)  # which main() reports with status 2


def test_classes_of_instructions() -> None:
    opcodes = ("HGMMA.64x256x16.F32", "UTMALDG.2D.MULTICAST", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "WARPGROUP.ARRIVE")
    assert [classify(o) for o in (*opcodes, "USETMAXREG.DEALLOC.CTAPOOL")] == [
        "HGMMA", "UTMALDG", "SYNCS", "WARPGROUP", "USETMAXREG",
    ]  # fmt: skip


def measured(number: int, precision: str, seconds: float, helpers: float = 0.0, name: str = "") -> Measurement:
    who = {"kind": "rung" if number else "peer", "name": name or f"hopper/r{number:02}", "ladder": "hopper", "number": number,
           "idea": name or f"idea {number}", "variant": "", "precision": precision, "tile": {}}  # fmt: skip
    p = Gemm(1000, 1000, 1000)
    return Measurement(who, p.describe(), p.flops, p.min_bytes, VERDICT, (seconds,), (helpers,), 1, (1000.0,))


ALL = (
    measured(0, "fp16", 4e-6, name="narrow vendor"), measured(0, "fp32", 40e-6, name="plain vendor"),
    measured(1, "fp16", 10e-6, helpers=5e-6), measured(2, "fp32x", 20e-6, helpers=5e-6),
)  # fmt: skip


def test_each_is_held_against_its_own_vendor() -> None:
    """Narrowed operands are the narrow vendor's for nothing, so a rung's helper does not count there; splitting counts."""
    assert [m.baseline(ALL) for m in ALL[2:]] == [ALL[0], ALL[1]]
    assert ALL[2].share_of(ALL[0]) == pytest.approx(4 / 5) and ALL[3].share_of(ALL[1]) == pytest.approx(40 / 20)
    assert ALL[3].baseline(ALL[:1]) == ALL[0] and ALL[3].baseline(()) is None


def test_tables_with_two_vendors(tmp_path: Path) -> None:
    device = {**DEVICE, "peak_gflops": 2000.0, "clock_mhz": 1000.0}
    environment = {"date": "2026-01-02T03:04:05", "commit": "abc", "packages": {}, "device": device}
    results.write(tmp_path / "a.json", results.record("toprung ladder hopper", environment, ALL))
    _, _, *rows = table(tmp_path, "ladder a.json?")
    assert [(r[0], r[1]) for r in rows] == [("0", "narrow vendor"), ("0", "plain vendor"), ("1", "idea 1"), ("2", "idea 2")]
    assert rows[2][2] == "**400,000**" and rows[3][2] == "100,000", "no share of the fp32 peak, the helper left out on rung 1 only"
    head, _, one = table(tmp_path, "rung r01 a.json")
    cells = dict(zip(head, one, strict=True))
    assert (cells["GFLOP/s"], cells["kernel alone"], cells["% of vendor"]) == ("200,000", "400,000", "80.0")


def test_a_record_that_is_not_there_yet() -> None:
    from tables import refresh

    text = "<!-- toprung:{} nowhere/a.json? -->\n<!-- toprung:end -->"
    for words in ("ladder", "rung r01", "fp32x sustained", "fp32x matmul", "fp32x accuracy", "each"):
        assert "Not measured yet." in refresh(text.format(words), Path()), words


def test_the_terminal_shows_the_kernel_alone() -> None:
    pairs = (("hopper/r01", ALL[2]), ("hopper/r06", ALL[3]))
    made = ladder_table([Row(RungCompetitor(rung(name)), measurement=m) for name, m in pairs], "x")
    assert "kernel alone" in [c.name for c in made.columns]
    assert [cells["kernel alone"] for cells, _ in made.rows] == ["400,000", "133,333"]
