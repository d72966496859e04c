"""What the store of tuned entries says about a call: asked before the model (``choose.STORES``).

An entry of the very sizes and class comes first, then the nearest of the class (``problems.class_of``) with no size more than
``FACTOR`` away, then the model. The user's own entries of a size hide those of the same precision path that come with the
package. What an entry says is held against the kernels, rules and switches that exist before anything is built from it; where
driver, compiler or kernel text are others than it was measured with, it is verified here first (``proof``), once, and the store
remembers.

Nothing here raises because of the store: what is wrong with it is warned of once, and the model decides.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from toprung import hopper, hopper_fp32
from toprung.blas import ffma, fp32x
from toprung.blas.call import Call, GemmCall, GemvCall, widest, widths
from toprung.blas.choice import FFMA, Choice, PassedOver
from toprung.blas.choose import STORES, cublas_ratio, lacking, tile_loss
from toprung.blas.ffma import ffma_choice
from toprung.blas.fp32x import FP32X, path_of
from toprung.blas.kernel import kernel, kernel_names
from toprung.blas.kernels.rows import SMALL
from toprung.blas.pieces import PIECES
from toprung.blas.problems import call_of, class_of, problem_of, sizes_of, source_hash
from toprung.blas.route import paths
from toprung.blas.short import FEW, Skinny, skinny_widths, turn
from toprung.blas.slices import LEAST_TURNS, whole_slices
from toprung.blas.tiles import tile_grid
from toprung.device import Device
from toprung.errors import LaunchError, OutOfDeviceMemory, StoreError, SwitchRefused, UnknownName
from toprung.store import VENDORS, Book, Entry, Machine, Proof, Store, off, shipped
from toprung.tile import Tile, broken

FACTOR = 1.5
"""How far M, N, K and the batch of a neighbour may each be from the call's, as a ratio."""

MARGIN = 1.03
"""How much faster than what is installed an entry must be where it was measured on a neighbour, not on the sizes themselves."""

STRAYED = 1.1
"""A neighbour is not followed where by the model its tile takes so many times as long as another here, and did not there."""

LARGEST_PIECE = 1024
"""Results of a work-item, and DEEPEST: of K in a tile, beyond which a tile is not built: compilers unroll both."""
DEEPEST = 512
LARGEST_STEP, LARGEST_GROUP = 32, 1 << 10
"""Of K and of stages in the ring of Hopper's plain fp32 kernel, and rows of its tiles that are walked together."""

SHOWN = 3
"""Entries passed over for a faster one that a receipt names."""


@dataclass
class Known:
    """What the stores hold for one machine, in memory.

    Attributes
    ----------
    stamp : what the user's file looked like when it was read
    proofs : (entry, source of its kernel now) → what was wrong with it here, empty: nothing
    host : whether NumPy was measured on anything
    faster : what ``host_is_faster`` said
    """

    machine: Machine
    stamp: object
    book: Book
    proofs: dict[tuple[str, str], str] = field(default_factory=dict)
    host: bool = False
    faster: dict[Call, bool | None] = field(default_factory=dict)


_KERNELS = frozenset((*kernel_names(), FFMA))
_known: dict[Machine, Known] = {}
_latest: dict[str, tuple[float, Known]] = {}
"""The same by the device's id, with the time of the last look at the file, for those who may not spend the time to look."""
_proved: dict[tuple[str, Machine, str], str] = {}
_warned: set[str] = set()
_lock = threading.RLock()


def known(device: Device) -> Known:
    """What is known for a device; read again where another process has changed the user's file."""
    machine = Machine.of(device)
    if off():
        return Known(machine, None, Book())
    store = Store.default()
    stamp = _stamp(store.path)
    with _lock:
        found = _known.get(machine)
        if found is None or found.stamp != stamp:
            found = _known[machine] = _read(machine, store, stamp)
        _latest[device.id] = time.monotonic(), found
        return found


def _lately(device: Device) -> Known:
    """``known`` as it was at most a second ago."""
    when, found = _latest.get(device.id, (-math.inf, None))
    return found if found is not None and time.monotonic() < when + 1 else known(device)


def forget() -> None:
    """Forget what was read and proved in this process."""
    with _lock:
        for one in (_known, _latest, _proved, _warned):
            one.clear()


def _stamp(path: Path) -> object:
    """What changes when a database does, its log included."""
    stamps: list[object] = [str(path)]
    for one in (path, path.with_name(f"{path.name}-wal")):
        try:
            status = one.stat()
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _read(machine: Machine, store: Store, stamp: object) -> Known:
    complaints: list[str] = []
    own: list[Entry] = []
    proofs: list[Proof] = []
    try:
        own = store.fastest(machine, complaints=complaints)
        proofs = store.proofs(machine)
    except StoreError as error:
        complaints.append(str(error))
    theirs = shipped(machine, complaints)
    if complaints:
        _warn(complaints[0] + (f" (and {len(complaints) - 1} more: toprung store list)" if len(complaints) > 1 else ""))
    mine = {(e.problem_class, e.sizes, path_of(e.kernel)) for e in own if e.kernel not in VENDORS}
    entries = own + [e for e in theirs if (e.problem_class, e.sizes, path_of(e.kernel)) not in mine]
    return Known(
        machine, stamp, Book(entries), {(p.entry, p.source): p.message for p in proofs}, any(e.kernel == "numpy" for e in entries)
    )  # fmt: skip


def _warn(text: str) -> None:
    """Say what is wrong with the store."""
    warn_once(f"toprung goes on without it: {text}")


def warn_once(text: str) -> None:
    """Warn of something, once a process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def proved(entry: Entry, device: Device) -> bool:
    """Whether an entry has been verified on this machine with its kernel's text as it is now."""
    return (entry.id, Machine.of(device), source_hash(entry.kernel, device.backend)) in _proved


@contextmanager
def verifying(entry: Entry, device: Device) -> Iterator[list[str]]:
    """Have an entry verified in the block, which puts what is wrong into the list; remember it, here and in the store.

    The store says "wrong" until the block ends: a kernel that takes the process down is not tried again. What the device refused
    just now (memory, a launch) counts in this process alone.
    """
    proof = Proof(entry.id, Machine.of(device), source_hash(entry.kernel, device.backend), "its verification did not end")
    kept = _keep(Store.default().prove, proof)
    found: list[str] = []
    try:
        yield found
    except (LaunchError, OutOfDeviceMemory) as error:
        found.append(str(error))
        if kept:
            _keep(Store.default().unprove, proof)
    else:
        if kept:
            _keep(Store.default().prove, replace(proof, message="; ".join(found)))
    _proved[proof.entry, proof.machine, proof.source] = "; ".join(found)


def _keep(write: Callable[[Proof], None], proof: Proof) -> bool:
    """Write to the store, or say why that cannot be."""
    try:
        write(proof)
    except StoreError as error:
        _warn(str(error))
        return False
    return True


class Tuned:
    """The stores as an adviser of the choice."""

    def choice(self, device: Device, call: Call, own: bool) -> tuple[Choice | None, PassedOver]:
        """See ``choose.Adviser``."""
        here = known(device)
        if not here.book:
            return None, ()
        passed: PassedOver = ()
        for exact, entries in _spots(here, call):
            found, more = _of_spot(here, device, call, own, entries, exact)
            if found is not None:
                return found, passed + more
            passed += more
        return None, passed

    def fp32x(self, device: Device, call: Call, own: bool) -> str | None:
        """See ``choose.Adviser``."""
        here = known(device)
        for exact, entries in _spots(here, call) if here.book else ():
            chosen, _ = _first(here, device, call, [e for e in entries if e.kernel == FP32X], exact)
            plain = next((e for e in entries if _may(e, device, call, own)), None)
            if chosen and plain:
                _, ours = chosen
                if ours.median <= plain.median:
                    return ""
                share = f"{ours.median / plain.median:.2f} times as long as {_name(plain)}"
                return f"fp32x took {share} when both were measured on {_shape(ours)}"
        return None

    def fp32x_choice(self, device: Device, call: Call) -> tuple[Choice | None, PassedOver]:
        """See ``choose.Adviser``."""
        here = known(device)
        passed: PassedOver = ()
        for exact, entries in _spots(here, call) if here.book else ():
            chosen, more = _first(here, device, call, [e for e in entries if e.kernel == FP32X], exact)
            if chosen is None:
                passed += more
            elif not chosen[1].candidate["tile"]:
                return None, passed + more  # what is reckoned was faster there
            else:
                choice, entry = chosen
                return replace(choice, why=f"tuned on {_where(entry, exact)}: {_milliseconds(entry)}", passed_over=more), passed
        return None, passed


def settled(device: Device, call: Call, precision: str) -> bool:
    """Whether entries of a call's very sizes decide it: on each path that may run it, and beside what is installed."""
    here = known(device)
    entries = here.book.at(class_of(call), sizes_of(call))
    wanted = paths(device, call, precision) or ("fp32",)
    installed = "numpy" if device.kind == "cpu" else "" if lacking(device, call) else "cublas"
    if "fp32" in wanted and installed and not any(e.kernel == installed for e in entries):
        return False
    return all(_first(here, device, call, [e for e in entries if is_ours(e.kernel, path)], True)[0] for path in wanted)


def knows_host(device: Device) -> bool:
    """Whether NumPy was measured beside ours on a device: a question that costs next to nothing."""
    return not off() and _lately(device).host


def host_is_faster(device: Device, call: Call) -> bool | None:
    """Whether NumPy was faster than ours on a CPU device, for host arrays; None where it is not known."""
    latest = _lately(device)
    if call not in latest.faster:
        latest.faster[call] = _host_is_faster(latest, device, call)
    return latest.faster[call]


def _host_is_faster(here: Known, device: Device, call: Call) -> bool | None:
    for exact, entries in _spots(here, call):
        theirs = next((e for e in entries if e.kernel == "numpy"), None)
        ours = next((e for e in entries if _may(e, device, call, own=True)), None)
        if theirs and ours:
            return ours.median * (1.0 if exact else MARGIN) > theirs.median
    return None


def is_ours(kernel: str, precision: str) -> bool:
    """Whether a candidate's kernel is one of ours, of a precision path."""
    return kernel not in VENDORS and path_of(kernel) == precision


def refusal(entry: Entry) -> str:
    """Why an entry can never be used by this toprung: a kernel, switch or value that does not exist; empty where it can."""
    if entry.kernel in VENDORS:
        return ""
    if entry.kernel == FP32X:
        return _fp32x(entry)[1]
    if entry.kernel == FFMA:
        return _ffma(entry)[1]
    try:
        switches = {s.name: s.values for s in kernel(entry.kernel).switches}
    except UnknownName as error:
        return str(error)
    if not entry.candidate["tile"]:
        return f"blas/{entry.kernel} needs a tile"
    for name, value in entry.candidate["options"].items():
        if value not in switches.get(name, ()):
            return f"blas/{entry.kernel} has no switch {name}={value}"
    return ""


def _ffma(entry: Entry) -> tuple[hopper_fp32.Variant | None, str]:
    """The parameters of Hopper's kernel that an entry names, or why there are none such."""
    candidate = entry.candidate
    try:
        variant = ffma.variant_of(Tile(**candidate["tile"]), candidate["options"])
    except (KeyError, TypeError, ValueError):
        return None, "hopper_fp32/ffma needs a tile with BM, BN, BK and STAGES, and options GROUP, TURN_A and WAIT_AT"
    if (variant.BK > LARGEST_STEP or variant.STAGES > LARGEST_STEP) or not 0 < variant.GROUP <= LARGEST_GROUP:
        return None, f"hopper_fp32/ffma is not built for {variant}"
    return variant, variant.refused()


def _fp32x(entry: Entry) -> tuple[hopper.Way | None, str]:
    """The tile and slices of fp32x that an entry names, or why there are none such; neither: it is of what is reckoned."""
    candidate = entry.candidate
    if not candidate["tile"] and candidate["options"].keys() <= {"SLICES"}:
        return None, ""
    try:
        way = fp32x.way_of(Tile(**candidate["tile"]) if candidate["tile"] else None, candidate["options"])
    except ValueError as error:
        return None, str(error)
    return way, way.variant.refused()


def _spots(here: Known, call: Call) -> Iterator[tuple[bool, Sequence[Entry]]]:
    """Entries by size, fastest first: the call's own, then its neighbours'; and whether they are its own."""
    name, sizes = class_of(call), sizes_of(call)
    if exact := here.book.at(name, sizes):
        yield True, exact
    for distance, entries in here.book.near(name, sizes, FACTOR):
        if distance:
            yield False, entries


def _may(entry: Entry, device: Device, call: Call, own: bool) -> bool:
    """Whether an entry is of a plain fp32 kernel that could run a call in the device's memory."""
    if entry.kernel == "cublas":
        return not own and not lacking(device, call)
    return entry.kernel in _KERNELS


def _of_spot(
    here: Known, device: Device, call: Call, own: bool, entries: Sequence[Entry], exact: bool
) -> tuple[Choice | None, PassedOver]:
    """The best that entries of one size allow in plain fp32; None where none is of any use."""
    chosen, passed = _first(here, device, call, [e for e in entries if is_ours(e.kernel, "fp32")], exact)
    vendor = None if own or lacking(device, call) else next((e for e in entries if e.kernel == "cublas"), None)
    if chosen is None:
        return None, passed
    choice, entry = chosen
    where = _where(entry, exact)
    if not exact and (reason := _strayed(device, call, choice, entry)):
        return None, ((_name(entry), reason), *passed)
    if vendor is not None:
        ratio = vendor.median / entry.median
        here_too = ratio if exact else ratio * _grown(device, call, entry)
        if here_too < 1:
            why = f"measured faster than ours on {where}: {_milliseconds(vendor)}"
            return Choice("cublas", None, (), why, ((_name(entry), f"{1 / ratio:.2f} times as long when measured"),), True), ()
        if not exact and ratio < MARGIN:
            return None, passed
        passed = (("cublas", f"{ratio:.2f} times as long when measured"), *passed)
    why = f"tuned on {where}: {_milliseconds(entry)}"
    return replace(choice, why=why, passed_over=passed, weighed=vendor is not None), ()


def _first(
    here: Known, device: Device, call: Call, entries: Sequence[Entry], exact: bool
) -> tuple[tuple[Choice, Entry] | None, PassedOver]:
    """The first of entries of one path, fastest first, that a call can follow; and what was passed over.

    Where some were measured with the driver and kernel at hand, the others are not looked at.
    """
    passed: list[tuple[str, str]] = []
    chosen: tuple[Choice, Entry] | None = None
    for entry in [e for e in entries if _fresh(e, here.machine)] or entries:
        if chosen is not None:
            if len(passed) < SHOWN:
                passed.append((_name(entry), f"{entry.median / chosen[1].median:.2f} times as long when measured"))
            continue
        found = _followed(here, device, call, entry, exact)
        if isinstance(found, Choice):
            chosen = found, entry
        else:
            passed.append((_name(entry), found))
    return chosen, tuple(passed)


def _grown(device: Device, call: Call, entry: Entry) -> float:
    """By what cuBLAS's time over ours differs between a neighbour and a call, by the model; 1 where it says nothing."""
    there = call_of(problem_of(entry.shape))
    before, now = (cublas_ratio(device, one) for one in (there, call))
    return now / before if 0 < before < math.inf and 0 < now < math.inf else 1.0


def _strayed(device: Device, call: Call, choice: Choice, entry: Entry) -> str:
    """Why a neighbour's choice is left for the model's: by the model it has lost more than ``STRAYED`` on the way here.

    What it loses by the model where it was the fastest measured is the model's error and comes off.
    """
    there = call_of(problem_of(entry.shape))
    if choice.kernel != "gemm" or choice.tile is None or not (isinstance(call, GemmCall) and isinstance(there, GemmCall)):
        return ""
    here, before = tile_loss(device, call, choice.tile), tile_loss(device, there, Tile(**entry.candidate["tile"]))
    lost = here / max(before, 1.0) if here and before else 1.0
    return f"tuned on {_where(entry, False)}; {lost:.2f} times as long as another by the model here" if lost > STRAYED else ""


def _fresh(entry: Entry, machine: Machine) -> bool:
    """Whether an entry was measured with this driver, compiler and kernel text."""
    return entry.machine == machine and _source(entry) == entry.source


def _source(entry: Entry) -> str:
    """The hash of the text of an entry's kernel as it is now; empty where there is none."""
    return source_hash(entry.kernel, entry.machine.backend) if entry.kernel in (*_KERNELS, FP32X) else ""


def _followed(here: Known, device: Device, call: Call, entry: Entry, exact: bool) -> Choice | str:
    """The choice for a call that an entry suggests, or why there is none."""
    if reason := refusal(entry):
        return reason
    message = ""
    stale = not _fresh(entry, here.machine) and bool(entry.candidate["tile"])  # else it says how long, and not what to run
    if stale:
        source = source_hash(entry.kernel, device.backend)
        known_here = _proved.get((entry.id, here.machine, source), here.proofs.get((entry.id, source)))
        message, stale = known_here or "", known_here is None
    if message:
        return f"wrong with this driver and kernel: {message}"
    found = fitted(device, call, entry, exact)
    return replace(found, unproven=entry if stale else None) if isinstance(found, Choice) else found


def fitted(device: Device, call: Call, entry: Entry, exact: bool) -> Choice | str:
    """An entry's tile and switches made to fit a call, or why they cannot be.

    What follows from the call (transposes, 32-bit offsets, the width of accesses to C) is set anew. Slices of K stay as they
    are for ``exact`` sizes; else there are as many as give the call's blocks as many work-groups as the entry's had.
    """
    if entry.kernel == FP32X:
        return _fp32x_fitted(device, call, entry, exact)
    if entry.kernel == FFMA:
        variant, reason = _ffma(entry)
        if variant is None or reason:
            return reason
        if not isinstance(call, GemmCall):
            return "it multiplies matrices"
        return hopper_fp32.supported(device, call) or ffma_choice(variant, "")
    name, tile, options = entry.kernel, Tile(**entry.candidate["tile"]), dict(entry.candidate["options"])
    if (tile.TM or 1) * (tile.TN or 1) > LARGEST_PIECE or (tile.BK or 1) > DEEPEST:
        return "its tile is larger than is ever built"
    if name == "gemm":
        made = _gemm(call, entry, tile, options, exact)
    elif name == PIECES:
        made = _pieces(call, tile, options)
    elif name in ("rows", "columns"):
        made = _skinny(call, entry, tile, options, exact)
    else:
        made = replace(tile, SPLIT_K=None)
    if isinstance(made, str):
        return made
    found = kernel(name)
    try:
        switches = found.options(device, options)
    except (UnknownName, SwitchRefused) as error:
        return str(error)
    if found.needs(device) or (reasons := broken(found.all_rules(switches), replace(made, SPLIT_K=None), device)):
        return found.needs(device) or "; ".join(reasons)
    return Choice(name, made, tuple(sorted(switches.items())))


def _fp32x_fitted(device: Device, call: Call, entry: Entry, exact: bool) -> Choice | str:
    """The same for fp32x; what is reckoned for the call where the entry names no tile."""
    way, reason = _fp32x(entry)
    if reason:
        return reason
    if not isinstance(call, GemmCall):
        return "it multiplies matrices"
    if reason := hopper.supported(device, call):
        return reason
    variant, slices = way or hopper.choose(call, device.compute_units)
    if reason := variant.unfit(call):
        return reason
    if way and not exact:
        m, n, _, batch = entry.sizes
        blocks, were = (hopper.waves(one, variant, 1) for one in (call, hopper.Product(m, n, call.K, batch)))
        slices = round(slices * were / max(blocks, 1))
    return fp32x.choice_of(hopper.Way(variant, hopper.trimmed(call.K, min(slices, hopper.most_slices(call)))))


def _gemm(call: Call, entry: Entry, tile: Tile, options: dict[str, int], exact: bool) -> Tile | str:
    """The tunable product's tile for a call; ``options`` are changed to what the call needs."""
    if not isinstance(call, GemmCall):
        return "it multiplies matrices"
    a, b, c = widths(call)
    if (tile.VA or 1) > a or (tile.VB or 1) > b:
        return "its accesses are wider than the operands allow"
    sizes = entry.sizes
    blocks = math.prod(tile_grid(call, tile)) * call.batch
    were = -(-sizes[0] // tile.BM) * -(-sizes[1] // tile.BN) * sizes[3]
    slices = _slices(call.K, tile.BK or 1, tile.SPLIT_K or 1, blocks, were, exact)
    options["TRANS_A"], options["TRANS_B"] = int(call.trans_a), int(call.trans_b)
    options["VC"] = min(options.get("VC", 4), c if slices == 1 else widest(call.N))
    if max(*call.extents, call.M * call.N) >= 2**31:
        options["INDEX32"] = 0
    return replace(tile, SPLIT_K=slices if slices > 1 else None)


def _pieces(call: Call, tile: Tile, options: dict[str, int]) -> Tile | str:
    """The tile of the product by pieces for a call; ``options`` are changed to what the call needs."""
    if not isinstance(call, GemmCall) or call.batch > 1:
        return "it multiplies two matrices"
    a, b, c = widths(call)
    if (tile.VA or 1) > a or (tile.VB or 1) > b:
        return "its accesses are wider than the operands allow"
    options["TRANS_A"], options["TRANS_B"] = int(call.trans_a), int(call.trans_b)
    options["VC"] = min(options.get("VC", 4), c)
    if max(*call.extents, call.M * call.N) >= 2**31:
        options["INDEX32"] = 0
    return replace(tile, SPLIT_K=None)


def _skinny(call: Call, entry: Entry, tile: Tile, options: dict[str, int], exact: bool) -> Tile | str:
    """The same for the kernels that read a large operand once."""
    s = Skinny.of(call)
    if s.few > FEW or s.by_rows != (entry.kernel == "rows"):
        return f"blas/{entry.kernel} does not compute such a product"
    wide, together = skinny_widths(s)
    if (tile.VA or 1) > wide or (s.by_rows and (tile.VB or 1) > together):
        return "its accesses are wider than the operands allow"
    options["SMALL"] = next(n for n in SMALL if n >= s.few)
    m, n, _, batch = entry.sizes
    length = (n if entry.shape.get("trans") == "T" else m) if isinstance(call, GemvCall) else max(m, n)
    blocks = -(-s.length // tile.BM) * (call.batch if isinstance(call, GemmCall) else 1)
    slices = _slices(s.depth, turn(tile), tile.SPLIT_K or 1, blocks, -(-length // tile.BM) * batch, exact)
    return replace(tile, SPLIT_K=slices if slices > 1 else None)


def _slices(depth: int, piece: int, slices: int, blocks: int, were: int, exact: bool) -> int:
    """Slices of K, none of them empty, for ``blocks`` work-groups where ``were`` had ``slices``."""
    wanted = slices if exact else round(slices * were / max(blocks, 1))
    most = depth // piece if exact else depth // (LEAST_TURNS * piece)
    return whole_slices(depth, piece, max(1, min(wanted, most))) if depth else 1


def _name(entry: Entry) -> str:
    """An entry's candidate, as receipts name kernels."""
    if entry.kernel in VENDORS or (entry.kernel == FP32X and not entry.candidate["tile"]):
        return entry.kernel
    name = {FFMA: "hopper_fp32/ffma", FP32X: "hopper/fp32x"}.get(entry.kernel, f"blas/{entry.kernel}")
    return f"{name} {Tile(**entry.candidate['tile'])}" if entry.candidate["tile"] else name


def _where(entry: Entry, exact: bool) -> str:
    return "these very sizes" if exact else f"{_shape(entry)}, the nearest of its class that were tuned"


def _shape(entry: Entry) -> str:
    sizes = "×".join(str(entry.shape[n]) for n in "MNK" if n in entry.shape)
    return sizes + (f", batch {entry.shape['batch']}" if entry.shape.get("batch", 1) != 1 else "")


def _milliseconds(entry: Entry) -> str:
    return f"{1e3 * entry.median:.4g} ms on {entry.date[:10]}"


STORES.append(Tuned())
