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

from toprung import backends
from toprung import store as stores
from toprung.blas import kernel as kernels
from toprung.blas import tuned, vendor
from toprung.blas.problems import call_of, source_hash
from toprung.blas.route import route
from toprung.build import with_includes
from toprung.device import Device
from toprung.errors import StoreError
from toprung.routines.gemm import Gemm
from toprung.routines.gemv import Gemv
from toprung.store import Store, exchange
from toprung.store.plain import VENDORS
from toprung.tokens import source_digest, tokens

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


def test_a_hash_covers_the_second_pass_and_its_own_backends_prelude(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hashed(backend: str = "opencl") -> str:
        source_hash.cache_clear()
        return source_hash("gemm", backend)

    try:
        opencl, cuda = hashed(), hashed("cuda")
        assert opencl != cuda
        real, more = backends.prelude, {"opencl": "", "cuda": ""}
        monkeypatch.setattr(backends, "prelude", lambda name: real(name) + more[name])
        more["cuda"] = "#define MORE 1\n"
        assert (hashed(), hashed("cuda") == cuda) == (opencl, False)
        more["opencl"] = "// a remark\n"
        assert hashed() == opencl
        copy = shutil.copytree(kernels.FOLDER, tmp_path / "kernels")
        monkeypatch.setattr(kernels, "FOLDER", copy)
        kernels.kernel.cache_clear()
        assert hashed() == opencl
        for stem in ("gemm", "add"):
            file = copy / f"{stem}.cl"
            text = file.read_text()
            file.write_text(f"// {text.replace('__kernel', '/* here it begins */ __kernel')}")
            assert hashed() == opencl or not text.startswith("//")
            file.write_text(text.replace("0.0f", "1.0f"))
            assert hashed() != opencl
            file.write_text(text)
    finally:
        monkeypatch.undo()
        source_hash.cache_clear()
        kernels.kernel.cache_clear()


def test_names_of_included_files_do_not_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("int a;\n")
    one, two = (with_includes(f'#include "{name}"\nint b;\n', tmp_path) for name in ("one", "two"))
    assert one != two and source_digest([one]) == source_digest([two])


def test_every_shipped_entry_is_fresh() -> None:
    entries = exchange.every_shipped()
    assert len(entries) >= 60
    assert [e for e in entries if e.kernel not in VENDORS and e.source != source_hash(e.kernel, e.machine.backend)] == []


# stores of the commit before


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """The user's store, its file as the commit before left it."""
    monkeypatch.delenv(stores.VARIABLE)
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(exchange, "SHIPPED", FIXTURES / "shipped")
    monkeypatch.setattr(vendor, "lacking", lambda device: "" if device.backend == "cuda" else "it is no CUDA device")
    store = Store.default()
    store.path.parent.mkdir()
    with closing(sqlite3.connect(store.path)) as db:
        db.executescript((FIXTURES / "store_schema1.sql").read_text())
    tuned.forget()
    yield store
    tuned.forget()


def schema(store: Store) -> int:
    with closing(sqlite3.connect(store.path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_a_store_of_before_is_followed_as_it_was(before: Store) -> None:
    assert followed() == recorded()  # only read, migrated in memory
    assert schema(before) == 1
    before.ready()  # migrated on disk
    assert schema(before) > 1
    tuned.forget()
    assert followed() == recorded()


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
    found: list[str] = json.loads((FIXTURES / "followed.json").read_text())["followed"]
    return found


def followed() -> list[str]:
    """What is chosen for the problems of the record, in its words."""
    devices = {
        name: Device(**{k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()})
        for name, facts in json.loads((FIXTURES / "followed.json").read_text())["devices"].items()
    }
    return [line_of(line, devices) for line in recorded()]


def line_of(line: str, devices: dict[str, Device]) -> str:
    name, product, how = line.split(" | ")[:3]
    routine, m, n, *k, trans = product.split()
    problem: Any = Gemm(int(m), int(n), int(k[0]), trans=trans) if routine == "gemm" else Gemv(int(m), int(n), trans=trans)
    device, call = devices[name], call_of(problem)
    if how == "host_is_faster":
        return f"{name} | {product} | {how} | {tuned.host_is_faster(device, call)}"
    own, precision = how.split()
    choice, path = route(device, call, own == "own=1", precision)
    tile = json.dumps(choice.tile.given() if choice.tile else {})
    options = json.dumps(dict(sorted(choice.options)))
    flags = f"weighed={int(choice.weighed)} unproven={int(choice.unproven is not None)}"
    return f"{name} | {product} | {how} | {choice.kernel} {tile} {options} {path} {flags}".replace('"', "")
