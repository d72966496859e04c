"""Plain fp32 products on Hopper: fused multiply-adds alone, operands through the copy engine. A call → launches.

The product wants A as K×M and B as K×N, on 16 bytes. An operand that lies otherwise goes through a layout pass first, into a
workspace; one launch lays out both. The product's blocks stay, each with its share of the tiles; where tiles do not fill whole
waves, some are cut along K and their parts added in a fixed order, so that results repeat to the bit. Long sums are computed in
chains, a launch each, where cuBLAS cuts them, too: errors are as small as its, and the loop is the same. The workspace is the
session's for a stream and serves all plans there in turn.

In import order: ``variant``, ``cost``, ``plan``.
"""

from toprung.hopper_fp32.cost import (
    MOST_CHAINS,
    Schedule,
    chains_of,
    choose,
    direct_a,
    direct_b,
    links,
    reckoned,
    schedule,
    schedules,
    supported,
    tiles_of,
    unfit,
)
from toprung.hopper_fp32.plan import LIMIT, Plan, launches, panels, workspace_bytes
from toprung.hopper_fp32.variant import ADDED_ROWS, FIRST, FOLDER, VARIANTS, Variant, lay_source, product_source

__all__ = [
    "ADDED_ROWS", "FIRST", "FOLDER", "LIMIT", "MOST_CHAINS", "VARIANTS", "Plan", "Schedule", "Variant", "chains_of", "choose",
    "direct_a", "direct_b", "launches", "lay_source", "links", "panels", "product_source", "reckoned", "schedule", "schedules",
    "supported", "tiles_of", "unfit", "workspace_bytes",
]  # fmt: skip
