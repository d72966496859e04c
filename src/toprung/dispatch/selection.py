"""Candidates, and the selection of one with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from toprung.kernels.base import KernelConfig, KernelFamily
from toprung.kernels.record import RecordFamily
from toprung.kernels.registry import family

if TYPE_CHECKING:
    from toprung.store import Entry

RENAMED = {
    "gemm": "tiled", "rows": "skinny", "columns": "skinny", "pieces": "stream_k", "ffma": "hopper_sgemm", "fp32x": "hopper_fp32x",
}  # fmt: skip
"""Names of kernel families in result files of before 24 November 2026, each with today's."""

PassedOver = tuple[tuple[str, str], ...]
"""Candidates that were not taken, and why not, in pairs."""
Others = tuple[tuple[object, "str | float"], ...]
"""Candidates not taken, not formatted yet: printable object, and the reason or the predicted slowdown."""


class Candidate(NamedTuple):
    """A kernel family and a configuration of it: what is compared, timed and stored."""

    family: KernelFamily
    config: KernelConfig

    @property
    def kernel(self) -> str:
        """The family's name."""
        return self.family.name

    def encode(self) -> dict[str, Any]:
        """Return the candidate as the store and records have it: kernel, tile and options."""
        return {"kernel": self.kernel, **self.config.encode()}

    def __str__(self) -> str:
        return f"{self.family.name} {self.config}".rstrip()


def decoded(stored: Mapping[str, Any]) -> Candidate:
    """Return the inverse of ``Candidate.encode``; names in older result files are understood.

    Raises
    ------
    UnknownName
        a family that is not here
    ValueError
        a configuration that the family can never have
    """
    kernel = str(stored["kernel"])
    one = family(RENAMED.get(kernel, kernel))
    try:
        config = one.config.decode(stored.get("tile") or {}, stored.get("options") or {})
        if isinstance(one, RecordFamily):
            one.record(config).check_built(config)
    except ValueError as error:
        raise ValueError(f"{one.name}: {error}") from None
    return Candidate(one, config)


@dataclass(frozen=True)
class Selection:
    """The candidate that runs a product, and why.

    Attributes
    ----------
    candidate : family and configuration
    why : a sentence
    others : candidates that were not taken, and why not
    weighed : True if it was measured against the installed library, which leaves nothing to decide
    unproven : the store's entry that it follows, if that was measured with another driver, compiler or source;
        it may be used once ``toprung.execute.verify`` has found it right here
    """

    candidate: Candidate
    why: str = ""
    others: Others = ()
    weighed: bool = False
    unproven: Entry | None = field(default=None, repr=False, hash=False)

    def beside(self, *others: tuple[object, str | float], why: str = "", first: Others = ()) -> Selection:
        """Return the selection with further candidates not taken, before or after the others, or a new reason."""
        return Selection(self.candidate, why or self.why, (*first, *self.others, *others), self.weighed, self.unproven)

    @property
    def passed_over(self) -> PassedOver:
        """Candidates that were not taken, and why not, in words."""
        said = ((one, f"{why:.2f} times as long by the cost model" if isinstance(why, float) else why) for one, why in self.others)
        return tuple([(str(one), why) for one, why in said])

    @property
    def family(self) -> KernelFamily:
        """The candidate's."""
        return self.candidate.family

    @property
    def config(self) -> KernelConfig:
        """The candidate's."""
        return self.candidate.config

    @property
    def precision(self) -> str:
        """Accuracy class, by its name in ``toprung.oracle.precision``."""
        return self.family.precision

    def __str__(self) -> str:
        return str(self.candidate)
