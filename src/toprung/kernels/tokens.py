"""Kernel source as the compiler sees it: tokens without comments, white space and the names of included files.

A hash of tokens tells two kernels apart that may behave differently, and only those: a better comment, another layout of the lines
or a file that moved changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

CONTINUED = re.compile(r"\\[ \t]*\r?\n")
"""A line that ends in a backslash goes on in the next one."""

TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<line>(?:^|(?<=\n))[ \t]*\#[ \t]*line\b[^\n]*)
    | (?P<hash>(?:^|(?<=\n))[ \t]*\#)
    | (?P<end>\n)
    | (?P<space>[^\S\n]+)
    | (?P<token>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'                # strings keep what is in them: it may be assembly
        |\.?\d(?:[eEpP][+-]|[\w.])*                                    # numbers, with their exponents and suffixes
        |\w+
        |<<<|>>>|<<=|>>=|\.\.\.|->\*|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|->|::|\#\#|[-+*/%&|^]=
        |.)
    """,
    re.VERBOSE | re.DOTALL,
)


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
    directive = False
    spaced = False
    for match in TOKEN.finditer(CONTINUED.sub("", text)):
        kind, word = match.lastgroup, match.group()
        if kind in ("comment", "space"):
            spaced = True
        elif kind == "hash":
            directive = True
            found += ["\n", "#"]
        elif kind == "end" and directive:
            directive = False
            found.append("\n")
        elif kind == "token":
            if directive and word[0] == '"' and found[-1] == "include":
                word = f'"{word.rpartition("/")[2].strip(chr(34))}"'
            if word == "(" and directive and spaced and found[-3:-1] == ["#", "define"]:
                found.append(" ")
            found.append(word)
        if kind not in ("comment", "space"):
            spaced = False
    return found + ["\n"] * directive


def source_digest(texts: Iterable[str]) -> str:
    """Return a hash, 32 hexadecimal digits, of the tokens of several sources in order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update("\0".join([*tokens(text), "\1"]).encode())
    return digest.hexdigest()[:32]
