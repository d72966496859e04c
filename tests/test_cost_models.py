"""Cost models by their directions, not by figures: more of what takes time takes longer, and faster memory never does."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fit_inflight
import fit_routes
import golden
from toprung.backends import nvrtc
from toprung.dispatch.ranking import select_own
from toprung.gemm.desc import GemmDesc
from toprung.kernels import blocks, cost_model, skinny_model
from toprung.kernels.base import KernelConfig, KernelFamily, candidates
from toprung.kernels.hopper_fp32x import cost as inflight
from toprung.kernels.hopper_fp32x.config import IN_FLIGHT
from toprung.kernels.hopper_sgemm import cost as sgemm
from toprung.kernels.registry import families
from toprung.kernels.tiled_group import family as tiled_group
from toprung.oracle.gemm import Gemm

HOPPER = replace(nvrtc.device_of("sm_90"), backend="cuda", compute_units=132)
WELL = {"align_a": 4, "align_b": 4, "align_c": 4}
HALVES = {"type_a": "float16", "type_b": "bfloat16"}
DESCS = [
    GemmDesc(1024, 1024, 1024, **WELL), GemmDesc(256, 256, 64, **WELL), GemmDesc(128, 96, 30000, **WELL),
    GemmDesc(2000, 2000, 160, trans_a=True, ldc=2003), GemmDesc(5001, 6, 333), GemmDesc(8192, 8192, 512, 1, True, True, **WELL),
    GemmDesc(300, 300, 300, 40, False, True, stride_a=90000, stride_b=90000, stride_c=90000, **WELL),
    GemmDesc(64, 64, 2048, 64, stride_a=1 << 17, stride_c=4096, **WELL), GemmDesc(4096, 3, 4096, **WELL),
    GemmDesc(1, 5000, 2000, **WELL), GemmDesc(40, 40, 20000), GemmDesc(100000, 40, 64, **WELL),
    GemmDesc(16384, 16384, 16384, **WELL),
    GemmDesc(3000, 3000, 3000, trans_a=True, lda=3001), GemmDesc(7000, 7000, 7000, **WELL), GemmDesc(200, 200, 4096, **WELL),
    GemmDesc(4096, 2048, 96, **WELL, beta_zero=False), GemmDesc(1600, 3201, 161, beta_zero=False),
    GemmDesc(4000, 4000, 160, **WELL, type_a="float16", type_b="float16", beta_zero=False),
    GemmDesc(512, 512, 512, **WELL, type_a="bfloat16"), GemmDesc(1024, 1000, 4100, trans_b=True, align_a=4, align_b=4, **HALVES),
]  # fmt: skip

FASTER = {
    "at_once", "HZ", "EFFICIENCY", "RATES", "alone", "memory", "cache", "slices", "layouts", "cached", "hidden", "operand",
}  # fmt: skip
"""Constants of which more means less time, besides those that are called a rate: rates, shares of a GPU that work, what hides."""
SHAPES = {"piece", "sharp"}
"""Constants that decide how a time grows, above a size and below it: more of them is more here and less there."""
STILL = {
    "filled", "round", "short_round", "slow_copying", "WAVES",  # decide what is built, not how long it takes
    "CLUSTERED",  # is in columns that are made once
    "CLOCK", "CPU_RATE", "PEAK_SHARE",  # of a CPU, and of the reason that is told
}  # fmt: skip
"""Constants that move no time of these products on a Hopper."""


@functools.cache
def weighed() -> list[tuple[KernelFamily, GemmDesc, list[KernelConfig]]]:
    """Return each family with each product and the candidates for it, those of libraries that are not here, too."""
    pairs = [(f, desc) for f in families() if f.memory == "device" for desc in DESCS]
    return [(f, d, list(candidates(f, HOPPER, d))) for f, d in pairs if not f.supports(HOPPER, d) or not f.own]


def seconds() -> dict[Any, float]:
    """Return every predicted time: of candidates, of shares in a group, of groups and of plain fp32."""
    derived = inflight.times.cache_clear, blocks.waves.cache_clear, skinny_model.tables.clear, sgemm._layouts.clear
    for forget in derived:  # tables that are made of the constants
        forget()
    found = {}
    for f, desc, configs in weighed():
        some = configs[:: 5 if len(configs) > 20 else 1]
        costs = f.weighed(HOPPER, desc) if f.name.startswith("hopper_") else [(f.cost(HOPPER, desc, c), c) for c in some]
        found |= {(f.name, desc, i): one for i, (one, _) in enumerate(costs)}
    found |= {(f.name, desc, "share"): f.groups.share(HOPPER, desc) for f in families() if f.groups for desc in DESCS}
    found |= {("plain fp32", desc, 0): cost_model.plain_fp32_seconds(desc) for desc in DESCS}
    for some in (DESCS[:2], DESCS[1:6]):
        sizes = cost_model.group_sizes(some)
        found |= {("group", i, 0): tiled_group.group_cycles(HOPPER, sizes, b) for i, b in enumerate(tiled_group.BLOCKS)}
        for config in inflight.WEIGHED[IN_FLIGHT]:
            found["group", config, len(some)] = inflight.seconds_of_group(sizes, config, 4, 4, HOPPER.compute_units)
    return {key: one for key, one in found.items() if one < math.inf}


def scaled(value: Any) -> Any:
    """Return a constant that is a third larger; None for what is no time, rate or factor."""
    if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype == float):
        return 1.3 * value
    if type(value) in (tuple, list) and value and all(scaled(x) is not None for x in value):
        return [scaled(x) for x in value]
    if isinstance(value, Mapping) and value and all(scaled(x) is not None for x in value.values()):
        return MappingProxyType({key: scaled(x) for key, x in value.items()})
    return None


def constants() -> Iterator[tuple[str, Callable[[pytest.MonkeyPatch], None]]]:
    """Yield the name of each constant of the cost models, and a function that puts a larger one into its place."""
    root = Path(cost_model.__file__).parent
    files = [*root.glob("*/cost.py"), *root.glob("*/family.py"), *(root / f"{name}.py" for name in ("cost_model", "skinny_model"))]
    modules = [
        importlib.import_module(".".join(["toprung", *f.relative_to(root.parent).with_suffix("").parts])) for f in sorted(files)
    ]
    for module in modules:
        for name, value in vars(module).items():
            if name.isupper() and (more := scaled(value)) is not None:
                yield f"{module.__name__}.{name}", functools.partial(_set, [module], name, more)
            for key, number in vars(value).items() if isinstance(value, SimpleNamespace) else ():
                if (more := scaled(number)) is not None:
                    yield f"{module.__name__}.{name}.{key}", functools.partial(_set, [value], key, more)
    for name in ("BLOCK", "VENDOR_BLOCK", "HOST", "SKINNY", "VENDOR_SKINNY"):
        whole = getattr(cost_model, name)
        users = [module for module in modules if vars(module).get(name) is whole]
        for kind, model in whole.items() if isinstance(whole, Mapping) else [("", whole)]:
            for field, value in model._asdict().items():
                if (more := scaled(value)) is not None and value and not (isinstance(value, Mapping) and name == "VENDOR_BLOCK"):
                    new = model._replace(**{field: more})
                    put = functools.partial(_set, users, name, MappingProxyType({**whole, kind: new}) if kind else new)
                    yield f"{name}.{kind}.{field}", put


def _set(modules: list[Any], name: str, value: Any, patched: pytest.MonkeyPatch) -> None:
    for module in modules:
        patched.setattr(module, name, value)


def test_more_of_a_constant_moves_every_time_in_its_own_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    before, wrong, still, count = seconds(), [], set(), 0
    for name, put in constants():
        last = name.rpartition(".")[2]
        with monkeypatch.context() as patched:
            put(patched)
            now = seconds()
        ratios = [now[key] / before[key] for key in before]
        more, less = max(ratios) > 1 + 1e-12, min(ratios) < 1 - 1e-12
        falls = last in FASTER or "RATE" in last.upper()
        if last not in SHAPES and (more if falls else less):
            wrong.append(name)
        if not (more or less):
            still.add(last)
        count += 1
    assert not wrong and count > 100 and len(before) > 500
    unused = {"alone", "scattered", "exchanged", "scattered_memory", "short_row", "meeting", "passing", "narrow", "access", "once"}
    assert still - unused <= STILL | {"two", "MEMORY_RATE", "SPLIT_RATE"}, still


@pytest.mark.parametrize("desc", [one for one in DESCS if one.M > 8 < one.N], ids=str)
def test_reading_c_takes_time(desc: GemmDesc) -> None:
    """Kernels took up to three times as long as predicted without it, see tune-check-seed401.json."""
    zero, other = replace(desc, beta_zero=True), replace(desc, beta_zero=False)
    for f in families():
        if f.precision == "fp32x-strassen" or f.memory != "device" or not f.predicts or f.supports(HOPPER, desc):
            continue
        for config in itertools.islice(candidates(f, HOPPER, desc), 8):
            assert f.cost(HOPPER, zero, config) <= f.cost(HOPPER, other, config), (f.name, config)
            if f.name.startswith(("tiled", "hopper_inflight")) and config.slices == 1:
                assert f.cost(HOPPER, zero, config) < f.cost(HOPPER, other, config), (f.name, config)


def twice(desc: GemmDesc, side: str, times: int = 2) -> GemmDesc:
    """Return one product without gaps, of which a side is so many times as long."""
    return replace(
        desc, **{side: times * getattr(desc, side)}, lda=0, ldb=0, ldc=0, batch=1, stride_a=0, stride_b=0, stride_c=0
    )  # fmt: skip


def test_more_work_takes_longer() -> None:
    """Twice the rows, columns or depth by the same candidate; a twentieth is left to rows that are read in wider pieces then."""
    large = set()
    for family, desc, configs in weighed():
        for side in "MNK":
            less, more = twice(desc, side, 1), twice(desc, side)
            if family.groups:
                assert family.groups.share(HOPPER, less) <= family.groups.share(HOPPER, more), (family.name, desc, side)
            if family.name.startswith("cublas"):  # whose narrow products have factors of their own
                continue
            for config in configs:
                before, after = (family.cost(HOPPER, one, config) for one in (less, more))
                assert before <= 1.05 * after, (family.name, desc, side, config)
                if desc == DESCS[0] and before < math.inf:
                    assert family.cost(HOPPER, twice(desc, side, 64), config) > 16 * before, (family.name, side, config)
                    large.add(family.name)
    assert len(large) > 5


ROOT = Path(__file__).parents[1]
FITS: dict[str, tuple[Any, list[str]]] = {
    "skinny": (fit_routes, ["--short"]), "fp32x": (fit_inflight, []), "sgemm": (fit_inflight, ["--sgemm"]),
    **dict.fromkeys(("blocks", "cublas"), (fit_routes, ["--free", "^(?!memory|host|two)"])),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("blocks", "cublas"))) for n in FITS])
def test_a_model_s_file_says_how_it_does_on_what_was_held_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are those that it names, by their hashes, and what is computed from them anew is what it says."""
    stored, written = cost_model.fitted(name), dict[str, Any]()
    fit, options = FITS[name]
    records = [str(ROOT / path) for path in stored["held_out"]["records"]]
    monkeypatch.setattr(fit, "write", lambda path, content: written.update({path.stem: content}))
    monkeypatch.setattr(fit_routes.Fit, "keep", False)  # restored, whatever main sets
    monkeypatch.setattr(sys, "argv", ["fit.py", *records, *options, "--keep"])
    fit.main()
    assert json.loads(json.dumps(written[name])) == stored


def test_a_refit_changes_numbers_in_the_files_alone() -> None:
    old = {"cycles": {"launch": 1.0, "narrow": {"A": 2.0, "B": 3.0}}, "tiles": [{"efficiency": 0.5, "order": 1}], "times": 4.0}
    values = {"cycles": fit_routes.nested({"narrow.A": 5.0, "launch": 6.0}), "tiles": [{"efficiency": 0.7}], "times": 7.0}
    new = {"cycles": {"launch": 6.0, "narrow": {"A": 5.0, "B": 3.0}}, "tiles": [{"efficiency": 0.7, "order": 1}], "times": 7.0}
    assert fit_routes.updated(old, values) == new


@pytest.mark.parametrize(("sizes", "columns"), [((8191, 129, 1023), 48), ((4096, 37, 4096), 40), ((2891, 44, 900), 48)])
def test_thin_results_have_tiles_of_their_width(sizes: tuple[int, int, int], columns: int) -> None:
    """thin-tiles.json: 0.85 to 0.94 of the time of the best tile whose columns are a power of two."""
    assert select_own(golden.devices()["h200-cuda"], Gemm(*sizes).desc).candidate.config.tile.BN == columns
