"""Where another library's products gain nothing, one line on standard error says why."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from toprung.backends import cuda, nvrtc
from toprung.blas import idle


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_told", set())
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    idle.tell.cache_clear()


def one() -> int:
    return 1


@pytest.mark.parametrize(
    "arch, says",
    [
        ("sm_80", "most products stay PyTorch's: fp32x needs Hopper's Tensor Cores; sm_80 (Card) has none"),
        ("sm_90", ""),
        ("", "all products stay PyTorch's: CUDA: Card is sm_50, older than NVRTC's sm_75; use it through OpenCL"),
    ],
)
def test_the_card_decides(arch: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if nvrtc.missing():
        pytest.skip(nvrtc.missing())
    cards = (replace(nvrtc.device_of(arch), name="Card", handle=0),) if arch else ()
    monkeypatch.setattr(cuda, "_look", lambda: (cards, ("CUDA: Card is sm_50, older than NVRTC's sm_75; use it through OpenCL",)))
    assert idle.reason("PyTorch", one, 0) == says
    assert idle.reason("PyTorch", one) == "", "the card is asked for only once CUDA has started"


def test_one_line_names_the_missing_extra_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    for number in (None, None, 0):
        idle.tell("CuPy", one, number)
    said = capsys.readouterr()
    assert said.err == 'toprung: all products stay CuPy\'s: cuda-core is not installed; pip install "toprung[cuda]"\n'
    assert not said.out


def test_the_other_ranks_of_a_machine_say_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    idle.tell("PyTorch", lambda: 0)
    assert capsys.readouterr().err == ""


def test_no_gpu_comes_before_what_is_not_installed_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    idle.tell("PyTorch", lambda: 0)
    assert capsys.readouterr().err == "toprung: all products stay PyTorch's: PyTorch sees no CUDA device\n"
