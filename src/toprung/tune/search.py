"""Which configuration to try next: strategies that are asked for one and told what it took."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from toprung.blas.choice import Choice
from toprung.errors import MissingExtra, UnknownName
from toprung.tune.space import Space

NEIGHBOURS = 24
"""Of a new best, so many are tried before the climb gives up, the most promising first."""

FIRST = 8
"""Promising starts that are tried before the first climb begins."""

SMALL = 200_000
"""Points of a space that is gone through to its end."""

REFUSED = 500
"""Illegal points that a strategy which knows no rules may propose before it counts as exhausted."""


class Strategy(Protocol):
    """Ask as often as wanted before telling: several may be under way."""

    def ask(self) -> Choice | None:
        """The next one; None: there is nothing more."""

    def tell(self, choice: Choice, seconds: float) -> None:
        """What it took; infinite if it failed."""


class Unseen:
    """What strategies share: nothing is proposed twice, nor what was tried in an earlier run."""

    def __init__(self, seen: Callable[[Choice], bool] = lambda choice: False) -> None:
        self._asked: set[Choice] = set()
        self._seen = seen

    def fresh(self, choice: Choice) -> bool:
        """Whether it was not asked before; it counts as asked now."""
        if choice in self._asked or self._seen(choice):
            return False
        self._asked.add(choice)
        return True


class Ranked(Unseen):
    """Everything in the order of the model: small spaces are exhausted so, large ones searched as far as time allows."""

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Choice], bool] = lambda choice: False) -> None:
        super().__init__(seen)
        self._order = space.ranked()

    def ask(self) -> Choice | None:
        """The next in the order."""
        return next((c for c in self._order if self.fresh(c)), None)

    def tell(self, choice: Choice, seconds: float) -> None:
        """Nothing is learnt."""


class Exhaustive(Unseen):
    """The model's order, then all the rest: in order where that can end, else drawn, so that no corner is left out for another.

    Attributes
    ----------
    beyond : whether the model's order has been gone through
    """

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Choice], bool] = lambda choice: False) -> None:
        super().__init__(seen)
        self._space, self._rng, self.beyond = space, random.Random(seed), False
        self._order = self._all()

    def _all(self) -> Iterator[Choice]:
        yield from self._space.ranked()
        self.beyond = True
        if self._space.size <= SMALL:
            yield from self._space.all()
            return
        again, drawn = 0, set[Choice]()
        while again < REFUSED and (point := self._space.draw(self._rng)) is not None:
            again = again + 1 if point in drawn else 0
            drawn.add(point)
            yield point

    def ask(self) -> Choice | None:
        """The next."""
        return next((c for c in self._order if self.fresh(c)), None)

    def tell(self, choice: Choice, seconds: float) -> None:
        """Nothing is learnt."""


class Random(Unseen):
    """Any legal point, each as likely as another: what the others must beat."""

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Choice], bool] = lambda choice: False) -> None:
        super().__init__(seen)
        self._space, self._rng = space, random.Random(seed)

    def ask(self) -> Choice | None:
        """Draw until there is a new one."""
        for _ in range(REFUSED):
            found = self._space.draw(self._rng)
            if found is not None and self.fresh(found):
                return found
        return None

    def tell(self, choice: Choice, seconds: float) -> None:
        """Nothing is learnt."""


class Climb(Unseen):
    """Short climbs with restarts: neighbours of the best in turn with the next start of the model's order.

    A climb goes on as long as a neighbour is better than where it stands; when all have been tried it starts again from the best of
    the starts it has not climbed from. Where the model is good the starts find the best, where it is not the climbs do.
    """

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Choice], bool] = lambda choice: False) -> None:
        super().__init__(seen)
        self._space, self._rng = space, random.Random(seed)
        self._starts: Iterator[Choice] = itertools.chain(space.ranked(), self._drawn())
        self._told: dict[Choice, float] = {}
        self._climbed: set[Choice] = set()
        self._here: tuple[float, Choice] | None = None
        self._around: list[Choice] = []
        self._turn = 0

    def _drawn(self) -> Iterator[Choice]:
        for _ in range(REFUSED):
            if found := self._space.draw(self._rng):
                yield found

    def ask(self) -> Choice | None:
        """A neighbour, or a start."""
        self._turn += 1
        if self._told and (len(self._asked) >= FIRST) and self._turn % 2:
            if not self._around:
                self._restart()
            while self._around:
                if self.fresh(found := self._around.pop(0)):
                    return found
        found_start = next((c for c in self._starts if self.fresh(c)), None)
        if found_start is not None:
            return found_start
        while True:  # no start is left: climb as long as there is somewhere to climb from
            while self._around:
                if self.fresh(found := self._around.pop(0)):
                    return found
            if not self._restart():
                return None

    def tell(self, choice: Choice, seconds: float) -> None:
        """A better place becomes where the climb stands."""
        self._told[choice] = seconds
        if math.isfinite(seconds) and (self._here is None or seconds < self._here[0]) and self._asked_enough():
            self._stand(choice, seconds)

    def _asked_enough(self) -> bool:
        return len(self._told) >= min(FIRST, len(self._asked))

    def _stand(self, choice: Choice, seconds: float) -> None:
        self._here = seconds, choice
        self._climbed.add(choice)
        self._around = self._space.neighbours(choice)[:NEIGHBOURS]

    def _restart(self) -> bool:
        """Stand on the best place that no climb began from."""
        left = [(s, str(c), c) for c, s in self._told.items() if c not in self._climbed and math.isfinite(s)]
        if not left:
            return False
        seconds, _, choice = min(left, key=lambda found: found[:2])
        self._stand(choice, seconds)
        return True


class Optuna(Unseen):
    """Optuna's tree-structured Parzen estimator over the axes; it knows no rules, and learns them by being refused."""

    def __init__(self, space: Space, seed: int = 0, seen: Callable[[Choice], bool] = lambda choice: False) -> None:
        super().__init__(seen)
        try:
            import optuna
        except ImportError:
            raise MissingExtra('the strategy optuna needs Optuna: pip install "toprung[tune]"') from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna: Any = optuna
        self._space = space
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True, multivariate=True))
        self._open: dict[Choice, Any] = {}

    def ask(self) -> Choice | None:
        """What it suggests, once that is legal and new."""
        for _ in range(REFUSED):
            trial = self._study.ask()
            found = self._space.at({name: trial.suggest_categorical(name, list(v)) for name, v in self._space.axes.items()})
            if found is not None and self.fresh(found):
                self._open[found] = trial
                return found
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        return None

    def tell(self, choice: Choice, seconds: float) -> None:
        """The logarithm: a factor counts the same everywhere."""
        trial = self._open.pop(choice, None)
        if trial is None:
            return
        if math.isfinite(seconds):
            self._study.tell(trial, math.log(seconds))
        else:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)


STRATEGIES: Mapping[str, Callable[..., Strategy]] = MappingProxyType(
    {"climb": Climb, "ranked": Ranked, "random": Random, "optuna": Optuna}
)
"""Every strategy by its name."""


def strategy(name: str) -> Callable[..., Strategy]:
    """One by its name, or UnknownName."""
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    return STRATEGIES[name]
