"""Upgrades of entries from older stores and exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS: Mapping[str, Mapping[str, str]] = {
    # columns
    "c1044a98e0d38096f1dc09d8b2744380": {"cuda": "52a950f37752b48b79c74bed75c9918b", "opencl": "11a8d6bae32d68210e16fdc277b2f460"},
    # gemm
    "36dc24cb1a866771213945131702a7be": {"cuda": "1646c9c56a1418c5a462c77c8f7286e1", "opencl": "0fdffc1b54d5ddd27f13c300b558ec1c"},
    # pieces
    "4284d02abd67ba1ec9225aa5084abb13": {"cuda": "266aaae5913b1dc0c370cf6ab257594d", "opencl": "cb3d9d1e20bd10bcd6849acee8ff2368"},
    # plain
    "dc32c1caac5b1be223af3d76c1068e32": {"cuda": "d8dde82814f2aae0659b28ce32c5b949", "opencl": "dd4e766db8852c594ae2ed5805ba23f4"},
    # rows
    "38a5844dd635e13b7d6adac94a696402": {"cuda": "52a950f37752b48b79c74bed75c9918b", "opencl": "11a8d6bae32d68210e16fdc277b2f460"},
    # fp32x
    "cbce52c940282bc38cd87f39eaceedb3": {"cuda": "a1cbf1519d065afd753747a92be2e949", "opencl": "a1cbf1519d065afd753747a92be2e949"},
    # ffma
    "0f587c93c46f15daec2db8ba928d8f8f": {"cuda": "5bde9f24116245faa924f1d5ca73d788", "opencl": "5bde9f24116245faa924f1d5ca73d788"},
}
"""Source hashes of format 1 (over raw text and every prelude), each with the family's version since format 2 by backend."""


RENAMED: Mapping[str, str] = {
    "gemm": "tiled", "rows": "skinny", "columns": "skinny", "pieces": "stream_k", "ffma": "hopper_sgemm", "fp32x": "hopper_fp32x",
}  # fmt: skip
"""Kernel names of format 1 and of older result files, with the names of their families since format 2."""


def renamed(candidate: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a candidate with today's name of its family."""
    kernel = candidate.get("kernel")
    return {**candidate, "kernel": RENAMED.get(kernel, kernel)} if isinstance(kernel, str) else candidate


def upgraded(content: Any) -> Any:
    """Return an entry of format 1, as parsed JSON, in format 2: with today's family name and the hash of the source's tokens.

    A hash that is not in ``TOKENS`` belongs to a kernel that was outdated already when formats changed: it stays as it is, and the
    entry is verified before use, as before.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("machine"), Mapping):
        return content  # whoever reads it says what is wrong
    made = {**content, "source": token_hash(content.get("source"), content["machine"].get("backend"))}
    if isinstance(content.get("candidate"), Mapping):
        made["candidate"] = renamed(content["candidate"])
    return made


def token_hash(source: Any, backend: Any) -> Any:
    """Return today's hash for a source hash of format 1 on a backend; any other value unchanged."""
    known = TOKENS.get(source, {}) if isinstance(source, str) else {}
    return known.get(backend, source) if isinstance(backend, str) else source
