"""The upper bound: the paper's numbers to the digit, its conditions for other tiles, and the levels of today's devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tables.bounds import ACHIEVED, BUDGET
from toprung.device import Device
from toprung.errors import BadRecord, BadSize, UnknownName
from toprung.lab.bounds import in_flight, paper
from toprung.lab.bounds.arch import ARCHITECTURES, FERMI, GT200, KEPLER, architecture, vendor_figures
from toprung.lab.bounds.banks import Traffic
from toprung.lab.bounds.figures import FIGURES, Figures, Unknown
from toprung.lab.bounds.levels import ADVICE, KernelWork, VectorWork, bound, levels, tensor_work
from toprung.lab.bounds.paper import MIXES, Blocking, analyse, ffma_share
from toprung.tile import Tile

SIX = Blocking.square(6)


def condition(analysis: paper.Analysis, number: int) -> paper.Condition:
    return next(c for c in analysis.conditions if c.number == number)


# --- the paper's numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("FFMA share of B_R = 6 with LDS", 100 * ffma_share(6, 6, 32), 75),
        ("with LDS.64", 100 * ffma_share(6, 6, 64), 85.7),
        ("registers for prefetch", SIX.prefetch, 12),
        ("register budget", sum(BUDGET.values()), 63),
        ("B_Sh", SIX.BM, 96),
        ("B_Sh as operations a word", SIX.intensity, 96),
        ("equation 7 with B_R = 6", SIX.tight_registers, 62),
        ("equation 7 with B_R = 7", Blocking.square(7).tight_registers, 78),
        ("equation 6, KB of two blocks", 2 * 4 * SIX.shared_words / 1024, 24),
        ("share × mix, LDS", 100 * ffma_share(6, 6, 32) * paper.mix_throughput(FERMI, 32), 73.4),
        ("share × mix, LDS.64", 100 * ffma_share(6, 6, 64) * paper.mix_throughput(FERMI, 64), 81.4),
        ("share × mix, LDS.128", 100 * ffma_share(6, 6, 128) * paper.mix_throughput(FERMI, 128), 70.7),
        ("mix of LDS.128 (the paper cuts off: 76.5)", 100 * paper.mix_throughput(FERMI, 128), 76.6),
        ("Kepler: blocks of 256 at 63 registers", paper.resident(KEPLER, SIX), 4),
        ("Kepler: P_mem", paper.p_mem(KEPLER, SIX), 4614),
        ("Fermi: blocks of 256 at 63 registers", paper.resident(FERMI, SIX), 2),
        ("Fermi: threads at 63 registers at most", 32 * 1024 // 63, 520),
        ("Fermi: P_mem", paper.p_mem(FERMI, SIX), 4617.6),
        ("Fermi: P_SM without the penalty of the mix", paper.p_sm(FERMI, SIX), 1355),
        ("GTX 280", GT200.peak_gflops, 933),
        ("GTX 580", FERMI.peak_gflops, 1581),
        ("GTX 680", KEPLER.peak_gflops, 3090),
        ("the paper's own card", replace(FERMI, clock_mhz=1566).peak_gflops, 1604),
        ("achieved on it, %", 100 * ACHIEVED["NT"][0] / 1603.6, 73.1),
    ],
)
def test_golden_numbers(name, found, expected):
    # as many digits as the paper prints
    digits = len(str(expected).partition(".")[2])
    assert round(found, digits) == expected, name


def test_the_paper_reads_on_in_the_conditions():
    analysis = analyse(FERMI, SIX)
    assert condition(analysis, 3).numbers == "512 · 63 = 32256 ≤ 32768"
    assert condition(analysis, 4).numbers == "36 + 6 + 1 = 43 < 63"
    assert condition(analysis, 6).numbers == "2 · 192 · 16 = 6144 ≤ 12288"
    assert condition(analysis, 7).numbers == "36 + 12 + 6 + 1 + 7 = 62 ≤ 63"
    assert all(condition(analysis, n).holds for n in range(2, 8))
    assert analysis.limiter.startswith("the multiprocessor")
    assert analysis.potential == analysis.p_sm < analysis.p_mem
    assert not condition(analyse(FERMI, Blocking.square(7)), 7).holds and analyse(FERMI, Blocking.square(7)).possible is False
    assert condition(analyse(FERMI, Blocking.square(8, blocks=1)), 4).holds is False
    assert paper.p_mem(KEPLER, SIX) > KEPLER.peak_gflops  # not bound by memory
    # the widest load that costs nothing is not the widest there is
    assert max((32, 64, 128), key=lambda w: analyse(FERMI, replace(SIX, width=w)).p_sm) == 64


def test_the_measured_mixes_are_the_papers():
    assert MIXES["fermi"] == {32: (3, 31.3), 64: (6, 30.4), 128: (12, 24.5)}
    assert {k: v[0] for k, v in ACHIEVED.items()} == {"NN": 1165, "TN": 1157, "NT": 1173, "TT": 1163}
    assert {k: v[1] for k, v in ACHIEVED.items()} == {"NN": 11, "TN": 4.5, "NT": 3, "TT": 9}
    assert list(BUDGET.values()) == [36, 12, 6, 2, 2, 1, 2, 2]


TABLE = {
    "core_clock_mhz": (602, 772, 1006),
    "clock_mhz": (1296, 1544, 1006),
    "dram_bytes_per_s": (141.7e9, 192.4e9, 192.26e9),
    "issue_per_dispatch": (1, 1, "1?"),
    "sms": (30, 16, 8),
    "schedulers": (1, 2, 4),
    "dispatch_units": (1, 2, 8),
    "issue_lanes": (16, 32, "256?"),
    "lanes": (8, 32, 192),
    "ffma_lanes": (8, 32, "192?"),
    "ldst_units": ("?", 16, 32),
    "lds_lanes": ("?", 16, "32?"),
    "sfus": (2, 4, 32),
    "shared_bytes": (16384, 49152, 49152),
    "registers": (16384, 32768, 65536),
    "registers_thread": (127, 63, 63),
}


@pytest.mark.parametrize("figure", TABLE)
def test_the_architecture_table(figure):
    for of, expected in zip((GT200, FERMI, KEPLER), TABLE[figure], strict=True):
        shown = next(text for name, text, _ in of.table() if name == figure)
        if isinstance(expected, str):
            assert getattr(of, figure) is None and shown == expected
        else:
            assert getattr(of, figure) == expected and of.source_of(figure)
    assert (figure in dict(row[:2] for row in architecture("sm_90").table())) == (figure != "core_clock_mhz"), "it has one clock"


# --- what is unknown stays unknown -----------------------------------------------------------------------------------------------


def test_a_guess_of_the_paper_is_not_computed_with():
    analysis = analyse(KEPLER, SIX)
    assert isinstance(analysis.p_sm, Unknown) and isinstance(analysis.potential, Unknown)
    assert analysis.limiter == "unknown" and analysis.possible is None
    assert "ffma_lanes of Kepler (GTX 680)" in analysis.potential.missing
    assert analysis.p_mem == pytest.approx(4614.24)


def test_a_missing_figure_is_named():
    sm_100 = architecture("sm_100")
    assert str(sm_100.peak_gflops) == "unknown: sms of Blackwell (B200), clock_mhz of Blackwell (B200)"
    assert condition(analyse(FERMI, SIX), 1).value == Unknown(("latency of a multiply-add",))
    first = condition(analyse(FERMI, SIX, pipeline_clocks=18), 1)
    assert first.holds is False and first.numbers == "512 ≥ 32 · 18 / 1 = 576"
    with pytest.raises(UnknownName, match="there is no architecture in the model 'sm_42'"):
        architecture("sm_42")


@pytest.mark.parametrize("of", ARCHITECTURES.values(), ids=str)
def test_every_figure_has_a_source(of):
    for name, text, source in of.table():
        assert bool(source) == ("?" not in text), name
    assert of.figures().source_of("sms") == of.source_of("sms")


def test_plans_that_make_no_sense():
    for bad in (
        lambda: Blocking.square(6, 200),
        lambda: Blocking.square(0),
        lambda: Blocking(6, 6, 100, 96, 16),
        lambda: Blocking.square(6, width=48),
        lambda: Blocking.square(6, blocks=0),
        lambda: Blocking.square(6, -256),
    ):
        with pytest.raises(BadSize):
            bad()


def test_other_tiles_reduce_to_square_ones():
    for B_R, T_B, L in ((6, 256, 16), (4, 64, 8), (8, 256, 8), (7, 256, 16)):
        side = round(T_B**0.5) * B_R
        square, other = Blocking.square(B_R, T_B, L), Blocking(B_R, B_R, side, side, L)
        assert other == square and other.threads == T_B
        assert square.least_registers == B_R**2 + B_R + 1
        assert square.prefetch == 2 * T_B**0.5 * B_R * L / T_B
        assert square.shared_words == 2 * T_B**0.5 * B_R * L
        assert square.intensity == (T_B * B_R**2) ** 0.5
    # a block twice as wide as high reads three halves and computes twice as much
    wide = Blocking(8, 16, 128, 256, 16)
    assert wide.threads == 256 and wide.intensity == pytest.approx(4 / 3 * 128)
    assert ffma_share(8, 16, 128) == pytest.approx(128 / (128 + 24 / 4))


def test_more_slots_than_lanes_make_loads_free():
    assert paper.p_sm(architecture("sm_80"), SIX) == architecture("sm_80").peak_gflops  # 128 slots, 64 lanes
    assert paper.p_sm(architecture("sm_90"), SIX) == pytest.approx(ffma_share(6, 6, 64) * architecture("sm_90").peak_gflops)


# --- figures ---------------------------------------------------------------------------------------------------------------------

FULL = Figures(
    "one", "sm_90", sms=132, clock_mhz=1980, issue_per_clock=4, ffma_per_clock=128,
    ffma_outer_per_clock={"8x8 rows": 90, "8x8 snake": 120}, shared_bytes_per_clock=128, lds_per_clock={"32": 1.0},
    l1_bytes_per_clock=128, l2_bytes=50 << 20, l2_read_bytes_per_s=5.5e12,
    dram_read_bytes_per_s=4.3e12, dram_copy_bytes_per_s=4.2e12, launch_seconds=2e-6, ffma_latency_clocks=4, source="probe",
)  # fmt: skip
H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 1, 1, 1024, (1024, 1024, 64), 256, (1, 2, 4),
    32, "sm_90",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sms": float("nan")}, "positive"), ({"sms": -1}, "positive"), ({"clock_mhz": "fast"}, "positive"),
        ({"sms": True}, "positive"), ({"lds_per_clock": {"32": 0}}, "positive"), ({"name": 3}, "text"),
    ],
)  # fmt: skip
def test_damaged_figures_are_refused(change, says):
    with pytest.raises(BadRecord, match=says):
        replace(FULL, **change)


def test_measured_figures_come_before_the_vendors():
    measured = Figures("one", "sm_90", sms=132, ffma_per_clock=126.5, lds_per_clock={"32": 0.99}, source="probe")
    both = measured.or_else(vendor_figures(H200))
    assert (both.ffma_per_clock, both.lds_per_clock) == (126.5, {"32": 0.99})
    assert (both.issue_per_clock, both.dram_read_bytes_per_s, both.clock_mhz) == (4, 4.8e12, 1980)
    assert both.source_of("ffma_per_clock") == "probe" and "data sheet" in both.source_of("dram_read_bytes_per_s")
    assert both.l2_read_bytes_per_s is None and both.source_of("l2_read_bytes_per_s") == ""
    assert measured.or_else(None) is measured


def test_a_device_without_documents_has_no_figures_of_another():
    stranger = vendor_figures(replace(H200, name="NVIDIA H900"))
    assert stranger.dram_read_bytes_per_s is None and stranger.l2_bytes is None and stranger.issue_per_clock == 4
    cpu = vendor_figures(replace(H200, name="some CPU", arch="", lanes=None))
    assert cpu.issue_per_clock is None and cpu.ffma_per_clock is None and isinstance(cpu.peak_gflops, Unknown)


# --- levels ----------------------------------------------------------------------------------------------------------------------

LOOP = {"FFMA": 512, "LDS.128": 32, "LDG.128": 4, "STS.128": 4, "integer": 10, "BAR": 1, "control": 1}
TILE = Tile(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8, VA=4, VB=4)
WORK = KernelWork(
    4096, 4096, 4096, 3 * 4 * 4096**2, TILE, whole=True, loop=LOOP, registers=123, shared_bytes=16640,
)  # fmt: skip


def seconds(work: KernelWork = WORK, figures: Figures = FULL) -> dict[str, float]:
    return {level.name: level.seconds for level in levels(work, figures) if not isinstance(level.seconds, Unknown)}


def test_each_level_counts_what_it_says():
    found = seconds()
    per_sm = 8 * 128 * 128 * 4096  # ⌈1024 blocks / 132⌉ blocks of 128×128, each 4096 deep
    clock = 1980e6
    assert found == pytest.approx({
        "FFMA lanes": per_sm / (128 * clock),
        "issue slots": per_sm / 32 * (564 / 512) / (4 * clock),
        "register operands": per_sm / (120 * clock),
        "dependent sums": 4 * 4096 * 4 / clock,  # two blocks at once: ⌈1024 / 264⌉ waves
        "shared memory": per_sm / 32 * (36 / 512) / clock,
        "L1": per_sm / 32 * (256 / 16384) / clock,  # the floats of a block's rows and columns, 32 a turn, not its 4 loads
        "L2": 1024 * (128 + 256) / 2 * 4096 * 4 / 5.5e12,
        "DRAM": (3 * 4 * 4096**2 - (50 << 20)) / 4.3e12,
        "launch": 2e-6,
    })  # fmt: skip
    assert set(found) == set(ADVICE) - {"Tensor Cores", "latency"}
    best = bound(WORK, FULL)
    assert best.limiter and best.limiter.name == "issue slots" and best.seconds == max(found.values())
    assert best.figure == pytest.approx(2 * 4096**3 / max(found.values()) / 1e9) and best.advice == ADVICE["issue slots"]


@pytest.mark.parametrize(
    ("limiter", "work", "figures"),
    [
        ("FFMA lanes", {}, {"issue_per_clock": 40, "ffma_outer_per_clock": {}}),
        ("register operands", {}, {"issue_per_clock": 4.4}),
        ("shared memory", {"traffic": Traffic(32, 5, 32 * 32, 8, 0.9)}, {}),
        ("shared memory", {"loop": {"FFMA": 4, "LDS.32": 8}}, {}),
        ("L1", {"loop": {"FFMA": 4, "LDG.32": 8, "integer": 1}, "staged": False, "tile": Tile(BM=32, BN=32)}, {}),
        ("L2", {}, {"l2_read_bytes_per_s": 1e11}),
        ("DRAM", {"M": 8, "N": 4096 * 512, "tile": None, "min_bytes": 10**11}, {}),
        ("dependent sums", {"M": 128, "N": 128, "K": 1 << 20}, {"ffma_latency_clocks": 200}),
        ("launch", {"M": 1, "N": 1, "K": 1, "whole": False, "min_bytes": 12}, {}),
    ],
)
def test_the_limiter_is_named(limiter, work, figures):
    found = bound(replace(WORK, **work), replace(FULL, **figures))
    assert found.limiter is not None and found.limiter.name == limiter and found.advice


def test_tensor_cores_by_hand() -> None:
    """128×128×4096 in one block, three products of two terms: what the units, shared memory, slots and L2 take for one of K."""
    tile = Tile(BM=128, BN=128, BK=32, TM=2, TN=32)
    work = KernelWork(128, 128, 4096, 10**6, tile, tensor=tensor_work(tile, 3, 2), registers=168, loop={"HGMMA": 6, "integer": 156})
    known = replace(FULL, tensor_per_clock=2048)
    found, clock = seconds(work, known), 4096 / 1980e6
    assert found["Tensor Cores"] == pytest.approx(clock * 3 * 128 * 128 / 2048)
    assert found["shared memory"] == pytest.approx(clock * (3 * 2 * (128 + 2 * 128) + 4 * 256) / 128)
    # two groups of four warps, 162 instructions for six instructions of 64×128×16: 32 of K in three products
    assert found["issue slots"] == pytest.approx(clock * 2 * 4 * 162 / 32 / 4)
    assert found["L2"] == pytest.approx(4096 * 4 * 256 / 5.5e12)
    best = bound(work, known)
    assert best.limiter and best.limiter.name == "shared memory" and "block" in best.advice
    unknown = [level for level in levels(work, FULL) if isinstance(level.seconds, Unknown)]
    assert [level.seconds.missing for level in unknown] == [("tensor_per_clock",)]


def test_a_product_with_a_vector_by_hand() -> None:
    asks = VectorWork(wavefronts=2e6, loads=100, waits={"FADD": 50, "shared": 2, "barrier": 3}, work_items=300, lines=32)
    work = KernelWork(8192, 1, 8192, 2 * (50 << 20), vector=asks, loop={"FFMA": 16})
    known = replace(FULL, latency_clocks={"shared": 30, "L2": 300, "memory": 700}, barrier_clocks={"128": 20, "512": 45})
    found = seconds(work, known)
    assert found["L1"] == pytest.approx(2e6 / 1980e6)
    # half of what is read may lie in the last cache; barriers of 300 cost at least those of 128
    assert found["latency"] == pytest.approx((100 * 500 + 50 * 4 + 2 * 30 + 3 * 20) / 1980e6)
    best = bound(work, known)
    assert best.limiter and best.limiter.name == "L1" and best.figure == pytest.approx(work.min_bytes / found["L1"] / 1e9)
    assert isinstance(next(v for v in levels(work, FULL) if v.name == "latency").seconds, Unknown)
    # a CPU has no such banks: without NVIDIA's machine code both are unknown
    assert {"L1", "latency"} & seconds(replace(work, loop=None), known).keys() == set()


def test_memory_is_as_fast_as_its_interface_and_not_as_a_probe_found_it() -> None:
    assert seconds(WORK, replace(FULL, dram_bytes_per_s=4.8e12))["DRAM"] == pytest.approx(seconds()["DRAM"] * 4.3 / 4.8)


RANKING = ("l2_copy_bytes_per_s", "latency_clocks", "barrier_clocks", "groups_per_clock", "tensor_per_clock", "dram_bytes_per_s")
"""Figures that a product on fp32 lanes does without: other models ask for them, or another figure stands in."""
LEVELS = [n for n in FIGURES if n not in RANKING]


@pytest.mark.parametrize("name", [n for n in LEVELS if n not in ("ffma_latency_clocks", "launch_seconds")])
def test_more_of_anything_never_lowers_the_bound(name):
    value = getattr(FULL, name)
    more = {k: 2 * v for k, v in value.items()} if hasattr(value, "items") else 2 * value
    for work in (WORK, replace(WORK, M=130, N=4095), replace(WORK, whole=False, M=100), replace(WORK, staged=False)):
        before, after = seconds(work), seconds(work, replace(FULL, **{name: more}))
        assert all(after[level] <= before[level] for level in before)
        if name not in ("l1_bytes_per_clock", "shared_bytes_per_clock", "lds_per_clock", "dram_copy_bytes_per_s", "sms"):
            assert sum(after.values()) < sum(before.values())  # beside these stands another that allows as much


@pytest.mark.parametrize("name", LEVELS)
def test_without_a_figure_its_level_is_unknown_and_says_so(name):
    without = replace(FULL, **{name: {} if name in ("lds_per_clock", "ffma_outer_per_clock") else None})
    if name in ("lds_per_clock", "l1_bytes_per_clock", "dram_read_bytes_per_s", "dram_copy_bytes_per_s"):
        assert seconds(WORK, without).keys() == seconds().keys()  # another figure stands in
        return
    unknown = [level for level in levels(WORK, without) if isinstance(level.seconds, Unknown)]
    assert unknown and all(any(name in m for m in level.seconds.missing) for level in unknown)


def test_nothing_known_gives_no_bound():
    nothing = bound(WORK, Figures("x", "sm_90"))
    assert nothing.limiter is None and isinstance(nothing.figure, Unknown) and "clock_mhz" in nothing.figure.missing
    assert nothing.advice == ""
    naive = bound(replace(WORK, staged=False), Figures("x", "sm_90"))  # shared memory takes no time, which is no bound
    assert naive.limiter is None and isinstance(naive.figure, Unknown)
    assert bound(replace(WORK, M=0, N=0, K=0, min_bytes=0, launches=1), replace(FULL, launch_seconds=1e-6)).seconds == 1e-6
    blind = bound(replace(WORK, loop=None, registers=None), FULL)
    assert {level.name for level in blind.known} == {"FFMA lanes", "register operands", "DRAM", "launch"}


def test_waves_and_edges():
    def lanes(**change: object) -> float:
        return seconds(replace(WORK, **change))["FFMA lanes"]

    one = 128 * 128 * 4096 / (128 * 1980e6)
    assert lanes(M=128 * 132, N=128) == pytest.approx(one)
    assert lanes(M=128 * 133, N=128) == pytest.approx(2 * one)  # one block more is a whole turn more
    assert lanes(M=1, N=1) == pytest.approx(one)  # a kernel of whole tiles computes the whole tile
    assert lanes(M=1, N=1, whole=False) == pytest.approx(4096 / (128 * 1980e6))  # one that minds the edges does not
    assert lanes(M=127, N=127, whole=False) < lanes(M=127, N=127)
    assert lanes(batch=132, M=128, N=128) == pytest.approx(one)
    sliced = replace(TILE, SPLIT_K=4)
    assert lanes(tile=sliced, M=128, N=128) == pytest.approx(one / 132)
    with pytest.raises(BadSize):
        replace(WORK, M=-1)


def test_in_flight_by_hand() -> None:
    """128 x 128 in two fp16 terms: three products at 2,048 a cycle; 32 KB copied in, 32 read, 16 put back, 48 by the units."""
    found = in_flight.cycles(in_flight.SCHEMES[0], 128, 128)
    assert found["matrix units"] == 3 * 128 * 128 * 32 / 2048 == 768
    assert found["shared memory"] == (32 + 32 + 16 + 48) * 1024 / 128 == 1024
    assert found["instructions"] == (128 * 32 * 14.5 + 128 * 128 * 2.25) / 128
