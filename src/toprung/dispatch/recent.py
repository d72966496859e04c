"""A cache that drops what was not used for long, at the cost of a plain dictionary's look-up."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(dict[Hashable, V | None], Generic[V]):
    """Values that were used last, by key; ``cache[key]`` is None for an unknown key.

    Values live in two generations. When the younger one is full it becomes the older one, and what the older one still holds is
    dropped; a value of the older one that is looked up is young again. So a hit is the look-up of a dictionary, without any
    order to keep, and at least the last ``most`` values that were used are there, at most twice as many.

    Parameters
    ----------
    most : weight of a full generation
    weigh : function that returns a value's weight; None where each weighs 1
    drop : called with the values of a generation that is dropped
    """

    def __init__(
        self, most: int, weigh: Callable[[V], int] | None = None, drop: Callable[[list[V]], object] = lambda values: None
    ) -> None:  # fmt: skip
        super().__init__()
        self._most, self._weigh, self._drop = most, weigh, drop
        self._room, self._older = most, dict[Hashable, V]()

    def __missing__(self, key: Hashable) -> V | None:
        value = self._older.pop(key, None)
        if value is not None:
            self.keep(key, value)
        return value

    def keep(self, key: Hashable, value: V) -> None:
        """Keep a value, unless it alone weighs more than a generation."""
        weight = 1 if self._weigh is None else self._weigh(value)
        if weight > self._most:
            return
        if weight > self._room:
            dropped, self._older = list(self._older.values()), self._young()
            super().clear()  # a thread that reads meanwhile finds everything in the older generation
            self._room = self._most
            self._drop(dropped)
        self._room -= weight
        self[key] = value

    def every(self) -> list[V]:
        """Return all values."""
        return [*self._older.values(), *self._young().values()]

    def clear(self) -> None:
        """Drop everything, without a word to ``drop``."""
        self._older, self._room = {}, self._most
        super().clear()

    def _young(self) -> dict[Hashable, V]:
        return {key: value for key, value in self.copy().items() if value is not None}
