"""Standard output and standard error of a command: any encoding, and an exit code of their own for errors of writing."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

UNWRITTEN, READER_GONE = 74, 141
"""Exit codes where standard output cannot be written, EX_IOERR of sysexits.h, and where its reader has gone, as after SIGPIPE."""

RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁱᵀ]+")
SPELLED = str.maketrans({
    "×": "x", "·": "*", "–": "-", "−": "-", "…": "...", "≤": "<=", "≥": ">=", "≠": "!=", "±": "+-", "µ": "u", "→": "->", "←": "<-",
    "α": "alpha", "β": "beta", "√": "sqrt", "█": "#",
})  # fmt: skip
"""Characters that commands print, in ASCII, for encodings that lack them."""


def _spelled(error: Any) -> tuple[str, int]:
    """Return what stands for characters that an encoding lacks; those that are not ours, as in names of files, are escaped."""
    lacking = error.object[error.start : error.end]
    plain = RAISED.sub(lambda exponent: f"^{unicodedata.normalize('NFKC', exponent[0])}", lacking).translate(SPELLED)
    return plain.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("toprung-spelled", _spelled)


class Stream(io.TextIOWrapper):
    """Standard output or error of a command that goes on where it cannot be written, since results also go to files.

    ``error``: the first error of writing; what comes after it is dropped.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.flush()
        super().__init__(stream.buffer, stream.encoding, "toprung-spelled", line_buffering=stream.line_buffering)
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        self._tried(super().write, text)
        return len(text)

    def flush(self) -> None:
        """Hand on what has been written."""
        self._tried(super().flush)

    def _tried(self, write: Callable[..., object], *text: str) -> None:
        try:
            write(*text)
        except OSError as error:
            self.error = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # Python writes what is in the buffers once more when it ends
            os.close(null)


def reader_gone() -> bool:
    """Return True if the reader of standard output has gone: a command that takes long ends then, as after Ctrl-C."""
    return isinstance(sys.stdout, Stream) and isinstance(sys.stdout.error, BrokenPipeError)


@contextmanager
def written() -> Iterator[None]:
    """Have a command write to ``Stream`` objects, and exit with a code of its own if standard output could not be written."""
    before: tuple[Any, Any] = sys.stdout, sys.stderr
    ours = [Stream(s) if isinstance(s, io.TextIOWrapper) else s for s in before]
    sys.stdout, sys.stderr = ours
    try:
        if sys.stdout is None:
            _exit("closed")
        yield
    except SystemExit:
        if isinstance(out := ours[0], Stream):
            out.flush()
            if reader_gone():
                sys.exit(READER_GONE)
            if out.error is not None:
                _exit(str(out.error.strerror))
        raise
    finally:
        sys.stdout, sys.stderr = before
        for stream in ours:
            if isinstance(stream, Stream):
                stream.detach()


def _exit(reason: str) -> None:
    print(f"toprung: standard output cannot be written: {reason}", file=sys.stderr)
    sys.exit(UNWRITTEN)
