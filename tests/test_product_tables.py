"""Tables of products are the same from a record of benchmarks/candidates.py as from one of the scripts that it replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tables import makers
from toprung.lab.harness.results import FORMAT

BLOCK = "128x128x32"
ROWS: dict[str, dict[str, Any]] = {
    "shapes": {"size": [64, 96, 80, 64], "layout": "NT", "arms": ("toprung", "torch fp32", "torch TF32"), "kernel": "tiled X in 3"},
    "deep_and_odd": {"size": [1, 9, 8, 70], "layout": "TN", "arms": ("fp32", "tf32", "hopper_fp32x A", "hopper_inflight B")},
    "presplit": {"size": [90, 80, 70], "layout": "NT", "arms": ("one A", "presplit A", "prepacked A", "in flight", "fp32x")},
    "inflight": {"size": [2, 512, 512, 512], "layout": "NN", "arms": ("fp32", "tf32", "beforehand", BLOCK, "64x64x32")},
    "mixed": {"size": [9, 8, 70], "arms": [f"{t} {arm}" for t in ("ff", "bf") for arm in ("matmul", "torch fp32", "torch TF32")]},
    "odd_shapes": {"shape": [1, 9, 8, 70, "TN", 0, 0], "arms": ("cublas", "default"), "selected": "tiled"},
}  # fmt: skip
"""A row of each script's record, by the record's key, with its arms' names."""
WORDS = {"inflight": ("inflight_times", "1"), "mixed": ("mixed", "9x8x70"), "odd_shapes": ("fp32x", "")}
"""Names of tables that are not their record's key, and words behind the record."""
ARMS = {
    "shapes": {},
    "deep_and_odd": {"fp32": "torch fp32", "tf32": "torch TF32"},
    "inflight": {"fp32": "torch fp32", "tf32": "torch TF32", "beforehand": "hopper_fp32x X", "": "hopper_inflight "},
    "odd_shapes": {"cublas": "torch fp32", "default": "toprung"},
    "mixed": {"ff matmul": "toprung", "bf matmul": "toprung", "fb matmul": "toprung", "ff ": "", "bf ": "", "fb ": ""},
    "presplit": {
        "one ": "one hopper_presplit ", "presplit ": "pass hopper_presplit ", "prepacked ": "prepacked hopper_presplit ",
        "in flight": "hopper_inflight Y", "fp32x": "hopper_fp32x X",
    },
}  # fmt: skip
"""Beginnings of arms' names, with those of the new script, by the key of the old record."""


def renewed(key: str, row: dict[str, Any], types: str) -> dict[str, Any]:
    """Return a row as candidates.py stores it; of a row of three pairs of types, one pair."""

    def named(name: str) -> str:
        return next((new + name[len(old) :] for old, new in ARMS[key].items() if name.startswith(old)), name)

    def mine(arms: dict[str, Any]) -> dict[str, Any]:
        return {named(name): x for name, x in arms.items() if key != "mixed" or name.startswith(types)}

    batch, m, n, k, layout, *_ = row.get("shape") or [*([1] * (len(row["size"]) == 3)), *row["size"], row.get("layout", "NT")]
    arms = {part: mine(row.get(part, {})) for part in ("seconds", "error", "predicted")}
    kernel = row.get("kernel", row.get("selected", ""))
    return {"size": [batch, m, n, k], "layout": layout, "types": types, "wrong": [], "kernel": kernel, **arms}


def record(rows: list[dict[str, Any]], key: str) -> str:
    device = {"slug": "x", "backend": "cuda", "short_name": "X", "name": "X", "driver": "1", "runtime": "1", "compute_units": 132}
    environment = {"date": "2026-11-28T00:00:00", "commit": "abc", "packages": {"torch": "2"}, "device": device}
    return json.dumps({"format": FORMAT, "what": "x", "environment": environment, "measurements": [], key: rows})


@pytest.mark.parametrize("key", ROWS)
def test_both_forms_make_the_same_table(key: str, tmp_path: Path) -> None:
    made = {name: 1e-6 * (3 + 2 * i) for i, name in enumerate(ROWS[key]["arms"])}
    old = {**ROWS[key], "seconds": {n: [x, x] for n, x in made.items()}, "error": made, "predicted": {}}
    old["predicted"] = {n: x for n, x in made.items() if n.startswith("hopper") or "x32" in n}
    old |= {"type_a": "bfloat16"} if key == "presplit" else {}
    pairs = {"mixed": ("ff", "bf"), "presplit": ("bf",)}.get(key, ("ff",))
    rows = [old] * (2 if key == "inflight" else 1)  # one in the table, and one that it sums up
    (tmp_path / "old.json").write_text(record(rows, key))
    (tmp_path / "new.json").write_text(record([renewed(key, row, t) for row in rows for t in pairs], "candidates"))
    what, words = WORDS.get(key, (key, ""))
    asked = [*(["odd"] if what == "fp32x" else []), "{}.json", *words.split()]
    before, after = (makers()[what]([word.format(name) for word in asked], tmp_path) for name in ("old", "new"))
    assert before.replace("old.json", "new.json") == after and before.count("\n|") >= 2


def test_the_largest_bias_of_each_kernel_is_shown_with_its_k(tmp_path: Path) -> None:
    arms = {"torch fp32": 1e-9, "one hopper_presplit 128x64x32": 2e-8, "pass hopper_presplit 128x64x32": -3e-8}
    rows = [
        {"size": [1, 9, 8, K], "types": types, "data": data, "bias": {arm: share * times for arm, share in arms.items()}}
        for K, times, types, data in ((64, 1, "ff", "positive"), (4096, -2, "ff", "positive"), (64, 1, "bf", "near-one"))
    ]
    (tmp_path / "bias.json").write_text(record(rows, "candidates"))
    table = makers()["fp32x"](["bias", "bias.json"], tmp_path)
    assert "| | positive | near-one |" in table and "| torch fp32 | -2.0e-09 (4096) | – |" in table
    assert "| `hopper_presplit` | +6.0e-08 (4096) | – |" in table
    assert "torch fp32, bf16" not in table
    assert "| `hopper_presplit`, bf16 · fp32 | – | -3.0e-08 (64) |" in table
