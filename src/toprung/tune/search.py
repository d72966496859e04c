"""Search strategies: each is asked for the next configuration to try, and told its seconds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from toprung.dispatch.selection import Candidate
from toprung.errors import named
from toprung.tune.space import Space

NEIGHBOURS = 24
"""Number of neighbours of a new best that are tried, the most promising first, before the climb gives up."""

FIRST = 8
"""Number of promising starts that are tried before the first climb begins."""

SMALL = 200_000
"""Most points of a space that is enumerated to its end."""

REFUSED = 500
"""Number of illegal or repeated points that a strategy may draw before it counts as exhausted."""


class Strategy(Protocol):
    """A search strategy. Ask as often as wanted before telling: several candidates may be under way."""

    def ask(self) -> Candidate | None:
        """Return the next candidate, None if there is no more."""

    def tell(self, candidate: Candidate, seconds: float) -> None:
        """Report a candidate's seconds; infinite if it failed."""


class Unseen:
    """Base of the strategies: no candidate is proposed twice, nor one that an earlier run tried."""

    def __init__(self, seen: Callable[[Candidate], bool] = lambda candidate: False) -> None:
        self._asked: set[Candidate] = set()
        self._seen = seen

    def fresh(self, candidate: Candidate) -> bool:
        """Return True if a candidate was not proposed before; from now on it counts as proposed."""
        if candidate in self._asked or self._seen(candidate):
            return False
        self._asked.add(candidate)
        return True


class Ranked(Unseen):
    """Strategy that follows the cost model's order: small spaces are exhausted, large ones searched as far as time allows."""

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Candidate], bool] = lambda candidate: False) -> None:
        super().__init__(seen)
        self._order = space.ranked()

    def ask(self) -> Candidate | None:
        return next((c for c in self._order if self.fresh(c)), None)

    def tell(self, candidate: Candidate, seconds: float) -> None:
        """Ignore the seconds: this strategy does not learn."""


class Exhaustive(Ranked):
    """Strategy that tries the model's order, then all the rest: enumerated in a small space, drawn at random in a large one.

    ``beyond``: True if the model's order has been gone through.
    """

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Candidate], bool] = lambda candidate: False) -> None:
        super().__init__(space, seed, seen)
        self._space, self._rng, self.beyond = space, random.Random(seed), False
        self._order = self._all()

    def _all(self) -> Iterator[Candidate]:
        yield from self._space.ranked()
        self.beyond = True
        if self._space.size <= SMALL:
            yield from self._space.all()
            return
        # too many to enumerate: drawing leaves no corner of the space out in favour of another
        again, drawn = 0, set[Candidate]()
        while again < REFUSED and (point := self._space.draw(self._rng)) is not None:
            again = again + 1 if point in drawn else 0
            drawn.add(point)
            yield point


class Climb(Unseen):
    """Hill climbing with restarts: neighbours of the best alternate with the next starts of the model's order.

    A climb goes on as long as a neighbour is better than where it stands; when all have been tried it starts again from the best of
    the starts it has not climbed from. Where the model is good the starts find the best, where it is not the climbs do.
    """

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Candidate], bool] = lambda candidate: False) -> None:
        super().__init__(seen)
        self._space, self._rng = space, random.Random(seed)
        drawn = (found for _ in range(REFUSED) if (found := space.draw(self._rng)))
        self._starts: Iterator[Candidate] = itertools.chain(space.ranked(), drawn)
        self._told: dict[Candidate, float] = {}
        self._climbed: set[Candidate] = set()
        self._here: tuple[float, Candidate] | None = None
        self._around: list[Candidate] = []
        self._turn = 0

    def ask(self) -> Candidate | None:
        # A neighbour of where the climb stands, or the next start; None if there is no more
        self._turn += 1
        if self._told and (len(self._asked) >= FIRST) and self._turn % 2:
            if not self._around:
                self._restart()
            if found := self._neighbour():
                return found
        found = next((c for c in self._starts if self.fresh(c)), None)
        while not (found := found or self._neighbour()) and self._restart():
            pass  # no start is left: climb as long as there is somewhere to climb from
        return found

    def _neighbour(self) -> Candidate | None:
        """Return the next neighbour of where the climb stands that was not tried; None if there is no more."""
        while self._around:
            if self.fresh(found := self._around.pop(0)):
                return found
        return None

    def tell(self, candidate: Candidate, seconds: float) -> None:
        # record a candidate's seconds; a new best becomes where the climb stands
        self._told[candidate] = seconds
        enough = len(self._told) >= min(FIRST, len(self._asked))
        if enough and math.isfinite(seconds) and (self._here is None or seconds < self._here[0]):
            self._stand(candidate, seconds)

    def _stand(self, candidate: Candidate, seconds: float) -> None:
        self._here = seconds, candidate
        self._climbed.add(candidate)
        self._around = self._space.neighbours(candidate)[:NEIGHBOURS]

    def _restart(self) -> bool:
        """Stand on the best candidate that no climb began from; return False if there is none."""
        left = [(s, str(c), c) for c, s in self._told.items() if c not in self._climbed and math.isfinite(s)]
        if not left:
            return False
        seconds, _, candidate = min(left, key=lambda found: found[:2])
        self._stand(candidate, seconds)
        return True


STRATEGIES: Mapping[str, Callable[..., Strategy]] = MappingProxyType({"climb": Climb, "ranked": Ranked})
"""Every strategy by its name."""


def strategy(name: str) -> Callable[..., Strategy]:
    """Return a strategy by its name, or raise UnknownName."""
    return named("strategy", name, STRATEGIES)
