"""The command line: every module of this folder with ``register(app)`` adds its commands."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

from toprung.cli.common import errors_console
from toprung.errors import ToprungError
from toprung.store.entry import version

app = typer.Typer(
    name="toprung",
    help="Climb, bound, tune and use single-precision matrix multiplication on GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

for _module in pkgutil.iter_modules(__path__):
    _register = getattr(importlib.import_module(f"{__name__}.{_module.name}"), "register", None)
    if _register is not None:
        _register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"toprung {version()}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", help="show the version and exit", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Climb, bound, tune and use single-precision matrix multiplication on GPUs."""


def main() -> None:
    """Run the command line. Exit 0: every result was verified; 1: one was wrong; 2: bad input; 130: interrupted."""
    try:
        app()
    except ToprungError as error:
        errors_console.print(f"toprung: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
