"""Names of the modules that make products, in the forward pass and in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.module_tracker import ModuleTracker

KEPT = 1 << 17
"""Nodes of autograd whose modules are remembered; a program that runs for long makes more."""


class Modules:
    """A block in which ``of`` knows the module that runs."""

    def __init__(self) -> None:
        self._tracker = ModuleTracker()
        self._made: dict[int, str] = {}

    def __enter__(self) -> Modules:
        self._tracker.__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        self._tracker.__exit__(*what)

    def of(self, *operands: Any) -> tuple[str, bool]:
        """Return the path of the module that makes a product, and True if it does so in the backward pass.

        To be called where the product runs, below autograd. The path is empty outside of modules.
        """
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._made.get(node._sequence_nr(), ""), True
        module = max(self._tracker.parents - {"Global"}, key=len, default="")
        if torch.is_grad_enabled() and any(x.requires_grad for x in operands):
            if len(self._made) >= KEPT:
                self._made.clear()
            # autograd has just numbered the node that will run in the backward pass
            self._made.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
        return module, False
