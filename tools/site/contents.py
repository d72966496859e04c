"""The site's navigation, read from docs/index.md: its headings are the sections, the first column of their tables the pages.

A page that is an ``index.md`` brings the other pages of its folder, in order of their names, so that a rung's page is listed
nowhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADING = re.compile(r"^## (.+)$")
ROW = re.compile(r"^\| *\[([^\]]+)\]\(([^)#]+\.md)\) *\|")


class BadContents(Exception):
    """A table of contents and a folder of pages that do not fit together."""


@dataclass(frozen=True)
class Page:
    """A page of the contents, with those of its folder where it is the folder's index."""

    title: str
    path: str
    below: tuple[str, ...] = ()


def contents(docs: Path) -> dict[str, list[Page]]:
    """Section → its pages. Headings without a table of pages are no sections.

    Raises
    ------
    BadContents
        a page that does not exist, is listed twice, or is listed nowhere
    """
    listed: list[tuple[str, str, str]] = []
    section = ""
    for line in (docs / "index.md").read_text().splitlines():
        if heading := HEADING.match(line):
            section = heading[1]
        elif row := ROW.match(line):
            listed.append((section, row[1], row[2]))
    named = [path for _, _, path in listed]
    there = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    wrong = [f"{path} is listed twice" for path in sorted({p for p in named if named.count(p) > 1})]
    wrong += [f"{path} is listed and does not exist" for path in named if path not in there]
    found: dict[str, list[Page]] = {}
    seen = {"index.md", *named}
    for section, title, path in listed:
        folder = Path(path).parent
        below: tuple[str, ...] = ()
        if Path(path).name == "index.md":
            below = tuple(sorted(p for p in there - set(named) if Path(p).parent == folder))
        seen.update(below)
        found.setdefault(section, []).append(Page(title, path, below))
    wrong += [f"{path} is in no table of docs/index.md: add a row to the section it belongs to" for path in sorted(there - seen)]
    if wrong:
        raise BadContents("; ".join(wrong))
    return found


def navigation(docs: Path) -> list[dict[str, object]]:
    """The contents as MkDocs wants its ``nav``."""
    nav: list[dict[str, object]] = [{"toprung": "index.md"}]
    for section, pages in contents(docs).items():
        nav.append({section: [{p.title: [p.path, *p.below] if p.below else p.path} for p in pages]})
    return nav
