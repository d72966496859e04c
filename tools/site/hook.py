"""Hooks of MkDocs: the navigation from docs/index.md, pages rewritten, records and examples copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from commands import reference
from contents import BadContents, navigation
from text import COPIED, DeadLink, for_site
from toprung.report.web import page as browser

ROOT = Path(__file__).resolve().parents[2]
CLIMB = "climb-here/index.html"


def on_config(config: Any) -> Any:
    """The navigation."""
    try:
        config.nav = navigation(Path(config.docs_dir))
    except BadContents as error:
        raise PluginError(str(error)) from None
    return config


def on_files(files: Any, config: Any) -> Any:
    """Stored records are part of the site, because every table says which one it comes from; and so are the examples.

    The page that climbs in a browser is made anew, so that its kernels are the ladder's.
    """
    files.append(File.generated(config, CLIMB, content=browser.render()))
    for path in sorted(p for pattern in COPIED for p in ROOT.glob(pattern) if p.is_file()):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page's text as the builder needs it; the front page begins with the ladder in the reader's own browser."""
    try:
        text = for_site(markdown, page.file.src_uri, ROOT, reference)
    except DeadLink as error:
        raise PluginError(str(error)) from None
    if page.file.src_uri != "index.md":
        return text
    title, _, rest = text.partition("\n")
    return f"{title}\n\n**[Climb on your own GPU, in this browser]({CLIMB})**: nothing to install.\n{rest}"
