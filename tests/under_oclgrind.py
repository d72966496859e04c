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
from toprung.backends import devices, opened
from toprung.backends.base import Session
from toprung.blas import kernel as kernels
from toprung.blas.call import widths
from toprung.blas.choice import Candidate, Choice
from toprung.blas.competitor import Toprung, call_of
from toprung.blas.slices import whole_slices
from toprung.blas.tiles import tiled_options
from toprung.check import Oracle, hostile
from toprung.competitor import OnDevice
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.rung import Rung, rung
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
    """A product by the library's engine; ``tile`` and ``slices``: the tunable kernel's, else what the model chooses."""
    for before, after in job.get("changes", ()):
        folder.mkdir(parents=True, exist_ok=True)
        damaged = trial.altered(kernels.kernel("gemm"), folder, (before, after))
        kernels.kernel = lambda name, found=damaged, right=kernels.kernel: found if name == "gemm" else right(name)
    kind: Any = {"gemm": Gemm, "gemv": Gemv}[job["engine"]]
    problem = kind(*job["size"], *job.get("scalars", (0.7, 1.3)), **job.get("layout", {}))
    choice = None
    if "tile" in job:
        call: Any = call_of(problem)
        a, b, _ = widths(call)
        tile = Tile(**{**job["tile"], "VA": a, "VB": b})
        slices = whole_slices(call.K, tile.BK or 1, job.get("slices", 1))
        options = tiled_options(call, Candidate(tile, {}), session.device, slices)
        choice = Choice("gemm", replace(tile, SPLIT_K=slices if slices > 1 else None), tuple(sorted(options.items())))
    operands = hostile(problem)
    prepared: Any = Toprung(choice=choice).prepare(OnDevice(operands, session))
    prepared.time(1)
    verdict = Oracle(operands).verify(prepared.fetch())
    kernels._loaded.clear()
    return {"right": verdict.right, "problems": verdict.problems, "tile": str(prepared.executable), "blocks": (), "steps": ()}


def run(job: dict[str, Any], session: Session, folder: Path) -> dict[str, Any]:
    if "engine" in job:
        right = kernels.kernel
        try:
            return run_engine(job, session, folder)
        finally:
            kernels.kernel = right
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
    (device,) = devices()
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
