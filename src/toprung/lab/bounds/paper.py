"""The upper bound of SGEMM of Lai and Seznec (INRIA RR-7923, 2012): its twelve conditions, for square and for other tiles.

The paper's tile is square: a thread owns B_R×B_R elements of C, T_B threads a block of B_Sh×B_Sh with B_Sh = √(T_B·B_R²), and L
steps of K are fetched at a time. Here a thread owns TM×TN and a block BM×BN, BK steps at a time; with TM = TN = B_R, BM = BN = B_Sh
and BK = L every condition is the paper's to the letter. Its model has no caches: whatever a block reads comes from global memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toprung.errors import BadSize
from toprung.lab.bounds.arch import FERMI, Architecture
from toprung.lab.bounds.figures import Unknown

WARP = 32
WORD = 4
WIDTHS = (32, 64, 128)

MIXES: Mapping[str, Mapping[int, tuple[int, float]]] = MappingProxyType(
    {FERMI.key: MappingProxyType({32: (3, 31.3), 64: (6, 30.4), 128: (12, 24.5)})}
)
"""Measured by the paper's authors on a GTX 580: for each width of LDS, the FFMAs beside one of it in a loop of B_R = 6, and how
many instructions of single threads such a loop completes per shader clock and multiprocessor."""


@dataclass(frozen=True)
class Blocking:
    """Blocking of a product.

    Attributes
    ----------
    TM, TN : rows and columns of C that a thread owns
    threads : of a block
    BM, BN : rows and columns of a block
    BK : steps of K fetched at a time
    blocks : that share a multiprocessor
    index : registers for addresses and the loop
    registers : of a thread; None: what equation 7 asks for, as far as instructions can name it
    width : bits of a load from shared memory

    Raises
    ------
    BadSize
        threads that do not make up the block
    """

    TM: int
    TN: int
    BM: int
    BN: int
    BK: int
    blocks: int | None = None
    index: int = 7
    registers: int | None = None
    width: int = 64

    def __post_init__(self) -> None:
        for name in ("TM", "TN", "BM", "BN", "BK"):
            if getattr(self, name) < 1:
                raise BadSize(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.blocks is not None and self.blocks < 1:
            raise BadSize(f"a multiprocessor holds at least one block, not {self.blocks}")
        if self.BM % self.TM or self.BN % self.TN:
            raise BadSize(f"a block of {self.BM}×{self.BN} is not made of whole thread tiles of {self.TM}×{self.TN}")
        if self.width not in WIDTHS:
            raise BadSize(f"a load from shared memory has 32, 64 or 128 bits, not {self.width}")

    @classmethod
    def square(cls, B_R: int, T_B: int = 256, L: int = 16, **more: int) -> Blocking:
        """The paper's parameters; T_B must be a square."""
        side = math.isqrt(max(T_B, 0))
        if side * side != T_B or not T_B:
            raise BadSize(f"square blocks have a square number of threads, not {T_B}")
        return cls(B_R, B_R, side * B_R, side * B_R, L, **more)

    @property
    def threads(self) -> int:
        """T_B."""
        return (self.BM // self.TM) * (self.BN // self.TN)

    @property
    def tile(self) -> int:
        """Elements of C of a thread: B_R²."""
        return self.TM * self.TN

    @property
    def prefetch(self) -> int:
        """Registers that hold a thread's share of the next tiles on their way."""
        return -(-(self.BM + self.BN) * self.BK // self.threads)

    @property
    def least_registers(self) -> int:
        """Registers that a thread needs without prefetch: C, a column of one operand and an element of the other."""
        return self.tile + min(self.TM, self.TN) + 1

    @property
    def tight_registers(self) -> int:
        """Registers that a thread needs with prefetch and addresses."""
        return self.least_registers + self.prefetch + self.index

    @property
    def shared_words(self) -> int:
        """Words of a block's tiles of A and B."""
        return (self.BM + self.BN) * self.BK

    @property
    def intensity(self) -> float:
        """Operations for each word fetched from global memory: B_Sh, and in general twice BM·BN by BM + BN."""
        return 2 * self.BM * self.BN / (self.BM + self.BN)


@dataclass(frozen=True)
class Condition:
    """One of the paper's conditions or equations with its numbers.

    Attributes
    ----------
    number : in the paper
    rule : the formula
    numbers : the same with numbers in it
    value : what it comes to; Unknown where a figure is missing
    holds : whether it is met; None for an equation, and where it is unknown
    """

    number: int
    rule: str
    numbers: str
    value: float | Unknown
    holds: bool | None = None


@dataclass(frozen=True)
class Analysis:
    """The paper's twelve lines for one architecture and plan.

    ``throughput``: measured issue rate of the mix of FFMA and LDS, divided by the nominal rate; 1 if it was not measured.
    """

    of: Architecture
    plan: Blocking
    conditions: tuple[Condition, ...]
    p_mem: float | Unknown
    p_sm: float | Unknown
    throughput: float

    @property
    def possible(self) -> bool | None:
        """True if every condition holds; None where none fails and some are unknown."""
        held = [c.holds for c in self.conditions if c.number <= 7]
        return False if False in held else None if None in held else True

    @property
    def potential(self) -> float | Unknown:
        """Equation 12: the smaller of both, in GFLOP/s."""
        return smaller(self.p_mem, self.p_sm)

    @property
    def limiter(self) -> str:
        """Which of them it is."""
        if isinstance(self.p_mem, Unknown) or isinstance(self.p_sm, Unknown):
            return "unknown"
        return "global memory" if self.p_mem < self.p_sm else "the multiprocessor (shared-memory reads beside the multiplications)"


def analyse(of: Architecture, plan: Blocking, pipeline_clocks: float | None = None, throughput: float | None = None) -> Analysis:
    """All twelve conditions.

    Parameters
    ----------
    pipeline_clocks : clocks until a multiply-add may use the result of the one before
    throughput : the part of the issue rate that the mix of FFMA and LDS reaches; by default the paper's measurement, else 1
    """
    R = budget(of, plan)
    no_registers = of.lacking("registers_thread")
    blocks = resident(of, plan) if plan.blocks is None else plan.blocks
    threads: float | Unknown = blocks if isinstance(blocks, Unknown) else blocks * plan.threads
    taken = threads if isinstance(threads, Unknown) else no_registers if R is None else threads * R
    words = blocks if isinstance(blocks, Unknown) else blocks * plan.shared_words
    issue_clocks = None if of.ffma_lanes is None else WARP / of.ffma_lanes  # clocks per multiply-add of a warp
    measured = mix_throughput(of, plan.width) if throughput is None else throughput
    factor, low = 32 / plan.width, min(plan.TM, plan.TN)  # loads for each float of an operand: 1, 1/2, 1/4
    P_mem, P_SM = p_mem(of, plan), p_sm(of, plan, measured)

    rule = "T_SM ≥ 32 · pipeline latency / issue latency"
    if pipeline_clocks is None or issue_clocks is None:
        lacking = ("latency of a multiply-add",) * (pipeline_clocks is None) + of.lacking("ffma_lanes").missing
        first = Condition(1, rule, f"{_text(threads)} ≥ ?", Unknown(lacking))
    elif isinstance(threads, Unknown):
        first = Condition(1, rule, "?", threads)
    else:
        needed = WARP * pipeline_clocks / issue_clocks
        numbers = f"{threads:g} ≥ 32 · {pipeline_clocks:g} / {issue_clocks:g} = {needed:g}"
        first = Condition(1, rule, numbers, threads, threads >= needed)
    loads = (plan.BM * plan.BK, plan.BN * plan.BK)
    left = [n % plan.threads for n in loads]
    shares = ", ".join(f"{n} mod {plan.threads} = {rest}" for n, rest in zip(loads, left, strict=True))
    space = None if of.shared_bytes is None else of.shared_bytes // WORD
    mixed = f"mix at {100 * measured:.1f} % of the issue rate" if measured < 1 else "mix not measured: taken as 100 %"
    bandwidth = "?" if of.dram_bytes_per_s is None else f"{of.dram_bytes_per_s / WORD / 1e9:.4g}"
    tight = f"{plan.tile} + {plan.prefetch} + {low} + 1 + {plan.index}"
    conditions = (
        first,
        _at_most(2, "R_T ≤ R_Max", str(R), no_registers if R is None else R, of.registers_thread, no_registers),
        _at_most(3, "T_SM · R_T ≤ R_SM", f"{_plain(threads)} · {R}", taken, of.registers, of.lacking("registers")),
        _at_most(4, "TM·TN + min(TM, TN) + 1 < R_T", f"{plan.tile} + {low} + 1", plan.least_registers, R, no_registers, True),
        Condition(5, "BM·BK and BN·BK mod T_B = 0", shares, max(left), not any(left)),
        _at_most(
            6, "Blk · (BM + BN) · BK ≤ Sh_SM, in words", f"{_plain(blocks)} · {plan.BM + plan.BN} · {plan.BK}", words, space,
            of.lacking("shared_bytes"),
        ),
        _at_most(7, "TM·TN + prefetch + min(TM, TN) + 1 + R_index ≤ R_T", tight, plan.tight_registers, R, no_registers),
        Condition(8, "B_Sh = 2·BM·BN / (BM + BN) = √(T_B·B_R²)", f"{plan.BM}×{plan.BN}", plan.intensity),
        Condition(9, "Throughput_Factor: LDS an element, and the rate of the mix", f"{factor:g}, {mixed}", factor),
        Condition(10, "P_mem = BW · B_Sh", f"{bandwidth} G words/s · {plan.intensity:g}", P_mem),
        Condition(
            11, "P_SM = TM·TN / (TM·TN + (TM + TN) · factor) · P_theoretical",
            f"{plan.tile} / ({plan.tile} + {plan.TM + plan.TN} · {factor:g}) · {measured:.3g} · {_text(of.peak_gflops)}", P_SM,
        ),
        Condition(12, "P_potential = min(P_mem, P_SM)", f"min({_text(P_mem)}, {_text(P_SM)})", smaller(P_mem, P_SM)),
    )  # fmt: skip
    return Analysis(of, plan, conditions, P_mem, P_SM, measured)


def budget(of: Architecture, plan: Blocking) -> int | None:
    """R_T: the plan's, or what equation 7 asks for in the hardware's eights, at most R_Max; None if that is unknown."""
    if plan.registers is not None or of.registers_thread is None:
        return plan.registers
    return min(of.registers_thread, -(-(plan.tight_registers + 1) // 8) * 8)


def resident(of: Architecture, plan: Blocking) -> int | Unknown:
    """Blocks that a multiprocessor holds by its registers, its shared memory and its own limits; one at least, to be refused."""
    registers = budget(of, plan)
    if registers is None or of.registers is None or of.shared_bytes is None:
        return of.lacking("registers", "shared_bytes", "registers_thread")
    fits = [of.registers // (registers * plan.threads), of.shared_bytes // (WORD * plan.shared_words)]
    fits += [of.threads // plan.threads] if of.threads is not None else []
    fits += [of.blocks] if of.blocks is not None else []
    return max(1, min(fits))


def ffma_share(TM: int, TN: int, width: int = 32) -> float:
    """Multiply-adds in the main loop, as a part of them and the loads from shared memory: Figure 1."""
    return TM * TN / (TM * TN + (TM + TN) * 32 / width)


def mix_throughput(of: Architecture, width: int) -> float:
    """The part of its issue rate that the mix of FFMA and LDS reached where somebody measured it; else 1, no penalty."""
    mix = MIXES.get(of.key, {}).get(width)
    return 1.0 if mix is None or of.issue_lanes is None else mix[1] / of.issue_lanes


def p_mem(of: Architecture, plan: Blocking) -> float | Unknown:
    """Equation 10: GFLOP/s that global memory feeds without any cache."""
    if of.dram_bytes_per_s is None:
        return of.lacking("dram_bytes_per_s")
    return of.dram_bytes_per_s / WORD * plan.intensity / 1e9


def p_sm(of: Architecture, plan: Blocking, throughput: float = 1.0) -> float | Unknown:
    """Equation 11: GFLOP/s that a multiprocessor's issue slots leave for multiplications.

    The paper's devices issue as many instructions as they have lanes for multiply-adds. Where more are issued, loads are free
    until the slots beside the multiply-adds are full. What the mix reaches is unknown where a rate that it depends on is.
    """
    peak = of.peak_gflops
    if of.ffma_lanes is None or of.lds_lanes is None or of.issue_lanes is None:
        return of.lacking("issue_lanes", "ffma_lanes", "lds_lanes")
    if isinstance(peak, Unknown):
        return peak
    slots = of.issue_lanes / of.ffma_lanes
    return min(1.0, slots * ffma_share(plan.TM, plan.TN, plan.width)) * throughput * peak


def smaller(a: float | Unknown, b: float | Unknown) -> float | Unknown:
    """The minimum, unknown if either is."""
    missing = [m for v in (a, b) if isinstance(v, Unknown) for m in v.missing]
    if missing:
        return Unknown(tuple(dict.fromkeys(missing)))
    assert not isinstance(a, Unknown) and not isinstance(b, Unknown)
    return min(a, b)


def _at_most(
    number: int, rule: str, numbers: str, value: float | Unknown, limit: float | None, lacking: Unknown, strict: bool = False
) -> Condition:
    sign = "<" if strict else "≤"
    most = "?" if limit is None else f"{limit:.10g}"
    if isinstance(value, Unknown) or limit is None:
        return Condition(number, rule, f"{numbers} {sign} {most}", value if isinstance(value, Unknown) else lacking)
    equals = "" if numbers == f"{value:.10g}" else f" = {value:.10g}"
    return Condition(number, rule, f"{numbers}{equals} {sign} {most}", value, value < limit if strict else value <= limit)


def _plain(value: float | Unknown) -> str:
    return "?" if isinstance(value, Unknown) else f"{value:g}"


def _text(value: float | Unknown) -> str:
    return "?" if isinstance(value, Unknown) else f"{value:,.0f}"
