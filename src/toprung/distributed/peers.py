"""Shards that the ranks of one host read from each other's memory, by copy engines.

NCCL's kernels need SMs, which the blocks of a large product hold until it ends, so little of a transfer by NCCL overlaps with it.
Instead each rank tells the others where its shards are, as handles of CUDA, in the agreement before the product. On its stream for
communication a rank copies what it needs. Two events of each rank order the copies, on the others' streams: "ready" is recorded
before the product, "done" behind its last copy.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import socket
from collections.abc import Mapping
from typing import Any

import torch

from toprung.errors import Unsupported

HANDLE = 64
"""Bytes of a handle."""


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


@functools.cache
def _event(name: str, device: torch.device) -> Any:
    """Return an event of this process that others may wait for; it is recorded again in each product."""
    return torch.cuda.Event(interprocess=True)


@functools.cache
def _others(handle: str, device: torch.device) -> Any:
    """Return an event of another process."""
    return torch.cuda.Event.from_ipc_handle(device, bytes.fromhex(handle))


class Peers:
    """Shards and events that ranks let each other use in one product.

    Others' allocations are open from their first copy until ``close``. Where products overlap, CUDA counts how often one is open.
    """

    def __init__(self, device: torch.device, shards: Mapping[str, Any]) -> None:
        self.device, self.shards = device, shards
        self.offers: dict[int, dict[str, Any]] = {}
        self.opened: dict[str, int] = {}
        self.context: Any = None

    def offer(self) -> str:
        """Return what other ranks need to read the shards, as JSON; empty if they cannot."""
        offered: dict[str, Any] = {"host": socket.gethostname(), "device": self.device.index}
        try:
            for name in ("ready", "done"):
                offered[name] = _event(name, self.device).ipc_handle().hex()
            for name, shard in self.shards.items():
                if not shard.is_contiguous():
                    return ""
                if shard.numel():
                    base, _ = _driver("cuMemGetAddressRange", shard.data_ptr())
                    handle = ctypes.string_at(_driver("cuIpcGetMemHandle", base).getPtr(), HANDLE).hex()
                    offered[name] = [handle, shard.data_ptr() - int(base)]
        except (Unsupported, ImportError, RuntimeError):  # memory of another kind, such as expandable segments
            return ""
        return json.dumps(offered)

    def accept(self, offers: Mapping[int, str]) -> bool:
        """Return True if each rank can read the others' shards, alike on all ranks."""
        if not all(offers.values()):
            return False
        found = {rank: json.loads(offer) for rank, offer in offers.items()}
        devices, hosts = ([one[key] for one in found.values()] for key in ("device", "host"))
        if len(set(hosts)) == 1 and all(itertools.starmap(torch.cuda.can_device_access_peer, itertools.permutations(devices, 2))):
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
        if handle not in self.opened:
            given = driver.CUipcMemHandle()
            ctypes.memmove(given.getPtr(), bytes.fromhex(handle), HANDLE)
            self.opened[handle] = int(_driver("cuIpcOpenMemHandle", given, 1))  # with access to peers
            self.context = _driver("cuCtxGetCurrent")
        source = self.opened[handle] + offset + start * into.element_size()
        stream = torch.cuda.current_stream().cuda_stream
        _driver("cuMemcpyDtoDAsync", into.data_ptr(), source, into.numel() * into.element_size(), stream)

    def record(self, name: str, stream: Any) -> None:
        """Record an event of this rank, "ready" or "done", on a stream."""
        _event(name, self.device).record(stream)

    def close(self) -> None:
        """Close the others' allocations, whose owners may then free them; on any thread, once all copies have ended."""
        if self.opened:
            _driver("cuCtxSetCurrent", self.context)
        while self.opened:
            _driver("cuIpcCloseMemHandle", self.opened.popitem()[1])
