"""Tuned store lookup: the stored entry that a product follows, if any, before the heuristic selects.

An entry of the very sizes and class comes first, then the nearest of the class (``gemm.classes``) within ``NEIGHBOURS.factor``,
then the heuristic. The user's own entries of a size hide those of the same accuracy class that come with the package. What an
entry says is held against the families, rules and switches that exist before anything is built from it; where driver, compiler or
source are others than it was measured with, it is verified here first (``verify``), once, and the store remembers.

Nothing here raises because of the store: what is wrong with it is warned of once, and the heuristic decides.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from toprung import forks
from toprung import store as stores
from toprung.device import Device
from toprung.dispatch import ranking
from toprung.dispatch.selection import Candidate, PassedOver, Selection, decoded
from toprung.errors import LaunchError, OutOfDeviceMemory, StoreError, UnknownName
from toprung.gemm.classes import class_of
from toprung.gemm.desc import Desc, described
from toprung.kernels import base, cost_model
from toprung.kernels.base import KernelFamily
from toprung.kernels.registry import families
from toprung.paths import store_off

if TYPE_CHECKING:
    from toprung.store import Book, Entry, Machine, Proof, Store

NEIGHBOURS = SimpleNamespace(**cost_model.fitted("selection")["neighbours"])
"""Thresholds for following entries of neighbouring sizes; explained in ``models/selection.json``."""

OLDER = ", with an older source of the kernel"
"""Words of a receipt for samples of a kernel whose source has changed since."""

NOT_ENDED = "its verification did not end"
"""Message that the store has of an entry while it is being verified."""

SHOWN = 3
"""Entries passed over for a faster one that a receipt names."""


class Measured:
    """An entry with what is needed of it to select: worked out once, for every selection compares some dozen entries.

    Attributes
    ----------
    kernel, median : the entry's
    family : the entry's; None if there is no such family here
    precision : accuracy class of the family; fp32 for one that is not here
    candidate : what was measured, or why this toprung can never use it: a family, switch or value that does not exist
    """

    def __init__(self, entry: Entry, machine: Machine) -> None:
        self.entry, self.kernel, self.median = entry, entry.kernel, entry.median
        self.family = _named(self.kernel)
        self.precision = self.family.precision if self.family else "fp32"
        self.candidate = _candidate(entry)
        self._machine = machine
        self._losses: tuple[float | None, float | None] | None = None

    def __str__(self) -> str:
        return self.kernel if isinstance(self.candidate, str) else str(self.candidate)

    @forks.cached_property
    def current(self) -> bool:
        """True if it was measured with its family's sources as they are.

        Samples of other sources suggest a candidate, but decide as little as those of a neighbour: a prediction can overrule them.
        """
        return bool(self.entry.source) and version(self.kernel, self.entry.machine.backend) == self.entry.source

    @forks.cached_property
    def fresh(self) -> bool:
        """True if it was measured with its family's sources as they are, and with this driver and compiler."""
        return self.entry.machine == self._machine and self.current

    @forks.cached_property
    def desc(self) -> Desc:
        """The product that it was measured on."""
        return described(self.entry.shape)

    def fitted(self, device: Device, desc: Desc, exact: bool) -> Candidate | str:
        """Return the candidate adapted to a product, or the reason why it cannot be.

        ``exact``: True if it was measured on these very sizes.
        """
        if isinstance(self.candidate, str):
            return self.candidate
        family = self.candidate.family
        made = family.supports(device, desc) or family.adapt(device, desc, self.candidate.config, self.desc, exact)
        return made if isinstance(made, str) else Candidate(family, made)

    def losses(self, device: Device) -> tuple[float | None, float | None]:
        """Return ``ranking.losses`` of the candidate on the product that it was measured on."""
        if self._losses is None:
            one = self.candidate
            self._losses = (None, None) if isinstance(one, str) else ranking.losses(device, self.desc, one)
        return self._losses


@dataclass
class Known:
    """Entries and proofs of the stores for one machine, in memory.

    Attributes
    ----------
    stamp : what the user's file looked like when it was read
    proofs : (entry, version of its family now) → what was wrong with it here, empty: nothing
    host : True if the host's BLAS was measured on anything
    failed : (kernel, problem class, sizes) of families that went wrong when they were measured with this very driver
    noisy : the user's entries whose samples scatter too much to be followed
    """

    machine: Machine
    stamp: object
    book: Book
    proofs: dict[tuple[str, str], str] = field(default_factory=dict)
    host: bool = False
    failed: frozenset[tuple[str, str, tuple[int, int, int, int]]] = frozenset()
    noisy: Book = field(default_factory=lambda: stores.Book())
    _measured: dict[int, tuple[Measured, ...]] = field(default_factory=dict)

    def measured(self, entries: Sequence[Entry]) -> tuple[Measured, ...]:
        """Return entries of the book, of one size, with what is needed of them to select."""
        found = self._measured.get(id(entries))  # the book keeps the list
        if found is None:
            found = self._measured[id(entries)] = tuple(Measured(e, self.machine) for e in entries)
        return found


class TunedStore:
    """Lookup in the stores of tuned entries, the user's and the one that comes with the package, with what was read of them.

    This is the library's cache of entries: by device, valid as long as the user's file looks as it did (``stamp_of``).
    """

    def __init__(self) -> None:
        self._known: dict[Device, Known] = {}
        self.proofs: dict[tuple[str, Machine, str], str] = {}
        self.verifies = True  # False in a process that selects for another one
        self._begun: set[str] = set()
        self._warned: set[str] = set()
        self._lock = forks.renewed(threading.RLock())

    def known(self, device: Device) -> Known:
        """Return the tuned entries of a device, re-read if another process changed the file."""
        if store_off():
            return Known(stores.Machine.of(device), None, stores.Book())
        store = stores.Store.default()
        stamp = stamp_of(str(store.path)), families()
        with self._lock:
            found = self._known.get(device)
            if found is None or found.stamp != stamp:
                found = self._known[device] = self._read(stores.Machine.of(device), store, stamp)
            return found

    def at(self, device: Device, desc: Desc) -> Lookup:
        """Return what the stores know of a product."""
        return Lookup(self, self.known(device), device, desc)

    def ready(self) -> None:
        """Raise StoreError unless the user's store can be written."""
        stores.Store.default().ready()

    def forget(self) -> None:
        """Forget what was read and proved in this process."""
        with self._lock:
            for one in (self._known, self.proofs, self._warned, self._begun):
                one.clear()

    def _read(self, machine: Machine, store: Store, stamp: object) -> Known:
        complaints: list[str] = []
        own: list[Entry] = []
        noisy: list[Entry] = []
        proofs: list[Proof] = []
        failed: list[Entry] = []
        try:
            for entry in store.fastest(machine, complaints=complaints):
                (noisy if entry.noisy else own).append(entry)
            proofs = store.proofs(machine)
            for status in stores.STATUSES:
                if status != "right":
                    failed += (e for e in store.entries(machine, status=status) if e.machine == machine)
        except StoreError as error:
            complaints.append(str(error))
        theirs = stores.shipped(machine, complaints, elsewhere=lambda e: is_ours(e.kernel))
        if complaints:
            self._warn(complaints[0] + (f" (and {len(complaints) - 1} more: toprung store list)" if len(complaints) > 1 else ""))
        mine = {(e.problem_class, e.sizes, precision_of(e.kernel)) for e in own if is_ours(e.kernel)}
        entries = own + [e for e in theirs if (e.problem_class, e.sizes, precision_of(e.kernel)) not in mine]
        on_host = {f.name for f in families() if f.memory == "host"}
        wrong = {(p.entry, p.source): p.message for p in proofs}
        return Known(
            machine, stamp, stores.Book(entries), wrong, noisy=stores.Book(noisy),
            host=any(e.kernel in on_host for e in entries),
            failed=frozenset((e.kernel, e.problem_class, e.sizes) for e in failed),
        )  # fmt: skip

    def _warn(self, text: str) -> None:
        """Say what is wrong with the store."""
        self.warn_once(f"toprung goes on without it: {text}")

    def warn_once(self, text: str) -> None:
        """Warn of something, once a process."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def proved(self, entry: Entry, device: Device) -> bool:
        """Return True if an entry has been verified on this machine with its family's sources as they are now."""
        return (entry.id, stores.Machine.of(device), version(entry.kernel, device.backend)) in self.proofs

    def is_open(self, entry: Entry) -> bool:
        """Return True if a verification that did not end is this process's, or may be that of the process it selects for."""
        return entry.id in self._begun or not self.verifies

    @contextmanager
    def verifying(self, entry: Entry, device: Device) -> Iterator[list[str]]:
        """Have an entry verified in the block, which puts what is wrong into the list; remember it, here and in the store.

        The store says "wrong" until the block ends: a kernel that takes the process down is not tried again. What the device
        refused just now (memory, a launch) counts in this process alone.
        """
        proof = stores.Proof(entry.id, stores.Machine.of(device), version(entry.kernel, device.backend), NOT_ENDED)
        self._begun.add(entry.id)
        kept = self._keep(stores.Store.default().prove, proof)
        found: list[str] = []
        try:
            yield found
        except (LaunchError, OutOfDeviceMemory) as error:
            found.append(str(error))
            if kept:
                self._keep(stores.Store.default().unprove, proof)
        else:
            if kept:
                self._keep(stores.Store.default().prove, replace(proof, message="; ".join(found)))
        self.proofs[proof.entry, proof.machine, proof.source] = "; ".join(found)

    def _keep(self, write: Callable[[Proof], None], proof: Proof) -> bool:
        """Write to the store, or say why that cannot be."""
        try:
            write(proof)
        except StoreError as error:
            self._warn(str(error))
            return False
        return True


class Lookup:
    """Stored entries for one product: those of the same sizes, then those of neighbouring sizes, nearest first."""

    def __init__(self, store: TunedStore, known: Known, device: Device, desc: Desc) -> None:
        self.known, self.device, self.desc = known, device, desc
        self._store, self._of = store, (class_of(desc), desc.sizes)
        self._exact = known.book.at(*self._of)
        self._near: list[tuple[float, Sequence[Entry]]] | None = None

    def _first_plain(self, entries: Sequence[Measured], own: bool) -> Measured | None:
        """Return the first entry of a plain fp32 family that could run the product in the device's memory."""
        for one in entries:
            family = one.family
            if not family or family.precision != "fp32" or family.memory != "device":
                continue
            if family.own or not (own or family.supports(self.device, self.desc)):
                return one
        return None

    def _spots(self) -> Iterator[tuple[bool, tuple[Measured, ...]]]:
        """Yield entries by size, fastest first, the product's own and then its neighbours'; and whether they are its own."""
        if self._exact:
            yield True, self.known.measured(self._exact)
        if self._near is None:
            self._near = self.known.book.near(*self._of, NEIGHBOURS.factor)
        for distance, entries in self._near:
            if distance:
                yield False, self.known.measured(entries)

    def failed(self, family: KernelFamily) -> str:
        """Return why a family is not to be trusted with the product: it went wrong on these sizes, none of it right; else empty."""
        found = (family.name, *self._of) in self.known.failed
        if found and family.own and any(e.kernel == family.name for e in self._exact):
            return ""  # another of its configurations was right
        return "went wrong when it was measured on these very sizes" if found else ""

    def fp32(self, own: bool) -> tuple[Selection | None, PassedOver]:
        """Return what the stores select in plain fp32, None where they do not know; and what they know of and passed over.

        ``own``: only toprung's kernels; else an entry of what is installed may win.
        """
        passed: PassedOver = ()
        for exact, entries in self._spots():
            found, more = self._of_spot(own, entries, exact)
            if found is not None:
                return found, passed + more
            passed += more
        return None, passed

    def slower_than_fp32(self, own: bool, family: KernelFamily) -> str | None:
        """Return why a family of another accuracy class is slower than plain fp32, empty if it is faster; None if it is not known.

        What a store says of one family says nothing of another that was not measured there.
        """
        for exact, entries in self._spots():
            mine = [e for e in entries if e.family is family]
            chosen, _ = self._first(mine, exact) if mine else (None, ())
            plain = self._first_plain(entries, own) if chosen else None
            if chosen and plain:
                _, ours = chosen
                if ours.median <= plain.median:
                    return ""
                share = f"{ours.median / plain.median:.2f} times as long as {plain}"
                older = OLDER if any(e.family and e.family.own and not e.current for e in (ours, plain)) else ""
                return f"{family.precision} took {share} when both were measured on {_shape(ours.entry)}{older}"
        return None

    def of_precision(self, precision: str, without: Collection[str] = ()) -> tuple[Selection | None, PassedOver]:
        """Return what the stores select in an accuracy class, None if they do not know; and what they passed over.

        ``without``: names of families that are not to be selected.
        """
        passed: PassedOver = ()
        for exact, entries in self._spots():
            mine = [e for e in _of(entries, precision) if e.kernel not in without]
            chosen, more = self._first(mine, exact)
            if chosen is None:
                passed += more
                continue
            found, one = chosen
            if not one.entry.candidate["tile"]:
                return None, passed + more  # what the cost model takes was faster there
            reason = "" if exact and one.current else self._strayed(found.candidate, one)
            reason = reason or self._unmeasured(found.candidate, {e.kernel for e in mine}, without)
            if not reason:
                return found.beside(*more, why=f"tuned on {_where(one, exact)}: {_milliseconds(one.entry)}"), passed
            passed += ((str(one), reason), *more)
        return None, passed

    def settled(self, classes: Sequence[str]) -> bool:
        """Return True if the store has an exact-size entry for every accuracy class, and of what is installed for plain fp32."""
        entries = [*self.known.measured(self._exact), *self.known.measured(self.known.noisy.at(*self._of))]
        for family in families():
            counts = not family.own and family.precision == "fp32" and (family.memory == "device" or self.device.kind == "cpu")
            wanted = "fp32" in classes and counts and not family.supports(self.device, self.desc)
            if wanted and not any(e.family is family for e in entries):
                return False
        firsts = (self._first(_of(entries, one), True)[0] for one in classes)
        return all(first is not None and first[1].current for first in firsts)

    def beside_host(self) -> tuple[float, float] | None:
        """Return the measured seconds of ours and of the host's BLAS on a CPU device, for host arrays; None where not known."""
        for exact, entries in self._spots():
            theirs = next((e for e in entries if e.family and e.family.memory == "host"), None)
            ours = self._first_plain(entries, own=True)
            if theirs and ours:
                return ours.median * (1.0 if exact and ours.current else NEIGHBOURS.margin), theirs.median
        return None

    def _of_spot(self, own: bool, entries: Sequence[Measured], exact: bool) -> tuple[Selection | None, PassedOver]:
        """Return the best that entries of one size allow in plain fp32; None where none is of any use."""
        plain = _of(entries, "fp32")
        chosen, passed = self._first(plain, exact)
        if chosen is None:
            return None, passed
        found, one = chosen
        where = _where(one, exact)
        exact = exact and one.current
        if not exact and (  # a measurement of the very sizes stands against any prediction
            reason := self._strayed(found.candidate, one) or self._unmeasured(found.candidate, {e.kernel for e in plain})
        ):
            return None, ((str(one), reason), *passed)
        theirs = [] if own else [e for e in entries if e.family and not e.family.own and isinstance(e.candidate, Candidate)]
        vendor = self._first_plain(theirs, own)
        if vendor is not None and isinstance(vendor.candidate, Candidate):
            ratio = vendor.median / one.median
            here_too = ratio if exact else ratio * self._grown(vendor.candidate.family, one)
            if here_too < 1:
                why = f"measured faster than ours on {where}: {_milliseconds(vendor.entry)}"
                passed = ((str(one), f"{1 / ratio:.2f} times as long when measured"),)
                return Selection(vendor.candidate, why, passed, True), ()
            if not exact and ratio < NEIGHBOURS.margin:
                return None, passed
            passed = ((vendor.kernel, f"{ratio:.2f} times as long when measured"), *passed)
        why = f"tuned on {where}: {_milliseconds(one.entry)}"
        return Selection(found.candidate, why, passed, vendor is not None, found.unproven), ()

    def _first(self, entries: Sequence[Measured], exact: bool) -> tuple[tuple[Selection, Measured] | None, PassedOver]:
        """Return the first of entries of one accuracy class, fastest first, that the product can follow; and what was passed over.

        Where some were measured with the driver and sources at hand, the others are not looked at.
        """
        passed: list[tuple[str, str]] = []
        chosen: tuple[Selection, Measured] | None = None
        for one in [e for e in entries if e.fresh] or entries:
            if chosen is not None:
                if len(passed) >= SHOWN:
                    break
                passed.append((str(one), f"{one.median / chosen[1].median:.2f} times as long when measured"))
                continue
            found = self._followed(one, exact)
            if isinstance(found, Selection):
                chosen = found, one
            else:
                passed.append((str(one), found))
        return chosen, tuple(passed)

    def _followed(self, one: Measured, exact: bool) -> Selection | str:
        """Return the selection that an entry suggests, or why there is none."""
        if isinstance(one.candidate, str):
            return one.candidate
        entry, message = one.entry, ""
        stale = not one.fresh and bool(entry.candidate["tile"])  # else it says how long, and not what to run
        if stale:
            source = _version(one.candidate.family, self.device.backend)
            proved = self._store.proofs.get((entry.id, self.known.machine, source), self.known.proofs.get((entry.id, source)))
            if proved == NOT_ENDED and self._store.is_open(entry):
                proved = None
            message, stale = proved or "", proved is None
        if message:
            return f"wrong with this driver and kernel: {message}"
        found = one.fitted(self.device, self.desc, exact)
        return Selection(found, unproven=entry if stale else None) if isinstance(found, Candidate) else found

    def _grown(self, theirs: KernelFamily, neighbour: Measured) -> float:
        """Return the predicted change of a family's time over ours from a neighbour to here; 1 if unknown."""
        before, now = (ranking.ratio(self.device, desc, theirs) for desc in (neighbour.desc, self.desc))
        return now / before if 0 < before < math.inf and 0 < now < math.inf else 1.0

    def _strayed(self, candidate: Candidate, one: Measured) -> str:
        """Return why a neighbour's candidate is not followed: its predicted loss here exceeds ``strayed``.

        Its predicted loss at the neighbour, where it was measured as the fastest, is the model's error and is subtracted.
        """
        heres, others = ranking.losses(self.device, self.desc, candidate), ("another", "another of its tiles")
        if max([here or 0.0 for here in heres]) <= NEIGHBOURS.strayed:
            return ""
        for here, before, other in zip(heres, one.losses(self.device), others, strict=True):
            lost = here / max(before, 1.0) if here and before else 1.0
            if lost > NEIGHBOURS.strayed:
                return f"tuned on {_where(one, False)}; {lost:.2f} times as long as {other} by the cost model here"
        return ""

    def _unmeasured(self, candidate: Candidate, measured: Collection[str], without: Collection[str] = ()) -> str:
        """Return why an entry is left for the heuristic: a family that was not measured there is predicted to be clearly faster.

        Faster than each family that was measured, too: a prediction no better than that of one that lost says nothing.
        """
        order = ranking.ranked(self.device, self.desc, candidate.family.precision)
        other = next((p for p in order if p.family.name not in measured and p.family.name not in without), None)
        if other is None:
            return ""
        predicted = [p.seconds for p in order if p.family.name in measured]
        ours = min([ranking.seconds(self.device, self.desc, candidate), *predicted])
        if ours < NEIGHBOURS.clearly * other.seconds:
            return ""
        return f"{ours / other.seconds:.1f} times as long as {other} by the cost model, which was not measured there"


class Untuned(TunedStore):
    """Lookup that finds nothing: for a call that can follow no entry."""

    def known(self, device: Device) -> Known:
        return Known(stores.Machine.of(device), None, stores.Book())


HERE = TunedStore()
"""This process's lookup; selection takes another one where it is given one."""


def stamp_of(path: str) -> tuple[object, ...]:
    """Return something that changes when a database does, its log included."""
    stamps: list[object] = [path]
    for one in (path, f"{path}-wal"):
        try:
            status = os.stat(one)  # noqa: PTH116  # each selection looks here; a Path takes longer
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _named(name: str) -> KernelFamily | None:
    return next((f for f in families() if f.name == name), None)


def precision_of(name: str) -> str:
    """Return the accuracy class of a family by its name; fp32 for one that is not here."""
    return one.precision if (one := _named(name)) else "fp32"


def is_ours(name: str, precision: str = "") -> bool:
    """Return True for the name of a family of toprung's own; ``precision``: of that accuracy class alone."""
    return bool((one := _named(name)) and one.own and precision in ("", one.precision))


def version(name: str, backend: str) -> str:
    """Return what identifies the code behind a family today; empty for one that is not here."""
    return _version(one, backend) if (one := _named(name)) else ""


@functools.cache
def _version(family: KernelFamily, backend: str) -> str:
    return base.version(family, backend)


def _candidate(entry: Entry) -> Candidate | str:
    try:
        return decoded(entry.candidate)
    except (UnknownName, ValueError) as error:
        return str(error)


def refusal(entry: Entry) -> str:
    """Return why this toprung can never use an entry; empty if it can.

    The reason is a family, a switch or a value that does not exist.
    """
    return one if isinstance(one := _candidate(entry), str) else ""


def _of(entries: Sequence[Measured], precision: str) -> list[Measured]:
    """Return the entries of toprung's own families of an accuracy class; those of families that are not here count as fp32."""
    return [e for e in entries if e.precision == precision and (e.family is None or e.family.own)]


def _where(one: Measured, exact: bool) -> str:
    if not exact:
        return f"{_shape(one.entry)}, the nearest of its class that were tuned{'' if one.current else OLDER}"
    return "these very sizes" if one.current else f"these sizes{OLDER}"


def _shape(entry: Entry) -> str:
    sizes = "×".join(str(entry.shape[n]) for n in "MNK" if n in entry.shape)
    return sizes + (f", batch {entry.shape['batch']}" if entry.shape.get("batch", 1) != 1 else "")


def _milliseconds(entry: Entry) -> str:
    return f"{1e3 * entry.median:.4g} ms on {entry.date[:10]}"
