"""The store of tuned entries: nothing is lost, nothing foreign is taken, and whatever is wrong is said."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trial
from command import Typed
from toprung import store as stores
from toprung.errors import StoreError
from toprung.oracle.gemm import Gemm
from toprung.store import Entry, Machine, Proof, Store, candidate_key

HERE = Machine("a-device", "A Device", "opencl", "1.0", "a compiler 2")
TILE = {"BM": 16, "BN": 16, "BK": 8, "TM": 4, "TN": 4}
TUNED = {"kernel": "tiled", "tile": TILE, "options": {"ORDER": 1}}


def entry(n: int = 64, seconds: tuple[float, ...] = (1e-3,), **more: Any) -> Entry:
    values = {
        "machine": HERE,
        "problem_class": "tiny NN v444",
        "shape": Gemm(n, n, n).describe(),
        "candidate": TUNED,
        "source": "abc",
    }
    return Entry(**{**values, "seconds": seconds, **more})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data" / "tuned.sqlite")


WRITER = """
import sys
from toprung.store import Store
import test_store
store, first, count = Store(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for n in range(first, first + count):
    store.add(test_store.entry(n))
    print(n, flush=True)
"""


def child(program: str, *words: object, **more: Any) -> subprocess.Popen[str]:
    """A process of its own that runs a program."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": paths}, **more,
    )  # fmt: skip


# entries


def test_what_is_added_comes_back(store: Store) -> None:
    assert list(store.entries()) == [] and store.best(HERE, Gemm(64, 64, 64).describe()) is None
    one, other = (
        entry(64, (3e-3, 1e-3, 2e-3), clocks_mhz=(None, 1500.0, 1500.0)),
        entry(65, status="wrong", message="C[0, 0]", grade=1e9),
    )
    store.add(one)
    store.add(other)
    assert list(store.entries()) == [one, other]
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.median == 2e-3 and list(store.entries(status="wrong")) == [other]
    with pytest.raises(StoreError, match="filtered by"):
        list(store.entries(colour="red"))


def test_the_best_goes_by_right_and_unmarked_samples(store: Store) -> None:
    shape = Gemm(64, 64, 64).describe()
    slow = entry(seconds=(5e-3,))
    marked = entry(seconds=(1e-6, 6e-3), marked=(True, False), candidate={**TUNED, "options": {"ORDER": 0}})
    wrong = entry(seconds=(1e-6,), status="wrong", candidate={**TUNED, "options": {"ORDER": 2}})
    elsewhere = entry(seconds=(1e-6,), machine=replace(HERE, device="b-device"))
    store.add(slow, marked, wrong, elsewhere)
    assert store.best(HERE, shape) == slow
    assert store.best(HERE, {**shape, "alpha": 1}) == slow, "1 and 1.0 are one α"
    assert store.best(HERE, {**shape, "trans": "NT"}) is None
    assert store.fastest(HERE, 1, kernel="tiled") == [slow]


def test_the_same_measured_again_replaces(store: Store) -> None:
    store.add(entry(seconds=(1.0,)))
    store.add(entry(seconds=(2.0,)))
    assert [e.seconds for e in store.entries()] == [(2.0,)]


def test_neighbours_come_nearest_first(store: Store) -> None:
    store.add(*(entry(n) for n in (64, 80, 100, 200)))
    found = store.neighbours(HERE, "tiny NN v444", (96, 96, 96, 1))
    assert [e.sizes[0] for e in found] == [100, 80, 64]


def test_what_was_tried_is_known_for_a_resumed_search(store: Store) -> None:
    shape = Gemm(64, 64, 64).describe()
    store.add(entry(), entry(status="crashed", seconds=(), candidate={"kernel": "plain", "tile": {"BM": 1, "BN": 64}}))
    assert store.tried(HERE, shape) == {
        candidate_key(TUNED, "abc"), candidate_key({"kernel": "plain", "tile": {"BN": 64, "BM": 1}, "options": {}}, "abc")
    }  # fmt: skip
    assert candidate_key(TUNED, "another text") not in store.tried(HERE, shape)
    assert store.tried(replace(HERE, driver="1.1"), shape) == set()


def test_clear_takes_what_was_meant(store: Store) -> None:
    store.add(entry(64), entry(65), entry(66, candidate={"kernel": "numpy"}))
    store.prove(Proof(entry(64).id, HERE, "now"))
    assert store.clear(kernel="numpy") == 1 and len(list(store.entries())) == 2
    assert store.proofs(HERE) == [Proof(entry(64).id, HERE, "now")] and store.proofs(replace(HERE, driver="2")) == []
    assert store.clear() == 2 and store.proofs(HERE) == []


# many at once, and killed


def test_processes_and_threads_lose_nothing(store: Store) -> None:
    others = [child(WRITER, store.path, 1000 * i, 20) for i in range(1, 4)]
    threads = [threading.Thread(target=lambda i=i: [store.add(entry(10_000 * i + n)) for n in range(20)]) for i in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        assert other.wait() == 0, other.stderr and other.stderr.read()
    expected = {1000 * i + n for i in (1, 2, 3) for n in range(20)} | {10_000 * i + n for i in (1, 2, 3) for n in range(20)}
    assert {e.sizes[0] for e in store.entries()} == expected


def test_a_killed_writer_loses_at_most_what_it_was_writing(store: Store) -> None:
    done: set[int] = set()
    for first in (1000, 2000):
        writer = child(WRITER, store.path, first, 900)
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(15)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        assert len(said) < 900
        done |= set(said)
        there = {e.sizes[0] for e in store.entries()}
        assert done <= there and len(there - done) <= 1
        done = there
        with sqlite3.connect(store.path) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_failure_in_the_middle_leaves_nothing_half_written(store: Store) -> None:
    store.add(entry(64))
    with pytest.raises(AttributeError):
        store.add(entry(65), None)  # type: ignore[arg-type]
    assert [e.sizes[0] for e in store.entries()] == [64]


# files that are no stores of ours


def garbage(path: Path) -> None:
    path.write_bytes(b"what is this? " * 1000)


def truncated(path: Path) -> None:
    Store(path).add(*(entry(n) for n in range(1, 200)))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (name TEXT)")


def of_schema(schema: int, path: Path) -> None:
    Store(path).add(entry())
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {schema}")
        db.execute("PRAGMA journal_mode = DELETE")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (garbage, "damaged"),
        (truncated, "damaged"),
        (foreign, "another program"),
        (partial(of_schema, 99), "newer toprung"),
        (partial(of_schema, 1), "older, unreleased toprung"),
    ],
)
def test_a_file_that_is_no_store_is_refused_and_left_alone(make: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.sqlite"
    make(path)
    before = path.read_bytes()
    for use in (lambda: Store(path).add(entry()), lambda: list(Store(path).entries()), lambda: Store(path).clear()):
        with pytest.raises(StoreError, match=says):
            use()
    with pytest.raises(StoreError, match=says):
        Store(tmp_path / "mine.sqlite").merge(path)
    assert path.read_bytes() == before
    if says == "damaged":
        assert "was moved to" in Store(path).clear_damaged() and not path.exists()
        (aside,) = tmp_path.glob("tuned.sqlite.damaged-*")
        assert aside.read_bytes() == before
    else:
        with pytest.raises(StoreError, match=says):
            Store(path).clear_damaged()
        assert path.read_bytes() == before


def test_a_damaged_row_is_named_and_the_rest_is_read(store: Store) -> None:
    store.add(entry(64), entry(65), entry(66))
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE entries SET content = replace(content, '\"tiled\"', '\"tiled; rm\"') WHERE id = ?", (entry(65).id,))
        db.execute("UPDATE entries SET content = CAST(x'ff00' AS TEXT) WHERE id = ?", (entry(66).id,))
    complaints: list[str] = []
    assert [e.sizes[0] for e in store.entries(complaints=complaints)] == [64]
    assert len(complaints) == 2 and all("is damaged and was passed over" in c for c in complaints)
    assert "2 damaged" in store.clear_damaged()
    assert store.clear() == 1


# where nothing can be written


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may look into; pytest's own are its user's alone."""
    folder = Path(tempfile.mkdtemp(prefix="toprung-store-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


NOBODY = """
import os, sys
from toprung.errors import StoreError
from toprung.store import Store
import test_store
new = test_store.entry(65)
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # what root may do is no test
store = Store(sys.argv[1])
print(len(list(store.entries())))
for use in (lambda: store.add(new), store.clear):
    try:
        use()
        print("written")
    except StoreError as error:
        print(error)
"""


def test_a_read_only_folder_can_be_read(public: Path) -> None:
    store = Store(public / "tuned.sqlite")
    store.add(entry(64))
    store.path.chmod(0o444)
    public.chmod(0o555)
    before = store.path.read_bytes()
    out, err = child(NOBODY, store.path).communicate()
    count, *said = out.splitlines()
    assert count == "1", err
    assert len(said) == 2 and all("cannot be written" in line and "TOPRUNG_DATA" in line for line in said)
    assert store.path.read_bytes() == before and stat.S_IMODE(public.stat().st_mode) == 0o555


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "tuned.sqlite")
    assert list(store.entries()) == []
    with pytest.raises(StoreError, match=r"cannot be written.*TOPRUNG_DATA"):
        store.add(entry())
    with pytest.raises(StoreError, match="cannot be written"):
        store.export(tmp_path / "file" / "out.json")


FULL = """
import resource, sys
from pathlib import Path
from toprung.errors import StoreError
from toprung.store import Store
import test_store
store = Store(sys.argv[1])
store.add(test_store.entry(1))
limit = Path(sys.argv[1]).stat().st_size + 40_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    for n in range(2, 2000):
        store.add(*(test_store.entry(1000 * n + i) for i in range(10)))
        print(n, flush=True)
except StoreError as error:
    print(error)
print(len(list(store.entries())))
"""


def test_a_full_disk_loses_nothing(store: Store) -> None:
    out, err = child(FULL, store.path).communicate()
    *done, said, count = out.splitlines()
    assert done and "nothing of it was lost" in said and "make room" in said, out + err
    assert int(count) == 1 + 10 * len(done)
    store.add(entry(7))  # room again
    assert len(list(store.entries())) == 2 + 10 * len(done)


# exchange


words = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
lines = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20).filter(str.isprintable)
times = st.floats(1e-9, 1e6)
machines = st.builds(Machine, lines.filter(bool), lines, words, lines, lines)
shapes = st.builds(
    Gemm, *[st.integers(0, 2**20)] * 3, alpha=st.floats(-2, 2), beta=st.sampled_from([0, 0.7]),
    trans=st.sampled_from(["NN", "NT", "TN", "TT"]), batch=st.integers(1, 9),
).map(Gemm.describe)  # fmt: skip
tiles = st.fixed_dictionaries({"BM": st.integers(1, 256), "BN": st.integers(1, 256)}, optional={"BK": st.integers(1, 64)})
ours = st.fixed_dictionaries(
    {"kernel": words, "tile": tiles},
    optional={"options": st.dictionaries(words.map(str.upper), st.integers(0, 99), max_size=3)},
)
candidates = ours | st.sampled_from([{"kernel": "cublas"}, {"kernel": "numpy", "tile": {}}])


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    status = draw(st.sampled_from(stores.STATUSES))
    seconds = draw(st.lists(times, min_size=status == "right", max_size=4))
    count = len(seconds)
    cold = tuple(draw(st.lists(times, max_size=2)))
    clocks = tuple(draw(st.lists(st.none() | times, min_size=count, max_size=count)))
    marked = tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    return Entry(
        draw(machines), draw(lines), draw(shapes), draw(candidates), draw(lines), tuple(seconds), cold, clocks, marked,
        draw(st.floats(0, 1e9)), status, draw(st.text(max_size=30)), "2025-01-31T12:00:00+00:00", draw(lines.filter(bool)),
    )  # fmt: skip


@settings(max_examples=20)
@given(found=st.lists(entries(), min_size=1, max_size=3, unique_by=lambda e: e.id))
def test_export_and_import_are_each_others_reverse(found: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = Store(Path(folder) / "a.sqlite"), Store(Path(folder) / "b.sqlite")
        first.add(*found)
        assert first.export(Path(folder) / "out.json") == len(found)
        done = second.import_(Path(folder) / "out.json")
        assert (done.taken, done.known, done.refused) == (len(found), 0, ())
        assert list(second.entries()) == list(first.entries()) == found
        assert second.merge(first.path).known == len(found)


def test_the_newer_of_two_is_kept(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "a.sqlite"), Store(tmp_path / "b.sqlite")
    first.add(entry(64, (1.0,), date="2025-01-01"), entry(65, (1.0,), date="2025-03-01T00:00:00+00:00"))
    second.add(entry(64, (2.0,), date="2025-02-01"), entry(65, (2.0,), date="2025-02-01"))
    assert (done := first.merge(second.path)) and (done.taken, done.known) == (1, 1)
    assert sorted((e.sizes[0], e.seconds[0]) for e in first.entries()) == [(64, 2.0), (65, 1.0)]
    assert first.merge(second.path).taken == 0


def hostile(path: str, value: Any) -> dict[str, Any]:
    """An entry as JSON with one thing in it replaced."""
    content: dict[str, Any] = copy.deepcopy(entry().describe())
    at: Any = content
    *way, last = path.split(".")
    for step in way:
        at = at[step]
    at[last] = value
    return content


CODE = 'tiled"\n#include "/etc/passwd'
HOSTILE = [
    ("candidate.kernel", CODE), ("candidate.kernel", "../tiled"), ("candidate.kernel", 7), ("candidate.tile", [1]),
    ("candidate.tile", {"BM": "16", "BN": 16}), ("candidate.tile", {"BM": 16, "BN": 16, "EXEC": 1}), ("candidate.tile", {"BM": 16}),
    ("candidate.tile", {"BM": 10**30, "BN": 1}), ("candidate.tile", {"BM": 0, "BN": 1}), ("candidate.tile", {"BM": True, "BN": 1}),
    ("candidate.options", {"ORDER": "1) system("}), ("candidate.options", {"x=1 -D": 1}), ("candidate.options", {"ORDER": -1}),
    ("candidate.options", {"ORDER": 1e9}), ("candidate", "tiled"), ("candidate", {"tile": {}}), ("candidate.more", 1),
    ("seconds", [float("nan")]), ("seconds", [float("inf")]), ("seconds", [-1.0]), ("seconds", [0]), ("seconds", ["1"]),
    ("seconds", []), ("seconds", 1.0), ("seconds", [10**400]), ("clocks_mhz", [1.0, 2.0]), ("marked", [1]), ("grade", "0"),
    ("grade", -1), ("status", "fine"), ("message", 5), ("date", "yesterday"), ("date", ""), ("version", "\x1b[31m"),
    ("source", "a\nb"), ("shape", {}), ("shape.M", -1), ("shape.M", 1.5), ("shape.M", 2**31), ("shape.trans", "N;"),
    ("shape.routine", 1), ("shape.a b", 1), ("machine", {}), ("machine.device", ""), ("machine.backend", "open cl"),
    ("machine.driver", None), ("machine.name", "x" * 10_000), ("problem_class", ["a"]), ("extra", 1),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=[f"{i}-{p}" for i, (p, _) in enumerate(HOSTILE)])
def test_a_hostile_entry_is_refused_and_the_others_taken(path: str, value: Any) -> None:
    with pytest.raises(StoreError) as refused:
        Entry.read(hostile(path, value))
    assert str(refused.value).isprintable() and len(str(refused.value)) < 500


def test_an_entry_with_something_missing_is_refused() -> None:
    for name in entry().describe():
        with pytest.raises(StoreError, match=name):
            Entry.read({k: v for k, v in entry().describe().items() if k != name})


def test_an_import_takes_what_is_good_and_says_what_is_not(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    content = {"format": stores.FORMAT, "entries": [hostile("candidate.kernel", CODE), entry(65).describe(), 5]}
    file.write_text(json.dumps(content))
    done = store.import_(file)
    assert done.taken == 1 and [at.split(" of")[0] for at, _ in done.refused] == ["entry 1", "entry 3"]
    assert store.import_(file, lambda e: "not here").refused[-1][1] == "not here"


@pytest.mark.parametrize(
    "text",
    [
        "", "not JSON", "[]", "{}", "5", '{"format": "toprung record 1", "entries": []}', '{"format": "toprung store 2"}',
        '{"format": "toprung store 2", "entries": {}}', '{"format": "toprung store 2", "entries": [NaN]}',
        "[" * 100_000, "\x00\xff",
        '{"format": "toprung store 2", "entries": [' + "9" * 5000 + "]}",
    ],
)  # fmt: skip
def test_a_file_that_is_no_export_is_refused_whole(text: str, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    file.write_text(text)
    with pytest.raises(StoreError, match=r"nothing was taken|is not taken"):
        store.import_(file)
    assert not store.path.exists()


def test_what_comes_with_the_package_is_found() -> None:
    there = sorted((trial.ROOT / "src" / "toprung" / "store" / "shipped").glob("*.json"))
    assert there
    for path in there:
        found = stores.read_exchange(path, [])
        assert found and stores.shipped(found[0].machine) == found


# the command


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    monkeypatch.setenv("TOPRUNG_DATA", str(tmp_path / "data"))
    return Typed(capsys, monkeypatch)


def test_the_command_lists_carries_and_clears(typed: Typed, tmp_path: Path) -> None:
    assert typed("store", "list") == (0, f"no such entries in {tmp_path}/data/tuned.sqlite: toprung tune makes some")
    Store.default().add(
        entry(64), entry(65, (2.0,)), entry(65, candidate={"kernel": "numpy"}), entry(66, status="wrong", message="[red]no")
    )
    code, said = typed("store", "list", "--json", tmp_path / "listed.json")
    assert code == 0 and "64×64×64" in said and "wrong: [red]no" in said and "4 entries" in said
    assert "2 entries" in typed("store", "list", "--best", 1, "--kernel", "tiled")[1]
    assert typed("store", "export", tmp_path / "out.json", "--status", "right")[0] == 0
    assert len(json.loads((tmp_path / "out.json").read_text())["entries"]) == 3
    code, said = typed("store", "import", tmp_path / "listed.json", "--store", tmp_path / "other.sqlite")
    assert code == 0 and said.startswith("4 entries taken")
    code, said = typed("store", "merge", tmp_path / "other.sqlite")
    assert code == 0 and "4 were known" in said
    code, said = typed("store", "clear")
    assert code == 2 and "--yes" in said and len(list(Store.default().entries())) == 4
    assert typed("store", "clear", "--kernel", "numpy", "--yes")[1].startswith("1 entries were removed")
    assert typed("store", "clear", "-y")[1].startswith("3 entries were removed")


def test_the_command_says_what_is_wrong(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    garbage(tmp_path / "data" / "tuned.sqlite")
    code, said = typed("store", "list")
    assert code == 2 and "toprung store clear --damaged" in said
    assert typed("store", "clear", "--damaged", "--yes")[0] == 0 and typed("store", "list")[0] == 0
    assert typed("store", "import", tmp_path / "missing.json")[0] == 2
    assert typed("store", "merge", tmp_path / "missing.sqlite")[0] == 2
    assert typed("store", "export", tmp_path / "nothing.json")[0] == 2 and not (tmp_path / "nothing.json").exists()
    assert typed("store", "list", "--status", "fine")[0] == 2
    unknown = {"kernel": "nosuch", "tile": TILE}
    Store(tmp_path / "from.sqlite").add(
        entry(64), entry(65, candidate=unknown), entry(66, candidate={**TUNED, "options": {"ORDER": 9}})
    )
    Store(tmp_path / "from.sqlite").export(tmp_path / "from.json")
    code, said = typed("store", "import", tmp_path / "from.json")
    assert code == 2 and "there is no kernel family 'nosuch'" in said and "no switch ORDER=9" in said
    assert [e.sizes[0] for e in Store.default().entries()] == [64]
