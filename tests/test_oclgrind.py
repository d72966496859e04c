"""Every rung in a simulator that sees each access: nothing out of bounds, no race, no barrier that only some reach."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trial
from conftest import require

SIZE = (33, 35, 37)
TILE = {"BM": 16, "BN": 16, "BK": 16}
LOCAL_BYTES = 49152
LOADED = "barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete"
READ = "barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more"


def simulate(folder: Path, jobs: list[dict[str, Any]], errors: int = 100) -> list[dict[str, Any]]:
    """Run jobs (see under_oclgrind.py) in one process, in caches of its own: its binaries are nobody else's."""
    require(shutil.which("oclgrind"), "oclgrind is not installed (Debian: apt install oclgrind)")
    log, script = folder / "log", Path(__file__).with_name("under_oclgrind.py")
    limits = ["--local-mem-size", str(LOCAL_BYTES), "--max-wgsize", "1024", "--max-errors", str(errors)]
    program = [sys.executable, str(script), str(log), json.dumps(jobs)]
    command = ["oclgrind", "--data-races", *limits, "--log", str(log), *program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TOPRUNG_CACHE": str(folder)})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == len(jobs) and found[0]["local_bytes"] == LOCAL_BYTES
    assert "".join(f["log"] for f in found).strip() == log.read_text().strip(), "part of the log belongs to no job"
    return found


def jobs_for(size: tuple[int, int, int], **more: Any) -> list[dict[str, Any]]:
    """A job for every rung with every value of the switches that a device like the simulator has a use for."""
    return [{"rung": v.rung.name, "options": dict(v.options), "size": size, **more} for v in trial.variants(trial.tested())]


def assert_clean(found: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
    named = {f"{job['rung']} {job.get('options', {})} {f['tile']}": f for f, job in zip(found, jobs, strict=True)}
    assert {who: (f["log"][:2000], f["problems"]) for who, f in named.items() if f["log"].strip() or f["problems"]} == {}
    assert all(f["right"] for f in found)


@pytest.mark.slow
def test_every_rung_is_clean(tmp_path: Path) -> None:
    jobs = [*jobs_for(SIZE), {"rung": "kepler/r01", "size": (33, 5, 0), "tile": {"BM": 4, "BN": 8}}]
    found = simulate(tmp_path, jobs)
    assert_clean(found, jobs)
    for outcome in found[:-1]:
        assert outcome["blocks"][2] < SIZE[2], "a second tile along K, or races between tiles go unseen"
    assert found[-1]["steps"] == ["scale"]


@pytest.mark.slow
def test_every_rung_is_clean_on_other_sizes(tmp_path: Path) -> None:
    """Thin, aligned, long; β = 0 as well."""
    cases = (((1, 65, 33), (1.0, 0.0)), ((64, 36, 40), (1.0, 1.0)), ((34, 40, 129), (-1.0, 0.0)))
    jobs = [job for size, scalars in cases for job in jobs_for(size, scalars=scalars, below=SIZE)]
    assert_clean(simulate(tmp_path, jobs), jobs)


def test_planted_faults_are_found(tmp_path: Path) -> None:
    """The simulator is looking: the right kernel between two wrong ones is clean."""
    plants: list[tuple[list[tuple[str, str]], str]] = [
        ([(LOADED, "")], "data race"),
        ([], ""),
        ([(READ, "")], "data race"),
        ([(LOADED, f"if (tm < 8) {LOADED}")], "divergence"),
        ([("A[(size_t)m * lda + k0 + tn]", "A[(size_t)m * lda + k0 + tn + (k0 && m == M - 1 ? 1025 : 0)]")], "invalid read"),
        ([("As[tm][tn] =", "As[tm][tn + (tm == BM - 1)] =")], "invalid write"),
    ]
    jobs = [{"rung": "kepler/r02", "size": (16, 16, 32), "tile": TILE, "changes": c} for c, _ in plants]
    found = simulate(tmp_path, jobs, errors=1_000_000)
    for (changes, says), outcome in zip(plants, found, strict=True):
        said = outcome["log"].strip()
        assert says in said.lower() and bool(said) == bool(changes), (changes, said[:2000])
    assert found[1]["right"]


ENGINE_TILE = {"BM": 16, "BN": 16, "BK": 8, "WM": 16, "WN": 16, "TM": 4, "TN": 4, "VEC": 4, "PADA": 4, "PADB": 4}


def engine_jobs() -> list[dict[str, Any]]:
    """The library's kernels: every transpose at the edges, one buffer and two, cut sums, a batch, short sides, vectors."""
    found: list[dict[str, Any]] = []
    for number, trans in enumerate(("NN", "NT", "TN", "TT")):
        tile = {**ENGINE_TILE, "STAGES": 1 + number % 2}
        found.append({"engine": "gemm", "size": (20, 36, 20), "tile": tile, "layout": {"trans": trans}})
        found.append({"engine": "gemm", "size": (19, 33, 21), "tile": tile, "layout": {"trans": trans}, "slices": 2})
        found.append({"engine": "gemm", "size": (3, 35, 70), "layout": {"trans": trans}})
        found.append({"engine": "gemm", "size": (36, 2, 36), "layout": {"trans": trans, "batch": 2}})
    found.append({"engine": "gemm", "size": (9, 10, 11), "tile": {**ENGINE_TILE, "STAGES": 1}, "layout": {"batch": 3}})
    found += [{"engine": "gemv", "size": (37, 35), "layout": {"trans": t, "incx": 2, "incy": 3}} for t in "NT"]
    return found


@pytest.mark.slow
def test_the_engine_is_clean(tmp_path: Path) -> None:
    jobs = engine_jobs()
    found = simulate(tmp_path, jobs)
    wrong = [(job, f["tile"], f["log"][:2000], f["problems"]) for job, f in zip(jobs, found, strict=True) if f["log"].strip()]
    assert wrong == [] and all(f["right"] for f in found)


@pytest.mark.slow
def test_faults_planted_in_the_engine_are_found(tmp_path: Path) -> None:
    """Reads beyond the edge whose values nobody uses are right by their results, and seen here alone."""
    plants = [
        ("at_a[f] = A_AT(m < M ? m : M - A_LAST, k);", "at_a[f] = A_AT(m, k) + (m < M ? 0 : 2000 * lda);", "invalid read"),
        ("barrier(CLK_LOCAL_MEM_FENCE); // nobody reads the tiles any more", "", "data race"),
        ("if (n < N) {", "if (n < N + 2000) {", "data race"),  # the edge of one row is the next row
    ]
    job = {"engine": "gemm", "size": (20, 36, 20), "tile": {**ENGINE_TILE, "STAGES": 1}}
    found = simulate(tmp_path, [job, *({**job, "changes": [(a, b)]} for a, b, _ in plants)], errors=1_000_000)
    assert not found[0]["log"].strip() and found[0]["right"]
    for (_, _, says), outcome in zip(plants, found[1:], strict=True):
        assert says in outcome["log"].lower(), (says, outcome["log"][:500])
