"""Imports point one way, and nothing that is shipped names where packages come from."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import tomllib
from pathlib import Path

import pytest

import trial

PACKAGE = trial.ROOT / "src" / "toprung"
ORDER = (
    "errors", "forks", "device", "tile", "paths", "gemm", "backends", "store", "kernels", "oracle", "arrays", "dispatch", "execute",
    "blas", "lab.bounds", "lab.sass", "lab.rung", "lab.ladders", "lab.routines", "lab.competitor", "lab.baselines", "lab.harness",
    "lab.guidelines", "lab.probe", "lab.explain", "lab", "tune", "report", "torch", "distributed", "cupy", "",
    "cli", "torch.__main__", "__main__",
)  # fmt: skip
"""Rooms, lowest first: a file may import from its own room and from those before it; within a room no files import each other in a
circle. What is found by looking (rungs, families, backends, peers, commands) is added without a line here; "" is the package."""

LIBRARY = ORDER[: ORDER.index("blas") + 1]
"""Rooms of the library, which know nothing of the laboratory, the tuner, the report and the command line."""


def room(module: str) -> int:
    """Return the place in ORDER of ``toprung.<module>``: that of its longest listed prefix."""
    for end in range(module.count(".") + 1, 0, -1):
        if (prefix := ".".join(module.split(".")[:end])) in ORDER:
            return ORDER.index(prefix)
    raise AssertionError(f"toprung.{module} has no place in ORDER: give it one")


def modules(package: Path) -> dict[str, Path]:
    """Every module below ``toprung`` by its dotted name; "" is the package itself."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def parsed(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Import statements of a source, in functions too; copies of the package differ in a file."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(module: str, path: Path, known: set[str]) -> set[str]:
    """Modules of ours that a module names in an import statement anywhere, in functions too."""
    here = ["toprung", *module.split(".")] if module else ["toprung"]
    if path.name != "__init__.py":
        here = here[:-1]
    names = set()
    for node in parsed(path.read_text()):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            base = ".".join((here[: len(here) - node.level + 1] if node.level else []) + ([node.module] if node.module else []))
            # "from package import name" means the module of that name where there is one
            below = {f"{base}.{alias.name}" for alias in node.names}
            found = {name for name in below if name.removeprefix("toprung.") in known}
            names |= found if len(found) == len(below) else found | {base}
    return {name.removeprefix("toprung").removeprefix(".") for name in names if name.split(".")[0] == "toprung"}


def arrows(package: Path) -> dict[str, set[str]]:
    """Return the files of a package by module, each with the files that it imports."""
    found = modules(package)
    return {module: imports(module, path, set(found)) - {module} for module, path in found.items()}


def upward(package: Path) -> list[str]:
    """Return every import that points to a higher room."""
    return [
        f"{module or 'toprung'} imports {name or 'toprung'}"
        for module, names in arrows(package).items()
        for name in sorted(names)
        if room(name) > room(module)
    ]


def circles(package: Path) -> list[set[str]]:
    """Return the sets of files that import each other in a circle, in functions too."""
    graph = arrows(package)

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    everything = {module: reached(module) for module in graph}
    found = {frozenset({n for n in names if m in everything.get(n, ())}) for m, names in everything.items() if m in names}
    return sorted(map(set, found), key=sorted)


def test_imports_point_one_way() -> None:
    assert upward(PACKAGE) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(PACKAGE) == []


def test_there_are_few_names_at_the_top() -> None:
    """Rooms and modules directly below ``toprung``: a newcomer reads them all."""
    assert len({name.partition(".")[0] for name in modules(PACKAGE)} - {"", "__main__"}) <= 21


def test_every_room_is_there() -> None:
    there = {room(module) for module in modules(PACKAGE)}
    assert [name for i, name in enumerate(ORDER) if i not in there] == []


@pytest.mark.parametrize(
    ("module", "line", "says"),
    [
        ("tile.py", "from toprung.kernels.build import build", "tile imports kernels.build"),
        ("tile.py", "def f():\n    import toprung.oracle.check", "tile imports oracle.check"),
        ("errors.py", "def f():\n    from toprung import Device", "errors imports toprung"),
        ("errors.py", "from . import device", "errors imports device"),
        ("kernels/base.py", "from ..lab.rung import Rung", "kernels.base imports lab.rung"),
        ("blas/plan.py", "def f():\n    import toprung.tune.planner", "blas.plan imports tune.planner"),
        (
            "lab/ladders/kepler/r01_naive.py",
            "if True:\n    from toprung.lab.harness.climb import climb",
            "lab.ladders.kepler.r01_naive imports lab.harness.climb",
        ),
        ("lab/harness/measure.py", "from toprung import errors, report", "lab.harness.measure imports report"),
    ],
)
def test_a_planted_upward_import_is_found(module: str, line: str, says: str, tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / module).open("a") as file:
        file.write(f"\n{line}\n")
    assert set(upward(copy)) - set(upward(PACKAGE)) == {says}


@pytest.mark.parametrize(
    ("module", "line", "circle"),
    [
        ("backends/base.py", "from .opencl import VECTOR_WIDTHS", {"backends.base", "backends.opencl"}),
        ("kernels/base.py", "def f():\n    from toprung.kernels.registry import family", {"kernels.base", "kernels.registry"}),
        ("report/text.py", "from toprung.report import plot", {"report.text", "report.plot"}),
    ],
)
def test_a_planted_circle_is_found(module: str, line: str, circle: set[str], tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / module).open("a") as file:
        file.write(f"\n{line}\n")
    assert upward(copy) == [] and any(circle <= found for found in circles(copy))


def test_a_new_module_needs_a_place(tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "somewhere.py").write_text("import toprung.errors\n")
    with pytest.raises(AssertionError, match=r"toprung\.somewhere has no place"):
        upward(copy)


def test_optional_packages_are_imported_only_where_they_are_used() -> None:
    """Importing toprung, and every module of it that is not a backend or a picture, takes only what is always installed.

    ``toprung.torch``, ``toprung.distributed`` and ``toprung.cupy`` are for those who have PyTorch or CuPy, and nothing else imports
    them but in functions.
    """
    optional = {"matplotlib", "cuda", "cupy", "torch", "pyopencl", "jinja2", "vl_convert", "markupsafe", "distributed"}
    for module, path in modules(PACKAGE).items():
        if module.split(".")[0] in ("torch", "cupy", "distributed"):
            continue
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        named = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
        named |= {node.module for node in top if isinstance(node, ast.ImportFrom) and node.module}
        assert not {name.split(".")[0] for name in named} & optional, module


HOST = re.compile(r"://|--(extra-)?index-url|--find-links|--trusted-host|^-[if] ", re.MULTILINE)


def hosts(root: Path) -> list[str]:
    """Files of a source tree that say where packages come from; a project's own addresses are not meant."""
    found = [p for p in ("uv.lock", "poetry.lock", "uv.toml", "pip.conf") if (root / p).exists()]
    texts = {p: p.read_text() for p in (*root.glob("requirements*"), *root.glob("Makefile"), *root.glob(".ci/*"))}
    project = tomllib.loads((root / "pyproject.toml").read_text())
    project.get("project", {}).pop("urls", None)
    texts[root / "pyproject.toml"] = str(project)
    return found + sorted(str(p.relative_to(root)) for p, text in texts.items() if HOST.search(text))


def test_no_lock_or_configuration_names_a_package_host() -> None:
    assert hosts(trial.ROOT) == []
    locks = list(trial.ROOT.glob("requirements*.lock"))
    assert locks
    for lock in locks:
        pins = [line for line in lock.read_text().splitlines() if re.match(r"[a-z0-9]", line)]
        assert pins and all("==" in pin for pin in pins)
        assert lock.read_text().count("--hash=sha256:") >= len(pins)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("requirements.lock", "--index-url https://example.org/simple"), ("requirements-dev.lock", "-i example.org"),
        ("Makefile", "\tpip install --find-links wheels ."), (".ci/run", "curl https://example.org"), ("uv.lock", ""),
        ("pyproject.toml", '[tool.uv]\nindex-url = "https://example.org"'),
    ],
)  # fmt: skip
def test_a_planted_host_is_found(file: str, line: str, tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    for name in ("pyproject.toml", "requirements.lock", "requirements-dev.lock", "Makefile", ".ci/run"):
        shutil.copy(trial.ROOT / name, tmp_path / name)
    assert hosts(tmp_path) == []
    with (tmp_path / file).open("a") as target:
        target.write(f"\n{line}\n")
    assert hosts(tmp_path) == [file]


def test_a_public_method_is_documented_there_or_where_it_is_declared() -> None:
    """In place of ruff's D102: what overrides or implements a documented method of the package needs no docstring."""
    methods = [
        (f"{one.name}.{method.name}", method.name, ast.get_docstring(method))
        for path in modules(PACKAGE).values()
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.ClassDef)
        for method in one.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_")
    ]
    declared = {name for _, name, text in methods if text}
    assert len(methods) > 1000 and [place for place, name, _ in methods if place[0] != "_" and name not in declared] == []


def test_types_are_followed_and_not_asserted() -> None:
    """``desc.is_vector`` and ``KernelFamily[Config]`` tell mypy what a product and a configuration are."""
    wrong = re.compile(r"assert isinstance\(|isinstance\([^()]*, Gem[mv]Desc\b")
    found = [(path.name, match[0]) for path in PACKAGE.rglob("*.py") for match in wrong.finditer(path.read_text("utf-8"))]
    assert not found
