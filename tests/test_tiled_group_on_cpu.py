"""Groups in plain fp32, by the kernel's own text on a CPU: layouts, edges, epilogues, short chains, and what stays alone."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
import toprung
from conftest import require
from hopper_on_cpu import Folder
from test_fused_epilogue import finished
from test_group_on_cpu import Group as AnyGroup
from test_group_on_cpu import drawn
from toprung.arrays.base import Home
from toprung.arrays.numpy import adapter as numpy_adapter
from toprung.backends import nvrtc
from toprung.blas import calls, grouped
from toprung.dispatch import ranking
from toprung.dispatch.select import group_family
from toprung.errors import BuildError, Unsupported
from toprung.gemm.desc import GemmDesc
from toprung.kernels import cost_model
from toprung.kernels import group as packed
from toprung.kernels.base import candidates
from toprung.kernels.tiled_group import family
from toprung.kernels.tiled_group.family import BLOCKS, FAMILY, GroupBlock, group_launches, group_share, group_source
from toprung.lab.sass.machine_code import inspect_source

SMALL, THIN, LARGE = BLOCKS[3], BLOCKS[4], BLOCKS[0]
SHAPES = ((70, 40, 100), (3, 5, 64), (1, 1, 75), (66, 33, 130), (64, 32, 1), (17, 66, 7), (1, 40, 3), (36, 1, 33), (9, 7, 331))
"""One tile and many, edges each way, a single row and column, K of 1, of less than a tile, and of many chains."""


class Group(AnyGroup):
    """As for the kernel in flight; operands lie ``skip`` floats behind 16 bytes."""

    def __init__(self, *what: Any, skip: int = 0, **more: Any) -> None:
        self.skip = skip
        super().__init__(*what, **more)

    def placed(self, batch: int, rows: int, cols: int, pad: int, turned: bool) -> tuple[Any, Any]:
        rows, cols = (cols, rows) if turned else (rows, cols)
        size = batch * rows * (cols + pad)
        whole = np.full(size + 32, np.nan, np.float32)
        first = -whole.ctypes.data % 16 // 4 + 8 + self.skip
        stored = whole[first : first + size].reshape(batch, rows, cols + pad)
        self.kept.append(whole)
        inside = stored[:, :, :cols]
        return stored, inside.transpose(0, 2, 1) if turned else inside

    def run(self, folder: Any) -> Any:
        made = group_launches(folder, self.members)
        made.start(None, np.array(self.addresses).T)
        return made


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Folder:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    monkeypatch.setattr(packed, "kernel_of", lambda session, source: source)
    monkeypatch.setattr(packed, "has_large_parameters", lambda: True)
    monkeypatch.setattr(family, "group_block", lambda *what: SMALL)
    Folder.launches = 0
    return Folder(tmp_path_factory.getbasetemp(), units=2)


def test_unequal_shapes_in_one_launch(folder: Folder) -> None:
    several = Group(SHAPES)
    made = several.run(folder)
    several.check()
    assert (Folder.launches, made.launches, made.counters, made.kernels) == (1, 1, (), (f"tiled_group {SMALL}",))
    again = Group(SHAPES[::-1])  # the same kernel, its parameters written anew
    again.run(folder)
    again.check()


def test_epilogues_and_what_is_no_number(folder: Folder) -> None:
    several = Group(SHAPES, activation="relu", biased=(0, 1, 3, 5, 6, 7), pad=1)
    several.a[3][0, 1, 3], several.b[3][0, 5, 30], several.a[5][0, 16, 6] = np.inf, np.nan, -np.inf
    assert several.run(folder).launches == 1
    several.check()


@pytest.mark.parametrize("trans", ["NT", "TN", "TT"])
def test_layouts(folder: Folder, trans: str) -> None:
    for pad, skip in ((0, 0), (3, 1)):
        several = Group(SHAPES, trans, pad=pad, skip=skip, activation="gelu", biased=(0, 2, 4))
        several.run(folder)
        several.check()


ALIGNED = ((128, 64, 48), (36, 132, 32), (4, 4, 4), (20, 40, 100), (130, 68, 8))
"""Pieces of four throughout, with edges at the end of a tile and inside."""


@pytest.mark.parametrize("trans", ["NN", *(pytest.param(trans, marks=pytest.mark.slow) for trans in ("NT", "TN", "TT"))])
def test_aligned_operands_are_fetched_at_once(folder: Folder, trans: str) -> None:
    for skip, pad in ((0, 0), (0, 4), (1, 0), (2, 4)):
        several = Group(ALIGNED, trans, pad, skip=skip)
        several.run(folder)
        several.check()


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("trans", ["NN", "NT", "TN", "TT"])
def test_blocks(folder: Folder, monkeypatch: pytest.MonkeyPatch, block: GroupBlock, trans: str) -> None:
    monkeypatch.setattr(family, "group_block", lambda *what: block)
    for shapes, pad, skip in (((*SHAPES, (200, 140, 40)), 0, 0), (ALIGNED, 4, 0), (SHAPES, 3, 1)):
        several = Group(shapes, trans, pad, skip=skip, activation="relu", biased=(0, 3))
        several.a[0][0, 2, 7] = np.inf
        several.run(folder)
        several.check()


def test_bits_do_not_depend_on_the_tile_the_alignment_or_the_others(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def bits(block: GroupBlock, trans: str, pad: int, *others: Any) -> Any:
        monkeypatch.setattr(family, "group_block", lambda *what: block)
        one = Group(((40, 24, 331), (5, 6, 7), *others), trans, pad)
        rng = np.random.default_rng(1)
        one.a[0][...], one.b[0][...] = rng.uniform(-1, 1, one.a[0].shape), rng.uniform(-1, 1, one.b[0].shape)
        one.run(folder)
        return one.c[0].copy()

    first = bits(SMALL, "NN", 0)
    for block, trans, pad, *others in ((THIN, "NT", 1), (LARGE, "TN", 0), (SMALL, "TT", 3, (9, 9, 900), (100, 3, 2))):
        assert np.array_equal(first, bits(block, trans, pad, *others))


def test_long_sums_are_added_up_in_short_chains(folder: Folder) -> None:
    """Sums of 20,000 numbers between 0 and 1 are as near as short chains are, which one chain is far from."""
    several = Group([(4, 4, 20000), (4, 4, 128)])
    for a, b in zip(several.a, several.b, strict=True):
        a[...], b[...] = np.abs(a), np.abs(b)
    several.run(folder)
    for a, b, c in zip(several.a, several.b, several.c, strict=True):
        exact = np.float64(a) @ np.float64(b)
        chained, one = np.zeros((1, 4, 4), np.float32), np.zeros((1, 4, 4), np.float32)
        chain = 16 if a.shape[2] <= 128 else 32
        for k in range(0, a.shape[2], chain):
            some = np.zeros((1, 4, 4), np.float32)
            for at in range(k, min(k + chain, a.shape[2])):
                some = np.float32(np.float64(a[:, :, at, None]) * b[:, None, at] + some)  # one rounding, as of a fused multiply-add
                one = np.float32(np.float64(a[:, :, at, None]) * b[:, None, at] + one)
            chained += some
        assert np.array_equal(c, chained)
        if a.shape[2] > 128:
            assert np.abs(c - exact).mean() < 0.5 * np.abs(one - exact).mean()


def test_batches_and_more_than_parameters_have_room_for(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "has_large_parameters", lambda: False)
    several = Group([(5 + i % 7, 9, 1 + i) for i in range(40)], batch=2)
    assert several.run(folder).launches == Folder.launches == 2, "80 products, and 64 to a launch"
    several.check()


# matmul_grouped


@pytest.fixture(params=["sm_80", "sm_90"])
def device(folder: Folder, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """NumPy's arrays stand for a device's, the folder for its session."""
    library = type(numpy_adapter)
    original = library.operand

    def operand(self: Any, thing: Any, name: str) -> Any:
        return original(self, thing, name)._replace(home=Home("cuda", 0), queue=7)

    monkeypatch.setattr(library, "operand", operand)
    monkeypatch.setattr(grouped, "session_at", lambda home, queue: folder)
    folder.device = dataclasses.replace(nvrtc.device_of(request.param), compute_units=2)
    calls.forget()
    yield folder
    calls.forget()


def test_a_call_is_one_launch_with_one_receipt(device: Folder) -> None:
    """Also of single rows and columns, of vectors, and of K of 1; with ``auto`` where there is no Hopper."""
    a = [*drawn(3, (3, 64), (40, 70), (1, 80), (33, 80), (9,), (6, 1))]
    b = [*drawn(4, (64, 5), (70, 7), (80, 40), (80, 1), (9, 3), (1, 8))]
    bias = [None, *drawn(5, (7,), (40,), (33, 1)), None, *drawn(6, (8,))]
    for precision in ("fp32", "auto") if device.device.arch == "sm_80" else ("fp32",):
        Folder.launches = 0
        for _ in range(2):
            c = [np.full(np.matmul(x, y).shape, np.nan, np.float32) for x, y in zip(a, b, strict=True)]
            found = toprung.matmul_grouped(a, b, c, bias=bias, activation="relu", precision=precision)
            for x, y, z, v, made in zip(a, b, c, bias, found, strict=True):
                assert made is z
                np.testing.assert_allclose(z, finished(np.float64(x) @ y + (0 if v is None else v), "relu"), rtol=1e-5, atol=1e-5)
            left = toprung.last_receipt()
            assert left is not None and left.launches == 1
            assert (left.precision, left.kernels, left.own) == ("fp32", (f"tiled_group {SMALL}",), True)
            assert left.why == "6 products in 1 launch" and left.escalated == 0
        assert Folder.launches == 2


def test_pairs_of_transposes_are_a_launch_each(device: Folder) -> None:
    a, b = drawn(1, (9, 70), (20, 30), (33, 66)), drawn(2, (70, 6), (30, 12), (66, 40))
    c = [np.full((x.shape[0], y.shape[1]), np.nan, np.float32) for x, y in zip(a, b, strict=True)]
    toprung.matmul_grouped(a, [b[0], np.asfortranarray(b[1]), b[2]], c, precision="fp32")
    for x, y, z in zip(a, b, c, strict=True):
        np.testing.assert_allclose(z, np.float64(x) @ y, rtol=1e-5, atol=1e-5)
    left = toprung.last_receipt()
    assert left is not None and left.launches == Folder.launches == 2


# who is taken


def test_who_is_taken_into_a_group() -> None:
    none = frozenset[str]()
    hopper, ampere = (
        dataclasses.replace(nvrtc.device_of(arch), compute_units=units, clock_mhz=clock)
        for arch, units, clock in (("sm_90", 132, 1980.0), ("sm_80", 108, 1410.0))
    )
    taken = {
        GemmDesc(100, 200, 300): True, GemmDesc(200, 2048, 1024, align_a=4, align_b=4, align_c=4): True, GemmDesc(1, 1, 1): True,
        GemmDesc(16384, 16384, 16384, align_a=4, align_b=4, align_c=4): False,  # 128×256 of C at a time is faster
        GemmDesc(64, 64, 1 << 20, align_a=4, align_b=4, align_c=4): False,  # in slices of K it is
        GemmDesc(64, 64, 64, 65, stride_c=4096): False, GemmDesc(64, 64, 0): False,
        GemmDesc(64, 64, 64, type_a="float16"): False,
    }  # fmt: skip
    for desc, wanted in taken.items():
        for device in (hopper, ampere):
            assert (group_family(device, desc, "fp32", none) is not None) == wanted, desc
        assert (group_family(ampere, desc, "auto", none) is FAMILY) == wanted, desc
        assert group_family(ampere, desc, "tf32", none) is None and group_family(ampere, desc, "fp32x", none) is None
        assert group_family(ampere, desc, "fp32", frozenset({"tanh"})) is None
    assert group_family(hopper, GemmDesc(100, 200, 300), "auto", none) is not FAMILY
    assert group_family(hopper, GemmDesc(100, 200, 63), "auto", none) is FAMILY, "fp32x is not promised for so short a K"
    others = dataclasses.replace(ampere, backend="opencl"), dataclasses.replace(ampere, arch="sm_61")
    assert all(group_share(device, GemmDesc(100, 200, 300)) == np.inf for device in others)


def test_it_is_never_selected_for_a_product_by_itself(folder: Folder) -> None:
    desc = GemmDesc(100, 200, 300)
    assert not list(candidates(FAMILY, folder.device, desc)) and "share a launch" in FAMILY.supports(folder.device, desc)
    assert all(p.candidate.family is not FAMILY for p in ranking.ranked(folder.device, desc))
    session: Any = folder
    with pytest.raises(Unsupported, match="none by itself"):
        FAMILY.compile(session, desc, FAMILY.config)


def test_the_cost_model_counts_the_first_blocks_turns_and_takes_blocks_that_fit() -> None:
    device = dataclasses.replace(nvrtc.device_of("sm_90"), compute_units=132, clock_mhz=1980.0)
    block = BLOCKS[0]
    step, tile = family.tile_cycles(device, block, 1)
    descs = [GemmDesc(128, 128, 64 if i else 4096) for i in range(133)]
    found, turns = family.group_cycles(device, cost_model.group_sizes(descs[::-1]), block), (4096 + 64) / 8 * step + 2 * tile
    assert 0 <= found - family.BLOCK.launch - turns < 0.01 * found, "two turns, the first with the deep one"
    assert family.group_block(device, [GemmDesc(1024, 2048, 1024)] * 64) in BLOCKS[:2]
    assert family.group_block(device, [GemmDesc(20, 30, 100)] * 300) == SMALL
    shares = [group_share(device, GemmDesc(264, 2048, depth)) for depth in (1024, 2048)]
    assert shares[1] == pytest.approx(2 * shares[0], rel=0.1)


# the text


PLANTS = (
    ("end-of-product", "~>="), ("begin-of-product", "0 && "),
    ("down-of-product", "0 * "), ("d-of-any", " && of.down"), ("k-of-member", " + 1"), ("whole-steps", " + BK - 1"),
    ("m-of-product", " - 1"), ("d-of-row", "~on"),
    ("buffers", "~0"), ("fours-there", "~1"), ("rows-of-member", " + 1"),
    ("chains-added", "~="),
    ("end-of-chain", "false && "), ("begin-of-chain", "~+="), ("column-of-thread", "~4"), ("row-of-thread", "~4"),
    ("wide-pieces", "true || "), ("length-of-chain", "true || "),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place, text", PLANTS)
def test_a_planted_bug_is_found(folder: Folder, monkeypatch: pytest.MonkeyPatch, place: str, text: str) -> None:
    with hopper_on_cpu.bug(place, text), pytest.raises(AssertionError):
        test_unequal_shapes_in_one_launch(folder)
        test_epilogues_and_what_is_no_number(folder)
        for trans in ("NN", "TN"):
            test_aligned_operands_are_fetched_at_once(folder, trans)
        test_long_sums_are_added_up_in_short_chains(folder)
        test_blocks(folder, monkeypatch, LARGE, "NT")


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("block", [LARGE, BLOCKS[1]], ids=str)
def test_nothing_spills_and_pieces_are_wide(arch: str, block: GroupBlock) -> None:
    compiled(arch, block, (False, False), {})


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_pieces_are_wide_in_any_layout(block: GroupBlock) -> None:
    for trans in ((False, False), (False, True), (True, False), (True, True)):
        compiled("sm_90", block, trans, {})
        compiled("sm_90", block, trans, {"EPILOGUE": 1, "ACTIVATION": 2})


def compiled(arch: str, block: GroupBlock, trans: tuple[bool, bool], macros: dict[str, int]) -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    if arch not in nvrtc.architectures():
        pytest.skip(f"this NVRTC compiles for none older than {nvrtc.architectures()[0]}")
    capacity = packed.PARAMETER_BYTES[1] // (packed.member_type(bool(macros)).itemsize + 4) // 16 * 16
    code = inspect_source(group_source(block, *trans, GROUPED=capacity, **macros), arch)
    assert (code.local_bytes, code.loop.counts.get("LDS.32", 0)) == (0, 0)
    warps = block.resident * block.threads // 32
    assert warps * 32 * -(-code.registers // 8) * 8 <= 65536, "so many blocks are launched as fit"
    assert code.counts["LDG.128"] >= 2 and code.counts["STG.128"] >= block.TM * block.TN // 4


def test_what_does_not_compile_says_so() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")
    with pytest.raises(BuildError, match="warps of 4 x 8 threads"):
        nvrtc.compile_cubin(group_source(GroupBlock(64, 48, 16, 8, 4, 1, 0.5), False, False, GROUPED=16), "sm_80")


# reads beyond the operands


AT_THE_END = """
import sys
from pathlib import Path
import numpy as np
sys.path[:] = {path!r}
import test_tiled_group_on_cpu as here
from toprung.kernels import group as packed
from toprung.kernels.tiled_group import family

packed.kernel_of, packed.has_large_parameters = lambda session, source: source, lambda: True
family.group_block = lambda *what: here.SMALL


class Group(here.Group):
    def placed(self, batch, rows, cols, pad, turned):
        # the matrix ends where memory ends
        rows, cols = (cols, rows) if turned else (rows, cols)
        whole = here.hopper_on_cpu.ends_with_memory(batch * rows * (cols + pad) - pad)
        self.kept.append(np.full(16, np.nan, np.float32))
        stored = np.lib.stride_tricks.as_strided(whole, (batch, rows, cols + pad), (0, 4 * (cols + pad), 4))
        return stored, stored[:, :, :cols].transpose(0, 2, 1) if turned else stored[:, :, :cols]


if {place!r}:
    entered = here.hopper_on_cpu.bug({place!r}, {bug!r})
    entered.__enter__()
folder = here.Folder(Path({folder!r}), units=2)
for trans in ("NN", "NT", "TN", "TT"):
    for shapes, pad in ((here.SHAPES, 0), (here.ALIGNED, 0), (((33, 21, 18), (12, 20, 24)), 3)):
        Group(shapes, trans, pad).run(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, bug", [("", ""), ("last-row", " + (1 << 20)"), ("k-of-member", " + BK"),
                  ("last-four", " + (1 << 20)"), ("last-element", " + 1")],
)  # fmt: skip
def test_nothing_is_read_beyond_an_operand(tmp_path: Path, place: str, bug: str) -> None:
    """Each operand ends where memory ends: what is read behind it ends the process."""
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    program = AT_THE_END.format(path=sys.path, folder=str(tmp_path), place=place, bug=bug)
    assert hopper_on_cpu.reads_behind_memory(program) == bool(place)
