"""Microbenchmarks: the loop that is timed is the loop that was meant, results are followed to the last bit, records are kept."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hopper_on_cpu
from conftest import require
from tables import refresh
from toprung import cli
from toprung.backends import nvrtc
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.errors import BadRecord, UnknownName
from toprung.kernels.hopper_fp32x.config import IN_FLIGHT, Fp32xConfig
from toprung.kernels.hopper_fp32x.sources import CUT_SHARES, product_source, split_source
from toprung.kernels.hopper_fp32x.strassen import sums_source
from toprung.lab.bounds.registers import Reads
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment
from toprung.lab.probe import arithmetic, store
from toprung.lab.probe.base import Benchmark, Case, benchmark, benchmarks
from toprung.lab.probe.run import probe, refusals
from toprung.lab.sass.machine_code import Loop, disassemble, innermost_loops, inspect_source
from toprung.report.probe_plot import mixes

QUICK = (
    "x*x + c",
    "one warp, one chain",
    "8x8 boustrophedon",
    "LDS.128 6:1",
    "LDS.64 stride 4",
    "L2 read",
    "memory copy",
    "L2",
    "256 threads",
)


def gpu() -> Device:
    return replace(nvrtc.device_of("sm_90"), compute_units=132, clock_mhz=1980.0, memory_bytes=140 << 30)


def cases() -> list[object]:
    if nvrtc.missing():
        return []
    found = [(b, c) for b in benchmarks() if b.name != "launch" and not b.needs(gpu()) for c in b.cases(gpu())]
    slow = pytest.mark.slow
    return [pytest.param(b, c, id=f"{b.name} {c.label}", marks=() if c.label in QUICK else slow) for b, c in found]


def compiled(source: Source) -> tuple[list[Loop], int]:
    """The innermost loops of a kernel, and the bytes it spilled."""
    cubin = nvrtc.compile_cubin(source, "sm_90")
    code = inspect_source(source, "sm_90")
    return innermost_loops(disassemble(cubin.code), source.kernel), code.local_bytes


def times(loop: Loop, kind: str) -> int:
    return loop.counts.get(kind, 0) + loop.counts.get(f"{kind}.CONSTANT", 0)


def check_loop(name: str, case: Case) -> None:
    """AssertionError unless the loop that is timed does what the benchmark says, and next to nothing else."""
    p = case.params
    loops, spills = compiled(case.source)
    assert spills == 0
    if name in ("ffma_chain", "ffma_latency", "ffma_outer"):
        (loop,) = loops
        each = {
            "ffma_chain": lambda: p["REPEAT"] * p["CHAINS"],
            "ffma_latency": lambda: p["REPEAT"],
            "ffma_outer": lambda: p["REPEAT"] * p["R"] * p["C"] + p["R"] + p["C"],
        }[name]()
        assert times(loop, "FFMA") % each == 0 and times(loop, "FFMA") > 0
        assert loop.ffma_share > (0.98 if name == "ffma_outer" else 0.97)
        assert set(loop.counts) <= {"FFMA", "integer", "control"}
    elif name in ("ffma_lds", "shared"):
        (loop,) = [o for o in loops if any(k.startswith("LDS") for k in o.counts)]
        kind = f"LDS.{32 * p['W']}"
        assert times(loop, kind) == p["STEPS"]
        assert times(loop, "FFMA") == p["STEPS"] * p["RATIO"]
        assert loop.instructions - times(loop, kind) - times(loop, "FFMA") <= 4
        assert loop.reads.conflicted == 0
    elif name == "latency":
        kind = "LDS.32" if p["KIND"] == 0 else "LDG.32"
        (loop,) = [o for o in loops if times(o, kind) == 4]  # the chain, four links a turn; nothing else is loaded
        assert set(loop.counts) <= {kind, "integer", "move", "control"} and loop.instructions <= 12
    elif name == "barrier":
        (loop,) = [o for o in loops if times(o, "BAR") == p["REPEAT"]]
        assert loop.instructions <= p["REPEAT"] + 3
    elif name in ("work_groups", "truncation"):
        assert not loops
    else:
        width = f"LDG.{32 * p['VEC']}"
        (loop,) = [o for o in loops if times(o, width)]
        assert times(loop, width) % p["DEEP"] == 0
        assert times(loop, f"STG.{32 * p['VEC']}") == (times(loop, width) if p["KIND"] == 2 else 0)
        assert not any(k.startswith(("LDG", "STG", "LDL", "STL")) and "128" not in k for k in loop.counts)


@pytest.mark.parametrize(("which", "case"), cases())
def test_the_loop_that_is_timed_is_the_one_that_was_meant(which: Benchmark, case: Case) -> None:
    check_loop(which.name, case)


@pytest.mark.parametrize(
    ("name", "label", "changes"),
    [
        # additions in the loop that are not counted; operands that never change; loads that need not be repeated
        ("ffma_outer", "4x8 boustrophedon", {"a[i] = fma(a[i], a[i], c)": "a[i] += c"}),
        ("ffma_outer", "4x8 boustrophedon", {"acc[i][j] = fma(a[i], b[j], acc[i][j])": "acc[i][j] = a[i] * b[j]"}),
        ("ffma_lds", "LDS.64 2:1", {"asm volatile": "asm", "ld.volatile.shared": "ld.shared"}),
    ],
)
def test_a_loop_that_was_optimised_away_is_noticed(name: str, label: str, changes: dict[str, str]) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    case = next(c for c in benchmark(name).cases(gpu()) if c.label == label)
    text = case.source.text
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises((AssertionError, ValueError)):  # ValueError: not one loop
        check_loop(name, replace(case, source=replace(case.source, text=text)))


def test_the_latency_is_counted_around_the_chain() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    (case,) = benchmark("ffma_latency").cases(gpu())
    listing = disassemble(nvrtc.compile_cubin(case.source, "sm_90").code).splitlines()
    clocks = [i for i, line in enumerate(listing) if "SR_CLOCKLO" in line]
    chain = [i for i, line in enumerate(listing) if " FFMA " in line]
    assert len(clocks) == 2 and clocks[0] < chain[1] and clocks[1] > chain[-1]
    assert sum(clocks[0] < i for i in chain) == case.params["REPEAT"]


def test_the_share_that_is_cut_is_read_from_sums(tmp_path: Path) -> None:
    """On an emulated unit; a product that is left out is noticed, and sums of zeros are not."""
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    folder: Any = hopper_on_cpu.Folder(tmp_path)
    positive, _, relu = benchmark("truncation").cases(gpu())
    text = positive.source.text
    assert "step < 2" in text
    for case, new, right in ((positive, text, True), (relu, text, True), (positive, text.replace("step < 2", "step < 1"), False)):
        placed: Any = case.place(folder)
        values = [np.array([buffer.pointer], np.uint64) for buffer in placed.args]
        folder.built(replace(case.source, text=new)).start((case.groups,), case.local, values)
        assert bool(placed.check()) != right
        assert not right or (case.vendor == 7.5 and (4.5 if case is relu else 7.5) <= placed.read() <= 9.0)


def test_kernels_are_built_with_what_the_probe_read_of_their_architecture() -> None:
    records = [results.read(path) for path in Path(__file__).parents[1].joinpath("results").glob("*/probe-truncation.json")]
    for record in records:
        (read,) = (row["value"] for row in record["probe"] if row["label"].startswith("positive"))
        assert CUT_SHARES[record["environment"]["device"]["arch"]] == pytest.approx(1e-8 * read, abs=2.5e-9)
    assert records
    for source in (split_source(), product_source(Fp32xConfig(split=IN_FLIGHT)), sums_source(1, False)):
        assert source.defines["CUT_SHARE"] == CUT_SHARES["sm_90"] and "#ifndef CUT_SHARE" in source.text


def test_the_chain_is_one_ring_of_all_links() -> None:
    from toprung.lab.probe.benchmarks.latency import LEVELS, chain

    for _, _, links, stride in LEVELS[:2]:
        ring, at, seen = chain(links, stride), 0, set()
        while at not in seen:
            seen.add(at)
            at = int(ring[at])
        assert at == 0 and seen == {stride * i for i in range(links)}


def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 2.0**-30, 2.0**20):
        a, b = (rng.uniform(-2, 2, 500).astype(np.float32) for _ in range(2))
        c = (rng.uniform(-2, 2, 500) * scale).astype(np.float32)
        found = arithmetic.fused(a, b, c)
        for x, y, z, f in zip(a, b, c, found, strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            gap = abs(Fraction(float(f)) - exact)
            for other in (np.nextafter(f, np.float32(np.inf)), np.nextafter(f, np.float32(-np.inf))):
                assert gap <= abs(Fraction(float(other)) - exact)


def test_double_rounding_is_avoided() -> None:
    """A product just above a tie that float64 alone would round to the tie, and then to even."""
    a, b = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12)  # 1 + 2^-11 + 2^-24: a tie between two float32
    c = np.float32(2.0**-60)
    one = np.array([a]), np.array([b]), np.array([c])
    assert arithmetic.fused(*one)[0] == np.float32(1 + 2.0**-11 + 2.0**-23)
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(c)) == np.float32(1 + 2.0**-11)


def test_what_the_fill_writes_is_spread_evenly() -> None:
    from toprung.lab.probe.benchmarks.bandwidth import numbers

    values = numbers(np.arange(100000))
    assert abs(values.mean()) < 0.01 and abs(values.std() - 3**-0.5) < 0.01
    assert np.abs(values).max() <= 1 and np.unique(values).size > 99000


def test_a_cpu_is_probed_as_far_as_it_makes_sense(session: Session) -> None:
    wanted = [benchmark(name) for name in ("ffma_chain", "launch")]
    found = {f"{f.benchmark.name} {f.case.label}": f for f in probe(session, wanted, samples=1, power=False)}
    assert [f.problem for f in found.values()] == [""] * 5
    assert all(f.value > 0 and f.seconds and f.calls for f in found.values())
    chains = [f for f in found.values() if f.benchmark.name == "ffma_chain"]
    taken = store.figures(store.record("probe", environment(session), chains, {}, 1.0) | {"measurements": []})
    fastest = max(f.case.work / f.seconds[0] for f in chains)
    if taken.peak_gflops:  # where the clock can be read
        assert taken.peak_gflops == pytest.approx(fastest / 1e9), "the fastest width counts"
    refused = refusals(session, benchmarks())
    named = ["barrier", "ffma_latency", "ffma_lds", "ffma_outer", "latency", "shared", "truncation", "work_groups"]
    named.append("workgroup_memory")
    assert sorted(refused) == named and all(refused.values())


@pytest.mark.slow
def test_memory_is_probed_on_a_cpu(session: Session) -> None:
    found = list(probe(session, [benchmark("bandwidth")], samples=1))
    assert [f.problem for f in found] == [""] * 4 and all(f.value > 0 for f in found)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ffma_chain", "k < REPEAT", "k < REPEAT - 1"),
        ("launch", "out[0] = value", "out[0] = value + 1"),
        ("bandwidth", "sum[0] += sum[d]", "sum[0] -= sum[d]"),
    ],
)
def test_work_left_out_is_found_and_not_timed(name: str, old: str, new: str, session: Session) -> None:
    (case, *_) = benchmark(name).cases(session.device)
    assert old in case.source.text
    bad = replace(case, source=replace(case.source, text=case.source.text.replace(old, new)))
    (finding,) = probe(session, [replace(benchmark(name), cases=lambda d: [bad])], samples=1)
    assert finding.problem and not finding.values and not finding.seconds


def test_an_unknown_benchmark_is_named() -> None:
    with pytest.raises(UnknownName, match="ffma_chain"):
        benchmark("nothing")


def finding(
    name: str, label: str, value: float, work: float, params: dict[str, int] | None = None, unit: str = ""
) -> dict[str, object]:
    return {
        "benchmark": name, "label": label, "params": params or {}, "unit": unit, "values": [value] * 3, "seconds": [1e-3] * 3,
        "clocks_mhz": [1000.0, None, 1000.0], "work": work, "title": "", "vendor": None, "value": value, "watts": None,
        "problem": "",
    }  # fmt: skip


def stored(folder: Path, slug: str = "some-gpu", backend: str = "cuda", **changes: object) -> Path:
    device = {
        "name": "Some GPU", "short_name": "Some GPU", "slug": slug, "kind": "gpu", "arch": "sm_90",
        "backend": backend, "runtime": "r",
        "driver": "d", "compute_units": 10, "clock_mhz": 1000.0, "peak_gflops": None,
    }  # fmt: skip
    environment = {"date": "2026-01-02T03:04:05", "commit": "abc", "packages": {}, "device": device}
    findings = [
        finding("ffma_chain", "x*x + c", 2480.0, 2 * 124e7) | {"unit": "u", "vendor": 3000.0},
        finding("ffma_outer", "8x8 row", 1800.0, 2 * 90e7) | {"reads": asdict(Reads(8, 24, 8, 8, 16, 2, 2)), "registers": 128},
        finding("ffma_lds", "LDS.64 0:1", 16.0, 16e7, {"RATIO": 0, "W": 2}),
        finding("ffma_lds", "LDS.64 6:1", 120.0, 120e7, {"RATIO": 6, "W": 2}),
        finding("shared", "LDS.32 stride 1", 127.0, 127e7),
        finding("bandwidth", "L1 read", 600.0, 60e7),
        finding("bandwidth", "L2 read", 5000.0, 1.0),
        finding("bandwidth", "memory read", 4000.0, 1.0),
        finding("bandwidth", "memory copy", 3900.0, 1.0),
        finding("launch", "back to back", 2.0, 1.0),
        finding("ffma_latency", "one warp, one chain", 4.0, 1.0),
        finding("bandwidth", "L2 copy", 4500.0, 1.0),
        finding("latency", "L2", 280.0, 1.0),
        finding("barrier", "128 threads", 20.0, 1.0),
        finding("work_groups", "256 work-items", 0.005, 5e4),
    ]
    path = folder / "probes" / f"some-gpu-{backend}.json"
    results.write(path, results.record("toprung probe", environment, (), kind="probe", notes=[], probe=findings) | changes)
    return path


@pytest.fixture
def some_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path))
    return replace(gpu(), name="Some GPU")


def test_a_record_becomes_figures(some_gpu: Device, tmp_path: Path) -> None:
    assert store.figures_for(some_gpu) is None
    stored(tmp_path)
    found = store.figures_for(some_gpu)
    assert found is not None
    assert (found.sms, found.clock_mhz, found.ffma_per_clock) == (10, 1000.0, pytest.approx(124))
    assert dict(found.ffma_outer_per_clock) == {"8x8 row": pytest.approx(90)}
    assert dict(found.lds_per_clock) == {"64": 0.5} and found.issue_per_clock == 120 / 32
    assert (found.shared_bytes_per_clock, found.l1_bytes_per_clock) == (127.0, pytest.approx(60))
    assert (found.l2_read_bytes_per_s, found.dram_read_bytes_per_s, found.dram_copy_bytes_per_s) == (5e12, 4e12, 3.9e12)
    assert (found.launch_seconds, found.ffma_latency_clocks) == (pytest.approx(2e-6), 4.0)
    assert found.l2_copy_bytes_per_s == 4.5e12
    assert (dict(found.latency_clocks), dict(found.barrier_clocks)) == ({"L2": 280.0}, {"128": 20.0})
    assert dict(found.groups_per_clock) == {"256": pytest.approx(0.005)}
    assert found.source == "probe through cuda, 2026-01-02"


def test_damaged_and_foreign_records_are_passed_over_with_the_reason(some_gpu: Device, tmp_path: Path) -> None:
    path = stored(tmp_path)
    whole = path.read_text()
    for text, reason in (
        (whole[:400], "damaged"),
        (whole.replace(results.FORMAT, "toprung record 99"), "toprung record 99"),
        (whole.replace('"probe":', '"other":'), "no record of a probe"),
        (whole.replace("4000.0", "NaN"), "positive"),
        (whole.replace("4000.0", "-1"), "positive"),
        (whole.replace("4000.0", '"fast"'), "damaged"),
        (whole.replace('"slug": "some-gpu"', '"slug": "another"'), "is of another"),
    ):
        assert text != whole
        path.write_text(text)
        complaints: list[str] = []
        assert store.figures_for(some_gpu, complaints) is None, reason
        assert len(complaints) == 1 and reason in complaints[0] and str(path) in complaints[0]
    with pytest.raises(BadRecord):
        store.read(tmp_path / "absent.json")


def test_another_backends_record_fills_the_gaps(some_gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stored(tmp_path)
    content = json.loads(first.read_text())
    content["probe"] = [p for p in content["probe"] if p["benchmark"] != "bandwidth"]
    first.write_text(json.dumps(content))
    second = stored(tmp_path, backend="opencl")
    found = store.figures_for(some_gpu)
    assert found is not None and found.dram_read_bytes_per_s == 4e12 and "opencl" in found.source_of("dram_read_bytes_per_s")
    monkeypatch.setattr(store, "KNOWN", tmp_path / "probes")
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "elsewhere"))
    assert store.figures_for(some_gpu) == found  # shipped records are as good, for who has none of their own
    second.unlink()
    assert store.figures_for(some_gpu) != found


def test_tables_show_what_is_stored(some_gpu: Device, tmp_path: Path) -> None:
    stored(tmp_path)
    marker = "<!-- toprung:probe ffma_chain,ffma_outer{} -->\n{}<!-- toprung:end -->\n"
    table = refresh(marker.format(" probes/some-gpu-cuda.json", ""), tmp_path)
    assert "| x*x + c | u | 2,480 | 3,000 | 82.7 | 1000 | – | – | – | – |" in table
    assert "| 8x8 row |  | 1,800 | – | – | 1000 | – | 128 | 2.00 | 25.0 |" in table
    assert "LDS" not in table
    assert "Medians: Some GPU" in table and refresh(table, tmp_path) == table
    assert "Not measured yet." in refresh(marker.format("", ""), tmp_path)
    with pytest.raises(BadRecord, match="no measurement of nothing"):
        refresh("<!-- toprung:probe nothing probes/some-gpu-cuda.json -->\n<!-- toprung:end -->\n", tmp_path)


def test_mixes_are_drawn(some_gpu: Device, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = store.read(stored(tmp_path))
    mixes(record, tmp_path / "mixes.svg")
    assert "<svg" in (tmp_path / "mixes.svg").read_text()
    with pytest.raises(BadRecord, match="a CUDA device can"):
        mixes({**record, "probe": []}, tmp_path / "none.svg")


def test_the_vendors_figures_are_beside() -> None:
    h200 = replace(gpu(), name="NVIDIA H200")
    found = {c.label: c.vendor for name in ("bandwidth", "shared", "ffma_chain") for c in benchmark(name).cases(h200)}
    assert found["memory read"] == found["memory copy"] == 4800 and found["L2 read"] is None
    assert (found["LDS.32 stride 1"], found["LDS.32 stride 32"], found["LDS.32 stride 33"]) == (128, 4, 128)
    assert found["LDS.128 stride 4"] == 128 and found["x*x + c"] == pytest.approx(66908, rel=1e-3)


def test_probe_command_keeps_a_whole_probe_only(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path))
    out = tmp_path / "out.json"
    done = CliRunner().invoke(cli.app, ["probe", "--device", device.id, "--only", "launch", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "not kept" in done.output and "back to back" in done.output
    assert store.read(out)["kind"] == "probe" and len(store.read(out)["probe"]) == 2
    assert not (tmp_path / "probes").exists()
