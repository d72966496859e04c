"""The hash of a kernel covers what the compiler sees."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from toprung import backends
from toprung.dispatch import tuned
from toprung.kernels.base import version
from toprung.kernels.helpers import ADD
from toprung.kernels.record import with_includes
from toprung.kernels.registry import families, family
from toprung.kernels.tiled.record import RECORD
from toprung.kernels.tokens import source_digest, tokens
from toprung.store import exchange

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
        ('#include "../a/b.cuh"\na', '#include "b.cuh"\na'),
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
    opencl, cuda = version(tiled, "opencl"), version(tiled, "cuda")
    assert opencl != cuda
    real, more = backends.prelude, {"opencl": "", "cuda": ""}
    monkeypatch.setattr(backends, "prelude", lambda name: real(name) + more[name])
    more["cuda"] = "#define MORE 1\n"
    assert (version(tiled, "opencl"), version(tiled, "cuda") == cuda) == (opencl, False)
    more["opencl"] = "// a remark\n"
    assert version(tiled, "opencl") == opencl
    for record in (RECORD, ADD):
        own = record.source
        copy = shutil.copytree(own.parents[1], tmp_path / own.stem) / own.parent.name / own.name
        object.__setattr__(record, "source", copy)
        try:
            assert version(tiled, "opencl") == opencl  # wherever the file lies
            copy.write_text("// one remark more\n" + own.read_text().replace("__kernel", "/* here it begins */ __kernel"))
            assert version(tiled, "opencl") == opencl
            copy.write_text(own.read_text().replace("0.0f", "1.0f"))
            assert version(tiled, "opencl") != opencl
        finally:
            object.__setattr__(record, "source", own)
    assert version(tiled, "opencl") == opencl


def test_no_two_families_have_one_version() -> None:
    for backend in ("opencl", "cuda"):
        own = [version(f, backend) for f in families() if f.own]
        assert len(set(own)) == len(own) and all(re.fullmatch("[0-9a-f]{32}", version) for version in own)


def test_names_of_included_files_do_not_count(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("int a;\n")
    one, two = (with_includes(f'#include "{name}"\nint b;\n', tmp_path) for name in ("one", "two"))
    assert one != two and source_digest([one]) == source_digest([two])


def test_every_shipped_entry_can_be_followed() -> None:
    """Its hash may be an older one, if its samples are (``test_history``): it is verified then before its first use."""
    entries = exchange.every_shipped()
    assert sum(family(e.kernel).own for e in entries) >= 40
    assert [e.kernel for e in entries if tuned.refusal(e)] == []
