"""Compile every kernel for CUDA with this environment's NVRTC; prints its version, then what is amiss, a line each."""

import re
import sys

import once
from toprung.backends import nvrtc
from toprung.device import Device
from toprung.gemm.desc import GemmDesc, GemvDesc
from toprung.kernels.base import candidates
from toprung.kernels.build import sources_of
from toprung.kernels.record import kernel_source
from toprung.kernels.registry import families
from toprung.lab.rung import ladder, ladder_names

H200 = Device(
    "cuda:0", "cuda", "NVIDIA H200", "NVIDIA", "", "", "gpu", 132, 1980, 128, 49152, 140 << 30, 140 << 30, 1024, (1024, 1024, 64),
    256, (1, 2, 4), 32, "sm_90", 232448,
)  # fmt: skip

PRODUCTS = (
    GemmDesc(4096, 4096, 4096, lda=4096, ldb=4096, ldc=4096, align_a=4, align_b=4, align_c=4),
    GemmDesc(512, 512, 8192, lda=8192, ldb=512, ldc=512, align_a=4, align_b=4, align_c=4),
    GemmDesc(257, 255, 129, trans_a=True, lda=257, ldb=255, ldc=255),
    GemmDesc(4096, 8, 4096, lda=4096, ldb=8, ldc=8, align_a=4, align_b=4, align_c=4),
    GemvDesc(4096, 4096, trans=True, lda=4096, align_a=4, align_x=4),
)  # fmt: skip


def main() -> None:
    """Compile all, and say what is amiss. The tests' store has what this NVRTC compiled before."""
    nvrtc._compiled = once.nvrtc(nvrtc._compiled)
    device, compiled = nvrtc.device_of("sm_90"), set()
    print(nvrtc.version(), *nvrtc.include_paths())
    for name in ladder_names():
        for rung in ladder(name).rungs:
            options = rung.options(device)
            if rung.source.suffix in (".cl", ".cu") and not rung.needs(device):
                nvrtc.compile_cubin(kernel_source(rung, rung.tile_for(device, options), options), "sm_90")
                compiled.add(str(rung))
    for desc in PRODUCTS:
        for family in families():
            if not family.own or family.supports(H200, desc):
                continue
            best = sorted(candidates(family, H200, desc), key=lambda config: family.cost(H200, desc, config))[:2]
            for config in best:
                for source in sources_of(family, H200, desc, config):
                    if str(source) in compiled:
                        continue
                    compiled.add(str(source))
                    said = nvrtc.compile_cubin(source, "sm_90").log
                    spills = max(int(n) for n in re.findall(r"(\d+) bytes (?:stack|spill)", said))
                    if spills > 64 or "serialized" in said:
                        print(f"{family.name} {config}: {spills} bytes of local memory, {'serialized' * ('serialized' in said)}")
    print(f"{len(compiled)} compiled")


if __name__ == "__main__":
    sys.exit(main())
