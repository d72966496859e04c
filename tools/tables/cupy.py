"""Table of CuPy's products with toprung enabled; from benchmarks/cupy_products.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toprung.lab.harness.results import read


def _cupy_products(words: Sequence[str], root: Path) -> str:
    """Return a row for each product: times of CuPy alone and with toprung enabled, and what ran."""
    record = read(root / words[0])
    device, e = record["environment"]["device"], record["environment"]
    rows = record["cupy_products"]
    lines = [
        "| product | CuPy, µs | enabled, µs | times as fast | error, CuPy / enabled | what ran |",
        "|---|---:|---:|---:|---|---|",
    ]
    for row in rows:
        batch = "".join(f"{n} × " for n in row["batch"])
        own, ours = row["device"]["cupy"], row["device"]["enabled"]
        ran = f"`{row['kernel']['enabled']}`" if row["kernel"]["enabled"] else "CuPy's own"
        errors = f"{row['error']['cupy']:.1e} / {row['error']['enabled']:.1e}"
        name = f"{batch}{row['M']}×{row['N']}×{row['K']} {row['layout']}"
        lines.append(f"| {name} | {1e6 * own:.1f} | {1e6 * ours:.1f} | {own / ours:.2f} | {errors} | {ran} |")
    cupy = next((version for name, version in e["packages"].items() if name.startswith("cupy")), "of unknown version")
    source = (
        f"Medians of {len(rows[0]['samples']['cupy'])} samples of calls with `out=`, in turns; errors are Frobenius norms against "
        f"float64: {device['short_name']}, driver {device['driver']}, CuPy {cupy}, Python {e['python']}, {e['date'][:10]}, "
        f"commit {e['commit']}, `{record['what']}`, stored in `{words[0]}`.  "
    )
    return "\n".join([*lines, "", source])


TABLES = {"cupy_products": _cupy_products}
