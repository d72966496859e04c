"""Sentences that reports and audits share."""

UNSEEN = (
    "convolutions and recurrent layers (cuDNN)",
    "fused attention (scaled_dot_product_attention but for its math)",
    "decompositions and solvers (cuSOLVER)",
    "code that was compiled ahead of time (AOTInductor)",
)
"""Products that do not come by aten's operators, and are PyTorch's whatever is enabled."""
