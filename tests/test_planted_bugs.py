"""The checks are checked: every bug planted here is caught, and the same kernel without it passes.

A planted kernel may stray, on a CPU into the process's own heap; sizes and leading dimensions are chosen so that it strays
no further than the guards around each operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import toprung.kernels
import trial
from toprung.backends.base import Session
from toprung.lab.routines import base
from toprung.lab.rung import rung
from toprung.oracle.check import Operands, Oracle, hostile, view
from toprung.oracle.gemm import Gemm
from toprung.oracle.problem import F32
from toprung.tile import Tile

SMALL = Tile(BM=8, BN=8)
BLOCK = Tile(BM=32, BN=32, BK=8, TM=4, TN=4, VA=4, VB=4)
GUARD = "if (m >= M || n >= N) return;"
STORE = "if (beta != 0.0f) result += beta * C[c];"
LEFT = "m0 + tm + i / VA * DM * VA + i % VA < M ? N - n0 - tn - j * DN * VB : 0;"


@dataclass(frozen=True)
class Bug:
    """A fragment of a rung's text, what replaces it, a problem that gives it away, and what the verdict then says."""

    name: str
    rung: str
    fragment: str
    replacement: str
    problem: Gemm
    says: str = "grade ratio"
    tile: Tile = SMALL
    options: dict[str, int] = field(default_factory=dict)


GAPS = Gemm(9, 11, 10, 0.7, 1.3, lda=13, ldb=12, ldc=14)
BUGS = [
    Bug("leading dimension of A", "kepler/r01", "(size_t)m * lda", "(size_t)m * K", GAPS),
    Bug("leading dimension of B", "kepler/r01", "(size_t)k * ldb", "(size_t)k * N", GAPS),
    Bug("leading dimension of C", "kepler/r01", "(size_t)m * ldc", "(size_t)m * N", GAPS, "in the gap behind row 0"),
    Bug("swapped strides", "kepler/r01", "A[(size_t)m * lda + k]", "A[(size_t)k * lda + m]", Gemm(9, 9, 9)),
    Bug("β = 0 reads C", "kepler/r01", STORE, "result += beta * C[c];", Gemm(9, 11, 10)),
    Bug("β left out", "kepler/r01", "beta * C[c]", "C[c]", Gemm(9, 11, 10, 1.0, 1.3)),
    Bug("α left out", "kepler/r01", "alpha * acc", "acc", Gemm(9, 11, 10, 0.7)),
    Bug("NaN output", "kepler/r01", "C[c] = result", "C[c] = NAN", Gemm(9, 11, 10)),
    Bug("one NaN in the output", "kepler/r01", "C[c] = result", "C[c] = c == 7 ? NAN : result", Gemm(9, 11, 10), "C[0, 7] is nan"),
    Bug("C not written", "kepler/r01", "C[c] = result", "if (m != 3) C[c] = result", Gemm(9, 11, 10), "first C[3, 0]"),
    Bug("one dropped k", "kepler/r01", "k < K", "k < K - 1", Gemm(3, 5, 16384)),
    Bug("no guard in M", "kepler/r01", GUARD, "if (n >= N) return;", Gemm(9, 11, 10), "elements behind it"),
    Bug("no guard in N", "kepler/r01", GUARD, "if (m >= M) return;", Gemm(9, 11, 10, ldc=30), "in the gap behind row 0"),
    Bug("no guard in M", "kepler/r10", LEFT, LEFT.replace("m0 + tm + i / VA * DM * VA + i % VA < M ?", "1 ?"), GAPS,
        "elements behind it", BLOCK),
    Bug("no guard in N", "kepler/r10", LEFT, LEFT.replace("N - n0 - tn - j * DN * VB", "VB"), GAPS, "in the gap", BLOCK),
    Bug("no guard in K", "kepler/r10", "l / BN < k_left && l % BN < n_left ?", "l % BN < n_left ?", GAPS, tile=BLOCK),
    Bug("β = 0 reads C at the edge", "kepler/r10", "(beta != 0.0f ? beta * C[c + e] : 0.0f)", "beta * C[c + e]",
        Gemm(9, 11, 10), tile=BLOCK),
    Bug("stale tile", "kepler/r09", "&As[now][k]", "&As[0][k]", Gemm(32, 32, 24), tile=BLOCK),
    Bug("buffers not exchanged", "kepler/r09", "now = 1 - now;", "", Gemm(32, 32, 24), tile=BLOCK),
    Bug("half a vector stored", "kepler/r07", "GLOBAL_V(VB, &C[c]) = result;", "GLOBAL_V(2, &C[c]) = result.lo;",
        Gemm(32, 32, 8), "were never written, the first C[0, 2]", BLOCK),
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.rung}-{b.name}")
def test_a_planted_kernel_bug_is_caught(bug: Bug, session: Session, tmp_path: Path) -> None:
    right = rung(bug.rung)
    wrong = trial.altered(right, tmp_path, (bug.fragment, bug.replacement))
    sane = trial.attempt(trial.make(right, session, bug.options, bug.tile), bug.problem, session).verdict
    assert sane.right, sane.problems
    found = trial.attempt(trial.make(wrong, session, bug.options, bug.tile), bug.problem, session).verdict
    assert not found.right
    assert any(bug.says in problem for problem in found.problems), found.problems


def test_each_marked_place_of_a_kernel_has_a_bug() -> None:
    """``hopper_on_cpu.bug`` plants it there; the place of one that is gone goes, too."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    kernels = [
        path.read_text() for path in Path(toprung.kernels.__file__).parent.rglob("*") if path.suffix in (".cl", ".cu", ".cuh")
    ]
    places = {place for text in kernels for place in re.findall(r"/\*!(.*?)\*/", text)}
    assert places and not [place for place in places if f'"{place}"' not in tests]


def test_a_missing_barrier_is_caught(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the shared transpose. A CPU runtime runs the rungs' loops over k in step, barrier or not: the simulator's tests take
    their barriers out."""
    problem, tile = Gemm(17, 18, 19), BLOCK
    assert trial.attempt(trial.make(rung("kepler/r09"), session, tile=tile), problem, session).verdict.right
    fragment = "barrier(CLK_LOCAL_MEM_FENCE);"
    for source in base.KERNELS.glob("*.cl"):
        text = source.read_text()
        assert (fragment in text) == (source.stem in ("transpose", "stream_read"))
        (tmp_path / source.name).write_text(text.replace(fragment, ""))
    monkeypatch.setattr(base, "KERNELS", tmp_path)
    assert not trial.attempt(trial.make(rung("kepler/r09"), session, tile=tile), problem, session).verdict.right


def rounded(values: F32, bits: int) -> F32:
    """To a mantissa of ``bits`` bits, to nearest, ties to even."""
    drop = 23 - bits
    pattern = values.view(np.uint32).astype(np.uint64)
    pattern += (1 << (drop - 1)) - 1 + ((pattern >> drop) & 1)
    return (pattern >> drop << drop).astype(np.uint32).view(np.float32)


def as_fp16(values: F32) -> F32:
    return values.astype(np.float16).astype(np.float32)


def as_tf32(values: F32) -> F32:
    return rounded(values, 10)


def as_bf16(values: F32) -> F32:
    return rounded(values, 7)


def computed(operands: Operands, a: F32, b: F32) -> F32:
    """The output's backing array after a product of other inputs, in fp32."""
    flat = operands.flat["C"].copy()
    view(operands.problem.output, flat)[...] = a @ b
    return flat


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("depth", [512, 4096, 16384])
@pytest.mark.parametrize("change", [as_fp16, as_tf32, as_bf16])
def test_rounded_inputs_are_caught(change: Callable[[F32], F32], depth: int, distribution: str) -> None:
    operands = hostile(Gemm(24, 20, depth), distribution)
    oracle, a, b = Oracle(operands), operands.matrices["A"].copy(), operands.matrices["B"].copy()
    assert oracle.verify(computed(operands, a, b)).right
    assert not np.array_equal(change(a), a) and np.allclose(change(a), a, rtol=2.0**-7)
    found = oracle.verify(computed(operands, change(a), change(b)))
    assert not found.right
    assert found.grade > 2 * oracle.limit(), "caught by too narrow a margin to rely on"


@pytest.mark.parametrize("k", [0, 8000, 16383])
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_one_dropped_k_is_caught_at_16384(k: int, distribution: str) -> None:
    operands = hostile(Gemm(24, 20, 16384), distribution)
    oracle, a, b = Oracle(operands), operands.matrices["A"].copy(), operands.matrices["B"].copy()
    assert oracle.verify(computed(operands, a, b)).right
    a[:, k] = 0
    assert not oracle.verify(computed(operands, a, b)).right
