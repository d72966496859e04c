"""Kernels in OpenCL C on operands that end where memory ends, of odd sizes and in batches; and sums of ten thousand products."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import trial
from conftest import require
from hopper_on_cpu import ends_with_memory
from test_stream_k import SMALL, chosen
from toprung.backends import session_for
from toprung.backends.base import Session
from toprung.dispatch.selection import Candidate
from toprung.execute.executable import Executable
from toprung.gemm.desc import GemmDesc
from toprung.gemm.lowering import Copy, Program
from toprung.kernels.base import candidates
from toprung.kernels.registry import family
from toprung.kernels.stream_k import family as stream_k
from toprung.kernels.tiled import family as tiled
from toprung.oracle.gemm import Gemm

WELL = {"align_a": 4, "align_b": 4, "align_c": 4}
DEEP = 10_000
SIZES = {"tiled": (20, 18), "stream_k": (35, 33), "plain": (6, 5), "rows": (70, 1), "columns": (1, 70), "two rows": (70, 2)}
"""M and N of a deep product of each kernel."""
MOST = 6.0
"""Largest root mean square of the relative errors of its sums, in units of 2**-24: ``one chain`` of ten thousand has some 30."""


def made(name: str, session: Session, desc: GemmDesc, slices: int = 1, stages: int = 1) -> Candidate:
    """Return a candidate of a family with a small tile, or its first."""
    if name == "tiled":
        tile = replace(SMALL, SPLIT_K=slices, STAGES=stages)
        return Candidate(tiled.FAMILY, tiled.configuration(session.device, desc, tile, {"AHEAD": 0}))
    if name == "stream_k":
        problem = Gemm(desc.M, desc.N, desc.K, trans=desc.trans)
        return chosen(session, problem)
    found = family(name if name == "plain" else "skinny")
    return Candidate(found, next(iter(candidates(found, session.device, desc))))


def multiplied(session: Session, desc: GemmDesc, candidate: Candidate, positive: bool = False) -> tuple[Any, Any]:
    """Return 2·A·B + C and the same in float64; each operand is the last of its memory."""
    rng, low = np.random.default_rng(desc.K), 0.0 if positive else -1.0
    batch, (m, n, k) = desc.batch, (desc.M, desc.N, desc.K)
    a, b, c = (ends_with_memory(batch * rows * cols).reshape(batch, rows, cols) for rows, cols in desc.stored)
    for x in (a, b, c):
        x[...] = rng.uniform(low, 1, x.shape)
    left, right = (x.astype(np.float64) for x in (a, b))
    left, right = (left.swapaxes(1, 2) if desc.trans_a else left), (right.swapaxes(1, 2) if desc.trans_b else right)
    exact = 2 * left @ right + c
    assert exact.shape == (batch, m, n) and left.shape[2] == k
    buffers = [session.over_host(x.ctypes.data, x.nbytes) for x in (a, b, c)]  # type: ignore[attr-defined]
    (at_a, at_b, at_c) = (x.handle for x in buffers)
    Executable.of(session, desc, candidate).run(at_a, 0, at_b, 0, at_c, 0, 2.0, 1.0)
    session.in_sight(buffers[2])  # type: ignore[attr-defined]
    return c.astype(np.float64), exact


def descs(sizes: tuple[int, int, int], trans: str, batch: int = 1, **more: Any) -> GemmDesc:
    m, n, k = sizes
    strides = {"stride_a": m * k, "stride_b": k * n, "stride_c": m * n} if batch > 1 else {}
    return GemmDesc(m, n, k, batch, trans[0] == "T", trans[1] == "T", **strides, **more)


def cases(session: Session) -> Iterator[tuple[str, GemmDesc, Candidate]]:
    for trans, more in (("NN", {}), ("TT", {}), ("NT", WELL), ("TN", WELL)):
        one = descs((36, 40, 44), trans, **more) if more else descs((33, 29, 37), trans, 2)
        yield "tiled", one, made("tiled", session, one, stages=one.batch)
    cut = descs((17, 19, 301), "NN")
    yield "tiled", cut, made("tiled", session, cut, slices=3)
    for trans in ("NN", "TT"):
        for one in (descs((35, 33, 259), trans), descs((6, 5, 70), trans, 3)):
            name = "plain" if one.batch > 1 else "stream_k"
            yield name, one, made(name, session, one)
    for sizes, trans in (((70, 3, 65), "NT"), ((70, 1, 64), "NN"), ((3, 66, 71), "NN"), ((1, 70, 33), "NN"), ((5, 70, 66), "NT")):
        one = descs(sizes, trans, 3)
        yield "skinny", one, made("skinny", session, one)


def main() -> None:
    """Run every case; what is read behind an operand ends the process behind the line that names it."""
    device: Any = trial.tested()
    session: Any = session_for(device)
    stream_k.SAVED = 16  # little is worth a cut
    for name, desc, candidate in cases(session):
        print(name, desc, candidate, flush=True)
        found, exact = multiplied(session, desc, candidate)
        assert np.allclose(found, exact, rtol=0, atol=1e-6 * desc.K), "wrong"
    print("a copy", flush=True)
    src, dst = (ends_with_memory(2 * rows * cols).reshape(2, rows, cols) for rows, cols in ((14, 22), (11, 13)))
    src[...] = np.arange(616).reshape(src.shape)
    step = Copy((0, 1), (2, 0), (2, 13, 11), (14 * 22, 22, 2), (11 * 13, 1, 13))  # transposed, of every other column
    buffers = [session.over_host(x.ctypes.data, x.nbytes) for x in (src, dst)]
    Executable(session, Program((step,)), {}).run(buffers[0].handle, 0, None, 0, buffers[1].handle, 0, 1.0, 0.0)
    session.in_sight(buffers[1])
    assert np.array_equal(dst, src[:, :13, 1::2].swapaxes(1, 2)), "wrong"


def test_nothing_is_read_or_written_behind_an_operand() -> None:
    require(trial.tested(), "no PoCL device")
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; import test_edges; test_edges.main()"],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.returncode, done.stderr[-500:])
    assert done.stdout.count("\n") == 15


@pytest.mark.parametrize("name", SIZES)
def test_sums_of_ten_thousand_products_are_added_up_in_chains(name: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_k, "SAVED", 16)
    desc = descs((*SIZES[name], DEEP), "NN")
    found, exact = multiplied(session, desc, made(name, session, desc), positive=True)
    errors = (found - exact) / exact * 2**24
    assert 0 < np.sqrt((errors**2).mean()) < MOST
