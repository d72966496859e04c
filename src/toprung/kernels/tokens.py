"""Kernel source as the compiler sees it: tokens without comments, white space and the names of included files.

A hash of tokens tells two kernels apart that may behave differently, and only those: a better comment, another layout of the lines
or a file that moved changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

CONTINUED = re.compile(r"\\[ \t]*\r?\n")
"""A line that ends in a backslash goes on in the next one."""

STRING = r"""\"(?:\\.|[^"\\\n])*\"|'(?:\\.|[^'\\\n])*'"""
COMMENT = re.compile(rf"({STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
"""A comment, or a string, which keeps what is in it: it may be assembly."""

TOKEN = re.compile(
    rf"""
      {STRING}
    | \.?\d(?:[eEpP][+-]|[\w.])*                                        # numbers, with their exponents and suffixes
    | \w+
    | <<<|>>>|<<=|>>=|\.\.\.|->\*|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|->|::|\#\#|[-+*/%&|^]=
    | \S
    """,
    re.VERBOSE,
)
DIRECTIVE = re.compile(r"^[ \t]*#(.*)", re.MULTILINE)
OBJECT = re.compile(r"\s*define\s+\w+\s+\(")
"""A macro whose value begins with a parenthesis, no function."""


def tokens(text: str) -> list[str]:
    """Return the preprocessing tokens of C-like source.

    Parameters
    ----------
    text : OpenCL C or CUDA C++, its includes in place

    Returns
    -------
    Tokens in order. A preprocessor directive stands between two ``"\\n"``, because lines end directives and nothing else;
    ``#define F (x)``, an object, and ``#define F(x)``, a function, differ by a ``" "`` before the parenthesis. ``#line`` is left
    out, and so is the folder of an included file.
    """
    found: list[str] = []
    plain = COMMENT.sub(lambda match: match[1] or " ", CONTINUED.sub("", text))
    for place, part in enumerate(DIRECTIVE.split(plain)):  # in turn lines of code, and a directive
        words = TOKEN.findall(part)
        if place % 2 and words[:1] != ["line"]:
            if words[:1] == ["include"] and words[-1][0] == '"':
                words[-1] = f'"{words[-1].rpartition("/")[2].strip(chr(34))}"'
            if OBJECT.match(part):
                words.insert(2, " ")
            found += ["\n", "#", *words, "\n"]
        elif not place % 2:
            found += words
    return found


def source_digest(texts: Iterable[str]) -> str:
    """Return a hash, 32 hexadecimal digits, of the tokens of several sources in order."""
    import hashlib  # it loads OpenSSL: 5 % of importing toprung

    digest = hashlib.sha256()
    for text in texts:
        digest.update("\0".join([*tokens(text), "\1"]).encode())
    return digest.hexdigest()[:32]
