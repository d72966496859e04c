"""Operands laid out in the background of Hopper's plain fp32 product: by the kernel's own text, its blocks at once, on a CPU."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
from conftest import require
from test_hopper_fp32_on_cpu import Folder, Launch
from toprung import hopper_fp32
from toprung.blas.call import GemmCall
from toprung.errors import Unsupported
from toprung.hopper import Product
from toprung.hopper_fp32 import (
    CHUNK,
    LIMIT,
    PANEL,
    Plan,
    Schedule,
    Section,
    Variant,
    behind,
    counters,
    reckoned,
    schedule,
    sections,
)

TINY = Variant(STAGES=2, GROUP=2, LAY=1)
BEFORE = Variant(STAGES=2, GROUP=2)
UNITS = 3
TAIL = 256
"""Bytes behind every piece of memory that nobody may touch."""


class Shared(Folder):
    """Whose memory processes share, with canaries behind it."""

    def __init__(self, path: Any, units: int) -> None:
        super().__init__(path, units)
        self.made: list[Any] = []
        self.change: Callable[[str], str] = lambda text: text

    def allocate(self, nbytes: int) -> Any:
        array: Any = np.frombuffer(mmap.mmap(-1, nbytes + TAIL), np.uint8)
        array[:] = 0xA5
        assert array.ctypes.data % 256 == 0
        self.made.append(SimpleNamespace(array=array, pointer=array.ctypes.data, nbytes=nbytes))
        return self.made[-1]

    def translated(self, source: Any) -> tuple[str, int]:
        text, arguments = super().translated(source)
        return self.change(text), arguments


class AtOnce(Launch):
    """A launch of which every block must end well."""

    def __call__(self, queue: Any, *values: Any) -> None:
        super().__call__(queue, *values)
        failed = ctypes.c_int.in_dll(self._library, "failed")
        count, failed.value = failed.value, 0
        if count:
            raise Stuck(f"{count} blocks did not end well")


class Stuck(Exception):
    """A block waited for ever."""


@pytest.fixture
def folder(kept: Any, monkeypatch: pytest.MonkeyPatch) -> Shared:
    require(not hopper_on_cpu.missing(), hopper_on_cpu.missing())
    monkeypatch.setattr(hopper_fp32, "Overlapping", AtOnce)
    monkeypatch.setattr(hopper_fp32, "_kernel", lambda session, source: source)
    monkeypatch.setenv("BLOCKS", "together")
    return Shared(kept, UNITS)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where what was built stays."""
    return tmp_path_factory.mktemp("background")


def put(folder: Shared, x: Any, pad: int, skip: int) -> tuple[Any, int]:
    """A matrix among NaN, ``skip`` elements in; and its leading dimension."""
    rows, cols = x.shape
    ld = cols + pad
    flat = np.full(rows * ld + skip, np.nan, np.float32)
    np.lib.stride_tricks.as_strided(flat[skip:], (rows, cols), (4 * ld, 4))[...] = x
    buffer = folder.allocate(flat.nbytes)
    folder.upload(buffer, flat)
    return buffer, ld


def result(
    folder: Shared, M: int, N: int, K: int, trans: str, variant: Variant = TINY, pad: tuple[int, int] = (0, 0),
    skip: tuple[int, int] = (0, 0), cut: bool = True, limit: int = LIMIT, runs: int = 2,
) -> tuple[list[Any], Any, Plan]:  # fmt: skip
    """Products by one plan, each with a workspace full of NaN; and what they should be about."""
    folder.made.clear()
    folder._workspace = None
    rng = np.random.default_rng(M + N + K)
    a, b = rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)
    stored = a.T if trans[0] == "T" else a, b.T if trans[1] == "T" else b
    (at_a, lda), (at_b, ldb) = (put(folder, x, p, s) for x, p, s in zip(stored, pad, skip, strict=True))
    out = folder.allocate(4 * M * N)
    call: Any = Product(M, N, K, 1, trans[0] == "T", trans[1] == "T", lda, ldb, N)
    if any(skip):
        aligned = {"align_a": 1 if skip[0] else 4, "align_b": 1 if skip[1] else 4}
        call = GemmCall(M, N, K, 1, trans[0] == "T", trans[1] == "T", lda, ldb, N, **aligned)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper_fp32, "PART", -1.0)  # as many parts as may be
        plan = Plan(folder, call, variant, limit, cut=cut)  # type: ignore[arg-type]
        for _ in range(runs):
            plan.ready()
            folder._workspace.buffer.array[: folder._workspace.buffer.nbytes] = 0xFF
            out.array[:] = 0xA5
            plan.run(at_a.pointer, skip[0], at_b.pointer, skip[1], out.pointer, 0, 1.0, 0.0)
            found.append(out.array[: 4 * M * N].view(np.uint32).copy())
            flags = plan.flags(folder.queue)
            assert not flags.array[: flags.nbytes].any()  # type: ignore[attr-defined]
    assert all((one.array[one.nbytes :] == 0xA5).all() for one in folder.made), "written behind the end"
    return found, a.astype(float) @ b.astype(float), plan


def same(folder: Shared, *shape: Any, variant: Variant = TINY, **how: Any) -> Plan:
    """The bits of the product behind a layout pass of its own, and of every run."""
    found, want, plan = result(folder, *shape, variant=variant, **how)
    before, _, other = result(folder, *shape, variant=replace(variant, LAY=0), runs=1, **how)
    assert plan.launches == len(plan.panels) and other.launches > len(other.panels)
    for one in found:
        np.testing.assert_array_equal(one, before[0])
    M, N, _, _ = shape
    np.testing.assert_allclose(found[0].view(np.float32).reshape(M, N), want, atol=1e-4 * shape[2] ** 0.5)
    return plan


@pytest.mark.parametrize("trans", ["NN", "NT", "TT"])
def test_the_same_bits_as_behind_a_layout_pass(folder: Shared, trans: str) -> None:
    plan = same(folder, 132, 260, 100, trans)  # 4 tiles, 3 blocks: one tile is whole
    (step,) = plan.steps()
    assert step.schedule == (UNITS, 4 % UNITS + UNITS)


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NN", "NT", "TT"])
def test_many_tiles_and_chunks_enough_to_look_ahead(folder: Shared, trans: str) -> None:
    same(folder, 260, 516, 100, trans)
    same(folder, 260, 516, 500, trans, variant=Variant(GROUP=2, LAY=1))


@pytest.mark.parametrize(
    ("shape", "pad", "skip"),
    [
        ((1, 1, 1), (0, 0), (0, 0)),
        ((131, 258, 77), (3, 1), (0, 0)),
        ((66, 300, 33), (0, 0), (1, 3)),
        ((129, 40, 64), (0, 4), (2, 0)),
    ],
    ids=str,
)
def test_edges_and_operands_off_sixteen_bytes(folder: Shared, shape: Any, pad: Any, skip: Any) -> None:
    for trans in ("NN", "TT") if shape[0] == 131 else ("NT",):
        same(folder, *shape, trans, pad=pad, skip=skip)
    if any(pad):
        same(folder, *shape, "TN", pad=(1, 1))  # copied


@pytest.mark.slow
def test_panels_of_a_large_operand_and_blocks_one_after_the_other(folder: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKS", "alone")
    plan = same(folder, PANEL + 70, 40, 40, "NN", variant=Variant(512, 64, STAGES=2, GROUP=4, LAY=1), cut=False)
    assert plan.steps()[0].schedule.shared == 0
    same(folder, 70, PANEL + 200, 40, "NT")


def test_pieces_of_a_call_lay_out_an_operand_once(folder: Shared) -> None:
    plan = same(folder, 70, 72, 40, "NT", limit=13_000)
    assert len(plan.panels) > 2 and not all(p.lay_a and p.lay_b for p in plan.panels)


PLANTED = {
    "the chunk before": (
        "int at = r / PANEL, first = k / CHUNK, last = (end - 1) / CHUNK;",
        "int at = r / PANEL, first = k / CHUNK, last = first;",
    ),
    "half of a chunk": ("/ UNIT_ROWS;\n        all", "/ UNIT_ROWS / 2;\n        all"),
    "counts stay": ("i += 32) o.state[i] = 0;", "i += 32) o.state[i] = i < 2 ? 0 : o.state[i];"),
    "the claims stay": ("for (int i = lane; i < o.of[1]", "for (int i = lane + 1; i < o.of[1]"),
    "too far ahead": ("seen(counts + last + 1 + i) >= want", "seen(counts + last + 1 + i) >= 0"),
    "all too early": ("== BACKGROUND_WARPS * gridDim.x", "< BACKGROUND_WARPS * gridDim.x"),
    "another panel": ("int at = r / PANEL, first", "int at = 0, first"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "counts stay" else pytest.mark.slow) for n in PLANTED])
def test_a_planted_bug_is_seen(folder: Shared, name: str) -> None:
    right, wrong = PLANTED[name]

    def change(text: str) -> str:
        assert "struct Order" not in text or right in text
        return text.replace(right, wrong)

    folder.change = change
    shape = (PANEL + 700, 40, 24, "NN") if name == "another panel" else (300, 260, 100, "NN")
    with pytest.raises((AssertionError, Stuck)):
        same(folder, *shape, variant=Variant(GROUP=2, LAY=1))


# what is laid out first, and where it is chosen


@pytest.mark.parametrize("n", [4096, 6144, 8192, 16384])
@pytest.mark.parametrize("variant", [v for v in hopper_fp32.VARIANTS if v.LAY], ids=str)
def test_the_first_section_holds_what_all_blocks_begin_with(n: int, variant: Variant) -> None:
    call = Product(n, n, 4096)
    how = schedule(call, variant, 132)
    of = sections(call, variant, how)
    tiles_m, tiles_n = n // variant.BM, n // variant.BN
    panels = n // PANEL
    for block in range(how.grid):
        m, at = hopper_fp32.corner(how.shared + block, tiles_m, tiles_n, variant)
        for x, section in zip((m, at), of, strict=True):
            assert (x // PANEL - section.first) % panels < section.wide <= panels
    if n == 4096 and variant.BM == 128:
        assert (how, of) == (Schedule(132, 248), (Section(1, 2), Section(3, 4)))


def test_it_is_chosen_where_little_is_waited_for() -> None:
    first, later = hopper_fp32.FIRST, Variant(LAY=1)
    for trans in ((False, False), (False, True), (True, True)):
        call = Product(4096, 4096, 4096, 1, *trans)
        assert hopper_fp32.choose(call, 132) == later
        assert behind(call, later, 132) < 1e-5 < reckoned(call, 132, first) - reckoned(call, 132, later)
    assert hopper_fp32.choose(Product(4096, 4096, 4096, 1, True, False), 132) == first, "there is nothing to lay out"
    assert not hopper_fp32.choose(Product(2048, 2048, 2048), 132).LAY, "blocks begin anywhere along K"


def test_what_cannot_be_is_refused(folder: Shared) -> None:
    assert "not both" in Variant(512, 64, STAGES=4, TURN_A=1, LAY=1).refused()
    with pytest.raises(Unsupported, match="32 bits"):
        Plan(folder, Product(4, 4, 4, lda=1 << 31), TINY)  # type: ignore[arg-type]


def test_counters_lie_behind_the_flags(folder: Shared) -> None:
    _, _, plan = result(folder, 66, 40, 70, "NN", runs=1)
    flags: Any = plan.flags(folder.queue)
    assert flags.nbytes == 4 * (UNITS + counters(plan.panels[0], 70)) and counters(plan.panels[0], 70) == 2 + 2 * (70 // CHUNK + 1)
