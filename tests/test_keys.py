"""Keys of remembered calls: calls that differ in one thing that decides the result never share an entry, in any of the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import toprung
from arrays import ENTRIES, KINDS, enter
from toprung.backends import session_for
from toprung.blas import calls, grouped
from toprung.device import Device
from toprung.execute.executor import executor_of
from toprung.gemm.desc import GemmDesc
from toprung.gemm.lowering import Program

LIES = {
    "nothing": lambda x: x[:6, :6], "shape": lambda x: x[:5, :6], "strides": lambda x: x[:12:2, :6],
    "alignment": lambda x: x[:6, 1:7],
}  # fmt: skip
"""What differs between two operands → the operand, as a part of a larger array that begins on 16 bytes."""

MADE = sorted(KINDS.keys() - {"dlpack"})
"""Kinds of arrays whose calls are remembered."""

OPTIONS: dict[str, dict[str, Any]] = {"own": {"own": True}, "precision": {"precision": "fp32"}, "device": {"device": "another"}}


def whole(seed: int = 0) -> np.ndarray:
    """Return 12×12 numbers on 64 bytes."""
    flat = np.empty(12 * 12 + 16, np.float32)
    first = -flat.ctypes.data % 64 // 4
    flat[first : first + 144] = np.random.default_rng(seed).uniform(-1, 1, 144)
    return flat[first : first + 144].reshape(12, 12)


def laid(kind: str, device: Device, differs: str = "nothing", seed: int = 0) -> Any:
    return KINDS[kind][0](LIES[differs](whole(seed)), session_for(device).queue if kind == "pyopencl" else None)


@pytest.fixture(params=ENTRIES)
def known(device: Device, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Return a function that makes all that ``again`` is given, for a kind of arrays whose type is known."""
    monkeypatch.setattr("toprung.blas.product.best", lambda: device)
    enter(request.param, monkeypatch)

    def make(kind: str, into: bool, differs: str = "", which: int = 0, **options: Any) -> tuple[Any, ...]:
        made = [laid(kind, device, differs if i == which else "nothing", i) for i in range(3)]
        return (*made[:2], made[2] if into else None, *({"precision": "auto", "own": False, "device": None} | options).values())

    for kind in MADE:
        toprung.matmul(*make(kind, True, "nothing")[:3])
    calls.forget()
    yield make
    calls.forget()


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("kind", MADE)
def test_a_warm_key_has_every_field(known: Any, kind: str, into: bool) -> None:
    plain = calls.again(*known(kind, into, "nothing"))[1]
    assert plain is not None and calls.again(*known(kind, into, "nothing")) == (calls.MISS, plain)
    others = [(differs, which) for which in range(2 + into) for differs in ("shape", "strides", "alignment")]
    keys = {(name, which): calls.again(*known(kind, into, name, which))[1] for name, which in others}
    keys |= {(name, -1): calls.again(*known(kind, into, "nothing", **options))[1] for name, options in OPTIONS.items()}
    keys["out", -1] = calls.again(*known(kind, not into, "nothing"))[1]
    if kind == "torch":
        a, b, *rest = known(kind, into, "nothing")
        keys["dtype of a", 0], keys["dtype of b", 1] = (calls.again(*x, *rest)[1] for x in ((a.half(), b), (a, b.half())))
    assert None not in keys.values()
    assert [name for name, key in keys.items() if key == plain] == [] and len(set(keys.values())) == len(keys)


def test_a_groups_key_has_every_field(known: Any) -> None:
    def key(lies: Any = ("nothing",) * 4, options: Any = ("", "auto", False, None), into: bool = True, added: bool = True) -> Any:
        a, b, out, bias = ([LIES["nothing"](whole(i)), LIES[one](whole(10 + i))] for i, one in enumerate(lies))
        return grouped._seen(a, b, out if into else None, bias if added else None, options)[0]

    keys = {"nothing": key(), "no out": key(into=False), "no bias": key(added=False)}
    for which, name in enumerate(("a", "b", "out", "bias")):
        for differs in ("shape", "strides", "alignment"):
            keys[f"{differs} of {name}"] = key([differs if i == which else "nothing" for i in range(4)])
    for which, other in enumerate(("relu", "fp32", True, "another")):
        plain: list[Any] = ["", "auto", False, None]
        keys[f"option {which}"] = key(options=(*plain[:which], other, *plain[which + 1 :]))
    assert key() == keys["nothing"] is not None and len(set(keys.values())) == len(keys), keys
    # of each pair, too: the second of two is the one that differs
    at = np.arange(8).reshape(4, 2) * 16
    pairs = {}
    for name, one in keys.items():
        bits = np.frombuffer(one[2], np.int64).reshape(4, 2) + at
        pairs[name] = list(grouped._pair_keys(one, bits))[1]
    assert len(set(pairs.values())) == len(pairs), pairs


def test_executables_of_a_session_are_kept_by_all_that_decides_them(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, desc = executor_of(session_for(device)), GemmDesc(5, 6, 7)
    asked: list[tuple[Any, ...]] = [
        (Program.of(desc), True, "fp32"), (Program.of(desc), False, "fp32"), (Program.of(desc), True, "auto"),
        *((Program.of(GemmDesc(5, 6, 7, **more)), True, "fp32") for more in (
            {"align_a": 4}, {"align_b": 4}, {"align_c": 4}, {"lda": 8}, {"ldb": 8}, {"ldc": 8},
            {"trans_a": True}, {"beta_zero": False},
        )),
    ]  # fmt: skip
    executor.forget()
    found = [executor.executable(*one) for one in asked]
    monkeypatch.setattr(executor.autotuner, "level", lambda: "off")
    found.append(executor.executable(*asked[0]))
    assert len({id(one) for one in found}) == len(found) == len(executor._kept)
    assert executor.executable(*asked[0]) is found[-1]
    executor.forget()


@pytest.mark.parametrize("which", range(3), ids=["a", "b", "out"])
def test_a_plan_does_not_start_its_call_on_less_aligned_operands(
    device: Device, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    a, b, out = (LIES["nothing"](whole(i)) for i in range(3))
    plan = toprung.plan(a, b, out, own=True, device=device)
    started: list[Any] = []
    monkeypatch.setattr(plan._call, "start", lambda *given: started.append(given))
    plan(a, b, out)
    assert len(started) == 1
    operands = [a, b, out]
    operands[which] = LIES["alignment"](whole(which))
    assert plan(*operands) is operands[2] and len(started) == 1
    np.testing.assert_allclose(operands[2], operands[0] @ operands[1], rtol=1e-4, atol=1e-5)
    with pytest.raises(toprung.errors.StalePlan):
        operands[which] = LIES["strides"](whole(which))
        plan(*operands)
