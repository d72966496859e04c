"""Commands, packages and names that messages and pages tell a reader to type exist, and take what they are given."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

import toprung
import trial
from tables import BLOCK
from toprung import backends
from toprung.backends import nvrtc
from toprung.cli import app
from toprung.cli.common import LADDERS
from toprung.errors import Unsupported
from toprung.kernels.record import LANGUAGES
from toprung.lab.harness.climb import runnable
from toprung.lab.rung import ladder, ladder_names

SOURCE = trial.ROOT / "src" / "toprung"
HISTORY = trial.ROOT / "docs" / "lab-notes.md"
"""The page of what was measured with scripts as they were then."""

PAGES = [trial.ROOT / "README.md", trial.ROOT / "CONTRIBUTING.md", *sorted((trial.ROOT / "docs").rglob("*.md"))]
PYPROJECT = tomllib.loads((trial.ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (trial.ROOT / "Makefile").read_text()
ELSEWHERE = {"cupy-cuda13x", "triton"}
"""Packages of other projects that messages name and no extra brings."""

COMMAND = typer.main.get_command(app)
HOLE = "\N{REPLACEMENT CHARACTER}"
"""Stands in a message for what the program fills in."""


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Return the strings of the package that are no docstrings, each with its place; what is filled in is a HOLE."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        inner = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node
        }
        inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in inner:
                continue
            place = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((place, node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else HOLE for p in node.values)
                found.append((place, "".join(map(str, parts))))
    return found


def said(pattern: str) -> list[Any]:
    """Return what a pattern's group finds in messages, as parameters of a test."""
    found = {match: place for place, text in messages() for match in re.findall(pattern, text)}
    return [pytest.param(match, id=f"{place} {match}") for match, place in found.items()]


def typed(line: str) -> None:
    """Assert that a command line names a command of ``toprung``, and options that it has."""
    command: Any = COMMAND
    words = line.split()
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"toprung {line}: of {', '.join(command.commands)}"
        command = command.commands[words.pop(0)]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts, "-h", "--help")}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, f"toprung {line}"


@pytest.mark.parametrize("line", said(r"`toprung ([^`]+)`") + said(r"see toprung (\w+)") + said(r"toprung (\w+ --\w+)"))
def test_a_command_that_a_message_names_is_there(line: str) -> None:
    typed(line)


@pytest.mark.parametrize("named", said(r"pip install (?:--upgrade )?[\"']?([\w.-]+(?:\[\w+\])?)"))
def test_what_a_message_tells_to_install_is_an_extra_or_a_package(named: str) -> None:
    package, _, extra = named.rstrip("]").partition("[")
    known = {
        re.split(r"[^\w.-]", line)[0] for lines in [*EXTRAS.values(), *GROUPS.values(), PROJECT["dependencies"]] for line in lines
    }
    assert (package == "toprung" and extra in EXTRAS) or (not extra and package in known | ELSEWHERE), f"pip install {named}"


@pytest.mark.parametrize("dotted", said(r"\btoprung((?:\.[a-z]\w*)+)"))
def test_a_name_of_the_library_that_a_message_names_is_there(dotted: str) -> None:
    if dotted.split(".")[1] in ("torch", "cupy", "distributed"):  # not installed here; their own tests call what is named
        assert (SOURCE / dotted.split(".")[1]).is_dir()
        return
    if SOURCE.joinpath(*dotted.split(".")[1:]).with_suffix(".cpp").is_file():  # an extension module, which need not be built
        return
    thing: Any = toprung
    for name in dotted.split(".")[1:]:
        thing = getattr(thing, name, None) or importlib.import_module(f"{thing.__name__}.{name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(trial.ROOT)))
def test_a_command_on_a_page_is_there(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())  # generated blocks have the commands of their records, as they were then
    for line in re.findall(r"(?:^ {4,}|`)(?:\w+=\S+ )*toprung ([a-z][^`\n]*)", text, re.MULTILINE):
        command = re.split(r"\s{2,}|\s[#>|]|;|&&", line)[0]
        if command not in ("record 1", "results"):  # the name of a format, and the group as such
            typed(command)
    for script in re.findall(r"python ((?:benchmarks|tools|examples)/\S+\.py)", text if page != HISTORY else ""):
        assert (trial.ROOT / script).exists(), script
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"make {target}"
    for extra in re.findall(r"toprung\[(\w+)\]", text):
        assert extra in EXTRAS, extra


@pytest.mark.parametrize("name", ladder_names())
def test_what_a_ladder_that_runs_nowhere_here_advises_works(name: str) -> None:
    rungs = ladder(name).rungs
    languages = {LANGUAGES[r.source.suffix] for r in rungs}
    able = {word for b in backends.backends() if languages & set(b.languages) for word in b.languages}
    none = [d for d in backends.devices() if not able & set(backends.languages(d))]
    if not none:
        pytest.skip(f"every device here runs rungs of {name}")
    with pytest.raises(Unsupported) as refused:
        runnable(rungs, none)
    compiled = any(not r.needs(nvrtc.device_of("sm_90")) for r in rungs)
    assert (f"`toprung inspect {name}`" in str(refused.value)) == compiled


def test_the_help_of_an_argument_names_every_ladder() -> None:
    assert [word for word in re.split(r"\W+", LADDERS) if word in ladder_names()] == ladder_names()


def test_the_word_version_is_taken_as_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["version"])
    assert capsys.readouterr().out == f"toprung {toprung.__version__}\n"
