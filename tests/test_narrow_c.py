"""``tiled`` where C is written in narrower accesses than pieces: lanes exchange their results, whatever tile, edge and stride."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trial
from conftest import require
from toprung.backends import nvrtc
from toprung.backends.base import Session, Source
from toprung.device import Device
from toprung.dispatch.selection import Candidate
from toprung.kernels import blocks
from toprung.kernels.base import TileConfig
from toprung.kernels.tiled import family as tiled
from toprung.kernels.tiled.family import FAMILY, configured
from toprung.kernels.tiled.record import RECORD
from toprung.lab.sass.machine_code import inspect_source
from toprung.oracle.gemm import Gemm
from toprung.tune.measure import Measurer
from toprung.tune.trial import Sampled, Trial

PRODUCTS = (
    Gemm(67, 61, 37), Gemm(33, 46, 20, ldc=50, alpha=-2.0, beta=0.5), Gemm(19, 53, 9, trans="TT", batch=3, beta=1.0),
    Gemm(130, 131, 19, trans="TN", ldc=259), Gemm(5, 3, 7, trans="NT", batch=9), Gemm(65, 66, 300),
)  # fmt: skip


def configs(device: Device, product: Gemm, step: int, first: int = 0) -> list[TileConfig]:
    """Return every so many of the table's tiles, with accesses as narrow as the product asks for, where the device allows them."""
    a, b, _ = product.desc.widths
    found = []
    for one in blocks.BLOCKS[first::step]:
        tile = replace(one.tile, VA=min(a, one.tile.TM or 1), VB=min(b, one.tile.TN or 1))
        config = configured(device, product.desc, replace(one, tile=tile), 1)
        if not RECORD.refused(config, device):
            found.append(config)
    return found


def results(session: Session, product: Gemm, step: int, first: int = 0) -> list[Sampled]:
    """Return what verification says of each tile."""
    candidates = tuple(Candidate(FAMILY, config) for config in configs(session.device, product, step, first))
    trial_ = Trial(product, candidates, turns=1, least=1, sample_seconds=1e-4)
    return list(Measurer(session).run(trial_).sampled)


@pytest.mark.parametrize("product", [pytest.param(PRODUCTS[1], marks=pytest.mark.slow), PRODUCTS[2]], ids=str)
def test_every_result_is_where_it_belongs(session: Session, product: Gemm) -> None:
    found = results(session, product, 8, 13)
    assert len(found) >= 2 and [s.message for s in found if s.status != "right"] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(len(PRODUCTS)), ids=lambda first: str(PRODUCTS[first]))
def test_every_result_is_where_it_belongs_with_every_tile(session: Session, first: int) -> None:
    found = results(session, PRODUCTS[first], len(PRODUCTS), first)
    assert len(found) >= 3 and [s.message for s in found if s.status != "right"] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("at / SN * VM", "at / SN"),
        ("if (m < M && n < N) {", "if (m < M) {"),
        ("PLACE(mine + lane * VEC)", "PLACE(mine + (lane ^ 1) * VEC)"),
        ("mine = warp * (LM * LN * VEC)", "mine = 0"),
    ],
)
def test_a_planted_bug_is_found(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:  # fmt: skip
    monkeypatch.setattr(tiled.FAMILY, "records", (trial.altered(RECORD, tmp_path, (right, wrong)),))
    assert {s.status for s in results(session, Gemm(67, 61, 37, ldc=70), 16, 13)} == {"wrong"}


def test_the_text_exchanges_where_the_model_says_so() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    device, answers = nvrtc.device_of("sm_90"), set()
    tight = replace(blocks.BLOCKS[0], tile=replace(blocks.BLOCKS[13].tile, BM=16, BN=16, BK=4, STAGES=1, PADA=0, PADB=0))
    for product in (Gemm(64, 64, 64), Gemm(64, 62, 64), Gemm(63, 61, 59)):
        for one in (*blocks.BLOCKS[::9], tight):
            config = configured(device, product.desc, replace(one, tile=replace(one.tile, VA=1, VB=1)), 1)
            said = tiled.is_regrouped(config)
            made = FAMILY.source(device, config)
            head = made.text[: made.text.index("__kernel __attribute__")]
            check = f"{head}\n#if REGROUPED != {int(said)}\n#error the model says otherwise\n#endif\n__kernel void gemm() {{}}\n"
            assert nvrtc.compile_cubin(Source("head", check, "gemm", made.defines, made.language), "sm_90").code
            answers.add(said)
    assert answers == {True, False}


@pytest.mark.parametrize("step", [19, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "product",
    [Gemm(99, 101, 103, batch=100), pytest.param(Gemm(235, 222, 32, trans="TN", batch=9), marks=pytest.mark.slow)],
    ids=str,
)
def test_the_exchange_spills_nothing_and_waits_for_lanes_alone(product: Gemm, step: int) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    device = nvrtc.device_of("sm_90")
    for config in configs(device, product, step):
        made = FAMILY.source(device, config)
        direct = inspect_source(replace(made, text=made.text.replace("#if REGROUPED", "#if 0")), "sm_90").counts
        code = inspect_source(made, "sm_90")
        assert code.local_bytes == 0 and code.counts["BAR"] == direct["BAR"], config
        stored = [sum(n for name, n in counts.items() if name.startswith("STS")) for counts in (code.counts, direct)]
        assert (stored[0] > stored[1]) == tiled.is_regrouped(config), config
