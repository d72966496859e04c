"""The hash of a kernel covers what the compiler sees, and stores written before it did are followed as they were."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toprung import backends, cli
from toprung import store as stores
from toprung.backends import cublas
from toprung.device import Device
from toprung.dispatch import tuned
from toprung.dispatch.select import select
from toprung.errors import StoreError
from toprung.kernels.helpers import ADD
from toprung.kernels.record import with_includes
from toprung.kernels.registry import families, family
from toprung.kernels.tiled.record import RECORD
from toprung.kernels.tokens import source_digest, tokens
from toprung.oracle.gemm import Gemm
from toprung.oracle.gemv import Gemv
from toprung.store import Store, exchange
from toprung.store.versions import RENAMED

FIXTURES = Path(__file__).parent / "fixtures" / "store"
"""Written by commit 8bbfe2a, the last before hashes covered tokens: a store, its export, shipped entries, and what was followed."""

SOURCES = sorted(p for p in Path(backends.__file__).parents[1].rglob("*") if p.suffix in (".cl", ".cu", ".cuh"))


# tokens


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = b; // c", "a=b;"),
        ("a /* x\ny */ b", "a  b"),
        ("if (a) {\n  b;\n}", "if(a){b;}"),
        ("#define A 1 // one\nb", "#define A 1\nb"),
        ("#define A(x) \\\n  x + 1\nb", "#define A(x) x + 1\nb"),
        ('#line 7 "fp32x.cu"\na', "a"),
        ("# if A\nb\n#endif", "#if A\nb\n#endif\n"),
    ],
)
def test_what_no_compiler_sees_does_not_count(one: str, other: str) -> None:
    assert tokens(one) == tokens(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = 1;", "a = 2;"),
        ("a = 1.5f;", "a = 1.5;"),
        ("a = 1e-3;", "a = 1e+3;"),
        ("a + +b", "a++b"),
        ("a - -b", "a--b"),
        ("ab", "a b"),
        ('asm("x // y");', 'asm("x");'),
        ('asm("x  y");', 'asm("x y");'),
        ("#define A (x)", "#define A(x)"),
        ("#if A\nb", "#if A b\n"),
        ("#pragma unroll\nfor(;;);", "for(;;);"),
        ("'\"' // \"", '\'"\' ""'),
    ],
)
def test_what_a_compiler_tells_apart_counts(one: str, other: str) -> None:
    assert tokens(one) != tokens(other)


@pytest.mark.parametrize("file", SOURCES, ids=lambda p: p.name)
def test_comments_do_not_count_and_constants_do(file: Path) -> None:
    text = file.read_text()
    before = source_digest([text])
    assert source_digest([re.sub(r"(?m)^(?=[^#\n]*$)", "  ", text.replace("//", "// not only this:")) + "\n// the end\n"]) == before
    code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: " " * len(m[0]), text, flags=re.DOTALL)
    for number in list(re.finditer(r"(?<![\w.\"])\d+(?![\w.])", code))[:8]:
        changed = text[: number.start()] + str(int(number[0]) + 1) + text[number.end() :]
        assert source_digest([changed]) != before


# the hash of a kernel


def test_a_version_covers_the_second_pass_and_its_own_backends_prelude(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    tiled = family("tiled")
    opencl, cuda = tiled.version("opencl"), tiled.version("cuda")
    assert opencl != cuda
    real, more = backends.prelude, {"opencl": "", "cuda": ""}
    monkeypatch.setattr(backends, "prelude", lambda name: real(name) + more[name])
    more["cuda"] = "#define MORE 1\n"
    assert (tiled.version("opencl"), tiled.version("cuda") == cuda) == (opencl, False)
    more["opencl"] = "// a remark\n"
    assert tiled.version("opencl") == opencl
    for record in (RECORD, ADD):
        own = record.source
        copy = shutil.copytree(own.parents[1], tmp_path / record.stem) / own.parent.name / own.name
        object.__setattr__(record, "source", copy)
        try:
            assert tiled.version("opencl") == opencl  # wherever the file lies
            copy.write_text("// one remark more\n" + own.read_text().replace("__kernel", "/* here it begins */ __kernel"))
            assert tiled.version("opencl") == opencl
            copy.write_text(own.read_text().replace("0.0f", "1.0f"))
            assert tiled.version("opencl") != opencl
        finally:
            object.__setattr__(record, "source", own)
    assert tiled.version("opencl") == opencl


def test_no_two_families_have_one_version() -> None:
    for backend in ("opencl", "cuda"):
        own = [f.version(backend) for f in families() if f.own]
        assert len(set(own)) == len(own) and all(re.fullmatch("[0-9a-f]{32}", version) for version in own)


def test_names_of_included_files_do_not_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("int a;\n")
    one, two = (with_includes(f'#include "{name}"\nint b;\n', tmp_path) for name in ("one", "two"))
    assert one != two and source_digest([one]) == source_digest([two])


def test_every_shipped_entry_is_fresh() -> None:
    entries = exchange.every_shipped()
    assert len(entries) >= 60
    own = [e for e in entries if family(e.kernel).own]
    assert len(own) >= 40
    assert [e for e in own if e.source != tuned.version(e.kernel, e.machine.backend)] == []
    assert [e.kernel for e in entries if tuned.refusal(e)] == []


# stores of the commit before


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, beforehand_only: None) -> Iterator[Store]:
    """The user's store, its file as the commit before left it."""
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(exchange, "SHIPPED", FIXTURES / "shipped")
    monkeypatch.setattr(cublas, "library", lambda: "installed")
    store = Store.default()
    store.path.parent.mkdir()
    with closing(sqlite3.connect(store.path)) as db:
        db.executescript((FIXTURES / "store_schema1.sql").read_text())
    tuned.HERE.forget()
    yield store
    tuned.HERE.forget()


def schema(store: Store) -> int:
    with closing(sqlite3.connect(store.path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_a_store_of_before_is_followed_as_it_was(before: Store) -> None:
    assert followed() == recorded()  # only read, migrated in memory
    assert schema(before) == 1
    before.ready()  # migrated on disk
    assert schema(before) > 1
    tuned.HERE.forget()
    assert followed() == recorded()


@pytest.mark.slow
def test_an_export_of_before_is_followed_as_it_was(before: Store) -> None:
    proofs = {machine: before.proofs(machine) for machine in {e.machine for e in before.entries()}}
    before.path.unlink()
    taken = before.import_(FIXTURES / "store_format1.json")
    assert taken.taken == 20 and not taken.refused
    for of in proofs.values():
        for one in of:
            before.prove(one)
    assert followed() == recorded()


def test_a_store_that_cannot_be_migrated_is_left_as_it_was(before: Store) -> None:
    with closing(sqlite3.connect(before.path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer toprung"):
        before.ready()
    assert schema(before) == 99


def recorded() -> list[str]:
    """The fixture's lines, each kernel by the name of its family."""
    found: list[str] = json.loads((FIXTURES / "followed.json").read_text())["followed"]
    return [re.sub(r"(?<= \| )\w+(?= \{)", lambda match: RENAMED.get(match[0], match[0]), line) for line in found]


def followed() -> list[str]:
    """Return the selections for the problems of the record, in its words."""
    devices = {
        name: Device(**{k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()})
        for name, facts in json.loads((FIXTURES / "followed.json").read_text())["devices"].items()
    }
    return [line_of(line, devices) for line in recorded()]


def line_of(line: str, devices: dict[str, Device]) -> str:
    name, product, how = line.split(" | ")[:3]
    routine, m, n, *k, trans = product.split()
    problem: Any = Gemm(int(m), int(n), int(k[0]), trans=trans) if routine == "gemm" else Gemv(int(m), int(n), trans=trans)
    device, desc = devices[name], problem.desc
    if how == "host_is_faster":
        return f"{name} | {product} | {how} | {tuned.HERE.host_is_faster(device, desc)}"
    own, precision = how.split()
    found = select(device, desc, own == "own=1", precision)
    stored = found.candidate.encode()
    tile, options = json.dumps(stored["tile"]), json.dumps(dict(sorted(stored["options"].items())))
    flags = f"weighed={int(found.weighed)} unproven={int(found.unproven is not None)}"
    return f"{name} | {product} | {how} | {found.family.name} {tile} {options} {found.precision} {flags}".replace('"', "")


def test_an_older_name_of_a_kernel_is_understood(before: Store) -> None:
    before.ready()
    wanted = [entry.id for entry in before.entries(kernel="skinny")]
    done = CliRunner().invoke(cli.app, ["store", "export", "-", "--kernel", "rows"])
    assert done.exit_code == 0 and "rows is called skinny now" in done.stderr
    assert len(json.loads(done.stdout)["entries"]) == len(wanted) == 2
