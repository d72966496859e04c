"""Peers: found by looking, honest about being absent, and right for every transpose, scalar and layout they take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import require
from toprung.backends.base import Session
from toprung.device import Device
from toprung.errors import UnknownName, Unsupported
from toprung.lab import baselines
from toprung.lab.competitor import Promise
from toprung.oracle.check import Oracle, hostile
from toprung.oracle.gemm import TRANSPOSES, Gemm
from toprung.oracle.placed import OnDevice
from toprung.oracle.precision import PRECISIONS

ALL = (
    "clblast", "cublas", "cublas_fp16", "cublas_tf32", "cupy", "numpy", "scipy", "torch", "triton_bf16x6", "triton_ieee",
    "triton_tf32", "triton_tf32x3",
)  # fmt: skip
ON_A_CPU = ("numpy", "scipy", "torch")


def test_every_peer_says_who_it_is(device: Device) -> None:
    assert {p.name for p in baselines.peers()} >= {*ALL}
    for peer in baselines.peers():
        assert peer.promise.precision in PRECISIONS and peer.title
        facts = json.loads(json.dumps(peer.describe(device)))
        assert facts["name"] == peer.name and facts["precision"] == peer.promise.precision
    assert {p.name: p.promise.precision for p in baselines.peers() if p.promise.precision != "fp32"} == {
        "cublas_fp16": "fp16", "cublas_tf32": "tf32", "triton_bf16x6": "bf16x6", "triton_tf32": "tf32", "triton_tf32x3": "tf32x3",
    }  # fmt: skip


def test_absent_peers_say_why_and_how_to_get_them(device: Device) -> None:
    gpu = replace(device, kind="gpu", vendor="NVIDIA Corporation", name="NVIDIA Imaginary")
    for peer in baselines.peers():
        if peer.kinds == ("gpu",) and peer.name != "clblast":
            assert peer.absent(device) == "needs an NVIDIA GPU"
        reason = peer.absent(gpu)
        assert not reason or any(how in reason for how in ("pip install", "apt install", "see toprung devices", "install a build"))
    assert baselines.peer("cublas").absent(gpu) == "CUDA does not reach this GPU; see toprung devices"


def test_vendors(device: Device) -> None:
    assert baselines.vendor(device, "gemm")[0] is baselines.peer("numpy")
    gpu = replace(device, kind="gpu", vendor="NVIDIA Corporation", name="NVIDIA Imaginary")
    found, reason = baselines.vendor(gpu, "gemm")
    assert found is None and reason.startswith("cuBLAS: ")
    assert baselines.vendor(replace(gpu, vendor="Another"), "gemm") == (None, f"no vendor library is known for {gpu}")
    with pytest.raises(UnknownName, match="there is no peer 'mkl'; there is: clblast"):
        baselines.peer("mkl")
    with pytest.raises(UnknownName, match="precision 'fp8'"):
        Promise("fp8")


PROBLEMS = [
    *(Gemm(33, 17, 29, alpha, beta, trans=trans) for trans in TRANSPOSES for alpha, beta in ((1, 0), (0.7, 1.3), (-1, 0))),
    *(Gemm(19, 23, 31, 1.3, 0.7, 40, 41, 42, trans=trans) for trans in TRANSPOSES),
    *(Gemm(1, n, k, trans="TT") for n, k in ((1, 1), (9, 1), (1, 9))),
    *(Gemm(5, 6, 7, alpha, beta, trans=trans, batch=4) for trans in TRANSPOSES for alpha, beta in ((1, 0), (0.7, -1))),
    Gemm(5, 6, 7, ldc=9, batch=3), Gemm(8, 8, 8, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("name", ON_A_CPU)
def test_results_are_right(name: str, session: Session) -> None:
    peer = baselines.peer(name)
    if reason := peer.absent(session.device):
        if name == "torch":
            pytest.skip(reason)  # too large to ask of everybody who runs the tests
        require(False, reason)
    computed = 0
    for problem in PROBLEMS:
        operands = hostile(problem)
        try:
            prepared = peer.prepare(OnDevice(operands, session))
        except Unsupported:
            assert problem.batch > 1 or problem.alpha == 0
            continue
        for _ in range(2):  # reset makes the second run like the first
            prepared.reset()
            prepared.time(1)
            verdict = Oracle(operands).verify(prepared.fetch())
            assert verdict.right, f"{name} for {problem} α={problem.alpha} β={problem.beta}: {verdict.problems}"
        computed += 1
    assert computed >= len(PROBLEMS) - 10


def test_what_a_peer_does_not_compute_is_refused_before_it_runs(session: Session) -> None:
    placed = OnDevice(hostile(Gemm(4, 4, 4, 0.5, 1, batch=2)), session)
    for words in ({"alpha": False}, {"beta": False}, {"batch": False}):
        with pytest.raises(Unsupported, match="takes"):
            baselines.peer("numpy").product(placed, **words)
    with pytest.raises(Unsupported, match="no empty matrices"):
        baselines.peer("numpy").prepare(OnDevice(hostile(Gemm(4, 4, 0)), session))


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a peer and something that peers share, beside those of the package."""
    (tmp_path / "another.py").write_text(
        "from toprung.lab.baselines.numpy import NumPyPeer\nclass Another(NumPyPeer):\n    name = 'another'\nPEER = Another()\n"
    )
    (tmp_path / "_shared.py").write_text("raise AssertionError('what peers share is no peer')\n")
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    baselines.peers.cache_clear()
    yield
    baselines.peers.cache_clear()


@pytest.mark.usefixtures("another")
def test_a_peer_is_found_without_editing_a_file(device: Device) -> None:
    assert baselines.peer("another").absent(device) == "" and baselines.peer("numpy")
