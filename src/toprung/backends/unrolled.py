"""Unrolling of marked loops in WGSL, which has neither a pragma nor macros for it.

``/* unroll */ for (var i = 0u; i < TM; i++) { acc[i] = … }`` becomes ``{ const i = 0u; acc[i] = … } { const i = 1u; … } …``. A
private array that is indexed with constants alone can live in registers. The mark is a comment: the text is WGSL without this, too.
``report/web/page.js`` does the same to the same texts in a browser; ``tests/test_web.py`` compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MARK = "/* unroll */"
UNROLL = "UNROLL"
"""Switch of a rung: 0 leaves its marked loops as loops; 1 and all other kernels have them unrolled."""
LOOP = re.compile(r"/\* unroll \*/ for \(var (\w+) = 0u; \1 < (\w+(?: [*/] \w+)*); \1\+\+\) \{", re.ASCII)
NUMBER = re.compile(r"([0-9]+)u?")
LEAVES = re.compile(r"\b(?:break|continue)\b")
LARGEST = 1 << 20
"""Characters that an unrolled text may have."""


class NotUnrolled(Exception):
    """A marked loop that cannot be unrolled; ``line`` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        super().__init__(why)


def unrolled(text: str, constants: Mapping[str, int]) -> tuple[str, list[int]]:
    """Return a text with each iteration of its marked loops written out, and the line that each of its lines came from.

    Raises
    ------
    NotUnrolled
        a marked loop of another form, or one that would be too long
    """
    lines = text.split("\n")
    if MARK not in text or constants.get(UNROLL) == 0:
        return text, list(range(1, len(lines) + 1))
    # each line carries its number through all copies, behind a character that no text has; remarks go, for they may hold brackets
    text = "\n".join(f"{line.split('//')[0].rstrip()}\0{number}" for number, line in enumerate(lines, 1))
    while (at := text.find(MARK)) >= 0:
        line = int(text[text.index("\0", at) + 1 :].split("\n", 1)[0])
        loop = LOOP.match(text, at)
        if loop is None:
            raise NotUnrolled(line, "what is unrolled has the form for (var i = 0u; i < TM / 4u; i++) { … }")
        name, count = loop[1], _count(loop[2], constants, line)
        body = text[loop.end() : (end := _end(text, loop.end(), line))]
        if LEAVES.search(body):
            raise NotUnrolled(line, "a loop that is unrolled has no break and no continue")
        if len(text) + count * len(body) > LARGEST:
            raise NotUnrolled(line, f"unrolled, the text would have more than {LARGEST:,} characters")
        text = text[:at] + " ".join(f"{{ const {name} = {n}u;{body}}}" for n in range(count)) + text[end + 1 :]
    pairs = [line.split("\0") for line in text.split("\n")]
    return "\n".join(line for line, *_ in pairs), [int(number) for _, number in pairs]


def _count(expression: str, constants: Mapping[str, int], line: int) -> int:
    """Return the value of a product or quotient of constants, from left to right as WGSL computes it."""
    words, value = ["*", *expression.split(" ")], 1
    for operator, word in zip(words[::2], words[1::2], strict=True):
        number = NUMBER.fullmatch(word)
        factor = int(number[1]) if number else constants.get(word)
        if not factor:
            raise NotUnrolled(line, f"{word} is no constant of the tile, or 0")
        value = value * factor if operator == "*" else value // factor
    return value


def _end(text: str, start: int, line: int) -> int:
    """Return the place of the bracket that closes what was opened in front of ``start``."""
    depth = 1
    for found in re.finditer(r"[{}]", text[start:]):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return start + found.start()
    raise NotUnrolled(line, "its body does not end")
