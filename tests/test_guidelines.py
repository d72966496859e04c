"""Guidelines: every experiment runs and is verified here, compiles for GPUs without spills, and a wrong one is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command import Typed
from conftest import require
from tables import guidelines as guidelines_table
from toprung.backends import nvrtc, opencl
from toprung.backends.base import FLAGS, Session, Source
from toprung.device import Device
from toprung.errors import UnknownName, WrongResult
from toprung.kernels.build import source_kernel
from toprung.lab import guidelines
from toprung.lab.guidelines import base, busy_together, pinned_memory
from toprung.lab.guidelines.base import FAILS, HOLDS, NO_SLOWER, TURNS, UNDECIDED, UNTESTED, WRONG, Finding, Guideline, Lab, steps
from toprung.lab.harness import results
from toprung.lab.sass.machine_code import inspect_source
from toprung.report import findings as report

ALL = guidelines.guidelines()
UNTESTED_ON_CPU = {"pinned_memory"}
QUICK = {"divergence", "left_size", "pinned_memory"}
EACH = [pytest.param(g, id=g.name, marks=() if g.name in QUICK else pytest.mark.slow) for g in ALL]
"""Every guideline; those that take longer to build or to run are for the slow tests."""


def distinct(arch: str) -> list[object]:
    """One case for each text, set of macros and build options."""
    found = {}
    for g in ALL:
        for c in g.cases:
            s = g.source(c)
            one = pytest.param(s, arch, id=f"{s.name} {s.defines_text()} {arch}")
            found.setdefault((s.name, s.defines_text()), one)
    return list(found.values()) if not nvrtc.missing() else []


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the kernel texts in which to plant bugs, used in place of the real ones."""
    for path in base.TEXTS.glob("*.cl"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(base, "TEXTS", tmp_path)
    return tmp_path


def plant(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path.name} has no {old!r} any more: plant the bug elsewhere"
    path.write_text(text.replace(old, new))


def test_the_folder_is_the_list() -> None:
    names = [g.name for g in ALL]
    assert names == sorted(names) and len(names) >= 13
    for g in ALL:
        assert (base.TEXTS / f"{g.text or g.name}.cl").exists(), g.name
        assert g.cases[g.advised] is not g.cases[g.against] and len({c.label for c in g.cases}) == len(g.cases)
    used = {g.text or g.name for g in ALL}
    assert used == {p.stem for p in base.TEXTS.glob("*.cl")}, "a text nobody uses"
    with pytest.raises(UnknownName, match="no guideline 'warp'"):
        guidelines.select(["warp"])


@pytest.mark.slow
@pytest.mark.parametrize(("source", "arch"), [*distinct("sm_80"), *distinct("sm_90")])
def test_nothing_spills(source: Source, arch: str) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    log = nvrtc.compile_cubin(source, arch).log.replace("  ", " ")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log


def test_the_machine_code_is_what_the_experiments_are_about() -> None:
    """Widths, fusing, single loads from local memory, and division without an instruction for it."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")

    def counts(name: str, case: int) -> Mapping[str, int]:
        (found,) = guidelines.select([name])
        return inspect_source(found.source(found.cases[case]), "sm_90").counts

    assert counts("vector_types", 2)["LDG.128.CONSTANT"] == 2
    apart, mad = counts("build_options", 0), counts("build_options", 1)
    assert apart.get("FFMA", 0) == 0 < apart["FMUL"] and mad["FFMA"] > 0 == mad.get("FMUL", 0)
    banks = counts("bank_conflicts", 3)
    assert banks["LDS.32"] >= 8 and not banks.get("LDS.64") and not banks.get("LDS.128")
    assert counts("integer_division", 0)["integer"] > 2 * counts("integer_division", 2)["integer"]
    assert "LDG.32.CONSTANT" not in counts("constant_memory", 0)


@pytest.mark.parametrize("guideline", EACH)
def test_every_experiment_is_right_here(guideline: Guideline, session: Session) -> None:
    finding = guideline.run(session)
    untested = guideline.name in UNTESTED_ON_CPU and session.device.kind == "cpu"
    untested |= guideline.name == "left_size" and session.device.backend == "cuda"
    if untested:
        assert finding.verdict == UNTESTED and finding.reason and not finding.ways
        return
    assert finding.verdict in (HOLDS, FAILS, UNDECIDED), finding.reason
    assert [w.label for w in finding.ways] == [c.label for c in guideline.cases]
    for way in finding.ways:
        assert len(way.seconds) == TURNS >= 5 and all(s > 0 for s in way.seconds) and way.figure > 0 and way.error < 1e-4
    assert Finding.read(json.loads(json.dumps(finding.describe()))) == finding


@pytest.mark.slow
def test_a_wrong_share_of_the_host_is_found(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    right = busy_together._Host.work

    def wrong(self: busy_together._Host, items: int) -> None:
        right(self, items)
        self.result[items - 1] += 1

    monkeypatch.setattr(busy_together._Host, "work", wrong)
    (guideline,) = guidelines.select(["busy_together"])
    finding = guideline.run(session)
    assert finding.verdict == WRONG and "element" in finding.reason and not finding.ways


PLANTED = {
    "bank_conflicts": ("sum += tile", "sum = tile"),
    "build_options": ("q = q * b", "q = q * a"),
    "coalescing": ("sum += part[r]", "sum = part[r]"),
    "constant_memory": ("T1((i) + 3)", "T1((i) + 2)"),
    "divergence": ("v * 69069u - add", "v * 69069u + add"),
    "integer_division": ("& 31u", "& 15u"),
    "native_functions": ("define POWER native_powr", "define POWER(a, b) native_powr(a, 1.5001f)"),
    "vector_types": ("2.0f * READ", "3.0f * READ"),
    "work": ("k < count", "k < count - 1"),
}


def test_there_is_a_bug_for_every_text() -> None:
    assert set(PLANTED) == {p.stem for p in base.TEXTS.glob("*.cl")}


@pytest.mark.parametrize("guideline", EACH)
def test_a_planted_bug_fails_and_is_not_timed(guideline: Guideline, session: Session, planted: Path) -> None:
    text = guideline.text or guideline.name
    plant(planted / f"{text}.cl", *PLANTED[text])
    finding = guideline.run(session)
    if finding.verdict != UNTESTED:
        assert finding.verdict == WRONG and "element" in finding.reason and not finding.ways


def test_what_is_not_written_is_wrong(session: Session) -> None:
    lab = Lab(ALL[0], session)
    output, expected = session.allocate(16), np.zeros(4, np.float32)
    with pytest.raises(WrongResult, match="element 0 is nan"):
        lab.trial(ALL[0].cases[0], lambda: None, output, expected, 1).verify()


def test_the_verdict_follows_the_claim() -> None:
    guideline = next(g for g in ALL if g.name == "divergence")
    ways = tuple(base.Way(c.label, 1.0, (t,) * 5, 1, False, 0.0) for c, t in zip(guideline.cases, (1.0, 2.0), strict=True))
    finding = Finding("n", "t", "p", "u", UNTESTED, "", ways)
    verdicts = [
        replace(guideline, advised=a, against=b, claim=claim)._judged(finding).verdict
        for a, b in ((0, 1), (1, 0))
        for claim in (base.FASTER, NO_SLOWER)
    ]
    assert verdicts == [HOLDS, HOLDS, FAILS, FAILS]
    noisy = replace(finding, ways=(ways[0], replace(ways[1], seconds=(0.5, 1.5, 0.9, 1.1, 1.0))))
    assert guideline._judged(noisy).verdict == UNDECIDED
    even = replace(finding, ways=(ways[0], ways[0]))
    assert [replace(guideline, claim=c)._judged(even).verdict for c in (base.FASTER, NO_SLOWER)] == [FAILS, HOLDS]


def test_a_session_takes_what_experiments_ask_of_it(session: Session) -> None:
    """Another queue, a copy that is not waited for from pinned memory, a launch without a size, every build option."""
    work = next(g for g in ALL if g.text == "work")
    n = 1000
    x = np.arange(n, dtype=np.uint32)
    pinned = session.pinned(4 * n).view(np.uint32)
    pinned[...] = x
    for flags in ((), *((f,) for f in FLAGS)):
        kernel = source_kernel(replace(work.source(work.cases[0]), flags=flags), session)
        with_size = session.device.backend == "cuda"
        for queue in (session, session.branch()):
            source, output = session.allocate(4 * n), session.allocate(4 * n)
            args = (np.uint32(3), np.uint32(n), source, output)
            launch = queue.bind(kernel, (4,), (256,), args) if with_size else queue.bind_unsized(kernel, (n,), args)
            queue.start_upload(source, pinned)
            launch()
            queue.submit()
            queue.synchronize()
            result = np.empty(n, np.float32)
            session.download(output, result)
            assert np.array_equal(result, steps(x, 3)), (flags, queue)
            if queue is not session:
                queue.close()


def test_transfers_beside_kernels_are_right_wherever_they_run(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU there is nothing to gain, but the pieces must come out right all the same."""
    monkeypatch.setattr(pinned_memory, "CHUNK", 4096)
    monkeypatch.setattr(pinned_memory, "COUNT", 16)
    lab = Lab(guidelines.select(["pinned_memory"])[0], session)
    lab.device = replace(lab.device, kind="other")
    trials = lab.guideline.experiment(lab)
    assert [t.verify() for t in trials] == [0, 0, 0] and all(t.on_host for t in trials)
    lab.close()


def test_every_backend_spells_every_build_option() -> None:
    assert set(FLAGS) == set(nvrtc.BUILD_FLAGS) == set(opencl.BUILD_FLAGS)


def test_the_command_stores_what_it_shows(typed: Typed, tmp_path: Path, device: Device) -> None:
    out = tmp_path / "out.json"
    words = ("guidelines", "--device", device.id, "--only", "divergence,pinned_memory", "--json", out)
    code, text = typed(*words)
    assert code == 0 and "no divergence within" in text
    record = results.read(out)
    assert record["kind"] == "guidelines" and not record["failures"] and record["measurements"] == []
    assert [f.name for f in report.read(record)] == ["divergence", "pinned_memory"]
    code, text = typed("results", "show", out)
    assert code == 0 and "neighbours go four ways" in text
    code, text = typed("results", "list", "--dir", tmp_path)
    assert code == 0 and "toprung guidelines" in text
    assert "| no divergence within a warp |" in guidelines_table.block([str(out)], Path("/"))
    assert "| neighbours go four ways |" in guidelines_table.block(["divergence", str(out)], Path("/"))
    with pytest.raises(UnknownName, match="no guideline in every record 'coalescing'"):
        guidelines_table.block(["coalescing", str(out)], Path("/"))
    damaged = json.loads(out.read_text())
    del damaged["findings"][0]["ways"]
    out.write_text(json.dumps(damaged))
    code, text = typed("results", "show", out)
    assert code == 2 and "findings are damaged" in text


def test_the_command_reports_what_is_wrong(typed: Typed, planted: Path, tmp_path: Path) -> None:
    plant(planted / "divergence.cl", *PLANTED["divergence"])
    out = tmp_path / "out.json"
    code, text = typed("guidelines", "--device", "pocl", "--only", "divergence,pinned_memory", "--json", out)
    assert code == 1 and "divergence: divergence, 64 neighbours go the same way: element" in text and "failed" in text
    assert json.loads(out.read_text())["failures"]
    plant(planted / "divergence.cl", "float *restrict out", "flaot *restrict out")
    code, text = typed("guidelines", "--device", "pocl", "--only", "divergence")
    assert code == 1 and "flaot" in text


def test_bad_input_is_refused(typed: Typed) -> None:
    for words, message in (
        (("--device", "abacus"), "no device 'abacus'; there is:"), (("--only", "warp"), "no guideline 'warp'; there is:"),
    ):  # fmt: skip
        code, text = typed("guidelines", *words)
        assert code == 2 and message in text
