"""Records: listed, shown, compared beyond noise, drawn again; damaged and foreign ones named and skipped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import Typed
from toprung.device import Device
from toprung.kernels import build
from toprung.kernels.tiled.record import RECORD
from toprung.lab.harness import environment, results
from toprung.lab.harness.measure import Measurement
from toprung.oracle.gemm import Gemm

DEVICE = {
    "name": "Machine", "short_name": "Machine", "slug": "machine", "kind": "gpu", "arch": "", "backend": "opencl", "runtime": "r",
    "driver": "d", "compute_units": 1, "clock_mhz": 1.0, "peak_gflops": None,
}  # fmt: skip
VERDICT = {"right": True, "grade": 1.5, "frobenius": 1e-7, "max_relative": 1e-6, "median_relative": 1e-8, "problems": []}
WHO = {"kind": "peer", "number": 0, "idea": "", "variant": "", "precision": "fp32", "deterministic": True}


def measured(name: str, seconds: Sequence[float], problem: Gemm | None = None, mode: str = "warm") -> Measurement:
    p = problem or Gemm(64, 64, 64)
    return Measurement(
        {**WHO, "name": name},
        p.describe(),
        p.flops,
        p.min_bytes,
        VERDICT,
        tuple(seconds),
        (0.0,) * len(seconds),
        10,
        (1500.0,),
        mode,
    )


def stored(path: Path, *measurements: Measurement, commit: str = "abc123", **device: Any) -> Path:
    facts = {"date": "2026-01-02T03:04:05", "commit": commit, "packages": {"toprung": "1"}, "device": {**DEVICE, **device}}
    results.write(path, results.record("toprung bench", facts, measurements, kind="bench"))
    return path


def noisy(seed: int, mean: float = 1e-3, spread: float = 0.01) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).normal(mean, spread * mean, 9)]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()


def test_a_record_names_its_code_as_git_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``src`` is the tree, a kernel its blob: of the files as they are, an include among them, and a user's rung by its name."""
    package = tmp_path / "src" / "toprung"
    shutil.copytree(environment.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "empty" / "__pycache__").mkdir(parents=True)
    at = "-C", str(tmp_path)
    git("init", "-q", str(tmp_path))
    git(*at, "add", ".")
    src = git(*at, "write-tree", "--prefix=src/")[:12]
    assert environment.source.__wrapped__()["src"] == src

    monkeypatch.setattr(build, "LOADED", {RECORD.text(): "tiled", "int own;": "mine/r01"})
    name = "kernels/tiled/tiled.cl"
    found = results.read(stored(tmp_path / "a.json"))["environment"]["kernels"]
    assert set(found) == {name, "kernels/include/block.cl", "mine/r01"}
    assert found[name] == git("hash-object", str(package / name))[:12]
    monkeypatch.setattr(environment, "PACKAGE", package)
    (package / "kernels" / build.PACK.name).write_bytes(b"{}\n")  # machine code made of the sources, as a wheel has
    assert environment.source.__wrapped__()["src"] == src
    (package / "kernels" / "tiled" / "tiled.cl").write_text("int other;")
    assert name not in environment.kernels() and environment.source.__wrapped__()["src"] != src


def test_a_record_has_the_command_and_tells_nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["ladder", "kepler", f"--json={tmp_path}/a.json", "--csv", "../b.csv", "--plot", "results/c d.svg"]
    monkeypatch.setattr(sys, "argv", ["toprung", *words])
    assert results.command() == "toprung ladder kepler --json=a.json --csv b.csv --plot 'results/c d.svg'"


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    m = measured("numpy", noisy(0), mode="cold")
    record = results.read(stored(tmp_path / "a.json", m))
    digits = [float(f"{s:.9g}") for s in m.seconds]
    assert record["measurements"] == [replace(m, seconds=tuple(digits))] and record["kind"] == "bench"
    old = json.loads((tmp_path / "a.json").read_text())
    for key in ("mode", "joules"):  # what records of ladders did not have at first
        del old["measurements"][0][key]
    (tmp_path / "a.json").write_text(json.dumps(old))
    assert results.read(tmp_path / "a.json")["measurements"][0].mode == "warm"


def test_a_file_has_a_line_for_each_row_and_nine_digits(tmp_path: Path) -> None:
    rows = [[n, "right", 1 / 3, 2.0**40, {"é": [None, True]}] for n in range(30)]
    results.write(tmp_path / "a.json", {"empty": {}, "rows": rows, "inner": {str(n): "x" * 30 for n in range(9)}})
    lines = (tmp_path / "a.json").read_text().splitlines()
    assert lines[:3] == ["{", ' "empty": {},', ' "rows": [']
    assert lines[4] == '  [1, "right", 0.333333333, 1099511627776.0, {"é": [null, true]}],' and len(lines) == 2 + 1 + 32 + 11
    content = json.loads("\n".join(lines))
    assert content["rows"][29] == [29, "right", 0.333333333, 2.0**40, {"é": [None, True]}] and len(content["inner"]) == 9


def test_a_slowdown_is_flagged_and_noise_is_not(tmp_path: Path, typed: Typed) -> None:
    before = stored(tmp_path / "before.json", measured("a", noisy(1)), measured("b", noisy(2)), measured("only", [1.0]))
    after = stored(tmp_path / "after.json", measured("a", noisy(3)), measured("b", noisy(4, 1.1e-3)))
    code, text = typed("results", "compare", before, after)
    assert code == 1 and "1 slower, 0 faster, 1 same, 0 undecided; 1 on one side only" in text
    assert text.index(" b ") < text.index(" a ")
    code, text = typed("results", "compare", after, before)
    assert code == 0 and "0 slower, 1 faster, 1 same" in text
    assert typed("results", "compare", before, after, "--tolerance", "15")[0] == 0


def test_noise_is_not_flagged_whatever_the_samples() -> None:
    def record(seed: int, spread: float) -> list[dict[str, Any]]:
        return [{"environment": {"device": DEVICE}, "measurements": [measured("a", noisy(seed, spread=spread))]}]

    for spread in (0.001, 0.02, 0.2):
        flagged = [results.compare(record(i, spread), record(i + 100, spread))[0][0].verdict for i in range(60)]
        assert flagged.count("same") + flagged.count("undecided") >= 57, spread
        expected = {0.001: "same", 0.2: "undecided"}.get(spread)  # what noise hides is no equality
        assert expected is None or flagged.count(expected) >= 50, spread
    assert results.compare(record(0, 0.01), record(0, 0.01))[0][0].speed.value == 1


def test_a_change_that_noise_explains_is_undecided() -> None:
    """Other programs slow neighbouring samples alike: of one competitor all, of another that took turns with it some."""

    def verdicts(neighbour: list[float], mean: float = 1.2e-3, count: int = 9) -> list[str]:
        sides = [("a", noisy(1)), ("b", noisy(2))], [("a", noisy(3, mean)[:count]), ("b", neighbour)]
        records = [[{"environment": {"device": DEVICE}, "measurements": [measured(*m) for m in side]}] for side in sides]
        return [change.verdict for change in results.compare(*records)[0]]

    busy = [1e-3] * 4 + [1.5e-3] * 5
    assert verdicts(noisy(4)) == ["slower", "same"] and verdicts(busy) == ["undecided", "undecided"]
    assert verdicts(busy, mean=2e-3)[0] == "slower", "more than other programs took"
    assert verdicts(noisy(4), count=1)[0] == "undecided"


def test_only_like_is_compared_with_like(tmp_path: Path, typed: Typed) -> None:
    first, other = stored(tmp_path / "a.json", measured("a", noisy(0))), tmp_path / "b.json"
    for m in (
        measured("b", noisy(0)), measured("a", noisy(0), mode="cold"), measured("a", noisy(0), Gemm(64, 64, 64, trans="TN")),
        measured("a", noisy(0), Gemm(64, 64, 64, beta=1.0)),
    ):  # fmt: skip
        code, text = typed("results", "compare", first, stored(other, m))
        assert code == 2 and "nothing can be compared" in text, m
    for device in ({"slug": "elsewhere"}, {"backend": "cuda"}):
        code, text = typed("results", "compare", first, stored(other, measured("a", noisy(0)), **device))
        assert code == 0 and "1 same" in text, f"two sides of different {device}"
    both = stored(tmp_path / "c/a.json", measured("a", noisy(0)), backend="cuda").parent
    stored(both / "b.json", measured("a", noisy(0, 2e-3)))
    code, text = typed("results", "compare", first, both)
    assert code == 1 and "1 slower, 0 faster, 0 same, 0 undecided; 1 on one side only" in text, "with two backends each is its own"


def test_commits_are_found_in_the_folder(tmp_path: Path, typed: Typed) -> None:
    stored(tmp_path / "m/a.json", measured("a", noisy(0)), commit="aaaa11112222")
    stored(tmp_path / "m/b.json", measured("a", noisy(1, 2e-3)), commit="bbbb11112222+")
    code, text = typed("results", "compare", "aaaa", "bbbb", "--dir", tmp_path)
    assert code == 1 and "1 slower" in text
    for name in ("cccc", "a", "HEAD"):
        code, text = typed("results", "compare", "aaaa", name, "--dir", tmp_path)
        assert code == 2 and f"{name} is no record" in text and "newest first, the commits aaaa11112222, bbbb11112222+" in text
    assert "neither a file nor a folder b.json" in typed("results", "compare", "aaaa", "b.json")[1]
    assert typed("results", "compare", tmp_path / "m", tmp_path / "m/a.json")[0] == 0


def test_a_commit_is_meant_by_any_name_git_has_for_it(tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records count for a commit whose code is theirs, under whatever digits: ``src`` survives a rebase."""
    package = tmp_path / "src" / "toprung"
    package.mkdir(parents=True)
    at = "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"
    git("init", "-q", str(tmp_path))
    for text in ("one", "two"):
        (package / "a.py").write_text(text)
        git(*at, "add", ".")
        git(*at, "commit", "-q", "-m", text)
    git(*at, "tag", "v2")
    monkeypatch.setattr(environment, "PACKAGE", package)
    old = stored(tmp_path / "m/a.json", measured("a", noisy(0)), commit=git(*at, "rev-parse", "--short=12", "HEAD~1"))
    new = stored(tmp_path / "m/b.json", measured("a", noisy(1, 2e-3)), commit="abcdef123456+")
    assert typed("results", "compare", "HEAD~1", "HEAD", "--dir", tmp_path / "m")[0] == 2
    src = git(*at, "rev-parse", "HEAD:src")[:12]
    new.write_text(new.read_text().replace('"commit": "abcdef123456+"', f'"commit": "abcdef123456+", "src": "{src}"'))
    for names in (("HEAD~1", "HEAD"), ("v2~", "v2"), (old, "abcdef")):
        code, text = typed("results", "compare", *names, "--dir", tmp_path / "m")
        assert code == 1 and "1 slower" in text, text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"alpha": 1.0', '"alpha": [1]'), ('"kind": "peer"', '"sort": "peer"'), ('"what": "toprung bench"', '"what": null'),
        ('"M": 64', '"M": 0'), ('"M": 64', f'"M": {"9" * 400}'), ('"failures": []', f'"failures": {"[" * 100_000}'),
        ('"failures": []', '"failures": [], "graded": 5'), ('"failures": []', '"failures": [], "shapes": 1'),
        ('"failures": []', '"failures": [], "notes": [{}]'),
    ],
)  # fmt: skip
def test_a_damaged_value_is_refused_and_no_traceback(old: str, new: str, tmp_path: Path, typed: Typed) -> None:
    good = stored(tmp_path / "good.json", measured("a", noisy(0)))
    (tmp_path / "bad.json").write_text(text := good.read_text().replace(old, new))
    assert text != good.read_text()
    for command in (("show",), ("plot", "--out", tmp_path / "x.svg"), ("compare", good)):
        code, said = typed("results", *command, tmp_path / "bad.json")
        assert code == 2 and "damaged" in said, command


def test_damaged_and_foreign_records_are_named_and_skipped(tmp_path: Path, typed: Typed) -> None:
    good = stored(tmp_path / "good.json", measured("a", noisy(0)))
    (tmp_path / "cut.json").write_text(good.read_text()[:300])
    (tmp_path / "foreign.json").write_text('{"squares": [1, 2]}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/x.json").write_text("[1]")
    (tmp_path / "newer.json").write_text(good.read_text().replace(results.FORMAT, "toprung record 99"))
    code, text = typed("results", "list", "--dir", tmp_path)
    assert code == 0 and "toprung bench" in text
    for name in ("cut", "foreign", "list", "newer"):
        assert f"skipped: {tmp_path / name}.json" in text
        for command in (("show",), ("plot", "--out", tmp_path / "x.svg"), ("compare", good)):
            code, said = typed("results", *command, tmp_path / f"{name}.json")
            assert code == 2 and f"{name}.json is" in said and ("measure again" in said or "no record of toprung's" in said)
    assert not (tmp_path / "x.svg").exists() and ".hidden" not in text
    code, text = typed("results", "list", "--dir", tmp_path / "nothing")
    assert code == 2 and "no records in" in text
    code, text = typed("results", "show", tmp_path / "absent.json")
    assert code == 2 and "cannot be read" in text


def test_records_of_this_machine_come_first_and_not_those_of_a_cpu_with_its_name(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    here = environment.environment(device)["device"]
    other = {**here, "runtime": here["runtime"].replace("HSTR", "another CPU's HSTR"), "compute_units": here["compute_units"] + 1}
    for name, facts in (("results/other.json", other), ("results/h200.json", {})):
        stored(tmp_path / name, *(measured("a", noisy(i)) for i in range(9)), **facts)
    code, text = typed("results", "list")
    assert code == 0 and "nothing of this machine is stored" in text and "2 records of other machines in results" in text
    assert "nothing of this machine" in typed("report", "--no-code")[1]
    stored(tmp_path / "data/results/own.json", measured("a", noisy(0)), **here)
    code, text = typed("results", "list")
    assert code == 0 and "own.json" in text and "other.json" not in text and "2 records of other machines" in text
    code, text = typed("report", "--no-code")
    shown = (tmp_path / "report" / "index.html").read_text()
    assert code == 0 and "left out: 2 files, which the page lists" in text and "results/h200.json: is of another device" in shown
    assert "results/other.json: is of another machine whose CPU has this name" in shown
    assert "other.json" in typed("results", "list", "--dir", "results")[1]


def test_a_record_is_shown_and_drawn_without_the_machine(tmp_path: Path, typed: Typed) -> None:
    problems = (Gemm(64, 64, 64), Gemm(128, 128, 128, trans="TN"))
    path = stored(tmp_path / "a.json", *(measured(who, noisy(i), p) for p in problems for i, who in enumerate(("a", "b"))))
    code, text = typed("results", "show", path)
    assert code == 0 and "128 TN" in text and "commit abc123" in text and "toprung bench" in text
    for name in ("out.svg", "out.png"):
        assert typed("results", "plot", path, "--out", tmp_path / name)[0] == 0
    drawn = (tmp_path / "out.svg").read_text()
    assert "<svg" in drawn and (tmp_path / "out.png").read_bytes()[1:4] == b"PNG"
