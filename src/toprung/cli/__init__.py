"""The command line: ``COMMANDS`` of every module of this folder, by name; those of one with ``GROUP``, its help, below its name."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import cleandoc
from typing import Annotated

import typer

from toprung.backends import constants, waiting
from toprung.cli.common import INTERRUPTED, TERMINATED, console, errors_console, say
from toprung.cli.streams import READER_GONE, UNWRITTEN, written
from toprung.errors import NotWritten, StoreError, ToprungError
from toprung.store.entry import version

ENDED: Mapping[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
"""Exit codes of signals."""

SHOW_CURSOR = b"\x1b[?25h"
"""Text that shows a terminal's cursor, which live tables hide."""

app = typer.Typer(
    name="toprung",
    help="Climb, bound, tune and use single-precision matrix multiplication on GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

_groups = {name: typer.Typer(no_args_is_help=True, help=text) for name, text in constants(__name__, __path__, "GROUP").items()}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name)
for _module, _commands in constants(__name__, __path__, "COMMANDS").items():
    for _name, _command in _commands.items():
        _groups.get(_module, app).command(_name)(_command)


def _unwrap_help(of: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' help: they are broken where the source is, not where the terminal ends."""
    for command in of.registered_commands:
        text = cleandoc(command.help or (command.callback and command.callback.__doc__) or "")
        command.help = "\n\n".join(re.sub(r"\n\s*", " ", paragraph) for paragraph in text.split("\n\n"))
    for group in of.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


_unwrap_help(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"toprung {version()}")
        raise typer.Exit


@app.command("version", hidden=True)
def _version() -> None:
    """Show the version, as --version does."""
    _show_version(True)


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", help="show the version and exit", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Climb, bound, tune and use single-precision matrix multiplication on GPUs."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end a command and keep what was measured, and a second of them end it at once.

    The exit code says which it was. So it does where a kernel does not end: then nothing is waited for but what is to be written.
    """
    own, came = os.getpid(), 0

    def end(number: int, _: object) -> None:
        nonlocal came
        if came or os.getpid() != own:  # a forked worker has nothing to keep
            if console.is_terminal:
                os.write(console.file.fileno(), SHOW_CURSOR)
            os._exit(ENDED[number])
        came = number
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in ENDED}
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        if waiting.abandoned():
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(ENDED[came])
        if came:
            sys.exit(ENDED[came])
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Run the command line.

    Exit 0: every result was verified; 1: one was wrong; 2: bad input; 74: standard output cannot be written; 130, 143: Ctrl-C,
    SIGTERM; 141: the reader of standard output has gone.
    """
    own = dict(vars(console))
    with written():
        try:
            with _ended_by_signals():
                app()
        except (ToprungError, OSError) as error:  # a full disk, a folder that went: where it is read or written it is not foreseen
            output = error.__cause__ if isinstance(error, NotWritten | StoreError) else None  # standard output was to be a file
            if isinstance(output, BrokenPipeError):
                sys.exit(READER_GONE)
            say(f"toprung: {error}", to=errors_console)
            sys.exit(UNWRITTEN if output else 2)
        finally:
            vars(console).update(own)  # a file may have been standard output's
