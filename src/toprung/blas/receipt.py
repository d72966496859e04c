"""Receipts of calls: which kernel ran where, why, and what was copied on the way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from toprung.arrays import adapters
from toprung.errors import Unsupported


@dataclass(frozen=True)
class Receipt:
    """Receipt of one call.

    Attributes
    ----------
    operation : ``"matmul"``, ``"sgemm"``, ``"sgemv"``
    problem : shapes of the product, as readable text
    kernels : each kernel that ran, with its tile; empty if nothing had to be computed
    own : True if all kernels are toprung's
    precision : accuracy class of the result, by its name in ``toprung.oracle.precision``
    device : device it ran on, as ``toprung devices`` lists it, or the host
    why : reason of the selection, a sentence
    passed_over : other candidates, in pairs of name and the reason against it
    copies : sentences on each copy and its reason; transfers between host and device among them
    launches : number of kernels launched, copies and passes of an epilogue included
    workspace_bytes : bytes of scratch memory beside operands and result
    counters : functions whose sum is ``escalated``
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
        """Number of pieces of C, 64 × 64 or less, that fp32x computed again in plain fp32.

        It does so where two fp16 terms could not represent them. All calls like this one in this process count, and those of sizes
        that share its plan. Reading it waits for the device; nothing else of a receipt does. While any thread captures a CUDA
        graph it must not be read: waiting would invalidate the capture.

        Raises
        ------
        Unsupported
            the current stream is being captured
        """
        if self.counters and any(a.is_capturing() for a in adapters() if a.package in sys.modules):
            raise Unsupported("the count waits for the device, and the current stream is being captured: read it after the capture")
        return sum(count() for count in self.counters)

    @property
    def kernel(self) -> str:
        """Name of the first kernel, without its tile; empty if nothing had to be computed."""
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


def leave(make: Callable[[], Receipt | None]) -> None:
    """Keep the receipt of this thread's last call, made if somebody asks for it."""
    _last.left = make


def add(launches: int) -> None:
    """Add the launches of separate passes after a product to the receipt of this thread's last call."""
    make = _last.left
    leave(lambda: (left := make()) and replace(left, launches=left.launches + launches))


def last_receipt() -> Receipt | None:
    """Return the receipt of this thread's last call that succeeded; None before the first."""
    left: Receipt | Callable[[], Receipt | None] | None = getattr(_last, "left", None)
    if callable(left):
        left = _last.left = left()
    return left
