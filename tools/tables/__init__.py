"""Tables in the documentation's Markdown files, generated from stored records between two markers, so that no figure is ever typed.

A marker names what to show and the records it comes from, relative to the repository::

    <!-- toprung:headlines results/<device> -->
    <!-- toprung:gains results/<device>/<record>.json … -->
    <!-- toprung:climb climb.svg 4096 results/<device>/<record>.json[+<another>.json] -->
    <!-- toprung:averaged bias.svg results/model/bias.json -->
    <!-- toprung:ladder [sizes=1024,4096] results/<device>/<record>.json[+<another>.json] … -->
    <!-- toprung:sweep sweep.svg results/<device>/<record>.json? -->
    <!-- toprung:rung r07 results/<device>/<record>.json … -->
    <!-- toprung:each results/<device>/<record>.json … -->
    <!-- toprung:bench results/<device>/<record>.json -->
    <!-- toprung:versus results/<device>/<record>.json -->
    <!-- toprung:settling results/<device>/settling.json -->
    <!-- toprung:agreement cublas results/<device> -->
    <!-- toprung:counters results/<device>/<record>.json -->
    <!-- toprung:probe ffma_chain,ffma_outer results/<device>/<record>.json … -->
    <!-- toprung:loads kepler/r07 results/<device>/<record>.json -->
    <!-- toprung:overhead results/<device>/overhead.json … -->
    <!-- toprung:host_arrays results/<device>/host-arrays.json -->
    <!-- toprung:standstill results/<device>/standstill.json -->
    <!-- toprung:torch_models [eager|compiled|graphed …] results/<device>/torch-models.json[+<another>.json] -->
    <!-- toprung:programs [most=8] results/<device>/programs.json -->
    <!-- toprung:torch_profile profile.svg results/<device>/torch-profile.json? -->
    <!-- toprung:torch_products results/<device>/torch-products.json -->
    <!-- toprung:cupy_products results/<device>/cupy-products.json -->
    <!-- toprung:grouped results/<device>/grouped.json -->
    <!-- toprung:shapes results/<device>/shapes.json -->
    <!-- toprung:presplit results/<device>/presplit-launch.json -->
    <!-- toprung:chosen results/<device>/<check>.json … -->
    <!-- toprung:deep_and_odd results/<device>/deep-and-odd.json -->
    <!-- toprung:splitting results/<device>/splitting-pass.json -->
    <!-- toprung:installations results/<device>/install-sizes.json -->
    <!-- toprung:commits results/<device>/<record>.json -->
    <!-- toprung:library results/<device>/library.json … -->
    <!-- toprung:rank results/<device>/rank.json results/<device>/probe-<backend>.json -->
    <!-- toprung:leads [run=7] results/<device>/<record>.json -->
    <!-- toprung:facts kepler/r07 -->
    <!-- toprung:changes webgpu/r06 -->
    <!-- toprung:webgpu_reads 4096 results/<device>/<record>.json results/<device>/<probe>.json -->
    <!-- toprung:guidelines [NAME] results/<device>/<record>.json … -->
    <!-- toprung:fp32x grade|frobenius|accuracy|bias|sustained|burst|matmul|slices results/<folder>/<record>.json -->
    <!-- toprung:hopper_fp32 sustained|shapes|tried|counters results/<device>/<record>.json -->
    <!-- toprung:tune search|run|check|routes|exhaustive|library results/<device>/<record>.json -->
    <!-- toprung:fuzz results/<device>/fuzz.json -->
    <!-- toprung:bound fermi B_R=6 --> and the others of ``bounds.py``
    <!-- toprung:end -->

``facts`` needs no record: it shows what a rung's own file says; nor does ``bound``, which is computed. A record whose name ends
in ``?`` may be missing: a block without any says that nothing has been measured yet.

Below a table stands which kernels have changed since they were measured, and which records' code is not in the history.

Makers are found by looking: each module of this folder with ``TABLES``, a table's name → the function that makes it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tables.common import NOTHING, about_code, of_one_card
from toprung.errors import UnknownName
from toprung.lab.harness.results import read

BLOCK = re.compile(r"(<!-- toprung:(?!end)(?P<what>\w+) (?P<words>[^>]*?) ?-->\n)(?P<body>.*?)(<!-- toprung:end -->)", re.DOTALL)
ROWS = ("rung", "overhead")
"""Tables with a row, not a column, for each device."""

CARDS = ("gains",)
"""Tables that are about the difference between devices: each row names its own."""

Maker = Callable[[Sequence[str], Path], str]
"""Function ``(words of the marker, root of the repository)`` → Markdown."""


@cache
def makers() -> Mapping[str, Maker]:
    """Return every maker by its marker's first word."""
    found: dict[str, Maker] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= getattr(importlib.import_module(f"{__name__}.{module.name}"), "TABLES", {})
    return found


def _by_card(what: str, words: Sequence[str]) -> list[Sequence[str]]:
    """Return the words of each table: of those with a row for a device, every card has one of its own."""
    folders = list(dict.fromkeys(Path(w).parent for w in words if w.endswith(".json")))
    if what not in ROWS or len(folders) < 2:
        return [words]
    return [[w for w in words if not w.endswith(".json") or Path(w).parent == folder] for folder in folders]


def _made(what: str, words: Sequence[str], root: Path) -> str:
    """Return a table, and what must be said of the code that was measured."""
    body = makers()[what](words, root)
    records = {path: read(root / path) for word in words if word.endswith(".json") for path in word.split("+")}
    if what not in CARDS:
        of_one_card(records, body)
    said = about_code(records, words[0] if what == "rung" else "")
    # behind the row of a table it would be a row of it
    return "\n".join(filter(None, (body + "\n" * bool(said and body.rpartition("\n")[2].startswith("|")), said)))


def refresh(text: str, root: Path) -> str:
    """Return ``text`` with every generated table made anew.

    Raises
    ------
    BadRecord
        a record that is missing or damaged; figures of two devices in one column
    UnknownName
        a marker for a table or a rung that does not exist
    """

    def table(match: re.Match[str]) -> str:
        what, given = match["what"], match["words"].split()
        words = [w.removesuffix("?") for w in given if not w.endswith("?") or (root / w[:-1]).exists()]
        if what not in makers():
            raise UnknownName("generated table", what, makers())
        whole = len(words) == len(given) or any(w.endswith(".json") for w in words)
        bodies = [_made(what, some, root) for some in _by_card(what, words)] if whole else [NOTHING]
        return "\n\n".join(bodies).join((match[1], f"\n{match[5]}"))

    return BLOCK.sub(table, text)
