"""Typed errors. Each says what happened and what to do next; none leaves anything half written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading a file that anybody may have written."""

DISTURBANCES = (MemoryError, RecursionError, TimeoutError, Warning)
"""Errors that say nothing about a device: memory or stack ran out, an alarm went off, a warning was made an error."""


def let_through(error: BaseException) -> None:
    """Raise an error again that is the program's and no answer of a runtime: a disturbance, or what a signal's handler raised.

    An error of toprung's own is an answer: a device without memory is no program without memory.
    """
    import signal  # with traceback it takes as long to import as the rest of this module, and few programs come here
    import traceback

    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    disturbed = isinstance(error, DISTURBANCES) and not isinstance(error, ToprungError)
    if disturbed or any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


class ToprungError(Exception):
    """Base of every error raised by toprung itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the constructor with the finished text, and a pool whose worker's error cannot be made waits for ever
        made: Any = super().__reduce__()
        return _again, (type(self), made[1]), *made[2:]


def _again(kind: type[ToprungError], args: tuple[Any, ...]) -> ToprungError:
    """Return an error with a finished text, in the process that unpickles it or for a copy."""
    native: Any = kind
    while native.__module__ != "builtins":  # the class that lays it out makes it: kind.__new__ may be that of another base
        native = native.__base__
    error: ToprungError = native.__new__(kind, *args)
    super(ToprungError, error).__init__(*args)
    return error


class UnknownName(ToprungError, ValueError):
    """A ladder, rung, device, switch or peer that does not exist.

    Parameters
    ----------
    what : what kind of thing was asked for, in the singular
    given : what was given
    known : what exists
    more : sentences on what is missing, and how to get it
    """

    def __init__(self, what: str, given: object, known: Iterable[str], more: str = "") -> None:
        self.what, self.given, self.known = what, given, tuple(known)
        listing = ", ".join(self.known) or "none"
        super().__init__(f"there is no {what} {str(given)!r}; there is: {listing}" + (f". {more}" if more else ""))


def named(what: str, name: str, known: Mapping[str, T]) -> T:
    """Return one of several things of a kind by its name, or raise UnknownName."""
    if name not in known:
        raise UnknownName(what, name, known)
    return known[name]


class BadSize(ToprungError, ValueError):
    """A matrix size, stride or list of sizes that makes no sense."""


class BadRung(ToprungError):
    """A rung's files break the rules of a ladder folder (missing kernel source, no RUNG record, a number used twice)."""


class BadFamily(ToprungError, ImportError):
    """A kernel family in a folder of ``TOPRUNG_KERNELS`` that cannot be used: its module does not load, or has no FAMILY."""


class IllegalTile(ToprungError, ValueError):
    """A tile that this rung or this device cannot run, with every broken rule's reason."""

    def __init__(self, rung: str, tile: object, device: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"{rung} cannot run with {tile} on {device}: " + "; ".join(self.reasons))


class SwitchRefused(ToprungError, ValueError):
    """A rung's switch that this device has no use for, with the reason."""


class Unsupported(ToprungError, ValueError):
    """A problem that a rung or a peer does not compute (a transpose, a batch, a scalar), with the reason."""


class NoDevice(ToprungError):
    """No device of the kind asked for; the text says how to get one."""


class ForkedDevice(ToprungError, RuntimeError):
    """A device opened before fork() was used in the child, where some runtimes hang for ever."""

    def __init__(self, device: str) -> None:
        super().__init__(
            f"{device} was opened before this process was forked, and OpenCL and CUDA do not work in a forked child; "
            "start processes with multiprocessing.get_context('spawn')"
        )


class BuildError(ToprungError):
    """A kernel that does not compile: the build log, the tile and the device are kept.

    Attributes
    ----------
    log : the compiler's output
    """

    def __init__(self, kernel: str, defines: str, device: str, log: str, first: str = "") -> None:
        """``first``: the first error with its place in the user's file, the first line of the message."""
        self.kernel, self.defines, self.device, self.log = kernel, defines, device, log
        super().__init__(f"{first}\n{kernel} does not build with {defines or 'no definitions'} on {device}:\n{log.strip()}".strip())


class BadCubin(ToprungError, ValueError):
    """Machine code that cannot be used: damaged, for another architecture, or not what the rung launches."""


class LaunchError(ToprungError, RuntimeError):
    """The device refused a launch."""


class Unfinished(LaunchError):
    """The device refused a launch after earlier ones of the same product: what the result's memory held is lost."""


class NoRoom(LaunchError):
    """The disk with the compiler's files is full, or a quota is used up; the text names the folder."""


class OutOfDeviceMemory(ToprungError, MemoryError):
    """More memory was asked for than the device has.

    Attributes
    ----------
    asked, available : bytes
    """

    def __init__(self, device: str, asked: int, available: int, what: str = "one buffer") -> None:
        self.asked, self.available = asked, available
        super().__init__(
            f"{device} cannot allocate {asked:,} bytes ({what}): {available:,} bytes is what it allows; use smaller sizes"
        )


class WrongResult(ToprungError, ArithmeticError):
    """A check found a result that is not the product."""


class NotWritten(ToprungError, OSError):
    """A file that was asked for cannot be written; the text says where its content is, if there is any."""


class BadRecord(ToprungError, ValueError):
    """A file of measurements that is damaged or of another format."""


class MissingExtra(ToprungError, ImportError):
    """An optional package that was asked for is not installed; the text says how to get it."""


class BadArray(ToprungError, TypeError):
    """An operand that is no array toprung can take, or has another type than float32; the text says how to convert it."""


class BadShape(ToprungError, ValueError):
    """Shapes, increments or offsets that do not fit together."""


class BadArgument(ToprungError, ValueError):
    """A parameter other than an array that makes no sense."""


class Overlap(ToprungError, ValueError):
    """An output that shares memory with an input, or with itself."""


class MixedPlaces(ToprungError, ValueError):
    """Operands that lie on different devices, or elsewhere than where the call was asked to run."""


class StalePlan(ToprungError, ValueError):
    """A plan called with operands other than those it was made for."""


class StaleOperand(ToprungError, ValueError):
    """A prepacked operand whose source has been written to since it was prepacked."""


class NotReady(ToprungError, TimeoutError):
    """Something that was not ready within its limit of time; the text names it, and says what to do."""


class RankFailed(ToprungError, RuntimeError):
    """A product on several devices that other ranks cannot start or finish; the text names them.

    Attributes
    ----------
    ranks : ranks of the process group that failed, are gone, or were called otherwise
    """

    def __init__(self, ranks: Sequence[int], text: str) -> None:
        self.ranks = tuple(ranks)
        super().__init__(f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))} {text}")


class StoreError(ToprungError, ValueError):
    """A store of tuned entries, or an entry, that cannot be read or written: damaged, foreign, newer, read-only, the disk full."""
