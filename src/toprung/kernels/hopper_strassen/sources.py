"""The three kernels' sources: sums of quarters in two fp16 terms, the product of fp32x without its guard, and what makes C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toprung.backends.base import DYNAMIC_SHARED, Source
from toprung.kernels.hopper_fp32x.config import CHUNK, Fp32xConfig
from toprung.kernels.hopper_fp32x.sources import FOLDER as FP32X
from toprung.kernels.hopper_fp32x.sources import HEADERS, PATCH_BYTES, ROWS
from toprung.kernels.hopper_strassen.form import STRASSEN, Form
from toprung.kernels.record import with_includes

FOLDER = FP32X
ALONG = 16
"""Elements of a sum that a thread of the splitting pass holds where K runs along memory."""


def sums_source(signs: int, across: bool, cluster: int = 1, corrects: bool = False) -> Source:
    """Return the splitting pass of one operand.

    Parameters
    ----------
    cluster : blocks that have the rows together whose K runs across memory
    corrects : True for B, whose lo carries the share that Tensor Cores truncate
    """
    shape = {"ACROSS": int(across), "ALONG": ALONG, "CLUSTER": cluster if across else 1, "HELD": 32}
    defines = {"ARCH_SPECIFIC": 1, "SIGNS": signs, "CORRECTS": int(corrects), **shape, DYNAMIC_SHARED: PATCH_BYTES if across else 0}
    return _source((ROWS, FP32X / "split.cu", FOLDER / "sums.cu"), "sums", defines)


def product_source(config: Fp32xConfig) -> Source:
    """Return the product's kernel."""
    defines = {**config.defines(), DYNAMIC_SHARED: config.shared_bytes}
    title = f"strassen_{config.BM}x{config.BN}x{CHUNK}"
    return _source((FOLDER / "unguarded.cuh", FP32X / "fp32x.cu"), "fp32x", defines, title)


def combine_source(form: Form = STRASSEN) -> Source:
    """Return the kernel that makes C of the products."""
    return _source((FOLDER / "combine.cu",), "combine", {"ARCH_SPECIFIC": 1, "SIGNS_C": form.signs("c")})


def _source(files: tuple[Path, ...], kernel: str, defines: Mapping[str, int], title: str = "") -> Source:
    text = "\n".join(f'#line 1 "{one.name}"\n{with_includes(one.read_text("utf-8"), one.parent)}' for one in (*HEADERS, *files))
    return Source(f"hopper_strassen/{kernel}", text, kernel, defines, "cuda", title=title or f"strassen_{kernel}")
