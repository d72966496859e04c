"""Changes to a page's Markdown on its way from the repository, where it is read as it stands, to the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

LINK = re.compile(r"(?P<image>!?)\[(?P<label>[^\]]*)\]\((?P<target>[^)\s]+)\)")
MARKER = re.compile(r"^<!-- toprung:.*?-->$", re.MULTILINE)
API = re.compile(r"^(?:### (?P<heading>\w+)\n\n)?<!-- site:api (?P<name>[\w.]+)(?P<members>(?: \w+)*) -->$", re.MULTILINE)
"""A name, with the heading that readers of the repository see; on the site it has one of its own."""
COMMANDS = re.compile(r"^<!-- site:commands -->$", re.MULTILINE)
STORED = re.compile(r"`(results/[\w./-]+\.json)`")
COPIED = ("results/**/*.json", "examples/*")
"""Files outside docs/ that the site has copies of, under the same path."""
FENCE = re.compile(r"^ *```")
ITEM = re.compile(r"^([-*] |\d+\. )")


class DeadLink(Exception):
    """A link out of docs/ to a file that the repository does not have."""


def for_site(text: str, page: str, root: Path, commands: Callable[[], str]) -> str:
    """The Markdown of ``docs/<page>`` as the site builder needs it.

    Parameters
    ----------
    page : the page's path below docs/
    root : the repository
    commands : makes the reference of the command line

    Raises
    ------
    DeadLink
        a link to a file outside docs/ that is not there
    """
    text = MARKER.sub("", text)
    text = API.sub(lambda m: directive(m["heading"], m["name"], m["members"].split()), text)
    text = COMMANDS.sub(lambda _: commands(), text)
    pieces = [piece if fenced else spaced(outside(piece, page, root)) for fenced, piece in fences(text)]
    return "".join(pieces)


def directive(heading: str | None, name: str, members: list[str]) -> str:
    """Return what mkdocstrings replaces by a name's docstring, and by those of some of its members; the heading's anchor stays."""
    anchor = f'<a id="{heading.lower()}"></a>\n\n' if heading else ""
    listed = "\n".join(f"        - {member}" for member in members)
    return f"{anchor}::: {name}\n    options:\n      members:" + (f"\n{listed}" if members else " false")


def fences(text: str) -> list[tuple[bool, str]]:
    """The text in pieces, each with whether it is a fenced block."""
    pieces: list[tuple[bool, str]] = []
    inside = False
    for line in text.splitlines(keepends=True):
        mark = bool(FENCE.match(line))
        fenced = inside or mark
        inside ^= mark
        if pieces and pieces[-1][0] == fenced:
            pieces[-1] = (fenced, pieces[-1][1] + line)
        else:
            pieces.append((fenced, line))
    return pieces


def spaced(text: str) -> str:
    """An empty line before each list, which Python's Markdown asks for and GitHub's does not."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if ITEM.match(line) and before.strip() and not ITEM.match(before) and not before.startswith(" "):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def outside(text: str, page: str, root: Path) -> str:
    """Links that leave docs/: to what the site has a copy of; to any other file, its path in the repository instead.

    A record's path in backquotes, as generated tables name it, becomes a link as well.
    """
    here = posixpath.dirname(page)

    def rewritten(match: re.Match[str]) -> str:
        target, _, _ = match["target"].partition("#")
        if "://" in target or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", here, target))
        if path.startswith("docs/"):
            return match[0]
        if not (root / path).exists():
            raise DeadLink(f"docs/{page} links to {match['target']}, which does not exist")
        if any(fnmatch(path, pattern) for pattern in COPIED):
            return f"[{match['label']}]({posixpath.relpath(path, here or '.')})"
        label = match["label"].strip()
        return f"`{path}`" if label.strip("`") in (path, posixpath.basename(path)) else f"{label} (`{path}`)"

    text = LINK.sub(rewritten, text)

    def linked(match: re.Match[str]) -> str:
        there = (root / match[1]).exists() and match.string[match.start() - 1 : match.start()] != "["
        return f"[{match[0]}]({posixpath.relpath(match[1], here or '.')})" if there else match[0]

    return STORED.sub(linked, text)
