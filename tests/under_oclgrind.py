"""Run under a simulator that sees every access: ``oclgrind --log LOG ... python under_oclgrind.py LOG JOBS``.

JOBS is a JSON list of jobs; prints a JSON list with what the simulator logged during each, whether its result was right, and
the tile. The log is one file, so what belongs to which job is told by how far the file had grown.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trial
from toprung.backends import find, opened
from toprung.backends.base import Session
from toprung.dispatch.selection import Candidate
from toprung.kernels.tiled import family as tiled
from toprung.lab.harness.library import Toprung
from toprung.lab.rung import Rung, rung
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.oracle.placed import OnDevice
from toprung.tile import Tile


def tile_for(rung: Rung, session: Session, options: dict[str, int], below: tuple[int, int, int]) -> Tile:
    """A legal tile of a GPU's kind, less than ``below`` in each dimension if there is one: as wide in its vectors as the rung's
    own, and with as many work-items as that leaves."""
    usual = rung.tile_for(session.device, options)

    def merit(tile: Tile) -> tuple[int, ...]:
        several = sum(b < n for b, n in zip(blocks(tile), below, strict=True))
        too_many = max(tile.work_items - 256, 0)  # beyond that the simulator only takes longer
        widths = sum(min(getattr(tile, w) or 1, getattr(usual, w) or 1) for w in ("VEC", "VA", "VB"))
        return several, widths, -too_many, -tile.BM * tile.BN if several < 3 else 0, tile.work_items

    return max((usual, *rung.legal(session.device, options)), key=merit)


def blocks(tile: Tile) -> tuple[int, int, int]:
    return tile.BM, tile.BN, tile.BK or 1


def run_engine(job: dict[str, Any], session: Session, folder: Path) -> dict[str, Any]:
    """Run a product by the library's engine; ``tile`` and ``slices``: the block kernel's, else what the heuristic selects."""
    if job.get("changes"):
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / tiled.RECORD.source.name
        whole.write_text(tiled.RECORD.text())  # with what it includes
        altered = trial.altered(replace(tiled.RECORD, source=whole), folder, *job["changes"])
        tiled.FAMILY.records = (altered, *tiled.FAMILY.records[1:])
    kind: Any = {"gemm": Gemm, "gemv": Gemv}[job["engine"]]
    problem = kind(*job["size"], *job.get("scalars", (0.7, 1.3)), **job.get("layout", {}))
    candidate = None
    if "tile" in job:
        desc: Any = problem.desc
        tile = Tile(**job["tile"], VA=4, VB=4, SPLIT_K=job.get("slices", 1))
        switches = {"AHEAD": int(session.device.kind != "gpu")}  # as it is selected through OpenCL
        candidate = Candidate(tiled.FAMILY, tiled.configuration(session.device, desc, tile, switches))
    operands = hostile(problem)
    prepared: Any = Toprung(candidate=candidate).prepare(OnDevice(operands, session))
    prepared.time(1)
    verdict = Oracle(operands).verify(prepared.fetch())
    return {"right": verdict.right, "problems": verdict.problems, "tile": str(prepared.executable), "blocks": (), "steps": ()}


def run(job: dict[str, Any], session: Session, folder: Path) -> dict[str, Any]:
    if "engine" in job:
        right = tiled.FAMILY.records
        try:
            return run_engine(job, session, folder)
        finally:
            tiled.FAMILY.records = right
    chosen = rung(job["rung"])
    for before, after in job.get("changes", ()):
        folder.mkdir(parents=True, exist_ok=True)
        chosen = trial.altered(chosen, folder, (before, after))
    size, options = tuple(job["size"]), job.get("options", {})
    tile = Tile(**job["tile"]) if "tile" in job else tile_for(chosen, session, options, tuple(job.get("below", size)))
    kind: Any = {"gemm": Gemm, "gemv": Gemv}[chosen.routine]
    problem = kind(*size, *job.get("scalars", (0.7, 1.3)), **job.get("layout", {}))
    outcome = trial.attempt(trial.make(chosen, session, options, tile), problem, session)
    return {"right": outcome.verdict.right, "problems": outcome.verdict.problems, "tile": str(tile), "blocks": blocks(tile),
            "steps": outcome.steps}  # fmt: skip


def main(log: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    device = find("opencl")
    assert "oclgrind" in device.runtime.lower(), f"this is {device.runtime}, not the simulator"
    done, read = [], 0
    with opened(device) as session:
        for number, job in enumerate(jobs):
            found = run(job, session, log.parent / f"job{number}")
            text = log.read_text() if log.exists() else ""
            done.append(found | {"log": text[read:], "local_bytes": device.local_bytes})
            read = len(text)
    return done


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
