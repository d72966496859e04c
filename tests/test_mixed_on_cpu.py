"""Products of halves in flight, on a CPU and by the kernel's own source: types, layouts, edges, hostile values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import hopper_on_cpu
import test_hopper_inflight_on_cpu as inflight
from hopper_on_cpu import aligned, bug
from test_hopper_inflight_on_cpu import BLOCKS, SMALL, Folder, Product, close
from toprung.kernels.hopper_fp32x.config import Fp32xConfig
from toprung.kernels.hopper_fp32x.launches import Fp32xLaunches

folder, on_cpu = inflight.folder, inflight.on_cpu

TYPES = ("float32", "float16", "bfloat16")


def rounded(x: Any, kind: str) -> Any:
    """Return float32 elements rounded to a type."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    return widened(bits(x, kind), kind)


def bits(x: Any, kind: str) -> Any:
    """Return elements as they lie in memory, rounded to nearest."""
    if kind == "float32":
        return x
    if kind == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    word = np.ascontiguousarray(x).view(np.uint32)
    nearest = (word + 0x7FFF + (word >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, nearest).astype(np.uint16)


def widened(memory: Any, kind: str) -> Any:
    """Return elements in memory as float32."""
    if kind == "float32":
        return memory
    if kind == "float16":
        return memory.view(np.float16).astype(np.float32)
    return (memory.astype(np.uint32) << 16).view(np.float32)


@dataclasses.dataclass
class Mixed(Product):
    """A product whose operands have types of their own; ``skip`` and ``padding`` count words of 4 bytes."""

    types: tuple[str, str] = ("float32", "float32")

    @classmethod
    def like(cls, one: Product, *types: str) -> Mixed:
        a, b = rounded(one.a, types[0]), rounded(one.b, types[1])
        return cls(a, b, one.c, one.trans, one.padding, one.skip, types=(types[0], types[1]))

    def placed(self, x: Any, turn: bool, kind: str) -> Any:
        """Return an operand in memory, rows padded with NaN; a half's rows begin on words, whatever K and N are."""
        words = bits(np.ascontiguousarray(x.transpose(0, 2, 1)) if turn else x, kind)
        each, nan = (1, np.float32(np.nan)) if kind == "float32" else (2, np.uint16(0x7FFF))
        ld = -(-x.shape[1 if turn else 2] // each) * each + each * self.padding
        whole = np.full(words.shape[0] * words.shape[1] * ld + each * self.skip + 64, nan, words.dtype)
        first = -whole.ctypes.data % 64 // words.itemsize + each * self.skip
        made = whole[first : first + words.shape[0] * words.shape[1] * ld].reshape(*words.shape[:2], ld)
        made[:, :, : words.shape[2]] = words
        return made

    def run(self, folder: Any, config: Fp32xConfig, alpha: float = 1.0, beta: float = 0.0) -> Any:
        turned = self.trans[0] == "T", self.trans[1] == "T"
        a, b = (self.placed(*what) for what in zip((self.a, self.b), turned, self.types, strict=True))
        c = self.laid(self.c, False)
        (few_a, M, K), (few_b, _, N), batch = self.a.shape, self.b.shape, len(self.c)
        if not beta:
            c[...] = np.nan
        words = [x.itemsize // 2 * x.shape[2] // 2 for x in (a, b)]
        align = [next(w for w in (4, 2, 1) if (self.skip % w, ld % w) == (0, 0)) for ld in words]
        lds = a.shape[2], b.shape[2], c.shape[2]
        strides = a[0].size if few_a > 1 else 0, b[0].size if few_b > 1 else 0, c[0].size if batch > 1 else 0
        desc = aligned(
            M, N, K, batch, *turned, *lds, *strides, align_a=align[0], align_b=align[1], align_c=1,
            type_a=self.types[0], type_b=self.types[1],
        )  # fmt: skip
        made = Fp32xLaunches(folder, desc, config)
        made.starter()(a.ctypes.data, 0, b.ctypes.data, 0, c.ctypes.data, 0, alpha, beta)
        self.counted = hopper_on_cpu.counted(made)
        assert np.isnan(c[:, :, N:]).all(), "written outside"
        return c[:, :, :N]


PAIRS = [(x, y) for x in TYPES for y in TYPES if (x, y) != ("float32", "float32")]
LAYOUTS = (("NN", 0), ("NT", 0), ("TN", 0), ("TT", 0), ("NN", 1), ("NT", 2), ("TN", 1), ("TT", 2))
EVERY = [(c, *how, *pair) for i, c in enumerate(BLOCKS) for j, pair in enumerate(PAIRS) for how in LAYOUTS[(i + j) % 2 :: 2]]
QUICK = [(SMALL, *LAYOUTS[i % 8], *pair) for i, pair in enumerate((("bfloat16", "float32"), ("float32", "bfloat16")))]


@pytest.mark.parametrize(
    "config, trans, skip, type_a, type_b", [*QUICK, *(pytest.param(*p, marks=pytest.mark.slow) for p in EVERY if p not in QUICK)],
    ids=str,
)  # fmt: skip
def test_types_layouts_alignments_and_edges(
    folder: Folder, config: Fp32xConfig, trans: str, skip: int, type_a: str, type_b: str
) -> None:
    """Rows, columns and an odd K end inside a block, a piece and a stage; nothing has to be computed again."""
    plain = Product.of(config.BM + 9, config.BN + 7, 75, 2, 2, trans=trans, padding=4 - skip, skip=skip)
    one = Mixed.like(plain, type_a, type_b)
    assert close(one.run(folder, config, 0.5, 2.0), one, 0.5, 2.0) and not one.counted


@pytest.mark.slow
@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_sums_of_one_sign_are_not_biased(folder: Folder, types: tuple[str, str]) -> None:
    """The side in fp32 makes up for what is cut; two halves are multiplied as they are, and lose it."""
    one = Mixed.like(Product.of(35, 50, 128, 2, 1), *types)

    def prepare() -> None:
        one.a, one.b = rounded(one.a, types[0]), rounded(one.b, types[1])

    found = hopper_on_cpu.biased(one, lambda: one.run(folder, SMALL), prepare)
    assert "integers" not in found and bool(found) == ("float32" not in types)


@pytest.mark.parametrize("types", [("bfloat16", "float32"), ("float32", "float16")], ids=str)
def test_clusters_add_their_slices(folder: Folder, types: tuple[str, str]) -> None:
    one = Mixed.like(Product.of(70, 40, 259, 2, 1, trans="NT"), *types)
    assert close(one.run(folder, dataclasses.replace(SMALL, SLICES=4), 1.0, -1.0), one, 1.0, -1.0)


@pytest.mark.slow
@pytest.mark.parametrize("trans", ["NN", "NT", "TN"])
def test_small_elements_among_zeros_are_computed_again(folder: Folder, trans: str) -> None:
    for types in (("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")):
        for operand, kind in zip("ab", types, strict=True):
            small = inflight.SMALL_ONE if kind == "float32" else inflight.SMALLER_HALF
            for few in (1, 2):
                one = Mixed.like(Product.of(70, 40, 96, trans=trans), *types)
                inflight.are_computed_again(one, operand, few, folder, SMALL, small=small)
    for types, operand in (
        (("float32", "float16"), "a"),
        (("float16", "float32"), "b"),
    ):  # the half is not scaled, but its largest counts
        one = Mixed.like(Product.of(70, 40, 96, trans=trans), *types)
        inflight.are_computed_again(one, operand, 2, folder, SMALL)


def test_rows_behind_a_half_are_never_read(folder: Folder) -> None:
    """They are zeros of no scale in the block's memory: sums of B's small elements with them are in no doubt."""
    one = Mixed.like(Product.of(9, 40, 64), "float16", "float32")
    one.a[...] = one.b[...] = 1
    one.b[:, :16, 3] = 1e-8
    assert close(one.run(folder, SMALL), one) and not one.counted


HOSTILE = [(name, types) for name in inflight.NAMES for types in (("bfloat16", "float32"), ("float32", "bfloat16"))]
HOSTILE += [(name, types) for name in ("special", "zeros") for types in (("float16", "float32"), ("bfloat16", "float16"))]


@pytest.mark.slow
@pytest.mark.parametrize("name, types", HOSTILE, ids=str)
def test_hostile_values(folder: Folder, name: str, types: tuple[str, str]) -> None:
    """Inf, NaN, bf16 of any exponent, subnormals too: as plain fp32 has them, from the operands as given."""
    one = Mixed.like(inflight.hostile(name), *types)
    assert close(one.run(folder, SMALL), one)
    if name in ("special", "subnormal", "huge"):
        assert one.counted


@pytest.mark.slow
def test_every_half_is_its_own_term(folder: Folder) -> None:
    """All finite numbers of fp16, subnormal ones included, times powers of two: no bit is lost, and nothing is computed again."""
    one = Mixed.like(Product.of(992, 40, 64), "float16", "float32")
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].astype(np.float32)
    one.a[...] = halves[: one.a.size].reshape(one.a.shape)
    one.b[...] = np.eye(64, 40, dtype=np.float32) * np.float32(2.0**-7)
    assert np.array_equal(one.run(folder, SMALL), one.reference().astype(np.float32)) and not one.counted


PLANTS = (
    ("high-half", "~low_of"),
    ("scaled-early", "if (false) "), ("turn-of-part", "0 & "),
    ("turn-of-halves", "1 + 0 * "), ("last-piece", "~4"),
    ("half-again", " & 0xff80"),
    ("hi-lo", "if (false) "), ("odd-rows", "0 * "),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place, text", PLANTS)
def test_a_planted_bug_is_found(folder: Folder, place: str, text: str) -> None:
    with bug(place, text), pytest.raises(AssertionError):
        for trans in ("NN", "TT"):
            test_types_layouts_alignments_and_edges(folder, SMALL, trans, 0, "bfloat16", "float32")
            test_types_layouts_alignments_and_edges(folder, SMALL, trans, 1, "float32", "bfloat16")
        test_hostile_values(folder, "subnormal", ("bfloat16", "float32"))
        for trans in ("NT", "TN"):
            test_small_elements_among_zeros_are_computed_again(folder, trans)
