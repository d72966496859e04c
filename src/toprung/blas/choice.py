"""What was chosen for a call, and the records of what is weighed for it.

Everything between deciding (``blas/choose.py``) and launching (``blas/launches.py``) speaks in these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from toprung.store import Entry
from toprung.tile import Tile

PassedOver = tuple[tuple[str, str], ...]
"""What else there was, and why not, in pairs."""

FFMA = "ffma"
"""The choice's kernel for plain fp32 on Hopper, see ``toprung.hopper_fp32``."""

SHOWN = 4
"""Ways passed over that a choice names."""


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    kernel : its stem in ``blas/kernels``, or ``"cublas"``, ``"ffma"`` or ``"fp32x"``
    tile : with ``SPLIT_K`` where the sums are cut; None for somebody else's
    options : its switches
    why : a sentence
    passed_over : what else there was, and why not
    weighed : whether what is installed was measured beside it, so that nothing more is to be decided
    unproven : the store's entry that it follows, where driver, compiler or kernel are others than those it was measured with;
        the choice may be used when ``toprung.blas.proof`` has found it right here
    """

    kernel: str
    tile: Tile | None
    options: tuple[tuple[str, int], ...] = ()
    why: str = ""
    passed_over: PassedOver = ()
    weighed: bool = False
    unproven: Entry | None = field(default=None, repr=False, hash=False)

    @property
    def slices(self) -> int:
        """Slices of K whose results another pass adds."""
        return (self.tile.SPLIT_K or 1) if self.tile else 1


@dataclass(frozen=True)
class Candidate:
    """A tile of the tunable product for a GPU.

    Attributes
    ----------
    tile : with the widest accesses; narrower ones replace them where the operands need it
    efficiency : share of the multiply-adds it starts, of those there are, where nothing else limits and operands lie well
    resident : work-groups a multiprocessor holds; registers decide
    asked : how many the compiler is told to leave registers for; 0: as it comes
    ahead, order : see the kernel
    """

    tile: Tile
    efficiency: float
    resident: int = 1
    asked: int = 0
    ahead: int = 1
    order: int = 0


class Way(NamedTuple):
    """A way to compute a call on a GPU.

    Attributes
    ----------
    seconds : by the model
    kernel : as a choice names it
    tile : as it is compiled; of Hopper's kernel the one that is taken there
    slices : of K
    candidate : where the tile comes from, for the tunable product
    """

    seconds: float
    kernel: str
    tile: Tile
    slices: int = 1
    candidate: Candidate | None = None

    @property
    def name(self) -> str:
        """As receipts name it."""
        return "hopper_fp32/ffma" if self.kernel == FFMA else f"blas/{self.kernel} {self.tile}"
