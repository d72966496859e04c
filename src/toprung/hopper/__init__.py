"""fp32-accurate products on Hopper's matrix units: split into two fp16 terms, three products, and the guard. A call → launches.

The operands are split into a workspace (4 bytes an element, 8 a row), then multiplied; what two terms cannot carry is computed
again in plain fp32 by the same launch. Where tiles of C are too few for the device, K is cut into slices whose results lie in the
workspace, too, until a third launch adds them up. The workspace is the session's for a stream and serves all plans there in turn.

In import order: ``call``, ``sizes``, ``cost`` and ``kernels``, ``launches``.
"""

from toprung.hopper.call import PLAIN_BYTES, SHARED_BYTES, TWICE, Call, Product, Variant
from toprung.hopper.cost import (
    COSTS,
    LAUNCH,
    SHORTEST,
    Way,
    choose,
    faster,
    filling,
    most_slices,
    product_time,
    reckoned,
    split_time,
    waves,
    ways,
)
from toprung.hopper.kernels import SPLIT_HELD, SPLIT_THREADS, Splitting, product_source, reduce_source, source, split_source, spread
from toprung.hopper.launches import Plan, Prepared
from toprung.hopper.sizes import CHUNK, LIMIT, SHALLOWEST, ceil, depth_of, panels, supported, trimmed, width, workspace_bytes

__all__ = [
    "CHUNK",
    "COSTS",
    "LAUNCH",
    "LIMIT",
    "PLAIN_BYTES",
    "SHALLOWEST",
    "SHARED_BYTES",
    "SHORTEST",
    "SPLIT_HELD",
    "SPLIT_THREADS",
    "TWICE",
    "Call",
    "Plan",
    "Prepared",
    "Product",
    "Splitting",
    "Variant",
    "Way",
    "ceil",
    "choose",
    "depth_of",
    "faster",
    "filling",
    "most_slices",
    "panels",
    "product_source",
    "product_time",
    "reckoned",
    "reduce_source",
    "source",
    "split_source",
    "split_time",
    "spread",
    "supported",
    "trimmed",
    "waves",
    "ways",
    "width",
    "workspace_bytes",
]
