"""Marked loops of WGSL are unrolled into blocks with constants, and messages name the lines of the file."""

from __future__ import annotations

import re

import pytest

from toprung.backends.unrolled import MARK, NotUnrolled, unrolled
from toprung.backends.webgpu import composed
from toprung.kernels.record import kernel_source
from toprung.lab.rung import ladder

FOR = f"{MARK} for (var i = 0u; i < TM; i++) {{"


def test_each_iteration_is_a_block_with_a_constant() -> None:
    text, lines = unrolled(f"a;\n{FOR} // three\n  x[i] = 0;\n}}\nb;", {"TM": 3})
    copies = [f"{{ const i = {n}u;\n  x[i] = 0;\n}}" for n in range(3)]
    assert text == "a;\n" + " ".join(copies) + "\nb;"
    assert lines == [1, 2, 3, 2, 3, 2, 3, 4, 5], "a line that closes a copy and begins the next is the loop's first"


def test_loops_in_loops_and_counts() -> None:
    inner = f"{MARK} for (var j = 0u; j < 2u * TN / 4; j++) {{ f(i, j); }}"
    text, _ = unrolled(f"{MARK} for (var i = 0u; i < TM / 4u; i++) {{ {inner} }}", {"TM": 11, "TN": 6})
    assert re.findall(r"const i = (\d)u", text) == ["0", "1"] and re.findall(r"const j = (\d)u", text) == ["0", "1", "2"] * 2
    assert text.count("f(i, j);") == 6 and "for" not in text and text.count("{") == text.count("}")
    assert unrolled(f"a {MARK} for (var i = 0u; i < TN / 4u; i++) {{ b }} c", {"TN": 3})[0] == "a  c"


def test_what_is_not_marked_and_what_is_switched_off_stays() -> None:
    plain = "for (var i = 0u; i < TM; i++) { f(i); } // {"
    assert unrolled(plain, {"TM": 3}) == (plain, [1])
    assert unrolled(f"\n{MARK} {plain}", {"TM": 3, "UNROLL": 0}) == (f"\n{MARK} {plain}", [1, 2])
    assert unrolled(f"// {MARK} is the mark\n{MARK} {plain}", {"TM": 1})[0] == "\n{ const i = 0u; f(i); }"


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (f"{MARK} for (var i = 1u; i < TM; i++) {{ }}", "has the form"),
        (f"{MARK} for (var i = 0u; i < TM; i += 2u) {{ }}", "has the form"),
        (f"{MARK} for (var i = 0u; i < p.K; i++) {{ }}", "has the form"),
        (f"{MARK} while (true) {{ }}", "has the form"),
        (f"{MARK} for (var i = 0u; i < k0; i++) {{ }}", "k0 is no constant"),
        (f"{FOR} if (i == 2u) {{ break; }} }}", "no break"),
        (f"{FOR} if (i == 2u) {{ continue; }} }}", "no continue"),
        (f"{FOR} f(i);", "does not end"),
        (f"{MARK} for (var i = 0u; i < 4096 * 4096; i++) {{ }}", "more than 1,048,576 characters"),
    ],
)
def test_a_loop_that_cannot_be_unrolled_is_named(loop: str, why: str) -> None:
    with pytest.raises(NotUnrolled, match=why) as caught:
        unrolled(f"// a remark {{\n\n{FOR} }}\n{loop}", {"TM": 3})
    assert caught.value.line == 4


@pytest.mark.parametrize("rung", ladder("webgpu").rungs, ids=str)
def test_private_arrays_of_the_rungs_are_indexed_with_constants_alone(rung) -> None:
    """A variable index puts an array into memory: on an H200 that took a rung to a sixteenth of its speed."""
    for tile in (t for tiles in rung.tiles.values() for t in tiles):
        text = composed(kernel_source(rung, tile, {s.name: s.default for s in rung.switches}))
        arrays = re.findall(r"^\s+var (\w+): array<", text, flags=re.MULTILINE)
        assert bool(arrays) == (rung.number > 2)
        for name in set(arrays):
            indices = " ".join(re.findall(rf"\b{name}((?:\[[^\]]*\])+)", text))
            for variable in set(re.findall(r"\b[a-z]\w*", indices)):
                assert f"const {variable} = " in text and f"var {variable} = " not in text, f"{rung}: {name}[{variable}]"
        assert text.count("const i") > 0 or rung.number < 3
