"""Drawn damage. To a command: its words. To a file: bits, ends, encodings, and in JSON values of wrong types and sizes."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
import shutil
import sqlite3
from typing import Any

import typer

from toprung.cli import app

DEVICE = ("--device", "pocl")
RUN = ("run", "kepler/r01", "--size", "16", *DEVICE, "--json", "results/run.json")
LADDER = ("ladder", "kepler", "--sizes", "16", "--rungs", "1,2", *DEVICE, "--json", "results/ladder.json")
TUNE = ("tune", "gemm", "--sizes", "16", "--budget", "1", *DEVICE, "--json", "results/tune.json")
BENCH = ("bench", "--sizes", "16", "--peers", "matmul,numpy", "--budget", "1s", *DEVICE, "--json", "results/bench.json")
REPORT = ("report", "results", "--no-code", "--out", "report")
MAKING = (
    RUN, LADDER, TUNE, BENCH, ("explain", "kepler/r01", "--arch", "sm_90", "--json", "results/bounds.json"),
    ("accuracy", "--sizes", "16", "--peers", "numpy", "--inputs", "uniform", *DEVICE, "--json", "results/accuracy.json"),
    ("probe", "--only", "launch", *DEVICE, "--json", "results/probe.json"), ("store", "export", "results.store"),
    ("inspect", "kepler/r01", "--cubin", "one.cubin", "--json", "inspect.json"),
)  # fmt: skip
"""Commands that make the files that others read."""
WORDS = (
    *MAKING, REPORT, ("web", "--out", "web"), ("devices",), ("bound", "--arch", "kepler", "--BR", "6"), ("bound", "--sweep"),
    ("guidelines", "--only", "coalescing", *DEVICE), ("results", "list"), ("results", "show", "results/ladder.json"),
    ("results", "compare", "results/run.json", "results/run.json"), ("results", "plot", "results/bench.json", "--out", "b.svg"),
    ("store", "list", "--best", "1"), ("store", "import", "results.store"), ("store", "merge", "old.sqlite"),
    ("store", "clear", "--yes", "--damaged"), ("run", "--cubin", "one.cubin", *DEVICE),
)  # fmt: skip
READERS = (
    ("results", "show", "FILE"), ("results", "list", "--dir", "damaged"), ("results", "compare", "FILE", "results/ladder.json"),
    ("results", "plot", "FILE", "--out", "damaged.svg"), ("report", "FILE", "--no-code", "--out", "page"),
    ("report", "damaged", "results", "--no-code", "--out", "page"), ("explain", "kepler/r01", "--results", "damaged", *DEVICE),
)  # fmt: skip
OWN_READERS = {
    "results.store": (("store", "import", "FILE"), ("store", "import", "FILE", "--store", "other.sqlite")),
    "old.sqlite": (("store", "merge", "FILE"), ("store", "list", "--store", "FILE")),
    "suite.json": (("bench", "--suite", "FILE", *BENCH[3:]), ("tune", "--suite", "FILE", *TUNE[4:])),
    "one.cubin": (("run", "--cubin", "FILE", *DEVICE),), "one.cubin.json": (("run", "--cubin", "damaged/one.cubin", *DEVICE),),
}  # fmt: skip
"""Commands that read a file of another kind than a record."""
STANDINS = {
    "@deep@": "[" * 100_000 + "]" * 100_000, "@objects@": '{"a":' * 5000 + "1" + "}" * 5000, "@long@": "9" * 5000, "@nan@": "NaN",
    "@infinite@": "-Infinity", "@exponent@": "1e999", "@surrogate@": '"\\ud800"', "@half@": '"\\ud8"',
}  # fmt: skip
"""Values that no JSON writer writes, by the text that stands for them until the file is written."""
VALUES = (
    None, True, -1, 0, 1.5, 1e308, -1e-320, 2**63, 10**400, "", "x" * 5000, "\x1b[31m", "\0", "[/red]", "../../x", "é\u202e", [],
    {}, [[]], [None], {"": 1}, *STANDINS,
)  # fmt: skip


def places(content: Any) -> list[tuple[Any, Any]]:
    """Return every value of parsed JSON by what holds it and its key there."""
    keys = list(content) if isinstance(content, dict) else list(range(len(content))) if isinstance(content, list) else []
    return [place for key in keys for place in ((content, key), *places(content[key]))]


def damaged_json(raw: bytes, draw: random.Random) -> bytes:
    """Change, remove or exchange some values."""
    content = json.loads(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        found = places(content)
        if not found:
            break
        by_key: dict[str, list[tuple[Any, Any]]] = {}
        for holder, key in found:  # a key each time, not one of a thousand samples
            by_key.setdefault(str(key) if isinstance(holder, dict) else "", []).append((holder, key))
        holder, key = draw.choice(by_key[draw.choice(sorted(by_key))])
        change = draw.randrange(6)
        if change == 0:
            del holder[key]
        elif change == 1:
            other, name = draw.choice(found)
            holder[key] = json.loads(json.dumps(other[name]))
        else:
            holder[key] = draw.choice(VALUES)
    text = json.dumps(content, ensure_ascii=draw.random() < 0.5)
    for name, value in STANDINS.items():
        text = text.replace(f'"{name}"', value)
    return text.encode(draw.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig")), "surrogatepass")


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """Cut a file, change bits or bytes of it, or change values where it is JSON."""
    change = draw.randrange(12)
    where = draw.randrange(len(raw) or 1)
    if change == 0:
        return raw[:where]
    if change == 1:
        return draw.choice((b"", b"\0" * len(raw), b"null", b"[]", b"{}", b"\xff\xfe", raw * 2, b"\xef\xbb\xbf" + raw))
    if change == 2:
        return raw[:where] + draw.randbytes(draw.choice((1, 16, 4096))) + raw[where:]
    if change == 3:
        return raw[:where] + raw[where + draw.choice((1, 16, 4096)) :]
    if change == 4 or raw.lstrip()[:1] not in (b"{", b"["):
        found = bytearray(raw)
        for _ in range(draw.choice((1, 1, 10, 1000)) if raw else 0):
            found[draw.choice((where, draw.randrange(len(raw)), draw.randrange(min(len(raw), 100))))] ^= 1 << draw.randrange(8)
        return bytes(found)
    lines = raw.splitlines(keepends=True)
    if b"\n{" not in raw or b"entries" in raw:
        return damaged_json(raw, draw)
    lines[where % len(lines)] = damaged_json(lines[where % len(lines)], draw) + b"\n"  # a log has JSON in each line
    return b"".join(lines)


PATHS = (
    "", ".", "..", "results", "/proc/x/y.json", "/proc/x/y.svg", "x.json", "x.svg", "x.PNG", "x.bmp", "new/x.json", "link.json",
    "results/run.json", "results/run.json/y.json", "none.json", "results.store", "one.cubin", "x" * 300 + ".json", "\udcff.svg",
    "a\0b", "-",
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "1", "16", "1.5", "nan", "9" * 5000, "1:1000000000000000000:1", "1:9:0", "9:1:1", "1:9", "1-99999999999",
    "2-1", "16x16x16", "35x79x19", "1x1x1x99999999999999999", "3x4", "1x1x1x1x1", "999999999", "1,1,16", "NN", "T", "tn,NT", "fp32",
    "fp32x", "auto", "estimate", "climb", "kepler", "kepler/r01", "kepler/r99", "kepler/", "matvec", "webgpu", "numpy", "scipy",
    "matmul,toprung", "squares", "uniform", "nan,inf", "coalescing", "launch", ",", "a,b", "=", "TM=4", "BM=99999999999999999",
    "BM=0", "BM=", "INDEX32=1", "INDEX32", "beta=nan", "alpha=1e400", "lda=1", "lda=99999999999999999", "batch=2", "trans=X",
    "trans=TN", "\udcff", "é", "٣", "²", "\0", "\x1b[31m", "%s{}", "[/]", "pocl", "opencl:0", "opencl:99999999999999999999", "all",
    "pocl,pocl", "here", "sm_90", "sm_9999", "sm_", "-", "--", "x" * 5000, "1s", "0s", "0.5m", "99999999999999h", "right", "gemm",
    "0" * 12, *PATHS,
)  # fmt: skip
WORD_VALUES = {
    "int": ("-1", "0", "1", "2", "7", "64", "128", "2147483648", "-9223372036854775809", "1" + "0" * 30, "9" * 5000, "1.5"),
    "float": ("nan", "inf", "-inf", "-1", "0", "0.5", "1", "1e-320", "1e308", "1e400", "99", "100", "x"),
    "Path": PATHS,
}
"""Values that are drawn for an option, by the name of its type."""
LEFT_OUT = {"--scheduler", "--help", "--install-completion", "--show-completion", "--sustained", "--code"}
"""Options that are not drawn: one waits for a cluster as long as the cluster's library does, others end a command or are slow."""


@functools.cache
def parameters(*words: str) -> dict[str, str]:
    """Return the options of a command by their names, with the names of their types; empty for a flag."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    given = [(option, p) for p in command.params for option in p.opts if option.startswith("--") and option not in LEFT_OUT]
    return {option: "" if p.is_flag else p.type_descriptor.annotation.__name__ for option, p in given}


def changed_words(words: tuple[str, ...], draw: random.Random) -> tuple[str, ...]:
    """Change a command's words: a value, an option more, a word too many or too few at its end."""
    chosen, begin = list(words), 2 if words[0] in ("store", "results") else 1
    known = parameters(*words[:begin])
    for _ in range(draw.choice((1, 1, 2, 3))):
        change, where = draw.randrange(10), draw.randrange(begin, len(chosen) + 1)
        kind = known.get(chosen[where - 1], "str")
        values = WORD_VALUES.get(kind, TEXTS) if draw.random() < 0.8 else TEXTS
        if change < 4 and where < len(chosen) and not chosen[where].startswith("--"):
            chosen[where] = draw.choice(values)
        elif change == 4 and where == len(chosen):
            chosen.pop()
        elif change == 5:
            chosen.append(draw.choice(TEXTS))
        elif known:
            option = draw.choice(sorted(known))
            values = WORD_VALUES.get(known[option], TEXTS) if draw.random() < 0.8 else TEXTS
            chosen += [option, draw.choice(values)] if known[option] else [option]
    return tuple(chosen)


def words(home: Any, draw: random.Random, at: int) -> dict[str, Any]:
    """Change some words of a command, run it, and run one as it is meant."""
    found = home.outcome(changed_words(WORDS[at] if at < len(WORDS) else draw.choice(WORDS), draw))
    again = home.outcome(draw.choice((("store", "list"), ("results", "list"), ("devices",), RUN)), (0,))
    return {**found, "faults": [*found["faults"], *again["faults"]]}


def results(home: Any, draw: random.Random, at: int) -> dict[str, Any]:
    """Damage a result file, or what is read like one, and give it to a command that reads it."""
    name, good = list(home.good.items())[at % len(home.good)]
    file = home.work / "damaged" / name
    file.parent.mkdir()
    (file.parent / "one.cubin").write_bytes(home.good["one.cubin"])
    file.write_bytes(bad := damaged(good, draw))
    chosen = draw.choice(OWN_READERS.get(name, READERS))
    found = home.outcome(tuple(f"damaged/{name}" if word == "FILE" else word for word in chosen))
    if file.read_bytes() != bad:
        found["faults"].append("the damaged file was changed")
    shutil.rmtree(file.parent)
    return {"file": name, **found}


def store(home: Any, draw: random.Random, at: int) -> dict[str, Any]:
    """Damage what is read at a start: the tuned store, speeds of baselines, a probe, a kernel; start, mend it, start again."""
    kind = ("data/tuned.sqlite", "rows", "data/baselines.jsonl", "data/probes", "cache/binaries")[at % 5]
    file = home.folder / ("data/tuned.sqlite" if kind == "rows" else kind)
    file = draw.choice(sorted(file.iterdir())) if file.is_dir() else file
    good = file.read_bytes()
    if kind == "rows":
        with contextlib.closing(sqlite3.connect(file)) as db, contextlib.suppress(sqlite3.Error), db:
            column = draw.choice([row[1] for row in db.execute("PRAGMA table_info(entries)")])
            number, old = draw.choice(db.execute(f"SELECT rowid, {column} FROM entries").fetchall())
            new = damaged(str(old).encode(), draw)
            new = draw.choice((new, new.decode(errors="replace"), None, 1.5))
            db.execute(f"UPDATE entries SET {column} = ? WHERE rowid = ?", (new, number))
    else:
        file.write_bytes(damaged(good, draw))
    readers = (("store", "list"), ("store", "list", "--best", "1"), ("store", "export", "other.store"), BENCH, RUN, TUNE)
    first = home.outcome(draw.choice((*readers, ("explain", "kepler/r01", *DEVICE))))
    mended = home.outcome(("store", "clear", "--damaged", "--yes"), (0, 2))
    if mended["code"]:  # a bit of its version or its program's number is another: it says to move it
        assert re.search("(newer toprung|another program).*was left alone", home.told.read_text(), re.DOTALL)
        (home.folder / "data/tuned.sqlite").unlink()
    again = home.outcome(draw.choice((LADDER, BENCH, TUNE)), (0,))
    for path in (home.folder / "data").glob("tuned.sqlite*"):
        path.unlink()
    (home.folder / "data/tuned.sqlite").write_bytes(home.good["old.sqlite"])
    file.write_bytes(good)
    return {"file": kind, **first, "faults": [*first["faults"], *mended["faults"], *again["faults"]]}
