"""Errors of competitors over every input distribution and over K: nothing is timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toprung.backends.base import Session
from toprung.lab.competitor import Competitor
from toprung.lab.harness.compare import ComparisonPlan, PlacedProblem, Row, compare
from toprung.oracle.check import Verdict
from toprung.oracle.data import DISTRIBUTIONS
from toprung.oracle.gemm import Gemm
from toprung.oracle.precision import PRECISIONS

SIDE = 128
"""M and N: sixteen thousand sums of K terms at each point."""

DEPTHS = (32, 128, 512, 2048, 8192)


@dataclass(frozen=True)
class Graded:
    """One competitor on one distribution at one K.

    Attributes
    ----------
    limit : the grade ratio its promise allows there
    note : why there is no verdict
    """

    competitor: Mapping[str, Any]
    problem: Mapping[str, Any]
    distribution: str
    limit: float
    verdict: Verdict | None
    note: str = ""

    @property
    def broken(self) -> bool:
        """True if something that promises plain fp32 is wrong, or failed.

        Narrower paths lose range and special values as well as bits: what they get wrong is what the sweep is there to show.
        """
        if self.verdict is None:
            return True
        return PRECISIONS[self.competitor["precision"]].name == "fp32" and not self.verdict.right

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "verdict": self.verdict and self.verdict.describe()}

    @staticmethod
    def read(record: Mapping[str, Any]) -> Graded:
        """The inverse of ``describe``; KeyError or TypeError if the record is damaged."""
        found = record["verdict"]
        verdict = Verdict(**{**found, "problems": tuple(found["problems"])}) if found else None
        return Graded(record["competitor"], record["problem"], record["distribution"], record["limit"], verdict, record["note"])


def sweep(
    competing: Sequence[Competitor], session: Session, depths: Sequence[int] = DEPTHS,
    distributions: Sequence[str] = tuple(DISTRIBUTIONS), side: int = SIDE,
) -> Iterator[Graded]:  # fmt: skip
    """Grade every competitor that is present on every distribution at every K, as far as it computes it.

    ``side`` is M and N: where a library splits K for small products, its sums are shorter there than in large ones.

    Raises
    ------
    OutOfDeviceMemory
        the operands of a K do not fit
    """
    device, plan = session.device, ComparisonPlan(samples={"warm": 0})
    present = [who for who in competing if not who.absent(device)]
    for depth in depths:
        problem = Gemm(side, side, depth)
        for name in distributions:
            placed = PlacedProblem(problem, session, name)
            for who in present:
                row = Row(who)
                for _ in compare(placed, [row], plan):
                    pass
                row.bound = None
                if row.state != "unsupported":
                    limit = placed.oracle.limit(who.promise.precision)
                    yield Graded(who.describe(device), problem.describe(), name, limit, row.verdict, row.note)
