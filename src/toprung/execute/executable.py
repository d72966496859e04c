"""Executables: a product that is selected, compiled and laid out; everything is there but addresses, α and β."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from toprung import forks
from toprung.backends.base import Session
from toprung.backends.plan import BETA, WORKSPACE, A, B, C, KernelLaunch, Plan, Run, moved, whole
from toprung.dispatch.selection import Candidate, PassedOver, Selection
from toprung.gemm.desc import Desc
from toprung.gemm.epilogue import ACTIVATIONS
from toprung.gemm.lowering import Copy, Program
from toprung.kernels.base import Launches
from toprung.kernels.build import loaded
from toprung.kernels.helpers import MOVE
from toprung.kernels.launch import launches_of, longs, memory, walkers


class Executable:
    """A product that is ready to run, as often as wanted, from any thread, on any queue of its session's context.

    Parameters
    ----------
    program : copies and products in order
    selections : family and configuration for each of the program's descriptors

    Attributes
    ----------
    plan : all launches of a run
    lent_bytes : bytes of scratch memory that a caller may lend as ``workspace``
    launches : number of kernels that a run starts

    Raises
    ------
    BuildError, IllegalTile, LaunchError
        the device cannot run a configuration; nothing was launched
    """

    def __init__(self, session: Session, program: Program, selections: Mapping[Desc, Selection]) -> None:
        self.session, self.program, self.selections = session, program, dict(selections)
        every = self.selections.items()
        self._each = {desc: launches_of(session, desc, s.family, s.config, program.epilogue) for desc, s in every}
        if program.is_direct:
            (launches,) = self._each.values()
        else:
            launches = Launches(session, joined(session, program, {desc: one.plan for desc, one in self._each.items()}))
        self._take(launches)

    def _take(self, launches: Launches) -> None:
        self._launches, self.plan = launches, launches.plan
        self.lent_bytes, self.launches = self.plan.lent_bytes, len(self.plan.due(1.0, 0.0))
        self._mine = threading.local()
        self._mine.run = self.starter()  # errors show now, not in the first run

    @forks.cached_property
    def prepacked(self) -> Executable:
        """The executable where B is prepacked, of one that accepts such a B."""
        return self.taking(self._launches.prepacked())

    def taking(self, launches: Launches) -> Executable:
        """Return this executable with other launches of the same configuration."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made._take(launches)
        return made

    @classmethod
    def of(cls, session: Session, desc: Desc, selected: Selection | Candidate) -> Executable:
        """Return the executable of one product with a configuration that somebody selected."""
        return cls(session, Program.of(desc), {desc: selected if isinstance(selected, Selection) else Selection(selected)})

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the selected families with their configurations."""
        return tuple(dict.fromkeys(map(str, self.selections.values())))

    @property
    def own(self) -> bool:
        """True if all kernels are toprung's."""
        return all(s.family.own for s in self.selections.values())

    @property
    def precision(self) -> str:
        """Accuracy class of the result, by its name in ``toprung.oracle.precision``."""
        return " and ".join(dict.fromkeys(s.precision for s in self.selections.values())) or "fp32"

    @property
    def why(self) -> str:
        """Reason of the selection, a sentence."""
        fused = ("; the epilogue in the same launch",) if self.program.epilogue else ()
        return "".join((" ".join(dict.fromkeys(s.why for s in self.selections.values() if s.why)), *fused))

    @property
    def passed_over(self) -> PassedOver:
        """Other candidates, each with the reason against it."""
        return tuple(dict.fromkeys(p for s in self.selections.values() for p in s.passed_over))

    @property
    def counters(self) -> tuple[Callable[[], int], ...]:
        """Functions whose sum is ``escalated``, of families that compute anything again."""
        every = self.selections.items()
        return tuple(self._each[desc].escalated for desc, s in every if s.family.own and s.precision != "fp32")

    def escalated(self) -> int:
        """Return the number of pieces of C that all runs so far computed again in plain fp32; waits for the device."""
        return sum(count() for count in self.counters)

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        workspace: Any = None, addend: int = 0, packed: int = 0,
    ) -> None:  # fmt: skip
        """Put the product into a queue; never waits.

        With β = 0 C is not read, with α = 0 or K = 0 neither are A and B.

        Parameters
        ----------
        a, b, c : handles of memory (``Buffer.handle``), 0 for what the program does not read. For a ``GemvDesc`` B is x and C is y
        offset_a, offset_b, offset_c : index of the first element in each
        queue : a CUDA stream's handle, a pyopencl queue; None: the session's own
        workspace : handle of ``lent_bytes`` of scratch memory that stays until the queue has passed; None: the session's own
        addend : address of what the program's epilogue adds; only with one
        packed : address of the terms of a B that is ``prepacked``
        """
        try:
            run = self._mine.run
        except AttributeError:
            run = self._mine.run = self.starter()
        run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace, addend, packed)

    def starter(self) -> Run:
        """Return a function that does the same as ``run`` without any look-up.

        It keeps its arguments in one place: give each thread its own.
        """
        return self._launches.starter()

    def reserve(self, queue: Any = None) -> None:
        """Allocate the scratch memory of a queue now: inside a CUDA graph's capture nothing can be allocated."""
        self._launches.reserve(queue)

    def accepts(self, packed: Any) -> bool:
        """Return True if ``prepacked`` takes a B that was split beforehand."""
        return packed is not None and self._launches.accepts(packed)

    def __str__(self) -> str:
        return f"{self.program}: {', '.join(self.kernels)}" if self.program.steps else "nothing"


def joined(session: Session, program: Program, plans: Mapping[Desc, Plan]) -> Plan:
    """Return the plan of a program's steps. Its temporaries are behind the scratch memory of its products."""
    nbytes = whole(max((plan.workspace_bytes for plan in plans.values()), default=0))
    slots = [(A, 0), (B, 0), (C, 0)]  # slot and first element of each operand and temporary
    for elements in program.temporaries:
        slots.append((WORKSPACE, nbytes // 4))
        nbytes += whole(4 * elements)

    def at(operand: int, offset: int) -> tuple[int, int]:
        slot, first = slots[operand]
        return slot, first + offset

    def launches(scales: bool) -> Iterator[KernelLaunch]:
        for step in program.steps:
            if isinstance(step, Copy):
                yield moved(_copy(session, step), {A: at(*step.src), C: at(*step.dst)})
            else:
                plan, places = plans[step.desc], {A: at(*step.a), B: at(*step.b), C: at(*step.c)}
                some = plan.scales if scales and plan.scales is not None else plan.launches
                yield from (moved(one, places, plan.sizes) for one in some)

    return Plan(
        list(launches(False)),
        list(launches(True)) if any(plan.scales is not None for plan in plans.values()) else None,
        nbytes,
        max((plan.flags_bytes for plan in plans.values()), default=0),
        kept=tuple(kept for plan in plans.values() for kept in plan.kept),
    )


def _copy(session: Session, step: Copy) -> KernelLaunch:
    """Return the launch of a copy from A to C."""
    tile, switches = MOVE.tile_for(session.device), {"ACTIVATION": ACTIVATIONS.get(step.activation, 0)}
    planes, rows, cols = step.shape
    elements = planes * rows * cols
    fixed = [*map(np.uint64, (rows, cols, elements)), *longs(*step.src_strides, *step.dst_strides)]
    kernel, factor = loaded(session, MOVE, tile, switches), BETA if step.beta else np.float32(1.0)
    groups = walkers(elements, tile.work_items)
    return KernelLaunch("move", kernel, groups, (tile.work_items,), (*memory(A), *memory(C), factor, *fixed))
