"""Records of measurements: JSON that says everything about how it came to be, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toprung.errors import BadRecord
from toprung.measure import Measurement
from toprung.paths import publish

FORMAT = "toprung record 1"


def record(
    what: str,
    environment: dict[str, Any],
    measurements: Sequence[Measurement],
    failures: Sequence[str] = (),
    interrupted: bool = False,
) -> dict[str, Any]:
    """A record of one run.

    Parameters
    ----------
    what : the command that was run, as a user types it
    environment : from ``toprung.environment``
    failures : what did not work, a sentence each
    interrupted : whether the user stopped it before the end
    """
    return {
        "format": FORMAT,
        "what": what,
        "environment": environment,
        "interrupted": interrupted,
        "failures": list(failures),
        "measurements": [m.describe() for m in measurements],
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a record; its folder is made if need be."""
    publish(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read(path: Path) -> dict[str, Any]:
    """Read a record, its measurements as ``Measurement``.

    Raises
    ------
    BadRecord
        not there, damaged, or of another format
    """
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise BadRecord(f"{path} is a {content['format']!r}, and this toprung reads {FORMAT!r}: measure again")
        content["measurements"] = [Measurement.read(m) for m in content["measurements"]]
        content["environment"]["device"]["slug"]
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadRecord(f"{path} is damaged ({type(error).__name__}: {error}): measure again") from None
    return dict(content)
