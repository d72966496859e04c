"""The webgpu backend keeps the promises of backends, and its ladder is right, on Mesa's llvmpipe or whatever adapter there is."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import toprung
import trial
import webgpu
from command import Typed
from test_rungs import NOTED, hostile_layout
from toprung import backends
from toprung.backends.base import Session, Source
from toprung.backends.webgpu import UNCHECKED, composed
from toprung.device import Device
from toprung.errors import BuildError, LaunchError, NoDevice, OutOfDeviceMemory, Unsupported
from toprung.lab.harness import results
from toprung.lab.probe.base import benchmarks
from toprung.lab.probe.run import probe, refusals
from toprung.lab.rung import Rung, ladder, rung
from toprung.oracle.gemm import Gemm

FILL = Source(
    "fill",
    """@group(0) @binding(1) var<storage, read_write> p: array<i32>;
@compute @workgroup_size(64) fn fill(@builtin(global_invocation_id) id: vec3u) { p[id.x] = i32(VALUE); }""",
    "fill",
    {"VALUE": 7},
    "wgsl",
)
RUNGS = ladder("webgpu").rungs
QUICK = (1, 7)
"""Rungs of the quick tests: without barriers, and with all that most of the others have."""


@pytest.fixture(scope="module")
def adapter() -> Device:
    return webgpu.adapter()


@pytest.fixture(scope="module")
def opened(adapter: Device) -> Iterator[Session]:
    with backends.opened(adapter) as session:
        yield session


def loaded(session: Session, source: Source = FILL):
    return session.load(session.compile(source), source)


def ended(script: str, **env: str) -> str:
    """Return the output of a Python process of its own that ends well."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# the backend


def test_it_comes_last_and_is_found_by_name(adapter: Device) -> None:
    present = backends.devices()
    assert adapter in present and all(d.backend == "webgpu" for d in present[present.index(adapter) :])
    assert backends.find("webgpu") == backends.find(adapter.id) == adapter
    assert adapter.local_bytes >= 16384 and adapter.max_work_group >= 256 and adapter.max_buffer_bytes >= 1 << 27


def test_the_library_does_not_compute_on_it(adapter: Device) -> None:
    a = np.ones((300, 300), np.float32)
    with pytest.raises(NoDevice, match=r"is for ladders alone: .*overflow.*OpenCL or CUDA device"):
        toprung.matmul(a, a, device=adapter.id)


def test_with_nothing_else_the_library_says_what_it_lacks(adapter: Device) -> None:
    """An adapter is no device to the library, which does not even look for one."""
    script = """
import sys, numpy, toprung
a = numpy.ones((300, 300), numpy.float32)
try:
    toprung.matmul(a, a, own=True)
except toprung.errors.NoDevice as error:
    print(error, "wgpu" in sys.modules)
"""
    said = ended(script, OCL_ICD_VENDORS="/nonexistent.icd")
    assert said.startswith("no device found") and "has no .icd file" in said and "WebGPU" not in said and said.endswith("False\n")


def test_a_ladder_on_a_cpu_does_not_look_for_it(device: Device) -> None:
    """A ladder of another backend is climbed without loading wgpu."""
    if backends.find().kind == "gpu":
        pytest.skip("a GPU is climbed through all backends")
    script = """
import sys
from toprung.cli import main
sys.argv = ["toprung", "ladder", "kepler", "--sizes", "40", "--rungs", "1"]
try:
    main()
finally:
    print("wgpu" in sys.modules)
"""
    said = ended(script)
    assert "one work-item per element" in said and said.endswith("False\n")


def test_where_no_one_is_logged_in_a_look_is_silent_and_leaves_the_environment(adapter: Device) -> None:
    script = """
import os
os.dup2(1, 2)
os.environ.pop("XDG_RUNTIME_DIR", None)
before = dict(os.environ)
from toprung.backends.webgpu import backend
print(backend().devices() != [], os.environ == before)
"""
    said = ended(script)
    assert said.endswith("True True\n") and "XDG_RUNTIME_DIR" not in said


def test_without_an_adapter_it_says_what_to_install(adapter: Device) -> None:
    script = "from toprung.backends.webgpu import backend; print(backend().devices(), *backend().advice())"
    said = ended(script, VK_DRIVER_FILES="/nonexistent.json", VK_ICD_FILENAMES="/nonexistent.json")
    assert said.startswith("[] WebGPU: no adapter found") and "mesa-vulkan-drivers" in said


def test_without_wgpu_it_says_how_to_get_it() -> None:
    script = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'wgpu' else real(name, *a)\n"
        "from toprung.backends.webgpu import backend; print(backend().devices(), *backend().advice())"
    )
    assert 'pip install "toprung[webgpu]"' in ended(script)


def test_parameters_move_no_line() -> None:
    text = "// a comment\nenable subgroups;\nconst a = BM;\n"
    made = composed(Source("x", text, "f", {"BM": 4, "PADA": 0}, "wgsl"))
    assert made.splitlines() == ["// a comment", "const BM = 4u; const PADA = 0u; ", "const a = BM;"]
    assert composed(Source("x", "// first\nfn f() {}", "f", {"BM": 4}, "wgsl")).startswith("const BM = 4u; // first\n")


def test_buffers_copy_what_they_hold(opened: Session) -> None:
    data = np.random.default_rng(1).integers(0, 1 << 30, 4096, dtype=np.int32)
    whole = opened.allocate(data.nbytes)
    opened.upload(whole, data)
    part, back = whole.part(4096, 512), np.empty(128, np.int32)
    opened.download(part, back)
    assert np.array_equal(back, data[1024:1152])
    empty = opened.allocate(0)
    opened.upload(empty, np.empty(0, np.float32))
    opened.download(empty, np.empty(0, np.float32))
    assert empty.nbytes == 0


def test_a_launch_runs_every_invocation_once_and_in_order(opened: Session) -> None:
    buffer, found = opened.allocate(4 * 256), np.empty(256, np.int32)
    opened.upload(buffer, np.zeros(256, np.int32))
    first = opened.bind(loaded(opened), (3,), (64,), (buffer,))
    second = opened.bind(loaded(opened, replace(FILL, defines={"VALUE": 9})), (1,), (64,), (buffer,))
    for _ in range(300):  # more than one submission
        first()
        second()
    opened.download(buffer, found)
    assert found.tolist() == [9] * 64 + [7] * 128 + [0] * 64


def test_marks_measure(opened: Session) -> None:
    launch = opened.bind(loaded(opened), (64,), (64,), (opened.allocate(4 * 64 * 64),))
    marks = [opened.mark()]
    for _ in range(2):
        for _ in range(20):
            launch()
        marks.append(opened.mark())
    start, middle, end = marks
    first, second, both = opened.seconds(start, middle), opened.seconds(middle, end), opened.seconds(start, end)
    assert 0 < first <= both and 0 < second <= both <= 10 and abs(first + second - both) <= 1e-6


def test_more_marks_than_a_query_set_has(opened: Session) -> None:
    marks = [opened.mark() for _ in range(600)]
    stamps = [opened.seconds(marks[0], m) for m in marks[:: len(marks) // 7]]
    assert stamps == sorted(stamps) and stamps[0] == 0


def test_a_kernel_that_does_not_build_says_where(opened: Session, tmp_path: Path) -> None:
    bad = trial.altered(rung("webgpu/r07"), tmp_path, ("    let ldc = p.ldc / 4u;", "    let ldc = nonsense / 4u;"))
    line = bad.source.read_text()[: bad.source.read_text().index("nonsense")].count("\n") + 1
    with pytest.raises(BuildError) as caught:
        trial.make(bad, opened)
    assert "nonsense" in caught.value.log and str(caught.value).startswith(f"{bad.source}:{line}:")
    assert caught.value.kernel == "webgpu/r07" and "BM=64" in caught.value.defines


@pytest.mark.parametrize(
    ("fragment", "wrong"),
    [
        ("let a = As[k][tm + i * DM];", "let a = nonsense;"),
        ("acc[4u * i + 3u][j] = ", "acc[4u * i + 9u][j] = "),
        ("i < TM / 4u", "i < k0"),
    ],
)  # nobody knows a name; an index is too large in one of the copies alone; a marked loop is of no constant length
def test_messages_name_the_lines_of_the_file_though_loops_are_unrolled(
    fragment: str, wrong: str, opened: Session, tmp_path: Path
) -> None:
    bad = trial.altered(rung("webgpu/r07"), tmp_path, (fragment, wrong))
    text = bad.source.read_text()
    line = text[: text.index(wrong)].count("\n") + 1
    with pytest.raises(BuildError) as caught:
        trial.make(bad, opened)
    assert str(caught.value).startswith(f"{bad.source}:{line}:")
    assert all(f"{number} │ {text.splitlines()[int(number) - 1].rstrip()}" in caught.value.log
               for number in re.findall(r"^(\d+) │", caught.value.log, re.MULTILINE))  # fmt: skip


def test_a_cached_text_that_was_composed_in_another_way_is_compiled_anew(opened: Session) -> None:
    with pytest.raises(BuildError, match="composed in another way"):
        opened.load(composed(FILL).encode() + b" ", FILL)


@pytest.mark.parametrize(("language", "name"), [("opencl", "OpenCL C"), ("cuda", r"CUDA C\+\+"), ("cubin", "machine code")])
def test_other_languages_are_refused(language: str, name: str, opened: Session) -> None:
    with pytest.raises(BuildError, match=f"compiles WGSL, not {name}"):
        opened.compile(replace(FILL, language=language))


def test_what_a_launch_may_not_have(opened: Session) -> None:
    kernel, buffer = loaded(opened), opened.allocate(256)
    with pytest.raises(LaunchError, match=r"fill with VALUE=7 .* needs 1,000,000 work-groups in one dimension"):
        opened.bind(kernel, (1_000_000,), (64,), (buffer,))
    with pytest.raises(LaunchError, match=r"declares bindings \(1,\), and the launch has \(0, 1\)"):
        opened.bind(kernel, (1,), (64,), (np.int32(1), buffer))
    with pytest.raises(Unsupported, match="runs ladders and probes"):
        opened.branch()


def test_memory_that_is_not_there(opened: Session) -> None:
    limit = opened.device.max_buffer_bytes
    with pytest.raises(OutOfDeviceMemory) as caught:
        opened.allocate(limit + 1)
    assert (caught.value.asked, caught.value.available) == (limit + 1, limit)


def test_a_lost_device_is_an_error(adapter: Device) -> None:
    with backends.opened(adapter) as session:
        launch = session.bind(loaded(session), (1,), (64,), (buffer := session.allocate(256),))
        session._device.destroy()  # type: ignore[attr-defined]
        with pytest.raises(LaunchError, match=r"refuses: .*If it is lost, open it again"):
            launch()
            session.submit()
        for action in (lambda: session.allocate(4), lambda: session.upload(buffer, np.zeros(1, np.int32))):
            with pytest.raises(LaunchError, match="lost"):
                action()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_an_error(adapter: Device) -> None:
    script = """
import os
from toprung import backends
from toprung.errors import ForkedDevice
device = backends.find("webgpu")
session = backends.open_device(device)
read, write = os.pipe()
if not os.fork():
    said = []
    for action in (lambda: session.allocate(4), session.mark, session.submit, lambda: backends.open_device(device)):
        try:
            action()
            said.append("nothing")
        except ForkedDevice as error:
            said.append("spawn" if "spawn" in str(error) else str(error))
    os.write(write, " ".join(said).encode())
    os._exit(0)
print(os.read(read, 99).decode())
"""
    assert ended(script).split() == ["spawn"] * 4


# the ladder


def variants() -> list[pytest.param]:
    found = []
    for r in RUNGS:
        for options in ({}, *({s.name: v} for s in r.switches for v in s.values[1:])):
            name = "-".join((r.stem, *(f"{k}={v}" for k, v in options.items())))
            found.append(pytest.param(r, options, id=name, marks=() if r.number in QUICK else pytest.mark.slow))
    return found


each_variant = pytest.mark.parametrize(("which", "options"), variants())


def assert_right(which: Rung, options: dict[str, int], problems: list[Gemm], session: Session, tile=None) -> None:
    compiled, failures = trial.make(which, session, options, tile), []
    for seed, problem in enumerate(problems):
        outcome = trial.attempt(compiled, problem, session, seed=seed)
        if not outcome.verdict.right or outcome.changed:
            failures.append((problem, outcome.verdict.problems, outcome.changed))
    assert not failures


@each_variant
def test_shapes_layouts_and_scalars(which: Rung, options: dict[str, int], opened: Session) -> None:
    rng = random.Random(which.number)
    count = 6 if which.number in QUICK else 40
    problems = [hostile_layout(s, rng) for s in [*NOTED, *rng.sample(trial.triples(), count)]]
    scalars = [(0.0, 1.3), (0.7, 0.0), (0.0, 0.0), (-1.0, 1.0)]
    problems += [Gemm(33, 17, 65, alpha, beta, 66, 20, 19) for alpha, beta in scalars]
    problems += [Gemm(33, 5, 0, 0.7, 1.3, ldc=7), Gemm(0, 5, 7), Gemm(5, 0, 7, beta=1.3)]
    assert_right(which, options, problems, opened)


@each_variant
def test_finite_data_of_every_kind(which: Rung, options: dict[str, int], opened: Session) -> None:
    compiled, failures = trial.make(which, opened, options), []
    for name in webgpu.FINITE:
        outcome = trial.attempt(compiled, Gemm(33, 35, 37, -1.0, 1.0), opened, name)
        if not outcome.verdict.right:
            failures.append((name, outcome.verdict.problems))
    assert not failures


@pytest.mark.slow
@each_variant
def test_other_legal_tiles(which: Rung, options: dict[str, int], opened: Session) -> None:
    rng = random.Random(which.number)
    usual = which.tile_for(opened.device, options)
    tiles = [t for t in which.legal(opened.device, options) if t != usual]
    assert tiles, "a rung whose tile cannot be changed has nothing to try on the page"
    for tile in rng.sample(tiles, min(4, len(tiles))):
        assert_right(which, options, [hostile_layout(s, rng) for s in [(33, 35, 37), (128, 64, 64), (3, 3, 431)]], opened, tile)


FAULTS = [
    ("r01", "k < p.K", "k <= p.K"),
    ("r01", "m >= p.M || n >= p.N", "m >= p.M || n > p.N"),  # beyond row M lies no binding, and WebGPU drops what is written there
    ("r01", "if (p.beta != 0.0)", "if (true)"),
    ("r07", "vec4f(a.w), b[j]", "vec4f(a.z), b[j]"),
    ("r02", "k0 < p.K", "k0 + BK < p.K"),
    ("r09", "now = 1u - now;", "now = now;"),
    ("r08", "first + l", "first"),
    ("r10", "value.y = B[b + 1u]", "value.y = B[b]"),
    ("r10", "m >= p.M || n >= p.N", "m >= p.M"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), [pytest.param(*f, marks=() if f[0] in ("r01", "r07") else pytest.mark.slow)
                                                      for f in FAULTS])  # fmt: skip
def test_a_planted_fault_is_found(name: str, right: str, wrong: str, opened: Session, tmp_path: Path) -> None:
    bad = trial.altered(rung(f"webgpu/{name}"), tmp_path, (right, wrong))
    compiled = trial.make(bad, opened)
    problems = [Gemm(33, 35, 67, 0.7, beta, 70, 40, 36) for beta in (0.0, 1.3)]
    outcomes = [trial.attempt(compiled, p, opened) for p in problems]
    assert not all(o.verdict.right for o in outcomes)


def test_rungs_say_what_they_need(opened: Session, device: Device) -> None:
    assert "written in WGSL, for devices of webgpu" in rung("webgpu/r01").needs(device)
    assert "written in OpenCL C, for devices of cuda and opencl" in rung("kepler/r01").needs(opened.device)
    assert "no subgroups" in rung("webgpu/r08").needs(replace(opened.device, subgroup=None))
    assert not rung("webgpu/r10").needs(opened.device)


@pytest.mark.parametrize("left_out", [1, 2])
def test_unchecked_indices_are_another_program(left_out: int, opened: Session) -> None:
    """The switch reaches the compiler: both are right, and a text that wgpu refuses is refused with it, too."""
    one = rung("webgpu/r10")
    assert_right(one, {UNCHECKED: left_out}, [Gemm(33, 35, 37, 0.7, 1.3)], opened)
    with pytest.raises(BuildError, match="expected"):
        opened.compile(replace(FILL, text=FILL.text + "}", defines={"VALUE": 1, UNCHECKED: left_out}))


# the commands


def test_devices_climb_and_results(adapter: Device, typed: Typed, tmp_path: Path) -> None:
    status, said = typed("devices")
    assert status == 0 and adapter.id in said
    out = tmp_path / "webgpu.json"
    status, said = typed("ladder", "webgpu", "--rungs", "1,7", "--sizes", "64", "--json", out)
    assert status == 0 and "promises finite data only" in said, "no device was named: one that runs the ladder is taken"
    record = results.read(out)
    assert {m.competitor["number"] for m in record["measurements"]} >= {1, 7}
    assert record["environment"]["device"]["backend"] == "webgpu"
    assert any("finite data only" in note for note in record["notes"]), "notes on baselines that moved may stand before it"
    assert json.loads(out.read_text())["failures"] == []
    status, said = typed("ladder", "kepler", "--device", adapter.id, "--sizes", "64")
    assert status == 2 and "it is written in OpenCL C" in said
    status, said = typed("explain", "webgpu/r06", "--size", "256")
    assert status == 0 and "64×64×16 8×8" in said and "the machine code of webgpu:0" in said
    status, said = typed("run", "webgpu/r01", "--size", "64")
    assert status == 0 and "compiled here" in said


@pytest.mark.slow
def test_the_probe_measures_and_checks(opened: Session) -> None:
    wanted = [b for b in benchmarks() if not b.needs(opened.device)]
    assert {"launch", "ffma_chain", "bandwidth", "workgroup_memory"} <= {b.name for b in wanted}
    assert "written in" in " ".join(refusals(opened, benchmarks()).values()) or opened.device.kind == "cpu"
    findings = list(probe(opened, wanted, samples=2, power=False))
    assert [f.problem for f in findings] == [""] * len(findings) and all(f.value > 0 for f in findings)
