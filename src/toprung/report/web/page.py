"""(Ladder in WGSL) → one HTML file that climbs it in a browser: nothing is fetched, and nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import toprung.lab.routines.base as shared
from toprung.device import Device
from toprung.errors import Unsupported
from toprung.kernels.record import LANGUAGES
from toprung.lab.harness.environment import kernels, packages, source
from toprung.lab.harness.results import FORMAT
from toprung.lab.probe import base as probes
from toprung.lab.routines.gemm import PLAIN, from_size
from toprung.lab.rung import Rung, ladder
from toprung.tile import Tile, broken

HERE = Path(__file__).parent
LADDER = "webgpu"
HELPERS = ("pad", "transpose", "scale")
PROBES = ("ffma_chain", "bandwidth", "workgroup_memory")
ANY = Device(
    id="webgpu:0", backend="webgpu", name="any", vendor="any", driver="", runtime="", kind="gpu", compute_units=1, clock_mhz=0.0,
    lanes=None, local_bytes=1 << 20, memory_bytes=1 << 40, max_buffer_bytes=1 << 40, max_work_group=1024,
    max_items=(1024, 1024, 64), base_align=256, vector_widths=(1, 2, 4),
)  # fmt: skip
"""A device that allows what any browser's may: the page leaves out the tiles that the viewer's does not."""
SUBGROUPS = (None, 4, 8, 16, 32, 64, 128)
"""Sizes of the smallest subgroup of an adapter; None: it has none."""


def render(name: str = LADDER) -> str:
    """Return the page of a ladder.

    Raises
    ------
    UnknownName, BadRung
        no such ladder, or a broken one
    Unsupported
        a ladder whose rungs are not all written in WGSL
    """
    found = ladder(name)
    if not found.rungs or any(LANGUAGES[r.source.suffix] != "wgsl" for r in found.rungs):
        raise Unsupported(f"{name} is not written in WGSL, which is what a browser compiles: toprung web {LADDER}")
    texts = {r.source.read_text("utf-8"): r.name for r in found.rungs}
    data = {
        "version": packages().get("toprung", ""), "code": {**source(), "kernels": kernels(texts)}, "format": FORMAT,
        "ladder": {"name": found.name, "title": found.title, "note": found.note},
        "rungs": [_rung(r) for r in found.rungs],
        "helpers": {stem: (shared.KERNELS / f"{stem}.wgsl").read_text("utf-8") for stem in HELPERS},
        "plain": PLAIN.defines(),
        "probes": {stem: (probes.FOLDER / f"{stem}.wgsl").read_text("utf-8") for stem in PROBES},
        "problem": from_size((64,)).describe(),
    }  # fmt: skip
    parts = {
        "CSS": (HERE / "page.css").read_text("utf-8"),
        "SCRIPT": (HERE / "page.js").read_text("utf-8"),
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/"),
    }
    text = (HERE / "page.html").read_text("utf-8")
    for key, value in parts.items():
        text = text.replace(f"<!--{key}-->", value)
    return text


def _rung(rung: Rung) -> dict[str, Any]:
    """Return a rung as the page takes it: its text, and every tile of its own or of its space that some device can run."""
    options = {s.name: s.default for s in rung.switches}
    own = {kind: list(tiles) for kind, tiles in rung.tiles.items()}
    tiles = list(dict.fromkeys([*(t for choices in own.values() for t in choices), *_space(rung, options)]))
    described = [t for tile in tiles if (t := _tile(rung, tile, options)) is not None]
    places = {json.dumps(t["given"]): i for i, t in enumerate(described)}
    return {
        "name": rung.name, "stem": rung.stem, "number": rung.number, "idea": rung.idea, "expects": rung.expects,
        "text": rung.source.read_text("utf-8"), "whole": rung.whole_operands(options), "transposed": rung.transposed,
        "options": options, "tiles": described,
        "own": {kind: [places[json.dumps(t.given())] for t in choices] for kind, choices in own.items()},
    }  # fmt: skip


def _space(rung: Rung, options: dict[str, int]) -> Iterator[Tile]:
    for size in SUBGROUPS:
        try:
            yield from rung.legal(replace(ANY, subgroup=size), options)
        except ValueError:  # no tile is legal without a subgroup of some size
            continue


def _tile(rung: Rung, tile: Tile, options: dict[str, int]) -> dict[str, Any] | None:
    """Return a tile with what decides if a device can run it; ``subgroup`` is the size that the adapter's smallest must reach."""
    for size in SUBGROUPS:
        device = replace(ANY, subgroup=size)
        if not rung.needs(device) and not broken(rung.all_rules(options), tile, device):
            return {
                "given": tile.given(), "defines": tile.defines(), "local": rung.local_bytes(tile), "items": [tile.DN, tile.DM],
                "widest": tile.widest, "subgroup": size or 0,
            }  # fmt: skip
    return None
