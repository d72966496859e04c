"""The command line, typed as a user types it, and as a process where that makes a difference: output and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import require
from others import running
from toprung import backends
from toprung.backends import waiting
from toprung.cli import progress
from toprung.cli.common import parse_numbers, parse_sizes, parse_switches
from toprung.errors import BadSize, UnknownName
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, compare
from toprung.lab.rung import rung
from toprung.oracle.gemm import Gemm
from toprung.tune import apart as processes

RUNGS = "0,1,4,10"
PROGRAM = "import sys; sys.modules['wgpu'] = None; from toprung.cli import main; main()"
"""The command line without wgpu: half a second of each start, and no test here needs it; those in test_webgpu.py do."""
AT_EACH_STEP = f"import toprung.cli.progress as p; p.QUIET_SECONDS = 0.0; {PROGRAM}"
KEPLER = Path(__file__).parent.parent / "src/toprung/lab/ladders/kepler"


def planted_ladder(folder: Path, old: str, new: str) -> str:
    """A folder of ladders in which kepler has a rung 90: rung 1 with one fragment replaced."""
    (folder / "kepler").mkdir()
    text = (KEPLER / "r01_naive.cl").read_text()
    assert old in text
    (folder / "kepler/r90_planted.cl").write_text(text.replace(old, new))
    (folder / "kepler/r90_planted.py").write_text((KEPLER / "r01_naive.py").read_text())
    return str(folder)


def test_devices_lists_what_can_be_used_and_what_tells_devices_of_one_name_apart(typed):
    done = typed.done("devices", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    heading = next(line for line in done.stdout.splitlines() if "units" in line)
    assert "opencl:0" in done.stdout and "driver" in heading and "runtime" in heading
    assert "unknown" not in done.stdout and "faster" not in done.stdout


def test_without_any_runtime_it_says_how_to_get_one(tmp_path):
    """A process, with its exit code and no traceback."""
    none = {"OCL_ICD_VENDORS": str(tmp_path / "none.so"), "VK_DRIVER_FILES": str(tmp_path / "none.json")}
    first = f"import sys; sys.argv[1:] = ['devices']\ntry: exec({PROGRAM!r})\nexcept SystemExit as end: assert end.code == 2\n"
    program = f"{first}sys.argv[1:] = ['ladder', 'kepler']\nmain()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **none})
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.count("has no .icd file: unset it") == 2


def test_ladder_verifies_and_records_rungs(typed, tmp_path):
    out, picture = tmp_path / "new/out.json", tmp_path / "out.png"
    done = typed.done(
        "ladder", "kepler", "--sizes", "35x79x19,3x3x431", "--rungs", RUNGS, "--json", str(out), "--plot", str(picture)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GFLOP/s over size" in done.stdout and f"{out.parent} is not there, and will be made" in done.stderr
    record = json.loads(out.read_text())
    assert record["failures"] == [] and record["interrupted"] is False
    assert record["environment"]["device"]["slug"] and record["environment"]["date"]
    for size in ((35, 79, 19), (3, 3, 431)):
        ours = [m for m in record["measurements"] if tuple(m["problem"][k] for k in "MNK") == size]
        assert {m["competitor"]["number"] for m in ours} == {0, 1, 4, 10}
        for m in ours:
            assert m["verdict"]["right"] is True
            assert len(m["seconds"]) >= 5 and all(s > 0 for s in m["seconds"])
            assert m["verdict"]["grade"] <= 16
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert not list(tmp_path.glob("out-*")), "one picture, as was asked for"


def test_a_wrong_rung_is_shown_with_its_first_wrong_element(typed, tmp_path):
    root = planted_ladder(tmp_path, "+ k] * B", "+ k] * -B")
    done = typed.done("ladder", "kepler", "--sizes", "48", "--rungs", "1,90", TOPRUNG_LADDERS=root)
    assert done.returncode == 1
    assert "kepler/r90 at 48: C[0, 0] is" in done.stdout and "WRONG" in done.stdout
    assert "one work-item per element" in done.stdout, "the right rung is measured all the same"


def test_a_rung_that_does_not_build_shows_the_log_and_the_rest_runs(typed, tmp_path):
    root = planted_ladder(tmp_path, "float acc", "flaot acc")
    done = typed.done("ladder", "kepler", "--sizes", "48", "--rungs", "1,90", TOPRUNG_LADDERS=root)
    assert done.returncode == 1
    assert f"kepler/r90 at 48: {root}/kepler" in done.stdout and ": use of undeclared identifier 'flaot'" in done.stdout
    assert "BM=32 BN=32" in done.stdout and "opencl:0" in done.stdout
    assert done.stdout.count("GFLOP/s") and "1 warning" not in done.stderr
    assert next(line for line in done.stdout.splitlines() if line.strip().startswith("1 ")).split()[-1] != "failed"


def test_too_large_a_size_is_skipped_with_the_bytes(typed, tmp_path):
    """What was measured all the same is kept in the user's own folder, as no file was named."""
    done = typed.done("ladder", "kepler", "--sizes", "300000,48", "--rungs", "1", TOPRUNG_DATA=str(tmp_path))
    assert done.returncode == 1
    (kept,) = (tmp_path / "results").rglob("kepler-*.json")
    assert len(json.loads(kept.read_text())["measurements"]) == 2 and f"kept in {kept}" in done.stdout
    assert "360,000,000,000 bytes" in done.stdout and "one work-item per element" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ladder"], "name a ladder, or a rung such as kepler/r07; there is: hopper,"),
        (["explain"], "name a ladder, or a rung"),
        (["inspect"], "name a ladder, or a rung"),
        (["ladder", "keplr"], "no ladder 'keplr'; there is:"),
        (["ladder", "kepler", "--rungs", "99"], "no rung of kepler '99'"),
        (["ladder", "kepler", "--rungs", "5-3"], "no rung of kepler"),
        (["ladder", "kepler", "--device", "abacus"], "no device 'abacus'; there is:"),
        (["ladder", "kepler", "--sizes", "0"], "positive whole numbers"),
        (["ladder", "kepler", "--sizes", "-5"], "positive whole numbers"),
        (["ladder", "kepler", "--sizes", "12,big"], "positive whole numbers"),
        (["ladder", "kepler", "--sizes", "3x4"], "N or MxNxK"),
        (["ladder", "kepler", "--sizes", "9:3:1"], "is empty"),
        (["ladder", "kepler", "--switch", "TURBO"], "no switch"),
        (["ladder", "kepler", "--switch", "INDEX32=7"], "no value of INDEX32 '7'; there is: 0, 1"),
        (["ladder", "kepler", "--switch", "BANK_WIDTH"], "only Kepler"),
        (["ladder", "kepler", "--sizes", "300000"], "360,000,000,000 bytes"),
        (["ladder", "kepler", "--budget", "5"], "'5': a number alone is of configurations"),
        (["ladder", "kepler", "--plot", "x.bmp"], "no kind of picture '.bmp'"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(words, message, typed):
    done = typed.done(*words)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ") and "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_signal_keeps_what_was_measured(number, code, tmp_path):
    out = tmp_path / "out.json"
    words = ["ladder", "kepler", "--sizes", "32,2048", "--rungs", "1", "--json", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", AT_EACH_STEP, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    next(line for line in process.stdout if "2048: making" in line)  # the first size is done, the second has begun
    process.send_signal(number)
    rest, _ = process.communicate()
    assert process.returncode == code, rest
    assert "interrupted" in rest
    record = json.loads(out.read_text())
    assert record["interrupted"] is True
    assert [m["problem"]["M"] for m in record["measurements"] if m["competitor"]["number"] == 1] == [32]


ENDLESS = "k < K; ++k)", "k >= 0; k += 0)"


@pytest.mark.parametrize(
    ("words", "signals", "code"),
    [
        (["ladder", "kepler", "--rungs", "1,90", "--sizes", "32"], [signal.SIGTERM], 143),
        pytest.param(["run", "kepler/r90", "--size", "32"], [signal.SIGINT], 130, marks=pytest.mark.slow),
        pytest.param(["bench", "--peers", "numpy,kepler/r90", "--sizes", "32"], [signal.SIGINT], 130, marks=pytest.mark.slow),
        pytest.param(["ladder", "kepler", "--rungs", "90", "--sizes", "32"], [signal.SIGINT] * 2, 130, marks=pytest.mark.slow),
    ],
)
def test_a_kernel_that_does_not_end_is_stopped_and_named(words, signals, code, tmp_path, typed):
    require(Path("/proc").is_dir(), "needs /proc")
    root, out = planted_ladder(tmp_path, *ENDLESS), tmp_path / "out.json"
    twice = len(signals) == 2  # alone, the first signal would stop the kernel after GRACE
    program = f"from toprung.backends import waiting; waiting.GRACE = {600.0 if twice else waiting.GRACE}; {AT_EACH_STEP}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words, "--json", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TOPRUNG_LADDERS": root},
    )  # fmt: skip

    def used() -> float:
        return sum(seconds for pid, (parent, seconds) in running().items() if process.pid in (pid, parent))

    try:
        assert process.stderr is not None
        next(line for line in process.stderr if "r90" in line and "running" in line)
        refused, why = typed(*words, "--json", out)  # one of two records would be lost
        assert refused == 2 and f"{out} is what another command writes that runs now: name another file" in why
        until = used() + 0.5
        while used() < until:  # by then the kernel runs
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signals[0])
        while twice and process.poll() is None:  # signals that come close together count as one
            time.sleep(0.05)
            process.send_signal(signals[1])
        said, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == code
    if not twice:
        record = json.loads(out.read_text())
        assert record["interrupted"] and ["did not end: it was stopped" in line for line in record["failures"]] == [True]
        assert "failed" in said.lower() and record["failures"][0] in said and "interrupted" in said
    else:
        assert said == "" and not out.exists(), "a second Ctrl-C waits for nothing"


def test_a_kernel_that_crashes_is_a_row_and_the_others_are_measured(tmp_path):
    root, out = planted_ladder(tmp_path, "C[c] = result", "C[c + ((size_t)1 << 40)] = result"), tmp_path / "out.json"
    words = ["ladder", "kepler", "--rungs", "1,90", "--sizes", "32,33", "--json", str(out)]
    env = {**os.environ, "TOPRUNG_LADDERS": root}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, env=env)
    record = json.loads(out.read_text())
    assert done.returncode == 1 and not record["interrupted"], done.stderr
    assert [m["problem"]["M"] for m in record["measurements"] if m["competitor"]["number"] == 1] == [32, 33]
    crashed = [f"kepler/r90 at {size}: the kernel crashed: the process was killed by SIGSEGV" for size in (32, 33)]
    assert [line[: len(crashed[0])] for line in record["failures"]] == crashed and crashed[0] in done.stdout


def test_a_budget_ends_a_kernel_that_does_not_end(device, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPRUNG_LADDERS", planted_ladder(tmp_path, *ENDLESS))
    monkeypatch.setattr(processes, "OVER", 1.0)
    (row,) = rows = ComparisonPlan(samples={"warm": 1}).rows([RungCompetitor(rung("kepler/r90"))])
    with backends.opened(device) as session, processes.apart([row.who], device, budget=0.0):
        assert list(compare(PlacedProblem(Gemm(32, 32, 32), session), rows))
    assert row.failed and row.note == "did not end: it was stopped 1 s after the budget was over"


def test_a_budget_ends_a_ladder_and_keeps_what_was_measured(typed, tmp_path, monkeypatch):
    # the budget ends with the first sample, on any machine
    monkeypatch.setattr(progress.Progress, "elapsed", property(lambda shown: 1e6 * (shown._done["sample"] > 0)))
    out = tmp_path / "out.json"
    done = typed.done("ladder", "kepler", "--sizes", "32,33,34", "--rungs", "1", "--budget", "0.05s", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "the budget of 0 s is over" in done.stdout and "not begun: 33, 34" in done.stdout
    record = json.loads(out.read_text())
    assert record["interrupted"] is True and {m["problem"]["M"] for m in record["measurements"]} == {32}
    assert any("budget" in note for note in record["notes"])


def test_a_pipe_hears_how_far_a_command_is_and_gets_the_table_alone(typed, monkeypatch):
    """A line a step on standard error, with an estimate; standard output has whole numbers, at any width, and no blanks behind."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 1e4 * time.monotonic()))  # so that steps take long
    words = "ladder", "kepler", "--sizes", "40", "--rungs", "1,7"
    done = typed.done(*words)
    steps = done.stderr.splitlines()
    assert any("kepler/r07 is right" in line for line in steps) and any("kepler/r01 timed 2 ×" in line for line in steps)
    assert any(", about " in line and " to go" in line for line in steps)
    assert "32×32×64 8×32 v8/16" in done.stdout and "left out" not in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines()) and "to go" not in done.stdout
    narrow = typed.done(*words, COLUMNS="80")
    assert "left out at 80 columns: tile" in narrow.stdout and "--wide shows them" in narrow.stdout
    assert max(len(line) for line in narrow.stdout.splitlines() if line[:2] in ("0 ", "1 ", "7 ")) <= 80
    wide = typed.done(*words[:-1], "1,7-8", "--wide")
    assert "left out" not in wide.stdout and "32×32×64 8×32 v8/16" in wide.stdout
    assert ": kepler/r08 READ_ONLY; kepler/r08 SHUFFLE; " in wide.stdout and wide.stdout.count("not on") == 1
    assert wide.stdout.count(" (1) ") == 1, "rung 7 is held against rung 1, rung 8 against rung 7"


def test_sizes_numbers_and_switches_as_written():
    assert parse_sizes("512,35x79x19,256:768:256") == [(512,), (35, 79, 19), (256,), (512,), (768,)]
    assert parse_numbers("0,2-4", range(6), "rung") == [0, 2, 3, 4]
    assert parse_switches(["A=1", "B=0", "C"]) == {"A": 1, "B": 0, "C": 1}
    for bad in ("", "1,", "x", "2x", "1:2", "1.5", "½", "1e3"):
        with pytest.raises(BadSize):
            parse_sizes(bad)
    for bad in ("", "a", "7", "1-9", "-1"):
        with pytest.raises(UnknownName):
            parse_numbers(bad, range(6), "rung")
    with pytest.raises(UnknownName):
        parse_switches(["A=x"])
