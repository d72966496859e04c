"""Selections, launches and results are, to the bit, as ``tests/golden`` has them. No device but PoCL is needed.

A difference is a decision: when it is meant, ``python -m tests.golden`` writes the files anew, and the commit says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

import golden
from toprung.backends.base import Session

QUICK = 40
"""Results that are computed in the quick tests; the others are slow to compile."""


def recorded(path: object) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(path.read_text())  # type: ignore[attr-defined]
    return found


def results() -> list[tuple[str, str]]:
    """Configurations and the bits of their results on PoCL; first what PoCL's own products select and what compiles quickly."""
    bits = recorded(golden.BITS)["pocl"]
    own = {str(one) for one in golden.forced(golden.devices()["pocl"])}

    def late(text: str) -> tuple[bool, bool]:
        _, _, tile, options = json.loads(text)
        return text not in own, options.get("SMALL", 1) > 1 or options.get("TRANS_A", 0) > 0 or tile.get("VB", 4) < 4

    return sorted(bits.items(), key=lambda one: late(one[0]))


CASES = results()


def told_apart(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Each product that is not as recorded, both lines."""
    names = dict.fromkeys((*wanted, *found))
    return [f"{n}\n  was {wanted.get(n)}\n  is  {found.get(n)}" for n in names if found.get(n) != wanted.get(n)]


@pytest.mark.parametrize("name", golden.devices())
def test_what_is_selected_and_launched_is_as_recorded(name: str) -> None:
    device, wanted = golden.devices()[name], recorded(golden.SELECTED)[name]
    with golden.recording():
        found = {str(one): golden.selected(device, one) for one in golden.asked(device)}
    assert len(wanted) >= 70
    assert "\n".join(told_apart(found, wanted)) == ""


def test_four_hundred_products_are_recorded() -> None:
    assert sum(len(found) for found in recorded(golden.SELECTED).values()) >= 400
    assert {len(found) >= 160 for found in recorded(golden.BITS).values()} == {True}


def test_bits_of_a_gpu_are_of_todays_configurations() -> None:
    """Stale ones are taken out, or made anew: ``python -m tests.golden --device cuda:0``, on an H200; ``--check`` compares."""
    of_gpus = {name: set(bits) for name, bits in recorded(golden.BITS).items() if name != "pocl"}
    if not of_gpus:
        pytest.skip("no result bits of a GPU are stored")
    assert of_gpus == {name: {str(one) for one in golden.forced(golden.devices()[name])} for name in of_gpus}


def forced_bits(session: Session, cases: list[tuple[str, str]]) -> None:
    made = {text: golden.bits(session, golden.Forced.read(text)) for text, _ in cases}
    assert "\n".join(told_apart(made, dict(cases))) == ""


@pytest.mark.parametrize("part", range(2))
def test_bits_of_results_are_as_recorded(session: Session, part: int) -> None:
    forced_bits(session, CASES[part * QUICK // 2 : (part + 1) * QUICK // 2])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_bits_of_all_results_are_as_recorded(session: Session, part: int) -> None:
    forced_bits(session, CASES[QUICK:][part::16])


def test_another_scalar_is_noticed(session: Session) -> None:
    text, bits = CASES[0]
    one = golden.Forced.read(text)
    assert golden.bits(session, one) == bits
    problem = json.loads(text)[0]
    other = text.replace(f'"alpha": {problem["alpha"]}', '"alpha": 1.5')
    assert other != text and golden.bits(session, golden.Forced.read(other)) != bits
