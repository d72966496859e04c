"""Agreement of the ranks of a mesh on a product before any of it is sent, and on which rank failed if it cannot be finished.

Ranks write what they are about to do into the process group's store, on the host: the device's queue is not waited for. All waits
of a product end within the timeout of ``init_process_group``: communication after four fifths of it, and the search for the rank
that failed with most of the rest. A thread waits for GPUs, and raises the error in the one that called for the product.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from toprung.backends.waiting import gate
from toprung.distributed import peers
from toprung.errors import RankFailed, ToprungError

SHARE, SEARCH = 0.8, 0.95
"""Shares of the timeout that communication may take, and that until then. In between ranks find out which of them failed."""

IDLE = 1.0
"""Seconds without a product after which other processes' memory is closed."""

END = "\n"
"""Between a product and what a rank offers to the others."""

OWN, SEEN = "!", "?"
"""First letters of what a rank says of its end: an error of its own, or one in its communication."""


class _Store:
    """Connections of our own to the process group's store, whose waits block no other user, and the products so far by ranks."""

    def __init__(self, group: Any) -> None:
        self.group, self.products = group, Counter[tuple[int, ...]]()
        given = group.get_group_store()
        self.store, self.watching = (dist.PrefixStore("toprung", given.clone()) for _ in range(2))
        self.timeout: float = given.timeout.total_seconds()
        self.store.set_timeout(SEARCH * given.timeout)  # a clone has the default, not what init_process_group was given


_store: _Store | None = None

_groups = Counter[tuple[int, ...]]()
"""Process groups so far in which ranks multiplied. torchrun's store outlives a group, and keeps what was written in it."""


class Agreement:
    """A block in which a rank takes part in one product."""

    def __init__(self, ranks: Iterable[int]) -> None:
        global _store
        if _store is None or _store.group is not dist.group.WORLD:
            _store = _Store(dist.group.WORLD)
        self.ranks, self.rank = tuple(sorted(ranks)), dist.get_rank()
        self.store, self.watching = _store.store, _store.watching
        _groups[self.ranks] += self.ranks not in _store.products
        _store.products[self.ranks] += 1
        self.name, self.number = f"{'.'.join(map(str, self.ranks))}/{_groups[self.ranks]}", _store.products[self.ranks]
        self.key, self.last = f"{self.name}/{self.number}", f"{self.name}/{self.number - 1}"
        self.timeout = _store.timeout
        self.began, self.reached, self.watched = time.monotonic(), False, False

    def left(self, share: float = SHARE) -> float:
        """Return the seconds that are left of a share of the timeout."""
        return max(0.001, self.began + share * self.timeout - time.monotonic())

    def limit(self) -> datetime.timedelta:
        """Return the seconds that are left for communication."""
        return datetime.timedelta(seconds=self.left())

    def reach(self, text: str, offer: str = "") -> dict[int, str]:
        """Return the ranks' offers once all ranks have said the same.

        Raises
        ------
        RankFailed
            a rank that said something else, that could not start, or that said nothing before the timeout
        """
        keys = [f"{self.key}/said/{rank}" for rank in self.ranks]
        try:
            self.store.set(f"{self.key}/said/{self.rank}", f"{text}{END}{offer}")
            said = dict(zip(self.ranks, (one.decode() for one in self.store.multi_get(keys)), strict=True))
        except RuntimeError as error:
            missing = [rank for rank, key in zip(self.ranks, keys, strict=True) if self._read(key) is None]
            # ranks that lost their connection in the last product multiply no more, but failed for another's sake
            first = [rank for rank in missing if not (self._read(f"{self.last}/end/{rank}") or "").startswith(SEEN)] or missing
            text = f"said nothing within the timeout of {self.timeout:g} s: see its log for an error, or a product that it left out"
            raise RankFailed(first or [0], text if missing else "keeps the group's store, which is gone") from error
        if failed := {rank: one[1:] for rank, one in said.items() if one.startswith(OWN)}:
            raise RankFailed(list(failed), f"cannot start: {next(iter(failed.values()))}")
        offers = {rank: one.rpartition(END)[2] for rank, one in said.items()}
        said = {rank: one.rpartition(END)[0] for rank, one in said.items()}
        usual = Counter(said.values()).most_common(1)[0][0]
        if other := [rank for rank, one in said.items() if one != usual]:
            like = next(rank for rank, one in said.items() if one == usual)
            raise RankFailed(other, f"multiplies {said[other[0]]}, and rank {like} {usual}: all ranks must call it alike")
        self.began, self.reached = time.monotonic(), True
        return offers

    def meet(self) -> None:
        """Return once all ranks have come here."""
        self.store.set(f"{self.key}/met/{self.rank}", "")
        self.store.wait([f"{self.key}/met/{rank}" for rank in self.ranks], self.limit())

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
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it whom this would tell
            if error is not None:
                text = f"{SEEN if lost else OWN}{type(error).__name__}: {error}"
                self.store.set(f"{self.key}/{'end' if self.reached else 'said'}/{self.rank}", text)
            elif not self.watched:
                self._finish()
        if lost:
            raise RankFailed(*self._failure(f"{type(error).__name__}: {error}")) from error

    def _finish(self) -> None:
        self.store.set(f"{self.name}/finished/{self.rank}", str(self.number))
        for what in ("said", "met"):
            self.store.delete_key(f"{self.last}/{what}/{self.rank}")  # every rank has read what was said of the product before

    def _failure(self, text: str) -> tuple[list[int], str]:
        """Return the ranks that failed first, with an error of their own or without a word, and the text of the error."""
        ends: dict[int, str] = {}
        while len(ends) < len(self.ranks) and self.left(SEARCH) > 0.001:
            for rank in set(self.ranks) - set(ends):
                finished = int(self._read(f"{self.name}/finished/{rank}") or 0) >= self.number
                if (end := "" if finished else self._read(f"{self.key}/end/{rank}")) is not None:
                    ends[rank] = end
            if own := [rank for rank in self.ranks if ends.get(rank, "").startswith(OWN)]:
                return own, f"failed: {ends[own[0]][1:]}"
            time.sleep(self.timeout / 500)
        if silent := [rank for rank in self.ranks if rank not in ends]:
            return silent, f"did not answer within the timeout of {self.timeout:g} s: killed, or hanging. Here: {text}"
        return [rank for rank in self.ranks if ends[rank]], f"lost the connection to each other. Here: {text}"

    def watch(self, event: Any, groups: Sequence[Any]) -> None:
        """Have the thread that watches devices wait for an event behind all communication of the product, in these groups."""
        global _watcher
        self.watched = True
        _watched.put((self, event, groups, threading.get_ident()))
        if _watcher is None:
            _watcher = threading.Thread(target=_watch, name="toprung-watches", daemon=True)
            _watcher.start()


_watched: queue.SimpleQueue[tuple[Agreement, Any, Sequence[Any], int]] = queue.SimpleQueue()
_watcher: threading.Thread | None = None


def _watch() -> None:
    """Wait for products on devices, in turn; if one is late, raise RankFailed and abort its communication.

    After ``IDLE`` seconds without a product, close the memory of other processes.
    """
    while True:
        try:
            agreement, event, groups, thread = _watched.get(timeout=IDLE if peers.opened else None)
        except queue.Empty:
            with gate:
                peers.close()
            continue
        agreement.store = agreement.watching
        with contextlib.suppress(RuntimeError):  # the store is gone, or the device: the thread that uses it is told
            query = gate(event.query)
            while not query() and agreement.left() > 0.001:
                time.sleep(min(1.0, agreement.timeout / 100))
            with gate:  # Python's end waits a little for these calls, which up to 3.13 would end in an abort of the process
                if event.query():
                    agreement._finish()
                    continue
                peers.opened.clear()  # not closed: closing waits for the device, which may wait for ever for a lost rank
                text = "communication on the device takes longer"
                agreement.store.set(f"{agreement.key}/end/{agreement.rank}", f"{SEEN}{text}")
                failure = functools.partialmethod(RankFailed.__init__, *agreement._failure(text))
                # Python makes an exception for another thread of a class, without arguments
                kind = type("RankFailed", (RankFailed,), {"__init__": failure, "__module__": RankFailed.__module__})
                for one in (thread, threading.main_thread().ident or 0):  # a backward pass of PyTorch's may have had its thread
                    if ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(one), ctypes.py_object(kind)):
                        break
                # only now: with its communication aborted the device goes on, to a wrong result
                for group in groups:
                    group.abort()
