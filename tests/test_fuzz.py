"""The generator of random products, what it notices, and the programs that it prints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuzz
import toprung
from fuzz import Case, Side
from toprung.backends.base import Session
from toprung.lab.harness import results
from toprung.lab.harness.environment import environment

ROOT = Path(__file__).parents[1]
PLAIN = Case(7, 70, 75, 90)


def test_a_number_stands_for_a_product() -> None:
    cases = [fuzz.drawn(3, number, 400) for number in range(400)]
    assert cases == [fuzz.drawn(3, number, 400) for number in range(400)] and len(set(map(str, cases))) > 390
    assert {c.a.view for c in cases} == set(fuzz.VIEWS) == {c.out for c in cases}
    assert {c.a.values for c in cases} | {c.b.values for c in cases} == {*fuzz.VALUES, *fuzz.ONE_SIGNED}
    assert {c.routine for c in cases} == {"matmul", "sgemm"} and any(c.a.expanded for c in cases)
    assert any(0 in (c.M, c.N, c.K) for c in cases) and any(c.K > 2000 for c in cases)
    assert any(len(c.batch) == 2 for c in cases) and any(c.a.batch != c.b.batch for c in cases)


@pytest.mark.parametrize(
    "case",
    [
        PLAIN,
        replace(PLAIN, batch=(2, 3), a=Side((2, 1), "normal", "offset"), b=Side((3,), "positive", "every second column")),
        replace(PLAIN, routine="sgemm", alpha=0.7, beta=1.3, out="transposed", a=Side(values="Inf", view="padded, transposed")),
        replace(PLAIN, K=0, out="wide"),
        replace(PLAIN, a=Side(values="huge"), b=Side(values="overflowing", expanded="columns")),
    ],
    ids=str,
)
def test_what_is_right_passes(case: Case, session: Session) -> None:
    outcome = fuzz.examined(case, session.device.id)
    assert not outcome.failures and outcome.results > 0


class Wrong:
    """``toprung`` with another ``matmul``."""

    def __init__(self, matmul: Any) -> None:
        self.matmul, self.last_receipt, self.sgemm = matmul, toprung.last_receipt, toprung.sgemm


def one_chain(a: Any, b: Any, out: Any, **how: Any) -> Any:
    """A product whose sums are one chain, products rounded, too."""
    out[...] = 0
    for k in range(a.shape[-1]):
        out += a[..., :, k : k + 1] * b[..., k : k + 1, :]
    return out


def drops(a: Any, b: Any, out: Any, **how: Any) -> Any:
    """A product without the last of K."""
    return toprung.matmul(a[..., :-1], b[..., :-1, :], out, **how) if a.shape[-1] > 1 else toprung.matmul(a, b, out, **how)


def strays(a: Any, b: Any, out: Any, **how: Any) -> Any:
    """A product that writes behind its result."""
    toprung.matmul(a, b, out, **how)
    np.lib.stride_tricks.as_strided(out, (out.size + 1,), (4,))[-1] = 0
    return out


def overflows(a: Any, b: Any, out: Any, **how: Any) -> Any:
    """A product with an Inf where there is none."""
    toprung.matmul(a, b, out, **how)
    out[..., 3, 5] = np.inf
    return out


def truncates(a: Any, b: Any, out: Any, **how: Any) -> Any:
    """A product whose results are all a unit in the last place too small."""
    out[...] = np.nextafter(toprung.matmul(a, b, out, **how), np.float32(0))
    return out


def refuses(a: Any, b: Any, out: Any, **how: Any) -> Any:
    raise ValueError("not today")


@pytest.mark.parametrize(
    ("wrong", "case", "said"),
    [
        (one_chain, replace(PLAIN, K=3000, a=Side(values="positive"), b=Side(values="positive")), "the rms error is"),
        (truncates, replace(PLAIN, a=Side(values="ReLU"), b=Side(values="e^normal")), "sums of one sign are off by -"),
        (drops, PLAIN, "more than any order of summing"),
        (strays, PLAIN, "outside of out"),
        (overflows, PLAIN, "another class"),
        (refuses, PLAIN, "not today"),
    ],
)
def test_a_planted_bug_is_found(wrong: Any, case: Case, said: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toprung, "matmul", toprung.matmul)
    right, device = toprung.matmul, session.device.id

    def replaced(a: Any, b: Any, out: Any = None, **how: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(toprung, "matmul", right)
            return wrong(a, b, out, **how)

    assert not fuzz.examined(case, device).failures
    monkeypatch.setattr(toprung, "matmul", replaced)
    assert any(said in failure for failure in fuzz.examined(case, device).failures)


def test_what_fails_is_made_small_and_printed_as_a_program(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong from 20 rows on is shown with 20 rows and nothing else."""
    right, device = toprung.matmul, session.device.id

    def wrong(a: Any, b: Any, out: Any, **how: Any) -> Any:
        right(a, b, out, **how)
        if a.shape[-2] >= 20:
            out[..., 0, 0] += 1
        return out

    monkeypatch.setattr(toprung, "matmul", wrong)
    case = replace(PLAIN, batch=(3,), a=Side((3,), "normal", "padded"), b=Side((3,), "fp16", "offset"), out="wide")
    text = fuzz.reproduction(case, device)
    assert text.startswith("# 20×1×1 (uniform, dense; uniform, dense; out dense), auto")
    names: dict[str, Any] = {}
    exec(text, names)
    exact = names["a"].astype(float) @ names["b"]
    assert abs(names["found"] - exact).max() > 0.5
    monkeypatch.undo()
    exec(text, names)
    assert abs(names["found"] - exact).max() < 1e-6


def test_a_product_that_ends_its_process_costs_only_itself(session: Session) -> None:
    """Children that are killed are started anew."""
    numbers = iter([(1, n) for n in range(2)])
    found = [(number, outcome["failures"]) for _, number, outcome in fuzz.outcomes(numbers, "no such device", 100, 1, {})]
    assert [number for number, _ in found] == [0, 1] and all("the process ended with status" in f[0] for _, f in found)


def test_a_product_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setattr(fuzz, "__file__", str(tmp_path / "child.py"))
    monkeypatch.setattr(fuzz, "STUCK", 0.2)
    found = [outcome["failures"] for _, _, outcome in fuzz.outcomes(iter([(1, 0), (1, 1)]), "any", 100, 2, {})]
    assert found == [["the process ended with status -9"]] * 2


def test_a_run_goes_on_where_the_same_sources_ended(session: Session, tmp_path: Path) -> None:
    facts = environment(session.device)
    lines, failures = ["1|0|1|5|5|5|", "2|0|1|5|5|5|"], ["1:0 tiled: off", "smaller products together, tiled: off"]
    record = results.record("fuzz.py --largest 400 --count 9", facts, [], failures, products=lines)
    results.write(tmp_path / "r.json", record)
    known = {(2, 0): lines[1]}, record["environment"]["kernels"]
    assert fuzz.earlier(tmp_path / "r.json", "fuzz.py --largest 400", facts) == known
    for what, other in (("fuzz.py --largest 40", facts), ("fuzz.py --largest 400", {**facts, "src": "two"})):
        assert fuzz.earlier(tmp_path / "r.json", what, other) == ({}, {})
    assert fuzz.earlier(None, "fuzz.py", facts) == fuzz.earlier(tmp_path / "none.json", "fuzz.py", facts) == ({}, {})


def test_a_record_is_read_as_it_was_written() -> None:
    record = {"columns": fuzz.COLUMNS, "products": [
        "1|0|1|100|100|50|normal × normal|tiled 16×16×16|10000|0.2|0.4|1|2|1e-7|2e-7|",
        "1|1|1|10|500|50|normal × normal|tiled 16×16×16|5000|0.6|0.4|1|2|1e-7|2e-7|",
        "1|2|1|100|100|50|normal × normal|cublas|10000|0.9|0.4|1|2|1e-7|2e-7|",
        "1|3|1|10|10|50|normal × normal|skinny rows|100|0.3|0.4|1|2|1e-7|2e-7|",
        "1|4|1|0|10|50|normal × normal||0|||||||",
    ], "failures": []}  # fmt: skip
    assert [of["ratio"] for of in fuzz.judged_alone(record)] == pytest.approx([0.5, 1.5])
    assert {name: pool.ratio for name, pool in fuzz.pools(record).items()} == {("skinny", 6): pytest.approx(0.75)}
    assert "median 1.5, 99 % 1.5, largest 1.5" in "\n".join(fuzz.summary(record))


def test_copies_of_a_sum_are_no_bias(session: Session) -> None:
    """Each row adds the same 69 sums of one sign to different elements of C."""
    assert not fuzz.examined(fuzz.drawn(4, 1303, 400), session.device.id).failures


@pytest.mark.parametrize("expanded", ["", "rows"])
def test_terms_that_a_column_shares_are_rounded_once(expanded: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of twelve columns are too large: a bias of 4,800 sums, but chance if each column of B is one number."""
    right = toprung.matmul

    def wrong(a: Any, b: Any, out: Any, **how: Any) -> Any:
        right(a, b, out, **how)
        out *= np.where(np.arange(12) < 8, 1 + 1e-6, 1 - 1e-6).astype(np.float32)
        return out

    monkeypatch.setattr(toprung, "matmul", wrong)
    case = replace(PLAIN, M=400, N=12, a=Side(values="positive"), b=Side(values="positive", expanded=expanded))
    failures = fuzz.examined(case, session.device.id).failures
    assert any("sums of one sign" in failure for failure in failures) == (not expanded)


def test_a_record_names_the_kernels_of_its_processes(session: Session) -> None:
    loaded: dict[str, str] = {}
    (found,) = fuzz.outcomes(iter([(3, 0)]), session.device.id, 50, 1, loaded)
    assert not found[2]["failures"]
    assert any(name.startswith("kernels/") for name in loaded)


@pytest.mark.parametrize(
    ("seed", "number", "most"), [(1, 2319, 0.2), (1, 10476, 1.5), (1, 6248, 0.95), (1, 12949, 0.9), (2, 5301, 0.5), (5, 580, 0.9)]
)
def test_chains_are_short_on_a_cpu(seed: int, number: int, most: float, session: Session) -> None:
    """With chains twice as long and longer these products were beyond 1.3 times the rms error of NumPy, which cuts such a K."""
    outcome = fuzz.examined(fuzz.drawn(seed, number, 400), session.device.id)
    assert outcome.ours is not None and outcome.ours.rms <= most


@pytest.mark.slow
def test_two_thousand_random_products() -> None:
    words = [sys.executable, ROOT / "benchmarks/fuzz.py", "--seeds", "1", "--count", "2000"]
    done = subprocess.run(words, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
