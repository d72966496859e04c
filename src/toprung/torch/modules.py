"""Names of the modules that make products, in the forward pass and in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.module_tracker import ModuleTracker

from toprung.dispatch.recent import Recent

KEPT = 1 << 17
"""Number of autograd nodes, the last, whose modules are remembered; a program that runs for long makes more."""


class Modules:
    """A block in which ``of`` knows the module that runs."""

    def __init__(self) -> None:
        self._tracker = ModuleTracker()
        self._made: Recent[str] = Recent(KEPT)

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
            return self._made[node._sequence_nr()] or "", True
        module = max(self._tracker.parents - {"Global"}, key=len, default="")
        if torch.is_grad_enabled() and any(x.requires_grad for x in operands):
            number = torch._C._autograd._get_sequence_nr() - 1  # of the node that will run in the backward pass
            if self._made[number] is None:
                self._made.keep(number, module)
        return module, False
