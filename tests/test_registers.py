"""Costs of reading registers, on machine code written by hand; and the number of blocks that an SM holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trial
from conftest import require
from toprung.backends import nvrtc
from toprung.errors import UnknownName
from toprung.lab.bounds.occupancy import ROOMS, occupancy
from toprung.lab.bounds.registers import Reads, Register, Sources, cycles, reads_of, register_reads
from toprung.lab.harness.results import read
from toprung.lab.probe.benchmarks import ffma_outer
from toprung.lab.sass.machine_code import innermost_loops, inspect_source


def reads(*lines: str) -> Reads:
    """Return what is counted of a loop with these instructions."""
    code = [".L_x_0:", *lines, "@P0 BRA `(.L_x_0)"]
    text = [line if line.startswith(".L") else f"        /*{16 * i:04x}*/      {line} ;" for i, line in enumerate(code)]
    (loop,) = innermost_loops("\n".join(["//------ .text.f   ------", *text]), "f")
    return loop.reads


def test_three_registers_of_one_bank_conflict() -> None:
    assert reads("FFMA R0, R2, R4, R6") == Reads(1, 3, 0, 0, 3, 1, 1)
    assert reads("FFMA R1, R3, R5, R7") == Reads(1, 3, 0, 0, 3, 1, 1)
    assert reads("FFMA R0, R2, R5, R6") == Reads(1, 3, 0, 0, 3, 0, 0)


def test_a_register_read_twice_is_read_once() -> None:
    assert reads("FFMA R0, R2, R2, R0") == Reads(1, 3, 0, 0, 2, 0, 0)


def test_constants_zero_and_uniform_registers_need_no_bank() -> None:
    assert reads("FFMA R0, R2, 2.5, R4") == Reads(1, 2, 0, 0, 2, 0, 0)
    assert reads("FFMA R0, R2, c[0x0][0x180], RZ") == Reads(1, 1, 0, 0, 1, 0, 0)
    assert reads("FFMA R0, R2, UR4, R6") == Reads(1, 2, 0, 0, 2, 0, 0)
    assert reads("FFMA.FTZ R0, -R2, |R4|, -R6").conflicted == 1


def test_what_is_kept_needs_no_read_in_the_same_place_only() -> None:
    first = "FFMA R0, R2.reuse, R5, R0"
    assert reads(first, "FFMA R8, R2, R4, R8") == Reads(2, 6, 1, 1, 5, 0, 0)  # else R2, R4 and R8 would conflict
    assert reads(first, "FFMA R8, R4, R2, R8") == Reads(2, 6, 1, 0, 6, 1, 1)  # another place
    assert reads(first.replace(".reuse", ""), "FFMA R8, R2, R4, R8").conflicted == 1


def test_what_is_kept_is_lost_with_the_next_instruction() -> None:
    first, third = "FFMA R0, R2.reuse, R5, R0", "FFMA R8, R2, R4, R8"
    assert reads(first, "LDS R20, [R21]", third).conflicted == 1
    assert reads(first, "FFMA R1, R3, R4, R1", third).conflicted == 1
    assert reads(first, "FFMA R1, R2.reuse, R5, R1", third).conflicted == 0


def by_bank(*code: str) -> Reads:
    """Sources such as ``2r 5 0``: r is a mark, - is no multiply-add."""
    lines: list[Sources | None] = [
        None if line == "-" else tuple(Register(int(w.rstrip("r")), w.endswith("r")) for w in line.split()) for line in code
    ]
    return register_reads(lines, reads=1, by_bank=True)


def test_by_bank_what_is_kept_lasts_until_its_bank_is_read_at_its_place() -> None:
    assert by_bank("2r 5 1", "2 4 1").kept == by_bank("2r 5 1", "-", "2 4 1").kept == 1  # whatever stands between
    assert by_bank("2r 5 1", "3 4 1", "2 4 1").kept == 1  # the other bank was read there
    assert by_bank("2r 5 1", "4 3 1", "2 4 1").kept == 0  # the same
    assert by_bank("2r 5 1", "2 4 1", "2 4 1").kept == 1  # not marked again
    assert by_bank("2r 5 1", "3 2 1").kept == 0  # another place
    assert (by_bank("2r 5 0", "2 4 1").extra_cycles, by_bank("2 5 0", "2 4 1").extra_cycles) == (1, 2)


def test_registers_may_be_read_a_cycle_later() -> None:
    even, odd, both = "2 4 4", "3 5 5", "2 5 5"
    # two of a bank, the next cycle asks for nothing there: no stall, though each by itself takes a cycle more
    assert (by_bank(even, odd, even, odd).extra_cycles, by_bank(even, odd, even, odd).stalls) == (4, 0)
    assert by_bank(even, "-", even).stalls == 0  # whatever comes between
    assert by_bank(even, even, even, even).stalls == 3  # the last one's second register is nobody's loss any more
    assert by_bank(even, both, both, both, even).stalls == 1  # what is owed stays owed as long as the bank is asked every cycle
    assert by_bank("2 4 6", odd, even).stalls == 1 and by_bank("2 4 6", odd, odd, even).stalls == 1
    three = (Register(2), Register(4), Register(6))
    assert [register_reads([three] * n, reads=2).stalls for n in (2, 3)] == [0, 1]  # a bank that gives two a cycle


def test_no_loop_no_reads() -> None:
    assert register_reads([]) == Reads() and Reads().conflicts_each == Reads().kept_share == Reads().reads_each == 0


@given(st.lists(st.integers(0, 254), max_size=3), st.integers(1, 4), st.integers(1, 2))
def test_cycles_are_what_the_fullest_bank_takes(numbers: list[int], banks: int, ports: int) -> None:
    counts = [len({n for n in numbers if n % banks == bank}) for bank in range(banks)]
    found = cycles(numbers, banks, ports)
    assert found == max([1, *(-(-count // ports) for count in counts)])


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=20))
def test_marks_never_cost_anything(code: list[tuple[int, ...]]) -> None:
    plain = register_reads([tuple(Register(n) for n in sources) for sources in code])
    marked = register_reads([tuple(Register(n, True) for n in sources) for sources in code])
    assert marked.extra_cycles <= plain.extra_cycles and marked.read <= plain.read
    assert marked.sources == plain.sources == 3 * len(code)


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limiter"),
    [
        ("sm_90", 256, 128, 16384, 2, "registers"),  # 65536 / (128 · 256)
        ("sm_90", 256, 129, 0, 1, "registers"),  # given in eights: 136
        ("sm_90", 256, 255, 106496, 1, "registers"),
        ("sm_90", 256, 32, 76 * 1024, 2, "shared memory"),  # 3 · 77 KiB > 228 KiB: the system takes one of each
        ("sm_90", 256, 32, 75 * 1024, 3, "shared memory"),
        ("sm_90", 256, 32, 0, 8, "threads"),
        ("sm_90", 32, 16, 0, 32, "blocks"),
        ("sm_90", 1024, 64, 0, 1, "registers"),
        ("sm_80", 128, 32, 40 * 1024, 4, "shared memory"),  # 164 / 41
        ("sm_86", 256, 40, 0, 6, "threads"),  # 1536 threads
        ("sm_75", 256, 64, 32 * 1024, 2, "shared memory"),  # nothing is taken by the system
        ("sm_90", 96, 200, 0, 2, "registers"),  # a scheduler has room for 2 such warps, four of them for 8: 2 blocks of 3
    ],
)
def test_blocks_on_a_multiprocessor(arch: str, threads: int, registers: int, shared: int, blocks: int, limiter: str) -> None:
    found = occupancy(arch, threads, registers, shared)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.threads == blocks * -(-threads // 32) * 32 and found.warps * 32 == found.threads
    assert found.share == found.threads / ROOMS[arch].threads


def test_what_is_not_known_is_not_guessed() -> None:
    with pytest.raises(UnknownName, match="sm_61"):
        occupancy("sm_61", 256, 32, 0)
    with pytest.raises(ValueError, match="one thread"):
        occupancy("sm_90", 0, 32, 0)
    assert occupancy("sm_90a", 256, 32, 0).blocks == 8


@given(st.sampled_from(sorted(ROOMS)), st.integers(1, 1024), st.integers(1, 255), st.integers(0, 99 * 1024))
def test_more_of_anything_never_fits_more_often(arch: str, threads: int, registers: int, shared: int) -> None:
    here = occupancy(arch, threads, registers, shared).blocks
    assert here >= occupancy(arch, threads, registers + 1, shared).blocks
    assert here >= occupancy(arch, threads, registers, shared + 128).blocks
    assert here >= occupancy(arch, threads + 32, registers, shared).blocks


def test_a_bank_gives_one_register_where_a_multiply_add_starts_every_cycle() -> None:
    assert [reads_of(lanes) for lanes in (64, 128, None)] == [2, 1, 2]
    two_of_a_bank: Sources = (Register(2), Register(5), Register(6))
    assert [register_reads([two_of_a_bank], reads=ports).extra_cycles for ports in (2, 1)] == [0, 1]


@pytest.mark.slow
def test_the_rule_gives_the_speed_of_outer_products_on_an_h200() -> None:
    """From the machine code alone, beside the stored probe: rows and ploughed rows of 8 and 16, and the 2×2 blocks."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    record = read(trial.fixture("h200-results/nvidia-h200/probe-cuda.json"))
    measured = {p["label"]: p["value"] for p in record["probe"]}
    for case in ffma_outer.BENCHMARK.cases(nvrtc.device_of("sm_90")):
        if not case.label.startswith(("8x", "16x")) or "column" in case.label:
            continue
        counted = inspect_source(case.source, "sm_90").loop.reads
        assert measured["x*x + c"] / measured[case.label] == pytest.approx(1 + counted.conflicts_each, rel=0.06), case.label


@pytest.mark.slow
def test_by_bank_the_rule_gives_the_speed_of_columns_too() -> None:
    """A cache that lasts for the next instruction only is too little for outer products in columns; by bank, both are right."""
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    record = read(trial.fixture("h200-results/nvidia-h200/probe-cuda.json"))
    measured = {p["label"]: p["value"] for p in record["probe"]}
    for case in ffma_outer.BENCHMARK.cases(nvrtc.device_of("sm_90")):
        if not case.label.startswith(("8x", "16x")) or "2x2" in case.label or case.label not in measured:
            continue
        counted = inspect_source(case.source, "sm_90").loop.reads
        slower = measured["x*x + c"] / measured[case.label]
        assert slower == pytest.approx(1 + counted.stalls / counted.instructions, rel=0.025), case.label
