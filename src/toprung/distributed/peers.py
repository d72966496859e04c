"""Shards that the ranks of one host read from each other's memory by copy engines (DMA).

NCCL's kernels need SMs, which the blocks of a large product hold until it ends, so little of a transfer by NCCL overlaps with it.
Instead each rank sends the others CUDA's IPC handles of its shards, in the agreement before the product. On its stream for
communication a rank copies what it needs. Two events of each rank order the copies, on the others' streams: "ready" is recorded
before the product, "done" after its last copy.

Memory that is open in another process stays in use even after its owner has freed it. Closing it waits for all queued work of the
device, and nothing can be launched meanwhile. So a rank closes memory that its owner reports as freed, and the rest after a second
without a product.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import socket
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from toprung.errors import Unsupported
from toprung.forks import renewed

HANDLE = 64
"""Bytes of a handle."""

opened: dict[str, tuple[Any, int]] = {}
"""Contexts and addresses of other processes' allocations that are open here, by their handles."""

_offered: dict[str, tuple[int, int]] = {}
"""Addresses and identities of this process's allocations that others may have open, by their handles."""

_lock = renewed(threading.Lock())
"""Held while copies are enqueued, and while allocations are closed, which waits for these copies."""


def _driver(name: str, *given: Any) -> Any:
    """Return the result of a function of CUDA's driver.

    Raises
    ------
    Unsupported
        the driver's error
    """
    from cuda.bindings import driver

    error, *found = getattr(driver, name)(*given)
    if int(error):
        raise Unsupported(f"{name}: {error.name}")
    return found[0] if len(found) == 1 else found


def close(handles: Iterable[str] | None = None) -> None:
    """Close allocations of other processes, by default all that are open; on any thread."""
    with _lock, contextlib.suppress(Unsupported):
        for handle in list(opened) if handles is None else opened.keys() & handles:
            context, address = opened.pop(handle)
            _driver("cuCtxPushCurrent", context)
            _driver("cuIpcCloseMemHandle", address)
            _driver("cuCtxPopCurrent")


def _identity(address: int) -> int:
    """Return the driver's unique number of an allocation of this process; 0 once it is freed."""
    from cuda.bindings import driver

    with contextlib.suppress(Unsupported):
        return int(_driver("cuPointerGetAttribute", driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID, address))
    return 0


@functools.cache
def _event(name: str, device: torch.device) -> Any:
    """Return an event of this process that others may wait for; it is recorded again in each product."""
    return torch.cuda.Event(interprocess=True)


@functools.cache
def _others(handle: str, device: torch.device) -> Any:
    """Return an event of another process."""
    return torch.cuda.Event.from_ipc_handle(device, bytes.fromhex(handle))


class Peers:
    """Shards and events that ranks let each other use in one product."""

    def __init__(self, device: torch.device, shards: Mapping[str, Any]) -> None:
        self.device, self.shards = device, shards
        self.offers: dict[int, dict[str, Any]] = {}

    def offer(self, reads: bool) -> str:
        """Return as JSON handles of memory that this rank has freed and, if others read its shards and can, those of the shards."""
        freed = [handle for handle, (base, identity) in _offered.items() if _identity(base) != identity]
        for handle in freed:
            del _offered[handle]
        offered: dict[str, Any] = {"freed": freed}
        if reads and all(shard.is_contiguous() for shard in self.shards.values()):
            with contextlib.suppress(Unsupported, ImportError, RuntimeError):  # memory without handles, such as expandable segments
                found = {name: _event(name, self.device).ipc_handle().hex() for name in ("ready", "done")}
                for name, shard in ((name, shard) for name, shard in self.shards.items() if shard.numel()):
                    base, _ = _driver("cuMemGetAddressRange", shard.data_ptr())
                    handle = ctypes.string_at(_driver("cuIpcGetMemHandle", base).getPtr(), HANDLE).hex()
                    found[name] = [handle, shard.data_ptr() - int(base)]
                    _offered[handle] = int(base), _identity(base)
                offered |= {"host": socket.gethostname(), "device": self.device.index, **found}
        return json.dumps(offered)

    def accept(self, offers: Mapping[int, str]) -> bool:
        """Close what other ranks have freed; return True if each rank can read the others' shards, alike on all ranks."""
        found = {rank: json.loads(offer) for rank, offer in offers.items()}
        close(handle for one in found.values() for handle in one["freed"])
        hosts = {one.get("host") for one in found.values()}
        pairs = itertools.permutations([one.get("device") for one in found.values()], 2)
        if len(hosts) == 1 and None not in hosts and all(itertools.starmap(torch.cuda.can_device_access_peer, pairs)):
            self.offers = found
        return bool(self.offers)

    def wait(self, name: str) -> None:
        """Have the current stream wait for an event of all ranks, "ready" or "done"."""
        for offer in self.offers.values():
            if offer["device"] != self.device.index:
                torch.cuda.current_stream().wait_event(_others(offer[name], self.device))

    def copy(self, rank: int, name: str, start: int, into: Any) -> None:
        """Copy elements of a rank's shard, from one on, on the current stream."""
        from cuda.bindings import driver

        handle, offset = self.offers[rank][name]
        stream, size = torch.cuda.current_stream().cuda_stream, into.element_size()
        with _lock:
            if handle not in opened:
                given = driver.CUipcMemHandle()
                ctypes.memmove(given.getPtr(), bytes.fromhex(handle), HANDLE)
                opened[handle] = _driver("cuCtxGetCurrent"), int(_driver("cuIpcOpenMemHandle", given, 1))  # with access to peers
            source = opened[handle][1] + offset + start * size
            _driver("cuMemcpyDtoDAsync", into.data_ptr(), source, into.numel() * size, stream)

    def record(self, name: str, stream: Any) -> None:
        """Record an event of this rank, "ready" or "done", on a stream."""
        _event(name, self.device).record(stream)
