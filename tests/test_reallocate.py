"""Other registers and another order for compiled loops: fewer bank conflicts, the same program, and faults that are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import require
from toprung import cli
from toprung.backends import nvrtc
from toprung.backends.base import Source
from toprung.errors import BadCubin, UnknownName, Unproven
from toprung.kernels.blocks import BLOCKS
from toprung.kernels.record import Own, kernel_source
from toprung.kernels.tiled.record import RECORD
from toprung.lab.rung import rung
from toprung.lab.sass.machine_code import inspect_source
from toprung.lab.sass.reallocate import reallocate
from toprung.lab.sass.reallocate.banks import reads, sources_of
from toprung.lab.sass.reallocate.code import CONTROL, FIRST, REUSE, THIRD, WAITS, WRITTEN, Code, Instruction, decode
from toprung.lab.sass.reallocate.marks import marked
from toprung.lab.sass.reallocate.order import in_order
from toprung.lab.sass.reallocate.proof import prove
from toprung.lab.sass.reallocate.webs import until_waited, webs

QUICK = ("turing/r10",)
SLOW = ("turing/r15", "library 128x128", "turing/r11", "turing/r13", "turing/r14", "library 128x256")


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    require(not nvrtc.missing(), f"CUDA: {nvrtc.missing()}")


@cache
def source(name: str) -> Source:
    device = nvrtc.device_of("sm_90")
    if name.startswith("library"):
        one = BLOCKS[["128x256", "128x128"].index(name.split()[1])]
        switches = {"VC": one.tile.VEC, "AHEAD": one.ahead, "ORDER": one.order, "RESIDENT": one.asked, "CHAIN": 0}
        return kernel_source(RECORD, one.tile, RECORD.options(device, switches))
    which = rung(name)
    return kernel_source(which, which.tile_for(device), which.options(device, {}))


@cache
def compiled(name: str) -> bytes:
    return nvrtc.compile_cubin(source(name), "sm_90").code


@cache
def decoded(name: str) -> Code:
    return decode(compiled(name), "gemm")


@cache
def sound() -> Code:
    code = decoded("turing/r15")
    prove(code, code)
    return code


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_fewer_cycles_are_lost_to_banks_and_the_proof_holds(name: str) -> None:
    code, symbol = compiled(name), source(name).symbol
    _, renamed = reallocate(code, symbol)
    out, both = reallocate(code, symbol, reorder=True)
    assert renamed.moved == 0 < renamed.renamed and both.moved > 300
    assert both.before == renamed.before and both.before.instructions == both.after.instructions
    assert renamed.after.extra_cycles < renamed.before.extra_cycles
    assert both.after.conflicts_each <= (0.105 if name == "library 128x128" else 0.085)
    assert both.after.extra_cycles < renamed.after.extra_cycles
    assert 1 < renamed.speedup < both.speedup and 0.85 < both.share < 1
    # and as the rest of the project reads machine code
    assert len(out) == len(code) and out != code
    before, after = (inspect_source(replace(source(name), language="cubin", binary=b), "sm_90") for b in (code, out))
    assert before.counts == after.counts and before.loop.counts == after.loop.counts and before.registers == after.registers
    assert after.loop.reads.extra_cycles < 1.3 * before.loop.reads.extra_cycles  # marks held for one instruction only


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, "turing/r15"])
def test_the_compilers_own_marks_follow_the_rule(name: str) -> None:
    """Each is met by the next multiply-add that reads that bank at that place; and so are all that are found anew."""
    code = decoded(name)
    own = [code.instructions[i].reuse for i in code.loop if code.instructions[i].multiplies]
    ours = [one.reuse for one in (marked(code).instructions[i] for i in code.loop) if one.multiplies]
    agreed = sum(a == b for a, b in zip(own, ours, strict=True))
    assert agreed >= 0.95 * len(own)
    assert all(b & ~a == 0 for a, b in zip(own, ours, strict=True))  # none that the compiler does not set


@pytest.mark.slow
def test_nothing_is_changed_twice() -> None:
    once, first = reallocate(compiled("turing/r10"), "gemm", reorder=True)
    again, second = reallocate(once, "gemm")
    assert second.before == first.after and second.after.extra_cycles <= first.after.extra_cycles
    assert len(again) == len(once)


def test_values_that_are_alive_together_are_in_different_registers() -> None:
    found = webs(decoded("turing/r15"))
    free = [w for w, web in enumerate(found.all) if web.free and web.uses]
    assert len(free) > 500
    for w in free:
        assert not any(found.near[w] >> o & 1 and web.register == found.all[w].register for o, web in enumerate(found.all))


def ffmas(code: Code) -> list[Instruction]:
    return [code.instructions[i] for i in code.loop if code.instructions[i].multiplies]


def with_line(code: Code, one: Instruction, at: int, width: int, value: int) -> Code:
    """A code with other bits, taken apart anew from its bytes."""
    lines = list(code.instructions)
    lines[one.index] = one.with_bits(at, width, value)
    whole = replace(code, instructions=tuple(lines)).into(compiled("turing/r15"))
    return decode(whole, "gemm")


def another(code: Code) -> int:
    """An accumulator other than that of the first multiply-add."""
    return next(one.sources[2] for one in ffmas(code) if one.sources[2] != ffmas(code)[0].sources[2])


FAULTS: dict[str, tuple[Callable[[Code], Code], str]] = {
    "two sums in one register": (lambda c: with_line(c, ffmas(c)[0], WRITTEN, 8, another(c)), "does not hold what"),
    "another addend": (lambda c: with_line(c, ffmas(c)[0], THIRD, 8, another(c)), "does not hold what"),
    "another factor": (lambda c: with_line(c, ffmas(c)[5], FIRST, 8, ffmas(c)[5].sources[0] + 1), "does not hold what"),
    "a register that there is not": (lambda c: with_line(c, ffmas(c)[0], WRITTEN, 8, 200), "not to be had"),
    "a vector's register": (
        lambda c: with_line(c, next(i for i in c.instructions if i.name == "LDS.128"), WRITTEN, 8, 64),
        "not to be changed",
    ),
    "another instruction": (lambda c: with_line(c, ffmas(c)[0], 0, 12, 0x221), "another instruction|more than registers"),
    "a sign": (lambda c: with_line(c, ffmas(c)[0], 72, 1, 1), "another instruction|more than registers"),
    "a wait that is gone": (
        lambda c: with_line(c, next(i for i in ffmas(c) if i.waits), WAITS, 6, 0),
        "less is waited for",
    ),
    "too soon": (
        lambda c: with_line(c, next(i for i in c.instructions if i.stall > 3 and i.kind == "IADD3"), CONTROL, 4, 1),
        "another time",
    ),
    "a mark for nobody": (lambda c: with_line(c, ffmas(c)[7], REUSE, 4, 7), "marks R"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    code = sound()
    plant, says = FAULTS[fault]
    with pytest.raises(Unproven, match=says):
        prove(code, plant(code))


def exchanged(a: int, b: int, count: int) -> list[int]:
    order = list(range(count))
    order[a], order[b] = b, a
    return order


def proved(code: Code, order: Sequence[int]) -> None:
    whole = marked(in_order(code, order)).into(compiled("turing/r15"))
    prove(code, decode(whole, "gemm"), order)


def test_only_an_order_that_keeps_what_depends_is_proved() -> None:
    code = decoded("turing/r15")
    count, lines = len(code.instructions), ffmas(code)
    proved(code, exchanged(lines[20].index, lines[21].index, count))
    first = lines[0]
    later = next(one for one in lines[1:] if one.sources[2] == first.target)
    with pytest.raises(Unproven, match="depends on"):
        proved(code, exchanged(first.index, later.index, count))
    load = next(i for i in range(code.loop.start + 20, code.loop.stop) if code.instructions[i].kind == "LDS")
    with pytest.raises(Unproven, match="may not be"):
        proved(code, exchanged(load, load + 1, count))
    with pytest.raises(Unproven, match="stands twice"):
        prove(code, code, [0, *range(count - 1)])
    # a multiply-add that comes before the barrier of the load it reads from
    waiting = next(one for one in lines[10:] if one.waits)
    with pytest.raises(Unproven, match=r"does not wait|depends on"):
        proved(code, exchanged(waiting.index, waiting.index - 1, count))


def test_a_load_that_has_read_has_not_written() -> None:
    """A load may have a barrier for either: a multiply-add that waits for its sources to be read has no data yet."""
    code = decoded("turing/r15")
    load, waiting = next(
        (load, w) for w in ffmas(code)[10:] if w.waits and code.instructions[w.index - 1].multiplies
        for load in code.instructions[w.index - 40 : w.index - 8] if load.kind == "LDS" and load.written
        and w.waits >> load.written[0] & 1 and set(load.writes) & set(w.reads)
    )  # fmt: skip
    between = code.instructions[load.index : waiting.index]
    sooner = next(one for one in between[2:-2] if one.multiplies and not one.waits)
    unused = next(b for b in range(6) if b not in load.written and not any(i.waits >> b & 1 for i in between))
    code = with_line(code, load, CONTROL + 8, 3, unused)
    whole = replace(code, instructions=tuple(
        i.with_bits(WAITS + unused, 1, 1) if i.index == sooner.index else i for i in code.instructions
    )).into(compiled("turing/r15"))  # fmt: skip
    code = decode(whole, "gemm")
    load = code.instructions[load.index]
    assert load.barriers == (*load.written, unused) and sooner.index in until_waited(code, load)[1]
    assert sooner.index in until_waited(code, load, wrote=True)[0]
    order = exchanged(waiting.index, waiting.index - 1, len(code.instructions))
    with pytest.raises(Unproven, match="does not wait for"):
        prove(code, decode(marked(in_order(code, order)).into(whole), "gemm"), order)


REGISTERS = """
extern "C" __global__ __launch_bounds__(384, 1) void gemm(const float *p, float *q, int n) {
    __shared__ float tile[2048];
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int i = threadIdx.x; i < 2048; i += 128) tile[i] = p[i];
        asm volatile("bar.arrive 1, 384;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        asm volatile("bar.sync 1, 384;");
        float sum[8][8] = {};
        for (int k = 0; k < n; ++k) {
            float a[8], b[8];
            for (int i = 0; i < 8; ++i) a[i] = tile[16 * k + i], b[i] = tile[16 * k + 8 + i];
            for (int i = 0; i < 8; ++i) for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        for (int i = 0; i < 8; ++i) for (int j = 0; j < 8; ++j) q[(i * 8 + j) * 256 + threadIdx.x - 128] = sum[i][j];
    }
}
"""


def test_registers_are_those_that_the_branch_with_the_loop_has_asked_for() -> None:
    whole = nvrtc.compile_cubin(Source("asks", REGISTERS, "gemm", {"ARCH_SPECIFIC": 1}, "cuda"), "sm_90").code
    code = decode(whole, "gemm")
    asks = [i for i in code.instructions if i.kind == "USETMAXREG"]
    assert {code.limits[i.next[0]] for i in asks} == {230, 38} and code.launched == 168
    assert code.registers == 230  # and two that the compiler never uses
    out, report = reallocate(whole, "gemm", reorder=True)
    assert len(out) == len(whole) and report.after.extra_cycles < report.before.extra_cycles
    one = next(i for i in ffmas(code) if i.target < 100)
    line = list(code.instructions)
    line[one.index] = one.with_bits(WRITTEN, 8, 231)
    with pytest.raises(Unproven, match="not to be had"):
        prove(code, decode(replace(code, instructions=tuple(line)).into(whole), "gemm"))


def test_what_is_not_understood_is_left_as_it_is() -> None:
    none = 'extern "C" __global__ void gemm(float *p) { p[threadIdx.x] = 1; }'
    with pytest.raises(BadCubin, match="no loop of multiply-adds"):
        reallocate(nvrtc.compile_cubin(Source("none", none, "gemm", {}, "cuda"), "sm_90").code, "gemm")
    calls = """
    __device__ __noinline__ float g(float x, float y) { return x * y + sqrtf(x); }
    extern "C" __global__ void gemm(float *p, int n) { for (int i = 0; i < n; ++i) p[i] = g(p[i], p[i + 1]) * p[i + 2] + 1; }
    """
    with pytest.raises(BadCubin, match="left as it is"):
        reallocate(nvrtc.compile_cubin(Source("calls", calls, "gemm", {}, "cuda"), "sm_90").code, "gemm")
    with pytest.raises(UnknownName, match="no kernel"):
        reallocate(compiled("turing/r15"), "gemv")


def test_what_is_counted_is_what_the_listing_says() -> None:
    code = decoded("turing/r15")
    listed = inspect_source(source("turing/r15"), "sm_90").loop
    lines = [code.instructions[i] for i in code.loop]
    assert reads(lines, 1, by_bank=False) == listed.reads
    assert sum(sources_of(one) is not None for one in lines) == listed.counts["FFMA"]


def test_the_command_stores_what_can_be_run(tmp_path: Path) -> None:
    out = tmp_path / "r15.cubin"
    done = CliRunner().invoke(cli.app, ["inspect", "turing/r15", "--cubin", str(out), "--reorder"])
    assert done.exit_code == 0 and "with other registers" in done.output, done.output
    which = rung("turing/r15")
    found = inspect_source(kernel_source(which, which.tile_for(nvrtc.device_of("sm_90")), {}, Own.read(out)), "sm_90")
    assert found.loop.counts["FFMA"] == 512 and out.with_name("r15.cubin.json").exists()
    done = CliRunner().invoke(cli.app, ["inspect", "turing/r15", "--reallocate"])
    assert isinstance(done.exception, UnknownName)
