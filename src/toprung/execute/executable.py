"""Executables: a product that is selected, compiled and laid out; everything is there but addresses, α and β."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toprung.backends.base import Session
from toprung.backends.plan import BETA, A, C, KernelLaunch, Plan, Run
from toprung.dispatch.selection import Candidate, PassedOver, Selection
from toprung.gemm.desc import Desc
from toprung.gemm.lowering import Copy, Multiply, Program
from toprung.kernels.build import loaded
from toprung.kernels.helpers import ACTIVATIONS, MOVE
from toprung.kernels.launch import Foreign, launches_of, memory

GROUPS = 1 << 20
"""Largest number of work-groups of a copy: its work-items loop over more elements."""

Scratch = Callable[[int], tuple[Any, int]]
"""Number of elements → handle and first element of new memory that stays until the queue has passed."""

Step = Callable[[list[Any], list[int], float, float, Any, Any], None]
"""Function that launches one step: handles and first elements of all slots, α, β, the queue, lent scratch memory."""


class Executable:
    """A product that is ready to run, as often as wanted, from any thread, on any queue of its session's context.

    Parameters
    ----------
    program : copies and products in order
    selections : family and configuration for each of the program's descriptors

    Attributes
    ----------
    workspace_bytes : bytes of scratch memory that a run takes of its queue, temporaries included
    lent_bytes : bytes of them that a caller may lend as ``workspace``
    launches : number of kernels that a run starts

    Raises
    ------
    BuildError, IllegalTile, LaunchError
        the device cannot run a configuration; nothing was launched
    """

    def __init__(self, session: Session, program: Program, selections: Mapping[Desc, Selection]) -> None:
        self.session, self.program, self.selections = session, program, dict(selections)
        device, every = session.device, self.selections.items()
        self._launches = {desc: launches_of(session, desc, s.family, s.config, program.epilogue) for desc, s in every}
        scratch = (s.family.workspace_bytes(device, desc, s.config) for desc, s in every)
        self.lent_bytes = max((launches.plan.lent_bytes for launches in self._launches.values()), default=0)
        self.workspace_bytes = max(scratch, default=0) + 4 * sum(program.temporaries)
        counts = {desc: s.family.launch_count(device, desc, s.config) for desc, s in every}
        self.launches = sum(counts[s.desc] if isinstance(s, Multiply) else 1 for s in program.steps)
        self.is_direct = program.is_direct
        self._mine = threading.local()
        self._mine.run = self.starter()  # errors show now, not in the first run

    @classmethod
    def of(cls, session: Session, desc: Desc, selected: Selection | Candidate) -> Executable:
        """Return the executable of one product with a configuration that somebody selected."""
        return cls(session, Program.of(desc), {desc: selected if isinstance(selected, Selection) else Selection(selected)})

    @property
    def plan(self) -> Plan | None:
        """All launches of a run; None if it copies, too, or if another library launches."""
        launches = next(iter(self._launches.values()), None) if self.is_direct else None
        return None if isinstance(launches, Foreign | None) else launches.plan

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
        return tuple(self._launches[desc].escalated for desc, s in every if s.family.own and s.precision != "fp32")

    def escalated(self) -> int:
        """Return the number of pieces of C that all runs so far computed again in plain fp32; waits for the device."""
        return sum(count() for count in self.counters)

    def run(
        self, a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
        scratch: Scratch | None = None, workspace: Any = None, addend: int | None = None,
    ) -> None:  # fmt: skip
        """Put the product into a queue; never waits.

        With β = 0 C is not read, with α = 0 or K = 0 neither are A and B.

        Parameters
        ----------
        a, b, c : handles of memory (``Buffer.handle``). For a ``GemvDesc`` B is x and C is y
        offset_a, offset_b, offset_c : index of the first element in each
        queue : a CUDA stream's handle, a pyopencl queue; None: the session's own
        scratch : source of the program's temporaries; needed if it has any
        workspace : handle of ``lent_bytes`` of scratch memory that stays until the queue has passed; None: the session's own
        addend : address of what the program's epilogue adds; only with one
        """
        try:
            run = self._mine.run
        except AttributeError:
            run = self._mine.run = self.starter()
        if self.program.epilogue:
            run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace, addend or 0)
        elif self.is_direct:
            run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace)
        else:
            run(a, offset_a, b, offset_b, c, offset_c, alpha, beta, queue, workspace, scratch)

    def starter(self) -> Run:
        """Return a function that does the same as ``run`` without any look-up; without ``scratch`` if ``is_direct``.

        It keeps its arguments in one place: give each thread its own.
        """
        starters = {desc: launches.starter() for desc, launches in self._launches.items()}
        if self.is_direct:
            return next(iter(starters.values()))
        temporaries = self.program.temporaries
        steps = [
            _multiply(starters[step.desc], step) if isinstance(step, Multiply) else _copy(self.session, step)
            for step in self.program.steps
        ]

        def run(
            a: Any, offset_a: int, b: Any, offset_b: int, c: Any, offset_c: int, alpha: float, beta: float, queue: Any = None,
            workspace: Any = None, scratch: Scratch | None = None,
        ) -> None:  # fmt: skip
            handles, first = [a, b, c], [offset_a, offset_b, offset_c]
            for elements in temporaries:
                assert scratch is not None, "the program has temporaries"
                handle, offset = scratch(elements)
                handles.append(handle)
                first.append(offset)
            for step in steps:
                step(handles, first, alpha, beta, queue, workspace)

        return run

    def reserve(self, queue: Any = None) -> None:
        """Allocate the scratch memory of a queue now: inside a CUDA graph's capture nothing can be allocated."""
        for launches in self._launches.values():
            launches.reserve(queue)

    def accepts(self, packed: Any) -> bool:
        """Return True if ``run`` can have a prepacked B in place of B's handle."""
        return packed is not None and self.is_direct and all(launches.accepts(packed) for launches in self._launches.values())

    def __str__(self) -> str:
        return f"{self.program}: {', '.join(self.kernels)}" if self.program.steps else "nothing"


def _multiply(launch: Run, step: Multiply) -> Step:
    (a, at_a), (b, at_b), (c, at_c) = step.a, step.b, step.c

    def run(handles: list[Any], first: list[int], alpha: float, beta: float, queue: Any, workspace: Any) -> None:
        launch(handles[a], first[a] + at_a, handles[b], first[b] + at_b, handles[c], first[c] + at_c, alpha, beta, queue, workspace)

    return run


def _copy(session: Session, step: Copy) -> Step:
    tile, switches = MOVE.tile_for(session.device), {"ACTIVATION": ACTIVATIONS.get(step.activation, 0)}
    planes, rows, cols = step.shape
    elements = planes * rows * cols
    fixed = [np.uint64(rows), np.uint64(cols), np.uint64(elements), *(np.int64(s) for s in (*step.src_strides, *step.dst_strides))]
    groups = (min(-(-elements // tile.work_items), GROUPS),)
    kernel = loaded(session, MOVE, tile, switches)
    move = KernelLaunch("move", kernel, groups, (tile.work_items,), (*memory(A), *memory(C), BETA, *fixed))
    launch = session.launcher(Plan([move]))
    (src, at_src), (dst, at_dst), scaled = step.src, step.dst, step.beta

    def run(handles: list[Any], first: list[int], alpha: float, beta: float, queue: Any, workspace: Any) -> None:
        launch(handles[src], first[src] + at_src, 0, 0, handles[dst], first[dst] + at_dst, 1.0, beta if scaled else 1.0, queue)

    return run
