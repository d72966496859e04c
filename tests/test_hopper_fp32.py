"""Hopper's plain fp32 kernel: what the compiler makes of it, how work is dealt out, what a plan needs, when it is chosen."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import golden
import hopper_on_cpu
from conftest import require
from hopper_on_cpu import aligned
from test_hopper_fp32_on_cpu import Folder
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.dispatch.select import select
from toprung.dispatch.selection import Candidate, decoded
from toprung.errors import IllegalTile
from toprung.execute.executable import Executable
from toprung.gemm.desc import GemmDesc
from toprung.kernels.base import candidates
from toprung.kernels.cost_model import block_count
from toprung.kernels.hopper import ceil
from toprung.kernels.hopper_sgemm.config import (
    ADDED_ROWS,
    CHAIN,
    FOLDER,
    SHORT_CHAIN,
    UNCOPIED,
    VARIANTS,
    SgemmConfig,
    lay_source,
    product_source,
    ring,
)
from toprung.kernels.hopper_sgemm.cost import (
    MODEL,
    Schedule,
    chain_of,
    copied,
    copying,
    least,
    schedule,
    schedules,
    supported,
    unfit,
)
from toprung.kernels.record import kernel_source, with_includes
from toprung.kernels.registry import family
from toprung.lab.bounds.rank import turns
from toprung.lab.routines.base import method
from toprung.lab.rung import ladder, rung
from toprung.lab.sass.machine_code import MachineCode, disassemble, inspect_source
from toprung.oracle.gemm import TRANSPOSES, Gemm

CYCLES, SHARE = 1.2, 0.93
"""Most cycles of a scheduler for each multiply-add of the main loop, by the register banks; and their share of its instructions."""
CACHE = 32 << 10
"""Bytes of instructions that a loop may have."""
RUNGS = ladder("hopper_fp32").rungs


def device() -> Any:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    return dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=132)


@functools.cache
def compiled(variant: SgemmConfig) -> MachineCode:
    device()
    return inspect_source(product_source(variant), "sm_90")


def judged(code: MachineCode, own_bytes: int = 0, spills: int = 0) -> None:
    """Nothing spills, the exchange of registers adds up, and the loop is multiply-adds; ``own_bytes``: of a thread's own memory."""
    assert code.spill_stores <= spills and code.registers == 168 and code.counts["USETMAXREG"] == 2
    assert own_bytes <= code.stack_bytes <= own_bytes + 2 * spills
    assert code.loop.ffma_share >= SHARE and code.loop.reads is not None
    assert 1 + code.loop.reads.conflicts_each <= CYCLES
    assert not any(kind.startswith(("STG", "LDG", "STS", "BAR", "STL", "LDL")) for kind in code.loop.counts)


@pytest.mark.parametrize("variant", [pytest.param(v, marks=[pytest.mark.slow] * (v != UNCOPIED[0])) for v in UNCOPIED], ids=str)
def test_the_loop_is_multiply_adds(variant: SgemmConfig) -> None:
    code = compiled(variant)
    judged(code, 512 * variant.TURN_A)  # where the ring leaves no room for the sums of a chain's links
    assert code.loop.counts["FFMA"] == variant.BK * 128 and code.loop.counts["LDS.128"] == variant.BK * 6
    assert 16 * code.loop.instructions <= CACHE
    assert variant.refused() == "" and variant.threads == 384


@pytest.mark.slow
@pytest.mark.parametrize("variant", UNCOPIED, ids=str)
def test_what_adds_to_c_waits_for_several_rows_at_once(variant: SgemmConfig) -> None:
    code = inspect_source(product_source(variant, ROWS=ADDED_ROWS), "sm_90")
    judged(code, 512 * variant.TURN_A, spills=8)  # two registers, outside of the loop
    assert code.loop.counts["FFMA"] == variant.BK * 128
    assert code.counts["LDG.128"] == compiled(variant).counts["LDG.128"] + 32, "a tile's rows, for whole tiles"


def loop_begin(source: Source) -> int:
    """Return the address of the innermost loop around the first multiply-add."""
    listing = disassemble(nvrtc.compile_cubin(source, "sm_90").code)
    labels: dict[str, int] = {}
    loops, waiting, first = [], [], 0
    for line in listing.splitlines():
        if found := re.match(r"\s*(\.L_x_\d+):", line):
            waiting.append(found[1])
        elif found := re.match(r"\s*/\*([0-9a-f]{4,})\*/(.*)", line):
            here = int(found[1], 16)
            labels |= dict.fromkeys(waiting, here)
            waiting.clear()
            first = first or here * found[2].lstrip().startswith("FFMA")
            if back := re.search(r"BRA.* (?:`\((\.L_x_\d+)\)|0x([0-9a-f]+))", found[2]):
                begin = labels.get(back[1], here) if back[1] else int(back[2], 16)
                loops += [(here - begin, begin)] if 0 < begin <= first <= here else []
    return min(loops)[1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", [v for v in UNCOPIED if not v.TURN_A], ids=str)
def test_a_narrow_c_leaves_the_loop_as_it_is(variant: SgemmConfig) -> None:
    """The loop keeps its place in a line of 128 bytes, too, which the instructions in front of it see to."""
    sources = [product_source(variant, **more) for more in ({"NARROW_C": 1}, {})]
    narrow, base = (inspect_source(source, "sm_90") for source in sources)
    judged(narrow)
    assert narrow.loop.counts["FFMA"] == base.loop.counts["FFMA"] and narrow.loop.instructions <= base.loop.instructions + 4
    assert loop_begin(sources[0]) % 128 == loop_begin(sources[1]) % 128
    assert narrow.counts["STG.32"] < base.counts["STG.32"] / 2, "a row at a time, in a loop"


COPIES = ((1, 2), (2, 1), (2, 2), (1, 1), (1, 0), (0, 1), (2, 0), (0, 2))
"""Values of ``COPY_A`` and ``COPY_B`` with which something is copied."""


@pytest.mark.parametrize(
    ("variant", "how"),
    [
        pytest.param(v, how, id=f"{v.text} {how}", marks=[pytest.mark.slow] * ((v, how) != (replace(UNCOPIED[0], COPY=1), (1, 2))))
        for v in VARIANTS
        for how in COPIES
        if v.COPY
    ],
)
def test_copies_are_the_producer_s_and_leave_the_loop_as_it_is(variant: SgemmConfig, how: tuple[int, int]) -> None:
    """A thread asks for each float of its own once, with all of them in the text twice: whole stages, and the last one."""
    code = inspect_source(product_source(variant, COPY_A=how[0], COPY_B=how[1]), "sm_90")
    judged(code)
    assert code.loop.counts["FFMA"] == variant.BK * 128 and code.loop.counts["LDS.128"] == variant.BK * 6
    floats = sum(side * variant.BK for side, one in zip((variant.BM, variant.BN), how, strict=True) if one)
    assert code.counts["LDGSTS"] == 2 * floats // 128


def test_a_copy_is_weighed_where_a_pass_takes_long() -> None:
    """A deep K under a small C, with rows that begin anywhere; not where K runs along memory in many rows or on 16 bytes."""
    assert least(aligned(1405, 399, 71663), 132)[1] == replace(SgemmConfig(), COPY=1)
    assert not least(aligned(2049, 2049, 2049), 132)[1].COPY
    assert not least(aligned(1404, 400, 71664), 132)[1].COPY
    wide, high = (replace(SgemmConfig(*block), COPY=1) for block in ((128, 256), (256, 128)))
    turned = aligned(1405, 399, 71663, 1, True, True)
    assert copied(turned, wide) == (2, 1) and copied(aligned(1405, 399, 71663), wide) == (1, 2)
    assert copying(turned, wide) == MODEL.slow_copying and copying(turned, high) == 1 + MODEL.copying
    assert copying(aligned(1405, 399, 71664), wide) == MODEL.slow_copying
    assert unfit(aligned(128, 256, 64, 1, True), wide) and copied(aligned(128, 256, 64, 1, True), wide) == (0, 0)


@pytest.mark.parametrize("one", [pytest.param(r, id=str(r), marks=[pytest.mark.slow] * (r.number != 1)) for r in RUNGS])
def test_rungs_are_multiply_adds(one: Any) -> None:
    code = inspect_source(kernel_source(one, one.tile_for(device()), {}), "sm_90")
    judged(code)
    assert (16 * code.loop.instructions <= CACHE) == (one.number >= 4)


def loads_in_a_row(source: Source) -> int:
    """Wide loads among multiply-adds of which another one comes within three instructions."""
    listing = disassemble(nvrtc.compile_cubin(source, "sm_90").code)
    kinds = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", listing, re.M)
    kinds = kinds[kinds.index("FFMA") :]
    return sum(kind == "LDS.128" and "LDS.128" in kinds[i + 1 : i + 4] for i, kind in enumerate(kinds))


@pytest.mark.slow
@pytest.mark.parametrize("variant", (*UNCOPIED, SgemmConfig(BK=16, STAGES=5, WAIT_AT=8)), ids=str)
def test_loads_in_order_are_loads_apart(variant: SgemmConfig) -> None:
    """But for a few; the compiler's own order has dozens in a row, here and there."""
    device()
    assert loads_in_a_row(product_source(variant, LINK=0)) <= 6  # links are added up behind the loop
    if variant.TURN_A or variant.BK == 16:
        assert loads_in_a_row(product_source(variant, LINK=0, IN_ORDER=0)) >= 30


@pytest.mark.slow
def test_lanes_apart_change_nothing_in_the_loop() -> None:
    device()
    here, before = (inspect_source(product_source(SgemmConfig(), **one), "sm_90").loop for one in ({}, {"APART": 0, "PAD": 6}))
    assert here.counts == before.counts and here.reads == before.reads


def test_lanes_apart_take_the_turns_that_there_are() -> None:
    """Lanes that read the same as a neighbour are served two quarters of a warp at a time."""
    found = re.search(r"down = APART \? (.+?) : (.+?), right = \(APART \? (.+?) : (.+?)\) % 4;", (FOLDER / "ffma.cuh").read_text())
    assert found
    apart_m, old_m, apart_n, old_n = (text.replace("/", "//") for text in found.groups())

    def places(text: str) -> list[int]:
        return [eval(text, {"lane": lane}) for lane in range(32)]

    new, old = ((places(m), places(f"({n}) % 4")) for m, n in ((apart_m, apart_n), (old_m, old_n)))
    for (m, n), wanted in ((old, [2, 4]), (new, [4, 4])):
        assert [turns(lambda lane, at=at: 4 * at[lane], 4) for at in (m, n)] == wanted
        assert set(zip(m, n, strict=True)) == set(itertools.product(range(8), range(4)))


def test_the_layout_pass_holds_its_elements_in_registers() -> None:
    device()
    code = inspect_source(lay_source(), "sm_90")
    assert code.local_bytes == 0 and code.shared_bytes == 0
    assert code.counts["LDG.128"] >= 8 and code.counts["STG.128"] >= 8


def test_the_library_s_variant_is_the_last_rung() -> None:
    last = RUNGS[-1]
    tile = dataclasses.replace(last.tile_for(device()), STAGES=SgemmConfig().STAGES)  # one less makes room for links of a chain
    assert SgemmConfig().tile == tile and last.defines["WAIT_AT"] == SgemmConfig().WAIT_AT
    assert last.source.read_text().endswith('#include "../../../kernels/hopper_sgemm/ffma.cu"\n')
    assert hasattr(method(last), "BRINGS")


@pytest.mark.parametrize(
    "wrong", [{"BM": 256}, {"BM": 32, "BN": 1024}, {"BK": 7}, {"STAGES": 16}, {"STAGES": 1}, {"WAIT_AT": 14}], ids=str
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    assert dataclasses.replace(SgemmConfig(), **wrong).refused()
    if "WAIT_AT" not in wrong:
        tile = dataclasses.replace(rung("hopper_fp32/r04").tile_for(device()), **wrong)
        with pytest.raises(IllegalTile):
            rung("hopper_fp32/r04").check(tile, {}, device())


def test_it_says_what_it_cannot_compute() -> None:
    here = device()
    assert supported(here, aligned(1, 1, 1)) == ""
    assert "Hopper's" in supported(dataclasses.replace(here, arch="sm_80"), aligned(64, 64, 64))
    assert "one product" in supported(here, aligned(64, 64, 64, 2, stride_a=4096, stride_b=4096, stride_c=4096))
    assert "empty" in supported(here, aligned(64, 64, 0)) and "more than" in supported(here, aligned(64, 64, 1 << 25))


# how work is dealt out: by the kernels' own text, on the CPU

WALK = """
extern "C" __global__ void walk(int *out, int most, int M, int N, int K, int shared, int each, int extra) {
    Walk walk(M, N, K, shared, each, extra);
    int *mine = out + blockIdx.x * (1 + 3 * most), &count = *mine++;
    for (count = 0; walk.step(); ++count)
        if (count < most) {
            int *piece = mine + 3 * count;
            piece[0] = walk.m / BM * walk.tiles_n + walk.n / BN, piece[1] = walk.from, piece[2] = walk.to;
        }
}
"""
MOST = 400


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[list[tuple[int, int, int]]]]:
    """Each block's pieces of a product, in its order: tile, from, to."""
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    folder = Folder(tmp_path_factory.mktemp("walk"))
    files = ("../include/hopper.cuh", "../include/epilogue.cuh", "ffma.cuh", "share.cuh")
    text = with_includes("".join(f'#include "{name}"\n' for name in files), FOLDER) + WALK
    source = Source("walk", text, "walk", SgemmConfig(GROUP=3).defines(), "cuda")

    def pieces(call: GemmDesc, how: Schedule) -> list[list[tuple[int, int, int]]]:
        out = np.zeros((how.grid, 1 + 3 * MOST), np.int32)
        each, extra = divmod(how.shared * ceil(call.K, SgemmConfig().BK), how.grid)
        sizes = map(np.int32, (MOST, call.M, call.N, call.K, how.shared, each, extra))
        values = [np.array([x]) for x in (np.uint64(out.ctypes.data), *sizes)]
        folder.built(source).start((how.grid,), 1, values)
        assert out[:, 0].max() <= MOST
        return [[tuple(p) for p in row[1 : 1 + 3 * row[0]].reshape(-1, 3).tolist()] for row in out]

    return pieces


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1500), st.integers(1, 2200), st.integers(1, 300), st.integers(1, 40))
def test_every_k_of_every_tile_is_computed_once(walk: Any, M: int, N: int, K: int, units: int) -> None:
    call = aligned(M, N, K)
    tiles, chunks = block_count(call, SgemmConfig()), ceil(K, SgemmConfig().BK)
    found = [Schedule(*one) for one in zip(*(n.tolist() for n in schedules(call, SgemmConfig(), units)), strict=True)]
    assert schedule(call, SgemmConfig(), units) in found
    for how in {found[0], found[-1], found[len(found) // 2]}:
        assert 0 < how.grid <= units and 0 <= how.shared <= tiles
        blocks = walk(call, how)
        tile, begins, ends = np.array([piece for block in blocks for piece in block]).T
        steps = np.zeros((tiles, chunks + 1), int)  # how many pieces more have a chunk than the chunk before
        np.add.at(steps, (tile, begins), 1)
        np.add.at(steps, (tile, ends), -1)
        assert (steps.cumsum(1)[:, :-1] == 1).all()
        left = {}  # of whom: what block leaves which end of a tile
        for number, block in enumerate(blocks):
            parts = [i for i, (_, begin, _) in enumerate(block) if begin]
            assert len(parts) < 2, "a block leaves one part"
            if parts:
                before = block[: parts[0]]
                assert all((begin, end) == (0, chunks) for _, begin, end in before), "and before it waits for anybody"
                left[number] = block[parts[0]]
            assert how.shared == tiles or block[0][1:] == (0, chunks), "it begins with a whole tile"
        for number, block in enumerate(blocks):
            for tile, begin, end in block:
                while begin == 0 and end < chunks:  # what follows is the next share's: the block before
                    number -= 1
                    assert number >= 0 and left.get(number, (0, 0, 0))[:2] == (tile, end), (
                        "it waits for blocks that began before it"
                    )
                    end = left.pop(number)[2]
        assert not left, "every part is added"


def test_few_tiles_are_spread_and_many_are_not_cut() -> None:
    assert schedule(aligned(8192, 8192, 8192), SgemmConfig(), 132) == (132, 2048 % 132 + 132)
    assert schedule(aligned(128 * 132, 256, 4096), SgemmConfig(), 132).shared == 0
    few = schedule(aligned(1024, 1024, 65536), SgemmConfig(), 132)
    assert few.grid > 100 and few.shared == 32
    assert schedule(aligned(128, 256, 12), SgemmConfig(), 132) == (1, 0)


@pytest.mark.parametrize(
    ("shape", "chain"), [((4096,) * 3, CHAIN), ((2048,) * 3, CHAIN), ((871, 1633, 1288), SHORT_CHAIN), ((1000,) * 3, SHORT_CHAIN)]
)
def test_chains_are_shorter_where_tiles_leave_sms_without_one(shape: tuple[int, int, int], chain: int) -> None:
    """There cuBLAS cuts sums into several parts, and errs less."""
    assert chain_of(aligned(*shape), SgemmConfig(), 132) == chain


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.text)
def test_sums_of_links_lie_behind_the_ring_and_fit(variant: SgemmConfig) -> None:
    assert variant.shared_bytes <= 227 * 1024
    if not variant.TURN_A:
        assert variant.held % 128 == 0 and variant.held >= ring(variant.tile)
        assert variant.shared_bytes == variant.held + 4 * variant.BM * variant.BN


def test_operands_too_large_to_lay_out_are_copied() -> None:
    """A product of 48 GB with rows not aligned to 16 bytes needs workspace for parts of tiles alone."""
    large = GemmDesc(40001, 40001, 120001)
    assert least(large, 132)[1].COPY == 1 and least(GemmDesc(4001, 4001, 4001), 132)[1].COPY == 0
    assert "more than" in unfit(large, SgemmConfig()) and unfit(GemmDesc(4001, 4001, 4001), SgemmConfig()) == ""


def test_what_lies_well_is_not_laid_out() -> None:
    recorder: Any = golden.Recorder(device())
    one, on_16_bytes = Candidate(family("hopper_sgemm"), SgemmConfig()), {"align_a": 4, "align_b": 4}
    assert Executable.of(recorder, GemmDesc(4096, 4096, 64, trans_a=True, **on_16_bytes), one).launches == 1
    for more in (
        {"align_a": 2, "align_b": 4},
        {**on_16_bytes, "lda": 4098},
        {**on_16_bytes, "trans_a": False},
        {**on_16_bytes, "trans_b": True},
    ):
        call = GemmDesc(4096, 4096, 64, **{"trans_a": True, **more})
        made = Executable.of(recorder, call, one)
        assert made.launches == 2 and made.plan.workspace_bytes == 4 * (4096 * 64 + 132 * 128 * 256)


@pytest.mark.parametrize(("k", "stage"), [(20, 10), (28, 14), (59, 10), (70, 14), (100, 10), (4096, 14), (8192, 14)])
def test_stages_are_those_that_a_short_k_fills(k: int, stage: int) -> None:
    found = least(aligned(4096, 8192, k, trans_a=True), 132)[1]
    assert (found.BM, found.BK) == (128, stage)


def test_the_library_names_it() -> None:
    found = select(device(), aligned(8192, 8192, 8192))
    assert found.candidate.kernel == "hopper_sgemm" and product_source(SgemmConfig()).name == "hopper_sgemm/ffma"
    assert found.config == SgemmConfig() and str(found) == f"hopper_sgemm {SgemmConfig().tile}"
    for stored in ("ffma", "hopper_sgemm"):  # in records of before, and now
        assert decoded({**found.candidate.encode(), "kernel": stored}) == found.candidate


@pytest.mark.parametrize(
    ("shape", "weighed"),
    [
        ((413, 732, 61981), True),
        ((1405, 399, 71663), True),
        ((1024, 1024, 32), True),
        ((130, 130, 100000), False),
        ((37, 4096, 4096), False),
    ],
)
def test_a_small_c_is_weighed_where_k_is_deep(shape: tuple[int, int, int], weighed: bool) -> None:
    one, place, desc = family("hopper_sgemm"), device(), GemmDesc(*shape, align_a=4, align_b=4, align_c=4)
    assert bool(list(candidates(one, place, desc))) == bool(one.space(place, desc)) == weighed
    if weighed and shape[2] > 1024:
        assert select(place, desc).candidate.kernel == "hopper_sgemm"


@pytest.mark.parametrize("trans", TRANSPOSES)
def test_what_a_tuner_may_try_is_legal_and_told_apart(trans: str) -> None:
    one, place, call = family("hopper_sgemm"), device(), Gemm(65536, 64, 4096, trans=trans).desc
    axes = one.space(place, call)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    made: dict[Any, Any] = {tuple(p.values()): c for p in points if (c := one.at(place, call, p))}
    assert len(set(made.values())) == len(made)
    assert all(tuple(one.point(c)[name] for name in axes) == point for point, c in made.items())
    turning = [c for c in made.values() if c.TURN_A]
    assert bool(turning) == (trans[0] == "N"), "only an A that is stored M×K can be turned"
    assert all(c.BK == 12 for c in turning)
    assert {c.BM for c in made.values()} == set(axes["BM"])
