"""Rung 8: rung 7 with what one family of GPUs offers beyond the language, each behind a switch."""

from collections.abc import Callable
from dataclasses import replace

from toprung.device import Device
from toprung.lab.ladders.kepler.r07_wide_loads import RUNG as BEFORE
from toprung.lab.rung import Switch
from toprung.tile import Rule


def _needs_cuda(what: str) -> Callable[[Device], str]:
    return lambda device: "" if device.backend == "cuda" else f"{what}; only CUDA can ask for it"


def _shuffle(device: Device) -> str:
    return "" if device.subgroup else "its work-items cannot read each other's registers (no sub-group shuffle)"


RUNG = replace(
    BEFORE,
    idea="GPU specifics, switchable",
    expects="read-only loads some 7 % on Kepler, nothing where all loads take that way; shuffles cost instructions",
    switches=(
        Switch("READ_ONLY", "tiles are loaded through the read-only cache", _needs_cuda("OpenCL C has no read-only load")),
        Switch(
            "SHUFFLE",
            "work-items of a row share the column of A between registers",
            _shuffle,
            rules=(
                Rule("DN ≥ TM", "each of TM work-items reads one element for all", lambda t, d: t.DN >= (t.TM or 1)),
                Rule(
                    "DN divides the sub-group",
                    "work-items of a row must lie in one sub-group",
                    lambda t, d: (d.subgroup or 1) % t.DN == 0 and t.work_items % (d.subgroup or 1) == 0,
                ),
            ),
        ),
        Switch("INDEX32", "offsets into the matrices have 32 bits (products below 2³¹ elements)"),
        Switch(
            "CARVEOUT",
            "all of the L1 cache that can be becomes shared memory",
            _needs_cuda("the L1/shared split is the driver's choice"),
        ),
        Switch(
            "BANK_WIDTH",
            "shared-memory banks of 8 bytes",
            lambda device: "only Kepler (SM 3.x) had banks of two widths; they are 4 bytes wide everywhere since",
        ),
        Switch(
            "PTX32",
            "32-bit addresses",
            lambda device: "32-bit device code was removed from NVIDIA's compilers with CUDA 12; use INDEX32",
        ),
    ),
)
