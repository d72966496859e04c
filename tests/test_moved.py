"""Old names of modules: an import of one warns, and gives the very module that is there now."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import toprung
from toprung.moved import MOVED, RENAMED, Finder, new_name


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_warns_and_is_the_new_module(old: str) -> None:
    sys.modules.pop(f"toprung.{old}", None)
    with pytest.warns(FutureWarning, match=rf"toprung\.{old} is toprung\.{MOVED[old]} now"):
        found = importlib.import_module(f"toprung.{old}")
    assert found is importlib.import_module(f"toprung.{MOVED[old]}")
    assert found.__name__ == found.__spec__.name == f"toprung.{MOVED[old]}", "the module itself is as it was"


def test_names_below_moved_along_and_others_are_not_taken() -> None:
    assert new_name("peers._host") == "lab.baselines._host" and new_name("blas.arrays.base") == "arrays.base"
    assert new_name("blas.routines") is None and Finder.find_spec("toprung.nowhere") is None and Finder.find_spec("rung") is None


def test_the_documented_imports_of_before_work_as_a_user_wrote_them() -> None:
    """A rung, a peer, machine code and results, as the pages of version 0.1 had them."""
    code = (
        "from toprung import climb, results\n"
        "from toprung.rung import Rung, Switch, rung\nfrom toprung.tile import Rule, Tile\n"
        "from toprung.competitor import BoundCompetitor\nfrom toprung.peers import Peer\nfrom toprung.peers._host import Stacks\n"
        "from toprung.build import Own, build\n"
        "from toprung.routines.gemm import Gemm\nprint(rung('kepler/r01').idea, Gemm(2, 3, 4))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("2×3×4\n") and "toprung.rung is toprung.lab.rung now" in done.stderr


@pytest.mark.parametrize(("old", "new"), sorted(RENAMED.items()))
def test_an_old_public_name_warns_and_is_the_new_one(old: str, new: str) -> None:
    assert new in toprung.__all__ and old not in toprung.__all__
    with pytest.warns(FutureWarning, match=rf"toprung\.{old} is toprung\.{new} now"):
        found = getattr(toprung, old)
    assert found is getattr(toprung, new)


def test_a_name_that_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        toprung.nonsense  # noqa: B018
    assert not hasattr(toprung, "prepared")
