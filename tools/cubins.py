"""Make the machine code that the wheels have, so that the first product of a process waits for no compiler.

    python tools/cubins.py                       # build/cubins.pack, as make wheels does
    python tools/cubins.py --check dist/*.whl    # whether a wheel has what is selected today

It has the kernels that run the golden record's products, squares, shipped tuned entries' products, 300 drawn ones and those of
the programs whose records are kept, on the stored description of an H200. Each is compiled by the oldest NVRTC that pyproject.toml
takes, which pip downloads, so that older drivers load it; and by this environment's, that of the records, which a driver is given
first. What is compiled is kept in build/cubins, so that the next time only what is new takes long.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from toprung import store
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.device import cores
from toprung.dispatch import mixed
from toprung.execute.executable import Executable
from toprung.gemm.epilogue import Epilogue
from toprung.gemm.lowering import Program
from toprung.kernels.build import PACK, key_of
from toprung.oracle.problems import problem_of
from toprung.paths import deliver
from toprung.store.exchange import every_shipped
from toprung.tune import check, shapes
from toprung.tune.compiler import MOST, compile_one

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests import golden  # noqa: E402

OUT, KEPT = ROOT / "build" / "cubins.pack", ROOT / "build" / "cubins"
PROGRAMS = ROOT / "results" / "nvidia-h200" / "programs.json"
DEVICE = golden.devices()["h200-cuda"]
SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192)
BIAS = Epilogue(addend=True, on=1)


class Session(golden.Recorder):
    """A session that launches nothing, and keeps the sources of the kernels that are loaded there, by key."""

    def __init__(self) -> None:
        super().__init__(DEVICE)
        self.sources: dict[str, Source] = {}

    def load(self, binary: bytes, source: Source) -> Any:
        """Keep the source, which stands for the kernel."""
        self.sources[key_of(source, nvrtc.fingerprint(DEVICE.arch))] = source
        return super().load(binary, source)


def products() -> Iterator[tuple[golden.Asked, bool]]:
    """Yield the products whose kernels the pack has, and whether they are PyTorch's with a bias."""
    for one in golden.asked(DEVICE):
        yield one, False
    descs = [golden.gemm(n, n, n, layout) for n in SQUARES for layout in golden.LAYOUTS]
    descs += [problem_of(entry.shape).desc for entry in every_shipped(f"{DEVICE.slug}-cuda.json")]
    descs += [problem.desc for problem in shapes.with_mixed(DEVICE, shapes.drawn(DEVICE, check.SHAPES, 0), 0)]
    for desc in descs:
        yield golden.Asked(desc), False
        yield golden.Asked(desc, "fp32", own=True), False
    reports = (one.get("report") or {} for one in json.loads(PROGRAMS.read_text())["torch_models"])
    for op, sizes, layout in sorted({(row["op"], row["problem"], row["layout"]) for r in reports for row in r.get("rows", ())}):
        *batch, m, n, k = map(int, sizes.split("×"))
        yield golden.Asked(golden.gemm(m, n, k, layout, *batch)), op == "addmm"


def needed(asked: Iterable[tuple[golden.Asked, bool]], tuned: str = "on") -> dict[str, Source]:
    """Return the sources that products load kernels of, by key, with the shipped tuned entries on or off."""
    session: Any = Session()
    a, b, c = golden.OPERANDS.values()
    with golden.recording(), tempfile.TemporaryDirectory() as cache:
        os.environ.update({"TOPRUNG_CACHE": cache, "TOPRUNG_DATA": cache, store.VARIABLE: tuned})
        for one, bias in asked:
            is_mixed = getattr(one.desc, "is_mixed", False)
            found = mixed.select(DEVICE, one.desc, one.precision, one.own) if is_mixed else one.selection(DEVICE)
            if isinstance(found, str) or not found.family.own:
                continue
            Executable.of(session, one.desc, found).run(a, 8, b, 16, c, 32, one.alpha, one.beta)
            if bias and BIAS.needs <= found.family.epilogues:
                added = Executable(session, Program.of(one.desc, BIAS), {one.desc: found})
                added.run(a, 8, b, 16, c, 32, 1.0, 1.0, addend=4 << 30)
    return session.sources


def oldest(folder: str) -> None:
    """Put the oldest NVRTC that pyproject.toml takes into a folder, and the headers of its version."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cuda12"]
    exactly = [re.sub(r"^(nvidia-.+)>=([\d.]+),.*", r"\1==\2.*", one) for one in asked if not re.search("nvdisasm|-ml-|-core", one)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *exactly], check=True)


def compiled(sources: Sequence[Source], packages: str = "") -> list[bytes]:
    """Return what the cache holds of sources, compiled by the NVRTC in a folder of packages, or by this environment's."""
    path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "TOPRUNG_CACHE": str(KEPT)}
    words, given = [sys.executable, __file__, "--compile"], pickle.dumps(sources)
    fingerprint = subprocess.run(words, input=given, stdout=subprocess.PIPE, check=True, env=env).stdout.decode()
    print(f"{len(sources)} by NVRTC {fingerprint.partition(chr(10))[0]}", flush=True)
    return [(KEPT / "binaries" / key_of(source, fingerprint)).read_bytes() for source in sources]


def compile_here() -> None:
    """Compile the sources that standard input brings into the cache, and print the fingerprint under which they are there."""
    sources, fingerprint = pickle.load(sys.stdin.buffer), f"{nvrtc.version()}\n{nvrtc.fingerprint(DEVICE.arch)}"
    with ProcessPoolExecutor(min(cores(), MOST)) as pool:
        each = pool.map(compile_one, sources, itertools.repeat(DEVICE.arch), itertools.repeat(fingerprint))
        if problem := next(filter(None, each), ""):
            sys.exit(problem)
    print(end=fingerprint)


def packed(stored: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return a pack: for each key what the cache would hold, in the order in which a driver is given it."""
    places: dict[str, list[tuple[int, int]]] = {key: [] for key in stored}
    blobs, at = [], 0
    for key, each in stored.items():
        for one in each:
            blobs.append(zlib.compress(one, 9))
            places[key].append((at, len(blobs[-1])))
            at += len(blobs[-1])
    return json.dumps(places).encode() + b"\n" + b"".join(blobs)


def stale(wheel: Path, keys: Iterable[str]) -> str:
    """Return what a wheel lacks or has too much, as a sentence; empty if its pack has just these keys."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            has = json.loads(archive.open(f"toprung/kernels/{PACK.name}").readline()).keys()
        except KeyError:
            return f"{wheel.name} has no {PACK.name}"
    lacks, left = len(set(keys) - has), len(has - set(keys))
    return f"{wheel.name} lacks {lacks} kernels that are selected and has {left} that are not" if lacks or left else ""


def main() -> None:
    """Make the pack, or check wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the pack, build/cubins.pack by default")
    parser.add_argument("--check", type=Path, nargs="+", metavar="WHEEL", help="check wheels, and make nothing")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        return compile_here()
    sources = needed(((one, False) for one in golden.asked(DEVICE)), "off") | needed(products())
    if options.check:
        sys.exit("\n".join(filter(None, (stale(wheel, sources) for wheel in options.check))) or None)
    with tempfile.TemporaryDirectory() as packages:
        oldest(packages)
        both = zip(compiled([*sources.values()]), compiled([*sources.values()], packages), strict=True)
    content = packed(dict(zip(sources, both, strict=True)))
    deliver(options.out, content)
    print(f"{options.out}: {len(sources)} kernels, {len(content) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
