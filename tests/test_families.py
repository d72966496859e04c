"""Kernel families: one that is dropped into a folder takes part in everything, and nothing outside a family's folder names it."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import golden
import trial
from toprung.device import Device
from toprung.dispatch import ranking
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, decoded
from toprung.errors import UnknownName
from toprung.execute.verify import small_problem
from toprung.gemm.desc import GemmDesc, GemvDesc, described
from toprung.kernels import registry
from toprung.kernels.base import FieldsConfig, KernelConfig, KernelFamily, SearchedFamily, candidates, parameter
from toprung.kernels.build import sources_of
from toprung.kernels.hopper_fp32x.family import INFLIGHT
from toprung.kernels.registry import families, family
from toprung.kernels.skinny.family import SkinnyConfig
from toprung.tile import Tile

PACKAGE = trial.ROOT / "src" / "toprung"
FOLDERS = sorted(file.parent for file in (PACKAGE / "kernels").glob("*/family.py"))

# a family that is dropped in

OUTER = Path(__file__).parent / "families" / "outer"

PROGRAM = """
import json, sys
import numpy as np, toprung
rng = np.random.default_rng(0)
a, b = rng.standard_normal((48, 40), np.float32), rng.standard_normal((40, 56), np.float32)
c = toprung.matmul(a, b, own=True, device="pocl")
left = toprung.last_receipt()
wrong = float(np.abs(c - a.astype(np.float64) @ b).max())
print(json.dumps([left.kernels, left.own, left.why, [list(p) for p in left.passed_over], wrong]))
"""


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A folder of families with one in it."""
    shutil.copytree(OUTER, tmp_path / "families" / "outer", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "families"


def run(families: Path, words: Sequence[str]) -> str:
    """A process that finds the folder, with a store of its own beside it."""
    data = families.parent / "data"
    data.mkdir(exist_ok=True)
    env = {**os.environ, registry.VARIABLE: str(families), "TOPRUNG_DATA": str(data), "TOPRUNG_STORE": "", "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def multiplied(families: Path) -> list[Any]:
    """Return what a program's receipt says (kernels, own, why, passed over) and the largest error."""
    found: list[Any] = json.loads(run(families, ["-c", PROGRAM]).splitlines()[-1])
    assert found[4] < 1e-4
    return found


def toprung(families: Path, *words: str) -> str:
    return run(families, ["-c", f"import sys; from toprung.cli import main; sys.argv = {['toprung', *words]!r}; main()"])


def test_families_for_host_arrays_are_found_by_their_folders_name() -> None:
    assert [f.name for f in families("host")] == [f.name for f in families() if f.memory == "host"] == ["numpy"]


def test_a_family_in_a_folder_is_selected_by_its_cost_and_named(dropped: Path) -> None:
    names, own, _, passed, _ = multiplied(dropped)
    assert names == ["outer 1×8"] and own
    assert any(name.startswith("tiled ") for name, _ in passed)


@pytest.mark.slow
def test_a_family_in_a_folder_is_tuned_stored_and_verified(dropped: Path) -> None:
    # tuned and stored
    said = toprung(dropped, "tune", "gemm", "--sizes", "48x56x40", "--device", "pocl", "--budget", "6", "--precision", "fp32")
    assert "1 of 1 shape," in said
    export = dropped.parent / "export.json"
    toprung(dropped, "store", "export", str(export), "--kernel", "outer")
    entries = json.loads(export.read_text())["entries"]
    assert {e["status"] for e in entries} == {"right"} and len(entries) >= 2
    assert {e["candidate"]["kernel"] for e in entries} == {"outer"} and len({e["source"] for e in entries}) == 1
    assert "tuned on these very sizes" in multiplied(dropped)[2]

    # another source: verified at first use, once, and the store remembers
    source = dropped / "outer" / "outer.cl"
    text = source.read_text()
    source.write_text(text.replace("float sum = 0.0f;", "float sum = 0.0f * alpha;"))
    data = dropped.parent / "data"
    only = [e for e in entries if e["candidate"]["tile"] == entries[0]["candidate"]["tile"]]
    shutil.rmtree(data)
    export.write_text(json.dumps({**json.loads(export.read_text()), "entries": only}))
    toprung(dropped, "store", "import", str(export))
    assert multiplied(dropped)[0][0].startswith("outer")
    assert proofs(data) == [""]

    # a wrong one is passed over, with the reason, and what is the next best runs
    source.write_text(text.replace("k < K", "k + 1 < K"))
    module = dropped / "outer" / "family.py"
    module.write_text(module.read_text().replace("desc.M == 48", "False"))  # the store alone names it: no prediction overrules that
    names, _, _, passed, _ = multiplied(dropped)
    assert names[0].startswith("tiled ")
    assert any(name.startswith("outer") and reason.startswith("wrong with this driver and kernel") for name, reason in passed)


def proofs(data: Path) -> list[str]:
    with sqlite3.connect(data / "tuned.sqlite") as db:
        return [message for (message,) in db.execute("SELECT message FROM proofs")]


def test_two_families_of_one_name_are_refused(dropped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(dropped / "outer", dropped / "another")
    monkeypatch.setenv(registry.VARIABLE, str(dropped))
    with pytest.raises(UnknownName, match="outer"):
        families()


# who names whom

LIBRARY = ("gemm", "kernels", "dispatch", "blas", "store", "backends", "tune")
"""Folders where no family may be named. The laboratory has the vendors' libraries as baselines, by their names."""

ALLOWED = {
    ("backends/cublas.py", "cublas"),  # the library's file
    ("backends/cuda_libraries.py", "cublas"),
    ("gemm/classes.py", "skinny"),  # a class of products
    ("tune/shapes.py", "skinny"),
    # what older result files call them
    *(("dispatch/selection.py", name) for name in ("tiled", "skinny", "stream_k", "hopper_sgemm", "hopper_fp32x")),
    # files of constants
    ("kernels/blocks.py", "cublas"),
    ("kernels/skinny_model.py", "skinny"),
    *(("kernels/cost_model.py", name) for name in ("cublas", "skinny")),
    # built on it
    ("kernels/tiled_cluster/family.py", "tiled"),
    ("kernels/cublas_half/family.py", "cublas"),
    ("kernels/cublas_tf32/family.py", "cublas"),
    ("kernels/skinny_cluster/family.py", "skinny"),
}


def namings(package: Path) -> Iterator[tuple[str, str]]:
    """Files of the library, and each family that one names or imports outside that family's folder."""
    inside = {d.name: {d.name, *(one.name for one in registry._load(d / "family.py", True))} for d in FOLDERS}
    every = set().union(*inside.values())
    for path in sorted(p for folder in LIBRARY for p in (package / folder).rglob("*.py")):
        place = path.relative_to(package)
        own = inside.get(place.parts[1], set()) if place.parts[0] == "kernels" else set()
        for node in ast.walk(ast.parse(path.read_text())):
            names = {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toprung.kernels."):
                names = {str(node.module).split(".")[2]}
            for name in names & every - own:
                yield place.as_posix(), name


def test_nothing_outside_a_familys_folder_names_it() -> None:
    assert set(namings(PACKAGE)) == ALLOWED


def test_a_planted_naming_is_found(tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "dispatch" / "select.py").open("a") as file:
        file.write('\nif "tiled":\n    from toprung.kernels.stream_k.work import work\n')
    assert set(namings(copy)) - ALLOWED == {("dispatch/select.py", "tiled"), ("dispatch/select.py", "stream_k")}


def test_production_sources_include_no_rung_and_rungs_may_include_them() -> None:
    include = re.compile(r'^#include "(.*)"', re.MULTILINE)
    sources = [p for p in PACKAGE.rglob("*") if p.suffix in (".cl", ".cu", ".cuh")]
    includes = {p: [(p.parent / name).resolve() for name in include.findall(p.read_text())] for p in sources}
    ours = {p for p in sources if (PACKAGE / "kernels") in p.parents}
    assert all(target in ours for p in ours for target in includes[p])
    assert sum(target in ours for p in set(sources) - ours for target in includes[p]) >= 20
    modules = [p for p in (PACKAGE / "kernels").rglob("*.py") if "toprung.lab.ladders" in p.read_text()]
    assert modules == []


# what every family answers


def descs() -> list[Any]:
    found = [one.desc for one in golden.asked(golden.devices()["h200-cuda"])]
    return [*dict.fromkeys(found), GemvDesc(5, 0), GemmDesc(0, 0, 0)]


@pytest.mark.parametrize("one", families(), ids=lambda f: f.name)
@pytest.mark.parametrize("device", golden.devices().values(), ids=list(golden.devices()))
def test_candidates_are_costed_encoded_and_adapted(one: KernelFamily, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    with golden.recording():
        for desc in descs():
            if one.supports(device, desc):
                continue
            for config in list(candidates(one, device, desc))[:3]:
                taken += 1
                assert isinstance(config, KernelConfig) and hash(config) == hash(config)
                assert one.cost(device, desc, config) >= 0  # NaN is no time
                stored = json.loads(json.dumps(config.encode()))
                assert stored.keys() == {"tile", "options"}
                assert decoded({"kernel": one.name, **stored}).config == config
                if not desc.is_empty:
                    assert one.adapt(device, desc, config, desc, True) == config
                assert pickle.loads(pickle.dumps(Candidate(one, config))) == Candidate(one, config)
                assert str(Candidate(one, config)).startswith(one.name)
    assert taken or one.supports(device, GemmDesc(2048, 2048, 2048)) or one.name in ONLY_WHERE_TUNED


ONLY_WHERE_TUNED = ("stream_k", "hopper_inflight")
"""Families whose cost model offers nothing, the second one because its present text has not been checked on a GPU yet."""


def test_what_in_flight_is_not_built_for_is_refused() -> None:
    tile = {"BM": 128, "BN": 128, "BK": 32, "STAGES": 6}
    for tiles, options, says in (
        ({"BM": 96}, {}, "nearest"), ({"BM": 192}, {}, "192"), ({"STAGES": 7}, {}, "bytes of shared memory"),
        ({"STAGES": 2}, {}, "3 stages or more"), ({}, {"SLICES": 3}, "1, 2, 4, 8 or 16"), ({}, {"EVIL": 1}, "nearest"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            INFLIGHT.config.decode({**tile, **tiles}, {"GROUP": 8, "SLICES": 1, **options})


@dataclass(frozen=True)
class Shaped(FieldsConfig):
    """A configuration with a field of each kind."""

    fixed: ClassVar[dict[str, int]] = {"BK": 8}
    former = frozenset({"OLD"})
    ROWS: int = parameter(2, 1, name="BM", unit=16)
    BN: int = parameter(32)
    GROUP: int = parameter(8, 4)
    slices: int = parameter(1, name="SPLIT_K", optional=True)

    def refused(self) -> str:
        return "" if self.GROUP > 1 else "groups are of two"


def test_fields_say_how_a_configuration_is_stored_and_searched() -> None:
    one, tile = Shaped(1, GROUP=4, slices=3), {"BM": 16, "BN": 32, "BK": 8}
    assert one.encode() == {"tile": {**tile, "SPLIT_K": 3}, "options": {"GROUP": 4}}
    assert list(one.encode()["tile"]) == ["BM", "BN", "BK", "SPLIT_K"] and one.tile == Tile(16, 32, 8, SPLIT_K=3)
    assert Shaped().decode(**one.encode()) == one == Shaped().decode({**tile, "SPLIT_K": 3}, {"GROUP": 4, "OLD": 5})
    assert Shaped().decode(tile, {"GROUP": 8}) == Shaped(1) and Shaped().axes() == {"ROWS": (2, 1), "GROUP": (8, 4)}
    for other, options, says in (
        ({"BM": 17}, {}, "nearest.*16"), ({"BK": 4}, {}, "nearest.*8"), ({}, {"OLDER": 5}, "nearest"), ({"TM": 4}, {}, "nearest"),
        ({"GROUP": 4}, {}, "nearest"), ({}, {"GROUP": 1}, "groups are of two"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            Shaped().decode({**tile, **other}, {"GROUP": 8, **options})
    with pytest.raises(ValueError, match="nearest"):
        Shaped().decode({"BM": 16, "BN": 32}, {"GROUP": 8})


@pytest.mark.parametrize("one", [f for f in families() if isinstance(f, SearchedFamily)], ids=lambda f: f.name)
def test_points_of_a_space_are_configurations_and_back(one: SearchedFamily) -> None:
    device = golden.devices()["h200-cuda"]
    for desc in (golden.gemm(4096, 4096, 4096), golden.gemm(16, 4096, 4096, "NT"), golden.gemm(2048, 1536, 1024, "TN")):
        axes = {} if one.supports(device, desc) else one.space(device, desc)
        first = {name: values[0] for name, values in axes.items()}
        made = one.at(device, desc, first) if axes else None
        if made is not None:
            assert decoded(Candidate(one, made).encode()).config == made
            assert one.at(device, desc, one.point(made)) == made
            assert sources_of(one, device, desc, made)
            rows, cols, depth = one.test_problem(desc, made)[0]
            assert 0 < rows * cols * depth < 1e9


@pytest.mark.parametrize("one", [f for f in families() if f.own and f.name != "plain"], ids=lambda f: f.name)
def test_a_test_problem_allows_accesses_as_wide_as_the_products(one: KernelFamily) -> None:
    """Verification on first use runs the very binary of the product: a misaligned vector would end the session's context."""
    device = golden.devices()["h200-cuda"]
    products = [golden.gemm(*s) for s in ((1, 4096, 4096), (4096, 1, 4096), (1024, 1024, 2048), (16384, 16384, 16384))]
    products += [golden.gemm(m, 4096, 4096, trans) for m in (8, 512) for trans in ("NT", "TN", "TT")]
    for desc in (*products, *(GemvDesc(4096, 4096, trans, align_a=4, align_x=4) for trans in (False, True))):
        for config in () if one.supports(device, desc) else candidates(one, device, desc):
            problem, _ = small_problem(desc, Candidate(one, config), 1.0, 0.0)
            small = described(problem.describe())
            small = replace(small, **{name: 4 for name in ("align_a", "align_b", "align_c", "align_x") if hasattr(small, name)})
            have, need = (d.skinny.widths if isinstance(config, SkinnyConfig) else d.widths for d in (small, desc))
            assert all(h >= n for h, n in zip(have, need, strict=True)), config


@pytest.mark.parametrize("one", families(), ids=lambda f: f.name)
@pytest.mark.parametrize(
    "tile", [{"BM": 3}, {"BM": 16, "BN": 16, "BK": 1 << 19}, {"BM": 1 << 20, "BN": 1 << 20, "TM": 1 << 11, "TN": 8}]
)
def test_what_no_family_can_be_is_a_value_error(one: KernelFamily, tile: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        decoded({"kernel": one.name, "tile": tile, "options": {"NONSENSE": 7}})


def test_a_family_that_is_not_here_is_named() -> None:
    with pytest.raises(UnknownName, match="kernel family"):
        family("nonsense")
    with pytest.raises(UnknownName, match="nonsense"):
        decoded({"kernel": "nonsense", "tile": {}, "options": {}})


def test_selection_is_the_least_cost_of_all_that_support_a_product() -> None:
    device = golden.devices()["h200-cuda"]
    with golden.recording():
        for desc in descs():
            if desc.is_empty:
                continue
            taken = select(device, desc, own=True, precision="fp32")
            costs = {
                (one.name, str(config)): one.cost(device, desc, config)
                for one in families()
                if (one.own, one.precision, one.memory) == (True, "fp32", "device") and not one.supports(device, desc)
                for config in candidates(one, device, desc)
            }
            assert costs[taken.family.name, str(taken.config)] == min(costs.values()) == ranking.ranked(device, desc)[0].seconds


def test_a_familys_module_has_one_name_in_all_processes() -> None:
    """The tuner's workers unpickle a family's own configurations by it."""
    code = "from toprung.kernels.registry import family; print(type(family('outer')).__module__)"
    names = set()
    for seed in ("1", "2"):
        env = {**os.environ, "TOPRUNG_KERNELS": str(Path(__file__).parent / "families"), "PYTHONHASHSEED": seed}
        names.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout)
    assert len(names) == 1
