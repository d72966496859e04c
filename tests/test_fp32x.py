"""Selection of fp32x, without a GPU: it is a function of the device and the descriptor. And prepared operands."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest

import golden
import records
import toprung
import trial
from conftest import require
from tables import fp32x as report
from test_tune import H200
from toprung import Receipt, errors, last_receipt
from toprung.backends import cublas, nvrtc
from toprung.backends.base import Session
from toprung.device import Device
from toprung.dispatch import ranking
from toprung.dispatch.select import faster_families, product_with, select
from toprung.execute.executable import Executable
from toprung.gemm.desc import Desc, GemmDesc, GemvDesc
from toprung.gemm.lowering import Addressed
from toprung.kernels.base import NoConfig, candidates
from toprung.kernels.hopper_fp32x.cost import alone
from toprung.kernels.hopper_fp32x.family import FP32X
from toprung.kernels.hopper_fp32x.launches import spread
from toprung.lab.harness import results

pytestmark = pytest.mark.usefixtures("beforehand_only")

RNG = np.random.default_rng(0)
A, B = (RNG.uniform(-1, 1, (64, 64)).astype(np.float32) for _ in range(2))


def aligned(M: int, N: int, K: int) -> GemmDesc:
    """Return the descriptor of a product whose operands begin on 16 bytes."""
    return GemmDesc(M, N, K, align_a=4, align_b=4, align_c=4)


@pytest.fixture(scope="module")
def h200() -> Device:
    """As a record only."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    return dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=132)


TAKEN = (  # 512 cubed, whose rows may begin anywhere here, is predicted too close to plain fp32 to be among them
    (640, 640, 640), (1024, 1024, 1024), (4096, 4096, 4096), (16384, 16384, 16384), (4096, 4096, 512), (1024, 1024, 512),
    (4095, 4097, 4099), (2048, 1024, 8192), (512, 512, 16384), (384, 384, 16384), (512, 512, 65536),
    (256, 256, 131072), (128, 4096, 16384),
)  # fmt: skip
LEFT = (
    (128, 128, 128), (16, 4096, 4096), (65536, 64, 4096), (64, 65536, 4096), (128, 128, 65536),
    (4096, 4096, 63), (2048, 2048, 32), (1, 8192, 8192), (4096, 4096, 0), (0, 4096, 4096),
)  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("shape", TAKEN + LEFT, ids=str)
def test_auto_takes_it_where_it_is_faster(h200: Device, shape: tuple[int, int, int], own: bool) -> None:
    found = select(h200, GemmDesc(*shape), own, "auto")
    assert (found.family is FP32X) == (found.precision == "fp32x") == (shape in TAKEN)
    assert dict(found.passed_over).get("fp32" if shape in TAKEN else "fp32x"), "what was passed over is not said"


def test_a_batch_counts_as_the_work_it_is(h200: Device) -> None:
    desc = GemmDesc(256, 256, 1024, 64, stride_a=1 << 19, stride_b=1 << 19, stride_c=1 << 18)
    assert select(h200, desc, True, "auto").precision == "fp32x"
    assert select(h200, dataclasses.replace(desc, batch=1), True, "auto").precision == "fp32"


@pytest.mark.parametrize(
    "desc, says",
    [
        (GemmDesc(4096, 4096, 63), "K from 64"), (GemvDesc(4096, 4096), "vector"), (GemmDesc(4096, 4096, 1 << 25), "K from 64"),
        (GemmDesc(1 << 16, 64, 64, batch=1 << 16, stride_c=1 << 22), "31 bits"),
    ],
)  # fmt: skip
def test_what_fp32x_cannot_do_runs_in_fp32_and_is_told(h200: Device, desc: Desc, says: str) -> None:
    found = select(h200, desc, True, "fp32x")
    assert found.precision == "fp32" and found.family is not FP32X
    assert says in found.why and "fp32 ran in its place" in found.why


def test_fp32x_is_taken_where_it_is_asked_for(h200: Device) -> None:
    """A product with a short side goes to plain fp32, whose errors stay below cuBLAS's on numbers of one sign."""
    short = select(h200, GemmDesc(16, 4096, 4096), True, "fp32x")
    assert short.precision == "fp32" and "a side is 16 or shorter" in short.why
    for desc in (GemmDesc(17, 17, 64), GemmDesc(17, 4096, 4096), GemmDesc(128, 128, 65536, trans_a=True, lda=200)):
        found = select(h200, desc, True, "fp32x")
        assert found.family is FP32X and found.precision == "fp32x"
        made = Executable.of(golden.Recorder(h200), desc, found)  # type: ignore[arg-type]
        assert made.launches == 2 + (found.config.slices > 1) == 2 + (desc.M == 128)
        assert made.plan.workspace_bytes <= 4 * (desc.M + desc.N) * (2 * desc.K + 64) + 1024


def test_other_devices_have_none(h200: Device, session: Session) -> None:
    desc = GemmDesc(4096, 4096, 4096)
    for other in (dataclasses.replace(h200, arch="sm_80"), dataclasses.replace(h200, backend="opencl"), session.device):
        assert select(other, desc, True, "auto").precision == "fp32"
        found = select(other, desc, True, "fp32x")
        assert found.precision == "fp32" and "Hopper" in found.why


def test_fp32_is_fp32(h200: Device) -> None:
    for own in (True, False):
        found = select(h200, GemmDesc(4096, 4096, 4096), own, "fp32")
        assert found.precision == "fp32" and found.family is not FP32X


def test_tf32_is_cublas_and_says_what_it_is_not(h200: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    desc = GemmDesc(256, 256, 256)
    with pytest.raises(errors.Unsupported, match="own"):
        select(h200, desc, True, "tf32")
    with pytest.raises(errors.Unsupported, match="'auto'"):
        select(dataclasses.replace(h200, backend="opencl"), desc, False, "tf32")
    monkeypatch.setattr(cublas, "library", lambda: "installed")
    found = select(h200, desc, False, "tf32")
    assert (found.family.name, found.config, found.precision) == ("cublas_tf32", NoConfig(), "tf32")
    assert "NOT as accurate" in found.why
    vector = select(h200, GemvDesc(64, 64), False, "tf32")
    assert vector.precision == "fp32" and "with a vector memory is the limit" in vector.why


def test_strassen_is_taken_where_it_is_asked_for_and_gains(h200: Device, session: Session) -> None:
    large = GemmDesc(8192, 12288, 16384)
    for own in (True, False):
        found = select(h200, large, own, "fp32x-strassen")
        assert (found.family.name, found.precision) == ("hopper_strassen", "fp32x-strassen") and "asked for" in found.why
    made = Executable.of(golden.Recorder(h200), large, found)  # type: ignore[arg-type]
    assert made.launches == 4 and made.plan.workspace_bytes == pytest.approx(7 * (8 * 16 + 12 * 16 + 8 * 12) * 2**20, rel=1e-3)
    assert select(h200, large, True, "auto").precision == "fp32x"
    for desc, says in (
        (GemmDesc(8191, 8192, 8192), "8192 rows"), (dataclasses.replace(large, K=32768, lda=32768), "up to 16384"),
        (dataclasses.replace(large, batch=2, stride_c=1 << 27), "a batch"),
    ):  # fmt: skip
        found = select(h200, desc, True, "fp32x-strassen")
        assert found.precision == "fp32x" and says in found.why and "fp32x ran in its place" in found.why
    for device, desc in ((h200, GemvDesc(64, 64)), (h200, GemmDesc(8192, 8192, 32)), (session.device, large)):
        found = select(device, desc, True, "fp32x-strassen")
        assert found.precision == "fp32" and "fp32 ran in its place" in found.why


def test_an_unknown_precision_is_refused(h200: Device) -> None:
    with pytest.raises(errors.Unsupported, match="auto, fp32, fp32x, fp32x-strassen, tf32"):
        select(h200, GemmDesc(64, 64, 64), True, "fp64")


@pytest.mark.parametrize("shape", TAKEN + LEFT[:-2], ids=str)
def test_what_is_predicted_is_a_time_that_a_gpu_could_take(shape: tuple[int, int, int]) -> None:
    desc = GemmDesc(*shape)
    for seconds, fastest in zip(ranking.against_fp32(H200, desc, FP32X), (330e12, 67e12), strict=True):
        assert math.isfinite(seconds) and seconds >= desc.flops / fastest


def test_what_is_predicted_is_what_was_measured() -> None:
    """Whole products of the record that the constants are fitted to, what is taken among them; the longer side counts, too.

    The pass across memory has become an eighth to a quarter faster since, so that a product may be predicted to take less.
    """
    record = results.read(trial.fixture("h200-split-k.json"))
    for row in record["shapes"]:
        desc = aligned(*row["shape"])
        (taken,) = candidates(FP32X, H200, desc)
        names = {f"{taken.BM}x{taken.BN} S{stages} G{taken.GROUP}" for stages in (4, 6, 8)}  # the record is of longer rings
        # the record is of a variant more, which left two k-blocks in the Tensor Core: I2
        way = next(w for w in row["ways"] if re.sub(r" I\d", "", w["tile"]) in names and w["slices"] == taken.slices)
        assert way["seconds"] <= 1.05 * min(w["seconds"] for w in row["ways"])
        assert 0.86 * way["seconds"] <= ranking.against_fp32(H200, desc, FP32X)[0] <= 1.12 * way["seconds"], desc
    across, along = (alone(aligned(*sizes, 4096), taken, 132)[0] for sizes in ((64, 65536), (65536, 64)))
    assert across > 1.1 * along


def test_splitting_shares_rows_among_no_more_blocks_than_pay() -> None:
    assert [spread(k, True) for k in (32, 512, 1024, 2048, 4096, 8192, 16384)] == [1, 1, 2, 4, 8, 8, 8]
    assert spread(16384, False) == 1


def test_a_receipt_counts_only_when_asked() -> None:
    asked: list[int] = []

    def count() -> int:
        asked.append(1)
        return 3

    receipt = Receipt("matmul", "1×1 · 1×1", ("hopper_fp32x 128×128×32 STAGES6",), True, "fp32x", "cuda:0", counters=(count, count))
    assert str(receipt) and repr(receipt) and not asked
    assert receipt.escalated == 6
    assert receipt == dataclasses.replace(receipt, counters=())


def test_nothing_escalates_in_fp32(session: Session) -> None:
    toprung.matmul(A, B, own=True, device=session.device)
    receipt = last_receipt()
    assert receipt and receipt.escalated == 0 and receipt.precision == "fp32"


def test_a_prepared_operand_is_as_it_was(session: Session) -> None:
    b = B.copy()
    ready, turned = toprung.prepack(b), toprung.prepack(b, trans=True)
    b[:] = np.nan
    batch = np.stack([A, -A])
    for prepared, right in ((ready, B), (turned, B.T)):
        assert prepared.shape == right.shape
        for a in (A, A[3], batch):
            assert np.array_equal(toprung.matmul(a, prepared), toprung.matmul(a, right))
        out = np.empty_like(A)
        assert toprung.matmul(A, prepared, out) is out
        assert np.array_equal(out, toprung.matmul(A, right))
    ours = toprung.matmul(A, ready, own=True, device=session.device)
    assert np.array_equal(ours, toprung.matmul(A, B, own=True, device=session.device))
    assert "host" in ready.why and "host" in repr(ready)


def test_on_hopper_some_family_splits_a_second_operand_beforehand() -> None:
    device = nvrtc.device_of("sm_90")
    for trans in (False, True):
        desc = product_with(100, 64, Addressed(trans, 200))
        taking = [f for f in faster_families("fp32x") if not f.supports(device, desc)]
        assert any(f.packs for f in taking), "and the rows of A are not known yet"


def test_a_plan_takes_the_prepared_operand_it_was_made_with() -> None:
    ready = toprung.prepack(B)
    plan = toprung.plan(A, ready)
    assert np.array_equal(plan(A, ready), toprung.matmul(A, B))
    for other in (B, toprung.prepack(B)):
        with pytest.raises(errors.StalePlan):
            plan(A, other)


def test_what_cannot_be_prepared_is_refused() -> None:
    with pytest.raises(errors.BadShape, match="matrix"):
        toprung.prepack(B[0])
    with pytest.raises(errors.BadArray):
        toprung.prepack(B.astype(np.float64))
    with pytest.raises(errors.BadArgument, match="fp32x"):
        toprung.prepack(B, precision="half")
    assert toprung.prepack(np.empty((0, 4), np.float32)).shape == (0, 4)
    with pytest.raises(errors.BadShape):
        toprung.matmul(A[:, :3], toprung.prepack(B))


def test_bursts_are_told_with_their_clocks(tmp_path: Path) -> None:
    pair = [records.peer("fp32x", [1e-3] * 5, precision="fp32x"), records.peer("cublas", [2e-3] * 5)]
    for mode, head in (("burst", "MHz, fp32x"), ("sustained", "nJ an operation, fp32x")):
        measured = [dataclasses.replace(m, mode=mode, joules=(1.0,) * 5) for m in pair]
        records.stored(tmp_path / "some.json", *measured)
        lines = report.block([mode, "some.json"], tmp_path).splitlines()
        assert head in lines[0]
        assert "| 2.00 |" in lines[2] and ("| 1980 | 1980 |" in lines[2]) == (mode == "burst")
