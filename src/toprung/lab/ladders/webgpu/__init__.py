"""The webgpu ladder: the ideas of the kepler ladder in WGSL, which browsers compile for every GPU. Bindings have one type each, no
pointer is cast, control flow around a barrier is uniform, and every index is checked; the rungs show what that costs.

The command `toprung web` puts the same files on a page that climbs in a browser.
"""

TITLE = "WGSL SGEMM, for every GPU with WebGPU"
ROUTINE = "gemm"
NOTE = (
    "finite data only: WGSL lets a compiler assume that no value overflows or is Inf or NaN, and guarantees neither subnormal "
    "numbers nor that fma() rounds once"
)
