"""Imports point one way, and nothing that is shipped names where packages come from."""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from pathlib import Path

import pytest

import trial

PACKAGE = trial.ROOT / "src" / "toprung"
ORDER = (
    "errors", "tokens", "device", "tile", "problem", "rung", "data", "precision", "stats", "bounds", "paths", "split", "gemm",
    "backends.base", "backends", "power", "machine_code", "reallocate", "build", "store", "kernels", "ladders", "check",
    "routines", "suites", "competitor", "peers", "dispatch", "blas", "environment", "measure", "bandwidth", "results", "guidelines",
    "single", "climb", "bench", "accuracy", "probe", "explain", "ranking", "tune", "report", "", "cli",
)  # fmt: skip
"""Layers, lowest first: a module may import from its own layer and from those before it. A folder is one layer, so that what
is found by looking (rungs, backends, routines, peers, commands) can be added without a line here; "" is the package itself."""


def layer(module: str) -> int:
    """The place in ORDER of ``toprung.<module>``: that of its longest listed prefix."""
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


def imports(module: str, path: Path, known: set[str]) -> set[str]:
    """Modules of ours that a module names in an import statement anywhere, in functions too."""
    here = ["toprung", *module.split(".")] if module else ["toprung"]
    if path.name != "__init__.py":
        here = here[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((here[: len(here) - node.level + 1] if node.level else []) + ([node.module] if node.module else []))
            # "from package import name" means the module of that name where there is one
            below = {f"{base}.{alias.name}" for alias in node.names}
            found = {name for name in below if name.removeprefix("toprung.") in known}
            names |= found if len(found) == len(below) else found | {base}
    return {name.removeprefix("toprung").removeprefix(".") for name in names if name.split(".")[0] == "toprung"}


def upward(package: Path) -> list[str]:
    """Every import that points to a higher layer."""
    found = modules(package)
    return [
        f"{module or 'toprung'} imports {name or 'toprung'}"
        for module, path in found.items()
        for name in sorted(imports(module, path, set(found)))
        if layer(name) > layer(module)
    ]


def test_imports_point_one_way() -> None:
    assert upward(PACKAGE) == []


def test_every_layer_is_there() -> None:
    there = {layer(module) for module in modules(PACKAGE)}
    assert [name for i, name in enumerate(ORDER) if i not in there] == []


@pytest.mark.parametrize(
    ("module", "line", "says"),
    [
        ("tile.py", "from toprung.build import build", "tile imports build"),
        ("tile.py", "def f():\n    import toprung.check", "tile imports check"),
        ("errors.py", "def f():\n    from toprung import Device", "errors imports toprung"),
        ("errors.py", "from . import device", "errors imports device"),
        ("backends/base.py", "from .opencl import VECTOR_WIDTHS", "backends.base imports backends.opencl"),
        ("routines/gemm.py", "from ..peers.numpy import peer", "routines.gemm imports peers.numpy"),
        (
            "ladders/kepler/r01_naive.py",
            "if True:\n    from toprung.check import hostile",
            "ladders.kepler.r01_naive imports check",
        ),
        ("measure.py", "from toprung import climb, errors", "measure imports climb"),
    ],
)
def test_a_planted_upward_import_is_found(module: str, line: str, says: str, tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / module).open("a") as file:
        file.write(f"\n{line}\n")
    assert set(upward(copy)) - set(upward(PACKAGE)) == {says}


def test_a_new_module_needs_a_place(tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "toprung", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "somewhere.py").write_text("import toprung.errors\n")
    with pytest.raises(AssertionError, match=r"toprung\.somewhere has no place"):
        upward(copy)


def test_optional_packages_are_imported_only_where_they_are_used() -> None:
    """Importing toprung, and every module of it that is not a backend or a picture, takes only what is always installed."""
    optional = {"matplotlib", "cuda", "cupy", "torch", "pyopencl", "jinja2", "vl_convert", "markupsafe", "distributed", "optuna"}
    for module, path in modules(PACKAGE).items():
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
