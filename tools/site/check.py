"""Check a built site: every link and anchor leads somewhere, and a page needs nothing from the network to be shown.

    python tools/site/check.py site

Links to other sites are not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHOWN = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}
"""Elements and attributes whose addresses a browser fetches by itself."""


class Reader(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str, str]] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            if value and name in ("href", "src"):
                self.links.append((tag, name, value))


def read(page: Path) -> Reader:
    """One page."""
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def check(site: Path) -> list[str]:
    """Return what is wrong with a site, a sentence each."""
    site = site.resolve()
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    wrong = [] if pages else [f"{site} has no pages"]
    for page, found in pages.items():
        if page.name == "404.html":  # its links start at the root of whatever it is put on
            continue
        for tag, name, link in found.links:
            parts = urlsplit(link)
            where = f"{page.relative_to(site)}: <{tag} {name}={link!r}>"
            if parts.scheme or parts.netloc:
                if (tag, name) in SHOWN and parts.scheme != "data":
                    wrong.append(f"{where} comes from the network")
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_relative_to(site) or not target.is_file():
                wrong.append(f"{where} does not exist")
            elif (anchor := unquote(parts.fragment)) and target in pages and anchor not in pages[target].anchors:
                wrong.append(f"{where}: no such anchor")
    return wrong


if __name__ == "__main__":
    complaints = check(Path(sys.argv[1]))
    print("\n".join(complaints) or f"{sys.argv[1]}: every link and anchor leads somewhere")
    sys.exit(bool(complaints))
