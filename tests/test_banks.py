"""The bank-conflict calculator, and what it says about the subscripts that stand in the turing kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

import trial
from test_bounds import H200
from toprung.lab.bounds.banks import Access, SharedAccesses, access, traffic, warp_access
from toprung.lab.bounds.levels import step
from toprung.lab.harness.results import read
from toprung.lab.rung import Rung, ladder, rung
from toprung.tile import Tile


@pytest.mark.parametrize(
    ("name", "addresses", "width", "turns", "ways", "least"),
    [
        ("side by side", range(32), 1, 1, 1, 1),
        ("backwards", range(31, -1, -1), 1, 1, 1, 1),
        ("one float for all", [7] * 32, 1, 1, 1, 1),
        ("every other float", range(0, 64, 2), 1, 2, 2, 2),
        ("every third float", range(0, 96, 3), 1, 1, 1, 1),
        ("down a column of 32", range(0, 1024, 32), 1, 32, 32, 32),
        ("down a column of 33", range(0, 1056, 33), 1, 1, 1, 1),
        ("down a column of 34", range(0, 1088, 34), 1, 2, 2, 2),
        ("two floats of one bank", [0] * 16 + [32] * 16, 1, 2, 2, 2),
        ("pairs side by side", range(0, 64, 2), 2, 2, 1, 2),
        ("fours side by side", range(0, 128, 4), 4, 4, 1, 4),
        ("fours eight apart", range(0, 256, 8), 4, 8, 2, 8),
        ("the same eight fours in each part", [4 * (lane % 8) for lane in range(32)], 4, 4, 1, 1),
        ("half a warp", [*range(16), *[None] * 16], 1, 1, 1, 1),
        ("nobody", [None] * 32, 1, 0, 0, 0),
    ],
)
def test_known_patterns(name, addresses, width, turns, ways, least):
    found = access(list(addresses), width)
    assert (found.turns, found.ways, found.least) == (turns, ways, least)
    assert found.turns >= found.ideal and found.turns >= found.least


def test_the_function_form_and_wrong_widths():
    assert warp_access(lambda lane: 2 * lane) == access(list(range(0, 64, 2)))
    with pytest.raises(ValueError, match="1, 2 or 4"):
        access([0], 3)


# The paper on matrix-vector products draws the reduction of sixteen values: step by step with neighbours first, and with halves
@pytest.mark.parametrize(("stride", "ways"), [(1, 2), (2, 4), (4, 8), (8, 16)])
def test_a_tree_over_neighbours_conflicts_and_one_over_halves_does_not(stride, ways):
    interleaved = [2 * stride * lane for lane in range(32) if 2 * stride * lane < 512]
    assert access(interleaved).ways == min(ways, len(interleaved))
    assert access(list(range(32))).ways == access([lane + 32 * stride for lane in range(32)]).ways == 1


# --- subscripts, read out of the kernels' text ---------------------------------------------------------------------------------

SUBSCRIPT = re.compile(
    r"(?P<wide>LOCAL_V\((?P<width>\w+), &)?\b(?P<array>[AB]s)(?:\[(?:now|0)\])?"
    r"\[(?P<row>[^\]]+)\]\[(?P<col>[^\]]+)\]\)?(?P<store> = )?"
)
SHAPE = re.compile(r"__local float ([AB]s)(?:\[2\])?\[[^\]]+\]\[([^\]]+)\]")
SET = re.compile(r"const int (\w+) = ([^;]+);")
LOOP = re.compile(r"for \(int (\w+) = 0; \w+ < ([^;]+); \+\+\w+\)")
MACRO = re.compile(r"^#define (\w+) \((.+?)\)", re.MULTILINE)


@dataclass(frozen=True)
class Subscript:
    """One place in a kernel where local memory is read or written, and the dearest access any warp makes there."""

    array: str
    text: str
    store: bool
    width: int
    worst: Access


def subscripts(of: Rung, tile: Tile) -> Iterator[Subscript]:
    """Every place of a kernel, evaluated with a tile."""
    text = re.sub(r"//.*", "", of.source.read_text())
    known: dict[str, int] = dict(tile.defines())
    for name, value in MACRO.findall(text):
        known[name] = evaluate(value, known)
    strides = {name: evaluate(value, known) for name, value in SHAPE.findall(text)}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if "__local" in line or "LPTR" in line:
            continue
        for found in SUBSCRIPT.finditer(line):
            loops = {n: range(evaluate(v, known)) for at in lines[: number + 1] for n, v in LOOP.findall(at)}
            loops.setdefault("k", range(tile.BK or 1))
            free = {n: loops[n] for n in ("i", "j", "e", "k") if n in loops}
            sets = [(at, n, v) for at, other in enumerate(lines) for n, v in SET.findall(other)]

            def address(tid: int, values: dict[str, int], found=found, number=number, sets=sets) -> int:
                def lookup(name: str) -> int:
                    if name in values or name in known:
                        return values[name] if name in values else known[name]
                    before = [v for at, n, v in sets if n == name and at <= number]
                    after = [v for at, n, v in sets if n == name and at > number]
                    return resolve((before or after[::-1])[-1])

                def resolve(expression: str) -> int:
                    expression = expression.replace("get_local_id(1)", "TY").replace("get_local_id(0)", "TX")
                    names = {n: lookup(n) for n in re.findall(r"[A-Za-z_]\w*", expression)}
                    return evaluate(expression, names)

                values = {**values, "TX": tid % tile.DN, "TY": tid // tile.DN}
                return resolve(found["row"]) * strides[found["array"]] + resolve(found["col"])

            width = known[found["width"]] if found["wide"] else 1
            worst = Access(0, 0, 0, 0, 0)
            warps = sorted({0, tile.work_items // 32 - 1})
            ends = [sorted({r[0], r[-1]}) for r in free.values()]
            for warp, *choice in itertools.product(warps, *ends):
                values = dict(zip(free, choice, strict=True))
                cost = access([address(32 * warp + lane, values) for lane in range(32)], width)
                worst = max(worst, cost, key=lambda a: a.turns)
            yield Subscript(found["array"], found[0], bool(found["store"]), width, worst)


def evaluate(expression: str, names: dict[str, int]) -> int:
    """A C expression over non-negative ints."""
    value = eval(expression.replace("/", "//"), {"__builtins__": {}}, names)
    assert isinstance(value, int)
    return value


def ways(name: str, tile: Tile | None = None) -> dict[str, int]:
    """The worst conflict of each kind of access of a rung: ``As read``, ``Bs store``, …"""
    found: dict[str, int] = {}
    one = rung(name)
    for s in subscripts(one, tile or one.tiles["gpu"][0]):
        key = f"{s.array} {'store' if s.store else 'read'}"
        found[key] = max(found.get(key, 0), s.worst.ways)
    assert set(found) == {"As read", "Bs read", "As store", "Bs store"}, found
    return found


FREE = {"As read": 1, "Bs read": 1, "As store": 1, "Bs store": 1}


@pytest.mark.parametrize("name", ["turing/r02", "turing/r03"])
def test_the_rungs_before_conflict_in_the_tile_of_b(name):
    assert ways(name) == {"As read": 1, "As store": 1, "Bs read": 32, "Bs store": 32}


def test_rung_4_is_free_of_conflicts():
    assert ways("turing/r04") == FREE


def test_rung_4_as_published_still_conflicts_in_the_tile_it_transposes():
    published = rung("turing/r04").published
    assert ways("turing/r04", published) == {**FREE, "As store": 32}


@pytest.mark.parametrize("one", [r for r in ladder("turing").rungs if 5 <= r.number <= 13], ids=str)
def test_the_rungs_after_it_stay_free_of_conflicts(one):
    # rung 7's tile is 16 deep: four work-items load a row of A, and a padding that keeps rows aligned leaves two of them together
    assert ways(one.name) == {**FREE, "As store": 2 if one.number == 7 else 1}
    assert one.published is None or ways(one.name, one.published)["As store"] > 1


def test_warp_tiles_read_fewer_floats():
    """Rung 9's idea: the floats a warp reads for one k, and the turns if equal parts are served together."""

    def reads(name: str) -> tuple[int, int]:
        one = rung(name)
        tile = one.tiles["gpu"][0]
        pieces = {"As": (tile.TM or 1) // (tile.VA or 1), "Bs": (tile.TN or 1) // (tile.VB or 1)}
        found = [s for s in subscripts(one, tile) if not s.store and s.width == 4]
        return sum(s.worst.floats * pieces[s.array] for s in found), sum(s.worst.least * pieces[s.array] for s in found)

    assert reads("turing/r08") == (144, 6)
    assert reads("turing/r09") == (96, 4)


def said(one: Rung, tile: Tile, tid: int) -> SharedAccesses:
    assert one.shared_accesses is not None
    return one.shared_accesses(tile, one.options(H200), tid)


@pytest.mark.parametrize("one", [r for r in ladder("turing").rungs if 2 <= r.number <= 13], ids=str)
def test_a_rung_says_what_its_text_does(one: Rung) -> None:
    """The subscripts in a rung's .py conflict as those in its kernel."""
    tile = one.tiles["gpu"][0]
    found = ways(one.name)
    warps = ([said(one, tile, 32 * warp + lane) for lane in range(32)] for warp in (0, tile.work_items // 32 - 1))
    worst = {"read": 0, "store": 0}
    for lanes in warps:
        for kind, what in enumerate(worst):
            for same in zip(*(lane[kind] for lane in lanes), strict=True):
                worst[what] = max(worst[what], access([at for at, _ in same], same[0][1]).ways)
    assert worst == {what: max(found[f"As {what}"], found[f"Bs {what}"]) for what in worst}


def test_the_hardware_counts_what_the_subscripts_say() -> None:
    """The stored counters of an H200: wavefronts of loads and stores, rung by rung."""
    compared = 0
    for c in read(trial.fixture("h200-bank-conflicts.json"))["counted"]:
        one = rung(c["rung"])
        if one.shared_accesses is None:
            assert not c["load_wavefronts"]
            continue
        tile = one.tiles["gpu"][0]
        found = traffic(partial(said, one, tile), tile.work_items)
        steps = c["size"] ** 3 / 32 / step(tile)
        assert found.loads == pytest.approx(c["load_instructions"] / steps, rel=0.04)
        assert found.load_wavefronts == pytest.approx(c["load_wavefronts"] / steps, rel=0.01)
        # the counters have a few of stores that another access was in the way of
        assert found.store_wavefronts == pytest.approx(c["store_wavefronts"] / steps, rel=0.14)
        compared += 1
    assert compared >= 13


def test_shared_memory_explains_the_first_steps_of_turing() -> None:
    """One wavefront a clock on each of an H200's SMs: how near rungs 2 to 6 come to it, and what their steps gain."""
    record = read(trial.fixture("h200-results") / "nvidia-h200" / "turing-cuda.json")
    took = {
        m.competitor["number"]: m.median for m in record["measurements"] if m.problem["M"] == 1024 and not m.competitor["variant"]
    }
    wavefronts = {}
    for number in (2, 3, 4, 5, 6, 8, 9):
        one = rung(f"turing/r{number:02}")
        tile = one.tiles["gpu"][0]
        found = traffic(partial(said, one, tile), tile.work_items)
        wavefronts[number] = (found.load_wavefronts + found.store_wavefronts) / step(tile)
    least = {number: 1024**3 / 32 * each / (132 * 1980e6) for number, each in wavefronts.items()}
    assert [round(least[n] / took[n], 2) for n in range(2, 7)] == pytest.approx([0.95, 0.96, 0.88, 0.87, 0.88], abs=0.011)
    for before, after in ((4, 5), (5, 6), (8, 9)):
        assert took[before] / took[after] == pytest.approx(wavefronts[before] / wavefronts[after], rel=0.03)
    assert took[3] / took[4] == pytest.approx(wavefronts[3] / wavefronts[4], rel=0.09)


def test_single_floats_are_joined_where_all_lanes_allow_it() -> None:
    def side_by_side(tid: int) -> SharedAccesses:
        return [(33 * tid + i, 1) for i in range(2)] + [(8 * tid + i, 1) for i in range(6)], [(4 * tid, 16)]

    found = traffic(side_by_side, 32)
    assert (found.loads, found.stores) == (2 + 2, 4)  # 33 apart: none is aligned; six: a vector of four and one of two
    assert traffic(side_by_side, 32, joined=False).loads == 8
    column = traffic(lambda tid: ([(32 * tid, 1)], ()), 40)  # the second warp has eight lanes
    assert (column.load_wavefronts, column.conflicts) == ((32 + 8) / 2, 1 - 2 / 40)
