"""The command line's reference, from what typer knows of it: the text of ``--help``, as Markdown."""

from __future__ import annotations

import html
import re
from typing import Any


def reference() -> str:
    """Every command of toprung with its arguments and options."""
    import typer

    from toprung.cli import app

    root = typer.main.get_command(app)
    return "\n\n".join(section(("toprung", name), command) for name, command in sorted(root.commands.items()))


def section(words: tuple[str, ...], command: Any) -> str:
    """One command, or a group with its commands one level below."""
    title = f"{'#' * len(words)} {' '.join(words[1:])}"
    if below := getattr(command, "commands", None):
        parts = [title, flat(command.help)]
        return "\n\n".join([*parts, *(section((*words, name), one) for name, one in sorted(below.items()))])
    context = command.make_context(words[-1], [], resilient_parsing=True)
    usage = " ".join([*words, *command.collect_usage_pieces(context)])
    records = [record for p in command.params if (record := p.get_help_record(context))]
    rows = [f"| <code>{cell(name)}</code> | {cell(text)} |" for name, text in records]
    table = "\n".join(["| given | meaning |", "|---|---|", *rows]) if rows else ""
    return "\n\n".join(part for part in (title, f"    {usage}", described(command.help), table) if part)


def flat(text: str | None) -> str:
    """Help text on one line."""
    return " ".join((text or "").split())


def cell(text: str) -> str:
    """Return the text as it stands inside a table, where < begins no tag and a bar no column."""
    return html.escape(flat(text), quote=False).replace("|", "&#124;")


def described(text: str | None) -> str:
    """A command's help: paragraphs, and its examples as a block."""
    paragraphs = [flat(p) for p in re.split(r"\n\s*\n", text or "") if p.strip()]
    return "\n\n".join(f"    {p}" if p.startswith("toprung ") else p for p in paragraphs)
