"""Lowering of products with any strides to copies and launches that kernels can address: pure arithmetic on shapes and strides.

``lower`` turns a product of three strided arrays into a Program: copies where no kernel could address an operand (each with its
reason), and products. It knows no device and no pointer, so one Program serves every call with the same layouts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from toprung.errors import BadShape
from toprung.gemm.desc import LARGEST, Desc, GemmDesc, GemvDesc
from toprung.gemm.epilogue import Epilogue
from toprung.gemm.layout import Layout, tight


class Place(NamedTuple):
    """First element of an operand of a step.

    Attributes
    ----------
    slot : 0, 1, 2 for A, B, C, then the temporaries
    offset : number of elements from the start of the slot
    """

    slot: int
    offset: int


AS_GIVEN = Place(0, 0), Place(1, 0), Place(2, 0)
"""Places of A, B and C as they are."""


class Copy(NamedTuple):
    """A copy step, dst = factor · src or a function of it, over three nested dimensions.

    Attributes
    ----------
    src, dst : first elements
    shape : number of elements along each dimension
    src_strides, dst_strides : number of elements from one to the next along each dimension
    beta : True if the factor is β, and nothing is read if β = 0; False if the factor is 1
    activation : name of the function that each element goes through; empty for none
    """

    src: Place
    dst: Place
    shape: tuple[int, int, int]
    src_strides: tuple[int, int, int]
    dst_strides: tuple[int, int, int]
    beta: bool = False
    activation: str = ""


class Multiply(NamedTuple):
    """A product step, C = α·A·B + β·C, that one launch of a kernel computes."""

    desc: Desc
    a: Place
    b: Place
    c: Place


class Program(NamedTuple):
    """Steps of a call, in order.

    Attributes
    ----------
    steps : copies and products
    temporaries : number of elements of each temporary, slots 3 and up
    copies : reason why each operand is copied, a sentence
    epilogue : what the product's own launch does with it on the way out; only of a program that ``is_direct``
    """

    steps: tuple[Copy | Multiply, ...]
    temporaries: tuple[int, ...] = ()
    copies: tuple[str, ...] = ()
    epilogue: Epilogue | None = None

    @classmethod
    def of(cls, desc: Desc, epilogue: Epilogue | None = None) -> Program:
        """Return the program of one product on its operands as they are."""
        return cls((Multiply(desc, *AS_GIVEN),), epilogue=epilogue)

    @property
    def descs(self) -> tuple[Desc, ...]:
        """Descriptors of the products, each once."""
        return tuple(dict.fromkeys(s.desc for s in self.steps if isinstance(s, Multiply)))

    @property
    def is_direct(self) -> bool:
        """True if the program is one product on its operands as they are, without copies."""
        return len(self.steps) == 1 and self.steps[0][1:] == AS_GIVEN and not (self.temporaries or self.copies)

    def __str__(self) -> str:
        return "; ".join(str(s.desc) if isinstance(s, Multiply) else f"copy {'×'.join(map(str, s.shape))}" for s in self.steps)


def shifted(align: int, *elements: int) -> int:
    """Return the alignment, in floats, that remains when offsets or strides of so many elements are added."""
    return min([align, *(4 if n % 4 == 0 else 2 if n % 2 == 0 else 1 for n in elements)])


class Addressed(NamedTuple):
    """A matrix as kernels take it.

    Attributes
    ----------
    trans : True if it is stored transposed
    ld : leading dimension, in elements
    """

    trans: bool
    ld: int


def addressed(rows: int, cols: int, row_stride: int, col_stride: int) -> Addressed | None:
    """Return how a kernel reads a matrix in place, row-major if it can; None if it cannot. Strides in elements."""
    if max(rows, cols) > LARGEST:
        return None
    for trans, (n, m, outer, inner) in (
        (False, (rows, cols, row_stride, col_stride)), (True, (cols, rows, col_stride, row_stride)),
    ):  # fmt: skip
        ld = outer if n > 1 else max(m, 1)
        if (inner == 1 or m == 1) and max(m, 1) <= ld <= LARGEST:
            return Addressed(trans, ld)
    return None


def merged(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the fewest sizes and strides over the same elements: ones dropped, neighbours joined, largest stride first."""
    dims = [(n, *s) for n, *s in zip(shape, *strides, strict=True) if n != 1]
    dims.sort(key=lambda d: tuple(-abs(s) for s in reversed(d[1:])))
    joined: list[tuple[int, ...]] = []
    for dim in dims:
        if joined and all(before == dim[0] * now for before, now in zip(joined[-1][1:], dim[1:], strict=True)):
            joined[-1] = (joined[-1][0] * dim[0], *dim[1:])
        else:
            joined.append(dim)
    return tuple(d[0] for d in joined), [tuple(d[i + 1] for d in joined) for i in range(len(strides))]


def why_copied(rows: int, cols: int, row_stride: int, col_stride: int) -> str:
    """Return the reason why a kernel cannot address a matrix in place."""
    if min(row_stride, col_stride) < 0:
        return "a stride is negative"
    if min(row_stride if rows > 1 else 1, col_stride if cols > 1 else 1) == 0:
        return "it is broadcast along its rows or columns"
    if row_stride != 1 and col_stride != 1:
        return f"neither rows nor columns are contiguous (strides {row_stride} and {col_stride})"
    return f"its rows overlap or are too far apart (strides {row_stride} and {col_stride})"


def copies_between(
    shape: tuple[int, ...], src: Place, src_strides: tuple[int, ...], dst: Place, dst_strides: tuple[int, ...], beta: bool = False,
    activation: str = "",
) -> Iterator[Copy]:  # fmt: skip
    """Yield the copies that move a strided array: one if three nested dimensions suffice. Strides in elements."""
    sizes, (from_, to) = merged(shape, src_strides, dst_strides)
    outer = max(len(sizes) - 3, 0)
    inner = tuple([1] * (3 - len(sizes[outer:])) + list(sizes[outer:]))
    steps = [tuple([0] * (3 - len(s[outer:])) + list(s[outer:])) for s in (from_, to)]
    for index in itertools.product(*map(range, sizes[:outer])):
        at = [sum(i * s for i, s in zip(index, strides[:outer], strict=True)) for strides in (from_, to)]
        yield Copy(
            Place(src.slot, src.offset + at[0]), Place(dst.slot, dst.offset + at[1]),
            inner, steps[0], steps[1], beta, activation,  # type: ignore[arg-type]
        )  # fmt: skip


class _Lowering:
    """Builder of one program: collects its temporaries and steps."""

    def __init__(self) -> None:
        self.temporaries: list[int] = []
        self.steps: list[Copy | Multiply] = []
        self.copies: list[str] = []

    def temporary(self, shape: tuple[int, ...]) -> Place:
        self.temporaries.append(max(math.prod(shape), 1))
        return Place(2 + len(self.temporaries), 0)

    def pack(self, name: str, layout: Layout, src: Place, why: str) -> tuple[Layout, Place]:
        """Add a contiguous copy of an input, and return its layout and place.

        A dimension outside the matrix along which the input is broadcast stays broadcast.
        """
        shape = (*(1 if s == 0 else n for n, s in zip(layout.shape[:-2], layout.strides[:-2], strict=True)), *layout.shape[-2:])
        place, strides = self.temporary(shape), tight(shape)
        self.steps += copies_between(shape, src, layout.strides, place, strides)
        self.copies.append(f"{name} {'×'.join(map(str, layout.shape))}: {why}")
        kept = tuple(0 if n == 1 else s for n, s in zip(shape[:-2], strides[:-2], strict=True))
        return Layout(layout.shape, (*kept, *strides[-2:]), 4), place


def epilogue_of(
    desc: Desc, shape: tuple[int, ...], c: tuple[int, ...], d: tuple[int, ...] | None, activation: str
) -> Epilogue | None:  # fmt: skip
    """Return the epilogue of a direct program's product as its descriptor counts rows and matrices; None if it cannot be said so.

    Parameters
    ----------
    shape, c : shape and strides of the result, from which the descriptor was made
    d : strides of what is added, in the same shape; None if nothing is
    """
    if desc.is_vector:
        return None
    if d is None:
        return Epilogue(activation=activation)
    on, batched = d[-1] if shape[-1] > 1 else 0, desc.batch > 1
    end = -2 if batched else -1  # matrices of a batch may have become one taller matrix
    sizes, (steps, _) = merged(shape[:end], d[:end], c[:end])
    if sizes != ((desc.batch if batched else desc.M,) if (desc.batch if batched else desc.M) > 1 else ()):
        return None
    step = steps[0] if steps else 0
    down = (d[-2] if shape[-2] > 1 else 0) if batched else step
    return Epilogue(True, down, on, step if batched else 0, activation)


def lower(a: Layout, b: Layout, c: Layout, beta: float, reads: bool = True, vectors: bool = True) -> Program:
    """Return the steps of C = α·A·B + β·C.

    Parameters
    ----------
    a, b, c : layouts with the same batch dimensions (a broadcast one has stride 0). A program for halves can run if it is direct
    beta : 0, 1, or any other number for all others
    reads : False if α = 0, when A and B are not read
    vectors : False if a result of one row or column is to be a matrix like any other
    """
    (rows, depth), cols = a.shape[-2:], b.shape[-1]
    low = _Lowering()
    if 0 in c.shape:
        return Program(())
    if max(rows, depth, cols) > LARGEST:
        raise BadShape(f"{rows}×{depth} times {depth}×{cols}: a kernel takes sizes up to {LARGEST}; multiply parts of it")
    a, b, c, places = _forward(a, b, c)
    if depth == 0 or not reads:
        if beta != 1:
            low.steps += copies_between(c.shape, places[2], c.strides, places[2], c.strides, beta=True)
        return Program(tuple(low.steps))
    target, at_c = c, places[2]
    vector = vectors and math.prod(c.shape[:-2]) == 1 and 1 in (rows, cols)
    why = "" if vector and _increment(c) is not None else _unaddressed(c)
    if why:
        places[2] = low.temporary(c.shape)
        target = Layout(c.shape, tight(c.shape), 4)
        if beta != 0:
            low.steps += copies_between(c.shape, at_c, c.strides, places[2], target.strides)
        low.copies.append(f"C {'×'.join(map(str, c.shape))}: {why}")
    layouts = [a, b]
    if not (vector and _lower_vector(low, layouts, places, target, beta)):
        _lower_matrix(low, layouts, places, target, beta)
    if places[2].slot != 2:
        low.steps += copies_between(c.shape, places[2], target.strides, at_c, c.strides)
    return Program(tuple(low.steps), tuple(low.temporaries), tuple(low.copies))


def _forward(a: Layout, b: Layout, c: Layout) -> tuple[Layout, Layout, Layout, list[Place]]:
    """Return the layouts and places with the batch in the order in which C's matrices lie in memory."""
    layouts, offsets = [a, b, c], [0, 0, 0]
    for dim, step in enumerate(c.strides[:-2]):
        if step < 0:
            for i, (shape, strides, align, dtype) in enumerate(layouts):
                move = (shape[dim] - 1) * strides[dim]
                offsets[i] += move
                layouts[i] = Layout(shape, (*strides[:dim], -strides[dim], *strides[dim + 1 :]), shifted(align, move), dtype)
    return (*layouts, [Place(i, o) for i, o in enumerate(offsets)])  # type: ignore[return-value]


def _unaddressed(c: Layout) -> str:
    """Return the reason why no kernel can write a result in place; empty if one can."""
    rows, cols = c.shape[-2:]
    how = addressed(rows, cols, *c.strides[-2:])
    if how is None:
        return why_copied(rows, cols, *c.strides[-2:])
    extent = (cols - 1) * how.ld + rows if how.trans else (rows - 1) * how.ld + cols
    if any(n > 1 and s < extent for n, s in zip(c.shape[:-2], c.strides[:-2], strict=True)):
        return "the matrices of its batch lie within each other"
    return ""


def _increment(layout: Layout) -> int | None:
    """Return the number of elements between those of a matrix that is a row or a column; None if a kernel cannot step so."""
    rows, cols = layout.shape[-2:]
    step = layout.strides[-2] if rows > 1 else layout.strides[-1] if cols > 1 else 1
    return step if 0 < abs(step) <= LARGEST else None


def _lower_vector(low: _Lowering, layouts: list[Layout], places: list[Place], c: Layout, beta: float) -> bool:
    """Add the steps of y = op(A)·x, operands exchanged if the vector stands in front, and return True."""
    first = c.shape[-1] == 1
    matrix, vector = (layouts[0], layouts[1]) if first else (layouts[1].transposed, layouts[0].transposed)
    names, slots = ("AB", (0, 1)) if first else ("BA", (1, 0))
    at = [places[slots[0]], places[slots[1]]]
    how = addressed(*matrix.shape[-2:], *matrix.strides[-2:])
    if how is None:
        matrix, at[0] = low.pack(names[0], matrix, at[0], why_copied(*matrix.shape[-2:], *matrix.strides[-2:]))
        how = addressed(*matrix.shape[-2:], *matrix.strides[-2:])
        assert how is not None
    step = _increment(vector)
    if step is None:
        vector, at[1] = low.pack(names[1], vector, at[1], "it repeats one element")
        step = 1
    out = _increment(c)
    assert out is not None
    m, n = (matrix.transposed if how.trans else matrix).shape[-2:]
    desc = GemvDesc(
        m, n, trans=how.trans, lda=how.ld, incx=step, incy=out, align_a=shifted(matrix.align, how.ld), align_x=vector.align,
        beta_zero=beta == 0,
    )  # fmt: skip
    low.steps.append(Multiply(desc, at[0], at[1], places[2]))
    return True


def _lower_matrix(low: _Lowering, layouts: list[Layout], places: list[Place], c: Layout, beta: float) -> None:
    """Add the steps of a product of matrices, or of a batch of them."""
    how_c = addressed(*c.shape[-2:], *c.strides[-2:])
    assert how_c is not None
    names, slots = "AB", (0, 1)
    if how_c.trans:  # column-major: the same memory is C^T = B^T · A^T, row by row
        layouts, c, names, slots = [layouts[1].transposed, layouts[0].transposed], c.transposed, "BA", (1, 0)
    at = [places[s] for s in slots]
    how: list[Addressed] = []
    for i in (0, 1):
        matrix = layouts[i].shape[-2:], layouts[i].strides[-2:]
        found = addressed(*matrix[0], *matrix[1])
        why = "" if found else why_copied(*matrix[0], *matrix[1])
        if any(s < 0 for s in layouts[i].strides[:-2]):
            found, why = None, "the matrices of its batch lie in reverse order"
        if found is None:
            layouts[i], at[i] = low.pack(names[i], layouts[i], at[i], why)
            found = addressed(*layouts[i].shape[-2:], *layouts[i].strides[-2:])
            assert found is not None
        how.append(found)
    (a, b), (rows, depth), cols = layouts, layouts[0].shape[-2:], layouts[1].shape[-1]
    lda, ldb, ldc = how[0].ld, how[1].ld, how_c.ld
    sizes, (sa, sb, sc) = merged(c.shape[:-2], a.strides[:-2], b.strides[:-2], c.strides[:-2])
    # the largest dimension is the launch's batch, the others are launches of their own
    inner = max(range(len(sizes)), key=lambda i: sizes[i], default=None)
    batch, step = (1, (0, 0, 0)) if inner is None else (sizes[inner], (sa[inner], sb[inner], sc[inner]))
    if batch > 1 and step[1] == 0 and not how[0].trans:
        # one B for all: the matrices of A, where they lie one below the other, are one taller matrix
        below = step[0] == rows * lda and step[2] == rows * ldc
        apart = rows == 1 and step[0] >= depth and step[2] >= cols and max(step) <= LARGEST
        if (below or apart) and rows * batch <= LARGEST:
            lda, ldc = (step[0], step[2]) if apart else (lda, ldc)
            rows, batch, step = rows * batch, 1, (0, 0, 0)
    others = [i for i in range(len(sizes)) if i != inner]
    moves = [tuple(s[i] for i in others) for s in (sa, sb, sc)]
    desc = GemmDesc(
        rows, cols, depth, batch=batch, trans_a=how[0].trans, trans_b=how[1].trans, lda=lda, ldb=ldb, ldc=ldc,
        stride_a=step[0], stride_b=step[1], stride_c=step[2],
        align_a=shifted(a.align, lda, step[0], *moves[0]), align_b=shifted(b.align, ldb, step[1], *moves[1]),
        align_c=shifted(c.align, ldc, step[2], *moves[2]), beta_zero=beta == 0, type_a=a.dtype, type_b=b.dtype,
    )  # fmt: skip
    for index in itertools.product(*(range(sizes[i]) for i in others)):
        offsets = [sum(i * s for i, s in zip(index, move, strict=True)) for move in moves]
        first, second = (Place(p.slot, p.offset + o) for p, o in zip(at, offsets[:2], strict=True))
        low.steps.append(Multiply(desc, first, second, Place(places[2].slot, places[2].offset + offsets[2])))
