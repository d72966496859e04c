"""Plans of a range of sizes: forms are found from plans, right at every size, and refused where a word follows none."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import golden
from toprung.arrays.base import Home, Operand
from toprung.backends import forms, native_plan
from toprung.backends.base import Source
from toprung.backends.cuda import CUDASession
from toprung.blas import ranges
from toprung.blas.operands import How, View
from toprung.dispatch.select import select
from toprung.gemm.desc import GemmDesc
from toprung.gemm.layout import tight
from toprung.kernels.launch import launches_of

ALIGNED = {"align_a": 4, "align_b": 4, "align_c": 4}
Plan = Callable[[int], forms.Words]


class Session(golden.Recorder, CUDASession):
    """A session of an H200 whose kernels have a number for a handle."""

    _can_overlap = True
    numbers: ClassVar[dict[str, int]] = {}

    def load(self, binary: bytes, source: Source) -> Any:
        name = f"{source.name} {source.defines_text()}"
        return SimpleNamespace(source=source, function=self.numbers.setdefault(name, len(self.numbers)), dynamic=0, largest=1024)


SESSION = Session(golden.devices()["h200-cuda"])


def planned(axis: str, size: int, precision: str, **more: Any) -> Plan:
    """Return the words of a product's plan by its size along an axis, with the configuration of one size."""
    desc = lambda n: GemmDesc(**{"M": 512, "N": 1024, "K": 1024, **more, axis: n}, **ALIGNED)  # noqa: E731
    selected = select(SESSION.device, desc(size), True, precision)

    def words(n: int) -> forms.Words:
        plan = launches_of(SESSION, desc(n), selected.family, selected.config).plan
        return np.frombuffer(native_plan.words_of(SESSION, plan), np.int64)

    return words


CASES = [
    ("M", 100, "fp32", {"N": 4096, "K": 4096, "trans_b": True}), ("M", 3000, "fp32x", {"N": 4096, "trans_b": True}),
    ("M", 40, "fp32", {"trans_b": True}), ("M", 900, "fp32x", {"K": 4096}), ("K", 900, "fp32x", {"trans_a": True}),
    ("batch", 100, "fp32x", {"N": 64, "K": 64, "stride_a": 1 << 15, "stride_b": 4096, "stride_c": 1 << 15}),
]  # fmt: skip


@pytest.mark.parametrize("axis, size, precision, more", CASES)
def test_words_are_those_of_fresh_plans_at_both_sides_of_every_edge(axis: str, size: int, precision: str, more: Any) -> None:
    plan = planned(axis, size, precision, **more)
    made = None
    for width in (512, 64, 16):
        first = (size - 1) // width * width + 1
        made = made or forms.fitted(plan, first, first + width - 1, random.Random(size))
    assert made is not None and len(made.forms.word)
    every = np.arange(made.first, made.last + 1)
    steps = {int(n) for n in every[:-1][(np.diff(made.forms.at(every[:, None]), axis=0) != 0).any(axis=1)]}
    edges = [n + more for n in random.Random(1).sample(sorted(steps), min(len(steps), 8)) for more in (0, 1)]
    for n in (made.first, made.last, *edges):
        assert np.array_equal(made.at(n), plan(n)), n


WORDS: dict[str, Callable[[int], int]] = {
    "tiles": lambda n: 8 * -(-n // 192), "at most the device's": lambda n: min(132, 8 * -(-n // 64)), "bytes": lambda n: 4096 * n,
    "rounded bytes": lambda n: 512 + 256 * -(-16688 * n // 256), "blocks": lambda n: -(-96 * n // 128), "none": lambda n: 7,
}  # fmt: skip


@pytest.mark.parametrize("first, last", [(513, 1024), (1025, 2048), (33, 64)])
def test_each_form_is_found(first: int, last: int) -> None:
    made = forms.fitted(lambda n: np.array([word(n) for word in WORDS.values()]), first, last, random.Random(first))
    assert made is not None
    for n in range(first, last + 1):
        assert made.at(n).tolist() == [word(n) for word in WORDS.values()]


@pytest.mark.parametrize(
    "word",
    [lambda n: n * n, lambda n: n % 132, lambda n: 2 * n if n < 900 else n, lambda n: n ^ 1, lambda n: -(-n // 64) - (n == 777)],
    ids=["square", "rest", "break", "odd", "one size"],
)
def test_a_word_that_follows_no_form_has_no_range(word: Callable[[int], int]) -> None:
    assert forms.fitted(lambda n: np.array([word(n)]), 513, 1024, random.Random(0)) is None


def test_plans_of_other_launches_and_sizes_without_a_plan_have_no_range() -> None:
    assert forms.fitted(lambda n: np.zeros(3 + n // 1000, np.int64), 513, 1024, random.Random(0)) is None
    assert forms.fitted(lambda n: None if n > 700 else np.zeros(3, np.int64), 513, 1024, random.Random(0)) is None


PRODUCTS = [
    (ranges.ROWS, 2680, (2680, 2304), (2304, 1), (2304, 768)), (ranges.ROWS, 8970, (8970, 2304), (2304, 1), (2304, 768)),
    (ranges.DEPTH, 15587, (384, 15587), (1, 384), (15587, 256)), (ranges.DEPTH, 3610, (32, 3610), (1, 32), (3610, 3781)),
    (ranges.BATCH, 40, (40, 370, 2367), (370 * 2367, 2367, 1), (40, 2367, 445)),
]  # fmt: skip


@pytest.mark.parametrize("axis, size, a, strides, b", PRODUCTS)
def test_every_size_of_a_range_has_the_words_of_its_own_plan(
    axis: int, size: int, a: tuple[int, ...], strides: tuple[int, ...], b: tuple[int, ...]
) -> None:
    """Blocks that split rows, and parts of K, follow formulas of their own: what holds at most sizes is wrong at few."""
    lies = lambda shape, by: View(Operand(None, None, shape, by, Home("cuda", 0), 0), shape, by)  # type: ignore[arg-type]  # noqa: E731
    views = lies(a, strides), lies(b, tight(b)), lies((*a[:-1], b[-1]), tight((*a[:-1], b[-1])))
    operands = ranges.Operands(*views, 0.0, None, "", How("mm", "auto", False))
    (found,) = ranges.around(SESSION.device, operands, axis, "PyTorch's own")
    assert found.made is not None and not found.why and found.made.first <= size <= found.made.last
    session, selected = ranges.planned(SESSION.device), found.selection
    for n in range(found.made.first, found.made.last + 1):
        there = operands.at(axis, n)
        (desc,) = there.program(False).descs  # type: ignore[union-attr]
        plan = launches_of(session, desc, selected.family, selected.config).plan
        assert np.array_equal(found.made.at(n), ranges.words_of(session, plan, there)), n
