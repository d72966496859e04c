"""Every kernel as CUDA, compiled without a GPU: nothing spills, wide accesses stay wide, and errors say what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conftest import require
from toprung import cli
from toprung.backends import cuda, nvrtc
from toprung.backends.base import Source
from toprung.cli.inspect import _overview
from toprung.errors import BuildError, IllegalTile, SwitchRefused, UnknownName
from toprung.kernels.blocks import narrowed
from toprung.kernels.helpers import ADD
from toprung.kernels.plain.family import RECORD as PLAIN_RECORD
from toprung.kernels.record import LibraryKernel, kernel_source
from toprung.kernels.skinny.record import COLUMNS, ROWS
from toprung.kernels.skinny_cluster.family import RECORDS as IN_CLUSTERS
from toprung.kernels.stream_k.family import COLLECT
from toprung.kernels.stream_k.family import RECORD as STREAM_K
from toprung.kernels.tiled.record import RECORD as TILED
from toprung.kernels.tiled_cluster.family import RECORDS as CLUSTERS
from toprung.lab.competitor import RungCompetitor
from toprung.lab.harness.climb import variants as every_variant
from toprung.lab.routines.base import KERNELS, shared_source
from toprung.lab.routines.gemm import PLAIN
from toprung.lab.rung import ladder, ladder_names, rung
from toprung.lab.sass.machine_code import classify, disassemble, inspect_source, read_code
from toprung.tile import Tile

WIDE = ("LDG.128", "STS.128", "LDS.128")
PROMISES: Mapping[str, tuple[str, ...]] = {
    "kepler/r04": WIDE,
    "kepler/r05": ("LDS.128",),
    "kepler/r06": ("LDS.128",),
    "kepler/r07": WIDE,
    "kepler/r08": WIDE,
    "kepler/r08 READ_ONLY=1": (*WIDE, "LDG.128.CONSTANT"),
    "kepler/r08 SHUFFLE=1": (*WIDE, "SHFL"),
    "kepler/r08 INDEX32=1": WIDE,
    "kepler/r09": WIDE,
    "kepler/r10": WIDE,
    "kepler/r10 PREDICATE=0": WIDE,
}
"""Instructions that a rung's text promises; wide accesses to C are asked of every gemm rung with vectors."""
ALL_WIDE = ("kepler/r07", "kepler/r08", "kepler/r08 READ_ONLY=1", "kepler/r08 INDEX32=1", "kepler/r09", "kepler/r10 PREDICATE=0")
"""Rungs whose main loop moves 16 bytes at a time and nothing less."""


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")


def variants(arch: str, plain: bool = False) -> list[object]:
    """Every rung, and unless ``plain`` every choice of its switches that ends in other code."""
    if nvrtc.missing():
        return []
    rungs = [r for name in ladder_names() for r in ladder(name).rungs]
    found = every_variant(rungs, nvrtc.device_of(arch))
    launch = ("CARVEOUT=1", "PERSISTENT=0")  # which concern the launch
    wanted = [e for e in found if e.variant not in launch and not (plain and e.variant)]
    quick = [n for n in PROMISES if n.endswith(("r08", "r10"))] if plain else [*PROMISES, "hopper/r05"]  # others promise the same
    return [pytest.param(e, id=str(e), marks=[pytest.mark.slow] * (str(e) not in quick)) for e in wanted]


def number(counts: Mapping[str, int], kind: str) -> int:
    """Instructions of a class, read-only ones included."""
    return counts.get(kind, 0) + counts.get(f"{kind}.CONSTANT", 0)


@pytest.mark.parametrize("entry", variants("sm_80", plain=True))
def test_nothing_spills_on_ampere(entry: RungCompetitor) -> None:
    """The compiler's word is enough here; its code is read for the other architecture."""
    tile = entry.rung.tile_for(nvrtc.device_of("sm_80"), entry.options)
    log = nvrtc.compile_cubin(kernel_source(entry.rung, tile, entry.options), "sm_80").log
    assert log.count("bytes spill stores") == 1
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log.replace("  ", " ")


OWN_BYTES = dict.fromkeys((6, 7, 9), 328) | {8: 200, 10: 368}
"""Bytes of a thread's own memory that rungs of the hopper ladder are written with: sums of which some are computed again."""


@pytest.mark.parametrize("entry", variants("sm_90"))
def test_rung_keeps_its_promises(entry: RungCompetitor) -> None:
    name = str(entry)
    tile = entry.rung.tile_for(nvrtc.device_of("sm_90"), entry.options)
    code = inspect_source(kernel_source(entry.rung, tile, entry.options), "sm_90")
    own = OWN_BYTES.get(entry.rung.number, 0) if entry.rung.ladder == "hopper" else 0
    assert (code.spill_stores, code.spill_loads, code.stack_bytes) == (0, 0, own)
    assert not any(kind.startswith(("LDL", "STL")) for kind in (code.loop.counts if own else code.counts))
    assert 0 < code.registers <= 255
    fixed = 2 * 8720 if entry.rung.precision == "fp32x" else 0  # what two consumers need for what is refused
    assert code.shared_bytes <= min(entry.rung.local_bytes(tile) + fixed, 227 * 1024)
    for kind in PROMISES.get(name, ()):
        assert number(code.counts, kind) > 0, kind
    if name in ALL_WIDE:
        assert [k for k in code.loop.counts if k.split(".")[0] in ("LDG", "STS", "LDS") and "128" not in k] == []
    if entry.rung.ladder == "kepler":
        assert code.counts.get("SHFL", 0) == (8 * 16 if "SHUFFLE=1" in name else 0)  # TM lanes for each of BK columns of A
    if entry.rung.routine == "gemm":
        assert code.shared_bytes == entry.rung.local_bytes(tile) or fixed
        if "ARCH_SPECIFIC" in entry.rung.defines and entry.rung.precision != "fp32":  # on matrix units
            assert code.loop.counts["HGMMA"] * 64 * 16 * tile.BN >= tile.BM * tile.BN * (tile.BK or 0) // max(1, tile.BM // 64)
        else:
            assert code.loop.counts.get("FFMA", 0) >= (tile.TM or 1) * (tile.TN or 1)
        if tile.widest == 4 and not entry.options.get("PREDICATE"):
            assert number(code.counts, "STG.128") * 4 >= (tile.TM or 1) * (tile.TN or 1)
            assert number(code.counts, "STG.32") == 0


@pytest.mark.parametrize("name", sorted(p.stem for p in KERNELS.glob("*.cl") if not p.stem.startswith("stream_")))
def test_shared_kernel_compiles(name: str) -> None:
    code = inspect_source(shared_source(name, PLAIN, nvrtc.device_of("sm_90")), "sm_90")
    assert code.local_bytes == 0 and code.registers > 0 and number(code.counts, "STG.32") > 0


def waiting() -> list[Any]:
    """Kernels that may start before the previous one is done, in each of their tiles, all but the first in the slow run."""
    if nvrtc.missing():
        return []
    tiles = [(TILED, one.tile) for one in narrowed(nvrtc.device_of("sm_90"), 4, 4).blocks]
    tiles += [(CLUSTERS[2], one.tile) for one in narrowed(nvrtc.device_of("sm_90"), 4, 4).blocks if one.chained]
    others = (STREAM_K, COLLECT, ADD, PLAIN_RECORD, ROWS, COLUMNS, IN_CLUSTERS["rows", 3], IN_CLUSTERS["columns", 3])
    tiles += [(record, tile) for record in others for tile in record.tiles["gpu"]]
    first = dict(reversed(tiles))
    return [
        pytest.param(record, tile, id=f"{record} {tile}", marks=[pytest.mark.slow] * (tile != first[record]))
        for record, tile in tiles
    ]  # fmt: skip


def accesses_before_the_wait(source: Source) -> list[str]:
    """Return the accesses to global memory that a kernel makes, or may make, before it has waited for the previous one.

    What the compiler believes to be constant it reads when it likes: such a read counts wherever it stands.
    """
    listing = disassemble(nvrtc.compile_cubin(source, "sm_90").code)
    found = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][A-Z0-9_.]*)", listing)
    wait = found.index("ACQBULK")  # griddepcontrol.wait
    early = [one for one in found[:wait] if re.match(r"LDG|STG|LD\b|ST\b|LDGSTS|ATOM|RED\b", one)]
    return early + [one for one in found[wait:] if one.endswith(".CONSTANT")]


@pytest.mark.parametrize(("record", "tile"), waiting())
def test_nothing_is_read_before_the_previous_kernel_is_done(record: LibraryKernel, tile: Tile) -> None:
    short = record in (ROWS, COLUMNS) or record in IN_CLUSTERS.values()
    source = record.source_for(tile, (("RESIDENT", 2),) if short else (), nvrtc.device_of("sm_90"))
    assert source.waits and accesses_before_the_wait(source) == []


def test_a_read_before_the_wait_is_seen() -> None:
    source = ADD.source_for(ADD.tiles["gpu"][0], (), nvrtc.device_of("sm_90"))
    wait, end = "    wait_for_previous();\n", "    if (i >= total) return;\n"
    assert wait in source.text and end in source.text
    assert accesses_before_the_wait(replace(source, text=source.text.replace(wait, "").replace(end, wait + end)))
    assert "*parts," in source.text
    assert accesses_before_the_wait(replace(source, text=source.text.replace("*parts,", "*restrict parts,")))


@pytest.mark.parametrize(("switch", "reason"), [("BANK_WIDTH", "only Kepler"), ("PTX32", "removed from NVIDIA's compilers")])
def test_switches_of_the_past_are_refused(switch: str, reason: str) -> None:
    with pytest.raises(SwitchRefused, match=reason):
        rung("kepler/r08").options(nvrtc.device_of("sm_90"), {switch: 1})


def planted(replacement: str) -> Source:
    which, device = rung("kepler/r07"), nvrtc.device_of("sm_90")
    source = kernel_source(which, which.tile_for(device), {})
    assert "reqd_work_group_size(DN, DM, 1)" in source.text
    return replace(source, text=source.text.replace("reqd_work_group_size(DN, DM, 1)", replacement))


def test_a_planted_spill_is_seen() -> None:
    code = inspect_source(planted("launch_bounds(1024, 2)"), "sm_90")  # leaves a thread 32 registers
    assert code.registers <= 32
    assert code.spill_stores > 0 and code.spill_loads > 0 and code.local_bytes > 0
    assert any(kind.startswith("STL") for kind in code.counts)


def test_a_planted_private_array_in_memory_is_seen() -> None:
    """Accumulators that are indexed with a variable live in memory, which the compiler does not count as spilled."""
    text = "__kernel void f(__global float *p, int n) { float a[32]; for (int i = 0; i < n; ++i) a[i % 32] = p[i]; p[0] = a[n]; }"
    code = inspect_source(Source("f", text, "f", {}), "sm_90")
    assert (code.spill_stores, code.spill_loads) == (0, 0)
    assert code.local_bytes == code.stack_bytes == 128
    which = rung("kepler/r07")
    table = _overview([(RungCompetitor(which, {}, "", which.tiles["gpu"][0]), code)], "the same in a ladder's table")
    assert (table.rows[0][0]["spill"], table.rows[0][0]["stack"]) == ("0", "128")


def test_an_error_in_the_text_is_named() -> None:
    text, file = "\n\n__kernel void gemm(int M) { int unused; return nonsense; }", "mine/r07.cl"
    broken = replace(planted("reqd_work_group_size(DN, DM, 1)"), text=text, file=file)
    with pytest.raises(BuildError) as caught:
        nvrtc.compile_cubin(broken, "sm_90", "cuda:0 (some GPU)")
    assert "kepler/r07.cl(3): error" in caught.value.log and "nonsense" in caught.value.log
    assert str(caught.value).startswith('mine/r07.cl:3: identifier "nonsense" is undefined\n')
    assert "kepler/r07" in str(caught.value) and "BM=128" in str(caught.value) and "cuda:0 (some GPU)" in str(caught.value)


def test_what_cuda_has_not_is_refused_before_compiling() -> None:
    device = nvrtc.device_of("sm_90")
    with pytest.raises(IllegalTile, match="no vector type this wide"):
        rung("kepler/r04").check(Tile(BM=32, BN=32, BK=32, TM=8, TN=16, VEC=16), {}, device)
    with pytest.raises(IllegalTile, match="local memory fits"):  # 64 KB in arrays; past 48 KB they must be dynamic
        rung("kepler/r09").check(Tile(BM=128, BN=128, BK=32, TM=8, TN=8, VA=4, VB=4), {}, device)
    with pytest.raises(UnknownName, match=r"no architecture 'sm_35'; there is: sm_75"):
        nvrtc.device_of("sm_35")


def test_a_cuda_text_is_taken_as_it_stands() -> None:
    text = 'extern "C" __global__ void f(float *p) { asm volatile("wgmma.fence.sync.aligned;"); p[0] = SIZE; }'
    plain = Source("f", text, "f", {"SIZE": 3}, "cuda")
    with pytest.raises(BuildError, match="wgmma"):  # an instruction that only sm_90a has
        nvrtc.compile_cubin(plain, "sm_90")
    assert nvrtc.compile_cubin(replace(plain, defines={"SIZE": 3, "ARCH_SPECIFIC": 1}), "sm_90").code.startswith(b"\x7fELF")


def test_classes_of_instructions() -> None:
    opcodes = ("LDG.E.128.CONSTANT", "LDG.E", "LDS.U.128", "STS.64", "LDS", "STG.E.128", "LDL.LU", "FFMA.FTZ", "IMAD.WIDE.U32")
    expected = ("LDG.128.CONSTANT", "LDG.32", "LDS.128", "STS.64", "LDS.32", "STG.128", "LDL.32", "FFMA", "integer")
    assert tuple(map(classify, opcodes)) == expected
    assert [classify(o) for o in ("BAR.SYNC.DEFER_BLOCKING", "LDGSTS.E.BYPASS.128", "BRA", "MOV", "SHFL.IDX", "UNHEARD.OF")] == [
        "BAR", "LDGSTS", "control", "move", "SHFL", "other",
    ]  # fmt: skip


def test_the_main_loop_is_the_one_that_computes() -> None:
    """Not the loop around it, not one that only loads, and not the jump to itself at the end."""
    lines = [
        ".L_x_0:", "IADD3 R1", ".L_x_1:", "LDG.E R2", "@P0 BRA `(.L_x_1)", ".L_x_2:", "FFMA R3", "FFMA R4", "LDS R5",
        "@!P1 BRA `(.L_x_2)", "FFMA R6", "@P2 BRA `(.L_x_0)", "EXIT", ".L_x_3:", "BRA `(.L_x_3)",
    ]  # fmt: skip
    code = [line if line.startswith(".L") else f"        /*{16 * i:04x}*/      {line} ;" for i, line in enumerate(lines)]
    listing = "\n".join(["//------ .text.f   ------", *code, "//------ .text.g  ------", "  /*0000*/ FFMA R1 ;"])
    whole, loop, _ = read_code(listing, "f")
    assert dict(loop.counts) == {"FFMA": 2, "LDS.32": 1, "control": 1}
    assert whole["FFMA"] == 3 and whole["control"] == 5


def test_inspect_command(tmp_path: Path) -> None:
    out = tmp_path / "counts.json"
    arguments = ["inspect", "kepler/r07", "--arch", "sm_80", "--tile", "BK=8", "--json", str(out)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert all(f"{kind}.128" in result.output for kind in ("LDG", "STS", "LDS", "STG")) and "FFMA %" in result.output
    (record,) = json.loads(out.read_text())
    assert record["tile"]["BK"] == 8 and record["loop"]["FFMA"] == 8 * 64 and 0.8 < record["ffma_share"] < 1


def test_inspect_refuses_what_there_is_not() -> None:
    for arguments, kind in (
        (["kepler/r07", "--arch", "sm_70"], UnknownName),
        (["kepler/r07", "--tile", "KU=2"], UnknownName),
        (["kepler/r07", "--tile", "BK=3"], IllegalTile),
        (["kepler/r07", "--switch", "SHUFFLE=1"], UnknownName),
    ):
        result = CliRunner().invoke(cli.app, ["inspect", *arguments])
        assert isinstance(result.exception, kind), (arguments, result.output)


def test_cuda_is_imported_when_it_is_needed_and_missing_says_how_to_get_it() -> None:
    program = (
        "import sys, toprung, toprung.backends, toprung.backends.cuda, toprung.lab.sass.machine_code, toprung.cli\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('cuda', 'pynvml')))\n"
        "sys.modules['cuda'] = None\n"
        "from toprung.backends import cuda, nvrtc\n"
        "print(cuda.backend().devices(), cuda.backend().advice(), nvrtc.missing())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "[]\n[] ['CUDA: cuda-core is not installed; pip install \"toprung[cuda]\"'] "
        'cuda-bindings is not installed; pip install "toprung[cuda]"'
    )


def test_every_gpu_is_usable_or_explained() -> None:
    found, advice = cuda.backend().devices(), cuda.backend().advice()
    assert found or advice
    assert all(line.startswith("CUDA: ") for line in advice)
    assert all(d.arch in nvrtc.architectures() and d.vector_widths == (1, 2, 4) for d in found)
