"""NumPy docstrings, as this project writes them (``name : what it is``, no types), as Markdown; griffe is made to read them so."""

from __future__ import annotations

import inspect
import re

TITLES = ("Parameters", "Returns", "Raises", "Attributes", "Examples")
SECTION = re.compile(rf"^({'|'.join(TITLES)})\n-+\n", re.MULTILINE)


def markdown(text: str) -> str:
    """A docstring's text with its sections as lists and fenced examples."""
    head, *rest = SECTION.split(inspect.cleandoc(text))
    parts = [head.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        parts.append(f"**{title}**")
        if title == "Examples":
            parts.append(f"```pycon\n{body.strip()}\n```")
        elif title == "Returns":
            parts.append(flat(body))
        else:
            parts.append("\n".join(items(body)))
    return "\n\n".join(part for part in parts if part)


def flat(text: str) -> str:
    """Text on one line."""
    return " ".join(text.split())


def items(body: str) -> list[str]:
    """A section's entries: ``name : text`` with more lines indented, or a name with all of its text below it."""
    found: list[list[str]] = []
    for line in body.strip("\n").splitlines():
        if line.strip() and not line.startswith(" "):
            name, _, text = line.partition(" : ")
            found.append([name.strip(), text])
        elif found:
            found[-1][1] += " " + line
    lines = []
    for name, text in found:
        names = ", ".join(f"`{part.strip()}`" for part in name.split(","))
        lines.append(f"- {names}: {flat(text)}")
    return lines


try:
    from griffe import Extension, Object
except ImportError:  # the functions above are tested without the site's packages
    pass
else:

    class Ours(Extension):
        """Rewrites every docstring that griffe has read."""

        def on_object(self, *, obj: Object, **_: object) -> None:
            """Handle the docstring of a module, a class, a function or an attribute."""
            if obj.docstring:
                obj.docstring.value = markdown(obj.docstring.value)
