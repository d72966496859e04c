"""Shards that ranks of one host read where they are, by copy engines.

NCCL's kernels need SMs, which a product's blocks hold until it ends: nothing of a transfer would overlap with it. So each rank
tells the others in the agreement where its shards are, as handles of CUDA, and reads what it needs on its communication's stream.
Two events of each rank order this: "ready", before the product, and "done", behind its last read. Others wait for them on their
streams.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import socket
from collections.abc import Mapping, Sequence
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
        an error of CUDA's
    """
    from cuda.bindings import driver

    error, *found = getattr(driver, name)(*given)
    if int(error):
        raise Unsupported(f"{name}: {error.name}")
    return found[0] if len(found) == 1 else found


@functools.cache
def _event(name: str, device: torch.device) -> Any:
    with torch.cuda.device(device):
        return torch.cuda.Event(interprocess=True)


@functools.cache
def _others_event(handle: str, device: torch.device) -> Any:
    return torch.cuda.Event.from_ipc_handle(device, bytes.fromhex(handle))


@functools.lru_cache(maxsize=256)
def _opened(handle: str, device: torch.device) -> int:
    """Return the address of an allocation of another process; it stays open, for opening it takes long."""
    from cuda.bindings import driver

    given = driver.CUipcMemHandle()
    ctypes.memmove(given.getPtr(), bytes.fromhex(handle), HANDLE)
    return int(_driver("cuIpcOpenMemHandle", given, 1))  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class Peers:
    """What this rank lets others read in one product, and what they let it."""

    def __init__(self, device: torch.device, shards: Mapping[str, Any]) -> None:
        self.device, self.shards = device, shards
        self.others: dict[int, dict[str, Any]] = {}
        self.ready, self.done = (_event(name, device) for name in ("ready", "done"))

    def offer(self) -> str:
        """Record "ready" on the current stream; return what other ranks need to read, empty if they cannot."""
        try:
            self.ready.record()
            self.done.record()
            offered = {}
            for name, shard in self.shards.items():
                if not shard.numel():
                    continue
                if not shard.is_contiguous():
                    return ""
                base, _ = _driver("cuMemGetAddressRange", shard.data_ptr())
                handle = _driver("cuIpcGetMemHandle", base)
                offered[name] = [ctypes.string_at(handle.getPtr(), HANDLE).hex(), shard.data_ptr() - int(base)]
            events = [event.ipc_handle().hex() for event in (self.ready, self.done)]
        except (Unsupported, ImportError, RuntimeError):  # memory of another kind, such as expandable segments
            return ""
        return json.dumps({"host": socket.gethostname(), "device": self.device.index, "events": events, **offered})

    def accept(self, offers: Mapping[int, str]) -> bool:
        """Return True if all ranks can read from each other; the same on all ranks, but for a handle that cannot be opened."""
        said = {rank: json.loads(offer) for rank, offer in offers.items() if offer}
        if len(said) < len(offers) or len({one["host"] for one in said.values()}) > 1:
            return False
        devices = [one["device"] for one in said.values()]
        if not all(torch.cuda.can_device_access_peer(one, other) for one, other in itertools.permutations(devices, 2)):
            return False
        self.others = said
        return True

    def wait(self, which: int, ranks: Sequence[int]) -> None:
        """Have the current stream wait for an event of other ranks: 0 "ready", 1 "done"."""
        for rank in ranks:
            torch.cuda.current_stream().wait_event(_others_event(self.others[rank]["events"][which], self.device))

    def read(self, rank: int, name: str, offset: int, into: Any) -> None:
        """Copy from a rank's shard, from a byte on, on the current stream."""
        handle, start = self.others[rank][name]
        stream = torch.cuda.current_stream().cuda_stream
        source = _opened(handle, self.device) + start + offset
        _driver("cuMemcpyDtoDAsync", into.data_ptr(), source, into.numel() * into.element_size(), stream)
