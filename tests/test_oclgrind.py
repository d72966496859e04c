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

pytestmark = pytest.mark.xdist_group("oclgrind")

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
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "TOPRUNG_CACHE": str(folder)})
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


def test_every_rung_is_clean(tmp_path: Path) -> None:
    jobs = [*jobs_for(SIZE), {"rung": "kepler/r01", "size": (33, 5, 0), "tile": {"BM": 4, "BN": 8}}]
    found = simulate(tmp_path, jobs)
    assert_clean(found, jobs)
    for outcome in found[:-1]:
        assert outcome["blocks"][2] < SIZE[2], "a second tile along K, or races between tiles go unseen"
    assert found[-1]["steps"] == ["scale"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_rung_is_clean_on_other_sizes(tmp_path: Path) -> None:
    """Thin, aligned, long; β = 0 as well."""
    cases = (((1, 65, 33), (1.0, 0.0)), ((64, 36, 40), (1.0, 1.0)), ((34, 40, 129), (-1.0, 0.0)))
    jobs = [job for size, scalars in cases for job in jobs_for(size, scalars=scalars, below=SIZE)]
    assert_clean(simulate(tmp_path, jobs), jobs)


def test_planted_faults_are_found(tmp_path: Path) -> None:
    """What the simulator is for, and that it is looking: the right kernel between two wrong ones is clean."""
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
