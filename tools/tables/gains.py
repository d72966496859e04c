"""What each card gains: measured, predicted or nothing; the README's answer to whom it helps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tables.common import product_rows
from tables.tuning import device_of
from toprung.dispatch.ranking import ratio
from toprung.gemm.desc import GemmDesc
from toprung.kernels.registry import family
from toprung.lab.bounds.arch import architecture
from toprung.lab.harness.results import read

LARGE_PRODUCT = 1e10
"""Operations from which on a product counts as large: 2048×2048×2048 has 1.7e10."""

SQUARES = (1024, 2048, 4096, 8192)
"""Sides of the squares that are predicted."""

PREDICTED = {"A100": "sm_80", "RTX 4090": "sm_89"}
"""Cards that CUDA kernels are compiled for and nobody has measured, with their architectures."""

LARGE, HOST = ("gpt", "open", "gpt2", "bert", "llama", "vit"), ("swin", "conformer")
"""Programs of ``benchmarks/torch_models.py``: large transformers, and what waits for the host in records that do not say it."""

WAITS = 0.8
"""Share of an eager step in which the GPU works, below which a program waits for the host."""

LADDERS = "ladders, `inspect`, `explain`"


def _gains(words: Sequence[str], root: Path) -> str:
    """Return a row for each kind of card; words: records of ``benchmarks/candidates.py`` and ``torch_models.py``."""
    records = [(word, read(root / word)) for word in words]
    lines = ["| you have | fp32 products | training steps | and besides |", "|---|---|---|---|"]
    for name in dict.fromkeys(record["environment"]["device"]["short_name"] for _, record in records):
        own = [record for _, record in records if record["environment"]["device"]["short_name"] == name]
        products = "; ".join(filter(None, map(_products, own))) or "not measured"
        lines.append(f"| **{name}** | measured: {products} | {_steps(own)} | {LADDERS} |")
    ratios = [found for arch in PREDICTED.values() for found in _predicted(records[0][1], arch)]
    lines += [
        f"| {', '.join(PREDICTED)} | predicted: {_range(ratios)}, no gain yet | no gain yet | {LADDERS} |",
        f"| B200, other NVIDIA cards | not measured; no kernels are made for them yet | not measured | {LADDERS} |",
        "| an AMD, Intel or Apple GPU | no gain yet | no gain yet | ladders through OpenCL or WebGPU |",
        "| a CPU | no gain yet | no gain yet | ladders through OpenCL (PoCL comes along) |",
    ]
    said = ", ".join(f"`{word.removeprefix('results/')}` ({record['environment']['date'][:10]})" for word, record in records)
    lines += ["", "How many times as fast as PyTorch in fp32; large products have 10¹⁰ operations (2·M·N·K) and more."]
    return "\n".join([*lines, f"Predicted: by the cost model. Measured: {said}.  "])


def _products(record: dict[str, Any]) -> str:
    """Return the least and the most that products of models gain, large ones and the others."""
    parts: dict[bool, list[float]] = {True: [], False: []}
    for row in product_rows(record, "shapes") if {"shapes", "candidates"} & record.keys() else ():
        operations = 2 * math.prod(row["size"])
        parts[operations >= LARGE_PRODUCT].append(median(row["seconds"]["torch fp32"]) / median(row["seconds"]["toprung"]))
    return f"large {_range(parts[True])}; smaller {_range(parts[False])}" if all(parts.values()) else ""


def _steps(records: Iterable[Mapping[str, Any]]) -> str:
    """Return what steps of programs gain, those apart that wait for the host; of each program its newest measurement."""
    rows = sorted((row for record in records for row in record.get("torch_models", ())), key=lambda row: row["date"])
    newest = {(row["model"], row["mode"]): row["speedup"][0] for row in rows if row.get("speedup")}
    busy = {row["model"]: row["busy"] for row in rows if "busy" in row}
    host = {name for name, _ in newest if busy.get(name, (name not in HOST) * 1.0) < WAITS}
    parts = [
        (text, [found for (model, of), found in newest.items() if model in models and of == mode])
        for text, models, mode in (
            ("large transformers {}", LARGE, "eager"),
            ("bound by the host {}", host, "eager"),
            ("the same as a CUDA graph {}", host, "graphed"),
        )
    ]
    return "; ".join(text.format(_range(found)) for text, found in parts if found) or "not measured"


def _range(found: Iterable[float]) -> str:
    low, *_, high = (values := sorted(found)) * 2
    return f"{low:.2f}" + f" to {high:.2f}" * (len(values) > 1) + " ×"


def _predicted(record: Mapping[str, Any], arch: str) -> list[float]:
    """Return cuBLAS's predicted time over that of toprung's best kernel, for squares; ``record``: of another card, for the rest."""
    card = architecture(arch)
    own = {"arch": arch, "compute_units": card.sms, "clock_mhz": card.clock_mhz}
    device = replace(device_of({"environment": {"device": record["environment"]["device"] | own}}), lanes=card.lanes)
    squares = (GemmDesc(n, n, n, lda=n, ldb=n, ldc=n, align_a=4, align_b=4, align_c=4) for n in SQUARES)
    return [ratio(device, desc, family("cublas")) for desc in squares]


TABLES = {"gains": _gains}
