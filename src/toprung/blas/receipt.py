"""What a call says afterwards: which kernel ran where, why, and what was copied on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Receipt:
    """One call.

    Attributes
    ----------
    operation : ``"matmul"``, ``"sgemm"``, ``"sgemv"``
    problem : the shapes, as a person reads them
    kernels : each kernel that ran, with its tile; empty where nothing had to be computed
    own : whether they are all toprung's
    precision : the path that was taken, by its name in ``toprung.precision``
    device : where it ran, as ``toprung devices`` lists it, or the host
    why : why this kernel, a sentence
    passed_over : what else there was and why not, in pairs
    copies : what was copied and why, a sentence each; transfers between host and device among them
    launches : kernels launched, copies included
    workspace_bytes : scratch memory beside operands and result
    counters : what ``escalated`` reads
    """

    operation: str
    problem: str
    kernels: tuple[str, ...]
    own: bool
    precision: str
    device: str
    why: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()
    copies: tuple[str, ...] = ()
    launches: int = 0
    workspace_bytes: int = 0
    counters: tuple[Callable[[], int], ...] = field(default=(), repr=False, compare=False)

    @property
    def escalated(self) -> int:
        """Pieces of C, 64 x 64 or less, that fp32x computed again in plain fp32 because two fp16 terms could not carry them.

        All calls like this one in this process count. Reading it waits for the device; nothing else of a receipt does.
        """
        return sum(count() for count in self.counters)

    @property
    def kernel(self) -> str:
        """The kernel that did the work, without its tile; empty where nothing had to be computed."""
        return self.kernels[0].partition(" ")[0] if self.kernels else ""

    def __str__(self) -> str:
        lines = [f"{self.operation} {self.problem} in {self.precision} on {self.device}"]
        lines.append(f"  ran: {', '.join(self.kernels) or 'nothing but what β leaves to do'} ({self.launches} launches)")
        if self.why:
            lines.append(f"  why: {self.why}")
        lines += [f"  passed over: {name}: {reason}" for name, reason in self.passed_over]
        lines += [f"  copied: {copy}" for copy in self.copies]
        if self.workspace_bytes:
            lines.append(f"  scratch memory: {self.workspace_bytes:,} bytes")
        return "\n".join(lines)


_last = threading.local()


def leave(receipt: Receipt) -> None:
    """Keep a receipt for this thread."""
    _last.receipt = receipt


def last_receipt() -> Receipt | None:
    """The receipt of this thread's last call that succeeded; None before the first."""
    return getattr(_last, "receipt", None)
