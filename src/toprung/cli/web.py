"""``toprung web``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toprung.cli.common import page_file, say
from toprung.paths import deliver
from toprung.report.web import page


def web_command(
    name: Annotated[str, typer.Argument(metavar="[LADDER]", help="a ladder in WGSL")] = page.LADDER,
    out: Annotated[Path, typer.Option(help="folder that index.html is written to", callback=page_file)] = Path("web"),
) -> None:
    """Make one HTML file that climbs a ladder in the browser, on the GPU of whoever opens it. Nothing is measured here.

    It needs no server and fetches nothing; a browser with WebGPU is needed to climb.

    Examples:

      toprung web

      toprung web --out page
    """
    made = page.render(name).encode()
    deliver(out, made)
    say(f"{out}: {len(made) / 1e3:.0f} kB; open it in a browser")


COMMANDS = {"web": web_command}
