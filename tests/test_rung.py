"""Rungs are found by looking, are complete, and say what is wrong with them or with what was asked of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import trial
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import BadRung, IllegalTile, SwitchRefused, UnknownName
from toprung.lab.harness.environment import SOURCES
from toprung.lab.rung import Rung, ladder, ladder_names, out_of_place, rung, select
from toprung.oracle.gemm import Gemm
from toprung.tile import Tile

LADDERS = ladder_names()
NAIVE = rung("kepler/r01").source
ALL = [r for name in LADDERS for r in ladder(name).rungs]
FORMULAS = {"gemm": "C = alpha * A * B + beta * C"}
"""Spelling of a routine in a kernel's first line; a routine that is not here must say something with a = in it."""

RECORD = '''
"""A rung from elsewhere."""
from toprung.lab.rung import Rung
from toprung.tile import Tile
RUNG = Rung(idea="one more", expects="nothing", tiles={"gpu": (Tile(BM=4, BN=8),)}, space={"BM": (1, 4)})
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's that adds to the kepler ladder."""
    monkeypatch.setenv("TOPRUNG_LADDERS", str(tmp_path))
    (tmp_path / "kepler").mkdir()
    return tmp_path / "kepler"


def add(folder: Path, stem: str, record: str = RECORD, source: bool = True) -> None:
    (folder / f"{stem}.py").write_text(record)
    if source:
        shutil.copy(NAIVE, folder / f"{stem}.cl")


def test_a_rung_in_another_folder_is_found_and_runs(folder: Path, session: Session) -> None:
    before = [r.number for r in ladder("kepler").rungs]
    add(folder, "r42_mine")
    found = ladder("kepler").rung(42)
    assert [r.number for r in ladder("kepler").rungs] == [*before, 42]
    assert (found.idea, found.name, found.routine, found.source) == ("one more", "kepler/r42", "gemm", folder / "r42_mine.cl")
    assert rung("kepler/r42") == rung("kepler/42") == found
    outcome = trial.attempt(trial.make(found, session), Gemm(9, 11, 10, 0.7, 1.3), session)
    assert outcome.verdict.right and outcome.steps == ("kepler/r42",)


def test_a_ladder_in_another_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPRUNG_LADDERS", f"{tmp_path / 'absent'}:{tmp_path}")
    (tmp_path / "attic").mkdir()
    assert "attic" not in ladder_names()
    (tmp_path / "attic" / "__init__.py").write_text('TITLE, ROUTINE = "Old things", "gemm"\n')
    add(tmp_path / "attic", "r01_only")
    found = ladder("attic")
    assert "attic" in ladder_names()
    assert (found.title, found.routine, [r.name for r in found.rungs]) == ("Old things", "gemm", ["attic/r01"])


def test_a_rung_without_kernel(folder: Path) -> None:
    add(folder, "r42_mine", source=False)
    with pytest.raises(BadRung, match=r"r42_mine\.py has no kernel beside it: add r42_mine\.cl"):
        ladder("kepler")


def test_a_kernel_without_its_rung(folder: Path) -> None:
    add(folder, "r42_mine")
    (folder / "r42_mine.py").unlink()
    with pytest.raises(BadRung, match=r"r42_mine\.cl has no record beside it: add r42_mine\.py, which defines RUNG"):
        ladder("kepler")


@pytest.mark.parametrize("record", ["", "RUNG = 7\n", "rung = None\n"])
def test_a_rung_without_record(folder: Path, record: str) -> None:
    add(folder, "r43_mine", record)
    with pytest.raises(BadRung, match=r"r43_mine\.py defines no RUNG = Rung\(\.\.\.\)"):
        ladder("kepler")


def test_two_rungs_with_one_number(folder: Path) -> None:
    add(folder, "r03_again")
    with pytest.raises(BadRung, match=r"r03_more_work\.cl and .*r03_again\.cl are both rung 3 of kepler: renumber one"):
        ladder("kepler")


def test_a_rung_with_a_bad_name(folder: Path) -> None:
    add(folder, "r44_Mine")
    with pytest.raises(BadRung, match="rNN_name, in small letters"):
        ladder("kepler")


def test_rungs_for_gpus_say_so_on_a_cpu(device: Device) -> None:
    rungs = ladder("turing").rungs
    on_cpu = [r for r in rungs if not r.needs(device)]
    assert out_of_place(on_cpu, "cpu").startswith("rungs 12, 13, 15, 16, 17 are for GPUs: on this CPU they are verified")
    assert out_of_place(select(rungs, (11, 15)), "cpu").startswith("rung 15 is for GPUs") and not out_of_place(rungs, "gpu")
    assert out_of_place(select(rungs, (12, 13)), "cpu").startswith("rungs 12–13 are") and not out_of_place(rungs[:9], "cpu")


def test_unknown_names_list_what_exists() -> None:
    for name in ("keppler", "../kepler", "__pycache__"):
        with pytest.raises(UnknownName, match=f"there is no ladder '{name}'; there is: .*kepler"):
            ladder(name)
    with pytest.raises(UnknownName, match="there is no rung of kepler '99'; there is: 1, 2, 3"):
        ladder("kepler").rung(99)
    for name in ("kepler/r99", "kepler/99"):
        with pytest.raises(UnknownName, match="no rung of kepler '99'"):
            rung(name)
    for name in ("kepler/naive", "kepler/r1x", "kepler/-1"):
        with pytest.raises(UnknownName, match="there is: r01, r02"):
            rung(name)
    for name in ("kepler", "kepler/"):
        with pytest.raises(UnknownName, match=f"no rung '{name}'; there is: kepler/r01, kepler/r02"):
            rung(name)


def test_names_of_rungs() -> None:
    assert rung("kepler/r07") == rung("kepler/7") == rung("kepler/07") == ladder("kepler").rung(7)
    assert str(rung("kepler/7")) == "kepler/r07"
    assert [r.number for r in select(ladder("kepler").rungs, (9, 2, 2))] == [2, 9]


def test_unknown_switches_and_values(device: Device) -> None:
    edges = rung("kepler/r10")
    with pytest.raises(UnknownName, match="no switch of kepler/r10 'PREDICAT'; there is: PREDICATE"):
        edges.options(device, {"PREDICAT": 1})
    with pytest.raises(UnknownName, match="no value of PREDICATE '2'; there is: 1, 0"):
        edges.options(device, {"PREDICATE": 2})
    with pytest.raises(UnknownName, match="no switch of kepler/r01 'PREDICATE'; there is: none"):
        rung("kepler/r01").options(device, {"PREDICATE": 1})
    assert edges.options(device) == {"PREDICATE": 1}
    assert edges.options(device, {"PREDICATE": 0}) == {"PREDICATE": 0}


def test_switches_that_the_device_has_no_use_for(device: Device) -> None:
    """PoCL can share nothing between registers and is no Kepler: asking is refused with a reason, the default is not."""
    eighth = rung("kepler/r08")
    reasons = {s.name: s.refusal(device) for s in eighth.switches}
    assert {name for name, reason in reasons.items() if not reason} == {"INDEX32"}
    for switch in eighth.switches:
        assert eighth.options(device, {switch.name: switch.default})[switch.name] == switch.default
        for value in switch.values[1:] if reasons[switch.name] else ():
            with pytest.raises(SwitchRefused) as caught:
                eighth.options(device, {switch.name: value})
            assert str(caught.value) == f"kepler/r08 {switch.name}={value} on {device}: {reasons[switch.name]}"


def test_an_illegal_tile_is_refused_before_anything_is_built(session: Session) -> None:
    with pytest.raises(IllegalTile) as caught:
        trial.make(rung("kepler/r02"), session, tile=Tile(BM=100, BN=100, BK=5000))
    reasons = caught.value.reasons
    assert len(reasons) == 3
    assert "BM = BN = BK" in str(caught.value) and "local memory fits" in str(caught.value) and "100×100×5000" in str(caught.value)
    assert str(session.device) in str(caught.value)


@pytest.mark.parametrize("name", LADDERS)
def test_a_ladder_is_numbered_from_one(name: str) -> None:
    found = ladder(name)
    assert [r.number for r in found.rungs] == list(range(1, len(found.rungs) + 1))
    assert found.title and found.routine


def test_no_line_of_a_ladders_sources_is_longer_than_a_page() -> None:
    """A diff of two rungs fits 100 columns, of files that they include as well."""
    files = [p for p in NAIVE.parents[1].rglob("*") if p.suffix in SOURCES]
    long = [f"{p.name}:{n}" for p in files for n, line in enumerate(p.read_text("utf-8").splitlines(), 1) if len(line) > 100]
    assert len(files) > len(ALL) and long == []


@pytest.mark.parametrize("each", ALL, ids=str)
class TestEveryRung:
    def test_its_record_is_complete(self, each: Rung) -> None:
        assert 3 <= len(each.idea) <= 40 and each.idea[0] != " "
        assert len(each.expects) >= 10
        assert each.tiles["gpu"] and each.space
        names = [s.name for s in each.switches]
        assert len(set(names)) == len(names)
        assert all(s.idea and len(set(s.values)) == len(s.values) >= 2 for s in each.switches)
        assert set(each.transposed) <= set("AB")

    def test_its_text_says_what_it_computes_and_why(self, each: Rung) -> None:
        text = each.source.read_text()
        first = text.partition("\n")[0]
        assert first.startswith("// ")
        assert FORMULAS.get(each.routine, " = ") in first
        header = text.partition("__kernel")[0]
        assert "// Idea:" in header

    def test_it_has_a_page(self, each: Rung) -> None:
        page = trial.ROOT / "docs" / each.ladder / f"{each.stem}.md"
        assert page.is_file(), f"write {page.relative_to(trial.ROOT)}"
        assert page.read_text().startswith("# ")

    def test_it_has_tiles_for_the_device(self, each: Rung, device: Device) -> None:
        if each.source.suffix == ".cl":
            tile = each.tile_for(device)
            each.check(tile, {}, device)
            assert len(list(each.legal(device))) >= 2
            assert each.local_bytes(tile) <= device.local_bytes
