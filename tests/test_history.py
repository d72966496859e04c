"""No stored result has another label than when its samples were taken: looked for in git's history by ``tools/relabelled.py``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import relabelled
from conftest import require
from toprung.backends import nvrtc
from toprung.lab.harness import results


@pytest.fixture
def whole() -> None:
    if not relabelled.is_whole(relabelled.ROOT):
        pytest.skip("the history is not whole (a shallow clone, or no clone): nothing was looked for")


@pytest.mark.usefixtures("whole")
def test_no_shipped_entry_has_another_hash_than_came_with_its_samples() -> None:
    assert [(one.path.name, one.entry["candidate"]) for one in relabelled.entries()] == []


@pytest.mark.usefixtures("whole")
def test_every_result_file_names_code_that_is_in_the_history_or_says_that_it_is_not() -> None:
    """And none that was said to be of another commit than at first counts as known."""
    commits = relabelled.git(relabelled.ROOT, "log", "--format=%H:src").decode()
    trees = relabelled.git(relabelled.ROOT, "cat-file", "--batch-check=%(objectname)", given=commits).decode().split("\n")
    there = {tree[:12] for tree in trees} | {"unknown"}
    named = {str(path): results.read(path)["environment"].get("src") for path in (relabelled.ROOT / "results").rglob("*.json")}
    assert len(named) > 100 and {path: src for path, src in named.items() if src not in there} == {}
    assert relabelled.records() == []


@pytest.mark.usefixtures("whole")
def test_sources_that_differ_in_layout_alone_are_those_of_the_history() -> None:
    assert json.loads(relabelled.LAYOUT.read_text()) == relabelled.relaid(), "make tables"


def test_other_layouts_compile_to_the_same_instructions_and_another_constant_does_not() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    text = "__kernel void f(__global float *x) { x[get_global_id(0)] *= 2.0f; }"
    one, broken, other = (
        relabelled.instructions(json.dumps({"text": each, "kernel": "f", "defines": {}}))
        for each in (text, text.replace("{ ", "{ // a remark\n    "), text.replace("2.0f", "3.0f"))
    )
    assert one == broken != other


@pytest.mark.parametrize("fault", ["", "hash", "samples", "commit", "date"])
def test_a_changed_label_is_found(fault: str, tmp_path: Path) -> None:
    """A hash or commit that changes alone is found; with new samples, or the date of a new run, it may."""

    def written(source: str, seconds: float, commit: str, date: str) -> None:
        entry = {"shape": {"M": 1}, "candidate": {"kernel": "tiled"}, "seconds": [seconds], "date": "2026-01-01", "source": source}
        files = {
            "src/toprung/store/shipped/a.json": {"entries": [entry]},
            "results/machine/b.json": {"environment": {"date": date, "commit": commit}},
        }
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(json.dumps(content))
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "--allow-empty", "-m", "a")):
            subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    written("aa", 1.0, "c1", "2026-01-01")
    written(
        "bb" if fault in ("hash", "samples") else "aa", 2.0 if fault == "samples" else 1.0,
        "c2" if fault in ("commit", "date") else "c1", "2026-02-02" if fault == "date" else "2026-01-01",
    )  # fmt: skip
    assert [one.before for one in relabelled.entries(tmp_path)] == (["aa"] if fault == "hash" else [])
    assert len(relabelled.records(tmp_path)) == (fault == "commit")
