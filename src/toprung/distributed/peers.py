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

MOST = 64
"""Allocations of other ranks that stay open: opening one takes as long as a small product."""

_opened: dict[tuple[str, torch.device], int] = {}


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


def _address(handle: str, device: torch.device) -> int:
    """Return the address of an allocation of another process."""
    from cuda.bindings import driver

    if (handle, device) in _opened:
        _opened[handle, device] = _opened.pop((handle, device))
    else:
        if len(_opened) == MOST:  # close what was used longest ago: nothing copies from it any more
            _driver("cuIpcCloseMemHandle", _opened.pop(next(iter(_opened))))
        given = driver.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), bytes.fromhex(handle), HANDLE)
        _opened[handle, device] = int(_driver("cuIpcOpenMemHandle", given, 1))  # with access to peers
    return _opened[handle, device]


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
        self.offers = {rank: json.loads(offer) for rank, offer in offers.items()}
        devices = [one["device"] for one in self.offers.values()]
        alone = len({one["host"] for one in self.offers.values()}) == 1
        return alone and all(torch.cuda.can_device_access_peer(*pair) for pair in itertools.permutations(devices, 2))

    def wait(self, name: str) -> None:
        """Have the current stream wait for an event of all ranks, "ready" or "done"."""
        for offer in self.offers.values():
            if offer["device"] != self.device.index:
                torch.cuda.current_stream().wait_event(_others(offer[name], self.device))

    def copy(self, rank: int, name: str, start: int, into: Any) -> None:
        """Copy elements of a rank's shard, from one on, on the current stream."""
        handle, offset = self.offers[rank][name]
        source = _address(handle, self.device) + offset + start * into.element_size()
        stream = torch.cuda.current_stream().cuda_stream
        _driver("cuMemcpyDtoDAsync", into.data_ptr(), source, into.numel() * into.element_size(), stream)

    def record(self, name: str, stream: Any) -> None:
        """Record an event of this rank, "ready" or "done", on a stream."""
        _event(name, self.device).record(stream)
