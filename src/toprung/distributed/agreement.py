"""Agreement of the ranks of a mesh on a product before any of it is sent, and on which rank failed if it cannot be finished.

Ranks write what they are about to do into the process group's store, on the host: the device's queue is not waited for. All waits
of a product end within the timeout of ``init_process_group``: communication after four fifths of it, and the search for the rank
that failed with the rest.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from toprung.errors import RankFailed, ToprungError

SHARE = 0.8
"""Share of the timeout that communication may take; in the rest ranks find out which of them failed."""

OWN, SEEN = "!", "?"
"""First letters of what a rank says of its end: an error of its own, or one in its communication."""


class _Store:
    """A connection of our own to the process group's store, whose waits block no other user, and the products so far by ranks."""

    def __init__(self, group: Any) -> None:
        self.group, self.products = group, Counter[tuple[int, ...]]()
        given = group.get_group_store()
        self.store = dist.PrefixStore("toprung", given.clone())
        self.store.set_timeout(given.timeout)  # a clone has the default, not what init_process_group was given


_store: _Store | None = None

_groups = Counter[tuple[int, ...]]()
"""Process groups so far in which ranks multiplied. torchrun's store outlives a group, and keeps what was written in it."""


class Agreement:
    """A block in which a rank takes part in one product."""

    def __init__(self, ranks: Sequence[int]) -> None:
        global _store
        if _store is None or _store.group is not dist.group.WORLD:
            _store = _Store(dist.group.WORLD)
        self.ranks, self.rank, self.store = tuple(sorted(ranks)), dist.get_rank(), _store.store
        _groups[self.ranks] += self.ranks not in _store.products
        _store.products[self.ranks] += 1
        name, number = f"{'.'.join(map(str, self.ranks))}/{_groups[self.ranks]}", _store.products[self.ranks]
        self.key, self.last = f"{name}/{number}", f"{name}/{number - 1}"
        self.timeout: float = self.store.timeout.total_seconds()
        self.began, self.reached = time.monotonic(), False

    def left(self, share: float = SHARE) -> float:
        """Return the seconds that are left of a share of the timeout."""
        return max(0.001, self.began + share * self.timeout - time.monotonic())

    def limit(self, share: float = SHARE) -> datetime.timedelta:
        """Return the time that is left of a share of the timeout."""
        return datetime.timedelta(seconds=self.left(share))

    def _keys(self, what: str) -> list[str]:
        return [f"{self.key}/{what}/{rank}" for rank in self.ranks]

    def reach(self, text: str) -> None:
        """Return once all ranks have said the same.

        Raises
        ------
        RankFailed
            a rank that said something else, that could not start, or that said nothing before the timeout
        """
        keys = self._keys("said")
        try:
            self.store.set(f"{self.key}/said/{self.rank}", text)
            said = dict(zip(self.ranks, (one.decode() for one in self.store.multi_get(keys)), strict=True))
        except RuntimeError as error:
            missing = [rank for rank, key in zip(self.ranks, keys, strict=True) if self._read(key) is None]
            # ranks that lost their connection in the last product multiply no more, but failed for another's sake
            first = [rank for rank in missing if not (self._read(f"{self.last}/end/{rank}") or "").startswith(SEEN)] or missing
            text = f"said nothing within the timeout of {self.timeout:g} s: see its log for an error, or a product that it left out"
            raise RankFailed(first or [0], text if missing else "keeps the group's store, which is gone") from error
        if failed := {rank: one[1:] for rank, one in said.items() if one.startswith(OWN)}:
            raise RankFailed(list(failed), f"cannot start: {next(iter(failed.values()))}")
        usual = Counter(said.values()).most_common(1)[0][0]
        if other := [rank for rank, one in said.items() if one != usual]:
            like = next(rank for rank, one in said.items() if one == usual)
            raise RankFailed(other, f"multiplies {said[other[0]]}, and rank {like} {usual}: all ranks must call it alike")
        self.began, self.reached = time.monotonic(), True

    def _read(self, key: str) -> str | None:
        """Return what a rank has written, None if it has not."""
        try:
            return self.store.get(key).decode() if self.store.check([key]) else None
        except RuntimeError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, RankFailed):
            return
        # PyTorch has no type for too little memory of the host
        own = isinstance(error, ToprungError) or "allocate memory" in str(error) or "out of memory" in str(error)
        lost = self.reached and isinstance(error, (RuntimeError, TimeoutError)) and not own
        text = f"{SEEN if lost else OWN}{type(error).__name__}: {error}" if error is not None else ""
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it whom this would tell
            self.store.set(f"{self.key}/{'end' if self.reached else 'said'}/{self.rank}", text)
            # every rank has read what was said of the last product. A round trip each, while the device multiplies
            for what in ("said", "end") if self.reached else ():
                self.store.delete_key(f"{self.last}/{what}/{self.rank}")
        if lost:
            raise self._failure(f"{type(error).__name__}: {error}") from error

    def _failure(self, text: str) -> RankFailed:
        """Return the error that names the ranks that failed first: with an error of their own, or without a word."""
        ends: dict[int, str | None] = {}
        for rank, key in zip(self.ranks, self._keys("end"), strict=True):
            with contextlib.suppress(RuntimeError):
                self.store.wait([key], self.limit(1.0))
            ends[rank] = self._read(key)
        if own := [rank for rank, end in ends.items() if end and end.startswith(OWN)]:
            return RankFailed(own, f"failed: {(ends[own[0]] or '')[1:]}")
        if silent := [rank for rank, end in ends.items() if end is None]:
            return RankFailed(silent, f"did not answer within the timeout of {self.timeout:g} s: killed, or hanging. Here: {text}")
        failed = [rank for rank, end in ends.items() if end]
        return RankFailed(failed, f"lost the connection to each other. Here: {text}")
