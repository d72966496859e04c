"""Older stores and exports: what of them is written otherwise today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS: Mapping[str, Mapping[str, str]] = {
    "e40c842262fbdaea4bfa456cc7497421": {
        "cuda": "57254b64c1e1e93f11278dd85134f1fb",
        "opencl": "e9dedee4c6cb0700d6c4a9973a3cf778",
    },  # add
    "e52e7bbc564733f0c49e1ba8b27ca77a": {
        "cuda": "94141c2e63d9636dc6d9a6901282c4aa",
        "opencl": "9fa2c637686f5ad5d51f53e94c5ae36a",
    },  # collect
    "c1044a98e0d38096f1dc09d8b2744380": {
        "cuda": "641916e8ad5df0175bd9a82e3f13ef93",
        "opencl": "8bb364917a3409b917aec48ca23bd107",
    },  # columns
    "36dc24cb1a866771213945131702a7be": {
        "cuda": "1646c9c56a1418c5a462c77c8f7286e1",
        "opencl": "0fdffc1b54d5ddd27f13c300b558ec1c",
    },  # gemm
    "58934fa225e53f3512ac72389971c188": {
        "cuda": "b07f79f084e34619e23b3be9071d8edd",
        "opencl": "897ef2a191458a499e970687631050b0",
    },  # move
    "4284d02abd67ba1ec9225aa5084abb13": {
        "cuda": "31448576e52e1795423ea0f6e0e991f9",
        "opencl": "44ca6832c84a20916c986be8a5e0b500",
    },  # pieces
    "dc32c1caac5b1be223af3d76c1068e32": {
        "cuda": "d8dde82814f2aae0659b28ce32c5b949",
        "opencl": "dd4e766db8852c594ae2ed5805ba23f4",
    },  # plain
    "38a5844dd635e13b7d6adac94a696402": {
        "cuda": "643088507f952f2837a32abd32cd2a98",
        "opencl": "dd418e19b61b68a3797f51d9b93d0f85",
    },  # rows
    "c97f67b001e5df3667414bd8a3783979": {
        "cuda": "4d14714326e75d5e6cbc723f742acd5d",
        "opencl": "48ba6d4a68fbeb8526c62475fd0ff358",
    },  # scale
    "cbce52c940282bc38cd87f39eaceedb3": {
        "cuda": "a1cbf1519d065afd753747a92be2e949",
        "opencl": "a1cbf1519d065afd753747a92be2e949",
    },  # fp32x
    "0f587c93c46f15daec2db8ba928d8f8f": {
        "cuda": "5bde9f24116245faa924f1d5ca73d788",
        "opencl": "5bde9f24116245faa924f1d5ca73d788",
    },  # ffma
}
"""Hashes of format 1, of raw text and every prelude, and for each backend the hash of the same kernel's tokens since format 2."""


def with_token_hash(content: Any) -> Any:
    """Return an entry of format 1, as JSON, as format 2 has it.

    A hash that is not in ``TOKENS`` is of a kernel that was older already when formats changed: it stays as it is, and the entry is
    verified before use, as before.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("machine"), Mapping):
        return content  # whoever reads it says what is wrong
    return {**content, "source": token_hash(content.get("source"), content["machine"].get("backend"))}


def token_hash(source: Any, backend: Any) -> Any:
    """Return the hash of today for one of format 1 on a backend; any other as it is."""
    known = TOKENS.get(source, {}) if isinstance(source, str) else {}
    return known.get(backend, source) if isinstance(backend, str) else source
