"""The memory's ceiling: kernels that leave something out are found, the fastest way counts, and the record keeps all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import require
from toprung.backends import nvrtc
from toprung.backends.base import Session
from toprung.errors import WrongResult
from toprung.lab.harness import bandwidth
from toprung.lab.harness.bandwidth import WAYS, Bandwidth, Copy, Memory, Rate, Read, Way
from toprung.lab.routines import base
from toprung.lab.routines.base import KERNELS, shared_source
from toprung.lab.sass.machine_code import inspect_source

SMALL = 200_000
ODD = (Way(4, 4, 4096), Way(1, 8, 1024, 1), Way(8, 2, 1 << 20, 3), Way(2, 2, 2048, words=16), Way(16, 4, 16))
"""More work-groups than spans and fewer, spans shorter than a turn and longer than all."""


def test_every_way_is_right_and_recorded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "WAYS", {session.device.kind: ODD})
    found = bandwidth.measure(session, SMALL, samples=2)
    assert [r.way for r in found.copies] == [r.way for r in found.reads] == [str(w) for w in ODD]
    half = Memory(session, SMALL).half
    assert half % (2 * bandwidth.PIECE) and half <= SMALL // 2
    for rate in (*found.copies, *found.reads):
        assert len(rate.seconds) == 2 and min(rate.seconds) > 0 and rate.bytes == 2 * half
    assert found.read.gbytes_per_s == max(r.gbytes_per_s for r in found.reads)
    assert Bandwidth.of({"bandwidth": json.loads(json.dumps(found.describe()))}) == found
    assert Bandwidth.of({}) is None


PLANTED = [
    ("stream_copy", "for (; i < end; i += DN) dst[i] = src[i];", ""),  # the tail is left out
    ("stream_copy", "v[u] = src[i + u * DN]", "v[u] = src[i]"),
    ("stream_copy", "vectors - first < span ? vectors : first + span", "first + span / 2"),
    ("stream_read", "for (; i < end; i += DN) {", "for (; i < end; i = end) {"),
    ("stream_read", "v[u] = src[i + u * DN]", "v[u] = src[i]"),
    ("stream_read", "add(&acc[0], &acc[1]);\n\n", ""),
    ("stream_read", "first < vectors;", "first + span < vectors;"),
]


@pytest.mark.parametrize(("name", "old", "new"), PLANTED)
def test_a_kernel_that_leaves_something_out_is_found(
    name: str, old: str, new: str, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in KERNELS.glob("*.cl"):
        (tmp_path / file.name).write_text(file.read_text())
    text = (tmp_path / f"{name}.cl").read_text()
    assert old in text, "plant the bug elsewhere"
    (tmp_path / f"{name}.cl").write_text(text.replace(old, new))
    monkeypatch.setattr(base, "KERNELS", tmp_path)
    monkeypatch.setattr(bandwidth, "WAYS", {session.device.kind: (Way(64, 16, 32 << 10),)})
    with pytest.raises(WrongResult, match=name):
        bandwidth.measure(session, SMALL, samples=1)


def test_what_the_last_kernel_left_is_not_taken_for_a_result(session: Session) -> None:
    memory = Memory(session, SMALL)
    way = Way(4, 4, 4096)
    copy, read = Copy(way, memory), Read(way, memory)
    assert not copy.right() and not read.right()
    copy.time(1)
    read.time(1)
    assert copy.right() and read.right()
    copy.reset()
    read.reset()
    assert not copy.right() and not read.right()


def test_a_launch_has_as_many_groups_as_it_should(session: Session) -> None:
    units = session.device.compute_units
    assert Way(256, 8, 1024).groups(4097, session.device) == 5
    assert Way(256, 8, 1024, 2).groups(1 << 20, session.device) == min(1024, 2 * units)
    assert Way(256, 8, 1024, 2).groups(1024, session.device) == 1


def test_the_fastest_way_is_the_ceiling() -> None:
    slow, fast = Rate("slow", 4_000_000_000, (2.0, 2.0, 9.0), 1), Rate("fast", 4_000_000_000, (1.0, 1.0, 9.0), 1)
    found = Bandwidth((slow,), (slow, fast))
    assert (found.read.way, found.read.gbytes_per_s, found.copy.gbytes_per_s) == ("fast", 4, 2)
    assert found.describe()["read"]["gbytes_per_s"] == 4 and [r["way"] for r in found.describe()["read"]["tried"]] == [
        "slow",
        "fast",
    ]


QUICK = (WAYS["gpu"][0], WAYS["gpu"][4])
"""Ways of the fast run, without and with a number of work-groups for each SM: others differ by numbers in the same text."""


@pytest.mark.parametrize("way", [pytest.param(w, id=str(w), marks=[pytest.mark.slow] * (w not in QUICK)) for w in WAYS["gpu"]])
@pytest.mark.parametrize("name", ["stream_copy", "stream_read"])
def test_loads_are_wide_and_in_flight_on_a_gpu(name: str, way: Way) -> None:
    require(not nvrtc.missing(), "NVRTC is not installed")
    code = inspect_source(shared_source(name, way.tile, nvrtc.device_of("sm_90")), "sm_90")
    assert code.local_bytes == 0 and code.registers <= 32 * 2048 // (2048 if way.per_unit else 1024)
    wide = [op for op in code.counts if op.startswith("LDG")]
    assert wide and all(op.startswith("LDG.128") for op in wide) and sum(code.counts[op] for op in wide) > way.in_flight
